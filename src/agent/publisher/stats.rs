//! What a publisher did, in numbers for metrics. Counting waits for nobody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the times that are counted, in milliseconds; what is longer counts apart.
const BOUNDS: [u64; 11] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000];

/// Counts what a publisher does.
#[derive(Debug, Default)]
pub struct Stats {
    published: AtomicU64,
    retries: AtomicU64,
    trimmed: AtomicU64,
    /// One per bound.
    times: [AtomicU64; BOUNDS.len()],
    nanoseconds: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Records that the stream has.
    pub published: u64,
    /// Records that were sent once more.
    pub retries: u64,
    /// Records that were sent without what was too long in them.
    pub trimmed: u64,
    pub latency: Latency,
}

/// How long it took from sending a record to the stream's word, as a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// How many took at most so long, for growing times: each count includes those before it.
    pub buckets: Vec<(Duration, u64)>,
    pub count: u64,
    pub sum: Duration,
}

impl Stats {
    /// Returns the counts now.
    pub fn numbers(&self) -> Numbers {
        let published = load(&self.published);
        let mut count = 0;
        let buckets = BOUNDS.iter().zip(&self.times).map(|(bound, times)| {
            count += load(times);
            (Duration::from_millis(*bound), count)
        });
        Numbers {
            published,
            retries: load(&self.retries),
            trimmed: load(&self.trimmed),
            latency: Latency {
                buckets: buckets.collect(),
                count: published,
                sum: Duration::from_nanos(load(&self.nanoseconds)),
            },
        }
    }

    pub(super) fn count_published(&self, took: Duration) {
        add(&self.published, 1);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.nanoseconds, nanoseconds);
        let mut bounds = BOUNDS.iter().zip(&self.times);
        let bucket = bounds.find(|(bound, _)| took <= Duration::from_millis(**bound));
        if let Some((_, times)) = bucket {
            add(times, 1);
        }
    }

    pub(super) fn count_retry(&self) {
        add(&self.retries, 1);
    }

    pub(super) fn count_trimmed(&self) {
        add(&self.trimmed, 1);
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_holds_all_that_were_quicker() {
        let stats = Stats::default();
        for millis in [1, 3, 3, 9000] {
            stats.count_published(Duration::from_millis(millis));
        }
        stats.count_retry();
        let numbers = stats.numbers();
        assert_eq!((numbers.published, numbers.retries), (4, 1));
        let at = |bound| {
            let bound = Duration::from_millis(bound);
            let mut buckets = numbers.latency.buckets.iter();
            buckets.find(|(found, _)| *found == bound).unwrap().1
        };
        assert_eq!((at(1), at(2), at(5), at(5000)), (1, 1, 3, 3));
        assert_eq!(numbers.latency.count, 4);
        assert_eq!(numbers.latency.sum, Duration::from_millis(9007));
    }
}
