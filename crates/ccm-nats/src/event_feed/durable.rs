//! A feed whose place is kept by the servers, under a name: a durable pull consumer.
//!
//! Every event is acknowledged by itself, and only when its reader says that it is safe. So a
//! reader that is killed loses nothing, and the next one gets again what was not confirmed: at most
//! [`BATCH`] events, because no more are ever out. In one life each event is handed over once and in
//! order, also when the servers send it again because we were slow or the connection broke.
//!
//! The pulls are our own. The client's batches end by their own clock and then drop what had
//! arrived, which would come back behind newer events.

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
use super::{FeedStart, FeedItem, StoredEvent, failed};
use crate::connection::{DenialReceiver, Message};
use crate::stream_reader::is_drained;
use crate::streams::EVENTS;
use crate::{Cause, Connection, ConnectionState, NatsError, Subject, backoff};
use ccm_core::model::node::Token;

/// The most events that are out at a time: so many may be handed over twice after a crash.
pub const BATCH: usize = 256;

/// How long the servers wait for an acknowledgement before they send an event again.
const ACK_WAIT: Duration = Duration::from_secs(5);

/// How long a pull waits for events.
const PULL: Duration = Duration::from_secs(30);

/// How much later than promised the servers may tell that a pull is over.
const LATE: Duration = Duration::from_secs(5);

/// How many events are remembered as confirmed. A server that crashes forgets the last
/// confirmations, and sends their events again.
const REMEMBERED: usize = 1 << 16;

/// StoredEvent events, read by a consumer that outlives us.
pub struct Durable {
    connection: Connection,
    link: watch::Receiver<ConnectionState>,
    consumer: consumer::PullConsumer,
    follow: bool,
    inbox: String,
    messages: Peekable<Subscriber>,
    pull: Option<Pull>,
    denied: DenialReceiver,
    /// Handed over, and not confirmed.
    out: BTreeMap<u64, Acker>,
    /// Confirmed lately: what the servers may send again all the same.
    known: BTreeSet<u64>,
    breaks: usize,
    position: ReadPosition,
    waiting: VecDeque<FeedItem>,
}

/// A request for events that the servers still answer.
struct Pull {
    left: usize,
    has_given: bool,
    ends: Instant,
}

