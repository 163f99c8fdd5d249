//! The hand-over: events of runs that another program made, on their way to the daemon's spool.
//!
//! A spool belongs to one process. So the agent that a Choria server starts writes the events of its
//! run to a file of its own, one per line, in a directory that the daemon has made; without that
//! nobody would fetch them. The daemon leaves alone what belongs to the run whose turn it is. Of
//! every other file it takes the whole lines, also if the writer was killed; only when they are safe
//! in the spool it removes the file. Should it die in between it takes them again, and the stream,
//! which knows events by their ids, keeps one of each.
//!
//! What waits is bounded. The oldest files go first, and how many events that cost is told.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::turn::Turns;
use crate::engine::Level;
use crate::model::event::TransactionEvent;
use crate::model::json;
use crate::model::run::{RunId, RunSummary};
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
    Turn(#[from] LockError),
    #[error("hand-over: event could not be written: {0}")]
    Event(#[from] serde_json::Error),
}

/// One line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Event(Box<TransactionEvent>),
    Run(Box<RunSummary>),
    /// So many events are not told here, because there was no room.
    LeftOut(u64),
}

/// Hands the events of one run over, as they happen.
#[derive(Debug)]
pub struct Handover {
    directory: PathBuf,
    file: InPlace,
    /// How long the file is.
    length: u64,
    left_out: u64,
}

impl Handover {
    /// Begins to hand over the events of a run, which must have the turn of the node. Returns
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
        self.write(&Told::Event(Box::new(event.clone())))
    }

    /// Hands over how the run ended, if it has a summary, and returns when all of it survives a
    /// power cut.
    pub fn finish(mut self, run: Option<RunSummary>) -> Result<(), HandoverError> {
        if let Some(run) = run {
            self.write(&Told::Run(Box::new(run)))?;
        }
        if self.left_out > 0 {
            let line = line(&Told::LeftOut(self.left_out))?;
            self.append(&line)?;
        }
        self.file.sync()?;
        Ok(files::sync_directory(&self.directory)?)
    }

    fn write(&mut self, told: &Told) -> Result<(), HandoverError> {
        let line = line(told)?;
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

fn line(told: &Told) -> Result<Vec<u8>, serde_json::Error> {
    Ok((json::compact(told)? + "\n").into_bytes())
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
    turns: Turns,
    /// What last went wrong: the same is told once.
    trouble: Option<String>,
}

impl Intake {
    /// Makes the directory, so that there is somebody to hand over to.
    pub fn open(state_dir: &Path) -> Result<Self, FileError> {
        let directory = state_dir.join(DIRECTORY);
        files::create_private_dir(&directory)?;
        Ok(Self {
            directory,
            turns: Turns::of(state_dir),
            trouble: None,
        })
    }

    /// Reports whether there may be something to take; costs next to nothing.
    pub fn has_any(&self) -> bool {
        // What is in the way is told by whoever takes.
        files::list(&self.directory).map_or(true, |names| !names.is_empty())
    }

    /// Puts what was handed over into the node's spool.
    pub fn take(&mut self, node: &Node) {
        let trouble = self.take_all(node).err().map(|error| error.to_string());
        if let Some(error) = &trouble
            && self.trouble != trouble
        {
            let fields = [("error", error.clone())];
            let text = "Could not take over the events of another run";
            node.say(Level::Error, text, &fields);
        }
        self.trouble = trouble;
    }

    /// Takes all that can be taken, and returns the first trouble with the rest.
    fn take_all(&self, node: &Node) -> Result<(), HandoverError> {
        let mut taken = Ok(());
        // First the names, then whose turn it is: who has a file here had the turn before.
        for (path, run) in handed_over(&self.directory)? {
            if self.turns.is_over(&run)? {
                taken = taken.and(take(&path, node));
            }
        }
        taken
    }
}

/// Puts the events of one file into the spool, and removes it.
fn take(path: &Path, node: &Node) -> Result<(), HandoverError> {
    let content = match files::read(path, MAX_FILE.saturating_mul(2)) {
        // Its writer needed the room.
        Err(error) if error.is_not_found() => return Ok(()),
        content => content?,
    };
    let shown = |error: String| [("file", path.display().to_string()), ("error", error)];
    // What lies behind the last line break is half a line: its writer was killed.
    let whole = content.split_inclusive(|byte| *byte == b'\n');
    for line in whole.filter(|line| line.ends_with(b"\n")) {
        match serde_json::from_slice(line) {
            Ok(Told::Event(event)) => {
                node.outbox.event(&event);
                node.metrics.resource_event(&event);
            }
            // Another program need not know who we are in the fleet.
            Ok(Told::Run(run)) => node.finish(&RunSummary {
                identity: node.identity.clone(),
                collective: node.collective.clone(),
                ..*run
            }),
            Ok(Told::LeftOut(events)) => {
                let fields = [("events", events.to_string())];
                let text = "Events of other runs were given up, too many waited";
                node.say(Level::Error, text, &fields);
            }
            Err(error) => {
                let text = "Could not read an event of another run";
                node.say(Level::Error, text, &shown(error.to_string()));
            }
        }
    }
    node.outbox.sync();
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
            Ok(Told::Event(event)) => event.name,
            other => panic!("{other:?}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), ["zsh", "vim"]);
    }

    #[test]
    fn an_event_comes_out_as_it_went_in() {
        let before = event("zsh");
        let line = line(&Told::Event(Box::new(before.clone()))).unwrap();
        let Told::Event(after) = serde_json::from_slice(&line).unwrap() else {
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
