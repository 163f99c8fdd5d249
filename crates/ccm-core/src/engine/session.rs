//! Sessions: the events of one run, in memory or as files that upstream CCM can read.
//!
//! Requirements and subscriptions use the last event of a resource. Events are ordered by time, then
//! id. Ids increase within a process and from one run to the next, so their order alone is right, too.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use crate::model::event::{
    SESSION_START_PROTOCOL, SessionStart, Summary, TRANSACTION_EVENT, TransactionEvent,
};
use crate::model::id::{EventId, Reference};
use crate::model::json;
use crate::model::secret::redact_urls;
use crate::system::files::{self, Durability, FileError};
use crate::system::{RandomError, random};

const SUFFIX: &str = "event";

/// The maximum size of an event file.
const MAX_EVENT_BYTES: u64 = 64 * 1024 * 1024;

/// A session that can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("session directory path cannot be empty")]
    EmptyPath,
    #[error("session store {} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("session store {} already exists", .0.display())]
    Exists(PathBuf),
    #[error("event name cannot be empty")]
    EmptyName,
    #[error("resource type cannot be empty")]
    EmptyType,
    #[error(transparent)]
    File(#[from] FileError),
    #[error("could not write event {id}: {cause}")]
    Encode {
        id: EventId,
        #[source]
        cause: serde_json::Error,
    },
}

/// A file in a session directory that is not a valid event.
#[derive(Debug, thiserror::Error)]
pub enum EventFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {cause}", file.display())]
    Json {
        file: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error("Unknown event protocol {protocol:?} in {}", file.display())]
    Protocol { protocol: String, file: PathBuf },
}

/// A reference to a resource without events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no events found for {0}")]
pub struct NoEvents(pub String);

/// The events of one run.
#[derive(Debug, Default)]
pub struct Session {
    start: Option<DateTime<Utc>>,
    events: Vec<TransactionEvent>,
    /// The last event of each (type, name or alias).
    last: HashMap<(String, String), usize>,
    directory: Option<PathBuf>,
    /// The invalid files of the directory.
    pub skipped: Vec<EventFileError>,
}

impl Session {
    /// Starts an in-memory session.
    pub fn memory(start: DateTime<Utc>) -> Self {
        Self {
            start: Some(start),
            ..Self::default()
        }
    }

