//! Signed rollout decisions, and the proofs by which an assignment follows from one.
//!
//! A [`RolloutDecision`] contains the digests of the content (bundle, data, noop, governor), of the
//! plan with its limits, and of the members: each node with its wave and its previous assignment.
//! Members are the leaves of a Merkle tree, so an assignment carries only the hashes on the path
//! from its node to the root instead of the names of all other nodes.
//!
//! This file defines what is hashed and signed. Hashing, signing and verification are in
//! `ccm_nats::rollout_decision`; which signers a node trusts is decided in `ccm_agent::trust`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::incarnation::Incarnation;
use super::json;
use super::node::{Assignment, NodeName, Token};
use super::rollout::{Plan, Settings};
use super::text::timestamp;

/// Signed decision to start a rollout. All digests are SHA-256 in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutDecision {
    pub collective: Token,
    pub rollout: Token,
    /// Time of the decision. A node rejects a decision older than one it has accepted.
    #[serde(with = "timestamp")]
    pub created: DateTime<Utc>,
    /// Digest of the content of the assignments: [`content_bytes`].
    pub content: String,
    /// Digest of waves and limits: [`plan_bytes`].
    pub plan: String,
    /// Root of the Merkle tree of members.
    pub members: String,
    /// Public NKey of the signer.
    pub signer: String,
    /// Signature of [`RolloutDecision::signable`], in unpadded URL-safe base64.
    pub signature: String,
}

impl RolloutDecision {
    /// Returns the signed bytes: every field but the signature and the signer.
    pub fn signable(&self) -> Result<Vec<u8>, serde_json::Error> {
        let created = self.created.timestamp_micros();
        bytes(&(
            "ccm.rollout.v1",
            &self.collective,
            &self.rollout,
            created,
            &self.content,
            &self.plan,
            &self.members,
        ))
    }
}

/// Proof that a node is a member of a rollout decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberProof {
    pub decision: RolloutDecision,
    pub wave: usize,
    /// Digest of the node's previous assignment; none if it had no assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// Sibling hashes on the path from the node's leaf to the root.
    pub path: Vec<Sibling>,
}

/// Sibling hash in the Merkle tree of members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sibling {
    Left(String),
    Right(String),
}

/// Signed decision to roll back a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    #[serde(with = "timestamp")]
    pub decided: DateTime<Utc>,
    pub signer: String,
    /// Signature of [`Rollback::signable`], in unpadded URL-safe base64.
    pub signature: String,
}

impl Rollback {
    /// Returns the signed bytes: the time, and the decision that is rolled back.
    pub fn signable(&self, decision: &RolloutDecision) -> Result<Vec<u8>, serde_json::Error> {
        let decided = self.decided.timestamp_micros();
        let RolloutDecision {
            collective,
            rollout,
            signature,
            ..
        } = decision;
        bytes(&("ccm.rollback.v1", collective, rollout, signature, decided))
    }
}

/// Signature of an assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AssignmentSignature {
    /// Signed for this node and this generation.
    Direct(DirectSignature),
    /// Restored by a signed rollback. Listed before `Rollout`, which has fewer fields: serde takes the
    /// first variant that fits.
    Rollback(Box<RollbackProof>),
    /// Follows from the signed decision of a rollout.
    Rollout(Box<RolloutProof>),
}

impl AssignmentSignature {
    /// Returns the public key of the signer.
    pub fn signer(&self) -> &str {
        match self {
            Self::Direct(direct) => &direct.signer,
            Self::Rollback(proof) => &proof.rollback.signer,
            Self::Rollout(proof) => &proof.member.decision.signer,
        }
    }

    /// Returns the decisions that the assignment claims to follow from.
    pub fn decisions(&self) -> impl Iterator<Item = &RolloutDecision> {
        let (member, origin) = match self {
            Self::Direct(_) => (None, None),
            Self::Rollout(proof) => (Some(&proof.member), None),
            Self::Rollback(proof) => (Some(&proof.member), proof.origin.as_ref()),
        };
        let origin = origin.and_then(|origin| match &origin.by {
            ProvenanceSignature::Direct(_) => None,
            ProvenanceSignature::Rollout(member) => Some(member),
        });
        member.into_iter().chain(origin).map(|it| &it.decision)
    }
}

/// Signature of [`Assignment::signable`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectSignature {
    /// Public NKey of the signer.
    pub signer: String,
    /// In unpadded URL-safe base64.
    pub signature: String,
}

/// Proof that an assignment follows from a rollout decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutProof {
    pub member: MemberProof,
    /// Provenance of the previous assignment, kept for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Provenance>,
}

/// Proof that an assignment was restored by a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackProof {
    /// Provenance of the restored assignment; none if the node had no assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Provenance>,
    /// Membership of the node in the rollout that is rolled back.
    pub member: MemberProof,
    pub rollback: Rollback,
}

/// Number of earlier assignments whose provenance is kept: as many rollouts can be rolled back one
/// after the other.
const MAX_PROVENANCES: usize = 4;

/// Original signature of the content of an assignment, kept across restores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Generation of the first assignment of this content.
    pub generation: u64,
    /// Incarnation of that assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    pub by: ProvenanceSignature,
    /// Provenance of the content that it replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<Provenance>>,
}

