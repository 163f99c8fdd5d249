//! Rollouts: a bundle taken to a selection of nodes in waves, as it is stored.
//!
//! One object holds the whole of it: what was asked for, the plan, how far every node is, and
//! what each touched node was before. So any controller can go on where another stopped. What to
//! do next is decided by `fleet::judge`; how waves are cut by `fleet::plan`.
//!
//! Thousands of nodes must fit into one message: a node that nothing happened to has no entry,
//! and previous assignments that differ only in their generation are stored once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Value;
use super::amount::{Amount, Percent};
use super::decision::{Rollback, RolloutDecision};
use super::governor::GovernorClaim;
use super::node::{Assignment, BundleRef, NodeName, Token};
use super::text::{maybe_timestamp, nanoseconds, timestamp};

pub const ROLLOUT: &str = "io.choria.ccm.v1.rollout";

/// The longest reason that is kept of a node that failed.
const MAX_REASON: usize = 200;

/// A bundle on its way to many nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    pub protocol: String,
    pub id: Token,
    /// Whose nodes these are.
    #[serde(default = "Token::default_collective")]
    pub collective: Token,
    pub bundle: BundleRef,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
    /// The nodes only say what they would do.
    #[serde(default)]
    pub noop: bool,
    /// How the nodes were chosen, for people.
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
    /// The wave that is being worked on, from 0.
    #[serde(default)]
    pub wave: usize,
    /// Where each node is; one that nothing happened to yet has no entry.
    #[serde(default)]
    pub nodes: BTreeMap<NodeName, Progress>,
    /// What the touched nodes were assigned before.
    #[serde(default)]
    pub previous: PreviousAssignments,
    /// What nodes were assigned when the rollout was started, by digest; those that were assigned
    /// nothing are not listed. Holds them to it where the rollout is signed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub previous_digests: BTreeMap<String, BTreeSet<NodeName>>,
    /// What was decided, signed by whoever started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<RolloutDecision>,
    /// That it is rolled back, signed by whoever wants it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// What somebody saw and chose to go on with: it no longer counts against the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgiven: Option<Tally>,
    /// Who drives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

impl Rollout {
    /// Returns where a node is.
    pub fn progress(&self, node: &NodeName) -> &Progress {
        self.nodes.get(node).unwrap_or(&Progress::Pending)
    }

    /// Counts the nodes of the plan by what became of them.
    pub fn tally(&self) -> Tally {
        let nodes = self.plan.waves.iter().flat_map(|wave| &wave.nodes);
        Tally::of(nodes.map(|node| self.progress(node)))
    }
}

/// Who drives a rollout, and until when without saying so again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub holder: String,
    #[serde(with = "timestamp")]
    pub until: DateTime<Utc>,
}

/// Which nodes, in which order. A plan never changes once it is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub waves: Vec<Wave>,
    /// Chosen, but in no wave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<ExcludedNode>,
}

/// Nodes that are done together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    pub name: String,
    /// Nothing may fail in it, whatever the budget says.
    #[serde(default)]
    pub canary: bool,
    pub nodes: Vec<NodeName>,
}

/// A node that was chosen and left out all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedNode {
    pub node: NodeName,
    pub reason: String,
}

/// What the caller asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How many nodes go first, on their own.
    pub canary: usize,
    /// How large the waves are: counts are sizes, percents reach up to that part of all nodes.
    pub waves: Vec<Amount>,
    /// The label or fact that nodes are ordered by before their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_by: Option<String>,
    /// How long a finished wave is watched before the next one begins.
    #[serde(with = "nanoseconds")]
    pub bake: Duration,
    /// No node may be unhealthy when the next wave begins.
    pub health_gate: bool,
    pub budget: Budget,
    /// How many nodes may be under way at once within a wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<usize>,
    /// How long a node may stay silent before it counts as unreachable.
    #[serde(with = "nanoseconds")]
    pub node_timeout: Duration,
    /// The slot without which a node does not begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<GovernorClaim>,
    /// After this nothing more is begun.
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

/// How much may go wrong, over the whole rollout. Without any bound on failures none is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<usize>,
    /// Of the nodes that have finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failures_percent: Option<Percent>,
    /// How many nodes must have finished before a percentage means anything.
    pub min_sample: usize,
    /// Nodes that stayed silent; a percent is of the nodes that were tried. Without it any number.
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

/// Where a rollout is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum RolloutState {
    Running,
    /// The wave is finished and is being watched.
    Baking {
        #[serde(with = "timestamp")]
        until: DateTime<Utc>,
    },
    Paused {
        reason: String,
        #[serde(default)]
        by: String,
        /// A controller paused it by itself.
        #[serde(default)]
        auto: bool,
    },
    /// Too much went wrong.
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
    /// Returns the word people know the state by.
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

    /// Reports whether a controller has something to do for it, now or later.
    pub fn is_active(&self) -> bool {
        matches!(
            self,
            Self::Running | Self::Baking { .. } | Self::RollingBack
        )
    }

    /// Reports whether it stays as it is unless somebody begins it anew.
    pub fn is_finished(&self) -> bool {
        matches!(
            self,
            Self::Halted { .. } | Self::Aborted { .. } | Self::Done | Self::RolledBack
        )
    }
}

