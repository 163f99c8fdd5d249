//! What was decided about a rollout: signed when it is started, checked by every controller before
//! it assigns or restores anything. No controller signs what it finds in the bucket.
//!
//! What is unsigned stays unsigned, and is for the nodes to refuse. What may change without a
//! signature is how far the rollout is: its state, the wave, what became of each node, who drives
//! it. So whoever can write the bucket can stop or hurry a rollout, or lie about it, but can't
//! change what is assigned, to which nodes, or what a rollback puts back.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::assignments::assignment;
use ccm_core::model::decision::{
    AssignmentSignature, Decided as DecidedSignature, Decision, Member, Origin, Restored,
};
use ccm_core::model::node::{Assignment, NodeName};
use ccm_core::model::rollout::{Rollout, State};
use ccm_nats::request_signature::{KeyError, PublicKey, Signer};
use ccm_nats::rollout_decision::{
    Decided, Members, content_digest, is_rollback_signed, is_signed, sign_rollback,
};

/// How a stored rollout differs from what was signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Tampered {
    #[error("it is not signed")]
    Unsigned,
    #[error("its signer {0} is not trusted here")]
    Unknown(String),
    #[error("its {0} is not what was signed")]
    Differs(&'static str),
    #[error("its signature does not fit")]
    Signature,
    #[error("its rollback is not signed")]
    UnsignedRollback,
    #[error("the signature of its rollback does not fit")]
    RollbackSignature,
    #[error("what node {0} had before is not what was signed")]
    Previous(NodeName),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Whose rollouts a controller drives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedSigners {
    /// Public keys; where none is listed anybody may have signed.
    keys: BTreeSet<String>,
    is_signature_required: bool,
}

impl TrustedSigners {
    /// Trusts the holders of these keys, or whoever signed if there are none. A rollout that is not
    /// signed at all is refused where keys are listed or signatures are required.
    pub fn new(keys: impl IntoIterator<Item = String>, is_signature_required: bool) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            is_signature_required,
        }
    }

    fn key(&self, signer: &str) -> Result<PublicKey, Tampered> {
        if !self.keys.is_empty() && !self.keys.contains(signer) {
            return Err(Tampered::Unknown(signer.to_owned()));
        }
        Ok(PublicKey::parse(signer)?)
    }
}

/// Signs a rollout that is about to be stored.
pub fn sign(rollout: &mut Rollout, signer: &Signer) -> Result<(), KeyError> {
    let members = Proofs::new(rollout)?.members;
    let content = assignment(rollout, 0, rollout.created);
    rollout.decision = Some(decided(rollout, &content, &members).sign(signer)?);
    Ok(())
}

/// Signs that a rollout is rolled back, at any rate after it was started: clocks differ. Does nothing
/// to one that was not signed itself.
pub(super) fn order_rollback(
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

/// Returns the public key of whoever signed a stored rollout, if anybody did.
pub fn signer(rollout: &Rollout) -> Result<Option<&str>, Tampered> {
    verify(rollout, &TrustedSigners::default())?;
    Ok(rollout.decision.as_ref().map(|it| it.signer.as_str()))
}

/// Checks a stored rollout against what was signed. Returns what proves to nodes that they are
/// part of it; nothing for a rollout that nobody signed.
pub(super) fn verify(
    rollout: &Rollout,
    trusted: &TrustedSigners,
) -> Result<Option<Proofs>, Tampered> {
    let Some(decision) = &rollout.decision else {
        let is_refused = trusted.is_signature_required || !trusted.keys.is_empty();
        return if is_refused {
            Err(Tampered::Unsigned)
        } else {
            Ok(None)
        };
    };
    let proofs = Proofs::new(rollout)?;
    let content = assignment(rollout, 0, rollout.created);
    let found = decided(rollout, &content, &proofs.members).unsigned()?;
    if let Some(part) = difference(&found, decision) {
        return Err(Tampered::Differs(part));
    }
    if !is_signed(decision, &trusted.key(&decision.signer)?) {
        return Err(Tampered::Signature);
    }
    if rollout.state == State::RollingBack {
        let rollback = rollout.rollback.as_ref();
        let rollback = rollback.ok_or(Tampered::UnsignedRollback)?;
        if !is_rollback_signed(rollback, decision, &trusted.key(&rollback.signer)?) {
            return Err(Tampered::RollbackSignature);
        }
        for node in rollout.previous.nodes() {
            if !proofs.was(node, rollout.previous.get(node).flatten())? {
                return Err(Tampered::Previous(node.clone()));
            }
        }
    }
    Ok(Some(proofs))
}

fn decided<'a>(rollout: &'a Rollout, content: &'a Assignment, members: &'a Members) -> Decided<'a> {
    Decided {
        collective: &rollout.collective,
        rollout: &rollout.id,
        created: rollout.created,
        assignment: content,
        plan: &rollout.plan,
        settings: &rollout.settings,
        members,
    }
}

/// Returns the first part of a rollout that is not as it was signed.
fn difference(found: &Decision, signed: &Decision) -> Option<&'static str> {
    let micros = |decision: &Decision| decision.created.timestamp_micros();
    let is_same = [
        (found.collective == signed.collective, "collective"),
        (found.rollout == signed.rollout, "name"),
        (micros(found) == micros(signed), "time of creation"),
        (
            found.content == signed.content,
            "bundle, data, noop or governor",
        ),
        (found.plan == signed.plan, "plan or limits"),
        (
            found.members == signed.members,
            "list of nodes, or what they had before,",
        ),
    ];
    is_same
        .into_iter()
        .find_map(|(is_same, part)| (!is_same).then_some(part))
}

