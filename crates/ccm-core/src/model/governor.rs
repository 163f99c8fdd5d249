//! Governors: Choria's way to let only so many do something at once. Here is only what a run says
//! about one: which governor, and how long it may wait for a slot in it.
//!
//! How a slot is taken is `nats::governor`; when a run needs one is for `agent` to say.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::document::{DocumentError, Node, from_entries};
use super::node::Token;
use super::text::{DurationError, go_duration, parse_wait, quote};

/// How long to wait for a slot where nobody says: as long as Choria does.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The longest wait that makes sense: a run that comes a day late is another run.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The longest name; with what Choria puts before it, it names a stream.
const MAX_NAME: usize = 200;

/// A text that names no governor or no time to wait.
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

/// Why nobody can wait so long for a slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GovernorTimeoutError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("must be more than 0s")]
    Zero,
    #[error("must be at most {}", go_duration(MAX_TIMEOUT))]
    TooLong,
}

/// The name of a governor, which is one word of a subject.
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

/// How a run gets on with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotProgress {
    Waiting,
    /// The slot of this number is held.
    Entered(u64),
    /// There was no slot in time, or nobody waits for one any more.
    NotEntered {
        given_up: bool,
    },
    /// The slot of this number was given back.
    Left(u64),
}

/// A claim on one slot: `{name: deploys, timeout: 5m}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GovernorClaim {
    pub name: GovernorName,
    /// How long to wait for a slot.
    #[serde(default, skip_serializing_if = "GovernorTimeout::is_default")]
    pub timeout: GovernorTimeout,
}

impl GovernorClaim {
    /// Returns a claim that waits as long as Choria would.
    pub fn new(name: GovernorName) -> Self {
        Self {
            name,
            timeout: GovernorTimeout::default(),
        }
    }

    /// Reads a claim, which is a mapping and nothing else; null is none.
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

/// How long to wait for a slot: more than nothing, and no longer than a day.
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
    fn a_claim_names_a_governor_and_may_say_how_long_to_wait() {
        let claim = read("{name: deploys, timeout: 90s}").unwrap();
        assert_eq!(claim.name.as_str(), "deploys");
        assert_eq!(claim.timeout.duration(), Duration::from_secs(90));
        let claim = read("{name: deploys}").unwrap();
        assert_eq!(claim.timeout.duration(), DEFAULT_TIMEOUT);
    }

    #[test]
    fn a_claim_is_read_back_from_what_is_sent() {
        for text in [
            r#"{"name":"deploys","timeout":"1m30s"}"#,
            r#"{"name":"deploys"}"#,
        ] {
            let claim: GovernorClaim = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&claim).unwrap(), text);
        }
    }

    #[test]
    fn each_fault_of_a_claim_has_its_place_and_text() {
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
