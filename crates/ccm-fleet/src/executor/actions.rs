//! What a controller does to nodes: assigns, restores, reminds. Each act can be done twice without
//! harm; when which is done is decided by the judge and followed in the parent.

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use tokio::time::Instant;

use super::{AT_ONCE, CHUNK, Drive, NUDGE_EVERY, Verified};
use crate::assignments::{Found, Given, Presence, assignment, is_same, restored};
use crate::decision::Proofs;
use crate::rollout_store::RolloutError;
use ccm_core::model::decision::AssignmentSignature;
use ccm_core::model::node::{Assignment, NodeName, next_generation};
use ccm_core::model::rollout::{Progress, Rollout};
use ccm_nats::NatsError;

impl<T: FnMut(&Rollout)> Drive<'_, T> {
    /// Assigns the first of these nodes: first the intent, then the act.
    pub(super) async fn assign(
        &mut self,
        nodes: Vec<NodeName>,
        now: DateTime<Utc>,
    ) -> Result<(), RolloutError> {
        let assigning = &self.assigning;
        let looking = iter(nodes.into_iter().take(CHUNK)).map(|node| async move {
            let found = assigning.find(&node).await?;
            let presence = assigning.presence(&node).await?;
            Ok::<_, NatsError>((node, found, presence))
        });
        let looked: Vec<_> = looking.buffered(AT_ONCE).collect().await;
        let proofs = self.verified.as_ref().and_then(Verified::proofs);
        let rollout = &mut self.stored.rollout;
        let mut told = Vec::new();
        for found in looked {
            let (node, found, presence) = found?;
            let (pause, requires_signature) = match &presence {
                Presence::Here {
                    pause,
                    requires_signature,
                } => (pause.as_ref(), *requires_signature),
                Presence::Away => (None, false),
            };
            let progress = match (&found, pause) {
                (_, Some(pause)) => Progress::Skipped {
                    reason: format!("paused: {}", pause.reason),
                },
                (Found::Broken { cause, .. }, None) => {
                    Progress::failed(&format!("its present assignment can't be read: {cause}"))
                }
                _ if requires_signature && proofs.is_none() => {
                    Progress::failed("it requires signatures and the rollout is not signed")
                }
                (Found::Nothing | Found::Assigned { .. }, None) => {
                    let reported = self.heard.get(&node).map_or(0, |heard| heard.generation);
                    let generation = next_generation(found.generation(), reported);
                    match wanted(rollout, proofs, &node, &found, generation, now) {
                        Some(wanted) => {
                            let before = found.assignment().cloned();
                            rollout.previous.note(node.clone(), before);
                            told.push((node.clone(), found, presence, wanted));
                            Progress::Assigned {
                                generation,
                                at: now,
                            }
                        }
                        None => foreign(),
                    }
                }
            };
            rollout.nodes.insert(node, progress);
        }
        if !self.store().await? {
            return Ok(());
        }
        let assigning = &self.assigning;
        let telling = iter(told).map(|(node, found, presence, wanted)| async move {
            let generation = wanted.generation;
            let given = assigning.give(&node, &wanted, &found).await?;
            let is_here = presence != Presence::Away;
            if given == Given::Stands && is_here {
                assigning.nudge(&node).await?;
            }
            let progress = match given {
                Given::Foreign => Some(foreign()),
                // It converges when it returns.
                Given::Stands => (!is_here).then_some(Progress::Unreachable { generation }),
            };
            Ok::<_, NatsError>((node, progress))
        });
        let done: Vec<_> = telling.buffer_unordered(AT_ONCE).collect().await;
        self.nudged = Some(Instant::now());
        self.note_done(done)
    }

    /// Gives the first of these nodes back what they had before.
    pub(super) async fn restore(
        &mut self,
        nodes: Vec<NodeName>,
        now: DateTime<Utc>,
    ) -> Result<(), RolloutError> {
        let (rollout, assigning) = (&self.stored.rollout, &self.assigning);
        let proofs = self.verified.as_ref().and_then(Verified::proofs);
        let restoring = iter(nodes.into_iter().take(CHUNK)).map(|node| async move {
            let previous = rollout.previous.get(&node).flatten();
            let found = assigning.find(&node).await?;
            let present = found.assignment();
            let is_ours = |it: &&Assignment| it.rollout.as_ref() == Some(&rollout.id);
            let progress = if let Some(ours) = present.filter(is_ours) {
                let mut before = restored(previous, found.generation().saturating_add(1), now);
                before.signature = proofs.and_then(|it| it.restored(rollout, &node, ours));
                match assigning.give(&node, &before, &found).await? {
                    Given::Stands => {
                        assigning.nudge(&node).await?;
                        Progress::Restored
                    }
                    Given::Foreign => foreign(),
                }
            } else if is_same(present, previous) {
                // It never got ours, or a controller before us was here.
                Progress::Restored
            } else {
                foreign()
            };
            Ok((node, Some(progress)))
        });
        let done: Vec<_> = restoring.buffer_unordered(AT_ONCE).collect().await;
        self.note_done(done)
    }

    /// Notes what was done for nodes, and returns the first thing that went wrong.
    fn note_done(
        &mut self,
        done: Vec<Result<(NodeName, Option<Progress>), NatsError>>,
    ) -> Result<(), RolloutError> {
        let mut outcome = Ok(());
        for one in done {
            match one {
                Ok((node, Some(progress))) => {
                    self.stored.rollout.nodes.insert(node, progress);
                    self.is_dirty = true;
                }
                Ok((_, None)) => {}
                Err(err) => outcome = outcome.and(Err(err.into())),
            }
        }
        outcome
    }

    /// Does what was intended and may not have been done.
    pub(super) async fn make_sure(&mut self, now: DateTime<Utc>) -> Result<(), RolloutError> {
        let (rollout, assigning) = (&self.stored.rollout, &self.assigning);
        let proofs = self.verified.as_ref().and_then(Verified::proofs);
        let assigned = rollout.nodes.iter().filter_map(|(node, it)| match it {
            Progress::Assigned { generation, .. } => Some((node.clone(), *generation)),
            _ => None,
        });
        let assigned: Vec<_> = assigned.collect();
        let checking = iter(assigned).map(|(node, generation)| async move {
            let found = assigning.find(&node).await?;
            if found.generation() >= generation {
                return Ok((node, None));
            }
            let Some(wanted) = wanted(rollout, proofs, &node, &found, generation, now) else {
                return Ok((node, Some(foreign())));
            };
            let progress = match assigning.give(&node, &wanted, &found).await? {
                Given::Foreign => foreign(),
                // Its time to answer begins now.
                Given::Stands => Progress::Assigned {
                    generation,
                    at: now,
                },
            };
            Ok((node, Some(progress)))
        });
        let done: Vec<_> = checking.buffer_unordered(AT_ONCE).collect().await;
        self.note_done(done)?;
        self.is_unsure = false;
        self.nudged = None;
        Ok(())
    }

    /// Tells nodes again that have not answered for a while.
    pub(super) async fn nudge_again(&mut self) -> Result<(), RolloutError> {
        let is_recent = self.nudged.is_some_and(|at| at.elapsed() < NUDGE_EVERY);
        if is_recent || !self.is_under_way() {
            return Ok(());
        }
        for (node, progress) in &self.stored.rollout.nodes {
            if matches!(progress, Progress::Assigned { .. }) {
                self.assigning.nudge(node).await?;
            }
        }
        self.nudged = Some(Instant::now());
        Ok(())
    }
}

/// Returns what a node is assigned over what was found; nothing where that is not what the rollout
/// was signed to replace.
fn wanted(
    rollout: &Rollout,
    proofs: Option<&Proofs>,
    node: &NodeName,
    found: &Found,
    generation: u64,
    now: DateTime<Utc>,
) -> Option<Assignment> {
    let mut wanted = assignment(rollout, generation, now);
    let Some(proofs) = proofs else {
        return Some(wanted);
    };
    let present = found.assignment();
    // What a later rollback put back is ours no longer: nodes take no decision from before it.
    let is_ours = present.is_some_and(|it| {
        let is_restored = matches!(it.signature, Some(AssignmentSignature::Restored(_)));
        it.rollout.as_ref() == Some(&rollout.id) && !is_restored
    });
    if !is_ours && !proofs.was(node, present).unwrap_or(false) {
        return None;
    }
    wanted.signature = Some(proofs.assigned(rollout, node, present)?);
    Some(wanted)
}

fn foreign() -> Progress {
    Progress::Skipped {
        reason: "somebody else assigned it meanwhile".into(),
    }
}
