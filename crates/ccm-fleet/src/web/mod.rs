//! Web server of the fleet: page, JSON API and metrics, as started by `ccm fleet serve`.
//!
//! - `live_state`: the fleet in bounded memory, made of `node_row`, `event_row`, `rollout_row` and
//!   `timeline`
//! - `ingest`: from NATS into the live state
//! - `api`: routes and responses; `event_stream` for server-sent events, `metrics` for Prometheus,
//!   `bundles` and `history` for what is read from NATS on request
//! - `actions`, `bulk` and `rollout_form`: actions on nodes and rollouts
//! - `access`: tokens and roles, `access_file`: their file, `rollout_policy`: limits on rollouts, `auth`: authorization of
//!   requests, `audit`: log of actions
//! - `static_files`: files of the page
//!
//! Everything shown is read from buckets and the event stream; nothing is stored on disk, and any
//! number of servers may run.

mod access;
mod access_file;
mod actions;
mod api;
mod audit;
mod auth;
mod bulk;
mod bundles;
mod event_row;
mod event_stream;
mod history;
mod ingest;
mod live_state;
mod metrics;
mod node_record;
mod node_row;
mod rollout_form;
mod rollout_policy;
mod rollout_row;
mod static_files;
mod timeline;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::net::TcpListener;
use tokio::time::sleep;

pub use self::access::{Access, AccessError, AccessRole};
use self::access_file::CurrentAccess;
pub use self::access_file::{AccessFile, AccessFileError};
use self::actions::Actions;
use self::api::AppState;
use self::audit::Audit;
use self::auth::Auth;
use self::bundles::BundleReader;
use self::history::HistoryReader;
use self::ingest::SharedState;
use self::live_state::LiveState;
use super::nats_waits::NatsWaits;
use ccm_core::run::log::Log;
use ccm_core::system::connection_limit::{self, LimitedListener};
use ccm_core::system::{Cause, RandomError, random};
use ccm_nats::{Connection, NatsError, Subjects};

/// Maximum number of connections; each open page holds one.
const MAX_CONNECTIONS: usize = 512;

/// Time after which a connection without a response is closed: longer than the longest request to
/// nodes. Idle streams send keep-alives more often.
const IDLE_TIMEOUT: Duration = actions::RUN_TIMEOUT.saturating_add(Duration::from_secs(10));

/// Grace period for open requests at shutdown. Streams never end by themselves.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Why the server can't start or failed.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("{0} is not a loopback address: a token is required")]
    Open(SocketAddr),
    #[error("listen on {address}: {cause}")]
    Bind { address: SocketAddr, cause: Cause },
    #[error("serve {address}: {cause}")]
    Serve { address: SocketAddr, cause: Cause },
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Options of the server.
pub struct Options {
    pub listen: SocketAddr,
    pub access: Access,
    /// File that the access is from; it is read again when it changes.
    pub access_file: Option<AccessFile>,
    /// Caller name for nodes and rollouts; by convention `user@host`.
    pub caller: String,
    /// Log of actions and refusals.
    pub log: Log,
}

impl Options {
    /// Refuses unsafe options.
    fn check(&self) -> Result<(), WebError> {
        if !self.access.needs_token() && !self.listen.ip().is_loopback() {
            return Err(WebError::Open(self.listen));
        }
        Ok(())
    }
}

/// A bound server.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
    waits: NatsWaits,
}

impl Server {
    /// Checks the options and binds the address.
    pub async fn bind(options: Options) -> Result<Self, WebError> {
        options.check()?;
        let failed = |err: std::io::Error| WebError::Bind {
            address: options.listen,
            cause: err.into(),
        };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        Ok(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            options,
            waits: NatsWaits::default(),
        })
    }

    /// Returns the record of what waits for NATS, which the page shows. Controllers beside the server
    /// use it as well.
    pub fn waits(&self) -> NatsWaits {
        self.waits.clone()
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until `stop` completes. Reconnects to NATS as needed.
    pub async fn serve(
        self,
        connection: Connection,
        subjects: Subjects,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), WebError> {
        let address = self.address;
        let epoch = (random()? >> 64) as u64;
        let shared = SharedState::new(LiveState::new(epoch));
        let _ingest = ingest::start(&connection, &subjects, &shared, &self.waits)?;
        let permissions = shared.clone();
        let access = CurrentAccess::new(self.options.access);
        let log = self.options.log.clone();
        let reloading = async {
            match self.options.access_file {
                Some(file) => access_file::follow(file, access.clone(), log).await,
                None => std::future::pending().await,
            }
        };
        let app = Arc::new(AppState {
            shared,
            auth: Auth {
                is_local: address.ip().is_loopback(),
                access: access.clone(),
            },
            audit: Audit::new(self.options.log),
            bundles: BundleReader::new(connection.clone()),
            history: HistoryReader::new(connection.clone(), subjects.clone()),
            actions: Actions::new(connection, subjects, self.options.caller, self.waits),
        });
        let listener = LimitedListener::new(self.listener, MAX_CONNECTIONS, IDLE_TIMEOUT);
        let stop = stop.shared();
        let serving = axum::serve(Port(listener), api::router(app.clone()))
            .with_graceful_shutdown(stop.clone())
            .into_future();
        let grace_ended = async {
            stop.await;
            sleep(SHUTDOWN_GRACE).await;
        };
        let served = tokio::select! {
            served = serving => served.map_err(|err| WebError::Serve {
                address,
                cause: err.into(),
            }),
            () = grace_ended => Ok(()),
            () = reloading => Ok(()),
            denial = permissions.denied() => Err(NatsError::from(denial).into()),
        };
        app.actions.shut_down().await;
        served
    }
}

/// Adapter that implements `axum::serve::Listener` for the limited listener.
struct Port(LimitedListener);

impl axum::serve::Listener for Port {
    type Io = connection_limit::Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        self.0.accept().await
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::engine::Level;
    use ccm_core::run::log::Style;
    use ccm_core::system::SystemClock;
    use ccm_value::secret::Secret;

    fn options(listen: &str, token: Option<&str>) -> Options {
        let single = |text: &str| Access::single(&Secret::new(text), AccessRole::Read).unwrap();
        Options {
            listen: listen.parse().unwrap(),
            access: token.map_or_else(Access::open, single),
            access_file: None,
            caller: "test".into(),
            log: Log::to(std::io::sink(), Style::Text, Level::Error, SystemClock),
        }
    }

    #[test]
    fn without_a_token_only_loopback_addresses_are_served() {
        const GOOD: Option<&str> = Some("0123456789abcdef");
        for (listen, token, error) in [
            ("127.0.0.1:0", None, ""),
            ("[::1]:0", None, ""),
            (
                "0.0.0.0:1",
                None,
                "0.0.0.0:1 is not a loopback address: a token is required",
            ),
            ("0.0.0.0:0", GOOD, ""),
            ("127.0.0.1:0", GOOD, ""),
        ] {
            let checked = options(listen, token).check();
            let found = checked
                .err()
                .map_or_else(String::new, |err| err.to_string());
            assert_eq!(found, error, "{listen} {token:?}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_an_error() {
        let first = Server::bind(options("127.0.0.1:0", None)).await.unwrap();
        let taken = first.address().to_string();
        let error = Server::bind(options(&taken, None)).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            format!("listen on {taken}: address already in use")
        );
    }
}
