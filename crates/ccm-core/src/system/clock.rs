//! Time as a seam: what the clock says, how long something took, and waiting.
//!
//! Everything that schedules, retries or stamps asks a [`Clock`], so a test holds time still and
//! counts the waits instead of living through them. The one place that reads the real clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rustix::time::{ClockId, clock_gettime};

/// Tells the time and waits.
pub trait Clock: Send + Sync {
    /// Returns the date and time.
    fn now(&self) -> DateTime<Utc>;

    /// Returns the time since a fixed point that no one can set back. Only differences mean
    /// anything.
    fn monotonic(&self) -> Duration;

    /// Waits.
    fn sleep(&self, wait: Duration);
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that everyone else asks"
    )]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }

    fn monotonic(&self) -> Duration {
        let time = clock_gettime(ClockId::Monotonic);
        // Neither part of the monotonic clock is ever negative.
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        )
    }

    fn sleep(&self, wait: Duration) {
        std::thread::sleep(wait);
    }
}

/// A clock for tests: it moves only when told to, and a sleep tells it.
#[derive(Debug)]
pub struct FixedClock(Mutex<Held>);

#[derive(Debug)]
struct Held {
    now: DateTime<Utc>,
    monotonic: Duration,
    sleeps: Vec<Duration>,
}

impl FixedClock {
    /// Returns a clock that stands at `now`.
    pub fn new(now: DateTime<Utc>) -> Self {
        Self(Mutex::new(Held {
            now,
            monotonic: Duration::ZERO,
            sleeps: Vec::new(),
        }))
    }

    /// Moves both the date and the monotonic time forward.
    pub fn advance(&self, by: Duration) {
        self.held().advance(by);
    }

    /// Returns every sleep so far, in order.
    pub fn sleeps(&self) -> Vec<Duration> {
        self.held().sleeps.clone()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn advance(&mut self, by: Duration) {
        self.monotonic = self.monotonic.saturating_add(by);
        self.now = chrono::TimeDelta::from_std(by)
            .ok()
            .and_then(|by| self.now.checked_add_signed(by))
            .unwrap_or(DateTime::<Utc>::MAX_UTC);
    }
}

impl Clock for FixedClock {
    fn now(&self) -> DateTime<Utc> {
        self.held().now
    }

    fn monotonic(&self) -> Duration {
        self.held().monotonic
    }

    fn sleep(&self, wait: Duration) {
        let mut held = self.held();
        held.sleeps.push(wait);
        held.advance(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_clock_moves_by_its_sleeps_and_remembers_them() {
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        clock.sleep(Duration::from_secs(2));
        clock.advance(Duration::from_millis(500));
        clock.sleep(Duration::from_secs(1));
        assert_eq!(clock.now().timestamp_millis(), 3500);
        assert_eq!(clock.monotonic(), Duration::from_millis(3500));
        assert_eq!(
            clock.sleeps(),
            [Duration::from_secs(2), Duration::from_secs(1)]
        );
    }

    #[test]
    fn a_fixed_clock_stops_at_the_end_of_time() {
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), DateTime::<Utc>::MAX_UTC);
    }

    #[test]
    fn the_machine_s_monotonic_time_never_goes_back() {
        let before = SystemClock.monotonic();
        assert!(before > Duration::ZERO);
        assert!(SystemClock.monotonic() >= before);
    }
}
