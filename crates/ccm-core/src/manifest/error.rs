//! Manifest errors: the kinds of problems, with their causes and positions. Suggestions are in
//! `help`.

use std::error::Error;
use std::fmt;

use crate::hiera::{HieraError, InvalidData};
use crate::manifest::resolve::ResolveError;
use crate::model::diagnostic::{Diagnostic, Location, Note};
use crate::model::document::{DocumentError, describe_kind};
use crate::model::id::UnknownType;
use crate::model::policy::Lookup;
use crate::model::resource::InvalidProperty;
use crate::model::text::quote;
use crate::secrets::UnopenedValues;
use ccm_template::UnknownValue;
use ccm_template::engines::RenderError;
use ccm_template::expr::ExprError;
use ccm_template::secrets::Secrets;

/// Problems of a manifest.
#[derive(Debug)]
pub struct ManifestError {
    pub problems: Vec<Problem>,
}

/// Problem of a manifest, with its position.
#[derive(Debug)]
pub struct Problem {
    pub location: Location,
    /// Further positions: the template of rendered resources, another resource.
    pub notes: Vec<Note>,
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
            problem.location.line = None;
            problem.notes.clear();
        }
        self
    }

    /// Reports whether a text of the error, or a line of a rendered template, contains a secret.
    pub(crate) fn shows(&self, secrets: &Secrets) -> bool {
        secrets.is_in(&self.to_string()) || secrets.is_in(&format!("{:?}", self.diagnostics()))
    }

    /// Returns the problems with their source lines and suggestions.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.problems.iter().map(Problem::diagnostic).collect()
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
    /// Returns the problem with its source line and suggestion.
    pub fn diagnostic(&self) -> Diagnostic {
        Diagnostic {
            message: self.kind.message(),
            subject: self.label.clone(),
            location: self.location.clone(),
            notes: self.notes.clone(),
            help: self.kind.help(),
        }
    }

    /// Returns the value that is not known, if that is why something could not be checked.
    pub fn unknown_value(&self) -> Option<UnknownValue> {
        UnknownValue::in_chain(&self.kind)
    }
}

