//! The bus: the only room that names a subject or knows the NATS client.
//!
//! - [`context`]: where the server is and who we are, as the `nats` command keeps it
//! - [`connection`]: one connection that comes back by itself; messages, requests, many answers
//! - [`subject`]: every subject and key, as types
//! - [`kv`] and [`object`]: buckets of values and of files, read, written and watched
//! - [`event_feed`]: stored events in order, and those to come
//! - [`governor`]: slots that Choria's governors give out
//! - [`registration`]: services and where they are found
//! - [`streams`]: what a fleet keeps on the servers, made once and brought up to date
//! - [`request_signature`]: signatures on requests
//! - [`rollout_decision`]: signed decisions about rollouts
//! - [`micro`]: a service that the `nats` command can find, ask and count
//! - [`blocking`]: the same for code that waits
//! - [`backoff`]: how long to wait before the next try
//!
//! Knows what travels only as bytes and headers. Nothing here decides what a node does.

#![warn(unreachable_pub)]

use std::time::Duration;

use ccm_core::system::RandomError;
use ccm_value::text::{go_duration, quote};

pub mod backoff;
pub mod blocking;
pub mod connection;
pub mod context;
mod direct_get;
pub mod event_feed;
pub mod governor;
pub mod kv;
pub mod micro;
pub mod object;
pub mod registration;
pub mod request_signature;
pub mod rollout_decision;
mod stream_reader;
pub mod streams;
pub mod subject;

pub use blocking::BlockingClient;
pub use bytes::Bytes;
pub use connection::{Connection, Denial, Headers, ConnectionState, ConnectMode, Reply, ReplyLimits, connect};
pub use context::{ContextError, ContextOptions, Settings};
pub use subject::{Subject, Subjects, Verb};

/// Why a server, a store or a decoder did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// What the client library says.
    #[error(transparent)]
    Client(Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Key(#[from] request_signature::KeyError),
    #[error("JetStream is not available")]
    NoJetStream(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("timed out")]
    TimedOut,
    /// What a server answers, or what its answer lacks.
    #[error("{0}")]
    Reply(String),
}

impl Cause {
    /// Returns what the client library says as a cause.
    pub(crate) fn client(err: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Client(Box::new(err))
    }
}

/// What went wrong on the bus. No text holds a password.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    #[error("invalid subject {}", quote(.0))]
    Subject(String),
    #[error("invalid subject prefix {}: use words joined by dots, without wildcards", quote(.0))]
    Prefix(String),
    #[error("invalid header {}", quote(.0))]
    Header(String),
    #[error("can't connect to NATS at {servers}: {reason}")]
    Connect {
        servers: String,
        /// The cause in a few words.
        reason: String,
        #[source]
        source: Option<Cause>,
    },
    #[error("not connected to NATS")]
    Closed,
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The server forbids it, and will until somebody changes the permissions of this user.
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error("no answer on {subject} within {}", go_duration(*.limit))]
    NoReply { subject: String, limit: Duration },
    #[error("nobody listens on {0}")]
    NoResponders(String),
    #[error("no stream stores what is published on {0}")]
    NotStored(String),
    #[error("a message of {size} bytes on {subject} is larger than the server takes")]
    TooLarge { subject: String, size: usize },
    #[error("{action} on {subject}: {source}")]
    Failed {
        action: &'static str,
        subject: String,
        source: Cause,
    },
    #[error("JetStream is not available at {servers}: {source}")]
    NoJetStream { servers: String, source: Cause },
    #[error("stream {0} does not exist")]
    NoStream(String),
    #[error("bucket {0} does not exist")]
    NoBucket(String),
    #[error("invalid key {} for bucket {bucket}", quote(.key))]
    Key { bucket: String, key: String },
    /// Somebody else changed it in between.
    #[error("key {key} of bucket {bucket} has changed meanwhile")]
    Conflict { bucket: String, key: String },
    #[error("object {name} does not exist in bucket {bucket}")]
    NoObject { bucket: String, name: String },
    #[error("object {name} of bucket {bucket} is damaged: {reason}")]
    Damaged {
        bucket: String,
        name: String,
        reason: &'static str,
    },
    #[error("{what} is larger than {limit} bytes")]
    Limit { what: String, limit: u64 },
    #[error("{action} of {name}: {source}")]
    Store {
        action: &'static str,
        name: String,
        source: Cause,
    },
    #[error(
        "governor {governor} does not exist, no stream of its own stores {subject}: make it with \
         choria governor add {governor} CAPACITY EXPIRE"
    )]
    NoGovernor { governor: String, subject: String },
    #[error("no slot in governor {governor} within {}: {reason}", go_duration(*.limit))]
    NoSlot {
        governor: String,
        limit: Duration,
        reason: String,
    },
    #[error("no longer waiting for a slot in governor {governor}: {reason}")]
    WaitCancelled { governor: String, reason: String },
    /// The place of a reader lies behind the end of the stream.
    #[error(
        "event {wanted} is not stored, the last is {last}: this place belongs to another stream"
    )]
    SequenceAhead { wanted: u64, last: u64 },
    #[error("consumer {name} reads {found} and not {wanted}: use another name")]
    ConsumerMismatch {
        name: String,
        found: String,
        wanted: String,
    },
    #[error("invalid service: {0}")]
    Service(String),
    #[error(transparent)]
    Context(#[from] ContextError),
}

impl NatsError {
    /// Whether somebody else wrote first, so that reading again and retrying makes sense.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether the server forbids it, so that trying again soon makes no sense.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied(_))
    }

    /// Whether what was asked for is not there, as opposed to out of reach.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::NoStream(_) | Self::NoBucket(_) | Self::NoObject { .. }
        )
    }
}
