//! Integration tests over real sockets and processes.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test picks the one event it waits for out of all that may come"
)]

mod admission;
mod archive;
mod authority;
mod balance;
mod certificates;
mod cluster;
mod commit_wait;
mod demo;
mod example;
mod frames;
mod fuzz_seeds;
mod host;
mod hosts;
mod identity;
mod kill;
mod liveness;
mod load;
mod node;
mod node_faults;
mod node_stop;
mod operators;
mod pressure;
mod rogue;
mod running_load;
mod sessions;
mod strangers;
mod ten_kills;
mod verify;
mod window;
