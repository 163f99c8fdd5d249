//! What Choria's tools hear of this node. Only read here; `agent::choria_events` does the telling.

use std::time::Duration;

use super::keys::{Keys, at_least, filled, flag, parsed};
use ccm_core::model::node::Token;

/// The shortest time between two signs of life.
const MIN_ALIVE: Duration = Duration::from_secs(1);

/// How this node appears to Choria.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choria {
    /// Whether Choria's tools are told anything.
    pub events: bool,
    /// The component whose lifecycle is told.
    pub component: Token,
    /// The autonomous agent that manifests belong to.
    pub machine: String,
    /// The collective whose governors limit runs.
    pub collective: Token,
    /// Time between two signs of life; the first comes somewhere in the first of them.
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
        keys.read("machine", &mut self.machine, filled);
        keys.read("collective", &mut self.collective, parsed);
        keys.read("alive_interval", &mut self.alive_interval, |node| {
            at_least(node, MIN_ALIVE)
        });
    }
}
