//! What the person who starts a rollout signs, and how an assignment shows that it follows from
//! it.
//!
//! A [`RolloutDecision`] covers all that was decided, by digest: the content (bundle, data, noop,
//! governor), the plan with its limits, and the members, each with its wave and with what it was
//! assigned before. Members are the leaves of a hash tree, so an assignment needs only the few
//! hashes that lead from its node to the root, and not the names of thousands of others.
//!
//! This file lays out what is hashed and signed. Hashing, signing and checking are in
//! `nats::decision`; whom a node believes is `agent::trust`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::json;
use super::node::{Assignment, NodeName, Token};
use super::rollout::{Plan, Settings};
use super::text::timestamp;

/// What was decided when a rollout was started. All digests are SHA-256 in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutDecision {
    pub collective: Token,
    pub rollout: Token,
    /// When it was decided: nodes follow no older decision than one they have accepted.
    #[serde(with = "timestamp")]
    pub created: DateTime<Utc>,
    /// The digest of what every node becomes: [`content`].
    pub content: String,
    /// The digest of waves and limits: [`plan`].
    pub plan: String,
    /// The root of the tree of members.
    pub members: String,
    /// A public key in the form NATS people know.
    pub signer: String,
    /// Over [`RolloutDecision::signable`], in base64 for URLs, without padding.
    pub signature: String,
}

impl RolloutDecision {
    /// Returns what the signature is made over: everything else.
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

/// One node of a decision, with the proof that it is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberProof {
    pub decision: RolloutDecision,
    pub wave: usize,
    /// The digest of what the node was assigned before; nothing if it was assigned nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The other halves on the way from the node's leaf to the root.
    pub path: Vec<Sibling>,
}

/// The other half of a pair in the tree of members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sibling {
    Left(String),
    Right(String),
}

/// That a rollout is to be rolled back, as somebody decided later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    #[serde(with = "timestamp")]
    pub decided: DateTime<Utc>,
    pub signer: String,
    /// Over [`Rollback::signable`], in base64 for URLs, without padding.
    pub signature: String,
}

impl Rollback {
    /// Returns what the signature is made over: when, and which decision is taken back.
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

/// Who stands for an assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AssignmentSignature {
    /// Somebody signed it for this node and this generation.
    Direct(DirectSignature),
    /// It was put back by a signed rollback. Tried before the next, which has fewer fields.
    Rollback(Box<RollbackProof>),
    /// It follows from the signed decision of a rollout.
    Rollout(Box<RolloutProof>),
}

impl AssignmentSignature {
    /// Returns the public key of who decided it.
    pub fn signer(&self) -> &str {
        match self {
            Self::Direct(direct) => &direct.signer,
            Self::Rollback(restored) => &restored.rollback.signer,
            Self::Rollout(decided) => &decided.member.decision.signer,
        }
    }

    /// Returns the decisions that an assignment is said to follow from.
    pub fn decisions(&self) -> impl Iterator<Item = &RolloutDecision> {
        let (member, origin) = match self {
            Self::Direct(_) => (None, None),
            Self::Rollout(decided) => (Some(&decided.member), None),
            Self::Rollback(restored) => (Some(&restored.member), restored.origin.as_ref()),
        };
        let origin = origin.and_then(|origin| match &origin.by {
            ProvenanceSignature::Direct(_) => None,
            ProvenanceSignature::Rollout(member) => Some(member),
        });
        member.into_iter().chain(origin).map(|it| &it.decision)
    }
}

/// A signature over [`Assignment::signable`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectSignature {
    /// A public key in the form NATS people know.
    pub signer: String,
    /// In base64 for URLs, without padding.
    pub signature: String,
}

/// Why an assignment of a rollout may be followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutProof {
    pub member: MemberProof,
    /// Who stood for what the node was assigned before, kept for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Provenance>,
}

/// Why an assignment that was put back may be followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackProof {
    /// Who stands for what was put back; nobody where the node was assigned nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Provenance>,
    /// The node as a member of the rollout that is rolled back.
    pub member: MemberProof,
    pub rollback: Rollback,
}

/// How many earlier assignments of a node are kept track of, so that as many rollouts can be rolled
/// back one after the other.
const MOST_ORIGINS: usize = 4;

/// Who stands for the content of an assignment, whatever became of that later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The generation that it was first assigned with.
    pub generation: u64,
    pub by: ProvenanceSignature,
    /// The same for what it replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<Provenance>>,
}

/// The first signature of a content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenanceSignature {
    Direct(DirectSignature),
    #[serde(rename = "decided")]
    Rollout(MemberProof),
}

impl Provenance {
    /// Returns who stands for the content of an assignment, if anybody does.
    pub fn of(assignment: &Assignment) -> Option<Self> {
        let (by, before) = match assignment.signature.as_ref()? {
            AssignmentSignature::Direct(signature) => {
                (ProvenanceSignature::Direct(signature.clone()), None)
            }
            AssignmentSignature::Rollout(decided) => (
                ProvenanceSignature::Rollout(decided.member.clone()),
                decided.before.clone(),
            ),
            AssignmentSignature::Rollback(restored) => return restored.origin.clone(),
        };
        Some(Self {
            generation: assignment.generation,
            by,
            before: before.and_then(|it| it.cut(MOST_ORIGINS - 1)).map(Box::new),
        })
    }

    /// Returns who stands for what an assignment replaced, if that is known.
    pub fn of_previous(assignment: &Assignment) -> Option<Self> {
        match assignment.signature.as_ref()? {
            AssignmentSignature::Direct(_) => None,
            AssignmentSignature::Rollout(decided) => decided.before.clone(),
            AssignmentSignature::Rollback(restored) => {
                restored.origin.clone()?.before.map(|before| *before)
            }
        }
    }

    /// Returns the first so many of a chain.
    fn cut(self, most: usize) -> Option<Self> {
        let rest = most.checked_sub(1)?;
        let before = self.before.and_then(|it| it.cut(rest)).map(Box::new);
        Some(Self { before, ..self })
    }
}

/// Returns the bytes whose digest stands for what an assignment makes of a node; nothing for an
/// assignment of nothing.
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

/// Returns the bytes whose digest stands for waves and limits. The deadline is not among them: it
/// is dropped when somebody resumes a rollout after it.
pub fn plan_bytes(plan: &Plan, settings: &Settings) -> Result<Vec<u8>, serde_json::Error> {
    let settings = Settings {
        deadline: None,
        ..settings.clone()
    };
    bytes(&("ccm.plan.v1", plan, settings))
}

/// Returns the bytes whose digest is the leaf of a member.
pub fn leaf_bytes(
    node: &NodeName,
    wave: usize,
    previous: Option<&str>,
) -> Result<Vec<u8>, serde_json::Error> {
    bytes(&("ccm.member.v1", node, wave, previous))
}

/// Returns the bytes whose digest stands for a pair in the tree of members.
pub fn pair_bytes(left: &str, right: &str) -> Result<Vec<u8>, serde_json::Error> {
    bytes(&("ccm.members.v1", left, right))
}

/// Lays out a list: it has one form and maps are sorted, so nothing else reads the same.
fn bytes(parts: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    json::compact(parts).map(String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_origins_does_not_grow_without_end_and_survives_being_stored() {
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
            let decided = Box::new(RolloutProof { member, before });
            assignment.signature = Some(AssignmentSignature::Rollout(decided));
        }
        let mut generations = Vec::new();
        let mut next = Provenance::of(&assignment);
        while let Some(origin) = next {
            generations.push(origin.generation);
            next = origin.before.map(|before| *before);
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
