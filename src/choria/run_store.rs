//! The store of runs: one file per run, written when it begins and when it is over.
//!
//! A run holds the lock of the store for as long as its process lives. So a run that is not over and
//! does not hold the lock is lost: it was killed, or the machine went down. No process number is
//! trusted, none can pass to a stranger. Only the newest runs are kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::reply::clipped;
use ccm_core::model::event::{Outcome, Summary, TransactionEvent};
use ccm_core::model::run::{RunId, RunOutcome};
use ccm_core::run::RunLock;
use ccm_core::system::files::{self, Durability};
use ccm_core::system::{Clock, FileError, FileLock, LockError};
use ccm_value::json;
use ccm_value::secret::redact_urls;
use ccm_value::text::{maybe_timestamp, timestamp};

/// How many runs are remembered.
const MOST_RUNS: usize = 50;

/// The longest record that is read; we write no longer ones.
const MAX_RECORD: u64 = 4 * 1024 * 1024;

/// How many resources a record lists.
const MOST_EVENTS: usize = 100;

/// How many bytes all of these may take: what is told of a run must fit into a reply.
const MAX_BRIEFS: usize = 128 * 1024;

/// The longest text that a record says about one resource.
const MAX_TEXT: usize = 512;

/// The longest event that a record keeps whole.
const MAX_EVENT: usize = 64 * 1024;

/// How long a run waits for a lock. Those who only ask hold it for an instant.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Why the store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RunStoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{} is no record of a run: {cause}", path.display())]
    Record {
        path: PathBuf,
        cause: serde_json::Error,
    },
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Finished,
    Failed,
    Lost,
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// What is remembered of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub run_id: RunId,
    /// The action that began it.
    pub action: String,
    /// What is applied, as people may see it.
    pub source: String,
    pub noop: bool,
    pub health_check_only: bool,
    pub caller: String,
    pub request_id: String,
    #[serde(with = "timestamp")]
    pub started: DateTime<Utc>,
    #[serde(with = "maybe_timestamp")]
    pub ended: Option<DateTime<Utc>>,
    pub result: Option<RunResult>,
    /// Why the node's daemon does not hear of it, should that be so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub untold: String,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunResult {
    pub outcome: RunOutcome,
    /// Why it ended early or never began.
    pub error: String,
    /// What was asked for can't be: nothing was touched.
    pub is_invalid: bool,
    pub summary: Summary,
    /// What failed, then what changed.
    pub events: Vec<Brief>,
    pub omitted: usize,
    /// The one event of a run for one resource.
    pub event: Option<serde_json::Value>,
}

/// An event in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Brief {
    /// `type#name`.
    pub resource: String,
    pub outcome: String,
    pub ensure: String,
    /// What went wrong, or would have been done.
    pub message: String,
}

impl Brief {
    fn of(event: &TransactionEvent) -> Self {
        let outcome = match event.outcome() {
            Outcome::Failed => "failed",
            Outcome::Skipped => "skipped",
            Outcome::Changed if event.noop => "noop",
            Outcome::Changed => "changed",
            Outcome::Stable => "stable",
        };
        Self {
            resource: clipped(
                &format!("{}#{}", event.type_name, redact_urls(&event.name)),
                MAX_TEXT,
            ),
            outcome: outcome.into(),
            ensure: clipped(&event.final_ensure, MAX_TEXT),
            message: message(event),
        }
    }
}

/// Returns what is worth saying about an event: why it failed or was skipped, or what it would
/// have done.
fn message(event: &TransactionEvent) -> String {
    let text = if !event.errors.is_empty() {
        event.errors.join(", ")
    } else if !event.unmet_requirements.is_empty() {
        format!("requires {}", event.unmet_requirements.join(", "))
    } else {
        event.noop_message.clone()
    };
    clipped(&redact_urls(&text), MAX_TEXT)
}

