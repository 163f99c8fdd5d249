//! Live state of the fleet, in bounded memory.
//!
//! Every change gets the next revision number. A reader passes the revision it has seen and gets
//! what is newer: the current rows of changed nodes and rollouts, however often they changed, and
//! the events that are still kept. So slow readers need no queue.
//!
//! Without NATS and without a clock: changes and times are passed in by `ingest`. Node states are
//! computed in `node_row`.

mod assigned;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value as Json;
use tokio::time::Instant;

use super::event_row::{EventRow, ParsedEvent};
use super::node_row::{Node, NodeRow, NodeState};
use super::rollout_row::RolloutRow;
use super::timeline::Timeline;
use crate::rollout_store::StoredRollout;
use ccm_core::model::TypeName;
use ccm_core::model::label::Labels;
use ccm_core::model::node::{Assignment, NodeName, NodeReport, NodeStatus, StoredFacts, Token};
use ccm_nats::kv::Removal;

/// Maximum number of events.
const MAX_EVENTS: usize = 5_000;

/// Maximum number of nodes; further ones are counted as unreadable and not shown.
const MAX_NODES: usize = 50_000;

/// Maximum number of resources of all nodes that are kept with their last event.
const MAX_RESOURCES: usize = 200_000;

/// Maximum number of rollouts, the newest by id.
const MAX_ROLLOUTS: usize = 200;

/// Maximum number of rows and events in one message.
const MAX_ROWS_PER_MESSAGE: usize = 1_000;
const MAX_EVENTS_PER_MESSAGE: usize = 100;

/// A bucket record about a node.
#[derive(Debug)]
pub(super) enum Record {
    Presence(Box<NodeStatus>),
    Report(Box<NodeReport>),
    Assignment(Box<Assignment>),
    Labels(Labels),
    Facts(Box<StoredFacts>),
}

/// The bucket of a node record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Presence,
    Report,
    Assignment,
    Labels,
    Facts,
}

impl Source {
    const COUNT: usize = 5;
}

/// A node, its row, and the revision of its last change.
#[derive(Debug)]
struct NodeEntry {
    node: Node,
    row: Arc<NodeRow>,
    revision: u64,
}

/// The fleet as it is now.
#[derive(Debug)]
pub(super) struct LiveState {
    /// Changes whenever [`Changes`] can't express what happened; readers then start over.
    epoch: u64,
    revision: u64,
    nodes: BTreeMap<NodeName, NodeEntry>,
    /// Nodes by the revision of their last change.
    changed: BTreeMap<u64, NodeName>,
    events: VecDeque<Arc<EventRow>>,
    resources: usize,
    rollouts: BTreeMap<Token, Arc<RolloutRow>>,
    timeline: Timeline,
    /// Nodes seen since a bucket watch restarted.
    seen_nodes: BTreeMap<Source, BTreeSet<NodeName>>,
    seen_rollouts: Option<BTreeSet<Token>>,
    /// Sources that were read completely at least once.
    current: BTreeSet<Source>,
    /// Whether the event stream exists and is being read.
    is_reading_events: bool,
    /// Why this server waits for NATS, if it does.
    nats_wait: Option<String>,
    unreadable: u64,
    /// Events dropped by nodes since the start.
    dropped: u64,
    counts: BTreeMap<(String, String), u64>,
}

/// Read position of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) epoch: u64,
    pub(super) nodes: u64,
    pub(super) events: u64,
    pub(super) rollouts: u64,
}

impl Cursor {
    /// Returns the revision up to which nothing is missing.
    pub(super) fn revision(&self) -> u64 {
        self.nodes.min(self.events).min(self.rollouts)
    }
}

/// Changes that a reader has not seen.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) nodes: Vec<Arc<NodeRow>>,
    pub(super) events: Vec<Arc<EventRow>>,
    /// Number of further events that are not included.
    pub(super) skipped: u64,
    pub(super) rollouts: Vec<Arc<RolloutRow>>,
    /// The reader must load everything again.
    pub(super) resync: bool,
}

/// Filter and page of a node list.
#[derive(Debug, Default)]
pub(super) struct NodeQuery<'a> {
    pub(super) text: &'a str,
    pub(super) states: &'a [NodeState],
    pub(super) after: Option<&'a NodeName>,
    pub(super) limit: usize,
}

/// A page of a node list.
#[derive(Debug)]
pub(super) struct NodePage {
    pub(super) rows: Vec<Arc<NodeRow>>,
    /// Number of matching nodes on all pages.
    pub(super) matched: usize,
    pub(super) has_more: bool,
}

