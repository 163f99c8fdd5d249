//! Advisory file locks between processes (`flock`).
//!
//! The kernel releases the lock when its holder dies, so there are no stale locks. The file's
//! content names the holder and the purpose; it is blank while nobody holds the lock. The file is never
//! removed: otherwise two processes could lock two different files of the same name.

use std::fmt;
use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Cause, Clock};

/// Wait between two attempts. Locks are held for whole package transactions, so a shorter interval
/// gains nothing.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The largest holder record that is read, in bytes.
const MAX_HOLDER: usize = 1024;

/// The least size of a lock file. Records are padded to it, because a change of the size costs more than
/// all other steps of locking together.
const RECORD: usize = 256;

/// A lock that could not be acquired or inspected.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("could not lock {}: {cause}", path.display())]
    Os {
        path: PathBuf,
        #[source]
        cause: Cause,
    },
    #[error("{} is still locked by {holder} after {waited:?}", path.display())]
    Held {
        path: PathBuf,
        holder: Holder,
        waited: Duration,
    },
}

/// The holder of a lock, stored in the lock file as JSON. The default, without a pid, stands for a
/// file that has no valid record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Human-readable purpose.
    pub purpose: String,
    /// Id of the run or other operation, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pid) = self.pid else {
            return out.write_str("another process");
        };
        write!(out, "pid {pid} ({}", self.purpose)?;
        if let Some(id) = &self.id {
            write!(out, " {id}")?;
        }
        out.write_str(")")
    }
}

/// A lock that is released when this value is dropped or the process ends.
#[derive(Debug)]
pub struct FileLock(Arc<File>);

/// A lock file that stays open between uses.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    file: Mutex<Option<Arc<File>>>,
}

impl LockFile {
    /// Returns the lock file at `path`, which is opened by its first use.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: Mutex::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Acquires the lock, creating the file if necessary. Waits up to `patience` for another holder.
    /// `purpose` and `id` are written to the file for processes that wait.
    pub(crate) fn acquire(
        &self,
        purpose: &str,
        id: Option<String>,
        patience: Duration,
        clock: &dyn Clock,
    ) -> Result<FileLock, LockError> {
        let os = |cause: Cause| LockError::Os {
            path: self.path.clone(),
            cause,
        };
        let file = self.open().map_err(|errno| os(errno.into()))?;
        let start = clock.monotonic();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(os(error.into())),
            }
            let left = patience.saturating_sub(clock.monotonic().saturating_sub(start));
            if left.is_zero() {
                return Err(LockError::Held {
                    path: self.path.clone(),
                    holder: holder(&file),
                    waited: patience,
                });
            }
            clock.sleep(RETRY_INTERVAL.min(left));
        }
        let lock = FileLock(file);
        // The record is informational: the lock is held even if a full disk prevents writing it.
        let _ = lock.write_holder(&Holder {
            pid: Some(std::process::id()),
            purpose: purpose.into(),
            id,
        });
        Ok(lock)
    }

    /// Returns the open file, or opens it again if the path names another file by now.
    fn open(&self) -> Result<Arc<File>, Errno> {
        let mut kept = self.file.lock();
        // A file in use belongs to a lock of this process, which a second lock of it would not exclude.
        let is_unused = |file: &&Arc<File>| Arc::strong_count(file) == 1;
        if let Some(file) = kept.as_ref().filter(is_unused)
            && is_at(file, &self.path)
        {
            return Ok(Arc::clone(file));
        }
        // Lock directories can be writable by everyone: don't follow symlinks, and don't block on
        // a FIFO.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(&self.path, flags | OFlags::CLOEXEC, mode)?;
        let file = Arc::new(File::from(file));
        *kept = Some(Arc::clone(&file));
        Ok(file)
    }
}

/// Reports whether an open file is the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    match (rustix::fs::fstat(file), rustix::fs::lstat(path)) {
        (Ok(open), Ok(found)) => (open.st_dev, open.st_ino) == (found.st_dev, found.st_ino),
        _ => false,
    }
}

impl FileLock {
    /// Acquires the lock on `path`, creating the file if necessary. Waits up to `patience` for
    /// another holder. `purpose` is written to the file for processes that wait.
    pub fn acquire(
        path: &Path,
        purpose: &str,
        patience: Duration,
        clock: &dyn Clock,
    ) -> Result<Self, LockError> {
        LockFile::new(path.to_owned()).acquire(purpose, None, patience, clock)
    }

    /// Returns the holder of a lock, or `None` if it is free. Does not block or write.
    pub fn holder(path: &Path) -> Result<Option<Holder>, LockError> {
        let os = |cause: Cause| LockError::Os {
            path: path.to_owned(),
            cause,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file.map_err(|errno| os(errno.into()))?),
        };
        // Shared, so that concurrent inspections don't report each other as holders.
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(holder(&file))),
            Err(TryLockError::Error(error)) => Err(os(error.into())),
        }
    }

    fn write_holder(&self, holder: &Holder) -> std::io::Result<()> {
        let mut record = serde_json::to_vec(holder)?;
        record.resize(record.len().max(RECORD), b' ');
        self.0.write_all_at(&record, 0)?;
        // A longer record of a killed process may follow. Truncate after writing, not before: some file
        // systems flush a file on close if it was truncated to zero and rewritten.
        let len = u64::try_from(record.len()).unwrap_or(u64::MAX);
        match self.0.metadata()?.len() == len {
            true => Ok(()),
            false => self.0.set_len(len),
        }
    }

    /// Overwrites the record with blanks.
    fn clear_holder(&self) -> std::io::Result<()> {
        let len = usize::try_from(self.0.metadata()?.len()).unwrap_or(RECORD);
        self.0.write_all_at(&vec![b' '; len.min(MAX_HOLDER)], 0)
    }
}

