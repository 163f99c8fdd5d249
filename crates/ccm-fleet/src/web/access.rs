//! Access to the web server: tokens with names and roles, and limits on what may be rolled out.
//!
//! Tokens are kept as SHA-256 digests, so that neither the file nor the memory of the server contains
//! them. A plain digest is sufficient because tokens are random and long. Requests are checked in
//! `auth`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::rollout_policy::RolloutPolicy;
use ccm_core::model::node::{BundleDigest, Token};
use ccm_core::system::Digest;
use ccm_value::document::{self, DocumentError};
use ccm_value::secret::Secret;

/// Minimum length of a token.
const MIN_TOKEN_LENGTH: usize = 16;

/// What a token permits; each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessRole {
    /// Reads everything.
    Read,
    /// Sends requests to nodes: check, pause, resume and ensure.
    Ask,
    /// Starts and controls rollouts, and edits labels.
    RollOut,
}

impl AccessRole {
    pub const ALL: [Self; 3] = [Self::Read, Self::Ask, Self::RollOut];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Ask => "ask",
            Self::RollOut => "roll-out",
        }
    }
}

/// Why tokens are refused.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("the token must have {MIN_TOKEN_LENGTH} characters or more, without spaces")]
    WeakToken,
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("the file has no tokens")]
    NoTokens,
    #[error("token {0} is listed twice")]
    DuplicateName(Token),
    #[error("tokens {0} and {1} are equal")]
    DuplicateToken(Token, Token),
}

/// One token, as its digest.
#[derive(Clone, Debug)]
struct AccessToken {
    /// None if the server has a single token.
    name: Option<Token>,
    role: AccessRole,
    digest: String,
}

/// Tokens of the server, and limits on rollouts.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tokens: Vec<AccessToken>,
    /// Whether every request is refused.
    is_closed: bool,
    pub(super) rollouts: RolloutPolicy,
}

/// The file with the tokens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    tokens: Vec<TokenEntry>,
    #[serde(default)]
    rollouts: RolloutPolicy,
}

/// One token in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: Token,
    role: AccessRole,
    /// SHA-256 digest of the token.
    sha256: BundleDigest,
}

impl Access {
    /// Returns the access of a server without tokens: everyone may read.
    pub fn open() -> Self {
        Self::default()
    }

    /// Returns the access of a server whose tokens are not known: nobody may do anything.
    pub(super) fn closed() -> Self {
        Self {
            is_closed: true,
            ..Self::default()
        }
    }

    /// Reports whether every request is refused.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the access of a server with a single token.
    pub fn single(token: &Secret, role: AccessRole) -> Result<Self, AccessError> {
        let text = token.reveal();
        if text.len() < MIN_TOKEN_LENGTH || !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err(AccessError::WeakToken);
        }
        Ok(Self {
            tokens: vec![AccessToken {
                name: None,
                role,
                digest: digest(text),
            }],
            ..Self::default()
        })
    }

    /// Parses a file with tokens.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let root = document::parse(text)?;
        let file = AccessFile::deserialize(&root)?;
        if file.tokens.is_empty() {
            return Err(AccessError::NoTokens);
        }
        let mut names = BTreeSet::new();
        for (index, entry) in file.tokens.iter().enumerate() {
            if !names.insert(&entry.name) {
                return Err(AccessError::DuplicateName(entry.name.clone()));
            }
            let mut others = file.tokens.iter().take(index);
            if let Some(equal) = others.find(|other| other.sha256 == entry.sha256) {
                let (first, second) = (equal.name.clone(), entry.name.clone());
                return Err(AccessError::DuplicateToken(first, second));
            }
        }
        let tokens = file.tokens.into_iter().map(|entry| AccessToken {
            name: Some(entry.name),
            role: entry.role,
            digest: entry.sha256.to_string(),
        });
        Ok(Self {
            tokens: tokens.collect(),
            rollouts: file.rollouts,
            ..Self::default()
        })
    }

    /// Reports whether requests need a token.
    pub(super) fn needs_token(&self) -> bool {
        self.is_closed || !self.tokens.is_empty()
    }

    /// Returns who sends this token. Takes the same time for every token.
    pub(super) fn identify(&self, given: &str) -> Option<Requester> {
        let given = digest(given);
        let mut found = None;
        for token in &self.tokens {
            if is_same(&token.digest, &given) {
                found = Some(Requester {
                    name: token.name.clone(),
                    role: token.role,
                });
            }
        }
        found
    }
}

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requester {
    /// Name of the token, if the server has named tokens.
    pub(super) name: Option<Token>,
    pub(super) role: AccessRole,
}

