//! Reports of nodes that arrive after the end of a rollout, stored in the rollout.
//!
//! A node that was unreachable or under way when its rollout ended converges later. Its report is
//! replaced by that of its next assignment, so it is stored in the rollout before: by every controller
//! when it begins, and from time to time by those that run forever. The rollout also names a node whose
//! report can't be read.
//!
//! [`apply`] shows a rollout with the current reports, without storing it.

use std::collections::BTreeMap;

use super::node_progress::{self, ReportSummary};
use super::records::{self, Unreadable};
use super::rollout_store::{RolloutError, RolloutHead, RolloutStore};
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{NodeName, NodeReport};
use ccm_core::model::rollout::{Progress, Rollout};
use ccm_nats::kv::{Bucket, Entry};
use ccm_nats::streams::REPORTED;
use ccm_nats::{Connection, NatsError, Subjects};

/// Stores late reports in those of these rollouts that have ended.
pub async fn store(
    connection: &Connection,
    subjects: &Subjects,
    rollouts: &RolloutStore,
    all: &[RolloutHead],
) -> Result<(), RolloutError> {
    let awaited: Vec<&RolloutHead> = all.iter().filter(|it| has_awaited_nodes(it)).collect();
    if awaited.is_empty() {
        return Ok(());
    }
    let reported = connection.bucket(REPORTED).await?;
    let incarnation = connection.incarnation().await?;
    let incarnation = incarnation.as_ref();
    for head in awaited {
        let mut rollout = match rollouts.get(&head.rollout.id).await {
            Ok(stored) => stored.rollout,
            Err(RolloutError::NotFound(_)) => continue,
            Err(err) => return Err(err),
        };
        let reports = read(&reported, subjects, awaited_nodes(&rollout)).await?;
        if !record(&mut rollout, &reports, incarnation) {
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

/// Applies the current reports of nodes to a rollout, without storing it. Returns the reports that can't
/// be read; the progress of their nodes is the stored one.
pub async fn apply(
    connection: &Connection,
    subjects: &Subjects,
    rollout: &mut Rollout,
) -> Result<Vec<Unreadable>, RolloutError> {
    let reported = connection.bucket(REPORTED).await?;
    let entries = reported.entries(&subjects.all_keys()).await?;
    let incarnation = connection.incarnation().await?;
    let nodes = by_key(subjects, rollout.plan.nodes().cloned());
    let mut unreadable = Vec::new();
    for (node, report) in parse(&nodes, entries) {
        match report {
            Ok(report) => {
                let summary = ReportSummary::new(&report, rollout, incarnation.as_ref());
                node_progress::record_report(rollout, &node, &summary);
            }
            Err(reason) => unreadable.push(reason),
        }
    }
    Ok(unreadable)
}

fn has_awaited_nodes(head: &RolloutHead) -> bool {
    let tally = &head.tally;
    head.rollout.state.is_finished() && tally.assigned + tally.restoring + tally.unreachable > 0
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

/// Current reports of nodes, or why one can't be read.
type Reports = Vec<(NodeName, Result<NodeReport, Unreadable>)>;

/// Returns the current reports of nodes.
async fn read(
    reported: &Bucket,
    subjects: &Subjects,
    nodes: Vec<NodeName>,
) -> Result<Reports, NatsError> {
    let nodes = by_key(subjects, nodes);
    let keys: Vec<String> = nodes.keys().cloned().collect();
    Ok(parse(&nodes, reported.get_many_latest(&keys).await?))
}

/// Returns nodes by the keys of their records.
fn by_key(
    subjects: &Subjects,
    nodes: impl IntoIterator<Item = NodeName>,
) -> BTreeMap<String, NodeName> {
    let nodes = nodes.into_iter();
    nodes
        .map(|node| (subjects.key(&node.token()), node))
        .collect()
}

/// Parses the reports of these nodes; others are left out.
fn parse(nodes: &BTreeMap<String, NodeName>, entries: Vec<Entry>) -> Reports {
    let reports = entries.into_iter().filter_map(|entry| {
        let node = nodes.get(&entry.key)?;
        let report = records::parse_report(&entry, node);
        Some((node.clone(), report.map_err(|err| err.of(REPORTED, &entry))))
    });
    reports.collect()
}

/// Records reports about awaited nodes of an ended rollout. Returns whether anything changed.
fn record(rollout: &mut Rollout, reports: &Reports, incarnation: Option<&Incarnation>) -> bool {
    let mut is_changed = false;
    for (node, report) in reports {
        if !rollout.state.is_finished() || !is_awaited(rollout.progress(node)) {
            continue;
        }
        is_changed |= match report {
            Ok(report) => {
                let summary = ReportSummary::new(report, rollout, incarnation);
                node_progress::record_report(rollout, node, &summary)
            }
            Err(unreadable) => node_progress::record_unreadable(rollout, node, unreadable),
        };
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{entry, rollout};
    use ccm_core::model::rollout::RolloutState;

    #[test]
    fn an_unreadable_report_is_the_reason_of_an_unreachable_node() {
        let node: NodeName = "web1".parse().unwrap();
        let mut rollout = rollout("r1");
        rollout.state = RolloutState::DoneWithFailures;
        let unreachable = Progress::unreachable(5, "");
        rollout.nodes.insert(node.clone(), unreachable);
        let broken = entry("lab.web1", json!({"identity": 1}));
        let reason = records::parse_report(&broken, &node).unwrap_err();
        let reports = vec![(node.clone(), Err(reason.of(REPORTED, &broken)))];
        assert!(record(&mut rollout, &reports, None));
        let Progress::Unreachable { generation, reason } = rollout.progress(&node) else {
            panic!("{rollout:?}");
        };
        assert_eq!(*generation, 5);
        let start = "record lab.web1 of bucket CCM_REPORTED is unreadable: ";
        assert!(reason.starts_with(start), "{reason}");
        assert!(!record(&mut rollout, &reports, None));
    }
}
