//! What came of the operations: counts and latencies per window, and per key what was acknowledged
//! and what may have happened beyond that.
//!
//! - T1: an operation is noted once, in the window in which it began.
//! - T2: for each key, acked <= effects <= acked + unknown (L2).

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::client::CallError;
use super::report::ErrorCounts;
use crate::limits::LOAD_LATENCY_MAX;

/// Significant digits of the histograms: a read-out is within 0.1 % of what was recorded.
const DIGITS: u8 = 3;

/// Why an operation was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// `-TIMEOUT`, or no answer in the time that the writer gives.
    Timeout,
    /// `-UNKNOWN` or `-NOTDURABLE`, or the run was cut off while it was under way.
    Unknown,
    /// `-REFUSED`.
    Refused,
    /// `-NOLEADER`.
    NoLeader,
    /// No connection, or it broke.
    Connection,
    /// Any other error, an answer of the wrong kind, or bytes that are no answer.
    Protocol,
}

/// Whether an operation that failed may have had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Proven: it had none and never will.
    None,
    /// It may have happened, or may yet.
    Possible,
}

/// An operation that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) kind: FailureKind,
    pub(super) effect: Effect,
}

impl Failed {
    pub(super) const fn possible(kind: FailureKind) -> Self {
        let effect = Effect::Possible;
        Self { kind, effect }
    }

    /// What an error reply means. Three of them promise that nothing happened; no other is taken to.
    pub(super) fn of_reply(line: &str) -> Self {
        let (kind, effect) = match line.split(' ').next() {
            Some("TIMEOUT") => (FailureKind::Timeout, Effect::None),
            Some("REFUSED") => (FailureKind::Refused, Effect::None),
            Some("NOLEADER") => (FailureKind::NoLeader, Effect::None),
            Some("UNKNOWN" | "NOTDURABLE") => (FailureKind::Unknown, Effect::Possible),
            Some(_) | None => (FailureKind::Protocol, Effect::Possible),
        };
        Self { kind, effect }
    }
}

impl From<&CallError> for Failed {
    fn from(error: &CallError) -> Self {
        let kind = match error {
            CallError::ConnectTimedOut { .. } | CallError::TimedOut { .. } => FailureKind::Timeout,
            CallError::Connect { .. } | CallError::Lost { .. } | CallError::Closed { .. } => {
                FailureKind::Connection
            }
            CallError::Protocol { .. } => FailureKind::Protocol,
        };
        let effect = if error.is_before_sending() {
            Effect::None
        } else {
            Effect::Possible
        };
        Self { kind, effect }
    }
}

/// What a writer did with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Added one to this counter.
    Counter(usize),
    /// Set this value.
    Value(usize),
    /// Read this value.
    Read,
}

/// What an acknowledged write left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The counter's new value.
    Count(i64),
    /// A value with this number in its token.
    Token(u64),
    /// A read leaves nothing.
    Nothing,
}

/// What is known of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyTally {
    /// Writes acknowledged.
    pub acked: u64,
    /// Writes that may have happened.
    pub unknown: u64,
    /// Of a counter: the highest value that an acknowledgement told.
    pub count_max: Option<i64>,
    /// Of a value: the number in the token of the write that was acknowledged last, and when.
    pub token_last: Option<(Instant, u64)>,
}

/// Counts and latencies of one window, or of all.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) acked: u64,
    pub(super) errors: ErrorCounts,
    pub(super) latencies_us: Histogram<u64>,
}

impl Window {
    pub(super) fn new() -> Self {
        let most = u64::try_from(LOAD_LATENCY_MAX.as_micros()).unwrap_or(u64::MAX);
        // One bound above the other and at most five digits: that is all that it can refuse.
        let latencies_us = Histogram::new_with_bounds(1, most, DIGITS)
            .unwrap_or_else(|_| unreachable!("the histogram's bounds are constants"));
        Self {
            acked: 0,
            errors: ErrorCounts::default(),
            latencies_us,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.acked += other.acked;
        self.errors.add(&other.errors);
        // It fails only for values beyond the bounds, and both have the same.
        let _same_bounds = self.latencies_us.add(&other.latencies_us);
    }
}

/// Everything that is noted in a run.
#[derive(Debug)]
pub(super) struct Tally {
    start: Instant,
    window: Duration,
    pub(super) windows: Vec<Window>,
    pub(super) counters: Vec<KeyTally>,
    pub(super) values: Vec<KeyTally>,
    pub(super) acked: u64,
    pub(super) failed: u64,
}

impl Tally {
    pub(super) fn new(start: Instant, window: Duration, windows: usize, keys: usize) -> Self {
        Self {
            start,
            window,
            windows: vec![Window::new(); windows.max(1)],
            counters: vec![KeyTally::default(); keys],
            values: vec![KeyTally::default(); keys],
            acked: 0,
            failed: 0,
        }
    }

