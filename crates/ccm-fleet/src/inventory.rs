//! Inventory: online nodes, known nodes, facts, labels and last reports, read from the fleet's
//! buckets.
//!
//! Presence lists the online nodes; stored facts, labels, assignments and reports list further known
//! nodes. Agents of older versions store no facts, and an older fleet has no bucket for them. A
//! record that can't be parsed, or whose identity differs from its key, is left out with the reason,
//! so that a broken node hides no others and none can impersonate another. Requests to nodes are in
//! `scatter`.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Deserialize;

pub use super::records::{BadRecord, Unreadable};
use super::records::{check_identity, name_of, parse, parse_name};
use super::selection::{Resolved, Selection, SelectionError, resolve};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{BundleRef, NodeName, NodeStatus, StoredFacts, Token};
use ccm_core::model::run::RunOutcome;
use ccm_nats::kv::{Change, Entry};
use ccm_nats::streams::{DESIRED, FACTS, LABELS, NODES, REPORTED};
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::Value;
use ccm_value::text::timestamp;

/// The last report of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastReport {
    pub at: DateTime<Utc>,
    /// Outcome of its last run for an assignment.
    pub outcome: Option<RunOutcome>,
    /// Bundles of the assignment.
    pub bundles: Vec<BundleRef>,
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

/// How much of presence an inventory keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    /// No facts and runs.
    Names,
    All,
}

/// The last value of each key of a bucket.
type Records<T> = BTreeMap<String, Result<T, BadRecord>>;

/// The parts of a report that an inventory needs.
#[derive(Deserialize)]
struct ReportHead {
    identity: NodeName,
    #[serde(with = "timestamp")]
    timestamp: DateTime<Utc>,
    #[serde(default)]
    manifests: Vec<BundleRef>,
    #[serde(default)]
    run: Option<RunHead>,
}

#[derive(Deserialize)]
struct RunHead {
    outcome: RunOutcome,
}

impl Inventory {
    /// Reads the inventory with as much detail as a selection needs.
    pub async fn load_for(
        connection: &Connection,
        subjects: &Subjects,
        selection: &Selection,
    ) -> Result<Self, NatsError> {
        if selection.has_only_names() {
            Self::load_names(connection, subjects).await
        } else {
            Self::load(connection, subjects).await
        }
    }

    /// Reads which nodes are online or known, with their labels; no facts, runs and reports.
    async fn load_names(connection: &Connection, subjects: &Subjects) -> Result<Self, NatsError> {
        let present = |entry: &Entry| status_of(subjects, entry, Detail::Names);
        let keys = async |bucket| match connection.bucket(bucket).await {
            Ok(bucket) => Ok(Some((bucket.keys(&subjects.all_keys()).await?, bucket))),
            // A fleet, or permissions, of an older version.
            Err(err) if bucket == FACTS && (err.is_not_found() || err.is_denied()) => Ok(None),
            Err(err) => Err(err),
        };
        let (nodes, labels, facts, assigned, reports) = tokio::try_join!(
            read(connection, NODES, subjects, present),
            read(connection, LABELS, subjects, |entry| labels_of(
                subjects, entry
            )),
            keys(FACTS),
            keys(DESIRED),
            keys(REPORTED),
        )?;
        let mut inventory = Self::default();
        inventory.add_present(nodes);
        for (keys, bucket) in [facts, assigned, reports].into_iter().flatten() {
            let is_new = |key: &String| {
                let name = parse_name(subjects, key);
                name.is_ok_and(|name| !inventory.known.contains_key(&name))
            };
            let new: Vec<String> = keys.into_iter().filter(is_new).collect();
            // Some of them may have been removed.
            for entry in bucket.get_many_latest(&new).await? {
                if let Ok(name) = name_of(subjects, &entry) {
                    inventory.known.entry(name).or_default();
                }
            }
        }
        inventory.add_labels(labels);
        Ok(inventory)
    }

