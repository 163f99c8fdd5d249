//! The schedule: when what is applied. All runs go to the run_queue, one after another.
//!
//! Ticks are spread over a fleet by each node's name and stay where they are: the next one is a
//! point on the clock, not a time after the last.

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::assignment::{Assignments, Check};
use super::manifest_watch::Feed;
use super::node::Node;
use super::run::{Done, Order};
use super::run_queue::{Job, Refusal};
use super::trust::Requester;
use ccm_core::engine::{Level, Mode};
use ccm_core::model::run::Trigger;
use ccm_core::run::Request;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_nats::ConnectionState;

/// A manifest that was applied a moment ago is not applied again by the clock. What the clock
/// itself did last is older than this: turns begin late by a moment, never by half an interval.
const FLOOR: Duration = Duration::from_secs(30);

/// When things happen.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub interval: Duration,
    pub health_check_interval: Option<Duration>,
    /// Where in each interval this node's turn is.
    pub offset: Duration,
}

impl Times {
    /// Returns the least time between two runs of a manifest that nobody asked for.
    pub(super) fn floor(&self) -> Duration {
        FLOOR.min(self.interval / 2)
    }

    /// Returns how long it is from `now`, counted from a fixed point, to the next turn.
    fn until_next(&self, now: Duration) -> Duration {
        let interval = self.interval.as_nanos().max(1);
        let since_turn = (now.as_nanos() + interval - self.offset.as_nanos() % interval) % interval;
        let left = interval - since_turn;
        Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

/// What the schedule works with.
pub struct Schedule {
    node: Arc<Node>,
    feeds: Vec<Turn>,
    assignments: Assignments,
    times: Times,
}

/// A feed, and when it was last applied on the monotonic clock.
struct Turn {
    feed: Arc<Feed>,
    applied: Option<Duration>,
}

/// What wakes the schedule, beside its clock.
pub struct Signals {
    /// The number of a feed that has something new.
    pub fresh: mpsc::Receiver<usize>,
    /// The name of a manifest that looked up what has changed since.
    pub outdated: mpsc::Receiver<String>,
    pub nudge: Arc<Notify>,
    pub link: watch::Receiver<ConnectionState>,
    pub stop: watch::Receiver<bool>,
}

impl Schedule {
    pub fn new(
        node: Arc<Node>,
        feeds: Vec<Arc<Feed>>,
        assignments: Assignments,
        times: Times,
    ) -> Self {
        let turn = |feed| Turn {
            feed,
            applied: None,
        };
        Self {
            node,
            feeds: feeds.into_iter().map(turn).collect(),
            assignments,
            times,
        }
    }

    /// Runs until told to stop.
    pub async fn run(mut self, mut signals: Signals) {
        let mut stop = signals.stop.clone();
        tokio::select! {
            () = self.follow(&mut signals) => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
    }

    async fn follow(&mut self, signals: &mut Signals) {
        self.converge(Trigger::Start).await;
        self.node.converged();
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
                Some(number) = signals.fresh.recv() => self.apply(number, Trigger::Source).await,
                Some(manifest) = signals.outdated.recv() => self.look_again(&manifest).await,
                () = signals.nudge.notified() => self.assignments.follow(Check::IfNew).await,
                Ok(()) = signals.link.changed() => {
                    if matches!(*signals.link.borrow_and_update(), ConnectionState::Up { .. }) {
                        self.assignments.follow(Check::IfNew).await;
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

    /// Brings everything to where it should be.
    async fn converge(&mut self, trigger: Trigger) {
        for number in 0..self.feeds.len() {
            self.apply(number, trigger).await;
        }
        self.assignments.follow(Check::Always).await;
    }

    /// Applies a manifest again, because what it looked up has changed.
    async fn look_again(&mut self, manifest: &str) {
        let node = &self.node;
        let is_meant = |turn: &Turn| {
            let what = turn.feed.what(node);
            what.is_some_and(|(what, _)| what.display_name() == manifest)
        };
        match self.feeds.iter().position(is_meant) {
            Some(number) => self.apply(number, Trigger::Registration).await,
            None => self.assignments.look_again(manifest).await,
        }
    }

    /// Applies one feed, unless the node is paused, nothing was fetched yet, or the clock asks
    /// for what was just done.
    async fn apply(&mut self, number: usize, trigger: Trigger) {
        let now = self.node.services.clock.monotonic();
        let Some(turn) = self.feeds.get_mut(number) else {
            return;
        };
        let is_recent = turn
            .applied
            .is_some_and(|at| now.saturating_sub(at) < self.times.floor());
        if trigger == Trigger::Interval && is_recent {
            let fields = [("manifest", turn.feed.to_string())];
            self.node.say(
                Level::Warn,
                "Skipping a manifest that was just applied",
                &fields,
            );
            return;
        }
        let Some(what) = turn.feed.what(&self.node) else {
            return;
        };
        turn.applied = Some(now);
        if !self.is_paused() {
            self.perform(order(&self.node, what, trigger, Mode::default()))
                .await;
        }
    }

    /// Runs health checks only, and applies what they find critical.
    async fn check_health(&self) {
        let mut critical = Vec::new();
        for turn in &self.feeds {
            let Some(what) = turn.feed.what(&self.node) else {
                continue;
            };
            let mode = Mode {
                health_check_only: true,
                ..Mode::default()
            };
            let order = order(&self.node, what.clone(), Trigger::HealthCheck, mode);
            if let Some(done) = self.perform(order).await
                && done.run.summary.health_check_critical_count > 0
            {
                critical.push(what);
            }
        }
        for what in critical {
            if self.is_paused() {
                return;
            }
            self.node.services.metrics.remediated(&what.0.display_name());
            let trigger = Trigger::Remediation;
            self.perform(order(&self.node, what, trigger, Mode::default()))
                .await;
        }
    }

    fn is_paused(&self) -> bool {
        match self.node.services.pause.current() {
            None => false,
            Some(pause) => {
                let fields = [("reason", pause.reason)];
                self.node.say(Level::Info, "Paused: not applying", &fields);
                true
            }
        }
    }

    async fn perform(&self, order: Order) -> Option<Done> {
        let shown = order.request.manifest.display_name();
        match perform(&self.node, order).await {
            Ok(done) => Some(done),
            Err(refusal) => {
                let fields = [("manifest", shown), ("reason", refusal.to_string())];
                self.node.say(Level::Warn, "Could not run", &fields);
                None
            }
        }
    }
}

fn order(
    node: &Node,
    (manifest, asker): (ManifestSource, Requester),
    trigger: Trigger,
    mode: Mode,
) -> Order {
    let request = Request {
        trigger,
        ..Request::new(node.next_id(), manifest, mode)
    };
    Order { request, asker }
}

/// Queues an order at the run_queue and returns what came of it.
pub(super) async fn perform(node: &Arc<Node>, order: Order) -> Result<Done, Refusal> {
    let (tell, told) = oneshot::channel();
    let worker = node.clone();
    node.services.run_queue.submit(Job {
        run: order.as_current(node),
        deadline: None,
        work: Box::new(move |leave| {
            let done = leave.map(|permit| order.carry_out(&worker, &permit));
            // Nobody may be waiting any more; the work is done all the same.
            drop(tell.send(done));
        }),
    });
    told.await.unwrap_or(Err(Refusal::Closing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_turn_is_a_point_on_the_clock() {
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
    fn the_shortest_interval_skips_no_turn_of_its_own() {
        let every = |seconds| Times {
            interval: Duration::from_secs(seconds),
            health_check_interval: None,
            offset: Duration::ZERO,
        };
        assert_eq!(every(30).floor(), Duration::from_secs(15));
        assert_eq!(every(300).floor(), FLOOR);
    }
}
