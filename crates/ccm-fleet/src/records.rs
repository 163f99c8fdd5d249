//! Records of nodes in the fleet's buckets: their nodes, and why one can't be read. Likewise for events.
//!
//! The key of a record names the node that wrote it, since NATS permissions protect keys. A record with
//! another identity is unreadable, so that no node can impersonate another.

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;

use ccm_core::model::node::{NodeName, NodeReport, Token};
use ccm_nats::event_feed::StoredEvent;
use ccm_nats::kv::Entry;
use ccm_nats::{Denial, Subjects};

/// A record that can't be read, with the reason.
#[derive(Clone, Debug)]
pub struct Unreadable {
    pub bucket: &'static str,
    pub key: String,
    pub reason: BadRecord,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bucket,
            key,
            reason,
        } = self;
        write!(
            out,
            "record {key} of bucket {bucket} is unreadable: {reason}"
        )
    }
}

/// Events that can't be read.
#[derive(Clone, Debug, Default)]
pub struct UnreadableEvents {
    pub count: usize,
    /// The newest one.
    pub last: Option<UnreadableEvent>,
}

/// An event that can't be read.
#[derive(Clone, Debug)]
pub struct UnreadableEvent {
    pub subject: String,
    /// Time of storage.
    pub stored: DateTime<Utc>,
    pub reason: BadRecord,
}

impl UnreadableEvents {
    pub(super) fn add(&mut self, event: StoredEvent, reason: BadRecord) {
        self.count += 1;
        self.last = Some(UnreadableEvent {
            subject: event.subject,
            stored: event.time,
            reason,
        });
    }
}

/// Why a record can't be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BadRecord {
    #[error("the key is not a node name")]
    Key,
    #[error("the record has the identity {0}")]
    OtherNode(NodeName),
    #[error("{0}")]
    Json(#[source] Arc<serde_json::Error>),
    /// The records can't be read with the permissions of the user.
    #[error(transparent)]
    Denied(Denial),
    #[error("the record is larger than {0} bytes")]
    TooLarge(usize),
}

impl BadRecord {
    /// Adds the record that has this reason.
    pub(super) fn of(self, bucket: &'static str, entry: &Entry) -> Unreadable {
        Unreadable {
            bucket,
            key: entry.key.clone(),
            reason: self,
        }
    }
}

/// Returns the node of an entry's key.
pub(super) fn name_of(subjects: &Subjects, entry: &Entry) -> Result<NodeName, BadRecord> {
    parse_name(subjects, &entry.key)
}

/// Returns the node of a key. Node names have no `_`, so the token maps back to the name.
pub(super) fn parse_name(subjects: &Subjects, key: &str) -> Result<NodeName, BadRecord> {
    let token: Token = subjects.parse_key(key).ok_or(BadRecord::Key)?;
    let name = token.as_str().replace('_', ".");
    name.parse().map_err(|_| BadRecord::Key)
}

/// Parses a record.
pub(super) fn parse<T: DeserializeOwned>(entry: &Entry) -> Result<T, BadRecord> {
    parse_json(&entry.value)
}

/// Parses the JSON of a record or an event.
pub(super) fn parse_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, BadRecord> {
    serde_json::from_slice(json).map_err(|err| BadRecord::Json(Arc::new(err)))
}

/// Parses the report of a node.
pub(super) fn parse_report(entry: &Entry, node: &NodeName) -> Result<NodeReport, BadRecord> {
    let report: NodeReport = parse(entry)?;
    check_identity(&report.identity, node)?;
    Ok(report)
}

/// Checks that a record has the identity of its key.
pub(super) fn check_identity(identity: &NodeName, name: &NodeName) -> Result<(), BadRecord> {
    if identity == name {
        Ok(())
    } else {
        Err(BadRecord::OtherNode(identity.clone()))
    }
}
