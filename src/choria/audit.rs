//! The audit: one line for every request, in a file beside the runs.
//!
//! It says who asked for what and whether that was let through, never what the request held. Our
//! output belongs to the server's log, which has its own audit; this one also names the run.

use std::path::Path;

use super::external_protocol::Request;
use super::reply::{Failure, clipped, on_one_line};
use ccm_core::engine::EventIds;
use ccm_core::model::audit::{AUDIT, AuditDecision, AuditEvent};
use ccm_core::model::node::NodeName;
use ccm_core::model::run::RunId;
use ccm_core::system::{Clock, files};
use ccm_value::json;

/// The name of the file in the folder of runs.
const FILE: &str = "audit.log";

/// How large the file grows before it becomes the old one.
const MAX_BYTES: u64 = 1024 * 1024;

/// The longest text of a request that is repeated.
const MAX_TEXT: usize = 256;

/// What a request turned out to be about.
#[derive(Debug, Default)]
pub(super) struct About {
    /// The resource or the source, as people may see it.
    pub label: String,
    pub noop: bool,
    pub run_id: Option<RunId>,
}

/// Records that a request is obeyed, or why it is not. What can't be recorded is not done.
pub(super) fn record(
    directory: &Path,
    identity: &NodeName,
    request: &Request,
    about: &About,
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
        about: short(&about.label),
        noop: about.noop,
        run_id: about.run_id.clone(),
        unrecorded: 0,
    };
    let line = json::compact(&event).map_err(Failure::unknown)? + "\n";
    let file = directory.join(FILE);
    files::append(&file, line.as_bytes(), MAX_BYTES).map_err(Failure::unknown)
}

fn short(text: &str) -> String {
    clipped(&on_one_line(text), MAX_TEXT)
}
