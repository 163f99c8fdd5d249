//! CloudEvents for Choria's tools: lifecycle events and watcher states of a node.
//!
//! An event is a CloudEvents 1.0 envelope around Choria's data. There are two families: lifecycle
//! events of a component, and states of the watchers of a Choria autonomous agent; manifests and
//! health checks are published as such watchers. Ids and times come from the caller. Subjects are
//! in `ccm_nats::subject::choria`, publishing is in `ccm_agent::choria_events`.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, SubsecRound as _, Utc};
use serde::Serialize;

use super::event::Summary;
use super::governor::GovernorName;
use super::health::HealthStatus;
use super::id::EventId;
use super::node::{NodeName, Token};
use super::run::RunSummary;
use super::text::{nanoseconds, timestamp};

const LIFECYCLE_SOURCE: &str = "io.choria.lifecycle";
const MACHINE_SOURCE: &str = "io.choria.machine";

/// CloudEvents envelope in JSON format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CloudEvent<T> {
    specversion: &'static str,
    id: EventId,
    source: &'static str,
    #[serde(rename = "type")]
    type_name: String,
    /// Identity of the node.
    subject: NodeName,
    #[serde(with = "timestamp")]
    time: DateTime<Utc>,
    datacontenttype: &'static str,
    data: T,
}

/// Wraps data in its envelope.
fn envelope<T>(
    id: EventId,
    source: &'static str,
    type_name: &str,
    identity: &NodeName,
    now: DateTime<Utc>,
    data: T,
) -> CloudEvent<T> {
    CloudEvent {
        specversion: "1.0",
        id,
        source,
        type_name: type_name.into(),
        subject: identity.clone(),
        // Choria publishes whole seconds.
        time: now.trunc_subsecs(0),
        datacontenttype: "application/json",
        data,
    }
}

/// Data of a lifecycle event of a component.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lifecycle {
    protocol: String,
    id: EventId,
    identity: NodeName,
    component: Token,
    /// In seconds.
    timestamp: i64,
    #[serde(flatten)]
    event: LifecycleEvent,
}

/// Lifecycle event of a component, with its own fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LifecycleEvent {
    Startup {
        version: String,
    },
    Alive {
        version: String,
    },
    Shutdown {},
    Governor {
        governor: GovernorName,
        /// Number of the slot; 0 if no slot was taken.
        sequence: u64,
        event_type: SlotEvent,
    },
}

impl LifecycleEvent {
    /// Returns the event type used in subjects and protocols.
    pub fn event_type(&self) -> &'static str {
        match self {
            Self::Startup { .. } => "startup",
            Self::Alive { .. } => "alive",
            Self::Shutdown {} => "shutdown",
            Self::Governor { .. } => "governor",
        }
    }
}

/// Event of a governor slot, named as in Choria.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SlotEvent {
    #[serde(rename = "enter")]
    Enter,
    #[serde(rename = "exit")]
    Exit,
    /// No slot became free in time.
    #[serde(rename = "timeouts")]
    Timeout,
    /// The slot expired or was removed by an operator.
    #[serde(rename = "eviction")]
    Eviction,
}

impl Lifecycle {
    /// Returns a lifecycle event. Envelope and data have the same id.
    pub fn event(
        id: EventId,
        now: DateTime<Utc>,
        identity: &NodeName,
        component: &Token,
        event: LifecycleEvent,
    ) -> CloudEvent<Self> {
        let protocol = format!("{LIFECYCLE_SOURCE}.v1.{}", event.event_type());
        let data = Self {
            protocol: protocol.clone(),
            id: id.clone(),
            identity: identity.clone(),
            component: component.clone(),
            timestamp: now.timestamp(),
            event,
        };
        envelope(id, LIFECYCLE_SOURCE, &protocol, identity, now, data)
    }
}

/// The node as a Choria autonomous agent.
#[derive(Clone, Debug)]
pub struct Machine {
    pub identity: NodeName,
    /// Instance id, generated when the agent starts.
    pub instance: EventId,
    pub version: String,
}

/// Data of a state event of one watcher.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WatcherState {
    protocol: String,
    identity: NodeName,
    id: EventId,
    version: String,
    /// In seconds.
    timestamp: i64,
    #[serde(rename = "type")]
    type_name: &'static str,
    machine: String,
    name: String,
    #[serde(flatten)]
    state: WatcherDetail,
}

/// Fields of a watcher's state that depend on its type.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum WatcherDetail {
    Manifest(ManifestState),
    Nagios(NagiosState),
}

impl WatcherDetail {
    /// Returns the watcher's type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Manifest(_) => "ccm_manifest",
            Self::Nagios(_) => "nagios",
        }
    }
}

