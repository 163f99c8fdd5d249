//! The hand-over: what happens in a run of another program, on its way to the node's daemon.
//!
//! A spool belongs to one process, and so do a node's log, metrics and registrations. So the agent
//! that a Choria server starts writes what happens to a file of its own, one record per line, in a
//! directory that the daemon has made; without that nobody would fetch it. The daemon leaves alone
//! what belongs to the run that holds the run lock. Of every other file it takes the whole lines,
//! also if the writer was killed; only when they are safe in the spool it removes the file. Should
//! it die in between it takes them again, and the stream, which knows events by their ids, keeps one
//! of each.
//!
//! What waits is bounded. The oldest files go first, and how many records that cost is logged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::run_lock::RunLock;
use crate::engine::{Checked, Level, Line, Standing};
use crate::health::Datum;
use crate::model::event::TransactionEvent;
use crate::model::health::{HealthCheck, HealthResult};
use crate::model::registration::Entry;
use crate::model::run::{RunId, RunSummary};
use crate::model::text::timestamp;
use crate::model::{TypeName, json};
use crate::system::LockError;
use crate::system::files::{self, FileError, InPlace};

/// The directory in the state directory.
const DIRECTORY: &str = "handover";

/// What the name of every file ends with.
const SUFFIX: &str = ".jsonl";

/// The longest file: what a run says beyond it is left out, and counted.
const MAX_FILE: u64 = 32 << 20;

/// The most bytes and files that wait when another run begins.
const MAX_WAITING: u64 = 64 << 20;
const MOST_FILES: usize = 1000;

/// Why events could not be handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("hand-over: {0}")]
    File(#[from] FileError),
    #[error("hand-over: {0}")]
    Lock(#[from] LockError),
    #[error("hand-over: event could not be written: {0}")]
    Event(#[from] serde_json::Error),
}

/// One line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    Event(Box<TransactionEvent>),
    Run(Box<RunSummary>),
    Check(Box<CheckRecord>),
    /// How the services of a resource stand.
    Services {
        entries: Vec<Entry>,
        standing: Standing,
    },
    /// A line for the log.
    Line {
        level: Level,
        text: String,
    },
    /// The number of records that are missing here, because there was no room.
    LeftOut(u64),
}

/// A health check that ran.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckRecord {
    type_name: TypeName,
    name: String,
    sensitive: bool,
    check: HealthCheck,
    result: HealthResult,
    perfdata: Vec<Datum>,
    #[serde(with = "timestamp")]
    began: DateTime<Utc>,
    took: Duration,
}

impl CheckRecord {
    fn of(checked: &Checked<'_>) -> Self {
        Self {
            type_name: checked.type_name,
            name: checked.name.into(),
            sensitive: checked.sensitive,
            check: checked.check.clone(),
            result: checked.result.clone(),
            perfdata: checked.perfdata.to_vec(),
            began: checked.began,
            took: checked.took,
        }
    }

    /// Returns the check as a sink takes it.
    pub fn as_checked(&self) -> Checked<'_> {
        Checked {
            type_name: self.type_name,
            name: &self.name,
            sensitive: self.sensitive,
            check: &self.check,
            result: &self.result,
            perfdata: &self.perfdata,
            began: self.began,
            took: self.took,
        }
    }
}

/// Hands over what happens in one run, as it happens.
#[derive(Debug)]
pub struct Handover {
    directory: PathBuf,
    file: InPlace,
    /// How long the file is.
    length: u64,
    left_out: u64,
}

impl Handover {
    /// Begins to hand over what happens in a run, which must hold the run lock. Returns
    /// nothing if the node has no daemon.
    pub fn begin(
        state_dir: &Path,
        run: &RunId,
        started: DateTime<Utc>,
    ) -> Result<Option<Self>, HandoverError> {
        let directory = state_dir.join(DIRECTORY);
        if files::inspect(&directory, false)?.is_none() {
            return Ok(None);
        }
        files::check_private_dir(&directory)?;
        let left_out = make_room(&directory)?;
        // Names sort by time; ids alone do so only within a second.
        let nanos = started.timestamp_nanos_opt().unwrap_or_default();
        let file = InPlace::create(&directory.join(format!("{nanos:020}-{run}{SUFFIX}")))?;
        Ok(Some(Self {
            directory,
            file,
            length: 0,
            left_out,
        }))
    }

    /// Hands over the event of a resource.
    pub fn event(&mut self, event: &TransactionEvent) -> Result<(), HandoverError> {
        self.write(&Record::Event(Box::new(event.clone())))
    }

    /// Hands over a health check that ran.
    pub fn checked(&mut self, checked: &Checked<'_>) -> Result<(), HandoverError> {
        self.write(&Record::Check(Box::new(CheckRecord::of(checked))))
    }

