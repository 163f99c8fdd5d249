//! Rotation of the signing key of a role: a new key is added, both are valid, and the previous ones are
//! retired later.
//!
//! The seed of a new key is stored before the account and `fleet.json` name the key, under a name of its
//! own. So no key is ever without a seed, and an interrupted rotation continues with the same key.

use chrono::{DateTime, Utc};

use super::{TrustDir, TrustError};
use crate::role_permissions::Role;
use ccm_core::system::files;
use ccm_nats::jwt::{Key, KeyKind};

impl TrustDir {
    /// Returns the key that issues users of a role.
    pub fn role_key(&self, role: Role) -> Result<Key, TrustError> {
        self.key(KeyKind::Account, &current(role))
    }

    /// Creates a new signing key for a role, and returns the new account. Users that the previous
    /// key has signed stay valid until [`TrustDir::retire`]. Creates no other one if it was interrupted.
    pub fn rotate(&mut self, role: Role, now: DateTime<Utc>) -> Result<String, TrustError> {
        let used = self.role_key(role)?.public_key();
        let key = match self.next_key(role)? {
            // One that is in use already is left from a rotation that was interrupted at its end.
            Some(key) if key.public_key() != used => key,
            _ => {
                let key = Key::generate(KeyKind::Account);
                self.store_key(&next(role), &key)?;
                key
            }
        };
        let keys = self.fleet.roles.entry(role).or_default();
        if !keys.contains(&key.public_key()) {
            keys.push(key.public_key());
        }
        // The account must contain a key before anything is signed with it.
        let mut account = self.account()?;
        account.body.signing_keys = self.scopes();
        let jwt = self.store_account(account, now)?;
        self.store_fleet()?;
        self.use_key(role, &key)?;
        Ok(jwt)
    }

    /// Removes the previous signing keys of a role, and returns the new account. Users that they
    /// have signed are disconnected. Completes an interrupted rotation before.
    ///
    /// The key whose seed is stored is kept: a rotation of an earlier version may have added one without a
    /// seed.
    pub fn retire(&mut self, role: Role, now: DateTime<Utc>) -> Result<String, TrustError> {
        let last = self.fleet.roles.get(&role).and_then(|keys| keys.last());
        if let Some(key) = self.next_key(role)?
            && last == Some(&key.public_key())
        {
            self.use_key(role, &key)?;
        }
        let kept = self.role_key(role)?.public_key();
        let keys = self.fleet.roles.entry(role).or_default();
        if !keys.contains(&kept) {
            let path = self.seed_path(&current(role));
            return Err(TrustError::RoleSeed { path, role });
        }
        keys.retain(|key| *key == kept);
        self.store_fleet()?;
        self.refresh(now)
    }

    /// Makes a key of `fleet.json` the one that issues users.
    fn use_key(&self, role: Role, key: &Key) -> Result<(), TrustError> {
        self.store_key(&current(role), key)?;
        files::remove(&self.seed_path(&next(role)))?;
        Ok(())
    }

    /// Returns the key of an interrupted rotation.
    fn next_key(&self, role: Role) -> Result<Option<Key>, TrustError> {
        match self.key(KeyKind::Account, &next(role)) {
            Err(TrustError::File(err)) if err.is_not_found() => Ok(None),
            key => key.map(Some),
        }
    }
}

/// Returns the name of the key that issues users of a role.
pub(super) fn current(role: Role) -> String {
    format!("role-{role}")
}

