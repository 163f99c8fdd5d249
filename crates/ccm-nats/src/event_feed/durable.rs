//! An event feed whose position is kept on the server: a durable pull consumer.
//!
//! Events are acknowledged after the reader confirms them. A reader that crashes loses nothing; the
//! next one gets the unconfirmed events again, at most [`BATCH`]. Within one process each event is
//! returned once and in order, even if the server redelivers it.
//!
//! Pull requests are sent here because the client's batches end by their own timer and drop messages
//! that have arrived, which are then redelivered after newer ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::{BatchConfig, Config};
use async_nats::jetstream::consumer::{self, AckPolicy};
use async_nats::jetstream::message::Acker;
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use async_nats::jetstream::{self, AckKind, ErrorCode};
use async_nats::{StatusCode, Subscriber};
use chrono::DateTime;
use futures_util::stream::Peekable;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::gap::ReadPosition;
use super::{FeedItem, FeedStart, StoredEvent, failed};
use crate::connection::{DenialReceiver, Message};
use crate::stream_reader::is_drained;
use crate::streams::EVENTS;
use crate::{Cause, Connection, ConnectionState, NatsError, Subject, backoff};
use ccm_core::model::node::Token;

/// Maximum number of unacknowledged events; as many may be delivered twice after a crash.
pub const BATCH: usize = 256;

/// Time until an unacknowledged event is redelivered.
const ACK_WAIT: Duration = Duration::from_secs(5);

/// Expiry of a pull request.
const PULL: Duration = Duration::from_secs(30);

/// Extra time for the reply that a pull request expired.
const PULL_GRACE: Duration = Duration::from_secs(5);

/// Number of confirmed sequences kept. A server that crashes may lose acknowledgements and
/// redeliver their events.
const REMEMBERED: usize = 1 << 16;

/// A feed with a durable consumer.
pub struct Durable {
    connection: Connection,
    link: watch::Receiver<ConnectionState>,
    consumer: consumer::PullConsumer,
    follow: bool,
    inbox: String,
    messages: Peekable<Subscriber>,
    pull: Option<Pull>,
    denied: DenialReceiver,
    /// Returned and not confirmed.
    unconfirmed: BTreeMap<u64, Acker>,
    /// Recently confirmed sequences, which may be redelivered.
    confirmed: BTreeSet<u64>,
    failures: usize,
    position: ReadPosition,
    buffer: VecDeque<FeedItem>,
}

/// A pull request in progress.
struct Pull {
    left: usize,
    has_messages: bool,
    ends: Instant,
}

impl Durable {
    pub(super) async fn open(
        connection: &Connection,
        name: &Token,
        filter: &Subject,
        start: FeedStart,
        follow: bool,
    ) -> Result<Self, NatsError> {
        let consumer = get_or_create(connection, name, filter, start).await?;
        let info = consumer.cached_info();
        if info.config.filter_subject != filter.as_str() {
            return Err(NatsError::ConsumerMismatch {
                name: name.as_str().into(),
                found: info.config.filter_subject.clone(),
                wanted: filter.as_str().into(),
            });
        }
        let mut position = ReadPosition::before(info.ack_floor.stream_sequence.saturating_add(1));
        let gap = position.resume(&connection.event_stream_range().await?);
        let inbox = connection.client().new_inbox();
        let messages = connection.client().subscribe(inbox.clone()).await;
        let feed = Self {
            connection: connection.clone(),
            link: connection.state(),
            consumer,
            follow,
            inbox,
            messages: messages.map_err(|_| NatsError::Closed)?.peekable(),
            pull: None,
            denied: connection.denials(),
            unconfirmed: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            failures: 0,
            position,
            buffer: gap.map(FeedItem::Gap).into_iter().collect(),
        };
        feed.wait_for_redelivery().await;
        Ok(feed)
    }