/// Where one node is in a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    #[default]
    Pending,
    /// It was told; nothing was heard since.
    Assigned {
        generation: u64,
        #[serde(with = "timestamp")]
        at: DateTime<Utc>,
    },
    /// It converged and nothing had to change.
    Ok,
    Changed,
    Failed {
        reason: String,
    },
    /// It converged, but a health check is critical.
    Unhealthy {
        reason: String,
    },
    /// It stayed silent. Its assignment stands: it converges when it returns.
    Unreachable {
        generation: u64,
    },
    /// It is passed over, for instance because it was paused after the plan was made.
    Skipped {
        reason: String,
    },
    /// Its previous assignment is back.
    Restored,
}

impl Progress {
    /// Returns a failure, its reason cut to a length that fits a thousand times.
    pub fn failed(reason: &str) -> Self {
        Self::Failed {
            reason: shortened(reason),
        }
    }

    /// Returns that a node is unhealthy, with a reason as short as that of [`Self::failed`].
    pub fn unhealthy(reason: &str) -> Self {
        Self::Unhealthy {
            reason: shortened(reason),
        }
    }

    /// Returns the word people know it by.
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

/// Returns the first line of a text, cut where it gets long.
fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.into(),
    }
}

/// How many nodes came to what.
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
    /// Counts nodes by what became of them.
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

    /// Returns how many nodes ran to an end, good or bad.
    pub fn finished(&self) -> usize {
        self.ok + self.changed + self.failed + self.unhealthy
    }

    /// Returns what is more than it was, outcome by outcome.
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

/// What touched nodes were assigned before the rollout; nothing, for some.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<PreviousGroup>", into = "Vec<PreviousGroup>")]
pub struct PreviousAssignments(BTreeMap<NodeName, Option<Assignment>>);

impl PreviousAssignments {
    /// Notes what a node was before it is touched for the first time. Later notes are not heard:
    /// by then it is the rollout's own assignment that stands. Who stood for it is not kept here,
    /// so that equal assignments stay equal.
    pub fn record(&mut self, node: NodeName, assignment: Option<Assignment>) {
        let assignment = assignment.map(|it| Assignment {
            signature: None,
            ..it
        });
        self.0.entry(node).or_insert(assignment);
    }

    /// Returns what a node was assigned before, or nothing if it was not touched.
    pub fn get(&self, node: &NodeName) -> Option<Option<&Assignment>> {
        self.0.get(node).map(Option::as_ref)
    }

    /// Returns the touched nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.0.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Nodes that were assigned the same before, each with its own generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PreviousGroup {
    assignment: Option<Assignment>,
    /// The generation of each node's assignment; 0 where there was none.
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
        // Assignments hold data, which has no order to look them up by; their bundles and time
        // nearly always tell them apart.
        let mut places: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (node, assignment) in previous.0 {
            let generation = assignment.as_ref().map_or(0, |it| it.generation);
            let assignment = assignment.map(|it| Assignment {
                generation: 0,
                ..it
            });
            let candidates = places.entry(rough_key(assignment.as_ref())).or_default();
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

fn rough_key(assignment: Option<&Assignment>) -> String {
    let Some(assignment) = assignment else {
        return String::new();
    };
    let objects: Vec<String> = assignment.manifests.iter().map(BundleRef::object).collect();
    let (time, objects) = (assignment.assigned.to_rfc3339(), objects.join(" "));
    format!("{time} {} {objects}", assignment.data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::node::ASSIGNMENT;

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

    fn small() -> Rollout {
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
    fn the_least_of_a_rollout_can_be_read() {
        let rollout = small();
        assert_eq!(rollout.settings, Settings::default());
        assert_eq!(rollout.progress(&name("a")), &Progress::Pending);
        assert_eq!(rollout.tally().pending, 2);
    }

    #[test]
    fn a_rollout_survives_being_stored() {
        let mut rollout = small();
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
    fn what_happened_to_a_node_is_stored_in_a_word_where_it_can_be() {
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
    fn only_the_first_note_of_a_node_counts() {
        let mut previous = PreviousAssignments::default();
        previous.record(name("a"), None);
        previous.record(name("a"), Some(assignment(1, "0a")));
        assert_eq!(previous.get(&name("a")), Some(None));
        assert_eq!(previous.get(&name("b")), None);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let Progress::Failed { reason } = Progress::failed(&"é".repeat(500)) else {
            panic!("not a failure");
        };
        assert_eq!(reason.chars().count(), MAX_REASON + 1);
    }
}
