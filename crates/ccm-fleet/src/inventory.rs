//! Inventory: online nodes, known nodes, facts, labels and last reports, read from the fleet's
//! buckets.
//!
//! Presence lists the online nodes; stored facts, labels, assignments and reports list further known
//! nodes. Agents of older versions store no facts, and an older fleet has no bucket for them. A
//! record that can't be parsed, or whose identity differs from its key, is left out with the reason,
//! so that a broken node hides no others and none can impersonate another. Requests to nodes are in
//! `scatter`.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::selection::{Resolved, Selection, SelectionError, resolve};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{BundleRef, NodeName, NodeReport, NodeStatus, StoredFacts, Token};
use ccm_core::model::run::RunOutcome;
use ccm_nats::kv::Entry;
use ccm_nats::streams::{DESIRED, FACTS, LABELS, NODES, REPORTED};
use ccm_nats::{Connection, Denial, NatsError, Subjects};
use ccm_value::Value;

/// The last report of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastReport {
    pub at: DateTime<Utc>,
    /// Outcome of its last run for an assignment.
    pub outcome: Option<RunOutcome>,
    /// Bundles of the assignment.
    pub bundles: Vec<BundleRef>,
}

/// A record that is left out, with the reason.
#[derive(Clone, Debug)]
pub struct Unreadable {
    pub bucket: &'static str,
    pub key: String,
    pub reason: BadRecord,
}

/// Why a record is left out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BadRecord {
    #[error("the key is not a node name")]
    Key,
    #[error("the record has the identity {0}")]
    OtherNode(NodeName),
    #[error("{0}")]
    Json(#[source] Arc<serde_json::Error>),
    /// The records can't be read with the permissions of the user.
    #[error(transparent)]
    Denied(Denial),
}

/// The nodes of a collective.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The online nodes, sorted by name.
    present: Vec<NodeStatus>,
    /// All known nodes, online ones included, with their labels.
    known: BTreeMap<NodeName, Labels>,
    /// Stored facts of nodes that are offline.
    stored_facts: BTreeMap<NodeName, StoredFacts>,
    last_reports: BTreeMap<NodeName, LastReport>,
    unreadable: Vec<Unreadable>,
}

impl Inventory {
    /// Reads the inventory from the fleet's buckets.
    pub async fn load(connection: &Connection, subjects: &Subjects) -> Result<Self, NatsError> {
        let keys = subjects.all_keys();
        let read = async |name| connection.bucket(name).await?.entries(&keys).await;
        let facts = async {
            match read(FACTS).await {
                // A fleet of an older version.
                Err(err) if err.is_not_found() => Ok((Vec::new(), None)),
                // Permissions of an older version.
                Err(NatsError::Denied(denial)) => Ok((Vec::new(), Some(denial))),
                result => result.map(|entries| (entries, None)),
            }
        };
        let (nodes, (facts, denial), labels, assignments, reports) = tokio::try_join!(
            read(NODES),
            facts,
            read(LABELS),
            read(DESIRED),
            read(REPORTED)
        )?;
        let mut inventory = Self::from_entries(subjects, &nodes, &facts, &labels, &reports);
        inventory.add_assigned(subjects, &assignments);
        inventory.unreadable.extend(denial.map(|denial| Unreadable {
            bucket: FACTS,
            key: keys.clone(),
            reason: BadRecord::Denied(denial),
        }));
        Ok(inventory)
    }

