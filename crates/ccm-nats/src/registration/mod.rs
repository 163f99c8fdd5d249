//! Services and where they are found: a stream that keeps the last word on each of them.
//!
//! Every instance of a service has a subject of its own, see `subject`, and the stream keeps one
//! message on it until it expires. [`Connection::register`] says where a service is and
//! [`Connection::unregister`] takes it back; [`Connection::registrations`] reads all that match,
//! and [`Connection::watch_registrations`] goes on from there. [`Connection::init_registrations`]
//! makes the stream. Subjects, messages and stream are upstream's: both programs may share one.
//!
//! When a service may be registered is not decided here.

mod lookup;
mod stream;
mod subject;
mod watch;

pub use lookup::{Registrations, Unreadable};
pub use stream::{StreamSummary, StreamOptions};
pub use watch::{Change, Watch};

use super::{Bytes, Connection, Headers, NatsError};
use ccm_core::model::registration::Entry;
use ccm_value::json;
use ccm_value::text::quote;

/// The stream of registrations, unless configured.
pub const STREAM: &str = "REGISTRATION";

/// The header that says how long a message lives.
const TTL: &str = "Nats-TTL";

/// The header of a message that stands for one that is gone, and says why it is.
const MARKER: &str = "Nats-Marker-Reason";

/// The header of a message that replaces those before it.
const ROLLUP: (&str, &str) = ("Nats-Rollup", "sub");

/// The header that names the stream a message is meant for.
const EXPECTED: &str = "Nats-Expected-Stream";

/// How long the marker of a service that was taken back is kept for those who watch.
const MARKER_TTL: &str = "2s";

/// Where entries go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To whoever listens now, be it a stream; nobody confirms it, and times to live don't count.
    Nats,
    /// Into this stream, which confirms it.
    Jetstream(String),
}

impl Connection {
    /// Says where a service is, until the entry expires.
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
        let mut headers = meant_for(stream)?;
        if let Some(ttl) = entry.ttl {
            headers.set(TTL, &ttl.to_string())?;
        }
        self.store(&subject, headers, body).await
    }

    /// Takes an entry back. A message that says so replaces it for a moment, so that those who
    /// watch hear of it; a purge would leave them in the dark.
    pub async fn unregister(&self, entry: &Entry, stream: &str) -> Result<(), NatsError> {
        let subject = subject::of(entry)?;
        let headers = meant_for(stream)?
            .with(MARKER, "Purge")?
            .with(TTL, MARKER_TTL)?;
        self.store(&subject, headers, Bytes::new()).await
    }
}

/// Returns the headers of a message that takes the place of the last one in a stream.
fn meant_for(stream: &str) -> Result<Headers, NatsError> {
    check_stream(stream)?;
    Headers::new()
        .with(ROLLUP.0, ROLLUP.1)?
        .with(EXPECTED, stream)
}

/// Refuses what can't be the name of a stream before it becomes part of a subject.
fn check_stream(name: &str) -> Result<(), NatsError> {
    let is_plain = |c: char| !(c.is_whitespace() || c.is_control() || ".*>/\\".contains(c));
    if !name.is_empty() && name.len() <= 255 && name.chars().all(is_plain) {
        Ok(())
    } else {
        Err(NatsError::NoStream(quote(name)))
    }
}