/// Clears the record and unlocks. Closing the file is not enough: a child process between fork and
/// exec has a copy of the descriptor.
impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.clear_holder();
        let _ = self.0.unlock();
    }
}

/// Returns the record in a lock file, unverified.
fn holder(file: &File) -> Holder {
    let mut text = vec![0; MAX_HOLDER];
    let read = file.read_at(&mut text, 0).unwrap_or_default();
    text.truncate(read);
    serde_json::from_slice(&text).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use chrono::DateTime;

    use super::super::{Cancel, Command, FixedClock, RunError, Runner as _, SystemRunner};
    use super::*;

    fn fixed_clock() -> FixedClock {
        FixedClock::new(DateTime::UNIX_EPOCH)
    }

    #[test]
    fn a_dropped_lock_is_free_even_if_a_child_has_the_file_open() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lock");
        let take = || FileLock::acquire(&file, "test", Duration::ZERO, &fixed_clock());
        let first = take().unwrap();
        // Like the descriptor of a child between fork and exec.
        let _inherited = first.0.try_clone().unwrap();
        drop(first);
        take().unwrap();
    }

    #[test]
    fn a_second_process_waits_and_the_error_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let clock = fixed_clock();
        let _held = FileLock::acquire(&path, "first run", Duration::ZERO, &clock).unwrap();
        let patience = Duration::from_millis(120);
        let refused = FileLock::acquire(&path, "second run", patience, &clock).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "{} is still locked by pid {} (first run) after 120ms",
                path.display(),
                std::process::id()
            )
        );
        assert_eq!(clock.sleeps().iter().sum::<Duration>(), patience);
    }

    #[test]
    fn a_dropped_lock_is_free_and_its_file_blank() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let clock = fixed_clock();
        drop(FileLock::acquire(&path, "a", Duration::ZERO, &clock).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), "");
        FileLock::acquire(&path, "b", Duration::ZERO, &clock).unwrap();
        assert!(clock.sleeps().is_empty());
    }

    #[test]
    fn a_short_record_replaces_a_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        // A process that was killed leaves its record.
        std::fs::write(&path, "x".repeat(3 * RECORD)).unwrap();
        let held = FileLock::acquire(&path, "a", Duration::ZERO, &fixed_clock()).unwrap();
        assert_eq!(FileLock::holder(&path).unwrap().unwrap().purpose, "a");
        drop(held);
        let blank = " ".repeat(RECORD);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), blank);
    }

    #[test]
    fn locks_of_one_open_file_exclude_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let lock_file = LockFile::new(dir.path().join("lock"));
        let take = || lock_file.acquire("a", None, Duration::ZERO, &fixed_clock());
        for _ in 0..2 {
            let first = take().unwrap();
            assert!(matches!(take(), Err(LockError::Held { .. })));
            drop(first);
        }
    }

    #[test]
    fn a_lock_file_that_was_replaced_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock_file = LockFile::new(path.clone());
        let take = || lock_file.acquire("a", None, Duration::ZERO, &fixed_clock());
        drop(take().unwrap());
        std::fs::remove_file(&path).unwrap();
        let _held = take().unwrap();
        assert_eq!(FileLock::holder(&path).unwrap().unwrap().purpose, "a");
    }

    #[test]
    fn a_symlink_in_place_of_the_lock_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::os::unix::fs::symlink(dir.path().join("victim"), &path).unwrap();
        let refused = FileLock::acquire(&path, "a", Duration::ZERO, &fixed_clock()).unwrap_err();
        assert!(matches!(refused, LockError::Os { .. }), "{refused}");
        assert!(!dir.path().join("victim").exists());
    }

    #[test]
    fn a_lock_excludes_other_processes_and_ends_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let take = || FileLock::acquire(&path, "us", Duration::ZERO, &fixed_clock());
        let cancel = Cancel::new().unwrap();
        let runner = SystemRunner::cancellable(cancel.clone());
        std::thread::scope(|threads| {
            let other = threads.spawn(|| {
                let argv = [path.to_str().unwrap(), "sleep", "600"];
                runner.run(&Command::new("flock", argv)).unwrap_err()
            });
            let held = loop {
                match take() {
                    Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => break error,
                }
            };
            assert!(
                held.to_string()
                    .contains("is still locked by another process")
            );
            cancel.cancel();
            assert!(matches!(other.join().unwrap(), RunError::Cancelled { .. }));
        });
        take().unwrap();
    }

    #[test]
    fn inspecting_a_lock_names_the_holder_and_acquires_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(FileLock::holder(&path).unwrap(), None);
        let held = FileLock::acquire(&path, "a run", Duration::ZERO, &fixed_clock()).unwrap();
        let holder = FileLock::holder(&path).unwrap().unwrap();
        assert_eq!(
            holder.to_string(),
            format!("pid {} (a run)", std::process::id())
        );
        drop(held);
        assert_eq!(FileLock::holder(&path).unwrap(), None);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none").join("lock");
        let refused = FileLock::acquire(&path, "a", Duration::ZERO, &fixed_clock()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "could not lock {}: no such file or directory",
                path.display()
            )
        );
    }
}
