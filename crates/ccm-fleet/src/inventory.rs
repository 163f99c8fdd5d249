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
use serde::de::IgnoredAny;

pub use super::records::{BadRecord, Unreadable};
use super::records::{check_identity, name_of, parse, parse_name};
use super::selection::{Rejected, Resolved, Selection, SelectionError, resolve};
use ccm_core::filter::{FilterError, Matcher, NodeAttributes};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{BundleRef, NodeName, NodeStatus, StoredFacts, Token};
use ccm_core::model::run::RunOutcome;
use ccm_nats::kv::{Bucket, Change, Entry, MAX_KEYS};
use ccm_nats::streams::{DESIRED, FACTS, LABELS, NODES, REPORTED};
use ccm_nats::{Connection, Denial, NatsError, Subjects};
use ccm_template::env::Facts;
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
    present: Vec<OnlineNode>,
    /// All known nodes, online ones included, with their labels.
    known: BTreeMap<NodeName, Labels>,
    /// Stored facts of nodes that are offline.
    stored_facts: BTreeMap<NodeName, StoredFacts>,
    last_reports: BTreeMap<NodeName, LastReport>,
    unreadable: Vec<Unreadable>,
    /// Set if the conditions of a selection were evaluated while the records were read.
    rejected: Option<Rejected>,
}

/// An online node.
#[derive(Clone, Debug)]
struct OnlineNode {
    name: NodeName,
    /// Not kept if only names are read, unless a rollout needs more of it than its name.
    status: Option<Box<NodeStatus>>,
}

impl From<Box<NodeStatus>> for OnlineNode {
    fn from(status: Box<NodeStatus>) -> Self {
        let name = status.identity.clone();
        let status = Some(status);
        Self { name, status }
    }
}

/// Whether a node matches a selection, or why that could not be evaluated. Not set if it was not evaluated.
type Verdict = Option<Result<bool, FilterError>>;

/// The facts that an inventory keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptFacts {
    None,
    /// Those of the selected nodes.
    Selected,
}

/// The parts of presence from which it is decided whether more of it is needed than the name.
#[derive(Deserialize)]
struct PresenceHead {
    identity: NodeName,
    #[serde(default)]
    pause: Option<IgnoredAny>,
    #[serde(default)]
    trust: Option<TrustHead>,
}

#[derive(Deserialize)]
struct TrustHead {
    #[serde(default)]
    required: bool,
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
    /// Reads the inventory with as much detail as requests to a selection need.
    pub async fn load_for(
        connection: &Connection,
        subjects: &Subjects,
        selection: &Selection,
    ) -> Result<Self, NatsError> {
        if selection.has_only_names() {
            Self::load_names(connection, subjects).await
        } else {
            Self::load_selected(connection, subjects, selection, KeptFacts::None).await
        }
    }

    /// Reads the inventory to show the nodes of a selection, the only one that it can resolve then: its
    /// conditions are evaluated record by record, so that not all facts are kept.
    pub async fn load_selected(
        connection: &Connection,
        subjects: &Subjects,
        selection: &Selection,
        kept: KeptFacts,
    ) -> Result<Self, NatsError> {
        // An invalid selection is reported when it is resolved.
        let matcher = Matcher::new(&selection.filter()).ok();
        Self::load_with(connection, subjects, |name, groups, facts, labels| {
            let Some(matcher) = &matcher else {
                return None;
            };
            let known = Facts::Known(std::mem::take(facts));
            let verdict = matcher.matches(&NodeAttributes {
                identity: name,
                groups,
                facts: &known,
                labels,
            });
            if let (KeptFacts::Selected, Ok(true), Facts::Known(value)) = (kept, &verdict, known) {
                *facts = value;
            }
            Some(verdict)
        })
        .await
    }

