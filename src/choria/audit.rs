//! Audit log: one JSON line per request, in a file next to the run records.
//!
//! It records the caller, the action, the decision and the run id, but not the inputs.

use std::path::Path;

use super::external_protocol::Request;
use super::reply::{Failure, clipped, on_one_line};
use ccm_core::engine::EventIds;
use ccm_core::model::audit::{AUDIT, AuditDecision, AuditEvent};
use ccm_core::model::node::NodeName;
use ccm_core::model::run::RunId;
use ccm_core::system::{Clock, files};
use ccm_value::json;

/// File name in the run directory.
const FILE: &str = "audit.log";

/// Size at which the file is rotated.
const MAX_BYTES: u64 = 1024 * 1024;

/// Length limit of text from a request.
const MAX_TEXT: usize = 256;

/// What a request refers to.
#[derive(Debug, Default)]
pub(super) struct AuditTarget {
    /// Resource or source, without secrets.
    pub label: String,
    pub noop: bool,
    pub run_id: Option<RunId>,
}

/// Records whether a request is allowed or denied. If this fails, the request is refused.
pub(super) fn record(
    directory: &Path,
    identity: &NodeName,
    request: &Request,
    target: &AuditTarget,
    denied: Option<&str>,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let now = clock.now();
    let event = AuditEvent {
        protocol: AUDIT.into(),
        event_id: EventIds::new().map_err(Failure::aborted)?.next(now),
        timestamp: now,
        identity: identity.clone(),
        collective: request.collective.parse().map_err(Failure::invalid)?,
        subject: format!("choria.{}", request.agent),
        verb: short(&request.action),
        decision: match denied {
            Some(_) => AuditDecision::Denied,
            None => AuditDecision::Allowed,
        },
        reason: short(denied.unwrap_or_default()),
        signer: String::new(),
        caller: short(&format!("{} from {}", request.callerid, request.senderid)),
        request_id: short(&request.requestid),
        about: short(&target.label),
        noop: target.noop,
        run_id: target.run_id.clone(),
        unrecorded: 0,
    };
    let line = json::compact(&event).map_err(Failure::unknown)? + "\n";
    let file = directory.join(FILE);
    files::append(&file, line.as_bytes(), MAX_BYTES).map_err(Failure::unknown)
}

fn short(text: &str) -> String {
    clipped(&on_one_line(text), MAX_TEXT)
}
