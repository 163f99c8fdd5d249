//! Where a template went wrong, and why, in the words that Jet's users know.
//!
//! A [`Span`] is two byte offsets; lines and columns are only counted when there is an error to
//! report. Knows nothing of the language; `parser` and `runtime` make the errors.

use std::fmt;
use std::sync::Arc;

use crate::CallError;

/// A piece of a template's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// Returns the span from the start of `self` to the end of `last`.
    pub(super) fn to(self, last: Span) -> Span {
        Span {
            start: self.start,
            end: last.end.max(self.end),
        }
    }
}

/// A template's name and its text.
pub(super) struct Source {
    /// Absolute, as `/input`.
    pub name: Arc<str>,
    pub text: Arc<[u8]>,
}

impl Source {
    /// Returns the text of a span, or nothing when it lies outside.
    pub(super) fn slice(&self, span: Span) -> &[u8] {
        let range = span.start as usize..span.end as usize;
        self.text.get(range).unwrap_or_default()
    }

    /// Returns the author's own words for a span, for messages.
    pub(super) fn quote(&self, span: Span) -> String {
        let text = String::from_utf8_lossy(self.slice(span));
        shorten(text.trim(), 200)
    }

    /// Returns the error that points at a span of this text.
    pub(super) fn error(&self, stage: Stage, span: Span, message: impl Into<CallError>) -> Fault {
        let at = (span.start as usize).min(self.text.len());
        let (before, after) = self.text.split_at(at);
        let begin = before.iter().rposition(|&byte| byte == b'\n');
        let begin = begin.map_or(0, |newline| newline + 1);
        let prefix = before.get(begin..).unwrap_or_default();
        let rest = after
            .split(|&byte| byte == b'\n')
            .next()
            .unwrap_or_default();
        let excerpt = [prefix, rest].concat();
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let column = 1 + String::from_utf8_lossy(prefix).chars().count();
        Box::new(JetError {
            stage,
            name: self.name.clone(),
            line,
            column,
            excerpt: shorten(String::from_utf8_lossy(&excerpt).trim_end(), 500).into(),
            message: message.into(),
            bare: false,
            fatal: false,
        })
    }
}

fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}...", text.split_at(end).0),
        None => text.into(),
    }
}

/// Why an operation failed, before anybody has said where.
#[derive(Debug, PartialEq)]
pub(super) struct Problem {
    pub message: CallError,
    /// See [`JetError::bare`].
    pub bare: bool,
}

impl Problem {
    /// Returns a problem that a `catch` sees without its place.
    pub(super) fn bare(message: impl Into<CallError>) -> Self {
        Self {
            message: message.into(),
            bare: true,
        }
    }
}

impl<T: Into<CallError>> From<T> for Problem {
    fn from(message: T) -> Self {
        Self {
            message: message.into(),
            bare: false,
        }
    }
}

/// An error on its way up. Boxed, because every frame of a recursion keeps room for one.
pub(super) type Fault = Box<JetError>;

/// When a template failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Parse,
    Run,
}

/// Why a template can't be parsed or rendered, and where.
///
/// Prints as one line; the alternate form (`{:#}`) shows the offending line and a caret below it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct JetError {
    pub stage: Stage,
    /// The absolute name of the template, as `/input`.
    pub name: Arc<str>,
    /// Counted from 1, as is `column`, which counts characters.
    pub line: usize,
    pub column: usize,
    /// The line of the template that holds the place.
    pub excerpt: Box<str>,
    /// The reason alone, without the place.
    #[source]
    pub message: CallError,
    /// The author's `catch` sees the reason without the place: upstream raises it that way.
    pub(super) bare: bool,
    /// A limit was exceeded: no `try` may go on after that.
    pub(super) fatal: bool,
}

impl JetError {
    /// Returns the text that `err.Error()` has inside a `catch`.
    pub(super) fn caught(&self) -> String {
        if self.bare {
            self.message.to_string()
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for JetError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            line,
            message,
            ..
        } = self;
        match self.stage {
            Stage::Parse => write!(out, "template: {name}:{line}: {message}")?,
            Stage::Run => write!(out, "Jet Runtime Error (\"{name}\":{line}): {message}")?,
        }
        if out.alternate() {
            // Tabs are kept below the excerpt, so that the caret lands under its character.
            let margin: String = self
                .excerpt
                .chars()
                .take(self.column.saturating_sub(1))
                .map(|c| if c == '\t' { c } else { ' ' })
                .collect();
            write!(out, "\n | {}\n | {margin}^", self.excerpt)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source {
            name: "/input".into(),
            text: text.as_bytes().into(),
        }
    }

    #[test]
    fn an_error_counts_lines_and_characters_from_one() {
        let text = "one\né [[ x ]]";
        let at = text.find('x').unwrap() as u32;
        let span = Span {
            start: at,
            end: at + 1,
        };
        let error = source(text).error(Stage::Run, span, "gone");
        assert_eq!((error.line, error.column), (2, 6));
        assert_eq!(&*error.excerpt, "é [[ x ]]");
        assert_eq!(error.to_string(), r#"Jet Runtime Error ("/input":2): gone"#);
    }

    #[test]
    fn the_alternate_form_points_at_the_character() {
        let span = Span { start: 4, end: 5 };
        let error = source("\t[[ x ]]").error(Stage::Parse, span, "gone");
        assert_eq!(
            format!("{error:#}"),
            "template: /input:1: gone\n | \t[[ x ]]\n | \t   ^"
        );
    }

    #[test]
    fn a_place_behind_the_end_points_at_the_end() {
        let span = Span { start: 90, end: 91 };
        let error = source("ab").error(Stage::Parse, span, "gone");
        assert_eq!((error.line, error.column), (1, 3));
    }
}
