//! Drift of nodes from their assignments.
//!
//! Read from the assignments and the last reports of nodes, which a run or a check has written;
//! [`refresh`] makes the nodes check themselves and report again. Nothing is changed on any node, and
//! who reads the reports later sees the same drift. The time since a
//! resource has drifted comes from the report; the event that last changed it is looked up by
//! [`last_changes`], for one node only, because that reads the node's event history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::preview::{self, PreviewError};
use super::records::{self, Unreadable, UnreadableEvents};
use ccm_core::model::drift::{Drift, ReportSource, UncheckedResource};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{Assignment, BundleRef, NodeName, NodeReport, Refusal};
use ccm_nats::event_feed::ReadOptions;
use ccm_nats::kv::Entry;
use ccm_nats::streams::{DESIRED, REPORTED};
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::text::{maybe_timestamp, timestamp};

/// State of a node relative to its assignment, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DriftState {
    /// The assignment could not be applied.
    Failed,
    /// At least one resource differs from the assignment.
    Drifted,
    /// The assignment or the report can't be read, so the state of the node is not known.
    Unreadable,
    /// No report yet about the newest assignment.
    Lagging,
    Converged,
    /// No assignment.
    Unassigned,
}

impl DriftState {
    /// Returns the name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Drifted => "drifted",
            Self::Unreadable => "unreadable",
            Self::Lagging => "lagging",
            Self::Converged => "converged",
            Self::Unassigned => "unassigned",
        }
    }
}

/// The records of a node that its drift is computed from.
#[derive(Debug, Default)]
struct NodeRecords {
    wanted: Option<Assignment>,
    report: Option<NodeReport>,
    unreadable: Vec<Unreadable>,
}

/// The drift of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeDrift {
    pub node: NodeName,
    pub state: DriftState,
    /// The assigned bundles.
    pub manifests: Vec<BundleRef>,
    pub wanted_generation: u64,
    #[serde(with = "maybe_timestamp")]
    pub assigned: Option<DateTime<Utc>>,
    /// The last reported generation, or 0.
    pub reported_generation: u64,
    #[serde(with = "maybe_timestamp")]
    pub reported: Option<DateTime<Utc>>,
    /// Whether a run or a check reported.
    pub source: Option<ReportSource>,
    pub drift: Vec<Drift>,
    /// Resources that a check can't compare with the assignment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<UncheckedResource>,
    /// Why the assignment could not be applied, why a record can't be read, or why a refresh failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Why a refresh failed; the other fields are those of the last report then.
    #[serde(skip)]
    pub refresh_error: Option<PreviewError>,
    /// Why the node refuses the assignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    #[serde(skip)]
    wanted: Option<Assignment>,
}

impl NodeDrift {
    fn new(node: NodeName, records: NodeRecords) -> Self {
        let NodeRecords {
            wanted,
            report,
            unreadable,
        } = records;
        let wanted = wanted.filter(|it| !it.manifests.is_empty());
        let wanted_generation = wanted.as_ref().map_or(0, |it| it.generation);
        let reported_generation = report.as_ref().map_or(0, |it| it.generation);
        let reported = report.as_ref().map(|it| it.timestamp);
        let source = report.as_ref().map(|it| it.source);
        let is_lagging = match (&wanted, &report) {
            (Some(wanted), Some(report)) => report.is_before(wanted),
            (wanted, None) => wanted.is_some(),
            (None, Some(_)) => false,
        };
        let (drift, unchecked, error, refusal) = report.map_or_else(Default::default, |it| {
            (it.drift, it.unchecked, it.error, it.refusal)
        });
        let is_current = |it: &Refusal| wanted.as_ref().is_some_and(|wanted| it.is_of(wanted));
        let refusal = refusal.filter(is_current);
        let mut found = Self {
            node,
            state: DriftState::Unassigned,
            manifests: wanted
                .as_ref()
                .map_or_else(Vec::new, |it| it.manifests.clone()),
            wanted_generation,
            assigned: wanted.as_ref().map(|it| it.assigned),
            reported_generation,
            reported,
            source,
            drift,
            unchecked,
            error,
            refresh_error: None,
            refusal,
            wanted,
        };
        found.state = found.compute_state(is_lagging);
        if found.state == DriftState::Lagging || found.refusal.is_some() {
            // The report is about an earlier assignment.
            found.drift.clear();
            found.unchecked.clear();
            found.error.clear();
        }
        if !unreadable.is_empty() {
            let reasons: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
            found.state = DriftState::Unreadable;
            found.error = reasons.join("; ");
        }
        found
    }

