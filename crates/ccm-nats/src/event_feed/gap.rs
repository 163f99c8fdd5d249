//! What is missing between two events: numbers that the stream no longer holds.
//!
//! A jump in the numbers alone says little: what lies between may be events that nobody asked for.
//! It is a gap only where the stream has forgotten what it held there, so the stream is asked, at
//! most once a second. With a filter nobody can say whether an event of a gap would have passed it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::streams::EVENTS;
use crate::{Connection, NatsError};

/// How often the stream is asked what it holds.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a stream is left alone that did not answer: we may not be allowed to ask.
const LONG_PAUSE: Duration = Duration::from_secs(60);

/// The numbers of events that were dropped before they were read, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

/// What the stream of events holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRange {
    /// The number of the oldest event.
    pub first: u64,
    /// The number of the newest event, also if it is gone.
    pub last: u64,
    /// When the stream was created: numbers begin anew with every stream.
    pub created: DateTime<Utc>,
}

impl StreamRange {
    /// Returns what is gone of the events between two that were read.
    fn gone(&self, last: u64, next: u64) -> Option<Gap> {
        let gap = Gap {
            from: last.saturating_add(1),
            to: self.first.min(next).saturating_sub(1),
        };
        (gap.from <= gap.to).then_some(gap)
    }
}

impl Connection {
    /// Returns what the stream of events holds.
    pub async fn event_stream_range(&self) -> Result<StreamRange, NatsError> {
        let info = self.stream_info(EVENTS).await?;
        let info = info.ok_or_else(|| NatsError::NotStored(EVENTS.into()))?;
        let nanos = i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or_default();
        Ok(StreamRange {
            first: info.state.first_sequence,
            last: info.state.last_sequence,
            created: DateTime::from_timestamp_nanos(nanos),
        })
    }
}

/// How far a reader came.
#[derive(Debug, Default)]
pub(super) struct ReadPosition {
    /// The last event that was handed over, or the one before the first that was asked for.
    pub(super) last: Option<u64>,
    asked: Option<Instant>,
}

impl ReadPosition {
    /// Returns a reader that is to begin with an event.
    pub(super) fn before(sequence: u64) -> Self {
        Self {
            last: Some(sequence.saturating_sub(1)),
            asked: None,
        }
    }

    /// Takes that reading begins anew, and returns what is gone meanwhile.
    pub(super) fn resume(&mut self, range: &StreamRange) -> Option<Gap> {
        self.asked = Some(Instant::now());
        let last = self.last?;
        // A server that lost its newest events hands out their numbers again.
        self.last = Some(last.min(range.last));
        let gap = range.gone(last, range.last.saturating_add(1));
        if let Some(gap) = gap {
            self.last = Some(gap.to);
        }
        gap
    }

    /// Takes the number of the next event, and returns what is gone before it.
    pub(super) async fn step(&mut self, connection: &Connection, sequence: u64) -> Option<Gap> {
        let last = self.last.unwrap_or(sequence);
        self.last = Some(sequence.max(last));
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= PAUSE);
        if sequence <= last.saturating_add(1) || !is_due {
            return None;
        }
        let answer = connection.event_stream_range().await;
        let now = Instant::now();
        self.asked = match answer {
            Ok(_) => Some(now),
            Err(_) => now.checked_add(LONG_PAUSE),
        };
        answer.ok()?.gone(last, sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> StreamRange {
        StreamRange {
            first,
            last,
            created: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_what_the_stream_forgot_is_a_gap() {
        assert_eq!(range(1, 9).gone(3, 7), None);
        assert_eq!(range(4, 9).gone(3, 7), None);
        assert_eq!(range(6, 9).gone(3, 7), Some(Gap { from: 4, to: 5 }));
        assert_eq!(range(9, 9).gone(3, 7), Some(Gap { from: 4, to: 6 }));
        assert_eq!(range(9, 9).gone(6, 7), None);
    }

    #[test]
    fn a_reader_that_was_away_hears_once_what_is_gone() {
        let mut position = ReadPosition::before(4);
        assert_eq!(position.resume(&range(7, 9)), Some(Gap { from: 4, to: 6 }));
        assert_eq!(position.resume(&range(7, 9)), None);
        let all_gone = Some(Gap { from: 7, to: 9 });
        assert_eq!(position.resume(&range(10, 9)), all_gone);
        assert_eq!(position.last, Some(9));
    }

    #[test]
    fn a_stream_that_lost_its_newest_events_is_read_where_it_ends() {
        let mut position = ReadPosition::before(100);
        assert_eq!(position.resume(&range(1, 50)), None);
        assert_eq!(position.last, Some(50));
    }
}
