//! What monitoring may ask about an agent: upstream's metrics by their very names, and ours.
//!
//! The usual libraries can't do this. They end counters in `_total`, as OpenMetrics wants it, and
//! have no summaries; dashboards made for upstream need `…_count` and `…_sum`. So there is a small
//! `registry` of our own, and this file says what is counted and when. Whoever has news calls the
//! method named after it; nobody else knows a metric by name. URLs lose their credentials here.

mod registry;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ccm_core::model::event::{EventField, TransactionEvent};
use ccm_core::model::health::HealthStatus;
use ccm_core::model::node::SpoolStatus;
use ccm_core::model::run::RunSummary;
use ccm_value::secret::{redact_url, redact_urls};
use registry::{Kind, Labels, Metric};

/// The type of the printed text.
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
    agent_apply: Summary "agent_apply_duration_seconds" ["manifest"] "How long runs of the agent took.";
    build_info: Gauge "agent_build_info" ["version"] "Always 1; the label is the version of the agent.";
    connected: Gauge "agent_connected" [] "Whether the agent is connected to NATS.";
    data_resolve: Summary "agent_data_resolve_duration_seconds" [] "How long getting external data took.";
    data_errors: Counter "agent_data_resolve_error_count" ["url"] "How often external data could not be had.";
    facts_resolve: Summary "agent_facts_resolve_duration_seconds" [] "How long getting facts took, with all tries.";
    facts_errors: Counter "agent_facts_resolve_error_count" [] "How often facts could not be had.";
    agent_health: Summary "agent_healthcheck_duration_seconds" ["manifests"] "How long health check runs took.";
    remediations: Counter "agent_healthcheck_remediations_count" ["manifest"] "How often a health check made a run necessary.";
    fetches: Counter "agent_manifest_fetch_count" ["manifest"] "How often a manifest was fetched.";
    fetch_errors: Counter "agent_manifest_fetch_error_count" ["manifest"] "How often a manifest could not be fetched.";
    paused: Gauge "agent_paused" [] "Whether the agent is paused.";
    publish: Summary "agent_publish_duration_seconds" [] "How long the bus took to confirm an event.";
    publish_errors: Counter "agent_publish_error_count" [] "How often an event could not be published.";
    published: Counter "agent_published_count" [] "How many events the bus has confirmed.";
    registration_errors: Counter "agent_registration_error_count" [] "How often a service could not be registered.";
    registered: Counter "agent_registration_published_count" [] "How many registrations of services were published.";
    requests: Counter "agent_requests_count" ["verb", "outcome"] "How many requests came, and how they ended.";
    run_queue: Gauge "agent_run_queue" [] "How many runs wait behind the current one.";
    spool_dropped: Counter "agent_spool_dropped_count" [] "How many events were given up because the spool was full.";
    spool_pending: Gauge "agent_spool_pending" [] "How many events wait for the bus.";
    facts_gather: Summary "facts_gather_duration_seconds" [] "How long gathering facts took.";
    health: Summary "healthcheck_duration_seconds" ["type", "name", "check"] "How long health checks took.";
    health_status: Counter "healthcheck_status_count" ["type", "name", "status", "check"] "How often a health check came to a result.";
    manifest_apply: Summary "manifest_apply_duration_seconds" ["source"] "How long manifests took.";
    resource_apply: Summary "resource_apply_duration_seconds" ["type", "provider", "name"] "How long resources took.";
    changed: Counter "resource_state_changed_count" ["type", "name"] "How often a resource was changed.";
    errors: Counter "resource_state_error_count" ["type", "name"] "How often a resource had errors without failing.";
    failed: Counter "resource_state_failed_count" ["type", "name"] "How often a resource failed.";
    noop: Counter "resource_state_noop_count" ["type", "name"] "How often a resource was only planned.";
    refreshed: Counter "resource_state_refreshed_count" ["type", "name"] "How often a resource was refreshed and not changed.";
    skipped: Counter "resource_state_skipped_count" ["type", "name"] "How often a resource was skipped.";
    stable: Counter "resource_state_stable_count" ["type", "name"] "How often a resource was as it should be.";
    total: Counter "resource_state_total_count" ["type", "name"] "How often a resource was worked on.";
}

/// All numbers of one agent. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<All>);

impl Metrics {
    /// Returns metrics of an agent of this version that has done nothing yet.
    pub fn new(version: &str) -> Self {
        let all = All::new();
        all.build_info.set(&all.build_info.labels(&[version]), 1);
        Self(Arc::new(all))
    }

