//! Configuration of Choria events; they are published by `choria_events`.

use std::time::Duration;

use super::keys::{Keys, at_least, flag, non_empty, parsed};
use ccm_core::model::node::Token;

/// Shortest interval between alive events.
const MIN_ALIVE: Duration = Duration::from_secs(1);

/// Settings of Choria events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choria {
    /// Publish events for Choria.
    pub events: bool,
    /// Component name in lifecycle events.
    pub component: Token,
    /// Autonomous agent that manifests belong to.
    pub machine: String,
    /// Collective of the governors that limit runs.
    pub collective: Token,
    /// Interval between alive events; the first is sent at a random time within it.
    pub alive_interval: Duration,
}

impl Default for Choria {
    fn default() -> Self {
        Self {
            events: false,
            component: Token::program(),
            machine: "ccm".into(),
            collective: Token::choria_collective(),
            alive_interval: Duration::from_secs(30 * 60),
        }
    }
}

impl Choria {
    pub(super) fn read(&mut self, keys: &mut Keys<'_>) {
        keys.read("events", &mut self.events, flag);
        keys.read("component", &mut self.component, parsed);
        keys.read("machine", &mut self.machine, non_empty);
        keys.read("collective", &mut self.collective, parsed);
        keys.read("alive_interval", &mut self.alive_interval, |node| {
            at_least(node, MIN_ALIVE)
        });
    }
}
