//! Monitoring server: `/metrics`, `/healthz` and `/readyz` over HTTP.
//!
//! Liveness and readiness come from two closures. The port needs no authentication, so the number
//! of connections and the time for a request are limited, see `system::connection_limit`.

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
use ccm_core::system::connection_limit::{self, LimitedListener};

/// Most open connections; more wait.
const MAX_CONNECTIONS: usize = 64;

/// Longest time a connection may take to send a request or to read the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for requests in progress at shutdown.
const GRACE: Duration = Duration::from_secs(3);

/// Why the monitoring server failed.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("listen on {address}: {cause}")]
    Bind { address: SocketAddr, cause: Cause },
    #[error("serve {address}: {cause}")]
    Serve { address: SocketAddr, cause: Cause },
}

/// Why the agent is not healthy.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    #[error("no maintenance for {seconds} seconds")]
    Stalled { seconds: u64 },
    #[error("the first run has not finished yet")]
    FirstRun,
    /// The agent can't do its work.
    #[error("{0}")]
    Problem(String),
}

/// Health check; called for every request and must not block.
pub(crate) type Probe = Box<dyn Fn() -> Result<(), Unhealthy> + Send + Sync>;

/// Health checks of the agent.
pub(crate) struct Probes {
    /// Liveness: maintenance runs.
    pub(crate) alive: Probe,
    /// Readiness: the first run has finished.
    pub(crate) ready: Probe,
}

/// A bound listener.
#[derive(Debug)]
pub(crate) struct Monitor {
    listener: TcpListener,
    address: SocketAddr,
    request_timeout: Duration,
}

impl Monitor {
    /// Binds the port.
    pub(crate) async fn bind(listen: Listen) -> Result<Self, MonitorError> {
        let wanted = SocketAddr::from((listen.address, listen.port));
        let failed = |err: io::Error| MonitorError::Bind {
            address: wanted,
            cause: err.into(),
        };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        Ok(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            request_timeout: REQUEST_TIMEOUT,
        })
    }

    /// Serves until `stop` resolves, then finishes requests in progress.
    pub(crate) async fn serve(
        self,
        metrics: Metrics,
        probes: Probes,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), MonitorError> {
        let address = self.address;
        let listener = LimitedListener::new(self.listener, MAX_CONNECTIONS, self.request_timeout);
        let stop = stop.shared();
        let serving = axum::serve(AxumListener(listener), routes(metrics, probes))
            .with_graceful_shutdown(stop.clone())
            .into_future();
        let grace_over = async {
            stop.await;
            sleep(GRACE).await;
        };
        tokio::select! {
            server = serving => server.map_err(|err| MonitorError::Serve {
                address,
                cause: err.into(),
            }),
            () = grace_over => Ok(()),
        }
    }
}

fn routes(metrics: Metrics, probes: Probes) -> Router {
    let probes = Arc::new(probes);
    let health = Router::new()
        .route(
            "/healthz",
            get(async |State(probes): State<Arc<Probes>>| health_response((probes.alive)())),
        )
        .route(
            "/readyz",
            get(async |State(probes): State<Arc<Probes>>| health_response((probes.ready)())),
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

fn health_response(result: Result<(), Unhealthy>) -> Response {
    match result {
        Ok(()) => Json(json!({"status": "ok"})).into_response(),
        Err(reason) => {
            let body = json!({"status": "failed", "reason": reason.to_string()});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

/// Adapter that implements `axum::serve::Listener` for the limited listener.
struct AxumListener(LimitedListener);

impl axum::serve::Listener for AxumListener {
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

    const LOCALHOST: Listen = Listen {
        address: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        port: 0,
    };

    struct TestServer {
        address: SocketAddr,
        is_ready: Arc<AtomicBool>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<Result<(), MonitorError>>,
    }

    async fn serve(request_timeout: Duration) -> TestServer {
        let monitor = Monitor {
            request_timeout,
            ..Monitor::bind(LOCALHOST).await.unwrap()
        };
        let address = monitor.address;
        let is_ready = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = oneshot::channel();
        let flag = is_ready.clone();
        let probes = Probes {
            alive: Box::new(|| Ok(())),
            ready: Box::new(move || {
                let is_ready = flag.load(Ordering::SeqCst);
                is_ready.then_some(()).ok_or(Unhealthy::FirstRun)
            }),
        };
        let stopped = async { drop(stopped.await) };
        let task = tokio::spawn(monitor.serve(Metrics::new("1.2.3"), probes, stopped));
        TestServer {
            address,
            is_ready,
            stop,
            task,
        }
    }

    /// Sends a request and returns the whole response.
    async fn send(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        send(address, &request).await
    }

    #[tokio::test]
    async fn metrics_are_served_as_prometheus_wants_them() {
        let server = serve(REQUEST_TIMEOUT).await;
        let response = get(server.address, "/metrics").await;
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
            "{head}"
        );
        assert_eq!(body, Metrics::new("1.2.3").print());
    }

    #[tokio::test]
    async fn a_running_agent_is_healthy() {
        let server = serve(REQUEST_TIMEOUT).await;
        let response = get(server.address, "/healthz").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(
            response.ends_with("\r\n\r\n{\"status\":\"ok\"}"),
            "{response}"
        );
    }

    #[tokio::test]
    async fn readiness_has_a_reason_until_the_first_run() {
        let server = serve(REQUEST_TIMEOUT).await;
        let response = get(server.address, "/readyz").await;
        assert!(
            response.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
            "{response}"
        );
        let body = "{\"status\":\"failed\",\"reason\":\"the first run has not finished yet\"}";
        assert!(response.ends_with(body), "{response}");
        server.is_ready.store(true, Ordering::SeqCst);
        let response = get(server.address, "/readyz").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_refused() {
        let server = serve(REQUEST_TIMEOUT).await;
        let response = get(server.address, "/").await;
        assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        let post = "POST /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let response = send(server.address, post).await;
        assert!(response.starts_with("HTTP/1.1 405 "), "{response}");
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_clear_error() {
        let first = Monitor::bind(LOCALHOST).await.unwrap();
        let taken = Listen {
            port: first.address.port(),
            ..LOCALHOST
        };
        let error = Monitor::bind(taken).await.unwrap_err().to_string();
        let expected = format!("listen on {}: address already in use", first.address);
        assert_eq!(error, expected);
    }

    #[tokio::test]
    async fn serving_ends_when_stopped() {
        let server = serve(REQUEST_TIMEOUT).await;
        // An idle connection does not delay shutdown.
        let _idle = TcpStream::connect(server.address).await.unwrap();
        server.stop.send(()).unwrap();
        server.task.await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err());
    }

    #[tokio::test]
    async fn an_unfinished_request_times_out() {
        let server = serve(Duration::from_millis(20)).await;
        let response = send(server.address, "GET /metrics HTTP/1.1\r\nHost:").await;
        assert_eq!(response, "");
    }

    #[tokio::test]
    async fn more_connections_than_allowed_wait_for_a_place() {
        let server = serve(Duration::from_millis(200)).await;
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(TcpStream::connect(server.address).await.unwrap());
        }
        // It is accepted when idle connections time out.
        let response = get(server.address, "/healthz").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    }
}
