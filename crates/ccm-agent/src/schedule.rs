//! Schedule: applies manifests and assignments periodically and when they change. All runs go
//! through the run queue.
//!
//! Start times are spread over the fleet by the name of each node and are fixed points on the
//! clock, not delays after the last run.

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::assignment::{Assignments, CheckReply, Follow};
use super::manifest_watch::WatchedManifest;
use super::node::Node;
use super::run::{RunResult, RunTask};
use super::run_queue::{Job, Refusal};
use super::trust::Requester;
use ccm_core::engine::{Level, Mode};
use ccm_core::model::run::Trigger;
use ccm_core::run::Request;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_nats::ConnectionState;

/// Least time between the last run of a manifest and its next scheduled one. Scheduled runs start
/// late by less than half an interval, so they never skip each other.
const MIN_DISTANCE: Duration = Duration::from_secs(30);

/// Intervals of the schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) interval: Duration,
    pub(crate) health_check_interval: Option<Duration>,
    /// Start of the runs of this node within each interval.
    pub(crate) offset: Duration,
}

impl Times {
    /// Returns the least time between two unrequested runs of a manifest.
    pub(super) fn min_distance(&self) -> Duration {
        MIN_DISTANCE.min(self.interval / 2)
    }

    /// Returns the time from `now`, counted from a fixed point, to the next run.
    fn until_next(&self, now: Duration) -> Duration {
        let interval = self.interval.as_nanos().max(1);
        let since_last = (now.as_nanos() + interval - self.offset.as_nanos() % interval) % interval;
        let left = interval - since_last;
        Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

/// Schedule of one node.
pub(crate) struct Schedule {
    node: Arc<Node>,
    manifests: Vec<ScheduledManifest>,
    assignments: Assignments,
    times: Times,
}

/// A manifest and when it was last applied, on the monotonic clock.
struct ScheduledManifest {
    manifest: Arc<WatchedManifest>,
    applied: Option<Duration>,
    /// What was last applied to its end, and the name of the requester: an update that arrives
    /// during the run which already applies it starts no other.
    completed: Option<(ManifestSource, Arc<str>)>,
}

/// Events that start a run, besides the intervals.
pub(crate) struct Signals {
    /// Index of a manifest that has changed.
    pub(crate) updated: mpsc::Receiver<usize>,
    /// Name of a manifest whose looked-up services have changed.
    pub(crate) outdated: mpsc::Receiver<String>,
    pub(crate) nudge: Arc<Notify>,
    /// Requests to check the assignment.
    pub(crate) checks: mpsc::Receiver<CheckReply>,
    pub(crate) connection: watch::Receiver<ConnectionState>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Schedule {
    pub(crate) fn new(
        node: Arc<Node>,
        manifests: Vec<Arc<WatchedManifest>>,
        assignments: Assignments,
        times: Times,
    ) -> Self {
        let scheduled = |manifest| ScheduledManifest {
            manifest,
            applied: None,
            completed: None,
        };
        Self {
            node,
            manifests: manifests.into_iter().map(scheduled).collect(),
            assignments,
            times,
        }
    }

    /// Runs the schedule until stopped.
    pub(crate) async fn run(mut self, mut signals: Signals) {
        let mut stop = signals.stop.clone();
        tokio::select! {
            () = self.follow(&mut signals) => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
    }

    async fn follow(&mut self, signals: &mut Signals) {
        self.converge(Trigger::Start).await;
        self.node.set_converged();
        let mut tick = self.next_tick();
        let mut checks = self.next_checks();
        loop {
            tokio::select! {
                () = sleep_until(tick) => {
                    tick = self.next_tick();
                    self.converge(Trigger::Interval).await;
                }
                () = sleep_until(checks.unwrap_or(tick)), if checks.is_some() => {
                    self.check_health().await;
                    self.assignments.check_health().await;
                    checks = self.next_checks();
                }
                Some(index) = signals.updated.recv() => self.apply(index, Trigger::Source).await,
                Some(manifest) = signals.outdated.recv() => self.reapply(&manifest).await,
                Some(reply) = signals.checks.recv() => {
                    // A requester that has stopped waiting needs no check.
                    if !reply.is_closed() {
                        drop(reply.send(self.assignments.check().await));
                    }
                }
                () = signals.nudge.notified() => self.assignments.follow(Follow::IfNew).await,
                Ok(()) = signals.connection.changed() => {
                    if matches!(*signals.connection.borrow_and_update(), ConnectionState::Up { .. }) {
                        self.assignments.follow(Follow::IfNew).await;
                    }
                }
            }
        }
    }

    fn next_tick(&self) -> Instant {
        let now = self
            .node
            .services
            .clock
            .now()
            .signed_duration_since(DateTime::UNIX_EPOCH);
        Instant::now() + self.times.until_next(now.to_std().unwrap_or_default())
    }

    fn next_checks(&self) -> Option<Instant> {
        Some(Instant::now() + self.times.health_check_interval?)
    }

    /// Applies all manifests and the assignment.
    async fn converge(&mut self, trigger: Trigger) {
        for index in 0..self.manifests.len() {
            self.apply(index, trigger).await;
        }
        self.assignments.follow(Follow::Always).await;
    }

    /// Applies a manifest again after its looked-up services changed.
    async fn reapply(&mut self, manifest: &str) {
        let node = &self.node;
        let is_named = |scheduled: &ScheduledManifest| {
            let source = scheduled.manifest.current(node);
            source.is_some_and(|(source, _)| source.display_name() == manifest)
        };
        match self.manifests.iter().position(is_named) {
            Some(index) => self.apply(index, Trigger::Registration).await,
            None => self.assignments.reapply(manifest).await,
        }
    }

    /// Applies one manifest, unless the node is paused, nothing was fetched yet, a scheduled run
    /// follows another run too closely, or an update was already applied.
    async fn apply(&mut self, index: usize, trigger: Trigger) {
        let now = self.node.services.clock.monotonic();
        let Some(scheduled) = self.manifests.get_mut(index) else {
            return;
        };
        let is_recent = scheduled
            .applied
            .is_some_and(|at| now.saturating_sub(at) < self.times.min_distance());
        if trigger == Trigger::Interval && is_recent {
            let fields = [("manifest", scheduled.manifest.to_string())];
            self.node.log(
                Level::Warn,
                "Skipping a manifest that was applied a moment ago",
                &fields,
            );
            return;
        }
        let Some(source) = scheduled.manifest.current(&self.node) else {
            return;
        };
        let content = (source.0.clone(), source.1.name.clone());
        if trigger == Trigger::Source && scheduled.completed.as_ref() == Some(&content) {
            return;
        }
        scheduled.applied = Some(now);
        scheduled.completed = None;
        if self.is_paused() {
            return;
        }
        let task = run_task(&self.node, source, trigger, Mode::default());
        let is_complete = |done: RunResult| done.run.error.is_empty();
        if self.execute(task).await.is_some_and(is_complete)
            && let Some(scheduled) = self.manifests.get_mut(index)
        {
            scheduled.completed = Some(content);
        }
    }

    /// Runs health checks, and applies manifests with critical ones.
    async fn check_health(&self) {
        let mut critical = Vec::new();
        for scheduled in &self.manifests {
            let Some(source) = scheduled.manifest.current(&self.node) else {
                continue;
            };
            let mode = Mode {
                health_check_only: true,
                ..Mode::default()
            };
            let task = run_task(&self.node, source.clone(), Trigger::HealthCheck, mode);
            if let Some(done) = self.execute(task).await
                && done.run.summary.health_check_critical_count > 0
            {
                critical.push(source);
            }
        }
        for source in critical {
            if self.is_paused() {
                return;
            }
            self.node
                .services
                .metrics
                .remediated(&source.0.display_name());
            let trigger = Trigger::Remediation;
            self.execute(run_task(&self.node, source, trigger, Mode::default()))
                .await;
        }
    }

    fn is_paused(&self) -> bool {
        match self.node.services.pause.current() {
            None => false,
            Some(pause) => {
                let fields = [("reason", pause.reason)];
                self.node.log(Level::Info, "Paused: not applying", &fields);
                true
            }
        }
    }

    async fn execute(&self, task: RunTask) -> Option<RunResult> {
        let shown = task.request.manifest.display_name();
        match execute_queued(&self.node, task).await {
            Ok(done) => Some(done),
            Err(refusal) => {
                let fields = [("manifest", shown), ("reason", refusal.to_string())];
                self.node.log(Level::Warn, "Could not start a run", &fields);
                None
            }
        }
    }
}

fn run_task(
    node: &Node,
    (manifest, requester): (ManifestSource, Requester),
    trigger: Trigger,
    mode: Mode,
) -> RunTask {
    let request = Request {
        trigger,
        ..Request::new(node.next_id(), manifest, mode)
    };
    RunTask { request, requester }
}

/// Runs a task in the run queue and returns its result.
pub(super) async fn execute_queued(node: &Arc<Node>, task: RunTask) -> Result<RunResult, Refusal> {
    let (sender, receiver) = oneshot::channel();
    let worker = node.clone();
    node.services.run_queue.submit(Job {
        run: task.current_run(node),
        request_id: String::new(),
        deadline: None,
        callback: Box::new(move |permit| {
            let done = permit.map(|permit| task.execute(&worker, &permit));
            // The receiver may be gone; the run is made anyway.
            drop(sender.send(done));
        }),
    });
    receiver.await.unwrap_or(Err(Refusal::Closing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_run_is_a_point_on_the_clock() {
        let times = Times {
            interval: Duration::from_secs(300),
            health_check_interval: None,
            offset: Duration::from_secs(40),
        };
        for (now, left) in [
            (0, 40),
            (39, 1),
            (40, 300),
            (41, 299),
            (300, 40),
            (345, 295),
        ] {
            let found = times.until_next(Duration::from_secs(now));
            assert_eq!(found, Duration::from_secs(left), "at {now}");
        }
    }

    #[test]
    fn the_shortest_interval_skips_no_scheduled_run() {
        let every = |seconds| Times {
            interval: Duration::from_secs(seconds),
            health_check_interval: None,
            offset: Duration::ZERO,
        };
        assert_eq!(every(30).min_distance(), Duration::from_secs(15));
        assert_eq!(every(300).min_distance(), MIN_DISTANCE);
    }
}
