//! Metrics of the agent in the Prometheus text format: upstream's by their names, and our own.
//!
//! The usual libraries do not fit: they append `_total` to counters, as OpenMetrics requires, and
//! have no summaries, while dashboards for upstream need `…_count` and `…_sum`. So there is a small
//! `registry`, and this file defines the metrics and one method per event. Credentials in URLs are
//! redacted here.

mod registry;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ccm_core::model::event::{EventField, TransactionEvent};
use ccm_core::model::governor::GovernorName;
use ccm_core::model::health::HealthStatus;
use ccm_core::model::node::SpoolStatus;
use ccm_core::model::run::RunSummary;
use ccm_value::secret::{redact_url, redact_urls};

use crate::overload_log::OverloadCounts;
use registry::{Kind, Labels, Metric};

/// Content type of the printed text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Defines all metrics in one table, in the order they are printed.
macro_rules! metrics {
    ($($field:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        #[derive(Debug)]
        struct All {
            $($field: Metric,)*
        }

        impl All {
            fn new() -> Self {
                Self {
                    $($field: Metric::new(
                        Kind::$kind,
                        concat!("choria_ccm_", $name),
                        &[$($label),*],
                        $help,
                    ),)*
                }
            }

            fn print(&self) -> String {
                let mut out = String::with_capacity(16 * 1024);
                $(self.$field.print(&mut out);)*
                out
            }
        }
    };
}

metrics! {
    agent_apply: Summary "agent_apply_duration_seconds" ["manifest"] "Duration of runs of the agent.";
    build_info: Gauge "agent_build_info" ["version"] "Always 1; the label is the version of the agent.";
    connected: Gauge "agent_connected" [] "Whether the agent is connected to NATS.";
    data_resolve: Summary "agent_data_resolve_duration_seconds" [] "Duration of resolving external data.";
    data_errors: Counter "agent_data_resolve_error_count" ["url"] "Number of failures to resolve external data.";
    facts_resolve: Summary "agent_facts_resolve_duration_seconds" [] "Duration of resolving facts, with all attempts.";
    facts_errors: Counter "agent_facts_resolve_error_count" [] "Number of failures to gather facts.";
    governor_timeouts: Counter "agent_governor_timeout_count" ["governor"] "Number of runs that got no slot of the governor in time.";
    governor_wait: Summary "agent_governor_wait_duration_seconds" ["governor"] "Time that runs waited for a slot of the governor.";
    governor_waiting: Gauge "agent_governor_waiting" ["governor"] "Whether a run waits for a slot of the governor.";
    agent_health: Summary "agent_healthcheck_duration_seconds" ["manifests"] "Duration of health check runs.";
    remediations: Counter "agent_healthcheck_remediations_count" ["manifest"] "Number of runs caused by critical health checks.";
    fetches: Counter "agent_manifest_fetch_count" ["manifest"] "Number of manifest fetches.";
    fetch_errors: Counter "agent_manifest_fetch_error_count" ["manifest"] "Number of failed manifest fetches.";
    client_dropped: Counter "agent_nats_dropped_count" [] "Number of messages dropped by the NATS client because too many arrived.";
    paused: Gauge "agent_paused" [] "Whether the agent is paused.";
    publish: Summary "agent_publish_duration_seconds" [] "Time until an event was acknowledged by NATS.";
    publish_errors: Counter "agent_publish_error_count" [] "Number of events that had to be sent again.";
    published: Counter "agent_published_count" [] "Number of events acknowledged by NATS.";
    registration_errors: Counter "agent_registration_error_count" [] "Number of failed service registrations.";
    registered: Counter "agent_registration_published_count" [] "Number of published service registrations.";
    requests_busy: Counter "agent_requests_busy_count" [] "Number of requests answered with busy because too many arrived.";
    requests: Counter "agent_requests_count" ["verb", "outcome"] "Number of requests by verb and outcome.";
    requests_dropped: Counter "agent_requests_dropped_count" [] "Number of requests not answered because too many arrived.";
    run_queue: Gauge "agent_run_queue" [] "Number of current and waiting runs.";
    spool_dropped: Counter "agent_spool_dropped_count" [] "Number of events dropped from the spool.";
    spool_pending: Gauge "agent_spool_pending" [] "Number of events waiting to be published.";
    facts_gather: Summary "facts_gather_duration_seconds" [] "Duration of gathering facts.";
    health: Summary "healthcheck_duration_seconds" ["type", "name", "check"] "Duration of health checks.";
    health_status: Counter "healthcheck_status_count" ["type", "name", "status", "check"] "Number of health check results by status.";
    manifest_apply: Summary "manifest_apply_duration_seconds" ["source"] "Duration of applying manifests.";
    resource_apply: Summary "resource_apply_duration_seconds" ["type", "provider", "name"] "Duration of applying resources.";
    changed: Counter "resource_state_changed_count" ["type", "name"] "Number of times a resource was changed.";
    failed: Counter "resource_state_failed_count" ["type", "name"] "Number of times a resource failed.";
    noop: Counter "resource_state_noop_count" ["type", "name"] "Number of times a resource was planned in noop mode.";
    skipped: Counter "resource_state_skipped_count" ["type", "name"] "Number of times a resource was skipped.";
    stable: Counter "resource_state_stable_count" ["type", "name"] "Number of times a resource was stable.";
    total: Counter "resource_state_total_count" ["type", "name"] "Number of resource events.";
}

/// Metrics of one agent. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<All>);

impl Metrics {
    /// Returns the metrics of a new agent of this version.
    pub fn new(version: &str) -> Self {
        let all = All::new();
        all.build_info.set(&all.build_info.labels(&[version]), 1);
        Self(Arc::new(all))
    }

    /// Prints all metrics, in the format of [`CONTENT_TYPE`].
    pub fn print(&self) -> String {
        self.0.print()
    }

    /// Records the end of a run.
    pub fn run_finished(&self, run: &RunSummary, took: Duration) {
        let whole = if run.health_check_only {
            &self.0.agent_health
        } else {
            &self.0.agent_apply
        };
        let source = redact_url(&run.source);
        whole.observe(&whole.labels(&[&source]), took);
        let manifest = &self.0.manifest_apply;
        manifest.observe(&manifest.labels(&[&source]), took);
    }

    /// Records the event of a resource. It counts in exactly one state and in the total.
    pub fn resource_event(&self, event: &TransactionEvent) {
        let all = &*self.0;
        let type_name = event.type_name.as_str();
        let name = &*display_name(event);
        let labels = all.total.labels(&[type_name, name]);
        all.total.count(&labels);
        // All states have the labels of the total.
        all.state(event).count(&labels);
        let was_applied =
            !event.health_check_only && !event.skipped && event.unmet_requirements.is_empty();
        if was_applied {
            let labels = all
                .resource_apply
                .labels(&[type_name, &event.provider, name]);
            all.resource_apply.observe(&labels, event.duration);
        }
        for (index, result) in event.health_check.iter().enumerate() {
            let status = match result {
                Some(result) => result.status,
                None => HealthStatus::Unknown,
            };
            let (status, check) = (status.to_string(), check_name(event, index));
            let labels = all.health_status.labels(&[type_name, name, &status, check]);
            all.health_status.count(&labels);
        }
    }

    /// Records the duration of one health check, with all attempts.
    pub fn health_checked(&self, type_name: &str, name: &str, check: &str, took: Duration) {
        let metric = &self.0.health;
        let name = redact_urls(name);
        metric.observe(&metric.labels(&[type_name, &name, check]), took);
    }

    /// Records that a run waits for a governor slot.
    pub fn slot_awaited(&self, governor: &GovernorName) {
        self.set_governor_waiting(governor, 1);
    }

    /// Records the end of a wait for a governor slot.
    pub fn slot_wait_ended(&self, governor: &GovernorName, waited: Duration) {
        self.set_governor_waiting(governor, 0);
        let metric = &self.0.governor_wait;
        metric.observe(&metric.labels(&[governor.as_str()]), waited);
    }

    fn set_governor_waiting(&self, governor: &GovernorName, value: u64) {
        let metric = &self.0.governor_waiting;
        metric.set(&metric.labels(&[governor.as_str()]), value);
    }

    /// Records a run that got no governor slot in time.
    pub fn slot_timed_out(&self, governor: &GovernorName) {
        let metric = &self.0.governor_timeouts;
        metric.count(&metric.labels(&[governor.as_str()]));
    }

    /// Records a run caused by a critical health check.
    pub fn remediated(&self, source: &str) {
        count_url(&self.0.remediations, source);
    }

    /// Records the duration of one gathering of facts.
    pub fn facts_gathered(&self, took: Duration) {
        observe(&self.0.facts_gather, took);
    }

    /// Records the time until facts were available, with failed attempts.
    pub fn facts_resolved(&self, took: Duration) {
        observe(&self.0.facts_resolve, took);
    }

    pub fn facts_failed(&self) {
        self.0.facts_errors.count(&no_labels(&self.0.facts_errors));
    }

    /// Records the time until external data was available, with failed attempts.
    pub fn data_resolved(&self, took: Duration) {
        observe(&self.0.data_resolve, took);
    }

    pub fn data_failed(&self, url: &str) {
        count_url(&self.0.data_errors, url);
    }

    pub fn manifest_fetched(&self, source: &str) {
        count_url(&self.0.fetches, source);
    }

    pub fn manifest_fetch_failed(&self, source: &str) {
        count_url(&self.0.fetch_errors, source);
    }

    /// Records an acknowledged event and the time it took.
    pub fn published(&self, took: Duration) {
        self.0.published.count(&no_labels(&self.0.published));
        observe(&self.0.publish, took);
    }

    pub fn publish_failed(&self) {
        self.0
            .publish_errors
            .count(&no_labels(&self.0.publish_errors));
    }

    /// Records a published registration.
    pub fn registered(&self) {
        self.0.registered.count(&no_labels(&self.0.registered));
    }

    /// Records a registration that was not published.
    pub fn registration_failed(&self) {
        let metric = &self.0.registration_errors;
        metric.count(&no_labels(metric));
    }

    /// Sets the spool gauges.
    pub fn spooled(&self, status: SpoolStatus) {
        set(&self.0.spool_pending, status.pending);
        set(&self.0.spool_dropped, status.dropped);
    }

    /// Records a handled request.
    pub fn requested(&self, verb: &str, outcome: &str) {
        let metric = &self.0.requests;
        metric.count(&metric.labels(&[verb, outcome]));
    }

    /// Sets the counters of requests that were too many.
    pub(crate) fn overloaded(&self, counts: OverloadCounts) {
        set(&self.0.requests_busy, counts.busy);
        set(&self.0.requests_dropped, counts.dropped);
        set(&self.0.client_dropped, counts.dropped_by_client);
    }

    /// Sets the number of current and waiting runs.
    pub fn queued(&self, runs: usize) {
        set(&self.0.run_queue, u64::try_from(runs).unwrap_or(u64::MAX));
    }

    pub fn connected(&self, is_connected: bool) {
        set(&self.0.connected, is_connected.into());
    }

    pub fn paused(&self, is_paused: bool) {
        set(&self.0.paused, is_paused.into());
    }
}

impl All {
    /// Returns the state that an event counts in. A failure takes precedence over a change;
    /// otherwise the order is that of upstream. Its states `refreshed` and `error` do not occur: a
    /// refreshed resource has changed, and one with errors has failed.
    fn state(&self, event: &TransactionEvent) -> &Metric {
        if event.failed {
            &self.failed
        } else if event.noop {
            &self.noop
        } else if event.changed {
            &self.changed
        } else if event.skipped {
            &self.skipped
        } else {
            &self.stable
        }
    }
}

/// Returns the alias of a resource, or its name.
fn display_name(event: &TransactionEvent) -> Cow<'_, str> {
    match event.alias.as_str() {
        "" => redact_urls(&event.name),
        alias => alias.into(),
    }
}

