//! The spool: events on disk until the bus has them.
//!
//! An agent appends each event here before it reports success, and a publisher sends from here, so
//! a dead broker or a killed agent delays events and loses none. Appending costs one write; a
//! run's events survive a power cut once [`Spool::sync`] has returned. What was sent is
//! acknowledged in any order and remembered, so a restart sends again only what it must.
//!
//! The spool is bounded. Stable events go first, the oldest before the others; what changed or
//! failed goes only for its like; and everything that was given up is counted.
//!
//! It knows nothing of NATS, nor what is in a body. Read next: `queue` decides what goes where and
//! when, `segment` is the format of records, `journal` remembers acknowledgements and counts.

mod journal;
mod queue;
mod segment;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use ccm_core::model::node::SpoolStatus;
use ccm_core::system::files::{self, FileError};
use ccm_core::system::{FileLock, LockError, SystemClock};

use queue::Queue;

/// The file that keeps other processes out.
const LOCK: &str = "lock";

/// What a record is worth when there is no room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing happened: the first to go.
    Stable,
    /// Something changed or failed, or a run ended.
    Important,
}

/// A message that waits to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the stream knows it by: the same id is stored once.
    pub id: String,
    pub subject: String,
    pub class: Class,
    pub body: Vec<u8>,
}

/// How large a spool may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of all segments together.
    pub max_bytes: u64,
    /// The size after which a new segment begins. Room is made by whole segments.
    pub segment_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 64 << 20,
            segment_bytes: 1 << 20,
        }
    }
}

/// What was found when a spool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// How many records wait to be published.
    pub records: u64,
    /// How many bytes of unfinished writes were cut off.
    pub torn_bytes: u64,
    /// How many stretches between records could not be read. They count as dropped.
    pub damaged: u64,
}

/// What is wrong with a spool, or with a record for it.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("spool: {0}")]
    File(#[from] FileError),
    #[error("another agent works with this state_dir: {0}")]
    InUse(#[from] LockError),
    #[error("spool directory {} is not private: its mode is {mode:04o}", path.display())]
    NotPrivate { path: PathBuf, mode: u32 },
    #[error("spool segment {} has the unknown version {version}", path.display())]
    Version { path: PathBuf, version: u8 },
    #[error("event {id} was dropped: it is too large for the spool")]
    TooLarge { id: String },
    #[error("event {id} was dropped: the spool is full of more important ones")]
    Full { id: String },
    #[error("event {id} was dropped: {cause}")]
    NotWritten { id: String, cause: FileError },
}

/// A queue of records on disk, for any number of writers and one publisher.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    queue: Mutex<Queue>,
    /// Held by whoever syncs: the second must not return before the first is done.
    syncing: Mutex<()>,
    grown: Notify,
    _lock: FileLock,
}

impl Spool {
    /// Opens the spool in a directory, which is made if need be, and takes over what an earlier
    /// process left there. Refuses a directory that others may write to, and a second process.
    pub fn open(directory: &Path, limits: Limits) -> Result<(Self, Recovered), SpoolError> {
        files::create_private_dir(directory)?;
        let mode = files::inspect(directory, true)?.map_or(0, |found| found.mode);
        if mode & 0o022 != 0 {
            let path = directory.to_owned();
            return Err(SpoolError::NotPrivate { path, mode });
        }
        let lock = FileLock::acquire(
            &directory.join(LOCK),
            "event spool",
            Duration::ZERO,
            &SystemClock,
        )?;
        let (queue, recovered) = Queue::open(directory, limits)?;
        let spool = Self {
            directory: directory.to_owned(),
            queue: Mutex::new(queue),
            syncing: Mutex::new(()),
            grown: Notify::new(),
            _lock: lock,
        };
        Ok((spool, recovered))
    }

    /// Appends a record and returns its number. It survives the end of this process at once, and
    /// a power cut after [`Spool::sync`]. After an error the record is lost and counted, and the
    /// spool goes on: no run has to fail for it.
    pub fn append(&self, record: &Record) -> Result<u64, SpoolError> {
        let seq = self.queue().append(record)?;
        self.grown.notify_one();
        Ok(seq)
    }

    /// Returns when everything appended and acknowledged so far survives a power cut. Others may
    /// append meanwhile.
    pub fn sync(&self) -> Result<(), SpoolError> {
        let _one = self.syncing.lock();
        let unsynced = self.queue().begin_sync()?;
        let synced = unsynced.sync(&self.directory);
        if synced.is_err() {
            self.queue().sync_failed();
        }
        Ok(synced?)
    }

    /// Returns up to `max` records that wait, in order, from the first one after a number. Fewer
    /// if they are large; none only if none waits there.
    pub fn next(&self, after: u64, max: usize) -> Result<Vec<(u64, Record)>, SpoolError> {
        Ok(self.queue().next(after, max)?)
    }

    /// Takes records off the queue, in any order. An error means that some may be returned again
    /// after a restart; they are off the queue until then.
    pub fn ack(&self, seqs: &[u64]) -> Result<(), SpoolError> {
        Ok(self.queue().ack(seqs)?)
    }

    /// Takes records off the queue that can never be published, and counts them as dropped.
    pub fn give_up(&self, seqs: &[u64]) -> Result<(), SpoolError> {
        Ok(self.queue().give_up(seqs)?)
    }

    /// Returns how many records wait and how many were given up since the spool was made.
    pub fn status(&self) -> SpoolStatus {
        self.queue().status()
    }

    /// Waits until something was appended since this was last called. For one caller at a time.
    pub async fn grown(&self) {
        self.grown.notified().await;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}
