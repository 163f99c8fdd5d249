//! NATS micro services (ADR-32): discovery, statistics and a queue of requests.
//!
//! Implemented here because the client's service layer puts endpoints into queue groups, generates
//! the instance id, and sends error replies without a body.
//!
//! Requests of all endpoints arrive in one bounded queue; a request that finds it full gets an error
//! reply at once (`overload`). Messages that the server copied from a stream are dropped. Discovery
//! requests bypass the queue, so a busy service stays visible. Statistics are in `stats`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_nats::{Message as ClientMessage, Subscriber};
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt as _, select_all};
use tokio::sync::mpsc;

use super::connection::{Headers, Message};
use super::{Connection, NatsError, Subject};
use overload::{BUSY, BUSY_CODE, BusyReplies};
use stats::{Counters, Description, RequestTimer};

mod overload;
mod stats;

pub use overload::Overload;

/// Header of an error reply: the error text.
pub const ERROR: &str = "Nats-Service-Error";
/// Header of an error reply: a code as in HTTP.
pub const ERROR_CODE: &str = "Nats-Service-Error-Code";

/// Size of the request queue.
const QUEUE: usize = 256;

/// Maximum length of the error text in a header.
const MAX_ERROR: usize = 512;

/// Headers that the server adds to messages from a stream.
const STORED: [&str; 2] = ["Nats-Stream", "Nats-Sequence"];

/// Description of a service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name shared by all instances: letters, digits, `_` and `-`.
    pub name: String,
    /// Id of this instance: one subject token.
    pub id: String,
    /// A semantic version.
    pub version: String,
    pub description: String,
    pub metadata: BTreeMap<String, String>,
}

/// An endpoint. Every instance receives every request: there is no queue group.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Unique within the service: letters, digits, `_` and `-`.
    pub name: String,
    pub subject: Subject,
    pub metadata: BTreeMap<String, String>,
}

/// A running service. It stops when its request receiver is dropped.
#[derive(Debug)]
pub struct RunningService {
    pub requests: mpsc::Receiver<ServiceRequest>,
    /// Counts the requests that found the queue full.
    pub overload: Overload,
}

/// A request. It is counted once, when it is replied to or dropped.
#[derive(Debug)]
pub struct ServiceRequest {
    /// Index of the endpoint.
    pub endpoint: usize,
    /// The subject it was sent to.
    pub subject: String,
    pub headers: Headers,
    pub body: Bytes,
    reply: Option<String>,
    connection: Connection,
    timer: RequestTimer,
}

/// Starts a service. While connected, returns once the server has processed the subscriptions.
pub async fn serve(
    connection: &Connection,
    service: Service,
    endpoints: Vec<Endpoint>,
) -> Result<RunningService, NatsError> {
    check(&service, &endpoints)?;
    let mut endpoint_messages = Vec::with_capacity(endpoints.len());
    for (index, endpoint) in endpoints.iter().enumerate() {
        let messages = subscribe(connection, endpoint.subject.as_str()).await?;
        endpoint_messages.push(messages.map(move |message| (index, message)).boxed());
    }
    let mut discovery = Vec::new();
    for (verb, kind) in [
        ("PING", Discovery::Ping),
        ("INFO", Discovery::Info),
        ("STATS", Discovery::Stats),
    ] {
        for subject in [
            format!("$SRV.{verb}"),
            format!("$SRV.{verb}.{}", service.name),
            format!("$SRV.{verb}.{}.{}", service.name, service.id),
        ] {
            let messages = subscribe(connection, &subject).await?;
            discovery.push(messages.map(move |message| (kind, message)).boxed());
        }
    }
    if connection.is_up() {
        match connection.flush().await {
            // The other endpoints work; the connection reports the violation.
            Ok(()) | Err(NatsError::Denied(_)) => {}
            Err(err) => return Err(err),
        }
    }
    let (queue, requests) = mpsc::channel(QUEUE);
    let listener = Listener {
        connection: connection.clone(),
        description: Arc::new(Description::new(service, endpoints)),
        queue,
    };
    let overload = Overload::default();
    let busy = BusyReplies::start(connection, &overload)?;
    tokio::spawn(listener.clone().discover(select_all(discovery)));
    // Takes all messages that have arrived before other tasks run: the client reads many at a time.
    let listening = listener.listen(select_all(endpoint_messages), busy);
    tokio::spawn(tokio::task::unconstrained(listening));
    Ok(RunningService { requests, overload })
}

/// Receives the messages of a service.
#[derive(Clone)]
struct Listener {
    connection: Connection,
    description: Arc<Description>,
    queue: mpsc::Sender<ServiceRequest>,
}