    pub(super) async fn next(&mut self) -> Result<Option<FeedItem>, NatsError> {
        loop {
            if let Some(item) = self.buffer.pop_front() {
                return Ok(Some(item));
            }
            let ends = match &self.pull {
                Some(pull) if pull.left > 0 => pull.ends,
                _ => self.send_pull().await?,
            };
            let subject = self.pull_subject();
            let message = tokio::select! {
                message = timeout_at(ends, self.messages.next()) => message,
                denial = self.denied.denial(|it| it == subject) => return Err(denial.into()),
                // The pull request ended with the connection.
                _ = self.link.changed() => {
                    self.pull = None;
                    if self.link.wait_for(|link| link.is_up()).await.is_err() {
                        return Err(NatsError::Closed);
                    }
                    self.wait_for_redelivery().await;
                    continue;
                }
            };
            match message {
                Ok(Some(message)) if message.status.is_none() => self.take(message).await?,
                Ok(Some(message)) => {
                    let status = message.status.unwrap_or(StatusCode::OK);
                    let pull = self.pull.take();
                    let was_empty = pull.is_none_or(|pull| !pull.has_messages);
                    let is_over = [StatusCode::NOT_FOUND, StatusCode::TIMEOUT].contains(&status);
                    if !is_over {
                        self.wait_to_retry().await?;
                    } else if !self.follow && was_empty {
                        return Ok(None);
                    }
                    return Ok(Some(FeedItem::Idle));
                }
                Ok(None) => return Err(NatsError::Closed),
                Err(_) => {
                    self.pull = None;
                    self.wait_to_retry().await?;
                }
            }
        }
    }

    /// Sends a pull request. Returns the time by which its reply is due.
    async fn send_pull(&mut self) -> Result<Instant, NatsError> {
        let config = BatchConfig {
            batch: BATCH,
            // `no_wait` and an expiry exclude each other.
            expires: self.follow.then_some(PULL),
            no_wait: !self.follow,
            ..BatchConfig::default()
        };
        let sent = self
            .consumer
            .request_batch(config, self.inbox.clone().into());
        sent.await.map_err(failed)?;
        let ends = Instant::now() + PULL + PULL_GRACE;
        self.pull = Some(Pull {
            left: BATCH,
            has_messages: false,
            ends,
        });
        Ok(ends)
    }

    /// Returns the subject of pull requests.
    fn pull_subject(&self) -> String {
        let name = &self.consumer.cached_info().name;
        self.connection
            .api(&format!("CONSUMER.MSG.NEXT.{EVENTS}.{name}"))
    }

    /// Adds a received event to the buffer.
    async fn take(&mut self, message: async_nats::Message) -> Result<(), NatsError> {
        let context = self.connection.jetstream().clone();
        let message = jetstream::Message { message, context };
        let info = message.info().map_err(Cause::Client);
        let info = info.map_err(|source| NatsError::Store {
            action: "read",
            name: EVENTS.into(),
            source,
        })?;
        let sequence = info.stream_sequence;
        let nanos = i64::try_from(info.published.unix_timestamp_nanos()).unwrap_or_default();
        if let Some(pull) = &mut self.pull {
            pull.left = pull.left.saturating_sub(1);
            pull.has_messages = true;
        }
        self.failures = 0;
        let (message, acker) = message.split();
        if self.confirmed.contains(&sequence) {
            // Confirmed before; only the acknowledgement was lost.
            let _ = acker.ack().await;
            self.buffer.push_back(FeedItem::Idle);
            return Ok(());
        }
        if self.unconfirmed.insert(sequence, acker).is_some() {
            // Returned before and not confirmed yet.
            self.buffer.push_back(FeedItem::Idle);
            return Ok(());
        }
        let gap = self.position.advance(&self.connection, sequence).await;
        self.buffer.extend(gap.map(FeedItem::Gap));
        let plain = Message::from(message);
        self.buffer.push_back(FeedItem::Event {
            sequence,
            stored: StoredEvent {
                subject: plain.subject,
                body: plain.body,
                time: DateTime::from_timestamp_nanos(nanos),
            },
        });
        Ok(())
    }

    /// Waits until the unacknowledged events of a previous reader are due for redelivery, so that
    /// they arrive before newer ones.
    async fn wait_for_redelivery(&self) {
        match self.consumer.get_info().await {
            Ok(info) if info.num_ack_pending == 0 => {}
            _ => sleep(ACK_WAIT + ACK_WAIT / 10).await,
        }
    }

