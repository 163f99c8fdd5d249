//! Publisher: sends records of the spool to the stream, in order, until the stream has stored them.
//!
//! Many records are in flight at once; each leaves the spool when the stream acknowledges it. New
//! records are collected for a moment and read together, so that publishing does not compete with the
//! reply to the request that caused them. After any error the publisher waits a little and sends again what is still in the spool. The stream
//! deduplicates by record id.
//!
//! A record that the server will never accept must not block the others: one that is too large is
//! sent trimmed, see `trim`, and one that can't be sent at all is dropped and counted.

mod trim;

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use ccm_core::engine::{Level, Line};
use ccm_nats::{Bytes, Connection, ConnectionState, NatsError, Subject, backoff};

use super::metrics::Metrics;
use super::spool::{Record, Spool, SpoolError};

/// Most unacknowledged records.
const MAX_IN_FLIGHT: usize = 256;

/// Time between the first of some new records and reading them.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// Size of the headers of a message, without the id.
const HEADER_SIZE: usize = 128;

/// Size limit for a record that the stream refused as too large.
const TRIMMED_SIZE: usize = 4096;

/// Idle time after which acknowledgements are synced to disk. Lost ones only cause resending.
const SYNC_DELAY: Duration = Duration::from_secs(1);

/// Least time between two log lines about the same error.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Publisher of one spool.
pub struct Publisher<L> {
    spool: Arc<Spool>,
    connection: Connection,
    metrics: Metrics,
    log: L,
    in_flight: FuturesUnordered<BoxFuture<'static, SendResult>>,
    /// Last record sent since the last error.
    last_sent: u64,
    /// Last record ever sent.
    highest_sent: u64,
    /// The spool may have more records than fit in flight.
    has_more: bool,
    /// Records that the stream refused as too large.
    oversized: HashSet<u64>,
    /// Errors in a row.
    failures: usize,
    is_synced: bool,
    last_logged: Option<(std::mem::Discriminant<PublishError>, Instant)>,
}

/// Result of sending a record.
struct SendResult {
    seq: u64,
    took: Duration,
    result: Result<(), NatsError>,
}

/// Why publishing was interrupted.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("not connected to NATS")]
    Down,
    #[error("{0}")]
    NoStream(NatsError),
    #[error("{0}")]
    Refused(NatsError),
    #[error("{0}")]
    Spool(SpoolError),
    /// A record has to be sent again, trimmed; needs no delay.
    #[error("a record is too large")]
    TooLarge,
    #[error("the agent is shutting down")]
    ShuttingDown,
}

impl<L: Fn(&Line)> Publisher<L> {
    /// Returns a publisher. A spool has one at a time.
    pub fn new(spool: Arc<Spool>, connection: Connection, metrics: Metrics, log: L) -> Self {
        Self {
            spool,
            connection,
            metrics,
            log,
            in_flight: FuturesUnordered::new(),
            last_sent: 0,
            highest_sent: 0,
            has_more: false,
            oversized: HashSet::new(),
            failures: 0,
            is_synced: true,
            last_logged: None,
        }
    }

    /// Publishes until stopped, then the rest within `grace`.
    pub async fn run(mut self, stop: impl Future<Output = ()>, grace: Duration) {
        let stop = pin!(stop);
        tokio::select! {
            biased;
            () = stop => {}
            never = self.publish_continuously() => match never {},
        }
        if let Ok(Err(error)) = timeout(grace, self.flush()).await {
            self.log_error(&error);
        }
        if let Err(error) = with_spool(&self.spool, Spool::sync).await {
            self.log_error(&error);
        }
    }

