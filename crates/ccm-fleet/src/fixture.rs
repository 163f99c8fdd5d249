//! Test fixtures: subjects, bucket entries, and status, report, run and rollout of nodes.

use chrono::DateTime;
use serde_json::{Value, json};

use ccm_core::model::event::Summary;
use ccm_core::model::id::EventId;
use ccm_core::model::node::{NODE_STATUS, NodeReport, NodeStatus, REPORT};
use ccm_core::model::rollout::{ROLLOUT, Rollout};
use ccm_core::model::run::{RUN_SUMMARY, RunOutcome, RunSummary, Trigger};
use ccm_nats::Subjects;
use ccm_nats::kv::Entry;

/// Returns the subjects of the collective `lab`.
pub(super) fn subjects() -> Subjects {
    Subjects::new("ccm.v1", "lab".parse().unwrap()).unwrap()
}

/// Returns a bucket entry with a key and a JSON value.
pub(super) fn entry(key: &str, value: Value) -> Entry {
    Entry {
        key: key.into(),
        value: value.to_string().into(),
        revision: 1,
        created: DateTime::UNIX_EPOCH,
    }
}

pub(super) fn status(identity: &str) -> NodeStatus {
    serde_json::from_value(json!({
        "protocol": NODE_STATUS,
        "identity": identity,
        "collective": "lab",
        "version": "1.0.0",
        "started": "2027-01-15T08:00:00Z",
        "timestamp": "2027-01-15T08:00:00Z",
        "beat": 30,
        "facts": {"os": {"name": "debian"}}
    }))
    .unwrap()
}

pub(super) fn report(identity: &str, generation: u64) -> NodeReport {
    serde_json::from_value(json!({
        "protocol": REPORT,
        "identity": identity,
        "generation": generation,
        "manifests": [],
        "timestamp": "2027-01-15T08:00:00Z"
    }))
    .unwrap()
}

/// Returns a run that ended this many seconds after the epoch.
pub(super) fn run(identity: &str, outcome: RunOutcome, second: i64) -> RunSummary {
    let at = DateTime::from_timestamp(second, 0).unwrap();
    RunSummary {
        protocol: RUN_SUMMARY.into(),
        event_id: EventId::new(at, 1),
        run_id: EventId::new(at, 2),
        identity: identity.parse().unwrap(),
        collective: "lab".parse().unwrap(),
        source: "app".into(),
        trigger: Trigger::Interval,
        outcome,
        noop: false,
        health_check_only: false,
        generation: None,
        request_id: String::new(),
        caller: String::new(),
        error: String::new(),
        timestamp: at,
        summary: Summary::of(None, []),
    }
}

pub(super) fn rollout(id: &str) -> Rollout {
    serde_json::from_value(json!({
        "protocol": ROLLOUT,
        "id": id,
        "collective": "lab",
        "bundle": {"name": "app", "digest": "ab".repeat(32)},
        "created": "2027-01-15T08:00:00Z",
        "plan": {"waves": [
            {"name": "canary", "canary": true, "nodes": ["web1"]},
            {"name": "wave 1", "nodes": ["web2", "web3"]}
        ]},
        "state": {"name": "running"},
        "nodes": {"web1": "changed", "web2": {"failed": {"reason": "no such package"}}}
    }))
    .unwrap()
}
