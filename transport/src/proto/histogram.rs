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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many were recorded.
    pub count: u64,
    /// Their mean.
    pub mean_micros: u64,
    /// Half of them were no longer.
    pub p50_micros: u64,
    /// Ninety-nine of a hundred were no longer.
    pub p99_micros: u64,
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
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let count: u64 = counts.iter().sum();
        let at_rank = |rank: u64| {
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            found.map_or(0, top_of)
        };
        let Some(mean_micros) = self.sum_micros.load(Ordering::Relaxed).checked_div(count) else {
            return Distribution::default();
        };
        Distribution {
            count,
            mean_micros,
            p50_micros: at_rank(count.div_ceil(2)),
            p99_micros: at_rank(count - count / 100),
        }
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
}
