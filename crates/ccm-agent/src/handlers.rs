//! Verbs: what a node can be asked over the bus, as bytes in and bytes out.
//!
//! Who asks and how the answer travels is not known here. Every question that is meant for this
//! node gets exactly one answer with a body, also a malformed one. Questions that only read never
//! wait for a run; the others queue at the run_queue.

use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::{AcquireError, Semaphore, oneshot};
use tokio::task::JoinError;

use super::node::Node;
use super::run::{Done, Order};
use super::run_queue::{Job, Permit, Refusal};
use super::trust::Requester;
use super::trust::audit::Request;
use ccm_core::engine::{Level, StatusError, Mode, resource_from_request};
use ccm_core::filter::{self, FilterError};
use ccm_core::model::envelope::Envelope;
use ccm_core::model::id::EventIdError;
use ccm_core::model::label::Labels;
use ccm_core::model::node::Refusal as Refused;
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::request::{
    EnsureResponse, RequestError, StatusResponse, parse_ensure, parse_status,
};
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{ApplyRequest, ApplyResponse, CurrentRun, RunId, Trigger, parse_apply};
use ccm_core::run::Request as RunRequest;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_nats::Verb;
use ccm_template::expand::has_expressions;
use ccm_template::path;
use ccm_value::document::{DocumentError, parse_message};
use ccm_value::json;

/// How many questions are looked into at once.
const MOST_READERS: usize = 8;

/// The longest body that is read at once.
const SMALL_BODY: usize = 64 * 1024;

/// The longest reason that is given for a refusal.
const MAX_REASON: usize = 8 * 1024;

/// What is remembered of a request that can't be read.
pub(super) const MALFORMED: &str = "malformed request";

/// The codes of answers that say no, as in HTTP.
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

