//! The protocol core of a shard: no clock, no socket, no task, no lock. Time and randomness are
//! arguments; inputs are `on_*`, outputs `poll_*` and `fill_*`; whatever is iterated has a defined
//! order, so that the same inputs give the same outputs on every run.
//!
//! `consensus` is the only file that knows the `raft` crate; `host` composes the rest.

#![warn(clippy::iter_over_hash_type)]

pub mod admission;
pub mod coalesce;
pub mod consensus;
pub mod delayed;
pub mod due;
pub mod forward;
pub mod group_table;
pub mod group_time;
pub mod handover;
pub mod host;
#[cfg(feature = "debug-keys")]
pub mod late_acks;
pub mod placement;
pub mod reads;
pub mod ready_queue;
pub mod round;
pub mod waiters;
pub mod wire;

#[cfg(test)]
pub(crate) mod test_time {
    use std::time::Instant;

    /// Where virtual time begins: an instant has no other source.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests need some instant to count from"
    )]
    pub(crate) fn start() -> Instant {
        Instant::now()
    }
}
