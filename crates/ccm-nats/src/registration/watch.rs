//! Entries as they come and go.
//!
//! A watch outlives servers, see `follow`. After an interruption everything is read again; what
//! did not change is not told again, and what has vanished meanwhile is told as gone.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::mpsc;

use super::lookup::{Record, Unreadable, parse_record};
use super::{check_stream, subject};
use crate::direct_get::{Stored, ReadRequest};
use crate::stream_reader::{self, StreamItem};
use crate::{Connection, Denial, NatsError};
use ccm_core::model::registration::Entry;

/// Why an entry is gone that vanished while nobody could watch.
const UNSEEN: &str = "Unseen";

/// What a watcher hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// An entry is new, or was published again.
    Updated(Entry),
    /// An entry is gone: expired (`MaxAge`) or taken back (`Purge`). One that was not parse_record of
    /// before has neither port nor priority.
    Removed {
        entry: Entry,
        reason: String,
    },
    Unreadable(Unreadable),
    /// The server forbids to watch. It is tried again once in a while.
    Denied(Denial),
}

/// The changes of a registry. Watching ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    seen: mpsc::Receiver<StreamItem>,
    known: Known,
    changes: VecDeque<Change>,
    /// All there is was parse_record since reading last started.
    is_current: bool,
}

impl Connection {
    /// Watches the entries of a stream, which must exist: those that are there, then what changes.
    pub async fn watch_registrations(
        &self,
        stream: &str,
        words: [&str; 4],
    ) -> Result<Watch, NatsError> {
        check_stream(stream)?;
        let filter = subject::filter(words)?;
        let info = self.stream_info(stream).await?;
        info.ok_or_else(|| NatsError::NoStream(stream.into()))?;
        let wanted = ReadRequest::last(stream, filter.as_str());
        Ok(Watch {
            seen: stream_reader::follow(self, wanted),
            known: Known::default(),
            changes: VecDeque::new(),
            is_current: false,
        })
    }
}

impl Watch {
    /// Returns the next change, or nothing once the connection has ended for good.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Some(change);
            }
            match self.seen.recv().await? {
                StreamItem::Restart => {
                    self.is_current = false;
                    self.known.doubt();
                }
                StreamItem::Denied(denial) => return Some(Change::Denied(denial)),
                StreamItem::Message(stored) => self.changes.extend(self.known.take(&stored)),
                StreamItem::Current => {
                    self.is_current = true;
                    self.changes.extend(self.known.settle());
                }
            }
        }
    }

    /// Reports whether all there is was parse_record: otherwise some of it is still to come.
    pub fn is_current(&self) -> bool {
        self.is_current
    }

    /// Returns the entries that stand, as far as they were parse_record.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.known.0.values().map(|told| &told.entry)
    }
}

/// The entries that were told, by subject.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, KnownEntry>);

#[derive(Debug)]
struct KnownEntry {
    entry: Entry,
    sequence: u64,
    /// Not seen since reading started again.
    is_doubtful: bool,
}

impl Known {
    /// Takes that all of it may be out of date.
    fn doubt(&mut self) {
        for told in self.0.values_mut() {
            told.is_doubtful = true;
        }
    }

    /// Takes a message and returns what it changes.
    fn take(&mut self, stored: &Stored) -> Option<Change> {
        let subject = &stored.subject;
        match parse_record(subject, &stored.headers, &stored.body) {
            Record::Entry(entry) => {
                let told = KnownEntry {
                    entry: entry.clone(),
                    sequence: stored.sequence,
                    is_doubtful: false,
                };
                let before = self.0.insert(subject.clone(), told);
                let is_news = before.is_none_or(|told| told.sequence != stored.sequence);
                is_news.then_some(Change::Updated(entry))
            }
            Record::Gone(reason) => {
                let told = self.0.remove(subject).map(|told| told.entry);
                let entry = told.or_else(|| subject::parse(subject))?;
                Some(Change::Removed { entry, reason })
            }
            Record::Unreadable(what) => Some(Change::Unreadable(what)),
        }
    }

    /// Takes that everything there is was seen, and returns what is not there any more.
    fn settle(&mut self) -> Vec<Change> {
        let gone = self.0.extract_if(.., |_, told| told.is_doubtful);
        gone.map(|(_, told)| Change::Removed {
            entry: told.entry,
            reason: UNSEEN.into(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chrono::DateTime;

    use super::*;
    use crate::Headers;

    fn stored(host: u8, sequence: u64, marker: Option<&str>) -> Stored {
        let body = format!(
            r#"{{"cluster":"prod","service":"web","protocol":"http","address":"10.0.0.{host}","port":80,"priority":1}}"#
        );
        let (headers, body) = match marker {
            None => (Headers::new(), Bytes::from(body)),
            Some(reason) => (
                Headers::new().with(super::super::MARKER, reason).unwrap(),
                Bytes::new(),
            ),
        };
        Stored {
            subject: format!("choria.ccm.registration.v1.prod.http.web.10_0_0_{host}.x"),
            headers,
            body,
            sequence,
            time: DateTime::UNIX_EPOCH,
        }
    }

    fn words(change: &Change) -> String {
        match change {
            Change::Updated(entry) => format!("+{}:{:?}", entry.address, entry.port()),
            Change::Removed { entry, reason } => {
                format!("-{}:{:?} {reason}", entry.address, entry.port())
            }
            Change::Unreadable(what) => what.to_string(),
            Change::Denied(denial) => denial.to_string(),
        }
    }

    #[test]
    fn an_entry_that_is_known_leaves_with_its_port() {
        let mut known = Known::default();
        let change = known.take(&stored(1, 1, None)).unwrap();
        assert_eq!(words(&change), "+10.0.0.1:Some(80)");
        let change = known.take(&stored(1, 2, Some("MaxAge"))).unwrap();
        assert_eq!(words(&change), "-10.0.0.1:Some(80) MaxAge");
        let change = known.take(&stored(2, 3, Some("Purge"))).unwrap();
        assert_eq!(words(&change), "-10.0.0.2:None Purge");
    }

    #[test]
    fn an_interruption_tells_only_what_changed() {
        let mut known = Known::default();
        for (host, sequence) in [(1, 1), (2, 2), (3, 3)] {
            known.take(&stored(host, sequence, None));
        }
        assert_eq!(known.settle(), []);
        known.doubt();
        assert_eq!(known.take(&stored(1, 1, None)), None);
        let change = known.take(&stored(2, 9, None)).unwrap();
        assert_eq!(words(&change), "+10.0.0.2:Some(80)");
        let gone: Vec<String> = known.settle().iter().map(words).collect();
        assert_eq!(gone, ["-10.0.0.3:Some(80) Unseen"]);
    }
}
