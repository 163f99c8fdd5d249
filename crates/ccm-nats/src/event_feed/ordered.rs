//! An event feed that keeps its own position and resumes there after an interruption.

use std::collections::VecDeque;

use tokio::sync::watch;
use tokio::time::sleep;

use super::gap::ReadPosition;
use super::{FeedItem, FeedStart, StoredEvent};
use crate::direct_get::{ReadFailure, ReadRequest, Reader, Start, Step};
use crate::streams::EVENTS;
use crate::{Connection, ConnectionState, NatsError, Subject, backoff};

/// Maximum number of consecutive failures without an event in between.
const MAX_FAILURES: usize = 5;

/// A feed with its position in memory.
pub struct Ordered {
    connection: Connection,
    link: watch::Receiver<ConnectionState>,
    options: ReadRequest,
    follow: bool,
    reader: Option<Reader>,
    /// Whether a reader was ever opened.
    has_begun: bool,
    /// Number of matching events after the last one.
    left: u64,
    failures: usize,
    position: ReadPosition,
    buffer: VecDeque<FeedItem>,
}

impl Ordered {
    pub(super) fn new(
        connection: &Connection,
        filter: &Subject,
        start: FeedStart,
        follow: bool,
    ) -> Self {
        Self {
            connection: connection.clone(),
            link: connection.state(),
            options: ReadRequest {
                stream: EVENTS.into(),
                filter: filter.as_str().into(),
                start: start.start(),
            },
            follow,
            reader: None,
            has_begun: false,
            left: 0,
            failures: 0,
            position: match start {
                FeedStart::Sequence(sequence) => ReadPosition::before(sequence),
                FeedStart::Next | FeedStart::Since(_) => ReadPosition::default(),
            },
            buffer: VecDeque::new(),
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
            if let Some(item) = self.buffer.pop_front() {
                return Ok(Some(item));
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
                // The new server may have lost the newest events.
                _ = self.link.changed() => Err(ReadFailure::Gap),
            };
            match step {
                Ok(Step::Message(found, pending)) => {
                    self.left = pending;
                    self.failures = 0;
                    let gap = self
                        .position
                        .advance(&self.connection, found.sequence)
                        .await;
                    self.buffer.extend(gap.map(FeedItem::Gap));
                    self.buffer.push_back(FeedItem::Event {
                        sequence: found.sequence,
                        stored: StoredEvent {
                            subject: found.subject,
                            body: found.body,
                            time: found.time,
                        },
                    });
                }
                Ok(Step::Idle) if self.follow => return Ok(Some(FeedItem::Idle)),
                // The remaining events have expired.
                Ok(Step::Idle) => return Ok(None),
                Err(broken) => {
                    self.reader = None;
                    self.wait_to_retry(broken.into_error(EVENTS)).await?;
                }
            }
        }
    }

    /// Opens a reader at the current position.
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
                Err(NatsError::NotStored(self.options.filter.clone()))
            }
            Err(err @ (NatsError::SequenceAhead { .. } | NatsError::Denied(_))) => Err(err),
            Err(err) => self.wait_to_retry(err).await,
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
            self.buffer.extend(gap.map(FeedItem::Gap));
            let next = self.position.last.unwrap_or(last).saturating_add(1);
            self.options.start = Start::At(next);
        }
        Reader::open(&self.connection, &self.options, false).await
    }

    /// Waits before the next try. A feed that does not follow fails after a few tries.
    async fn wait_to_retry(&mut self, err: NatsError) -> Result<(), NatsError> {
        self.failures += 1;
        if err.is_denied() || (self.failures > MAX_FAILURES && !self.follow) {
            return Err(err);
        }
        sleep(backoff::delay(self.failures)).await;
        Ok(())
    }

    pub(super) fn is_drained(&mut self) -> bool {
        self.buffer.is_empty() && self.reader.as_ref().is_none_or(Reader::is_drained)
    }
}
