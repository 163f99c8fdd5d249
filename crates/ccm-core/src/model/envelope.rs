//! Request envelope: the NATS headers of a request. The body has upstream's format.
//!
//! Headers are passed as a lookup function, so this file does not depend on the client library.
//! Filters are evaluated in [`crate::filter`].

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};

use super::text::{parse_time, quote};

pub const REQUEST_ID: &str = "Ccm-Request-Id";
pub const NOOP: &str = "Ccm-Noop";
/// Requests a diff of changed files in the reply; in noop mode, of files that would change.
pub const DIFF: &str = "Ccm-Diff";
pub const FILTER: &str = "Ccm-Filter";
pub const DEADLINE: &str = "Ccm-Deadline";
pub const CALLER: &str = "Ccm-Caller";
pub const SIGNER: &str = "Ccm-Signer";
pub const TIMESTAMP: &str = "Ccm-Timestamp";
pub const SIGNATURE: &str = "Ccm-Signature";
/// Header of replies: identity of the replying node.
pub const IDENTITY: &str = "Ccm-Identity";

/// Maximum length of a request id or caller.
const MAX_TEXT: usize = 256;

/// Maximum length of a filter; every node that receives the request evaluates it.
const MAX_FILTER: usize = 16 * 1024;

/// Invalid header of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("invalid {header} header {}: {reason}", quote(.value))]
    Header {
        header: &'static str,
        value: String,
        reason: String,
    },
    #[error("{header} header is longer than {limit} bytes")]
    TooLong { header: &'static str, limit: usize },
}

/// Parsed headers of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Envelope {
    /// Id set by the caller, or empty.
    pub request_id: String,
    pub noop: bool,
    /// Whether the reply contains a diff of changed files.
    pub diff: bool,
    pub filter: Filter,
    /// Time after which the caller no longer waits for a reply; no run may start after it.
    pub deadline: Option<DateTime<Utc>>,
    pub caller: String,
}

impl Envelope {
    /// Parses the headers of a request; `find` returns a header by name.
    pub fn from_headers<'h>(find: impl Fn(&str) -> Option<&'h str>) -> Result<Self, EnvelopeError> {
        let text = |header, limit| match find(header).unwrap_or_default() {
            value if value.len() > limit => Err(EnvelopeError::TooLong { header, limit }),
            value => Ok(value),
        };
        let bad = |header, value: &str, reason: String| EnvelopeError::Header {
            header,
            value: value.into(),
            reason,
        };
        let flag = |header| {
            let value = text(header, MAX_TEXT)?;
            match value.to_ascii_lowercase().as_str() {
                "" | "false" | "0" => Ok(false),
                "true" | "1" => Ok(true),
                _ => Err(bad(header, value, "expected true or false".into())),
            }
        };
        let filter = match text(FILTER, MAX_FILTER)? {
            "" => Filter::default(),
            json => serde_json::from_str(json).map_err(|err| bad(FILTER, json, err.to_string()))?,
        };
        let deadline = match text(DEADLINE, MAX_TEXT)? {
            "" => None,
            time => {
                let time = parse_time(time)
                    .map_err(|_| bad(DEADLINE, time, "expected an RFC 3339 time".into()))?;
                Some(time.to_utc())
            }
        };
        Ok(Self {
            request_id: text(REQUEST_ID, MAX_TEXT)?.into(),
            noop: flag(NOOP)?,
            diff: flag(DIFF)?,
            filter,
            deadline,
            caller: text(CALLER, MAX_TEXT)?.into(),
        })
    }
}

/// Node filter of a broadcast request, in Choria's format. All kinds of conditions must match; an
/// empty filter matches every node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Node names or `/regular expressions/`; any must match.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub identity: Vec<String>,
    /// Groups or `/regular expressions/`; all must match. Choria calls them classes.
    #[serde(
        rename = "cf_class",
        alias = "group",
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub groups: Vec<String>,
    /// Choria agents; matches only if all of them match `ccm`.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub agent: Vec<String>,
    /// Fact comparisons; all must match.
    #[serde(
        rename = "fact",
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub facts: Vec<FactFilter>,
    /// Expressions over `Facts`, `identity` and `groups`; all must be true.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub compound: Vec<Vec<Compound>>,
}

