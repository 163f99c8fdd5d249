//! Rollouts: a bundle assigned to a selection of nodes in waves, as stored in the KV bucket.
//!
//! It holds the settings, the plan, the progress of every node and the previous assignments of
//! changed nodes, so any controller can continue a rollout. The next step is decided in
//! `ccm_fleet::planner`; waves are built in `ccm_fleet::waves`; `ccm_fleet::rollout_chunks` divides
//! large rollouts into several messages.
//!
//! A pending node has no entry, and previous assignments that differ only in their generation are
//! stored once.

mod previous_assignments;
mod progress;
mod progress_map;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::previous_assignments::PreviousAssignments;
pub use self::progress::{Progress, Tally};
pub use self::progress_map::ProgressMap;
pub use self::state::RolloutState;
use super::Value;
use super::amount::{Amount, Percent};
use super::decision::{Rollback, RolloutDecision};
use super::governor::GovernorClaim;
use super::node::{BundleRef, NodeName, Token};
use super::text::{maybe_timestamp, nanoseconds, timestamp};

pub const ROLLOUT: &str = "io.choria.ccm.v1.rollout";

/// Maximum number of controls that a rollout records, the newest ones.
const MAX_CONTROLS: usize = 50;

/// Stored record of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    pub protocol: String,
    pub id: Token,
    /// Collective of the nodes.
    #[serde(default = "Token::default_collective")]
    pub collective: Token,
    pub bundle: BundleRef,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
    /// Applied in noop mode: the nodes report what they would change.
    #[serde(default)]
    pub noop: bool,
    /// Selection of the nodes, for display.
    #[serde(default)]
    pub selection: Vec<String>,
    #[serde(with = "timestamp")]
    pub created: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caller: String,
    #[serde(default)]
    pub settings: Settings,
    pub plan: Plan,
    pub state: RolloutState,
    /// Current wave, from 0.
    #[serde(default)]
    pub wave: usize,
    /// Progress of each node; pending nodes have no entry.
    #[serde(default)]
    pub nodes: ProgressMap,
    /// Previous assignments of the nodes that were assigned the bundle.
    #[serde(default)]
    pub previous: PreviousAssignments,
    /// Nodes by the digest of their assignment at the start of the rollout; nodes without an
    /// assignment are not listed. Part of the signed decision.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub previous_digests: BTreeMap<String, BTreeSet<NodeName>>,
    /// Decision to start the rollout, signed by its caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<RolloutDecision>,
    /// Decision to roll back, signed by its caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// Counts at the last resume: earlier failures do not count against the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgiven: Option<Tally>,
    /// Lease of the controller that drives the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// What operators did to the rollout since its start, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controls: Vec<ControlRecord>,
}

impl Rollout {
    /// Returns the progress of a node.
    pub fn progress(&self, node: &NodeName) -> &Progress {
        self.nodes.get(node).unwrap_or(&Progress::Pending)
    }

    /// Counts the nodes of the plan by progress.
    pub fn tally(&self) -> Tally {
        let mut tally = self.nodes.tally();
        // Nodes without an entry.
        tally.pending += self.plan.size().saturating_sub(self.nodes.len());
        tally
    }

    /// Records what an operator did. The oldest records are dropped.
    pub fn record_control(&mut self, record: ControlRecord) {
        let extra = (self.controls.len() + 1).saturating_sub(MAX_CONTROLS);
        self.controls.drain(..extra.min(self.controls.len()));
        self.controls.push(record);
    }

    /// Returns the state in which the rollout, or its rollback, ends if no node is left to do.
    pub fn end_state(&self) -> RolloutState {
        match (self.state.is_rollback(), self.tally().has_failures()) {
            (false, false) => RolloutState::Done,
            (false, true) => RolloutState::DoneWithFailures,
            (true, false) => RolloutState::RolledBack,
            (true, true) => RolloutState::RolledBackWithFailures,
        }
    }
}

/// What an operator did to a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRecord {
    /// `pause`, `resume`, `abort`, `retry` or `rollback`.
    pub verb: String,
    /// Caller as stated by the program; not verified.
    pub by: String,
    #[serde(with = "timestamp")]
    pub at: DateTime<Utc>,
}

/// Lease of the controller that drives a rollout. Its holder renews it by writing the rollout again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub holder: String,
    /// Time without a new revision of the rollout after which another controller may take over.
    #[serde(with = "nanoseconds", default = "Lease::default_duration")]
    pub duration: Duration,
    /// End of the lease by the clock of the holder. For display and for controllers of earlier
    /// versions: clocks may be wrong.
    #[serde(with = "timestamp")]
    pub until: DateTime<Utc>,
}

impl Lease {
    /// Returns the duration of a lease that does not state one.
    pub const fn default_duration() -> Duration {
        Duration::from_secs(15)
    }
}

/// Waves of a rollout. Never changes once it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub waves: Vec<Wave>,
    /// Selected nodes that are in no wave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<ExcludedNode>,
}

impl Plan {
    /// Returns the number of nodes in all waves.
    pub fn size(&self) -> usize {
        self.waves.iter().map(|wave| wave.nodes.len()).sum()
    }

    /// Returns the nodes of all waves, in the order of the plan.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.waves.iter().flat_map(|wave| &wave.nodes)
    }
}

