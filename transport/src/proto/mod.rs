//! The protocol core: what goes over a session and what it means, with no clock, socket, task or
//! lock of its own. Time and randomness are arguments; inputs are `handle_*`, `on_*` and calls of
//! the sender, outputs are `poll_*`. It is what a simulation drives, byte for byte.
//!
//! Items and the budget are shared with other threads and lock themselves (`receipt`, `budget`).
#![warn(clippy::iter_over_hash_type)]

pub mod authority;
pub mod backoff;
pub mod confirm;
pub mod deframer;
pub mod fifo;
pub mod frame;
pub mod hello;
pub mod histogram;
pub mod inbound;
pub mod lapse;
pub mod link;
pub mod occupancy;
#[cfg(test)]
#[cfg(not(loom))]
mod oracle;
pub mod outbound;
mod outbox;
pub mod penalty;
pub mod source;
mod timers;
mod window;
