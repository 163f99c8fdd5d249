//! Labels: names and values that the controller assigns to a node.
//!
//! A node controls its own facts and can forge them. Decisions that must not depend on them, such as
//! the wave of a node in a rollout, use labels, which are stored on the controller's side. How a
//! selection evaluates labels is in [`crate::filter`].

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Value;
use super::text::quote;
use super::value::Map;

/// Maximum length of a label name.
const MAX_NAME: usize = 128;

/// Maximum length of a label value.
const MAX_VALUE: usize = 1024;

/// Invalid label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("invalid label name {}: use words of letters, digits, '_' and '-', joined by '.'", quote(.0))]
    Name(String),
    #[error("invalid label {}: expected NAME=VALUE", quote(.0))]
    Entry(String),
    #[error("the value of label {0} is longer than {MAX_VALUE} bytes")]
    TooLong(LabelName),
}

/// Name of a label, which is also the path of the fact that it overrides: `role`, `os.name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelName(String);

impl LabelName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LabelName {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let is_word = |word: &str| !word.is_empty() && word.chars().all(plain);
        if text.len() <= MAX_NAME && text.split('.').all(is_word) {
            Ok(Self(text.into()))
        } else {
            Err(LabelError::Name(text.into()))
        }
    }
}

impl TryFrom<String> for LabelName {
    type Error = LabelError;

    fn try_from(text: String) -> Result<Self, LabelError> {
        text.parse()
    }
}

impl From<LabelName> for String {
    fn from(name: LabelName) -> Self {
        name.0
    }
}

impl fmt::Display for LabelName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Parses `NAME=VALUE`.
pub fn parse_label(text: &str) -> Result<(LabelName, String), LabelError> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| LabelError::Entry(text.into()))?;
    let name: LabelName = name.parse()?;
    if value.len() > MAX_VALUE {
        Err(LabelError::TooLong(name))
    } else {
        Ok((name, value.into()))
    }
}

/// Labels of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<LabelName, String>);

impl Labels {
    /// Returns an empty set of labels.
    pub fn none() -> &'static Self {
        static NONE: Labels = Labels(BTreeMap::new());
        &NONE
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a label.
    pub fn get(&self, name: &str) -> Option<&str> {
        let name = LabelName(name.into());
        self.0.get(&name).map(String::as_str)
    }

    /// Sets a label and returns its previous value.
    pub fn set(&mut self, name: LabelName, value: String) -> Option<String> {
        self.0.insert(name, value)
    }

    /// Removes a label and returns its value.
    pub fn remove(&mut self, name: &LabelName) -> Option<String> {
        self.0.remove(name)
    }

    /// Returns the labels sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&LabelName, &str)> {
        self.0.iter().map(|(name, value)| (name, value.as_str()))
    }

    /// Returns the labels as a map by name, for expressions.
    pub fn to_value(&self) -> Value {
        self.iter()
            .map(|(name, value)| (name.as_str(), Value::from(value)))
            .collect()
    }

    /// Returns the labels as facts: a name with dots becomes nested maps.
    pub(crate) fn to_facts(&self) -> Value {
        self.iter()
            .fold(Value::empty_map(), |facts, (name, value)| {
                let nested = name.0.rsplit('.').fold(Value::from(value), |inner, word| {
                    Map::from([(word.into(), inner)]).into()
                });
                facts.merge_deep(&nested)
            })
    }
}

impl FromIterator<(LabelName, String)> for Labels {
    fn from_iter<I: IntoIterator<Item = (LabelName, String)>>(labels: I) -> Self {
        Self(labels.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(entries: &[&str]) -> Labels {
        let parsed = entries.iter().map(|entry| parse_label(entry).unwrap());
        parsed.collect()
    }

    #[test]
    fn a_label_is_a_name_and_any_text() {
        let labels = labels(&["role=web", "note=a=b", "empty="]);
        assert_eq!(labels.get("note"), Some("a=b"));
        assert_eq!(labels.get("empty"), Some(""));
        assert_eq!(labels.get("Role"), None);
    }

    #[test]
    fn an_invalid_label_is_reported() {
        for (text, error) in [
            ("role", "invalid label \"role\": expected NAME=VALUE"),
            ("=x", "invalid label name \"\": "),
            ("a..b=x", "invalid label name \"a..b\": "),
            ("a b=x", "invalid label name \"a b\": "),
        ] {
            let found = parse_label(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
        let long = format!("a={}", "x".repeat(MAX_VALUE + 1));
        assert!(parse_label(&long).is_err());
    }

    #[test]
    fn dots_in_a_name_become_nested_facts() {
        let facts = labels(&["os.name=debian", "os.family=linux", "role=web"]).to_facts();
        assert_eq!(
            serde_json::to_string(&facts).unwrap(),
            r#"{"os":{"family":"linux","name":"debian"},"role":"web"}"#
        );
    }

    #[test]
    fn labels_are_stored_as_a_plain_map() {
        let text = r#"{"os.name":"debian","role":"web"}"#;
        let read: Labels = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert!(serde_json::from_str::<Labels>(r#"{"a b":"c"}"#).is_err());
    }
}
