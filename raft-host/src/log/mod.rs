//! The durable shared log of a node: all its groups in one sequence of segments, one write and one
//! `fdatasync` for everything that waits. The only folder that knows how the log is laid out.
//!
//! The way of a change: a shard stages it (`shard.rs`), which shows it at once in the group's view
//! (`view.rs`), and flushes; the log thread (`thread.rs`) takes all that waits and drives the
//! writer (`engine.rs`), which writes and syncs one batch (`record.rs`), notes what is live
//! (`index.rs`) and acks. After a stop `open.rs` and `recovery.rs` read it all back, `replay.rs`
//! says what each group's log is. Files are reached through `files.rs` alone; `sim_files.rs` is a
//! disk that fails on demand. `inspect.rs` reads a folder and changes nothing.

use std::fmt;

pub mod api;
mod config;
mod engine;
mod error;
mod files;
mod index;
mod inspect;
mod open;
pub mod record;
mod recovery;
mod replay;
mod segment;
mod shard;
mod shared;
pub mod sim_files;
mod thread;
mod view;

#[cfg(test)]
mod tests;

pub use config::{LogConfig, RawLogConfig, SyncMode};
pub use engine::LogClock;
pub use error::{BadChange, ConfigError, Damage, LogFailure, OpenError, SubmitError};
pub use files::{Files, FolderLock, LogFile, RealFiles};
pub use inspect::{Extent, LogReading};
pub use record::{DecodeError, LogId};
pub use shard::ShardLog;
pub use shared::{DiskState, Health};
pub use thread::{Completion, HealthReader, Log, LogDriver, LogSetup, LogSink, Turn};
pub use view::GroupView;

/// Names what one shard flushed at once. They rise by one per shard, from 1; when one is durable,
/// so is every earlier one of that shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The bare number.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of the node's shards, as the log tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogShard(u32);

impl LogShard {
    /// Wraps the shard's number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The bare number.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0
    }
}

impl fmt::Display for LogShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
