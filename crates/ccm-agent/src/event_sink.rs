//! Event sink: writes events and run summaries to the spool, from which they are published.
//!
//! An event that could not be written is counted and logged; the run continues.

use std::sync::Arc;

use super::spool::{Class, Record, Spool, SpoolError};
use ccm_core::engine::{Level, Line};
use ccm_core::model::audit::AuditEvent;
use ccm_core::model::event::{Outcome, TransactionEvent};
use ccm_core::model::node::{SpoolStatus, Token};
use ccm_core::model::run::{RunOutcome, RunSummary};
use ccm_core::run::log::Log;
use ccm_nats::{Subject, Subjects};
use ccm_value::json;

/// Writes events of a node to its spool.
#[derive(Clone)]
pub(crate) struct EventSink {
    spool: Arc<Spool>,
    subjects: Subjects,
    node: Token,
    log: Log,
}

impl EventSink {
    pub(crate) fn new(spool: Arc<Spool>, subjects: Subjects, node: Token, log: Log) -> Self {
        Self {
            spool,
            subjects,
            node,
            log,
        }
    }

    /// Creates the directory of the spool again if it was deleted; returns whether it was.
    pub(crate) fn restore(&self) -> Result<bool, SpoolError> {
        self.spool.restore()
    }

    /// Spools the event of a resource.
    pub(crate) fn event(&self, event: &TransactionEvent) {
        let outcome = outcome_token(event);
        let subject = self.subjects.event(&self.node, &event.type_name, outcome);
        let class = match event.outcome() {
            Outcome::Stable => Class::Stable,
            Outcome::Failed | Outcome::Changed | Outcome::Skipped => Class::Important,
        };
        self.put(event.event_id.as_str(), subject, class, event);
    }

    /// Spools the summary of a run.
    pub(crate) fn run(&self, run: &RunSummary) {
        let subject = self.subjects.run_event(&self.node, run.outcome);
        let class = match run.outcome {
            RunOutcome::Stable => Class::Stable,
            _ => Class::Important,
        };
        self.put(run.event_id.as_str(), subject, class, run);
    }

    /// Spools the audit event of a request.
    pub(crate) fn audit(&self, event: &AuditEvent) {
        let decision = event.decision.as_str();
        let subject = self.subjects.event(&self.node, "audit", decision);
        self.put(event.event_id.as_str(), subject, Class::Important, event);
    }

    /// Syncs the spool to disk, so that events survive a power cut.
    pub(crate) fn sync(&self) {
        if let Err(err) = self.spool.sync() {
            self.log_error("Could not sync the event spool", err.to_string());
        }
    }

    pub(crate) fn status(&self) -> SpoolStatus {
        self.spool.status()
    }

    fn put(&self, id: &str, subject: Subject, class: Class, document: &impl serde::Serialize) {
        let body = match json::compact(document) {
            Ok(body) => body.into_bytes(),
            Err(err) => return self.log_error("Could not serialize an event", err.to_string()),
        };
        let record = Record {
            id: id.into(),
            subject: subject.as_str().into(),
            class,
            body,
        };
        if let Err(err) = self.spool.append(&record) {
            self.log_error("Could not spool an event", err.to_string());
        }
    }

    fn log_error(&self, text: &str, error: String) {
        self.log
            .line(&Line::new(Level::Error, text).with("error", error));
    }
}

/// Returns the outcome of an event as a subject token.
pub(crate) fn outcome_token(event: &TransactionEvent) -> &'static str {
    match event.outcome() {
        Outcome::Failed => "failed",
        Outcome::Skipped => "skipped",
        Outcome::Changed if event.noop => "noop",
        Outcome::Changed => "changed",
        Outcome::Stable => "stable",
    }
}