/// Why a question can't be looked into.
#[derive(Debug, thiserror::Error)]
enum HandlerError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Facts(#[from] serde_json::Error),
    #[error("missing run_id in request")]
    NoRunId,
    #[error(transparent)]
    RunId(#[from] EventIdError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The agent is ending.
    #[error(transparent)]
    Closed(#[from] AcquireError),
    #[error(transparent)]
    Ended(#[from] JoinError),
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The question is not meant for this node.
    Silence,
    Body(String),
    /// An answer that says no: still a whole document, and a code and text for tools.
    Refuse {
        code: u16,
        text: String,
        body: String,
    },
}

/// A question to this node.
#[derive(Clone, Debug)]
pub struct IncomingRequest {
    pub verb: Verb,
    /// Where it was sent to.
    pub subject: String,
    /// Who asks, as far as that was proved.
    pub asker: Requester,
    pub envelope: Envelope,
    pub body: Vec<u8>,
}

/// What a question turned out to be about, for the audit.
#[derive(Default)]
struct About<'a> {
    label: &'a str,
    noop: bool,
    run_id: Option<RunId>,
}

/// Answers questions.
#[derive(Clone)]
pub struct Handlers {
    node: Arc<Node>,
    readers: Arc<Semaphore>,
    /// Told that the assignment may be new.
    nudge: Arc<tokio::sync::Notify>,
}

impl Handlers {
    pub fn new(node: Arc<Node>, nudge: Arc<tokio::sync::Notify>) -> Self {
        Self {
            node,
            readers: Arc::new(Semaphore::new(MOST_READERS)),
            nudge,
        }
    }

    /// Has the node look whether its assignment is new.
    pub fn look_at_assignment(&self) {
        self.nudge.notify_one();
    }

    /// Returns the answer to a question.
    pub async fn answer(&self, question: IncomingRequest) -> Reply {
        let verb = question.verb;
        let envelope = &question.envelope;
        // Whether an apply changes anything is known when its body is.
        let asked = PolicyRequest {
            verb: verb.as_str(),
            noop: envelope.noop || self.node.identity.noop || verb == Verb::Apply,
            ..PolicyRequest::default()
        };
        if let Err(denied) = question.asker.may(&asked) {
            return self.deny(&question, &About::default(), &denied.to_string());
        }
        match self.is_meant(envelope).await {
            Ok(true) => {}
            Ok(false) => return Reply::Silence,
            Err(err) => return self.malformed(&question, &err.to_string()),
        }
        let now = self.node.services.clock.now();
        if envelope.deadline.is_some_and(|deadline| now > deadline) {
            let reason = "deadline has passed".to_owned();
            return self.turn_down(&question, &About::default(), code::LATE, reason);
        }
        let Ok(text) = String::from_utf8(question.body.clone()) else {
            return self.malformed(&question, "request is not UTF-8");
        };
        // The others know what they are about when they have read it.
        if !matches!(verb, Verb::Ensure | Verb::Apply | Verb::Status) {
            self.allow(&question, &About::default());
        }
        match verb {
            Verb::Ensure => self.ensure(&text, &question).await,
            Verb::Apply => self.apply(&text, &question).await,
            Verb::Status => self.state(&text, &question).await,
            Verb::Facts => self.facts(&text).await,
            Verb::Ping => self.status(),
            Verb::Pause => match self.node.services.pause.begin(&text, &envelope.caller) {
                Ok(pause) => {
                    let fields = [("reason", pause.reason), ("by", pause.by)];
                    self.node.say(Level::Warn, "Paused", &fields);
                    self.status()
                }
                Err(err) => refuse(verb, code::BAD_REQUEST, err.to_string()),
            },
            Verb::Resume => match self.node.services.pause.end() {
                Ok(()) => {
                    self.node
                        .say(Level::Info, "Resumed", &[("by", envelope.caller.clone())]);
                    self.nudge.notify_one();
                    self.status()
                }
                Err(err) => refuse(verb, code::INTERNAL, err.to_string()),
            },
            Verb::Cancel => self.cancel(&text, envelope),
            // What it is for has been done.
            Verb::Nudge => self.status(),
        }
    }

    /// Reports whether the envelope's filter means this node.
    async fn is_meant(&self, envelope: &Envelope) -> Result<bool, HandlerError> {
        if envelope.filter.is_empty() {
            return Ok(true);
        }
        let filter = envelope.filter.clone();
        let node = self.node.clone();
        let matched = self.read(move || {
            let about = filter::NodeAttributes {
                identity: &node.identity.name,
                groups: &node.identity.groups,
                facts: &node.services.facts.current(),
                labels: &Labels::default(),
            };
            filter::matches(&filter, &about)
        });
        Ok(matched.await??)
    }

    async fn ensure(&self, text: &str, question: &IncomingRequest) -> Reply {
        let envelope = &question.envelope;
        let resource = match self.parsed(text, parse_ensure).await {
            Ok(resource) => resource,
            Err(err) => return self.malformed(question, &err.to_string()),
        };
        let label = resource.label();
        let mut about = About {
            label: &label,
            noop: envelope.noop || self.node.identity.noop,
            run_id: None,
        };
        let command = resource.command_line();
        let asked = PolicyRequest {
            type_name: Some(resource.type_name()),
            name: Some(&resource.common.name),
            provider: some(&resource.common.provider),
            verb: Verb::Ensure.as_str(),
            noop: about.noop,
            // What is rendered later is compared then.
            command: command.filter(|line| !has_expressions(line)),
        };
        if let Err(denied) = question.asker.may(&asked) {
            return self.deny(question, &about, &denied.to_string());
        }
        if let Some(reason) = self.paused(envelope.noop) {
            return self.turn_down(question, &about, code::PAUSED, reason);
        }
        let run = CurrentRun {
            run_id: self.node.next_id(),
            source: label.clone(),
            trigger: Trigger::Request,
            since: self.node.services.clock.now(),
            noop: envelope.noop,
            waiting_for: None,
        };
        about.run_id = Some(run.run_id.clone());
        self.allow(question, &about);
        let node = self.node.clone();
        let mode = Mode {
            noop: envelope.noop,
            diff: envelope.diff,
            ..Mode::default()
        };
        let asker = question.asker.clone();
        let result = self
            .queue(run, envelope, move |permit| {
                node.ensure(resource, mode, &asker, &permit)
            })
            .await;
        match result {
            Ok(Ok((event, diff))) => reply(&EnsureResponse::new(Ok(event)).with_diff(diff)),
            Ok(Err(err)) => refuse(Verb::Ensure, code::BAD_REQUEST, err.to_string()),
            Err(refusal) => refused(Verb::Ensure, &refusal),
        }
    }

    async fn apply(&self, text: &str, question: &IncomingRequest) -> Reply {
        let envelope = &question.envelope;
        let request = match self.parsed(text, parse_apply).await {
            Ok(request) => request,
            Err(err) => return self.malformed(question, &err.to_string()),
        };
        let order = self.order(request.clone(), question);
        let request_mode = order.request.mode;
        let shown = order.request.manifest.display_name();
        let about = About {
            label: &shown,
            noop: request_mode.noop || (self.node.identity.noop && !request_mode.health_check_only),
            run_id: Some(order.request.run_id.clone()),
        };
        let asked = PolicyRequest {
            verb: Verb::Apply.as_str(),
            noop: about.noop,
            ..PolicyRequest::default()
        };
        if let Err(denied) = question.asker.may(&asked) {
            return self.deny(question, &about, &denied.to_string());
        }
        let harmless = request_mode.noop || request_mode.health_check_only;
        if let Some(reason) = self.paused(harmless) {
            return self.turn_down(question, &about, code::PAUSED, reason);
        }
        self.allow(question, &about);
        let run_id = order.request.run_id.clone();
        let run = order.as_current(&self.node);
        let node = self.node.clone();
        let accepted = self.submit(run, envelope, move |permit| order.carry_out(&node, &permit));
        if !request.wait {
            // A full queue says so at once; everything else is told by events.
            let mut accepted = accepted;
            return match accepted.try_recv() {
                Ok(Err(refusal)) => refused(Verb::Apply, &refusal),
                _ => reply(&ApplyResponse::accepted(run_id)),
            };
        }
        match accepted.await.unwrap_or(Err(Refusal::Closing)) {
            Ok(Done { run, events, diff }) => {
                let events = events
                    .into_iter()
                    .filter(|event| event.changed || event.failed || event.blocks());
                let finished = ApplyResponse::finished(run, events.collect());
                reply(&ApplyResponse { diff, ..finished })
            }
            Err(refusal) => refused(Verb::Apply, &refusal),
        }
    }

    fn order(&self, request: ApplyRequest, question: &IncomingRequest) -> Order {
        let envelope = &question.envelope;
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
        Order {
            request: RunRequest {
                data: request.data,
                governor: request.governor,
                request_id: envelope.request_id.clone(),
                caller: envelope.caller.clone(),
                ..RunRequest::new(self.node.next_id(), manifest, mode)
            },
            asker: question.asker.clone(),
        }
    }

    async fn state(&self, text: &str, question: &IncomingRequest) -> Reply {
        let request = match self.parsed(text, parse_status).await {
            Ok(request) => request,
            Err(err) => return self.malformed(question, &err.to_string()),
        };
        let label = format!("{}#{}", request.type_name, request.name);
        let about = About {
            label: &label,
            noop: true,
            run_id: None,
        };
        let resource = match resource_from_request(&request) {
            Ok(resource) => resource,
            Err(err @ StatusError::Module) => return self.deny(question, &about, &err.to_string()),
            Err(err) => return self.malformed(question, &err.to_string()),
        };
        if let Err(denied) = question.asker.may(&looking_at(&resource)) {
            return self.deny(question, &about, &denied.to_string());
        }
        self.allow(question, &about);
        let (node, asker) = (self.node.clone(), question.asker.clone());
        match self.read(move || node.state_of(&resource, &asker)).await {
            Ok(Ok(state)) => reply(&StatusResponse::new(Ok(state))),
            Ok(Err(err)) => refuse(Verb::Status, code::BAD_REQUEST, err.to_string()),
            Err(err) => refuse(Verb::Status, code::INTERNAL, err.to_string()),
        }
    }

    /// Answers with all facts, or with what a path finds in them.
    async fn facts(&self, text: &str) -> Reply {
        let node = self.node.clone();
        let wanted = match wanted_facts(text) {
            Ok(wanted) => wanted,
            Err(err) => return refuse(Verb::Facts, code::BAD_REQUEST, err.to_string()),
        };
        let found = self.read(move || {
            let facts = node.services.facts.current().all();
            match wanted.as_str() {
                "" => Ok(facts),
                wanted => path::find(&facts, wanted).ok_or_else(|| wanted.to_owned()),
            }
        });
        match found.await {
            Ok(Ok(facts)) => reply(&facts),
            Ok(Err(wanted)) => {
                let text = format!("no fact matches {wanted:?}");
                refuse(Verb::Facts, code::NOT_FOUND, text)
            }
            Err(err) => refuse(Verb::Facts, code::INTERNAL, err.to_string()),
        }
    }

    fn status(&self) -> Reply {
        reply(&self.node.status())
    }

    /// Cancels the run that the body names: its id alone, or a document with `run_id`.
    fn cancel(&self, text: &str, envelope: &Envelope) -> Reply {
        let id = match wanted_run(text) {
            Ok(id) => id,
            Err(err) => return refuse(Verb::Cancel, code::BAD_REQUEST, err.to_string()),
        };
        let reason = match envelope.caller.as_str() {
            "" => "cancelled".to_owned(),
            caller => format!("cancelled by {caller}"),
        };
        if self.node.services.run_queue.cancel(&id, &reason) {
            return self.status();
        }
        let text = format!("no run {id} is going on or waiting");
        refuse(Verb::Cancel, code::NOT_FOUND, text)
    }

    /// Remembers that a question is answered.
    fn allow(&self, question: &IncomingRequest, about: &About<'_>) {
        let request = question.audited(about);
        self.node
            .services
            .audit
            .allowed(&self.node, question.verb, &request);
    }

    /// Refuses what the asker may not ask for.
    fn deny(&self, question: &IncomingRequest, about: &About<'_>, reason: &str) -> Reply {
        // What a nudge is about has a refusal of its own.
        if question.verb != Verb::Nudge {
            let who = match &*question.asker.name {
                "" => &question.envelope.caller,
                signer => signer,
            };
            self.node.services.refusals.add(Refused {
                time: self.node.services.clock.now(),
                what: question.verb.as_str().into(),
                generation: None,
                who: who.into(),
                reason: reason.into(),
            });
        }
        self.turn_down(question, about, code::DENIED, reason.to_owned())
    }

    /// Refuses what can't be read. Only who asked is told what is wrong: it may be a secret.
    fn malformed(&self, question: &IncomingRequest, reason: &str) -> Reply {
        let request = question.audited(&About::default());
        let audit = &self.node.services.audit;
        audit.denied(&self.node, question.verb, &request, MALFORMED);
        refuse(question.verb, code::BAD_REQUEST, reason.to_owned())
    }

    /// Refuses a question before anything is done, and remembers that.
    fn turn_down(
        &self,
        question: &IncomingRequest,
        about: &About<'_>,
        code: u16,
        reason: String,
    ) -> Reply {
        let (verb, request) = (question.verb, question.audited(about));
        self.node
            .services
            .audit
            .denied(&self.node, verb, &request, &reason);
        refuse(verb, code, reason)
    }

    /// Returns why nothing may be changed, on a node that is to be left alone.
    fn paused(&self, harmless: bool) -> Option<String> {
        let pause = self.node.services.pause.current().filter(|_| !harmless)?;
        let by = match pause.by.as_str() {
            "" => String::new(),
            by => format!(" by {by}"),
        };
        let reason = pause.reason;
        Some(format!("node is paused{by}: {reason}; resume it first"))
    }

    /// Runs work at the run_queue and returns what comes of it.
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
        let (tell, told) = oneshot::channel();
        self.node.services.run_queue.submit(Job {
            run,
            deadline: envelope.deadline,
            // Whoever asked may have gone; the work is done all the same.
            work: Box::new(move |leave| drop(tell.send(leave.map(work)))),
        });
        told
    }

    /// Reads a body. A small one with aliases may stand for a large document, so of those only a few
    /// are read at once.
    async fn parsed<T: Send + 'static>(
        &self,
        text: &str,
        parse: fn(&str) -> Result<T, RequestError>,
    ) -> Result<T, HandlerError> {
        if text.len() <= SMALL_BODY && !text.contains('*') {
            return Ok(parse(text)?);
        }
        let text = text.to_owned();
        Ok(self.read(move || parse(&text)).await??)
    }

    /// Looks into something that may block, beside any run.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HandlerError> {
        let _turn = self.readers.acquire().await?;
        Ok(tokio::task::spawn_blocking(look).await?)
    }
}

