//! Errors of expressions.
//!
//! The parser, checker and evaluator return a [`Fault`] with a byte offset; it becomes a public
//! [`ExprError`] once the source text is available. Messages have the format of the Go
//! implementation: message, `(line:column)`, the line and a caret.

use std::fmt;
use std::sync::Arc;

use crate::CallError;
use crate::diagnostic::plain_types;

/// Error of an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// Compile error: syntax, unknown names, kinds that can never fit.
    #[error("expr compile error for '{code}': {problem}")]
    Compile {
        code: Arc<str>,
        #[source]
        problem: Problem,
    },
    /// Run-time error.
    #[error("{problem}")]
    Run {
        #[source]
        problem: Problem,
    },
    /// The text has so many unclosed delimiters that scanning it would take too long.
    #[error("text has too many unclosed expressions")]
    Unclosed,
    /// Replaces an error that may contain values of a sensitive resource.
    #[error("expression failed (error hidden, the resource is sensitive)")]
    Hidden,
    /// A property that is shown in events depends on a secret.
    #[error(
        "the value depends on a secret and would be shown in events; use secrets in content, commands, \
         environment and data only"
    )]
    ShowsSecret,
}

impl ExprError {
    /// Returns the error on one line, without the position in the expression.
    pub fn one_line(&self) -> String {
        match self {
            Self::Compile { code, problem } => {
                let code: Vec<&str> = code.split_whitespace().collect();
                let code = code.join(" ");
                format!("expr compile error for '{code}': {}", problem.message)
            }
            Self::Run { problem } => problem.message.to_string(),
            Self::Unclosed | Self::Hidden | Self::ShowsSecret => self.to_string(),
        }
    }

    /// Returns the error in plain words, without the expression.
    pub fn message(&self) -> String {
        match self {
            Self::Compile { problem, .. } | Self::Run { problem } => {
                plain_message(problem.message.as_str())
            }
            Self::Unclosed | Self::Hidden | Self::ShowsSecret => self.to_string(),
        }
    }

    /// Returns the line of the expression that the error is in, and the column in it, counted from
    /// 1.
    pub fn position(&self) -> Option<(&str, usize)> {
        let (Self::Compile { problem, .. } | Self::Run { problem }) = self else {
            return None;
        };
        match (&problem.location, self) {
            (Some(location), _) => Some((&location.text, location.column)),
            (None, Self::Compile { code, .. }) => Some((code.lines().next()?, 1)),
            (None, _) => None,
        }
    }
}

/// Returns a message in the words of authors instead of those of the parser.
fn plain_message(message: &str) -> String {
    if message.contains("token EOF") || message == "unexpected end of expression" {
        return "the expression is not complete".into();
    }
    match message.strip_prefix("expected bool, but got ") {
        Some(kind) => plain_types(&format!(
            "expected true or false, but the result is of type {kind}"
        )),
        None => plain_types(message),
    }
}

/// Error message with its location in the source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    #[source]
    pub(crate) message: CallError,
    pub(crate) location: Option<Location>,
}

/// Location in the source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Counted from 1.
    pub(crate) line: usize,
    /// Counted in characters, from 1.
    pub(crate) column: usize,
    /// The whole line, tabs replaced by spaces.
    pub(crate) text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(out)?;
        let Some(location) = &self.location else {
            return Ok(());
        };
        let dots = ".".repeat(location.column.saturating_sub(1));
        write!(
            out,
            " ({}:{})\n | {}\n | {dots}^",
            location.line, location.column, location.text
        )
    }
}

/// Error with a byte offset instead of a location.
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

    /// Returns an error about the expression as a whole.
    pub(super) fn whole(message: impl Into<CallError>) -> Self {
        Self {
            message: message.into(),
            at: None,
        }
    }

    pub(super) fn into_compile_error(self, code: &str) -> ExprError {
        ExprError::Compile {
            code: code.into(),
            problem: self.locate(code),
        }
    }

    pub(super) fn into_run_error(self, code: &str) -> ExprError {
        ExprError::Run {
            problem: self.locate(code),
        }
    }

    fn locate(self, code: &str) -> Problem {
        Problem {
            message: self.message,
            location: self.at.and_then(|at| location(code, at)),
        }
    }
}

/// Returns the location of a byte offset; `None` if the line is empty.
fn location(code: &str, at: usize) -> Option<Location> {
    let before = code.get(..at).unwrap_or(code);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..)?.chars().count() + 1;
    let text = code.get(start..)?.split('\n').next()?;
    (!text.is_empty()).then(|| Location {
        line,
        column,
        text: text.replace('\t', " "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compile_error_quotes_the_code_and_points_at_the_location() {
        let err = Fault::at(4, "unknown name b").into_compile_error("a + b");
        assert_eq!(
            err.to_string(),
            "expr compile error for 'a + b': unknown name b (1:5)\n | a + b\n | ....^"
        );
    }

    #[test]
    fn the_one_line_form_has_no_position() {
        let err = Fault::at(6, "unknown name b").into_compile_error("a +\n  b");
        assert_eq!(
            err.one_line(),
            "expr compile error for 'a + b': unknown name b"
        );
        assert_eq!(err.position(), Some(("  b", 3)));
    }

    #[test]
    fn columns_count_characters_and_lines_are_found() {
        let err = Fault::at(9, "no").into_run_error("1 +\n\té + x");
        assert_eq!(err.to_string(), "no (2:5)\n |  é + x\n | ....^");
    }

    #[test]
    fn an_error_about_the_whole_expression_has_no_location() {
        let err = Fault::whole("expected bool, but got int").into_compile_error("1");
        assert_eq!(
            err.to_string(),
            "expr compile error for '1': expected bool, but got int"
        );
    }
}
