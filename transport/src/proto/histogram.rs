//! Durations by size, in microseconds: sixteen steps to each doubling, so that a read-out is at most
//! 6 % above what was recorded. Counters are atomics, so that one task records and any thread reads;
//! a reading that races a recording is off by that one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Steps to a doubling, as a power of two.
const STEP_BITS: u32 = 4;
const STEPS: u64 = 1 << STEP_BITS;
/// Doublings above the first steps: up to 2^36 µs, nineteen hours; longer counts as that.
const DOUBLINGS: u64 = 32;
const BUCKETS: usize = (STEPS * (DOUBLINGS + 1)) as usize;

/// Where a number of microseconds is counted.
fn bucket_of(micros: u64) -> usize {
    let top = 64 - micros.leading_zeros();
    if top <= STEP_BITS {
        return usize::try_from(micros).unwrap_or(BUCKETS - 1);
    }
    let doubling = u64::from(top - STEP_BITS);
    let step = (micros >> (doubling - 1)) - STEPS;
    let bucket = doubling * STEPS + step;
    usize::try_from(bucket)
        .unwrap_or(BUCKETS - 1)
        .min(BUCKETS - 1)
}

/// The largest number of microseconds that is counted there.
fn top_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let (doubling, step) = (bucket / STEPS, bucket % STEPS);
    if doubling == 0 {
        step
    } else {
        ((STEPS + step + 1) << (doubling - 1)) - 1
    }
}

/// A running distribution of durations.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_micros: AtomicU64,
}

/// What a distribution comes to, in whole microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many were recorded.
    pub count: u64,
    /// Their mean.
    pub mean_micros: u64,
    /// Half of them were no longer.
    pub p50_micros: u64,
    /// Ninety-nine of a hundred were no longer.
    pub p99_micros: u64,
    /// All of them together.
    pub sum_micros: u64,
    /// How many there were of each size, by the largest microseconds of that size, ascending; a size
    /// that there was none of is left out.
    pub sizes: Vec<(u64, u64)>,
}

impl Distribution {
    /// What so many of each size come to; the sizes ascend.
    #[must_use]
    pub fn of(sizes: Vec<(u64, u64)>, sum_micros: u64) -> Self {
        let count: u64 = sizes.iter().map(|(_, count)| count).sum();
        let at_rank = |rank: u64| {
            let mut seen = 0;
            let found = sizes.iter().find(|(_, count)| {
                seen += count;
                seen >= rank
            });
            found.map_or(0, |(top, _)| *top)
        };
        let Some(mean_micros) = sum_micros.checked_div(count) else {
            return Self::default();
        };
        Self {
            count,
            mean_micros,
            p50_micros: at_rank(count.div_ceil(2)),
            p99_micros: at_rank(count - count / 100),
            sum_micros,
            sizes,
        }
    }

    /// What was recorded since an earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |top: u64| {
            let at = earlier.sizes.binary_search_by_key(&top, |(top, _)| *top);
            at.map_or(0, |at| earlier.sizes[at].1)
        };
        let sizes = self.sizes.iter();
        let sizes = sizes.map(|(top, count)| (*top, count.saturating_sub(before(*top))));
        let sizes = sizes.filter(|(_, count)| *count > 0).collect();
        Self::of(sizes, self.sum_micros.saturating_sub(earlier.sum_micros))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self {
            buckets,
            sum_micros: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(micros)].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What it has come to.
    #[must_use]
    pub fn read(&self) -> Distribution {
        let sizes = self.buckets.iter().enumerate();
        let sizes = sizes.map(|(at, count)| (top_of(at), count.load(Ordering::Relaxed)));
        let sizes = sizes.filter(|(_, count)| *count > 0).collect();
        Distribution::of(sizes, self.sum_micros.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_counted_at_most_a_sixteenth_too_high() {
        for micros in (0..5000).chain([99_999, 1 << 20, 123_456_789, (1 << 36) - 1]) {
            let top = top_of(bucket_of(micros));
            assert!(
                top >= micros && top <= micros + micros / 16,
                "{micros} as {top}"
            );
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_reading_gives_mean_median_and_tail() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read(), Distribution::default());
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros));
        }
        let reading = histogram.read();
        assert_eq!((reading.count, reading.mean_micros), (100, 50));
        assert!((50..=53).contains(&reading.p50_micros), "{reading:?}");
        assert!((99..=105).contains(&reading.p99_micros), "{reading:?}");
    }

    #[test]
    fn two_readings_give_what_came_between_them() {
        let histogram = Histogram::default();
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros));
        }
        let before = histogram.read();
        assert_eq!(before.since(&before), Distribution::default());
        assert_eq!(before.since(&Distribution::default()), before);
        for _ in 0..200 {
            histogram.record(Duration::from_micros(7));
        }
        histogram.record(Duration::from_micros(5000));
        let since = histogram.read().since(&before);
        assert_eq!((since.count, since.sum_micros), (201, 200 * 7 + 5000));
        assert_eq!((since.p50_micros, since.p99_micros), (7, 7));
        assert_eq!(since.sizes.len(), 2);
    }
}
