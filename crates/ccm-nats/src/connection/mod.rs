//! One connection that comes back by itself, and what can be said over it.
//!
//! Whoever holds a [`Connection`] may clone it and forget about servers: the client reconnects
//! for ever, subscribes again, and reads its credentials afresh each time. What can't be said in
//! time is an error, never a wait without end. [`ConnectionState`] tells those who must know when the
//! connection went and came. What the server forbids is an error at once: `denied`. Who may log in
//! how is `login`; headers and messages are `message`.

use std::future::{Future, IntoFuture as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, ConnectOptions, Event, PublishErrorKind as CoreErrorKind};
use async_nats::{Request, RequestErrorKind, jetstream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::context::{Api, Settings};
use super::request_signature::Signer;
use super::{Cause, NatsError, Subject, backoff};

mod auth;
mod connect_error;
mod message;
mod permission_errors;
mod remote_servers;

pub use message::{Headers, Message, Reply};
pub use permission_errors::{Denial, DenialReceiver, Operation};

use self::permission_errors::Denials;

/// How long JetStream may take to answer one question.
pub(super) const API_LIMIT: Duration = Duration::from_secs(5);

/// How long a message may wait to be handed to the client; it waits when very many did already.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// How long the client may take to hand over what the server refused.
const DENIAL_LIMIT: Duration = Duration::from_millis(100);

/// How long one attempt to connect may take, handshakes included.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);

/// How often a silent server is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How many published messages may wait for the stream's word at once.
const MAX_IN_FLIGHT: usize = 4096;

/// How hard to try to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectMode {
    /// Every server once, and no longer than this: for people who wait.
    Once(Duration),
    /// Until it works, in the background: for daemons.
    Forever,
}

/// Whether the server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Connected, for the nth time.
    Up {
        connects: u64,
    },
    Down,
}

impl ConnectionState {
    pub fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// Who can connect to a server, as far as it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerExposure {
    /// It listens for programs of its own machine only.
    pub is_local: bool,
    /// It wants to know who connects.
    pub requires_auth: bool,
    pub requires_tls: bool,
}

/// When to stop waiting for more answers.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits {
    /// After this many.
    pub expected: Option<usize>,
    /// When nobody said anything for this long after the last answer.
    pub silence: Duration,
    /// At the latest.
    pub deadline: Duration,
}

/// A connection; clones share it.
#[derive(Clone, Debug)]
pub struct Connection {
    client: Client,
    jetstream: jetstream::Context,
    link: watch::Receiver<ConnectionState>,
    last_error: watch::Receiver<String>,
    denials: Denials,
    server_list: Arc<str>,
    /// What every subject of JetStream's API begins with.
    api: Arc<str>,
    /// Who signs what is asked.
    signer: Option<Arc<Signer>>,
    /// A configured server that is not on this machine.
    configured_remote: Option<Arc<str>>,
}

