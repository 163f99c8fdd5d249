//! The fleet as its buckets know it: who is there, who was, and what operators call them.
//!
//! Presence says who is there now, by the node's own words; labels and reports say who else has
//! been heard of. A record that can't be read, or that speaks for another node than its key, is
//! set aside with the reason: one broken node hides no others, and none can pose as another.
//! Nothing is asked here; that is `gather`.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::selection::{Resolved, Selection, SelectionError, resolve};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{NodeName, NodeStatus, Report, Token};
use ccm_core::model::run::RunOutcome;
use ccm_nats::kv::Entry;
use ccm_nats::streams::{LABELS, NODES, REPORTED};
use ccm_nats::{Connection, NatsError, Subjects};

/// What a node that is away last said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastSaid {
    pub at: DateTime<Utc>,
    /// How its last run for an assignment came out, if there was one.
    pub outcome: Option<RunOutcome>,
}

/// A record that is left out, and why.
#[derive(Clone, Debug)]
pub struct Unreadable {
    pub bucket: &'static str,
    pub key: String,
    pub reason: BadRecord,
}

/// Why a record is left out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BadRecord {
    #[error("the key names no node")]
    Key,
    #[error("it speaks for {0}")]
    Speaker(NodeName),
    #[error("{0}")]
    Json(#[source] Arc<serde_json::Error>),
}

/// The nodes of a collective.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Those that are there, in the order of their names.
    present: Vec<NodeStatus>,
    /// Everyone ever heard of, those present included, with their labels.
    known: BTreeMap<NodeName, Labels>,
    reported: BTreeMap<NodeName, LastSaid>,
    unreadable: Vec<Unreadable>,
}

impl Inventory {
    /// Reads the inventory from the fleet's buckets.
    pub async fn load(connection: &Connection, subjects: &Subjects) -> Result<Self, NatsError> {
        let keys = subjects.keys();
        let read = async |name| connection.bucket(name).await?.entries(&keys).await;
        let (nodes, labels, reports) = tokio::try_join!(read(NODES), read(LABELS), read(REPORTED))?;
        Ok(Self::of(subjects, &nodes, &labels, &reports))
    }

    /// Returns the inventory that these records amount to.
    fn of(subjects: &Subjects, nodes: &[Entry], labels: &[Entry], reports: &[Entry]) -> Self {
        let mut inventory = Self::default();
        for entry in nodes {
            let status = name_of(subjects, entry).and_then(|name| {
                let status: NodeStatus = parse(entry)?;
                speaks_for(&status.identity, &name)?;
                Ok(status)
            });
            if let Some(status) = inventory.take(NODES, entry, status) {
                inventory.known.entry(status.identity.clone()).or_default();
                inventory.present.push(status);
            }
        }
        for entry in reports {
            let report = name_of(subjects, entry).and_then(|name| {
                let report: Report = parse(entry)?;
                speaks_for(&report.identity, &name)?;
                Ok((name, report))
            });
            if let Some((name, report)) = inventory.take(REPORTED, entry, report) {
                let said = LastSaid {
                    at: report.timestamp,
                    outcome: report.run.map(|run| run.outcome),
                };
                inventory.known.entry(name.clone()).or_default();
                inventory.reported.insert(name, said);
            }
        }
        for entry in labels {
            let found =
                name_of(subjects, entry).and_then(|name| Ok((name, parse::<Labels>(entry)?)));
            // Whose last label was taken away has none, and nothing else is said by that.
            if let Some((name, labels)) = inventory.take(LABELS, entry, found)
                && !labels.is_empty()
            {
                inventory.known.insert(name, labels);
            }
        }
        inventory
            .present
            .sort_unstable_by(|a, b| a.identity.cmp(&b.identity));
        inventory
    }

    fn take<T>(
        &mut self,
        bucket: &'static str,
        entry: &Entry,
        read: Result<T, BadRecord>,
    ) -> Option<T> {
        read.map_err(|reason| {
            self.unreadable.push(Unreadable {
                bucket,
                key: entry.key.clone(),
                reason,
            });
        })
        .ok()
    }

    /// Returns the nodes a selection means, the absent ones named.
    pub fn resolve(&self, selection: &Selection) -> Result<Resolved, SelectionError> {
        resolve(selection, &self.present, &self.known)
    }

    /// Returns those that are there, in the order of their names.
    pub fn present(&self) -> &[NodeStatus] {
        &self.present
    }

    /// Reports whether nobody and nothing is known of any node.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Reports whether a node was ever heard of by itself, not by its labels alone.
    pub fn has_heard_of(&self, node: &NodeName) -> bool {
        self.status(node).is_some() || self.reported.contains_key(node)
    }

