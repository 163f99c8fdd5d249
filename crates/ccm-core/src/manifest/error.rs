//! Manifest errors: the kinds of problems, with their causes and positions.

use std::error::Error;
use std::fmt;

use crate::hiera::{HieraError, InvalidData};
use crate::manifest::resolve::ResolveError;
use crate::model::TypeName;
use crate::model::document::{DocumentError, Mark, nearest};
use crate::model::id::UnknownType;
use crate::model::policy::Lookup;
use crate::model::resource::InvalidProperty;
use crate::model::text::quote;
use ccm_template::UnknownValue;
use ccm_template::engines::RenderError;
use ccm_template::expr::ExprError;

/// Problems of a manifest.
#[derive(Debug)]
pub struct ManifestError {
    pub problems: Vec<Problem>,
}

/// Problem of a manifest, with its position.
#[derive(Debug)]
pub struct Problem {
    pub source: String,
    pub mark: Mark,
    /// Label of the resource, if the problem belongs to one.
    pub label: Option<String>,
    pub kind: ProblemKind,
}

impl ManifestError {
    /// Returns the error without any manifest content: only positions, and missing policy grants.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        for problem in &mut self.problems {
            let text = problem.kind.to_string();
            let denial = Lookup::denial_in(&text);
            let message = denial.unwrap_or("invalid, or without a value");
            problem.kind = ProblemKind::Redacted(message.into());
            problem.label = None;
        }
        self
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            problem.fmt(out)?;
        }
        Ok(())
    }
}

impl Error for ManifestError {
    /// Returns the first problem.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let first = self.problems.first()?;
        Some(first)
    }
}

impl Problem {
    /// Returns the value that is not known, if that is why something could not be checked.
    pub fn unknown_value(&self) -> Option<UnknownValue> {
        UnknownValue::in_chain(&self.kind)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (", self.kind)?;
        if let Some(label) = &self.label {
            write!(out, "{label} at ")?;
        }
        match self.mark {
            Mark { line: 0, .. } => write!(out, "{})", self.source),
            Mark { line, column } => write!(out, "{}:{line}:{column})", self.source),
        }
    }
}

impl Error for Problem {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.kind)
    }
}

/// Kind of a problem, without its position.
#[derive(Debug, thiserror::Error)]
pub enum ProblemKind {
    #[error("{}", .0.message)]
    Document(#[source] DocumentError),
    #[error("{0} was used where mapping is expected")]
    NotAMapping(&'static str),
    /// Unknown key or engine, with the nearest known one.
    #[error("{0}")]
    UnknownName(String),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("manifest must contain resources")]
    NoResources,
    /// Any problem, for a caller who may not see the manifest's content.
    #[error("{0}")]
    Redacted(String),
    #[error("invalid governor: {}", .0.message)]
    Governor(#[source] DocumentError),
    #[error("{key} must be true or false, not a {found}")]
    NotAFlag {
        key: &'static str,
        found: &'static str,
    },
    #[error("{key} must be text, not a {found}")]
    NotText {
        key: &'static str,
        found: &'static str,
    },
    #[error("invalid {key} template: {cause}")]
    Message {
        key: &'static str,
        #[source]
        cause: ExprError,
    },
    #[error("jet_file and resources cannot be used together")]
    TwoLists,
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("invalid manifest resource {number}: {cause}")]
    Resource {
        /// Number of the entry in the list, from 1.
        number: usize,
        #[source]
        cause: EntryError,
    },
    #[error(transparent)]
    Expression(#[from] ExprError),
    #[error("no events found for {0}: not declared before this resource")]
    NotDeclaredBefore(String),
    #[error("invalid subscribe format {0}")]
    Subscribe(String),
    #[error("mode {} must have three or four octal digits", quote(.0))]
    Mode(String),
}

/// Error of a manifest's data.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum DataError {
    Unresolved(#[from] HieraError),
    Invalid(#[from] InvalidData),
}

/// Error of a template of resources.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("jet_file requires a directory to be set")]
    NoDirectory,
    /// The template file could not be read.
    #[error("{0}")]
    Read(String),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error("template {0} did not render to text")]
    NotText(String),
    #[error("resources jet template produced no output, check for syntax errors")]
    Empty,
    /// Shows the line, because the rendered text is not in any file.
    #[error("the output of template {file}: {cause} in `{line}`")]
    Output {
        file: String,
        line: String,
        #[source]
        cause: DocumentError,
    },
}

/// Error of an entry in the list of resources.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    #[error("an entry must be a mapping with one resource type")]
    NotOneType,
    #[error("{cause}{}", suggestion(cause))]
    Type {
        #[source]
        cause: UnknownType,
    },
    #[error("{}", .0.message)]
    Document(#[source] DocumentError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
}

fn suggestion(unknown: &UnknownType) -> String {
    match nearest(&unknown.0, &TypeName::ALL.map(TypeName::as_str)) {
        Some(near) => format!(", did you mean {near:?}?"),
        None => String::new(),
    }
}