/// Connects. With [`ConnectMode::Forever`] it returns at once and [`Connection::state`] tells when
/// the server is there.
pub async fn connect(
    settings: &Settings,
    patience: ConnectMode,
    name: &str,
) -> Result<Connection, NatsError> {
    let server_list = settings.server_list();
    let failed = |reason: String, source| NatsError::Connect {
        servers: server_list.clone(),
        reason,
        source: Some(source),
    };
    let denials = Denials::new(settings.inbox_prefix.as_deref().unwrap_or("_INBOX"));
    let (sender, link) = watch::channel(ConnectionState::Down);
    let (error_sender, last_error) = watch::channel(String::new());
    let servers: Vec<&str> = settings.servers.iter().map(|s| s.as_str()).collect();
    let configured_remote = remote_servers::first_remote(servers.iter().copied()).map(Arc::from);
    let connecting =
        options(settings, patience, name, sender, error_sender, denials.clone()).connect(servers);
    let client = match patience {
        ConnectMode::Forever => connecting.await,
        ConnectMode::Once(limit) => timeout(limit, connecting)
            .await
            .map_err(|_| failed("timed out".into(), Cause::TimedOut))?,
    }
    .map_err(|err| failed(connect_error::reason(&err), Cause::client(err)))?;
    if patience != ConnectMode::Forever {
        // The client is connected; that its event has arrived here is a matter of scheduling.
        let mut link = link.clone();
        let _ = timeout(API_LIMIT, link.wait_for(|link| link.is_up())).await;
    }
    let builder = ContextBuilder::new()
        .timeout(API_LIMIT)
        .max_ack_inflight(MAX_IN_FLIGHT);
    let jetstream = match &settings.api {
        Api::Local => builder.build(client.clone()),
        Api::Domain(domain) => builder.domain(domain).build(client.clone()),
        Api::Prefix(prefix) => builder.api_prefix(prefix).build(client.clone()),
    };
    Ok(Connection {
        client,
        jetstream,
        link,
        last_error,
        denials,
        server_list: server_list.into(),
        api: match &settings.api {
            Api::Local => "$JS.API".into(),
            Api::Domain(domain) => format!("$JS.{domain}.API").into(),
            Api::Prefix(prefix) => prefix.as_str().into(),
        },
        signer: None,
        configured_remote,
    })
}

fn options(
    settings: &Settings,
    patience: ConnectMode,
    name: &str,
    link: watch::Sender<ConnectionState>,
    last_error: watch::Sender<String>,
    denials: Denials,
) -> ConnectOptions {
    let connects = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&connects);
    let mut options = auth::options(settings)
        .name(name)
        .connection_timeout(ATTEMPT_LIMIT)
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(move |attempt| {
            // The first try ever waits for nobody, and a person's tries never do.
            let is_first = connects.load(Ordering::Relaxed) == 0;
            match patience {
                ConnectMode::Once(_) if is_first => Duration::ZERO,
                ConnectMode::Forever if is_first && attempt <= 1 => Duration::ZERO,
                _ => backoff::delay(attempt.saturating_sub(1)),
            }
        })
        .event_callback(move |event| {
            if let Some(text) = connect_error::complaint(&event) {
                match Denial::parse(&text) {
                    Some(denial) => denials.tell(denial),
                    None => {
                        last_error.send_replace(text);
                    }
                }
            }
            match event {
                Event::Connected => {
                    denials.forget();
                    let connects = counter.fetch_add(1, Ordering::Relaxed) + 1;
                    link.send_replace(ConnectionState::Up { connects });
                }
                Event::Disconnected | Event::Closed => {
                    link.send_replace(ConnectionState::Down);
                }
                _ => {}
            }
            std::future::ready(())
        });
    if patience == ConnectMode::Forever {
        options = options.retry_on_initial_connect();
    }
    if let Some(backlog) = settings.backlog {
        options = options.subscription_capacity(backlog);
    }
    if let Some(prefix) = &settings.inbox_prefix {
        options = options.custom_inbox_prefix(prefix);
    }
    if let Some(ca) = &settings.tls.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let Some((certificate, key)) = &settings.tls.identity {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    // Whoever names certificates wants them used, whatever the server says in the clear.
    if settings.tls.ca.is_some() || settings.tls.identity.is_some() {
        options = options.require_tls(true);
    }
    if settings.tls.first {
        options = options.tls_first();
    }
    options
}

impl Connection {
    /// Returns a view of whether the server can be reached, now and from now on.
    pub fn state(&self) -> watch::Receiver<ConnectionState> {
        self.link.clone()
    }

    /// Returns a view of what the server or the way to it last had against us.
    pub fn last_error(&self) -> watch::Receiver<String> {
        self.last_error.clone()
    }

    pub fn is_up(&self) -> bool {
        self.link.borrow().is_up()
    }

    /// Returns the servers as people may see them.
    pub fn servers(&self) -> &str {
        &self.server_list
    }

    /// Returns the most bytes that one message may have.
    pub fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn jetstream(&self) -> &jetstream::Context {
        &self.jetstream
    }

