//! A node's own clocks, which neither agree with the world's time nor with each other: the
//! monotonic one drifts and, after a suspension, has gone on without the node; the wall clock jumps.
//!
//! Leaves to others: the world's time, in nanoseconds from the beginning of the run.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds of the world's time.
pub type Nanos = u64;

/// One millisecond.
pub const MS: Nanos = 1_000_000;

/// Milliseconds since 1970 at the beginning of every run.
const WALL_START_MS: u64 = 1_790_000_000_000;

/// The instant from which every simulated clock counts. Nothing depends on which it is.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "an instant can't be made from nothing; this one is the origin of virtual time"
    )]
    *ORIGIN.get_or_init(Instant::now)
}

/// The clocks of one machine.
#[derive(Clone, Debug)]
pub struct NodeClock {
    /// The world's time at the last change, and the clock's reading then.
    anchor: (Nanos, Nanos),
    /// Parts of a million that pass while a million pass in the world.
    rate: u64,
    wall_offset_ms: i64,
}

const MILLION: u64 = 1_000_000;

impl NodeClock {
    /// A clock that reads `reading` when the world begins.
    #[must_use]
    pub fn new(reading: Nanos) -> Self {
        Self {
            anchor: (0, reading),
            rate: MILLION,
            wall_offset_ms: 0,
        }
    }

    /// What it reads.
    #[must_use]
    pub fn reading(&self, now: Nanos) -> Nanos {
        let (then, reading) = self.anchor;
        let passed = u128::from(now - then) * u128::from(self.rate) / u128::from(MILLION);
        reading + u64::try_from(passed).unwrap_or(u64::MAX / 2)
    }

    /// The same as an instant.
    #[must_use]
    pub fn instant(&self, now: Nanos) -> Instant {
        origin() + Duration::from_nanos(self.reading(now))
    }

    /// The world's time at which it will read at least this.
    #[must_use]
    pub fn when(&self, at: Instant) -> Nanos {
        let wanted = at.saturating_duration_since(origin()).as_nanos();
        let (then, reading) = self.anchor;
        let left = wanted.saturating_sub(u128::from(reading));
        let rate = u128::from(self.rate);
        let passed = (left * u128::from(MILLION)).div_ceil(rate);
        then.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX / 2))
    }

    /// From now on it runs at this rate, in parts of a million.
    pub fn drift(&mut self, now: Nanos, rate: u64) {
        self.anchor = (now, self.reading(now));
        self.rate = rate;
    }

    /// It has gone on by so much while nobody looked.
    pub fn jump(&mut self, now: Nanos, by: Nanos) {
        self.anchor = (now, self.reading(now) + by);
    }

    /// The wall clock is set.
    pub fn set_wall_offset(&mut self, offset_ms: i64) {
        self.wall_offset_ms = offset_ms;
    }

    /// Milliseconds since 1970, as this machine believes.
    #[must_use]
    pub fn wall_ms(&self, now: Nanos) -> u64 {
        wall_ms(now).saturating_add_signed(self.wall_offset_ms)
    }
}

/// The true time, as milliseconds since 1970.
#[must_use]
pub fn wall_ms(now: Nanos) -> u64 {
    WALL_START_MS + now / MS
}
