//! Request server: receives requests from NATS, authenticates them, calls the handlers and sends
//! replies.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::handlers::{Handlers, IncomingRequest, MALFORMED, Reply, code, error_reply};
use super::node::{Node, VERSION};
use super::trust::audit::AuditRequest;
use super::trust::loopback::requires_trust;
use super::trust::{Denied, RefusedRequest};
use ccm_core::model::envelope::{CALLER, Envelope, IDENTITY, REQUEST_ID};
use ccm_core::model::node::Refusal;
use ccm_nats::micro::{self, Endpoint, RunningService, Service, ServiceRequest};
use ccm_nats::{Connection, Headers, NatsError, Subjects, Verb};

/// Longest accepted request body.
const MAX_REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// Audit reason for a message without a reply subject.
const NO_REPLY: &str = "request has no reply subject";

/// Most requests handled at once, including those in the run queue. More wait in the queue of the
/// service; when that is full they are refused as busy.
const MAX_CONCURRENT: usize = 1024;

/// Subscribes to the subjects of this node, its groups and all nodes.
pub(crate) async fn listen(
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

/// Handles requests until stopped.
pub(crate) async fn serve(
    mut served: RunningService,
    verbs: Vec<Verb>,
    node: Arc<Node>,
    handlers: Handlers,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONCURRENT));
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
            // A server delivers replies to any subject that a client names, so this may be one.
            // Real requests have a reply subject.
            let request = AuditRequest {
                subject: &incoming.subject,
                caller: incoming.header(CALLER).unwrap_or_default(),
                request_id: incoming.header(REQUEST_ID).unwrap_or_default(),
                ..AuditRequest::default()
            };
            node.services
                .audit
                .denied(&node, verb.as_str(), &request, NO_REPLY);
            node.services.metrics.requested(verb.as_str(), "denied");
            incoming.ignore();
            continue;
        }
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let (node, handlers) = (node.clone(), handlers.clone());
        tokio::spawn(async move {
            let reply = handle(&incoming, verb, &node, handlers).await;
            send(incoming, verb, reply, &node).await;
            drop(slot);
        });
    }
    // Refuse what is still queued, so that no client waits for a timeout.
    while let Ok(incoming) = served.requests.try_recv() {
        if let Some(verb) = verbs.get(incoming.endpoint).copied() {
            let reply = error_reply(verb, code::CLOSING, "the agent is shutting down".into());
            send(incoming, verb, reply, &node).await;
        }
    }
}

/// Authenticates a request before anything else of it is read, then handles it.
async fn handle(incoming: &ServiceRequest, verb: Verb, node: &Node, handlers: Handlers) -> Reply {
    let refuse_signed = |signer: &str, code, reason: &str, text: String| {
        let request = AuditRequest {
            signer,
            subject: &incoming.subject,
            caller: incoming.header(CALLER).unwrap_or_default(),
            request_id: incoming.header(REQUEST_ID).unwrap_or_default(),
            ..AuditRequest::default()
        };
        node.services
            .audit
            .denied(node, verb.as_str(), &request, reason);
        error_reply(verb, code, text)
    };
    let refuse = |code, reason: &str, text: String| refuse_signed("", code, reason, text);
    if incoming.body.len() > MAX_REQUEST_BYTES {
        let text = format!("request is larger than {MAX_REQUEST_BYTES} bytes");
        return refuse(code::TOO_LARGE, &text.clone(), text);
    }
    if verb == Verb::Nudge {
        // Needs no authentication: the node reads its own assignment, which is verified by itself,
        // and announces itself if it could not do so before.
        handlers.nudge();
    }
    let record_refusal = |who: &str, reason: &str| {
        node.services.refusals.add(Refusal {
            time: node.services.clock.now(),
            what: verb.as_str().into(),
            generation: None,
            incarnation: None,
            who: who.into(),
            reason: reason.into(),
        });
    };
    let caller = incoming.header(CALLER).unwrap_or_default();
    let deny = |refused: &RefusedRequest| {
        let reason = refused.to_string();
        record_refusal(
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
        refuse_signed(&refused.signer, code::DENIED, &reason, text)
    };
    if let Some(loopback) = node
        .services
        .loopback_only
        .as_ref()
        .filter(|_| requires_trust(verb))
        && let Err(err) = loopback.check().await
    {
        let reason = err.to_string();
        record_refusal(caller, &reason);
        return refuse(code::DENIED, &reason, format!("denied: {reason}"));
    }
    let authorizer = &node.services.authorizer;
    let admit = || authorizer.admit(verb, &incoming.subject, &incoming.headers, &incoming.body);
    let received = Instant::now();
    let mut admitted = admit();
    if verb != Verb::Nudge
        && matches!(&admitted, Err(refused) if matches!(refused.cause, Denied::Unknown))
        && node.refresh_signers_after(received).await
    {
        // It may be the successor of a signer.
        admitted = admit();
    }
    let requester = match admitted {
        Ok(requester) => requester,
        Err(_) if verb == Verb::Nudge => return Reply::Ignored,
        Err(refused) => return deny(&refused),
    };
    let envelope = match Envelope::from_headers(|name| incoming.header(name)) {
        Ok(envelope) => envelope,
        Err(err) => return refuse(code::BAD_REQUEST, MALFORMED, err.to_string()),
    };
    let request = IncomingRequest {
        verb,
        subject: incoming.subject.clone(),
        requester,
        envelope,
        body: incoming.body.to_vec(),
    };
    handlers.handle(request).await
}

async fn send(incoming: ServiceRequest, verb: Verb, reply: Reply, node: &Node) {
    // A node name is always a valid header value.
    let headers = Headers::new()
        .with(IDENTITY, node.identity.name.as_str())
        .unwrap_or_default();
    let (outcome, sent) = match reply {
        Reply::Ignored => {
            incoming.ignore();
            return;
        }
        Reply::Body(body) => ("ok", incoming.reply(headers, body.into()).await),
        Reply::Error { code, text, body } => {
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
        node.log(
            ccm_core::engine::Level::Warn,
            "Could not send a reply",
            &fields,
        );
    }
}
