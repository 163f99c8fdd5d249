//! The condition of a node: one word, and a short reason.

use std::cmp::Ordering;

use chrono::{DateTime, Utc};

use super::inventory::Inventory;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::{NodeName, NodeStatus, Token};
use ccm_core::model::run::CurrentRun;
use ccm_value::text::to_the_second;

/// The condition of a node, the most urgent one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// No presence: the agent is not running or not connected.
    Offline,
    /// The agent reports a problem, such as a state directory that it can't write.
    Unhealthy,
    /// A request or assignment was refused in the last hour.
    Refusing,
    Paused,
    /// A run waits for a governor slot or for another run.
    Waiting,
    /// A run is in progress.
    Busy,
    /// Unsigned requests are accepted.
    NoTrust,
    /// The version of the agent is older than others in the fleet.
    OldVersion,
    Online,
}

impl ConditionKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Unhealthy => "unhealthy",
            Self::Refusing => "refusing",
            Self::Paused => "paused",
            Self::Waiting => "waiting",
            Self::Busy => "busy",
            Self::NoTrust => "no-trust",
            Self::OldVersion => "old-version",
            Self::Online => "online",
        }
    }
}

/// The condition of a node with its reason, which may be empty. Less urgent conditions are part of
/// the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: ConditionKind,
    pub reason: String,
    /// Governor that a run of the node waits for.
    pub awaited_governor: Option<GovernorName>,
}

impl Condition {
    /// Returns the condition of a node. `newest` is the newest version of the fleet's agents.
    pub fn of(node: &NodeName, inventory: &Inventory, newest: Option<&str>) -> Self {
        let Some(status) = inventory.status(node) else {
            let seen = last_seen(node, inventory);
            let reason = seen.map(|time| format!("last seen {}", to_the_second(&time)));
            return Self {
                kind: ConditionKind::Offline,
                reason: reason.unwrap_or_default(),
                awaited_governor: None,
            };
        };
        let mut found = conditions(status, newest);
        found.sort_by_key(|(kind, _)| *kind);
        let mut reasons: Vec<String> = found.iter().map(|(_, reason)| reason.clone()).collect();
        reasons.extend(choria_note(status));
        let kind = found.first().map(|(kind, _)| *kind);
        Self {
            kind: kind.unwrap_or(ConditionKind::Online),
            reason: reasons.join("; "),
            awaited_governor: status
                .current_run
                .as_ref()
                .and_then(CurrentRun::awaited_governor),
        }
    }

    /// Returns the condition for a table: its word, and the governor that the node waits for.
    pub fn text(&self) -> String {
        match (self.kind, &self.awaited_governor) {
            (ConditionKind::Waiting, Some(governor)) => format!("waiting for governor {governor}"),
            (kind, _) => kind.as_str().into(),
        }
    }
}

/// Returns in which collectives a node serves Choria's clients, if it does.
fn choria_note(status: &NodeStatus) -> Option<String> {
    let collectives: Vec<&str> = status.choria.iter().map(Token::as_str).collect();
    (!collectives.is_empty()).then(|| format!("serves Choria in {}", collectives.join(", ")))
}

/// Returns all conditions of an online node with their reasons.
fn conditions(status: &NodeStatus, newest: Option<&str>) -> Vec<(ConditionKind, String)> {
    let mut found = Vec::new();
    if !status.problems.is_empty() {
        found.push((ConditionKind::Unhealthy, status.problems.join("; ")));
    }
    if let Some(refusal) = status.recent_refusal() {
        let reason = format!("{refusal} ({})", to_the_second(&refusal.time));
        found.push((ConditionKind::Refusing, reason));
    }
    if let Some(pause) = &status.pause {
        let mut reason = pause.reason.clone();
        if !pause.by.is_empty() {
            reason.push_str(&format!(" ({})", pause.by));
        }
        if let Some(until) = &pause.until {
            reason.push_str(&format!(" until {}", to_the_second(until)));
        }
        found.push((ConditionKind::Paused, reason));
    }
    if let Some(run) = &status.current_run {
        let running = format!("{} {}", run.source, run.run_id);
        found.push(match &run.waiting_for {
            Some(what) => (
                ConditionKind::Waiting,
                format!(
                    "{running} waits for {what} since {}",
                    to_the_second(&run.since)
                ),
            ),
            None => (ConditionKind::Busy, running),
        });
    }
    if let Some(note) = status.open_note() {
        found.push((ConditionKind::NoTrust, note.into()));
    }
    if let Some(newest) = newest.filter(|it| compare_versions(&status.version, it).is_lt()) {
        let reason = format!("version {}, others have {newest}", status.version);
        found.push((ConditionKind::OldVersion, reason));
    }
    found
}

