//! Overload log: counts requests that were refused or dropped because too many arrived, and logs it.
//!
//! Requests that find the queue full get a `busy` reply; those that can't be answered are dropped, by
//! the service or by the NATS client. A flood is logged when it begins and then once a minute.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::node::Node;
use ccm_core::engine::Level;
use ccm_nats::Connection;
use ccm_nats::micro::Overload;

/// Interval of the counts.
const INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Numbers of requests since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverloadCounts {
    /// Answered with `busy`.
    pub(crate) busy: u64,
    /// Not answered.
    pub(crate) dropped: u64,
    /// Messages of any sort that the NATS client dropped.
    pub(crate) dropped_by_client: u64,
}

impl OverloadCounts {
    fn since(self, earlier: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            dropped_by_client: self
                .dropped_by_client
                .saturating_sub(earlier.dropped_by_client),
        }
    }
}

/// What was logged last.
#[derive(Debug, Default)]
struct Logged {
    counts: OverloadCounts,
    at: Option<Instant>,
}

impl Logged {
    /// Returns what is to be logged now, and records it as logged.
    fn due(&mut self, counts: OverloadCounts, now: Instant) -> Option<OverloadCounts> {
        let is_recent = self
            .at
            .is_some_and(|at| now.duration_since(at) < LOG_INTERVAL);
        if counts == self.counts || is_recent {
            return None;
        }
        let new = counts.since(self.counts);
        *self = Self {
            counts,
            at: Some(now),
        };
        Some(new)
    }
}

/// Counts and logs until stopped.
pub(crate) async fn run(
    node: Arc<Node>,
    connection: Connection,
    overload: Overload,
    mut stop: watch::Receiver<bool>,
) {
    let mut logged = Logged::default();
    let mut interval = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => return,
            _ = interval.tick() => {}
        }
        let counts = OverloadCounts {
            busy: overload.busy(),
            dropped: overload.dropped(),
            dropped_by_client: connection.dropped_messages(),
        };
        node.services.metrics.overloaded(counts);
        if let Some(new) = logged.due(counts, Instant::now()) {
            let fields = [
                ("busy", new.busy.to_string()),
                ("dropped", new.dropped.to_string()),
                ("dropped_by_client", new.dropped_by_client.to_string()),
            ];
            node.log(Level::Warn, "Too many requests", &fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(busy: u64) -> OverloadCounts {
        OverloadCounts {
            busy,
            ..OverloadCounts::default()
        }
    }

    #[test]
    fn a_flood_is_logged_when_it_begins_and_then_once_a_minute() {
        let (mut logged, start) = (Logged::default(), Instant::now());
        let second = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(logged.due(counts(0), start), None);
        assert_eq!(logged.due(counts(5), second(1)), Some(counts(5)));
        assert_eq!(logged.due(counts(9), second(60)), None);
        assert_eq!(logged.due(counts(12), second(61)), Some(counts(7)));
        assert_eq!(logged.due(counts(12), second(200)), None);
    }
}
