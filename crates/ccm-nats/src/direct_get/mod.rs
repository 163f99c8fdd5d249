//! Reading the messages of a stream by direct get requests, without a consumer.
//!
//! A consumer delivers messages to any subject that its owner names, whether or not the owner may
//! publish there. Without consumers, no fleet user needs the permission to create one. A reader
//! requests the messages after the last one it has and leaves no state on the server.
//!
//! - `snapshot`: the first read (last message per subject, or from a time)
//! - `batch`: the requests and replies; streams without direct get are read by `STREAM.MSG.GET`
//! - `leader_get`: one message from the leader of a stream
//! - `stored_message`: decoding of stored messages

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::stream::Info;
use chrono::{DateTime, Utc};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep_until};

mod batch;
mod leader_get;
mod snapshot;
mod stored_message;

pub(super) use stored_message::StoredMessage;

use self::batch::PendingRequest;
use super::connection::DenialReceiver;
use super::kv::{bucket_of, failed, is_missing};
use super::{Cause, Connection, NatsError};

/// Delays of the reads after a message was published: subscribers receive it before the stream has
/// stored it.
const SOON: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(40),
    Duration::from_millis(150),
    Duration::from_millis(400),
    Duration::from_millis(1000),
];

/// Read interval with a subscription; expired messages are not published.
const LISTENING_POLL: Duration = Duration::from_secs(5);

/// Read interval without a subscription.
const POLL: Duration = Duration::from_millis(250);

/// Interval at which an idle reader returns [`Step::Idle`].
const IDLE: Duration = Duration::from_secs(5);

/// Interval of the check that the stream was not replaced.
const CHECK: Duration = Duration::from_secs(30);

/// Which messages of which stream to read.
#[derive(Clone, Debug)]
pub(super) struct ReadRequest {
    pub(super) stream: String,
    pub(super) filter: String,
    pub(super) start: Start,
}

/// The first message to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// The last message of each subject, then the messages stored after them.
    LastPerSubject,
    /// The last message of each subject, or all messages, the oldest first, if there are many subjects.
    LastOrAll,
    /// The next message to be stored.
    New,
    /// The first message stored at or after this time.
    Since(DateTime<Utc>),
    /// The message with this sequence, or the first after it.
    At(u64),
}

impl ReadRequest {
    /// Returns the request with another start.
    pub(super) fn starting_at(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// Returns a request for the last message of each matching subject.
    pub(super) fn last(stream: impl Into<String>, filter: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            filter: filter.into(),
            start: Start::LastPerSubject,
        }
    }
}

/// Why a reader can't continue.
pub(super) enum ReadFailure {
    /// Messages were missed, or the stream was replaced.
    Gap,
    Failed(NatsError),
}

impl From<NatsError> for ReadFailure {
    fn from(err: NatsError) -> Self {
        Self::Failed(err)
    }
}

impl ReadFailure {
    /// Returns the failure as an error of reading the stream.
    pub(super) fn into_error(self, stream: &str) -> NatsError {
        match self {
            Self::Failed(err) => err,
            Self::Gap => NatsError::Store {
                action: "read",
                name: bucket_of(stream).into(),
                source: Cause::Reply("the reply of the server is incomplete".into()),
            },
        }
    }
}

/// The next result of a reader.
pub(super) enum Step {
    /// A message, and the number of matching messages after it.
    Message(StoredMessage, u64),
    /// No new messages for now.
    Idle,
}

/// Reads the messages of a stream in order.
pub(super) struct Reader {
    connection: Connection,
    options: ReadRequest,
    denied: DenialReceiver,
    /// The subject of direct get requests.
    get_subject: String,
    inbox: String,
    replies: Subscriber,
    /// Messages as they are published, before the stream stores them.
    new_messages: Option<Subscriber>,
    /// The stream allows direct get.
    is_direct: bool,
    /// Creation time of the stream in nanoseconds, once known.
    created: Option<i128>,
    request: Option<PendingRequest>,
    request_count: u64,
    /// First sequence of the next request.
    next: u64,
    /// Messages stored before this time are skipped.
    oldest: Option<DateTime<Utc>>,
    /// Messages received and not returned yet.
    buffer: VecDeque<StoredMessage>,
    /// Number of matching messages after the buffered ones.
    remaining: u64,
    /// Number of matching messages at the start.
    pending: u64,
    /// The sequence before the first message that is read.
    after: u64,
    /// Time of the next read.
    due: Instant,
    /// Number of reads without a result since the last new message.
    tries: usize,
    idle_reported: Instant,
    checked: Instant,
}

impl Reader {
    /// Starts reading. With `listens`, a subscription to the stream's subjects triggers the next
    /// read as soon as a message is published.
    pub(super) async fn open(
        connection: &Connection,
        options: &ReadRequest,
        listens: bool,
    ) -> Result<Self, NatsError> {
        let stream = &options.stream;
        let client = connection.client();
        let new_messages = if listens {
            Some(client.subscribe(options.filter.clone()).await)
        } else {
            None
        };
        let new_messages = new_messages.transpose().map_err(|_| NatsError::Closed)?;
        let inbox = client.new_inbox();
        let replies = client.subscribe(format!("{inbox}.*")).await;
        let now = Instant::now();
        let mut reader = Self {
            connection: connection.clone(),
            options: options.clone(),
            denied: connection.denials(),
            get_subject: connection.api(&format!("DIRECT.GET.{stream}")),
            inbox,
            replies: replies.map_err(|_| NatsError::Closed)?,
            new_messages,
            is_direct: true,
            created: None,
            request: None,
            request_count: 0,
            next: 1,
            oldest: None,
            buffer: VecDeque::new(),
            remaining: 0,
            pending: 0,
            after: 0,
            due: now,
            tries: 0,
            idle_reported: now,
            checked: now,
        };
        // A single read needs only the permission to read.
        let needs_end = listens || matches!(options.start, Start::New | Start::Since(_));
        let last = if needs_end {
            reader.load_stream_info().await?
        } else {
            0
        };
        reader.begin(last).await?;
        Ok(reader)
    }

