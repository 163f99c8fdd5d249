//! Request handlers: one per verb, from request body to reply body.
//!
//! Every request for this node gets exactly one reply with a body, malformed ones included.
//! Requests that only read never wait for a run (`reads`); the others go to the run queue.
//! Authentication and transport are in `request_server`.

mod cancel;
mod check;
mod reads;

use std::sync::Arc;

use tokio::sync::{AcquireError, mpsc, oneshot};
use tokio::task::JoinError;

use reads::Readers;
pub(super) use reads::status_policy_request;

use super::assignment::CheckReply;
use super::node::Node;
use super::run::{EnsureResult, RunResult, RunTask};
use super::run_queue::{Job, Permit, Refusal};
use super::trust::Requester;
use super::trust::audit::AuditRequest;
use ccm_core::engine::{Level, Mode};
use ccm_core::filter::FilterError;
use ccm_core::model::envelope::Envelope;
use ccm_core::model::node::Refusal as Refused;
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::request::{EnsureResponse, RequestError, StatusResponse, parse_ensure};
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{ApplyRequest, ApplyResponse, CurrentRun, RunId, Trigger, parse_apply};
use ccm_core::run::Request as RunRequest;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_nats::Verb;
use ccm_template::expand::has_expressions;
use ccm_value::json;

/// Longest error text of a reply, in characters.
const MAX_REASON: usize = 8 * 1024;

/// Audit reason for a request that could not be parsed.
pub(super) const MALFORMED: &str = "malformed request";

/// Error codes of replies, as in HTTP.
pub(super) mod code {
    pub(crate) const BAD_REQUEST: u16 = 400;
    pub(crate) const DENIED: u16 = 403;
    pub(crate) const NOT_FOUND: u16 = 404;
    pub(crate) const LATE: u16 = 408;
    pub(crate) const TOO_LARGE: u16 = 413;
    pub(crate) const PAUSED: u16 = 423;
    pub(crate) const BUSY: u16 = 429;
    pub(crate) const INTERNAL: u16 = 500;
    pub(crate) const CLOSING: u16 = 503;
}

/// Why a request could not be handled.
#[derive(Debug, thiserror::Error)]
enum HandlerError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Facts(#[from] serde_json::Error),
    /// The agent is shutting down.
    #[error(transparent)]
    Closed(#[from] AcquireError),
    #[error(transparent)]
    Ended(#[from] JoinError),
}

/// Reply of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The request is for other nodes; nothing is sent.
    Ignored,
    Body(String),
    /// An error: a complete document for the verb, and code and text for the headers.
    Error {
        code: u16,
        text: String,
        body: String,
    },
}

/// A request to this node.
#[derive(Clone, Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) verb: Verb,
    /// Subject it was sent to.
    pub(crate) subject: String,
    /// Authenticated requester.
    pub(crate) requester: Requester,
    pub(crate) envelope: Envelope,
    pub(crate) body: Vec<u8>,
}

/// Details of a request that are known after parsing, for the audit.
#[derive(Default)]
struct AuditDetails<'a> {
    label: &'a str,
    noop: bool,
    run_id: Option<RunId>,
}

/// Handlers of all verbs.
#[derive(Clone)]
pub(crate) struct Handlers {
    node: Arc<Node>,
    readers: Readers,
    /// Notified when the assignment may have changed.
    nudge: Arc<tokio::sync::Notify>,
    /// Makes the schedule check the assignment in noop mode.
    check: mpsc::Sender<CheckReply>,
}

impl Handlers {
    pub(crate) fn new(
        node: Arc<Node>,
        nudge: Arc<tokio::sync::Notify>,
        check: mpsc::Sender<CheckReply>,
    ) -> Self {
        Self {
            node,
            readers: Readers::default(),
            nudge,
            check,
        }
    }

    /// Makes the schedule check the assignment, and the presence retry what failed.
    pub(crate) fn nudge(&self) {
        self.nudge.notify_one();
        self.node.notify_nudged();
    }

