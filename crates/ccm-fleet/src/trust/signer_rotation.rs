//! Rotation of the request signer, without an interruption: a new key is added as successor of the
//! old one, both are valid, and the old one is retired later.
//!
//! Nodes learn it from signed statements in the fleet's bucket; `signers.json` has the same
//! statements, so that they can be published again.

use std::path::PathBuf;

use chrono::{DateTime, Utc};

use super::{MAX_FILE, TrustDir, TrustError, store_public, store_secret};
use ccm_core::model::signer_update::SignerUpdates;
use ccm_core::system::files;
use ccm_nats::request_signature::Signer;
use ccm_value::secret::Secret;

/// Seed of the current request signer. All seeds are in `keys`, which `ccm-enroll.service` hides from the
/// approver as a whole.
const CURRENT: &str = "keys/signer.seed";

/// Seed of the signer before it, until that is retired.
const PREVIOUS: &str = "keys/signer-previous.seed";

/// Seed of a new signer whose statement may not be published yet.
const NEXT: &str = "keys/signer-next.seed";

/// Where earlier versions had the seeds.
const EARLIER: [(&str, &str); 3] = [
    ("signer.seed", CURRENT),
    ("signer-previous.seed", PREVIOUS),
    ("signer-next.seed", NEXT),
];

/// All statements about signers.
const STATEMENTS: &str = "signers.json";

impl TrustDir {
    /// Returns the statements about signers.
    pub fn signer_updates(&self) -> Result<SignerUpdates, TrustError> {
        let path = self.at(STATEMENTS);
        match files::read_to_string(&path, MAX_FILE) {
            Err(err) if err.is_not_found() => Ok(SignerUpdates::default()),
            text => {
                serde_json::from_str(&text?).map_err(|source| TrustError::Invalid { path, source })
            }
        }
    }

    /// Returns the path of the seed that signs requests. A directory of an earlier version has it
    /// elsewhere until the next rotation.
    pub fn signer_seed(&self) -> PathBuf {
        self.at(CURRENT)
    }

    /// Creates a successor of the request signer and the statement about it, which must be published
    /// before [`TrustDir::finish_signer_rotation`]. Creates no other one if it was interrupted.
    pub fn begin_signer_rotation(&self, now: DateTime<Utc>) -> Result<String, TrustError> {
        if let Some(previous) = &self.fleet.previous_signer {
            return Err(TrustError::SignerNotRetired(previous.clone()));
        }
        self.move_seeds()?;
        let current = self.active_signer()?;
        let next = match self.find_signer(NEXT)? {
            // One that is in use already is left from a rotation that was interrupted at its end.
            Some(next) if next.public_key() != self.fleet.signer => next,
            _ => {
                let next = Signer::generate();
                self.store_signer(NEXT, &next)?;
                next
            }
        };
        let key = next.public_key();
        let mut updates = self.signer_updates()?;
        let is_known = updates.successions.iter().any(|it| it.successor == key);
        if !is_known {
            let statement = current.sign_succession(&self.fleet.collective, &key, now);
            updates
                .successions
                .push(statement.map_err(TrustError::Signer)?);
            self.store_signer_updates(&updates)?;
        }
        Ok(key)
    }

    /// Makes the successor the request signer. The one before it stays valid until it is retired.
    ///
    /// `fleet.json` is written when both seeds are stored: until then it names the signer before, and
    /// a repetition finds that one's seed under either name.
    pub fn finish_signer_rotation(&mut self) -> Result<(), TrustError> {
        let (current, next) = (self.active_signer()?, self.signer(NEXT)?);
        self.store_signer(PREVIOUS, &current)?;
        self.store_signer(CURRENT, &next)?;
        self.fleet.previous_signer = Some(current.public_key());
        self.fleet.signer = next.public_key();
        self.store_fleet()?;
        files::remove(&self.at(NEXT))?;
        Ok(())
    }

    /// Creates the statement that the previous request signer is retired, which must be published
    /// before [`TrustDir::finish_signer_retirement`]. Returns its key.
    pub fn begin_signer_retirement(&self, now: DateTime<Utc>) -> Result<String, TrustError> {
        self.move_seeds()?;
        let previous = self.previous_signer()?;
        let mut updates = self.signer_updates()?;
        if !updates.retirements.iter().any(|it| it.retired == previous) {
            let current = self.active_signer()?;
            let statement = current.sign_retirement(&self.fleet.collective, &previous, now);
            updates
                .retirements
                .push(statement.map_err(TrustError::Signer)?);
            self.store_signer_updates(&updates)?;
        }
        Ok(previous)
    }

