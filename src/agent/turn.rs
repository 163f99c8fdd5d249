//! The turn of a node: one run at a time, whichever program carries it out.
//!
//! The daemon has its desk for that, but the agent that a Choria server starts is another process.
//! So both hold a lock in the state directory for as long as a run takes, and a holder that is
//! killed frees it. Runs by hand take no turn: a manifest may start one in the middle of a run, and
//! a person sees what goes on.
//!
//! What a run is, is not known here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::run::RunId;
use crate::system::{Clock, FileLock, LockError};

/// The file in the state directory that is locked.
const FILE: &str = "run.lock";

/// The turns of one node.
#[derive(Clone, Debug)]
pub struct Turns(PathBuf);

impl Turns {
    /// Returns the turns of the node whose state is in a directory, which must exist by the time
    /// one is taken.
    pub fn of(state_dir: &Path) -> Self {
        Self(state_dir.join(FILE))
    }

    /// Takes a turn for a run; waits up to `patience` for whoever has it. It ends when what is
    /// returned is dropped, or the process dies.
    pub fn take(
        &self,
        id: &RunId,
        patience: Duration,
        clock: &dyn Clock,
    ) -> Result<FileLock, LockError> {
        FileLock::acquire(&self.0, &format!("run {id}"), patience, clock)
    }

    /// Returns the run whose turn it is, if there is one.
    pub fn current(&self) -> Result<Option<RunId>, LockError> {
        let holder = FileLock::holder(&self.0)?;
        Ok(holder.as_deref().and_then(named_in))
    }

    /// Reports whether a run that had a turn has it no more. A holder who does not say who it is
    /// may be that run.
    pub fn is_over(&self, id: &RunId) -> Result<bool, LockError> {
        let holder = FileLock::holder(&self.0)?;
        let is_other = |holder: String| named_in(&holder).is_some_and(|run| run != *id);
        Ok(holder.is_none_or(is_other))
    }
}

/// Returns the run that the holder of a lock says it is.
pub fn named_in(holder: &str) -> Option<RunId> {
    let (_, rest) = holder.split_once("(run ")?;
    rest.strip_suffix(')')?.parse().ok()
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
    fn a_turn_excludes_the_next_and_says_whose_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        let take = |number| Turns::of(directory.path()).take(&id(number), Duration::ZERO, &clock);
        let turns = Turns::of(directory.path());
        let first = take(1).unwrap();
        assert_eq!(turns.current().unwrap(), Some(id(1)));
        assert!(!turns.is_over(&id(1)).unwrap());
        assert!(turns.is_over(&id(2)).unwrap());
        assert!(matches!(take(2), Err(LockError::Held { .. })));
        drop(first);
        assert_eq!(turns.current().unwrap(), None);
        assert!(turns.is_over(&id(1)).unwrap());
        take(2).unwrap();
    }

    #[test]
    fn who_holds_the_lock_is_a_run_or_nobody_we_know() {
        assert_eq!(named_in(&format!("pid 7 (run {})", id(1))), Some(id(1)));
        assert_eq!(named_in("pid 7 (spool)"), None);
        assert_eq!(named_in("another process"), None);
    }
}
