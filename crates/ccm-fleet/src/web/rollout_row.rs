//! Rollout rows: rollouts as the API and the page show them, with waves and the progress of nodes.
//!
//! Previous assignments are dropped: they are large and only needed for a rollback.

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::rollout_chunks::Layout;
use crate::rollout_store::StoredRollout;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::{PreviousAssignments, Rollout, Tally};

/// A rollout and the revision of the live state in which it changed.
#[derive(Debug)]
pub(super) struct RolloutRow {
    rollout: Rollout,
    /// Where its nodes are stored.
    layout: Layout,
    pub(super) revision: u64,
}

/// A wave with counts.
#[derive(Debug, Serialize)]
struct WaveTally<'a> {
    name: &'a str,
    canary: bool,
    size: usize,
    tally: Tally,
}

impl RolloutRow {
    pub(super) fn new(stored: StoredRollout, revision: u64) -> Self {
        let StoredRollout {
            mut rollout,
            layout,
            ..
        } = stored;
        rollout.previous = PreviousAssignments::default();
        rollout.previous_digests.clear();
        Self {
            rollout,
            layout,
            revision,
        }
    }

    /// Returns the rollout and where its nodes are stored.
    pub(super) fn stored(&self) -> (&Rollout, &Layout) {
        (&self.rollout, &self.layout)
    }

    pub(super) fn id(&self) -> &Token {
        &self.rollout.id
    }

    /// Returns the name of the state.
    pub(super) fn state(&self) -> &'static str {
        self.rollout.state.as_str()
    }

    pub(super) fn is_active(&self) -> bool {
        !self.rollout.state.is_finished()
    }

    pub(super) fn tally(&self) -> Tally {
        self.rollout.tally()
    }

    /// Returns the row of the rollout list.
    pub(super) fn row(&self) -> Json {
        let it = &self.rollout;
        let waves = it.plan.waves.iter().map(|wave| WaveTally {
            name: &wave.name,
            canary: wave.canary,
            size: wave.nodes.len(),
            tally: Tally::of(wave.nodes.iter().map(|node| it.progress(node))),
        });
        let waves: Vec<WaveTally<'_>> = waves.collect();
        json!({
            "id": it.id,
            "bundle": it.bundle,
            "noop": it.noop,
            "state": it.state,
            "word": it.state.as_str(),
            "active": self.is_active(),
            "created": ccm_value::text::go_time(&it.created),
            "caller": it.caller,
            "wave": it.wave,
            "tally": it.tally(),
            "waves": waves,
        })
    }

    /// Returns the API document of the rollout.
    pub(super) fn document(&self) -> Json {
        let it = &self.rollout;
        let node_document = |node: &NodeName| {
            let progress = it.progress(node);
            json!({ "node": node, "progress": progress.as_str(), "reason": progress.reason() })
        };
        let waves = it.plan.waves.iter();
        let nodes: Vec<Vec<Json>> = waves
            .map(|wave| wave.nodes.iter().map(node_document).collect())
            .collect();
        json!({
            "rollout": self.row(),
            "selection": it.selection,
            "settings": it.settings,
            "forgiven": it.forgiven,
            "lease": it.lease,
            "controls": it.controls,
            "left_out": it.plan.left_out,
            "nodes": nodes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::rollout;

    #[test]
    fn waves_have_their_own_counts() {
        let row = RolloutRow::new(StoredRollout::whole(rollout("r1"), 1), 1).row();
        assert_eq!(row["waves"][0]["tally"]["changed"], 1);
        assert_eq!(row["waves"][1]["tally"]["failed"], 1);
        assert_eq!(row["waves"][1]["tally"]["pending"], 1);
        assert_eq!(row["word"], "running");
    }

    #[test]
    fn a_failed_node_has_its_reason() {
        let document = RolloutRow::new(StoredRollout::whole(rollout("r1"), 1), 1).document();
        assert_eq!(
            document["nodes"][1][0],
            json!({"node": "web2", "progress": "failed", "reason": "no such package"})
        );
    }
}