impl IncomingRequest {
    fn audited<'a>(&'a self, about: &About<'a>) -> Request<'a> {
        Request {
            subject: &self.subject,
            caller: &self.envelope.caller,
            request_id: &self.envelope.request_id,
            signer: &self.asker.name,
            about: about.label,
            noop: about.noop || self.envelope.noop,
            run_id: about.run_id.clone(),
        }
    }
}

/// Returns what a policy is asked about a resource that is only looked at.
pub(super) fn looking_at(resource: &Resource) -> PolicyRequest<'_> {
    PolicyRequest {
        verb: Verb::Status.as_str(),
        noop: true,
        type_name: Some(resource.type_name()),
        name: Some(&resource.common.name),
        provider: some(&resource.common.provider),
        command: None,
    }
}

/// Returns the path that a question for facts holds: alone, or in a JSON document as `path`.
fn wanted_facts(text: &str) -> Result<String, HandlerError> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Asked {
        #[serde(alias = "query")]
        path: String,
    }
    let text = text.trim();
    // A path may begin with a brace, too; then it is no JSON.
    match serde_json::from_str::<serde_json::Map<_, _>>(text) {
        Ok(document) => Ok(serde_json::from_value::<Asked>(document.into())?.path),
        Err(_) => Ok(text.trim_matches('"').to_owned()),
    }
}

