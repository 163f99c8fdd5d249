//! Handover files: events of runs by another process, for import by the node's daemon.
//!
//! The spool, log, metrics and registrations of a node belong to the daemon. The agent that a Choria
//! server starts is another process, so it writes its records to a file, one JSON record per line, in a
//! directory that the daemon has created; without that directory it writes nothing. The daemon skips
//! the file of the run that holds the run lock. From every other file it imports the complete lines,
//! also if the writer was killed, and removes the file once the records are in the spool. After a crash
//! in between it imports them again, and the stream removes duplicates by event id.
//!
//! The number and size of files are limited. The oldest files are removed first, and the number of
//! dropped records is logged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::run_lock::RunLock;
use crate::engine::{Availability, CompletedCheck, Level, Line};
use crate::health::Measurement;
use crate::model::event::TransactionEvent;
use crate::model::health::{HealthCheck, HealthResult};
use crate::model::registration::Entry;
use crate::model::run::{RunId, RunSummary};
use crate::model::text::timestamp;
use crate::model::{TypeName, json};
use crate::system::LockError;
use crate::system::files::{self, FileError, RandomAccessFile};

/// The subdirectory of the state directory.
const DIRECTORY: &str = "handover";

/// The suffix of file names.
const SUFFIX: &str = ".jsonl";

/// The maximum size of a file; records beyond it are dropped and counted.
const MAX_FILE: u64 = 32 << 20;

/// The maximum total size and number of files when a run begins.
const MAX_TOTAL_BYTES: u64 = 64 << 20;
const MAX_FILES: usize = 1000;

/// A failure to write or read handover files.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("handover: {0}")]
    File(#[from] FileError),
    #[error("handover: {0}")]
    Lock(#[from] LockError),
    #[error("handover: could not encode a record: {0}")]
    Event(#[from] serde_json::Error),
}

/// A record: one line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    Event(Box<TransactionEvent>),
    Run(Box<RunSummary>),
    Check(Box<CheckRecord>),
    /// The registration entries of a resource.
    Services {
        entries: Vec<Entry>,
        #[serde(rename = "standing")]
        availability: Availability,
    },
    /// A log line.
    Line {
        level: Level,
        text: String,
    },
    /// The number of records that were dropped because of the size limits.
    LeftOut(u64),
}

/// A completed health check, as [`CompletedCheck`] with owned fields.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckRecord {
    type_name: TypeName,
    name: String,
    sensitive: bool,
    check: HealthCheck,
    result: HealthResult,
    perfdata: Vec<Measurement>,
    #[serde(with = "timestamp")]
    began: DateTime<Utc>,
    took: Duration,
}

