//! A service that the `nats` command can find, ask and count: the micro protocol (ADR-32), spoken
//! by ourselves because the client's own layer puts endpoints into queue groups, chooses the id,
//! and answers errors with nothing.
//!
//! Requests arrive in one bounded queue, whoever sent them to whichever endpoint; a request that
//! finds it full is told so at once. A message that the server copied out of a stream is no request
//! and is dropped. Discovery is answered apart from it, so a busy service is
//! still seen. What a request means is for the receiver; what is counted is in `stats`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_nats::{Message as ServiceMessage, Subscriber};
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt as _, select_all};
use tokio::sync::mpsc;

use super::connection::{Headers, Message};
use super::{Connection, NatsError, Subject};
use stats::{Counters, Described, Ticket};

mod stats;

/// On the answer of a service that failed: why.
pub const ERROR: &str = "Nats-Service-Error";
/// On the answer of a service that failed: a number in the manner of HTTP.
pub const ERROR_CODE: &str = "Nats-Service-Error-Code";

/// How many requests wait at most.
const QUEUE: usize = 256;

/// The longest error text in a header; the body may say more.
const MAX_ERROR: usize = 512;

/// The headers that servers add to messages out of a stream.
const STORED: [&str; 2] = ["Nats-Stream", "Nats-Sequence"];

/// Who serves.
#[derive(Clone, Debug)]
pub struct Service {
    /// Shared by all instances: letters, digits, `_` and `-`.
    pub name: String,
    /// Of this instance: one word of a subject.
    pub id: String,
    /// A semantic version.
    pub version: String,
    pub description: String,
    pub metadata: BTreeMap<String, String>,
}

/// A subject that is served. Every instance hears every request: there is no queue group.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Unique within the service: letters, digits, `_` and `-`.
    pub name: String,
    pub subject: Subject,
    pub metadata: BTreeMap<String, String>,
}

/// A running service. It ends when its requests are dropped.
#[derive(Debug)]
pub struct RunningService {
    pub requests: mpsc::Receiver<ServiceRequest>,
}

/// A request. Each way to be done with it counts it once; to drop it is to ignore it.
#[derive(Debug)]
pub struct ServiceRequest {
    /// Which endpoint it came to, in the order they were given.
    pub endpoint: usize,
    /// Where it was sent to.
    pub subject: String,
    pub headers: Headers,
    pub body: Bytes,
    reply: Option<String>,
    connection: Connection,
    ticket: Ticket,
}

/// Starts to serve. Returns once the server knows every subject, if it can be reached.
pub async fn serve(
    connection: &Connection,
    service: Service,
    endpoints: Vec<Endpoint>,
) -> Result<RunningService, NatsError> {
    check(&service, &endpoints)?;
    let mut listening = Vec::with_capacity(endpoints.len());
    for (index, endpoint) in endpoints.iter().enumerate() {
        let messages = subscribe(connection, endpoint.subject.as_str()).await?;
        listening.push(messages.map(move |message| (index, message)).boxed());
    }
    let mut verbs = Vec::new();
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
            verbs.push(messages.map(move |message| (kind, message)).boxed());
        }
    }
    if connection.is_up() {
        match connection.flush().await {
            // The rest of the service works; the connection tells what is forbidden.
            Ok(()) | Err(NatsError::Denied(_)) => {}
            Err(err) => return Err(err),
        }
    }
    let (queue, requests) = mpsc::channel(QUEUE);
    let listener = Listener {
        connection: connection.clone(),
        described: Arc::new(Described::new(service, endpoints)),
        queue,
    };
    tokio::spawn(listener.clone().discover(select_all(verbs)));
    tokio::spawn(listener.listen(select_all(listening)));
    Ok(RunningService { requests })
}

/// The side of a service that hears.
#[derive(Clone)]
struct Listener {
    connection: Connection,
    described: Arc<Described>,
    queue: mpsc::Sender<ServiceRequest>,
}

impl Listener {
    /// Answers discovery until nobody wants requests any more.
    async fn discover(self, mut questions: impl Stream<Item = (Discovery, ServiceMessage)> + Unpin) {
        loop {
            let question = tokio::select! {
                question = questions.next() => question,
                () = self.queue.closed() => return,
            };
            match question {
                Some((ask, message)) => self.answer(ask, message).await,
                None => return,
            }
        }
    }

