//! Generations: the highest accepted assignment generation of each signer.
//!
//! Prevents replays of older assignments. Signers are counted separately: a signer without a policy
//! always supersedes one with a policy, and each step of a signer with a policy is limited, so that
//! none can block the others. Generations start again in a new incarnation of the fleet; earlier
//! incarnations are refused from then on. Signatures are verified elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::UntrustedAssignment;
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{Assignment, MAX_GENERATION_STEP};
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
    /// Incarnation of that generation; none from older versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    incarnations: BTreeMap<String, Incarnation>,
    /// Signer of the current assignment.
    #[serde(default)]
    current: String,
    /// Generation of all signers, from older agents.
    #[serde(default)]
    common: u64,
}

/// Place of an assignment in the order of assignments. One without an incarnation, from an older
/// version, is before all that have one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) incarnation: Option<Incarnation>,
    pub(super) generation: u64,
}

impl Position {
    /// Returns the error for an assignment that is not after this position.
    pub(super) fn older(&self, found: &Self) -> UntrustedAssignment {
        match (&found.incarnation, &self.incarnation) {
            (found, Some(accepted)) if found.as_ref() != Some(accepted) => {
                UntrustedAssignment::OlderIncarnation
            }
            _ => UntrustedAssignment::Older {
                found: found.generation,
                accepted: self.generation,
            },
        }
    }

    fn plus(self, generations: u64) -> Self {
        Self {
            generation: self.generation.saturating_add(generations),
            ..self
        }
    }
}

/// Signer of an assignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignerInfo<'a> {
    /// Empty for an unsigned assignment.
    pub(crate) key: &'a str,
    pub(crate) has_policy: bool,
    /// Incarnation of the fleet, if known. Only a signer without a policy can start another one.
    pub(crate) fleet: Option<&'a Incarnation>,
}

impl Generations {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Accepts a position, or returns the reason for refusing it. `has_no_policy` reports which
    /// keys have no policy.
    pub(super) fn accept(
        &self,
        signer: SignerInfo<'_>,
        position: Position,
        has_no_policy: impl Fn(&str) -> bool,
    ) -> Result<(), UntrustedAssignment> {
        let mut accepted = self.read()?;
        accepted.check(signer, &position, has_no_policy)?;
        let is_known = accepted.position(signer.key).as_ref() == Some(&position);
        if accepted.current != signer.key || !is_known {
            accepted.insert(signer.key, position);
            let text = json::compact(&accepted).map_err(|_| UntrustedAssignment::Damaged)?;
            let file = self.directory.join(FILE);
            files::write_private(&file, text.as_bytes(), Durability::Complete)?;
        }
        Ok(())
    }

    /// Returns the position of an assignment. An unsigned one without an incarnation is from an older
    /// controller and counts as one of the last accepted incarnation.
    pub(super) fn position(
        &self,
        key: &str,
        found: &Assignment,
    ) -> Result<Position, UntrustedAssignment> {
        let Assignment {
            generation,
            incarnation,
            ..
        } = found;
        let incarnation = match incarnation {
            None if key.is_empty() => self.highest()?.incarnation,
            given => given.clone(),
        };
        Ok(Position {
            incarnation,
            generation: *generation,
        })
    }

