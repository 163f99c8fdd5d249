//! Encrypted values in the text of a document: the text around them is kept as it is, with comments and
//! order.

use std::ops::Range;

use super::keys::{Identity, Recipient};
use super::sealed::{SealedError, SealedType, is_age_file, open, seal};
use crate::model::secret::SEALED;

/// Start and end of a decrypted value in an editor.
const OPENED: &str = "DEC[";
const OPENED_END: &str = "]!";

const SEALED_END: &str = "]";

/// Document that can't be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentSecretError {
    #[error("line {line}: {cause}")]
    Value {
        line: usize,
        #[source]
        cause: SealedError,
    },
    #[error(
        "line {0}: expected DEC[new,TEXT]! or DEC[NUMBER,TEXT]! with a number of this document"
    )]
    Opened(usize),
    #[error("line {0}: DEC[ without ]! at the end of its value")]
    NoEnd(usize),
    #[error("line {0}: ]! without DEC[ at the start of its value")]
    NoStart(usize),
    #[error("line {0}: the document contains {OPENED}, which marks decrypted values")]
    Marker(usize),
}

/// Returns a document with every value encrypted for other recipients, and the number of values.
pub fn rekey(
    text: &str,
    identities: &[Identity],
    recipients: &[Recipient],
) -> Result<(String, usize), DocumentSecretError> {
    let spans = sealed_spans(text)?;
    let rewritten = rewrite(text, &spans, |value| {
        let plain = open(value.text, identities)?;
        let kind = SealedType::of(&plain);
        Ok(seal(&plain.to_string(), kind, recipients)?)
    })?;
    Ok((rewritten, spans.len()))
}

/// Returns a document with every value decrypted as `DEC[NUMBER,TEXT]!`, for an editor. Values that
/// contain one of these marks stay encrypted.
pub fn decrypt_document(
    text: &str,
    identities: &[Identity],
) -> Result<String, DocumentSecretError> {
    if let Some(at) = text.find(OPENED) {
        return Err(DocumentSecretError::Marker(line_of(text, at)));
    }
    rewrite(text, &sealed_spans(text)?, |value| {
        let plain = open(value.text, identities)?.to_string();
        Ok(match plain.contains(OPENED) || plain.contains(OPENED_END) {
            true => value.text.to_owned(),
            false => format!("{OPENED}{},{plain}{OPENED_END}", value.number),
        })
    })
}

/// Encrypts the values of an edited document. Values that were not changed stay as they are in
/// `original`. A mark without its other half is an error, so that no value is stored as it was typed.
pub fn encrypt_document(
    edited: &str,
    original: &str,
    identities: &[Identity],
    recipients: &[Recipient],
) -> Result<String, DocumentSecretError> {
    let before: Vec<&str> = sealed_spans(original)?
        .into_iter()
        .filter_map(|span| original.get(span))
        .collect();
    let spans = opened_spans(edited)?;
    check_ends(edited, &spans, original)?;
    rewrite(edited, &spans, |value| {
        let invalid = || RewriteError::Opened;
        let inside = value.text.strip_prefix(OPENED);
        let inside = inside.and_then(|it| it.strip_suffix(OPENED_END));
        let (number, plain) = inside
            .and_then(|it| it.split_once(','))
            .ok_or_else(invalid)?;
        if number == "new" {
            return Ok(seal(plain, SealedType::Str, recipients)?);
        }
        let number: usize = number.parse().map_err(|_| invalid())?;
        let sealed = number.checked_sub(1).and_then(|at| before.get(at));
        let sealed = *sealed.ok_or_else(invalid)?;
        let old = open(sealed, identities)?;
        match old.to_string() == plain {
            true => Ok(sealed.to_owned()),
            false => Ok(seal(plain, SealedType::of(&old), recipients)?),
        }
    })
}

/// Returns where encrypted values are. In comments, texts that only resemble one are left out.
fn sealed_spans(text: &str) -> Result<Vec<Range<usize>>, DocumentSecretError> {
    let mut spans = Vec::new();
    let mut from = 0;
    while let Some(begin) = find_from(text, from, SEALED) {
        let end = find_from(text, begin, SEALED_END).map(|at| at + SEALED_END.len());
        let value = end.and_then(|end| text.get(begin..end));
        if is_in_comment(text, begin) && !value.is_some_and(is_age_file) {
            from = begin + SEALED.len();
            continue;
        }
        let Some(end) = end else {
            return Err(DocumentSecretError::Value {
                line: line_of(text, begin),
                cause: SealedError::Format,
            });
        };
        spans.push(begin..end);
        from = end;
    }
    Ok(spans)
}

