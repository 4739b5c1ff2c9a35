//! How long to wait before a peer is dialled again: doubling from a first wait to a longest one,
//! with jitter so that many nodes don't dial one in step. Randomness comes in as a seed. One good
//! hello, a newer incarnation calling in, or new credentials start it over (T12).

use std::time::Duration;

/// A small, seeded source of jitter (SplitMix64). Not for secrets.
#[derive(Clone, Debug)]
struct Jitter(u64);

impl Jitter {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The waits of one peer's dialler.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
    jitter: Jitter,
}

impl Backoff {
    /// Waits from `first` to `max`.
    #[must_use]
    pub const fn new(first: Duration, max: Duration, seed: u64) -> Self {
        Self {
            first,
            max,
            failures: 0,
            jitter: Jitter(seed),
        }
    }

    /// The next wait: between half of the step and the whole of it.
    pub fn on_failure(&mut self) -> Duration {
        let step = self
            .first
            .saturating_mul(1 << self.failures.min(20))
            .min(self.max);
        self.failures = self.failures.saturating_add(1);
        let half = step / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_nanos(self.jitter.next() % nanos)
    }

    /// Starts over.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_stay_within_their_step() {
        let (first, max) = (Duration::from_millis(50), Duration::from_secs(2));
        let mut backoff = Backoff::new(first, max, 7);
        for step in [50, 100, 200, 400, 800, 1600, 2000, 2000, 2000].map(Duration::from_millis) {
            let wait = backoff.on_failure();
            assert!(wait >= step / 2 && wait <= step, "{wait:?} of {step:?}");
        }
        backoff.reset();
        assert!(backoff.on_failure() <= first);
    }

    #[test]
    fn two_seeds_wait_differently() {
        let waits = |seed| {
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1), seed);
            [backoff.on_failure(), backoff.on_failure()]
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}