impl Machine {
    /// Returns a state event of a watcher.
    pub fn event(
        &self,
        id: EventId,
        now: DateTime<Utc>,
        machine: &str,
        name: &str,
        state: WatcherDetail,
    ) -> CloudEvent<WatcherState> {
        let protocol = format!("{MACHINE_SOURCE}.watcher.{}.v1.state", state.type_name());
        let data = WatcherState {
            protocol: protocol.clone(),
            identity: self.identity.clone(),
            id: self.instance.clone(),
            version: self.version.clone(),
            timestamp: now.timestamp(),
            type_name: state.type_name(),
            machine: machine.into(),
            name: name.into(),
            state,
        };
        envelope(id, MACHINE_SOURCE, &protocol, &self.identity, now, data)
    }
}

/// Outcome of the last run; Choria calls it the previous run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ManifestState {
    previous_outcome: &'static str,
    #[serde(with = "nanoseconds")]
    previous_run_time: Duration,
}

impl ManifestState {
    /// Returns the state that Choria's watcher would publish for a run.
    pub fn of(run: &RunSummary) -> Self {
        Self {
            previous_outcome: outcome(&run.summary, &run.error),
            previous_run_time: run.summary.total_duration,
        }
    }
}

/// Returns `stable` if all resources are stable, `error` on any error, otherwise `changes`.
fn outcome(summary: &Summary, error: &str) -> &'static str {
    if !error.is_empty() {
        "error"
    } else if summary.stable_resources == summary.total_resources {
        "stable"
    } else if summary.total_errors > 0 {
        "error"
    } else {
        "changes"
    }
}

/// Result of a health check in the format of Choria Scout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NagiosState {
    /// Command line, or `goss` for goss checks.
    pub plugin: String,
    status: String,
    status_code: i64,
    pub output: String,
    /// In seconds.
    check_time: i64,
    pub perfdata: Vec<PerfData>,
    /// In seconds.
    runtime: f64,
    /// This execution and the ones before it, oldest first.
    pub history: Vec<Execution>,
    pub annotations: BTreeMap<String, String>,
}

impl NagiosState {
    /// Returns the state of a check that started at `began` and ran for `took`.
    pub fn new(status: HealthStatus, began: DateTime<Utc>, took: Duration) -> Self {
        Self {
            plugin: String::new(),
            status: status.to_string(),
            status_code: status.code(),
            output: String::new(),
            check_time: began.timestamp(),
            perfdata: Vec::new(),
            runtime: took.as_secs_f64(),
            history: Vec::new(),
            annotations: BTreeMap::new(),
        }
    }
}

/// One measurement of a check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerfData {
    pub unit: String,
    pub label: String,
    pub value: f64,
}

/// One execution of a check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Execution {
    #[serde(rename = "execute", with = "timestamp")]
    began: DateTime<Utc>,
    status: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    perfdata: Vec<PerfData>,
}

impl Execution {
    pub fn new(began: DateTime<Utc>, status: HealthStatus, perfdata: Vec<PerfData>) -> Self {
        Self {
            began,
            status: status.code(),
            perfdata,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::run::{RUN_SUMMARY, RunOutcome, Trigger};

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_790_928_000, 250_000_000).unwrap()
    }

    fn node() -> NodeName {
        "web7.lab.example".parse().unwrap()
    }

    fn id(number: u128) -> EventId {
        EventId::new(now(), number)
    }

    fn machine() -> Machine {
        Machine {
            identity: node(),
            instance: id(9),
            version: "0.4.0".into(),
        }
    }

    fn lifecycle(event: LifecycleEvent) -> Value {
        let component = "ccm".parse().unwrap();
        let event = Lifecycle::event(id(1), now(), &node(), &component, event);
        serde_json::to_value(event).unwrap()
    }

    fn summary(total: usize, stable: usize, errors: usize) -> Summary {
        let mut summary = Summary::of(Some(now()), []);
        summary.total_resources = total;
        summary.stable_resources = stable;
        summary.total_errors = errors;
        summary.total_duration = Duration::from_millis(4200);
        summary
    }

    #[test]
    fn a_startup_event_has_all_fields() {
        let version = "0.4.0".to_owned();
        assert_eq!(
            lifecycle(LifecycleEvent::Startup { version }),
            json!({
                "specversion": "1.0",
                "id": id(1),
                "source": "io.choria.lifecycle",
                "type": "io.choria.lifecycle.v1.startup",
                "subject": "web7.lab.example",
                "time": "2026-10-02T08:00:00Z",
                "datacontenttype": "application/json",
                "data": {
                    "protocol": "io.choria.lifecycle.v1.startup",
                    "id": id(1),
                    "identity": "web7.lab.example",
                    "component": "ccm",
                    "timestamp": 1_790_928_000,
                    "version": "0.4.0",
                },
            })
        );
    }

