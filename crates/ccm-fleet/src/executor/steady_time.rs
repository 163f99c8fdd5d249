//! Steady time: dates that advance with the monotonic clock of this process.
//!
//! Node timeouts, bake times and the deadline of a rollout are stored as dates, so that another
//! controller can continue. A controller compares them with steady time: a clock that is set
//! meanwhile ends none of them early or late.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use ccm_core::system::Clock;

/// The date at one moment, from which later dates are calculated.
#[derive(Clone, Copy, Debug)]
pub(super) struct SteadyTime {
    date: DateTime<Utc>,
    monotonic: Duration,
}

impl SteadyTime {
    /// Starts with the date of a clock.
    pub(super) fn start(clock: &dyn Clock) -> Self {
        Self {
            date: clock.now(),
            monotonic: clock.monotonic(),
        }
    }

    /// Returns the date, by the monotonic time of the same clock.
    pub(super) fn now(&self, clock: &dyn Clock) -> DateTime<Utc> {
        add(self.date, clock.monotonic().saturating_sub(self.monotonic))
    }
}

/// Returns a date plus a duration, capped at the largest date.
pub(super) fn add(date: DateTime<Utc>, span: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(span)
        .ok()
        .and_then(|span| date.checked_add_signed(span))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::system::FixedClock;

    #[test]
    fn a_clock_that_is_set_does_not_change_steady_time() {
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        let time = SteadyTime::start(&clock);
        for days in [1, -1] {
            clock.set(DateTime::UNIX_EPOCH + TimeDelta::days(days));
            assert_eq!(time.now(&clock), DateTime::UNIX_EPOCH);
        }
        clock.advance(Duration::from_secs(5));
        assert_eq!(time.now(&clock).timestamp(), 5);
    }
}
