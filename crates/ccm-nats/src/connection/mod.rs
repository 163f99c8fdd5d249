//! NATS connection: connect, reconnect and state; publish, request and subscribe are in submodules.
//!
//! Clones of a [`Connection`] share one client. The client reconnects without limit, restores
//! subscriptions, and reads credential files again at every attempt. Every call has a time limit.
//!
//! - `auth` and `remote_servers`: credentials, and which servers are not on this machine
//! - `publish`, `request`, `subscribe`: the operations
//! - `permission_errors`: a permission violation as the error of the call that caused it
//! - `message`: headers and messages

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, Event, jetstream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::timeout;

use super::context::{Api, Settings};
use super::request_signature::Signer;
use super::{Cause, NatsError, backoff};

mod auth;
mod connect_error;
mod message;
mod permission_errors;
mod publish;
mod remote_servers;
mod request;
mod subscribe;

pub use message::{Headers, Message, Reply};
pub use permission_errors::{Denial, DenialReceiver, Operation};
pub use publish::PendingAck;
pub use request::{Replies, ReplyLimits};
pub use subscribe::Subscription;

use self::permission_errors::Denials;

/// Time limit of one JetStream API request.
pub(super) const API_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for handing a message to the client, whose send buffer may be full.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of one attempt to connect, including the TLS handshake.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);

/// Interval of the client's PING.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Size of the read buffer with a limited backlog. The client makes up to 128 reads before other tasks
/// run; the messages of all these should fit into the backlog.
const READ_BUFFER: u16 = 4096;

/// Maximum number of published messages that wait for a stream's acknowledgement.
const MAX_IN_FLIGHT: usize = 4096;

/// Whether a failed connect is an error or retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectMode {
    /// Tries every server once within the time limit: for command-line tools.
    Once(Duration),
    /// Retries in the background until it succeeds: for daemons.
    Forever,
}

/// Whether the server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Connected; `connects` counts the connects so far.
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

/// Who can connect to a server, according to its INFO message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerExposure {
    /// It listens on a loopback address only.
    pub is_local: bool,
    /// Clients must authenticate.
    pub requires_auth: bool,
    pub requires_tls: bool,
}

/// A NATS connection; clones share it.
#[derive(Clone, Debug)]
pub struct Connection {
    client: Client,
    jetstream: jetstream::Context,
    link: watch::Receiver<ConnectionState>,
    last_error: watch::Receiver<String>,
    denials: Denials,
    server_list: Arc<str>,
    /// Prefix of JetStream API subjects.
    api: Arc<str>,
    /// Signs published requests.
    signer: Option<Arc<Signer>>,
    /// The first configured server that is not on this machine.
    configured_remote: Option<Arc<str>>,
    dropped: Arc<AtomicU64>,
}

/// Connects. With [`ConnectMode::Forever`] it returns at once; watch [`Connection::state`] for the
/// connect.
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
    let dropped = Arc::default();
    let servers: Vec<&str> = settings.servers.iter().map(|s| s.as_str()).collect();
    let configured_remote = settings.first_remote_server().map(Arc::from);
    let reports = EventReports {
        link: sender,
        last_error: error_sender,
        denials: denials.clone(),
        dropped: Arc::clone(&dropped),
    };
    let connecting = options(settings, patience, name, reports).connect(servers);
    let client = match patience {
        ConnectMode::Forever => connecting.await,
        ConnectMode::Once(limit) => timeout(limit, connecting)
            .await
            .map_err(|_| failed("timed out".into(), Cause::TimedOut))?,
    }
    .map_err(|err| failed(connect_error::reason(&err), Cause::client(err)))?;
    if patience != ConnectMode::Forever {
        // The client is connected, but its event may not have been processed yet.
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
        dropped,
    })
}

/// Where the events of the client go.
struct EventReports {
    link: watch::Sender<ConnectionState>,
    last_error: watch::Sender<String>,
    denials: Denials,
    dropped: Arc<AtomicU64>,
}

