//! Service registrations: a stream with the last entry of each service instance.
//!
//! Every instance has its own subject, and the stream keeps one message on it until it expires.
//! Subjects, messages and stream are those of Choria CCM; both programs can share them. When a
//! service is registered is decided by the caller.
//!
//! - [`Connection::register`], [`Connection::unregister`]: publish and remove an entry
//! - [`Connection::registrations`], [`Connection::watch_registrations`]: look up and watch entries
//! - [`Connection::init_registrations`]: create or update the stream

mod lookup;
mod stream;
mod subject;
mod watch;

pub use lookup::{Registrations, Unreadable};
pub use stream::{StreamOptions, StreamSummary};
pub use watch::{Change, Watch};

use super::{Bytes, Connection, Headers, NatsError};
use ccm_core::model::registration::Entry;
use ccm_value::json;
use ccm_value::text::quote;

/// Default name of the registration stream.
pub const STREAM: &str = "REGISTRATION";

/// Header: time to live of a message.
const TTL: &str = "Nats-TTL";

/// Header of a delete marker: the reason of the removal.
const MARKER: &str = "Nats-Marker-Reason";

/// Header of a message that replaces the earlier ones of its subject.
const ROLLUP: (&str, &str) = ("Nats-Rollup", "sub");

/// Header: the stream that must store the message.
const EXPECTED: &str = "Nats-Expected-Stream";

/// Time to live of the delete marker of an unregistered service.
const MARKER_TTL: &str = "2s";

/// How entries are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Core NATS: without acknowledgement and time to live.
    Nats,
    /// JetStream: acknowledged by this stream.
    Jetstream(String),
}

impl Connection {
    /// Publishes an entry, valid until it expires.
    pub async fn register(
        &self,
        entry: &Entry,
        destination: &Destination,
    ) -> Result<(), NatsError> {
        let subject = subject::of(entry)?;
        let body = json::compact(entry).map_err(|err| NatsError::Failed {
            action: "publish",
            subject: subject.to_string(),
            source: err.into(),
        })?;
        let body = Bytes::from(body);
        let Destination::Jetstream(stream) = destination else {
            return self.publish(&subject, Headers::new(), body).await;
        };
        let mut headers = replace_headers(stream)?;
        if let Some(ttl) = entry.ttl {
            headers.set(TTL, &ttl.to_string())?;
        }
        self.store(&subject, headers, body).await
    }

    /// Removes an entry by publishing a delete marker. Watchers receive the marker; they would not
    /// notice a purge.
    pub async fn unregister(&self, entry: &Entry, stream: &str) -> Result<(), NatsError> {
        let subject = subject::of(entry)?;
        let headers = replace_headers(stream)?
            .with(MARKER, "Purge")?
            .with(TTL, MARKER_TTL)?;
        self.store(&subject, headers, Bytes::new()).await
    }
}

/// Returns the headers of a message that replaces the last one of its subject.
fn replace_headers(stream: &str) -> Result<Headers, NatsError> {
    check_stream(stream)?;
    Headers::new()
        .with(ROLLUP.0, ROLLUP.1)?
        .with(EXPECTED, stream)
}

/// Rejects invalid stream names, before they become part of a subject.
fn check_stream(name: &str) -> Result<(), NatsError> {
    let is_plain = |c: char| !(c.is_whitespace() || c.is_control() || ".*>/\\".contains(c));
    if !name.is_empty() && name.len() <= 255 && name.chars().all(is_plain) {
        Ok(())
    } else {
        Err(NatsError::NoStream(quote(name)))
    }
}