/// Returns the events that people ask for, the failed ones first, and how many more there were.
pub(super) fn briefs(events: &[TransactionEvent]) -> (Vec<Brief>, usize) {
    let failed = events.iter().filter(|event| event.blocks());
    let changed = events
        .iter()
        .filter(|event| event.changed && !event.blocks());
    let all = failed.chain(changed);
    let count = all.clone().count();
    let mut room = Some(MAX_BRIEFS);
    let briefs: Vec<Brief> = all
        .take(MOST_EVENTS)
        .map(Brief::of)
        .take_while(|brief| {
            let bytes = json::compact(brief).map_or(usize::MAX, |text| text.len());
            room = room.and_then(|room| room.checked_sub(bytes));
            room.is_some()
        })
        .collect();
    let omitted = count.saturating_sub(briefs.len());
    (briefs, omitted)
}

/// Returns an event as a document that fits into a reply: a long one loses what was asked for and
/// what was found, and what it says becomes short.
pub(super) fn fitting(event: &TransactionEvent) -> Result<serde_json::Value, serde_json::Error> {
    let mut document = serde_json::to_value(event)?;
    if json::compact(&document)?.len() <= MAX_EVENT {
        return Ok(document);
    }
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|key, field| !field.is_object() && key != "health_check");
        for field in fields.values_mut() {
            if let serde_json::Value::String(text) = field {
                *text = clipped(text, MAX_TEXT);
            }
        }
        fields.insert("error".into(), vec![message(event)].into());
        fields.insert("unmet_requirements".into(), Vec::<String>::new().into());
    }
    Ok(document)
}

/// The folder of runs.
#[derive(Clone, Debug)]
pub(super) struct RunStore {
    directory: PathBuf,
}

