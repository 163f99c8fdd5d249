//! Live state of the fleet, in bounded memory.
//!
//! Every change gets the next revision number. A reader passes the revision it has seen and gets
//! what is newer: the current rows of changed nodes and rollouts, however often they changed, and
//! the events that are still kept. So slow readers need no queue.
//!
//! Without NATS and without a clock: changes and times are passed in by `ingest`. Node states are
//! computed in `node_row`. What readers get is in `queries`.

mod assigned;
mod queries;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

pub(super) use self::queries::{Changes, Cursor, NodeQuery};
use super::event_row::{EventRow, ParsedEvent};
use super::node_record::{Record, Source};
use super::node_row::{Node, NodeRow};
use super::rollout_row::RolloutRow;
use super::timeline::Timeline;
use crate::rollout_store::StoredRollout;
use ccm_core::model::TypeName;
use ccm_core::model::node::{NodeName, Token};
use ccm_nats::kv::Removal;

/// Maximum number of events.
const MAX_EVENTS: usize = 5_000;

/// Maximum number of nodes; further ones are counted as unreadable and not shown.
const MAX_NODES: usize = 50_000;

/// Maximum number of resources of all nodes that are kept with their last event.
const MAX_RESOURCES: usize = 200_000;

/// Maximum number of rollouts, the newest by id.
const MAX_ROLLOUTS: usize = 200;

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
        self.mark_seen(&name, record.source());
        let mut dropped = 0;
        self.change(name, |node| {
            if let Record::Presence(status) = &record {
                dropped = node.record_dropped(status.spool.dropped);
            }
            node.set(record, now);
        });
        self.dropped = self.dropped.saturating_add(dropped);
    }

    /// Counts an unreadable record of a node, which replaces the one before it.
    pub(super) fn put_unreadable(
        &mut self,
        name: NodeName,
        source: Source,
        reason: String,
        now: Instant,
    ) {
        self.mark_seen(&name, source);
        self.count_unreadable();
        self.change(name, |node| node.set_unreadable(source, reason, now));
    }

    /// Marks a node as seen by the reread of a source.
    fn mark_seen(&mut self, name: &NodeName, source: Source) {
        if let Some(seen_nodes) = self.seen_nodes.get_mut(&source) {
            seen_nodes.insert(name.clone());
        }
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
        self.change(name.clone(), |node| node.clear(source, now));
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
}

#[cfg(test)]
mod tests;
