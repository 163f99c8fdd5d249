//! Event spool: keeps events on disk until the stream has stored them.
//!
//! The agent appends each event before it reports success, and the publisher sends from here, so an
//! unreachable broker or a killed agent delays events but loses none. Appending costs one write;
//! events survive a power cut once [`Spool::sync`] has returned. Acknowledgements come in any order
//! and are persistent, so a restart resends only what it must.
//!
//! The size is limited. The oldest stable events are dropped first; events of changes and failures
//! are dropped only for others of that class. Dropped events are counted.
//!
//! The spool does not use NATS and does not interpret bodies. See `queue` for the placement of
//! records, `segment` for the record format, and `journal` for acknowledgements and counters.

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
use ccm_core::system::{FileLock, Holder, LockError, SystemClock};

use queue::Queue;

/// Lock file against a second process.
const LOCK: &str = "lock";

/// Priority of a record when the spool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing changed; dropped first.
    Stable,
    /// A change, a failure, or the end of a run.
    Important,
}

/// A message to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Message id for deduplication by the stream.
    pub id: String,
    pub subject: String,
    pub class: Class,
    pub body: Vec<u8>,
}

/// Size limits of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of all segments together.
    pub max_bytes: u64,
    /// Size after which a new segment starts. Space is freed by whole segments.
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

/// Result of opening a spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Unpublished records.
    pub records: u64,
    /// Bytes of unfinished writes that were cut off.
    pub torn_bytes: u64,
    /// Unreadable stretches between records. They count as dropped.
    pub damaged: u64,
    /// Records that were cut off, or whose file is missing. They count as dropped.
    pub lost: u64,
}

/// Why a spool could not be opened or a record not appended.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("spool: {0}")]
    File(#[from] FileError),
    #[error("another agent uses this state_dir: {0}")]
    InUse(#[source] LockError),
    #[error("spool: {0}")]
    Lock(#[source] LockError),
    #[error("spool directory {} is not private: its mode is {mode:04o}", path.display())]
    NotPrivate { path: PathBuf, mode: u32 },
    #[error("spool segment {} has unknown version {version}", path.display())]
    Version { path: PathBuf, version: u8 },
    #[error("event {id} was dropped: it is too large for the spool")]
    TooLarge { id: String },
    #[error("event {id} was dropped: the spool is full of more important ones")]
    Full { id: String },
    #[error("event {id} was dropped: {cause}")]
    NotWritten { id: String, cause: FileError },
}

/// Queue of records on disk, for any number of writers and one publisher.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    queue: Mutex<Queue>,
    /// Held while syncing: a second sync must not return before the first is done.
    syncing: Mutex<()>,
    appended: Notify,
    lock: Mutex<FileLock>,
}

impl From<LockError> for SpoolError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { .. } => Self::InUse(error),
            LockError::Os { .. } => Self::Lock(error),
        }
    }
}

impl Spool {
    /// Opens the spool in a directory, which is created if need be, and recovers the records of an
    /// earlier process. Fails if others may write to the directory, or if another process uses it.
    pub fn open(directory: &Path, limits: Limits) -> Result<(Self, Recovered), SpoolError> {
        files::create_private_dir(directory)?;
        let mode = files::inspect(directory, true)?.map_or(0, |found| found.mode);
        if mode & 0o022 != 0 {
            let path = directory.to_owned();
            return Err(SpoolError::NotPrivate { path, mode });
        }
        let lock = lock(directory)?;
        let (queue, recovered) = Queue::open(directory, limits)?;
        let spool = Self {
            directory: directory.to_owned(),
            queue: Mutex::new(queue),
            syncing: Mutex::new(()),
            appended: Notify::new(),
            lock: Mutex::new(lock),
        };
        Ok((spool, recovered))
    }

    /// Creates the directory again if it was deleted, with the pending records that can still be
    /// read. Returns whether it was missing.
    pub fn restore(&self) -> Result<bool, SpoolError> {
        if files::inspect(&self.directory, true)?.is_some() {
            return Ok(false);
        }
        let _guard = self.syncing.lock();
        files::create_private_dir(&self.directory)?;
        *self.lock.lock() = lock(&self.directory)?;
        self.queue().restore()?;
        Ok(true)
    }

    /// Appends a record and returns its sequence number. It survives the end of this process at
    /// once, and a power cut after [`Spool::sync`]. After an error the record is lost and counted;
    /// the spool stays usable.
    pub fn append(&self, record: &Record) -> Result<u64, SpoolError> {
        let seq = self.queue().append(record)?;
        self.appended.notify_one();
        Ok(seq)
    }

    /// Syncs to disk everything appended and acknowledged so far. Appending continues meanwhile.
    pub fn sync(&self) -> Result<(), SpoolError> {
        let _guard = self.syncing.lock();
        let unsynced = self.queue().begin_sync()?;
        let synced = unsynced.sync(&self.directory);
        if synced.is_err() {
            self.queue().sync_failed();
        }
        Ok(synced?)
    }

    /// Returns up to `max` pending records after a sequence number, in order. Fewer if they are
    /// large; none only if there are none.
    pub fn next(&self, after: u64, max: usize) -> Result<Vec<(u64, Record)>, SpoolError> {
        Ok(self.queue().next(after, max)?)
    }

    /// Acknowledges records, in any order. After an error some may be returned again after a
    /// restart, but not before.
    pub fn ack(&self, seqs: &[u64]) -> Result<(), SpoolError> {
        Ok(self.queue().ack(seqs)?)
    }

    /// Drops records that can never be published, and counts them.
    pub fn give_up(&self, seqs: &[u64]) -> Result<(), SpoolError> {
        Ok(self.queue().give_up(seqs)?)
    }

    /// Returns the numbers of pending records and of those dropped since the spool was created.
    pub fn status(&self) -> SpoolStatus {
        self.queue().status()
    }

    /// Waits until something is appended; returns at once if that happened since the last call. For
    /// one caller at a time.
    pub async fn appended(&self) {
        self.appended.notified().await;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// Returns the process that has a spool open, if any.
pub(crate) fn process(directory: &Path) -> Result<Option<Holder>, LockError> {
    FileLock::holder(&directory.join(LOCK))
}

fn lock(directory: &Path) -> Result<FileLock, LockError> {
    let file = directory.join(LOCK);
    FileLock::acquire(&file, "event spool", Duration::ZERO, &SystemClock)
}