    /// Hands over how the services of a resource stand.
    pub fn services(&mut self, entries: &[Entry], standing: Standing) -> Result<(), HandoverError> {
        let entries = entries.to_vec();
        self.write(&Record::Services { entries, standing })
    }

    /// Hands over a line for the log.
    pub fn line(&mut self, line: &Line) -> Result<(), HandoverError> {
        let mut text = line.message.clone();
        for (key, value) in &line.fields {
            text.push_str(&format!(" {key}={value}"));
        }
        let level = line.level;
        self.write(&Record::Line { level, text })
    }

    /// Hands over how the run ended, if it has a summary, and returns when all of it survives a
    /// power cut.
    pub fn finish(mut self, run: Option<RunSummary>) -> Result<(), HandoverError> {
        if let Some(run) = run {
            self.write(&Record::Run(Box::new(run)))?;
        }
        if self.left_out > 0 {
            let line = line(&Record::LeftOut(self.left_out))?;
            self.append(&line)?;
        }
        self.file.sync()?;
        Ok(files::sync_directory(&self.directory)?)
    }

    fn write(&mut self, record: &Record) -> Result<(), HandoverError> {
        let line = line(record)?;
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.length.saturating_add(length) > MAX_FILE {
            self.left_out += 1;
            return Ok(());
        }
        self.append(&line)
    }

    fn append(&mut self, line: &[u8]) -> Result<(), HandoverError> {
        self.file.write_at(self.length, line)?;
        self.length += u64::try_from(line.len()).unwrap_or_default();
        Ok(())
    }
}

fn line(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    Ok((json::compact(record)? + "\n").into_bytes())
}

/// Removes the oldest files until there is room, and returns how many lines they had.
fn make_room(directory: &Path) -> Result<u64, HandoverError> {
    let mut waiting = Vec::new();
    let mut bytes = 0_u64;
    for (path, _) in handed_over(directory)? {
        // One that is gone was fetched meanwhile.
        if let Some(found) = files::inspect(&path, false)? {
            bytes = bytes.saturating_add(found.size);
            waiting.push((path, found.size));
        }
    }
    let mut left_out = 0_u64;
    let mut count = waiting.len();
    for (path, size) in waiting {
        if bytes <= MAX_WAITING && count < MOST_FILES {
            break;
        }
        let lines = match files::read(&path, MAX_FILE.saturating_mul(2)) {
            Ok(content) => content.iter().filter(|byte| **byte == b'\n').count(),
            Err(error) if error.is_not_found() => 0,
            Err(_) => 1,
        };
        files::remove(&path)?;
        left_out = left_out.saturating_add(u64::try_from(lines).unwrap_or(u64::MAX));
        bytes = bytes.saturating_sub(size);
        count = count.saturating_sub(1);
    }
    Ok(left_out)
}

/// Returns the files of runs, the oldest first.
fn handed_over(directory: &Path) -> Result<Vec<(PathBuf, RunId)>, FileError> {
    let named = |name: &str| -> Option<RunId> {
        let (_, id) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        id.parse().ok()
    };
    let names = files::list(directory)?.into_iter();
    Ok(names
        .filter_map(|name| {
            let id = named(name.to_str()?)?;
            Some((directory.join(name), id))
        })
        .collect())
}

/// Where the daemon finds what other programs hand over.
#[derive(Debug)]
pub struct Intake {
    directory: PathBuf,
    lock: RunLock,
}

impl Intake {
    /// Makes the directory, so that there is somebody to hand over to.
    pub fn open(state_dir: &Path) -> Result<Self, FileError> {
        let directory = state_dir.join(DIRECTORY);
        files::create_private_dir(&directory)?;
        Ok(Self {
            directory,
            lock: RunLock::of(state_dir),
        })
    }

    /// Reports whether there may be something to take; costs next to nothing.
    pub fn has_any(&self) -> bool {
        // What is in the way is reported by whoever takes.
        files::list(&self.directory).map_or(true, |names| !names.is_empty())
    }

    /// Gives each file's records to `take`, which must have them safe when it returns, and removes
    /// the file. Takes all that can be taken, and returns the first error of the rest.
    pub fn take(&self, mut take: impl FnMut(Records<'_>)) -> Result<(), HandoverError> {
        let mut taken = Ok(());
        // First the names, then who holds the lock: whose file is here held it before.
        for (path, run) in handed_over(&self.directory)? {
            if self.lock.is_over(&run)? {
                taken = taken.and(take_file(&path, &mut take));
            }
        }
        taken
    }
}

/// The records of one file.
pub struct Records<'f> {
    pub path: &'f Path,
    content: &'f [u8],
}