    /// Handles a request.
    pub(crate) async fn handle(&self, incoming: IncomingRequest) -> Reply {
        let verb = incoming.verb;
        let envelope = &incoming.envelope;
        // Whether an apply is noop is known after parsing its body.
        let policy_request = PolicyRequest {
            verb: verb.as_str(),
            noop: envelope.noop || self.node.identity.noop || verb == Verb::Apply,
            ..PolicyRequest::default()
        };
        if let Err(denied) = incoming.requester.may(&policy_request) {
            return self.deny(&incoming, &AuditDetails::default(), &denied.to_string());
        }
        match self.matches_filter(envelope).await {
            Ok(true) => {}
            Ok(false) => return Reply::Ignored,
            Err(err) => return self.malformed(&incoming, &err.to_string()),
        }
        let now = self.node.services.clock.now();
        if envelope.deadline.is_some_and(|deadline| now > deadline) {
            let reason = "deadline has passed".to_owned();
            return self.refuse_audited(&incoming, &AuditDetails::default(), code::LATE, reason);
        }
        let Ok(text) = String::from_utf8(incoming.body.clone()) else {
            return self.malformed(&incoming, "request is not UTF-8");
        };
        // The others are audited after parsing.
        if !matches!(verb, Verb::Ensure | Verb::Apply | Verb::Status) {
            self.allow(&incoming, &AuditDetails::default());
        }
        match verb {
            Verb::Ensure => self.ensure(&text, &incoming).await,
            Verb::Apply => self.apply(&text, &incoming).await,
            Verb::Status => self.state(&text, &incoming).await,
            Verb::Facts => self.facts(&text).await,
            Verb::Ping => self.status(),
            Verb::Pause => match self.node.services.pause.begin(&text, &envelope.caller) {
                Ok(pause) => {
                    let fields = [("reason", pause.reason), ("by", pause.by)];
                    self.node.log(Level::Warn, "Paused", &fields);
                    self.status()
                }
                Err(err) => error_reply(verb, code::BAD_REQUEST, err.to_string()),
            },
            Verb::Resume => match self.node.services.pause.end() {
                Ok(()) => {
                    self.node
                        .log(Level::Info, "Resumed", &[("by", envelope.caller.clone())]);
                    self.nudge.notify_one();
                    self.status()
                }
                Err(err) => error_reply(verb, code::INTERNAL, err.to_string()),
            },
            Verb::Cancel => self.cancel(&text, envelope),
            // The assignment was checked on arrival.
            Verb::Nudge => self.status(),
        }
    }

    async fn ensure(&self, text: &str, incoming: &IncomingRequest) -> Reply {
        let envelope = &incoming.envelope;
        let resource = match self.parse_body(text, parse_ensure).await {
            Ok(resource) => resource,
            Err(err) => return self.malformed(incoming, &err.to_string()),
        };
        let label = resource.label();
        let mut details = AuditDetails {
            label: &label,
            noop: envelope.noop || self.node.identity.noop,
            run_id: None,
        };
        let policy_request = ensure_policy_request(&resource, details.noop);
        if let Err(denied) = incoming.requester.may(&policy_request) {
            return self.deny(incoming, &details, &denied.to_string());
        }
        if let Some(reason) = self.paused(envelope.noop) {
            return self.refuse_audited(incoming, &details, code::PAUSED, reason);
        }
        let run = CurrentRun {
            run_id: self.node.next_id(),
            source: label.clone(),
            trigger: Trigger::Request,
            since: self.node.services.clock.now(),
            noop: envelope.noop,
            waiting_for: None,
        };
        details.run_id = Some(run.run_id.clone());
        self.allow(incoming, &details);
        let node = self.node.clone();
        let mode = Mode {
            noop: envelope.noop,
            diff: envelope.diff,
            ..Mode::default()
        };
        let requester = incoming.requester.clone();
        let result = self
            .queue(run, envelope, move |permit| {
                node.ensure(resource, mode, &requester, &permit)
            })
            .await;
        match result {
            Ok(Ok(EnsureResult {
                event,
                diff,
                output,
            })) => body_reply(
                &EnsureResponse::new(Ok(event))
                    .with_diff(diff)
                    .with_output(output),
            ),
            Ok(Err(err)) => error_reply(Verb::Ensure, code::BAD_REQUEST, err.to_string()),
            Err(refusal) => refusal_reply(Verb::Ensure, &refusal),
        }
    }