impl Durable {
    pub(super) async fn open(
        connection: &Connection,
        name: &Token,
        filter: &Subject,
        begin: FeedStart,
        follow: bool,
    ) -> Result<Self, NatsError> {
        let consumer = find_or_make(connection, name, filter, begin).await?;
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
            out: BTreeMap::new(),
            known: BTreeSet::new(),
            breaks: 0,
            position,
            waiting: gap.map(FeedItem::Gap).into_iter().collect(),
        };
        feed.settle().await;
        Ok(feed)
    }

    pub(super) async fn next(&mut self) -> Result<Option<FeedItem>, NatsError> {
        loop {
            if let Some(heard) = self.waiting.pop_front() {
                return Ok(Some(heard));
            }
            let ends = match &self.pull {
                Some(pull) if pull.left > 0 => pull.ends,
                _ => self.ask().await?,
            };
            let asks = self.asks();
            let message = tokio::select! {
                message = timeout_at(ends, self.messages.next()) => message,
                denial = self.denied.denial(|it| it == asks) => return Err(denial.into()),
                // The servers have forgotten the pull, and what was on its way is lost.
                _ = self.link.changed() => {
                    self.pull = None;
                    if self.link.wait_for(|link| link.is_up()).await.is_err() {
                        return Err(NatsError::Closed);
                    }
                    self.settle().await;
                    continue;
                }
            };
            match message {
                Ok(Some(message)) if message.status.is_none() => self.take(message).await?,
                Ok(Some(message)) => {
                    let status = message.status.unwrap_or(StatusCode::OK);
                    let pull = self.pull.take();
                    let was_empty = pull.is_none_or(|pull| !pull.has_given);
                    let is_over = [StatusCode::NOT_FOUND, StatusCode::TIMEOUT].contains(&status);
                    if !is_over {
                        self.rest().await?;
                    } else if !self.follow && was_empty {
                        return Ok(None);
                    }
                    return Ok(Some(FeedItem::Idle));
                }
                Ok(None) => return Err(NatsError::Closed),
                Err(_) => {
                    self.pull = None;
                    self.rest().await?;
                }
            }
        }
    }

    /// Asks for more events. Returns until when there will be an answer.
    async fn ask(&mut self) -> Result<Instant, NatsError> {
        let wish = BatchConfig {
            batch: BATCH,
            // A pull that does not wait has no end to wait for.
            expires: self.follow.then_some(PULL),
            no_wait: !self.follow,
            ..BatchConfig::default()
        };
        let asked = self.consumer.request_batch(wish, self.inbox.clone().into());
        asked.await.map_err(failed)?;
        let ends = Instant::now() + PULL + LATE;
        self.pull = Some(Pull {
            left: BATCH,
            has_given: false,
            ends,
        });
        Ok(ends)
    }

    /// Returns the subject of a request for events.
    fn asks(&self) -> String {
        let name = &self.consumer.cached_info().name;
        self.connection
            .api(&format!("CONSUMER.MSG.NEXT.{EVENTS}.{name}"))
    }

    /// Takes one event from the servers.
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
            pull.has_given = true;
        }
        self.breaks = 0;
        let (message, acker) = message.split();
        if self.known.contains(&sequence) {
            // Its reader has it already: only the acknowledgement was lost.
            let _ = acker.ack().await;
            self.waiting.push_back(FeedItem::Idle);
            return Ok(());
        }
        if self.out.insert(sequence, acker).is_some() {
            // Its reader is busy with it: the acknowledgement will come.
            self.waiting.push_back(FeedItem::Idle);
            return Ok(());
        }
        let gap = self.position.step(&self.connection, sequence).await;
        self.waiting.extend(gap.map(FeedItem::Gap));
        let plain = Message::from(message);
        self.waiting.push_back(FeedItem::Event {
            sequence,
            stored: StoredEvent {
                subject: plain.subject,
                body: plain.body,
                time: DateTime::from_timestamp_nanos(nanos),
            },
        });
        Ok(())
    }

    /// Waits until events that somebody did not confirm are sent again. They come before newer
    /// ones only once their time is over. Servers that can't tell are given that time too.
    async fn settle(&self) {
        match self.consumer.get_info().await {
            Ok(info) if info.num_ack_pending == 0 => {}
            _ => sleep(ACK_WAIT + ACK_WAIT / 10).await,
        }
    }

    /// Waits before the next try, if there is anything to try.
    async fn rest(&mut self) -> Result<(), NatsError> {
        let name = self.consumer.cached_info().name.clone();
        let subject = self
            .connection
            .api(&format!("CONSUMER.INFO.{EVENTS}.{name}"));
        let jetstream = self.connection.jetstream();
        let looking = jetstream.get_consumer_from_stream::<Config, _, _>(&name, EVENTS);
        let looked = self.connection.unless_denied(&subject, looking).await?;
        if let Err(err) = looked
            && is_missing(&err.kind())
        {
            return Err(NatsError::Store {
                action: "read",
                name: EVENTS.into(),
                source: Cause::Reply(format!("somebody removed consumer {name}")),
            });
        }
        self.breaks += 1;
        sleep(backoff::delay(self.breaks)).await;
        Ok(())
    }

    pub(super) fn is_drained(&mut self) -> bool {
        let is_over = self.pull.as_ref().is_none_or(|pull| pull.left == 0);
        self.waiting.is_empty() && (is_over || is_drained(&mut self.messages))
    }

    /// Acknowledges what is out. If the servers do not hear it they send it again, and it is known.
    pub(super) async fn confirm(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        self.known.extend(out.keys());
        while self.known.len() > REMEMBERED {
            self.known.pop_first();
        }
        let last = out.pop_last();
        for acker in out.values() {
            let _ = acker.ack().await;
        }
        // One answer is enough: the servers take acknowledgements in order.
        if let Some((_, last)) = last {
            let _ = last.double_ack().await;
        }
    }

    /// Gives back what was not confirmed, so that the next reader need not wait for it.
    pub(super) async fn close(mut self) {
        let mut back: Vec<Acker> = std::mem::take(&mut self.out).into_values().collect();
        while let Some(Some(message)) = self.messages.next().now_or_never() {
            if message.status.is_none() {
                let context = self.connection.jetstream().clone();
                back.push(jetstream::Message { message, context }.split().1);
            }
        }
        for acker in back {
            let _ = acker.ack_with(AckKind::Nak(None)).await;
        }
        let _ = self.connection.flush().await;
    }
}

/// Returns the consumer of this name, as it is, or a new one.
async fn find_or_make(
    connection: &Connection,
    name: &Token,
    filter: &Subject,
    begin: FeedStart,
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
        description: Some("ccm: how far a reader of events came".into()),
        deliver_policy: begin.policy()?,
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        filter_subject: filter.as_str().into(),
        max_ack_pending: i64::try_from(BATCH).unwrap_or(i64::MAX),
        ..Config::default()
    };
    let subject = connection.api(&format!("CONSUMER.CREATE.{EVENTS}.{name}.{filter}"));
    let made = jetstream.create_consumer_on_stream(config, EVENTS);
    connection.unless_denied(&subject, made).await?.map_err(named)
}

fn is_missing(kind: &ConsumerErrorKind) -> bool {
    matches!(kind, ConsumerErrorKind::JetStream(err)
        if err.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}