    /// The timed part begins.
    pub(super) const fn start_at(&mut self, start: Instant) {
        self.start = start;
    }

    /// Notes one operation.
    pub(super) fn note(
        &mut self,
        (began, ended): (Instant, Instant),
        target: Target,
        outcome: Result<Left, Failed>,
    ) {
        let at = began.saturating_duration_since(self.start).as_micros() / self.window.as_micros();
        let last = self.windows.len() - 1;
        let window = &mut self.windows[usize::try_from(at).unwrap_or(last).min(last)];
        let key = match target {
            Target::Counter(key) => self.counters.get_mut(key),
            Target::Value(key) => self.values.get_mut(key),
            Target::Read => None,
        };
        match outcome {
            Ok(left) => {
                self.acked += 1;
                window.acked += 1;
                let took = ended.saturating_duration_since(began).as_micros();
                let took = u64::try_from(took).unwrap_or(u64::MAX);
                window.latencies_us.saturating_record(took.max(1));
                if let Some(key) = key {
                    key.acked += 1;
                    key.note_left(ended, left);
                }
            }
            Err(failed) => {
                self.failed += 1;
                window.errors.count(failed.kind);
                if let (Some(key), Effect::Possible) = (key, failed.effect) {
                    key.unknown += 1;
                }
            }
        }
    }
}

impl KeyTally {
    fn note_left(&mut self, ended: Instant, left: Left) {
        match left {
            Left::Count(count) => self.count_max = self.count_max.max(Some(count)),
            Left::Token(number) => self.token_last = self.token_last.max(Some((ended, number))),
            Left::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn only_three_error_replies_prove_that_nothing_happened() {
        let possible = |line| Failed::of_reply(line).effect == Effect::Possible;
        assert!(!possible("TIMEOUT") && !possible("REFUSED Superseded") && !possible("NOLEADER 7"));
        for line in [
            "UNKNOWN - deadline passed",
            "NOTDURABLE 5",
            "ERR oops",
            "MOVED 1 x",
            "",
        ] {
            assert!(possible(line), "{line}");
        }
        assert_eq!(Failed::of_reply("TIMEOUTS").kind, FailureKind::Protocol);
    }

    #[test]
    fn an_operation_counts_in_the_window_in_which_it_began() {
        let start = transport::io::clock::now();
        let mut tally = Tally::new(start, Duration::from_secs(1), 2, 1);
        let read = (Target::Read, Ok(Left::Nothing));
        tally.note((start, at(start, 1500)), read.0, read.1);
        tally.note((at(start, 1999), at(start, 2001)), read.0, read.1);
        // One that began at the very end belongs to the last window.
        tally.note((at(start, 2000), at(start, 2010)), read.0, read.1);
        let acked: Vec<_> = tally.windows.iter().map(|window| window.acked).collect();
        assert_eq!(acked, [1, 2]);
        let p50 = tally.windows[0].latencies_us.value_at_quantile(0.5);
        assert!((1_499_000..=1_501_500).contains(&p50), "{p50}");
    }

    #[test]
    fn a_key_knows_the_last_that_was_acknowledged_and_all_that_is_unsure() {
        let start = transport::io::clock::now();
        let mut tally = Tally::new(start, Duration::from_secs(1), 1, 2);
        let when = (start, at(start, 1));
        tally.note(when, Target::Counter(1), Ok(Left::Count(7)));
        tally.note(when, Target::Counter(1), Ok(Left::Count(6)));
        tally.note(
            when,
            Target::Counter(1),
            Err(Failed::of_reply("UNKNOWN - x")),
        );
        tally.note(
            when,
            Target::Counter(1),
            Err(Failed::of_reply("NOLEADER 1")),
        );
        tally.note(when, Target::Read, Err(Failed::of_reply("UNKNOWN - x")));
        tally.note((start, at(start, 9)), Target::Value(0), Ok(Left::Token(3)));
        tally.note((start, at(start, 8)), Target::Value(0), Ok(Left::Token(4)));
        let counter = tally.counters[1];
        assert_eq!(
            (counter.acked, counter.unknown, counter.count_max),
            (2, 1, Some(7))
        );
        assert_eq!(tally.values[0].token_last, Some((at(start, 9), 3)));
        assert_eq!((tally.acked, tally.failed), (4, 3));
        assert_eq!(tally.windows[0].errors.total(), 3);
    }
}
