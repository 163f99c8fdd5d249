//! Encrypted values in the text of a document: the text around them is kept as it is, with comments and
//! order.

use std::ops::Range;

use super::keys::{Identity, Recipient};
use super::sealed::{SealedError, SealedType, open, seal};
use crate::model::secret::SEALED;

/// Start of a value that is shown in an editor.
const OPENED: &str = "DEC[";

/// Ends of encrypted and of opened values. A value that contains the latter is not opened.
const SEALED_END: &str = "]";
const OPENED_END: &str = "]!";

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
}

/// Returns a document with every value encrypted for other recipients, and the number of values.
pub fn rekey(
    text: &str,
    identities: &[Identity],
    recipients: &[Recipient],
) -> Result<(String, usize), DocumentSecretError> {
    rewrite(text, &spans(text, SEALED), |_, sealed| {
        let value = open(sealed, identities)?;
        let kind = SealedType::of(&value);
        seal(&value.to_string(), kind, recipients)
    })
}

/// Returns a document with every value opened as `DEC[NUMBER,TEXT]!`, for an editor.
pub fn reveal(text: &str, identities: &[Identity]) -> Result<String, DocumentSecretError> {
    let (text, _) = rewrite(text, &spans(text, SEALED), |number, sealed| {
        let value = open(sealed, identities)?.to_string();
        Ok(match value.contains(OPENED_END) {
            true => sealed.to_owned(),
            false => format!("{OPENED}{number},{value}{OPENED_END}"),
        })
    })?;
    Ok(text)
}

/// Encrypts the values of an edited document. Values that were not changed stay as they are in
/// `original`.
pub fn conceal(
    edited: &str,
    original: &str,
    identities: &[Identity],
    recipients: &[Recipient],
) -> Result<String, DocumentSecretError> {
    let before: Vec<&str> = spans(original, SEALED)
        .into_iter()
        .filter_map(|span| original.get(span))
        .collect();
    let mut invalid = None;
    let (text, _) = rewrite(edited, &spans(edited, OPENED), |_, opened| {
        let inside = opened
            .strip_prefix(OPENED)
            .and_then(|it| it.strip_suffix(OPENED_END));
        let (number, plain) = inside.and_then(|it| it.split_once(',')).unwrap_or_default();
        if number == "new" {
            return seal(plain, SealedType::Str, recipients);
        }
        let number: Option<usize> = number.parse().ok();
        let Some(sealed) = number.and_then(|it| before.get(it.checked_sub(1)?)) else {
            invalid.get_or_insert_with(|| opened.to_owned());
            return Ok(String::new());
        };
        let value = open(sealed, identities)?;
        match value.to_string() == plain {
            true => Ok((*sealed).to_owned()),
            false => seal(plain, SealedType::of(&value), recipients),
        }
    })?;
    match invalid.and_then(|value| edited.find(&value)) {
        Some(at) => Err(DocumentSecretError::Opened(line_of(edited, at))),
        None => Ok(text),
    }
}

/// Returns where values with this start are.
fn spans(text: &str, start: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(start)) {
        let begin = from + at;
        let rest = text.get(begin..).unwrap_or_default();
        let end = match start {
            SEALED => SEALED_END,
            _ => OPENED_END,
        };
        let Some(at) = rest.find(end) else { break };
        from = begin + at + end.len();
        spans.push(begin..from);
    }
    spans
}

/// Replaces spans of a text; `replace` gets the number of a span, from 1, and its text.
fn rewrite(
    text: &str,
    spans: &[Range<usize>],
    mut replace: impl FnMut(usize, &str) -> Result<String, SealedError>,
) -> Result<(String, usize), DocumentSecretError> {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (number, span) in (1..).zip(spans) {
        out.push_str(text.get(at..span.start).unwrap_or_default());
        let value = text.get(span.clone()).unwrap_or_default();
        out.push_str(
            &replace(number, value).map_err(|cause| DocumentSecretError::Value {
                line: line_of(text, span.start),
                cause,
            })?,
        );
        at = span.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    Ok((out, spans.len()))
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
        let values: Vec<Value> = spans(&rekeyed, SEALED)
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
        let shown = reveal(&text, &keys).unwrap();
        assert_eq!(
            shown,
            "# users\na: DEC[1,one]! # first\nb: [x, \"DEC[2,2]!\"]\n"
        );
        let recipients = [key.recipient()];
        assert_eq!(conceal(&shown, &text, &keys, &recipients).unwrap(), text);
        let edited = shown.replace("1,one", "1,o[n]e") + "c: DEC[new,three]!\n";
        let sealed = conceal(&edited, &text, &keys, &recipients).unwrap();
        assert_eq!(
            reveal(&sealed, &keys).unwrap(),
            "# users\na: DEC[1,o[n]e]! # first\nb: [x, \"DEC[2,2]!\"]\nc: DEC[3,three]!\n"
        );
        let wrong = conceal("x: 1\na: DEC[9,x]!\n", &text, &keys, &recipients).unwrap_err();
        assert!(
            wrong
                .to_string()
                .starts_with("line 2: expected DEC[new,TEXT]"),
            "{wrong}"
        );
    }
}