    async fn publish_continuously(&mut self) -> Infallible {
        let mut state = self.connection.state();
        loop {
            let up = state.wait_for(|state| state.is_up()).await.map(|up| *up);
            let Ok(up) = up else {
                // The connection is closed; only `stop` ends this.
                std::future::pending().await
            };
            let error = match self.publish(up).await {
                Err(error) => error,
                Ok(never) => match never {},
            };
            self.drain(up).await;
            // Resend everything that is still in the spool.
            self.last_sent = 0;
            self.log_error(&error);
            // A trimmed record or a new connection needs no delay.
            let is_new = *state.borrow() != up;
            if !is_new && !matches!(error, PublishError::TooLarge) {
                sleep(backoff::delay(self.failures)).await;
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    /// Publishes over one connection until an error.
    async fn publish(&mut self, up: ConnectionState) -> Result<Infallible, PublishError> {
        let mut state = self.connection.state();
        let spool = Arc::clone(&self.spool);
        self.fill().await?;
        // When to read new records.
        let mut due = None;
        loop {
            let is_idle = self.in_flight.is_empty();
            tokio::select! {
                first = self.in_flight.next(), if !is_idle => {
                    self.handle_results(first).await?;
                    if self.has_more {
                        self.fill().await?;
                    }
                }
                () = spool.appended(), if due.is_none() => due = Some(Instant::now() + BATCH_DELAY),
                () = reached(due), if due.is_some() => {
                    due = None;
                    self.fill().await?;
                }
                () = changed(&mut state, up) => return Err(PublishError::Down),
                () = sleep(SYNC_DELAY), if is_idle && !self.is_synced => {
                    self.is_synced = true;
                    with_spool(&self.spool, Spool::sync).await?;
                }
            }
        }
    }

    /// Publishes the spool, and returns when all of it is stored.
    async fn flush(&mut self) -> Result<(), PublishError> {
        loop {
            self.fill().await?;
            if self.in_flight.is_empty() {
                return Ok(());
            }
            let first = self.in_flight.next().await;
            self.handle_results(first).await?;
        }
    }

    /// Waits for the results of all records in flight, or discards them when the connection
    /// changes.
    async fn drain(&mut self, up: ConnectionState) {
        let mut state = self.connection.state();
        while !self.in_flight.is_empty() {
            tokio::select! {
                first = self.in_flight.next() => {
                    // Further errors change nothing.
                    let _ = self.handle_results(first).await;
                }
                () = changed(&mut state, up) => self.in_flight.clear(),
            }
        }
    }

    /// Sends records until there are no more, or enough are in flight.
    async fn fill(&mut self) -> Result<(), PublishError> {
        loop {
            let capacity = MAX_IN_FLIGHT.saturating_sub(self.in_flight.len());
            self.has_more = capacity == 0;
            if self.has_more {
                return Ok(());
            }
            let last_sent = self.last_sent;
            let batch =
                with_spool(&self.spool, move |spool| spool.next(last_sent, capacity)).await?;
            if batch.is_empty() {
                return Ok(());
            }
            if !self.connection.is_up() {
                return Err(PublishError::Down);
            }
            for (seq, record) in batch {
                self.send(seq, record).await?;
                self.last_sent = seq;
            }
        }
    }

    async fn send(&mut self, seq: u64, record: Record) -> Result<(), PublishError> {
        let Ok(subject) = record.subject.parse::<Subject>() else {
            return self
                .drop_record(seq, &record.id, "its subject is invalid")
                .await;
        };
        let limit = self.connection.max_payload();
        let limit = limit.saturating_sub(HEADER_SIZE + record.id.len());
        let limit = if self.oversized.contains(&seq) {
            limit.min(TRIMMED_SIZE)
        } else {
            limit
        };
        let body = if record.body.len() <= limit {
            record.body
        } else {
            match trim::trimmed(&record.body, limit) {
                Some(body) => {
                    let line = Line::new(Level::Warn, "event is too large and was trimmed");
                    (self.log)(&line.with("event", &record.id));
                    body
                }
                None => return self.drop_record(seq, &record.id, "it is too large").await,
            }
        };
        if seq <= self.highest_sent {
            self.metrics.publish_failed();
        }
        self.highest_sent = self.highest_sent.max(seq);
        let start = Instant::now();
        let sent = self
            .connection
            .begin_publish_stored(&subject, &record.id, Bytes::from(body))
            .await;
        let pending = match sent {
            Ok(pending) => pending,
            Err(error) => return Err(self.convert_error(seq, error).await),
        };
        let sending = async move {
            let result = pending.wait().await;
            let took = start.elapsed();
            SendResult { seq, took, result }
        };
        self.in_flight.push(sending.boxed());
        Ok(())
    }

    /// Handles one result and all others that are ready, and removes stored records from the spool.
    async fn handle_results(&mut self, first: Option<SendResult>) -> Result<(), PublishError> {
        let mut next = first;
        let mut stored = Vec::new();
        let mut outcome = Ok(());
        while let Some(SendResult { seq, took, result }) = next {
            match result {
                Ok(()) => {
                    self.metrics.published(took);
                    self.oversized.remove(&seq);
                    stored.push(seq);
                }
                Err(error) => outcome = Err(self.convert_error(seq, error).await),
            }
            next = self.in_flight.next().now_or_never().flatten();
        }
        if !stored.is_empty() {
            self.failures = 0;
            self.is_synced = false;
            with_spool(&self.spool, move |spool| spool.ack(&stored)).await?;
        }
        outcome
    }

    /// Converts an error; a record that is too large is marked for trimming, or dropped if that did
    /// not help.
    async fn convert_error(&mut self, seq: u64, error: NatsError) -> PublishError {
        match error {
            error @ NatsError::NotStored(_) => PublishError::NoStream(error),
            NatsError::Closed => PublishError::Down,
            error if is_too_large(&error) => {
                if !self.oversized.insert(seq) {
                    // Trimming did not help.
                    let reason = error.to_string();
                    let id = format!("number {seq}");
                    if let Err(error) = self.drop_record(seq, &id, &reason).await {
                        return error;
                    }
                    self.oversized.remove(&seq);
                }
                PublishError::TooLarge
            }
            error => PublishError::Refused(error),
        }
    }

    async fn drop_record(&mut self, seq: u64, id: &str, reason: &str) -> Result<(), PublishError> {
        let line = Line::new(Level::Error, "event could not be published and was dropped");
        (self.log)(&line.with("event", id).with("reason", reason));
        with_spool(&self.spool, move |spool| spool.give_up(&[seq])).await
    }

    /// Logs an error, unless it was logged recently. Connection errors are in the connection log.
    fn log_error(&mut self, error: &PublishError) {
        let kind = std::mem::discriminant(error);
        let is_quiet = matches!(
            error,
            PublishError::Down | PublishError::TooLarge | PublishError::ShuttingDown
        );
        let is_known = self
            .last_logged
            .is_some_and(|(last, when)| last == kind && when.elapsed() < LOG_INTERVAL);
        if is_quiet || is_known {
            return;
        }
        self.last_logged = Some((kind, Instant::now()));
        let line = Line::new(Level::Warn, "events wait in the spool");
        let pending = self.spool.status().pending;
        (self.log)(&line.with("pending", pending).with("error", error));
    }
}

/// Runs disk I/O on a blocking thread.
async fn with_spool<T: Send + 'static>(
    spool: &Arc<Spool>,
    work: impl FnOnce(&Spool) -> Result<T, SpoolError> + Send + 'static,
) -> Result<T, PublishError> {
    let spool = Arc::clone(spool);
    match tokio::task::spawn_blocking(move || work(&spool)).await {
        Ok(done) => done.map_err(PublishError::Spool),
        Err(_) => Err(PublishError::ShuttingDown),
    }
}

/// Waits for a point in time; for ever if there is none.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits until the connection is not `then` any more: acknowledgements from before are lost.
async fn changed(state: &mut watch::Receiver<ConnectionState>, then: ConnectionState) {
    // An error means that the connection is closed.
    let _ = state.wait_for(|now| *now != then).await;
}

/// Reports whether the server or the stream refused a message for its size.
fn is_too_large(error: &NatsError) -> bool {
    match error {
        NatsError::TooLarge { .. } => true,
        NatsError::Failed { source, .. } => {
            source.to_string().contains("message size exceeds maximum")
        }
        _ => false,
    }
}
