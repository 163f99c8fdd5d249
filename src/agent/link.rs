//! The link: tells in the log when the bus is there, when it is lost, and what is in the way.
//!
//! An agent that can't reach its bus goes on working, so this is where people learn of it. What is
//! in the way comes back with every try; it is told when it is new and once in a while.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::node::Node;
use crate::engine::Level;
use crate::nats::{Connection, Link};

/// How often the same trouble is worth a line.
const REPEAT_AFTER: Duration = Duration::from_secs(600);

/// Tells what becomes of the connection until told to stop.
pub async fn tell(node: Arc<Node>, connection: Connection, mut stop: watch::Receiver<bool>) {
    let servers = || [("servers", connection.servers().to_owned())];
    let (mut link, mut trouble) = (connection.state(), connection.trouble());
    let mut told: Option<(String, Instant)> = None;
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stopped| *stopped) => return,
            Ok(()) = link.changed() => match *link.borrow_and_update() {
                Link::Up { .. } => {
                    told = None;
                    node.say(Level::Info, "Connected to NATS", &servers());
                }
                Link::Down => node.say(Level::Warn, "Lost the connection to NATS", &servers()),
            },
            Ok(()) = trouble.changed() => {
                let text = trouble.borrow_and_update().clone();
                let is_known = told
                    .as_ref()
                    .is_some_and(|(last, at)| *last == text && at.elapsed() < REPEAT_AFTER);
                if !is_known {
                    let fields = [servers(), [("error", text.clone())]].concat();
                    node.say(Level::Warn, "Trouble with NATS", &fields);
                    told = Some((text, Instant::now()));
                }
            }
        }
    }
}