    /// Returns the subject of one of JetStream's own questions.
    pub(super) fn api(&self, question: &str) -> String {
        format!("{}.{question}", self.api)
    }

    /// Returns what the server says about who may connect, and from where.
    pub fn exposure(&self) -> ServerExposure {
        let info = self.client.server_info();
        let host = info.host.trim_matches(['[', ']']);
        let address = host.parse::<std::net::IpAddr>();
        ServerExposure {
            is_local: host == "localhost" || address.is_ok_and(|address| address.is_loopback()),
            requires_auth: info.auth_required,
            requires_tls: info.tls_required,
        }
    }

    /// Returns a view of what the server forbids from now on.
    pub fn denials(&self) -> DenialReceiver {
        self.denials.listen()
    }

    /// Waits for an answer, unless the server forbids the subject that it takes.
    pub(super) async fn unless_denied<T>(
        &self,
        subject: &str,
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let mut denied = self.denials.listen();
        denied.during(|it| it == subject, doing).await
    }

    /// Waits for an answer, unless the server forbids one of several subjects.
    pub(super) async fn unless_any_denied<T>(
        &self,
        subjects: &[String],
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let mut denied = self.denials.listen();
        let concerns = |it: &str| subjects.iter().any(|subject| subject == it);
        denied.during(concerns, doing).await
    }

    /// Hands over what is still to be sent and received, and ends the connection.
    pub async fn drain(&self) {
        let mut link = self.link.clone();
        if self.client.drain().await.is_ok() {
            let _ = timeout(SEND_LIMIT, link.wait_for(|link| !link.is_up())).await;
        }
    }

    /// Waits until the server has seen all that was said so far: what we say to ourselves comes
    /// back after it. (The client's own flush ends at the socket.)
    pub async fn flush(&self) -> Result<(), NatsError> {
        let inbox = self.client.new_inbox();
        let there_and_back = async {
            let mut back = self.client.subscribe(inbox.clone()).await.ok()?;
            self.client
                .publish(inbox.clone(), Bytes::new())
                .await
                .ok()?;
            back.next().await
        };
        let there_and_back = timeout(SEND_LIMIT, there_and_back);
        match self.unless_denied(&inbox, there_and_back).await? {
            Ok(Some(_)) => Ok(()),
            _ => Err(NatsError::Closed),
        }
    }

    /// Says something to whoever listens now.
    pub async fn publish(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let headers = self.signed(subject, headers, &body)?;
        self.publish_to(subject.as_str(), headers, body).await
    }

    /// Returns the same connection for somebody who signs all that is asked through it.
    #[must_use]
    pub fn with_signer(self, signer: Option<Signer>) -> Self {
        Self {
            signer: signer.map(Arc::new),
            ..self
        }
    }