/// Returns when an offline node was last known to be online.
pub fn last_seen(node: &NodeName, inventory: &Inventory) -> Option<DateTime<Utc>> {
    let stored = inventory.stored_facts(node).map(|stored| stored.timestamp);
    let reported = inventory.last_report(node).map(|report| report.at);
    stored.max(reported)
}

/// Returns the newest version of the online agents.
pub fn newest_version(inventory: &Inventory) -> Option<&str> {
    let versions = inventory.present().map(|it| it.version.as_str());
    versions.max_by(|a, b| compare_versions(a, b))
}

/// Difference between the version of a node and that of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionSkew {
    Same,
    /// The node is older, by one minor version at most.
    Older,
    /// The node is newer, by one minor version at most.
    Newer,
    /// They differ by more than one minor version, or in the major version.
    Unsupported,
}

/// Compares the version of a node with that of a controller.
pub fn version_skew(node: &str, controller: &str) -> VersionSkew {
    let parts = |text: &str| {
        let mut numbers = text
            .split(['.', '-', '+'])
            .map(|it| it.parse().unwrap_or(0));
        let major: u64 = numbers.next().unwrap_or(0);
        (major, numbers.next().unwrap_or(0_u64))
    };
    let ((major, minor), (our_major, our_minor)) = (parts(node), parts(controller));
    if major != our_major || minor.abs_diff(our_minor) > 1 {
        return VersionSkew::Unsupported;
    }
    match compare_versions(node, controller) {
        Ordering::Less => VersionSkew::Older,
        Ordering::Equal => VersionSkew::Same,
        Ordering::Greater => VersionSkew::Newer,
    }
}

/// Compares versions by their numbers; a pre-release is older than its release.
fn compare_versions(a: &str, b: &str) -> Ordering {
    let key = |text: &str| {
        let text = text.split('+').next().unwrap_or_default();
        let (numbers, pre_release) = match text.split_once('-') {
            Some((numbers, pre_release)) => (numbers, Some(pre_release.to_owned())),
            None => (text, None),
        };
        let numbers = numbers.split('.').map(|it| it.parse::<u64>().unwrap_or(0));
        let numbers: Vec<u64> = numbers.collect();
        (numbers, pre_release.is_none(), pre_release)
    };
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(more: serde_json::Value) -> NodeStatus {
        let mut document = serde_json::json!({
            "protocol": "p", "identity": "web1", "collective": "c", "version": "0.9.0", "beat": 30,
            "started": "2027-01-15T08:00:00Z", "timestamp": "2027-01-15T08:00:00Z",
        });
        for (key, value) in more.as_object().unwrap() {
            document[key] = value.clone();
        }
        serde_json::from_value(document).unwrap()
    }

    fn kinds(status: &NodeStatus, newest: &str) -> Vec<ConditionKind> {
        let mut found = conditions(status, Some(newest));
        found.sort_by_key(|(kind, _)| *kind);
        found.into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn a_node_that_serves_choria_says_so() {
        let status = status(serde_json::json!({"choria": ["mcollective", "ops"]}));
        let note = choria_note(&status);
        assert_eq!(note.as_deref(), Some("serves Choria in mcollective, ops"));
    }

    #[test]
    fn a_node_without_a_special_condition_has_none() {
        assert_eq!(kinds(&status(serde_json::json!({})), "0.9.0"), []);
    }

    #[test]
    fn the_most_urgent_condition_is_first() {
        let status = status(serde_json::json!({
            "pause": {"reason": "disk", "since": "2027-01-15T08:00:00Z"},
            "trust": {"open": true, "last_refusal": {
                "time": "2027-01-15T07:59:00Z", "what": "ensure", "reason": "not signed"
            }},
        }));
        assert_eq!(
            kinds(&status, "0.10.0"),
            [
                ConditionKind::Refusing,
                ConditionKind::Paused,
                ConditionKind::NoTrust,
                ConditionKind::OldVersion
            ]
        );
    }

    #[test]
    fn a_run_that_waits_for_a_governor_is_waiting() {
        let mut status = status(serde_json::json!({"current_run": {
            "run_id": "3Ouil37bUs2V3TmTG2OoEYtuLS3", "source": "site", "trigger": "request",
            "since": "2027-01-15T08:00:00Z", "waiting_for": "governor deploys",
        }}));
        assert_eq!(kinds(&status, "0.9.0"), [ConditionKind::Waiting]);
        let run = status.current_run.as_mut().unwrap();
        assert_eq!(run.awaited_governor().unwrap().as_str(), "deploys");
        run.waiting_for = Some("another run: pid 1".into());
        assert_eq!(run.awaited_governor(), None);
        run.waiting_for = None;
        assert_eq!(kinds(&status, "0.9.0"), [ConditionKind::Busy]);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(compare_versions("0.9.0", "0.10.0").is_lt());
        assert!(compare_versions("1.0.0-rc1", "1.0.0").is_lt());
        assert!(compare_versions("1.0.0+build", "1.0.0").is_eq());
    }
}
