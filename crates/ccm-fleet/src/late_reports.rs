//! Reports of nodes that arrive after the end of a rollout, stored in the rollout.
//!
//! A node that was unreachable or under way when its rollout ended converges later. Its report is
//! replaced by that of its next assignment, so it is stored in the rollout before: by every controller
//! when it begins, and from time to time by those that run forever.

use futures_util::StreamExt as _;
use futures_util::stream::iter;

use super::node_progress::{self, ReportSummary};
use super::rollout_store::{RolloutError, RolloutStore, StoredRollout};
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{NodeName, NodeReport};
use ccm_core::model::rollout::{Progress, Rollout};
use ccm_nats::kv::Bucket;
use ccm_nats::streams::REPORTED;
use ccm_nats::{Connection, NatsError, Subjects};

/// Number of concurrent requests.
const MAX_CONCURRENT: usize = 32;

/// Stores late reports in those of these rollouts that have ended.
pub async fn store(
    connection: &Connection,
    subjects: &Subjects,
    rollouts: &RolloutStore,
    all: &[StoredRollout],
) -> Result<(), RolloutError> {
    let with_nodes = all
        .iter()
        .map(|it| (&it.rollout, awaited_nodes(&it.rollout)));
    let awaited: Vec<_> = with_nodes.filter(|(_, nodes)| !nodes.is_empty()).collect();
    if awaited.is_empty() {
        return Ok(());
    }
    let reported = connection.bucket(REPORTED).await?;
    let incarnation = connection.incarnation().await?;
    let incarnation = incarnation.as_ref();
    for (rollout, nodes) in awaited {
        let reports = read(&reported, subjects, nodes).await?;
        if !record(&mut rollout.clone(), &reports, incarnation) {
            continue;
        }
        // Decided again for the stored rollout, which may have been resumed in the meantime.
        let stored = rollouts.change(&rollout.id, |rollout| {
            record(rollout, &reports, incarnation);
            Ok(())
        });
        match stored.await {
            // It is left to the controller that changes it now.
            Ok(_) | Err(RolloutError::Busy(_) | RolloutError::NotFound(_)) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Returns the nodes of an ended rollout whose report is awaited.
fn awaited_nodes(rollout: &Rollout) -> Vec<NodeName> {
    if !rollout.state.is_finished() {
        return Vec::new();
    }
    let nodes = rollout.nodes.iter().filter(|(_, it)| is_awaited(it));
    nodes.map(|(node, _)| node.clone()).collect()
}

fn is_awaited(progress: &Progress) -> bool {
    matches!(
        progress,
        Progress::Assigned { .. } | Progress::Restoring { .. } | Progress::Unreachable { .. }
    )
}

/// Returns the current reports of nodes. An unreadable one counts as none.
async fn read(
    reported: &Bucket,
    subjects: &Subjects,
    nodes: Vec<NodeName>,
) -> Result<Vec<(NodeName, NodeReport)>, NatsError> {
    let reads = iter(nodes).map(|node| async move {
        let entry = reported.get(&subjects.key(&node.token())).await?;
        let report = entry.and_then(|entry| serde_json::from_slice(&entry.value).ok());
        Ok(report.map(|report| (node, report)))
    });
    let found: Vec<Result<_, NatsError>> = reads.buffered(MAX_CONCURRENT).collect().await;
    found.into_iter().filter_map(Result::transpose).collect()
}

/// Records reports about awaited nodes of an ended rollout. Returns whether anything changed.
fn record(
    rollout: &mut Rollout,
    reports: &[(NodeName, NodeReport)],
    incarnation: Option<&Incarnation>,
) -> bool {
    let mut is_changed = false;
    for (node, report) in reports {
        if rollout.state.is_finished() && is_awaited(rollout.progress(node)) {
            let summary = ReportSummary::new(report, rollout, incarnation);
            is_changed |= node_progress::record_report(rollout, node, &summary);
        }
    }
    is_changed
}