/// Prints the problem on one line, with its position.
impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (", self.kind)?;
        if let Some(label) = &self.label {
            write!(out, "{label} at ")?;
        }
        write!(out, "{})", self.location)
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
    #[error("{}", .0.text())]
    Document(#[source] DocumentError),
    #[error("{0} was used where mapping is expected")]
    NotAMapping(&'static str),
    #[error("{key} must be a mapping, found a {found}")]
    SectionNotAMapping {
        key: &'static str,
        found: &'static str,
    },
    #[error("resources must be a list, found a {0}")]
    NotAList(&'static str),
    /// Unknown key or engine, with the nearest known one.
    #[error("{}", .0.text())]
    UnknownName(#[source] DocumentError),
    #[error("{}", data_text(.0))]
    Data(#[from] DataError),
    #[error("manifest must contain resources")]
    NoResources,
    /// Any problem, for a caller who may not see the manifest's content.
    #[error("{0}")]
    Redacted(String),
    #[error("invalid governor: {}", .0.text())]
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
    #[error("invalid {key} template: {}", .cause.one_line())]
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
    #[error("{}", .0.one_line())]
    Expression(#[from] ExprError),
    #[error("no events found for {reference}: {reason}")]
    Unmet {
        reference: String,
        reason: UnmetReason,
    },
    #[error("invalid subscribe format {0}")]
    Subscribe(String),
    #[error("mode {} must have three or four octal digits", quote(.0))]
    Mode(String),
}

/// Why a resource cannot refer to another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmetReason {
    /// Contains the most similar declared resource.
    #[error("not defined before this resource")]
    Undefined { nearest: Option<String> },
    #[error("defined after this resource, in line {line}")]
    Later { line: u32 },
    #[error("it is this resource")]
    Itself,
    /// Both resources depend on each other, possibly through others.
    #[error("defined after this resource, in line {line}, and depends on it")]
    Cycle { line: u32 },
    #[error("the resource in line {line} is invalid")]
    Invalid { line: u32 },
    /// Not declared in this manifest, and no earlier nested manifest applied it. Contains the most
    /// similar declared resource.
    #[error("not applied before this resource")]
    NotApplied { nearest: Option<String> },
}

impl UnmetReason {
    /// Returns the message about a reference to another resource.
    pub(crate) fn message(&self, reference: &str) -> String {
        format!("cannot depend on {reference}: {self}")
    }
}

impl ProblemKind {
    /// Returns the message without the suggestion and without the number of the resource.
    fn message(&self) -> String {
        match self {
            Self::Document(err) | Self::UnknownName(err) => err.message.clone(),
            Self::Governor(err) => format!("invalid governor: {}", err.message),
            Self::Resource { cause, .. } => cause.message(),
            Self::Message { key, cause } => format!("invalid {key} template: {}", cause.message()),
            Self::Expression(cause) => format!("invalid expression: {}", cause.message()),
            Self::Unmet { reference, reason } => reason.message(reference),
            Self::NotAMapping(found) => {
                format!(
                    "a manifest must be a mapping, found {}",
                    describe_kind(found)
                )
            }
            Self::SectionNotAMapping { key, found } => {
                format!("{key} must be a mapping, found {}", describe_kind(found))
            }
            Self::NotAList(found) => {
                format!("resources must be a list, found {}", describe_kind(found))
            }
            Self::NotAFlag { key, found } => {
                format!("{key} must be true or false, not {}", describe_kind(found))
            }
            Self::NotText { key, found } => {
                format!("{key} must be text, not {}", describe_kind(found))
            }
            Self::Data(DataError::Unresolved(err)) => err.message(),
            Self::Template(TemplateError::Render(err)) => err.message(),
            Self::Template(TemplateError::Output { cause, .. }) => cause.message.clone(),
            _ => self.to_string(),
        }
    }

    /// Returns the failed expression.
    pub(super) fn expression(&self) -> Option<&ExprError> {
        match self {
            Self::Expression(cause)
            | Self::Message { cause, .. }
            | Self::Data(DataError::Unresolved(HieraError::Expression { cause, .. }))
            | Self::Resource {
                cause: EntryError::Resolve(ResolveError { cause, .. }),
                ..
            } => Some(cause),
            _ => None,
        }
    }
}

/// Error of a manifest's data.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum DataError {
    Unresolved(#[from] HieraError),
    Invalid(#[from] InvalidData),
    Unopened(#[from] UnopenedValues),
}

/// Returns the error on one line.
fn data_text(error: &DataError) -> String {
    match error {
        DataError::Unresolved(HieraError::Expression { section, cause }) => {
            format!("{section}: {}", cause.one_line())
        }
        error => error.to_string(),
    }
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
    #[error("the output of template {file}: {}", .cause.text())]
    Output {
        file: String,
        #[source]
        cause: DocumentError,
    },
}

/// Error of an entry in the list of resources.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    #[error("an entry must be a mapping with one resource type")]
    NotOneType {
        /// Type whose properties are beside it instead of below it.
        unindented: Option<String>,
    },
    #[error("{cause}{}", super::help::suggested_type(cause).map(|help| format!(", {help}")).unwrap_or_default())]
    Type {
        #[source]
        cause: UnknownType,
    },
    #[error("{}", .0.text())]
    Document(#[source] DocumentError),
    #[error("resolving field {}: {}", .0.field, .0.cause.one_line())]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
}

impl EntryError {
    /// Returns the message without the suggestion.
    fn message(&self) -> String {
        match self {
            Self::Document(err) => err.message.clone(),
            Self::Type { cause } => format!("unknown resource type {}", quote(&cause.0)),
            Self::Resolve(err) => format!("invalid expression: {}", err.cause.message()),
            Self::Invalid(invalid) => invalid.full_message(),
            Self::NotOneType { .. } => self.to_string(),
        }
    }
}
