//! Connection log: logs when the NATS connection is established, lost, or has errors.
//!
//! The agent keeps working without NATS, so the log is where an outage shows. Connection errors
//! repeat with every attempt; each is logged when it is new and once in a while after that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::node::Node;
use ccm_core::engine::Level;
use ccm_nats::{Connection, ConnectionState};

/// Time after which the same error is logged again.
const REPEAT_AFTER: Duration = Duration::from_secs(600);

/// Most errors logged per minute: any client of the servers can cause errors.
const MAX_PER_MINUTE: usize = 20;

/// Errors logged recently.
#[derive(Debug, Default)]
struct RecentErrors {
    last: Option<(String, Instant)>,
    times: VecDeque<Instant>,
}

impl RecentErrors {
    /// Reports whether an error should be logged now, and records it if so.
    fn should_log(&mut self, text: &str, now: Instant) -> bool {
        let minute = Duration::from_secs(60);
        self.times.retain(|at| now.duration_since(*at) < minute);
        let is_repeated = self
            .last
            .as_ref()
            .is_some_and(|(last, at)| last == text && now.duration_since(*at) < REPEAT_AFTER);
        if is_repeated || self.times.len() >= MAX_PER_MINUTE {
            return false;
        }
        self.last = Some((text.to_owned(), now));
        self.times.push_back(now);
        true
    }
}

/// Logs changes of the connection until stopped.
pub(crate) async fn run(node: Arc<Node>, connection: Connection, mut stop: watch::Receiver<bool>) {
    let servers = || [("servers", connection.servers().to_owned())];
    let (mut state, mut errors) = (connection.state(), connection.last_error());
    let mut denials = connection.denials();
    let mut recent = RecentErrors::default();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stopped| *stopped) => return,
            Ok(()) = state.changed() => match *state.borrow_and_update() {
                ConnectionState::Up { .. } => {
                    recent.last = None;
                    node.log(Level::Info, "Connected to NATS", &servers());
                }
                ConnectionState::Down => node.log(Level::Warn, "Lost the connection to NATS", &servers()),
            },
            denial = denials.next() => {
                let text = denial.to_string();
                if recent.should_log(&text, Instant::now()) {
                    let fields = [servers(), [("error", text)]].concat();
                    node.log(Level::Warn, "NATS denied a permission that the agent needs", &fields);
                }
            }
            Ok(()) = errors.changed() => {
                let text = errors.borrow_and_update().clone();
                if recent.should_log(&text, Instant::now()) {
                    let fields = [servers(), [("error", text)]].concat();
                    node.log(Level::Warn, "NATS connection error", &fields);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_error_is_logged_once_in_a_while() {
        let (mut recent, start) = (RecentErrors::default(), Instant::now());
        assert!(recent.should_log("refused", start));
        assert!(!recent.should_log("refused", start + Duration::from_secs(599)));
        assert!(recent.should_log("refused", start + REPEAT_AFTER));
    }

    #[test]
    fn many_different_errors_do_not_fill_the_log() {
        let (mut recent, start) = (RecentErrors::default(), Instant::now());
        let worth = |number: &u32| recent.should_log(&number.to_string(), start);
        assert_eq!((0..1000).filter(worth).count(), MAX_PER_MINUTE);
        assert!(recent.should_log("later", start + Duration::from_secs(60)));
    }
}
