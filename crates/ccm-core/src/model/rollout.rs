//! Rollouts: a bundle assigned to a selection of nodes in waves, as stored in the KV bucket.
//!
//! One record holds the settings, the plan, the progress of every node and the previous assignments
//! of changed nodes, so any controller can continue a rollout. The next step is decided in
//! `ccm_fleet::planner`; waves are built in `ccm_fleet::waves`.
//!
//! Thousands of nodes must fit into one message: a pending node has no entry, and previous
//! assignments that differ only in their generation are stored once.

mod previous_assignments;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::previous_assignments::PreviousAssignments;
use super::Value;
use super::amount::{Amount, Percent};
use super::decision::{Rollback, RolloutDecision};
use super::governor::GovernorClaim;
use super::node::{BundleRef, NodeName, Token};
use super::text::{maybe_timestamp, nanoseconds, timestamp};

pub const ROLLOUT: &str = "io.choria.ccm.v1.rollout";

/// Maximum length of a failed node's reason.
const MAX_REASON: usize = 200;

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
    pub nodes: BTreeMap<NodeName, Progress>,
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
}

impl Rollout {
    /// Returns the progress of a node.
    pub fn progress(&self, node: &NodeName) -> &Progress {
        self.nodes.get(node).unwrap_or(&Progress::Pending)
    }

    /// Counts the nodes of the plan by progress.
    pub fn tally(&self) -> Tally {
        let nodes = self.plan.waves.iter().flat_map(|wave| &wave.nodes);
        Tally::of(nodes.map(|node| self.progress(node)))
    }
}

/// Lease of the controller that drives a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub holder: String,
    #[serde(with = "timestamp")]
    pub until: DateTime<Utc>,
}

/// Waves of a rollout. Never changes once it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub waves: Vec<Wave>,
    /// Selected nodes that are in no wave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<ExcludedNode>,
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

/// State of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum RolloutState {
    Running,
    /// The wave has finished; the next one waits for the bake time.
    Baking {
        #[serde(with = "timestamp")]
        until: DateTime<Utc>,
    },
    Paused {
        reason: String,
        #[serde(default)]
        by: String,
        /// Paused by a controller, not by an operator.
        #[serde(default)]
        auto: bool,
    },
    /// The failure budget was exceeded.
    Halted {
        reason: String,
    },
    Aborted {
        #[serde(default)]
        by: String,
    },
    Done,
    RollingBack,
    RolledBack,
}

impl RolloutState {
    /// Returns the name of the state, for display.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Baking { .. } => "baking",
            Self::Paused { .. } => "paused",
            Self::Halted { .. } => "halted",
            Self::Aborted { .. } => "aborted",
            Self::Done => "done",
            Self::RollingBack => "rolling back",
            Self::RolledBack => "rolled back",
        }
    }

    /// Reports whether a controller has to drive the rollout.
    pub fn is_active(&self) -> bool {
        matches!(
            self,
            Self::Running | Self::Baking { .. } | Self::RollingBack
        )
    }

    /// Reports whether the state stays unless an operator resumes, retries or rolls back the rollout.
    pub fn is_finished(&self) -> bool {
        matches!(
            self,
            Self::Halted { .. } | Self::Aborted { .. } | Self::Done | Self::RolledBack
        )
    }
}

/// Progress of one node in a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    #[default]
    Pending,
    /// Assigned; no report yet.
    Assigned {
        generation: u64,
        #[serde(with = "timestamp")]
        at: DateTime<Utc>,
    },
    /// Converged without changes.
    Ok,
    Changed,
    Failed {
        reason: String,
    },
    /// Converged, but a health check is critical.
    Unhealthy {
        reason: String,
    },
    /// No report in time. The assignment stays: the node converges when it reconnects.
    Unreachable {
        generation: u64,
    },
    /// Skipped, for instance because it was paused after the plan was created.
    Skipped {
        reason: String,
    },
    /// Its previous assignment was restored.
    Restored,
}

impl Progress {
    /// Returns a failure with a shortened reason, so that thousands fit into one message.
    pub fn failed(reason: &str) -> Self {
        Self::Failed {
            reason: shortened(reason),
        }
    }

