//! The live page of a fleet: what `ccm fleet serve` answers.
//!
//! - `live`: the fleet as it is now, in bounded memory; `node`, `happening`, `progress`
//!   and `timeline` are what it is made of
//! - `hear`: from the bus into the live state
//! - `api`: paths and answers; `stream` for news, `metrics` for Prometheus, `act` for deeds and
//!   `many` for those on many nodes at once
//! - `guard`: who may ask
//! - `page`: the files of the page
//!
//! Everything shown is read from buckets and the stream of events; nothing is kept on disk, and
//! any number of these may run. What happens on a node is not known here.

mod actions;
mod api;
mod assets_handler;
mod auth;
mod bulk;
mod event_row;
mod event_stream;
#[cfg(test)]
mod fixture;
mod ingest;
mod live_state;
mod metrics;
mod node_row;
mod rollout_row;
mod timeline;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::net::TcpListener;
use tokio::time::sleep;

use self::actions::Actions;
use self::api::Web;
use self::auth::Guard;
use self::ingest::Shared;
use self::live_state::Live;
use ccm_core::system::connection_limit::{self, Gate};
use ccm_core::system::{Cause, RandomError, random};
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::secret::Secret;

/// How many connections are open at once; each page holds one.
const MAX_CONNECTIONS: usize = 512;

/// How long a connection may go without an answer of ours: longer than the longest work of nodes.
/// A quiet stream says more often that it is alive.
const PATIENCE: Duration = actions::WORK.saturating_add(Duration::from_secs(10));

/// How long requests that are being answered may hold up the end. Streams never end by themselves.
const GRACE: Duration = Duration::from_secs(1);

/// The shortest token that is worth guessing at.
const SHORTEST_TOKEN: usize = 16;

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("{0} can be reached from other machines: that takes a token")]
    Open(SocketAddr),
    #[error("actions take a token")]
    NoToken,
    #[error("the token must have {SHORTEST_TOKEN} characters or more, without spaces")]
    WeakToken,
    #[error("listen on {address}: {cause}")]
    Bind { address: SocketAddr, cause: Cause },
    #[error("serve {address}: {cause}")]
    Serve { address: SocketAddr, cause: Cause },
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// How to serve.
#[derive(Debug)]
pub struct Options {
    pub listen: SocketAddr,
    pub token: Option<Secret>,
    /// People with the token may act, not only look.
    pub allow_actions: bool,
    /// Who acts, as nodes and rollouts are told; by convention `user@host`.
    pub caller: String,
}

impl Options {
    /// Refuses what would let strangers in.
    fn check(&self) -> Result<(), WebError> {
        if let Some(token) = &self.token {
            let text = token.reveal();
            let is_plain = text.chars().all(|c| c.is_ascii_graphic());
            if text.len() < SHORTEST_TOKEN || !is_plain {
                return Err(WebError::WeakToken);
            }
        } else if self.allow_actions {
            return Err(WebError::NoToken);
        } else if !self.listen.ip().is_loopback() {
            return Err(WebError::Open(self.listen));
        }
        Ok(())
    }
}

/// A port that is ours, and will be served.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
}

impl Server {
    /// Takes the port, unless that would let strangers in.
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
        })
    }

    /// Returns where the port is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` comes. Servers of NATS may come and go meanwhile.
    pub async fn serve(
        self,
        connection: Connection,
        subjects: Subjects,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), WebError> {
        let address = self.address;
        let epoch = (random()? >> 64) as u64;
        let shared = Shared::new(Live::new(epoch));
        let _hearing = ingest::start(&connection, &subjects, &shared)?;
        let denied = shared.clone();
        let web = Arc::new(Web {
            shared,
            guard: Guard {
                is_local: address.ip().is_loopback(),
                token: self.options.token,
                allow_actions: self.options.allow_actions,
            },
            actions: Actions::new(connection, subjects, self.options.caller),
        });
        let gate = Gate::new(self.listener, MAX_CONNECTIONS, PATIENCE);
        let stop = stop.shared();
        let serving = axum::serve(Port(gate), api::router(web.clone()))
            .with_graceful_shutdown(stop.clone())
            .into_future();
        let too_late = async {
            stop.await;
            sleep(GRACE).await;
        };
        let served = tokio::select! {
            served = serving => served.map_err(|err| WebError::Serve {
                address,
                cause: err.into(),
            }),
            () = too_late => Ok(()),
            denial = denied.denied() => Err(NatsError::from(denial).into()),
        };
        web.actions.end().await;
        served
    }
}

/// The gate as the server takes connections from it.
struct Port(Gate);

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

    fn options(listen: &str, token: Option<&str>, allow_actions: bool) -> Options {
        Options {
            listen: listen.parse().unwrap(),
            token: token.map(Secret::new),
            allow_actions,
            caller: "test".into(),
        }
    }

    #[test]
    fn strangers_are_not_let_in_by_mistake() {
        const GOOD: Option<&str> = Some("0123456789abcdef");
        for (listen, token, actions, error) in [
            ("127.0.0.1:0", None, false, ""),
            ("[::1]:0", None, false, ""),
            (
                "0.0.0.0:1",
                None,
                false,
                "0.0.0.0:1 can be reached from other machines: that takes a token",
            ),
            ("0.0.0.0:0", GOOD, false, ""),
            ("127.0.0.1:0", None, true, "actions take a token"),
            ("127.0.0.1:0", GOOD, true, ""),
            (
                "127.0.0.1:0",
                Some("short"),
                true,
                "the token must have 16 characters or more, without spaces",
            ),
        ] {
            let checked = options(listen, token, actions).check();
            let found = checked
                .err()
                .map_or_else(String::new, |err| err.to_string());
            assert_eq!(found, error, "{listen} {token:?} {actions}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_clear_error() {
        let first = Server::bind(options("127.0.0.1:0", None, false))
            .await
            .unwrap();
        let taken = first.address().to_string();
        let error = Server::bind(options(&taken, None, false))
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("listen on {taken}: address already in use")
        );
    }
}