impl RunStore {
    /// Opens the store, making its folder if need be.
    pub(super) fn open(directory: &Path) -> Result<Self, RunStoreError> {
        files::create_private_dir(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    /// Takes the lock for a run.
    pub(super) fn lock(&self, id: &RunId, clock: &dyn Clock) -> Result<FileLock, LockError> {
        RunLock::at(self.lock_file()).take(id, PATIENCE, clock)
    }

    /// Returns the run that holds the lock, if one does.
    pub(super) fn current(&self) -> Result<Option<RunId>, RunStoreError> {
        Ok(RunLock::at(self.lock_file()).current()?)
    }

    /// Writes the record of a run that begins, and forgets the oldest.
    pub(super) fn begin(&self, record: &Record) -> Result<(), RunStoreError> {
        self.write(record, Durability::Cached)?;
        let names = self.names()?;
        let too_many = names.len().saturating_sub(MOST_RUNS);
        for name in names.iter().take(too_many) {
            files::remove(&self.directory.join(name))?;
        }
        Ok(())
    }

    /// Writes the record of a run that is over; a power cut does not undo it.
    pub(super) fn end(&self, record: &Record) -> Result<(), RunStoreError> {
        self.write(record, Durability::Complete)
    }

    /// Returns a run and how far it is, if it is remembered.
    pub(super) fn find(&self, id: &RunId) -> Result<Option<(Record, State)>, RunStoreError> {
        let suffix = format!("-{id}.json");
        let names = self.names()?;
        match names.iter().find(|name| name.ends_with(&suffix)) {
            Some(name) => self.look(name),
            None => Ok(None),
        }
    }

    /// Returns the run that began last.
    pub(super) fn latest(&self) -> Result<Option<(Record, State)>, RunStoreError> {
        self.newest(|_| true)
    }

    /// Returns the run that began last of those that are over.
    pub(super) fn latest_over(&self) -> Result<Option<(Record, State)>, RunStoreError> {
        self.newest(|record| record.result.is_some())
    }

    fn newest(
        &self,
        wanted: impl Fn(&Record) -> bool,
    ) -> Result<Option<(Record, State)>, RunStoreError> {
        for name in self.names()?.iter().rev() {
            if let Some((record, state)) = self.look(name)?
                && wanted(&record)
            {
                return Ok(Some((record, state)));
            }
        }
        Ok(None)
    }

    fn look(&self, name: &str) -> Result<Option<(Record, State)>, RunStoreError> {
        let Some(record) = self.read(name)? else {
            return Ok(None);
        };
        if let Some(state) = state_at_end(&record) {
            return Ok(Some((record, state)));
        }
        if self.current()?.as_ref() == Some(&record.run_id) {
            return Ok(Some((record, State::Running)));
        }
        // It may have come to its end between the two looks.
        let again = self.read(name)?;
        Ok(again.map(|record| {
            let state = state_at_end(&record).unwrap_or(State::Lost);
            (record, state)
        }))
    }

    fn read(&self, name: &str) -> Result<Option<Record>, RunStoreError> {
        let path = self.directory.join(name);
        let text = match files::read_to_string(&path, MAX_RECORD) {
            // Forgotten since the folder was read.
            Err(error) if error.is_not_found() => return Ok(None),
            text => text?,
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|cause| RunStoreError::Record { path, cause })
    }

    fn write(&self, record: &Record, durability: Durability) -> Result<(), RunStoreError> {
        // Names sort by time; ids alone do so only within a second.
        let nanos = record.started.timestamp_nanos_opt().unwrap_or_default();
        let path = self
            .directory
            .join(format!("{nanos:020}-{}.json", record.run_id));
        let text = match json::compact(record) {
            Ok(text) => text,
            Err(cause) => return Err(RunStoreError::Record { path, cause }),
        };
        Ok(files::write_private(&path, text.as_bytes(), durability)?)
    }

    /// Returns the names of all records, the oldest first.
    fn names(&self) -> Result<Vec<String>, RunStoreError> {
        let names = files::list(&self.directory)?.into_iter();
        Ok(names
            .filter_map(|name| name.into_string().ok())
            .filter(|name| {
                name.ends_with(".json") && name.starts_with(|c: char| c.is_ascii_digit())
            })
            .collect())
    }

    fn lock_file(&self) -> PathBuf {
        self.directory.join("lock")
    }
}

fn state_at_end(record: &Record) -> Option<State> {
    Some(match record.result.as_ref()?.outcome {
        RunOutcome::Failed => State::Failed,
        _ => State::Finished,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use ccm_core::model::resource::{Package, Properties, Resource};
    use ccm_core::system::SystemClock;

    fn at(nanos: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_nanos(1_800_000_000_000_000_000 + nanos)
    }

    fn record(nanos: i64) -> Record {
        let payload = u128::try_from(1_000_000 - nanos).unwrap();
        Record {
            run_id: RunId::new(at(0), payload),
            action: "apply".into(),
            source: "/srv/site".into(),
            noop: false,
            health_check_only: false,
            caller: String::new(),
            request_id: String::new(),
            started: at(nanos),
            ended: None,
            result: None,
            untold: String::new(),
        }
    }

    fn over(record: Record, outcome: RunOutcome) -> Record {
        Record {
            ended: Some(at(0)),
            result: Some(RunResult {
                outcome,
                error: String::new(),
                is_invalid: false,
                summary: Summary::of(Some(at(0)), []),
                events: Vec::new(),
                omitted: 0,
                event: None,
            }),
            ..record
        }
    }

    fn event(name: &str) -> TransactionEvent {
        let resource = Resource::new(name, "present", Properties::Package(Package::default()));
        TransactionEvent::begin(RunId::new(at(0), 1), at(0), "apt", &Arc::new(resource))
    }

    #[test]
    fn a_run_that_holds_the_lock_is_running_and_one_that_does_not_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        let run = record(0);
        let lock = store.lock(&run.run_id, &SystemClock).unwrap();
        store.begin(&run).unwrap();
        let state = || store.find(&run.run_id).unwrap().unwrap().1;
        assert_eq!(state(), State::Running);
        assert_eq!(store.current().unwrap().as_ref(), Some(&run.run_id));
        drop(lock);
        assert_eq!(state(), State::Lost);
        assert_eq!(store.current().unwrap(), None);
    }

    #[test]
    fn a_run_that_another_one_followed_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        store.begin(&record(0)).unwrap();
        let _lock = store.lock(&record(1).run_id, &SystemClock).unwrap();
        store.begin(&record(1)).unwrap();
        assert_eq!(
            store.find(&record(0).run_id).unwrap().unwrap().1,
            State::Lost
        );
        assert_eq!(store.latest().unwrap().unwrap().1, State::Running);
    }

    #[test]
    fn how_a_run_came_out_is_its_state() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        for (outcome, state) in [
            (RunOutcome::Failed, State::Failed),
            (RunOutcome::Changed, State::Finished),
            (RunOutcome::Noop, State::Finished),
        ] {
            store.end(&over(record(0), outcome)).unwrap();
            assert_eq!(store.latest().unwrap().unwrap().1, state);
        }
    }

    #[test]
    fn the_latest_run_is_the_last_that_began_within_a_second_too() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        for nanos in [5, 7, 6] {
            store.begin(&record(nanos)).unwrap();
        }
        assert_eq!(store.latest().unwrap().unwrap().0, record(7));
        let done = over(record(5), RunOutcome::Stable);
        store.end(&done).unwrap();
        assert_eq!(store.latest_over().unwrap().unwrap().0, done);
    }

