//! Three shard cores joined by a deterministic network, each over a log with separate submitted and
//! durable points. `world` is the rig; every frame that leaves a node is checked against what that
//! node has durably, and every entry applied against what the others applied at its index.

#![expect(clippy::print_stdout, reason = "seeds and measured figures")]

mod acks;
mod elections;
mod faults;
mod forwarding;
mod holding;
#[cfg(feature = "debug-keys")]
mod late_acks;
mod placement;
mod retention;
mod rounds;
mod world;