/// Returns the name of a new key until it issues users.
fn next(role: Role) -> String {
    format!("role-{role}-next")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixture::{Directory, NOW};
    use crate::trust::store_secret;
    use ccm_nats::jwt::SigningKey;
    use ccm_value::secret::Secret;

    const CURRENT: &str = "keys/role-operator.seed";
    const NEXT: &str = "keys/role-operator-next.seed";
    const ACCOUNT: &str = "accounts/fleet.jwt";
    const FLEET: &str = "fleet.json";

    fn directory() -> Directory {
        Directory::new(&[CURRENT, NEXT, ACCOUNT, FLEET])
    }

    fn keys(trust: &TrustDir) -> Vec<String> {
        trust.fleet.roles[&Role::Operator].clone()
    }

    fn used(trust: &TrustDir) -> String {
        trust.role_key(Role::Operator).unwrap().public_key()
    }

    fn rotate(trust: &mut TrustDir) {
        trust.rotate(Role::Operator, NOW).unwrap();
    }

    fn retire(trust: &mut TrustDir) {
        trust.retire(Role::Operator, NOW).unwrap();
    }

    /// Asserts that these keys are valid, and that the last one issues users.
    fn assert_keys(trust: &TrustDir, expected: &[&String]) {
        assert_eq!(keys(trust).iter().collect::<Vec<_>>(), expected);
        assert_eq!(Some(&&used(trust)), expected.last());
        let mut account = Vec::new();
        for key in trust.account().unwrap().body.signing_keys {
            if let SigningKey::Scoped(scope) = key
                && scope.role == Role::Operator.as_str()
            {
                account.push(scope.key);
            }
        }
        assert_eq!(account.iter().collect::<Vec<_>>(), expected);
        assert!(!trust.at(NEXT).exists());
    }

    /// Returns a directory whose rotation was interrupted after some files were stored, with the old and
    /// the new key.
    fn interrupted(stored: &[&str]) -> (Directory, String, String) {
        let mut directory = directory();
        let old = used(&directory.trust);
        let mut seed = String::new();
        directory.interrupt(stored, |trust| {
            rotate(trust);
            seed = std::fs::read_to_string(trust.at(CURRENT)).unwrap();
            // It is removed at the end only.
            store_secret(&trust.at(NEXT), &Secret::new(seed.clone())).unwrap();
        });
        let new = Key::from_seed(KeyKind::Account, &seed).unwrap();
        (directory, old, new.public_key())
    }

    fn assert_repeated_rotation(stored: &[&str]) {
        let (mut directory, old, new) = interrupted(stored);
        rotate(&mut directory.trust);
        assert_keys(&directory.trust, &[&old, &new]);
    }

    #[test]
    fn a_rotation_adds_a_key_and_a_retirement_removes_the_one_before() {
        let mut directory = directory();
        let old = used(&directory.trust);
        rotate(&mut directory.trust);
        let new = used(&directory.trust);
        assert_ne!(old, new);
        assert_keys(&directory.trust, &[&old, &new]);
        retire(&mut directory.trust);
        assert_keys(&directory.trust, &[&new]);
    }

    #[test]
    fn a_key_that_can_not_be_recorded_has_a_seed_and_does_not_sign() {
        let mut directory = directory();
        let old = used(&directory.trust);
        let fleet = directory.trust.at(FLEET);
        let text = std::fs::read_to_string(&fleet).unwrap();
        files::remove(&fleet).unwrap();
        // A file can't replace a directory.
        std::fs::create_dir(&fleet).unwrap();
        directory.trust.rotate(Role::Operator, NOW).unwrap_err();
        assert_eq!(used(&directory.trust), old);
        let new = directory.trust.next_key(Role::Operator).unwrap().unwrap();
        std::fs::remove_dir(&fleet).unwrap();
        store_secret(&fleet, &Secret::new(text)).unwrap();
        directory.trust = TrustDir::open(directory.trust.path()).unwrap();
        rotate(&mut directory.trust);
        assert_keys(&directory.trust, &[&old, &new.public_key()]);
    }

    #[test]
    fn a_rotation_continues_after_the_new_seed_was_stored() {
        assert_repeated_rotation(&[NEXT]);
    }

    #[test]
    fn a_rotation_continues_after_the_account_was_stored() {
        assert_repeated_rotation(&[NEXT, ACCOUNT]);
    }

    #[test]
    fn a_rotation_continues_after_the_key_was_recorded() {
        assert_repeated_rotation(&[NEXT, ACCOUNT, FLEET]);
    }

    #[test]
    fn a_rotation_that_left_the_new_seed_is_complete_and_the_next_one_creates_another() {
        let (mut directory, old, new) = interrupted(&[NEXT, ACCOUNT, FLEET, CURRENT]);
        rotate(&mut directory.trust);
        let third = used(&directory.trust);
        assert_keys(&directory.trust, &[&old, &new, &third]);
    }

    #[test]
    fn a_retirement_keeps_the_old_key_if_the_new_one_was_not_recorded() {
        for stored in [&[NEXT][..], &[NEXT, ACCOUNT][..]] {
            let (mut directory, old, _) = interrupted(stored);
            retire(&mut directory.trust);
            files::remove(&directory.trust.at(NEXT)).unwrap();
            assert_keys(&directory.trust, &[&old]);
        }
    }

    #[test]
    fn a_retirement_completes_a_rotation_whose_key_was_recorded() {
        for stored in [
            &[NEXT, ACCOUNT, FLEET][..],
            &[NEXT, ACCOUNT, FLEET, CURRENT][..],
        ] {
            let (mut directory, _, new) = interrupted(stored);
            retire(&mut directory.trust);
            assert_keys(&directory.trust, &[&new]);
        }
    }

    #[test]
    fn a_retirement_continues_after_the_keys_were_recorded() {
        let mut directory = directory();
        rotate(&mut directory.trust);
        let new = used(&directory.trust);
        directory.interrupt(&[FLEET], retire);
        retire(&mut directory.trust);
        assert_keys(&directory.trust, &[&new]);
    }

    #[test]
    fn a_retirement_removes_a_key_whose_seed_an_earlier_version_lost() {
        let (mut directory, old, _) = interrupted(&[ACCOUNT, FLEET]);
        retire(&mut directory.trust);
        assert_keys(&directory.trust, &[&old]);
    }

    #[test]
    fn a_retirement_is_refused_with_the_seed_of_another_key() {
        let mut directory = directory();
        let before = keys(&directory.trust);
        let other = Key::generate(KeyKind::Account);
        directory.trust.store_key("role-operator", &other).unwrap();
        let error = directory.trust.retire(Role::Operator, NOW).unwrap_err();
        assert!(matches!(error, TrustError::RoleSeed { .. }), "{error}");
        let stored = TrustDir::open(directory.trust.path()).unwrap();
        assert_eq!(keys(&stored), before);
    }
}