    /// Returns who signs, if somebody does.
    pub fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }

    fn signed(
        &self,
        subject: &Subject,
        mut headers: Headers,
        body: &[u8],
    ) -> Result<Headers, NatsError> {
        if let Some(signer) = &self.signer {
            signer.sign(subject, &mut headers, body)?;
        }
        Ok(headers)
    }

    /// Says something on a subject that came with a message.
    pub(super) async fn publish_to(
        &self,
        subject: &str,
        headers: Headers,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let size = body.len();
        let to = subject.to_owned();
        let sent = if headers.is_empty() {
            timeout(SEND_LIMIT, self.client.publish(to, body)).await
        } else {
            let publishing = self
                .client
                .publish_with_headers(to, headers.into_map(), body);
            timeout(SEND_LIMIT, publishing).await
        };
        sent.map_err(|_| NatsError::Closed)?
            .map_err(|err| match err.kind() {
                CoreErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
                    subject: subject.into(),
                    size,
                },
                CoreErrorKind::InvalidSubject => NatsError::Subject(subject.into()),
                CoreErrorKind::Send => NatsError::Closed,
            })
    }

    /// Publishes to a stream and waits until it is stored. The same id is stored once, however
    /// often it is published within the stream's window.
    pub async fn publish_stored(
        &self,
        subject: &Subject,
        id: &str,
        body: Bytes,
    ) -> Result<(), NatsError> {
        self.begin_publish_stored(subject, id, body).await?.wait().await
    }

    /// Publishes to a stream; the answer tells later whether it was stored, so that many can be on
    /// their way at once.
    pub async fn begin_publish_stored(
        &self,
        subject: &Subject,
        id: &str,
        body: Bytes,
    ) -> Result<Pending, NatsError> {
        let size = body.len();
        let denied = self.denials.listen();
        let message = PublishMessage::build().payload(body).message_id(id);
        let sending = self
            .jetstream
            .send_publish(subject.as_str().to_owned(), message);
        let ack = sending
            .await
            .map_err(|err| stored_error(subject, size, err))?;
        Ok(Pending {
            subject: subject.clone(),
            size,
            ack,
            denied,
        })
    }

    /// Publishes to a stream with these headers and waits until it is stored.
    pub(super) async fn store(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let size = body.len();
        let denied = self.denials.listen();
        let to = subject.as_str().to_owned();
        let sending = self
            .jetstream
            .publish_with_headers(to, headers.into_map(), body);
        let ack = within(SEND_LIMIT, sending)
            .await?
            .map_err(|err| stored_error(subject, size, err))?;
        let subject = subject.clone();
        let pending = Pending {
            subject,
            size,
            ack,
            denied,
        };
        pending.wait().await
    }

    /// Asks and returns the first answer.
    pub async fn request(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
        limit: Duration,
    ) -> Result<Reply, NatsError> {
        let size = body.len();
        let headers = self.signed(subject, headers, &body)?;
        let request = Request::new()
            .payload(body)
            .headers(headers.into_map())
            .timeout(Some(limit));
        let asked = self
            .client
            .send_request(subject.as_str().to_owned(), request);
        // The client's own limit does not cover handing the question over.
        let failed = |kind| match kind {
            RequestErrorKind::NoResponders => NatsError::NoResponders(subject.to_string()),
            RequestErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
                subject: subject.to_string(),
                size,
            },
            RequestErrorKind::InvalidSubject => NatsError::Subject(subject.to_string()),
            RequestErrorKind::TimedOut => NatsError::NoReply {
                subject: subject.to_string(),
                limit,
            },
            RequestErrorKind::Other => NatsError::Closed,
        };
        let asked = timeout(limit + SEND_LIMIT, asked);
        match self.unless_denied(subject.as_str(), asked).await? {
            Ok(Ok(message)) => Ok(message.into()),
            Ok(Err(err)) => Err(failed(err.kind())),
            Err(_) => Err(failed(RequestErrorKind::TimedOut)),
        }
    }

    /// Asks everyone and returns their answers as they come.
    pub async fn request_many(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
        stop: ReplyLimits,
    ) -> Result<Replies, NatsError> {
        let headers = self.signed(subject, headers, &body)?;
        let deadline = Instant::now() + stop.deadline;
        let denied = self.denials.listen();
        let inbox = self.client.new_inbox();
        let listening = self.client.subscribe(inbox.clone());
        let answers = within(SEND_LIMIT, listening)
            .await?
            .map_err(|_| NatsError::Closed)?;
        let size = body.len();
        let asking = self.client.publish_with_reply_and_headers(
            subject.as_str().to_owned(),
            inbox,
            headers.into_map(),
            body,
        );
        within(SEND_LIMIT, asking)
            .await?
            .map_err(|err| match err.kind() {
                CoreErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
                    subject: subject.to_string(),
                    size,
                },
                _ => NatsError::Closed,
            })?;
        Ok(Replies {
            answers,
            stop,
            deadline,
            count: 0,
            has_no_responders: false,
            subject: subject.clone(),
            denied,
            denial: None,
        })
    }

    /// Listens on a subject, which may hold wildcards. Returns once the server knows, if it can be
    /// reached.
    pub async fn subscribe(&self, subject: &Subject) -> Result<Subscription, NatsError> {
        let mut denied = self.denials.listen();
        let listening = self.client.subscribe(subject.as_str().to_owned());
        let listening = within(SEND_LIMIT, listening).await?;
        let listening = listening.map_err(|_| NatsError::Subject(subject.to_string()))?;
        if self.is_up() {
            let concerns = |it: &str| it == subject.as_str();
            denied.during(concerns, self.flush()).await??;
            // The server refused before it answered; the client may tell the one after the other.
            if let Ok(denial) = timeout(DENIAL_LIMIT, denied.denial(concerns)).await {
                return Err(denial.into());
            }
        }
        Ok(Subscription(listening))
    }
}

