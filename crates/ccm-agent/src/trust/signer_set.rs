//! Trusted signers: those of the configuration, their successors, and without those that were retired.
//!
//! A signer can name a successor, which gets its name and its policy and no more; a successor can
//! retire the keys before it. Everything starts with a key of the configuration: without it there, its
//! successors are not trusted either. Accepted statements are kept on disk and are never taken back;
//! a retired key can not add any.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;

use super::{MAX_BYTES, TrustError, TrustedSigner};
use ccm_core::model::node::Token;
use ccm_core::model::signer_update::{MAX_STATEMENTS, SignerUpdates};
use ccm_core::system::FileError;
use ccm_core::system::files::{self, Durability};
use ccm_nats::request_signature::PublicKey;
use ccm_nats::signer_update::{is_retirement_signed, is_succession_signed};
use ccm_value::json;

/// Longest valid file with statements.
const MAX_FILE: u64 = 64 * MAX_BYTES;

/// Which signers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Current,
    /// Also those that were retired: for what was accepted before that.
    AlsoRetired,
}

/// The trusted signers of a node.
pub(super) struct SignerSet {
    configured: Vec<Arc<TrustedSigner>>,
    collective: Token,
    path: PathBuf,
    state: RwLock<State>,
}

/// The effect of the accepted statements.
#[derive(Clone, Default)]
struct State {
    accepted: SignerUpdates,
    /// All signers by key, also retired ones.
    signers: BTreeMap<String, Arc<TrustedSigner>>,
    /// The key before each successor.
    predecessors: BTreeMap<String, String>,
    retired: Vec<String>,
}

impl SignerSet {
    /// Reads the accepted statements from disk.
    pub(super) fn open(
        configured: Vec<TrustedSigner>,
        collective: Token,
        path: PathBuf,
    ) -> Result<Self, TrustError> {
        let accepted = match files::read_to_string(&path, MAX_FILE) {
            Ok(text) => serde_json::from_str(&text).map_err(|cause| TrustError::Damaged {
                path: path.display().to_string(),
                cause,
            })?,
            Err(err) if err.is_not_found() => SignerUpdates::default(),
            Err(err) => return Err(err.into()),
        };
        let set = Self {
            configured: configured.into_iter().map(Arc::new).collect(),
            collective,
            path,
            state: RwLock::default(),
        };
        let mut state = set.initial();
        // All were accepted in order, so each signer was current at that time.
        state.add_successions(&accepted, &set.collective, Scope::AlsoRetired);
        state.add_retirements(&accepted, &set.collective);
        state.accepted = accepted;
        *set.state.write() = state;
        Ok(set)
    }

    fn initial(&self) -> State {
        let configured = self.configured.iter();
        State {
            signers: configured
                .map(|signer| (signer.text.clone(), signer.clone()))
                .collect(),
            ..State::default()
        }
    }

    /// Returns a trusted signer by its key.
    pub(super) fn find(&self, key: &str, scope: Scope) -> Option<Arc<TrustedSigner>> {
        self.state.read().find(key, scope)
    }

    /// Returns the keys of all signers that are not retired, sorted.
    pub(super) fn keys(&self) -> Vec<String> {
        let state = self.state.read();
        let keys = state.signers.keys();
        keys.filter(|key| !state.retired.contains(key))
            .cloned()
            .collect()
    }

    /// Accepts statements that are signed by a trusted signer; others are ignored. Returns whether
    /// there were new ones. They are stored before they have an effect.
    pub(super) fn add(&self, updates: &SignerUpdates) -> Result<bool, FileError> {
        let mut state = self.state.write();
        let before = state.accepted.clone();
        let mut next = state.clone();
        next.add_successions(updates, &self.collective, Scope::Current);
        next.add_retirements(updates, &self.collective);
        if next.accepted == before {
            return Ok(false);
        }
        let text = json::compact(&next.accepted).unwrap_or_default();
        files::write_private(&self.path, text.as_bytes(), Durability::Complete)?;
        *state = next;
        Ok(true)
    }
}

