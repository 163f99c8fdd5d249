//! Errors of matchers, with the texts of goss where it has them.

use std::fmt;

use super::{MAX_DEPTH, short};
use crate::model::Value;

/// An invalid matcher, or values that cannot be compared.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum MatchError {
    /// A required attribute is missing.
    #[error("Syntax Error: Missing required attribute")]
    Missing,
    #[error("Syntax Error: matchers are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    #[error(
        "Syntax Error: Invalid matcher configuration. At a given nesting level, only one matcher \
         is allowed. Found multiple matchers: {0:?}"
    )]
    Several(Vec<String>),
    #[error("Syntax Error: Unknown matcher: {0}")]
    Unknown(String),
    #[error(
        "Syntax Error: Invalid '{matcher}' argument. Expected {wanted} value, but received: \
         {found}"
    )]
    Argument {
        matcher: String,
        wanted: &'static str,
        found: Shown,
    },
    #[error("HavePatterns matcher expects patterns to be a string. got: {0}")]
    Pattern(Value),
    #[error("error parsing regexp: {}: `{pattern}`", reason(cause))]
    Regexp {
        pattern: String,
        #[source]
        cause: regex::Error,
    },
    #[error("Expected {wanted}, got {found}")]
    Expected { wanted: &'static str, found: Shown },
    #[error("Invalid json")]
    Json(#[source] serde_json::Error),
    #[error("Path not found: {0}")]
    NoPath(String),
    #[error("a line is longer than {0} bytes")]
    LongLine(usize),
    #[error("{matchers} matchers and {elements} elements are too many to compare")]
    TooMany { matchers: usize, elements: usize },
}

impl MatchError {
    pub(super) fn argument(matcher: &str, wanted: &'static str, found: &Value) -> Self {
        Self::Argument {
            matcher: matcher.to_owned(),
            wanted,
            found: Shown::of(found),
        }
    }

    pub(super) fn expected(wanted: &'static str, found: &Value) -> Self {
        let found = Shown::of(found);
        Self::Expected { wanted, found }
    }
}

/// Type and beginning of a value.
#[derive(Debug)]
pub(in super::super) struct Shown {
    kind: &'static str,
    text: String,
}

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.kind, self.text)
    }
}

impl Shown {
    fn of(value: &Value) -> Self {
        Self {
            kind: value.kind(),
            text: short(value),
        }
    }
}

/// Returns the last line of the library's text, which is the reason.
fn reason(cause: &regex::Error) -> String {
    let text = cause.to_string();
    let reason = text.lines().last().unwrap_or_default();
    reason.strip_prefix("error: ").unwrap_or(reason).to_owned()
}
