//! Rollout signatures: signing a rollout when it starts, and verifying it before a controller
//! assigns or restores anything.
//!
//! Controllers never sign what they read from the bucket. An unsigned rollout stays unsigned; nodes
//! that require signatures refuse it. The signature covers the content, the plan, the limits and
//! the previous assignments. It does not cover progress: state, wave, node progress and lease.
//! Write access to the bucket thus allows to stop, speed up or misreport a rollout, but not to
//! change what is assigned, to which nodes, or what a rollback restores.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::assignments::assignment;
use ccm_core::model::decision::{
    AssignmentSignature, MemberProof, Provenance, RollbackProof, RolloutDecision, RolloutProof,
};
use ccm_core::model::node::{Assignment, NodeName};
use ccm_core::model::rollout::{Rollout, RolloutState};
use ccm_nats::request_signature::{KeyError, PublicKey, Signer};
use ccm_nats::rollout_decision::{
    DecisionInput, Members, content_digest, is_rollback_signed, is_signed, sign_rollback,
};

/// Why a stored rollout is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("not signed")]
    Unsigned,
    #[error("signer {0} is not trusted")]
    UntrustedSigner(String),
    #[error("{0} differs from what was signed")]
    Differs(&'static str),
    #[error("invalid signature")]
    Signature,
    #[error("rollback not signed")]
    UnsignedRollback,
    #[error("invalid signature of the rollback")]
    RollbackSignature,
    #[error("previous assignment of node {0} differs from what was signed")]
    Previous(NodeName),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The signers whose rollouts a controller drives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedSigners {
    /// Public keys; empty if any signer is accepted.
    keys: BTreeSet<String>,
    is_signature_required: bool,
}

impl TrustedSigners {
    /// Trusts these keys, or any signer if there are none. Unsigned rollouts are refused if there
    /// are keys or if signatures are required.
    pub fn new(keys: impl IntoIterator<Item = String>, is_signature_required: bool) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            is_signature_required,
        }
    }

    fn key(&self, signer: &str) -> Result<PublicKey, VerifyError> {
        if !self.keys.is_empty() && !self.keys.contains(signer) {
            return Err(VerifyError::UntrustedSigner(signer.to_owned()));
        }
        Ok(PublicKey::parse(signer)?)
    }
}

/// Signs a new rollout.
pub fn sign(rollout: &mut Rollout, signer: &Signer) -> Result<(), KeyError> {
    let members = Proofs::new(rollout)?.members;
    let content = assignment(rollout, 0, rollout.created);
    rollout.decision = Some(decided(rollout, &content, &members).sign(signer)?);
    Ok(())
}

/// Signs the rollback of a rollout. The signed time is always later than that of the rollout,
/// because clocks differ. Does nothing if the rollout itself is not signed.
pub(super) fn attach_rollback_signature(
    rollout: &mut Rollout,
    signer: &Signer,
    now: DateTime<Utc>,
) -> Result<(), KeyError> {
    if let Some(decision) = &rollout.decision {
        let next = TimeDelta::microseconds(1);
        let earliest = decision.created.checked_add_signed(next).unwrap_or(now);
        rollout.rollback = Some(sign_rollback(signer, decision, now.max(earliest))?);
    }
    Ok(())
}

/// Verifies a stored rollout with any signer, and returns the public key of its signer, if it is
/// signed.
pub fn signer(rollout: &Rollout) -> Result<Option<&str>, VerifyError> {
    verify(rollout, &TrustedSigners::default())?;
    Ok(rollout.decision.as_ref().map(|it| it.signer.as_str()))
}

/// Verifies a stored rollout. Returns the membership proofs for its nodes, or none if it is not
/// signed.
pub(super) fn verify(
    rollout: &Rollout,
    trusted: &TrustedSigners,
) -> Result<Option<Proofs>, VerifyError> {
    let Some(decision) = &rollout.decision else {
        let is_refused = trusted.is_signature_required || !trusted.keys.is_empty();
        return if is_refused {
            Err(VerifyError::Unsigned)
        } else {
            Ok(None)
        };
    };
    let proofs = Proofs::new(rollout)?;
    let content = assignment(rollout, 0, rollout.created);
    let actual = decided(rollout, &content, &proofs.members).unsigned()?;
    if let Some(part) = difference(&actual, decision) {
        return Err(VerifyError::Differs(part));
    }
    if !is_signed(decision, &trusted.key(&decision.signer)?) {
        return Err(VerifyError::Signature);
    }
    if rollout.state == RolloutState::RollingBack {
        let rollback = rollout.rollback.as_ref();
        let rollback = rollback.ok_or(VerifyError::UnsignedRollback)?;
        if !is_rollback_signed(rollback, decision, &trusted.key(&rollback.signer)?) {
            return Err(VerifyError::RollbackSignature);
        }
        for node in rollout.previous.nodes() {
            if !proofs.is_previous(node, rollout.previous.get(node).flatten())? {
                return Err(VerifyError::Previous(node.clone()));
            }
        }
    }
    Ok(Some(proofs))
}

