//! One of us at a time: an advisory lock that holds across processes and dies with its holder.
//!
//! The kernel keeps the lock (`flock`), so a killed holder never leaves a stale one. The file
//! only says who holds it and what for, and is never removed: removing it would let two holders
//! lock two files of the same name.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Cause, Clock};

/// How long to wait between two tries. The lock is held for whole package transactions, so a
/// quicker answer would not be noticed.
const PAUSE: Duration = Duration::from_millis(50);

/// The most we read of what a holder wrote about itself.
const MAX_HOLDER: u64 = 1024;

/// Why a lock was not taken.
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

/// What the holder of a lock says about itself; the lock's file holds it as JSON. One that says
/// nothing readable is another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What the lock is held for, as people read it.
    pub purpose: String,
    /// The id of what it is held for, where that has one.
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

/// A lock that is held until this value is dropped or the process dies.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Takes the lock on `path`, making the file if need be; waits up to `patience` for another
    /// holder. `purpose` is what others are told while they wait.
    pub fn acquire(
        path: &Path,
        purpose: &str,
        patience: Duration,
        clock: &dyn Clock,
    ) -> Result<Self, LockError> {
        Self::acquire_for(path, purpose, None, patience, clock)
    }

    /// The same for a purpose that has an id, which others can ask for.
    pub fn acquire_for(
        path: &Path,
        purpose: &str,
        id: Option<String>,
        patience: Duration,
        clock: &dyn Clock,
    ) -> Result<Self, LockError> {
        let os = |cause: Cause| LockError::Os {
            path: path.to_owned(),
            cause,
        };
        // Lock directories can be writable by all: never follow a link someone left there, and
        // never wait for the other end of a pipe.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(path, flags | OFlags::CLOEXEC, mode);
        let mut file = File::from(file.map_err(|errno| os(errno.into()))?);
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
                    path: path.to_owned(),
                    holder: holder(&mut file),
                    waited: patience,
                });
            }
            clock.sleep(PAUSE.min(left));
        }
        let lock = Self(file);
        // The lock is held whatever the file says; on a full disk it says nothing.
        let _ = lock.say(&Holder {
            pid: Some(std::process::id()),
            purpose: purpose.into(),
            id,
        });
        Ok(lock)
    }

    /// Returns what the holder of a lock says about itself, or nothing if nobody holds it. Never
    /// waits, and writes nothing.
    pub fn holder(path: &Path) -> Result<Option<Holder>, LockError> {
        let os = |cause: Cause| LockError::Os {
            path: path.to_owned(),
            cause,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file.map_err(|errno| os(errno.into()))?),
        };
        // Shared, so that those who only ask don't take each other for holders.
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(holder(&mut file))),
            Err(TryLockError::Error(error)) => Err(os(error.into())),
        }
    }

    fn say(&self, holder: &Holder) -> std::io::Result<()> {
        let text = serde_json::to_vec(holder)?;
        // Cut afterwards, not before: a file that is emptied and filled again is written to disk by
        // some file systems as soon as it is closed, and nobody needs to wait for that.
        self.0.write_all_at(&text, 0)?;
        self.0
            .set_len(u64::try_from(text.len()).unwrap_or_default())
    }
}

/// Clears the name of the holder and lets go. Closing the file would not be enough: a command that is
/// just being started has it open, too, until it becomes another program.
impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.0.set_len(0);
        let _ = self.0.unlock();
    }
}

/// Returns what the holder wrote about itself, as it is; nothing checks it.
fn holder(file: &mut File) -> Holder {
    let mut text = Vec::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(MAX_HOLDER).read_to_end(&mut text));
    match read {
        Ok(_) => serde_json::from_slice(&text).unwrap_or_default(),
        Err(_) => Holder::default(),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::super::{Cancel, Command, FixedClock, RunError, Runner as _, SystemRunner};
    use super::*;

    fn held_still() -> FixedClock {
        FixedClock::new(DateTime::UNIX_EPOCH)
    }

    #[test]
    fn a_lock_that_is_let_go_is_free_though_somebody_has_its_file_open() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lock");
        let take = || FileLock::acquire(&file, "test", Duration::ZERO, &held_still());
        let first = take().unwrap();
        // As a child has it between its birth and its program.
        let _inherited = first.0.try_clone().unwrap();
        drop(first);
        take().unwrap();
    }

    #[test]
    fn a_second_holder_waits_then_learns_who_holds_it_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let clock = held_still();
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
    fn a_dropped_lock_is_free_and_names_no_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let clock = held_still();
        drop(FileLock::acquire(&path, "a", Duration::ZERO, &clock).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        FileLock::acquire(&path, "b", Duration::ZERO, &clock).unwrap();
        assert!(clock.sleeps().is_empty());
    }

    #[test]
    fn a_link_left_in_place_of_the_lock_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::os::unix::fs::symlink(dir.path().join("victim"), &path).unwrap();
        let refused = FileLock::acquire(&path, "a", Duration::ZERO, &held_still()).unwrap_err();
        assert!(matches!(refused, LockError::Os { .. }), "{refused}");
        assert!(!dir.path().join("victim").exists());
    }

    #[test]
    fn a_lock_holds_across_processes_and_dies_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let take = || FileLock::acquire(&path, "us", Duration::ZERO, &held_still());
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
    fn who_only_asks_learns_the_holder_and_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(FileLock::holder(&path).unwrap(), None);
        let held = FileLock::acquire(&path, "a run", Duration::ZERO, &held_still()).unwrap();
        let told = FileLock::holder(&path).unwrap().unwrap();
        assert_eq!(
            told.to_string(),
            format!("pid {} (a run)", std::process::id())
        );
        drop(held);
        assert_eq!(FileLock::holder(&path).unwrap(), None);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none").join("lock");
        let refused = FileLock::acquire(&path, "a", Duration::ZERO, &held_still()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "could not lock {}: no such file or directory",
                path.display()
            )
        );
    }
}
