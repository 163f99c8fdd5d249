//! Takes over what other programs' runs on this node handed over: events into the spool, checks and
//! services where the daemon's own go, lines into the log.

use ccm_core::engine::{Level, Line, Sink as _};
use ccm_core::model::run::RunSummary;
use ccm_core::run::handover::{HandoverDir, Record, Records};

use super::node::Node;
use super::reporter::Reporter;

/// Takes over what was handed over, and remembers what last went wrong: the same is logged once.
#[derive(Debug)]
pub(super) struct Takeover {
    intake: HandoverDir,
    error: Option<String>,
}

impl Takeover {
    pub(super) fn new(intake: HandoverDir) -> Self {
        Self {
            intake,
            error: None,
        }
    }

    /// Reports whether there may be something to take; costs next to nothing.
    pub(super) fn has_any(&self) -> bool {
        self.intake.has_any()
    }

    /// Puts what was handed over where the daemon's own runs put it.
    pub(super) fn take(&mut self, node: &Node) {
        let taken = self.intake.take(|records| take(&records, node));
        let error = taken.err().map(|error| error.to_string());
        if let Some(error) = &error
            && self.error.as_ref() != Some(error)
        {
            let fields = [("error", error.clone())];
            let text = "Could not take over the events of another run";
            node.say(Level::Error, text, &fields);
        }
        self.error = error;
    }
}

/// Takes the records of one run.
fn take(records: &Records<'_>, node: &Node) {
    let mut reporter = Reporter::new(node);
    for record in records.iter() {
        match record {
            Ok(Record::Event(event)) => {
                node.services.event_sink.event(&event);
                node.services.metrics.resource_event(&event);
            }
            // Another program need not know who we are in the fleet.
            Ok(Record::Run(run)) => reporter.finished(&RunSummary {
                identity: node.identity.name.clone(),
                collective: node.identity.collective.clone(),
                ..*run
            }),
            Ok(Record::Check(check)) => reporter.checked(&check.as_checked()),
            Ok(Record::Services { entries, standing }) => reporter.services(&entries, standing),
            Ok(Record::Line { level, text }) => node.services.log.line(&Line::new(level, text)),
            Ok(Record::LeftOut(records)) => {
                let fields = [("events", records.to_string())];
                let text = "Events of other runs were given up, too many waited";
                node.say(Level::Error, text, &fields);
            }
            Err(error) => {
                let fields = [
                    ("file", records.path.display().to_string()),
                    ("error", error.to_string()),
                ];
                node.say(
                    Level::Error,
                    "Could not read an event of another run",
                    &fields,
                );
            }
        }
    }
    node.services.event_sink.sync();
}
