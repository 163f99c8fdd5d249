//! All entries that match, read at once.
//!
//! What is no entry, or does not belong where it is, is told apart and never handed out: it must
//! not end up in somebody's files, and must not keep the others from being found.

use tokio::time::timeout;

use super::{MARKER, check_stream, subject};
use crate::connection::API_LIMIT;
use crate::direct_get::{Stored, ReadRequest};
use crate::{Connection, Headers, NatsError, stream_reader};
use ccm_core::model::registration::Entry;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registrations {
    /// Ordered by address as text, then by port.
    pub entries: Vec<Entry>,
    pub unreadable: Vec<Unreadable>,
}

/// A message that is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the registration on {subject} can't be used: {reason}")]
pub struct Unreadable {
    pub subject: String,
    pub reason: String,
}

impl Connection {
    /// Returns the entries of a stream with this cluster, protocol, service and address; an empty
    /// word or `*` stands for any.
    pub async fn registrations(&self, stream: &str, words: [&str; 4]) -> Result<Registrations, NatsError> {
        check_stream(stream)?;
        let filter = subject::filter(words)?;
        // An agent that has just started is about to be connected; longer nobody waits.
        let mut link = self.state();
        let connected = async { link.wait_for(|link| link.is_up()).await.is_ok() };
        if !timeout(API_LIMIT, connected).await.unwrap_or(false) {
            return Err(NatsError::Closed);
        }
        let wanted = ReadRequest::last(stream, filter.as_str());
        let messages = stream_reader::read_all(self, &wanted).await;
        let messages = messages.map_err(|err| match err {
            NatsError::NoBucket(_) => NatsError::NoStream(stream.into()),
            err => err,
        })?;
        let mut found = Registrations::default();
        for Stored {
            subject,
            headers,
            body,
            ..
        } in messages
        {
            match parse_record(&subject, &headers, &body) {
                Record::Entry(entry) => found.entries.push(entry),
                Record::Unreadable(what) => found.unreadable.push(what),
                Record::Gone(_) => {}
            }
        }
        let key = |entry: &Entry| (entry.address.clone(), entry.port());
        found.entries.sort_by_cached_key(key);
        Ok(found)
    }
}

/// What a message of the stream says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Entry(Entry),
    /// The entry is gone, for this reason.
    Gone(String),
    Unreadable(Unreadable),
}

/// Returns what a message says about the service its subject names.
pub(super) fn parse_record(subject: &str, headers: &Headers, body: &[u8]) -> Record {
    if let Some(reason) = headers.get(MARKER) {
        return Record::Gone(reason.into());
    }
    let reason = match Entry::from_wire(body) {
        Ok(entry) if subject::belongs(&entry, subject) => return Record::Entry(entry),
        Ok(_) => "it belongs to another subject".to_owned(),
        Err(err) => err.to_string(),
    };
    Record::Unreadable(Unreadable {
        subject: subject.into(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "choria.ccm.registration.v1.prod.http.web.10_0_0_1.x";
    const BODY: &str = r#"{"cluster":"prod","service":"web","protocol":"http","address":"10.0.0.1","port":80,"priority":1}"#;

    #[test]
    fn a_message_is_an_entry_a_marker_or_neither() {
        let plain = Headers::new();
        let heard_on = |subject: &str| parse_record(subject, &plain, BODY.as_bytes());
        assert!(matches!(heard_on(SUBJECT), Record::Entry(_)));
        let other = SUBJECT.replace("prod", "lab");
        assert!(matches!(heard_on(&other), Record::Unreadable(_)));
        let marker = Headers::new().with(MARKER, "MaxAge").unwrap();
        assert_eq!(parse_record(SUBJECT, &marker, b""), Record::Gone("MaxAge".into()));
        assert!(matches!(parse_record(SUBJECT, &plain, b""), Record::Unreadable(_)));
    }
}
