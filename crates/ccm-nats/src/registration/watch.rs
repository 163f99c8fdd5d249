//! Watch of registrations: current entries, then changes.
//!
//! After an interruption all entries are read again; unchanged entries are not reported again, and
//! entries that disappeared are reported as removed. See `stream_reader`.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::mpsc;

use super::lookup::{Record, Unreadable, parse_record};
use super::{check_stream, subject};
use crate::direct_get::{ReadRequest, StoredMessage};
use crate::stream_reader::{self, StreamItem};
use crate::{Connection, Denial, NatsError};
use ccm_core::model::registration::Entry;

/// Reason of an entry that disappeared while the connection was down.
const UNSEEN: &str = "Unseen";

/// A change of the watched registrations.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new entry, or one that was published again.
    Updated(Entry),
    /// A removed entry: expired (`MaxAge`) or unregistered (`Purge`). An entry that was not
    /// reported before has no port and no priority.
    Removed {
        entry: Entry,
        reason: String,
    },
    Unreadable(Unreadable),
    /// Watching is forbidden; retried from time to time.
    Denied(Denial),
}

/// A watch of registrations. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    items: mpsc::Receiver<StreamItem>,
    known: Known,
    changes: VecDeque<Change>,
    /// All current entries were received since the last (re)start.
    is_current: bool,
}

impl Connection {
    /// Watches the entries of an existing stream: current entries, then changes.
    pub async fn watch_registrations(
        &self,
        stream: &str,
        words: [&str; 4],
    ) -> Result<Watch, NatsError> {
        check_stream(stream)?;
        let filter = subject::filter(words)?;
        let info = self.stream_info(stream).await?;
        info.ok_or_else(|| NatsError::NoStream(stream.into()))?;
        let request = ReadRequest::last(stream, filter.as_str());
        Ok(Watch {
            items: stream_reader::follow(self, request),
            known: Known::default(),
            changes: VecDeque::new(),
            is_current: false,
        })
    }
}

impl Watch {
    /// Returns the next change, or nothing once the connection is closed.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Some(change);
            }
            match self.items.recv().await? {
                StreamItem::Restart => {
                    self.is_current = false;
                    self.known.mark_stale();
                }
                StreamItem::Denied(denial) => return Some(Change::Denied(denial)),
                StreamItem::Message(stored) => self.changes.extend(self.known.take(&stored)),
                StreamItem::Current => {
                    self.is_current = true;
                    self.changes.extend(self.known.remove_stale());
                }
            }
        }
    }

    /// Reports whether all current entries were received.
    pub fn is_current(&self) -> bool {
        self.is_current
    }

    /// Returns the known entries.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.known.0.values().map(|known| &known.entry)
    }
}

/// The reported entries, by subject.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, KnownEntry>);

#[derive(Debug)]
struct KnownEntry {
    entry: Entry,
    sequence: u64,
    /// Not received since the last restart.
    is_stale: bool,
}

impl Known {
    /// Marks all entries as stale.
    fn mark_stale(&mut self) {
        for known in self.0.values_mut() {
            known.is_stale = true;
        }
    }

    /// Applies a message and returns the change.
    fn take(&mut self, stored: &StoredMessage) -> Option<Change> {
        let subject = &stored.subject;
        match parse_record(subject, &stored.headers, &stored.body) {
            Record::Entry(entry) => {
                let known = KnownEntry {
                    entry: entry.clone(),
                    sequence: stored.sequence,
                    is_stale: false,
                };
                let before = self.0.insert(subject.clone(), known);
                let is_new = before.is_none_or(|known| known.sequence != stored.sequence);
                is_new.then_some(Change::Updated(entry))
            }
            Record::Removed(reason) => {
                let known = self.0.remove(subject).map(|known| known.entry);
                let entry = known.or_else(|| subject::parse(subject))?;
                Some(Change::Removed { entry, reason })
            }
            Record::Unreadable(what) => Some(Change::Unreadable(what)),
        }
    }

    /// Removes stale entries and returns their changes.
    fn remove_stale(&mut self) -> Vec<Change> {
        let removed = self.0.extract_if(.., |_, known| known.is_stale);
        removed
            .map(|(_, known)| Change::Removed {
                entry: known.entry,
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

    fn stored(host: u8, sequence: u64, marker: Option<&str>) -> StoredMessage {
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
        StoredMessage {
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
    fn removal_of_a_known_entry_includes_its_port() {
        let mut known = Known::default();
        let change = known.take(&stored(1, 1, None)).unwrap();
        assert_eq!(words(&change), "+10.0.0.1:Some(80)");
        let change = known.take(&stored(1, 2, Some("MaxAge"))).unwrap();
        assert_eq!(words(&change), "-10.0.0.1:Some(80) MaxAge");
        let change = known.take(&stored(2, 3, Some("Purge"))).unwrap();
        assert_eq!(words(&change), "-10.0.0.2:None Purge");
    }

    #[test]
    fn restart_reports_only_changes() {
        let mut known = Known::default();
        for (host, sequence) in [(1, 1), (2, 2), (3, 3)] {
            known.take(&stored(host, sequence, None));
        }
        assert_eq!(known.remove_stale(), []);
        known.mark_stale();
        assert_eq!(known.take(&stored(1, 1, None)), None);
        let change = known.take(&stored(2, 9, None)).unwrap();
        assert_eq!(words(&change), "+10.0.0.2:Some(80)");
        let removed: Vec<String> = known.remove_stale().iter().map(words).collect();
        assert_eq!(removed, ["-10.0.0.3:Some(80) Unseen"]);
    }
}
