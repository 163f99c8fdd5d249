//! Handler of `apply` with `check`: compares the node with its own assignment in noop mode.
//!
//! The assignment and its requester are those that the node has accepted, so the caller needs no more
//! than the right to apply in noop mode. The node stores and publishes the report itself.

use tokio::sync::oneshot;

use super::{AuditDetails, Handlers, IncomingRequest, Reply, body_reply, code, error_reply};
use crate::assignment::CheckError;
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::run::ApplyResponse;
use ccm_nats::Verb;

/// What the audit says about a check.
const LABEL: &str = "assignment";

impl Handlers {
    /// Checks the assignment and replies with the new report.
    pub(super) async fn check_assignment_now(&self, incoming: &IncomingRequest) -> Reply {
        let details = AuditDetails {
            label: LABEL,
            noop: true,
            run_id: None,
        };
        let policy_request = PolicyRequest {
            verb: Verb::Apply.as_str(),
            noop: true,
            ..PolicyRequest::default()
        };
        if let Err(denied) = incoming.requester.may(&policy_request) {
            return self.deny(incoming, &details, &denied.to_string());
        }
        self.allow(incoming, &details);
        let (reply, result) = oneshot::channel();
        if self.check.try_send(reply).is_err() {
            let text = "busy: too many checks are waiting already".to_owned();
            return error_reply(Verb::Apply, code::BUSY, text);
        }
        match result.await {
            Ok(Ok(report)) => body_reply(&ApplyResponse::checked(report)),
            Ok(Err(err)) => {
                let code = match err {
                    CheckError::NotAssigned | CheckError::NotApplied(_) => code::NOT_FOUND,
                    CheckError::Failed(_) => code::INTERNAL,
                };
                error_reply(Verb::Apply, code, err.to_string())
            }
            Err(_) => {
                let text = "the agent is shutting down".to_owned();
                error_reply(Verb::Apply, code::CLOSING, text)
            }
        }
    }
}
