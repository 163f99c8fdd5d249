//! Controller actions of a rollback: previous assignments are written again, with a higher
//! generation, and the reports of the nodes are waited for, as for any other assignment.
//!
//! The intent is stored before an assignment is written, so that another controller can complete
//! it. An assignment that did not come from the rollout is never overwritten.

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use tokio::time::Instant;

use super::{Drive, FollowEvent, MAX_CONCURRENT, Verified};
use crate::assignments::{CurrentAssignment, Presence, WriteResult, has_same_content, restored};
use crate::decision::Proofs;
use crate::node_progress::assigned_elsewhere;
use crate::rollout_store::RolloutError;
use ccm_core::model::decision::{AssignmentSignature, Provenance};
use ccm_core::model::node::{Assignment, NodeName, next_generation};
use ccm_core::model::rollout::{Progress, Rollout};
use ccm_nats::NatsError;

/// How a node gets its previous assignment back.
enum Restore {
    /// The rollout never reached the node, which had no assignment before.
    NotNeeded,
    /// Write this assignment.
    Write(Box<Assignment>),
    /// Its assignment is the previous one already: wait for the report on it.
    Await { generation: u64 },
    /// The node has an assignment from elsewhere, which stays.
    AssignedElsewhere,
}

impl<T: FnMut(FollowEvent<'_>)> Drive<'_, T> {
    /// Restores the previous assignment of these nodes: stores the intent, then writes the
    /// assignments.
    pub(super) async fn restore(
        &mut self,
        nodes: Vec<NodeName>,
        now: DateTime<Utc>,
    ) -> Result<(), RolloutError> {
        let looked_up = self.look_up(nodes).await?;
        let proofs = self.verified.as_ref().and_then(Verified::proofs);
        let rollout = &mut self.stored.rollout;
        let mut intended = Vec::new();
        for (node, found, presence) in looked_up {
            let report = self.reported.get(&node);
            let reported = report.map_or(0, |report| report.generation);
            let generation = next_generation(found.generation(), reported);
            let result = report.and_then(|it| it.progress_of(found.generation(), true));
            let must_rewrite = match result {
                Some(Progress::Failed { .. }) => true,
                Some(_) => false,
                // A node may still refuse the signature of anybody else.
                None => proofs.is_some() && !is_restored_by(rollout, &found),
            };
            let restore = plan(
                rollout,
                proofs,
                &node,
                &found,
                generation,
                must_rewrite,
                now,
            );
            let (generation, assignment) = match restore {
                Restore::Await { generation } => (generation, None),
                Restore::Write(assignment) => (generation, Some(assignment)),
                Restore::NotNeeded => {
                    rollout.nodes.insert(node, Progress::Restored);
                    continue;
                }
                Restore::AssignedElsewhere => {
                    rollout.nodes.insert(node, assigned_elsewhere());
                    continue;
                }
            };
            let progress = Progress::Restoring {
                generation,
                at: now,
            };
            rollout.nodes.insert(node.clone(), progress);
            intended.push((node, generation, assignment, found, presence));
        }
        if !self.store().await? {
            return Ok(());
        }
        let assignments = &self.assignments;
        let writes = iter(intended).map(|intent| async move {
            let (node, generation, assignment, found, presence) = intent;
            let written = match &assignment {
                Some(assignment) => assignments.write(&node, assignment, &found).await?,
                None => WriteResult::Current,
            };
            if written == WriteResult::Conflict {
                return Ok((node, Some(assigned_elsewhere())));
            }
            let silence = silence(&presence);
            if silence.is_none() {
                assignments.nudge(&node).await?;
            }
            let progress = silence.map(|reason| Progress::unreachable(generation, &reason));
            Ok::<_, NatsError>((node, progress))
        });
        let done: Vec<_> = writes.buffer_unordered(MAX_CONCURRENT).collect().await;
        self.nudged = Some(Instant::now());
        self.record_results(done)
    }

    /// Writes the restored assignments of stored intents that may not have been written.
    pub(super) async fn complete_restores(
        &mut self,
        now: DateTime<Utc>,
    ) -> Result<(), RolloutError> {
        let (rollout, assignments) = (&self.stored.rollout, &self.assignments);
        let proofs = self.verified.as_ref().and_then(Verified::proofs);
        let restoring = rollout.nodes.iter().filter_map(|(node, it)| match it {
            Progress::Restoring { generation, .. } => Some((node.clone(), *generation)),
            _ => None,
        });
        let (nodes, generations): (Vec<_>, Vec<_>) = restoring.unzip();
        let found = assignments.find_many(&nodes).await?;
        let restoring = nodes.into_iter().zip(generations).zip(found);
        let checks = iter(restoring).map(|((node, generation), found)| async move {
            let is_unwritten = found.generation() < generation;
            let restore = plan(
                rollout,
                proofs,
                &node,
                &found,
                generation,
                is_unwritten,
                now,
            );
            let progress = match restore {
                Restore::NotNeeded => Some(Progress::Restored),
                Restore::AssignedElsewhere => Some(assigned_elsewhere()),
                Restore::Await { .. } => None,
                Restore::Write(assignment) => {
                    Some(match assignments.write(&node, &assignment, &found).await? {
                        WriteResult::Conflict => assigned_elsewhere(),
                        // The node timeout starts now.
                        WriteResult::Current => Progress::Restoring {
                            generation,
                            at: now,
                        },
                    })
                }
            };
            Ok((node, progress))
        });
        let done: Vec<_> = checks.buffer_unordered(MAX_CONCURRENT).collect().await;
        self.record_results(done)
    }
}

/// Returns why no report is expected from a node, if that is so.
fn silence(presence: &Presence) -> Option<String> {
    match presence {
        Presence::Offline => Some("offline".into()),
        Presence::Online { pause, .. } => {
            let pause = pause.as_ref();
            pause.map(|pause| format!("paused: {}", pause.reason))
        }
    }
}

/// Reports whether an assignment was signed by the rollback of this rollout.
fn is_restored_by(rollout: &Rollout, found: &CurrentAssignment) -> bool {
    let signature = found.assignment().and_then(|it| it.signature.as_ref());
    match signature {
        Some(AssignmentSignature::Rollback(proof)) => {
            Some(&proof.rollback) == rollout.rollback.as_ref()
        }
        _ => false,
    }
}

/// Returns how a node gets its previous assignment back. `must_rewrite`: also if it has the content
/// already, for instance because the node reported a failure and does not apply the same generation
/// again.
fn plan(
    rollout: &Rollout,
    proofs: Option<&Proofs>,
    node: &NodeName,
    found: &CurrentAssignment,
    generation: u64,
    must_rewrite: bool,
    now: DateTime<Utc>,
) -> Restore {
    let previous = rollout.previous.get(node).flatten();
    let Some(present) = found.assignment() else {
        let is_nothing = matches!(found, CurrentAssignment::Nothing);
        return if is_nothing && previous.is_none() {
            Restore::NotNeeded
        } else {
            Restore::AssignedElsewhere
        };
    };
    let write = |origin: Option<Provenance>| {
        let mut before = restored(previous, generation, now);
        before.signature = proofs.and_then(|it| it.restored(rollout, node, origin));
        Restore::Write(Box::new(before))
    };
    if present.rollout.as_ref() == Some(&rollout.id) {
        return write(Provenance::of_previous(present));
    }
    if !has_same_content(Some(present), previous) {
        return Restore::AssignedElsewhere;
    }
    // A signed assignment is replaced by a signed one only.
    let is_writable = proofs.is_some() || present.signature.is_none();
    if must_rewrite && is_writable {
        return write(Provenance::of(present));
    }
    Restore::Await {
        generation: present.generation,
    }
}