    /// Waits before the next try. Fails if the consumer was deleted.
    async fn wait_to_retry(&mut self) -> Result<(), NatsError> {
        let name = self.consumer.cached_info().name.clone();
        let subject = self
            .connection
            .api(&format!("CONSUMER.INFO.{EVENTS}.{name}"));
        let jetstream = self.connection.jetstream();
        let lookup = jetstream.get_consumer_from_stream::<Config, _, _>(&name, EVENTS);
        let consumer = self.connection.unless_denied(&subject, lookup).await?;
        if let Err(err) = consumer
            && is_missing(&err.kind())
        {
            return Err(NatsError::Store {
                action: "read",
                name: EVENTS.into(),
                source: Cause::Reply(format!("consumer {name} was deleted")),
            });
        }
        self.failures += 1;
        sleep(backoff::delay(self.failures)).await;
        Ok(())
    }

    pub(super) fn is_drained(&mut self) -> bool {
        let is_over = self.pull.as_ref().is_none_or(|pull| pull.left == 0);
        self.buffer.is_empty() && (is_over || is_drained(&mut self.messages))
    }

    /// Acknowledges the returned events. A lost acknowledgement is repeated at redelivery.
    pub(super) async fn confirm(&mut self) {
        let mut unconfirmed = std::mem::take(&mut self.unconfirmed);
        self.confirmed.extend(unconfirmed.keys());
        while self.confirmed.len() > REMEMBERED {
            self.confirmed.pop_first();
        }
        let last = unconfirmed.pop_last();
        for acker in unconfirmed.values() {
            let _ = acker.ack().await;
        }
        // One confirmation is enough: the server processes acknowledgements in order.
        if let Some((_, last)) = last {
            let _ = last.double_ack().await;
        }
    }

    /// Releases unconfirmed events, so that the next reader gets them at once.
    pub(super) async fn close(mut self) {
        let mut released: Vec<Acker> = std::mem::take(&mut self.unconfirmed)
            .into_values()
            .collect();
        while let Some(Some(message)) = self.messages.next().now_or_never() {
            if message.status.is_none() {
                let context = self.connection.jetstream().clone();
                released.push(jetstream::Message { message, context }.split().1);
            }
        }
        for acker in released {
            let _ = acker.ack_with(AckKind::Nak(None)).await;
        }
        let _ = self.connection.flush().await;
    }
}

/// Returns the existing consumer of this name, or creates it.
async fn get_or_create(
    connection: &Connection,
    name: &Token,
    filter: &Subject,
    start: FeedStart,
) -> Result<consumer::PullConsumer, NatsError> {
    let jetstream = connection.jetstream();
    let named = |err: ConsumerError| match err.kind() {
        ConsumerErrorKind::JetStream(err) if err.error_code() == ErrorCode::STREAM_NOT_FOUND => {
            NatsError::NotStored(filter.as_str().into())
        }
        _ => NatsError::Store {
            action: "read",
            name: format!("{EVENTS} by consumer {name}"),
            source: Cause::client(err),
        },
    };
    let subject = connection.api(&format!("CONSUMER.INFO.{EVENTS}.{name}"));
    let found = jetstream.get_consumer_from_stream(name.as_str(), EVENTS);
    match connection.unless_denied(&subject, found).await? {
        Ok(found) => return Ok(found),
        Err(err) if is_missing(&err.kind()) => {}
        Err(err) => return Err(named(err)),
    }
    let config = Config {
        durable_name: Some(name.as_str().into()),
        description: Some("ccm: position of an event reader".into()),
        deliver_policy: start.policy()?,
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        filter_subject: filter.as_str().into(),
        max_ack_pending: i64::try_from(BATCH).unwrap_or(i64::MAX),
        ..Config::default()
    };
    let subject = connection.api(&format!("CONSUMER.CREATE.{EVENTS}.{name}.{filter}"));
    let made = jetstream.create_consumer_on_stream(config, EVENTS);
    connection
        .unless_denied(&subject, made)
        .await?
        .map_err(named)
}

fn is_missing(kind: &ConsumerErrorKind) -> bool {
    matches!(kind, ConsumerErrorKind::JetStream(err)
        if err.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}
