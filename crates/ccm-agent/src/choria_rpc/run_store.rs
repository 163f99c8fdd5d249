//! Run store: one file per run, written when the run starts and when it ends.
//!
//! A run holds the store's lock until its process exits. A run that has not ended and does not hold
//! the lock is lost: it was killed, or the machine went down. Process ids are not used, because they
//! can be reused. Only the newest runs are kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::reply::clipped;
use ccm_core::model::event::{Outcome, Summary, TransactionEvent};
use ccm_core::model::run::{RunId, RunOutcome, RunSummary};
use ccm_core::run::RunLock;
use ccm_core::system::files::{self, Durability};
use ccm_core::system::{Clock, FileError, FileLock, LockError};
use ccm_value::json;
use ccm_value::secret::redact_urls;
use ccm_value::text::{maybe_timestamp, timestamp};

/// Number of runs that are kept.
const MAX_RUNS: usize = 50;

/// Size limit of a record.
const MAX_RECORD: u64 = 4 * 1024 * 1024;

/// Limit on the events of a record.
const MAX_EVENTS: usize = 100;

/// Size limit of all events of a record together, so that they fit in a reply.
const MAX_BRIEFS: usize = 128 * 1024;

/// Length limit of a stored error; a manifest can have many problems.
pub const MAX_ERROR: usize = 8 * 1024;

/// Length limit of text about one resource.
const MAX_TEXT: usize = 512;

/// Size limit of an event that is stored completely.
const MAX_EVENT: usize = 64 * 1024;

/// Time that a run waits for a lock; queries hold it only briefly.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Error of the run store.
#[derive(Debug, thiserror::Error)]
pub enum RunStoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{} is not a valid run record: {cause}", path.display())]
    Record {
        path: PathBuf,
        cause: serde_json::Error,
    },
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Finished,
    Failed,
    Lost,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// Record of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub run_id: RunId,
    /// Action that started it.
    pub action: String,
    /// Source of the run, without secrets.
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
    /// What a running run waits for, such as a slot of a governor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waiting_for: String,
    /// Error while forwarding events to the agent daemon.
    #[serde(rename = "untold", default, skip_serializing_if = "String::is_empty")]
    pub handover_error: String,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub outcome: RunOutcome,
    /// Error that ended the run early or prevented it.
    pub error: String,
    /// The request was invalid; nothing was changed.
    pub is_invalid: bool,
    pub summary: Summary,
    /// Failed events, then changed ones.
    pub events: Vec<EventBrief>,
    pub omitted: usize,
    /// Event of a run for a single resource.
    pub event: Option<serde_json::Value>,
}

impl RunResult {
    /// Returns the result of a run. `error` is what ended it early; empty if nothing did.
    pub fn of(
        summary: Summary,
        events: &[TransactionEvent],
        error: &str,
        is_invalid: bool,
        noop: bool,
    ) -> Self {
        let error = clipped(error, MAX_ERROR);
        let (events, omitted) = briefs(events);
        Self {
            outcome: RunSummary::outcome_of(&summary, noop, &error),
            error,
            is_invalid,
            summary,
            events,
            omitted,
            event: None,
        }
    }

    /// Adds the event of a run for a single resource.
    #[must_use]
    pub fn with_event(self, events: &[TransactionEvent]) -> Self {
        let event = match events {
            [event] => fitting(event).ok(),
            _ => None,
        };
        Self { event, ..self }
    }
}

/// Short form of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventBrief {
    /// `type#name`.
    pub resource: String,
    pub outcome: String,
    pub ensure: String,
    /// Error, or the change that noop prevented.
    pub message: String,
}

