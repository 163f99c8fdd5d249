//! Generations: how far each signer's assignments have come on this node.
//!
//! An assignment that was accepted once is not accepted again after another one took its place, so
//! nobody brings an old one back. Signers are counted one by one: what a signer with a policy
//! counts to binds no signer without one, who always supersedes, and a signer with a policy can't
//! count out of everybody's reach, as each step is bounded. Whose signature fits is known elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::UntrustedAssignment;
use ccm_core::model::node::MAX_GENERATION_STEP;
use ccm_core::system::FileError;
use ccm_core::system::files::{self, Durability};
use ccm_value::json;

/// No file of ours is longer.
const MAX_BYTES: u64 = 1024 * 1024;

/// The file of agents that counted for all signers together.
const COMMON: &str = "generation";

const FILE: &str = "generations.json";

/// Remembers generations.
pub(super) struct Generations {
    directory: PathBuf,
}

/// What is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Accepted {
    /// The highest of each signer, by its key.
    signers: BTreeMap<String, u64>,
    /// Whose assignment is followed.
    #[serde(default)]
    current: String,
    /// What counts for all signers, from before they were counted one by one.
    #[serde(default)]
    common: u64,
}

/// Who stands for an assignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct By<'a> {
    /// Empty for nobody.
    pub key: &'a str,
    pub has_policy: bool,
}

impl Generations {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Accepts a generation, or says why not. `is_free` tells whose keys have no policy.
    pub(super) fn accept(
        &self,
        by: By<'_>,
        generation: u64,
        is_free: impl Fn(&str) -> bool,
    ) -> Result<(), UntrustedAssignment> {
        let mut accepted = self.read()?;
        accepted.check(by, generation, is_free)?;
        let is_known = accepted.signers.get(by.key) == Some(&generation);
        if accepted.current != by.key || !is_known {
            accepted.signers.insert(by.key.to_owned(), generation);
            by.key.clone_into(&mut accepted.current);
            let text = json::compact(&accepted).map_err(|_| UntrustedAssignment::Damaged)?;
            let file = self.directory.join(FILE);
            files::write_private(&file, text.as_bytes(), Durability::Complete)?;
        }
        Ok(())
    }

    /// Returns the highest generation that was accepted of any signer.
    pub(super) fn highest(&self) -> Result<u64, UntrustedAssignment> {
        let accepted = self.read()?;
        let signers = accepted.signers.values().copied();
        Ok(signers.max().unwrap_or_default().max(accepted.common))
    }

    fn read(&self) -> Result<Accepted, UntrustedAssignment> {
        let read = |name: &str| match files::read_to_string(&self.directory.join(name), MAX_BYTES) {
            Ok(text) => Ok(Some(text)),
            Err(err) if err.is_not_found() => Ok(None),
            Err(err) => Err(err),
        };
        // What is damaged was never written by us, and nobody knows what it should say.
        if let Some(text) = read(FILE)? {
            return serde_json::from_str(&text).map_err(|_| UntrustedAssignment::Damaged);
        }
        let common = match read(COMMON)? {
            Some(text) => text.trim().parse().map_err(|_| UntrustedAssignment::Damaged)?,
            None => 0,
        };
        Ok(Accepted {
            common,
            ..Accepted::default()
        })
    }
}

impl Accepted {
    fn check(&self, by: By<'_>, found: u64, is_free: impl Fn(&str) -> bool) -> Result<(), UntrustedAssignment> {
        let highest = |counts: &dyn Fn(&str) -> bool| {
            let counted = self.signers.iter().filter(|(key, _)| counts(key));
            let highest = counted.map(|(_, generation)| *generation).max();
            highest.unwrap_or_default().max(self.common)
        };
        let own = self.signers.get(by.key).copied();
        let least = if by.has_policy {
            let current = self.signers.get(&self.current).copied();
            current.unwrap_or_default().max(self.common)
        } else {
            highest(&is_free)
        };
        // One that another has replaced does not come back.
        let least = match own {
            Some(own) if by.key == self.current => least.max(own),
            Some(own) => least.max(own.saturating_add(1)),
            None => least,
        };
        if found < least {
            let accepted = least;
            return Err(UntrustedAssignment::Older { found, accepted });
        }
        let most = highest(&|_| true).saturating_add(MAX_GENERATION_STEP);
        if by.has_policy && found > most {
            return Err(UntrustedAssignment::Far { found, most });
        }
        Ok(())
    }
}

impl From<FileError> for UntrustedAssignment {
    fn from(cause: FileError) -> Self {
        Self::Memory(cause)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use super::*;

    fn accept(room: &Path, key: &str, generation: u64) -> Result<(), String> {
        let is_free = |key: &str| key.starts_with("ops");
        let by = By {
            key,
            has_policy: !is_free(key),
        };
        let accepted = Generations::new(room).accept(by, generation, is_free);
        accepted.map_err(|unfit| unfit.to_string())
    }

    fn follow(room: &Path, steps: &[(&str, u64, bool)]) {
        for (key, generation, is_accepted) in steps {
            let found = accept(room, key, *generation);
            assert_eq!(found.is_ok(), *is_accepted, "{key} {generation} {found:?}");
        }
    }

    #[test]
    fn a_signer_without_a_policy_always_supersedes() {
        let room = tempfile::tempdir().unwrap();
        follow(
            room.path(),
            &[
                ("ops", 5, true),
                ("weak", u64::MAX, false),
                ("weak", 5 + MAX_GENERATION_STEP, true),
                ("weak", 5 + MAX_GENERATION_STEP, true),
                ("ops", 6, true),
                ("ops", 6, true),
                ("weak", 5 + MAX_GENERATION_STEP, false),
                ("weak", 5, false),
                ("weak", 6 + MAX_GENERATION_STEP, true),
                ("ops", 6, false),
                ("ops", u64::MAX, true),
            ],
        );
    }

    #[test]
    fn a_signer_with_a_policy_locks_out_no_other() {
        let room = tempfile::tempdir().unwrap();
        follow(
            room.path(),
            &[
                ("weak", 900_000, true),
                ("ops", 1, true),
                ("other", 1, true),
                ("other", 2, true),
                ("weak", 900_000, false),
            ],
        );
    }

    #[test]
    fn nothing_older_comes_back_by_way_of_another_signer() {
        let room = tempfile::tempdir().unwrap();
        follow(
            room.path(),
            &[
                ("ops1", 3, true),
                ("ops2", 2, false),
                ("ops2", 4, true),
                ("ops1", 3, false),
                ("ops1", 4, true),
                ("ops2", 4, false),
                ("weak", 3, false),
                ("", 3, false),
                ("weak", 5, true),
                ("ops1", 4, false),
                ("ops1", 5, true),
            ],
        );
    }

    #[test]
    fn what_an_older_agent_counted_still_counts() {
        let room = tempfile::tempdir().unwrap();
        std::fs::write(room.path().join(COMMON), "7").unwrap();
        follow(
            room.path(),
            &[("ops", 6, false), ("weak", 6, false), ("ops", 7, true)],
        );
        std::fs::write(room.path().join(FILE), "{").unwrap();
        let error = accept(room.path(), "ops", 9).unwrap_err();
        assert!(error.contains("can't be read"), "{error}");
    }
}
