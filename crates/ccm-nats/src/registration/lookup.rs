//! Lookup of registrations: all entries that match.
//!
//! Invalid entries, and entries whose content does not match their subject, are returned separately:
//! they must neither be used nor hide the valid ones.

use tokio::time::timeout;

use super::{MARKER, check_stream, subject};
use crate::connection::API_LIMIT;
use crate::direct_get::{ReadRequest, StoredMessage};
use crate::{Connection, Headers, NatsError, stream_reader};
use ccm_core::model::registration::Entry;

/// The result of a lookup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registrations {
    /// Sorted by address as text, then by port.
    pub entries: Vec<Entry>,
    pub unreadable: Vec<Unreadable>,
}

/// An invalid entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid registration on {subject}: {reason}")]
pub struct Unreadable {
    pub subject: String,
    pub reason: String,
}

impl Connection {
    /// Returns the entries of a stream with this cluster, protocol, service and address; an empty
    /// word or `*` stands for any.
    pub async fn registrations(
        &self,
        stream: &str,
        words: [&str; 4],
    ) -> Result<Registrations, NatsError> {
        check_stream(stream)?;
        let filter = subject::filter(words)?;
        // An agent that has just started may not be connected yet.
        let mut link = self.state();
        let connected = async { link.wait_for(|link| link.is_up()).await.is_ok() };
        if !timeout(API_LIMIT, connected).await.unwrap_or(false) {
            return Err(NatsError::Closed);
        }
        let request = ReadRequest::last(stream, filter.as_str());
        let messages = stream_reader::read_all(self, &request).await;
        let messages = messages.map_err(|err| match err {
            NatsError::NoBucket(_) => NatsError::NoStream(stream.into()),
            err => err,
        })?;
        let mut registrations = Registrations::default();
        for StoredMessage {
            subject,
            headers,
            body,
            ..
        } in messages
        {
            match parse_record(&subject, &headers, &body) {
                Record::Entry(entry) => registrations.entries.push(entry),
                Record::Unreadable(what) => registrations.unreadable.push(what),
                Record::Removed(_) => {}
            }
        }
        let key = |entry: &Entry| (entry.address.clone(), entry.port());
        registrations.entries.sort_by_cached_key(key);
        Ok(registrations)
    }
}

/// A message of the registration stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Entry(Entry),
    /// The entry was removed, with the reason.
    Removed(String),
    Unreadable(Unreadable),
}

/// Parses a message of the registration stream.
pub(super) fn parse_record(subject: &str, headers: &Headers, body: &[u8]) -> Record {
    if let Some(reason) = headers.get(MARKER) {
        return Record::Removed(reason.into());
    }
    let reason = match Entry::from_wire(body) {
        Ok(entry) if subject::matches_subject(&entry, subject) => return Record::Entry(entry),
        Ok(_) => "content does not match the subject".to_owned(),
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
    fn message_is_an_entry_a_marker_or_invalid() {
        let plain = Headers::new();
        let record_on = |subject: &str| parse_record(subject, &plain, BODY.as_bytes());
        assert!(matches!(record_on(SUBJECT), Record::Entry(_)));
        let other = SUBJECT.replace("prod", "lab");
        assert!(matches!(record_on(&other), Record::Unreadable(_)));
        let marker = Headers::new().with(MARKER, "MaxAge").unwrap();
        assert_eq!(
            parse_record(SUBJECT, &marker, b""),
            Record::Removed("MaxAge".into())
        );
        assert!(matches!(
            parse_record(SUBJECT, &plain, b""),
            Record::Unreadable(_)
        ));
    }
}
