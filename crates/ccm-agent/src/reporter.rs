//! Reporter: distributes the events of a run to the log, the spool, the metrics, Choria and the
//! registrations.

use std::collections::BTreeMap;
use std::time::Duration;

use super::node::Node;
use ccm_core::engine::{Availability, CompletedCheck, Level, Line, Sink, status_line};
use ccm_core::model::cloudevent::SlotEvent;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::governor::{GovernorName, SlotProgress};
use ccm_core::model::id::EventId;
use ccm_core::model::output::{self, CommandOutput};
use ccm_core::model::registration::Entry;
use ccm_core::model::run::{CurrentRun, RunOutcome, RunSummary};

/// Longest diff in a reply; NATS servers accept messages of 1 MiB by default.
const MAX_DIFF: usize = 256 * 1024;

/// Replaces the rest of a diff that is too long.
const TRUNCATED: &str = "(diff truncated: too long for a reply)\n";

/// Receives the events of one run.
pub(super) struct Reporter<'a> {
    node: &'a Node,
    /// Diff of changed files; empty unless requested.
    pub(super) diff: String,
    /// The same by event, shortened.
    pub(super) diffs: BTreeMap<EventId, String>,
    /// Diff of the resource whose event comes next.
    next_diff: String,
    /// Output of the last command that failed or whose output was requested.
    pub(super) output: CommandOutput,
    /// Start of the wait for a governor slot.
    slot_wait: Option<Duration>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        Self {
            node,
            diff: String::new(),
            diffs: BTreeMap::new(),
            next_diff: String::new(),
            output: CommandOutput::default(),
            slot_wait: None,
        }
    }

    /// Ends the wait for a governor slot.
    fn end_slot_wait(&mut self, governor: &GovernorName) {
        let services = &self.node.services;
        services.run_queue.set_waiting_for(None);
        if let Some(began) = self.slot_wait.take() {
            let waited = services.clock.monotonic().saturating_sub(began);
            services.metrics.slot_wait_ended(governor, waited);
            self.node.notify_status_changed();
        }
    }
}

impl Sink for Reporter<'_> {
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>) {
        if !self.next_diff.is_empty() {
            let diff = std::mem::take(&mut self.next_diff);
            self.diffs.insert(event.event_id.clone(), diff);
        }
        self.node.services.event_sink.event(event);
        self.node.services.metrics.resource_event(event);
        let mut line = status_line(event);
        if let Some(manifest) = manifest {
            line.fields.insert(0, ("manifest", manifest.into()));
        }
        self.node.services.log.line(&line);
    }

    fn line(&mut self, line: &Line) {
        self.node.services.log.line(line);
    }

    fn detail_level(&self) -> Option<Level> {
        let is_debug = self.node.services.log.is_enabled(Level::Debug);
        is_debug.then_some(Level::Debug)
    }

    /// Details are logged as debug lines: an agent repeats its runs.
    fn detail(&mut self, line: &Line) {
        let level = Level::Debug;
        let line = Line {
            level,
            ..line.clone()
        };
        self.node.services.log.line(&line);
    }

    fn checked(&mut self, checked: &CompletedCheck<'_>) {
        let type_name = checked.type_name.as_str();
        self.node.services.metrics.health_checked(
            type_name,
            checked.name,
            &checked.check.name,
            checked.took,
        );
        self.node.services.choria_events.checked(checked);
    }

    fn services(&mut self, entries: &[Entry], availability: Availability) {
        if let Some(registration_publisher) = &self.node.services.registration_publisher {
            registration_publisher.update(entries, availability);
        }
    }

    fn slot(&mut self, governor: &GovernorName, progress: SlotProgress) {
        let services = &self.node.services;
        let publish = |sequence, event| services.choria_events.slot(governor, sequence, event);
        match progress {
            SlotProgress::Waiting => {
                self.slot_wait = Some(services.clock.monotonic());
                let waiting_for = CurrentRun::governor_wait(governor);
                services.run_queue.set_waiting_for(Some(waiting_for));
                services.metrics.slot_awaited(governor);
                self.node.notify_status_changed();
            }
            SlotProgress::Entered(sequence) => {
                self.end_slot_wait(governor);
                publish(sequence, SlotEvent::Enter);
            }
            SlotProgress::NotEntered { given_up } => {
                self.end_slot_wait(governor);
                if !given_up {
                    services.metrics.slot_timed_out(governor);
                    publish(0, SlotEvent::Timeout);
                }
            }
            SlotProgress::Left(sequence) => publish(sequence, SlotEvent::Exit),
        }
    }

    fn finished(&mut self, run: &RunSummary) {
        self.node.finish(run);
        self.node.services.log.line(&summary_line(run));
    }

    fn output(&mut self, output: &CommandOutput) {
        self.output = output.clone();
    }

    /// Keeps a diff for the reply. It is not logged, because it may show more than an event does.
    fn diff(&mut self, text: &str) {
        self.next_diff = output::head(text);
        let left = MAX_DIFF.saturating_sub(self.diff.len());
        if text.len() <= left {
            self.diff.push_str(text);
        } else if !self.diff.ends_with(TRUNCATED) {
            self.diff.push_str(TRUNCATED);
        }
    }
}

fn summary_line(run: &RunSummary) -> Line {
    let level = match run.outcome {
        RunOutcome::Failed => Level::Error,
        RunOutcome::Changed | RunOutcome::Noop => Level::Warn,
        RunOutcome::Stable | RunOutcome::Skipped => Level::Info,
    };
    let line = Line::new(level, run.summary.to_string())
        .with("manifest", &run.source)
        .with("run", &run.run_id);
    match run.error.as_str() {
        "" => line,
        error => line.with("error", error),
    }
}
