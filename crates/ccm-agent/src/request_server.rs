//! Serving: questions from the bus to the run_queue, answers back, each counted.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::handlers::{Handlers, IncomingRequest, MALFORMED, Reply, code, refuse};
use super::node::{Node, VERSION};
use super::trust::audit::Request;
use super::trust::loopback::is_order;
use super::trust::{Denied, Refused};
use ccm_core::model::envelope::{CALLER, Envelope, IDENTITY, REQUEST_ID};
use ccm_core::model::node::Refusal;
use ccm_nats::micro::{self, Endpoint, RunningService, Service, ServiceRequest};
use ccm_nats::{Connection, Headers, NatsError, Subjects, Verb};

/// The largest request that is looked at.
const MAX_REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// Why a message without a reply subject is dropped.
const NO_REPLY: &str = "request has no reply subject";

/// How many requests are worked on at once, those that wait at the run_queue included. More wait in the
/// service's own queue, and when that is full they are told that the node is busy.
const MOST_AT_ONCE: usize = 1024;

/// Begins to listen: for this node, for its groups and for everyone.
pub async fn listen(
    node: &Node,
    connection: &Connection,
    subjects: &Subjects,
) -> Result<(RunningService, Vec<Verb>), NatsError> {
    let mut endpoints = Vec::new();
    let mut verbs = Vec::new();
    let token = node.identity.name.token();
    for verb in Verb::ALL {
        let mut add = |name: String, subject, scope: &str| {
            endpoints.push(Endpoint {
                name,
                subject,
                metadata: [("scope".to_owned(), scope.to_owned())].into(),
            });
            verbs.push(verb);
        };
        add(verb.as_str().into(), subjects.all(verb), "all");
        add(format!("{verb}-node"), subjects.node(&token, verb), "node");
        for group in &node.identity.groups {
            let name = format!("{verb}-group-{group}");
            add(name, subjects.group(group, verb), "group");
        }
    }
    let service = Service {
        name: "ccm".into(),
        id: token.as_str().into(),
        version: VERSION.into(),
        description: "configuration management agent".into(),
        metadata: [
            ("identity".to_owned(), node.identity.name.to_string()),
            (
                "collective".to_owned(),
                node.identity.collective.to_string(),
            ),
        ]
        .into(),
    };
    Ok((micro::serve(connection, service, endpoints).await?, verbs))
}

/// Answers what comes in until told to stop.
pub async fn answer(
    mut served: RunningService,
    verbs: Vec<Verb>,
    node: Arc<Node>,
    answering: Handlers,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(MOST_AT_ONCE));
    loop {
        let incoming = tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => break,
            incoming = served.requests.recv() => incoming,
        };
        let Some(incoming) = incoming else {
            return;
        };
        let Some(verb) = verbs.get(incoming.endpoint).copied() else {
            incoming.ignore();
            continue;
        };
        if !incoming.wants_reply() && verb != Verb::Nudge {
            // A server sends answers to whatever subject a client names, so this may be one of
            // those. A client that asks for something waits for the answer.
            let request = Request {
                subject: &incoming.subject,
                caller: incoming.header(CALLER).unwrap_or_default(),
                request_id: incoming.header(REQUEST_ID).unwrap_or_default(),
                ..Request::default()
            };
            node.services.audit.denied(&node, verb, &request, NO_REPLY);
            node.services.metrics.requested(verb.as_str(), "denied");
            incoming.ignore();
            continue;
        }
        let Ok(turn) = room.clone().acquire_owned().await else {
            return;
        };
        let (node, answering) = (node.clone(), answering.clone());
        tokio::spawn(async move {
            let answer = open(&incoming, verb, &node, answering).await;
            send(incoming, verb, answer, &node).await;
            drop(turn);
        });
    }
    // Nobody waits for an answer in vain.
    while let Ok(incoming) = served.requests.try_recv() {
        if let Some(verb) = verbs.get(incoming.endpoint).copied() {
            let answer = refuse(verb, code::CLOSING, "the agent is shutting down".into());
            send(incoming, verb, answer, &node).await;
        }
    }
}