    async fn apply(&self, text: &str, incoming: &IncomingRequest) -> Reply {
        let envelope = &incoming.envelope;
        let request = match self.parse_body(text, parse_apply).await {
            Ok(request) => request,
            Err(err) => return self.malformed(incoming, &err.to_string()),
        };
        if request.check {
            return self.check_assignment_now(incoming).await;
        }
        let task = self.task(request.clone(), incoming);
        let request_mode = task.request.mode;
        let shown = task.request.manifest.display_name();
        let details = AuditDetails {
            label: &shown,
            noop: request_mode.noop || (self.node.identity.noop && !request_mode.health_check_only),
            run_id: Some(task.request.run_id.clone()),
        };
        let policy_request = PolicyRequest {
            verb: Verb::Apply.as_str(),
            noop: details.noop,
            ..PolicyRequest::default()
        };
        if let Err(denied) = incoming.requester.may(&policy_request) {
            return self.deny(incoming, &details, &denied.to_string());
        }
        let harmless = request_mode.noop || request_mode.health_check_only;
        if let Some(reason) = self.paused(harmless) {
            return self.refuse_audited(incoming, &details, code::PAUSED, reason);
        }
        self.allow(incoming, &details);
        let run_id = task.request.run_id.clone();
        let run = task.current_run(&self.node);
        let node = self.node.clone();
        let accepted = self.submit(run, envelope, move |permit| task.execute(&node, &permit));
        if !request.wait {
            // A full queue refuses at once; later results are published as events.
            let mut accepted = accepted;
            return match accepted.try_recv() {
                Ok(Err(refusal)) => refusal_reply(Verb::Apply, &refusal),
                _ => body_reply(&ApplyResponse::accepted(run_id)),
            };
        }
        match accepted.await.unwrap_or(Err(Refusal::Closing)) {
            Ok(RunResult {
                run, events, diff, ..
            }) => {
                let events = events
                    .into_iter()
                    .filter(|event| event.changed || event.failed || event.blocks());
                let finished = ApplyResponse::finished(run, events.collect());
                body_reply(&ApplyResponse { diff, ..finished })
            }
            Err(refusal) => refusal_reply(Verb::Apply, &refusal),
        }
    }

    fn task(&self, request: ApplyRequest, incoming: &IncomingRequest) -> RunTask {
        let envelope = &incoming.envelope;
        let manifest = if request.manifest.is_empty() {
            ManifestSource::Source(request.source)
        } else {
            ManifestSource::Text(request.manifest)
        };
        let mode = Mode {
            noop: request.noop || (envelope.noop && !request.health_check_only),
            health_check_only: request.health_check_only,
            diff: envelope.diff,
        };
        RunTask {
            request: RunRequest {
                data: request.data,
                governor: request.governor,
                request_id: envelope.request_id.clone(),
                caller: envelope.caller.clone(),
                ..RunRequest::new(self.node.next_id(), manifest, mode)
            },
            requester: incoming.requester.clone(),
        }
    }

    fn status(&self) -> Reply {
        body_reply(&self.node.status())
    }

    /// Audits an allowed request.
    fn allow(&self, incoming: &IncomingRequest, details: &AuditDetails<'_>) {
        let request = incoming.audit_request(details);
        self.node
            .services
            .audit
            .allowed(&self.node, incoming.verb.as_str(), &request);
    }

    /// Refuses a request that the policy denies.
    fn deny(&self, incoming: &IncomingRequest, details: &AuditDetails<'_>, reason: &str) -> Reply {
        // A refused assignment is recorded by `assignment`.
        if incoming.verb != Verb::Nudge {
            let who = match &*incoming.requester.name {
                "" => &incoming.envelope.caller,
                signer => signer,
            };
            self.node.services.refusals.add(Refused {
                time: self.node.services.clock.now(),
                what: incoming.verb.as_str().into(),
                generation: None,
                incarnation: None,
                who: who.into(),
                reason: reason.into(),
            });
        }
        self.refuse_audited(incoming, details, code::DENIED, reason.to_owned())
    }

    /// Refuses a malformed request. The reason goes only to the sender: it may quote a secret.
    fn malformed(&self, incoming: &IncomingRequest, reason: &str) -> Reply {
        let request = incoming.audit_request(&AuditDetails::default());
        let audit = &self.node.services.audit;
        audit.denied(&self.node, incoming.verb.as_str(), &request, MALFORMED);
        error_reply(incoming.verb, code::BAD_REQUEST, reason.to_owned())
    }