    /// Reads which nodes are online or known, with their labels, and the status of those that are paused
    /// or require signatures; no facts, runs and reports.
    async fn load_names(connection: &Connection, subjects: &Subjects) -> Result<Self, NatsError> {
        let present = |entry: &Entry| Ok((name_and_pause_of(subjects, entry)?, None));
        let list = |bucket| KeyList::load(connection, bucket, subjects);
        let (nodes, labels, facts, assigned, reports) = tokio::try_join!(
            read(connection, NODES, subjects, present),
            read(connection, LABELS, subjects, |entry| labels_of(
                subjects, entry
            )),
            if_supported(list(FACTS)),
            list(DESIRED),
            list(REPORTED),
        )?;
        let mut inventory = Self::default();
        inventory.add_present(nodes);
        let lists = [facts.ok().flatten(), Some(assigned), Some(reports)];
        for list in lists.into_iter().flatten() {
            let named = list.read_others(
                |name| inventory.is_known(name),
                |entry| name_of(subjects, entry),
            );
            for name in named.await?.into_values().flatten() {
                inventory.known.entry(name).or_default();
            }
        }
        inventory.add_labels(labels);
        Ok(inventory)
    }

    /// Reads the inventory from the fleet's buckets.
    pub async fn load(connection: &Connection, subjects: &Subjects) -> Result<Self, NatsError> {
        Self::load_with(connection, subjects, |_, _, _, _| None).await
    }

    /// Reads the inventory. `decide` gets name, groups, facts and labels of each node with facts, and may
    /// remove the facts.
    async fn load_with(
        connection: &Connection,
        subjects: &Subjects,
        decide: impl Fn(&NodeName, &[Token], &mut Value, &Labels) -> Verdict + Send + Sync,
    ) -> Result<Self, NatsError> {
        let mut inventory = Self::default();
        let labels = read(connection, LABELS, subjects, |entry| {
            labels_of(subjects, entry)
        });
        inventory.add_labels(labels.await?);
        let known = &inventory.known;
        let present = |entry: &Entry| {
            let mut status = status_of(subjects, entry)?;
            let labels = known.get(&status.identity).unwrap_or(Labels::none());
            let NodeStatus {
                identity,
                groups,
                facts,
                ..
            } = &mut *status;
            let verdict = decide(identity, groups, facts, labels);
            Ok((OnlineNode::from(status), verdict))
        };
        let list = |bucket| KeyList::load(connection, bucket, subjects);
        let (nodes, reports, facts, assigned) = tokio::try_join!(
            read(connection, NODES, subjects, present),
            read(connection, REPORTED, subjects, |entry| report_of(
                subjects, entry
            )),
            if_supported(list(FACTS)),
            list(DESIRED),
        )?;
        inventory.add_present(nodes);
        inventory.add_reports(reports);
        let online = &inventory;
        let stored = async {
            let list = match facts {
                Ok(list) => list,
                Err(denial) => return Ok(Err(denial)),
            };
            let Some(list) = list else {
                return Ok(Ok(None));
            };
            // The presence of an online node is newer.
            let records = list.read_others(
                |name| online.status(name).is_some(),
                |entry| {
                    let mut stored = facts_of(subjects, entry)?;
                    let name = stored.identity.clone();
                    let labels = online.labels(&name);
                    let verdict = decide(&name, &stored.groups, &mut stored.facts, labels);
                    Ok((name, stored, verdict))
                },
            );
            if_supported(records).await
        };
        let assigned = assigned.read_others(
            |name| online.is_known(name),
            |entry| name_of(subjects, entry),
        );
        let (stored, assigned) = tokio::try_join!(stored, assigned)?;
        match stored {
            Ok(records) => inventory.add_facts(records.unwrap_or_default()),
            Err(denial) => inventory.unreadable.push(Unreadable {
                bucket: FACTS,
                key: subjects.all_keys(),
                reason: BadRecord::Denied(denial),
            }),
        }
        inventory.add_assigned(assigned);
        Ok(inventory)
    }

    /// Notes whether a node matches the selection for which the inventory is read.
    fn add_verdict(&mut self, name: &NodeName, verdict: Verdict) {
        if let Some(verdict) = verdict {
            let rejected = self.rejected.get_or_insert_default();
            match verdict {
                Ok(true) => {}
                Ok(false) => drop(rejected.insert(name.clone(), None)),
                Err(error) => drop(rejected.insert(name.clone(), Some(error))),
            }
        }
    }

    fn add_present(&mut self, records: Records<(OnlineNode, Verdict)>) {
        self.present.reserve_exact(records.len());
        for (node, verdict) in self.readable(NODES, records) {
            self.known.entry(node.name.clone()).or_default();
            self.add_verdict(&node.name, verdict);
            self.present.push(node);
        }
        self.present.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    }

