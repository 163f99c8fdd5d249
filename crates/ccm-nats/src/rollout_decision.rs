//! Signatures of rollout decisions, and proofs that a node is a member of a rollout.
//!
//! The signed bytes are defined in `ccm_core::model::decision`; the caller decides which keys are
//! trusted.

use chrono::{DateTime, Utc};

use super::request_signature::{KeyError, PublicKey, Signer};
use ccm_core::model::decision::{self, MemberProof, Rollback, RolloutDecision, Sibling};
use ccm_core::model::node::{Assignment, NodeName, Token};
use ccm_core::model::rollout::{Plan, Settings};
use ccm_core::system::Digest;

/// Maximum length of a proof.
const MAX_PATH: usize = 64;

/// The content of a decision.
#[derive(Clone, Copy, Debug)]
pub struct DecisionInput<'a> {
    pub collective: &'a Token,
    pub rollout: &'a Token,
    pub created: DateTime<Utc>,
    /// The assignment of every node; its generation and time are not signed.
    pub assignment: &'a Assignment,
    pub plan: &'a Plan,
    pub settings: &'a Settings,
    pub members: &'a Members,
}

impl DecisionInput<'_> {
    /// Returns the decision without a signature.
    pub fn unsigned(&self) -> Result<RolloutDecision, KeyError> {
        let plan = decision::plan_bytes(self.plan, self.settings).map_err(serialization_error)?;
        Ok(RolloutDecision {
            collective: self.collective.clone(),
            rollout: self.rollout.clone(),
            created: self.created,
            content: content_digest(self.assignment)?.unwrap_or_default(),
            plan: digest(&plan),
            members: self.members.root().to_owned(),
            signer: String::new(),
            signature: String::new(),
        })
    }

    /// Returns the signed decision.
    pub fn sign(&self, signer: &Signer) -> Result<RolloutDecision, KeyError> {
        let decision = self.unsigned()?;
        let bytes = decision.signable().map_err(serialization_error)?;
        Ok(RolloutDecision {
            signer: signer.public_key(),
            signature: signer.sign_bytes(&bytes)?,
            ..decision
        })
    }
}

/// Returns the signed decision to roll a rollout back.
pub fn sign_rollback(
    signer: &Signer,
    decision: &RolloutDecision,
    now: DateTime<Utc>,
) -> Result<Rollback, KeyError> {
    let mut rollback = Rollback {
        decided: now,
        signer: signer.public_key(),
        signature: String::new(),
    };
    let bytes = rollback.signable(decision).map_err(serialization_error)?;
    rollback.signature = signer.sign_bytes(&bytes)?;
    Ok(rollback)
}

/// Reports whether a key signed a decision.
pub fn is_signed(decision: &RolloutDecision, key: &PublicKey) -> bool {
    let bytes = decision.signable();
    bytes.is_ok_and(|bytes| key.is_signature_valid(&bytes, &decision.signature))
}

/// Reports whether a key signed the rollback of a decision.
pub fn is_rollback_signed(
    rollback: &Rollback,
    decision: &RolloutDecision,
    key: &PublicKey,
) -> bool {
    let bytes = rollback.signable(decision);
    bytes.is_ok_and(|bytes| key.is_signature_valid(&bytes, &rollback.signature))
}

/// Reports whether a membership proof is valid for a node.
pub fn is_member(member: &MemberProof, node: &NodeName) -> bool {
    if member.path.len() > MAX_PATH {
        return false;
    }
    let Ok(leaf) = decision::leaf_bytes(node, member.wave, member.previous.as_deref()) else {
        return false;
    };
    let mut hash = digest(&leaf);
    for sibling in &member.path {
        let pair = match sibling {
            Sibling::Left(left) => decision::pair_bytes(left, &hash),
            Sibling::Right(right) => decision::pair_bytes(&hash, right),
        };
        let Ok(pair) = pair else {
            return false;
        };
        hash = digest(&pair);
    }
    hash == member.decision.members
}

/// Returns the digest of the content of an assignment; nothing if it is empty.
pub fn content_digest(assignment: &Assignment) -> Result<Option<String>, KeyError> {
    let content = decision::content_bytes(assignment).map_err(serialization_error)?;
    Ok(content.map(|bytes| digest(&bytes)))
}

fn digest(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}

fn serialization_error(_: serde_json::Error) -> KeyError {
    KeyError::Unserializable
}

/// The members of a rollout as a Merkle tree. The last hash of a row of odd length moves up
/// unchanged.
#[derive(Clone, Debug)]
pub struct Members {
    rows: Vec<Vec<String>>,
    root: String,
}

