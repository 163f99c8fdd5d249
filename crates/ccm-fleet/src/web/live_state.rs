//! The fleet as it is now, kept in bounded memory by hearing of every change.
//!
//! Every change gets the next number of one count. Whoever wants news says the number it has seen
//! and gets what is newer: nodes and rollouts as they are now, however often they changed, and the
//! events that are still kept. So a slow reader costs nothing and can't fall behind for good.
//!
//! No bus and no clock: changes and moments are handed in, by `hear`. How a node's records become
//! a state is in `node`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value as Json;
use tokio::time::Instant;

use super::event_row::{EventRow, Told};
use super::node_row::{Node, NodeState, Row};
use super::rollout_row::Shown;
use super::timeline::Timeline;
use ccm_core::model::TypeName;
use ccm_core::model::label::Labels;
use ccm_core::model::node::{Assignment, NodeName, NodeReport, NodeStatus, Token};
use ccm_core::model::rollout::Rollout;

/// How many events are kept.
const MOST_EVENTS: usize = 5_000;

/// How many nodes are kept; more are counted and not shown.
const MOST_NODES: usize = 50_000;

/// How many resources of all nodes are remembered with their last event.
const MOST_RESOURCES: usize = 200_000;

/// How many rollouts are kept, the newest by name.
const MOST_ROLLOUTS: usize = 200;

/// How much of the news is told at once.
const MOST_ROWS_AT_ONCE: usize = 1_000;
const MOST_EVENTS_AT_ONCE: usize = 100;

/// One record about a node.
#[derive(Debug)]
pub(super) enum Record {
    Presence(Box<NodeStatus>),
    Report(Box<NodeReport>),
    Wanted(Box<Assignment>),
    Labels(Labels),
}

/// Which bucket speaks of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Presence,
    Report,
    Wanted,
    Labels,
}

/// A node with its line, and when that last changed.
#[derive(Debug)]
struct Kept {
    node: Node,
    row: Arc<Row>,
    revision: u64,
}

/// The fleet as it is now.
#[derive(Debug)]
pub(super) struct Live {
    /// Differs after everything that news can't express.
    epoch: u64,
    revision: u64,
    nodes: BTreeMap<NodeName, Kept>,
    /// Nodes by the number of their last change.
    changed: BTreeMap<u64, NodeName>,
    events: VecDeque<Arc<EventRow>>,
    resources: usize,
    rollouts: BTreeMap<Token, Arc<Shown>>,
    timeline: Timeline,
    /// Who was named since a bucket began to tell everything anew.
    retold: BTreeMap<Source, BTreeSet<NodeName>>,
    retold_rollouts: Option<BTreeSet<Token>>,
    /// Which sources have told everything once.
    current: BTreeSet<Source>,
    /// The stream of events is there and read.
    hears_events: bool,
    unreadable: u64,
    counts: BTreeMap<(String, String), u64>,
}

/// How far a reader has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) epoch: u64,
    pub(super) nodes: u64,
    pub(super) events: u64,
    pub(super) rollouts: u64,
}

impl Cursor {
    /// Returns the number before which nothing is missing.
    pub(super) fn revision(&self) -> u64 {
        self.nodes.min(self.events).min(self.rollouts)
    }
}

/// What a reader has not seen.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) nodes: Vec<Arc<Row>>,
    pub(super) events: Vec<Arc<EventRow>>,
    /// How many events happened that are not among them.
    pub(super) skipped: u64,
    pub(super) rollouts: Vec<Arc<Shown>>,
    /// What was read before is of no use: read everything again.
    pub(super) resync: bool,
}

/// Which nodes are wanted, and how many.
#[derive(Debug, Default)]
pub(super) struct Wish<'a> {
    pub(super) text: &'a str,
    pub(super) states: &'a [NodeState],
    pub(super) after: Option<&'a NodeName>,
    pub(super) limit: usize,
}