    /// Builds the inventory from bucket entries.
    fn from_entries(
        subjects: &Subjects,
        nodes: &[Entry],
        facts: &[Entry],
        labels: &[Entry],
        reports: &[Entry],
    ) -> Self {
        let mut inventory = Self::default();
        for entry in nodes {
            let status = name_of(subjects, entry).and_then(|name| {
                let status: NodeStatus = parse(entry)?;
                check_identity(&status.identity, &name)?;
                Ok(status)
            });
            if let Some(status) = inventory.keep_unless_broken(NODES, entry, status) {
                inventory.known.entry(status.identity.clone()).or_default();
                inventory.present.push(status);
            }
        }
        for entry in facts {
            let name = name_of(subjects, entry);
            if name
                .as_ref()
                .is_ok_and(|name| inventory.known.contains_key(name))
            {
                // The node is online: its presence is newer.
                continue;
            }
            let stored = name.and_then(|name| {
                let stored: StoredFacts = parse(entry)?;
                check_identity(&stored.identity, &name)?;
                Ok((name, stored))
            });
            if let Some((name, stored)) = inventory.keep_unless_broken(FACTS, entry, stored) {
                inventory.known.entry(name.clone()).or_default();
                inventory.stored_facts.insert(name, stored);
            }
        }
        for entry in reports {
            let report = name_of(subjects, entry).and_then(|name| {
                let report: NodeReport = parse(entry)?;
                check_identity(&report.identity, &name)?;
                Ok((name, report))
            });
            if let Some((name, report)) = inventory.keep_unless_broken(REPORTED, entry, report) {
                let last_report = LastReport {
                    at: report.timestamp,
                    outcome: report.run.map(|run| run.outcome),
                    bundles: report.manifests,
                };
                inventory.known.entry(name.clone()).or_default();
                inventory.last_reports.insert(name, last_report);
            }
        }
        for entry in labels {
            let parsed =
                name_of(subjects, entry).and_then(|name| Ok((name, parse::<Labels>(entry)?)));
            // An empty record remains after the last label is removed; it does not make the node
            // known.
            if let Some((name, labels)) = inventory.keep_unless_broken(LABELS, entry, parsed)
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

    /// Adds the nodes that have an assignment, also those that have never been online.
    fn add_assigned(&mut self, subjects: &Subjects, assignments: &[Entry]) {
        for entry in assignments {
            let name = name_of(subjects, entry);
            if let Some(name) = self.keep_unless_broken(DESIRED, entry, name) {
                self.known.entry(name).or_default();
            }
        }
    }

    fn keep_unless_broken<T>(
        &mut self,
        bucket: &'static str,
        entry: &Entry,
        parsed: Result<T, BadRecord>,
    ) -> Option<T> {
        parsed
            .map_err(|reason| {
                self.unreadable.push(Unreadable {
                    bucket,
                    key: entry.key.clone(),
                    reason,
                });
            })
            .ok()
    }

    /// Resolves a selection.
    pub fn resolve(&self, selection: &Selection) -> Result<Resolved, SelectionError> {
        resolve(selection, &self.present, &self.known, &self.stored_facts)
    }

    /// Returns the online nodes, sorted by name.
    pub fn present(&self) -> &[NodeStatus] {
        &self.present
    }

    /// Returns all known nodes, online ones included, sorted by name.
    pub fn known(&self) -> impl Iterator<Item = &NodeName> {
        self.known.keys()
    }

    /// Reports whether no node is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the number of known nodes.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Reports whether a node is known.
    pub fn is_known(&self, node: &NodeName) -> bool {
        self.known.contains_key(node)
    }

    /// Reports whether a node has presence, stored facts or a report, not only labels.
    pub fn has_reported_itself(&self, node: &NodeName) -> bool {
        self.status(node).is_some()
            || self.stored_facts.contains_key(node)
            || self.last_reports.contains_key(node)
    }

    /// Returns the facts that an offline node stored.
    pub fn stored_facts(&self, node: &NodeName) -> Option<&StoredFacts> {
        self.stored_facts.get(node)
    }

    /// Returns the facts of a node and their time: those of its presence, or the stored ones.
    pub fn facts(&self, node: &NodeName) -> Option<(&Value, DateTime<Utc>)> {
        let present = self.status(node);
        let present = present.map(|status| (&status.facts, status.timestamp));
        present.or_else(|| {
            let stored = self.stored_facts(node)?;
            Some((&stored.facts, stored.timestamp))
        })
    }

    /// Returns the groups of a node.
    pub fn groups(&self, node: &NodeName) -> &[Token] {
        let present = self.status(node).map(|status| &status.groups);
        let stored = || self.stored_facts(node).map(|stored| &stored.groups);
        present.or_else(stored).map_or(&[], Vec::as_slice)
    }

    /// Returns the version of a node's agent.
    pub fn version(&self, node: &NodeName) -> Option<&str> {
        let present = self.status(node).map(|status| status.version.as_str());
        present.or_else(|| Some(self.stored_facts(node)?.version.as_str()))
    }

    /// Returns the status of an online node.
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

    /// Returns the last report of a node.
    pub fn last_report(&self, node: &NodeName) -> Option<&LastReport> {
        self.last_reports.get(node)
    }

    /// Returns the records that were left out.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }
}

/// Returns the node of an entry's key. Node names have no `_`, so the token maps back to the name.
fn name_of(subjects: &Subjects, entry: &Entry) -> Result<NodeName, BadRecord> {
    let token: Token = subjects.parse_key(&entry.key).ok_or(BadRecord::Key)?;
    let name = token.as_str().replace('_', ".");
    name.parse().map_err(|_| BadRecord::Key)
}

fn parse<T: serde::de::DeserializeOwned>(entry: &Entry) -> Result<T, BadRecord> {
    serde_json::from_slice(&entry.value).map_err(|err| BadRecord::Json(Arc::new(err)))
}

fn check_identity(identity: &NodeName, name: &NodeName) -> Result<(), BadRecord> {
    if identity == name {
        Ok(())
    } else {
        Err(BadRecord::OtherNode(identity.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{entry, subjects};
    use ccm_core::model::node::{NODE_FACTS, NODE_STATUS, REPORT};

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

    fn facts(key: &str, identity: &str) -> Entry {
        let facts = serde_json::json!({
            "protocol": NODE_FACTS,
            "identity": identity,
            "groups": ["stored"],
            "version": "0",
            "timestamp": "2027-01-15T08:00:00Z",
            "facts": {"os": "debian"}
        });
        entry(key, facts)
    }

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_with_only_labels_or_a_report_is_known_and_offline() {
        let inventory = Inventory::from_entries(
            &subjects(),
            &[presence("lab.web1_example_net", "web1.example.net")],
            &[],
            &[entry("lab.db1", serde_json::json!({"role": "db"}))],
            &[report("lab.web2_example_net", "web2.example.net")],
        );
        assert!(inventory.unreadable().is_empty());
        let resolved = inventory.resolve(&Selection::default()).unwrap();
        assert_eq!(resolved.chosen, [name("web1.example.net")]);
        assert_eq!(resolved.offline, [name("db1"), name("web2.example.net")]);
        assert_eq!(inventory.labels(&name("db1")).get("role"), Some("db"));
        let last = inventory.last_report(&name("web2.example.net")).unwrap();
        assert_eq!(last.at.to_rfc3339(), "2027-01-15T08:00:00+00:00");
        assert!(inventory.status(&name("web1.example.net")).is_some());
        assert!(inventory.status(&name("db1")).is_none());
        assert!(inventory.has_reported_itself(&name("web2.example.net")));
        assert!(!inventory.has_reported_itself(&name("db1")));
    }

    #[test]
    fn a_node_with_only_an_assignment_is_known_and_keeps_its_labels() {
        let labels = [entry("lab.web1", serde_json::json!({"role": "web"}))];
        let mut inventory = Inventory::from_entries(&subjects(), &[], &[], &labels, &[]);
        let assigned = ["lab.web1", "lab.web2"].map(|key| entry(key, serde_json::json!({})));
        inventory.add_assigned(&subjects(), &assigned);
        assert_eq!(inventory.labels(&name("web1")).get("role"), Some("web"));
        let resolved = inventory.resolve(&Selection::default()).unwrap();
        assert_eq!(resolved.offline, [name("web1"), name("web2")]);
        assert!(inventory.unreadable().is_empty());
    }

    #[test]
    fn a_record_with_the_identity_of_another_node_is_left_out() {
        let nodes = [presence("lab.web1", "web1"), presence("lab.evil", "web1")];
        let reports = [report("lab.evil", "db1")];
        let inventory = Inventory::from_entries(&subjects(), &nodes, &[], &[], &reports);
        assert_eq!(inventory.present().len(), 1);
        let reasons: Vec<String> = inventory
            .unreadable()
            .iter()
            .map(|one| one.reason.to_string())
            .collect();
        assert_eq!(
            reasons,
            [
                "the record has the identity web1",
                "the record has the identity db1"
            ]
        );
    }

    #[test]
    fn a_broken_record_hides_no_others() {
        let nodes = [
            entry("lab.web1", serde_json::json!({"identity": 7})),
            entry("lab.UPPER", serde_json::json!({})),
            presence("lab.web2", "web2"),
        ];
        let inventory = Inventory::from_entries(&subjects(), &nodes, &[], &[], &[]);
        assert_eq!(inventory.present().len(), 1);
        let keys: Vec<&str> = inventory
            .unreadable()
            .iter()
            .map(|one| one.key.as_str())
            .collect();
        assert_eq!(keys, ["lab.web1", "lab.UPPER"]);
    }

    #[test]
    fn stored_facts_are_those_of_offline_nodes_only() {
        let nodes = [presence("lab.web1", "web1")];
        let stored = [
            facts("lab.web1", "web1"),
            facts("lab.web2", "web2"),
            facts("lab.evil", "web1"),
        ];
        let inventory = Inventory::from_entries(&subjects(), &nodes, &stored, &[], &[]);
        assert_eq!(inventory.stored_facts(&name("web1")), None);
        assert_eq!(inventory.groups(&name("web1")), []);
        let (facts, time) = inventory.facts(&name("web2")).unwrap();
        assert_eq!(facts.get("os"), Some(&"debian".into()));
        assert_eq!(time.to_rfc3339(), "2027-01-15T08:00:00+00:00");
        assert_eq!(inventory.version(&name("web2")), Some("0"));
        assert!(inventory.has_reported_itself(&name("web2")));
        let unreadable = inventory.unreadable();
        assert_eq!(unreadable.len(), 1, "{unreadable:?}");
        assert_eq!(unreadable[0].key, "lab.evil");
    }
}