impl State {
    fn find(&self, key: &str, scope: Scope) -> Option<Arc<TrustedSigner>> {
        let is_retired = self.retired.iter().any(|retired| retired == key);
        if is_retired && scope == Scope::Current {
            return None;
        }
        self.signers.get(key).cloned()
    }

    /// Adds successors until there are no more: statements may be in any order.
    fn add_successions(&mut self, updates: &SignerUpdates, collective: &Token, scope: Scope) {
        let mut is_changed = true;
        while is_changed {
            is_changed = false;
            for statement in &updates.successions {
                let is_known = self.predecessors.contains_key(&statement.successor);
                let is_full = self.accepted.successions.len() >= MAX_STATEMENTS;
                if is_known || is_full || statement.collective != *collective {
                    continue;
                }
                let Some(signer) = self.find(&statement.signer, scope) else {
                    continue;
                };
                let Ok(key) = PublicKey::parse(&statement.successor) else {
                    continue;
                };
                if !is_succession_signed(statement, &signer.key) {
                    continue;
                }
                let successor = TrustedSigner {
                    text: statement.successor.clone(),
                    key,
                    requester: signer.requester.clone(),
                };
                // A key of the configuration keeps its own policy.
                self.signers
                    .entry(statement.successor.clone())
                    .or_insert_with(|| Arc::new(successor));
                self.predecessors
                    .insert(statement.successor.clone(), statement.signer.clone());
                self.accepted.successions.push(statement.clone());
                is_changed = true;
            }
        }
    }

    fn add_retirements(&mut self, updates: &SignerUpdates, collective: &Token) {
        for statement in &updates.retirements {
            let is_full = self.accepted.retirements.len() >= MAX_STATEMENTS;
            if self.retired.contains(&statement.retired)
                || is_full
                || statement.collective != *collective
                || !self.is_after(&statement.signer, &statement.retired)
            {
                continue;
            }
            let signer = self.find(&statement.signer, Scope::AlsoRetired);
            if signer.is_some_and(|signer| is_retirement_signed(statement, &signer.key)) {
                self.retired.push(statement.retired.clone());
                self.accepted.retirements.push(statement.clone());
            }
        }
    }

    /// Reports whether a key is a successor of another, directly or not.
    fn is_after(&self, key: &str, before: &str) -> bool {
        let mut key = key;
        for _ in 0..MAX_STATEMENTS {
            match self.predecessors.get(key) {
                Some(predecessor) if predecessor == before => return true,
                Some(predecessor) => key = predecessor,
                None => return false,
            }
        }
        false
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use chrono::DateTime;

    use super::super::Requester;
    use super::*;
    use ccm_nats::request_signature::Signer;

    fn lab() -> Token {
        "lab".parse().unwrap()
    }

    fn open(directory: &tempfile::TempDir, configured: &[&Signer]) -> SignerSet {
        let configured = configured.iter().map(|signer| TrustedSigner {
            text: signer.public_key(),
            key: PublicKey::parse(&signer.public_key()).unwrap(),
            requester: Requester {
                name: "ops".into(),
                policy: None,
            },
        });
        let path = directory.path().join("signers.json");
        SignerSet::open(configured.collect(), lab(), path).unwrap()
    }

    fn succeeds(signer: &Signer, successor: &Signer) -> SignerUpdates {
        let statement =
            signer.sign_succession(&lab(), &successor.public_key(), DateTime::UNIX_EPOCH);
        SignerUpdates {
            successions: vec![statement.unwrap()],
            ..SignerUpdates::default()
        }
    }

    fn retires(signer: &Signer, retired: &Signer) -> SignerUpdates {
        let statement = signer.sign_retirement(&lab(), &retired.public_key(), DateTime::UNIX_EPOCH);
        SignerUpdates {
            retirements: vec![statement.unwrap()],
            ..SignerUpdates::default()
        }
    }

    fn trusts(set: &SignerSet, signer: &Signer) -> bool {
        set.find(&signer.public_key(), Scope::Current).is_some()
    }

    #[test]
    fn a_successor_is_trusted_beside_the_signer_until_that_is_retired() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (Signer::generate(), Signer::generate());
        let set = open(&directory, &[&a]);
        assert!(!trusts(&set, &b));
        assert!(set.add(&succeeds(&a, &b)).unwrap());
        assert!(!set.add(&succeeds(&a, &b)).unwrap());
        assert!(trusts(&set, &a) && trusts(&set, &b));
        set.add(&retires(&b, &a)).unwrap();
        assert!(!trusts(&set, &a) && trusts(&set, &b));
        assert_eq!(set.keys(), [b.public_key()]);
        let retired = set.find(&a.public_key(), Scope::AlsoRetired);
        assert!(retired.is_some());
        // Also after a restart, and whatever the bucket has then.
        let set = open(&directory, &[&a]);
        set.add(&succeeds(&a, &b)).unwrap();
        assert!(!trusts(&set, &a) && trusts(&set, &b));
    }