impl Listener {
    /// Replies to discovery requests until the request receiver is dropped.
    async fn discover(self, mut requests: impl Stream<Item = (Discovery, ClientMessage)> + Unpin) {
        loop {
            let request = tokio::select! {
                request = requests.next() => request,
                () = self.queue.closed() => return,
            };
            match request {
                Some((request, message)) => self.reply_discovery(request, message).await,
                None => return,
            }
        }
    }

    /// Queues requests until the receiver is dropped. Waits for nothing else, because the client
    /// drops messages that are not taken from it in time.
    async fn listen(
        self,
        mut requests: impl Stream<Item = (usize, ClientMessage)> + Unpin,
        busy: BusyReplies,
    ) {
        loop {
            let request = tokio::select! {
                request = requests.next() => request,
                () = self.queue.closed() => return,
            };
            let Some((endpoint, message)) = request else {
                return;
            };
            let counters = self.description.counters(endpoint);
            if !self.description.is_request_to(endpoint, &message) {
                RequestTimer::new(counters).fail(403, "not a request to this endpoint");
                continue;
            }
            let incoming = ServiceRequest::new(&self.connection, counters, endpoint, message);
            if let Err(mpsc::error::TrySendError::Full(mut incoming)) =
                self.queue.try_send(incoming)
            {
                incoming.timer.fail(BUSY_CODE, BUSY);
                busy.push(incoming.reply.take());
            }
        }
    }

    /// Replies to a discovery request that has a reply subject.
    async fn reply_discovery(&self, request: Discovery, message: ClientMessage) {
        let Some(reply) = message.reply else {
            return;
        };
        let body = match request {
            Discovery::Ping => self.description.ping(),
            Discovery::Info => self.description.info(),
            Discovery::Stats => self.description.stats(),
        };
        let sent = self
            .connection
            .publish_to(&reply, Headers::new(), body.into());
        // If this fails, the caller times out.
        let _ = sent.await;
    }
}

async fn subscribe(connection: &Connection, subject: &str) -> Result<Subscriber, NatsError> {
    let subscriber = connection.client().subscribe(subject.to_owned()).await;
    subscriber.map_err(|_| NatsError::Subject(subject.into()))
}

/// A discovery request.
#[derive(Clone, Copy, Debug)]
enum Discovery {
    Ping,
    Info,
    Stats,
}

impl ServiceRequest {
    fn new(
        connection: &Connection,
        counters: Arc<Counters>,
        endpoint: usize,
        message: ClientMessage,
    ) -> Self {
        let message = Message::from(message);
        Self {
            endpoint,
            subject: message.subject,
            headers: message.headers,
            body: message.body,
            reply: message.reply,
            connection: connection.clone(),
            timer: RequestTimer::new(counters),
        }
    }

    /// Returns the first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// Reports whether the request has a reply subject.
    pub fn wants_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// Sends the reply. If it exceeds the maximum payload, sends an error reply instead.
    pub async fn reply(mut self, headers: Headers, body: Bytes) -> Result<(), NatsError> {
        match self.send(headers.clone(), body).await {
            Err(err @ NatsError::TooLarge { .. }) => {
                let text = err.to_string();
                let body = serde_json::json!({ "error": text }).to_string();
                self.send_error(headers, 500, &text, body.into()).await?;
                Err(err)
            }
            other => other,
        }
    }

    /// Sends an error reply. The body should contain the error, too: not all tools show headers.
    pub async fn fail(self, code: u16, text: &str, body: Bytes) -> Result<(), NatsError> {
        self.fail_with(Headers::new(), code, text, body).await
    }

    /// Sends an error reply with additional headers.
    pub async fn fail_with(
        mut self,
        headers: Headers,
        code: u16,
        text: &str,
        body: Bytes,
    ) -> Result<(), NatsError> {
        self.send_error(headers, code, text, body).await
    }

    /// Drops the request without a reply: it is meant for other nodes.
    pub fn ignore(self) {}

    async fn send_error(
        &mut self,
        mut headers: Headers,
        code: u16,
        text: &str,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let text = one_line(text);
        self.timer.fail(code, &text);
        headers.set(ERROR, &text)?;
        headers.set(ERROR_CODE, &code.to_string())?;
        self.send(headers, body).await
    }

    async fn send(&mut self, headers: Headers, body: Bytes) -> Result<(), NatsError> {
        match &self.reply {
            Some(reply) => self.connection.publish_to(reply, headers, body).await,
            None => Ok(()),
        }
    }
}

