//! A feed whose place is kept by its reader, who goes on after the last event whenever reading
//! breaks.

use std::collections::VecDeque;

use tokio::sync::watch;
use tokio::time::sleep;

use super::gap::ReadPosition;
use super::{FeedStart, FeedItem, StoredEvent};
use crate::direct_get::{ReadFailure, Reader, Start, Step, ReadRequest};
use crate::streams::EVENTS;
use crate::{Connection, ConnectionState, NatsError, Subject, backoff};

/// How often in a row reading may break off without a single event in between.
const MOST_BREAKS: usize = 5;

/// StoredEvent events, read from a place of our own.
pub struct Ordered {
    connection: Connection,
    link: watch::Receiver<ConnectionState>,
    wanted: ReadRequest,
    follow: bool,
    reader: Option<Reader>,
    /// Whether reading ever began.
    has_begun: bool,
    /// How many events were still to come when the last one was handed over.
    left: u64,
    breaks: usize,
    position: ReadPosition,
    waiting: VecDeque<FeedItem>,
}

impl Ordered {
    pub(super) fn new(
        connection: &Connection,
        filter: &Subject,
        begin: FeedStart,
        follow: bool,
    ) -> Self {
        Self {
            connection: connection.clone(),
            link: connection.state(),
            wanted: ReadRequest {
                stream: EVENTS.into(),
                filter: filter.as_str().into(),
                start: begin.start(),
            },
            follow,
            reader: None,
            has_begun: false,
            left: 0,
            breaks: 0,
            position: match begin {
                FeedStart::Sequence(sequence) => ReadPosition::before(sequence),
                FeedStart::Next | FeedStart::Since(_) => ReadPosition::default(),
            },
            waiting: VecDeque::new(),
        }
    }

    pub(super) async fn opened(&mut self) -> Result<(), NatsError> {
        while self.reader.is_none() {
            self.open().await?;
        }
        Ok(())
    }

    pub(super) async fn next(&mut self) -> Result<Option<FeedItem>, NatsError> {
        loop {
            if let Some(heard) = self.waiting.pop_front() {
                return Ok(Some(heard));
            }
            let Some(reader) = self.reader.as_mut() else {
                self.open().await?;
                continue;
            };
            if !self.follow && self.left == 0 {
                return Ok(None);
            }
            let step = tokio::select! {
                step = reader.next() => step,
                // A new connection may lead to a server that lost its newest events.
                _ = self.link.changed() => Err(ReadFailure::Gap),
            };
            match step {
                Ok(Step::Message(found, pending)) => {
                    self.left = pending;
                    self.breaks = 0;
                    let gap = self.position.step(&self.connection, found.sequence).await;
                    self.waiting.extend(gap.map(FeedItem::Gap));
                    self.waiting.push_back(FeedItem::Event {
                        sequence: found.sequence,
                        stored: StoredEvent {
                            subject: found.subject,
                            body: found.body,
                            time: found.time,
                        },
                    });
                }
                Ok(Step::Idle) if self.follow => return Ok(Some(FeedItem::Idle)),
                // What was still to come has expired meanwhile.
                Ok(Step::Idle) => return Ok(None),
                Err(broken) => {
                    self.reader = None;
                    self.rest(broken.into_error(EVENTS)).await?;
                }
            }
        }
    }

    /// Begins to read where it ended last.
    async fn open(&mut self) -> Result<(), NatsError> {
        if self.follow && self.link.wait_for(|link| link.is_up()).await.is_err() {
            return Err(NatsError::Closed);
        }
        self.link.mark_unchanged();
        match self.try_open().await {
            Ok(reader) => {
                self.left = reader.pending();
                self.position.last.get_or_insert(reader.after());
                self.reader = Some(reader);
                self.has_begun = true;
                Ok(())
            }
            Err(NatsError::NoBucket(_) | NatsError::NotStored(_)) => {
                Err(NatsError::NotStored(self.wanted.filter.clone()))
            }
            Err(err @ (NatsError::SequenceAhead { .. } | NatsError::Denied(_))) => Err(err),
            Err(err) => self.rest(err).await,
        }
    }

    async fn try_open(&mut self) -> Result<Reader, NatsError> {
        if let Some(last) = self.position.last {
            let range = self.connection.event_stream_range().await?;
            if !self.has_begun && last > range.last {
                return Err(NatsError::SequenceAhead {
                    wanted: last.saturating_add(1),
                    last: range.last,
                });
            }
            let gap = self.position.resume(&range);
            self.waiting.extend(gap.map(FeedItem::Gap));
            let next = self.position.last.unwrap_or(last).saturating_add(1);
            self.wanted.start = Start::At(next);
        }
        Reader::open(&self.connection, &self.wanted, false).await
    }

    /// Waits before the next try. A follower waits for servers that restart; a reader wants to
    /// know.
    async fn rest(&mut self, err: NatsError) -> Result<(), NatsError> {
        self.breaks += 1;
        if err.is_denied() || (self.breaks > MOST_BREAKS && !self.follow) {
            return Err(err);
        }
        sleep(backoff::delay(self.breaks)).await;
        Ok(())
    }

    pub(super) fn is_drained(&mut self) -> bool {
        self.waiting.is_empty() && self.reader.as_ref().is_none_or(Reader::is_drained)
    }
}
