//! The last message of each subject of a stream: read once, or followed for ever.
//!
//! Buckets of values and of objects are such streams. Messages come from a consumer of our own
//! that numbers what it sends, so a gap is seen, and beats while it is idle, so its end is seen.
//! After a gap or a new connection nothing is assumed: reading starts again from the present. A
//! consumer is removed when its reader is done; one that could not be removed goes by itself.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, push};
use async_nats::jetstream::stream::ConsumerErrorKind;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{StatusCode, Subscriber};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::Peekable;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::connection::{Headers, Message};
use super::{Connection, NatsError, backoff, kv};

/// How long the servers keep a consumer that nobody listens to.
const INACTIVE: Duration = Duration::from_secs(30);

/// How often a consumer that is read once beats; a beat means that there is no more.
pub(super) const READ_BEAT: Duration = Duration::from_millis(500);

/// How often a consumer that is followed beats.
pub(super) const FOLLOW_BEAT: Duration = Duration::from_secs(5);

/// How many beats may be missed.
const MISSED_BEATS: u32 = 4;

/// How often a read that found a gap is tried again.
const READ_TRIES: usize = 3;

/// The most bytes that one read holds in memory.
const MAX_READ: usize = 512 << 20;

/// How many messages wait for a slow follower before the servers are slowed down.
const WAITING: usize = 256;

/// Which messages of which stream.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) stream: String,
    pub(super) filter: String,
    pub(super) policy: DeliverPolicy,
}

impl Wanted {
    /// Returns the last message of each subject that matches.
    pub(super) fn last(stream: impl Into<String>, filter: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            filter: filter.into(),
            policy: DeliverPolicy::LastPerSubject,
        }
    }
}

/// A message as a stream keeps it.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) subject: String,
    pub(super) headers: Headers,
    pub(super) body: Bytes,
    pub(super) sequence: u64,
    pub(super) time: DateTime<Utc>,
}

/// What a follower hears.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// What was heard before may be out of date: the present follows.
    Restart,
    Message(Stored),
    /// The present is told; what follows is news.
    Current,
}

/// Why a consumer is of no more use.
pub(super) enum Broken {
    /// Something was missed, or nothing is heard any more.
    Gap,
    Failed(NatsError),
}

impl Broken {
    /// Returns it as the end of reading a stream.
    pub(super) fn into_error(self, stream: &str) -> NatsError {
        match self {
            Self::Failed(err) => err,
            Self::Gap => NatsError::Store {
                action: "read",
                name: bucket_of(stream).into(),
                reason: "the server stopped in the middle".into(),
            },
        }
    }
}

/// What a consumer does next.
pub(super) enum Step {
    /// A message, and how many are still to come.
    Message(Stored, u64),
    /// There is nothing more for now.
    Idle,
}

pub(super) struct Consumer {
    connection: Connection,
    stream: String,
    name: String,
    messages: Peekable<Subscriber>,
    /// How many messages there were when it was made.
    pending: u64,
    /// The message of the stream after which it begins.
    after: u64,
    /// The number of the last message that arrived.
    last: u64,
    patience: Duration,
}

