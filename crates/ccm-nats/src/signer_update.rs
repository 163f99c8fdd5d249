//! Statements about signers: signing, verification, and their bucket.
//!
//! What is signed is defined in `ccm_core::model::signer_update`.

use chrono::{DateTime, Utc};

use super::kv::failed;
use super::request_signature::{KeyError, PublicKey, Signer};
use super::streams::TRUST;
use super::{Connection, NatsError, Subjects};
use ccm_core::model::node::Token;
use ccm_core::model::signer_update::{Retirement, SignerUpdates, Succession};

/// Number of attempts when another client changes the statements at the same time.
const MAX_ATTEMPTS: usize = 10;

impl Signer {
    /// Signs that another key has the same rights as this one.
    pub fn sign_succession(
        &self,
        collective: &Token,
        successor: &str,
        now: DateTime<Utc>,
    ) -> Result<Succession, KeyError> {
        let mut statement = Succession {
            collective: collective.clone(),
            signer: self.public_key(),
            successor: successor.into(),
            created: now,
            signature: String::new(),
        };
        let bytes = statement.signable().map_err(|_| KeyError::Unserializable)?;
        statement.signature = self.sign_bytes(&bytes)?;
        Ok(statement)
    }

    /// Signs that a key before this one is no longer used.
    pub fn sign_retirement(
        &self,
        collective: &Token,
        retired: &str,
        now: DateTime<Utc>,
    ) -> Result<Retirement, KeyError> {
        let mut statement = Retirement {
            collective: collective.clone(),
            retired: retired.into(),
            signer: self.public_key(),
            created: now,
            signature: String::new(),
        };
        let bytes = statement.signable().map_err(|_| KeyError::Unserializable)?;
        statement.signature = self.sign_bytes(&bytes)?;
        Ok(statement)
    }
}

/// Reports whether a key signed this succession.
pub fn is_succession_signed(statement: &Succession, key: &PublicKey) -> bool {
    let bytes = statement.signable();
    bytes.is_ok_and(|bytes| key.is_signature_valid(&bytes, &statement.signature))
}

/// Reports whether a key signed this retirement.
pub fn is_retirement_signed(statement: &Retirement, key: &PublicKey) -> bool {
    let bytes = statement.signable();
    bytes.is_ok_and(|bytes| key.is_signature_valid(&bytes, &statement.signature))
}

impl Connection {
    /// Returns the statements about the signers of a collective.
    pub async fn signer_updates(&self, subjects: &Subjects) -> Result<SignerUpdates, NatsError> {
        let key = subjects.signers_key();
        let bucket = self.bucket(TRUST).await?;
        match bucket.get(&key).await? {
            None => Ok(SignerUpdates::default()),
            Some(entry) => serde_json::from_slice(&entry.value)
                .map_err(|err| failed("read", &format!("{TRUST}#{key}"), err)),
        }
    }

    /// Adds statements about the signers of a collective; existing ones are kept.
    pub async fn add_signer_updates(
        &self,
        subjects: &Subjects,
        updates: &SignerUpdates,
    ) -> Result<(), NatsError> {
        let key = subjects.signers_key();
        let invalid = |err| failed("write", &format!("{TRUST}#{key}"), err);
        let bucket = self.bucket(TRUST).await?;
        let mut attempts = 0;
        loop {
            let found = bucket.get(&key).await?;
            let mut all = match &found {
                None => SignerUpdates::default(),
                Some(entry) => serde_json::from_slice(&entry.value).map_err(invalid)?,
            };
            if !all.merge(updates) {
                return Ok(());
            }
            let text = serde_json::to_vec(&all).map_err(invalid)?;
            let written = match found {
                Some(entry) => bucket.update(&key, text.into(), entry.revision).await,
                None => bucket.create(&key, text.into()).await,
            };
            attempts += 1;
            match written {
                Err(err) if err.is_conflict() && attempts < MAX_ATTEMPTS => {}
                written => return written.map(drop),
            }
        }
    }
}
