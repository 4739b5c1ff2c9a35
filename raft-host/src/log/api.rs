//! What a shard asks of the log, and what it may read back: the boundary between the consensus
//! core and the log. The core hands over [`Mutation`]s and is told when they are durable; it reads
//! its entries through [`GroupLog`]. Neither side knows the other's types beyond this file.

use bytes::Bytes;

use crate::id::{GroupId, Index, ReplicaId, Term};

/// What must survive a crash beside the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term this replica has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub vote: Option<ReplicaId>,
    /// The highest index known to be committed. Not synced on its own account: at open it is only
    /// a lower bound, clamped to the last index (safety 13, 14).
    pub commit: Index,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A command of the state machine, or a new leader's empty entry.
    Normal,
    /// A change of the group's configuration, in the host's own bounded encoding.
    ConfChange,
}

/// One entry of one group's Raft log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its position.
    pub index: Index,
    /// The term it was proposed in.
    pub term: Term,
    /// What it holds.
    pub kind: EntryKind,
    /// The command's bytes, shared and never copied on the way.
    pub data: Bytes,
    /// The leader's note (time, request id: `proto::group_time`); opaque here.
    pub context: Bytes,
}

/// One step of one group that must be made durable as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// The group.
    pub group: GroupId,
    /// What is to change.
    pub change: Change,
}

/// The kinds of step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the hard state, then appends. The first entry's index may be at or below the last
    /// index: everything from there on is overwritten (a truncation). Either part may be empty.
    Write {
        /// The new hard state, if it changed.
        hard_state: Option<HardState>,
        /// Consecutive entries.
        entries: Vec<LogEntry>,
    },
    /// Forgets every entry at or below this point; its term is kept for the log-matching check.
    Compact {
        /// The last index that goes.
        through: Index,
        /// Its term.
        term: Term,
    },
    /// Starts the group anew at this point, as after a snapshot: all entries go.
    Reset {
        /// The snapshot's last index.
        index: Index,
        /// Its term.
        term: Term,
        /// The hard state that holds from now on.
        hard_state: HardState,
    },
    /// Removes the group. A tombstone keeps its version until no older segment names it.
    Remove,
}

/// Why entries couldn't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The index was compacted away.
    #[error("index {index} was compacted, the log starts at {first}")]
    Compacted {
        /// What was asked for.
        index: Index,
        /// The first index there is.
        first: Index,
    },
    /// The index is beyond the end.
    #[error("index {index} is beyond the last index {last}")]
    Unavailable {
        /// What was asked for.
        index: Index,
        /// The last index there is.
        last: Index,
    },
    /// It is in the log, but the disk doesn't give it back. The log has stopped, with the cause.
    #[error("entry {index} can't be read back from the disk")]
    Lost {
        /// What was asked for.
        index: Index,
    },
}

/// A group's log as its replica reads it: what was submitted, durable or not, in index order.
pub trait GroupLog {
    /// The hard state as last submitted or recovered.
    fn hard_state(&self) -> HardState;
    /// The index before the first entry, and its term (0, 0 in a new group).
    fn compacted(&self) -> (Index, Term);
    /// The last entry's index, or the compacted one if there are none.
    fn last_index(&self) -> Index;
    /// The term of the entry at `index`, also of the compacted point itself.
    ///
    /// # Errors
    /// [`ReadError`] when the index is outside of the log.
    fn term(&self, index: Index) -> Result<Term, ReadError>;
    /// The entries from `first` up to and without `end`, as many as fit in `bytes_max` but at least
    /// one.
    ///
    /// # Errors
    /// [`ReadError`] when an index is outside of the log.
    fn entries(&self, first: Index, end: Index, bytes_max: u64)
    -> Result<Vec<LogEntry>, ReadError>;
}
