//! The publisher: takes events from the spool to the stream, in order, until the stream has them.
//!
//! Many are on their way at once; each leaves the spool when the stream said that it is stored.
//! Whatever goes wrong, the answer is the same: wait a little, then send again what is still in
//! the spool. The stream knows a record by its id, so what arrives twice is stored once.
//!
//! A record that the server will never take must not hold up the others: one that is too large is
//! sent trimmed, see `trim`, and one that cannot be helped is given up and counted.
//!
//! Where events come from and what they say is not known here.

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
use tokio::time::{Instant, sleep, timeout};

use ccm_core::engine::{Level, Line};
use ccm_nats::{Bytes, Connection, ConnectionState, NatsError, Subject, backoff};

use super::metrics::Metrics;
use super::spool::{Record, Spool, SpoolError};

/// How many records wait for the stream's word at once.
const IN_FLIGHT: usize = 256;

/// What a message has beside its body and id: the names of its headers.
const ENVELOPE: usize = 128;

/// What is left of a record that a stream with a limit of its own found too large.
const TIGHT: usize = 4096;

/// How long nothing must happen before acknowledgements are made to survive a power cut. Losing
/// some only means to send again.
const CALM: Duration = Duration::from_secs(1);

/// How often the same trouble is told.
const REMIND: Duration = Duration::from_secs(60);

/// Publishes what is in a spool.
pub struct Publisher<L> {
    spool: Arc<Spool>,
    connection: Connection,
    metrics: Metrics,
    log: L,
    flying: FuturesUnordered<BoxFuture<'static, Landed>>,
    /// Up to here records were sent since the last trouble.
    after: u64,
    /// Up to here they were sent at all.
    farthest: u64,
    /// Records that the stream found too large.
    tight: HashSet<u64>,
    /// Troubles in a row.
    failures: usize,
    is_synced: bool,
    told: Option<(std::mem::Discriminant<Trouble>, Instant)>,
}

/// What became of a record on its way.
struct Landed {
    seq: u64,
    took: Duration,
    result: Result<(), NatsError>,
}

/// Why publishing stopped for a while.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("not connected to NATS")]
    Down,
    #[error("{0}")]
    NoStream(NatsError),
    #[error("{0}")]
    Refused(NatsError),
    #[error("{0}")]
    Spool(SpoolError),
    /// Some record has to be sent again, smaller: nothing to wait for.
    #[error("a record is too large")]
    TooLarge,
    #[error("the program is ending")]
    Ending,
}

impl<L: Fn(&Line)> Publisher<L> {
    /// Returns a publisher that has not begun. A spool has one at a time.
    pub fn new(spool: Arc<Spool>, connection: Connection, metrics: Metrics, log: L) -> Self {
        Self {
            spool,
            connection,
            metrics,
            log,
            flying: FuturesUnordered::new(),
            after: 0,
            farthest: 0,
            tight: HashSet::new(),
            failures: 0,
            is_synced: true,
            told: None,
        }
    }

    /// Publishes until told to stop; then sends what it can within `grace`.
    pub async fn run(mut self, stop: impl Future<Output = ()>, grace: Duration) {
        let stop = pin!(stop);
        tokio::select! {
            biased;
            () = stop => {}
            never = self.publish_for_ever() => match never {},
        }
        if let Ok(Err(trouble)) = timeout(grace, self.flush()).await {
            self.tell(&trouble);
        }
        if let Err(trouble) = on_disk(&self.spool, Spool::sync).await {
            self.tell(&trouble);
        }
    }