    /// Opens a directory of events; a missing directory has none.
    pub fn directory(path: &Path) -> Result<Self, SessionError> {
        if path.as_os_str().is_empty() {
            return Err(SessionError::EmptyPath);
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // Events decide what is refreshed and skipped, so no other user may write them.
        files::check_private_dir(&path)?;
        let mut session = Self {
            directory: Some(path.clone()),
            ..Self::default()
        };
        let mut events = Vec::new();
        for name in files::list(&path)? {
            let file = path.join(&name);
            if file.extension().is_none_or(|suffix| suffix != SUFFIX) {
                continue;
            }
            match read_event(&file) {
                Ok(Stored::Start(start)) => session.start = Some(start),
                Ok(Stored::Event(event)) => events.push(*event),
                Err(reason) => session.skipped.push(reason),
            }
        }
        events.sort_by(|a, b| (a.timestamp, &a.event_id).cmp(&(b.timestamp, &b.event_id)));
        for event in events {
            session.add(event);
        }
        Ok(session)
    }

    /// Opens an existing directory of events.
    pub fn existing(path: &Path) -> Result<Self, SessionError> {
        if !path.as_os_str().is_empty() && files::inspect(path, true)?.is_none() {
            return Err(SessionError::Missing(path.to_owned()));
        }
        Self::directory(path)
    }

    /// Creates the directory of a new session.
    pub fn create(path: &Path) -> Result<(), SessionError> {
        if files::inspect(path, false)?.is_some() {
            return Err(SessionError::Exists(path.to_owned()));
        }
        Ok(files::create_private_dir(path)?)
    }

    /// Adds an event.
    pub fn record(&mut self, event: TransactionEvent) -> Result<(), SessionError> {
        if event.name.is_empty() {
            return Err(SessionError::EmptyName);
        }
        if event.type_name.is_empty() {
            return Err(SessionError::EmptyType);
        }
        if let Some(directory) = &self.directory {
            if files::inspect(directory, true)?.is_none() {
                return Err(SessionError::Missing(directory.clone()));
            }
            write_event(directory, &event.event_id, &event)?;
        }
        self.add(event);
        Ok(())
    }

    fn add(&mut self, event: TransactionEvent) {
        let index = self.events.len();
        for name in [&event.name, &event.alias] {
            if !name.is_empty() {
                let key = (event.type_name.clone(), name.clone());
                self.last.insert(key, index);
            }
        }
        self.events.push(event);
    }

    /// Returns the last event of a resource, by name or alias.
    pub fn last(&self, reference: Reference<'_>) -> Result<&TransactionEvent, NoEvents> {
        let find = |name: &str| {
            let key = (reference.type_name.to_owned(), name.to_owned());
            self.last.get(&key)
        };
        // Event files hold names with redacted URLs.
        find(reference.name)
            .or_else(|| find(&redact_urls(reference.name)))
            .and_then(|index| self.events.get(*index))
            .ok_or_else(|| NoEvents(reference.to_string()))
    }

    pub fn events(&self) -> &[TransactionEvent] {
        &self.events
    }

    pub fn summary(&self) -> Summary {
        Summary::of(self.start, &self.events)
    }
}

fn write_event(
    directory: &Path,
    id: &EventId,
    event: &impl serde::Serialize,
) -> Result<(), SessionError> {
    let text = json::pretty(event).map_err(|cause| SessionError::Encode {
        id: id.clone(),
        cause,
    })?;
    let file = directory.join(format!("{id}.{SUFFIX}"));
    Ok(files::write_private(
        &file,
        text.as_bytes(),
        Durability::Cached,
    )?)
}

enum Stored {
    Start(DateTime<Utc>),
    Event(Box<TransactionEvent>),
}

/// Reads an event file.
fn read_event(file: &Path) -> Result<Stored, EventFileError> {
    let text = files::read_to_string(file, MAX_EVENT_BYTES)?;
    let invalid = |cause| EventFileError::Json {
        file: file.to_owned(),
        cause,
    };
    let document: serde_json::Value = serde_json::from_str(&text).map_err(invalid)?;
    match document.get("protocol").and_then(|value| value.as_str()) {
        Some(TRANSACTION_EVENT) => {
            let event = serde_json::from_value(document).map_err(invalid)?;
            Ok(Stored::Event(Box::new(event)))
        }
        Some(SESSION_START_PROTOCOL) => {
            let start: SessionStart = serde_json::from_value(document).map_err(invalid)?;
            Ok(Stored::Start(start.timestamp))
        }
        other => Err(EventFileError::Protocol {
            protocol: other.unwrap_or_default().to_owned(),
            file: file.to_owned(),
        }),
    }
}

/// Number of random bits of an id; the payload's other 30 bits are the nanoseconds of its second.
const RANDOM_BITS: u32 = 98;

/// Generator of event ids that always increase, even if the clock is set back. Ids of later
/// generators are greater, because an id contains the time in nanoseconds.
#[derive(Debug)]
pub struct EventIds {
    last: DateTime<Utc>,
    /// The random part, increased by one for each id.
    number: u128,
}

impl EventIds {
    /// Starts at a random number, so that ids are unique across processes.
    pub fn new() -> Result<Self, RandomError> {
        Ok(Self {
            last: DateTime::UNIX_EPOCH,
            // The top bit stays clear, so that increments never reach the nanoseconds.
            number: random()? >> (u128::BITS - RANDOM_BITS + 1),
        })
    }

