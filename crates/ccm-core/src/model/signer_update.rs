//! Signed statements about signers, by which a fleet rotates the key of a signer.
//!
//! A [`Succession`] is signed by a signer and gives another key the same rights. A [`Retirement`] is
//! signed by a successor and ends the use of the key before it. Both are facts that stay true: a node
//! keeps what it has accepted, so the order in which it reads them does not matter, and an old copy
//! takes nothing back. Signing is in `ccm_nats::signer_update`; what a node accepts is decided in
//! `ccm_agent::trust`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::json;
use super::node::Token;
use super::text::timestamp;

/// Protocol of the document.
pub const SIGNER_UPDATES: &str = "io.choria.ccm.v1.signer.updates";

/// Most statements of each sort that are kept.
pub const MAX_STATEMENTS: usize = 64;

/// All statements about the signers of a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignerUpdates {
    pub protocol: String,
    #[serde(default)]
    pub successions: Vec<Succession>,
    #[serde(default)]
    pub retirements: Vec<Retirement>,
}

impl Default for SignerUpdates {
    fn default() -> Self {
        Self {
            protocol: SIGNER_UPDATES.into(),
            successions: Vec::new(),
            retirements: Vec::new(),
        }
    }
}

impl SignerUpdates {
    /// Reports whether there are no statements.
    pub fn is_empty(&self) -> bool {
        self.successions.is_empty() && self.retirements.is_empty()
    }

    /// Adds the statements of another document that are missing here. Returns whether there are any.
    pub fn merge(&mut self, other: &Self) -> bool {
        let before = (self.successions.len(), self.retirements.len());
        for succession in &other.successions {
            if !self.successions.contains(succession) {
                self.successions.push(succession.clone());
            }
        }
        for retirement in &other.retirements {
            if !self.retirements.contains(retirement) {
                self.retirements.push(retirement.clone());
            }
        }
        before != (self.successions.len(), self.retirements.len())
    }
}

/// Statement of a signer that another key has the same rights. Keys are public NKeys, signatures are
/// in unpadded URL-safe base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    pub collective: Token,
    /// Key that signed it.
    pub signer: String,
    pub successor: String,
    #[serde(with = "timestamp")]
    pub created: DateTime<Utc>,
    pub signature: String,
}

impl Succession {
    /// Returns the signed bytes: every field but the signature.
    pub fn signable(&self) -> Result<Vec<u8>, serde_json::Error> {
        let created = self.created.timestamp_micros();
        let parts = (
            "ccm.signer.succession.v1",
            &self.collective,
            &self.signer,
            &self.successor,
            created,
        );
        json::compact(&parts).map(String::into_bytes)
    }
}

/// Statement of a successor that a key before it is no longer used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retirement {
    pub collective: Token,
    /// Key that is no longer used.
    pub retired: String,
    /// Key that signed it.
    pub signer: String,
    #[serde(with = "timestamp")]
    pub created: DateTime<Utc>,
    pub signature: String,
}

impl Retirement {
    /// Returns the signed bytes: every field but the signature.
    pub fn signable(&self) -> Result<Vec<u8>, serde_json::Error> {
        let created = self.created.timestamp_micros();
        let parts = (
            "ccm.signer.retirement.v1",
            &self.collective,
            &self.retired,
            &self.signer,
            created,
        );
        json::compact(&parts).map(String::into_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn succession(successor: &str) -> Succession {
        Succession {
            collective: "lab".parse().unwrap(),
            signer: "UA".into(),
            successor: successor.into(),
            created: DateTime::UNIX_EPOCH,
            signature: "s".into(),
        }
    }

    #[test]
    fn every_field_is_signed() {
        let statement = succession("UB");
        let changes: [fn(&mut Succession); 4] = [
            |it| it.collective = "prod".parse().unwrap(),
            |it| it.signer = "UX".into(),
            |it| it.successor = "UX".into(),
            |it| it.created += chrono::TimeDelta::seconds(1),
        ];
        for change in changes {
            let mut changed = statement.clone();
            change(&mut changed);
            assert_ne!(changed.signable().unwrap(), statement.signable().unwrap());
        }
    }

    #[test]
    fn statements_are_added_once() {
        let one = SignerUpdates {
            successions: vec![succession("UB")],
            ..SignerUpdates::default()
        };
        let mut all = SignerUpdates::default();
        assert!(all.merge(&one));
        assert!(!all.merge(&one));
        assert_eq!(all, one);
    }
}