    /// Removes the seed of the previous request signer, and replaces its key in the `trust` section
    /// of nodes that enroll from now on. Returns whether that section has the current signer.
    pub fn finish_signer_retirement(&mut self) -> Result<bool, TrustError> {
        let previous = self.previous_signer()?;
        let before = self.agent_trust()?;
        let after = before.replace(&previous, &self.fleet.signer);
        store_public(&self.at("agent-trust.yaml"), &after)?;
        files::remove(&self.at(PREVIOUS))?;
        // Written last: until then a repetition continues.
        self.fleet.previous_signer = None;
        self.store_fleet()?;
        Ok(after.contains(&self.fleet.signer))
    }

    /// Returns the key to retire.
    fn previous_signer(&self) -> Result<String, TrustError> {
        let previous = self.fleet.previous_signer.clone();
        let previous = previous.filter(|key| *key != self.fleet.signer);
        if previous.is_some() || self.fleet.previous_signer.is_none() {
            return previous.ok_or(TrustError::NoPreviousSigner);
        }
        // An interrupted rotation of an earlier version has recorded the current signer as the previous
        // one. The key before it is in its statement.
        let updates = self.signer_updates()?;
        let mut successions = updates.successions.into_iter();
        let found = successions.find(|it| it.successor == self.fleet.signer);
        found
            .map(|it| it.signer)
            .ok_or(TrustError::NoPreviousSigner)
    }

    /// Returns the signer that `fleet.json` names. If a rotation was interrupted before it was recorded
    /// there, its seed is that of the previous one.
    fn active_signer(&self) -> Result<Signer, TrustError> {
        for name in [CURRENT, PREVIOUS] {
            let found = self.find_signer(name)?;
            if let Some(signer) = found.filter(|it| it.public_key() == self.fleet.signer) {
                return Ok(signer);
            }
        }
        Err(TrustError::SignerSeed {
            path: self.at(CURRENT),
            key: self.fleet.signer.clone(),
        })
    }

    /// Moves the seeds of an earlier version.
    fn move_seeds(&self) -> Result<(), TrustError> {
        for (earlier, name) in EARLIER {
            let Some(signer) = self.find_signer(earlier)? else {
                continue;
            };
            if self.find_signer(name)?.is_none() {
                self.store_signer(name, &signer)?;
            }
            files::remove(&self.at(earlier))?;
        }
        Ok(())
    }

    fn find_signer(&self, name: &str) -> Result<Option<Signer>, TrustError> {
        match self.signer(name) {
            Err(TrustError::File(err)) if err.is_not_found() => Ok(None),
            signer => signer.map(Some),
        }
    }

    fn signer(&self, name: &str) -> Result<Signer, TrustError> {
        let seed = files::read_secret(&self.at(name), MAX_FILE)?;
        Signer::from_seed(seed.trim()).map_err(TrustError::Signer)
    }

    pub(super) fn store_first_signer(&self, signer: &Signer) -> Result<(), TrustError> {
        self.store_signer(CURRENT, signer)
    }

    fn store_signer(&self, name: &str, signer: &Signer) -> Result<(), TrustError> {
        let seed = signer.seed().map_err(TrustError::Signer)?;
        store_secret(&self.at(name), &Secret::new(format!("{}\n", seed.reveal())))
    }