    /// Returns everything as text, of the type [`CONTENT_TYPE`].
    pub fn print(&self) -> String {
        self.0.print()
    }

    /// Takes the end of a run.
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

    /// Takes what happened to a resource. It counts in exactly one state, and in the total.
    pub fn resource_event(&self, event: &TransactionEvent) {
        let all = &*self.0;
        let type_name = event.type_name.as_str();
        let name = &*shown_name(event);
        let labels = all.total.labels(&[type_name, name]);
        all.total.count(&labels);
        // The labels of all states are those of the total.
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

    /// Takes how long one health check of a resource took, with all its tries.
    pub fn health_checked(&self, type_name: &str, name: &str, check: &str, took: Duration) {
        let metric = &self.0.health;
        metric.observe(&metric.labels(&[type_name, name, check]), took);
    }

    /// Takes that a critical health check leads to a run.
    pub fn remediated(&self, source: &str) {
        count_url(&self.0.remediations, source);
    }

    /// Takes how long one gathering of facts took.
    pub fn facts_gathered(&self, took: Duration) {
        observe(&self.0.facts_gather, took);
    }

    /// Takes how long it took until there were facts, failed tries included.
    pub fn facts_resolved(&self, took: Duration) {
        observe(&self.0.facts_resolve, took);
    }

    pub fn facts_failed(&self) {
        self.0.facts_errors.count(&bare(&self.0.facts_errors));
    }

    /// Takes how long it took until there was external data, failed tries included.
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

    /// Takes that the bus confirmed an event, and how long it took to.
    pub fn published(&self, took: Duration) {
        self.0.published.count(&bare(&self.0.published));
        observe(&self.0.publish, took);
    }

    pub fn publish_failed(&self) {
        self.0.publish_errors.count(&bare(&self.0.publish_errors));
    }

    /// Takes that the registration of a service was published.
    pub fn registered(&self) {
        self.0.registered.count(&bare(&self.0.registered));
    }

    /// Takes that a registration was not published, now or at all.
    pub fn registration_failed(&self) {
        let metric = &self.0.registration_errors;
        metric.count(&bare(metric));
    }

    /// Takes how much waits in the spool.
    pub fn spooled(&self, status: SpoolStatus) {
        set(&self.0.spool_pending, status.pending);
        set(&self.0.spool_dropped, status.dropped);
    }

    /// Takes that a request was answered.
    pub fn requested(&self, verb: &str, outcome: &str) {
        let metric = &self.0.requests;
        metric.count(&metric.labels(&[verb, outcome]));
    }

    /// Takes how many runs wait.
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
    /// Returns the one state that an event counts in. A failure is never hidden behind a change;
    /// the rest is upstream's order.
    fn state(&self, event: &TransactionEvent) -> &Metric {
        if event.failed {
            &self.failed
        } else if event.noop {
            &self.noop
        } else if event.changed {
            &self.changed
        } else if event.skipped {
            &self.skipped
        } else if event.refreshed {
            &self.refreshed
        } else if !event.errors.is_empty() {
            &self.errors
        } else {
            &self.stable
        }
    }
}

/// Returns the name that people know a resource by.
fn shown_name(event: &TransactionEvent) -> Cow<'_, str> {
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

fn bare(metric: &Metric) -> Labels {
    metric.labels(&[])
}

fn observe(metric: &Metric, took: Duration) {
    metric.observe(&bare(metric), took);
}

fn set(metric: &Metric, value: u64) {
    metric.set(&bare(metric), value);
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

    /// Returns the printed series of what happened, without those that were there before.
    fn news(act: impl FnOnce(&Metrics)) -> Vec<String> {
        let metrics = Metrics::new("1.2.3");
        let before = metrics.print();
        act(&metrics);
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
        let changes: [Change; 7] = [
            |_| {},
            |event| event.changed = true,
            |event| event.refreshed = true,
            |event| event.failed = true,
            |event| event.errors = vec!["late".into()],
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
        metrics.published(second);
        metrics.publish_failed();
        metrics.registered();
        metrics.registration_failed();
        metrics.spooled(SpoolStatus {
            pending: 7,
            dropped: 3,
        });
        metrics.requested("ensure", "ok");
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
        let lines = news(|metrics| metrics.resource_event(&event));
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
        let lines = news(|metrics| metrics.resource_event(&event));
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
            let lines = news(|metrics| metrics.resource_event(&event));
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
        let lines = news(|metrics| metrics.resource_event(&event));
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
