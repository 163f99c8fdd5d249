//! Audit events of enrolments, in the event stream of the fleet.

use chrono::{DateTime, Utc};

use super::EnrolmentError;
use ccm_core::model::audit::{AUDIT, AuditDecision, AuditEvent};
use ccm_core::model::id::EventId;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::system::random;
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
    let event_id = EventId::new(now, random()? >> 1);
    let subject = subjects.event(&record.node.token(), "audit", record.decision.as_str());
    let event = AuditEvent {
        protocol: AUDIT.into(),
        event_id: event_id.clone(),
        timestamp: now,
        identity: record.node.clone(),
        collective: subjects.collective().clone(),
        subject: subjects.enrolment(record.token).to_string(),
        verb: ENROLL.into(),
        decision: record.decision,
        reason: record.reason.into(),
        signer: String::new(),
        caller: record.decided_by.into(),
        request_id: String::new(),
        about: format!("key {}", record.public_key),
        noop: false,
        run_id: None,
        unrecorded: 0,
    };
    let body = serde_json::to_vec(&event).map_err(|source| EnrolmentError::Record {
        key: subject.to_string(),
        source,
    })?;
    connection
        .publish_stored(&subject, event_id.as_str(), body.into())
        .await?;
    Ok(())
}