impl EventBrief {
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

/// Returns the error of an event, its unmet requirements, or the change that noop prevented.
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

/// Returns failed and changed events in this order, and the number of omitted ones.
fn briefs(events: &[TransactionEvent]) -> (Vec<EventBrief>, usize) {
    let failed = events.iter().filter(|event| event.blocks());
    let changed = events
        .iter()
        .filter(|event| event.changed && !event.blocks());
    let all = failed.chain(changed);
    let count = all.clone().count();
    let mut available = Some(MAX_BRIEFS);
    let briefs: Vec<EventBrief> = all
        .take(MAX_EVENTS)
        .map(EventBrief::of)
        .take_while(|brief| {
            let bytes = json::compact(brief).map_or(usize::MAX, |text| text.len());
            available = available.and_then(|available| available.checked_sub(bytes));
            available.is_some()
        })
        .collect();
    let omitted = count.saturating_sub(briefs.len());
    (briefs, omitted)
}

/// Returns an event as JSON that fits in a reply: a long one loses its properties and state, and
/// its messages are shortened.
fn fitting(event: &TransactionEvent) -> Result<serde_json::Value, serde_json::Error> {
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

/// Directory of run records.
#[derive(Clone, Debug)]
pub struct RunStore {
    directory: PathBuf,
}

impl RunStore {
    /// Opens the store and creates its directory if necessary.
    pub fn open(directory: &Path) -> Result<Self, RunStoreError> {
        files::create_private_dir(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    /// Acquires the lock for a run.
    pub fn lock(&self, id: &RunId, clock: &dyn Clock) -> Result<FileLock, LockError> {
        RunLock::at(self.lock_file()).take(id, LOCK_TIMEOUT, clock)
    }

    /// Returns the run that holds the lock, if any.
    pub fn current(&self) -> Result<Option<RunId>, RunStoreError> {
        Ok(RunLock::at(self.lock_file()).current()?)
    }

    /// Writes the record of a run that starts, and removes the oldest records.
    pub fn begin(&self, record: &Record) -> Result<(), RunStoreError> {
        self.write(record, Durability::Cached)?;
        let names = self.names()?;
        let excess = names.len().saturating_sub(MAX_RUNS);
        for name in names.iter().take(excess) {
            files::remove(&self.directory.join(name))?;
        }
        Ok(())
    }

    /// Replaces the record of a run that has not ended.
    pub fn update(&self, record: &Record) -> Result<(), RunStoreError> {
        self.write(record, Durability::Cached)
    }

    /// Writes the record of a run that has ended, durably.
    pub fn end(&self, record: &Record) -> Result<(), RunStoreError> {
        self.write(record, Durability::Complete)
    }

    /// Returns a run and its state, if it is still stored.
    pub fn find(&self, id: &RunId) -> Result<Option<(Record, State)>, RunStoreError> {
        let suffix = format!("-{id}.json");
        let names = self.names()?;
        match names.iter().find(|name| name.ends_with(&suffix)) {
            Some(name) => self.inspect(name),
            None => Ok(None),
        }
    }

    /// Returns the run that started last.
    pub fn latest(&self) -> Result<Option<(Record, State)>, RunStoreError> {
        self.newest(|_| true)
    }

    /// Returns the run that started last of those that have ended.
    pub fn latest_ended(&self) -> Result<Option<(Record, State)>, RunStoreError> {
        self.newest(|record| record.result.is_some())
    }

    fn newest(
        &self,
        is_match: impl Fn(&Record) -> bool,
    ) -> Result<Option<(Record, State)>, RunStoreError> {
        for name in self.names()?.iter().rev() {
            if let Some((record, state)) = self.inspect(name)?
                && is_match(&record)
            {
                return Ok(Some((record, state)));
            }
        }
        Ok(None)
    }

    fn inspect(&self, name: &str) -> Result<Option<(Record, State)>, RunStoreError> {
        let Some(record) = self.read(name)? else {
            return Ok(None);
        };
        if let Some(state) = state_at_end(&record) {
            return Ok(Some((record, state)));
        }
        if self.current()?.as_ref() == Some(&record.run_id) {
            return Ok(Some((record, State::Running)));
        }
        // It may have ended between the two checks.
        let again = self.read(name)?;
        Ok(again.map(|record| {
            let state = state_at_end(&record).unwrap_or(State::Lost);
            (record, state)
        }))
    }

    fn read(&self, name: &str) -> Result<Option<Record>, RunStoreError> {
        let path = self.directory.join(name);
        let text = match files::read_to_string(&path, MAX_RECORD) {
            // Removed since the directory was listed.
            Err(error) if error.is_not_found() => return Ok(None),
            text => text?,
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|cause| RunStoreError::Record { path, cause })
    }

    fn write(&self, record: &Record, durability: Durability) -> Result<(), RunStoreError> {
        // The name starts with the time, because run ids sort by time only to the second.
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

    /// Returns the names of all records, oldest first.
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
            waiting_for: String::new(),
            handover_error: String::new(),
        }
    }

    fn ended(record: Record, outcome: RunOutcome) -> Record {
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
    fn a_run_without_the_lock_is_lost() {
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
    fn an_unfinished_run_before_the_current_one_is_lost() {
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
    fn the_state_follows_from_the_outcome() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        for (outcome, state) in [
            (RunOutcome::Failed, State::Failed),
            (RunOutcome::Changed, State::Finished),
            (RunOutcome::Noop, State::Finished),
        ] {
            store.end(&ended(record(0), outcome)).unwrap();
            assert_eq!(store.latest().unwrap().unwrap().1, state);
        }
    }

    #[test]
    fn the_latest_run_is_correct_within_one_second() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        for nanos in [5, 7, 6] {
            store.begin(&record(nanos)).unwrap();
        }
        assert_eq!(store.latest().unwrap().unwrap().0, record(7));
        let done = ended(record(5), RunOutcome::Stable);
        store.end(&done).unwrap();
        assert_eq!(store.latest_ended().unwrap().unwrap().0, done);
    }

    #[test]
    fn only_the_newest_runs_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        for nanos in 0..55 {
            store.begin(&record(nanos)).unwrap();
        }
        assert_eq!(store.names().unwrap().len(), MAX_RUNS);
        assert!(store.find(&record(4).run_id).unwrap().is_none());
        assert!(store.find(&record(5).run_id).unwrap().is_some());
    }

    #[test]
    fn an_invalid_record_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::open(directory.path()).unwrap();
        let path = directory.path().join("0-x.json");
        files::write_private(&path, b"{", Durability::Cached).unwrap();
        let error = store.latest().unwrap_err().to_string();
        assert!(
            error.contains("0-x.json is not a valid run record"),
            "{error}"
        );
    }

    #[test]
    fn failed_events_come_first_and_the_number_is_limited() {
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
            EventBrief {
                resource: "package#120".into(),
                outcome: "failed".into(),
                ensure: String::new(),
                message: "broken".into(),
            }
        );
    }

    #[test]
    fn long_events_are_limited_by_size() {
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
    fn a_long_event_is_shortened() {
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
