//! What the embedder brings: the state machine of one group. The host makes one per group through
//! the embedder's factory and calls it from an apply worker, never from a shard's thread, one call
//! at a time and in the order of the log.
//!
//! Leaves to others: when and how much is applied (`apply.rs`), what is committed (the core), and
//! whether a repeated request has an effect, which only the state machine can judge (safety 11).
//!
//! A state machine that fails or panics stops the node: its replica would differ from the others.

use std::error::Error;
use std::io::Read;

use bytes::Bytes;

use crate::id::{GroupId, Index, Term, UnixMillis};
use crate::proto::group_time::note_len;

/// A committed entry, as it is handed to the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its position. Positions are consecutive over all calls.
    pub index: Index,
    /// The term in which it was proposed.
    pub term: Term,
    /// The command. Empty in entries that hold none (a new leader's first, changes of the
    /// members): these only move the applied index.
    pub command: Bytes,
    /// The request id that its proposer gave, empty if it gave none.
    pub request_id: Bytes,
    /// When its leader proposed it, by the group's time (safety 11): of one leader it never falls, and a
    /// clock that jumps moves it little at once. Beginning of time where there is no command. Group
    /// time is the latest of all entries so far.
    pub time: UnixMillis,
}

impl Committed {
    /// Bytes of what stands beside the command in the log.
    #[must_use]
    pub fn note_len(&self) -> usize {
        note_len(&self.request_id, self.time)
    }
}

/// Where a state machine stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The last entry it holds, 0 if none.
    pub index: Index,
    /// That entry's term.
    pub term: Term,
}

/// Why a state machine couldn't do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// It doesn't offer this.
    #[error("the state machine does not support {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// It answered a batch with too few or too many replies.
    #[error("{got} replies to {expected} entries")]
    Replies {
        /// The batch's entries.
        expected: usize,
        /// The replies.
        got: usize,
    },
    /// It panicked.
    #[error("the state machine panicked")]
    Panicked,
    /// It failed, for a reason of its own.
    #[error("the state machine failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

impl MachineError {
    /// A failure with the state machine's own reason.
    #[must_use]
    pub fn failed(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(source.into())
    }
}

/// The content of a state machine up to an entry.
pub struct Snapshot {
    /// The last entry in it.
    pub applied: Applied,
    /// The content, in the state machine's own form.
    pub content: Box<dyn Read + Send>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("applied", &self.applied)
            .finish_non_exhaustive()
    }
}

/// The state machine of one group.
pub trait StateMachine: Send + 'static {
    /// Where it stands. Asked once, when its group is opened: after a restart the log is replayed
    /// from the entry after this one.
    fn applied(&self) -> Applied;

    /// Applies consecutive entries and gives one reply for each; a reply goes to the entry's
    /// proposer, if that is on this node and still waits. The last entry's position becomes what
    /// [`StateMachine::applied`] says; one that survives a restart must store it in the same step
    /// as the effects.
    ///
    /// # Errors
    /// A failure stops the node.
    fn apply(&mut self, batch: &[Committed]) -> Result<Vec<Bytes>, MachineError>;

    /// Makes what was applied durable and says up to where it is: the log may forget these entries
    /// once every member has them. Called now and then (`limits.rs`). One that says 0 keeps its
    /// log whole, and is rebuilt from it at each start.
    ///
    /// # Errors
    /// A failure stops the node.
    fn flush(&mut self) -> Result<Index, MachineError> {
        Ok(Index::new(0))
    }

    /// Its whole content, for a replica that is too far behind. The host doesn't ask for it yet:
    /// the log keeps what the slowest member needs.
    ///
    /// # Errors
    /// [`MachineError::Unsupported`] unless it is implemented.
    fn snapshot(&mut self) -> Result<Snapshot, MachineError> {
        Err(MachineError::Unsupported { what: "snapshot" })
    }

    /// Replaces its whole content. As [`StateMachine::snapshot`], not asked for yet.
    ///
    /// # Errors
    /// [`MachineError::Unsupported`] unless it is implemented.
    fn restore(&mut self, snapshot: Snapshot) -> Result<(), MachineError> {
        drop(snapshot);
        Err(MachineError::Unsupported { what: "restore" })
    }
}

/// Makes the state machine of a group that is opened.
pub trait MachineFactory: Send + Sync + 'static {
    /// The group's state machine, with all it holds durably.
    ///
    /// # Errors
    /// A failure refuses the start, or the group's creation.
    fn open(&self, group: GroupId) -> Result<Box<dyn StateMachine>, MachineError>;
}

impl<F> MachineFactory for F
where
    F: Fn(GroupId) -> Result<Box<dyn StateMachine>, MachineError> + Send + Sync + 'static,
{
    fn open(&self, group: GroupId) -> Result<Box<dyn StateMachine>, MachineError> {
        self(group)
    }
}