/// Returns where decrypted values are.
fn opened_spans(text: &str) -> Result<Vec<Range<usize>>, DocumentSecretError> {
    let mut spans = Vec::new();
    let mut from = 0;
    while let Some(begin) = find_from(text, from, OPENED) {
        let next = find_from(text, begin + OPENED.len(), OPENED);
        let end = find_from(text, begin, OPENED_END);
        match end {
            Some(end) if next.is_none_or(|next| end < next) => {
                from = end + OPENED_END.len();
                spans.push(begin..from);
            }
            _ => return Err(DocumentSecretError::NoEnd(line_of(text, begin))),
        }
    }
    Ok(spans)
}

/// Checks that no end of a value is left outside of the values, unless the original document has one.
fn check_ends(
    edited: &str,
    spans: &[Range<usize>],
    original: &str,
) -> Result<(), DocumentSecretError> {
    if original.contains(OPENED_END) {
        return Ok(());
    }
    let is_inside = |at: usize| spans.iter().any(|span| span.contains(&at));
    let mut ends = edited.match_indices(OPENED_END).map(|(at, _)| at);
    match ends.find(|at| !is_inside(*at)) {
        Some(at) => Err(DocumentSecretError::NoStart(line_of(edited, at))),
        None => Ok(()),
    }
}

fn find_from(text: &str, from: usize, part: &str) -> Option<usize> {
    Some(from + text.get(from..)?.find(part)?)
}

/// Reports whether a position is in a comment of YAML: after `#` at the start of a word.
fn is_in_comment(text: &str, at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    line.starts_with('#') || line.contains(" #") || line.contains("\t#")
}

/// A value in a document.
struct SecretValue<'a> {
    /// From 1, in the order of the document.
    number: usize,
    text: &'a str,
}

/// Value that can't be replaced.
enum RewriteError {
    Opened,
    Value(SealedError),
}

impl From<SealedError> for RewriteError {
    fn from(cause: SealedError) -> Self {
        Self::Value(cause)
    }
}

