//! What a run asks of NATS: values, objects, registered services and slots of governors.
//!
//! The client and its subjects are not known here; whoever starts a run passes an implementation
//! in, which connects when it is first asked.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::time::Duration;

use crate::model::governor::GovernorName;
use crate::model::node::Token;
use crate::model::registration::Entry;

/// Returns why something is not to be waited for any more, once that is so.
pub type StopReason = std::sync::Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What sort of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusErrorKind {
    /// Where the servers are can't be found out: a wrong context or file.
    Settings,
    /// The caller gave up waiting.
    GivenUp,
    /// There is no such bucket, key, object or stream.
    NotFound,
    Failed,
}

/// Why NATS did not answer a question of a run.
#[derive(Debug)]
pub struct BusError {
    pub kind: BusErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

impl BusError {
    pub fn new(kind: BusErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind,
            source: source.into(),
        }
    }
}

impl fmt::Display for BusError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(out)
    }
}

impl Error for BusError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text is the source's own, so the chain goes on behind it.
        self.source.source()
    }
}

/// The NATS side of a run, for code that waits.
pub trait Bus: Send + Sync {
    /// Returns the value of a key, if it has one.
    fn value(&self, bucket: &str, key: &str) -> Result<Option<Vec<u8>>, BusError>;

    /// Writes an object of at most `limit` bytes to a file.
    fn object(&self, bucket: &str, name: &str, limit: u64, out: File) -> Result<(), BusError>;

    /// Returns the registered services that match cluster, protocol, service and address.
    fn registrations(&self, stream: &str, words: [&str; 4]) -> Result<Vec<Entry>, BusError>;

    /// Waits for a slot of a governor.
    fn enter(&self, request: SlotRequest) -> Result<Box<dyn Slot>, BusError>;
}

/// A request for a slot.
pub struct SlotRequest {
    /// The Choria collective of the governor.
    pub collective: Token,
    pub governor: GovernorName,
    /// What others read about the holder.
    pub holder: String,
    /// How long to wait.
    pub limit: Duration,
    /// Asked now and then while waiting.
    pub give_up: StopReason,
    /// Called once if the slot is taken away while it is held.
    pub evicted: Box<dyn FnOnce(u64) + Send>,
}

/// How a slot was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Freed,
    /// It had been taken away before.
    Evicted,
}

/// A slot that is held until it is left, or until its lease runs out.
pub trait Slot {
    /// Returns the number of the slot.
    fn sequence(&self) -> u64;

    /// Gives the slot back.
    fn leave(self: Box<Self>) -> Result<Left, BusError>;
}
