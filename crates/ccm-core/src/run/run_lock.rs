//! One run at a time on a node, whichever program makes it.
//!
//! The daemon has a queue for that, but the agent that a Choria server starts is another process.
//! So both hold a lock in the state directory for as long as a run takes, and a holder that is
//! killed frees it. Runs by hand take no lock: a manifest may start one in the middle of a run, and
//! a person sees what goes on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::run::RunId;
use crate::system::{Clock, FileLock, Holder, LockError};

/// The file in the state directory that is locked.
const FILE: &str = "run.lock";

/// The lock that every run of a node holds.
#[derive(Clone, Debug)]
pub struct RunLock(PathBuf);

impl RunLock {
    /// Returns the lock of the node whose state is in a directory, which must exist by the time
    /// the lock is taken.
    pub fn of(state_dir: &Path) -> Self {
        Self::at(state_dir.join(FILE))
    }

    /// Returns the lock that is this file.
    pub fn at(file: PathBuf) -> Self {
        Self(file)
    }

    /// Takes the lock for a run; waits up to `patience` for its holder. It is free again when what
    /// is returned is dropped, or the process dies.
    pub fn take(
        &self,
        id: &RunId,
        patience: Duration,
        clock: &dyn Clock,
    ) -> Result<FileLock, LockError> {
        FileLock::acquire_for(&self.0, "run", Some(id.to_string()), patience, clock)
    }

    /// Returns the run that holds the lock, if there is one.
    pub fn current(&self) -> Result<Option<RunId>, LockError> {
        Ok(FileLock::holder(&self.0)?.as_ref().and_then(run_of))
    }

    /// Reports whether a run that held the lock holds it no more. A holder that does not say which
    /// run it is may be that one.
    pub fn is_over(&self, id: &RunId) -> Result<bool, LockError> {
        let holder = FileLock::holder(&self.0)?;
        let is_other = |holder: Holder| run_of(&holder).is_some_and(|run| run != *id);
        Ok(holder.is_none_or(is_other))
    }
}

/// Returns the run that holds a lock, if it says so.
pub fn run_of(holder: &Holder) -> Option<RunId> {
    holder.id.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::system::FixedClock;

    fn id(number: u128) -> RunId {
        RunId::new(DateTime::UNIX_EPOCH, number)
    }

    #[test]
    fn a_run_excludes_the_next_and_says_which_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        let lock = RunLock::of(directory.path());
        let take = |number| lock.take(&id(number), Duration::ZERO, &clock);
        let first = take(1).unwrap();
        assert_eq!(lock.current().unwrap(), Some(id(1)));
        assert!(!lock.is_over(&id(1)).unwrap());
        assert!(lock.is_over(&id(2)).unwrap());
        assert!(matches!(take(2), Err(LockError::Held { .. })));
        drop(first);
        assert_eq!(lock.current().unwrap(), None);
        assert!(lock.is_over(&id(1)).unwrap());
        take(2).unwrap();
    }

    #[test]
    fn a_holder_without_an_id_may_be_any_run() {
        let directory = tempfile::tempdir().unwrap();
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        let file = directory.path().join(FILE);
        let _held = FileLock::acquire(&file, "run", Duration::ZERO, &clock).unwrap();
        let lock = RunLock::of(directory.path());
        assert_eq!(lock.current().unwrap(), None);
        assert!(!lock.is_over(&id(1)).unwrap());
    }
}