/// Replaces spans of a text.
fn rewrite(
    text: &str,
    spans: &[Range<usize>],
    mut replace: impl FnMut(SecretValue<'_>) -> Result<String, RewriteError>,
) -> Result<String, DocumentSecretError> {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (number, span) in (1..).zip(spans) {
        out.push_str(text.get(at..span.start).unwrap_or_default());
        let value = SecretValue {
            number,
            text: text.get(span.clone()).unwrap_or_default(),
        };
        let replaced = replace(value).map_err(|cause| {
            let line = line_of(text, span.start);
            match cause {
                RewriteError::Opened => DocumentSecretError::Opened(line),
                RewriteError::Value(cause) => DocumentSecretError::Value { line, cause },
            }
        })?;
        out.push_str(&replaced);
        at = span.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    Ok(out)
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Value;

    fn key() -> Identity {
        Identity::generate().unwrap()
    }

    fn document(key: &Identity) -> String {
        let sealed = |text, kind| seal(text, kind, &[key.recipient()]).unwrap();
        format!(
            "# users\na: {} # first\nb: [x, \"{}\"]\n",
            sealed("one", SealedType::Str),
            sealed("2", SealedType::Int)
        )
    }

    #[test]
    fn values_are_encrypted_for_other_recipients_and_the_rest_is_kept() {
        let (old, new) = (key(), key());
        let text = document(&old);
        let (rekeyed, count) =
            rekey(&text, std::slice::from_ref(&old), &[new.recipient()]).unwrap();
        assert_eq!(count, 2);
        assert!(
            rekeyed.starts_with("# users\na: ENC[age,") && rekeyed.contains(" # first\nb: [x, \"")
        );
        let values: Vec<Value> = sealed_spans(&rekeyed)
            .unwrap()
            .into_iter()
            .map(|span| open(&rekeyed[span], std::slice::from_ref(&new)).unwrap())
            .collect();
        assert_eq!(values, [Value::from("one"), Value::Int(2)]);
        let error = rekey(&rekeyed, &[old], &[new.recipient()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2: it is not encrypted for this key"
        );
    }

    #[test]
    fn an_edited_document_keeps_what_was_not_changed() {
        let key = key();
        let keys = [key.clone()];
        let text = document(&key);
        let shown = decrypt_document(&text, &keys).unwrap();
        assert_eq!(
            shown,
            "# users\na: DEC[1,one]! # first\nb: [x, \"DEC[2,2]!\"]\n"
        );
        let recipients = [key.recipient()];
        assert_eq!(
            encrypt_document(&shown, &text, &keys, &recipients).unwrap(),
            text
        );
        let edited = shown.replace("1,one", "1,o[n]e") + "c: DEC[new,three]!\n";
        let sealed = encrypt_document(&edited, &text, &keys, &recipients).unwrap();
        assert_eq!(
            decrypt_document(&sealed, &keys).unwrap(),
            "# users\na: DEC[1,o[n]e]! # first\nb: [x, \"DEC[2,2]!\"]\nc: DEC[3,three]!\n"
        );
        let wrong =
            encrypt_document("x: 1\na: DEC[9,x]!\n", &text, &keys, &recipients).unwrap_err();
        assert!(
            wrong
                .to_string()
                .starts_with("line 2: expected DEC[new,TEXT]"),
            "{wrong}"
        );
    }

    /// Returns the error of an edited document.
    fn refused(edited: &str) -> String {
        let key = key();
        let text = document(&key);
        let recipients = [key.recipient()];
        let sealed = encrypt_document(edited, &text, &[key], &recipients);
        sealed.unwrap_err().to_string()
    }

    #[test]
    fn a_value_without_its_end_is_an_error() {
        let error = "line 2: DEC[ without ]! at the end of its value";
        for edited in [
            "x: 1\na: DEC[1,new]\nb: 2\n",
            "x: 1\na: DEC[new,plain\n",
            "x: 1\na: DEC[1,new]\nb: DEC[2,2]!\n",
            "x: 1\na: DEC[1,DEC[2,2]!]!\n",
        ] {
            assert_eq!(refused(edited), error, "{edited}");
        }
    }

    #[test]
    fn an_end_without_its_value_is_an_error() {
        let edited = "a: DEC[1,one]!\nb: DC[2,2]!\n";
        assert_eq!(
            refused(edited),
            "line 2: ]! without DEC[ at the start of its value"
        );
    }

    #[test]
    fn the_line_of_a_wrong_number_is_named() {
        for number in ["9", "0", "x", ""] {
            let edited = format!("a: DEC[1,x]!\nb: DEC[{number},x]!\n");
            let error = refused(&edited);
            assert!(
                error.starts_with("line 2: expected DEC[new,TEXT]!"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_value_that_contains_a_mark_stays_encrypted() {
        let key = key();
        for plain in ["a DEC[ b", "a ]! b"] {
            let sealed = seal(plain, SealedType::Str, &[key.recipient()]).unwrap();
            let text = format!("a: {sealed}\n");
            let shown = decrypt_document(&text, std::slice::from_ref(&key)).unwrap();
            assert_eq!(shown, text);
        }
    }

    #[test]
    fn a_document_that_contains_the_mark_of_decrypted_values_is_refused() {
        let error = decrypt_document("a: 1\n# DEC[new,x]!\n", &[key()]).unwrap_err();
        assert_eq!(error, DocumentSecretError::Marker(2));
    }

    #[test]
    fn a_text_in_a_comment_that_is_no_encrypted_value_is_kept() {
        let (old, new) = (key(), key());
        let text = format!(
            "# such as ENC[age,…] or ENC[age,BASE64] or ENC[age,\n{}",
            document(&old)
        );
        let (rekeyed, count) = rekey(&text, &[old], &[new.recipient()]).unwrap();
        assert_eq!(count, 2);
        assert!(
            rekeyed.starts_with("# such as ENC[age,…] or ENC[age,BASE64] or ENC[age,\n# users")
        );
    }

    #[test]
    fn a_damaged_value_outside_of_comments_is_an_error() {
        for text in ["a: 1\nb: ENC[age,…]\n", "a: 1\nb: ENC[age,abc\n"] {
            let error = rekey(text, &[key()], &[key().recipient()]).unwrap_err();
            assert_eq!(error.to_string(), "line 2: expected ENC[age,BASE64]");
        }
    }
}