/// Reports whether a message was published by a client on this subject. JetStream delivers stored
/// messages to any subject that the owner of a consumer names, without a check of the owner's
/// publish permission. Such a message has the subject it was stored under, a status, or headers
/// of JetStream.
fn is_request(message: &ClientMessage, subject: &Subject) -> bool {
    let is_from_jetstream = |reply: &str| reply.starts_with("$JS.");
    let has_header = |name: &&str| {
        let headers = message.headers.as_ref();
        headers.is_some_and(|headers| headers.get(*name).is_some())
    };
    message.status.is_none()
        && subject.matches(&message.subject)
        && !message.reply.as_deref().is_some_and(is_from_jetstream)
        && !STORED.iter().any(has_header)
}

/// Returns the text on one line, truncated to fit into a header.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_ERROR)
        .collect()
}

/// Rejects names, ids and versions that ADR-32 does not allow.
fn check(service: &Service, endpoints: &[Endpoint]) -> Result<(), NatsError> {
    let bad = |reason: String| Err(NatsError::Service(reason));
    let is_name = |name: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        !name.is_empty() && name.chars().all(is_plain)
    };
    if !is_name(&service.name) {
        return bad(format!("name {:?}", service.name));
    }
    if service.id.parse::<Subject>().is_err() || service.id.contains(['.', '*', '>']) {
        return bad(format!("id {:?}", service.id));
    }
    if !is_version(&service.version) {
        return bad(format!("version {:?}", service.version));
    }
    let mut names = HashSet::new();
    for endpoint in endpoints {
        if !is_name(&endpoint.name) || !names.insert(&endpoint.name) {
            return bad(format!("endpoint {:?}", endpoint.name));
        }
    }
    Ok(())
}

/// Reports whether a text is a semantic version.
fn is_version(text: &str) -> bool {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let is_number = |part: &str| {
        let is_plain = part == "0" || !part.starts_with('0');
        !part.is_empty() && is_plain && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    core.split('.').count() == 3 && core.split('.').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Service {
        Service {
            name: "ccm".into(),
            id: "web1".into(),
            version: "1.2.3".into(),
            description: String::new(),
            metadata: BTreeMap::new(),
        }
    }

    fn endpoint(name: &str) -> Endpoint {
        Endpoint {
            name: name.into(),
            subject: "a.b".parse().unwrap(),
            metadata: BTreeMap::new(),
        }
    }

    #[test]
    fn invalid_service_descriptions_are_rejected() {
        assert!(check(&service(), &[endpoint("ping"), endpoint("ping-node")]).is_ok());
        let bad = |change: fn(&mut Service)| {
            let mut service = service();
            change(&mut service);
            check(&service, &[]).is_err()
        };
        assert!(bad(|s| s.name = "a b".into()));
        assert!(bad(|s| s.id = "a.b".into()));
        assert!(bad(|s| s.id = "*".into()));
        assert!(bad(|s| s.version = "1.2".into()));
        assert!(check(&service(), &[endpoint("a"), endpoint("a")]).is_err());
        assert!(check(&service(), &[endpoint("a.b")]).is_err());
    }

    #[test]
    fn messages_from_a_stream_are_not_requests() {
        let subject: Subject = "ccm.v1.lab.node.web2.ensure".parse().unwrap();
        let message = |subject: &str, reply: Option<&str>, header: Option<&str>| ClientMessage {
            subject: subject.into(),
            reply: reply.map(Into::into),
            payload: Bytes::new(),
            headers: header.map(|name| {
                let mut headers = async_nats::HeaderMap::new();
                headers.insert(name, "x");
                headers
            }),
            status: None,
            description: None,
            length: 0,
        };
        let own = subject.as_str();
        assert!(is_request(&message(own, Some("_INBOX.a"), None), &subject));
        assert!(is_request(&message(own, None, Some("Ccm-Noop")), &subject));
        let stored = "choria.ccm.registration.v1.a.b.c.d.e";
        for from_stream in [
            message(stored, Some("_INBOX.a"), None),
            message(own, Some("$JS.ACK.S.c.1.1.1.1.0"), None),
            message(own, Some("$JS.FC.S.c.x"), None),
            message(own, None, Some("Nats-Stream")),
        ] {
            assert!(!is_request(&from_stream, &subject), "{from_stream:?}");
        }
        let heartbeat = ClientMessage {
            status: Some(async_nats::StatusCode::IDLE_HEARTBEAT),
            ..message(own, None, None)
        };
        assert!(!is_request(&heartbeat, &subject));
    }

    #[test]
    fn version_is_a_semantic_version() {
        for good in ["0.1.0", "1.2.3-rc.1", "1.2.3+build"] {
            assert!(is_version(good), "{good}");
        }
        for bad in ["", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1..3"] {
            assert!(!is_version(bad), "{bad}");
        }
    }

    #[test]
    fn error_text_fits_into_a_header() {
        assert_eq!(one_line("a\r\nb"), "a  b");
        assert_eq!(one_line(&"é".repeat(1000)).chars().count(), MAX_ERROR);
    }
}
