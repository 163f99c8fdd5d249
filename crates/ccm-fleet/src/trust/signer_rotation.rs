//! Rotation of the request signer, without an interruption: a new key is added as successor of the
//! old one, both are valid, and the old one is retired later.
//!
//! Nodes learn it from signed statements in the fleet's bucket; `signers.json` has the same
//! statements, so that they can be published again.

use chrono::{DateTime, Utc};

use super::{MAX_FILE, TrustDir, TrustError, store_public, store_secret};
use ccm_core::model::signer_update::SignerUpdates;
use ccm_core::system::files;
use ccm_nats::request_signature::Signer;
use ccm_value::secret::Secret;

/// Seed of the current request signer.
const CURRENT: &str = "signer.seed";

/// Seed of the signer before it, until that is retired.
const PREVIOUS: &str = "signer-previous.seed";

/// Seed of a new signer whose statement may not be published yet.
const NEXT: &str = "signer-next.seed";

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

    /// Creates a successor of the request signer and the statement about it, which must be published
    /// before [`TrustDir::finish_signer_rotation`]. Creates no other one if it was interrupted.
    pub fn begin_signer_rotation(&self, now: DateTime<Utc>) -> Result<String, TrustError> {
        if let Some(previous) = &self.fleet.previous_signer {
            return Err(TrustError::SignerNotRetired(previous.clone()));
        }
        let current = self.signer(CURRENT)?;
        let next = match self.signer(NEXT) {
            Err(TrustError::File(err)) if err.is_not_found() => {
                let next = Signer::generate();
                self.store_signer(NEXT, &next)?;
                next
            }
            next => next?,
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
    pub fn finish_signer_rotation(&mut self) -> Result<(), TrustError> {
        let (current, next) = (self.signer(CURRENT)?, self.signer(NEXT)?);
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
        let previous = self.fleet.previous_signer.clone();
        let previous = previous.ok_or(TrustError::NoPreviousSigner)?;
        let mut updates = self.signer_updates()?;
        if !updates.retirements.iter().any(|it| it.retired == previous) {
            let current = self.signer(CURRENT)?;
            let statement = current.sign_retirement(&self.fleet.collective, &previous, now);
            updates
                .retirements
                .push(statement.map_err(TrustError::Signer)?);
            self.store_signer_updates(&updates)?;
        }
        Ok(previous)
    }

    /// Removes the seed of the previous request signer, and replaces its key in the `trust` section
    /// of nodes that enroll from now on. Returns whether that section had it.
    pub fn finish_signer_retirement(&mut self) -> Result<bool, TrustError> {
        let Some(previous) = self.fleet.previous_signer.take() else {
            return Err(TrustError::NoPreviousSigner);
        };
        let before = self.agent_trust()?;
        let after = before.replace(&previous, &self.fleet.signer);
        store_public(&self.at("agent-trust.yaml"), &after)?;
        self.store_fleet()?;
        match files::remove(&self.at(PREVIOUS)) {
            Err(err) if !err.is_not_found() => return Err(err.into()),
            _ => {}
        }
        Ok(before != after)
    }

    fn signer(&self, name: &str) -> Result<Signer, TrustError> {
        let seed = files::read_secret(&self.at(name), MAX_FILE)?;
        Signer::from_seed(seed.trim()).map_err(TrustError::Signer)
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
