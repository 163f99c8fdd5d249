//! Syntax errors in the terms of an author.
//!
//! The parsers report where they stopped, in terms of the grammar. The usual causes are recognized
//! in the text: a bracket that is not closed, text that needs quotes, tabs, wrong indentation.

use super::{DocumentError, Mark};
use crate::secret::redact_urls;

/// Error of the tree builder for a list or map as a key.
pub(super) const KEY_NOT_SCALAR: &str = "a key must be a scalar";
/// Error of the tree builder for an alias without an anchor.
pub(super) const UNKNOWN_ALIAS: &str = "unknown alias";

/// Maximum length of quoted source text in a suggestion, in characters.
const MAX_QUOTED: usize = 40;

/// Rewords an error of the YAML parser.
pub(super) fn explain(text: &str, error: DocumentError) -> DocumentError {
    let message = error.message.as_str();
    let mark = error.mark;
    let rest = after(text, mark);
    if message == KEY_NOT_SCALAR {
        return unquoted_expression(text, mark).unwrap_or(error);
    }
    if let Some(open) = unclosed_bracket(text, mark, message) {
        return open;
    }
    let reworded = |message: String, help: &str| DocumentError::new(mark, message).with_help(help);
    if message.contains("unknown anchor") || message == UNKNOWN_ALIAS {
        let name = rest.split([' ', '\t', ',', ']', '}', '\n', '\r']).next();
        let name = shorten(name.unwrap_or_default());
        let help = format!("quote text that starts with *: \"{name}\"");
        return reworded(
            format!("{name} refers to an anchor that is not defined"),
            &help,
        );
    }
    if message.starts_with("tabs disallowed") {
        return reworded(
            "a tab is not allowed in indentation".into(),
            "indent with spaces",
        );
    }
    if let Some(found) = message.strip_prefix("unexpected character: `") {
        let found = found.trim_end_matches('\'');
        let value = shorten(rest.lines().next().unwrap_or_default().trim_end());
        let help = format!("quote the text: \"{value}\"");
        return reworded(
            format!("text cannot start with {found} unless it is quoted"),
            &help,
        );
    }
    if message.starts_with("mapping values are not allowed") {
        return misplaced_colon(text, mark);
    }
    if message.contains("quoted scalar") {
        return quoted(text, mark, message);
    }
    match message {
        "while parsing a block mapping, did not find expected key"
        | "while parsing a block collection, did not find expected '-' indicator" => reworded(
            "the indentation does not match the lines before".into(),
            "indent entries of the same list or mapping by the same number of spaces",
        ),
        "misplaced bracket" => reworded(
            "closing bracket without an opening one".into(),
            "remove it, or quote the text",
        ),
        _ => error,
    }
}

/// Rewords an error of the JSON parser.
pub(super) fn explain_json(text: &str, mark: Mark, message: &str) -> DocumentError {
    let error = DocumentError::new(mark, message);
    match message {
        "trailing comma" => error.with_help("remove the comma before the closing bracket"),
        "key must be a string" if after(text, mark).starts_with(',') => {
            DocumentError::new(mark, "unexpected comma").with_help("remove it")
        }
        "key must be a string" => error.with_help("quote the key with \""),
        "expected `,` or `}`" | "expected `,` or `]`" => {
            error.with_help("separate the entries with commas and close the bracket")
        }
        "EOF while parsing an object" | "EOF while parsing a list" => {
            match unclosed(text, text.len()) {
                Some((mark, open)) => never_closed(mark, open),
                None => error,
            }
        }
        _ => error,
    }
}

/// Returns the text from a position on.
fn after(text: &str, mark: Mark) -> &str {
    text.get(offset(text, mark)..).unwrap_or_default()
}

/// Returns the byte offset of a position.
fn offset(text: &str, mark: Mark) -> usize {
    let lines = usize::try_from(mark.line.saturating_sub(1)).unwrap_or_default();
    let column = usize::try_from(mark.column.saturating_sub(1)).unwrap_or_default();
    let start: usize = text.split_inclusive('\n').take(lines).map(str::len).sum();
    let line = text.get(start..).unwrap_or_default();
    start
        + line
            .char_indices()
            .nth(column)
            .map_or(line.len(), |(at, _)| at)
}

/// Returns the position of a byte offset.
fn mark_at(text: &str, offset: usize) -> Mark {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |at| at + 1);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).saturating_add(1);
    Mark {
        line: count(before.matches('\n').count()),
        column: count(before.get(line..).unwrap_or_default().chars().count()),
    }
}

/// Returns source text for a message, shortened and without the secrets of URLs.
fn shorten(text: &str) -> String {
    let text = redact_urls(text);
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.into(),
    }
}

/// Explains `key: {{ … }}`: without quotes it is a mapping with a mapping as its key.
fn unquoted_expression(text: &str, mark: Mark) -> Option<DocumentError> {
    let inner = offset(text, mark);
    let at = inner.checked_sub(1).filter(|at| {
        let from = text.get(*at..);
        from.is_some_and(|text| text.starts_with("{{"))
    })?;
    let line = text.get(at..)?.lines().next()?;
    let end = line.find("}}").map_or(line.len(), |end| end + 2);
    let help = format!("quote it: \"{}\"", shorten(line.get(..end)?));
    let message = "a value that starts with an expression must be quoted";
    Some(DocumentError::new(mark_at(text, at), message).with_help(help))
}

fn never_closed(mark: Mark, open: char) -> DocumentError {
    let close = if open == '[' { ']' } else { '}' };
    DocumentError::new(mark, format!("{open} is not closed"))
        .with_help(format!("add {close} at the end of the value"))
}

