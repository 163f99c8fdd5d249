//! Gaps: events that were deleted from the stream before they were read.
//!
//! With a filter, sequences jump. A jump is a gap only if the stream no longer has the sequences in
//! between, so the stream's state is requested, at most once a second. Whether a deleted event
//! matched the filter is unknown.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::streams::EVENTS;
use crate::{Connection, NatsError};

/// Minimum interval between requests for the stream's state.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval after a failed request, which may lack permission.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Sequences of deleted events, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

/// The sequences in the event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRange {
    /// Sequence of the oldest event.
    pub first: u64,
    /// Sequence of the newest event, even if deleted.
    pub last: u64,
    /// Creation time of the stream; a new stream restarts its sequences.
    pub created: DateTime<Utc>,
}

impl StreamRange {
    /// Returns the deleted events between two that were read.
    fn deleted_between(&self, last: u64, next: u64) -> Option<Gap> {
        let gap = Gap {
            from: last.saturating_add(1),
            to: self.first.min(next).saturating_sub(1),
        };
        (gap.from <= gap.to).then_some(gap)
    }
}

impl Connection {
    /// Returns the sequences in the event stream.
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

/// Position of a reader.
#[derive(Debug, Default)]
pub(super) struct ReadPosition {
    /// Sequence of the last returned event, or the one before the first requested.
    pub(super) last: Option<u64>,
    last_request: Option<Instant>,
}

impl ReadPosition {
    /// Returns the position before an event.
    pub(super) fn before(sequence: u64) -> Self {
        Self {
            last: Some(sequence.saturating_sub(1)),
            last_request: None,
        }
    }

    /// Resumes reading, and returns the events deleted since the last one.
    pub(super) fn resume(&mut self, range: &StreamRange) -> Option<Gap> {
        self.last_request = Some(Instant::now());
        let last = self.last?;
        // A server that lost its newest events assigns their sequences again.
        self.last = Some(last.min(range.last));
        let gap = range.deleted_between(last, range.last.saturating_add(1));
        if let Some(gap) = gap {
            self.last = Some(gap.to);
        }
        gap
    }

    /// Advances to the next event, and returns the deleted events before it.
    pub(super) async fn advance(&mut self, connection: &Connection, sequence: u64) -> Option<Gap> {
        let last = self.last.unwrap_or(sequence);
        self.last = Some(sequence.max(last));
        let is_due = self.last_request.is_none_or(|at| at.elapsed() >= INTERVAL);
        if sequence <= last.saturating_add(1) || !is_due {
            return None;
        }
        let range = connection.event_stream_range().await;
        let now = Instant::now();
        self.last_request = match range {
            Ok(_) => Some(now),
            Err(_) => now.checked_add(RETRY_INTERVAL),
        };
        range.ok()?.deleted_between(last, sequence)
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
    fn only_deleted_events_are_a_gap() {
        assert_eq!(range(1, 9).deleted_between(3, 7), None);
        assert_eq!(range(4, 9).deleted_between(3, 7), None);
        assert_eq!(
            range(6, 9).deleted_between(3, 7),
            Some(Gap { from: 4, to: 5 })
        );
        assert_eq!(
            range(9, 9).deleted_between(3, 7),
            Some(Gap { from: 4, to: 6 })
        );
        assert_eq!(range(9, 9).deleted_between(6, 7), None);
    }

    #[test]
    fn gap_is_reported_once_after_resume() {
        let mut position = ReadPosition::before(4);
        assert_eq!(position.resume(&range(7, 9)), Some(Gap { from: 4, to: 6 }));
        assert_eq!(position.resume(&range(7, 9)), None);
        let all_deleted = Some(Gap { from: 7, to: 9 });
        assert_eq!(position.resume(&range(10, 9)), all_deleted);
        assert_eq!(position.last, Some(9));
    }

    #[test]
    fn reader_continues_at_the_end_of_a_truncated_stream() {
        let mut position = ReadPosition::before(100);
        assert_eq!(position.resume(&range(1, 50)), None);
        assert_eq!(position.last, Some(50));
    }
}