/// Original signature of an assignment's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenanceSignature {
    Direct(DirectSignature),
    #[serde(rename = "decided")]
    Rollout(MemberProof),
}

impl Provenance {
    /// Returns the provenance of an assignment, if it is signed.
    pub fn of(assignment: &Assignment) -> Option<Self> {
        let (by, before) = match assignment.signature.as_ref()? {
            AssignmentSignature::Direct(signature) => {
                (ProvenanceSignature::Direct(signature.clone()), None)
            }
            AssignmentSignature::Rollout(proof) => (
                ProvenanceSignature::Rollout(proof.member.clone()),
                proof.before.clone(),
            ),
            AssignmentSignature::Rollback(proof) => return proof.origin.clone(),
        };
        Some(Self {
            generation: assignment.generation,
            incarnation: assignment.incarnation.clone(),
            by,
            before: before
                .and_then(|it| it.cut(MAX_PROVENANCES - 1))
                .map(Box::new),
        })
    }

    /// Returns the provenance of the assignment that this one replaced, if known.
    pub fn of_previous(assignment: &Assignment) -> Option<Self> {
        match assignment.signature.as_ref()? {
            AssignmentSignature::Direct(_) => None,
            AssignmentSignature::Rollout(proof) => proof.before.clone(),
            AssignmentSignature::Rollback(proof) => {
                proof.origin.clone()?.before.map(|before| *before)
            }
        }
    }

    /// Returns the chain cut to at most `most` entries.
    fn cut(self, most: usize) -> Option<Self> {
        let rest = most.checked_sub(1)?;
        let before = self.before.and_then(|it| it.cut(rest)).map(Box::new);
        Some(Self { before, ..self })
    }
}

/// Returns the bytes that the content digest of an assignment is computed from; none for an
/// assignment without manifests.
pub fn content_bytes(assignment: &Assignment) -> Result<Option<Vec<u8>>, serde_json::Error> {
    let Assignment {
        manifests,
        data,
        noop,
        governor,
        ..
    } = assignment;
    if manifests.is_empty() {
        return Ok(None);
    }
    bytes(&("ccm.content.v1", manifests, data, noop, governor)).map(Some)
}

/// Returns the bytes that the digest of waves and limits is computed from. The deadline is left out:
/// it is removed when a rollout is resumed after it.
pub fn plan_bytes(plan: &Plan, settings: &Settings) -> Result<Vec<u8>, serde_json::Error> {
    let settings = Settings {
        deadline: None,
        ..settings.clone()
    };
    bytes(&("ccm.plan.v1", plan, settings))
}

/// Returns the bytes that the leaf hash of a member is computed from.
pub fn leaf_bytes(
    node: &NodeName,
    wave: usize,
    previous: Option<&str>,
) -> Result<Vec<u8>, serde_json::Error> {
    bytes(&("ccm.member.v1", node, wave, previous))
}

/// Returns the bytes that the hash of an inner tree node is computed from.
pub fn pair_bytes(left: &str, right: &str) -> Result<Vec<u8>, serde_json::Error> {
    bytes(&("ccm.members.v1", left, right))
}

/// Serializes a list canonically: maps are sorted, so equal bytes mean equal content.
fn bytes(parts: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    json::compact(parts).map(String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provenance_chain_is_limited_and_round_trips() {
        let mut assignment: Assignment = serde_json::from_value(serde_json::json!({
            "protocol": "x", "generation": 0, "manifests": [], "assigned": "2027-01-15T08:00:00Z",
        }))
        .unwrap();
        let member: MemberProof = serde_json::from_value(serde_json::json!({
            "decision": {
                "collective": "default", "rollout": "r1", "created": "2027-01-15T08:00:00Z",
                "content": "", "plan": "", "members": "", "signer": "", "signature": ""
            },
            "wave": 0, "path": []
        }))
        .unwrap();
        for generation in 1..10 {
            let before = Provenance::of(&assignment);
            let member = member.clone();
            assignment.generation = generation;
            let proof = Box::new(RolloutProof { member, before });
            assignment.signature = Some(AssignmentSignature::Rollout(proof));
        }
        let mut generations = Vec::new();
        let mut next = Provenance::of(&assignment);
        while let Some(provenance) = next {
            generations.push(provenance.generation);
            next = provenance.before.map(|before| *before);
        }
        assert_eq!(generations, [9, 8, 7, 6]);
        assert_eq!(Provenance::of_previous(&assignment).unwrap().generation, 8);
        let restored = Box::new(RollbackProof {
            origin: Provenance::of_previous(&assignment),
            member: member.clone(),
            rollback: Rollback {
                decided: DateTime::UNIX_EPOCH,
                signer: String::new(),
                signature: String::new(),
            },
        });
        let direct = DirectSignature {
            signer: String::new(),
            signature: String::new(),
        };
        for signature in [
            assignment.signature.clone().unwrap(),
            AssignmentSignature::Rollback(restored),
            AssignmentSignature::Direct(direct),
        ] {
            let text = serde_json::to_string(&signature).unwrap();
            let read: AssignmentSignature = serde_json::from_str(&text).unwrap();
            assert_eq!(read, signature);
        }
    }
}