    /// Returns what a node that is there says about itself.
    pub fn status(&self, node: &NodeName) -> Option<&NodeStatus> {
        let found = self
            .present
            .binary_search_by(|status| status.identity.cmp(node));
        found.ok().and_then(|index| self.present.get(index))
    }

    /// Returns the labels of a node.
    pub fn labels(&self, node: &NodeName) -> &Labels {
        self.known.get(node).unwrap_or(Labels::none())
    }

    /// Returns when a node last reported what it became, and how.
    pub fn last_said(&self, node: &NodeName) -> Option<LastSaid> {
        self.reported.get(node).copied()
    }

    /// Returns the records that were left out.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }
}

/// Returns the node whose key an entry has. Names hold no `_`, so a token leads back to its name.
fn name_of(subjects: &Subjects, entry: &Entry) -> Result<NodeName, BadRecord> {
    let token: Token = subjects.read_key(&entry.key).ok_or(BadRecord::Key)?;
    let name = token.as_str().replace('_', ".");
    name.parse().map_err(|_| BadRecord::Key)
}

fn parse<T: serde::de::DeserializeOwned>(entry: &Entry) -> Result<T, BadRecord> {
    serde_json::from_slice(&entry.value).map_err(|err| BadRecord::Json(Arc::new(err)))
}

fn speaks_for(said: &NodeName, name: &NodeName) -> Result<(), BadRecord> {
    if said == name {
        Ok(())
    } else {
        Err(BadRecord::Speaker(said.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{entry, subjects};
    use ccm_core::model::node::{NODE_STATUS, REPORT};

    fn presence(key: &str, identity: &str) -> Entry {
        let status = serde_json::json!({
            "protocol": NODE_STATUS,
            "identity": identity,
            "collective": "lab",
            "version": "1",
            "started": "2027-01-15T08:00:00Z",
            "timestamp": "2027-01-15T08:00:00Z",
            "beat": 30
        });
        entry(key, status)
    }

    fn report(key: &str, identity: &str) -> Entry {
        let report = serde_json::json!({
            "protocol": REPORT,
            "identity": identity,
            "generation": 3,
            "manifests": [],
            "timestamp": "2027-01-15T08:00:00Z"
        });
        entry(key, report)
    }

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn who_has_labels_or_reported_is_known_and_offline() {
        let inventory = Inventory::of(
            &subjects(),
            &[presence("lab.web1_example_net", "web1.example.net")],
            &[entry("lab.db1", serde_json::json!({"role": "db"}))],
            &[report("lab.web2_example_net", "web2.example.net")],
        );
        assert!(inventory.unreadable().is_empty());
        let resolved = inventory.resolve(&Selection::default()).unwrap();
        assert_eq!(resolved.chosen, [name("web1.example.net")]);
        assert_eq!(resolved.offline, [name("db1"), name("web2.example.net")]);
        assert_eq!(inventory.labels(&name("db1")).get("role"), Some("db"));
        let said = inventory.last_said(&name("web2.example.net")).unwrap();
        assert_eq!(said.at.to_rfc3339(), "2027-01-15T08:00:00+00:00");
        assert!(inventory.status(&name("web1.example.net")).is_some());
        assert!(inventory.status(&name("db1")).is_none());
        assert!(inventory.has_heard_of(&name("web2.example.net")));
        assert!(!inventory.has_heard_of(&name("db1")));
    }

    #[test]
    fn a_record_that_poses_as_another_node_is_left_out() {
        let nodes = [presence("lab.web1", "web1"), presence("lab.evil", "web1")];
        let reports = [report("lab.evil", "db1")];
        let inventory = Inventory::of(&subjects(), &nodes, &[], &reports);
        assert_eq!(inventory.present().len(), 1);
        let reasons: Vec<String> = inventory
            .unreadable()
            .iter()
            .map(|one| one.reason.to_string())
            .collect();
        assert_eq!(reasons, ["it speaks for web1", "it speaks for db1"]);
    }

    #[test]
    fn a_broken_record_hides_no_others() {
        let nodes = [
            entry("lab.web1", serde_json::json!({"identity": 7})),
            entry("lab.UPPER", serde_json::json!({})),
            presence("lab.web2", "web2"),
        ];
        let inventory = Inventory::of(&subjects(), &nodes, &[], &[]);
        assert_eq!(inventory.present().len(), 1);
        let keys: Vec<&str> = inventory
            .unreadable()
            .iter()
            .map(|one| one.key.as_str())
            .collect();
        assert_eq!(keys, ["lab.web1", "lab.UPPER"]);
    }
}
