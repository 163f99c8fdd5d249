//! Random numbers from a seed: the same seed makes the same faults in the same order. Their moments
//! still depend on the machine.

use std::time::Duration;

/// A generator (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a generator of its own for a part, so that parts do not change each other's numbers.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns the position of one of `count` things.
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count.try_into().unwrap())).unwrap()
    }

    /// Returns a time between these numbers of milliseconds.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}
