//! Many Raft groups on one node.

pub mod commit_queue;
pub mod config;
pub mod error;
pub mod id;
#[cfg(feature = "io")]
pub mod io;
pub mod limits;
pub mod log;
#[cfg(feature = "io")]
pub mod metrics;
pub mod proto;
pub mod stores;
mod sync;

#[cfg(feature = "io")]
pub use io::{Host, StateMachine, Storage};
