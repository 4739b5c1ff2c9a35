//! The state machine: one SQLite database per group. The shared Raft log is what makes a write
//! durable; a database is a cache of the log's effect that knows how far it got. So a commit here
//! never syncs, carries its applied index in the same transaction, and a batch of a group is one
//! transaction (`plans/adr/0014`).
//!
//! Left to others: the log, which entries are committed, when to checkpoint and compact, who may
//! read. [`Store`] is called from the host's apply workers and readers, any number of threads at
//! once; calls for one group wait for each other, calls for different groups don't.
//!
//! - S1: what a group's file holds is the effect of its log's entries `1..=applied_index`, all of
//!   them and nothing else, after any crash.
//! - S2: applying is a function of the log alone: no clock, no randomness, no setting of this node.
//! - S3: a floor that [`Store::checkpoint`] reports survives the loss of power (safety 14).
//! - S4: no file, however damaged or foreign, makes a call panic or answer wrongly in silence that
//!   SQLite itself can notice; the error names the file and the way out.

mod applied_file;
mod digest;
mod error;
mod group_db;
mod handles;
mod install;
mod ops;
mod outcomes;
mod schema;
#[cfg(test)]
mod tests;

pub use self::digest::Digest;
pub use self::error::StoreError;
pub use self::group_db::{AppliedEntry, Checkpoint, Committed, Effect};
pub use self::handles::{Store, StoreOptions};
pub use self::schema::Applied;