/// Nodes that are assigned the bundle together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    pub name: String,
    /// Canary wave: any failure halts the rollout, regardless of the budget.
    #[serde(default)]
    pub canary: bool,
    pub nodes: Vec<NodeName>,
}

/// Selected node that was excluded from the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedNode {
    pub node: NodeName,
    pub reason: String,
}

/// Settings of a rollout, chosen by its caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Number of canary nodes.
    pub canary: usize,
    /// Sizes of the waves: counts are wave sizes, percentages are cumulative shares of all nodes.
    pub waves: Vec<Amount>,
    /// Label or fact that nodes are sorted by, before their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_by: Option<String>,
    /// Bake time: pause between a finished wave and the next one.
    #[serde(with = "nanoseconds")]
    pub bake: Duration,
    /// Whether an unhealthy node keeps the next wave from starting.
    pub health_gate: bool,
    pub budget: Budget,
    /// Maximum number of concurrently assigned nodes within a wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<usize>,
    /// Time without a report after which a node counts as unreachable.
    #[serde(with = "nanoseconds")]
    pub node_timeout: Duration,
    /// Governor slot that a node needs to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<GovernorClaim>,
    /// Time after which no further node is assigned.
    #[serde(with = "maybe_timestamp", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DateTime<Utc>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            canary: 0,
            waves: Vec::new(),
            order_by: None,
            bake: Duration::ZERO,
            health_gate: false,
            budget: Budget::default(),
            parallel: None,
            node_timeout: Duration::from_secs(600),
            governor: None,
            deadline: None,
        }
    }
}

/// Failure budget of the whole rollout. Without a limit on failures, none is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<usize>,
    /// Percentage of the finished nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failures_percent: Option<Percent>,
    /// Number of finished nodes from which on the percentage is checked.
    pub min_sample: usize,
    /// Maximum of unreachable nodes; a percentage is of the nodes tried so far. Unlimited if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unreachable: Option<Amount>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            max_failures: None,
            max_failures_percent: None,
            min_sample: 20,
            max_unreachable: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::node::{ASSIGNMENT, Assignment};

    pub(super) fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    pub(super) fn assignment(generation: u64, digest: &str) -> Assignment {
        Assignment {
            protocol: ASSIGNMENT.into(),
            generation,
            incarnation: None,
            manifests: vec![BundleRef {
                name: "app".parse().unwrap(),
                digest: digest.repeat(32).parse().unwrap(),
            }],
            data: Value::Null,
            noop: false,
            governor: None,
            rollout: None,
            assigned: DateTime::UNIX_EPOCH,
            signature: None,
        }
    }

    fn minimal() -> Rollout {
        serde_json::from_value(serde_json::json!({
            "protocol": ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": [{"name": "wave 1", "nodes": ["a", "b"]}]},
            "state": {"name": "running"},
            "a field of the future": 1
        }))
        .unwrap()
    }

    #[test]
    fn a_minimal_rollout_is_read() {
        let rollout = minimal();
        assert_eq!(rollout.settings, Settings::default());
        assert_eq!(rollout.progress(&name("a")), &Progress::Pending);
        assert_eq!(rollout.tally().pending, 2);
    }

    #[test]
    fn a_rollout_round_trips() {
        let mut rollout = minimal();
        rollout.state = RolloutState::Baking {
            until: DateTime::UNIX_EPOCH,
        };
        rollout.settings.waves = vec!["5%".parse().unwrap(), "10".parse().unwrap()];
        rollout.settings.budget.max_failures_percent = Some("2.5%".parse().unwrap());
        let at = DateTime::UNIX_EPOCH;
        let assigned = Progress::Assigned { generation: 3, at };
        rollout.nodes.insert(name("a"), assigned);
        let failed = Progress::failed("no\nsuch");
        rollout.nodes.insert(name("b"), failed);
        rollout
            .previous
            .record(name("a"), Some(assignment(2, "0a")));
        rollout.previous.record(name("b"), None);
        let text = serde_json::to_string(&rollout).unwrap();
        assert_eq!(serde_json::from_str::<Rollout>(&text).unwrap(), rollout);
    }

    #[test]
    fn the_newest_controls_are_kept() {
        let mut rollout = minimal();
        for number in 0..MAX_CONTROLS + 3 {
            rollout.record_control(ControlRecord {
                verb: "resume".into(),
                by: number.to_string(),
                at: DateTime::UNIX_EPOCH,
            });
        }
        let by: Vec<&str> = rollout.controls.iter().map(|it| it.by.as_str()).collect();
        assert_eq!((by.len(), by[0]), (MAX_CONTROLS, "3"));
        assert_eq!(by.last(), Some(&"52"));
    }

    #[test]
    fn a_rollout_with_a_failed_or_unreachable_node_ends_with_failures() {
        let mut rollout = minimal();
        rollout.nodes.insert(name("a"), Progress::Changed);
        assert_eq!(rollout.end_state(), RolloutState::Done);
        for bad in [
            Progress::failed("no"),
            Progress::unhealthy("no"),
            Progress::unreachable(1, ""),
        ] {
            rollout.nodes.insert(name("b"), bad);
            rollout.state = RolloutState::Running;
            assert_eq!(rollout.end_state(), RolloutState::DoneWithFailures);
            rollout.state = RolloutState::RollingBack;
            assert_eq!(rollout.end_state(), RolloutState::RolledBackWithFailures);
        }
    }
}
