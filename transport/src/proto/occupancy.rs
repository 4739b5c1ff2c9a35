//! How full a window was: the number of outstanding frames at the beginning of each frame, counted
//! with it, so from 1 to the window. Each number has a counter of its own up to the largest control
//! window; a bulk window, which is in bytes, can hold more frames than that, and they count as one
//! more than the largest.
//!
//! Counters are atomics, so that the lane's task records and any thread reads; a reading that races
//! a recording is off by that one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::CONTROL_WINDOW_FRAMES_MAX;

/// Counters: for 0, which nothing is counted under, for each number up to the largest control
/// window, and for more.
const COUNTERS: usize = CONTROL_WINDOW_FRAMES_MAX as usize + 2;

/// A running distribution of outstanding frames.
pub struct Occupancy {
    counters: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What it comes to, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccupancyReading {
    /// Frames begun.
    pub count: u64,
    /// The mean, in hundredths of a frame.
    pub mean_hundredths: u64,
    /// At half of the beginnings no more were outstanding.
    pub p50: u16,
    /// At ninety-nine of a hundred no more were outstanding.
    pub p99: u16,
    /// The most that were; one above the largest control window also stands for more.
    pub max: u16,
}

impl fmt::Debug for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

impl Default for Occupancy {
    fn default() -> Self {
        Self {
            counters: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }
}

impl Occupancy {
    /// Counts one beginning with so many frames outstanding.
    pub fn record(&self, frames: usize) {
        self.counters[frames.min(COUNTERS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(frames as u64, Ordering::Relaxed);
    }

    /// How often each number of outstanding frames was counted, from 0 on; the last is of all above
    /// the largest control window.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let counters = self.counters.iter();
        counters
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }

    /// What it has come to.
    #[must_use]
    pub fn read(&self) -> OccupancyReading {
        let counts = self.counts();
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return OccupancyReading::default();
        }
        let at_rank = |rank: u64| {
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            found.and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
        };
        OccupancyReading {
            count,
            mean_hundredths: self.sum.load(Ordering::Relaxed).saturating_mul(100) / count,
            p50: at_rank(count.div_ceil(2)),
            p99: at_rank(count - count / 100),
            max: at_rank(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_frames_is_counted_as_itself() {
        let occupancy = Occupancy::default();
        assert_eq!(occupancy.read(), OccupancyReading::default());
        for frames in 1..=100 {
            occupancy.record(frames);
        }
        let reading = occupancy.read();
        assert_eq!((reading.count, reading.max), (100, 100));
        assert_eq!((reading.p50, reading.p99), (50, 99));
        assert_eq!(reading.mean_hundredths, 5050);
        assert_eq!(occupancy.counts()[..4], [0, 1, 1, 1]);
    }

    #[test]
    fn a_bulk_window_of_more_frames_than_any_control_window_stays_in_range() {
        let occupancy = Occupancy::default();
        occupancy.record(1_000_000);
        occupancy.record(usize::from(CONTROL_WINDOW_FRAMES_MAX));
        let reading = occupancy.read();
        assert_eq!(reading.p50, CONTROL_WINDOW_FRAMES_MAX);
        assert_eq!(reading.max, CONTROL_WINDOW_FRAMES_MAX + 1);
        assert_eq!(reading.mean_hundredths, 50_012_800);
    }
}
