//! Assigned bundles and failing nodes of the live state.

use std::collections::BTreeMap;

use super::LiveState;
use ccm_core::model::node::{BundleRef, NodeName};
use ccm_core::model::run::RunOutcome;

impl LiveState {
    /// Returns the number of nodes that each bundle is assigned to, by the name of its object.
    pub(in crate::web) fn assigned_bundles(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for entry in self.nodes.values() {
            for bundle in entry.node.assigned() {
                *counts.entry(bundle.object()).or_default() += 1;
            }
        }
        counts
    }

    /// Returns the nodes that a bundle is assigned to, sorted by name.
    pub(in crate::web) fn nodes_with(&self, bundle: &BundleRef) -> Vec<NodeName> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter(|(_, entry)| entry.node.assigned().contains(bundle));
        nodes.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the nodes whose last run failed, sorted by name.
    pub(in crate::web) fn failing_nodes(&self) -> Vec<NodeName> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter(|(_, entry)| entry.row.outcome == Some(RunOutcome::Failed));
        nodes.map(|(name, _)| name.clone()).collect()
    }
}