    /// Returns the key that signed the assignment.
    pub fn signer(&self) -> Option<&str> {
        let signature = self.wanted.as_ref()?.signature.as_ref()?;
        Some(signature.signer())
    }

    fn compute_state(&self, is_lagging: bool) -> DriftState {
        if self.wanted.is_none() {
            DriftState::Unassigned
        } else if self.refusal.is_some() {
            DriftState::Failed
        } else if is_lagging {
            DriftState::Lagging
        } else if !self.drift.is_empty() {
            DriftState::Drifted
        } else if !self.error.is_empty() {
            DriftState::Failed
        } else {
            DriftState::Converged
        }
    }
}

/// Returns the drift of every node of a collective, sorted by name.
pub async fn load(
    connection: &Connection,
    subjects: &Subjects,
) -> Result<Vec<NodeDrift>, NatsError> {
    let keys = subjects.all_keys();
    let read = async |name| connection.bucket(name).await?.entries(&keys).await;
    let (desired, reported) = tokio::try_join!(read(DESIRED), read(REPORTED))?;
    Ok(compare(subjects, &desired, &reported))
}

fn compare(subjects: &Subjects, desired: &[Entry], reported: &[Entry]) -> Vec<NodeDrift> {
    let mut nodes: BTreeMap<NodeName, NodeRecords> = BTreeMap::new();
    for entry in desired {
        if let Ok(node) = records::name_of(subjects, entry) {
            let records = nodes.entry(node).or_default();
            match records::parse(entry) {
                Ok(wanted) => records.wanted = Some(wanted),
                Err(reason) => records.unreadable.push(reason.of(DESIRED, entry)),
            }
        }
    }
    for entry in reported {
        if let Ok(node) = records::name_of(subjects, entry) {
            let report = records::parse_report(entry, &node);
            let records = nodes.entry(node).or_default();
            match report {
                Ok(report) => records.report = Some(report),
                Err(reason) => records.unreadable.push(reason.of(REPORTED, entry)),
            }
        }
    }
    let nodes = nodes.into_iter();
    nodes
        .map(|(node, records)| NodeDrift::new(node, records))
        .collect()
}

/// Makes the nodes check their assignments. Each node stores the result in its report, which replaces
/// the one that was loaded; a node without a result keeps it, with the reason as its error.
pub async fn refresh(
    connection: &Connection,
    subjects: &Subjects,
    nodes: &mut [NodeDrift],
    caller: &str,
    timeout: Duration,
) -> Result<(), NatsError> {
    let assigned = nodes.iter().filter(|it| it.wanted.is_some());
    let assigned = assigned.map(|it| it.node.clone()).collect();
    let reports = preview::check_all(connection, subjects, assigned, caller, timeout).await?;
    set_reports(nodes, reports);
    Ok(())
}

fn set_reports(
    nodes: &mut [NodeDrift],
    reports: Vec<(NodeName, Result<NodeReport, PreviewError>)>,
) {
    let mut reports: BTreeMap<NodeName, _> = reports.into_iter().collect();
    for node in nodes {
        match reports.remove(&node.node) {
            Some(Ok(report)) => {
                let records = NodeRecords {
                    wanted: node.wanted.take(),
                    report: Some(report),
                    unreadable: Vec::new(),
                };
                *node = NodeDrift::new(node.node.clone(), records);
            }
            Some(Err(reason)) => {
                node.error = reason.to_string();
                node.refresh_error = Some(reason);
            }
            None => {}
        }
    }
}