    /// Returns the highest accepted position of all signers.
    pub(super) fn highest(&self) -> Result<Position, UntrustedAssignment> {
        Ok(self.read()?.highest(|_| true))
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
    fn insert(&mut self, key: &str, position: Position) {
        self.signers.insert(key.to_owned(), position.generation);
        if let Some(incarnation) = position.incarnation {
            self.incarnations.insert(key.to_owned(), incarnation);
        }
        key.clone_into(&mut self.current);
    }

    fn position(&self, key: &str) -> Option<Position> {
        Some(Position {
            generation: *self.signers.get(key)?,
            incarnation: self.incarnations.get(key).cloned(),
        })
    }

    /// Returns the highest position of the signers that count.
    fn highest(&self, counts: impl Fn(&str) -> bool) -> Position {
        let counted = self.signers.keys().filter(|key| counts(key));
        let highest = counted.filter_map(|key| self.position(key)).max();
        highest.unwrap_or_default().max(self.common())
    }

    fn common(&self) -> Position {
        Position {
            incarnation: None,
            generation: self.common,
        }
    }

    fn check(
        &self,
        signer: SignerInfo<'_>,
        found: &Position,
        has_no_policy: impl Fn(&str) -> bool,
    ) -> Result<(), UntrustedAssignment> {
        let own = self.position(signer.key);
        let minimum = if signer.has_policy {
            let current = self.position(&self.current);
            current.unwrap_or_default().max(self.common())
        } else {
            self.highest(has_no_policy)
        };
        // A superseded assignment is not accepted again.
        let minimum = match own {
            Some(own) if signer.key == self.current => minimum.max(own),
            Some(own) => minimum.max(own.plus(1)),
            None => minimum,
        };
        if *found < minimum {
            return Err(minimum.older(found));
        }
        if signer.has_policy {
            self.check_limits(signer, found)?;
        }
        Ok(())
    }

    /// Checks the limits of a signer with a policy, who must not block the others.
    fn check_limits(
        &self,
        signer: SignerInfo<'_>,
        found: &Position,
    ) -> Result<(), UntrustedAssignment> {
        let highest = self.highest(|_| true);
        let is_new = found.incarnation > highest.incarnation;
        if is_new && found.incarnation.as_ref() != signer.fleet {
            return Err(UntrustedAssignment::OtherIncarnation);
        }
        let base = if is_new { 0 } else { highest.generation };
        let most = base.saturating_add(MAX_GENERATION_STEP);
        if found.generation > most {
            let found = found.generation;
            return Err(UntrustedAssignment::TooFar { found, most });
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
        accept_in(directory, None, None, key, generation)
    }

    /// Accepts an assignment of an incarnation, in a fleet of another or the same.
    fn accept_in(
        directory: &Path,
        fleet: Option<i64>,
        incarnation: Option<i64>,
        key: &str,
        generation: u64,
    ) -> Result<(), String> {
        let at = |second| {
            let created = chrono::DateTime::from_timestamp(second, 0).unwrap();
            Incarnation::new(created, 1)
        };
        let has_no_policy = |key: &str| key.starts_with("ops");
        let fleet = fleet.map(at);
        let signer = SignerInfo {
            key,
            has_policy: !has_no_policy(key),
            fleet: fleet.as_ref(),
        };
        let assignment = serde_json::from_value(serde_json::json!({
            "protocol": "x", "generation": generation, "incarnation": incarnation.map(at),
            "manifests": [], "assigned": "2027-01-15T08:00:00Z",
        }));
        let generations = Generations::new(directory);
        let accepted = generations
            .position(key, &assignment.unwrap())
            .and_then(|position| generations.accept(signer, position, has_no_policy));
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

    #[test]
    fn generations_start_again_in_a_new_incarnation_and_older_ones_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        for (incarnation, generation, is_accepted) in [
            (None, 7, true),
            (Some(1), 1, true),
            (Some(1), 5, true),
            (None, 9, false),
            (Some(2), 1, true),
            (Some(1), 6, false),
            (Some(1), u64::MAX, false),
            (Some(2), 2, true),
            (Some(2), 1, false),
        ] {
            let found = accept_in(directory.path(), None, incarnation, "ops", generation);
            let case = format!("{incarnation:?} {generation} {found:?}");
            assert_eq!(found.is_ok(), is_accepted, "{case}");
        }
    }

    #[test]
    fn a_signer_with_a_policy_can_not_start_an_incarnation() {
        let directory = tempfile::tempdir().unwrap();
        let accept = |fleet, incarnation, key, generation| {
            accept_in(directory.path(), fleet, incarnation, key, generation).is_ok()
        };
        assert!(accept(None, Some(1), "ops", 5));
        assert!(!accept(Some(1), Some(9), "weak", 1));
        assert!(!accept(None, Some(9), "weak", 1));
        // The storage was lost; the fleet has another incarnation.
        assert!(accept(Some(2), Some(2), "weak", 1));
        assert!(!accept(Some(2), Some(2), "weak", u64::MAX));
        // Nobody is blocked by it.
        assert!(accept(Some(2), Some(1), "ops", 6));
        assert!(accept(Some(2), Some(2), "ops", 1));
    }

    #[test]
    fn an_unsigned_assignment_of_an_older_controller_is_of_any_incarnation() {
        let directory = tempfile::tempdir().unwrap();
        let accept = |incarnation, generation| {
            accept_in(directory.path(), Some(1), incarnation, "", generation).is_ok()
        };
        assert!(accept(Some(1), 5));
        assert!(!accept(None, 4));
        assert!(accept(None, 6));
        assert!(accept(Some(1), 7));
    }
}
