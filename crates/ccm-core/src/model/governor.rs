//! Governor claims: the governor that a run needs a slot of, and how long it waits for one.
//!
//! A governor is Choria's limit on concurrent runs. Slots are acquired in `ccm_nats::governor`; when
//! a run needs one is decided in [`crate::run`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::document::{DocumentError, Node, from_entries};
use super::node::Token;
use super::text::{DurationError, go_duration, parse_wait, quote};

/// Default wait for a slot, the same as Choria's.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Maximum wait for a slot.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Maximum length of a name; with Choria's prefix it is the name of a stream.
const MAX_NAME: usize = 200;

/// Invalid governor claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GovernorClaimError {
    #[error("invalid governor name {}: use letters, digits, '_' and '-'", quote(.0))]
    Name(String),
    #[error("invalid governor timeout {}: {cause}", quote(.text))]
    Timeout {
        text: String,
        #[source]
        cause: GovernorTimeoutError,
    },
}

/// Invalid wait for a slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GovernorTimeoutError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("must be more than 0s")]
    Zero,
    #[error("must be at most {}", go_duration(MAX_TIMEOUT))]
    TooLong,
}

/// Name of a governor: one token of a NATS subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GovernorName(Token);

impl GovernorName {
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for GovernorName {
    type Err = GovernorClaimError;

    fn from_str(text: &str) -> Result<Self, GovernorClaimError> {
        match text.parse() {
            Ok(token) if text.len() <= MAX_NAME => Ok(Self(token)),
            _ => Err(GovernorClaimError::Name(text.into())),
        }
    }
}

impl fmt::Display for GovernorName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl TryFrom<String> for GovernorName {
    type Error = GovernorClaimError;

    fn try_from(text: String) -> Result<Self, GovernorClaimError> {
        text.parse()
    }
}

impl From<GovernorName> for String {
    fn from(name: GovernorName) -> Self {
        name.0.into()
    }
}

/// Progress of a run's slot claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotProgress {
    Waiting,
    /// The slot with this number was acquired.
    Entered(u64),
    /// No slot became free in time, or the wait was cancelled.
    NotEntered {
        given_up: bool,
    },
    /// The slot with this number was released.
    Left(u64),
}

/// How a slot was lost during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLoss {
    /// The run took longer than the lease.
    LeaseEnded,
    /// Evicted by hand, with Choria's tool, which publishes an event about it.
    Evicted,
}

/// Claim of one governor slot: `{name: deploys, timeout: 5m}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GovernorClaim {
    pub name: GovernorName,
    /// Maximum wait for a slot.
    #[serde(default, skip_serializing_if = "GovernorTimeout::is_default")]
    pub timeout: GovernorTimeout,
}

impl GovernorClaim {
    /// Returns a claim with the default wait.
    pub fn new(name: GovernorName) -> Self {
        Self {
            name,
            timeout: GovernorTimeout::default(),
        }
    }

    /// Reads a claim from a mapping; null is no claim.
    pub fn read(node: &Node) -> Result<Option<Self>, DocumentError> {
        if node.is_null() {
            return Ok(None);
        }
        let Some(entries) = node.entries() else {
            let message = format!("expected name and timeout, found a {}", node.kind_name());
            return Err(DocumentError::new(node.mark, message));
        };
        from_entries(entries.iter())
            .map(Some)
            .map_err(|err: DocumentError| err.at(node.mark))
    }
}

/// Maximum wait for a slot: more than zero, at most 24 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GovernorTimeout(Duration);

impl GovernorTimeout {
    pub fn duration(self) -> Duration {
        self.0
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for GovernorTimeout {
    fn default() -> Self {
        Self(DEFAULT_TIMEOUT)
    }
}

impl FromStr for GovernorTimeout {
    type Err = GovernorClaimError;

    fn from_str(text: &str) -> Result<Self, GovernorClaimError> {
        let checked = match parse_wait(text) {
            Ok(wait) if wait.is_zero() => Err(GovernorTimeoutError::Zero),
            Ok(wait) if wait > MAX_TIMEOUT => Err(GovernorTimeoutError::TooLong),
            Ok(wait) => Ok(Self(wait)),
            Err(err) => Err(err.into()),
        };
        checked.map_err(|cause| GovernorClaimError::Timeout {
            text: text.into(),
            cause,
        })
    }
}

impl TryFrom<String> for GovernorTimeout {
    type Error = GovernorClaimError;

    fn try_from(text: String) -> Result<Self, GovernorClaimError> {
        text.parse()
    }
}

impl From<GovernorTimeout> for String {
    fn from(timeout: GovernorTimeout) -> Self {
        go_duration(timeout.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::parse;

    fn read(text: &str) -> Result<GovernorClaim, String> {
        let node = parse(text).unwrap();
        let claim = GovernorClaim::read(&node).map_err(|err| err.to_string())?;
        Ok(claim.unwrap())
    }

    #[test]
    fn a_claim_has_a_name_and_an_optional_timeout() {
        let claim = read("{name: deploys, timeout: 90s}").unwrap();
        assert_eq!(claim.name.as_str(), "deploys");
        assert_eq!(claim.timeout.duration(), Duration::from_secs(90));
        let claim = read("{name: deploys}").unwrap();
        assert_eq!(claim.timeout.duration(), DEFAULT_TIMEOUT);
    }

    #[test]
    fn a_claim_round_trips() {
        for text in [
            r#"{"name":"deploys","timeout":"1m30s"}"#,
            r#"{"name":"deploys"}"#,
        ] {
            let claim: GovernorClaim = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&claim).unwrap(), text);
        }
    }

    #[test]
    fn each_invalid_claim_has_its_position_and_message() {
        for (text, error) in [
            ("{nam: x}", "did you mean \"name\"?"),
            ("{timeout: 5m}", "missing field `name`"),
            ("{name: a.b}", "invalid governor name \"a.b\""),
            ("{name: ''}", "invalid governor name \"\""),
            (
                "{name: a, timeout: soon}",
                "invalid governor timeout \"soon\"",
            ),
            ("{name: a, timeout: 0s}", "must be more than 0s"),
            ("{name: a, timeout: 2d}", "must be at most 24h0m0s"),
            (
                "[a]",
                "line 1 column 1: expected name and timeout, found a sequence",
            ),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        assert!(long.parse::<GovernorName>().is_err());
    }
}
