//! Audit events of decisions that operators and controllers make about a node, in the event stream
//! of the fleet. Requests to a node are audited by its agent.

use chrono::{DateTime, Utc};

use ccm_core::engine::EventIds;
use ccm_core::model::audit::{AUDIT, AuditDecision, AuditEvent};
use ccm_core::model::node::NodeName;
use ccm_nats::{Connection, NatsError, Subjects};

/// A decision about a node.
#[derive(Clone, Debug)]
pub(crate) struct AuditRecord<'a> {
    pub(crate) node: &'a NodeName,
    pub(crate) verb: &'a str,
    /// Subject of the request, if there was one.
    pub(crate) subject: String,
    pub(crate) decision: AuditDecision,
    pub(crate) reason: &'a str,
    /// Operator, or what decided automatically.
    pub(crate) decided_by: &'a str,
    pub(crate) about: String,
}

/// Stores an audit event.
pub(crate) async fn publish(
    connection: &Connection,
    subjects: &Subjects,
    record: AuditRecord<'_>,
    now: DateTime<Utc>,
) -> Result<(), NatsError> {
    let event_id = EventIds::new()?.next(now);
    let subject = subjects.event(&record.node.token(), "audit", record.decision.as_str());
    let event = AuditEvent {
        protocol: AUDIT.into(),
        event_id: event_id.clone(),
        timestamp: now,
        identity: record.node.clone(),
        collective: subjects.collective().clone(),
        subject: record.subject,
        verb: record.verb.into(),
        decision: record.decision,
        reason: record.reason.into(),
        signer: String::new(),
        caller: record.decided_by.into(),
        request_id: String::new(),
        about: record.about,
        noop: false,
        run_id: None,
        unrecorded: 0,
    };
    let body = serde_json::to_vec(&event).map_err(|err| NatsError::Failed {
        action: "publish",
        subject: subject.to_string(),
        source: err.into(),
    })?;
    connection
        .publish_stored(&subject, event_id.as_str(), body.into())
        .await
}
