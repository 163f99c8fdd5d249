//! The event_sink: events and summaries on their way to the bus, by way of the spool.
//!
//! An event that can't be kept is counted and logged, and never breaks the run it tells of.

use std::sync::Arc;

use super::spool::{Class, Record, Spool};
use ccm_core::engine::{Level, Line};
use ccm_core::model::audit::AuditEvent;
use ccm_core::model::event::{Outcome, TransactionEvent};
use ccm_core::model::node::{SpoolStatus, Token};
use ccm_core::model::run::{RunOutcome, RunSummary};
use ccm_core::run::log::Log;
use ccm_nats::{Subject, Subjects};
use ccm_value::json;

/// Takes what happened and keeps it until the bus has it.
#[derive(Clone)]
pub struct EventSink {
    spool: Arc<Spool>,
    subjects: Subjects,
    node: Token,
    log: Log,
}

impl EventSink {
    pub fn new(spool: Arc<Spool>, subjects: Subjects, node: Token, log: Log) -> Self {
        Self {
            spool,
            subjects,
            node,
            log,
        }
    }

    /// Takes the event of a resource.
    pub fn event(&self, event: &TransactionEvent) {
        let outcome = outcome_word(event);
        let subject = self.subjects.event(&self.node, &event.type_name, outcome);
        let class = match event.outcome() {
            Outcome::Stable => Class::Stable,
            Outcome::Failed | Outcome::Changed | Outcome::Skipped => Class::Important,
        };
        self.put(event.event_id.as_str(), subject, class, event);
    }

    /// Takes the summary of a run.
    pub fn run(&self, run: &RunSummary) {
        let subject = self.subjects.run_event(&self.node, run.outcome);
        let class = match run.outcome {
            RunOutcome::Stable => Class::Stable,
            _ => Class::Important,
        };
        self.put(run.event_id.as_str(), subject, class, run);
    }

    /// Takes what is remembered of a request.
    pub fn audit(&self, event: &AuditEvent) {
        let decision = event.decision.as_str();
        let subject = self.subjects.event(&self.node, "audit", decision);
        self.put(event.event_id.as_str(), subject, Class::Important, event);
    }

    /// Makes sure that what was taken survives a power cut.
    pub fn sync(&self) {
        if let Err(err) = self.spool.sync() {
            self.complain("Could not write events to disk", err.to_string());
        }
    }

    pub fn status(&self) -> SpoolStatus {
        self.spool.status()
    }

    fn put(&self, id: &str, subject: Subject, class: Class, document: &impl serde::Serialize) {
        let body = match json::compact(document) {
            Ok(body) => body.into_bytes(),
            Err(err) => return self.complain("Could not write an event", err.to_string()),
        };
        let record = Record {
            id: id.into(),
            subject: subject.as_str().into(),
            class,
            body,
        };
        if let Err(err) = self.spool.append(&record) {
            self.complain("Could not keep an event", err.to_string());
        }
    }

    fn complain(&self, text: &str, error: String) {
        self.log
            .line(&Line::new(Level::Error, text).with("error", error));
    }
}

/// Returns the word for an event's outcome in its subject.
fn outcome_word(event: &TransactionEvent) -> &'static str {
    match event.outcome() {
        Outcome::Failed => "failed",
        Outcome::Skipped => "skipped",
        Outcome::Changed if event.noop => "noop",
        Outcome::Changed => "changed",
        Outcome::Stable => "stable",
    }
}