    /// Reads the inventory from the fleet's buckets.
    pub async fn load(connection: &Connection, subjects: &Subjects) -> Result<Self, NatsError> {
        let detail = Detail::All;
        let facts = async {
            match read(connection, FACTS, subjects, |entry| {
                facts_of(subjects, entry)
            })
            .await
            {
                // A fleet of an older version.
                Err(err) if err.is_not_found() => Ok((Records::new(), None)),
                // Permissions of an older version.
                Err(NatsError::Denied(denial)) => Ok((Records::new(), Some(denial))),
                result => result.map(|records| (records, None)),
            }
        };
        let (nodes, labels) = tokio::try_join!(
            read(connection, NODES, subjects, |entry| status_of(
                subjects, entry, detail
            )),
            read(connection, LABELS, subjects, |entry| labels_of(
                subjects, entry
            )),
        )?;
        let mut inventory = Self::default();
        inventory.add_present(nodes);
        let ((facts, denial), assigned, reports) = tokio::try_join!(
            facts,
            read(connection, DESIRED, subjects, |entry| name_of(
                subjects, entry
            )),
            read(connection, REPORTED, subjects, |entry| report_of(
                subjects, entry
            )),
        )?;
        inventory.add_facts(facts);
        inventory.add_reports(reports);
        inventory.add_labels(labels);
        inventory.add_assigned(assigned);
        inventory.unreadable.extend(denial.map(|denial| Unreadable {
            bucket: FACTS,
            key: subjects.all_keys(),
            reason: BadRecord::Denied(denial),
        }));
        Ok(inventory)
    }

    fn add_present(&mut self, records: Records<NodeStatus>) {
        for status in self.readable(NODES, records) {
            self.known.entry(status.identity.clone()).or_default();
            self.present.push(status);
        }
        self.present
            .sort_unstable_by(|a, b| a.identity.cmp(&b.identity));
    }

    /// Adds stored facts. Those of an online node are not needed: its presence is newer.
    fn add_facts(&mut self, records: Records<(NodeName, StoredFacts)>) {
        let records = records.into_iter().filter(|(_, record)| {
            let name = match record {
                Ok((name, _)) => name,
                Err(_) => return true,
            };
            self.status(name).is_none()
        });
        let records: Records<_> = records.collect();
        for (name, stored) in self.readable(FACTS, records) {
            self.known.entry(name.clone()).or_default();
            self.stored_facts.insert(name, stored);
        }
    }

    fn add_reports(&mut self, records: Records<(NodeName, LastReport)>) {
        for (name, report) in self.readable(REPORTED, records) {
            self.known.entry(name.clone()).or_default();
            self.last_reports.insert(name, report);
        }
    }

    fn add_labels(&mut self, records: Records<(NodeName, Labels)>) {
        for (name, labels) in self.readable(LABELS, records) {
            // An empty record remains after the last label is removed; it does not make the node
            // known.
            if !labels.is_empty() {
                self.known.insert(name, labels);
            }
        }
    }

    /// Adds the nodes that have an assignment, also those that have never been online.
    fn add_assigned(&mut self, records: Records<NodeName>) {
        for name in self.readable(DESIRED, records) {
            self.known.entry(name).or_default();
        }
    }

