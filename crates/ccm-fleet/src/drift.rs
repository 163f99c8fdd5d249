//! What nodes are, beside what they should be.
//!
//! Read from what nodes were assigned and what they last reported; [`refresh`] lays over it what
//! they answer now. Nothing is changed on any node. Since when a resource differs is what the
//! node remembers; which event touched it last is looked up by [`touched`], for one node only,
//! because that reads through the node's history.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::preview::{Answer, Question, Silence};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{Assignment, BundleRef, Drift, NodeName, Refusal, Report};
use ccm_nats::event_feed::Reading;
use ccm_nats::kv::Entry;
use ccm_nats::streams::{DESIRED, REPORTED};
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::text::{maybe_timestamp, timestamp};

/// How a node stands to its assignment, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The assignment could not even be tried.
    Failed,
    /// Something is not as it should be.
    Drifted,
    /// It was not heard since it was assigned something new.
    Lagging,
    Converged,
    /// Nothing is wanted of it.
    Unassigned,
}

impl Standing {
    /// Returns the word people know it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Drifted => "drifted",
            Self::Lagging => "lagging",
            Self::Converged => "converged",
            Self::Unassigned => "unassigned",
        }
    }
}

/// One node beside its assignment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeDrift {
    pub node: NodeName,
    pub standing: Standing,
    /// What it should be.
    pub manifests: Vec<BundleRef>,
    pub wanted_generation: u64,
    #[serde(with = "maybe_timestamp")]
    pub assigned: Option<DateTime<Utc>>,
    /// What it reported, or 0.
    pub reported_generation: u64,
    #[serde(with = "maybe_timestamp")]
    pub reported: Option<DateTime<Utc>>,
    pub drift: Vec<Drift>,
    /// Why the assignment could not be tried, or the node not asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Why the node does not follow the assignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    #[serde(skip)]
    wanted: Option<Assignment>,
}

impl NodeDrift {
    fn of(node: NodeName, wanted: Option<Assignment>, report: Option<Report>) -> Self {
        let wanted = wanted.filter(|it| !it.manifests.is_empty());
        let wanted_generation = wanted.as_ref().map_or(0, |it| it.generation);
        let reported_generation = report.as_ref().map_or(0, |it| it.generation);
        let reported = report.as_ref().map(|it| it.timestamp);
        let (drift, error, refusal) =
            report.map_or_else(Default::default, |it| (it.drift, it.error, it.refusal));
        let is_about_this = |it: &Refusal| it.generation == Some(wanted_generation);
        let refusal = refusal.filter(|it| wanted.is_some() && is_about_this(it));
        let mut found = Self {
            node,
            standing: Standing::Unassigned,
            manifests: wanted
                .as_ref()
                .map_or_else(Vec::new, |it| it.manifests.clone()),
            wanted_generation,
            assigned: wanted.as_ref().map(|it| it.assigned),
            reported_generation,
            reported,
            drift,
            error,
            refusal,
            wanted,
        };
        found.standing = found.stand();
        if found.standing == Standing::Lagging || found.refusal.is_some() {
            // What it said is about something else.
            found.drift.clear();
            found.error.clear();
        }
        found
    }

    fn stand(&self) -> Standing {
        if self.wanted.is_none() {
            Standing::Unassigned
        } else if self.refusal.is_some() {
            Standing::Failed
        } else if self.reported_generation < self.wanted_generation {
            Standing::Lagging
        } else if !self.drift.is_empty() {
            Standing::Drifted
        } else if !self.error.is_empty() {
            Standing::Failed
        } else {
            Standing::Converged
        }
    }

    /// Returns what the node must be asked to know how it is now.
    pub fn questions(&self) -> Vec<Question> {
        let Some(wanted) = &self.wanted else {
            return Vec::new();
        };
        let question = |bundle: &BundleRef| Question {
            node: self.node.clone(),
            bundle: bundle.clone(),
            data: wanted.data.clone(),
        };
        wanted.manifests.iter().map(question).collect()
    }
}

/// Reads how every node of a collective stands, in the order of their names.
pub async fn load(
    connection: &Connection,
    subjects: &Subjects,
) -> Result<Vec<NodeDrift>, NatsError> {
    let keys = subjects.keys();
    let read = async |name| connection.bucket(name).await?.entries(&keys).await;
    let (desired, reported) = tokio::try_join!(read(DESIRED), read(REPORTED))?;
    Ok(compare(subjects, &desired, &reported))
}

fn compare(subjects: &Subjects, desired: &[Entry], reported: &[Entry]) -> Vec<NodeDrift> {
    let mut nodes: BTreeMap<NodeName, (Option<Assignment>, Option<Report>)> = BTreeMap::new();
    // Names hold no `_`, so a key leads back to its node.
    let name = |entry: &Entry| {
        let token = subjects.read_key(&entry.key)?;
        token.as_str().replace('_', ".").parse().ok()
    };
    for entry in desired {
        if let Some(node) = name(entry) {
            nodes.entry(node).or_default().0 = serde_json::from_slice(&entry.value).ok();
        }
    }
    for entry in reported {
        let report: Option<Report> = serde_json::from_slice(&entry.value).ok();
        if let Some(node) = name(entry) {
            // Nobody speaks for another node.
            let report = report.filter(|report| report.identity == node);
            nodes.entry(node).or_default().1 = report;
        }
    }
    let nodes = nodes.into_iter();
    nodes
        .map(|(node, (wanted, report))| NodeDrift::of(node, wanted, report))
        .collect()
}

