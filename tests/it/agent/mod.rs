//! The agent with a real NATS server: its replies to requests (`requests`), runs without a request
//! (`scheduled_runs`), its events (`events`), and its log and presence record (`logs`).

mod events;
mod logs;
mod requests;
pub(crate) mod scheduled_runs;
