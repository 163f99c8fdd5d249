//! Node rows: the state of a node and its row in the node list.
//!
//! Computed from presence, report, assignment and labels, and from the runs and resources of
//! events. Without NATS and without a clock: times are passed in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio::time::Instant;

use super::event_row::{EventRow, short};
use super::node_record::{Record, Source};
use crate::bundle_store::short_name;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::label::Labels;
use ccm_core::model::node::{
    Assignment, BundleRef, NodeName, NodeReport, NodeStatus, Refusal, StoredFacts, Token,
};
use ccm_core::model::run::{RunOutcome, RunSummary};
use ccm_value::text::{go_time, maybe_timestamp};
use ccm_value::{Value, json};

/// Maximum number of resources per node that are kept.
pub(super) const MAX_RESOURCES: usize = 500;

/// Number of missed heartbeats after which a node is offline. Needed for NATS servers before 2.11,
/// which do not publish the expiry of presence.
const MAX_MISSED_BEATS: u32 = 3;

/// Shortest heartbeat interval for that purpose.
const MIN_BEAT: Duration = Duration::from_secs(30);

/// State of a node, which determines its colour on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NodeState {
    Failed,
    /// At least one resource differs from the assignment.
    Drifted,
    /// Known, but without presence.
    Offline,
    Paused,
    Running,
    Stable,
}

impl NodeState {
    pub(super) const ALL: [Self; 6] = [
        Self::Failed,
        Self::Drifted,
        Self::Offline,
        Self::Paused,
        Self::Running,
        Self::Stable,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Drifted => "drifted",
            Self::Offline => "offline",
            Self::Paused => "paused",
            Self::Running => "running",
            Self::Stable => "stable",
        }
    }
}

/// The row of a node in the node list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NodeRow {
    pub(super) name: NodeName,
    pub(super) state: NodeState,
    pub(super) version: String,
    pub(super) groups: Vec<Token>,
    /// Assigned bundles, with abbreviated digests.
    pub(super) bundles: Vec<String>,
    pub(super) labels: Labels,
    /// Outcome of its last run.
    pub(super) outcome: Option<RunOutcome>,
    #[serde(with = "maybe_timestamp")]
    pub(super) ran: Option<DateTime<Utc>>,
    /// Number of resources that differ from the assignment.
    pub(super) drift: usize,
    /// No report yet about the newest assignment.
    pub(super) lagging: bool,
    /// Most important detail about the state, as one line.
    pub(super) note: String,
}

/// Presence; the facts are kept separately.
#[derive(Debug)]
struct Presence {
    status: NodeStatus,
    /// Facts as JSON text, which takes less memory and is rarely needed.
    facts: Box<str>,
    received: Instant,
}

/// What a node stored about itself, for the time when it is offline.
#[derive(Debug)]
struct Stored {
    version: String,
    groups: Vec<Token>,
    time: DateTime<Utc>,
}

/// All records of a node.
#[derive(Debug)]
pub(super) struct Node {
    name: NodeName,
    presence: Option<Presence>,
    /// Dropped events by the last presence, also while the node is offline.
    dropped: Option<u64>,
    report: Option<NodeReport>,
    assignment: Option<Assignment>,
    labels: Labels,
    stored: Option<Stored>,
    /// Why the last record of a source can't be read.
    unreadable: BTreeMap<Source, String>,
    /// Newest run of an event.
    run: Option<RunSummary>,
    /// The last event about each resource, by type and name.
    resources: BTreeMap<(String, String), Arc<EventRow>>,
}

impl Node {
    pub(super) fn new(name: NodeName) -> Self {
        Self {
            name,
            presence: None,
            dropped: None,
            report: None,
            assignment: None,
            labels: Labels::default(),
            stored: None,
            unreadable: BTreeMap::new(),
            run: None,
            resources: BTreeMap::new(),
        }
    }