impl Consumer {
    pub(super) async fn open(
        connection: &Connection,
        wanted: &Wanted,
        beat: Duration,
    ) -> Result<Self, NatsError> {
        let client = connection.client();
        let inbox = client.new_inbox();
        let messages = client
            .subscribe(inbox.clone())
            .await
            .map_err(|_| NatsError::Closed)?;
        let config = push::Config {
            deliver_subject: inbox,
            deliver_policy: wanted.policy,
            ack_policy: AckPolicy::None,
            max_deliver: 1,
            filter_subject: wanted.filter.clone(),
            flow_control: true,
            idle_heartbeat: beat,
            num_replicas: 1,
            memory_storage: true,
            inactive_threshold: INACTIVE,
            ..push::Config::default()
        };
        let made = connection
            .jetstream()
            .create_consumer_on_stream(config, &wanted.stream)
            .await
            .map_err(|err| match err.kind() {
                ConsumerErrorKind::JetStream(err)
                    if err.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    NatsError::NoBucket(bucket_of(&wanted.stream).into())
                }
                _ => kv::failed("read", bucket_of(&wanted.stream), &err),
            })?;
        let info = made.cached_info();
        Ok(Self {
            connection: connection.clone(),
            stream: wanted.stream.clone(),
            name: info.name.clone(),
            messages: messages.peekable(),
            pending: info.num_pending,
            after: info.delivered.stream_sequence,
            last: 0,
            patience: beat * MISSED_BEATS,
        })
    }

    /// Returns how many messages there were when it was made.
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns the number of the stream's message after which it begins.
    pub(super) fn after(&self) -> u64 {
        self.after
    }

    /// Whether nothing has arrived that is not handed over. It may say so too early.
    pub(super) fn is_drained(&mut self) -> bool {
        is_drained(&mut self.messages)
    }

    pub(super) async fn next(&mut self) -> Result<Step, Broken> {
        loop {
            let message = match timeout(self.patience, self.messages.next()).await {
                Ok(Some(message)) => message,
                Ok(None) | Err(_) => return Err(Broken::Gap),
            };
            match message.status {
                None => return self.take(message),
                Some(StatusCode::IDLE_HEARTBEAT) => {
                    if self.beat(message).await? {
                        return Ok(Step::Idle);
                    }
                }
                Some(_) => return Err(Broken::Gap),
            }
        }
    }

    fn take(&mut self, message: async_nats::Message) -> Result<Step, Broken> {
        let context = self.connection.jetstream().clone();
        let message = jetstream::Message { message, context };
        let info = message.info().map_err(|_| Broken::Gap)?;
        if info.consumer_sequence != self.last + 1 {
            return Err(Broken::Gap);
        }
        self.last = info.consumer_sequence;
        let nanos = i64::try_from(info.published.unix_timestamp_nanos()).unwrap_or_default();
        let (sequence, pending) = (info.stream_sequence, info.pending);
        let plain = Message::from(message.message);
        let stored = Stored {
            subject: plain.subject,
            headers: plain.headers,
            body: plain.body,
            sequence,
            time: DateTime::from_timestamp_nanos(nanos),
        };
        Ok(Step::Message(stored, pending))
    }

    /// Answers what the server asks while it sends nothing. Returns whether it is idle.
    async fn beat(&mut self, message: async_nats::Message) -> Result<bool, Broken> {
        let message = Message::from(message);
        let stalled = message.header("Nats-Consumer-Stalled");
        if let Some(subject) = message.reply.as_deref().or(stalled) {
            let sent = self
                .connection
                .publish_to(subject, Headers::new(), Bytes::new());
            return match sent.await {
                Ok(()) => Ok(false),
                Err(err) => Err(Broken::Failed(err)),
            };
        }
        match message.header("Nats-Last-Consumer").map(str::parse::<u64>) {
            Some(Ok(sent)) if sent != self.last => Err(Broken::Gap),
            _ => Ok(true),
        }
    }

    /// Removes the consumer from the servers, if they can be reached.
    pub(super) async fn close(self) {
        if self.connection.is_up() {
            let jetstream = self.connection.jetstream();
            let _ = jetstream
                .delete_consumer_from_stream(&self.name, &self.stream)
                .await;
        }
    }
}

/// Reads what there is now and hands it over in order. `each` returns whether it wants more.
pub(super) async fn read(
    connection: &Connection,
    wanted: &Wanted,
    mut each: impl FnMut(Stored) -> Result<bool, NatsError>,
) -> Result<(), NatsError> {
    let mut consumer = Consumer::open(connection, wanted, READ_BEAT).await?;
    let mut left = consumer.pending;
    let mut outcome = Ok(());
    while left > 0 {
        match consumer.next().await {
            Ok(Step::Message(stored, pending)) => {
                left = pending;
                match each(stored) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(err) => {
                        outcome = Err(err);
                        break;
                    }
                }
            }
            // What was still to come has expired meanwhile.
            Ok(Step::Idle) => break,
            Err(broken) => {
                outcome = Err(broken.into_error(&wanted.stream));
                break;
            }
        }
    }
    consumer.close().await;
    outcome
}

