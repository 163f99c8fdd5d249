//! What goes wrong in an expression, and where.
//!
//! A [`Fault`] is born with a byte offset, deep inside the parser or the evaluator, and becomes a
//! public [`ExprError`] once somebody holds the source text to point into. The shapes of the
//! texts are those authors know: message, `(line:column)`, the line and a caret.

use std::fmt;
use std::sync::Arc;

use crate::CallError;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// Found before running: syntax, unknown names, kinds that can never fit.
    #[error("expr compile error for '{code}': {problem}")]
    Compile {
        code: Arc<str>,
        #[source]
        problem: Problem,
    },
    /// Found while running.
    #[error("{problem}")]
    Run {
        #[source]
        problem: Problem,
    },
    /// A text opens more expressions than it closes, so often that looking on would take too long.
    #[error("text has too many unclosed expressions")]
    Unclosed,
    /// What went wrong may repeat what the resource hides.
    #[error("its expression failed, and the resource is sensitive")]
    Hidden,
}

/// A message and the place it points at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    #[source]
    pub message: CallError,
    pub place: Option<Place>,
}

/// A place in the source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Counts from 1.
    pub line: usize,
    /// Counts characters from 1.
    pub column: usize,
    /// The whole line, tabs replaced by spaces.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(out)?;
        let Some(place) = &self.place else {
            return Ok(());
        };
        let dots = ".".repeat(place.column.saturating_sub(1));
        write!(
            out,
            " ({}:{})\n | {}\n | {dots}^",
            place.line, place.column, place.text
        )
    }
}

/// A problem that still waits for its source text.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    message: CallError,
    at: Option<usize>,
}

impl Fault {
    /// Returns a fault at a byte offset of the source.
    pub(super) fn at(at: usize, message: impl Into<CallError>) -> Self {
        Self {
            message: message.into(),
            at: Some(at),
        }
    }

    /// Returns a fault that concerns the expression as a whole.
    pub(super) fn whole(message: impl Into<CallError>) -> Self {
        Self {
            message: message.into(),
            at: None,
        }
    }

    pub(super) fn compile(self, code: &str) -> ExprError {
        ExprError::Compile {
            code: code.into(),
            problem: self.locate(code),
        }
    }

    pub(super) fn run(self, code: &str) -> ExprError {
        ExprError::Run {
            problem: self.locate(code),
        }
    }

    fn locate(self, code: &str) -> Problem {
        Problem {
            message: self.message,
            place: self.at.and_then(|at| place(code, at)),
        }
    }
}

/// Finds line and column of a byte offset; an empty line is not worth pointing at.
fn place(code: &str, at: usize) -> Option<Place> {
    let before = code.get(..at).unwrap_or(code);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..)?.chars().count() + 1;
    let text = code.get(start..)?.split('\n').next()?;
    (!text.is_empty()).then(|| Place {
        line,
        column,
        text: text.replace('\t', " "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compile_error_quotes_the_code_and_points_at_the_place() {
        let err = Fault::at(4, "unknown name b").compile("a + b");
        assert_eq!(
            err.to_string(),
            "expr compile error for 'a + b': unknown name b (1:5)\n | a + b\n | ....^"
        );
    }

    #[test]
    fn columns_count_characters_and_lines_are_found() {
        let err = Fault::at(9, "no").run("1 +\n\té + x");
        assert_eq!(err.to_string(), "no (2:5)\n |  é + x\n | ....^");
    }

    #[test]
    fn a_fault_of_the_whole_has_no_place() {
        let err = Fault::whole("expected bool, but got int").compile("1");
        assert_eq!(
            err.to_string(),
            "expr compile error for '1': expected bool, but got int"
        );
    }
}