    pub(super) fn set_presence(&mut self, status: Option<NodeStatus>, now: Instant) {
        self.presence = status.map(|mut status| {
            let facts = std::mem::take(&mut status.facts);
            Presence {
                // Serializing a value can't fail.
                facts: json::compact(&facts).unwrap_or_default().into(),
                status,
                received: now,
            }
        });
    }

    /// Records the number of events that the node has dropped, and returns how many are new. The
    /// first number is that of the past; a lower one is that of a new spool.
    pub(super) fn record_dropped(&mut self, dropped: u64) -> u64 {
        match self.dropped.replace(dropped) {
            None => 0,
            Some(known) => dropped.checked_sub(known).unwrap_or(dropped),
        }
    }

    /// Applies a record.
    pub(super) fn set(&mut self, record: Record, now: Instant) {
        self.unreadable.remove(&record.source());
        match record {
            Record::Presence(status) => self.set_presence(Some(*status), now),
            Record::Report(report) => self.set_report(Some(*report)),
            Record::Assignment(assignment) => self.set_assignment(Some(*assignment)),
            Record::Labels(labels) => self.set_labels(labels),
            Record::Facts(facts) => self.set_stored(Some(*facts)),
        }
    }

    /// Removes the record of a source.
    pub(super) fn clear(&mut self, source: Source, now: Instant) {
        self.unreadable.remove(&source);
        match source {
            Source::Presence => self.set_presence(None, now),
            Source::Report => self.set_report(None),
            Source::Assignment => self.set_assignment(None),
            Source::Labels => self.set_labels(Labels::default()),
            Source::Facts => self.set_stored(None),
        }
    }

    /// Replaces the record of a source by the reason why it can't be read.
    pub(super) fn set_unreadable(&mut self, source: Source, reason: String, now: Instant) {
        self.clear(source, now);
        self.unreadable.insert(source, reason);
    }

    pub(super) fn set_report(&mut self, report: Option<NodeReport>) {
        self.report = report;
    }

    pub(super) fn set_assignment(&mut self, assignment: Option<Assignment>) {
        self.assignment = assignment;
    }

    pub(super) fn set_labels(&mut self, labels: Labels) {
        self.labels = labels;
    }

    /// Sets what the node stored about itself. Its facts are not kept: presence has them.
    pub(super) fn set_stored(&mut self, facts: Option<StoredFacts>) {
        self.stored = facts.map(|facts| Stored {
            version: facts.version,
            groups: facts.groups,
            time: facts.timestamp,
        });
    }

    /// Returns the assigned bundles.
    pub(super) fn assigned(&self) -> &[BundleRef] {
        let assignment = self.assignment.as_ref();
        assignment.map_or(&[], |assignment| &assignment.manifests)
    }

    /// Returns the version of the agent, also of an offline one.
    fn version(&self) -> &str {
        let present = self.presence.as_ref().map(|it| &it.status.version);
        let stored = || self.stored.as_ref().map(|it| &it.version);
        present.or_else(stored).map_or("", String::as_str)
    }

    /// Returns the groups, also of an offline node.
    fn groups(&self) -> &[Token] {
        let present = self.presence.as_ref().map(|it| &it.status.groups);
        let stored = || self.stored.as_ref().map(|it| &it.groups);
        present.or_else(stored).map_or(&[], Vec::as_slice)
    }

    /// Records the run of an event, unless a later one is known.
    pub(super) fn record_run(&mut self, run: RunSummary) {
        if self
            .run
            .as_ref()
            .is_none_or(|known| known.timestamp <= run.timestamp)
        {
            self.run = Some(run);
        }
    }

