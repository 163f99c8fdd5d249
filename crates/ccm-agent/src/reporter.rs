//! Passes on what happens in a run of this node: to the log, the spool, the counters, Choria's tools
//! and the registrations.

use super::node::Node;
use ccm_core::engine::{CompletedCheck, Level, Line, Sink, Availability, status_line};
use ccm_core::model::cloudevent::SlotEvent;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::governor::{GovernorName, SlotProgress};
use ccm_core::model::registration::Entry;
use ccm_core::model::run::{RunOutcome, RunSummary};

/// How much of a diff an answer holds; servers take messages of a megabyte unless told otherwise.
const MAX_DIFF: usize = 256 * 1024;

/// Stands where a diff was too long.
const CUT: &str = "(more than fits into an answer)\n";

/// Takes what happens in one run.
pub(super) struct Reporter<'a> {
    node: &'a Node,
    /// What changed in files, or would; empty unless the run was asked for it.
    pub(super) diff: String,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        Self {
            node,
            diff: String::new(),
        }
    }
}

impl Sink for Reporter<'_> {
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>) {
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

    fn services(&mut self, entries: &[Entry], standing: Availability) {
        if let Some(registration_publisher) = &self.node.services.registration_publisher {
            registration_publisher.take(entries, standing);
        }
    }

    fn slot(&mut self, governor: &GovernorName, progress: SlotProgress) {
        let node = self.node;
        match progress {
            SlotProgress::Waiting => node
                .services
                .run_queue
                .wait_for(Some(format!("governor {governor}"))),
            SlotProgress::Entered(sequence) => {
                node.services.run_queue.wait_for(None);
                node.services
                    .choria_events
                    .slot(governor, sequence, SlotEvent::Enter);
            }
            SlotProgress::NotEntered { given_up } => {
                node.services.run_queue.wait_for(None);
                if !given_up {
                    node.services
                        .choria_events
                        .slot(governor, 0, SlotEvent::Timeout);
                }
            }
            SlotProgress::Left(sequence) => {
                node.services
                    .choria_events
                    .slot(governor, sequence, SlotEvent::Exit);
            }
        }
    }

    fn finished(&mut self, run: &RunSummary) {
        self.node.finish(run);
        self.node.services.log.line(&closing(run));
    }

    /// Keeps a diff for the answer. Nobody watches one in a log, and it may show more than an
    /// event does.
    fn diff(&mut self, text: &str) {
        let left = MAX_DIFF.saturating_sub(self.diff.len());
        if text.len() <= left {
            self.diff.push_str(text);
        } else if !self.diff.ends_with(CUT) {
            self.diff.push_str(CUT);
        }
    }
}

fn closing(run: &RunSummary) -> Line {
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
