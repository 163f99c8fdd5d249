//! All entries that match, read at once.
//!
//! One question, answered by any server that has the stream, is enough for up to 1,024 entries. A
//! stream that can't be read directly, a server too old to be asked so, and more entries than that
//! are read with a consumer.
//!
//! What is no entry, or does not belong where it is, is told apart and never handed out: it must
//! not end up in somebody's files, and must not keep the others from being found.

use async_nats::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::{MARKER, check_stream, subject};
use crate::model::registration::Entry;
use crate::nats::connection::{API_LIMIT, Message};
use crate::nats::follow::{self, Wanted};
use crate::nats::{Connection, Headers, NatsError, Subject};

/// More answers than servers give to one question.
const MOST_ANSWERS: usize = 4096;

/// The end of the answers.
const END: u16 = 204;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
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
    pub async fn registrations(&self, stream: &str, words: [&str; 4]) -> Result<Found, NatsError> {
        check_stream(stream)?;
        let filter = subject::filter(words)?;
        // An agent that has just started is about to be connected; longer nobody waits.
        let mut link = self.state();
        let connected = async { link.wait_for(|link| link.is_up()).await.is_ok() };
        if !timeout(API_LIMIT, connected).await.unwrap_or(false) {
            return Err(NatsError::Closed);
        }
        let messages = match ask(self, stream, &filter).await? {
            Some(messages) => messages,
            None => read(self, stream, &filter).await?,
        };
        let mut found = Found::default();
        for (subject, headers, body) in messages {
            match heard(&subject, &headers, &body) {
                Heard::Entry(entry) => found.entries.push(entry),
                Heard::Unreadable(what) => found.unreadable.push(what),
                Heard::Gone(_) => {}
            }
        }
        let key = |entry: &Entry| (entry.address.clone(), entry.port());
        found.entries.sort_by_cached_key(key);
        Ok(found)
    }
}

type Raw = (String, Headers, Bytes);

/// Asks for the last message of each subject. Returns nothing if that is no way to get them.
async fn ask(
    connection: &Connection,
    stream: &str,
    filter: &Subject,
) -> Result<Option<Vec<Raw>>, NatsError> {
    let question = connection.api(&format!("DIRECT.GET.{stream}"));
    let body = serde_json::json!({ "multi_last": [filter.as_str()] }).to_string();
    let client = connection.client();
    let inbox = client.new_inbox();
    let asking = async {
        let answers = client.subscribe(inbox.clone()).await.ok()?;
        let asked = client.publish_with_reply(question.clone(), inbox, body.into());
        asked.await.ok()?;
        Some(answers)
    };
    let asked = timeout(API_LIMIT, asking).await.ok().flatten();
    let mut answers = asked.ok_or(NatsError::Closed)?;
    let mut found: Vec<Raw> = Vec::new();
    let mut expected = None;
    while found.len() < MOST_ANSWERS {
        let answer = timeout(API_LIMIT, answers.next()).await;
        let answer = answer.map_err(|_| NatsError::NoAnswer {
            subject: question.clone(),
            limit: API_LIMIT,
        })?;
        let answer = answer.ok_or(NatsError::Closed)?;
        match answer.status {
            None => {}
            Some(status) if status.as_u16() == END => {
                // Some may have been lost on the way, or not have been sent.
                let is_whole = expected.unwrap_or(0) == found.len();
                return Ok(is_whole.then_some(found));
            }
            Some(StatusCode::NOT_FOUND) => return Ok(Some(Vec::new())),
            Some(_) => return Ok(None),
        }
        let Message { headers, body, .. } = answer.into();
        // Servers that don't know the question answer another one.
        let Some(subject) = headers.get("Nats-Subject").map(str::to_owned) else {
            return Ok(None);
        };
        let left = headers.get("Nats-Num-Pending");
        let left: Option<usize> = left.and_then(|left| left.parse().ok());
        let Some(left) = left else {
            return Ok(None);
        };
        expected.get_or_insert(left.saturating_add(1));
        found.push((subject, headers, body));
    }
    Ok(None)
}

/// Reads the last message of each subject with a consumer.
async fn read(
    connection: &Connection,
    stream: &str,
    filter: &Subject,
) -> Result<Vec<Raw>, NatsError> {
    let wanted = Wanted::last(stream, filter.as_str());
    let stored = follow::read_all(connection, &wanted).await;
    let stored = stored.map_err(|err| match err {
        NatsError::NoBucket(_) => NatsError::NoStream(stream.into()),
        err => err,
    })?;
    let raw = |one: follow::Stored| (one.subject, one.headers, one.body);
    Ok(stored.into_iter().map(raw).collect())
}

/// What a message of the stream says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Heard {
    Entry(Entry),
    /// The entry is gone, for this reason.
    Gone(String),
    Unreadable(Unreadable),
}

/// Returns what a message says about the service its subject names.
pub(super) fn heard(subject: &str, headers: &Headers, body: &[u8]) -> Heard {
    if let Some(reason) = headers.get(MARKER) {
        return Heard::Gone(reason.into());
    }
    let reason = match Entry::from_wire(body) {
        Ok(entry) if subject::belongs(&entry, subject) => return Heard::Entry(entry),
        Ok(_) => "it belongs to another subject".to_owned(),
        Err(err) => err.to_string(),
    };
    Heard::Unreadable(Unreadable {
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
        let heard_on = |subject: &str| heard(subject, &plain, BODY.as_bytes());
        assert!(matches!(heard_on(SUBJECT), Heard::Entry(_)));
        let other = SUBJECT.replace("prod", "lab");
        assert!(matches!(heard_on(&other), Heard::Unreadable(_)));
        let marker = Headers::new().with(MARKER, "MaxAge").unwrap();
        assert_eq!(heard(SUBJECT, &marker, b""), Heard::Gone("MaxAge".into()));
        assert!(matches!(heard(SUBJECT, &plain, b""), Heard::Unreadable(_)));
    }
}
