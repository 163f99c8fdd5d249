//! A gate before a port that anyone may reach: a bounded number of connections, each of which must
//! get an answer in its time.
//!
//! What is answered is not known here. Monitoring and the fleet's page stand behind it.

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

/// How long to wait when no connection can be accepted.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A port that lets a bounded number of connections in; more wait.
#[derive(Debug)]
pub struct Gate {
    listener: TcpListener,
    free: Arc<Semaphore>,
    patience: Duration,
}

impl Gate {
    /// Returns a gate before a port. `patience` is how long a connection may go without an answer.
    pub fn new(listener: TcpListener, most: usize, patience: Duration) -> Self {
        Self {
            listener,
            free: Arc::new(Semaphore::new(most)),
            patience,
        }
    }
}

impl Gate {
    /// Waits for the next connection, and for a place for it.
    pub async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Nobody closes the semaphore, so there is always a place to wait for.
        let place = self.free.clone().acquire_owned().await.ok();
        let (stream, address) = self.next().await;
        let connection = Connection {
            stream,
            deadline: Box::pin(sleep(self.patience)),
            patience: self.patience,
            _place: place,
        };
        (connection, address)
    }

    /// Returns the next connection. One that is gone already is none; what the machine lacks, such
    /// as free descriptors, may be there a little later.
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

/// A connection that ends when too much time passes without an answer. Only answers count: one
/// who sends a request byte by byte does not win time by it.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    patience: Duration,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Fails what would wait beyond the deadline.
    fn in_time<T>(
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
        self.in_time(context, poll)
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
            let deadline = Instant::now() + self.patience;
            self.deadline.as_mut().reset(deadline);
        }
        self.in_time(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