impl Members {
    /// Returns the tree of the members: node, wave, and digest of the previous assignment.
    pub fn new<'a>(
        members: impl IntoIterator<Item = (&'a NodeName, usize, Option<&'a str>)>,
    ) -> Result<Self, KeyError> {
        let mut row = Vec::new();
        for (node, wave, previous) in members {
            let leaf = decision::leaf_bytes(node, wave, previous).map_err(serialization_error)?;
            row.push(digest(&leaf));
        }
        let mut rows = Vec::new();
        while row.len() > 1 {
            let mut above = Vec::with_capacity(row.len().div_ceil(2));
            for half in row.chunks(2) {
                above.push(match half {
                    [left, right] => {
                        digest(&decision::pair_bytes(left, right).map_err(serialization_error)?)
                    }
                    alone => alone.concat(),
                });
            }
            rows.push(std::mem::replace(&mut row, above));
        }
        let root = row.into_iter().next().unwrap_or_default();
        Ok(Self { rows, root })
    }

    /// Returns the root of the tree.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Returns the proof of the member at an index: the siblings on the path to the root.
    pub fn path(&self, index: usize) -> Vec<Sibling> {
        let mut index = index;
        let mut path = Vec::new();
        for row in &self.rows {
            // The indexes of siblings differ in the last bit.
            let other = row.get(index ^ 1).cloned();
            path.extend(other.map(|hash| {
                if index.is_multiple_of(2) {
                    Sibling::Right(hash)
                } else {
                    Sibling::Left(hash)
                }
            }));
            index /= 2;
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> NodeName {
        format!("n{number}").parse().unwrap()
    }

    fn member(members: &Members, index: usize) -> MemberProof {
        MemberProof {
            decision: RolloutDecision {
                collective: "default".parse().unwrap(),
                rollout: "r1".parse().unwrap(),
                created: DateTime::UNIX_EPOCH,
                content: String::new(),
                plan: String::new(),
                members: members.root().to_owned(),
                signer: String::new(),
                signature: String::new(),
            },
            wave: index / 3,
            previous: None,
            path: members.path(index),
        }
    }

    #[test]
    fn proof_is_valid_for_its_member_only() {
        for count in 1..20 {
            let names: Vec<NodeName> = (0..count).map(name).collect();
            let leaves = names.iter().enumerate();
            let members = Members::new(leaves.map(|(at, node)| (node, at / 3, None))).unwrap();
            for (index, node) in names.iter().enumerate() {
                let good = member(&members, index);
                assert!(is_member(&good, node), "{index} of {count}");
                assert!(!is_member(&good, &name(count)));
                assert!(count == 1 || !is_member(&good, &name((index + 1) % count)));
                let moved = MemberProof {
                    wave: good.wave + 1,
                    ..good.clone()
                };
                assert!(!is_member(&moved, node));
                let other_past = MemberProof {
                    previous: Some("00".repeat(32)),
                    ..good.clone()
                };
                assert!(!is_member(&other_past, node));
            }
        }
    }

    #[test]
    fn overlong_proof_is_rejected() {
        let names = [name(0)];
        let members = Members::new([(&names[0], 0, None)]).unwrap();
        let mut long = member(&members, 0);
        long.path = vec![Sibling::Left(String::new()); MAX_PATH + 1];
        assert!(!is_member(&long, &names[0]));
    }

    #[test]
    fn every_altered_field_breaks_the_signature() {
        let signer = Signer::generate();
        let key = PublicKey::parse(&signer.public_key()).unwrap();
        let names = [name(0), name(1)];
        let members = Members::new(names.iter().map(|node| (node, 0, None))).unwrap();
        let assignment: Assignment = serde_json::from_value(serde_json::json!({
            "protocol": "x", "generation": 1, "assigned": "2027-01-15T08:00:00Z",
            "manifests": [{"name": "app", "digest": "ab".repeat(32)}],
        }))
        .unwrap();
        let (collective, rollout) = ("default".parse().unwrap(), "r1".parse().unwrap());
        let input = DecisionInput {
            collective: &collective,
            rollout: &rollout,
            created: DateTime::UNIX_EPOCH,
            assignment: &assignment,
            plan: &Plan::default(),
            settings: &Settings::default(),
            members: &members,
        };
        let good = input.sign(&signer).unwrap();
        assert!(is_signed(&good, &key));
        let changes: [fn(&mut RolloutDecision); 6] = [
            |it| it.collective = "other".parse().unwrap(),
            |it| it.rollout = "r2".parse().unwrap(),
            |it| it.created += chrono::TimeDelta::microseconds(1),
            |it| it.content.push('0'),
            |it| it.plan.push('0'),
            |it| it.members.push('0'),
        ];
        for change in changes {
            let mut changed = good.clone();
            change(&mut changed);
            assert!(!is_signed(&changed, &key), "{changed:?}");
        }
        let rollback = sign_rollback(&signer, &good, DateTime::UNIX_EPOCH).unwrap();
        assert!(is_rollback_signed(&rollback, &good, &key));
        let mut later = rollback.clone();
        later.decided += chrono::TimeDelta::seconds(1);
        assert!(!is_rollback_signed(&later, &good, &key));
        let other = RolloutDecision {
            signature: "x".into(),
            ..good
        };
        assert!(!is_rollback_signed(&rollback, &other, &key));
    }
}