/// Lays what nodes answered over what they reported. A node that did not answer keeps what it
/// reported, with the reason.
pub fn refresh(nodes: &mut [NodeDrift], answers: Vec<Answer>, now: DateTime<Utc>) {
    let mut by_node: BTreeMap<NodeName, Vec<_>> = BTreeMap::new();
    for (question, answer) in answers {
        by_node.entry(question.node).or_default().push(answer);
    }
    for node in nodes {
        let Some(answers) = by_node.remove(&node.node) else {
            continue;
        };
        let mut drift = Vec::new();
        let mut silence: Option<Silence> = None;
        for answer in answers {
            match answer {
                Ok(outlook) => {
                    let found = outlook.events.iter();
                    drift.extend(found.filter_map(|event| Drift::of(event, outlook.run.noop)));
                }
                Err(reason) => silence = Some(reason),
            }
        }
        if let Some(reason) = silence {
            node.error = reason.to_string();
            continue;
        }
        for item in &mut drift {
            let known = node.drift.iter().find(|it| it.is_about_same(item));
            if let Some(known) = known {
                item.since = known.since;
            }
        }
        node.drift = drift;
        node.error.clear();
        node.reported = Some(now);
        node.standing = node.stand();
    }
}

/// The last event that touched a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Touched {
    #[serde(rename = "type")]
    pub type_name: String,
    pub name: String,
    pub event_id: String,
    #[serde(with = "timestamp")]
    pub at: DateTime<Utc>,
}

/// Returns the last events that changed what differs on a node.
pub async fn touched(
    connection: &Connection,
    subjects: &Subjects,
    node: &NodeDrift,
) -> Result<Vec<Touched>, NatsError> {
    let types: BTreeSet<&str> = node.drift.iter().map(|it| it.type_name.as_str()).collect();
    let mut last: BTreeMap<(String, String), Touched> = BTreeMap::new();
    for type_name in types {
        let subject = subjects.event(&node.node.token(), type_name, "changed");
        let reading = Reading {
            filter: subject,
            since: Some(DateTime::UNIX_EPOCH),
            follow: false,
        };
        let reading = connection.read_events(&reading, |stored| {
            if let Ok(event) = serde_json::from_slice::<TransactionEvent>(&stored.body) {
                let is_it = |it: &Drift| it.type_name == event.type_name && it.name == event.name;
                if node.drift.iter().any(is_it) {
                    let key = (event.type_name.clone(), event.name.clone());
                    last.insert(key, Touched::by(&event));
                }
            }
            true
        });
        reading.await?;
    }
    Ok(last.into_values().collect())
}

impl Touched {
    fn by(event: &TransactionEvent) -> Self {
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
    fn each_node_stands_in_one_way_to_its_assignment() {
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
        let standings: Vec<(&str, &str)> = found
            .iter()
            .map(|it| (it.node.as_str(), it.standing.as_str()))
            .collect();
        assert_eq!(
            standings,
            [
                ("a.net", "converged"),
                ("b", "lagging"),
                ("broken", "unassigned"),
                ("c", "drifted"),
                ("d", "failed"),
                ("e", "unassigned"),
            ]
        );
        let lagging = found.iter().find(|it| it.node.as_str() == "b").unwrap();
        assert_eq!((lagging.drift.len(), lagging.error.as_str()), (0, ""));
        assert_eq!(found[0].questions().len(), 1);
        assert_eq!(found[5].questions().len(), 0);
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
            (found.standing, found.refusal.is_some(), found.drift.len())
        };
        assert_eq!(refused(2), (Standing::Failed, true, 0));
        assert_eq!(refused(3), (Standing::Lagging, false, 0));
    }

    #[test]
    fn a_report_that_poses_as_another_node_is_not_heard() {
        let mut posing = reported("lab.a", 2, &[], "");
        posing.key = "lab.b".into();
        let found = compare(&subjects(), &[assigned("lab.b", 2)], &[posing]);
        assert_eq!(found[0].standing, Standing::Lagging);
    }

    #[test]
    fn a_node_that_does_not_answer_keeps_what_it_reported() {
        let reports = [reported("lab.c", 2, &["/a"], "")];
        let mut found = compare(&subjects(), &[assigned("lab.c", 2)], &reports);
        let question = found[0].questions().remove(0);
        let answers = vec![(question, Err(Silence::NoAnswer))];
        refresh(&mut found, answers, DateTime::UNIX_EPOCH);
        assert_eq!(found[0].error, "no answer");
        assert_eq!(found[0].standing, Standing::Drifted);
    }
}
