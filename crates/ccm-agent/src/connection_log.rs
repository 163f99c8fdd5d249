//! The link: tells in the log when the bus is there, when it is lost, and what is in the way.
//!
//! An agent that can't reach its bus goes on working, so this is where people learn of it. What is
//! in the way comes back with every try; it is told when it is new and once in a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::node::Node;
use ccm_core::engine::Level;
use ccm_nats::{Connection, ConnectionState};

/// How often the same trouble is worth a line.
const REPEAT_AFTER: Duration = Duration::from_secs(600);

/// How many lines of trouble a minute has: whoever may ask us can make the server complain.
const MOST_A_MINUTE: usize = 20;

/// What was told lately.
#[derive(Debug, Default)]
struct Told {
    last: Option<(String, Instant)>,
    lately: VecDeque<Instant>,
}

impl Told {
    /// Reports whether trouble is worth a line now, and remembers it if so.
    fn is_news(&mut self, text: &str, now: Instant) -> bool {
        let minute = Duration::from_secs(60);
        self.lately.retain(|at| now.duration_since(*at) < minute);
        let is_repeated = self
            .last
            .as_ref()
            .is_some_and(|(last, at)| last == text && now.duration_since(*at) < REPEAT_AFTER);
        if is_repeated || self.lately.len() >= MOST_A_MINUTE {
            return false;
        }
        self.last = Some((text.to_owned(), now));
        self.lately.push_back(now);
        true
    }
}

/// Tells what becomes of the connection until told to stop.
pub(crate) async fn tell(node: Arc<Node>, connection: Connection, mut stop: watch::Receiver<bool>) {
    let servers = || [("servers", connection.servers().to_owned())];
    let (mut link, mut trouble) = (connection.state(), connection.last_error());
    let mut denied = connection.denials();
    let mut told = Told::default();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stopped| *stopped) => return,
            Ok(()) = link.changed() => match *link.borrow_and_update() {
                ConnectionState::Up { .. } => {
                    told.last = None;
                    node.say(Level::Info, "Connected to NATS", &servers());
                }
                ConnectionState::Down => node.say(Level::Warn, "Lost the connection to NATS", &servers()),
            },
            denial = denied.next() => {
                let text = denial.to_string();
                if told.is_news(&text, Instant::now()) {
                    let fields = [servers(), [("error", text)]].concat();
                    node.say(Level::Warn, "NATS forbids something that the agent needs", &fields);
                }
            }
            Ok(()) = trouble.changed() => {
                let text = trouble.borrow_and_update().clone();
                if told.is_news(&text, Instant::now()) {
                    let fields = [servers(), [("error", text)]].concat();
                    node.say(Level::Warn, "Trouble with NATS", &fields);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_told_once_in_a_while() {
        let (mut told, start) = (Told::default(), Instant::now());
        assert!(told.is_news("refused", start));
        assert!(!told.is_news("refused", start + Duration::from_secs(599)));
        assert!(told.is_news("refused", start + REPEAT_AFTER));
    }

    #[test]
    fn ever_new_trouble_does_not_fill_the_log() {
        let (mut told, start) = (Told::default(), Instant::now());
        let worth = |number: &u32| told.is_news(&number.to_string(), start);
        assert_eq!((0..1000).filter(worth).count(), MOST_A_MINUTE);
        assert!(told.is_news("later", start + Duration::from_secs(60)));
    }
}
