//! Errors in a manifest that end its run, with their positions and suggestions.

use super::NoEvents;
use crate::manifest::UnmetReason;
use crate::manifest::help::{property_help, unmet_help};
use crate::manifest::resolve::ResolveError;
use crate::model::document::{Mark, parse};
use crate::model::policy::Lookup;
use crate::model::resource::InvalidProperty;
use crate::model::resource::locate::{Part, find_part};
use crate::resource::ProviderError;
use crate::system::RandomError;
use ccm_template::expr::ExprError;

/// An error in the manifest, which ends the run.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error("{}", .0.one_line())]
    Expression(#[from] ExprError),
    #[error("resolving field {}: {}", .0.field, .0.cause.one_line())]
    Template(#[from] ResolveError),
    #[error(transparent)]
    Requirement(#[from] NoEvents),
    /// A reference to a resource without events, with the reason that follows from the manifest.
    #[error("no events found for {reference}: {reason}")]
    Unmet {
        reference: String,
        reason: UnmetReason,
    },
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
    #[error(transparent)]
    Random(#[from] RandomError),
    /// An error whose rendered values are hidden from the caller.
    #[error("{0}")]
    Hidden(String),
}

impl FlowError {
    /// Returns the error without rendered values.
    #[must_use]
    pub fn hidden(self) -> Self {
        let missing = Lookup::denial_in(&self.to_string()).map(str::to_owned);
        let text = match &self {
            Self::Provider(_) | Self::Requirement(_) | Self::Unmet { .. } => return self,
            Self::Random(_) | Self::Hidden(_) => return self,
            Self::Expression(_) => "a control expression could not be evaluated".into(),
            Self::Template(err) => format!("the template in {} could not be evaluated", err.field),
            Self::Invalid(err) => format!("{} is not valid", err.property),
        };
        Self::Hidden(missing.unwrap_or(text))
    }

    /// Returns the position of the cause in a text that contains the resource at a position.
    pub(super) fn mark_in(&self, text: &str, resource: Mark) -> Option<Mark> {
        let document = parse(text).ok()?;
        let find = |part| find_part(&document, resource, part);
        let property = match self {
            Self::Requirement(NoEvents(reference)) | Self::Unmet { reference, .. } => {
                let required = find(Part::Item("require", reference));
                return required.or_else(|| find(Part::Item("subscribe", reference)));
            }
            Self::Provider(_) => "provider",
            Self::Expression(_) => "control",
            Self::Template(err) => err.property(),
            Self::Invalid(invalid) => invalid.property,
            Self::Random(_) | Self::Hidden(_) => return None,
        };
        let mark = find(Part::Property(property))?;
        let in_expression = self.expression().and_then(|err| err.mark_in(text, mark));
        in_expression.or(Some(mark))
    }

    /// Returns the failed expression.
    fn expression(&self) -> Option<&ExprError> {
        match self {
            Self::Expression(cause) | Self::Template(ResolveError { cause, .. }) => Some(cause),
            _ => None,
        }
    }

    /// Returns the message without the expression.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Expression(cause) | Self::Template(ResolveError { cause, .. }) => {
                format!("invalid expression: {}", cause.message())
            }
            Self::Unmet { reference, reason } => reason.message(reference),
            Self::Invalid(invalid) => invalid.full_message(),
            _ => self.to_string(),
        }
    }

    /// Returns a suggestion, as a clause in lower case.
    pub(super) fn help(&self) -> Option<String> {
        let text = match self {
            Self::Expression(cause) | Self::Template(ResolveError { cause, .. }) => {
                return Some(cause.suggestion());
            }
            Self::Invalid(invalid) => return Some(property_help(invalid)),
            Self::Requirement(NoEvents(reference)) => {
                return Some(format!("apply {reference} before this resource"));
            }
            Self::Unmet { reference, reason } => return Some(unmet_help(reference, reason)),
            Self::Provider(ProviderError::NoneSuitable) => {
                "install the program that manages this type, or skip the resource with control: {if: …}"
            }
            Self::Provider(ProviderError::NotFound) => {
                "correct provider, or remove it to use that of this system"
            }
            Self::Provider(ProviderError::NotManageable) => {
                "remove provider to use that of this system"
            }
            Self::Random(_) | Self::Hidden(_) => return None,
        };
        Some(text.into())
    }
}