/// The last event that changed a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastChange {
    #[serde(rename = "type")]
    pub type_name: String,
    pub name: String,
    pub event_id: String,
    #[serde(with = "timestamp")]
    pub at: DateTime<Utc>,
}

/// The last changes of the drifted resources of a node.
#[derive(Clone, Debug, Default)]
pub struct LastChanges {
    pub changes: Vec<LastChange>,
    /// One of them may be a later change.
    pub unreadable: UnreadableEvents,
}

/// Returns the last change of each drifted resource of a node.
pub async fn last_changes(
    connection: &Connection,
    subjects: &Subjects,
    node: &NodeDrift,
) -> Result<LastChanges, NatsError> {
    let types: BTreeSet<&str> = node.drift.iter().map(|it| it.type_name.as_str()).collect();
    let mut last: BTreeMap<(String, String), LastChange> = BTreeMap::new();
    let mut unreadable = UnreadableEvents::default();
    for type_name in types {
        let subject = subjects.event(&node.node.token(), type_name, "changed");
        let reading = ReadOptions {
            filter: subject,
            since: Some(DateTime::UNIX_EPOCH),
            follow: false,
        };
        let reading = connection.read_events(&reading, |stored| {
            let event: TransactionEvent = match records::parse_json(&stored.body) {
                Ok(event) => event,
                Err(reason) => {
                    unreadable.add(stored, reason);
                    return true;
                }
            };
            let is_same = |it: &Drift| it.type_name == event.type_name && it.name == event.name;
            if node.drift.iter().any(is_same) {
                let key = (event.type_name.clone(), event.name.clone());
                last.insert(key, LastChange::from(&event));
            }
            true
        });
        reading.await?;
    }
    Ok(LastChanges {
        changes: last.into_values().collect(),
        unreadable,
    })
}