/// Waits no longer than this to hand something over.
async fn within<T>(limit: Duration, doing: impl Future<Output = T>) -> Result<T, NatsError> {
    timeout(limit, doing).await.map_err(|_| NatsError::Closed)
}

fn stored_error(
    subject: &Subject,
    size: usize,
    err: jetstream::context::PublishError,
) -> NatsError {
    match err.kind() {
        PublishErrorKind::StreamNotFound => NatsError::NotStored(subject.to_string()),
        PublishErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
            subject: subject.to_string(),
            size,
        },
        PublishErrorKind::TimedOut => NatsError::NoReply {
            subject: subject.to_string(),
            limit: API_LIMIT,
        },
        PublishErrorKind::BrokenPipe => NatsError::Closed,
        _ => NatsError::Failed {
            action: "publish",
            subject: subject.to_string(),
            source: Cause::client(err),
        },
    }
}

/// A message on its way into a stream.
#[derive(Debug)]
#[must_use]
pub struct Pending {
    subject: Subject,
    size: usize,
    ack: PublishAckFuture,
    denied: DenialReceiver,
}

impl Pending {
    /// Waits until the stream has it.
    pub async fn wait(mut self) -> Result<(), NatsError> {
        let subject = self.subject.as_str();
        let acknowledged = self
            .denied
            .during(|it| it == subject, self.ack.into_future());
        match acknowledged.await? {
            Ok(_) => Ok(()),
            Err(err) => Err(stored_error(&self.subject, self.size, err)),
        }
    }
}

/// What arrives on a subject. DenialReceiver ends when this is dropped.
#[derive(Debug)]
pub struct Subscription(async_nats::Subscriber);

impl Subscription {
    /// Returns the next message, or nothing once the connection has ended for good.
    pub async fn next(&mut self) -> Option<Message> {
        self.0.next().await.map(Message::from)
    }
}

/// The answers of many. Asking ends when this is dropped.
#[derive(Debug)]
pub struct Replies {
    answers: async_nats::Subscriber,
    stop: ReplyLimits,
    deadline: Instant,
    count: usize,
    has_no_responders: bool,
    subject: Subject,
    denied: DenialReceiver,
    denial: Option<Denial>,
}

impl Replies {
    /// Returns the next answer, or nothing when it is time to stop. The silence that stops is the
    /// one after an answer; the first may take until the deadline.
    pub async fn next(&mut self) -> Option<Reply> {
        if self.stop.expected.is_some_and(|most| self.count >= most)
            || self.has_no_responders
            || self.denial.is_some()
        {
            return None;
        }
        let until = match self.count {
            0 => self.deadline,
            _ => self.deadline.min(Instant::now() + self.stop.silence),
        };
        let subject = self.subject.as_str();
        let answer = timeout_at(until, self.answers.next());
        let message = tokio::select! {
            biased;
            message = answer => message.ok()??,
            denial = self.denied.denial(|it| it == subject) => {
                self.denial = Some(denial);
                return None;
            }
        };
        if message.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
            self.has_no_responders = true;
            return None;
        }
        self.count += 1;
        Some(message.into())
    }

    /// Returns why nobody was asked, if the server forbade it.
    pub fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    /// Whether the server said that nobody listens at all.
    pub fn has_no_responders(&self) -> bool {
        self.has_no_responders
    }
}
