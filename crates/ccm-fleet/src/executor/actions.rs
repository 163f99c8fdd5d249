//! Controller actions on nodes: assign and notify; `restore` has those of a rollback. Each is
//! idempotent; when to execute which is decided by the planner and driven by the parent module.

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use tokio::time::Instant;

use super::{Drive, FollowEvent, MAX_CONCURRENT, NUDGE_INTERVAL, Verified};
use crate::assignments::{CurrentAssignment, Presence, WriteResult, assignment};
use crate::decision::Proofs;
use crate::node_progress::assigned_elsewhere;
use crate::planner::{self, Decision};
use crate::rollout_store::RolloutError;
use ccm_core::model::decision::AssignmentSignature;
use ccm_core::model::node::{Assignment, NodeName, next_generation};
use ccm_core::model::rollout::{Progress, Rollout};
use ccm_nats::NatsError;

impl<T: FnMut(FollowEvent<'_>)> Drive<'_, T> {
    /// Assigns these nodes: stores the intent, then writes the assignments.
    pub(super) async fn assign(
        &mut self,
        nodes: Vec<NodeName>,
        now: DateTime<Utc>,
    ) -> Result<(), RolloutError> {
        let looked_up = self.look_up(nodes).await?;
        let proofs = self.verified.as_ref().and_then(Verified::proofs);
        let rollout = &mut self.stored.rollout;
        let mut intended = Vec::new();
        for (node, found, presence) in looked_up {
            let (pause, requires_signature) = match &presence {
                Presence::Online {
                    pause,
                    requires_signature,
                    ..
                } => (pause.as_ref(), *requires_signature),
                Presence::Offline => (None, false),
            };
            let progress = match (&found, pause) {
                (_, Some(pause)) => Progress::Skipped {
                    reason: format!("paused: {}", pause.reason),
                },
                (CurrentAssignment::Broken { cause, .. }, None) => {
                    Progress::failed(&format!("the current assignment can't be read: {cause}"))
                }
                _ if requires_signature && proofs.is_none() => {
                    Progress::failed("the node requires signatures and the rollout is not signed")
                }
                (CurrentAssignment::Nothing | CurrentAssignment::Assigned { .. }, None) => {
                    let reported = self
                        .reported
                        .get(&node)
                        .map_or(0, |report| report.generation);
                    let generation = next_generation(found.generation(), reported);
                    match new_assignment(rollout, proofs, &node, &found, generation, now) {
                        Some(new_assignment) => {
                            let before = found.assignment().cloned();
                            rollout.previous.record(node.clone(), before);
                            intended.push((node.clone(), found, presence, new_assignment));
                            Progress::Assigned {
                                generation,
                                at: now,
                            }
                        }
                        None => assigned_elsewhere(),
                    }
                }
            };
            rollout.nodes.insert(node, progress);
        }
        if !self.store().await? {
            return Ok(());
        }
        let assignments = &self.assignments;
        let writes = iter(intended).map(|(node, found, presence, new_assignment)| async move {
            let generation = new_assignment.generation;
            let written = assignments.write(&node, &new_assignment, &found).await?;
            let is_online = presence != Presence::Offline;
            if written == WriteResult::Current && is_online {
                assignments.nudge(&node).await?;
            }
            let progress = match written {
                WriteResult::Conflict => Some(assigned_elsewhere()),
                // An offline node converges when it reconnects.
                WriteResult::Current => {
                    (!is_online).then(|| Progress::unreachable(generation, "offline"))
                }
            };
            Ok::<_, NatsError>((node, progress))
        });
        let done: Vec<_> = writes.buffer_unordered(MAX_CONCURRENT).collect().await;
        self.nudged = Some(Instant::now());
        self.record_results(done)
    }

    /// Returns the current assignments and the presence of nodes.
    pub(super) async fn look_up(
        &self,
        nodes: Vec<NodeName>,
    ) -> Result<Vec<(NodeName, CurrentAssignment, Presence)>, NatsError> {
        let found = self.assignments.find_many(&nodes);
        let presence = self.assignments.presence_of(&nodes);
        let (found, presence) = tokio::try_join!(found, presence)?;
        let looked_up = nodes.into_iter().zip(found.into_iter().zip(presence));
        Ok(looked_up
            .map(|(node, (found, presence))| (node, found, presence))
            .collect())
    }

    /// Records that nodes did not report in time, with the reason that their report or their presence
    /// states.
    pub(super) async fn record_unreachable(
        &mut self,
        nodes: Vec<NodeName>,
    ) -> Result<(), RolloutError> {
        let found = self.assignments.presence_of(&nodes).await?;
        let rollout = &mut self.stored.rollout;
        planner::record(rollout, &Decision::Unreachable(nodes.clone()));
        self.is_dirty = true;
        for (node, presence) in nodes.into_iter().zip(found) {
            let unreadable = self.unreadable.get(&node).map(ToString::to_string);
            let problem = match presence {
                Presence::Online { problem, .. } => problem,
                Presence::Offline => None,
            };
            if let Some(Progress::Unreachable { generation, .. }) = rollout.nodes.get(&node)
                && let Some(reason) = unreadable.or(problem)
            {
                let progress = Progress::unreachable(*generation, &reason);
                rollout.nodes.insert(node, progress);
            }
        }
        Ok(())
    }

    /// Records the progress of nodes, and returns the first error.
    pub(super) fn record_results(
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

    /// Writes the assignments of stored intents that may not have been written.
    pub(super) async fn complete_intents(
        &mut self,
        now: DateTime<Utc>,
    ) -> Result<(), RolloutError> {
        let (rollout, assignments) = (&self.stored.rollout, &self.assignments);
        let proofs = self.verified.as_ref().and_then(Verified::proofs);
        let assigned = rollout.nodes.iter().filter_map(|(node, it)| match it {
            Progress::Assigned { generation, .. } => Some((node.clone(), *generation)),
            _ => None,
        });
        let (nodes, generations): (Vec<_>, Vec<_>) = assigned.unzip();
        let found = assignments.find_many(&nodes).await?;
        let assigned = nodes.into_iter().zip(generations).zip(found);
        let checks = iter(assigned).map(|((node, generation), found)| async move {
            if found.generation() >= generation {
                return Ok((node, None));
            }
            let Some(new_assignment) =
                new_assignment(rollout, proofs, &node, &found, generation, now)
            else {
                return Ok((node, Some(assigned_elsewhere())));
            };
            let progress = match assignments.write(&node, &new_assignment, &found).await? {
                WriteResult::Conflict => assigned_elsewhere(),
                // The node timeout starts now.
                WriteResult::Current => Progress::Assigned {
                    generation,
                    at: now,
                },
            };
            Ok((node, Some(progress)))
        });
        let done: Vec<_> = checks.buffer_unordered(MAX_CONCURRENT).collect().await;
        self.record_results(done)?;
        self.complete_restores(now).await?;
        self.unrecorded = self.reported.keys().cloned().collect();
        self.may_be_incomplete = false;
        self.nudged = None;
        Ok(())
    }

    /// Notifies nodes under way again that have not reported for a while.
    pub(super) async fn nudge_again(&mut self) -> Result<(), RolloutError> {
        let is_recent = self.nudged.is_some_and(|at| at.elapsed() < NUDGE_INTERVAL);
        if is_recent || !self.is_under_way() {
            return Ok(());
        }
        for (node, progress) in self.stored.rollout.nodes.iter() {
            if matches!(
                progress,
                Progress::Assigned { .. } | Progress::Restoring { .. }
            ) {
                self.assignments.nudge(node).await?;
            }
        }
        self.nudged = Some(Instant::now());
        Ok(())
    }
}

/// Returns the assignment for a node, or none if its current assignment is not the one that the
/// signed rollout replaces.
fn new_assignment(
    rollout: &Rollout,
    proofs: Option<&Proofs>,
    node: &NodeName,
    found: &CurrentAssignment,
    generation: u64,
    now: DateTime<Utc>,
) -> Option<Assignment> {
    let mut new_assignment = assignment(rollout, generation, now);
    let Some(proofs) = proofs else {
        return Some(new_assignment);
    };
    let present = found.assignment();
    // An assignment restored by a rollback no longer belongs to the rollout: nodes refuse decisions
    // from before the rollback.
    let is_ours = present.is_some_and(|it| {
        let is_restored = matches!(it.signature, Some(AssignmentSignature::Rollback(_)));
        it.rollout.as_ref() == Some(&rollout.id) && !is_restored
    });
    if !is_ours && !proofs.is_previous(node, present).unwrap_or(false) {
        return None;
    }
    new_assignment.signature = Some(proofs.assigned(rollout, node, present)?);
    Some(new_assignment)
}