/// A page of nodes.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) rows: Vec<Arc<Row>>,
    /// How many there are, on this page or not.
    pub(super) matched: usize,
    pub(super) has_more: bool,
}

/// The fleet in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Totals {
    pub(super) nodes: usize,
    pub(super) states: BTreeMap<&'static str, usize>,
    /// Nodes and resources that are not as they should be.
    pub(super) drifted_resources: usize,
    pub(super) lagging: usize,
    pub(super) spooled: u64,
    pub(super) dropped: u64,
    pub(super) unreadable: u64,
}

impl Live {
    /// Returns a fleet that nothing is known of. `epoch` should be chance: a reader of another
    /// time must not take our numbers for its own.
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
            retold: BTreeMap::new(),
            retold_rollouts: None,
            current: BTreeSet::new(),
            hears_events: false,
            unreadable: 0,
            counts: BTreeMap::new(),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the cursor of a reader that has read everything.
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

    /// Reports whether every bucket has told what it holds.
    pub(super) fn is_complete(&self) -> bool {
        self.current.len() == 4
    }

    /// Notes whether the stream of events is there and read.
    pub(super) fn hear_events(&mut self, is_heard: bool) {
        self.hears_events = is_heard;
    }

    pub(super) fn hears_events(&self) -> bool {
        self.hears_events
    }

    /// Counts a record that can't be read.
    pub(super) fn count_unreadable(&mut self) {
        self.unreadable += 1;
    }

    /// Takes a record about a node.
    pub(super) fn put(&mut self, name: NodeName, record: Record, now: Instant) {
        let source = match &record {
            Record::Presence(_) => Source::Presence,
            Record::Report(_) => Source::Report,
            Record::Wanted(_) => Source::Wanted,
            Record::Labels(_) => Source::Labels,
        };
        if let Some(retold) = self.retold.get_mut(&source) {
            retold.insert(name.clone());
        }
        self.change(name, |node| match record {
            Record::Presence(status) => node.set_presence(Some(*status), now),
            Record::Report(report) => node.set_report(Some(*report)),
            Record::Wanted(wanted) => node.set_wanted(Some(*wanted)),
            Record::Labels(labels) => node.set_labels(labels),
        });
    }

    /// Forgets what a source said about a node.
    pub(super) fn remove(&mut self, name: &NodeName, source: Source, now: Instant) {
        if !self.nodes.contains_key(name) {
            return;
        }
        self.change(name.clone(), |node| match source {
            Source::Presence => node.set_presence(None, now),
            Source::Report => node.set_report(None),
            Source::Wanted => node.set_wanted(None),
            Source::Labels => node.set_labels(Labels::default()),
        });
        let is_forgotten = self
            .nodes
            .get(name)
            .is_some_and(|kept| kept.node.is_forgotten());
        // One that only said goodbye stays as offline while events still tell of it.
        if is_forgotten && source != Source::Presence {
            self.forget(name);
        }
    }

