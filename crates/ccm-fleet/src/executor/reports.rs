//! What a controller waits for: reports of nodes, and changes of the rollout by others.

use std::time::Duration;

use tokio::time::Instant;

use super::{Drive, FollowEvent, MAX_CHUNK};
use crate::node_progress::{self, ReportSummary};
use crate::records;
use crate::rollout_store::{RolloutError, StoredForm};
use ccm_core::model::node::NodeName;
use ccm_nats::NatsError;
use ccm_nats::kv::Change;
use ccm_nats::streams::REPORTED;

/// Time for which reports are collected before they are recorded.
const REPORT_WINDOW: Duration = Duration::from_millis(50);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// With a report or a change of the rollout.
    Change,
    /// After its maximum duration.
    Limit,
}

impl<T: FnMut(FollowEvent<'_>)> Drive<'_, T> {
    /// Leaves as many nodes as are assigned between two writes. Their reports count again: a restored
    /// node may have reported its assignment before.
    pub(super) fn limit_chunk(&mut self, nodes: &mut Vec<NodeName>) {
        nodes.truncate(MAX_CHUNK);
        self.unrecorded.extend(nodes.iter().cloned());
    }

    /// Waits for a report, for a change of the rollout by others, or for this time at most.
    pub(super) async fn wait(&mut self, limit: Duration) -> Result<Waited, RolloutError> {
        tokio::select! {
            form = self.changes.next() => {
                self.load_newer(form?).await?;
                return Ok(Waited::Change);
            }
            change = self.reports.next() => self.receive(change)?,
            () = tokio::time::sleep(limit) => return Ok(Waited::Limit),
        }
        // Reports often arrive together; they are recorded together.
        let end = Instant::now() + REPORT_WINDOW;
        while let Ok(change) = tokio::time::timeout_at(end, self.reports.next()).await {
            self.receive(change)?;
        }
        Ok(Waited::Change)
    }

    /// Replaces our copy if this is newer.
    async fn load_newer(&mut self, form: StoredForm) -> Result<(), RolloutError> {
        if form.revision() > self.stored.revision {
            let id = form.id().clone();
            let stored = match self.rollouts.load(form, None).await? {
                Some(stored) => stored,
                None => self.rollouts.get(&id).await?,
            };
            self.replace(stored);
        }
        Ok(())
    }

    /// Reads the current reports of all nodes.
    pub(super) async fn read_current_reports(&mut self) -> Result<(), RolloutError> {
        loop {
            match self.reports.next().await {
                Some(Change::Current) => return Ok(()),
                change => self.receive(change)?,
            }
        }
    }

    fn receive(&mut self, change: Option<Change>) -> Result<(), RolloutError> {
        match change {
            None => Err(NatsError::Closed.into()),
            Some(Change::Put(entry)) => {
                let token = self.controller.subjects.parse_key(&entry.key);
                let name = token.and_then(|token| self.names.get(&token));
                let Some(name) = name else {
                    return Ok(());
                };
                match records::parse_report(&entry, name) {
                    Ok(report) => {
                        let incarnation = self.assignments.incarnation();
                        let summary =
                            ReportSummary::new(&report, &self.stored.rollout, incarnation);
                        self.unreadable.remove(name);
                        self.reported.insert(name.clone(), summary);
                        self.unrecorded.insert(name.clone());
                    }
                    // The node counts as not having reported, with this reason.
                    Err(reason) => {
                        let unreadable = reason.of(REPORTED, &entry);
                        self.unreadable.insert(name.clone(), unreadable);
                    }
                }
                Ok(())
            }
            Some(Change::Denied(denial)) => Err(NatsError::from(denial).into()),
            Some(Change::Restart | Change::Current | Change::Removed { .. }) => Ok(()),
        }
    }

    pub(super) fn record_reports(&mut self) {
        // A report may be older than the assignment that it is compared with next.
        for node in std::mem::take(&mut self.unrecorded) {
            if let Some(report) = self.reported.get(&node) {
                let rollout = &mut self.stored.rollout;
                self.is_dirty |= node_progress::record_report(rollout, &node, report);
            }
        }
    }
}