    /// Returns the next id. If the clock was set back, it has the time of the previous id.
    pub fn next(&mut self, now: DateTime<Utc>) -> EventId {
        self.last = self.last.max(now);
        self.number += 1;
        // A leap second has more nanoseconds than 30 bits hold in order.
        let nanoseconds = self.last.timestamp_subsec_nanos().min(999_999_999);
        EventId::new(
            self.last,
            u128::from(nanoseconds) << RANDOM_BITS | self.number,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::resource::{Package, Properties, Resource};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn event(id: EventId, name: &str, alias: &str, changed: bool) -> TransactionEvent {
        let mut resource = Resource::new(name, "present", Properties::Package(Package::default()));
        resource.common.alias = alias.into();
        let mut event = TransactionEvent::begin(id, at(0), "apt", &Arc::new(resource));
        event.changed = changed;
        event
    }

    fn package(name: &str) -> Reference<'_> {
        Reference {
            type_name: "package",
            name,
        }
    }

    #[test]
    fn ids_increase_within_a_second_and_when_the_clock_is_set_back() {
        let mut ids = EventIds::new().unwrap();
        let mut last = ids.next(at(5));
        for second in [5, 5, 5, 3, 6, 6, 2, 9] {
            let next = ids.next(at(second));
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }

    #[test]
    fn ids_of_a_later_run_are_greater_within_a_second() {
        let start = at(5);
        let mut last = EventIds::new().unwrap().next(start);
        for microseconds in 1..200 {
            let now = start + chrono::Duration::microseconds(microseconds);
            let next = EventIds::new().unwrap().next(now);
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }

    #[test]
    fn the_last_event_of_a_name_or_alias_decides() {
        let mut ids = EventIds::new().unwrap();
        let mut session = Session::memory(at(0));
        for changed in [true, false] {
            session
                .record(event(ids.next(at(0)), "zsh", "shell", changed))
                .unwrap();
        }
        assert!(!session.last(package("zsh")).unwrap().changed);
        assert!(!session.last(package("shell")).unwrap().changed);
        assert_eq!(
            session.last(package("vim")).unwrap_err().to_string(),
            "no events found for package#vim"
        );
    }

    #[test]
    fn a_directory_returns_events_in_order_within_one_second() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("session");
        Session::create(&store).unwrap();
        let mut ids = EventIds::new().unwrap();
        let mut session = Session::directory(&store).unwrap();
        for number in 0..20 {
            let name = format!("p{number}");
            session
                .record(event(ids.next(at(0)), &name, "", false))
                .unwrap();
        }
        let again = Session::directory(&store).unwrap();
        let names: Vec<_> = again.events().iter().map(|e| e.name.clone()).collect();
        let expected: Vec<_> = (0..20).map(|number| format!("p{number}")).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn invalid_event_files_are_listed_and_skipped() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.event", "{"),
            ("b.event", r#"{"protocol":"x"}"#),
            ("c.txt", "ignored"),
        ] {
            files::write_private(
                &directory.path().join(name),
                text.as_bytes(),
                Durability::Cached,
            )
            .unwrap();
        }
        let session = Session::directory(directory.path()).unwrap();
        assert!(session.events().is_empty());
        assert_eq!(session.skipped.len(), 2, "{:?}", session.skipped);
    }

    #[test]
    fn a_missing_directory_has_no_events_and_records_none() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("gone");
        let mut session = Session::directory(&store).unwrap();
        assert!(session.events().is_empty());
        let error = session
            .record(event(
                EventIds::new().unwrap().next(at(0)),
                "zsh",
                "",
                false,
            ))
            .unwrap_err();
        assert!(
            error.to_string().ends_with("gone does not exist"),
            "{error}"
        );
    }

    #[test]
    fn event_files_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let mut session = Session::directory(directory.path()).unwrap();
        session
            .record(event(
                EventIds::new().unwrap().next(at(0)),
                "zsh",
                "",
                false,
            ))
            .unwrap();
        let names = files::list(directory.path()).unwrap();
        let found = files::inspect(&directory.path().join(&names[0]), false).unwrap();
        assert_eq!(found.unwrap().mode, 0o600);
    }
}