    fn forget(&mut self, name: &NodeName) {
        if let Some(kept) = self.nodes.remove(name) {
            self.changed.remove(&kept.revision);
            self.resources = self.resources.saturating_sub(kept.node.resource_count());
            self.revision += 1;
            // News can't say that somebody is gone.
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    /// A source begins to tell everything anew.
    pub(super) fn restart(&mut self, source: Source) {
        self.retold.insert(source, BTreeSet::new());
    }

    /// A source has told everything: who was not named is no more.
    pub(super) fn finish(&mut self, source: Source, now: Instant) {
        self.current.insert(source);
        let Some(named) = self.retold.remove(&source) else {
            return;
        };
        let gone: Vec<NodeName> = self
            .nodes
            .keys()
            .filter(|name| !named.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.remove(&name, source, now);
        }
    }

    /// Lets those go offline that were silent for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        let silent: Vec<NodeName> = self
            .nodes
            .iter()
            .filter(|(_, kept)| kept.node.is_silent(now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in silent {
            self.remove(&name, Source::Presence, now);
        }
    }

    /// Takes an event that was stored at a time.
    pub(super) fn tell(&mut self, told: Told, stored: DateTime<Utc>, is_new: bool) {
        self.revision += 1;
        let mut happening = told.happening;
        happening.number = self.revision;
        self.timeline.add(stored, &happening);
        if is_new {
            self.count(&happening);
        }
        let event = Arc::new(happening);
        if self.nodes.contains_key(&event.node) {
            let is_full = self.resources >= MOST_RESOURCES;
            let mut more = 0;
            self.change(event.node.clone(), |node| {
                if let Some(run) = told.run {
                    node.note_run(run);
                } else if !event.is_run() {
                    more = node.note_resource(&event, is_full);
                }
            });
            self.resources += more;
        }
        self.events.push_back(event);
        if self.events.len() > MOST_EVENTS {
            self.events.pop_front();
        }
    }

    /// Counts an event by words of ours only, so that no node can make up series.
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

    /// Changes a node, which may be new, and notes whether that shows.
    fn change(&mut self, name: NodeName, change: impl FnOnce(&mut Node)) {
        if !self.nodes.contains_key(&name) && self.nodes.len() >= MOST_NODES {
            self.unreadable += 1;
            return;
        }
        let revision = self.revision + 1;
        let kept = self.nodes.entry(name.clone()).or_insert_with(|| {
            let node = Node::new(name.clone());
            let row = Arc::new(node.row());
            Kept {
                node,
                row,
                revision: 0,
            }
        });
        change(&mut kept.node);
        let row = kept.node.row();
        // Most beats change nothing that shows.
        if kept.revision != 0 && *kept.row == row {
            return;
        }
        self.changed.remove(&kept.revision);
        kept.row = Arc::new(row);
        kept.revision = revision;
        self.changed.insert(revision, name);
        self.revision = revision;
    }

    /// Takes a rollout as it is now.
    pub(super) fn put_rollout(&mut self, rollout: Rollout) {
        self.revision += 1;
        let id = rollout.id.clone();
        if let Some(retold) = &mut self.retold_rollouts {
            retold.insert(id.clone());
        }
        let shown = Shown::new(rollout, self.revision);
        self.rollouts.insert(id, Arc::new(shown));
        if self.rollouts.len() > MOST_ROLLOUTS {
            self.rollouts.pop_first();
        }
    }

    pub(super) fn remove_rollout(&mut self, id: &Token) {
        if self.rollouts.remove(id).is_some() {
            self.revision += 1;
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    pub(super) fn restart_rollouts(&mut self) {
        self.retold_rollouts = Some(BTreeSet::new());
    }

    pub(super) fn finish_rollouts(&mut self) {
        let Some(named) = self.retold_rollouts.take() else {
            return;
        };
        let gone = self.rollouts.keys().filter(|id| !named.contains(*id));
        let gone: Vec<Token> = gone.cloned().collect();
        for id in gone {
            self.remove_rollout(&id);
        }
    }

    /// Returns what a reader has not seen, as much as is told at once, and moves its cursor on.
    pub(super) fn news(&self, cursor: &mut Cursor) -> News {
        if cursor.epoch != self.epoch || cursor.revision() > self.revision {
            *cursor = self.cursor();
            return News {
                resync: true,
                ..News::default()
            };
        }
        let mut news = News::default();
        for (revision, name) in self
            .changed
            .range(cursor.nodes + 1..)
            .take(MOST_ROWS_AT_ONCE)
        {
            if let Some(kept) = self.nodes.get(name) {
                news.nodes.push(kept.row.clone());
            }
            cursor.nodes = *revision;
        }
        let first = self
            .events
            .partition_point(|event| event.number <= cursor.events);
        news.events = worth_telling(self.events.range(first..));
        let skipped = self.events.len() - first - news.events.len();
        news.skipped = u64::try_from(skipped).unwrap_or(u64::MAX);
        let seen = cursor.rollouts;
        let rollouts = self.rollouts.values();
        news.rollouts
            .extend(rollouts.filter(|it| it.revision > seen).cloned());
        cursor.events = self.revision;
        cursor.rollouts = self.revision;
        if news.nodes.len() < MOST_ROWS_AT_ONCE {
            cursor.nodes = self.revision;
        }
        news
    }

    /// Returns the nodes that are wished for, in the order of their names.
    pub(super) fn page(&self, wish: &Wish<'_>) -> Page {
        let text = wish.text.to_lowercase();
        let is_wanted = |kept: &&Kept| {
            (wish.states.is_empty() || wish.states.contains(&kept.row.state))
                && (text.is_empty() || kept.node.mentions(&text))
        };
        let mut page = Page {
            rows: Vec::new(),
            matched: 0,
            has_more: false,
        };
        for kept in self.nodes.values().filter(is_wanted) {
            page.matched += 1;
            if wish.after.is_some_and(|after| kept.row.name <= *after) {
                continue;
            }
            match page.rows.len() < wish.limit {
                true => page.rows.push(kept.row.clone()),
                false => page.has_more = true,
            }
        }
        page
    }

    /// Returns everything about a node.
    pub(super) fn node(&self, name: &NodeName) -> Option<Json> {
        self.nodes.get(name).map(|kept| kept.node.document())
    }

    /// Returns the newest events that are wanted, the newest first.
    pub(super) fn events(
        &self,
        limit: usize,
        is_wanted: impl Fn(&EventRow) -> bool,
    ) -> Vec<Arc<EventRow>> {
        let events = self.events.iter().rev();
        events
            .filter(|event| is_wanted(event))
            .take(limit)
            .cloned()
            .collect()
    }

    /// Returns the rollouts, the newest first.
    pub(super) fn rollouts(&self) -> Vec<Arc<Shown>> {
        self.rollouts.values().rev().cloned().collect()
    }

    pub(super) fn rollout(&self, id: &Token) -> Option<Arc<Shown>> {
        self.rollouts.get(id).cloned()
    }

    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns how many events of each type and outcome were heard since the start.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let counts = self.counts.iter();
        counts.map(|((type_name, outcome), count)| (type_name.as_str(), outcome.as_str(), *count))
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals {
            nodes: self.nodes.len(),
            states: NodeState::ALL.map(|state| (state.as_str(), 0)).into(),
            unreadable: self.unreadable,
            ..Totals::default()
        };
        for kept in self.nodes.values() {
            *totals.states.entry(kept.row.state.as_str()).or_default() += 1;
            totals.drifted_resources += kept.row.drift;
            totals.lagging += usize::from(kept.row.lagging);
            let (spooled, dropped) = kept.node.spool();
            totals.spooled = totals.spooled.saturating_add(spooled);
            totals.dropped = totals.dropped.saturating_add(dropped);
        }
        totals
    }
}

/// Returns as many of the events as are told at once, in their order: failures before others, since
/// somebody may look for just these, and the newest of each.
fn worth_telling<'a, I>(unseen: I) -> Vec<Arc<EventRow>>
where
    I: DoubleEndedIterator<Item = &'a Arc<EventRow>> + Clone,
{
    let failures = unseen.clone().filter(|event| event.is_failure()).count();
    let mut failures = failures.min(MOST_EVENTS_AT_ONCE);
    let mut others = MOST_EVENTS_AT_ONCE - failures;
    let mut told: Vec<Arc<EventRow>> = unseen
        .rev()
        .filter(|event| {
            let room = match event.is_failure() {
                true => &mut failures,
                false => &mut others,
            };
            let has_room = *room > 0;
            *room = room.saturating_sub(1);
            has_room
        })
        .cloned()
        .collect();
    told.reverse();
    told
}

#[cfg(test)]
mod tests;
