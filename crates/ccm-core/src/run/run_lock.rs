//! Run lock: a lock file in the state directory that limits a node to one run at a time.
//!
//! The daemon has its own run queue; the agent that a Choria server starts is another process, so both
//! hold this lock during a run. The lock of a killed process is released. Runs from the command line
//! take no lock: a manifest may start one during a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::model::run::RunId;
use crate::system::{Clock, FileLock, Holder, LockError, LockFile};

/// The lock file in the state directory.
const FILE: &str = "run.lock";

/// The lock held during each run of a node. Clones share the open file.
#[derive(Clone, Debug)]
pub struct RunLock(Arc<LockFile>);

impl RunLock {
    /// Returns the lock of a state directory, which must exist when the lock is taken.
    pub fn of(state_dir: &Path) -> Self {
        Self::at(state_dir.join(FILE))
    }

    /// Returns the lock with this file.
    pub fn at(file: PathBuf) -> Self {
        Self(Arc::new(LockFile::new(file)))
    }

    /// Takes the lock for a run, waiting up to `timeout` for the current holder. The lock is released when
    /// the returned value is dropped or the process exits.
    pub fn take(
        &self,
        id: &RunId,
        timeout: Duration,
        clock: &dyn Clock,
    ) -> Result<FileLock, LockError> {
        self.0.acquire("run", Some(id.to_string()), timeout, clock)
    }

    /// Returns the run that holds the lock, if any.
    pub fn current(&self) -> Result<Option<RunId>, LockError> {
        Ok(self.holder()?.as_ref().and_then(run_id_of))
    }

    /// Returns the process that holds the lock, if any.
    pub fn holder(&self) -> Result<Option<Holder>, LockError> {
        FileLock::holder(self.0.path())
    }

    /// Takes the lock for something that must not overlap with a run, waiting up to `timeout`.
    pub fn take_between_runs(
        &self,
        purpose: &str,
        timeout: Duration,
        clock: &dyn Clock,
    ) -> Result<FileLock, LockError> {
        self.0.acquire(purpose, None, timeout, clock)
    }

    /// Reports whether a run no longer holds the lock. A holder without a run id counts as that run.
    pub fn is_over(&self, id: &RunId) -> Result<bool, LockError> {
        let holder = self.holder()?;
        let is_other = |holder: Holder| run_id_of(&holder).is_some_and(|run| run != *id);
        Ok(holder.is_none_or(is_other))
    }
}

/// Returns the run id of a lock holder, if it has one.
pub fn run_id_of(holder: &Holder) -> Option<RunId> {
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
    fn a_run_excludes_the_next_and_records_its_id() {
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