    /// Records the last event of a resource. Returns the number of added resources.
    pub(super) fn record_resource(&mut self, event: &Arc<EventRow>, is_full: bool) -> usize {
        let key = (event.type_name.clone(), event.name.clone());
        if let Some(known) = self.resources.get_mut(&key) {
            *known = event.clone();
            return 0;
        }
        if is_full {
            return 0;
        }
        self.resources.insert(key, event.clone());
        if self.resources.len() <= MAX_RESOURCES {
            return 1;
        }
        // Removes the resource with the oldest event.
        let oldest = self.resources.iter().min_by_key(|(_, one)| one.number);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.resources.remove(&key);
        }
        0
    }

    pub(super) fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// Reports whether an online node has missed too many heartbeats.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.presence.as_ref().is_some_and(|presence| {
            let beat = Duration::from_secs(presence.status.beat).max(MIN_BEAT);
            now.duration_since(presence.received) > beat.saturating_mul(MAX_MISSED_BEATS)
        })
    }

    /// Reports whether no bucket has a record of the node.
    pub(super) fn has_no_records(&self) -> bool {
        self.presence.is_none()
            && self.report.is_none()
            && self.assignment.is_none()
            && self.labels.is_empty()
            && self.stored.is_none()
            && self.unreadable.is_empty()
    }

    /// Returns the number of spooled events.
    pub(super) fn spooled(&self) -> u64 {
        let presence = self.presence.as_ref();
        presence.map_or(0, |presence| presence.status.spool.pending)
    }

    /// Returns the governor that a run of the node waits for.
    pub(super) fn awaited_governor(&self) -> Option<GovernorName> {
        let status = &self.presence.as_ref()?.status;
        status.current_run.as_ref()?.awaited_governor()
    }

    /// Returns the latest run of presence, report and events.
    fn last_run(&self) -> Option<&RunSummary> {
        let present = self.presence.as_ref();
        let present = present.and_then(|presence| presence.status.last_run.as_ref());
        let reported = self.report.as_ref().and_then(|report| report.run.as_ref());
        [present, reported, self.run.as_ref()]
            .into_iter()
            .flatten()
            .max_by_key(|run| run.timestamp)
    }

    /// Reports whether the newest assignment is not reported yet.
    fn is_lagging(&self) -> bool {
        if self.unreadable.contains_key(&Source::Report) {
            return false;
        }
        match (&self.assignment, &self.report) {
            (Some(assignment), Some(report)) => report.is_before(assignment),
            (Some(assignment), None) => assignment.generation > 0,
            (None, _) => false,
        }
    }

    /// Returns the refusal of the current assignment.
    fn refusal(&self) -> Option<&Refusal> {
        let assignment = self.assignment.as_ref()?;
        let refusal = self.report.as_ref()?.refusal.as_ref()?;
        refusal.is_of(assignment).then_some(refusal)
    }

    /// Returns why the assignment could not be applied.
    fn error(&self) -> &str {
        let report = self.report.as_ref().filter(|_| !self.is_lagging());
        report.map_or("", |report| &report.error)
    }

    fn state(&self) -> NodeState {
        let Some(presence) = &self.presence else {
            return match self.unreadable.contains_key(&Source::Presence) {
                true => NodeState::Failed,
                false => NodeState::Offline,
            };
        };
        if presence.status.pause.is_some() {
            return NodeState::Paused;
        }
        if presence.status.current_run.is_some() {
            return NodeState::Running;
        }
        let outcome = self.last_run().map(|run| run.outcome);
        let has_error = !self.error().is_empty()
            || self.refusal().is_some()
            || !self.unreadable.is_empty()
            || !presence.status.problems.is_empty();
        if outcome == Some(RunOutcome::Failed) || has_error {
            return NodeState::Failed;
        }
        let has_drift = self
            .report
            .as_ref()
            .is_some_and(|report| !report.drift.is_empty());
        match has_drift {
            true => NodeState::Drifted,
            false => NodeState::Stable,
        }
    }

    fn note(&self, state: NodeState) -> String {
        let status = self.presence.as_ref().map(|presence| &presence.status);
        let pause = status.and_then(|status| status.pause.as_ref());
        let current = status.and_then(|status| status.current_run.as_ref());
        let drift = self.report.as_ref().and_then(|report| report.drift.first());
        let text = match state {
            NodeState::Paused => pause.map(|pause| pause.reason.clone()),
            NodeState::Running => current.map(|run| match &run.waiting_for {
                Some(what) => format!("waiting for {what}: {}", run.source),
                None => run.source.clone(),
            }),
            NodeState::Failed => Some(self.failure()),
            NodeState::Drifted => {
                drift.map(|one| format!("{}#{}: {}", one.type_name, one.name, one.message))
            }
            NodeState::Stable => status.map(NodeStatus::note),
            NodeState::Offline => self.unreadable_text(),
        };
        short(&text.unwrap_or_default())
    }

    /// Returns which record can't be read, and why.
    fn unreadable_text(&self) -> Option<String> {
        let (source, reason) = self.unreadable.iter().next()?;
        Some(format!("{} is unreadable: {reason}", source.as_str()))
    }

    /// Returns the reason of the failure, if it is known.
    fn failure(&self) -> String {
        if let Some(text) = self.unreadable_text() {
            return text;
        }
        let problems = self.presence.iter().flat_map(|it| &it.status.problems);
        if let Some(problem) = problems.into_iter().next() {
            return problem.clone();
        }
        if let Some(refusal) = self.refusal() {
            return refusal.to_string();
        }
        let run = self.last_run().filter(|run| !run.error.is_empty());
        if let Some(run) = run {
            return run.error.clone();
        }
        if !self.error().is_empty() {
            return self.error().into();
        }
        let failed = self.resources.values().filter(|it| it.outcome == "failed");
        let failed = failed.max_by_key(|event| event.number);
        failed.map_or_else(String::new, |event| event.text.clone())
    }

    /// Returns the row.
    pub(super) fn row(&self) -> NodeRow {
        let run = self.last_run();
        let state = self.state();
        NodeRow {
            name: self.name.clone(),
            state,
            version: short(self.version()),
            groups: self.groups().to_vec(),
            bundles: self.assigned().iter().map(short_name).collect(),
            labels: self.labels.clone(),
            outcome: run.map(|run| run.outcome),
            ran: run.map(|run| run.timestamp),
            drift: self.report.as_ref().map_or(0, |report| report.drift.len()),
            lagging: self.is_lagging(),
            note: self.note(state),
        }
    }

    /// Returns the API document of the node.
    pub(super) fn document(&self) -> Json {
        let facts = self.presence.as_ref().map(|presence| &*presence.facts);
        let facts: Value = facts
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let mut resources: Vec<&Arc<EventRow>> = self.resources.values().collect();
        resources.sort_by_key(|event| std::cmp::Reverse(event.number));
        serde_json::json!({
            "node": self.row(),
            "status": self.presence.as_ref().map(|presence| &presence.status),
            "facts": facts,
            "labels": self.labels,
            "assignment": self.assignment,
            "report": self.report,
            "last_run": self.last_run(),
            "resources": resources,
            "unreadable": self.unreadable_documents(),
            "last_seen": self.stored.as_ref().map(|stored| go_time(&stored.time)),
        })
    }

    fn unreadable_documents(&self) -> Vec<Json> {
        let unreadable = self.unreadable.iter();
        unreadable
            .map(
                |(source, reason)| serde_json::json!({"record": source.as_str(), "reason": reason}),
            )
            .collect()
    }

    /// Reports whether a text is part of the name, the version, a group, a bundle or a label.
    pub(super) fn matches_text(&self, text: &str) -> bool {
        let mut groups = self.groups().iter();
        let mut bundles = self.assigned().iter();
        let mut labels = self.labels.iter();
        self.name.as_str().contains(text)
            || self.version().contains(text)
            || bundles.any(|bundle| short_name(bundle).to_lowercase().contains(text))
            || groups.any(|group| group.as_str().to_lowercase().contains(text))
            || labels.any(|(name, value)| format!("{name}={value}").to_lowercase().contains(text))
    }
}

#[cfg(test)]
mod tests;
