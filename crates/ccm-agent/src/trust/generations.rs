//! Generations: the highest accepted assignment generation of each signer.
//!
//! Prevents replays of older assignments. Signers are counted separately: a signer without a policy
//! always supersedes one with a policy, and each step of a signer with a policy is limited, so that
//! none can block the others. Signatures are verified elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::UntrustedAssignment;
use ccm_core::model::node::MAX_GENERATION_STEP;
use ccm_core::system::FileError;
use ccm_core::system::files::{self, Durability};
use ccm_value::json;

/// Longest valid file.
const MAX_BYTES: u64 = 1024 * 1024;

/// File of older agents, with one generation for all signers.
const COMMON: &str = "generation";

const FILE: &str = "generations.json";

/// Accepted generations on disk.
pub(super) struct Generations {
    directory: PathBuf,
}

/// Content of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Accepted {
    /// Highest generation of each signer, by key.
    signers: BTreeMap<String, u64>,
    /// Signer of the current assignment.
    #[serde(default)]
    current: String,
    /// Generation of all signers, from older agents.
    #[serde(default)]
    common: u64,
}

/// Signer of an assignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignerInfo<'a> {
    /// Empty for an unsigned assignment.
    pub(crate) key: &'a str,
    pub(crate) has_policy: bool,
}

impl Generations {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Accepts a generation, or returns the reason for refusing it. `has_no_policy` reports which
    /// keys have no policy.
    pub(super) fn accept(
        &self,
        signer: SignerInfo<'_>,
        generation: u64,
        has_no_policy: impl Fn(&str) -> bool,
    ) -> Result<(), UntrustedAssignment> {
        let mut accepted = self.read()?;
        accepted.check(signer, generation, has_no_policy)?;
        let is_known = accepted.signers.get(signer.key) == Some(&generation);
        if accepted.current != signer.key || !is_known {
            accepted.signers.insert(signer.key.to_owned(), generation);
            signer.key.clone_into(&mut accepted.current);
            let text = json::compact(&accepted).map_err(|_| UntrustedAssignment::Damaged)?;
            let file = self.directory.join(FILE);
            files::write_private(&file, text.as_bytes(), Durability::Complete)?;
        }
        Ok(())
    }

    /// Returns the highest accepted generation of all signers.
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
        // A damaged file can not be interpreted, so nothing is accepted.
        if let Some(text) = read(FILE)? {
            return serde_json::from_str(&text).map_err(|_| UntrustedAssignment::Damaged);
        }
        let common = match read(COMMON)? {
            Some(text) => text
                .trim()
                .parse()
                .map_err(|_| UntrustedAssignment::Damaged)?,
            None => 0,
        };
        Ok(Accepted {
            common,
            ..Accepted::default()
        })
    }
}

impl Accepted {
    fn check(
        &self,
        signer: SignerInfo<'_>,
        found: u64,
        has_no_policy: impl Fn(&str) -> bool,
    ) -> Result<(), UntrustedAssignment> {
        let highest = |counts: &dyn Fn(&str) -> bool| {
            let counted = self.signers.iter().filter(|(key, _)| counts(key));
            let highest = counted.map(|(_, generation)| *generation).max();
            highest.unwrap_or_default().max(self.common)
        };
        let own = self.signers.get(signer.key).copied();
        let minimum = if signer.has_policy {
            let current = self.signers.get(&self.current).copied();
            current.unwrap_or_default().max(self.common)
        } else {
            highest(&has_no_policy)
        };
        // A superseded assignment is not accepted again.
        let minimum = match own {
            Some(own) if signer.key == self.current => minimum.max(own),
            Some(own) => minimum.max(own.saturating_add(1)),
            None => minimum,
        };
        if found < minimum {
            let accepted = minimum;
            return Err(UntrustedAssignment::Older { found, accepted });
        }
        let maximum = highest(&|_| true).saturating_add(MAX_GENERATION_STEP);
        if signer.has_policy && found > maximum {
            return Err(UntrustedAssignment::TooFar {
                found,
                most: maximum,
            });
        }
        Ok(())
    }
}

impl From<FileError> for UntrustedAssignment {
    fn from(cause: FileError) -> Self {
        Self::Storage(cause)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use super::*;

    fn accept(directory: &Path, key: &str, generation: u64) -> Result<(), String> {
        let has_no_policy = |key: &str| key.starts_with("ops");
        let signer = SignerInfo {
            key,
            has_policy: !has_no_policy(key),
        };
        let accepted = Generations::new(directory).accept(signer, generation, has_no_policy);
        accepted.map_err(|unfit| unfit.to_string())
    }

    fn follow(directory: &Path, steps: &[(&str, u64, bool)]) {
        for (key, generation, is_accepted) in steps {
            let found = accept(directory, key, *generation);
            assert_eq!(found.is_ok(), *is_accepted, "{key} {generation} {found:?}");
        }
    }

    #[test]
    fn a_signer_without_a_policy_always_supersedes() {
        let directory = tempfile::tempdir().unwrap();
        follow(
            directory.path(),
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
        let directory = tempfile::tempdir().unwrap();
        follow(
            directory.path(),
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
    fn an_older_generation_is_refused_also_from_another_signer() {
        let directory = tempfile::tempdir().unwrap();
        follow(
            directory.path(),
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
    fn the_generation_of_an_older_agent_still_counts() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(COMMON), "7").unwrap();
        follow(
            directory.path(),
            &[("ops", 6, false), ("weak", 6, false), ("ops", 7, true)],
        );
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        let error = accept(directory.path(), "ops", 9).unwrap_err();
        assert!(error.contains("can't be read"), "{error}");
    }
}