fn options(
    settings: &Settings,
    patience: ConnectMode,
    name: &str,
    reports: EventReports,
) -> ConnectOptions {
    let EventReports {
        link,
        last_error,
        denials,
        dropped,
    } = reports;
    let connects = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&connects);
    let mut options = auth::options(settings)
        .name(name)
        .connection_timeout(ATTEMPT_LIMIT)
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(move |attempt| {
            // No delay before the first attempt, and none at all in a command-line tool.
            let is_first = connects.load(Ordering::Relaxed) == 0;
            match patience {
                ConnectMode::Once(_) if is_first => Duration::ZERO,
                ConnectMode::Forever if is_first && attempt <= 1 => Duration::ZERO,
                _ => backoff::delay(attempt.saturating_sub(1)),
            }
        })
        .event_callback(move |event| {
            if let Some(text) = connect_error::event_error(&event) {
                match Denial::parse(&text) {
                    Some(denial) => denials.record(denial),
                    None => {
                        last_error.send_replace(text);
                    }
                }
            }
            match event {
                Event::Connected => {
                    denials.clear();
                    let connects = counter.fetch_add(1, Ordering::Relaxed) + 1;
                    link.send_replace(ConnectionState::Up { connects });
                }
                Event::Disconnected | Event::Closed => {
                    link.send_replace(ConnectionState::Down);
                }
                Event::SlowConsumer(_) => {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
            std::future::ready(())
        });
    if patience == ConnectMode::Forever {
        options = options.retry_on_initial_connect();
    }
    if let Some(backlog) = settings.backlog {
        options = options
            .subscription_capacity(backlog)
            .read_buffer_capacity(READ_BUFFER);
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
    // Configured certificates imply TLS, whatever the server's INFO message claims.
    if settings.tls.ca.is_some() || settings.tls.identity.is_some() {
        options = options.require_tls(true);
    }
    if settings.tls.first {
        options = options.tls_first();
    }
    options
}

impl Connection {
    /// Returns a receiver of the connection state.
    pub fn state(&self) -> watch::Receiver<ConnectionState> {
        self.link.clone()
    }

    /// Returns a receiver of the last connection error, other than permission violations.
    pub fn last_error(&self) -> watch::Receiver<String> {
        self.last_error.clone()
    }

    pub fn is_up(&self) -> bool {
        self.link.borrow().is_up()
    }

    /// Returns how many messages the client dropped because the queue of their subscription was full.
    /// In a burst the client does not report each of them.
    pub fn dropped_messages(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the server URLs, comma separated, without credentials.
    pub fn servers(&self) -> &str {
        &self.server_list
    }

    /// Returns the version of the server.
    pub fn server_version(&self) -> String {
        self.client.server_info().version
    }

    /// Returns the maximum size of a message in bytes.
    pub fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn jetstream(&self) -> &jetstream::Context {
        &self.jetstream
    }

    /// Returns the subject of a JetStream API request.
    pub(super) fn api(&self, request: &str) -> String {
        format!("{}.{request}", self.api)
    }

    /// Returns who may connect to the server, and from where.
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

    /// Returns a receiver of permission violations from now on.
    pub fn denials(&self) -> DenialReceiver {
        self.denials.listen()
    }

    /// Awaits `doing`; fails with a denial as soon as the server forbids the subject.
    pub(super) async fn unless_denied<T>(
        &self,
        subject: &str,
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let mut denied = self.denials.listen();
        denied.during(|it| it == subject, doing).await
    }

    /// Awaits `doing`; fails with a denial as soon as the server forbids one of the subjects.
    pub(super) async fn unless_any_denied<T>(
        &self,
        subjects: &[String],
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let mut denied = self.denials.listen();
        let concerns = |it: &str| subjects.iter().any(|subject| subject == it);
        denied.during(concerns, doing).await
    }

    /// Sends and delivers what is buffered, then closes the connection.
    pub async fn drain(&self) {
        let mut link = self.link.clone();
        if self.client.drain().await.is_ok() {
            let _ = timeout(SEND_LIMIT, link.wait_for(|link| !link.is_up())).await;
        }
    }

    /// Waits until the server has processed everything sent so far, by a message to an own inbox.
    /// (The client's `flush` returns once the bytes are written to the socket.)
    pub async fn flush(&self) -> Result<(), NatsError> {
        let inbox = self.client.new_inbox();
        let round_trip = async {
            let mut echo = self.client.subscribe(inbox.clone()).await.ok()?;
            self.client
                .publish(inbox.clone(), Bytes::new())
                .await
                .ok()?;
            echo.next().await
        };
        let round_trip = timeout(SEND_LIMIT, round_trip);
        match self.unless_denied(&inbox, round_trip).await? {
            Ok(Some(_)) => Ok(()),
            _ => Err(NatsError::Closed),
        }
    }

    /// Returns the connection with a signer for everything published through it.
    #[must_use]
    pub fn with_signer(self, signer: Option<Signer>) -> Self {
        Self {
            signer: signer.map(Arc::new),
            ..self
        }
    }

    /// Returns the signer, if there is one.
    pub fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }
}

/// Awaits `doing` for at most `limit`, then fails as not connected.
async fn within<T>(limit: Duration, doing: impl Future<Output = T>) -> Result<T, NatsError> {
    timeout(limit, doing).await.map_err(|_| NatsError::Closed)
}