impl Records<'_> {
    /// Returns the records, or why one can't be read.
    pub fn iter(&self) -> impl Iterator<Item = Result<Record, serde_json::Error>> {
        // What lies behind the last line break is half a line: its writer was killed.
        let whole = self.content.split_inclusive(|byte| *byte == b'\n');
        whole
            .filter(|line| line.ends_with(b"\n"))
            .map(serde_json::from_slice)
    }
}

fn take_file(path: &Path, take: &mut impl FnMut(Records<'_>)) -> Result<(), HandoverError> {
    let content = match files::read(path, MAX_FILE.saturating_mul(2)) {
        // Its writer needed the room.
        Err(error) if error.is_not_found() => return Ok(()),
        content => content?,
    };
    take(Records {
        path,
        content: &content,
    });
    Ok(files::remove(path)?)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::resource::{Package, Properties, Resource};

    fn at(nanos: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_nanos(1_800_000_000_000_000_000 + nanos)
    }

    fn run(number: u128) -> RunId {
        RunId::new(at(0), number)
    }

    fn event(name: &str) -> TransactionEvent {
        let resource = Resource::new(name, "present", Properties::Package(Package::default()));
        TransactionEvent::begin(run(1), at(0), "apt", &Arc::new(resource))
    }

    /// Returns a state directory that a daemon has made ready, and where files are in it.
    fn with_daemon() -> (tempfile::TempDir, PathBuf) {
        let room = tempfile::tempdir().unwrap();
        let intake = Intake::open(room.path()).unwrap();
        assert!(!intake.has_any());
        (room, intake.directory)
    }

    fn begin(room: &tempfile::TempDir, number: u128, nanos: i64) -> Handover {
        Handover::begin(room.path(), &run(number), at(nanos))
            .unwrap()
            .unwrap()
    }

    #[test]
    fn without_a_daemon_nothing_is_left() {
        let room = tempfile::tempdir().unwrap();
        let none = Handover::begin(room.path(), &run(1), at(0)).unwrap();
        assert!(none.is_none());
        assert_eq!(room.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn events_are_lines_in_a_file_that_names_its_run() {
        let (room, directory) = with_daemon();
        let mut handover = begin(&room, 7, 0);
        for name in ["zsh", "vim"] {
            handover.event(&event(name)).unwrap();
        }
        handover.finish(None).unwrap();
        let [(path, id)] = &handed_over(&directory).unwrap()[..] else {
            panic!("one file");
        };
        assert_eq!(*id, run(7));
        let text = std::fs::read_to_string(path).unwrap();
        let names = text.lines().map(|line| match serde_json::from_str(line) {
            Ok(Record::Event(event)) => event.name,
            other => panic!("{other:?}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), ["zsh", "vim"]);
    }

    #[test]
    fn an_event_comes_out_as_it_went_in() {
        let before = event("zsh");
        let line = line(&Record::Event(Box::new(before.clone()))).unwrap();
        let Record::Event(after) = serde_json::from_slice(&line).unwrap() else {
            panic!("an event");
        };
        assert_eq!(
            json::compact(&*after).unwrap(),
            json::compact(&before).unwrap()
        );
    }

    #[test]
    fn what_a_run_says_beyond_the_bound_is_counted() {
        let (room, directory) = with_daemon();
        let mut handover = begin(&room, 1, 0);
        handover.length = MAX_FILE - 10;
        handover.event(&event("zsh")).unwrap();
        handover.finish(None).unwrap();
        let (path, _) = handed_over(&directory).unwrap().remove(0);
        let content = std::fs::read(path).unwrap();
        let said = String::from_utf8_lossy(content.trim_ascii_start());
        assert!(said.ends_with("{\"left_out\":1}\n"));
    }

    #[test]
    fn the_oldest_make_room_and_what_they_held_is_counted() {
        let (room, directory) = with_daemon();
        for (number, nanos) in [(1, 1), (2, 2)] {
            let mut handover = begin(&room, number, nanos);
            handover.event(&event("zsh")).unwrap();
            // As long as its lines, for all that counts.
            handover.file.truncate(MAX_WAITING / 2 + 1).unwrap();
            handover.file.sync().unwrap();
        }
        let handover = begin(&room, 3, 3);
        assert_eq!(handover.left_out, 1);
        let left: Vec<RunId> = handed_over(&directory)
            .unwrap()
            .into_iter()
            .map(|(_, id)| id)
            .collect();
        assert_eq!(left, [run(2), run(3)]);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let (room, directory) = with_daemon();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&directory, open).unwrap();
        assert!(Handover::begin(room.path(), &run(1), at(0)).is_err());
    }
}
