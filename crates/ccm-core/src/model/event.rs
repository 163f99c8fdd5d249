//! Events: the result of one resource in one session, and the summary of a session's events.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};

use super::health::{HealthResult, HealthStatus};
use super::id::EventId;
use super::resource::Resource;
use super::secret::{serialize_text, serialize_texts};
use super::state::{PreviousState, State};
use super::text::{go_duration, nanoseconds, timestamp};

pub const TRANSACTION_EVENT: &str = "io.choria.ccm.v1.transaction.event";
pub(crate) const SESSION_START_PROTOCOL: &str = "io.choria.ccm.v1.session.start";

/// Field of an event: typed if this process created the event, raw JSON if it was read. Fields that
/// another version wrote are kept unchanged.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EventField<T> {
    Typed(T),
    Raw(serde_json::Value),
}

impl<'de, T> Deserialize<'de> for EventField<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        serde_json::Value::deserialize(from).map(Self::Raw)
    }
}

/// Result of one resource in one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransactionEvent {
    pub protocol: String,
    pub event_id: EventId,
    /// Start of the resource's processing.
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    #[serde(rename = "type")]
    pub type_name: String,
    pub provider: String,
    /// Name from the manifest. Secrets in URLs are redacted when the event is serialized, as in all
    /// texts of an event.
    #[serde(serialize_with = "serialize_text")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub alias: String,
    pub requested_ensure: String,
    pub final_ensure: String,
    #[serde(with = "nanoseconds")]
    pub duration: Duration,
    pub properties: EventField<Arc<Resource>>,
    pub status: Option<EventField<Arc<State>>>,
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        serialize_with = "serialize_text"
    )]
    pub noop_message: String,
    /// Older versions write null for a check that could not start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_check: Vec<Option<HealthResult>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub health_check_only: bool,
    #[serde(
        rename = "error",
        default,
        deserialize_with = "null_is_empty",
        serialize_with = "serialize_texts"
    )]
    pub errors: Vec<String>,
    /// Last lines that the failed command printed, or the command of an exec with `logoutput`.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        serialize_with = "serialize_text"
    )]
    pub output: String,
    /// State before the change, or before the change that noop mode left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousState>,
    pub changed: bool,
    pub refreshed: bool,
    pub failed: bool,
    pub skipped: bool,
    pub noop: bool,
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        serialize_with = "serialize_texts"
    )]
    pub unmet_requirements: Vec<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn null_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl TransactionEvent {
    /// Returns the event of a resource whose processing starts now.
    pub fn begin(
        event_id: EventId,
        timestamp: DateTime<Utc>,
        provider: &str,
        resource: &Arc<Resource>,
    ) -> Self {
        Self {
            protocol: TRANSACTION_EVENT.into(),
            event_id,
            timestamp,
            type_name: resource.type_name().as_str().into(),
            provider: provider.into(),
            name: resource.common.name.clone(),
            alias: resource.common.alias.clone(),
            requested_ensure: resource.common.ensure.clone(),
            final_ensure: String::new(),
            duration: Duration::ZERO,
            properties: EventField::Typed(resource.redacted()),
            status: None,
            noop_message: String::new(),
            health_check: Vec::new(),
            health_check_only: false,
            errors: Vec::new(),
            output: String::new(),
            previous: None,
            changed: false,
            refreshed: false,
            failed: false,
            skipped: false,
            noop: false,
            unmet_requirements: Vec::new(),
        }
    }

    /// Reports whether resources that require this one must be skipped.
    pub fn blocks(&self) -> bool {
        self.failed || !self.unmet_requirements.is_empty()
    }

    /// Returns the outcome of the resource; each event has exactly one.
    pub fn outcome(&self) -> Outcome {
        if self.failed {
            Outcome::Failed
        } else if self.skipped {
            Outcome::Skipped
        } else if self.changed {
            Outcome::Changed
        } else {
            Outcome::Stable
        }
    }
}

/// Outcome of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Failed,
    Skipped,
    Changed,
    Stable,
}

