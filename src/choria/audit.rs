//! Audit log: one JSON line per request, in a file next to the run records.
//!
//! It records the caller, the action, the decision and the run id, but not the inputs. A refusal and a
//! read-only request are recorded by the process that handles them; an allowed run by the process that
//! executes it, once it holds the locks, so that a run id in the log is that of a run.

use std::path::Path;

use serde::{Deserialize, Serialize};

use ccm_agent::choria_rpc::reply::{Failure, clipped, on_one_line};
use ccm_core::engine::EventIds;
use ccm_core::model::audit::{AUDIT, AuditDecision, AuditEvent};
use ccm_core::model::node::{NameError, NodeName};
use ccm_core::model::run::RunId;
use ccm_core::system::{Clock, FileError, RandomError, files};
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

/// Sender, caller and name of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Origin {
    pub agent: String,
    pub action: String,
    pub request_id: String,
    pub sender: String,
    pub caller: String,
    pub collective: String,
}

/// Reason why a request was not recorded, and is therefore refused.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("invalid collective: {0}")]
    Collective(#[source] NameError),
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("could not write the audit log: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("could not write the audit log: {0}")]
    File(#[from] FileError),
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Collective(_) => Self::invalid(error),
            error => Self::unknown(error),
        }
    }
}

/// Records whether a request is allowed or denied. If this fails, the request is refused.
pub(super) fn record(
    directory: &Path,
    identity: &NodeName,
    origin: &Origin,
    target: &AuditTarget,
    denied: Option<&str>,
    clock: &dyn Clock,
) -> Result<(), AuditError> {
    let now = clock.now();
    let event = AuditEvent {
        protocol: AUDIT.into(),
        event_id: EventIds::new()?.next(now),
        timestamp: now,
        identity: identity.clone(),
        collective: origin.collective.parse().map_err(AuditError::Collective)?,
        subject: format!("choria.{}", origin.agent),
        verb: short(&origin.action),
        decision: match denied {
            Some(_) => AuditDecision::Denied,
            None => AuditDecision::Allowed,
        },
        reason: short(denied.unwrap_or_default()),
        signer: String::new(),
        caller: short(&format!("{} from {}", origin.caller, origin.sender)),
        request_id: short(&origin.request_id),
        about: short(&target.label),
        noop: target.noop,
        run_id: target.run_id.clone(),
        unrecorded: 0,
    };
    let line = json::compact(&event)? + "\n";
    Ok(files::append(
        &directory.join(FILE),
        line.as_bytes(),
        MAX_BYTES,
    )?)
}

fn short(text: &str) -> String {
    clipped(&on_one_line(text), MAX_TEXT)
}
