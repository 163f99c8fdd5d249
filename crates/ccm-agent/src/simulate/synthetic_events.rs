//! SyntheticEvents: events that simulated nodes make up, so many in a second, to see a busy fleet.
//!
//! Each round one node has a run of a few resources, and the next round is the next node's. What
//! becomes of a resource is decided as for real requests; nothing waits and nobody asked.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::AgentError;
use super::super::node::Node;
use super::Simulated;
use ccm_core::model::event::Summary;
use ccm_core::model::request::parse_ensure;
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{RUN_SUMMARY, RunSummary, Trigger};

/// How often events are made up.
const TICK: Duration = Duration::from_millis(20);

/// How many rounds of one node differ from each other.
const KINDS: usize = 4;

/// A thread that makes up events until dropped. It writes to disk, so it is no task.
pub(super) struct SyntheticEvents {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SyntheticEvents {
    /// Starts to make up so many events a second; none if that is no number.
    pub(super) fn start(
        nodes: Vec<(Arc<Node>, Arc<Simulated>)>,
        events: u32,
    ) -> Result<Option<Self>, AgentError> {
        if events == 0 || nodes.is_empty() {
            return Ok(None);
        }
        let kinds = (0..KINDS).map(resources).collect::<Result<Vec<_>, _>>()?;
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            // The next time round every node has another kind.
            let mut rounds = kinds.iter().cycle().flat_map(|first| {
                let kinds = kinds
                    .iter()
                    .cycle()
                    .skip_while(move |it| !std::ptr::eq(*it, first));
                nodes.iter().zip(kinds)
            });
            let Some(clock) = nodes.first().map(|(node, _)| node.services.clock.clone()) else {
                return;
            };
            // Counted by the clock, so that late ticks are made up for.
            let mut owed = 0.0;
            let mut last = clock.monotonic();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let now = clock.monotonic();
                owed += now.saturating_sub(last).as_secs_f64() * f64::from(events);
                last = now;
                while owed >= 1.0 {
                    let Some(((node, executor), kind)) = rounds.next() else {
                        return;
                    };
                    owed -= round(node, executor, kind) as f64;
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
            // A thread that panicked has said so.
            let _ended = thread.join();
        }
    }
}

/// Returns the resources of a round.
fn resources(kind: usize) -> Result<Vec<Arc<Resource>>, AgentError> {
    let requests = [
        (
            "file",
            format!("/etc/app/part{kind}.conf"),
            r#", "content": "x", "owner": "root", "group": "root", "mode": "0644""#,
        ),
        ("package", format!("app-part{kind}"), ""),
        ("service", format!("app{kind}"), ""),
        ("exec", format!("/usr/bin/check part{kind}"), ""),
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

/// Lets a node have a run, and returns how many events that made.
fn round(node: &Node, executor: &Simulated, kind: &[Arc<Resource>]) -> usize {
    let events: Vec<_> = kind
        .iter()
        .map(|resource| executor.verdict(&*node.services.clock, resource, false))
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
    fn every_round_has_resources_that_can_be_read() {
        for kind in 0..KINDS {
            assert_eq!(resources(kind).unwrap().len(), 4);
        }
    }
}
