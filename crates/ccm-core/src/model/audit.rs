//! Audit: what is remembered of every request that came over the bus, whether it was obeyed or
//! not. Never what the request held.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::id::EventId;
use super::node::{NodeName, Token};
use super::run::RunId;
use super::secret::serialize_text;
use super::text::timestamp;

pub const AUDIT: &str = "io.choria.ccm.v1.audit.event";

/// Whether a request was obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditDecision {
    Allowed,
    Denied,
}

impl AuditDecision {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }
}

impl fmt::Display for AuditDecision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// What is remembered of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    pub protocol: String,
    pub event_id: EventId,
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    /// The node that was asked.
    pub identity: NodeName,
    pub collective: Token,
    /// Where the request was sent to.
    pub subject: String,
    pub verb: String,
    pub decision: AuditDecision,
    /// Why it was denied.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        serialize_with = "serialize_text"
    )]
    pub reason: String,
    /// The name of the signer, once the signature was checked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub signer: String,
    /// Who asked, as far as the caller said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caller: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// The resource or the source of the manifest, as people may see it.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        serialize_with = "serialize_text"
    )]
    pub about: String,
    #[serde(default)]
    pub noop: bool,
    /// The run that came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// How many denied requests before this one left no record of their own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