/// First event of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStart {
    pub protocol: String,
    pub event_id: EventId,
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
}

impl SessionStart {
    pub fn new(event_id: EventId, timestamp: DateTime<Utc>) -> Self {
        Self {
            protocol: SESSION_START_PROTOCOL.into(),
            event_id,
            timestamp,
        }
    }
}

/// Counts of a session's events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    #[serde(with = "timestamp")]
    pub start_time: DateTime<Utc>,
    #[serde(with = "timestamp")]
    pub end_time: DateTime<Utc>,
    #[serde(with = "nanoseconds")]
    pub total_duration: Duration,
    pub total_resources: usize,
    pub unique_resources: usize,
    pub changed_resources: usize,
    pub failed_resources: usize,
    pub skipped_resources: usize,
    pub stable_resources: usize,
    pub refreshed_count: usize,
    pub requirements_unmet_count: usize,
    pub health_checked_count: usize,
    pub health_check_ok_count: usize,
    pub health_check_warning_count: usize,
    pub health_check_critical_count: usize,
    pub health_check_unknown_count: usize,
    pub total_errors: usize,
}

impl Summary {
    /// Counts events in order. If `start` is given, the duration is the time from it to the end of the
    /// last resource; otherwise it is the sum of the resources' durations.
    pub fn of<'e>(
        start: Option<DateTime<Utc>>,
        events: impl IntoIterator<Item = &'e TransactionEvent>,
    ) -> Self {
        let epoch = DateTime::<Utc>::UNIX_EPOCH;
        let mut summary = Self {
            start_time: start.unwrap_or(epoch),
            end_time: start.unwrap_or(epoch),
            total_duration: Duration::ZERO,
            total_resources: 0,
            unique_resources: 0,
            changed_resources: 0,
            failed_resources: 0,
            skipped_resources: 0,
            stable_resources: 0,
            refreshed_count: 0,
            requirements_unmet_count: 0,
            health_checked_count: 0,
            health_check_ok_count: 0,
            health_check_warning_count: 0,
            health_check_critical_count: 0,
            health_check_unknown_count: 0,
            total_errors: 0,
        };
        let mut seen = HashSet::new();
        let mut busy = Duration::ZERO;
        for event in events {
            summary.count(event);
            seen.insert((event.type_name.as_str(), event.name.as_str()));
            busy = busy.saturating_add(event.duration);
        }
        summary.unique_resources = seen.len();
        summary.total_duration = match start {
            Some(start) => (summary.end_time - start).to_std().unwrap_or(busy),
            None => busy,
        };
        summary
    }

    fn count(&mut self, event: &TransactionEvent) {
        self.total_resources += 1;
        match event.outcome() {
            Outcome::Failed => {
                self.failed_resources += 1;
                self.total_errors += 1;
            }
            Outcome::Skipped => self.skipped_resources += 1,
            Outcome::Changed => self.changed_resources += 1,
            Outcome::Stable => self.stable_resources += 1,
        }
        self.requirements_unmet_count += event.unmet_requirements.len();
        self.refreshed_count += usize::from(event.refreshed);
        for result in event.health_check.iter() {
            self.health_checked_count += 1;
            match result.as_ref().map(|result| result.status) {
                Some(HealthStatus::Ok) => self.health_check_ok_count += 1,
                Some(HealthStatus::Warning) => self.health_check_warning_count += 1,
                Some(HealthStatus::Critical) => self.health_check_critical_count += 1,
                Some(HealthStatus::Unknown) | None => self.health_check_unknown_count += 1,
            }
        }
        let end = chrono::TimeDelta::from_std(event.duration)
            .ok()
            .and_then(|duration| event.timestamp.checked_add_signed(duration))
            .unwrap_or(event.timestamp);
        if self.start_time == DateTime::<Utc>::UNIX_EPOCH {
            self.start_time = event.timestamp;
        }
        self.end_time = self.end_time.max(end);
    }
}

