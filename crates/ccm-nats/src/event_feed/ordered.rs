//! A feed whose place is kept by its reader, who goes on after the last event whenever reading
//! breaks.

use std::collections::VecDeque;

use tokio::sync::watch;
use tokio::time::sleep;

use super::gap::Trail;
use super::{Begin, Heard, Stored};
use crate::direct_get::{Broken, Reader, Start, Step, Wanted};
use crate::streams::EVENTS;
use crate::{Connection, Link, NatsError, Subject, backoff};

/// How often in a row reading may break off without a single event in between.
const MOST_BREAKS: usize = 5;

/// Stored events, read from a place of our own.
pub struct Ordered {
    connection: Connection,
    link: watch::Receiver<Link>,
    wanted: Wanted,
    follow: bool,
    reader: Option<Reader>,
    /// Whether reading ever began.
    has_begun: bool,
    /// How many events were still to come when the last one was handed over.
    left: u64,
    breaks: usize,
    trail: Trail,
    waiting: VecDeque<Heard>,
}

impl Ordered {
    pub(super) fn new(
        connection: &Connection,
        filter: &Subject,
        begin: Begin,
        follow: bool,
    ) -> Self {
        Self {
            connection: connection.clone(),
            link: connection.state(),
            wanted: Wanted {
                stream: EVENTS.into(),
                filter: filter.as_str().into(),
                start: begin.start(),
            },
            follow,
            reader: None,
            has_begun: false,
            left: 0,
            breaks: 0,
            trail: match begin {
                Begin::At(sequence) => Trail::before(sequence),
                Begin::Next | Begin::Since(_) => Trail::default(),
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

    pub(super) async fn next(&mut self) -> Result<Option<Heard>, NatsError> {
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
                _ = self.link.changed() => Err(Broken::Gap),
            };
            match step {
                Ok(Step::Message(found, pending)) => {
                    self.left = pending;
                    self.breaks = 0;
                    let gap = self.trail.step(&self.connection, found.sequence).await;
                    self.waiting.extend(gap.map(Heard::Gap));
                    self.waiting.push_back(Heard::Event {
                        sequence: found.sequence,
                        stored: Stored {
                            subject: found.subject,
                            body: found.body,
                            time: found.time,
                        },
                    });
                }
                Ok(Step::Idle) if self.follow => return Ok(Some(Heard::Pause)),
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
                self.trail.last.get_or_insert(reader.after());
                self.reader = Some(reader);
                self.has_begun = true;
                Ok(())
            }
            Err(NatsError::NoBucket(_) | NatsError::NotStored(_)) => {
                Err(NatsError::NotStored(self.wanted.filter.clone()))
            }
            Err(err @ (NatsError::Ahead { .. } | NatsError::Denied(_))) => Err(err),
            Err(err) => self.rest(err).await,
        }
    }

    async fn try_open(&mut self) -> Result<Reader, NatsError> {
        if let Some(last) = self.trail.last {
            let extent = self.connection.extent_of_events().await?;
            if !self.has_begun && last > extent.last {
                return Err(NatsError::Ahead {
                    wanted: last.saturating_add(1),
                    last: extent.last,
                });
            }
            let gap = self.trail.resume(&extent);
            self.waiting.extend(gap.map(Heard::Gap));
            let next = self.trail.last.unwrap_or(last).saturating_add(1);
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
