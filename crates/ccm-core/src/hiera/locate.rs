//! Positions of data errors in their document, and suggestions.
//!
//! Data is resolved without positions; for an error, the document is parsed again.

use super::annotations::KeyPath;
use super::error::HieraError;
use super::validate::{Failure, InvalidData};
use crate::model::diagnostic::{Diagnostic, Location};
use crate::model::document::{self, Mark, Node, describe_kind};

/// Returns the position of an error in the document; the position of the document if it has none
/// of its own.
pub fn locate(error: &HieraError, text: &str, root: &Node, data_key: &str) -> Mark {
    let path: &[&str] = match error {
        HieraError::Hierarchy => &["hierarchy"],
        HieraError::At { .. }
        | HieraError::DataFile { .. }
        | HieraError::Order
        | HieraError::OrderEntry
        | HieraError::TooLarge { .. }
        | HieraError::DataFileOutside(_) => &["hierarchy", "order"],
        HieraError::Merge(_) => &["hierarchy", "merge"],
        HieraError::MergeStrategy { key, .. } => &["hierarchy", "merge", key.as_str()],
        HieraError::Overrides(_) => &["overrides"],
        HieraError::Override { level, .. } => &["overrides", level.as_str()],
        HieraError::Expression { section, .. } if section.starts_with("hierarchy.order") => {
            &["hierarchy", "order"]
        }
        HieraError::Expression { section, .. } if section.starts_with("overrides") => {
            &["overrides"]
        }
        HieraError::Expression { section, .. } if section.starts_with("data file") => &[],
        HieraError::Expression { .. } => &[data_key],
        _ => &[],
    };
    let mark = find(root, path.iter().copied());
    match error {
        HieraError::Expression { cause, .. } => cause.mark_in(text, mark).unwrap_or(mark),
        _ => mark,
    }
}

/// Returns the position of the key that a failure is about.
pub fn locate_failure(failure: &Failure, root: &Node, data_key: &str) -> Mark {
    let (Failure::Required(path) | Failure::Invalid { path, .. } | Failure::Failed { path, .. }) =
        failure;
    locate_key(path, root, data_key)
}

/// Returns the position of a key of the base data; that of the nearest key above it if there is none.
pub fn locate_key(path: &KeyPath, root: &Node, data_key: &str) -> Mark {
    find(root, std::iter::once(data_key).chain(path.keys()))
}

/// Returns the position of a value, or of its key if the value is not on the key's line.
fn find<'k>(root: &Node, path: impl Iterator<Item = &'k str>) -> Mark {
    let mut mark = root.mark;
    let mut node = root;
    for key in path {
        let Some((key, value)) = node.entry(key) else {
            break;
        };
        let is_word = value.text().is_some() && !value.is_null();
        mark = if is_word { value.mark } else { key.mark };
        node = value;
    }
    // An empty document has no position.
    Mark {
        line: mark.line.max(1),
        column: mark.column.max(1),
    }
}

/// Returns a suggestion, as a clause in lower case.
pub fn suggestion(error: &HieraError) -> Option<String> {
    let text = match error {
        HieraError::Root(_) => "write a mapping with data, hierarchy and overrides",
        HieraError::Hierarchy => "write hierarchy: and below it order: with a list of levels",
        HieraError::Order | HieraError::OrderEntry => {
            "write a list of texts, such as order: [\"role:{{ Facts.role }}\", default]"
        }
        HieraError::Overrides(_) => "write a mapping from the levels of the order to data",
        HieraError::Override { .. } => "write a mapping of keys and values below the level",
        HieraError::Merge(_) => "use first or deep, or a mapping such as {vhosts: replace}",
        HieraError::MergeStrategy { .. } => "use deep or replace",
        HieraError::DataFileOutside(_) => {
            "use facts whose values have no .. and no leading slash, or correct the entry"
        }
        HieraError::DataFileRoot { .. } => "write a mapping of keys and values",
        HieraError::TooLarge { .. } => "remove repeated levels from the order",
        HieraError::Parse { cause, .. } => return cause.suggestion(),
        HieraError::Expression { cause, .. } => return Some(cause.suggestion()),
        HieraError::Invalid(InvalidData { failures }) => {
            return failures.first().map(Failure::suggestion);
        }
        HieraError::At { cause, .. } => return suggestion(cause),
        _ => return None,
    };
    Some(text.into())
}