    /// Reads the configuration of the stream, and returns its last sequence.
    async fn load_stream_info(&mut self) -> Result<u64, NatsError> {
        let stream = &self.options.stream;
        let info = self.connection.stream_info(stream).await?;
        let info = info.ok_or_else(|| NatsError::NoBucket(bucket_of(stream).into()))?;
        self.is_direct = info.config.allow_direct;
        self.created = Some(info.created.unix_timestamp_nanos());
        Ok(info.state.last_sequence)
    }

    /// Reads the first messages and sets the position.
    async fn begin(&mut self, last: u64) -> Result<(), NatsError> {
        match self.options.start {
            Start::LastPerSubject => self.snapshot(last).await?,
            Start::LastOrAll => self.begin_last_or_all().await?,
            Start::New => self.next = last.saturating_add(1),
            Start::At(sequence) => {
                self.next = sequence.max(1);
                self.fetch().await?;
            }
            Start::Since(since) => self.begin_since(since, last).await?,
        }
        let buffered = u64::try_from(self.buffer.len()).unwrap_or(u64::MAX);
        self.pending = self.remaining.saturating_add(buffered);
        self.after = match (self.buffer.front(), self.options.start) {
            (_, Start::At(sequence)) => sequence.saturating_sub(1),
            (Some(first), _) => first.sequence.saturating_sub(1),
            (None, _) => last,
        };
        Ok(())
    }

    /// Returns the number of matching messages at the start.
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns the sequence before the first message that is read.
    pub(super) fn after(&self) -> u64 {
        self.after
    }

    /// Reports whether all messages received so far were returned.
    pub(super) fn is_drained(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the next message, or that there is none for now. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Step, ReadFailure> {
        loop {
            if let Some(stored) = self.buffer.pop_front() {
                let buffered = u64::try_from(self.buffer.len()).unwrap_or(u64::MAX);
                self.idle_reported = Instant::now();
                return Ok(Step::Message(
                    stored,
                    self.remaining.saturating_add(buffered),
                ));
            }
            let was_expected = self.remaining > 0;
            if !was_expected && self.request.is_none() {
                self.wait_until_due().await;
            }
            self.fetch().await?;
            if !self.buffer.is_empty() {
                self.tries = 0;
                self.due = Instant::now();
                continue;
            }
            if was_expected {
                // The remaining messages have expired.
                return Ok(Step::Idle);
            }
            if self.checked.elapsed() >= CHECK {
                self.check_stream().await?;
            }
            if self.idle_reported.elapsed() >= IDLE {
                self.idle_reported = Instant::now();
                return Ok(Step::Idle);
            }
        }
    }

    /// Waits until the next read is due.
    async fn wait_until_due(&mut self) {
        loop {
            let published = async {
                match &mut self.new_messages {
                    Some(messages) => messages.next().await.is_some(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep_until(self.due) => break,
                is_open = published => {
                    if is_open { self.tries = 0 } else { self.new_messages = None }
                    if let Some(messages) = &mut self.new_messages {
                        while let Some(Some(_)) = messages.next().now_or_never() {}
                    }
                    let soon = SOON.first().copied().unwrap_or_default();
                    self.due = self.due.min(Instant::now() + soon);
                }
            }
        }
        let wait = match &self.new_messages {
            Some(_) => SOON.get(self.tries).copied().unwrap_or(LISTENING_POLL),
            None => POLL,
        };
        self.tries = self.tries.saturating_add(1);
        self.due = Instant::now() + wait;
    }

    /// Fails if the stream was replaced, which restarts its sequences.
    async fn check_stream(&mut self) -> Result<(), ReadFailure> {
        let info = self.connection.stream_info(&self.options.stream).await?;
        self.checked = Instant::now();
        let is_same = info.is_some_and(|info| {
            let is_behind = info.state.last_sequence.saturating_add(1) < self.next;
            let created = info.created.unix_timestamp_nanos();
            *self.created.get_or_insert(created) == created && !is_behind
        });
        if is_same {
            Ok(())
        } else {
            Err(ReadFailure::Gap)
        }
    }
}

impl Connection {
    /// Returns the configuration and state of a stream, if it exists.
    pub(crate) async fn stream_info(&self, name: &str) -> Result<Option<Info>, NatsError> {
        let subject = self.api(&format!("STREAM.INFO.{name}"));
        let stream = self.unless_denied(&subject, self.jetstream().get_stream(name));
        match stream.await? {
            Ok(stream) => Ok(Some(stream.cached_info().clone())),
            Err(err) if is_missing(&err) => Ok(None),
            Err(err) => Err(failed("lookup", bucket_of(name), err)),
        }
    }
}
