//! Audit: logs every request received over NATS, and publishes an audit event where signatures are
//! verified: with a `trust` section, or as a server of Choria's network.
//!
//! The rate of records for denied requests is limited, so that a flood fills neither the disk nor
//! the spool; the next record has the number of those left out. Request bodies are never recorded.

use parking_lot::Mutex;

use crate::node::Node;
use ccm_core::engine::Level;
use ccm_core::model::audit::{AUDIT, AuditDecision, AuditEvent, DenialLimit};
use ccm_core::model::run::RunId;

/// Longest recorded text of a request, in characters.
const MAX_TEXT: usize = 256;

/// Details of a request for the audit.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditRequest<'a> {
    pub(crate) subject: &'a str,
    pub(crate) caller: &'a str,
    pub(crate) request_id: &'a str,
    pub(crate) signer: &'a str,
    /// Resource or manifest source, as shown to users.
    pub(crate) about: &'a str,
    pub(crate) noop: bool,
    pub(crate) run_id: Option<RunId>,
}

/// Audit with its rate limit for denials.
#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<DenialLimit>);

impl Audit {
    /// Records an allowed request.
    pub(crate) fn allowed(&self, node: &Node, verb: &str, request: &AuditRequest<'_>) {
        record(node, verb, request, AuditDecision::Allowed, "", 0);
    }

    /// Records a denied request and the reason.
    pub(crate) fn denied(&self, node: &Node, verb: &str, request: &AuditRequest<'_>, reason: &str) {
        let second = node.services.clock.now().timestamp();
        let mut limit = self.0.lock();
        let unrecorded = limit.take(second);
        drop(limit);
        if let Some(unrecorded) = unrecorded {
            record(
                node,
                verb,
                request,
                AuditDecision::Denied,
                reason,
                unrecorded,
            );
        }
    }
}

fn record(
    node: &Node,
    verb: &str,
    request: &AuditRequest<'_>,
    decision: AuditDecision,
    reason: &str,
    unrecorded: u64,
) {
    let event = AuditEvent {
        protocol: AUDIT.into(),
        event_id: node.next_id(),
        timestamp: node.services.clock.now(),
        identity: node.identity.name.clone(),
        collective: node.identity.collective.clone(),
        subject: request.subject.into(),
        verb: verb.into(),
        decision,
        reason: reason.into(),
        signer: request.signer.into(),
        caller: sanitize(request.caller),
        request_id: sanitize(request.request_id),
        about: sanitize(request.about),
        noop: request.noop,
        run_id: request.run_id.clone(),
        unrecorded,
    };
    let (level, text) = match decision {
        AuditDecision::Allowed => (Level::Info, "Request allowed"),
        AuditDecision::Denied => (Level::Warn, "Request denied"),
    };
    node.log(level, text, &fields(&event));
    if node.services.authorizer.is_strict() || node.identity.is_choria_server {
        node.services.event_sink.audit(&event);
    }
}

/// Returns the non-empty fields of an event for the log.
fn fields(event: &AuditEvent) -> Vec<(&'static str, String)> {
    let run = event.run_id.as_ref().map(ToString::to_string);
    let unrecorded = match event.unrecorded {
        0 => String::new(),
        number => number.to_string(),
    };
    let noop = if event.noop { "true" } else { "" };
    let all = [
        ("verb", event.verb.clone()),
        ("subject", event.subject.clone()),
        ("signer", event.signer.clone()),
        ("caller", event.caller.clone()),
        ("request", event.request_id.clone()),
        ("about", event.about.clone()),
        ("noop", noop.to_owned()),
        ("run", run.unwrap_or_default()),
        ("reason", event.reason.clone()),
        ("unrecorded", unrecorded),
    ];
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

fn sanitize(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_TEXT)
        .collect()
}
