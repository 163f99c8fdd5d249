//! Why a call failed, and why a template did not render, and where.
//!
//! [`CallError`] is what functions, operators and the closures of an `Env` fail with. Nobody can
//! act on one of the hundreds of ways to call a function wrongly, so it is a text for the author;
//! but a failure that comes from elsewhere (a file, the bus) stays in it as the source.
//!
//! [`TemplateError`] is the shape of engines that know an offset. Jet has its own, because its
//! messages follow upstream's word by word; see `jet::error`.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// How much of a line an error shows, in characters.
const LONGEST_LINE: usize = 120;

/// Why a call has no result, in the words its author reads. Two are equal when their texts are.
#[derive(Clone)]
pub struct CallError(Box<Call>);

#[derive(Clone)]
struct Call {
    message: String,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl CallError {
    /// Returns an error with the text of another one, which stays its source.
    pub fn new(cause: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(Call {
            message: cause.to_string(),
            cause: Some(Arc::new(cause)),
        }))
    }

    /// Returns the same error in other words, which are given those it has.
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
        let Call { message, cause } = &*self.0;
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
        Self(Box::new(Call {
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
    super::go::Exhausted,
    super::go::version::VersionError,
    super::jet::ShelfError,
    super::jet::WeightError,
    super::literal::LiteralError,
    super::pattern::PatternError,
    super::time::TimeError,
    super::time::duration::DurationError,
);

/// Why a template did not render, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}:{column}: {message} (in `{source_line}`)")]
pub struct TemplateError {
    pub name: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    #[source]
    pub message: CallError,
    /// The line of the template, without the blanks around it.
    pub source_line: String,
}

impl TemplateError {
    /// Returns the error of a template at a byte offset.
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
                .take(LONGEST_LINE)
                .collect(),
        }
    }
}
