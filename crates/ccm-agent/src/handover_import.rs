//! Handover import: takes over the events, health checks, services and log lines that runs by other
//! programs on this node left for the agent.

use ccm_core::engine::{Level, Line, Sink as _};
use ccm_core::model::run::RunSummary;
use ccm_core::run::handover::{HandoverDir, Record, Records};

use super::node::Node;
use super::reporter::Reporter;

/// Importer with its last error, so that the same error is logged once.
#[derive(Debug)]
pub(super) struct HandoverImport {
    handover: HandoverDir,
    error: Option<String>,
}

impl HandoverImport {
    pub(super) fn new(handover: HandoverDir) -> Self {
        Self {
            handover,
            error: None,
        }
    }

    /// Reports cheaply whether there may be something to import.
    pub(super) fn has_any(&self) -> bool {
        self.handover.has_files()
    }

    /// Imports all records as if the agent had made the runs.
    pub(super) fn import(&mut self, node: &Node) {
        let imported = self.handover.import(|records| import(&records, node));
        let error = imported.err().map(|error| error.to_string());
        if let Some(error) = &error
            && self.error.as_ref() != Some(error)
        {
            let fields = [("error", error.clone())];
            let text = "Could not import events of runs by other programs";
            node.log(Level::Error, text, &fields);
        }
        self.error = error;
    }
}

/// Imports the records of one run.
fn import(records: &Records<'_>, node: &Node) {
    let mut reporter = Reporter::new(node);
    for record in records.iter() {
        match record {
            Ok(Record::Event(event)) => {
                node.services.event_sink.event(&event);
                node.services.metrics.resource_event(&event);
            }
            // Other programs may not know the identity of the node.
            Ok(Record::Run(run)) => reporter.finished(&RunSummary {
                identity: node.identity.name.clone(),
                collective: node.identity.collective.clone(),
                ..*run
            }),
            Ok(Record::Check(check)) => reporter.checked(&check.as_completed()),
            Ok(Record::Services {
                entries,
                availability,
            }) => reporter.services(&entries, availability),
            Ok(Record::Line { level, text }) => node.services.log.line(&Line::new(level, text)),
            Ok(Record::LeftOut(records)) => {
                let fields = [("events", records.to_string())];
                let text = "Dropped events of runs by other programs: too many were waiting";
                node.log(Level::Error, text, &fields);
            }
            Err(error) => {
                let fields = [
                    ("file", records.path.display().to_string()),
                    ("error", error.to_string()),
                ];
                node.log(
                    Level::Error,
                    "Could not read an event of a run by another program",
                    &fields,
                );
            }
        }
    }
    node.services.event_sink.sync();
}