impl Requester {
    /// Returns the requester of a server without tokens.
    pub(super) fn anonymous() -> Self {
        Self {
            name: None,
            role: AccessRole::Read,
        }
    }

    /// Returns the caller for nodes, rollouts and the audit: the token, and the user of the server.
    pub(super) fn caller(&self, server: &str) -> String {
        match &self.name {
            Some(name) => format!("{name} via {server}"),
            None => server.to_owned(),
        }
    }
}

fn digest(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

/// Compares two digests in constant time.
fn is_same(one: &str, other: &str) -> bool {
    let pairs = one.bytes().zip(other.bytes());
    pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0 && one.len() == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(entries: &[(&str, &str, &str)]) -> String {
        let mut text = String::from("tokens:\n");
        for (name, role, token) in entries {
            let digest = digest(token);
            text.push_str(&format!(
                "  - {{name: {name}, role: {role}, sha256: {digest}}}\n"
            ));
        }
        text
    }

    #[test]
    fn each_token_has_its_name_and_role() {
        let text = file(&[
            ("ann", "roll-out", "secret of ann"),
            ("bob", "ask", "secret of bob"),
            ("grafana", "read", "secret of grafana"),
        ]);
        let access = Access::parse(&text).unwrap();
        let found = |token: &str| {
            let found = access.identify(token)?;
            Some((found.name?.to_string(), found.role.as_str()))
        };
        assert_eq!(found("secret of ann"), Some(("ann".into(), "roll-out")));
        assert_eq!(found("secret of bob"), Some(("bob".into(), "ask")));
        assert_eq!(found("secret of grafana"), Some(("grafana".into(), "read")));
        assert_eq!(found("secret of an"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn an_invalid_file_is_refused_with_the_reason() {
        let two = file(&[("ann", "read", "a"), ("ann", "ask", "b")]);
        let equal = file(&[("ann", "read", "a"), ("bob", "ask", "a")]);
        let role = file(&[("ann", "admin", "a")]);
        for (text, reason) in [
            ("tokens: []", "the file has no tokens"),
            ("{}", "tokens"),
            (two.as_str(), "token ann is listed twice"),
            (equal.as_str(), "tokens ann and bob are equal"),
            (role.as_str(), "admin"),
            ("tokens: [{name: a b, role: read, sha256: x}]", "a b"),
            ("tokens: [{name: ann, role: read, sha256: short}]", "64 hex"),
            ("tokens: [{name: ann, role: read, token: x}]", "token"),
            ("tokens: []\nusers: []", "users"),
        ] {
            let error = Access::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_short_single_token_is_refused() {
        for token in ["short", "with a space in it 123"] {
            let refused = Access::single(&Secret::new(token), AccessRole::Read);
            assert!(refused.is_err(), "{token}");
        }
        let access = Access::single(&Secret::new("0123456789abcdef"), AccessRole::Ask).unwrap();
        let found = access.identify("0123456789abcdef").unwrap();
        assert_eq!((found.name, found.role), (None, AccessRole::Ask));
    }

    #[test]
    fn the_caller_names_the_token_and_the_server() {
        let named = Requester {
            name: Some("ann".parse().unwrap()),
            role: AccessRole::Ask,
        };
        assert_eq!(named.caller("ccm@hub"), "ann via ccm@hub");
        assert_eq!(Requester::anonymous().caller("ccm@hub"), "ccm@hub");
    }
}