    /// Hands requests over until nobody wants them any more.
    async fn listen(self, mut requests: impl Stream<Item = (usize, ServiceMessage)> + Unpin) {
        loop {
            let request = tokio::select! {
                request = requests.next() => request,
                () = self.queue.closed() => return,
            };
            let Some((endpoint, message)) = request else {
                return;
            };
            let counters = self.described.counters(endpoint);
            if !self.described.is_request_to(endpoint, &message) {
                Ticket::new(counters).fail(403, "not a request to this endpoint");
                continue;
            }
            let incoming = ServiceRequest::new(&self.connection, counters, endpoint, message);
            if let Err(mpsc::error::TrySendError::Full(incoming)) = self.queue.try_send(incoming) {
                let body = Bytes::from_static(br#"{"error":"busy"}"#);
                // If this can't be sent either, the caller's own patience ends it.
                let _ = incoming.fail(503, "busy", body).await;
            }
        }
    }

    /// Answers a question of discovery; one without a place to answer to is none.
    async fn answer(&self, ask: Discovery, message: ServiceMessage) {
        let Some(reply) = message.reply else {
            return;
        };
        let body = match ask {
            Discovery::Ping => self.described.ping(),
            Discovery::Info => self.described.info(),
            Discovery::Stats => self.described.stats(),
        };
        let sent = self
            .connection
            .publish_to(&reply, Headers::new(), body.into());
        // Whoever asked has no other way to hear that the answer could not be sent.
        let _ = sent.await;
    }
}

async fn subscribe(connection: &Connection, subject: &str) -> Result<Subscriber, NatsError> {
    let listening = connection.client().subscribe(subject.to_owned()).await;
    listening.map_err(|_| NatsError::Subject(subject.into()))
}

/// What discovery asks.
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
        message: ServiceMessage,
    ) -> Self {
        let message = Message::from(message);
        Self {
            endpoint,
            subject: message.subject,
            headers: message.headers,
            body: message.body,
            reply: message.reply,
            connection: connection.clone(),
            ticket: Ticket::new(counters),
        }
    }

    /// Returns the first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// Whether somebody waits for an answer.
    pub fn wants_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// Answers. An answer that is larger than the server takes becomes an error that says so.
    pub async fn reply(mut self, headers: Headers, body: Bytes) -> Result<(), NatsError> {
        match self.send(headers.clone(), body).await {
            Err(err @ NatsError::TooLarge { .. }) => {
                let text = err.to_string();
                let body = serde_json::json!({ "error": text }).to_string();
                self.refuse(headers, 500, &text, body.into()).await?;
                Err(err)
            }
            other => other,
        }
    }

    /// Answers that it failed. The body should say so, too: the header is not shown by all.
    pub async fn fail(self, code: u16, text: &str, body: Bytes) -> Result<(), NatsError> {
        self.fail_with(Headers::new(), code, text, body).await
    }

    /// Answers that it failed, with more headers.
    pub async fn fail_with(
        mut self,
        headers: Headers,
        code: u16,
        text: &str,
        body: Bytes,
    ) -> Result<(), NatsError> {
        self.refuse(headers, code, text, body).await
    }

    /// Says nothing: the request was meant for others.
    pub fn ignore(self) {}

    async fn refuse(
        &mut self,
        mut headers: Headers,
        code: u16,
        text: &str,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let text = one_line(text);
        self.ticket.fail(code, &text);
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

/// Whether a message was sent to this subject by a client. JetStream sends what a stream holds to
/// any subject that the owner of a consumer names, and asks nobody whether that owner may publish
/// there; such a message still has the subject that it was stored under. Its other answers have a
/// status, or headers that say where a message is stored.
fn is_request(message: &ServiceMessage, subject: &Subject) -> bool {
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

/// Returns a text that fits into a header.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_ERROR)
        .collect()
}

/// Refuses what other tools would not understand.
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

/// Whether a text is three numbers, with or without more after `-` or `+`.
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
    fn what_other_tools_would_not_understand_is_refused() {
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
    fn what_comes_out_of_a_stream_is_no_request() {
        let subject: Subject = "ccm.v1.lab.node.web2.ensure".parse().unwrap();
        let message = |subject: &str, reply: Option<&str>, header: Option<&str>| ServiceMessage {
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
        for copied in [
            message(stored, Some("_INBOX.a"), None),
            message(own, Some("$JS.ACK.S.c.1.1.1.1.0"), None),
            message(own, Some("$JS.FC.S.c.x"), None),
            message(own, None, Some("Nats-Stream")),
        ] {
            assert!(!is_request(&copied, &subject), "{copied:?}");
        }
        let beat = ServiceMessage {
            status: Some(async_nats::StatusCode::IDLE_HEARTBEAT),
            ..message(own, None, None)
        };
        assert!(!is_request(&beat, &subject));
    }

    #[test]
    fn a_version_is_three_numbers_and_more() {
        for good in ["0.1.0", "1.2.3-rc.1", "1.2.3+build"] {
            assert!(is_version(good), "{good}");
        }
        for bad in ["", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1..3"] {
            assert!(!is_version(bad), "{bad}");
        }
    }

    #[test]
    fn an_error_fits_into_a_header() {
        assert_eq!(one_line("a\r\nb"), "a  b");
        assert_eq!(one_line(&"é".repeat(1000)).chars().count(), MAX_ERROR);
    }
}
