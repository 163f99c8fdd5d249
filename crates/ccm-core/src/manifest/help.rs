//! Suggestions for the problems of a manifest, one for each kind.

use super::error::{DataError, EntryError, ProblemKind, TemplateError, UnmetReason};
use crate::hiera::{self, HieraError};
use crate::model::TypeName;
use crate::model::document::nearest;
use crate::model::id::UnknownType;
use crate::model::resource::InvalidProperty;

/// Suggestion for references.
const REFERENCE: &str = "write type#name, such as file#/etc/motd";

/// Suggestion for file modes.
const MODE: &str = "write octal digits in quotes, such as \"0644\"";

impl ProblemKind {
    /// Returns a suggestion, as a clause in lower case.
    pub(super) fn help(&self) -> Option<String> {
        let text: &str = match self {
            Self::Document(err) | Self::UnknownName(err) | Self::Governor(err) => {
                return err.suggestion();
            }
            Self::NotAMapping(_) => {
                "write a mapping with the keys data, hierarchy, overrides and ccm"
            }
            Self::SectionNotAMapping { .. } => {
                "write ccm: and below it resources: with a list of resources"
            }
            Self::NotAList(_) => "start each resource with \"- \", such as \"- file: …\"",
            Self::NoResources => {
                "write ccm:, below it resources:, and below that a list such as \"- file: …\""
            }
            Self::Data(err) => return data_help(err),
            Self::NotAFlag { .. } => "write true or false without quotes",
            Self::NotText { .. } => "write the text on the line of the key, in quotes if necessary",
            Self::TwoLists => "remove resources, or the template",
            Self::Template(err) => return template_help(err),
            Self::Resource { cause, .. } => return entry_help(cause),
            Self::Message { cause, .. } | Self::Expression(cause) => {
                return Some(cause.suggestion());
            }
            Self::Unmet { reference, reason } => return Some(unmet_help(reference, reason)),
            Self::Subscribe(_) => REFERENCE,
            Self::Mode(_) => MODE,
            Self::Redacted(_) => return None,
        };
        Some(text.into())
    }
}

fn data_help(error: &DataError) -> Option<String> {
    match error {
        DataError::Unresolved(HieraError::Expression { cause, .. }) => Some(cause.suggestion()),
        DataError::Unresolved(err) => hiera::suggestion(err),
        DataError::Unopened(_) => Some(
            "encrypt the value for this node with ccm secrets rekey, or give its key with --secret-key"
                .into(),
        ),
        DataError::Invalid(invalid) => invalid.failures.first().map(|f| f.suggestion()),
    }
}

fn template_help(error: &TemplateError) -> Option<String> {
    Some(match error {
        TemplateError::NoDirectory => "apply the manifest from a file".into(),
        TemplateError::Read(_) => "the path is relative to the directory of the manifest".into(),
        TemplateError::Render(err) => return err.suggestion(),
        TemplateError::NotText(_) => "save the template as UTF-8".into(),
        TemplateError::Empty => {
            "the template must render a list of resources, such as \"- file: …\"".into()
        }
        TemplateError::Output { cause, .. } => return cause.suggestion(),
    })
}

fn entry_help(error: &EntryError) -> Option<String> {
    Some(match error {
        EntryError::NotOneType {
            unindented: Some(name),
        } => {
            format!("indent the properties further than {name}:")
        }
        EntryError::NotOneType { unindented: None } => {
            "start a new list item with \"- \" for each type".into()
        }
        EntryError::Type { cause } => suggested_type(cause).unwrap_or_else(|| {
            let types = TypeName::ALL.map(TypeName::as_str).join(", ");
            format!("expected one of {types}")
        }),
        EntryError::Document(err) => return err.suggestion(),
        EntryError::Resolve(err) => err.cause.suggestion(),
        EntryError::Invalid(invalid) => property_help(invalid),
    })
}

/// Returns the suggestion for an unknown type, if one is similar.
pub(super) fn suggested_type(unknown: &UnknownType) -> Option<String> {
    let near = nearest(&unknown.0, &TypeName::ALL.map(TypeName::as_str))?;
    Some(format!("did you mean {near:?}?"))
}

/// Returns the suggestion for a reference to a resource that is not applied before.
pub(crate) fn unmet_help(reference: &str, reason: &UnmetReason) -> String {
    match reason {
        UnmetReason::Undefined {
            nearest: Some(near),
        }
        | UnmetReason::NotApplied {
            nearest: Some(near),
        } => format!("did you mean {near:?}?"),
        UnmetReason::NotApplied { nearest: None } => {
            format!("apply {reference} before this resource")
        }
        UnmetReason::Undefined { nearest: None } => {
            format!("define {reference} before this resource, or remove the reference")
        }
        UnmetReason::Later { .. } => format!("move {reference} before this resource"),
        UnmetReason::Itself => "remove the reference".into(),
        UnmetReason::Cycle { .. } => "remove one of the references".into(),
        UnmetReason::Invalid { .. } => format!("correct {reference} first"),
    }
}

/// Returns the suggestion for an invalid property.
pub(crate) fn property_help(invalid: &InvalidProperty) -> String {
    let message = invalid.message.as_str();
    let text = match invalid.property {
        "owner" => "add owner, such as owner: root",
        "group" => "add group, such as group: root",
        "mode" => MODE,
        "timeout" => "write a number with a unit, such as 30s, 5m or 1h",
        "require" | "subscribe" => REFERENCE,
        "environment" => "write a list of KEY=VALUE",
        "path" => "write absolute directories, separated by colons",
        "url" => "write the complete URL of the archive",
        "name" if message == "name is required" => "add name, or write a list: \"- NAME: {…}\"",
        "name" if message.contains("absolute") => "start the path with /",
        "ensure" if message == "ensure is required" => "add ensure, such as ensure: present",
        "ensure" if message.contains('"') => "write one of the expected values",
        "source" if message.contains("exclusive") => "remove content or source",
        "health_checks" => "write a list of checks, each with command or goss_rules",
        property => return format!("correct {property}, or remove it"),
    };
    text.into()
}