    /// Returns an unhealthy progress with a shortened reason, as in [`Self::failed`].
    pub fn unhealthy(reason: &str) -> Self {
        Self::Unhealthy {
            reason: shortened(reason),
        }
    }

    /// Returns the name of the progress, for display.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Assigned { .. } => "assigned",
            Self::Ok => "ok",
            Self::Changed => "changed",
            Self::Failed { .. } => "failed",
            Self::Unhealthy { .. } => "unhealthy",
            Self::Unreachable { .. } => "unreachable",
            Self::Skipped { .. } => "skipped",
            Self::Restored => "restored",
        }
    }
}

/// Returns the first line of a text, cut to the maximum length.
fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.into(),
    }
}

/// Number of nodes by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    pub pending: usize,
    pub assigned: usize,
    pub ok: usize,
    pub changed: usize,
    pub failed: usize,
    pub unhealthy: usize,
    pub unreachable: usize,
    pub skipped: usize,
    pub restored: usize,
}

impl Tally {
    /// Counts nodes by progress.
    pub fn of<'p>(nodes: impl IntoIterator<Item = &'p Progress>) -> Self {
        let mut tally = Self::default();
        for progress in nodes {
            let count = match progress {
                Progress::Pending => &mut tally.pending,
                Progress::Assigned { .. } => &mut tally.assigned,
                Progress::Ok => &mut tally.ok,
                Progress::Changed => &mut tally.changed,
                Progress::Failed { .. } => &mut tally.failed,
                Progress::Unhealthy { .. } => &mut tally.unhealthy,
                Progress::Unreachable { .. } => &mut tally.unreachable,
                Progress::Skipped { .. } => &mut tally.skipped,
                Progress::Restored => &mut tally.restored,
            };
            *count += 1;
        }
        tally
    }

    /// Returns the number of nodes that finished, with or without failure.
    pub fn finished(&self) -> usize {
        self.ok + self.changed + self.failed + self.unhealthy
    }

    /// Returns the counts minus those of an earlier tally.
    pub fn saturating_sub(&self, earlier: &Self) -> Self {
        Self {
            pending: self.pending.saturating_sub(earlier.pending),
            assigned: self.assigned.saturating_sub(earlier.assigned),
            ok: self.ok.saturating_sub(earlier.ok),
            changed: self.changed.saturating_sub(earlier.changed),
            failed: self.failed.saturating_sub(earlier.failed),
            unhealthy: self.unhealthy.saturating_sub(earlier.unhealthy),
            unreachable: self.unreachable.saturating_sub(earlier.unreachable),
            skipped: self.skipped.saturating_sub(earlier.skipped),
            restored: self.restored.saturating_sub(earlier.restored),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::node::{ASSIGNMENT, Assignment};

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn assignment(generation: u64, digest: &str) -> Assignment {
        Assignment {
            protocol: ASSIGNMENT.into(),
            generation,
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
        rollout.nodes = BTreeMap::from([
            (name("a"), Progress::Assigned { generation: 3, at }),
            (name("b"), Progress::failed("no\nsuch")),
        ]);
        rollout
            .previous
            .record(name("a"), Some(assignment(2, "0a")));
        rollout.previous.record(name("b"), None);
        let text = serde_json::to_string(&rollout).unwrap();
        assert_eq!(serde_json::from_str::<Rollout>(&text).unwrap(), rollout);
    }

    #[test]
    fn progress_without_fields_is_stored_as_text() {
        for (progress, text) in [
            (Progress::Ok, r#""ok""#),
            (
                Progress::failed("no\nsuch"),
                r#"{"failed":{"reason":"no"}}"#,
            ),
            (
                Progress::Unreachable { generation: 4 },
                r#"{"unreachable":{"generation":4}}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&progress).unwrap(), text);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let Progress::Failed { reason } = Progress::failed(&"é".repeat(500)) else {
            panic!("not a failure");
        };
        assert_eq!(reason.chars().count(), MAX_REASON + 1);
    }
}
