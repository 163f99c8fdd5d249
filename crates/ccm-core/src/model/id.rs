//! Identifiers: resource types, references between resources, event ids.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Table of the resource types, one row each: the variant name, which is also the name of the
/// properties struct, and the name used in manifests.
macro_rules! for_each_type {
    ($make:ident) => {
        $make! {
            Apply = "apply",
            Archive = "archive",
            Exec = "exec",
            File = "file",
            Group = "group",
            Line = "line",
            Link = "link",
            Package = "package",
            Scaffold = "scaffold",
            Service = "service",
            User = "user",
        }
    };
}
pub(super) use for_each_type;

macro_rules! type_names {
    ($($variant:ident = $name:literal,)+) => {
        /// Resource types. A closed set: each has its own properties, state and plan.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum TypeName {
            $(#[serde(rename = $name)] $variant,)+
        }

        impl TypeName {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
for_each_type!(type_names);

impl fmt::Display for TypeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// Unknown resource type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid resource: unknown resource type {0}")]
pub struct UnknownType(pub String);

impl FromStr for TypeName {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        Self::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .ok_or_else(|| UnknownType(text.into()))
    }
}

/// Reference to a resource: `type#name` or `type#alias`, split at the first `#`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    pub type_name: &'a str,
    pub name: &'a str,
}

impl<'a> Reference<'a> {
    /// Parses a reference; returns `None` without a `#`.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (type_name, name) = text.split_once('#')?;
        Some(Self { type_name, name })
    }
}

impl fmt::Display for Reference<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}#{}", self.type_name, self.name)
    }
}

/// Id of an event: a KSUID, 20 bytes (big-endian seconds since 2014-05-13, then payload) in
/// base 62.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventId(String);

/// Invalid event id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid event ID: {0:?} is not a KSUID")]
pub struct EventIdError(String);

const KSUID_EPOCH: i64 = 1_400_000_000;
const KSUID_LENGTH: usize = 27;
/// Greatest valid KSUID: its value fills 20 bytes. The digits sort by value.
const KSUID_MAX: &str = "aWgEPTl1tmebfsQzFP4bxwgy80V";
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl EventId {
    /// Returns the id for a time and a payload.
    pub fn new(time: DateTime<Utc>, payload: u128) -> Self {
        let seconds = u32::try_from(time.timestamp() - KSUID_EPOCH).unwrap_or(0);
        // 160 bits as base-2^32 digits, divided by 62 once per character.
        let mut digits = [
            seconds,
            (payload >> 96) as u32,
            (payload >> 64) as u32,
            (payload >> 32) as u32,
            payload as u32,
        ];
        let mut text = [b'0'; KSUID_LENGTH];
        for slot in text.iter_mut().rev() {
            let mut rest: u64 = 0;
            for digit in &mut digits {
                let value = (rest << 32) | u64::from(*digit);
                *digit = (value / 62) as u32;
                rest = value % 62;
            }
            *slot = BASE62.get(rest as usize).copied().unwrap_or(b'0');
        }
        Self(String::from_utf8_lossy(&text).into_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the second in which the id was made.
    pub fn time(&self) -> DateTime<Utc> {
        // The digits that the alphabet has not are those of no valid id.
        let digit = |byte: u8| BASE62.iter().position(|it| *it == byte).unwrap_or(0) as u64;
        // 160 bits as base-2^32 digits, the most significant first.
        let mut digits = [0_u32; 5];
        for byte in self.0.bytes() {
            let mut carry = digit(byte);
            for slot in digits.iter_mut().rev() {
                let value = u64::from(*slot) * 62 + carry;
                *slot = value as u32;
                carry = value >> 32;
            }
        }
        let [seconds, ..] = digits;
        let seconds = KSUID_EPOCH + i64::from(seconds);
        DateTime::from_timestamp(seconds, 0).unwrap_or(DateTime::UNIX_EPOCH)
    }
}

impl FromStr for EventId {
    type Err = EventIdError;

    fn from_str(text: &str) -> Result<Self, EventIdError> {
        let is_digits = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if text.len() == KSUID_LENGTH && is_digits && text <= KSUID_MAX {
            Ok(Self(text.into()))
        } else {
            Err(EventIdError(text.into()))
        }
    }
}

impl TryFrom<String> for EventId {
    type Error = EventIdError;

    fn try_from(text: String) -> Result<Self, EventIdError> {
        text.parse()
    }
}

impl From<EventId> for String {
    fn from(id: EventId) -> Self {
        id.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_is_the_ksuid_of_its_time_and_payload() {
        let time = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let payload = 0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f;
        assert_eq!(
            EventId::new(time, payload).as_str(),
            "3Ouil37bUs2V3TmTG2OoEYtuLS3"
        );
    }

    #[test]
    fn an_event_id_has_its_second() {
        for second in [
            KSUID_EPOCH,
            1_800_000_000,
            KSUID_EPOCH + i64::from(u32::MAX),
        ] {
            let time = DateTime::from_timestamp(second, 0).unwrap();
            for payload in [0, 7, u128::MAX] {
                assert_eq!(EventId::new(time, payload).time(), time);
            }
        }
    }

    #[test]
    fn ids_of_one_second_sort_by_payload() {
        let time = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert!(EventId::new(time, 5) < EventId::new(time, 6));
        assert!(EventId::new(time, u128::MAX) < EventId::new(time + chrono::Days::new(1), 0));
    }

    #[test]
    fn an_invalid_ksuid_is_rejected() {
        let error = "not-an-id".parse::<EventId>().unwrap_err();
        assert!(error.to_string().starts_with("invalid event ID: "));
    }

    #[test]
    fn a_value_beyond_twenty_bytes_is_rejected() {
        let last = DateTime::from_timestamp(KSUID_EPOCH + i64::from(u32::MAX), 0).unwrap();
        let greatest = EventId::new(last, u128::MAX);
        assert_eq!(KSUID_MAX.parse(), Ok(greatest));
        for text in ["aWgEPTl1tmebfsQzFP4bxwgy80W", &"z".repeat(KSUID_LENGTH)] {
            assert!(text.parse::<EventId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_reference_splits_at_the_first_hash() {
        let reference = Reference::parse("file#/a#b").unwrap();
        assert_eq!((reference.type_name, reference.name), ("file", "/a#b"));
        assert_eq!(Reference::parse("foo"), None);
    }
}
