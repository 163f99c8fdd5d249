//! Audit events of enrolments.

use chrono::{DateTime, Utc};

use super::EnrolmentError;
use crate::audit;
use ccm_core::model::audit::AuditDecision;
use ccm_core::model::node::{NodeName, Token};
use ccm_nats::{Connection, Subjects};

/// Verb of the audit events.
const ENROLL: &str = "enroll";

/// A decision on an enrolment.
#[derive(Clone, Debug)]
pub(super) struct AuditRecord<'a> {
    pub(super) node: &'a NodeName,
    pub(super) public_key: &'a str,
    /// Token of the request.
    pub(super) token: &'a Token,
    pub(super) decision: AuditDecision,
    pub(super) reason: &'a str,
    /// Operator, or the token of an automatic decision.
    pub(super) decided_by: &'a str,
}

/// Stores an audit event.
pub(super) async fn publish(
    connection: &Connection,
    subjects: &Subjects,
    record: &AuditRecord<'_>,
    now: DateTime<Utc>,
) -> Result<(), EnrolmentError> {
    let record = audit::AuditRecord {
        node: record.node,
        verb: ENROLL,
        subject: subjects.enrolment(record.token).to_string(),
        decision: record.decision,
        reason: record.reason,
        decided_by: record.decided_by,
        about: format!("key {}", record.public_key),
    };
    Ok(audit::publish(connection, subjects, record, now).await?)
}
