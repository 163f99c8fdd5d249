//! Diagnostics: problems of a text, each with its position, the source line and a suggestion.
//!
//! Only data: the command line formats them, with a caret below the position. The error types of
//! the libraries create them, where the text is known. Source lines are for the person who passed
//! the text; messages to others contain the one-line form of the error.

use std::fmt;

use crate::document::{DocumentError, Mark};
use crate::secret::{redact_seeds, redact_urls};

/// Maximum length of a source line, in characters; of a longer one, the part around the position is
/// kept.
const MAX_LINE: usize = 120;

/// Problem of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong, on one line and without the position.
    pub message: String,
    /// Resource or other part of the document that the problem belongs to.
    pub subject: Option<String>,
    pub location: Location,
    /// Further positions.
    pub notes: Vec<Note>,
    /// Suggestion, as a clause in lower case.
    pub help: Option<String>,
}

/// Further position of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub message: String,
    pub location: Location,
    /// Whether the text with the problem was generated from this one, so that it is no file itself.
    pub is_origin: bool,
}

/// Position in a named text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Name of the text, usually a file.
    pub source: String,
    /// Line 0 means the whole text.
    pub mark: Mark,
    pub line: Option<SourceLine>,
}

/// Source line without control characters, secrets of URLs and nkey seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLine {
    pub text: String,
    /// Number of characters before the position.
    pub caret: usize,
}

impl Diagnostic {
    /// Returns the diagnostic of an error in a document.
    pub fn of_document(source: &str, text: &str, error: &DocumentError) -> Self {
        Self {
            message: error.message.clone(),
            location: Location::new(source, text, error.mark),
            help: error.suggestion(),
            ..Self::default()
        }
    }
}

impl Location {
    /// Returns a position with its line of the text.
    pub fn new(source: &str, text: &str, mark: Mark) -> Self {
        let index = mark
            .line
            .checked_sub(1)
            .and_then(|n| usize::try_from(n).ok());
        let line = index.map(|index| text.lines().nth(index).unwrap_or_default());
        Self {
            source: source.into(),
            mark,
            line: line.map(|line| SourceLine::new(line, mark.column)),
        }
    }

    /// Returns a position whose text is not shown.
    pub fn without_line(source: &str, mark: Mark) -> Self {
        Self {
            source: source.into(),
            mark,
            line: None,
        }
    }
}

/// Prints the position as `source:line:column`.
impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.source)?;
        match self.mark {
            Mark { line: 0, .. } => Ok(()),
            Mark { line, column } => write!(out, ":{line}:{column}"),
        }
    }
}

impl SourceLine {
    /// Returns a line with the caret in a column, counted from 1.
    pub fn new(line: &str, column: u32) -> Self {
        let before = usize::try_from(column.saturating_sub(1)).unwrap_or_default();
        let line: String = line.chars().map(printable).collect();
        let line = line.trim_end();
        let without_urls = redact_urls(line);
        let redacted = redact_seeds(&without_urls);
        let is_same = redacted.chars().take(before).eq(line.chars().take(before));
        let indent = redacted.chars().take_while(|c| *c == ' ').count();
        // A caret behind redacted text would be at another character.
        let caret = if is_same { before } else { indent };
        let length = redacted.chars().count();
        let caret = caret.min(length);
        if length <= MAX_LINE {
            return Self {
                text: redacted.into_owned(),
                caret,
            };
        }
        let start = caret.saturating_sub(MAX_LINE / 2).min(length - MAX_LINE);
        let part: String = redacted.chars().skip(start).take(MAX_LINE).collect();
        let (head, offset) = if start > 0 { ("…", 1) } else { ("", 0) };
        let tail = if start + MAX_LINE < length { "…" } else { "" };
        Self {
            text: format!("{head}{part}{tail}"),
            caret: caret - start + offset,
        }
    }
}

/// Returns a character that takes one column of a terminal instead of a control character.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// Returns the position of the first occurrence of a text at or after a position; `None` if there
/// is none.
pub fn find_after(text: &str, mark: Mark, wanted: &str) -> Option<Mark> {
    let first = usize::try_from(mark.line.checked_sub(1)?).ok()?;
    let column = usize::try_from(mark.column.saturating_sub(1)).ok()?;
    if wanted.is_empty() {
        return None;
    }
    for (index, line) in text.lines().enumerate().skip(first) {
        let skipped = if index == first { column } else { 0 };
        let start = line
            .char_indices()
            .nth(skipped)
            .map_or(line.len(), |(at, _)| at);
        let rest = line.get(start..).unwrap_or_default();
        if let Some(at) = rest.find(wanted) {
            let chars = skipped + rest.get(..at).unwrap_or_default().chars().count();
            return Some(Mark {
                line: u32::try_from(index + 1).ok()?,
                column: u32::try_from(chars + 1).ok()?,
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_printable_and_keeps_its_columns() {
        let line = SourceLine::new("\ta: \u{1b}[31mx\r", 5);
        assert_eq!(
            (line.text.as_str(), line.caret),
            (" a: \u{fffd}[31mx\u{fffd}", 4)
        );
    }

    #[test]
    fn secrets_of_urls_are_not_in_a_line() {
        let text = "servers: nats://u:hunter2@h, oops";
        for column in 1..40 {
            let line = SourceLine::new(text, column);
            assert!(!line.text.contains("hunter2"), "{line:?}");
            assert!(line.caret <= line.text.chars().count());
        }
    }

    #[test]
    fn seeds_are_not_in_a_line() {
        let seed = format!("SU{}", "A".repeat(56));
        let line = SourceLine::new(&format!("key: {seed}, name: ops"), 6);
        assert_eq!(
            (line.text.as_str(), line.caret),
            ("key: REDACTED, name: ops", 5)
        );
    }

    #[test]
    fn of_a_long_line_the_part_around_the_position_is_kept() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let line = SourceLine::new(&text, 501);
        assert_eq!(line.text.chars().nth(line.caret), Some('X'));
        assert!(line.text.chars().count() <= MAX_LINE + 2);
    }

    #[test]
    fn a_text_is_found_only_after_the_position() {
        let text = "x: é1\ny: 1 + x\n";
        let mark = |line, column| Mark { line, column };
        assert_eq!(find_after(text, mark(1, 1), "x"), Some(mark(1, 1)));
        assert_eq!(find_after(text, mark(1, 2), "x"), Some(mark(2, 8)));
        assert_eq!(find_after(text, mark(1, 1), "1"), Some(mark(1, 5)));
        assert_eq!(find_after(text, mark(2, 9), "x"), None);
    }
}
