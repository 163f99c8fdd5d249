//! Clock trait: date and time, monotonic time, and sleep.
//!
//! Code that schedules, retries or sets timestamps takes a [`Clock`], so tests use a [`FixedClock`]
//! that records sleeps instead of waiting. The only module that reads the real clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::{Mutex, MutexGuard};
use rustix::time::{ClockId, clock_gettime};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Returns the date and time.
    fn now(&self) -> DateTime<Utc>;

    /// Returns the time since an arbitrary fixed point. It never decreases; only differences have
    /// a meaning.
    fn monotonic(&self) -> Duration;

    /// Blocks for a duration.
    fn sleep(&self, wait: Duration);
}

/// The system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one implementation that reads the system clock"
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

/// A clock for tests that advances only by [`FixedClock::advance`] and by sleeps.
#[derive(Debug)]
pub struct FixedClock(Mutex<State>);

#[derive(Debug)]
struct State {
    now: DateTime<Utc>,
    monotonic: Duration,
    sleeps: Vec<Duration>,
}

impl FixedClock {
    /// Returns a clock set to `now`.
    pub fn new(now: DateTime<Utc>) -> Self {
        Self(Mutex::new(State {
            now,
            monotonic: Duration::ZERO,
            sleeps: Vec::new(),
        }))
    }

    /// Moves both the date and the monotonic time forward.
    pub fn advance(&self, by: Duration) {
        self.state().advance(by);
    }

    /// Sets the date, as an administrator or a time server does; the monotonic time goes on.
    pub fn set(&self, now: DateTime<Utc>) {
        self.state().now = now;
    }

    /// Returns every sleep so far, in order.
    pub fn sleeps(&self) -> Vec<Duration> {
        self.state().sleeps.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
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
        self.state().now
    }

    fn monotonic(&self) -> Duration {
        self.state().monotonic
    }

    fn sleep(&self, wait: Duration) {
        let mut state = self.state();
        state.sleeps.push(wait);
        state.advance(wait);
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
    fn monotonic_time_never_decreases() {
        let before = SystemClock.monotonic();
        assert!(before > Duration::ZERO);
        assert!(SystemClock.monotonic() >= before);
    }
}
