//! StoredEvent events in the order they were stored, each handed over once: those of the past, and
//! those to come for whoever wants to follow.
//!
//! A reader that lost its server goes on after the last event it saw. One that was away longer
//! than events are kept is told which numbers it missed. What an event says is not known here.
//!
//! Read next: `ordered` remembers nothing on the servers, `durable` lets them remember how far a
//! reader came, `gap` finds what is missing. How messages are read is in `direct`.

mod durable;
mod gap;
mod ordered;

use async_nats::datetime;
use async_nats::jetstream::consumer::DeliverPolicy;
use bytes::Bytes;
use chrono::{DateTime, Utc};

pub use durable::BATCH;
pub use gap::{StreamRange, Gap};

use self::durable::Durable;
use self::ordered::Ordered;
use super::direct_get::Start;
use super::streams::EVENTS;
use super::{Cause, Connection, NatsError, Subject, kv};
use ccm_core::model::node::Token;
use ccm_value::text::go_time;

/// An event as the stream keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    pub subject: String,
    pub body: Bytes,
    /// When it was stored.
    pub time: DateTime<Utc>,
}

/// Which events, and until when.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    pub filter: Subject,
    /// Those stored since then; without it only those to come.
    pub since: Option<DateTime<Utc>>,
    /// Waits for more when all that is stored has been handed over.
    pub follow: bool,
}

/// With which event reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStart {
    /// The next one to come.
    Next,
    Since(DateTime<Utc>),
    /// The one of this number, or the first after it.
    At(u64),
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
                start_time: moment(since)?,
            },
            Self::Sequence(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
        })
    }
}

/// What a feed hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedItem {
    Event {
        /// The number of the event in its stream. Numbers grow from one event to the next.
        sequence: u64,
        stored: StoredEvent,
    },
    /// Events that are no longer stored and were never handed over.
    Gap(Gap),
    /// There is nothing more for now. A follower hears it now and then.
    Idle,
}

/// StoredEvent events, one after the other.
pub enum Feed {
    Ordered(Box<Ordered>),
    Durable(Box<Durable>),
}

impl Feed {
    /// Returns a feed that leaves nothing behind on the servers.
    pub fn ordered(
        connection: &Connection,
        filter: &Subject,
        begin: FeedStart,
        follow: bool,
    ) -> Result<Self, NatsError> {
        let feed = Ordered::new(connection, filter, begin, follow);
        Ok(Self::Ordered(Box::new(feed)))
    }

    /// Returns a feed that goes on after what was confirmed last under this name, by whomever.
    /// `begin` is where a name begins that is new.
    pub async fn durable(
        connection: &Connection,
        name: &Token,
        filter: &Subject,
        begin: FeedStart,
        follow: bool,
    ) -> Result<Self, NatsError> {
        let feed = Durable::open(connection, name, filter, begin, follow).await?;
        Ok(Self::Durable(Box::new(feed)))
    }

    /// Waits until there is a stream to read from.
    async fn opened(&mut self) -> Result<(), NatsError> {
        match self {
            Self::Ordered(feed) => feed.opened().await,
            Self::Durable(_) => Ok(()),
        }
    }

    /// Returns what comes next; nothing if that was all.
    pub async fn next(&mut self) -> Result<Option<FeedItem>, NatsError> {
        match self {
            Self::Ordered(feed) => feed.next().await,
            Self::Durable(feed) => feed.next().await,
        }
    }

    /// Whether the next one is still on its way: a good moment to deal with those before it.
    pub fn is_drained(&mut self) -> bool {
        match self {
            Self::Ordered(feed) => feed.is_drained(),
            Self::Durable(feed) => feed.is_drained(),
        }
    }

    /// Takes that everything handed over so far is safe with its reader. What is not confirmed is
    /// handed over again to the next one.
    pub async fn confirm(&mut self) {
        if let Self::Durable(feed) = self {
            feed.confirm().await;
        }
    }

    /// Ends the feed in good order.
    pub async fn close(self) {
        if let Self::Durable(feed) = self {
            feed.close().await;
        }
    }
}

impl Connection {
    /// Hands over events until there are no more, or `each` wants no more.
    pub async fn read_events(
        &self,
        reading: &ReadOptions,
        each: impl FnMut(StoredEvent) -> bool,
    ) -> Result<(), NatsError> {
        self.read_events_notifying_open(reading, || {}, each).await
    }

    /// Does the same, and says through `opened` that the stream was found: a quiet one hands over
    /// nothing that would tell it from one that is missing.
    pub async fn read_events_notifying_open(
        &self,
        reading: &ReadOptions,
        opened: impl FnOnce(),
        each: impl FnMut(StoredEvent) -> bool,
    ) -> Result<(), NatsError> {
        let begin = reading.since.map_or(FeedStart::Next, FeedStart::Since);
        let mut feed = Feed::ordered(self, &reading.filter, begin, reading.follow)?;
        let outcome = hand_over(&mut feed, opened, each).await;
        feed.close().await;
        outcome
    }
}

async fn hand_over(
    feed: &mut Feed,
    opened: impl FnOnce(),
    mut each: impl FnMut(StoredEvent) -> bool,
) -> Result<(), NatsError> {
    feed.opened().await?;
    opened();
    while let Some(heard) = feed.next().await? {
        if let FeedItem::Event { stored, .. } = heard
            && !each(stored)
        {
            break;
        }
    }
    Ok(())
}

/// Returns a moment as the client library has it.
fn moment(time: DateTime<Utc>) -> Result<datetime::DateTime, NatsError> {
    datetime::parse_rfc3339(&go_time(&time)).map_err(|err| NatsError::Store {
        action: "read",
        name: EVENTS.into(),
        source: Cause::Client(err),
    })
}

/// Returns the failure to read the stream of events.
fn failed(err: impl std::error::Error + Send + Sync + 'static) -> NatsError {
    kv::failed("read", EVENTS, err)
}