fn decided<'a>(
    rollout: &'a Rollout,
    content: &'a Assignment,
    members: &'a Members,
) -> DecisionInput<'a> {
    DecisionInput {
        collective: &rollout.collective,
        rollout: &rollout.id,
        created: rollout.created,
        assignment: content,
        plan: &rollout.plan,
        settings: &rollout.settings,
        members,
    }
}

/// Returns the first part of a rollout that differs from what was signed.
fn difference(actual: &RolloutDecision, signed: &RolloutDecision) -> Option<&'static str> {
    let micros = |decision: &RolloutDecision| decision.created.timestamp_micros();
    let is_same = [
        (actual.collective == signed.collective, "collective"),
        (actual.rollout == signed.rollout, "name"),
        (micros(actual) == micros(signed), "time of creation"),
        (
            actual.content == signed.content,
            "bundle, data, noop or governor",
        ),
        (actual.plan == signed.plan, "plan or limits"),
        (
            actual.members == signed.members,
            "list of nodes or previous assignments",
        ),
    ];
    is_same
        .into_iter()
        .find_map(|(is_same, part)| (!is_same).then_some(part))
}

/// Proofs for nodes that they are members of a signed rollout.
#[derive(Clone, Debug)]
pub(super) struct Proofs {
    members: Members,
    nodes: BTreeMap<NodeName, MemberPosition>,
}

/// Position of a node in the plan and in the tree of members.
#[derive(Clone, Debug)]
struct MemberPosition {
    number: usize,
    wave: usize,
    /// Digest of its previous assignment.
    previous: Option<String>,
}

impl Proofs {
    fn new(rollout: &Rollout) -> Result<Self, KeyError> {
        let mut before: BTreeMap<&NodeName, &str> = BTreeMap::new();
        for (digest, nodes) in &rollout.previous_digests {
            before.extend(nodes.iter().map(|node| (node, digest.as_str())));
        }
        let waves = rollout.plan.waves.iter().enumerate();
        let members: Vec<(&NodeName, usize, Option<&str>)> = waves
            .flat_map(|(wave, it)| it.nodes.iter().map(move |node| (node, wave)))
            .map(|(node, wave)| (node, wave, before.get(node).copied()))
            .collect();
        let positions = members.iter().enumerate();
        let positions = positions.map(|(number, (node, wave, previous))| {
            let position = MemberPosition {
                number,
                wave: *wave,
                previous: previous.map(str::to_owned),
            };
            ((*node).clone(), position)
        });
        Ok(Self {
            nodes: positions.collect(),
            members: Members::new(members)?,
        })
    }

    /// Reports whether this was the assignment of a node before the rollout, according to the
    /// signature.
    pub(super) fn is_previous(
        &self,
        node: &NodeName,
        assignment: Option<&Assignment>,
    ) -> Result<bool, KeyError> {
        let Some(position) = self.nodes.get(node) else {
            return Ok(false);
        };
        let content = match assignment {
            Some(assignment) => content_digest(assignment)?,
            None => None,
        };
        Ok(content == position.previous)
    }

    /// Returns the proof that a node may follow its assignment of a rollout; `over` is the
    /// assignment that it replaces.
    pub(super) fn assigned(
        &self,
        rollout: &Rollout,
        node: &NodeName,
        over: Option<&Assignment>,
    ) -> Option<AssignmentSignature> {
        let before = match over {
            Some(ours) if ours.rollout.as_ref() == Some(&rollout.id) => {
                Provenance::of_previous(ours)
            }
            Some(other) => Provenance::of(other),
            None => None,
        };
        let member = self.member(rollout, node)?;
        Some(AssignmentSignature::Rollout(Box::new(RolloutProof {
            member,
            before,
        })))
    }

    /// Returns the proof that a node may follow the assignment that a rollback restores; `origin` is
    /// the provenance of its content.
    pub(super) fn restored(
        &self,
        rollout: &Rollout,
        node: &NodeName,
        origin: Option<Provenance>,
    ) -> Option<AssignmentSignature> {
        Some(AssignmentSignature::Rollback(Box::new(RollbackProof {
            origin,
            member: self.member(rollout, node)?,
            rollback: rollout.rollback.clone()?,
        })))
    }