    fn store_signer_updates(&self, updates: &SignerUpdates) -> Result<(), TrustError> {
        let path = self.at(STATEMENTS);
        let text = serde_json::to_string_pretty(updates).map_err(|source| {
            let path = path.clone();
            TrustError::Invalid { path, source }
        })?;
        store_public(&path, &format!("{text}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixture::{Directory, NOW};

    fn directory() -> Directory {
        Directory::new(&[
            CURRENT,
            PREVIOUS,
            NEXT,
            STATEMENTS,
            "fleet.json",
            "agent-trust.yaml",
        ])
    }

    impl Directory {
        fn rotate(&mut self) -> String {
            let key = self.trust.begin_signer_rotation(NOW).unwrap();
            self.trust.finish_signer_rotation().unwrap();
            key
        }

        fn retire(&mut self) -> String {
            let key = self.trust.begin_signer_retirement(NOW).unwrap();
            assert!(self.trust.finish_signer_retirement().unwrap());
            key
        }

        fn key(&self, name: &str) -> Option<String> {
            let signer = self.trust.find_signer(name).unwrap();
            signer.map(|signer| signer.public_key())
        }

        /// Asserts that one key is used, that the one before it can be retired, and that nodes can
        /// follow from it.
        fn assert_rotated(&self, old: &str, new: &str) {
            assert_ne!(old, new);
            assert_eq!(self.trust.fleet.signer, new);
            assert_eq!(self.trust.fleet.previous_signer.as_deref(), Some(old));
            assert_eq!(self.key(CURRENT).as_deref(), Some(new));
            assert_eq!(self.key(PREVIOUS).as_deref(), Some(old));
            assert_eq!(self.key(NEXT), None);
            let statements = self.trust.signer_updates().unwrap().successions;
            let found = statements.iter().filter(|it| it.successor == new);
            let signers: Vec<&str> = found.map(|it| it.signer.as_str()).collect();
            assert_eq!(signers, [old]);
        }

        fn assert_retired(&self, old: &str, new: &str) {
            assert_eq!(self.trust.fleet.signer, new);
            assert_eq!(self.trust.fleet.previous_signer, None);
            assert_eq!(self.key(CURRENT).as_deref(), Some(new));
            assert_eq!(self.key(PREVIOUS), None);
            let statements = self.trust.signer_updates().unwrap().retirements;
            let retired: Vec<&str> = statements.iter().map(|it| it.retired.as_str()).collect();
            assert_eq!(retired, [old]);
            let section = self.trust.agent_trust().unwrap();
            assert!(section.contains(new) && !section.contains(old), "{section}");
        }
    }

    /// Interrupts the second half of a rotation after some files were stored, and repeats all of it.
    fn assert_repeated_rotation(stored: &[&str]) {
        let mut directory = directory();
        let old = directory.trust.fleet.signer.clone();
        let new = directory.trust.begin_signer_rotation(NOW).unwrap();
        directory.interrupt(stored, |trust| trust.finish_signer_rotation().unwrap());
        assert_eq!(directory.rotate(), new);
        directory.assert_rotated(&old, &new);
    }

    #[test]
    fn a_rotation_continues_after_the_new_seed_was_stored() {
        let mut directory = directory();
        let old = directory.trust.fleet.signer.clone();
        directory.interrupt(&[NEXT], |trust| {
            trust.begin_signer_rotation(NOW).unwrap();
        });
        let new = directory.key(NEXT).unwrap();
        assert_eq!(directory.rotate(), new);
        directory.assert_rotated(&old, &new);
    }

    #[test]
    fn a_rotation_continues_after_the_statement_was_stored() {
        assert_repeated_rotation(&[]);
    }

    #[test]
    fn a_rotation_continues_after_the_previous_seed_was_stored() {
        assert_repeated_rotation(&[PREVIOUS]);
    }

    #[test]
    fn a_rotation_continues_after_the_current_seed_was_stored() {
        assert_repeated_rotation(&[PREVIOUS, CURRENT]);
    }

    #[test]
    fn a_rotation_that_left_the_new_seed_is_complete_and_the_next_one_creates_another() {
        let mut directory = directory();
        directory.trust.begin_signer_rotation(NOW).unwrap();
        directory.interrupt(&[PREVIOUS, CURRENT, "fleet.json"], |trust| {
            trust.finish_signer_rotation().unwrap();
        });
        let second = directory.trust.fleet.signer.clone();
        assert_eq!(directory.key(NEXT).as_ref(), Some(&second));
        directory.retire();
        let third = directory.rotate();
        directory.assert_rotated(&second, &third);
    }

    #[test]
    fn a_retirement_continues_after_each_stored_file() {
        for stored in [
            &[][..],
            &["agent-trust.yaml"][..],
            &["agent-trust.yaml", PREVIOUS][..],
        ] {
            let mut directory = directory();
            let old = directory.trust.fleet.signer.clone();
            let new = directory.rotate();
            directory.trust.begin_signer_retirement(NOW).unwrap();
            directory.interrupt(stored, |trust| {
                trust.finish_signer_retirement().unwrap();
            });
            assert_eq!(directory.retire(), old);
            directory.assert_retired(&old, &new);
        }
    }

    #[test]
    fn a_current_signer_that_was_recorded_as_the_previous_one_is_not_retired() {
        let mut directory = directory();
        let old = directory.trust.fleet.signer.clone();
        let new = directory.rotate();
        directory.trust.fleet.previous_signer = Some(new.clone());
        assert_eq!(directory.retire(), old);
        directory.assert_retired(&old, &new);
    }

    #[test]
    fn a_seed_of_another_signer_is_refused() {
        let directory = directory();
        let other = Signer::generate();
        directory.trust.store_signer(CURRENT, &other).unwrap();
        let error = directory.trust.begin_signer_rotation(NOW).unwrap_err();
        assert!(matches!(error, TrustError::SignerSeed { .. }), "{error}");
    }

    #[test]
    fn seeds_of_an_earlier_version_are_moved() {
        let mut directory = directory();
        let old = directory.trust.fleet.signer.clone();
        let earlier = directory.trust.at("signer.seed");
        let signer = directory.trust.signer(CURRENT).unwrap();
        directory
            .trust
            .store_signer("signer.seed", &signer)
            .unwrap();
        files::remove(&directory.trust.at(CURRENT)).unwrap();
        let new = directory.rotate();
        directory.assert_rotated(&old, &new);
        assert!(!earlier.exists());
    }
}