/// Returns all that there is now, trying again after a gap.
pub(super) async fn read_all(
    connection: &Connection,
    wanted: &Wanted,
) -> Result<Vec<Stored>, NatsError> {
    let mut tries = 0;
    loop {
        let mut found = Vec::new();
        let mut size = 0;
        let outcome = read(connection, wanted, |stored| {
            size += stored.body.len();
            if size > MAX_READ {
                return Err(NatsError::Limit {
                    what: format!("the content of bucket {}", bucket_of(&wanted.stream)),
                    limit: u64::try_from(MAX_READ).unwrap_or(u64::MAX),
                });
            }
            found.push(stored);
            Ok(true)
        });
        tries += 1;
        match outcome.await {
            Ok(()) => return Ok(found),
            Err(NatsError::Store { .. }) if tries < READ_TRIES => {
                sleep(backoff::delay(0)).await;
            }
            Err(err) => return Err(err),
        }
    }
}

/// Follows a stream until the receiver is dropped: through restarts of the servers, gaps, and
/// times when the stream does not exist.
pub(super) fn follow(connection: &Connection, wanted: Wanted) -> mpsc::Receiver<Seen> {
    let (out, receiver) = mpsc::channel(WAITING);
    let connection = connection.clone();
    tokio::spawn(async move {
        let following = keep_following(&connection, &wanted, &out);
        // Nothing below waits without end while somebody still wants to know; this ends it when
        // nobody does.
        tokio::select! {
            () = following => {}
            () = out.closed() => {}
        }
    });
    receiver
}

async fn keep_following(connection: &Connection, wanted: &Wanted, out: &mpsc::Sender<Seen>) {
    let mut failed = 0;
    let mut link = connection.state();
    loop {
        if link.wait_for(|link| link.is_up()).await.is_err() {
            return;
        }
        if let Ok(consumer) = Consumer::open(connection, wanted, FOLLOW_BEAT).await {
            let mut guard = Closing(Some(consumer));
            let relayed = async {
                match guard.0.as_mut() {
                    Some(consumer) => relay(consumer, out).await,
                    None => false,
                }
            };
            tokio::select! {
                heard = relayed => if heard { failed = 0 },
                // A new connection may lead to another server, where the consumer is not known.
                _ = link.changed() => failed = 0,
            }
            drop(guard);
        }
        sleep(backoff::delay(failed)).await;
        failed += 1;
    }
}

/// Closes a consumer in the background when its follower ends, however it ends.
struct Closing(Option<Consumer>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let (Some(consumer), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(consumer.close());
        }
    }
}

/// Tells what a consumer says until it breaks. Returns whether it said anything.
async fn relay(consumer: &mut Consumer, out: &mpsc::Sender<Seen>) -> bool {
    let mut is_current = consumer.pending == 0;
    let mut heard = false;
    if out.send(Seen::Restart).await.is_err() {
        return heard;
    }
    if is_current && out.send(Seen::Current).await.is_err() {
        return heard;
    }
    loop {
        let (message, is_last) = match consumer.next().await {
            Ok(Step::Message(stored, pending)) => (Some(stored), pending == 0),
            Ok(Step::Idle) => (None, true),
            Err(_) => return heard,
        };
        heard = true;
        if let Some(stored) = message
            && out.send(Seen::Message(stored)).await.is_err()
        {
            return heard;
        }
        if is_last && !is_current {
            is_current = true;
            if out.send(Seen::Current).await.is_err() {
                return heard;
            }
        }
    }
}

/// Whether nothing waits to be taken.
pub(super) fn is_drained(messages: &mut Peekable<Subscriber>) -> bool {
    std::pin::Pin::new(messages).peek().now_or_never().is_none()
}

/// Returns the name of the bucket that a stream holds.
fn bucket_of(stream: &str) -> &str {
    let bucket = stream.strip_prefix("KV_").or(stream.strip_prefix("OBJ_"));
    bucket.unwrap_or(stream)
}
