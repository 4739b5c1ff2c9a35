//! The protocol core of a shard: no clock, no socket, no task, no lock. Time and randomness are
//! arguments; inputs are `on_*`, outputs `poll_*` and `fill_*`; whatever is iterated has a defined
//! order, so that the same inputs give the same outputs on every run.
//!
//! `consensus` is the only file that knows the `raft` crate; `host` composes the rest.

#![warn(clippy::iter_over_hash_type)]

pub mod wire;
