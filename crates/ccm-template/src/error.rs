//! Errors of calls and templates.
//!
//! [`CallError`] is the error of functions, operators and the closures of an `Env`. It is a message
//! for the author of the template, because callers cannot handle the individual causes; an error
//! from outside (a file, NATS) is kept as its source.
//!
//! [`TemplateError`] is the error of the engines that know a byte offset. Jet has its own type,
//! because its messages follow upstream word for word; see `jet::error`.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Maximum length of a source line in an error message, in characters.
const MAX_LINE_CHARS: usize = 120;

/// Error of a function call or operator. Two are equal when their messages are.
#[derive(Clone)]
pub struct CallError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    message: String,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl CallError {
    /// Returns an error with the message of `cause`, which is kept as its source.
    pub fn new(cause: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(Inner {
            message: cause.to_string(),
            cause: Some(Arc::new(cause)),
        }))
    }

    /// Replaces the message; `words` gets the current one.
    #[must_use]
    pub fn reword(mut self, words: impl FnOnce(&str) -> String) -> Self {
        self.0.message = words(&self.0.message);
        self
    }

    pub fn as_str(&self) -> &str {
        &self.0.message
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let cause = self.0.cause.as_deref()?;
        Some(cause)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.message)
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { message, cause } = &*self.0;
        out.debug_struct("CallError")
            .field("message", message)
            .field("cause", cause)
            .finish()
    }
}

impl PartialEq for CallError {
    fn eq(&self, other: &Self) -> bool {
        self.0.message == other.0.message
    }
}

impl Eq for CallError {}

impl From<String> for CallError {
    fn from(message: String) -> Self {
        Self(Box::new(Inner {
            message,
            cause: None,
        }))
    }
}

impl From<&str> for CallError {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

macro_rules! causes {
    ($($cause:ty),+ $(,)?) => {
        $(impl From<$cause> for CallError {
            fn from(cause: $cause) -> Self {
                Self::new(cause)
            }
        })+
    };
}

causes!(
    getrandom::Error,
    minijinja::Error,
    regex::Error,
    serde_json::Error,
    super::base64::Base64Error,
    super::engines::RenderError,
    super::expr::ExprError,
    super::go::BudgetExceeded,
    super::go::version::VersionError,
    super::jet::LoadError,
    super::jet::SizeError,
    super::literal::LiteralError,
    super::pattern::PatternError,
    super::time::TimeError,
    super::time::duration::DurationError,
);

/// Value that is not known, because a manifest is checked for no particular node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownValue {
    #[error("facts are not known")]
    Facts,
    #[error("{0} facts are not known")]
    Section(&'static str),
    #[error("the data depends on facts that are not known")]
    Data,
    #[error("environment variables of the node are not known")]
    Environ,
    /// A function that is evaluated on the node.
    #[error("{0} is evaluated on the node")]
    Call(&'static str),
}

impl UnknownValue {
    /// Returns the unknown value that caused an error, if that is its cause.
    pub fn in_chain(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(unknown) = error.downcast_ref() {
                return Some(*unknown);
            }
            cause = error.source();
        }
        None
    }
}

/// Error of rendering a template, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}:{column}: {message} (in `{source_line}`)")]
pub struct TemplateError {
    pub(crate) name: String,
    /// Counted from 1.
    pub(crate) line: usize,
    /// Counted in characters, from 1.
    pub(crate) column: usize,
    #[source]
    pub(crate) message: CallError,
    /// The line of the template, trimmed.
    pub(crate) source_line: String,
}

impl TemplateError {
    /// Returns the error at a byte offset of a template.
    pub(super) fn at(template: &str, name: &str, offset: usize, message: CallError) -> Self {
        let before = template.get(..offset).unwrap_or(template);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let source_line = template.get(line_start..).and_then(|s| s.lines().next());
        Self {
            name: name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or("").chars().count() + 1,
            message,
            source_line: source_line
                .unwrap_or("")
                .trim()
                .chars()
                .take(MAX_LINE_CHARS)
                .collect(),
        }
    }
}
