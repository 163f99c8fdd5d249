//! What a controller does to nodes: assigns, restores, reminds. Each act can be done twice without
//! harm; when which is done is decided by the judge and followed in the parent.

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use tokio::time::Instant;

use super::{AT_ONCE, CHUNK, Drive, NUDGE_EVERY};
use crate::fleet::assigning::{Found, Given, Presence, assignment, is_same, restored};
use crate::fleet::rollouts::RolloutError;
use crate::model::node::{NodeName, next_generation};
use crate::model::rollout::{Progress, Rollout};
use crate::nats::NatsError;

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
        let rollout = &mut self.stored.rollout;
        let mut told = Vec::new();
        for found in looked {
            let (node, found, presence) = found?;
            let pause = match &presence {
                Presence::Here { pause } => pause.as_ref(),
                Presence::Away => None,
            };
            let progress = match (&found, pause) {
                (_, Some(pause)) => Progress::Skipped {
                    reason: format!("paused: {}", pause.reason),
                },
                (Found::Broken { reason, .. }, None) => {
                    Progress::failed(&format!("its present assignment can't be read: {reason}"))
                }
                (Found::Nothing | Found::Assigned { .. }, None) => {
                    let reported = self.heard.get(&node).map_or(0, |heard| heard.generation);
                    let generation = next_generation(found.generation(), reported);
                    let before = found.assignment().cloned();
                    rollout.previous.note(node.clone(), before);
                    told.push((node.clone(), found, presence, generation));
                    Progress::Assigned {
                        generation,
                        at: now,
                    }
                }
            };
            rollout.nodes.insert(node, progress);
        }
        if !self.store().await? {
            return Ok(());
        }
        let (rollout, assigning) = (&self.stored.rollout, &self.assigning);
        let telling = iter(told).map(|(node, found, presence, generation)| async move {
            let wanted = assignment(rollout, generation, now);
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
        let restoring = iter(nodes.into_iter().take(CHUNK)).map(|node| async move {
            let previous = rollout.previous.get(&node).flatten();
            let found = assigning.find(&node).await?;
            let present = found.assignment();
            let is_ours = present.is_some_and(|it| it.rollout.as_ref() == Some(&rollout.id));
            let progress = if is_ours {
                let before = restored(previous, found.generation().saturating_add(1), now);
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
            let wanted = assignment(rollout, generation, now);
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

fn foreign() -> Progress {
    Progress::Skipped {
        reason: "somebody else assigned it meanwhile".into(),
    }
}