impl Failure {
    /// Returns a suggestion, as a clause in lower case.
    pub fn suggestion(&self) -> String {
        match self {
            Self::Required(_) => "set the value here, in an override or in external data".into(),
            Self::Invalid { .. } | Self::Failed { .. } => {
                "change the value, or the @validate comment of the key".into()
            }
        }
    }
}

impl HieraError {
    /// Adds the position in the document, whose name and text are given; an error of a data file has
    /// its position already.
    #[must_use]
    pub fn located(self, name: &str, text: &str, data_key: &str) -> Self {
        if matches!(self, Self::At { .. }) {
            return self;
        }
        let root = document::parse_message(text).ok();
        let marks: Vec<Mark> = match (&self, &root) {
            (Self::Parse { cause, .. }, _) => vec![cause.mark],
            (Self::Invalid(invalid), Some(root)) => invalid
                .failures
                .iter()
                .map(|failure| locate_failure(failure, root, data_key))
                .collect(),
            (error, Some(root)) => vec![locate(error, text, root, data_key)],
            (_, None) => return self,
        };
        Self::At {
            locations: marks
                .into_iter()
                .map(|mark| Location::new(name, text, mark))
                .collect(),
            cause: Box::new(self),
        }
    }

    /// Returns the message without the suggestion and the position.
    pub fn message(&self) -> String {
        match self {
            Self::Parse { cause, .. } => cause.message.clone(),
            Self::Expression { cause, .. } => format!("invalid expression: {}", cause.message()),
            Self::Root(found) => {
                format!(
                    "hiera data must be a mapping, found {}",
                    describe_kind(found)
                )
            }
            Self::Overrides(found) => {
                format!(
                    "overrides must be a mapping, found {}",
                    describe_kind(found)
                )
            }
            Self::Override { level, found } => {
                let found = describe_kind(found);
                format!("overrides {level:?} must be a mapping, found {found}")
            }
            error => error.to_string(),
        }
    }

    /// Returns the problems with their source lines and suggestions; none without a position.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let Self::At { locations, cause } = self else {
            return Vec::new();
        };
        let texts: Vec<(String, Option<String>)> = match &**cause {
            Self::Invalid(invalid) => invalid
                .failures
                .iter()
                .map(|failure| (failure.to_string(), Some(failure.suggestion())))
                .collect(),
            error => vec![(error.message(), suggestion(error))],
        };
        let problems = texts.into_iter().zip(locations);
        problems
            .map(|((message, help), location)| Diagnostic {
                message,
                location: location.clone(),
                help,
                ..Diagnostic::default()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::hiera::{DATA_KEY, Source, resolve};
    use ccm_template::env::Facts;

    fn position(text: &str) -> String {
        let source = Source::File("h.yaml".into());
        let error = match source.read(text.as_bytes(), DATA_KEY) {
            Ok(document) => resolve(&document.root, &Facts::default(), DATA_KEY)
                .map_err(|err| err.located("h.yaml", text, DATA_KEY))
                .unwrap_err(),
            Err(err) => err,
        };
        let found = error.diagnostics().remove(0);
        let mark = found.location.mark;
        format!("{}:{} {}", mark.line, mark.column, found.message)
    }

    #[test]
    fn errors_are_located_in_their_section() {
        for (text, expected) in [
            (
                "data: {}\nhierarchy: {order: x}\n",
                "2:20 hierarchy.order must be a list",
            ),
            (
                "data: {}\noverrides: [a]\n",
                "2:1 overrides must be a mapping, found a list",
            ),
            (
                "data:\n  a: 1\n  b: '{{ 1 + }}'\n",
                "3:12 invalid expression: the expression is not complete",
            ),
            ("data:\n  a: [1\n", "2:6 [ is not closed"),
        ] {
            assert_eq!(position(text), expected, "{text}");
        }
    }
}
