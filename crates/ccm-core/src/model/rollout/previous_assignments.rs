//! Previous assignments of a rollout's nodes, for a rollback.
//!
//! Assignments that differ only in their generation are stored once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::node::{Assignment, BundleRef, NodeName};

/// Assignments of the rollout's nodes before it changed them; `None` for nodes that had none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<PreviousGroup>", into = "Vec<PreviousGroup>")]
pub struct PreviousAssignments(BTreeMap<NodeName, Option<Assignment>>);

impl PreviousAssignments {
    /// Records the previous assignment of a node. Only the first call for a node has an effect: later
    /// assignments are the rollout's own. Signatures are removed, so that equal assignments are
    /// stored once.
    pub fn record(&mut self, node: NodeName, assignment: Option<Assignment>) {
        let assignment = assignment.map(|it| Assignment {
            signature: None,
            ..it
        });
        self.0.entry(node).or_insert(assignment);
    }

    /// Returns the previous assignment of a node, or `None` if the rollout did not change the node.
    pub fn get(&self, node: &NodeName) -> Option<Option<&Assignment>> {
        self.0.get(node).map(Option::as_ref)
    }

    /// Returns the changed nodes, sorted.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.0.keys()
    }

    /// Returns the previous assignments of these nodes.
    pub fn of(&self, nodes: &[NodeName]) -> Self {
        let found = nodes.iter().filter_map(|node| {
            let assignment = self.0.get(node)?;
            Some((node.clone(), assignment.clone()))
        });
        Self(found.collect())
    }

    /// Adds the previous assignments of other nodes.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Nodes with equal previous assignments, each with its own generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PreviousGroup {
    assignment: Option<Assignment>,
    /// Generation of each node's assignment; 0 if it had none.
    nodes: BTreeMap<NodeName, u64>,
}

impl From<Vec<PreviousGroup>> for PreviousAssignments {
    fn from(groups: Vec<PreviousGroup>) -> Self {
        let mut nodes = BTreeMap::new();
        for group in groups {
            for (node, generation) in group.nodes {
                let assignment = group.assignment.clone();
                nodes.insert(node, assignment.map(|it| Assignment { generation, ..it }));
            }
        }
        Self(nodes)
    }
}

impl From<PreviousAssignments> for Vec<PreviousGroup> {
    fn from(previous: PreviousAssignments) -> Self {
        let mut groups: Self = Vec::new();
        // Assignments are not hashable; time, bundles and data in a key limit the comparisons.
        let mut groups_by_key: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (node, assignment) in previous.0 {
            let generation = assignment.as_ref().map_or(0, |it| it.generation);
            let assignment = assignment.map(|it| Assignment {
                generation: 0,
                ..it
            });
            let candidates = groups_by_key
                .entry(group_key(assignment.as_ref()))
                .or_default();
            let same = candidates.iter().find_map(|at| {
                let group = groups.get(*at)?;
                (group.assignment == assignment).then_some(*at)
            });
            if let Some(group) = same.and_then(|at| groups.get_mut(at)) {
                group.nodes.insert(node, generation);
            } else {
                candidates.insert(groups.len());
                groups.push(PreviousGroup {
                    assignment,
                    nodes: BTreeMap::from([(node, generation)]),
                });
            }
        }
        groups
    }
}

fn group_key(assignment: Option<&Assignment>) -> String {
    let Some(assignment) = assignment else {
        return String::new();
    };
    let objects: Vec<String> = assignment.manifests.iter().map(BundleRef::object).collect();
    let (time, objects) = (assignment.assigned.to_rfc3339(), objects.join(" "));
    format!("{time} {} {objects}", assignment.data)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assignment, name};
    use super::*;

    #[test]
    fn equal_assignments_are_stored_once() {
        let mut previous = PreviousAssignments::default();
        previous.record(name("a"), Some(assignment(1, "0a")));
        previous.record(name("b"), Some(assignment(7, "0a")));
        previous.record(name("c"), Some(assignment(7, "0b")));
        previous.record(name("d"), None);
        let groups: Vec<PreviousGroup> = previous.clone().into();
        assert_eq!(groups.len(), 3);
        assert_eq!(PreviousAssignments::from(groups), previous);
    }

    #[test]
    fn only_the_first_record_of_a_node_counts() {
        let mut previous = PreviousAssignments::default();
        previous.record(name("a"), None);
        previous.record(name("a"), Some(assignment(1, "0a")));
        assert_eq!(previous.get(&name("a")), Some(None));
        assert_eq!(previous.get(&name("b")), None);
    }
}