impl CheckRecord {
    fn of(checked: &CompletedCheck<'_>) -> Self {
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

    /// Returns the check as a sink receives it.
    pub fn as_completed(&self) -> CompletedCheck<'_> {
        CompletedCheck {
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

/// Writer of the handover file of one run.
#[derive(Debug)]
pub struct Handover {
    directory: PathBuf,
    file: RandomAccessFile,
    /// The length of the file.
    length: u64,
    left_out: u64,
}

impl Handover {
    /// Creates the file of a run, which must hold the run lock. Returns nothing if the node has no
    /// daemon.
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
        let left_out = enforce_limits(&directory)?;
        // The start time in nanoseconds makes names sort by time; run ids only have seconds.
        let nanos = started.timestamp_nanos_opt().unwrap_or_default();
        let file = RandomAccessFile::create(&directory.join(format!("{nanos:020}-{run}{SUFFIX}")))?;
        Ok(Some(Self {
            directory,
            file,
            length: 0,
            left_out,
        }))
    }

    /// Writes the event of a resource.
    pub fn event(&mut self, event: &TransactionEvent) -> Result<(), HandoverError> {
        self.write(&Record::Event(Box::new(event.clone())))
    }

    /// Writes a completed health check.
    pub fn checked(&mut self, checked: &CompletedCheck<'_>) -> Result<(), HandoverError> {
        self.write(&Record::Check(Box::new(CheckRecord::of(checked))))
    }

    /// Writes the registration entries of a resource.
    pub fn services(
        &mut self,
        entries: &[Entry],
        availability: Availability,
    ) -> Result<(), HandoverError> {
        let entries = entries.to_vec();
        self.write(&Record::Services {
            entries,
            availability,
        })
    }

    /// Writes a log line.
    pub fn line(&mut self, line: &Line) -> Result<(), HandoverError> {
        let mut text = line.message.clone();
        for (key, value) in &line.fields {
            text.push_str(&format!(" {key}={value}"));
        }
        let level = line.level;
        self.write(&Record::Line { level, text })
    }

    /// Writes the run summary, if there is one, and syncs the file to disk.
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

/// Removes the oldest files until the limits are met, and returns how many records they held.
fn enforce_limits(directory: &Path) -> Result<u64, HandoverError> {
    let mut files_found = Vec::new();
    let mut bytes = 0_u64;
    for (path, _) in handover_files(directory)? {
        // A missing file was imported in the meantime.
        if let Some(found) = files::inspect(&path, false)? {
            bytes = bytes.saturating_add(found.size);
            files_found.push((path, found.size));
        }
    }
    let mut left_out = 0_u64;
    let mut count = files_found.len();
    for (path, size) in files_found {
        if bytes <= MAX_TOTAL_BYTES && count < MAX_FILES {
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

/// Returns the files of runs, oldest first.
fn handover_files(directory: &Path) -> Result<Vec<(PathBuf, RunId)>, FileError> {
    let run_id = |name: &str| -> Option<RunId> {
        let (_, id) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        id.parse().ok()
    };
    let names = files::list(directory)?.into_iter();
    Ok(names
        .filter_map(|name| {
            let id = run_id(name.to_str()?)?;
            Some((directory.join(name), id))
        })
        .collect())
}

/// The handover directory, as the daemon reads it.
#[derive(Debug)]
pub struct HandoverDir {
    directory: PathBuf,
    lock: RunLock,
}

impl HandoverDir {
    /// Creates the directory, which enables handover by other processes.
    pub fn open(state_dir: &Path) -> Result<Self, FileError> {
        let directory = state_dir.join(DIRECTORY);
        files::create_private_dir(&directory)?;
        Ok(Self {
            directory,
            lock: RunLock::of(state_dir),
        })
    }

    /// Reports whether there may be files to import; a cheap check.
    pub fn has_files(&self) -> bool {
        // An error counts as a file: the import reports it.
        files::list(&self.directory).map_or(true, |names| !names.is_empty())
    }

    /// Passes the records of each file to `import`, which must store them durably, and removes the file.
    /// Imports all files it can, and returns the first error.
    pub fn import(&self, mut import: impl FnMut(Records<'_>)) -> Result<(), HandoverError> {
        let mut result = Ok(());
        // Files are listed before the lock is checked: a run takes the lock before it creates its file.
        for (path, run) in handover_files(&self.directory)? {
            if self.lock.is_over(&run)? {
                result = result.and(import_file(&path, &mut import));
            }
        }
        result
    }
}

/// The records of one file.
pub struct Records<'f> {
    pub path: &'f Path,
    content: &'f [u8],
}

impl Records<'_> {
    /// Returns the records, each decoded or with its error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Record, serde_json::Error>> {
        // An incomplete last line means that the writer was killed.
        let whole = self.content.split_inclusive(|byte| *byte == b'\n');
        whole
            .filter(|line| line.ends_with(b"\n"))
            .map(serde_json::from_slice)
    }
}

fn import_file(path: &Path, import: &mut impl FnMut(Records<'_>)) -> Result<(), HandoverError> {
    let content = match files::read(path, MAX_FILE.saturating_mul(2)) {
        // Removed by a writer to meet the limits.
        Err(error) if error.is_not_found() => return Ok(()),
        content => content?,
    };
    import(Records {
        path,
        content: &content,
    });
    Ok(files::remove(path)?)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
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

    /// Returns a state directory with a handover directory, and the path of the latter.
    fn with_daemon() -> (tempfile::TempDir, PathBuf) {
        let state = tempfile::tempdir().unwrap();
        let intake = HandoverDir::open(state.path()).unwrap();
        assert!(!intake.has_files());
        (state, intake.directory)
    }

    fn begin(state: &tempfile::TempDir, number: u128, nanos: i64) -> Handover {
        Handover::begin(state.path(), &run(number), at(nanos))
            .unwrap()
            .unwrap()
    }

    #[test]
    fn without_a_daemon_nothing_is_written() {
        let state = tempfile::tempdir().unwrap();
        let none = Handover::begin(state.path(), &run(1), at(0)).unwrap();
        assert!(none.is_none());
        assert_eq!(state.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn events_are_lines_in_a_file_that_names_its_run() {
        let (state, directory) = with_daemon();
        let mut handover = begin(&state, 7, 0);
        for name in ["zsh", "vim"] {
            handover.event(&event(name)).unwrap();
        }
        handover.finish(None).unwrap();
        let [(path, id)] = &handover_files(&directory).unwrap()[..] else {
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
    fn an_event_survives_encoding_and_decoding() {
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
    fn records_beyond_the_size_limit_are_counted() {
        let (state, directory) = with_daemon();
        let mut handover = begin(&state, 1, 0);
        handover.length = MAX_FILE - 10;
        handover.event(&event("zsh")).unwrap();
        handover.finish(None).unwrap();
        let (path, _) = handover_files(&directory).unwrap().remove(0);
        let content = std::fs::read(path).unwrap();
        let text = String::from_utf8_lossy(content.trim_ascii_start());
        assert!(text.ends_with("{\"left_out\":1}\n"));
    }

    #[test]
    fn the_oldest_files_are_removed_and_their_records_counted() {
        let (state, directory) = with_daemon();
        for (number, nanos) in [(1, 1), (2, 2)] {
            let mut handover = begin(&state, number, nanos);
            handover.event(&event("zsh")).unwrap();
            // Grows the file to half of the total limit.
            handover.file.truncate(MAX_TOTAL_BYTES / 2 + 1).unwrap();
            handover.file.sync().unwrap();
        }
        let handover = begin(&state, 3, 3);
        assert_eq!(handover.left_out, 1);
        let left: Vec<RunId> = handover_files(&directory)
            .unwrap()
            .into_iter()
            .map(|(_, id)| id)
            .collect();
        assert_eq!(left, [run(2), run(3)]);
    }

    #[test]
    fn a_directory_writable_by_others_is_rejected() {
        use std::os::unix::fs::PermissionsExt as _;
        let (state, directory) = with_daemon();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&directory, open).unwrap();
        assert!(Handover::begin(state.path(), &run(1), at(0)).is_err());
    }
}
