//! Answers monitoring over HTTP: `/metrics`, `/healthz` and `/readyz`.
//!
//! Whether the agent is alive or ready is not decided here: two closures say so, and why not.
//! Anyone who reaches the port may ask, so little can be taken from us: a bounded number of
//! connections, each of which must finish a request in its time; `system::connection_limit` sees to that.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::FutureExt as _;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::config::Listen;
use super::metrics::{CONTENT_TYPE, Metrics};
use ccm_core::system::Cause;
use ccm_core::system::connection_limit::{self, Gate};

/// How many connections are open at once; more wait.
const MAX_CONNECTIONS: usize = 64;

/// How long a connection may go without an answer of ours: to send a request, or to read.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long requests that are being answered may hold up the end.
const GRACE: Duration = Duration::from_secs(3);

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("listen on {address}: {cause}")]
    Bind { address: SocketAddr, cause: Cause },
    #[error("serve {address}: {cause}")]
    Serve { address: SocketAddr, cause: Cause },
}

/// What is wrong with an agent that runs.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    #[error("nothing moved for {seconds} seconds")]
    Still { seconds: u64 },
    #[error("the first run is not over yet")]
    FirstRun,
}

/// Says that all is well, or what is not. It is asked for every request and must not wait.
pub type Probe = Box<dyn Fn() -> Result<(), Unhealthy> + Send + Sync>;

/// What the agent knows about itself.
pub struct Probes {
    /// Whether its loop goes round.
    pub alive: Probe,
    /// Whether it does its work: something was tried, or there is nothing to do.
    pub ready: Probe,
}

/// A port that is ours, and will be served.
#[derive(Debug)]
pub struct Monitor {
    listener: TcpListener,
    address: SocketAddr,
    patience: Duration,
}

impl Monitor {
    /// Takes the port.
    pub async fn bind(listen: Listen) -> Result<Self, MonitorError> {
        let wanted = SocketAddr::from((listen.address, listen.port));
        let failed = |err: io::Error| MonitorError::Bind {
            address: wanted,
            cause: err.into(),
        };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        Ok(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            patience: PATIENCE,
        })
    }

    /// Returns where the port is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` comes, and then what was already asked.
    pub async fn serve(
        self,
        metrics: Metrics,
        probes: Probes,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), MonitorError> {
        let address = self.address;
        let gate = Gate::new(self.listener, MAX_CONNECTIONS, self.patience);
        let stop = stop.shared();
        let serving = axum::serve(Port(gate), routes(metrics, probes))
            .with_graceful_shutdown(stop.clone())
            .into_future();
        let too_late = async {
            stop.await;
            sleep(GRACE).await;
        };
        tokio::select! {
            served = serving => served.map_err(|err| MonitorError::Serve {
                address,
                cause: err.into(),
            }),
            () = too_late => Ok(()),
        }
    }
}

fn routes(metrics: Metrics, probes: Probes) -> Router {
    let probes = Arc::new(probes);
    let health = Router::new()
        .route(
            "/healthz",
            get(async |State(probes): State<Arc<Probes>>| answer((probes.alive)())),
        )
        .route(
            "/readyz",
            get(async |State(probes): State<Arc<Probes>>| answer((probes.ready)())),
        )
        .with_state(probes);
    Router::new()
        .route(
            "/metrics",
            get(async |State(metrics): State<Metrics>| {
                ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.print())
            }),
        )
        .with_state(metrics)
        .merge(health)
}

fn answer(result: Result<(), Unhealthy>) -> Response {
    match result {
        Ok(()) => Json(json!({"status": "ok"})).into_response(),
        Err(reason) => {
            let body = json!({"status": "failed", "reason": reason.to_string()});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
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

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    const HERE: Listen = Listen {
        address: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        port: 0,
    };

    struct Served {
        address: SocketAddr,
        is_ready: Arc<AtomicBool>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<Result<(), MonitorError>>,
    }

    async fn serve(patience: Duration) -> Served {
        let monitor = Monitor {
            patience,
            ..Monitor::bind(HERE).await.unwrap()
        };
        let address = monitor.address();
        let is_ready = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = oneshot::channel();
        let known = is_ready.clone();
        let probes = Probes {
            alive: Box::new(|| Ok(())),
            ready: Box::new(move || {
                let is_ready = known.load(Ordering::SeqCst);
                is_ready.then_some(()).ok_or(Unhealthy::FirstRun)
            }),
        };
        let stopped = async { drop(stopped.await) };
        let task = tokio::spawn(monitor.serve(Metrics::new("1.2.3"), probes, stopped));
        Served {
            address,
            is_ready,
            stop,
            task,
        }
    }

    /// Returns the whole answer to a request.
    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        ask(address, &request).await
    }

    #[tokio::test]
    async fn metrics_are_served_as_prometheus_wants_them() {
        let served = serve(PATIENCE).await;
        let answer = get(served.address, "/metrics").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
            "{head}"
        );
        assert_eq!(body, Metrics::new("1.2.3").print());
    }

    #[tokio::test]
    async fn a_living_agent_is_healthy() {
        let served = serve(PATIENCE).await;
        let answer = get(served.address, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n{\"status\":\"ok\"}"), "{answer}");
    }

    #[tokio::test]
    async fn an_agent_that_is_not_ready_says_why_until_it_is() {
        let served = serve(PATIENCE).await;
        let answer = get(served.address, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
            "{answer}"
        );
        let body = "{\"status\":\"failed\",\"reason\":\"the first run is not over yet\"}";
        assert!(answer.ends_with(body), "{answer}");
        served.is_ready.store(true, Ordering::SeqCst);
        let answer = get(served.address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_refused() {
        let served = serve(PATIENCE).await;
        let answer = get(served.address, "/").await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let post = "POST /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let answer = ask(served.address, post).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_clear_error() {
        let first = Monitor::bind(HERE).await.unwrap();
        let taken = Listen {
            port: first.address().port(),
            ..HERE
        };
        let error = Monitor::bind(taken).await.unwrap_err().to_string();
        let expected = format!("listen on {}: address already in use", first.address());
        assert_eq!(error, expected);
    }

    #[tokio::test]
    async fn serving_ends_when_told_to() {
        let served = serve(PATIENCE).await;
        // An idle connection holds nothing up.
        let _idle = TcpStream::connect(served.address).await.unwrap();
        served.stop.send(()).unwrap();
        served.task.await.unwrap().unwrap();
        assert!(TcpStream::connect(served.address).await.is_err());
    }

    #[tokio::test]
    async fn one_who_never_finishes_a_request_is_cut_off() {
        let served = serve(Duration::from_millis(20)).await;
        let answer = ask(served.address, "GET /metrics HTTP/1.1\r\nHost:").await;
        assert_eq!(answer, "");
    }

    #[tokio::test]
    async fn more_connections_than_allowed_wait_for_a_place() {
        let served = serve(Duration::from_millis(200)).await;
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(TcpStream::connect(served.address).await.unwrap());
        }
        // Its turn comes when those who never ask are cut off.
        let answer = get(served.address, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}
