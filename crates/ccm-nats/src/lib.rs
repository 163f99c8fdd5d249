//! NATS: the only crate that builds subjects or uses the NATS client.
//!
//! - [`context`]: servers and credentials, from contexts of the `nats` command
//! - [`connection`]: connect and reconnect, publish, request, subscribe
//! - [`subject`]: every subject and key, as types
//! - [`kv`] and [`object`]: key-value buckets and object stores
//! - [`event_feed`]: the events of the event stream, in order
//! - [`choria`]: Choria's network protocol and tokens
//! - [`governor`]: slots of Choria governors
//! - [`registration`]: service registrations
//! - [`enrolment_token`]: enrolment tokens as text
//! - [`jwt`]: JWTs of operators, accounts and users
//! - [`streams`]: the streams and buckets of a fleet
//! - [`stream_snapshot`]: copies of whole streams, for backups
//! - [`request_signature`]: signatures of requests
//! - [`signer_update`]: statements about successors of signers
//! - [`rollout_decision`]: signatures and membership proofs of rollouts
//! - [`micro`]: NATS micro services
//! - `blocking`: a client for synchronous code
//! - [`backoff`]: delays between retries
//!
//! Messages are bytes and headers here; their meaning is defined in `ccm_core::model`.

#![warn(unreachable_pub)]

use std::time::Duration;

use ccm_core::system::RandomError;
use ccm_value::text::{go_duration, quote};

pub mod backoff;
mod blocking;
pub mod choria;
pub mod connection;
pub mod context;
mod direct_get;
pub mod enrolment_token;
pub mod event_feed;
pub mod governor;
pub mod jwt;
pub mod kv;
pub mod micro;
pub mod object;
pub mod registration;
pub mod request_signature;
pub mod rollout_decision;
mod server_time;
pub mod signer_update;
mod stream_reader;
pub mod stream_snapshot;
pub mod streams;
pub mod subject;

pub use blocking::BlockingClient;
pub use bytes::Bytes;
pub use connection::{
    ConnectMode, Connection, ConnectionState, Denial, Headers, Reply, ReplyLimits, connect,
};
pub use context::{ContextError, ContextOptions, CredentialFlags, Settings};
pub use subject::{Subject, Subjects, Verb};

/// The cause of a failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// An error of the client library.
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
    /// An error reply of the server, or an invalid reply.
    #[error("{0}")]
    Reply(String),
}

impl Cause {
    /// Wraps an error of the client library.
    pub(crate) fn client(err: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Client(Box::new(err))
    }
}

/// A NATS operation that failed. No message contains a secret.
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
    /// A permission violation; permanent until the permissions of the user are changed.
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error("no reply on {subject} within {}", go_duration(*.limit))]
    NoReply { subject: String, limit: Duration },
    #[error("no responders on {0}")]
    NoResponders(String),
    #[error("no stream captures subject {0}")]
    NotStored(String),
    #[error("message of {size} bytes on {subject} exceeds the maximum payload of the server")]
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
    /// The key was changed since it was read.
    #[error("key {key} of bucket {bucket} was changed by another client")]
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
        "governor {governor} does not exist (no stream captures {subject}): create it with \
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
    /// The requested sequence is past the end of the stream.
    #[error(
        "event {wanted} is not stored, the last is {last}: the position belongs to another stream"
    )]
    SequenceAhead { wanted: u64, last: u64 },
    #[error("consumer {name} reads {found}, not {wanted}: use another name")]
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
    /// Reports whether another client changed the key first: read it again and retry.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Reports whether it is a permission violation: a retry fails, too.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied(_))
    }

    /// Reports whether a retry may succeed without a change of settings or data: the servers were not
    /// reached, did not reply, or failed.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::Closed
                | Self::NoReply { .. }
                | Self::NoResponders(_)
                | Self::Failed { .. }
                | Self::NoJetStream { .. }
                | Self::Store { .. }
        )
    }

    /// Reports whether a stream, bucket or object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::NoStream(_) | Self::NoBucket(_) | Self::NoObject { .. }
        )
    }
}