/// Totals of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Totals {
    pub(super) nodes: usize,
    pub(super) states: BTreeMap<&'static str, usize>,
    /// Number of resources that differ from their assignment.
    pub(super) drifted_resources: usize,
    pub(super) lagging: usize,
    /// Nodes with a run that waits for a slot, by governor.
    pub(super) waiting: BTreeMap<String, usize>,
    pub(super) spooled: u64,
    /// Number of events that nodes dropped since the start.
    pub(super) dropped: u64,
    pub(super) unreadable: u64,
}

impl LiveState {
    /// Returns an empty state. `epoch` should be random, so that readers of an earlier process
    /// start over.
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            revision: 0,
            nodes: BTreeMap::new(),
            changed: BTreeMap::new(),
            events: VecDeque::new(),
            resources: 0,
            rollouts: BTreeMap::new(),
            timeline: Timeline::default(),
            seen_nodes: BTreeMap::new(),
            seen_rollouts: None,
            current: BTreeSet::new(),
            is_reading_events: false,
            nats_wait: None,
            unreadable: 0,
            dropped: 0,
            counts: BTreeMap::new(),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the cursor of a reader that has seen everything.
    pub(super) fn cursor(&self) -> Cursor {
        self.cursor_at(self.epoch, self.revision)
    }

    pub(super) fn cursor_at(&self, epoch: u64, revision: u64) -> Cursor {
        Cursor {
            epoch,
            nodes: revision,
            events: revision,
            rollouts: revision,
        }
    }

    /// Reports whether all buckets were read completely.
    pub(super) fn is_complete(&self) -> bool {
        self.current.len() == Source::COUNT
    }

    /// Sets whether the event stream exists and is being read.
    pub(super) fn set_reading_events(&mut self, is_reading: bool) {
        self.is_reading_events = is_reading;
    }

    pub(super) fn is_reading_events(&self) -> bool {
        self.is_reading_events
    }

    /// Sets why this server waits for NATS, if it does.
    pub(super) fn set_nats_wait(&mut self, reason: Option<String>) {
        if self.nats_wait != reason {
            self.nats_wait = reason;
            self.revision += 1;
        }
    }

    pub(super) fn nats_wait(&self) -> Option<&str> {
        self.nats_wait.as_deref()
    }

    /// Counts an unreadable record.
    pub(super) fn count_unreadable(&mut self) {
        self.unreadable += 1;
    }

    /// Applies a record of a node.
    pub(super) fn put(&mut self, name: NodeName, record: Record, now: Instant) {
        let source = match &record {
            Record::Presence(_) => Source::Presence,
            Record::Report(_) => Source::Report,
            Record::Assignment(_) => Source::Assignment,
            Record::Labels(_) => Source::Labels,
            Record::Facts(_) => Source::Facts,
        };
        if let Some(seen_nodes) = self.seen_nodes.get_mut(&source) {
            seen_nodes.insert(name.clone());
        }
        let mut dropped = 0;
        self.change(name, |node| match record {
            Record::Presence(status) => {
                dropped = node.record_dropped(status.spool.dropped);
                node.set_presence(Some(*status), now);
            }
            Record::Report(report) => node.set_report(Some(*report)),
            Record::Assignment(assignment) => node.set_assignment(Some(*assignment)),
            Record::Labels(labels) => node.set_labels(labels),
            Record::Facts(facts) => node.set_stored(Some(*facts)),
        });
        self.dropped = self.dropped.saturating_add(dropped);
    }

    /// Removes the record of a source about a node.
    pub(super) fn remove(
        &mut self,
        name: &NodeName,
        source: Source,
        removal: Removal,
        now: Instant,
    ) {
        if !self.nodes.contains_key(name) {
            return;
        }
        self.change(name.clone(), |node| match source {
            Source::Presence => node.set_presence(None, now),
            Source::Report => node.set_report(None),
            Source::Assignment => node.set_assignment(None),
            Source::Labels => node.set_labels(Labels::default()),
            Source::Facts => node.set_stored(None),
        });
        let has_no_records = self
            .nodes
            .get(name)
            .is_some_and(|entry| entry.node.has_no_records());
        // A node that only lost its presence stays, as offline. The presence of a retired node is
        // purged.
        if has_no_records && (source != Source::Presence || removal == Removal::Purged) {
            self.forget(name);
        }
    }

