//! NATS client interface of a run: KV values, objects, registered services and governor slots.
//!
//! This crate does not depend on a NATS library: entry points pass an implementation in, which connects
//! on first use.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::time::Duration;

use crate::model::governor::{GovernorName, SlotLoss};
use crate::model::node::Token;
use crate::model::registration::Entry;

/// Returns the reason to stop waiting or working, once there is one.
pub type StopCheck = std::sync::Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The kind of a [`NatsClientError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatsClientErrorKind {
    /// The connection settings are invalid: a wrong context or file.
    Settings,
    /// The caller stopped waiting.
    GivenUp,
    /// The bucket, key, object or stream does not exist.
    NotFound,
    Failed,
}

/// A failed NATS operation.
#[derive(Debug)]
pub struct NatsClientError {
    pub kind: NatsClientErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

impl NatsClientError {
    pub fn new(kind: NatsClientErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind,
            source: source.into(),
        }
    }
}

impl fmt::Display for NatsClientError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(out)
    }
}

impl Error for NatsClientError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // Display prints the source itself, so the chain continues with its source.
        self.source.source()
    }
}

/// Blocking NATS operations that a run needs.
pub trait NatsClient: Send + Sync {
    /// Returns the value of a key, if it exists.
    fn value(&self, bucket: &str, key: &str) -> Result<Option<Vec<u8>>, NatsClientError>;

    /// Writes an object of at most `limit` bytes to a file.
    fn object(
        &self,
        bucket: &str,
        name: &str,
        limit: u64,
        out: File,
    ) -> Result<(), NatsClientError>;

    /// Returns the content of an object of at most `limit` bytes.
    fn object_bytes(
        &self,
        bucket: &str,
        name: &str,
        limit: u64,
    ) -> Result<Vec<u8>, NatsClientError>;

    /// Returns the registered services that match cluster, protocol, service and address.
    fn registrations(&self, stream: &str, words: [&str; 4]) -> Result<Vec<Entry>, NatsClientError>;

    /// Waits for a governor slot.
    fn enter(&self, request: SlotRequest) -> Result<Box<dyn Slot>, NatsClientError>;
}

/// A request for a governor slot.
pub struct SlotRequest {
    /// The Choria collective of the governor.
    pub collective: Token,
    pub governor: GovernorName,
    /// The name of the holder, stored in the governor.
    pub holder: String,
    /// The maximum time to wait.
    pub limit: Duration,
    /// Called periodically while waiting; a returned reason ends the wait.
    pub give_up: StopCheck,
    /// Called once with the sequence number if the slot is lost while it is held.
    pub lost: Box<dyn FnOnce(u64, SlotLoss) + Send>,
}

/// The result of leaving a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRelease {
    Freed,
    /// The slot was no longer held.
    Lost(SlotLoss),
}

/// A slot that is held until it is released or its lease expires.
pub trait Slot {
    /// Returns the sequence number of the slot.
    fn sequence(&self) -> u64;

    /// Releases the slot.
    fn leave(self: Box<Self>) -> Result<SlotRelease, NatsClientError>;
}
