//! Incarnation of a fleet: one life of its storage, from `ccm fleet init` until the storage is lost.
//!
//! Generations of assignments start again in a new incarnation. Incarnations are ordered by the time
//! of their creation, so that a node can tell a new one from an old one.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Id of an incarnation, such as `1763431200123-00c58f47e494da11`: milliseconds since the epoch, and a
/// random number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Incarnation {
    created: DateTime<Utc>,
    random: u64,
}

/// Invalid id of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid incarnation of the fleet: milliseconds and 16 hexadecimal digits expected")]
pub struct IncarnationError;

impl Incarnation {
    /// Returns the incarnation of a fleet that is created now.
    pub fn new(now: DateTime<Utc>, random: u64) -> Self {
        let millis = now.timestamp_millis().max(0);
        Self {
            created: DateTime::from_timestamp_millis(millis).unwrap_or(DateTime::UNIX_EPOCH),
            random,
        }
    }

    /// Returns the time of creation.
    pub fn created(&self) -> DateTime<Utc> {
        self.created
    }

    /// Reports whether two records are of different incarnations. A record of an older version has no
    /// incarnation and belongs to any.
    pub fn differs(a: Option<&Self>, b: Option<&Self>) -> bool {
        matches!((a, b), (Some(a), Some(b)) if a != b)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { created, random } = self;
        write!(out, "{}-{random:016x}", created.timestamp_millis())
    }
}

impl FromStr for Incarnation {
    type Err = IncarnationError;

    fn from_str(text: &str) -> Result<Self, IncarnationError> {
        let (millis, random) = text.split_once('-').ok_or(IncarnationError)?;
        let millis = millis.parse().map_err(|_| IncarnationError)?;
        let random = u64::from_str_radix(random, 16).map_err(|_| IncarnationError)?;
        let created = DateTime::from_timestamp_millis(millis).ok_or(IncarnationError)?;
        let parsed = Self { created, random };
        // One text for each: it is signed.
        (parsed.to_string() == text)
            .then_some(parsed)
            .ok_or(IncarnationError)
    }
}

impl TryFrom<String> for Incarnation {
    type Error = IncarnationError;

    fn try_from(text: String) -> Result<Self, IncarnationError> {
        text.parse()
    }
}

impl From<Incarnation> for String {
    fn from(incarnation: Incarnation) -> Self {
        incarnation.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64, random: u64) -> Incarnation {
        Incarnation::new(DateTime::from_timestamp_millis(millis).unwrap(), random)
    }

    #[test]
    fn an_id_round_trips() {
        let incarnation = at(1_763_431_200_123, 0xab);
        assert_eq!(incarnation.to_string(), "1763431200123-00000000000000ab");
        assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
    }

    #[test]
    fn an_id_has_one_text() {
        for bad in [
            "",
            "1",
            "1-",
            "1-ab",
            "01-00000000000000ab",
            "1-00000000000000AB",
            "+1-00000000000000ab",
            "99999999999999999999-00000000000000ab",
        ] {
            assert_eq!(bad.parse::<Incarnation>(), Err(IncarnationError), "{bad}");
        }
    }

    #[test]
    fn a_later_incarnation_is_greater() {
        assert!(at(9, 7) < at(10, 0));
        assert!(None < Some(at(0, 0)));
    }

    #[test]
    fn a_record_without_an_incarnation_belongs_to_any() {
        let (one, two) = (at(1, 1), at(2, 1));
        assert!(Incarnation::differs(Some(&one), Some(&two)));
        assert!(!Incarnation::differs(Some(&one), Some(&one)));
        assert!(!Incarnation::differs(None, Some(&one)));
    }
}
