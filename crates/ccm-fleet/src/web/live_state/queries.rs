//! What readers of the live state get: changes after a cursor, pages of nodes, events, rollouts and
//! totals.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;

use super::{LiveState, NodeEntry};
use crate::web::event_row::EventRow;
use crate::web::node_row::{NodeRow, NodeState};
use crate::web::rollout_row::RolloutRow;
use crate::web::timeline::Timeline;
use ccm_core::model::node::{NodeName, Token};

/// Maximum number of rows and events in one message.
pub(super) const MAX_ROWS_PER_MESSAGE: usize = 1_000;
const MAX_EVENTS_PER_MESSAGE: usize = 100;

/// Read position of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::web) struct Cursor {
    pub(in crate::web) epoch: u64,
    pub(in crate::web) nodes: u64,
    pub(in crate::web) events: u64,
    pub(in crate::web) rollouts: u64,
}

impl Cursor {
    /// Returns the revision up to which nothing is missing.
    pub(in crate::web) fn revision(&self) -> u64 {
        self.nodes.min(self.events).min(self.rollouts)
    }
}

/// Changes that a reader has not seen.
#[derive(Debug, Default)]
pub(in crate::web) struct Changes {
    pub(in crate::web) nodes: Vec<Arc<NodeRow>>,
    pub(in crate::web) events: Vec<Arc<EventRow>>,
    /// Number of further events that are not included.
    pub(in crate::web) skipped: u64,
    pub(in crate::web) rollouts: Vec<Arc<RolloutRow>>,
    /// The reader must load everything again.
    pub(in crate::web) resync: bool,
}

/// Filter and page of a node list.
#[derive(Debug, Default)]
pub(in crate::web) struct NodeQuery<'a> {
    pub(in crate::web) text: &'a str,
    pub(in crate::web) states: &'a [NodeState],
    pub(in crate::web) after: Option<&'a NodeName>,
    pub(in crate::web) limit: usize,
}

/// A page of a node list.
#[derive(Debug)]
pub(in crate::web) struct NodePage {
    pub(in crate::web) rows: Vec<Arc<NodeRow>>,
    /// Number of matching nodes on all pages.
    pub(in crate::web) matched: usize,
    pub(in crate::web) has_more: bool,
}

/// Totals of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::web) struct Totals {
    pub(in crate::web) nodes: usize,
    pub(in crate::web) states: BTreeMap<&'static str, usize>,
    /// Number of resources that differ from their assignment.
    pub(in crate::web) drifted_resources: usize,
    pub(in crate::web) lagging: usize,
    /// Nodes with a run that waits for a slot, by governor.
    pub(in crate::web) waiting: BTreeMap<String, usize>,
    pub(in crate::web) spooled: u64,
    /// Number of events that nodes dropped since the start.
    pub(in crate::web) dropped: u64,
    pub(in crate::web) unreadable: u64,
}

impl LiveState {
    /// Returns the cursor of a reader that has seen everything.
    pub(in crate::web) fn cursor(&self) -> Cursor {
        self.cursor_at(self.epoch, self.revision)
    }

    pub(in crate::web) fn cursor_at(&self, epoch: u64, revision: u64) -> Cursor {
        Cursor {
            epoch,
            nodes: revision,
            events: revision,
            rollouts: revision,
        }
    }

    /// Returns the changes after a cursor, up to the limits per message, and advances the cursor.
    pub(in crate::web) fn changes(&self, cursor: &mut Cursor) -> Changes {
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
    pub(in crate::web) fn page(&self, query: &NodeQuery<'_>) -> NodePage {
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
    pub(in crate::web) fn node(&self, name: &NodeName) -> Option<Json> {
        self.nodes.get(name).map(|entry| entry.node.document())
    }

    /// Returns the newest matching events, the newest first.
    pub(in crate::web) fn events(
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
    pub(in crate::web) fn rollouts(&self) -> Vec<Arc<RolloutRow>> {
        self.rollouts.values().rev().cloned().collect()
    }

    pub(in crate::web) fn rollout(&self, id: &Token) -> Option<Arc<RolloutRow>> {
        self.rollouts.get(id).cloned()
    }

    pub(in crate::web) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns the number of events by type and outcome since the start.
    pub(in crate::web) fn counts(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let counts = self.counts.iter();
        counts.map(|((type_name, outcome), count)| (type_name.as_str(), outcome.as_str(), *count))
    }

    pub(in crate::web) fn totals(&self) -> Totals {
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