    /// Refuses a request before anything is done, and audits it.
    fn refuse_audited(
        &self,
        incoming: &IncomingRequest,
        details: &AuditDetails<'_>,
        code: u16,
        reason: String,
    ) -> Reply {
        let (verb, request) = (incoming.verb, incoming.audit_request(details));
        self.node
            .services
            .audit
            .denied(&self.node, verb.as_str(), &request, &reason);
        error_reply(verb, code, reason)
    }

    /// Returns the reason to refuse changes, if the node is paused.
    fn paused(&self, harmless: bool) -> Option<String> {
        let pause = self.node.services.pause.current().filter(|_| !harmless)?;
        let by = match pause.by.as_str() {
            "" => String::new(),
            by => format!(" by {by}"),
        };
        let reason = pause.reason;
        Some(format!("node is paused{by}: {reason}; resume it first"))
    }

    /// Runs `work` in the run queue and returns its result.
    async fn queue<T: Send + 'static>(
        &self,
        run: CurrentRun,
        envelope: &Envelope,
        work: impl FnOnce(Permit) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let done = self.submit(run, envelope, work);
        done.await.unwrap_or(Err(Refusal::Closing))
    }

    fn submit<T: Send + 'static>(
        &self,
        run: CurrentRun,
        envelope: &Envelope,
        work: impl FnOnce(Permit) -> T + Send + 'static,
    ) -> oneshot::Receiver<Result<T, Refusal>> {
        let (sender, receiver) = oneshot::channel();
        self.node.services.run_queue.submit(Job {
            run,
            request_id: envelope.request_id.clone(),
            deadline: envelope.deadline,
            // The sender may have stopped waiting; the work is done anyway.
            callback: Box::new(move |permit| drop(sender.send(permit.map(work)))),
        });
        receiver
    }
}

impl IncomingRequest {
    fn audit_request<'a>(&'a self, details: &AuditDetails<'a>) -> AuditRequest<'a> {
        AuditRequest {
            subject: &self.subject,
            caller: &self.envelope.caller,
            request_id: &self.envelope.request_id,
            signer: &self.requester.name,
            about: details.label,
            noop: details.noop || self.envelope.noop,
            run_id: details.run_id.clone(),
        }
    }
}

/// Returns an ensure request as policies see it before templates are rendered.
pub(super) fn ensure_policy_request(resource: &Resource, noop: bool) -> PolicyRequest<'_> {
    PolicyRequest {
        type_name: Some(resource.type_name()),
        name: Some(resource.policy_name()),
        provider: non_empty(&resource.common.provider),
        verb: Verb::Ensure.as_str(),
        noop,
        // A rendered command is checked after rendering.
        command: resource
            .command_line()
            .filter(|line| !has_expressions(line)),
    }
}

/// Returns the text unless it is empty.
fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) fn body_reply(document: &impl serde::Serialize) -> Reply {
    match json::compact(document) {
        Ok(body) => Reply::Body(body),
        Err(err) => Reply::Error {
            code: code::INTERNAL,
            text: err.to_string(),
            body: "{}".into(),
        },
    }
}

fn refusal_reply(verb: Verb, refusal: &Refusal) -> Reply {
    let code = match refusal {
        Refusal::Busy(_) | Refusal::Held(_) => code::BUSY,
        Refusal::Deadline => code::LATE,
        Refusal::Cancelled | Refusal::Closing => code::CLOSING,
        Refusal::Cancel(_) | Refusal::Lock(_) => code::INTERNAL,
    };
    error_reply(verb, code, refusal.to_string())
}

/// Returns an error in the reply format of the verb.
pub(super) fn error_reply(verb: Verb, code: u16, text: String) -> Reply {
    // Errors quote the request; the reply must stay below the size limit of messages.
    let text: String = text.chars().take(MAX_REASON).collect();
    let body = match verb {
        Verb::Ensure => json::compact(&EnsureResponse::new(Err(text.clone()))),
        Verb::Status => json::compact(&StatusResponse::new(Err(text.clone()))),
        Verb::Apply => json::compact(&ApplyResponse::refused(text.clone())),
        _ => json::compact(&serde_json::json!({ "error": text })),
    };
    Reply::Error {
        code,
        // A header holds one line.
        text: text.lines().next().unwrap_or_default().to_owned(),
        body: body.unwrap_or_else(|_| "{}".into()),
    }
}
