//! Timeline: changes and failures of the last hour, per minute.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::event_row::EventRow;

/// Number of minutes.
const MINUTES: usize = 60;

/// Counts of one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Minute {
    /// Start of the minute, in seconds since the epoch.
    pub(super) start: i64,
    pub(super) changed: u32,
    pub(super) failed: u32,
    /// Events with another outcome.
    pub(super) other: u32,
}

/// Counts of the last minutes with events.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    minutes: BTreeMap<i64, Minute>,
}

impl Timeline {
    /// Counts an event. Run summaries are not counted, because their resources are.
    pub(super) fn add(&mut self, time: DateTime<Utc>, event: &EventRow) {
        if event.is_run() {
            return;
        }
        let number = time.timestamp().div_euclid(60);
        let minute = self.minutes.entry(number).or_insert_with(|| Minute {
            start: number.saturating_mul(60),
            ..Minute::default()
        });
        let count = match event.outcome.as_str() {
            "changed" => &mut minute.changed,
            "failed" => &mut minute.failed,
            _ => &mut minute.other,
        };
        *count = count.saturating_add(1);
        if self.minutes.len() > MINUTES {
            self.minutes.pop_first();
        }
    }

    /// Returns the last hour, including minutes without events.
    pub(super) fn hour(&self, now: DateTime<Utc>) -> Vec<Minute> {
        let last = now.timestamp().div_euclid(60);
        let first = last - i64::try_from(MINUTES).unwrap_or(i64::MAX) + 1;
        (first..=last)
            .map(|number| {
                let empty = Minute {
                    start: number * 60,
                    ..Minute::default()
                };
                self.minutes.get(&number).copied().unwrap_or(empty)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(minute * 60 + 5, 0).unwrap()
    }

    #[test]
    fn minutes_without_events_are_included() {
        let mut line = Timeline::default();
        line.add(at(100), &EventRow::example(1, "a", "x", "failed"));
        line.add(at(100), &EventRow::example(2, "a", "x", "changed"));
        line.add(at(98), &EventRow::example(3, "a", "x", "stable"));
        let hour = line.hour(at(101));
        assert_eq!(hour.len(), 60);
        let counted = |minute: &Minute| (minute.changed, minute.failed, minute.other);
        assert_eq!(counted(&hour[57 - 1 + 2]), (1, 1, 0));
        assert_eq!(counted(&hour[56]), (0, 0, 1));
        assert_eq!(counted(&hour[59]), (0, 0, 0));
    }

    #[test]
    fn only_the_shown_minutes_are_kept() {
        let mut line = Timeline::default();
        for minute in 0..1000 {
            line.add(at(minute), &EventRow::example(1, "a", "x", "changed"));
        }
        assert_eq!(line.minutes.len(), 60);
        assert!(line.hour(at(2000)).iter().all(|minute| minute.changed == 0));
    }
}