/// What proves to nodes that they are part of a signed rollout.
#[derive(Clone, Debug)]
pub(super) struct Proofs {
    members: Members,
    nodes: BTreeMap<NodeName, Place>,
}

/// Where a node is in the plan, and in the tree of members.
#[derive(Clone, Debug)]
struct Place {
    number: usize,
    wave: usize,
    /// The digest of what it was assigned before.
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
        let places = members.iter().enumerate();
        let places = places.map(|(number, (node, wave, previous))| {
            let place = Place {
                number,
                wave: *wave,
                previous: previous.map(str::to_owned),
            };
            ((*node).clone(), place)
        });
        Ok(Self {
            nodes: places.collect(),
            members: Members::new(members)?,
        })
    }

    /// Reports whether a node had this before the rollout, as it was signed.
    pub(super) fn was(
        &self,
        node: &NodeName,
        found: Option<&Assignment>,
    ) -> Result<bool, KeyError> {
        let Some(place) = self.nodes.get(node) else {
            return Ok(false);
        };
        let content = match found {
            Some(assignment) => content_digest(assignment)?,
            None => None,
        };
        Ok(content == place.previous)
    }

    /// Returns why a node may follow its assignment of a rollout; `over` is the one that it
    /// replaces.
    pub(super) fn assigned(
        &self,
        rollout: &Rollout,
        node: &NodeName,
        over: Option<&Assignment>,
    ) -> Option<AssignmentSignature> {
        let before = match over {
            Some(ours) if ours.rollout.as_ref() == Some(&rollout.id) => Origin::before(ours),
            Some(other) => Origin::of(other),
            None => None,
        };
        let member = self.member(rollout, node)?;
        Some(AssignmentSignature::Decided(Box::new(DecidedSignature {
            member,
            before,
        })))
    }

    /// Returns why a node may follow what is put back in place of its assignment of a rollout.
    pub(super) fn restored(
        &self,
        rollout: &Rollout,
        node: &NodeName,
        ours: &Assignment,
    ) -> Option<AssignmentSignature> {
        Some(AssignmentSignature::Restored(Box::new(Restored {
            origin: Origin::before(ours),
            member: self.member(rollout, node)?,
            rollback: rollout.rollback.clone()?,
        })))
    }

    fn member(&self, rollout: &Rollout, node: &NodeName) -> Option<Member> {
        let place = self.nodes.get(node)?;
        Some(Member {
            decision: rollout.decision.clone()?,
            wave: place.wave,
            previous: place.previous.clone(),
            path: self.members.path(place.number),
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
    fn whatever_was_decided_can_not_be_changed() {
        let signer = Signer::generate();
        let mut good = rollout();
        sign(&mut good, &signer).unwrap();
        let anybody = TrustedSigners::default();
        assert_eq!(text(&good, &anybody), "verified true");
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
            let found = text(&changed, &anybody);
            assert!(found.contains(part), "{part}: {found}");
        }
    }

    #[test]
    fn how_far_it_is_may_change() {
        let mut rollout = rollout();
        sign(&mut rollout, &Signer::generate()).unwrap();
        rollout.wave = 1;
        rollout.state = State::Done;
        rollout.settings.deadline = Some(rollout.created);
        let stored = serde_json::to_string(&rollout).unwrap();
        let read = serde_json::from_str(&stored).unwrap();
        assert_eq!(text(&read, &TrustedSigners::default()), "verified true");
    }

    #[test]
    fn only_listed_signers_count_where_there_is_a_list() {
        let (ops, other) = (Signer::generate(), Signer::generate());
        let trusted = TrustedSigners::new([ops.public_key()], false);
        let mut rollout = rollout();
        assert_eq!(text(&rollout, &TrustedSigners::default()), "verified false");
        assert_eq!(text(&rollout, &trusted), "it is not signed");
        let required = TrustedSigners::new([], true);
        assert_eq!(text(&rollout, &required), "it is not signed");
        sign(&mut rollout, &other).unwrap();
        assert!(text(&rollout, &trusted).contains("is not trusted here"));
        assert_eq!(text(&rollout, &required), "verified true");
        sign(&mut rollout, &ops).unwrap();
        assert_eq!(text(&rollout, &trusted), "verified true");
    }

    #[test]
    fn a_rollback_is_signed_and_puts_back_what_was_there() {
        let signer = Signer::generate();
        let anybody = TrustedSigners::default();
        let mut rollout = rollout();
        let before = assignment(&rollout, 3, rollout.created);
        let digest = content_digest(&before).unwrap().unwrap();
        let nodes = rollout.previous_digests.pop_first().unwrap().1;
        rollout.previous_digests.insert(digest, nodes);
        sign(&mut rollout, &signer).unwrap();
        rollout.previous.note("a".parse().unwrap(), None);
        rollout
            .previous
            .note("b".parse().unwrap(), Some(before.clone()));
        rollout.state = State::RollingBack;
        assert_eq!(text(&rollout, &anybody), "its rollback is not signed");
        order_rollback(&mut rollout, &signer, before.assigned).unwrap();
        assert_eq!(text(&rollout, &anybody), "verified true");
        let mut late = rollout.clone();
        late.rollback.as_mut().unwrap().decided += TimeDelta::seconds(1);
        assert!(text(&late, &anybody).contains("signature of its rollback"));
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
            swapped.previous.note(node.parse().unwrap(), evil);
            let found = text(&swapped, &anybody);
            assert_eq!(
                found,
                format!("what node {node} had before is not what was signed")
            );
        }
    }
}
