//! What a replica and its owner say to each other, in our own words.

use std::time::Duration;

use crate::id::{GroupId, Index, ReplicaId, StoreSeq, Term};
use crate::log::api::{Change, LogEntry};
use crate::proto::wire::GroupMessage;

/// What a replica is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks for votes or pre-votes.
    Candidate,
    /// Leads.
    Leader,
}

/// Where a replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: Term,
    /// The leader it knows of in this term.
    pub leader: Option<ReplicaId>,
    /// What it knows to be committed.
    pub commit: Index,
    /// Its last index, durable or not.
    pub last: Index,
    /// What the state machine has applied.
    pub applied: Index,
    /// The last index that was compacted away.
    pub compacted: Index,
}

/// Whether a step renewed the promise to a leader or candidate: if so, the election timer restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It did.
    Renewed,
    /// It did not.
    Unchanged,
}

/// Why a beat couldn't be stepped as exactly what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeatRefusal {
    /// This replica is in a later term, durably.
    HigherTerm(Term),
    /// It leads, or follows another replica.
    NotFollowing,
    /// Its log ends before the beat's commit.
    Behind,
    /// Its term isn't durable yet.
    NotYet,
}

/// What a replica wants done after it was stepped; `ready` adds to it.
#[derive(Debug, Default)]
pub struct Turn {
    /// What must be made durable, in this order. Each is answered by [`super::Replica::on_stored`].
    pub writes: Vec<(StoreSeq, Change)>,
    /// Messages that may leave now.
    pub messages: Vec<GroupMessage>,
    /// Entries to apply, in order.
    pub committed: Vec<LogEntry>,
    /// Reads whose index is confirmed.
    pub reads: Vec<(u64, Index)>,
    /// The members after a configuration change among `committed`, as (voters, learners), if the
    /// configuration isn't joint.
    pub members: Option<(Vec<ReplicaId>, Vec<ReplicaId>)>,
}

/// Whom a replica is opened as.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The group.
    pub group: GroupId,
    /// This replica.
    pub replica: ReplicaId,
    /// The voters as of `applied`.
    pub voters: Vec<ReplicaId>,
    /// The learners as of `applied`.
    pub learners: Vec<ReplicaId>,
    /// What the state machine holds.
    pub applied: Index,
    /// The promise to a leader, and the pace of its check of its quorum.
    pub election_timeout: Duration,
}

/// A part of a group's log that is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntries {
    /// The term of the entry before the first.
    pub term_before: Term,
    /// Consecutive entries; none if nothing more is committed and readable.
    pub entries: Vec<LogEntry>,
}
