//! What can be wrong with a manifest: every kind by its kind, with what caused it, and the place
//! it was found at.

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
use ccm_template::engines::RenderError;
use ccm_template::expr::ExprError;

/// Everything that is wrong with a manifest.
#[derive(Debug)]
pub struct ManifestError {
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with a manifest.
#[derive(Debug)]
pub struct Problem {
    pub source: String,
    pub mark: Mark,
    /// The resource it belongs to.
    pub label: Option<String>,
    pub kind: ProblemKind,
}

impl ManifestError {
    /// Returns the error without anything that was read or rendered: where something is wrong, and
    /// which right is missing, if that is what is wrong.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        for problem in &mut self.problems {
            let text = problem.kind.to_string();
            let missing = Lookup::denial_in(&text);
            let shown = missing.unwrap_or("not valid, or without a value");
            problem.kind = ProblemKind::Redacted(shown.into());
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

/// What is wrong; the place is told apart from it.
#[derive(Debug, thiserror::Error)]
pub enum ProblemKind {
    #[error("{}", .0.message)]
    Document(#[source] DocumentError),
    #[error("{0} was used where mapping is expected")]
    NotAMapping(&'static str),
    /// A key or a word that nobody knows, with the nearest one that is known.
    #[error("{0}")]
    UnknownName(String),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("manifest must contain resources")]
    NoResources,
    /// Something else, for somebody who may not see what was rendered.
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
        /// Which entry of the list, from 1.
        number: usize,
        #[source]
        cause: EntryError,
    },
    #[error(transparent)]
    Expression(#[from] ExprError),
    #[error("no events found for {0}: nothing before it is that")]
    NothingBefore(String),
    #[error("invalid subscribe format {0}")]
    Subscribe(String),
    #[error("mode {} must have three or four octal digits", quote(.0))]
    Mode(String),
}

/// Why a manifest has no data.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum DataError {
    Unresolved(#[from] HieraError),
    Invalid(#[from] InvalidData),
}

/// Why a template of resources has none.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("jet_file requires a directory to be set")]
    NoDirectory,
    /// What the reader of files answered.
    #[error("{0}")]
    Read(String),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error("template {0} did not render to text")]
    NotText(String),
    #[error("resources jet template produced no output, check for syntax errors")]
    Empty,
    /// Nobody has seen this text, so the line is shown.
    #[error("the output of template {file}: {cause} in `{line}`")]
    Output {
        file: String,
        line: String,
        #[source]
        cause: DocumentError,
    },
}

/// Why an entry of the list of resources can't be used.
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