/// Reads a list; Go serializes a nil slice as null.
fn list<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Comparison of one fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactFilter {
    /// gjson path into the facts.
    pub fact: String,
    pub operator: Operator,
    pub value: String,
}

/// Formats the comparison in command-line syntax, so that parsing returns the same comparison.
impl fmt::Display for FactFilter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            fact,
            operator,
            value,
        } = self;
        // Characters next to the operator must not be parsed as part of it.
        let is_odd = fact.ends_with('!') || value.starts_with(['=', '~', '<', '>', '/']);
        match operator {
            Operator::Matches if is_odd || value.is_empty() || value.trim() != value => {
                write!(out, "{fact} =~ /{value}/")
            }
            Operator::Equal if is_odd => write!(out, "{fact} == {value}"),
            _ if is_odd => write!(out, "{fact} {} {value}", operator.as_str()),
            _ => write!(out, "{fact}{}{value}", operator.as_str()),
        }
    }
}

/// Comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    #[serde(rename = "==", alias = "=")]
    Equal,
    #[serde(rename = "!=")]
    NotEqual,
    #[serde(rename = "=~")]
    Matches,
    #[serde(rename = "<")]
    Less,
    #[serde(rename = ">")]
    Greater,
    #[serde(rename = "<=", alias = "=<")]
    LessOrEqual,
    #[serde(rename = ">=", alias = "=>")]
    GreaterOrEqual,
}

impl Operator {
    /// Returns the operator in command-line syntax.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Matches => "=~",
            Self::Less => "<",
            Self::Greater => ">",
            Self::LessOrEqual => "<=",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// Expression, wrapped as in Choria's filters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compound {
    pub expr: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(headers: &[(&str, &'static str)]) -> Result<Envelope, String> {
        Envelope::from_headers(|name| {
            let found = headers.iter().find(|(header, _)| *header == name);
            found.map(|(_, value)| *value)
        })
        .map_err(|err| err.to_string())
    }

    #[test]
    fn a_request_without_headers_has_an_empty_envelope() {
        assert_eq!(parse(&[]).unwrap(), Envelope::default());
    }

    #[test]
    fn every_header_is_read() {
        let envelope = parse(&[
            (REQUEST_ID, "r1"),
            (NOOP, "True"),
            (CALLER, "ann"),
            (DEADLINE, "2027-01-15T08:00:00Z"),
            (
                FILTER,
                r#"{"cf_class":["web"],"fact":[{"fact":"a.b","operator":">=","value":"2"}]}"#,
            ),
        ])
        .unwrap();
        assert_eq!((envelope.request_id.as_str(), envelope.noop), ("r1", true));
        assert_eq!(envelope.filter.groups, ["web"]);
        assert_eq!(envelope.filter.facts[0].operator, Operator::GreaterOrEqual);
        assert!(envelope.deadline.is_some());
    }

    #[test]
    fn an_error_names_the_invalid_header() {
        for (header, value) in [
            (NOOP, "yes please"),
            (DEADLINE, "soon"),
            (FILTER, "{"),
            (FILTER, r#"{"identiy":[]}"#),
        ] {
            let error = parse(&[(header, value)]).unwrap_err();
            assert!(
                error.starts_with(&format!("invalid {header} header")),
                "{error}"
            );
        }
    }

    #[test]
    fn null_lists_match_every_node() {
        let filter =
            r#"{"fact":null,"cf_class":null,"agent":null,"identity":null,"compound":null}"#;
        assert!(parse(&[(FILTER, filter)]).unwrap().filter.is_empty());
    }

    #[test]
    fn a_filter_is_written_as_choria_writes_it() {
        let filter = Filter {
            groups: vec!["web".into()],
            compound: vec![vec![Compound {
                expr: "true".into(),
            }]],
            ..Filter::default()
        };
        assert_eq!(
            serde_json::to_string(&filter).unwrap(),
            r#"{"cf_class":["web"],"compound":[[{"expr":"true"}]]}"#
        );
    }
}
