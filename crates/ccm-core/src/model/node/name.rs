//! Names of nodes, collectives, groups and bundle digests. They are validated when they are parsed, so
//! their tokens can be used in subjects, keys and file names without further checks.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::text::quote;

/// Maximum length of a node name, as in DNS.
const MAX_NAME: usize = 253;

/// Maximum length of a subject token; the name of every node fits into one.
const MAX_TOKEN: usize = MAX_NAME;

/// Invalid name of a node, collective, group or bundle digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("invalid identity {}: use lower case letters, digits, '.' and '-'", quote(.0))]
    Identity(String),
    #[error("invalid name {}: use letters, digits, '_' and '-'", quote(.0))]
    Token(String),
    #[error("invalid digest {}: expected 64 hex digits", quote(.0))]
    Digest(String),
}

/// Identity of a node: its lower-case fully qualified domain name, unless configured. Clones share the
/// text: a rollout has every name in several maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

impl NodeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as one token of a subject or key.
    pub fn token(&self) -> Token {
        Token(self.0.replace('.', "_"))
    }
}

impl NodeName {
    /// Returns the name of a machine without a hostname.
    pub fn localhost() -> Self {
        Self("localhost".into())
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
        let has_empty_part = text.split('.').any(str::is_empty);
        if text.len() > MAX_NAME || has_empty_part || !text.chars().all(plain) {
            return Err(NameError::Identity(text.into()));
        }
        Ok(Self(text.into()))
    }
}

/// One token of a subject: a collective, a group, or the name of a node with its dots replaced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(String);

impl Token {
    /// Returns the default collective.
    pub fn default_collective() -> Self {
        Self("default".into())
    }

    /// Returns Choria's default collective.
    pub fn choria_collective() -> Self {
        Self("mcollective".into())
    }

    /// Returns the component name of Choria's server in lifecycle events.
    pub fn choria_server() -> Self {
        Self("server".into())
    }

    /// Returns the name of this program.
    pub fn program() -> Self {
        Self("ccm".into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Token {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if text.is_empty() || text.len() > MAX_TOKEN || !text.chars().all(plain) {
            return Err(NameError::Token(text.into()));
        }
        Ok(Self(text.into()))
    }
}

/// SHA-256 digest of a bundle, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BundleDigest(Arc<str>);

impl BundleDigest {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BundleDigest {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if text.len() != 64 || !text.chars().all(hex) {
            return Err(NameError::Digest(text.into()));
        }
        Ok(Self(text.into()))
    }
}

macro_rules! text_newtype {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.to_string()
            }
        }
    )*};
}

text_newtype!(NodeName, Token, BundleDigest);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_is_a_lower_case_domain_name() {
        for good in ["web1", "web1.example.net", "a-b.c", "10.0.0.1"] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        let long = "a".repeat(254);
        for bad in [
            "", "Web1", "a_b", "a..b", ".a", "a.", "a b", "a*", "a>", &long,
        ] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_token_of_a_name_has_no_dots() {
        let name: NodeName = "web1.example.net".parse().unwrap();
        assert_eq!(name.token().as_str(), "web1_example_net");
    }

    #[test]
    fn a_token_has_no_separators_or_wildcards() {
        for bad in ["", "a.b", "*", ">", "a b", "é", &"a".repeat(254)] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
        assert!("DB_eu-1".parse::<Token>().is_ok());
    }

    #[test]
    fn the_token_of_the_longest_name_round_trips() {
        let name: NodeName = format!("a{}", ".a".repeat(126)).parse().unwrap();
        let text = serde_json::to_string(&name.token()).unwrap();
        assert_eq!(serde_json::from_str::<Token>(&text).unwrap(), name.token());
    }

    #[test]
    fn an_invalid_name_in_a_document_is_rejected() {
        let error = serde_json::from_str::<NodeName>("\"Bad Name\"").unwrap_err();
        assert!(
            error.to_string().contains("invalid identity \"Bad Name\""),
            "{error}"
        );
    }
}