/// Formats the line that the agent logs after a run.
impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Session: resources={}, changed={}, failed={}, skipped={}, stable={}, refreshed={}",
            self.total_resources,
            self.changed_resources,
            self.failed_resources,
            self.skipped_resources,
            self.stable_resources,
            self.refreshed_count,
        )?;
        for (name, count) in [
            ("critical", self.health_check_critical_count),
            ("warning", self.health_check_warning_count),
            ("ok", self.health_check_ok_count),
            ("unknown", self.health_check_unknown_count),
        ] {
            if count > 0 {
                write!(out, ", health_{name}={count}")?;
            }
        }
        let millis = (self.total_duration + Duration::from_micros(500)).as_millis();
        let rounded = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        write!(out, ", duration={}", go_duration(rounded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::json;
    use crate::model::resource::{Exec, Package, Properties, Service};

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    fn event(name: &str) -> TransactionEvent {
        let time = at("2027-01-15T08:00:00.500Z");
        let resource =
            Resource::new(name, "present", Properties::Package(Package::default())).into();
        TransactionEvent::begin(EventId::new(time, 1), time, "apt", &resource)
    }

    #[test]
    fn an_event_is_serialized_as_upstream_does() {
        let service = Service {
            subscribe: vec!["file#/etc/shop.conf".into()],
            ..Service::default()
        };
        let resource = Resource::new("shopd", "running", Properties::Service(service)).into();
        let id = "3Ouil37bUs2V3TmTG2OoEYtuLS3".parse().unwrap();
        let time = at("2027-01-15T08:00:00.500Z");
        let mut event = TransactionEvent::begin(id, time, "systemd", &resource);
        event.final_ensure = "running".into();
        event.duration = Duration::from_nanos(41_200_000);
        event.changed = true;
        event.refreshed = true;
        let text = r#"{"protocol":"io.choria.ccm.v1.transaction.event","event_id":"3Ouil37bUs2V3TmTG2OoEYtuLS3","timestamp":"2027-01-15T08:00:00.5Z","type":"service","provider":"systemd","name":"shopd","requested_ensure":"running","final_ensure":"running","duration":41200000,"properties":{"name":"shopd","ensure":"running","subscribe":["file#/etc/shop.conf"]},"status":null,"error":[],"changed":true,"refreshed":true,"failed":false,"skipped":false,"noop":false,"unmet_requirements":[]}"#;
        assert_eq!(json::compact(&event).unwrap(), text);
        let back: TransactionEvent = serde_json::from_str(text).unwrap();
        assert_eq!(json::compact(&back).unwrap(), text);
    }

    #[test]
    fn urls_in_an_event_and_in_its_drift_are_redacted() {
        let url = "https://ann:s3cret@h/x?token=s3cret#s3cret";
        let exec = Exec {
            command: format!("curl {url}"),
            environment: vec![format!("FROM={url}")],
            ..Exec::default()
        };
        let mut resource = Resource::new(url, "present", Properties::Exec(exec));
        resource.common.require = vec![format!("exec#{url}")];
        let time = at("2027-01-15T08:00:00.500Z");
        let resource = resource.into();
        let mut event = TransactionEvent::begin(EventId::new(time, 1), time, "posix", &resource);
        event.failed = true;
        event.errors = vec![format!("curl: {url}: 403")];
        event.unmet_requirements = vec![format!("exec#{url}")];
        event.noop_message = format!("Would have fetched {url}");
        event.health_check = vec![Some(HealthResult {
            status: HealthStatus::Ok,
            tries: 1,
            output: url.into(),
        })];
        assert_eq!(event.name, url, "require and subscribe use this name");
        let text = json::compact(&event).unwrap();
        assert!(!text.contains("s3cret"), "{text}");
        assert!(
            text.contains("https://REDACTED@h/x?token=REDACTED#REDACTED"),
            "{text}"
        );
        let drift = crate::model::drift::Drift::from_event(&event, false, "").unwrap();
        let stored: TransactionEvent = serde_json::from_str(&text).unwrap();
        assert_eq!(
            drift.name, stored.name,
            "drift and event have the same name"
        );
        assert!(!drift.message.contains("s3cret"), "{}", drift.message);
    }

    #[test]
    fn a_session_starts_with_an_event_of_its_own() {
        let id = "3Ouil37bUs2V3TmTG2OoEYtuLS3".parse().unwrap();
        let start = SessionStart::new(id, at("2027-01-15T08:00:00.500Z"));
        assert_eq!(
            json::compact(&start).unwrap(),
            r#"{"protocol":"io.choria.ccm.v1.session.start","event_id":"3Ouil37bUs2V3TmTG2OoEYtuLS3","timestamp":"2027-01-15T08:00:00.5Z"}"#
        );
    }

    #[test]
    fn an_event_with_nulls_and_unknown_keys_is_read() {
        let mut document = serde_json::to_value(event("zsh")).unwrap();
        document["error"] = serde_json::Value::Null;
        document["health_check"] = serde_json::json!([null, {"status": 1, "tries": 1}]);
        document["later"] = true.into();
        let event: TransactionEvent = serde_json::from_value(document).unwrap();
        assert!(event.errors.is_empty());
        let summary = Summary::of(None, [&event]);
        assert_eq!(summary.health_check_unknown_count, 1);
        assert_eq!(summary.health_check_warning_count, 1);
    }

    #[test]
    fn every_event_counts_under_one_outcome() {
        let mut events: Vec<_> = ["a", "b", "c", "d", "a"].map(event).into();
        events[0].failed = true;
        events[0].changed = true;
        events[1].skipped = true;
        events[1].unmet_requirements = vec!["package#a".into()];
        events[2].changed = true;
        events[2].refreshed = true;
        let summary = Summary::of(None, &events);
        assert_eq!(
            (
                summary.total_resources,
                summary.unique_resources,
                summary.failed_resources,
                summary.skipped_resources,
                summary.changed_resources,
                summary.stable_resources,
            ),
            (5, 4, 1, 1, 1, 2)
        );
        assert_eq!(summary.requirements_unmet_count, 1);
        assert_eq!(summary.refreshed_count, 1);
        assert_eq!(summary.total_errors, 1);
    }

    #[test]
    fn the_run_time_includes_the_last_resource() {
        let mut only = event("a");
        only.duration = Duration::from_millis(40);
        let start = at("2027-01-15T08:00:00.490Z");
        let summary = Summary::of(Some(start), [&only]);
        assert_eq!(summary.total_duration, Duration::from_millis(50));
        let summary = Summary::of(None, [&only, &only]);
        assert_eq!(summary.total_duration, Duration::from_millis(80));
    }

    #[test]
    fn the_log_line_shows_health_only_where_there_was_a_check() {
        let mut event = event("a");
        event.duration = Duration::from_micros(1_600);
        assert_eq!(
            Summary::of(None, [&event]).to_string(),
            "Session: resources=1, changed=0, failed=0, skipped=0, stable=1, refreshed=0, duration=2ms"
        );
        event.health_check = vec![Some(HealthResult {
            status: HealthStatus::Ok,
            tries: 1,
            output: String::new(),
        })];
        assert!(
            Summary::of(None, [&event])
                .to_string()
                .contains("refreshed=0, health_ok=1, duration")
        );
    }

    #[test]
    fn a_summary_keeps_all_its_keys() {
        let text = json::compact(&Summary::of(None, [])).unwrap();
        let keys = [
            "start_time",
            "end_time",
            "total_duration",
            "total_resources",
            "unique_resources",
            "changed_resources",
            "failed_resources",
            "skipped_resources",
            "stable_resources",
            "refreshed_count",
            "requirements_unmet_count",
            "health_checked_count",
            "health_check_ok_count",
            "health_check_warning_count",
            "health_check_critical_count",
            "health_check_unknown_count",
            "total_errors",
        ];
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let found: Vec<_> = document.as_object().unwrap().keys().cloned().collect();
        assert_eq!(found, keys);
    }
}
