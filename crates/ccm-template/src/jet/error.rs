//! Errors of Jet templates, worded as in Jet.
//!
//! A [`Span`] is two byte offsets; lines and columns are counted only when an error is reported.

use std::fmt;
use std::sync::Arc;

use crate::CallError;

/// Byte range in a template.
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

/// Name and text of a template.
pub(super) struct Source {
    /// Absolute path, such as `/input`.
    pub name: Arc<str>,
    pub text: Arc<[u8]>,
}

impl Source {
    /// Returns the text of a span; empty if it is out of range.
    pub(super) fn slice(&self, span: Span) -> &[u8] {
        let range = span.start as usize..span.end as usize;
        self.text.get(range).unwrap_or_default()
    }

    /// Returns the source text of a span, for error messages.
    pub(super) fn quote(&self, span: Span) -> String {
        let text = String::from_utf8_lossy(self.slice(span));
        shorten(text.trim(), 200)
    }

    /// Returns an error at a span of this text.
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

/// Error of an operation, without a position.
#[derive(Debug, PartialEq)]
pub(super) struct Problem {
    pub message: CallError,
    /// See [`JetError::bare`].
    pub bare: bool,
}

impl Problem {
    /// Returns an error whose position is hidden from `catch`.
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

/// Error of parser and runtime. Boxed, because every stack frame of a recursion reserves space for
/// it.
pub(super) type Fault = Box<JetError>;

/// Stage in which a template failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Parse,
    Run,
}

/// Error of parsing or rendering a template, with its position.
///
/// Prints as one line; the alternate form (`{:#}`) adds the source line and a caret.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct JetError {
    pub(crate) stage: Stage,
    /// Absolute path of the template, such as `/input`.
    pub(crate) name: Arc<str>,
    /// Counted from 1; so is `column`, in characters.
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// The source line of the error.
    pub(crate) excerpt: Box<str>,
    /// The message without the position.
    #[source]
    pub(crate) message: CallError,
    /// Whether `catch` sees the message without the position, as upstream does for some errors.
    pub(super) bare: bool,
    /// Whether a limit was exceeded, which `try` cannot catch.
    pub(super) fatal: bool,
}

impl JetError {
    /// Returns the result of `err.Error()` inside a `catch`.
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
            // The margin keeps tabs, so that the caret is below its character.
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
    fn an_offset_beyond_the_end_points_at_the_end() {
        let span = Span { start: 90, end: 91 };
        let error = source("ab").error(Stage::Parse, span, "gone");
        assert_eq!((error.line, error.column), (1, 3));
    }
}