/// Returns the run that a request to cancel names: its id alone, or in a document as `run_id`.
fn wanted_run(text: &str) -> Result<RunId, HandlerError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        run_id: RunId,
    }
    if text.trim().is_empty() {
        return Err(HandlerError::NoRunId);
    }
    let bad = match text.trim().trim_matches('"').parse() {
        Ok(id) => return Ok(id),
        Err(bad) => HandlerError::RunId(bad),
    };
    let document = parse_message(text).ok();
    let document = document.filter(|node| node.entries().is_some());
    Ok(Asked::deserialize(&document.ok_or(bad)?)?.run_id)
}

/// Returns a text that says something.
fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn reply(document: &impl serde::Serialize) -> Reply {
    match json::compact(document) {
        Ok(body) => Reply::Body(body),
        Err(err) => Reply::Refuse {
            code: code::INTERNAL,
            text: err.to_string(),
            body: "{}".into(),
        },
    }
}

fn refused(verb: Verb, refusal: &Refusal) -> Reply {
    let code = match refusal {
        Refusal::Busy(_) | Refusal::Held(_) => code::BUSY,
        Refusal::Deadline => code::LATE,
        Refusal::Cancelled | Refusal::Closing => code::CLOSING,
        Refusal::Cancel(_) | Refusal::Lock(_) => code::INTERNAL,
    };
    refuse(verb, code, refusal.to_string())
}