    #[test]
    fn a_shutdown_has_no_version() {
        let event = lifecycle(LifecycleEvent::Shutdown {});
        assert_eq!(event["type"], "io.choria.lifecycle.v1.shutdown");
        let keys: Vec<&String> = event["data"].as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            ["protocol", "id", "identity", "component", "timestamp"]
        );
    }

    #[test]
    fn a_slot_event_uses_choria_s_names() {
        for (event_type, name) in [
            (SlotEvent::Enter, "enter"),
            (SlotEvent::Exit, "exit"),
            (SlotEvent::Timeout, "timeouts"),
            (SlotEvent::Eviction, "eviction"),
        ] {
            let event = lifecycle(LifecycleEvent::Governor {
                governor: "deploys".parse().unwrap(),
                sequence: 7,
                event_type,
            });
            let data = &event["data"];
            assert_eq!(data["protocol"], "io.choria.lifecycle.v1.governor");
            assert_eq!(data["governor"], "deploys");
            assert_eq!(data["sequence"], 7);
            assert_eq!(data["event_type"], name);
        }
    }

    #[test]
    fn a_manifest_state_event_has_all_fields() {
        let run = RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: id(2),
            run_id: id(3),
            identity: node(),
            collective: "default".parse().unwrap(),
            source: "/srv/base.yaml".into(),
            trigger: Trigger::Interval,
            outcome: RunOutcome::Changed,
            noop: false,
            health_check_only: false,
            generation: None,
            request_id: String::new(),
            caller: String::new(),
            error: String::new(),
            timestamp: now(),
            summary: summary(3, 1, 0),
        };
        let state = WatcherDetail::Manifest(ManifestState::of(&run));
        let event = machine().event(id(1), now(), "ccm", "base", state);
        assert_eq!(
            serde_json::to_value(event).unwrap(),
            json!({
                "specversion": "1.0",
                "id": id(1),
                "source": "io.choria.machine",
                "type": "io.choria.machine.watcher.ccm_manifest.v1.state",
                "subject": "web7.lab.example",
                "time": "2026-10-02T08:00:00Z",
                "datacontenttype": "application/json",
                "data": {
                    "protocol": "io.choria.machine.watcher.ccm_manifest.v1.state",
                    "identity": "web7.lab.example",
                    "id": id(9),
                    "version": "0.4.0",
                    "timestamp": 1_790_928_000,
                    "type": "ccm_manifest",
                    "machine": "ccm",
                    "name": "base",
                    "previous_outcome": "changes",
                    "previous_run_time": 4_200_000_000_u64,
                },
            })
        );
    }

    #[test]
    fn outcomes_are_those_of_choria_s_watcher() {
        for (total, stable, errors, error, expected) in [
            (3, 3, 0, "", "stable"),
            (0, 0, 0, "", "stable"),
            (3, 1, 0, "", "changes"),
            (3, 1, 1, "", "error"),
            (0, 0, 0, "no manifest", "error"),
        ] {
            assert_eq!(outcome(&summary(total, stable, errors), error), expected);
        }
    }

    #[test]
    fn a_check_state_event_has_all_fields() {
        let load = PerfData {
            unit: String::new(),
            label: "load1".into(),
            value: 0.5,
        };
        let warning = HealthStatus::Warning;
        let mut state = NagiosState::new(warning, now(), Duration::from_millis(1500));
        state.plugin = "check_load -w 1".into();
        state.output = "WARNING | load1=0.5".into();
        state.perfdata = vec![load.clone()];
        state.history = vec![
            Execution::new(now(), HealthStatus::Ok, Vec::new()),
            Execution::new(now(), warning, vec![load]),
        ];
        state.annotations = [("resource".into(), "exec#x".into())].into();
        let state = WatcherDetail::Nagios(state);
        let event = machine().event(id(1), now(), "check_load", "check_load", state);
        let event = serde_json::to_value(event).unwrap();
        assert_eq!(event["type"], "io.choria.machine.watcher.nagios.v1.state");
        assert_eq!(
            event["data"],
            json!({
                "protocol": "io.choria.machine.watcher.nagios.v1.state",
                "identity": "web7.lab.example",
                "id": id(9),
                "version": "0.4.0",
                "timestamp": 1_790_928_000,
                "type": "nagios",
                "machine": "check_load",
                "name": "check_load",
                "plugin": "check_load -w 1",
                "status": "WARNING",
                "status_code": 1,
                "output": "WARNING | load1=0.5",
                "check_time": 1_790_928_000,
                "perfdata": [{"unit": "", "label": "load1", "value": 0.5}],
                "runtime": 1.5,
                "history": [
                    {"execute": "2026-10-02T08:00:00.25Z", "status": 0},
                    {
                        "execute": "2026-10-02T08:00:00.25Z",
                        "status": 1,
                        "perfdata": [{"unit": "", "label": "load1", "value": 0.5}],
                    },
                ],
                "annotations": {"resource": "exec#x"},
            })
        );
    }
}
