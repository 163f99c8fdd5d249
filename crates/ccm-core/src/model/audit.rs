//! Audit events: one record for each request received over NATS, allowed or denied.
//!
//! A record never contains the body of the request.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::id::EventId;
use super::node::{NodeName, Token};
use super::run::RunId;
use super::secret::serialize_text;
use super::text::timestamp;

pub const AUDIT: &str = "io.choria.ccm.v1.audit.event";

/// Decision on a request.
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

/// Most recorded denials per second.
const MAX_DENIED: u32 = 20;

/// Rate limit of records about denied requests, so that a flood does not fill a log. Denials that are
/// left out are counted.
#[derive(Debug, Default)]
pub struct DenialLimit {
    second: i64,
    recorded: u32,
    unrecorded: u64,
}

impl DenialLimit {
    /// Returns the number of unrecorded denials if the denial of this second is to be recorded.
    pub fn take(&mut self, second: i64) -> Option<u64> {
        if self.second != second {
            self.second = second;
            self.recorded = 0;
        }
        if self.recorded >= MAX_DENIED {
            self.unrecorded += 1;
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.unrecorded))
    }
}

/// Record of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    pub protocol: String,
    pub event_id: EventId,
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    /// Node that received the request.
    pub identity: NodeName,
    pub collective: Token,
    /// NATS subject of the request.
    pub subject: String,
    pub verb: String,
    pub decision: AuditDecision,
    /// Cause of a denial.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        serialize_with = "serialize_text"
    )]
    pub reason: String,
    /// Name of the signer, if the signature was verified.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub signer: String,
    /// Caller as stated in the request; not verified.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caller: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Resource or manifest source of the request, without secrets.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        serialize_with = "serialize_text"
    )]
    pub about: String,
    #[serde(default)]
    pub noop: bool,
    /// Run that the request started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Number of denied requests since the last record that were not recorded (rate limit).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_in_the_next_record() {
        let mut limit = DenialLimit::default();
        let recorded = (0..1000).filter(|_| limit.take(5).is_some()).count();
        assert_eq!(recorded, 20);
        assert_eq!(limit.take(6), Some(980));
        assert_eq!(limit.take(6), Some(0));
    }
}