    async fn publish_for_ever(&mut self) -> Infallible {
        let mut link = self.connection.state();
        loop {
            let up = link.wait_for(|link| link.is_up()).await.map(|up| *up);
            let Ok(up) = up else {
                // The connection has ended for good; nothing but `stop` ends this.
                std::future::pending().await
            };
            let trouble = match self.publish(up).await {
                Err(trouble) => trouble,
                Ok(never) => match never {},
            };
            self.settle(up).await;
            // Everything that is still in the spool is to be sent again.
            self.after = 0;
            self.tell(&trouble);
            // A smaller record or a new connection is reason enough to try again at once.
            let is_new = *link.borrow() != up;
            if !is_new && !matches!(trouble, Trouble::TooLarge) {
                sleep(backoff::delay(self.failures)).await;
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    /// Publishes over one connection until something goes wrong.
    async fn publish(&mut self, up: ConnectionState) -> Result<Infallible, Trouble> {
        let mut link = self.connection.state();
        let spool = Arc::clone(&self.spool);
        loop {
            self.fill().await?;
            let has_room = self.flying.len() < IN_FLIGHT;
            let is_idle = self.flying.is_empty();
            tokio::select! {
                first = self.flying.next(), if !is_idle => self.land(first).await?,
                () = spool.grown(), if has_room => {}
                () = changed(&mut link, up) => return Err(Trouble::Down),
                () = sleep(CALM), if is_idle && !self.is_synced => {
                    self.is_synced = true;
                    on_disk(&self.spool, Spool::sync).await?;
                }
            }
        }
    }

    /// Publishes what is in the spool, and returns when all of it is stored.
    async fn flush(&mut self) -> Result<(), Trouble> {
        loop {
            self.fill().await?;
            if self.flying.is_empty() {
                return Ok(());
            }
            let first = self.flying.next().await;
            self.land(first).await?;
        }
    }

    /// Waits until it is known of every record on its way what became of it, or cannot be known.
    async fn settle(&mut self, up: ConnectionState) {
        let mut link = self.connection.state();
        while !self.flying.is_empty() {
            tokio::select! {
                first = self.flying.next() => {
                    // More trouble changes nothing.
                    let _ = self.land(first).await;
                }
                () = changed(&mut link, up) => self.flying.clear(),
            }
        }
    }

    /// Sends records until there are no more, or enough are on their way.
    async fn fill(&mut self) -> Result<(), Trouble> {
        loop {
            let room = IN_FLIGHT.saturating_sub(self.flying.len());
            if room == 0 {
                return Ok(());
            }
            let after = self.after;
            let batch = on_disk(&self.spool, move |spool| spool.next(after, room)).await?;
            if batch.is_empty() {
                return Ok(());
            }
            if !self.connection.is_up() {
                return Err(Trouble::Down);
            }
            for (seq, record) in batch {
                self.send(seq, record).await?;
                self.after = seq;
            }
        }
    }

    async fn send(&mut self, seq: u64, record: Record) -> Result<(), Trouble> {
        let Ok(subject) = record.subject.parse::<Subject>() else {
            return self
                .give_up(seq, &record.id, "its subject is invalid")
                .await;
        };
        let most = self.connection.max_payload();
        let most = most.saturating_sub(ENVELOPE + record.id.len());
        let most = if self.tight.contains(&seq) {
            most.min(TIGHT)
        } else {
            most
        };
        let body = if record.body.len() <= most {
            record.body
        } else {
            match trim::trimmed(&record.body, most) {
                Some(body) => {
                    let line = Line::new(
                        Level::Warn,
                        "event is too large, its longest parts are left out",
                    );
                    (self.log)(&line.with("event", &record.id));
                    body
                }
                None => return self.give_up(seq, &record.id, "it is too large").await,
            }
        };
        if seq <= self.farthest {
            self.metrics.publish_failed();
        }
        self.farthest = self.farthest.max(seq);
        let start = Instant::now();
        let sent = self
            .connection
            .begin_publish_stored(&subject, &record.id, Bytes::from(body))
            .await;
        let pending = match sent {
            Ok(pending) => pending,
            Err(error) => return Err(self.trouble(seq, error).await),
        };
        let flight = async move {
            let result = pending.wait().await;
            let took = start.elapsed();
            Landed { seq, took, result }
        };
        self.flying.push(flight.boxed());
        Ok(())
    }

    /// Hears the stream's word on a record and what else it has said meanwhile, and takes what is
    /// stored off the spool.
    async fn land(&mut self, first: Option<Landed>) -> Result<(), Trouble> {
        let mut next = first;
        let mut stored = Vec::new();
        let mut outcome = Ok(());
        while let Some(Landed { seq, took, result }) = next {
            match result {
                Ok(()) => {
                    self.metrics.published(took);
                    self.tight.remove(&seq);
                    stored.push(seq);
                }
                Err(error) => outcome = Err(self.trouble(seq, error).await),
            }
            next = self.flying.next().now_or_never().flatten();
        }
        if !stored.is_empty() {
            self.failures = 0;
            self.is_synced = false;
            on_disk(&self.spool, move |spool| spool.ack(&stored)).await?;
        }
        outcome
    }

    /// Returns what an error means; a record that was found too large is marked for it.
    async fn trouble(&mut self, seq: u64, error: NatsError) -> Trouble {
        match error {
            error @ NatsError::NotStored(_) => Trouble::NoStream(error),
            NatsError::Closed => Trouble::Down,
            error if is_too_large(&error) => {
                if !self.tight.insert(seq) {
                    // Smaller did not help.
                    let reason = error.to_string();
                    let id = format!("number {seq}");
                    if let Err(trouble) = self.give_up(seq, &id, &reason).await {
                        return trouble;
                    }
                    self.tight.remove(&seq);
                }
                Trouble::TooLarge
            }
            error => Trouble::Refused(error),
        }
    }

    async fn give_up(&mut self, seq: u64, id: &str, reason: &str) -> Result<(), Trouble> {
        let line = Line::new(Level::Error, "event can't be published and is dropped");
        (self.log)(&line.with("event", id).with("reason", reason));
        on_disk(&self.spool, move |spool| spool.give_up(&[seq])).await
    }

    /// Tells of trouble, but not of the same too often. The connection tells itself when it goes.
    fn tell(&mut self, trouble: &Trouble) {
        let kind = std::mem::discriminant(trouble);
        let is_quiet = matches!(trouble, Trouble::Down | Trouble::TooLarge | Trouble::Ending);
        let is_known = self
            .told
            .is_some_and(|(told, when)| told == kind && when.elapsed() < REMIND);
        if is_quiet || is_known {
            return;
        }
        self.told = Some((kind, Instant::now()));
        let line = Line::new(Level::Warn, "events wait in the spool");
        let pending = self.spool.status().pending;
        (self.log)(&line.with("pending", pending).with("error", trouble));
    }
}

/// Runs disk work where it blocks nobody.
async fn on_disk<T: Send + 'static>(
    spool: &Arc<Spool>,
    work: impl FnOnce(&Spool) -> Result<T, SpoolError> + Send + 'static,
) -> Result<T, Trouble> {
    let spool = Arc::clone(spool);
    match tokio::task::spawn_blocking(move || work(&spool)).await {
        Ok(done) => done.map_err(Trouble::Spool),
        Err(_) => Err(Trouble::Ending),
    }
}

/// Waits until the link is not what it was, were it for an instant: answers of before are lost.
async fn changed(link: &mut watch::Receiver<ConnectionState>, then: ConnectionState) {
    // An error means that the connection has ended.
    let _ = link.wait_for(|now| *now != then).await;
}

/// Whether a record was refused for its size, by the server or by the stream.
fn is_too_large(error: &NatsError) -> bool {
    match error {
        NatsError::TooLarge { .. } => true,
        NatsError::Failed { source, .. } => {
            source.to_string().contains("message size exceeds maximum")
        }
        _ => false,
    }
}