    fn member(&self, rollout: &Rollout, node: &NodeName) -> Option<MemberProof> {
        let position = self.nodes.get(node)?;
        Some(MemberProof {
            decision: rollout.decision.clone()?,
            wave: position.wave,
            previous: position.previous.clone(),
            path: self.members.path(position.number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout() -> Rollout {
        let mut rollout: Rollout = serde_json::from_value(serde_json::json!({
            "protocol": ccm_core::model::rollout::ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "data": {"a": 5.0},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": [{"name": "canary", "canary": true, "nodes": ["a"]},
                               {"name": "wave 1", "nodes": ["b", "c"]}]},
            "state": {"name": "running"}
        }))
        .unwrap();
        let before = BTreeSet::from(["b".parse().unwrap()]);
        rollout.previous_digests.insert("cd".repeat(32), before);
        rollout
    }

    fn text(rollout: &Rollout, trusted: &TrustedSigners) -> String {
        match verify(rollout, trusted) {
            Ok(proofs) => format!("verified {}", proofs.is_some()),
            Err(err) => err.to_string(),
        }
    }

    #[test]
    fn changes_to_the_signed_parts_are_detected() {
        let signer = Signer::generate();
        let mut good = rollout();
        sign(&mut good, &signer).unwrap();
        let any_signer = TrustedSigners::default();
        assert_eq!(text(&good, &any_signer), "verified true");
        type Change = (&'static str, fn(&mut Rollout));
        let changes: [Change; 13] = [
            ("collective", |it| it.collective = "x".parse().unwrap()),
            ("name", |it| it.id = "r2".parse().unwrap()),
            ("time of creation", |it| {
                it.created += TimeDelta::seconds(1);
            }),
            ("bundle, data", |it| {
                it.bundle.digest = "cd".repeat(32).parse().unwrap();
            }),
            ("bundle, data", |it| it.data = ccm_value::Value::Null),
            ("bundle, data", |it| it.noop = true),
            ("bundle, data", |it| {
                it.settings.governor = serde_json::from_str(r#"{"name":"g"}"#).unwrap();
            }),
            ("plan or limits", |it| {
                it.settings.budget.max_failures = Some(9);
            }),
            ("plan or limits", |it| it.plan.waves[0].canary = false),
            ("plan or limits", |it| {
                it.plan.waves[1].nodes.push("d".parse().unwrap());
            }),
            ("plan or limits", |it| {
                let moved = it.plan.waves[1].nodes.remove(0);
                it.plan.waves[0].nodes.push(moved);
            }),
            ("list of nodes", |it| it.previous_digests.clear()),
            ("signature", |it| {
                it.decision.as_mut().unwrap().signature.truncate(10);
            }),
        ];
        for (part, change) in changes {
            let mut changed = good.clone();
            change(&mut changed);
            let found = text(&changed, &any_signer);
            assert!(found.contains(part), "{part}: {found}");
        }
    }

    #[test]
    fn progress_may_change() {
        let mut rollout = rollout();
        sign(&mut rollout, &Signer::generate()).unwrap();
        rollout.wave = 1;
        rollout.state = RolloutState::Done;
        rollout.settings.deadline = Some(rollout.created);
        let stored = serde_json::to_string(&rollout).unwrap();
        let read = serde_json::from_str(&stored).unwrap();
        assert_eq!(text(&read, &TrustedSigners::default()), "verified true");
    }

    #[test]
    fn only_listed_signers_are_trusted_if_there_is_a_list() {
        let (ops, other) = (Signer::generate(), Signer::generate());
        let trusted = TrustedSigners::new([ops.public_key()], false);
        let mut rollout = rollout();
        assert_eq!(text(&rollout, &TrustedSigners::default()), "verified false");
        assert_eq!(text(&rollout, &trusted), "not signed");
        let required = TrustedSigners::new([], true);
        assert_eq!(text(&rollout, &required), "not signed");
        sign(&mut rollout, &other).unwrap();
        assert!(text(&rollout, &trusted).contains("is not trusted"));
        assert_eq!(text(&rollout, &required), "verified true");
        sign(&mut rollout, &ops).unwrap();
        assert_eq!(text(&rollout, &trusted), "verified true");
    }

    #[test]
    fn a_rollback_is_signed_and_restores_the_signed_assignments() {
        let signer = Signer::generate();
        let any_signer = TrustedSigners::default();
        let mut rollout = rollout();
        let before = assignment(&rollout, 3, rollout.created);
        let digest = content_digest(&before).unwrap().unwrap();
        let nodes = rollout.previous_digests.pop_first().unwrap().1;
        rollout.previous_digests.insert(digest, nodes);
        sign(&mut rollout, &signer).unwrap();
        rollout.previous.record("a".parse().unwrap(), None);
        rollout
            .previous
            .record("b".parse().unwrap(), Some(before.clone()));
        rollout.state = RolloutState::RollingBack;
        assert_eq!(text(&rollout, &any_signer), "rollback not signed");
        attach_rollback_signature(&mut rollout, &signer, before.assigned).unwrap();
        assert_eq!(text(&rollout, &any_signer), "verified true");
        let mut late = rollout.clone();
        late.rollback.as_mut().unwrap().decided += TimeDelta::seconds(1);
        assert!(text(&late, &any_signer).contains("signature of the rollback"));
        for (node, evil) in [
            ("a", Some(before.clone())),
            ("b", None),
            (
                "b",
                Some(Assignment {
                    noop: true,
                    ..before.clone()
                }),
            ),
        ] {
            let mut swapped = rollout.clone();
            swapped.previous = Default::default();
            swapped.previous.record(node.parse().unwrap(), evil);
            let found = text(&swapped, &any_signer);
            assert_eq!(
                found,
                format!("previous assignment of node {node} differs from what was signed")
            );
        }
    }
}
