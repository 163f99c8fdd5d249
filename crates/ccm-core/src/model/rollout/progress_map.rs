//! Progress of the nodes of a rollout by name, with what a controller needs at every step: the counts, the
//! nodes under way, and the nodes that changed since the last step. So a step does not count all nodes again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};

use super::{Progress, Tally};
use crate::model::node::NodeName;

/// Progress of nodes; pending nodes have no entry. Reads as a map.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "BTreeMap<NodeName, Progress>")]
pub struct ProgressMap {
    nodes: BTreeMap<NodeName, Progress>,
    tally: Tally,
    under_way: BTreeSet<(DateTime<Utc>, NodeName)>,
    changed: Option<BTreeSet<NodeName>>,
    resets: usize,
}

impl ProgressMap {
    /// Sets the progress of a node.
    pub fn insert(&mut self, node: NodeName, progress: Progress) {
        self.count_in(&node, &progress);
        if let Some(changed) = &mut self.changed {
            changed.insert(node.clone());
        }
        self.resets += usize::from(progress == Progress::Pending);
        if let Some(before) = self.nodes.insert(node.clone(), progress) {
            self.count_out(&node, &before);
        }
    }

    /// Makes a node pending again.
    pub fn remove(&mut self, node: &NodeName) {
        if let Some(before) = self.nodes.remove(node) {
            self.count_out(node, &before);
            self.resets += 1;
            self.changed = None;
        }
    }

    /// Makes all nodes pending again for whose progress `is_kept` returns false.
    pub fn retain(&mut self, is_kept: impl Fn(&Progress) -> bool) {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.retain(|_, progress| is_kept(progress));
        let resets = self.resets + 1;
        *self = Self {
            resets,
            ..Self::from(nodes)
        };
    }

    /// Counts the nodes by progress.
    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns the nodes that were assigned or are restored and have not reported, each after the time of
    /// its assignment: the oldest first.
    pub fn under_way(&self) -> &BTreeSet<(DateTime<Utc>, NodeName)> {
        &self.under_way
    }

    /// Returns the nodes whose progress may have changed since [`Self::settle`]; nothing if all may have.
    pub fn changed(&self) -> Option<&BTreeSet<NodeName>> {
        self.changed.as_ref()
    }

    /// Forgets which nodes have changed.
    pub fn settle(&mut self) {
        self.changed = Some(BTreeSet::new());
    }

    /// Returns a number that grows whenever a node becomes pending again.
    pub fn resets(&self) -> usize {
        self.resets
    }

    fn count_in(&mut self, node: &NodeName, progress: &Progress) {
        *self.tally.count_of(progress) += 1;
        if let Some(at) = assigned_at(progress) {
            self.under_way.insert((at, node.clone()));
        }
    }

    fn count_out(&mut self, node: &NodeName, before: &Progress) {
        let count = self.tally.count_of(before);
        *count = count.saturating_sub(1);
        if let Some(at) = assigned_at(before) {
            let is_still = self.nodes.get(node).and_then(assigned_at) == Some(at);
            if !is_still {
                self.under_way.remove(&(at, node.clone()));
            }
        }
    }
}

/// Returns when a node under way was assigned.
fn assigned_at(progress: &Progress) -> Option<DateTime<Utc>> {
    match progress {
        Progress::Assigned { at, .. } | Progress::Restoring { at, .. } => Some(*at),
        _ => None,
    }
}

impl Deref for ProgressMap {
    type Target = BTreeMap<NodeName, Progress>;

    fn deref(&self) -> &Self::Target {
        &self.nodes
    }
}

impl From<BTreeMap<NodeName, Progress>> for ProgressMap {
    fn from(nodes: BTreeMap<NodeName, Progress>) -> Self {
        let mut map = Self::default();
        for (node, progress) in &nodes {
            map.count_in(node, progress);
        }
        Self { nodes, ..map }
    }
}

impl Extend<(NodeName, Progress)> for ProgressMap {
    fn extend<T: IntoIterator<Item = (NodeName, Progress)>>(&mut self, more: T) {
        for (node, progress) in more {
            self.insert(node, progress);
        }
    }
}

impl Serialize for ProgressMap {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.nodes.serialize(to)
    }
}

/// Only the progress counts.
impl PartialEq for ProgressMap {
    fn eq(&self, other: &Self) -> bool {
        self.nodes == other.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::name;
    use super::*;

    fn assigned(second: i64) -> Progress {
        Progress::Assigned {
            generation: 1,
            at: DateTime::from_timestamp(second, 0).unwrap(),
        }
    }

    /// Checks what is kept against what it is derived from.
    fn check(map: &ProgressMap) {
        assert_eq!(map.tally(), Tally::of(map.values()));
        let under_way = map
            .iter()
            .filter_map(|(node, it)| Some((assigned_at(it)?, node.clone())));
        assert_eq!(*map.under_way(), under_way.collect());
    }

    #[test]
    fn counts_and_nodes_under_way_follow_every_change() {
        let mut map = ProgressMap::default();
        for (node, progress) in [
            ("a", assigned(1)),
            ("b", assigned(1)),
            ("a", assigned(1)),
            ("b", assigned(2)),
            ("a", Progress::Changed),
            ("c", Progress::failed("no")),
            ("c", Progress::Pending),
        ] {
            map.insert(name(node), progress);
            check(&map);
        }
        assert_eq!(map.resets(), 1);
        map.remove(&name("b"));
        check(&map);
        map.remove(&name("b"));
        assert_eq!(map.resets(), 2);
        map.retain(|progress| *progress == Progress::Changed);
        check(&map);
        assert_eq!((map.len(), map.resets()), (1, 3));
        let read: ProgressMap =
            serde_json::from_str(&serde_json::to_string(&map).unwrap()).unwrap();
        check(&read);
        assert_eq!(read, map);
    }

    #[test]
    fn changed_nodes_are_known_since_the_last_step() {
        let mut map = ProgressMap::from(BTreeMap::from([(name("a"), Progress::Ok)]));
        assert_eq!(map.changed(), None);
        map.settle();
        map.insert(name("b"), Progress::Ok);
        assert_eq!(map.changed(), Some(&BTreeSet::from([name("b")])));
        map.settle();
        assert_eq!(map.changed(), Some(&BTreeSet::new()));
        map.remove(&name("a"));
        assert_eq!(map.changed(), None);
    }
}