    #[test]
    fn only_the_newest_runs_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        for nanos in 0..55 {
            store.begin(&record(nanos)).unwrap();
        }
        assert_eq!(store.names().unwrap().len(), MOST_RUNS);
        assert!(store.find(&record(4).run_id).unwrap().is_none());
        assert!(store.find(&record(5).run_id).unwrap().is_some());
    }

    #[test]
    fn a_record_that_is_none_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        let path = directory.path().join("0-x.json");
        files::write_private(&path, b"{", Durability::Cached).unwrap();
        let error = store.latest().unwrap_err().to_string();
        assert!(error.contains("0-x.json is no record of a run"), "{error}");
    }

    #[test]
    fn failed_events_come_first_and_no_more_than_a_bound() {
        let mut events: Vec<_> = (0..150).map(|number| event(&number.to_string())).collect();
        for event in &mut events {
            event.changed = true;
        }
        events[120].failed = true;
        events[120].errors = vec!["broken".into()];
        events[121].changed = false;
        let (briefs, omitted) = briefs(&events);
        assert_eq!((briefs.len(), omitted), (100, 49));
        assert_eq!(
            briefs[0],
            Brief {
                resource: "package#120".into(),
                outcome: "failed".into(),
                ensure: String::new(),
                message: "broken".into(),
            }
        );
    }

    #[test]
    fn events_that_say_much_are_fewer() {
        let mut events: Vec<_> = (0..100).map(|number| event(&number.to_string())).collect();
        for event in &mut events {
            event.failed = true;
            event.errors = vec!["\u{1}".repeat(1000)];
        }
        let (briefs, omitted) = briefs(&events);
        assert!(!briefs.is_empty() && omitted > 0);
        assert_eq!(briefs.len() + omitted, 100);
        assert!(json::compact(&briefs).unwrap().len() < MAX_BRIEFS + 4096);
    }

    #[test]
    fn a_long_event_loses_what_is_long_and_keeps_what_happened() {
        let mut event = event("zsh");
        event.failed = true;
        event.errors = vec!["x".repeat(MAX_EVENT), "y".into()];
        let document = fitting(&event).unwrap();
        assert!(json::compact(&document).unwrap().len() < 4096);
        assert_eq!(document["failed"], true);
        assert_eq!(document["name"], "zsh");
        assert!(document.get("properties").is_none());
        event.errors = vec!["short".into()];
        assert_eq!(fitting(&event).unwrap()["error"][0], "short");
    }
}