/// Returns the name of a check; results are in the order of the checks.
fn check_name(event: &TransactionEvent, index: usize) -> &str {
    match &event.properties {
        EventField::Typed(resource) => resource
            .common
            .health_checks
            .get(index)
            .map_or("", |check| &check.name),
        EventField::Raw(_) => "",
    }
}

fn no_labels(metric: &Metric) -> Labels {
    metric.labels(&[])
}

fn observe(metric: &Metric, took: Duration) {
    metric.observe(&no_labels(metric), took);
}

fn set(metric: &Metric, value: u64) {
    metric.set(&no_labels(metric), value);
}

fn count_url(metric: &Metric, url: &str) {
    metric.count(&metric.labels(&[&redact_url(url)]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::event::Summary;
    use ccm_core::model::health::{HealthCheck, HealthResult};
    use ccm_core::model::id::EventId;
    use ccm_core::model::resource::{File, Properties, Resource};
    use ccm_core::model::run::{RUN_SUMMARY, RunOutcome, Trigger};
    use chrono::DateTime;

    type Change = fn(&mut TransactionEvent);

    fn event() -> TransactionEvent {
        let time = DateTime::UNIX_EPOCH;
        let mut resource = Resource::new("/srv/motd", "present", Properties::File(File::default()));
        resource.common.health_checks = vec![HealthCheck {
            name: "listens".into(),
            ..HealthCheck::default()
        }];
        let mut event =
            TransactionEvent::begin(EventId::new(time, 1), time, "posix", &Arc::new(resource));
        event.duration = Duration::from_millis(2);
        event
    }

    fn run(source: &str) -> RunSummary {
        let time = DateTime::UNIX_EPOCH;
        RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: EventId::new(time, 1),
            run_id: EventId::new(time, 2),
            identity: "web1".parse().unwrap(),
            collective: "default".parse().unwrap(),
            source: source.into(),
            trigger: Trigger::Interval,
            outcome: RunOutcome::Stable,
            noop: false,
            health_check_only: false,
            generation: None,
            request_id: String::new(),
            caller: String::new(),
            error: String::new(),
            timestamp: time,
            summary: Summary::of(None, []),
        }
    }

    /// Returns the printed series that `action` changed.
    fn changed_series(action: impl FnOnce(&Metrics)) -> Vec<String> {
        let metrics = Metrics::new("1.2.3");
        let before = metrics.print();
        action(&metrics);
        let known: Vec<&str> = before.lines().collect();
        metrics
            .print()
            .lines()
            .filter(|line| !line.starts_with('#') && !known.contains(line))
            .map(|line| line.replacen("choria_ccm_", "", 1))
            .collect()
    }

    #[test]
    fn a_new_agent_prints_what_has_no_labels() {
        assert_eq!(
            Metrics::new("1.2.3").print(),
            include_str!("../../../../tests/data/metrics/empty.txt")
        );
    }

    #[test]
    fn every_metric_of_upstream_has_its_name_type_and_labels() {
        let metrics = Metrics::new("1.2.3");
        let second = Duration::from_secs(1);
        let changes: [Change; 5] = [
            |_| {},
            |event| event.changed = true,
            |event| event.failed = true,
            |event| event.skipped = true,
            |event| event.noop = true,
        ];
        for change in changes {
            let mut event = event();
            change(&mut event);
            event.health_check = vec![None];
            metrics.resource_event(&event);
        }
        metrics.run_finished(&run("/srv/site"), second);
        let health_run = RunSummary {
            health_check_only: true,
            ..run("/srv/site")
        };
        metrics.run_finished(&health_run, second);
        metrics.health_checked("file", "/srv/motd", "listens", second);
        metrics.remediated("/srv/site");
        metrics.facts_gathered(second);
        metrics.facts_resolved(second);
        metrics.facts_failed();
        metrics.data_resolved(second);
        metrics.data_failed("https://ann:pw@example.net/data");
        metrics.manifest_fetched("https://ann:pw@example.net/site.tgz");
        metrics.manifest_fetch_failed("https://ann:pw@example.net/site.tgz");
        let governor = "deploys".parse().unwrap();
        metrics.slot_awaited(&governor);
        metrics.slot_wait_ended(&governor, second);
        metrics.slot_timed_out(&governor);
        metrics.published(second);
        metrics.publish_failed();
        metrics.registered();
        metrics.registration_failed();
        metrics.spooled(SpoolStatus {
            pending: 7,
            dropped: 3,
        });
        metrics.requested("ensure", "ok");
        metrics.overloaded(OverloadCounts {
            busy: 4,
            dropped: 5,
            dropped_by_client: 6,
        });
        metrics.queued(2);
        metrics.connected(true);
        metrics.paused(true);
        assert_eq!(
            metrics.clone().print(),
            include_str!("../../../../tests/data/metrics/full.txt")
        );
    }

    #[test]
    fn an_event_counts_in_one_state_and_a_failure_goes_first() {
        let mut event = event();
        event.failed = true;
        event.changed = true;
        event.noop = true;
        let lines = changed_series(|metrics| metrics.resource_event(&event));
        assert_eq!(
            lines,
            [
                "resource_apply_duration_seconds_sum{type=\"file\",provider=\"posix\",name=\"/srv/motd\"} 0.002",
                "resource_apply_duration_seconds_count{type=\"file\",provider=\"posix\",name=\"/srv/motd\"} 1",
                "resource_state_failed_count{type=\"file\",name=\"/srv/motd\"} 1",
                "resource_state_total_count{type=\"file\",name=\"/srv/motd\"} 1",
            ]
        );
    }

    #[test]
    fn a_resource_is_known_by_its_alias() {
        let mut event = event();
        event.alias = "motd".into();
        let lines = changed_series(|metrics| metrics.resource_event(&event));
        assert!(
            lines.iter().all(|line| line.contains("name=\"motd\"")),
            "{lines:?}"
        );
    }

    #[test]
    fn what_was_not_applied_took_no_time() {
        let changes: [Change; 3] = [
            |event| event.skipped = true,
            |event| event.health_check_only = true,
            |event| event.unmet_requirements = vec!["exec#x".into()],
        ];
        for change in changes {
            let mut event = event();
            change(&mut event);
            let lines = changed_series(|metrics| metrics.resource_event(&event));
            assert!(!lines.join("\n").contains("duration"), "{lines:?}");
        }
    }

    #[test]
    fn a_health_check_counts_by_its_name_and_result() {
        let mut event = event();
        event.health_check = vec![Some(HealthResult {
            status: HealthStatus::Critical,
            tries: 1,
            output: String::new(),
        })];
        let lines = changed_series(|metrics| metrics.resource_event(&event));
        assert_eq!(
            lines.first().unwrap(),
            "healthcheck_status_count{type=\"file\",name=\"/srv/motd\",status=\"CRITICAL\",check=\"listens\"} 1"
        );
    }

    #[test]
    fn many_threads_count_every_event() {
        let metrics = Metrics::new("1.2.3");
        let event = event();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..250).for_each(|_| metrics.resource_event(&event)));
            }
        });
        let text = metrics.print();
        let line = "resource_state_total_count{type=\"file\",name=\"/srv/motd\"} 1000\n";
        assert!(text.contains(line), "{text}");
    }
}