    fn forget(&mut self, name: &NodeName) {
        if let Some(entry) = self.nodes.remove(name) {
            self.changed.remove(&entry.revision);
            self.resources = self.resources.saturating_sub(entry.node.resource_count());
            self.revision += 1;
            // Removals can't be expressed in [`Changes`].
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    /// Starts a complete reread of a source.
    pub(super) fn restart(&mut self, source: Source) {
        self.seen_nodes.insert(source, BTreeSet::new());
    }

    /// Ends a complete reread of a source: nodes that were not seen are removed from it.
    pub(super) fn finish(&mut self, source: Source, now: Instant) {
        self.current.insert(source);
        let Some(seen) = self.seen_nodes.remove(&source) else {
            return;
        };
        let removed: Vec<NodeName> = self
            .nodes
            .keys()
            .filter(|name| !seen.contains(*name))
            .cloned()
            .collect();
        for name in removed {
            self.remove(&name, source, Removal::Deleted, now);
        }
    }

    /// Removes the presence of nodes that missed their heartbeats.
    pub(super) fn expire(&mut self, now: Instant) {
        let expired: Vec<NodeName> = self
            .nodes
            .iter()
            .filter(|(_, entry)| entry.node.is_expired(now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in expired {
            self.remove(&name, Source::Presence, Removal::Deleted, now);
        }
    }

    /// Adds an event with its storage time. `is_new` events are counted.
    pub(super) fn add_event(&mut self, event: ParsedEvent, stored: DateTime<Utc>, is_new: bool) {
        self.revision += 1;
        let ParsedEvent { mut row, run } = event;
        row.number = self.revision;
        self.timeline.add(stored, &row);
        if is_new {
            self.count(&row);
        }
        let event = Arc::new(row);
        if self.nodes.contains_key(&event.node) {
            let is_full = self.resources >= MAX_RESOURCES;
            let mut added = 0;
            self.change(event.node.clone(), |node| {
                if let Some(run) = run {
                    node.record_run(run);
                } else if !event.is_run() {
                    added = node.record_resource(&event, is_full);
                }
            });
            self.resources += added;
        }
        self.events.push_back(event);
        if self.events.len() > MAX_EVENTS {
            self.events.pop_front();
        }
    }

    /// Counts an event by known types and outcomes only, so that nodes can't create metric series.
    fn count(&mut self, event: &EventRow) {
        const OUTCOMES: [&str; 5] = ["changed", "failed", "skipped", "stable", "noop"];
        let known = |words: &[&'static str], word: &str| {
            let found = words.iter().find(|known| **known == word);
            found.copied().unwrap_or("other").to_owned()
        };
        let mut types = TypeName::ALL.map(TypeName::as_str).to_vec();
        types.push("run");
        let key = (
            known(&types, &event.type_name),
            known(&OUTCOMES, &event.outcome),
        );
        *self.counts.entry(key).or_default() += 1;
    }

    /// Changes a node, adding it if needed, and records whether its row changed.
    fn change(&mut self, name: NodeName, change: impl FnOnce(&mut Node)) {
        if !self.nodes.contains_key(&name) && self.nodes.len() >= MAX_NODES {
            self.unreadable += 1;
            return;
        }
        let revision = self.revision + 1;
        let entry = self.nodes.entry(name.clone()).or_insert_with(|| {
            let node = Node::new(name.clone());
            let row = Arc::new(node.row());
            NodeEntry {
                node,
                row,
                revision: 0,
            }
        });
        change(&mut entry.node);
        let row = entry.node.row();
        // Most heartbeats do not change the row.
        if entry.revision != 0 && *entry.row == row {
            return;
        }
        self.changed.remove(&entry.revision);
        entry.row = Arc::new(row);
        entry.revision = revision;
        self.changed.insert(revision, name);
        self.revision = revision;
    }

    /// Adds or replaces a rollout.
    pub(super) fn put_rollout(&mut self, stored: StoredRollout) {
        self.revision += 1;
        let id = stored.rollout.id.clone();
        if let Some(seen_nodes) = &mut self.seen_rollouts {
            seen_nodes.insert(id.clone());
        }
        let row = RolloutRow::new(stored, self.revision);
        self.rollouts.insert(id, Arc::new(row));
        if self.rollouts.len() > MAX_ROLLOUTS {
            self.rollouts.pop_first();
        }
    }

    /// Adds a rollout that this server has just started, so that the page finds it before the watch
    /// reports it. What the watch has reported is newer.
    pub(super) fn add_started(&mut self, stored: StoredRollout) {
        if !self.rollouts.contains_key(&stored.rollout.id) {
            self.put_rollout(stored);
        }
    }

    pub(super) fn remove_rollout(&mut self, id: &Token) {
        if self.rollouts.remove(id).is_some() {
            self.revision += 1;
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    pub(super) fn restart_rollouts(&mut self) {
        self.seen_rollouts = Some(BTreeSet::new());
    }

    pub(super) fn finish_rollouts(&mut self) {
        let Some(seen) = self.seen_rollouts.take() else {
            return;
        };
        let removed = self.rollouts.keys().filter(|id| !seen.contains(*id));
        let removed: Vec<Token> = removed.cloned().collect();
        for id in removed {
            self.remove_rollout(&id);
        }
    }

    /// Returns the changes after a cursor, up to the limits per message, and advances the cursor.
    pub(super) fn changes(&self, cursor: &mut Cursor) -> Changes {
        if cursor.epoch != self.epoch || cursor.revision() > self.revision {
            *cursor = self.cursor();
            return Changes {
                resync: true,
                ..Changes::default()
            };
        }
        let mut changes = Changes::default();
        for (revision, name) in self
            .changed
            .range(cursor.nodes + 1..)
            .take(MAX_ROWS_PER_MESSAGE)
        {
            if let Some(entry) = self.nodes.get(name) {
                changes.nodes.push(entry.row.clone());
            }
            cursor.nodes = *revision;
        }
        let first = self
            .events
            .partition_point(|event| event.number <= cursor.events);
        changes.events = select_events(self.events.range(first..));
        let skipped = self.events.len() - first - changes.events.len();
        changes.skipped = u64::try_from(skipped).unwrap_or(u64::MAX);
        let known = cursor.rollouts;
        let rollouts = self.rollouts.values();
        changes
            .rollouts
            .extend(rollouts.filter(|it| it.revision > known).cloned());
        cursor.events = self.revision;
        cursor.rollouts = self.revision;
        if changes.nodes.len() < MAX_ROWS_PER_MESSAGE {
            cursor.nodes = self.revision;
        }
        changes
    }

    /// Returns the matching nodes, sorted by name.
    pub(super) fn page(&self, query: &NodeQuery<'_>) -> NodePage {
        let text = query.text.to_lowercase();
        let is_match = |entry: &&NodeEntry| {
            (query.states.is_empty() || query.states.contains(&entry.row.state))
                && (text.is_empty() || entry.node.matches_text(&text))
        };
        let mut page = NodePage {
            rows: Vec::new(),
            matched: 0,
            has_more: false,
        };
        for entry in self.nodes.values().filter(is_match) {
            page.matched += 1;
            if query.after.is_some_and(|after| entry.row.name <= *after) {
                continue;
            }
            match page.rows.len() < query.limit {
                true => page.rows.push(entry.row.clone()),
                false => page.has_more = true,
            }
        }
        page
    }

    /// Returns the API document of a node.
    pub(super) fn node(&self, name: &NodeName) -> Option<Json> {
        self.nodes.get(name).map(|entry| entry.node.document())
    }

    /// Returns the newest matching events, the newest first.
    pub(super) fn events(
        &self,
        limit: usize,
        is_match: impl Fn(&EventRow) -> bool,
    ) -> Vec<Arc<EventRow>> {
        let events = self.events.iter().rev();
        events
            .filter(|event| is_match(event))
            .take(limit)
            .cloned()
            .collect()
    }

    /// Returns the rollouts, the newest first.
    pub(super) fn rollouts(&self) -> Vec<Arc<RolloutRow>> {
        self.rollouts.values().rev().cloned().collect()
    }

    pub(super) fn rollout(&self, id: &Token) -> Option<Arc<RolloutRow>> {
        self.rollouts.get(id).cloned()
    }

    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns the number of events by type and outcome since the start.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let counts = self.counts.iter();
        counts.map(|((type_name, outcome), count)| (type_name.as_str(), outcome.as_str(), *count))
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals {
            nodes: self.nodes.len(),
            states: NodeState::ALL.map(|state| (state.as_str(), 0)).into(),
            dropped: self.dropped,
            unreadable: self.unreadable,
            ..Totals::default()
        };
        for entry in self.nodes.values() {
            *totals.states.entry(entry.row.state.as_str()).or_default() += 1;
            totals.drifted_resources += entry.row.drift;
            totals.lagging += usize::from(entry.row.lagging);
            if let Some(governor) = entry.node.awaited_governor() {
                *totals.waiting.entry(governor.to_string()).or_default() += 1;
            }
            totals.spooled = totals.spooled.saturating_add(entry.node.spooled());
        }
        totals
    }
}

/// Selects events for one message, in order: failures take precedence, since a reader may filter
/// for them; of both kinds the newest.
fn select_events<'a, I>(unseen: I) -> Vec<Arc<EventRow>>
where
    I: DoubleEndedIterator<Item = &'a Arc<EventRow>> + Clone,
{
    let failures = unseen.clone().filter(|event| event.is_failure()).count();
    let mut failures = failures.min(MAX_EVENTS_PER_MESSAGE);
    let mut others = MAX_EVENTS_PER_MESSAGE - failures;
    let mut selected: Vec<Arc<EventRow>> = unseen
        .rev()
        .filter(|event| {
            let remaining = match event.is_failure() {
                true => &mut failures,
                false => &mut others,
            };
            let is_selected = *remaining > 0;
            *remaining = remaining.saturating_sub(1);
            is_selected
        })
        .cloned()
        .collect();
    selected.reverse();
    selected
}

#[cfg(test)]
mod tests;