/// Explains an error after a bracket that is not closed.
fn unclosed_bracket(text: &str, mark: Mark, message: &str) -> Option<DocumentError> {
    let stopped = offset(text, mark);
    let (open_mark, open) = unclosed(text, stopped)?;
    // A bracket of the other kind where this one should close.
    if let Some(found @ (']' | '}')) = text.get(stopped..)?.chars().next() {
        let close = if open == '[' { ']' } else { '}' };
        if found != close {
            let line = open_mark.line;
            let message = format!("{open} in line {line} is closed by {found}");
            return Some(DocumentError::new(mark, message).with_help(format!("use {close}")));
        }
    }
    let is_later = mark.line > open_mark.line || message.starts_with("while parsing a flow");
    is_later.then(|| never_closed(open_mark, open))
}

/// Returns the innermost bracket that is open at an offset.
fn unclosed(text: &str, end: usize) -> Option<(Mark, char)> {
    let mut open: Vec<(usize, char)> = Vec::new();
    let mut quote: Option<char> = None;
    let mut before = '\n';
    let mut chars = text.get(..end)?.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some('"'), '\\') => drop(chars.next()),
            (Some(mark), c) if mark == c => quote = None,
            (Some(_), _) => {}
            (None, '#') if before.is_whitespace() => {
                while chars.next_if(|(_, c)| *c != '\n').is_some() {}
            }
            // Inside a word these are text: `it's`, `a[0]`.
            (None, '"' | '\'') if starts_token(before, !open.is_empty()) => quote = Some(c),
            (None, '[' | '{') if starts_token(before, !open.is_empty()) => open.push((at, c)),
            (None, ']' | '}') => drop(open.pop()),
            _ => {}
        }
        before = c;
    }
    let (at, c) = open.pop()?;
    Some((mark_at(text, at), c))
}

/// Reports whether a token can start after a character.
fn starts_token(before: char, in_flow: bool) -> bool {
    before.is_whitespace() || (in_flow && "[{,:".contains(before))
}

/// Explains a colon where no key can be.
fn misplaced_colon(text: &str, mark: Mark) -> DocumentError {
    let at = offset(text, mark);
    let line_start = text.get(..at).and_then(|text| text.rfind('\n'));
    let line_start = line_start.map_or(0, |at| at + 1);
    let line = text.get(line_start..at).unwrap_or_default();
    let content = line.trim_start().trim_start_matches("- ");
    if let Some((key, value)) = content.split_once(": ") {
        let rest = text.get(at..).unwrap_or_default().lines().next();
        let value = format!("{value}{}", rest.unwrap_or_default().trim_end());
        let help = format!("quote the value: {key}: \"{}\"", shorten(&value));
        return DocumentError::new(mark, "\": \" is not allowed in a value without quotes")
            .with_help(help);
    }
    // The key is fine; the line before is text that continues here.
    let before = text.get(..line_start).unwrap_or_default();
    match before.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) if !line.trim_end().ends_with(':') => {
            let start = before.rfind(line).unwrap_or_default();
            let indent = line.len() - line.trim_start().len();
            let name = shorten(line.trim().trim_start_matches("- "));
            DocumentError::new(mark_at(text, start + indent), "a key without a colon")
                .with_help(format!("write \"{name}:\""))
        }
        _ => DocumentError::new(mark, "unexpected colon").with_help("check the indentation"),
    }
}

/// Explains an error of a quoted text.
fn quoted(text: &str, mark: Mark, message: &str) -> DocumentError {
    if message.starts_with("invalid trailing content") {
        return DocumentError::new(mark, "text after the closing quote")
            .with_help("double a single quote inside '…', and write \\\" inside \"…\"");
    }
    let open = after(text, mark).chars().next();
    match open.filter(|c| "\"'".contains(*c)) {
        Some(quote) => DocumentError::new(mark, "the quote is not closed")
            .with_help(format!("add {quote} at the end of the text")),
        None => DocumentError::new(mark, message),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_usual_mistakes_are_named_at_their_cause() {
        for (text, expected) in [
            (
                "a:\n  - b: [x\n  - c: {d: e}\n",
                "line 2 column 8: [ is not closed, add ] at the end of the value",
            ),
            (
                "a: {b: c\n",
                "line 1 column 4: { is not closed, add } at the end of the value",
            ),
            (
                "a: {b: c]\n",
                "line 1 column 9: { in line 1 is closed by ], use }",
            ),
            (
                "a: *.txt\n",
                "line 1 column 4: *.txt refers to an anchor that is not defined, quote text that starts with *: \"*.txt\"",
            ),
            (
                "a: {{ Data.x }}\n",
                "line 1 column 4: a value that starts with an expression must be quoted, quote it: \"{{ Data.x }}\"",
            ),
            (
                "a: b: c\n",
                "line 1 column 5: \": \" is not allowed in a value without quotes, quote the value: a: \"b: c\"",
            ),
            (
                "a:\n  b\n  c: d\n",
                "line 2 column 3: a key without a colon, write \"b:\"",
            ),
            (
                "a: @b\n",
                "line 1 column 4: text cannot start with @ unless it is quoted, quote the text: \"@b\"",
            ),
            (
                "a: 'it's'\n",
                "line 1 column 8: text after the closing quote, double a single quote inside '…', and write \\\" inside \"…\"",
            ),
        ] {
            assert_eq!(error(text), expected, "{text}");
        }
    }

    #[test]
    fn brackets_in_quotes_comments_and_words_are_text() {
        for text in ["a: '['\nb: c: d\n", "# [\nb: c: d\n", "a: x[0\nb: c: d\n"] {
            assert!(error(text).contains("is not allowed in a value"), "{text}");
        }
    }

    #[test]
    fn a_json_object_that_is_not_closed_is_named_at_its_start() {
        assert!(error("{\"a\": [1, {\"b\": 2}").starts_with("line 1 column 7: [ is not closed"));
    }
}
