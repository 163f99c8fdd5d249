//! TCP listener with a connection limit and a reply deadline for every connection.
//!
//! Protects ports that are open to everyone: the metrics server of the agent and the fleet page.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Wait after a failed accept.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A listener that accepts a bounded number of connections; further ones wait.
#[derive(Debug)]
pub struct LimitedListener {
    listener: TcpListener,
    free: Arc<Semaphore>,
    reply_timeout: Duration,
}

impl LimitedListener {
    /// Returns a listener. A connection is closed if nothing is sent on it for `reply_timeout`.
    pub fn new(listener: TcpListener, max_connections: usize, reply_timeout: Duration) -> Self {
        Self {
            listener,
            free: Arc::new(Semaphore::new(max_connections)),
            reply_timeout,
        }
    }
}

impl LimitedListener {
    /// Waits for a permit and for the next connection.
    pub async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Fails only if the semaphore is closed, which never happens.
        let permit = self.free.clone().acquire_owned().await.ok();
        let (stream, address) = self.next().await;
        let connection = Connection {
            stream,
            deadline: Box::pin(sleep(self.reply_timeout)),
            reply_timeout: self.reply_timeout,
            _permit: permit,
        };
        (connection, address)
    }

    /// Returns the next connection. Connections that were reset meanwhile are skipped; other
    /// errors, such as a lack of file descriptors, are retried later.
    async fn next(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(err) => match err.kind() {
                    io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset => {}
                    _ => sleep(RETRY_AFTER).await,
                },
            }
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when nothing is written to it for the reply timeout. Received bytes do
/// not extend the deadline, so a slow request cannot hold a connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    reply_timeout: Duration,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Turns a pending operation into a timeout error once the deadline has passed.
    fn with_deadline<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match poll {
            Poll::Pending => self
                .deadline
                .poll_unpin(context)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
            done => done,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.with_deadline(context, poll)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        if poll.is_ready() {
            let deadline = Instant::now() + self.reply_timeout;
            self.deadline.as_mut().reset(deadline);
        }
        self.with_deadline(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
