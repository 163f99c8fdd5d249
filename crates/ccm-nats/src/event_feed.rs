//! Stored events in the order of the event stream, each returned once.
//!
//! A reader that loses its connection continues after the last event it returned. Events that were
//! deleted before they were read are reported as a [`Gap`]. The content of events is opaque here.
//!
//! `ordered` keeps its position itself, `durable` on the server, `gap` detects deleted events.

mod durable;
mod gap;
mod ordered;

use async_nats::datetime;
use async_nats::jetstream::consumer::DeliverPolicy;
use bytes::Bytes;
use chrono::{DateTime, Utc};

pub use durable::BATCH;
pub use gap::{Gap, StreamRange};

use self::durable::Durable;
use self::ordered::Ordered;
use super::direct_get::Start;
use super::streams::EVENTS;
use super::{Cause, Connection, NatsError, Subject, kv};
use ccm_core::model::node::Token;
use ccm_value::text::go_time;

/// An event as stored in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    pub subject: String,
    pub body: Bytes,
    /// Time of storage.
    pub time: DateTime<Utc>,
}

/// Which events to read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    pub filter: Subject,
    /// Events stored at or after this time; only new events if not set.
    pub since: Option<DateTime<Utc>>,
    /// Waits for new events after the stored ones.
    pub follow: bool,
}

/// The first event to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStart {
    /// The next event to be stored.
    Next,
    /// The first event stored at or after this time.
    Since(DateTime<Utc>),
    /// The event with this sequence, or the first after it.
    Sequence(u64),
}

impl FeedStart {
    fn start(self) -> Start {
        match self {
            Self::Next => Start::New,
            Self::Since(since) => Start::Since(since),
            Self::Sequence(sequence) => Start::At(sequence),
        }
    }

    fn policy(self) -> Result<DeliverPolicy, NatsError> {
        Ok(match self {
            Self::Next => DeliverPolicy::New,
            Self::Since(since) => DeliverPolicy::ByStartTime {
                start_time: client_time(since)?,
            },
            Self::Sequence(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
        })
    }
}

/// An item of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedItem {
    Event {
        /// Sequence of the event in the stream.
        sequence: u64,
        stored: StoredEvent,
    },
    /// Events that were deleted before they were read.
    Gap(Gap),
    /// No new events for now; repeated while following.
    Idle,
}

/// A feed of stored events.
pub enum Feed {
    Ordered(Box<Ordered>),
    Durable(Box<Durable>),
}

impl Feed {
    /// Returns a feed without state on the server.
    pub fn ordered(
        connection: &Connection,
        filter: &Subject,
        start: FeedStart,
        follow: bool,
    ) -> Result<Self, NatsError> {
        let feed = Ordered::new(connection, filter, start, follow);
        Ok(Self::Ordered(Box::new(feed)))
    }

    /// Returns a feed that continues after the last confirmed event of a durable consumer. `start`
    /// applies if the consumer is new.
    pub async fn durable(
        connection: &Connection,
        name: &Token,
        filter: &Subject,
        start: FeedStart,
        follow: bool,
    ) -> Result<Self, NatsError> {
        let feed = Durable::open(connection, name, filter, start, follow).await?;
        Ok(Self::Durable(Box::new(feed)))
    }

    /// Waits until the stream is open.
    async fn opened(&mut self) -> Result<(), NatsError> {
        match self {
            Self::Ordered(feed) => feed.opened().await,
            Self::Durable(_) => Ok(()),
        }
    }

    /// Returns the next item, or nothing at the end.
    pub async fn next(&mut self) -> Result<Option<FeedItem>, NatsError> {
        match self {
            Self::Ordered(feed) => feed.next().await,
            Self::Durable(feed) => feed.next().await,
        }
    }

    /// Reports whether all received events were returned: a good time to flush output.
    pub fn is_drained(&mut self) -> bool {
        match self {
            Self::Ordered(feed) => feed.is_drained(),
            Self::Durable(feed) => feed.is_drained(),
        }
    }

    /// Confirms all events returned so far. Unconfirmed events are delivered again to the next
    /// reader of the consumer.
    pub async fn confirm(&mut self) {
        if let Self::Durable(feed) = self {
            feed.confirm().await;
        }
    }

    /// Closes the feed and releases unconfirmed events.
    pub async fn close(self) {
        if let Self::Durable(feed) = self {
            feed.close().await;
        }
    }
}

impl Connection {
    /// Calls `each` for every event until the end, or until it returns false.
    pub async fn read_events(
        &self,
        options: &ReadOptions,
        each: impl FnMut(StoredEvent) -> bool,
    ) -> Result<(), NatsError> {
        self.read_events_notifying_open(options, || {}, each).await
    }

    /// Like [`Self::read_events`], and calls `opened` once the stream is open, before the first
    /// event.
    pub async fn read_events_notifying_open(
        &self,
        options: &ReadOptions,
        opened: impl FnOnce(),
        each: impl FnMut(StoredEvent) -> bool,
    ) -> Result<(), NatsError> {
        let start = options.since.map_or(FeedStart::Next, FeedStart::Since);
        let mut feed = Feed::ordered(self, &options.filter, start, options.follow)?;
        let outcome = for_each(&mut feed, opened, each).await;
        feed.close().await;
        outcome
    }
}

async fn for_each(
    feed: &mut Feed,
    opened: impl FnOnce(),
    mut each: impl FnMut(StoredEvent) -> bool,
) -> Result<(), NatsError> {
    feed.opened().await?;
    opened();
    while let Some(item) = feed.next().await? {
        if let FeedItem::Event { stored, .. } = item
            && !each(stored)
        {
            break;
        }
    }
    Ok(())
}

/// Converts a time to the type of the client library.
fn client_time(time: DateTime<Utc>) -> Result<datetime::DateTime, NatsError> {
    datetime::parse_rfc3339(&go_time(&time)).map_err(|err| NatsError::Store {
        action: "read",
        name: EVENTS.into(),
        source: Cause::Client(err),
    })
}

/// Wraps an error of reading the event stream.
fn failed(err: impl std::error::Error + Send + Sync + 'static) -> NatsError {
    kv::failed("read", EVENTS, err)
}