/// Nothing of a request is looked at before it is known who asks.
async fn open(incoming: &ServiceRequest, verb: Verb, node: &Node, answering: Handlers) -> Reply {
    let turn_down_of = |signer: &str, code, reason: &str, text: String| {
        let request = Request {
            signer,
            subject: &incoming.subject,
            caller: incoming.header(CALLER).unwrap_or_default(),
            request_id: incoming.header(REQUEST_ID).unwrap_or_default(),
            ..Request::default()
        };
        node.services.audit.denied(node, verb, &request, reason);
        refuse(verb, code, text)
    };
    let turn_down = |code, reason: &str, text: String| turn_down_of("", code, reason, text);
    if incoming.body.len() > MAX_REQUEST_BYTES {
        let text = format!("request is larger than {MAX_REQUEST_BYTES} bytes");
        return turn_down(code::TOO_LARGE, &text.clone(), text);
    }
    if verb == Verb::Nudge {
        // Whoever sends it: the node only reads its own assignment, which is checked for itself.
        answering.look_at_assignment();
    }
    let remember = |who: &str, reason: &str| {
        node.services.refusals.add(Refusal {
            time: node.services.clock.now(),
            what: verb.as_str().into(),
            generation: None,
            who: who.into(),
            reason: reason.into(),
        });
    };
    let caller = incoming.header(CALLER).unwrap_or_default();
    let deny = |refused: &Refused| {
        let reason = refused.to_string();
        remember(
            match &*refused.signer {
                "" => caller,
                signer => signer,
            },
            &reason,
        );
        // The header holds the first line.
        let text = match (&refused.cause, refused.cause.remedy()) {
            (Denied::Policy, _) => reason.clone(),
            (_, Some(remedy)) => format!("denied: {reason}\n{remedy}"),
            (_, None) => format!("denied: {reason}"),
        };
        turn_down_of(&refused.signer, code::DENIED, &reason, text)
    };
    if let Some(loopback) = node
        .services
        .loopback_only
        .as_ref()
        .filter(|_| is_order(verb))
        && let Err(err) = loopback.check().await
    {
        let reason = err.to_string();
        remember(caller, &reason);
        return turn_down(code::DENIED, &reason, format!("denied: {reason}"));
    }
    let keeper = &node.services.authorizer;
    let admitted = keeper.admit(verb, &incoming.subject, &incoming.headers, &incoming.body);
    let asker = match admitted {
        Ok(asker) => asker,
        Err(_) if verb == Verb::Nudge => return Reply::Silence,
        Err(refused) => return deny(&refused),
    };
    let envelope = match Envelope::from_headers(|name| incoming.header(name)) {
        Ok(envelope) => envelope,
        Err(err) => return turn_down(code::BAD_REQUEST, MALFORMED, err.to_string()),
    };
    let question = IncomingRequest {
        verb,
        subject: incoming.subject.clone(),
        asker,
        envelope,
        body: incoming.body.to_vec(),
    };
    answering.answer(question).await
}

async fn send(incoming: ServiceRequest, verb: Verb, answer: Reply, node: &Node) {
    // A node's name is always a valid header.
    let headers = Headers::new()
        .with(IDENTITY, node.identity.name.as_str())
        .unwrap_or_default();
    let (outcome, sent) = match answer {
        Reply::Silence => {
            incoming.ignore();
            return;
        }
        Reply::Body(body) => ("ok", incoming.reply(headers, body.into()).await),
        Reply::Refuse { code, text, body } => {
            let outcome = match code {
                code::DENIED => "denied",
                _ => "refused",
            };
            let sent = incoming.fail_with(headers, code, &text, body.into()).await;
            (outcome, sent)
        }
    };
    node.services.metrics.requested(verb.as_str(), outcome);
    if let Err(err) = sent {
        let fields = [
            ("verb", verb.as_str().to_owned()),
            ("error", err.to_string()),
        ];
        node.say(ccm_core::engine::Level::Warn, "Could not answer", &fields);
    }
}