    /// Returns the readable records, and notes the others.
    fn readable<T>(&mut self, bucket: &'static str, records: Records<T>) -> Vec<T> {
        let mut readable = Vec::with_capacity(records.len());
        for (key, record) in records {
            match record {
                Ok(record) => readable.push(record),
                Err(reason) => self.unreadable.push(Unreadable {
                    bucket,
                    key,
                    reason,
                }),
            }
        }
        readable
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

/// Reads the records of a bucket one by one, so that only what `parse` returns is kept.
async fn read<T: Send>(
    connection: &Connection,
    bucket: &str,
    subjects: &Subjects,
    parse: impl Fn(&Entry) -> Result<T, BadRecord> + Send + Sync,
) -> Result<Records<T>, NatsError> {
    let bucket = connection.bucket(bucket).await?;
    let mut records = Records::new();
    let each = |change| match change {
        Change::Put(entry) => {
            let record = parse(&entry);
            records.insert(entry.key, record);
        }
        Change::Removed { key, .. } => {
            records.remove(&key);
        }
        Change::Restart => records.clear(),
        Change::Current | Change::Denied(_) => {}
    };
    bucket.read(&subjects.all_keys(), each).await?;
    Ok(records)
}

fn status_of(subjects: &Subjects, entry: &Entry, detail: Detail) -> Result<NodeStatus, BadRecord> {
    let name = name_of(subjects, entry)?;
    let mut status: NodeStatus = parse(entry)?;
    check_identity(&status.identity, &name)?;
    if detail == Detail::Names {
        (status.facts, status.last_run) = (Value::Null, None);
    }
    Ok(status)
}

fn facts_of(subjects: &Subjects, entry: &Entry) -> Result<(NodeName, StoredFacts), BadRecord> {
    let name = name_of(subjects, entry)?;
    let stored: StoredFacts = parse(entry)?;
    check_identity(&stored.identity, &name)?;
    Ok((name, stored))
}

fn report_of(subjects: &Subjects, entry: &Entry) -> Result<(NodeName, LastReport), BadRecord> {
    let name = name_of(subjects, entry)?;
    let report: ReportHead = parse(entry)?;
    check_identity(&report.identity, &name)?;
    let last_report = LastReport {
        at: report.timestamp,
        outcome: report.run.map(|run| run.outcome),
        bundles: report.manifests,
    };
    Ok((name, last_report))
}

fn labels_of(subjects: &Subjects, entry: &Entry) -> Result<(NodeName, Labels), BadRecord> {
    Ok((name_of(subjects, entry)?, parse(entry)?))
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

    fn inventory(
        nodes: &[Entry],
        facts: &[Entry],
        labels: &[Entry],
        reports: &[Entry],
    ) -> Inventory {
        fn records<T>(
            entries: &[Entry],
            parse: impl Fn(&Entry) -> Result<T, BadRecord>,
        ) -> Records<T> {
            let records = entries.iter().map(|it| (it.key.clone(), parse(it)));
            records.collect()
        }
        let (subjects, detail) = (subjects(), Detail::All);
        let mut inventory = Inventory::default();
        inventory.add_present(records(nodes, |it| status_of(&subjects, it, detail)));
        inventory.add_facts(records(facts, |it| facts_of(&subjects, it)));
        inventory.add_reports(records(reports, |it| report_of(&subjects, it)));
        inventory.add_labels(records(labels, |it| labels_of(&subjects, it)));
        inventory
    }

    #[test]
    fn a_node_with_only_labels_or_a_report_is_known_and_offline() {
        let inventory = inventory(
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
        let mut inventory = inventory(&[], &[], &labels, &[]);
        let assigned = ["web1", "web2"].map(|node| (format!("lab.{node}"), Ok(name(node))));
        inventory.add_assigned(assigned.into());
        assert_eq!(inventory.labels(&name("web1")).get("role"), Some("web"));
        let resolved = inventory.resolve(&Selection::default()).unwrap();
        assert_eq!(resolved.offline, [name("web1"), name("web2")]);
        assert!(inventory.unreadable().is_empty());
    }

    #[test]
    fn a_record_with_the_identity_of_another_node_is_left_out() {
        let nodes = [presence("lab.web1", "web1"), presence("lab.evil", "web1")];
        let reports = [report("lab.evil", "db1")];
        let inventory = inventory(&nodes, &[], &[], &reports);
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
        let inventory = inventory(&nodes, &[], &[], &[]);
        assert_eq!(inventory.present().len(), 1);
        let keys: Vec<&str> = inventory
            .unreadable()
            .iter()
            .map(|one| one.key.as_str())
            .collect();
        assert_eq!(keys, ["lab.UPPER", "lab.web1"]);
    }

    #[test]
    fn stored_facts_are_those_of_offline_nodes_only() {
        let nodes = [presence("lab.web1", "web1")];
        let stored = [
            facts("lab.web1", "web1"),
            facts("lab.web2", "web2"),
            facts("lab.evil", "web1"),
        ];
        let inventory = inventory(&nodes, &stored, &[], &[]);
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
