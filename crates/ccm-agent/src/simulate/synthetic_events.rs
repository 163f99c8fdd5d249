//! Synthetic events: a constant rate of events from simulated nodes, to show a busy fleet.
//!
//! Each round is a run of a few resources on one node; the next round is on the next node. Outcomes
//! are decided as for real requests, without delays.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::AgentError;
use super::super::node::Node;
use super::SimulatedExecutor;
use ccm_core::model::event::Summary;
use ccm_core::model::request::parse_ensure;
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{RUN_SUMMARY, RunSummary, Trigger};

/// Interval between batches of events.
const TICK: Duration = Duration::from_millis(20);

/// Number of different resource sets.
const RESOURCE_SETS: usize = 4;

/// Thread that generates events until dropped. It writes to disk, so it is not an async task.
pub(super) struct SyntheticEvents {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SyntheticEvents {
    /// Starts generating so many events per second; none for zero.
    pub(super) fn start(
        nodes: Vec<(Arc<Node>, Arc<SimulatedExecutor>)>,
        events: u32,
    ) -> Result<Option<Self>, AgentError> {
        if events == 0 || nodes.is_empty() {
            return Ok(None);
        }
        let sets = (0..RESOURCE_SETS)
            .map(resources)
            .collect::<Result<Vec<_>, _>>()?;
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            // Each node gets another resource set in the next round.
            let mut rounds = sets.iter().cycle().flat_map(|first| {
                let sets = sets
                    .iter()
                    .cycle()
                    .skip_while(move |it| !std::ptr::eq(*it, first));
                nodes.iter().zip(sets)
            });
            let Some(clock) = nodes.first().map(|(node, _)| node.services.clock.clone()) else {
                return;
            };
            // Counted by the clock, so that late ticks are compensated.
            let mut due = 0.0;
            let mut last = clock.monotonic();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let now = clock.monotonic();
                due += now.saturating_sub(last).as_secs_f64() * f64::from(events);
                last = now;
                while due >= 1.0 {
                    let Some(((node, executor), set)) = rounds.next() else {
                        return;
                    };
                    due -= emit_run(node, executor, set) as f64;
                }
            }
        });
        Ok(Some(Self {
            stop: Some(stop),
            thread: Some(thread),
        }))
    }
}

impl Drop for SyntheticEvents {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself.
            let _ended = thread.join();
        }
    }
}

/// Returns one resource set.
fn resources(set: usize) -> Result<Vec<Arc<Resource>>, AgentError> {
    let requests = [
        (
            "file",
            format!("/etc/app/part{set}.conf"),
            r#", "content": "x", "owner": "root", "group": "root", "mode": "0644""#,
        ),
        ("package", format!("app-part{set}"), ""),
        ("service", format!("app{set}"), ""),
        ("exec", format!("/usr/bin/check part{set}"), ""),
    ];
    let parsed = requests.iter().map(|(type_name, name, more)| {
        let ensure = match *type_name {
            "service" => "running",
            _ => "present",
        };
        let text = format!(
            r#"{{"protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "{type_name}",
                "properties": {{"name": "{name}", "ensure": "{ensure}"{more}}}}}"#
        );
        Ok(Arc::new(parse_ensure(&text)?))
    });
    parsed.collect()
}

/// Emits the events of one run and returns their number.
fn emit_run(node: &Node, executor: &SimulatedExecutor, set: &[Arc<Resource>]) -> usize {
    let events: Vec<_> = set
        .iter()
        .map(|resource| executor.outcome_event(&*node.services.clock, resource, false))
        .collect();
    for event in &events {
        node.services.event_sink.event(event);
    }
    let summary = Summary::of(None, &events);
    let run = RunSummary {
        protocol: RUN_SUMMARY.into(),
        event_id: node.next_id(),
        run_id: node.next_id(),
        identity: node.identity.name.clone(),
        collective: node.identity.collective.clone(),
        source: "simulated".into(),
        trigger: Trigger::Interval,
        outcome: RunSummary::outcome_of(&summary, false, ""),
        noop: false,
        health_check_only: false,
        generation: None,
        request_id: String::new(),
        caller: String::new(),
        error: String::new(),
        timestamp: node.services.clock.now(),
        summary,
    };
    node.services.event_sink.run(&run);
    events.len() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_set_is_valid() {
        for set in 0..RESOURCE_SETS {
            assert_eq!(resources(set).unwrap().len(), 4);
        }
    }
}