impl From<&TransactionEvent> for LastChange {
    fn from(event: &TransactionEvent) -> Self {
        Self {
            type_name: event.type_name.clone(),
            name: event.name.clone(),
            event_id: event.event_id.to_string(),
            at: event.timestamp,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{entry, subjects};
    use ccm_core::model::node::{ASSIGNMENT, REPORT};

    fn assigned(key: &str, generation: u64) -> Entry {
        let bundle = json!({"name": "app", "digest": "ab".repeat(32)});
        let assignment = json!({
            "protocol": ASSIGNMENT, "generation": generation, "manifests": [bundle],
            "assigned": "2027-01-15T08:00:00Z"
        });
        entry(key, assignment)
    }

    fn reported(key: &str, generation: u64, drift: &[&str], error: &str) -> Entry {
        let drift: Vec<_> = drift
            .iter()
            .map(|name| {
                json!({"type": "file", "name": name, "message": "no", "since": "2027-01-15T07:00:00Z"})
            })
            .collect();
        let identity = key.trim_start_matches("lab.").replace('_', ".");
        let report = json!({
            "protocol": REPORT, "identity": identity, "generation": generation, "manifests": [],
            "drift": drift, "error": error, "timestamp": "2027-01-15T08:00:00Z"
        });
        entry(key, report)
    }

    #[test]
    fn each_node_has_one_drift_state() {
        let desired = [
            assigned("lab.a_net", 2),
            assigned("lab.b", 2),
            assigned("lab.c", 2),
            assigned("lab.d", 2),
            entry("lab.broken", json!("x")),
        ];
        let reports = [
            reported("lab.a_net", 2, &[], ""),
            reported("lab.b", 1, &["/old"], "old"),
            reported("lab.c", 2, &["/a"], ""),
            reported("lab.d", 2, &[], "no such bundle"),
            reported("lab.e", 2, &[], ""),
        ];
        let found = compare(&subjects(), &desired, &reports);
        let states: Vec<(&str, &str)> = found
            .iter()
            .map(|it| (it.node.as_str(), it.state.as_str()))
            .collect();
        assert_eq!(
            states,
            [
                ("a.net", "converged"),
                ("b", "lagging"),
                ("broken", "unreadable"),
                ("c", "drifted"),
                ("d", "failed"),
                ("e", "unassigned"),
            ]
        );
        let lagging = found.iter().find(|it| it.node.as_str() == "b").unwrap();
        assert_eq!((lagging.drift.len(), lagging.error.as_str()), (0, ""));
    }

    #[test]
    fn a_node_that_refuses_its_assignment_has_failed() {
        let refused = |generation: u64| {
            let mut entry = reported("lab.a", 1, &["/old"], "");
            let mut report: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
            report["refusal"] = json!({
                "time": "2027-01-15T08:00:00Z", "what": "assignment", "generation": generation,
                "reason": "assignment is not signed"
            });
            entry.value = report.to_string().into();
            let found = compare(&subjects(), &[assigned("lab.a", 2)], &[entry]).remove(0);
            (found.state, found.refusal.is_some(), found.drift.len())
        };
        assert_eq!(refused(2), (DriftState::Failed, true, 0));
        assert_eq!(refused(3), (DriftState::Lagging, false, 0));
    }

    #[test]
    fn a_report_with_the_identity_of_another_node_is_unreadable() {
        let mut forged = reported("lab.a", 2, &[], "");
        forged.key = "lab.b".into();
        let found = compare(&subjects(), &[assigned("lab.b", 2)], &[forged]);
        assert_eq!(found[0].state, DriftState::Unreadable);
        assert_eq!(
            found[0].error,
            "record lab.b of bucket CCM_REPORTED is unreadable: the record has the identity a"
        );
    }

    #[test]
    fn the_state_of_a_node_with_an_unreadable_report_is_known_after_a_check() {
        let desired = [assigned("lab.c", 2)];
        let mut found = compare(
            &subjects(),
            &desired,
            &[entry("lab.c", json!({"drift": 1}))],
        );
        assert_eq!(found[0].state, DriftState::Unreadable);
        assert_eq!(found[0].manifests.len(), 1);
        let report = reported("lab.c", 2, &[], "");
        let report = serde_json::from_slice(&report.value).unwrap();
        let node = found[0].node.clone();
        set_reports(&mut found, vec![(node, Ok(report))]);
        assert_eq!(found[0].state, DriftState::Converged);
    }

    #[test]
    fn a_node_without_a_check_keeps_the_reported_drift() {
        let reports = [reported("lab.c", 2, &["/a"], "")];
        let mut found = compare(&subjects(), &[assigned("lab.c", 2)], &reports);
        let node = found[0].node.clone();
        set_reports(&mut found, vec![(node, Err(PreviewError::NoReply))]);
        assert_eq!(found[0].error, "no reply");
        assert_eq!(found[0].state, DriftState::Drifted);
    }

    #[test]
    fn a_check_and_a_later_reader_find_the_same() {
        let desired = [assigned("lab.c", 2)];
        let mut found = compare(&subjects(), &desired, &[reported("lab.c", 2, &[], "")]);
        assert_eq!(found[0].state, DriftState::Converged);
        let mut entry = reported("lab.c", 2, &["/a"], "");
        let mut report: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        report["source"] = json!("check");
        entry.value = report.to_string().into();
        let node = found[0].node.clone();
        let reply = serde_json::from_value(report).unwrap();
        set_reports(&mut found, vec![(node, Ok(reply))]);
        assert_eq!(found, compare(&subjects(), &desired, &[entry]));
        assert_eq!(found[0].state, DriftState::Drifted);
        assert_eq!(found[0].source, Some(ReportSource::Check));
    }
}