/// Says no in the form of the verb's own answer.
pub(super) fn refuse(verb: Verb, code: u16, text: String) -> Reply {
    // Errors repeat what was asked; an answer must not outgrow what a message may hold.
    let text: String = text.chars().take(MAX_REASON).collect();
    let body = match verb {
        Verb::Ensure => json::compact(&EnsureResponse::new(Err(text.clone()))),
        Verb::Status => json::compact(&StatusResponse::new(Err(text.clone()))),
        Verb::Apply => json::compact(&ApplyResponse::refused(text.clone())),
        _ => json::compact(&serde_json::json!({ "error": text })),
    };
    Reply::Refuse {
        code,
        // Headers hold one line.
        text: text.lines().next().unwrap_or_default().to_owned(),
        body: body.unwrap_or_else(|_| "{}".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_asked_for_by_a_path_alone_or_in_a_document() {
        for (body, path) in [
            ("", ""),
            ("{}", ""),
            (" host.info.os\n", "host.info.os"),
            ("\"host.info.os\"", "host.info.os"),
            (r#"{"path":"host.info.os"}"#, "host.info.os"),
            (r#"{"query":"host.info.os"}"#, "host.info.os"),
            ("{host.info.os,cpu}", "{host.info.os,cpu}"),
        ] {
            assert_eq!(wanted_facts(body).unwrap(), path, "{body}");
        }
        let error = wanted_facts(r#"{"paths":"x"}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown field `paths`, expected `path` or `query`"
        );
    }
}