    #[test]
    fn a_retired_key_names_no_successor_and_retires_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b, thief) = (Signer::generate(), Signer::generate(), Signer::generate());
        let set = open(&directory, &[&a]);
        set.add(&succeeds(&a, &b)).unwrap();
        set.add(&retires(&b, &a)).unwrap();
        assert!(!set.add(&succeeds(&a, &thief)).unwrap());
        assert!(!set.add(&retires(&a, &b)).unwrap());
        assert!(!trusts(&set, &thief) && trusts(&set, &b));
    }

    #[test]
    fn a_node_that_was_away_follows_the_whole_chain() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b, c) = (Signer::generate(), Signer::generate(), Signer::generate());
        let set = open(&directory, &[&a]);
        let mut all = retires(&c, &a);
        for updates in [retires(&c, &b), succeeds(&b, &c), succeeds(&a, &b)] {
            all.merge(&updates);
        }
        set.add(&all).unwrap();
        assert_eq!(set.keys(), [c.public_key()]);
    }

    #[test]
    fn statements_of_others_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b, thief) = (Signer::generate(), Signer::generate(), Signer::generate());
        let set = open(&directory, &[&a]);
        let mut forged = succeeds(&thief, &b);
        forged.successions[0].signer = a.public_key();
        let mut elsewhere = succeeds(&a, &b);
        elsewhere.successions[0].collective = "prod".parse().unwrap();
        for updates in [succeeds(&thief, &b), forged, elsewhere, retires(&thief, &a)] {
            assert!(!set.add(&updates).unwrap());
        }
        assert_eq!(set.keys(), [a.public_key()]);
    }

    #[test]
    fn a_successor_has_the_policy_of_its_signer() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (Signer::generate(), Signer::generate());
        let set = open(&directory, &[&a]);
        set.add(&succeeds(&a, &b)).unwrap();
        let name = |signer: &Signer| {
            let found = set.find(&signer.public_key(), Scope::Current).unwrap();
            found.requester.name.clone()
        };
        assert_eq!(name(&a), name(&b));
    }

    #[test]
    fn without_the_first_key_in_the_configuration_no_successor_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b, other) = (Signer::generate(), Signer::generate(), Signer::generate());
        open(&directory, &[&a]).add(&succeeds(&a, &b)).unwrap();
        let set = open(&directory, &[&other]);
        assert_eq!(set.keys(), [other.public_key()]);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("signers.json");
        std::fs::write(&path, "{").unwrap();
        let opened = SignerSet::open(Vec::new(), lab(), path);
        assert!(matches!(opened, Err(TrustError::Damaged { .. })));
    }
}