    /// Adds stored facts of offline nodes.
    fn add_facts(&mut self, records: Records<(NodeName, StoredFacts, Verdict)>) {
        for (name, stored, verdict) in self.readable(FACTS, records) {
            self.known.entry(name.clone()).or_default();
            self.add_verdict(&name, verdict);
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

    /// Resolves a selection; that for which the inventory was read, if it was read for one.
    pub fn resolve(&self, selection: &Selection) -> Result<Resolved, SelectionError> {
        let present = self.present.iter();
        resolve(
            selection,
            present.map(|node| (&node.name, node.status.as_deref())),
            &self.known,
            &self.stored_facts,
            self.rejected.as_ref(),
        )
    }

    /// Returns the status of the online nodes as far as it was read, sorted by name.
    pub fn present(&self) -> impl Iterator<Item = &NodeStatus> {
        self.present
            .iter()
            .filter_map(|node| node.status.as_deref())
    }

    /// Returns the number of online nodes.
    pub fn online(&self) -> usize {
        self.present.len()
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

    /// Returns the status of an online node, if it was read.
    pub fn status(&self, node: &NodeName) -> Option<&NodeStatus> {
        let found = self.present.binary_search_by(|it| it.name.cmp(node));
        let online = self.present.get(found.ok()?)?;
        online.status.as_deref()
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

/// Awaits a read of the stored facts. Returns nothing if the fleet is of an older version without them,
/// and the denial if the permissions of the user are.
async fn if_supported<T>(
    reading: impl Future<Output = Result<T, NatsError>>,
) -> Result<Result<Option<T>, Denial>, NatsError> {
    match reading.await {
        Err(err) if err.is_not_found() => Ok(Ok(None)),
        Err(NatsError::Denied(denial)) => Ok(Err(denial)),
        result => result.map(|read| Ok(Some(read))),
    }
}

/// The keys of a bucket, read without the values.
struct KeyList<'a> {
    bucket: Bucket,
    keys: Vec<String>,
    subjects: &'a Subjects,
}

impl<'a> KeyList<'a> {
    async fn load(
        connection: &Connection,
        bucket: &str,
        subjects: &'a Subjects,
    ) -> Result<Self, NatsError> {
        let bucket = connection.bucket(bucket).await?;
        let keys = bucket.keys(&subjects.all_keys()).await?;
        Ok(Self {
            bucket,
            keys,
            subjects,
        })
    }

    /// Reads the records of all nodes except those for which `is_excluded` returns true. Some of them may
    /// have been removed since the keys were read.
    async fn read_others<T>(
        self,
        is_excluded: impl Fn(&NodeName) -> bool,
        parse: impl Fn(&Entry) -> Result<T, BadRecord>,
    ) -> Result<Records<T>, NatsError> {
        let mut keys = self.keys;
        keys.retain(|key| !parse_name(self.subjects, key).is_ok_and(|name| is_excluded(&name)));
        let mut records = Records::new();
        // Only what `parse` returns is kept of more than one group.
        for group in keys.chunks(MAX_KEYS) {
            for entry in self.bucket.get_many_latest(group).await? {
                let record = parse(&entry);
                records.insert(entry.key, record);
            }
        }
        Ok(records)
    }
}

fn status_of(subjects: &Subjects, entry: &Entry) -> Result<Box<NodeStatus>, BadRecord> {
    let name = name_of(subjects, entry)?;
    let status: Box<NodeStatus> = parse(entry)?;
    check_identity(&status.identity, &name)?;
    Ok(status)
}

/// Returns an online node with its status only if it is paused or requires signatures.
fn name_and_pause_of(subjects: &Subjects, entry: &Entry) -> Result<OnlineNode, BadRecord> {
    let name = name_of(subjects, entry)?;
    let head: PresenceHead = parse(entry)?;
    check_identity(&head.identity, &name)?;
    let status = match head.pause.is_some() || head.trust.is_some_and(|it| it.required) {
        true => Some(parse(entry)?),
        false => None,
    };
    Ok(OnlineNode { name, status })
}

fn facts_of(subjects: &Subjects, entry: &Entry) -> Result<StoredFacts, BadRecord> {
    let name = name_of(subjects, entry)?;
    let stored: StoredFacts = parse(entry)?;
    check_identity(&stored.identity, &name)?;
    Ok(stored)
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
mod tests;
