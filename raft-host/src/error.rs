//! What can go wrong in the host, one enum per boundary: why a proposal or a read was refused, how
//! a proposal ended, why a group couldn't be opened, and what a peer's message did wrong.
//! The log's own errors live with the log.

use crate::id::{Boot, GroupId, Index, NodeId, ReplicaId, Term};

/// Why a proposal, a read or a command to a group was not begun. Each one means *proven without
/// effect* (safety 23): nothing was handed to Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// This shard has no such group.
    #[error("group {0} is not on this shard")]
    NoSuchGroup(GroupId),
    /// This replica doesn't lead the group.
    #[error("not the leader, which is {leader:?}")]
    NotLeader {
        /// The leader's node as this replica knows it.
        leader: Option<NodeId>,
    },
    /// Leadership is being handed to another replica, and that took longer than there was time.
    #[error("leadership is being transferred")]
    Transferring,
    /// A new leader has not committed an entry of its own term yet.
    #[error("the leader of term {term} has committed nothing of its term yet")]
    NotReady {
        /// Its term.
        term: Term,
    },
    /// One entry may not be that long.
    #[error("an entry of {got} bytes, at most {most} fit")]
    TooLarge {
        /// Bytes of the command and its context.
        got: usize,
        /// [`crate::limits::ENTRY_BYTES_MAX`].
        most: usize,
    },
    /// The group has too many uncommitted bytes.
    #[error("the group's uncommitted bytes are at their bound")]
    Uncommitted,
    /// The group applies too slowly.
    #[error("{unapplied} entries wait to be applied, at most {most} may")]
    Unapplied {
        /// Entries not yet applied.
        unapplied: u64,
        /// The bound.
        most: u64,
    },
    /// The shard has too many bytes of unfinished proposals.
    #[error("{in_use} bytes of proposals are unfinished, at most {most} may be")]
    NodeBusy {
        /// Bytes in use.
        in_use: u64,
        /// The bound.
        most: u64,
    },
    /// The group has too many unfinished proposals or reads.
    #[error("{waiting} proposals or reads wait in this group, at most {most} may")]
    TooManyWaiting {
        /// How many.
        waiting: usize,
        /// The bound.
        most: usize,
    },
    /// The group's log may not grow while a member is so far behind.
    #[error("the log holds {retained} entries for the slowest member, at most {most} may be held")]
    LogRetained {
        /// Entries retained.
        retained: u64,
        /// The bound, from the configuration.
        most: u64,
    },
    /// The deadline had passed on arrival.
    #[error("the deadline had passed on arrival")]
    Late,
    /// The node stops, or its log failed.
    #[error("the shard has stopped")]
    Stopped,
    /// The replica isn't a member that could do this.
    #[error("replica {0} is not a voter of the group")]
    NotAVoter(ReplicaId),
    /// Raft dropped it and told no reason.
    #[error("consensus dropped it")]
    Dropped,
    /// A command without bytes: an entry without any belongs to the host.
    #[error("a command needs at least one byte")]
    Empty,
    /// The request id is too long.
    #[error("a request id of {got} bytes, at most {most} fit")]
    RequestIdTooLong {
        /// Its bytes.
        got: usize,
        /// [`crate::limits::REQUEST_ID_BYTES_MAX`].
        most: usize,
    },
    /// Too many requests wait for the shard to look at them.
    #[error("{waiting} requests wait for the shard, at most {most} may")]
    InboxFull {
        /// How many.
        waiting: usize,
        /// The bound.
        most: usize,
    },
    /// The disk is full: entries can't be written now.
    #[error("the disk has no room for entries")]
    LogFull,
    /// The node's log is near its cap: it retains what the slowest members of its groups, and its
    /// state machines, still need.
    #[error("the log holds {retained} bytes, at most {most} may be held")]
    LogRetainedBytes {
        /// Bytes of the segments in use.
        retained: u64,
        /// The bound, from the configuration.
        most: u64,
    },
    /// No replica is known to lead, and none was found in time.
    #[error("the group has no leader that is known here")]
    NoLeader,
    /// The leader's node never took the forwarded proposal: it wasn't written, or refused unread.
    #[error("node {leader}, which leads, did not take it")]
    NotTaken {
        /// The node it was for.
        leader: NodeId,
    },
    /// The shard has too many forwarded proposals on their way.
    #[error("{waiting} forwarded proposals are on their way, at most {most} may be")]
    ForwardsFull {
        /// How many.
        waiting: usize,
        /// The bound.
        most: usize,
    },
    /// The embedder lets no proposals in: it is too far behind with what it owes for those before.
    #[error("the node is too far behind with what it owes for earlier commands")]
    Backlogged,
    /// The node of that replica isn't linked to this one.
    #[error("the node of replica {0} is not in reach")]
    OutOfReach(ReplicaId),
    /// It was handed to Raft, and an entry of another term was committed in its place.
    #[error("another leader's entry was committed at {index}")]
    Overwritten {
        /// Where it had stood.
        index: Index,
    },
    /// Its policy asks for more acks than the group has voters.
    #[error("{wanted} acks are asked for, of a group with {voters} voters")]
    TooFewVoters {
        /// Acks that its policy asks for.
        wanted: u64,
        /// Voters of the configuration in force; of a joint one, those of the smaller half.
        voters: u64,
    },
    /// Half of the workers wait for proposals that can't be handed off.
    #[error("{held} workers wait inline, and no more than {most} may")]
    InlineFull {
        /// How many do.
        held: usize,
        /// The bound.
        most: usize,
    },
}

/// How a proposal ended (commit-wait.md 6, safety 23). Each ends exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Committed, applied, and this is what the state machine answered.
    Committed {
        /// Where it stands.
        index: Index,
        /// The state machine's answer.
        result: bytes::Bytes,
    },
    /// It has and will have no effect: the leader elsewhere refused it, it never got there, or an
    /// entry of another term was committed at its index.
    Refused {
        /// By name.
        why: Refusal,
    },
    /// Committed and applied, but acks that its policy asks for are missing at the deadline.
    NotDurable {
        /// Where it stands.
        index: Index,
    },
    /// It was handed to Raft, or to the wire towards the leader, and may yet commit.
    Unknown {
        /// Why nothing more is known.
        why: UnknownCause,
    },
}

/// How a proposal ended, as its proposer sees it (commit-wait.md 6).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProposalOutcome {
    /// Committed, applied, and this is what the state machine answered.
    Committed {
        /// Where it stands.
        index: Index,
        /// The state machine's answer.
        result: bytes::Bytes,
    },
    /// It has no effect and will have none: it may be proposed again, under any id.
    Refused(Refusal),
    /// Committed and applied, but acks that its policy asks for are missing at the deadline.
    NotDurable {
        /// Where it stands.
        index: Index,
    },
    /// It may have taken effect, or may yet. Only a repetition under the same request id, which
    /// the state machine recognizes, is safe.
    Unknown {
        /// The request id that it was proposed under, empty if it had none.
        request_id: bytes::Bytes,
        /// Why nothing more is known.
        why: UnknownCause,
    },
}

impl ProposalOutcome {
    /// Whether it is proven without effect, so that it may be proposed again.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// Why a read was not served. It has no effect and may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadFailed {
    /// It wasn't begun.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It was begun and didn't end in time.
    #[error(transparent)]
    Failed(#[from] ReadFailure),
    /// The group doesn't offer this kind of read.
    #[error("reads that are {0} are not offered yet")]
    Unsupported(&'static str),
}

/// Why a proposal's fate is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownCause {
    /// The replica lost leadership.
    #[error("leadership was lost")]
    LeadershipLost,
    /// Its deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The shard stops, or its log failed.
    #[error("the shard has stopped")]
    Stopped,
    /// It was sent to the leader, and the link to it was lost before the answer.
    #[error("the link to the leader was lost")]
    LinkLost,
    /// It took effect at the leader; the state machine's answer is too long to be sent here.
    #[error("the answer is too long to be forwarded")]
    ResultTooLarge,
}

/// How a linearizable read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The state machine has applied at least this index: read now.
    Ready {
        /// The read index.
        index: Index,
    },
    /// Not served; a read has no effect, so it may be repeated.
    Failed {
        /// Why.
        why: ReadFailure,
    },
}

/// Why a read was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadFailure {
    /// The leader was lost or isn't ready.
    #[error("there is no leader that can serve it")]
    NoLeader,
    /// Its deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The shard stops.
    #[error("the shard has stopped")]
    Stopped,
}

/// Why a group couldn't be opened. All of them are faults of what was found on disk or given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The group is open already.
    #[error("group {0} is open already")]
    AlreadyOpen(GroupId),
    /// Too many groups.
    #[error("a shard holds at most {most} groups")]
    TooManyGroups {
        /// The bound.
        most: usize,
    },
    /// A group needs members, not too many, each with ids of its own, this replica among them.
    #[error("group {0} has a broken list of members")]
    BadMembers(GroupId),
    /// The state machine stands before the log's beginning: what lies between is gone.
    #[error(
        "group {group} is applied up to {applied}, but its log begins after {compacted}; give the \
         node back the databases that belong to its log"
    )]
    AppliedBeforeLog {
        /// The group.
        group: GroupId,
        /// What the state machine says.
        applied: Index,
        /// The last index that was compacted away.
        compacted: Index,
    },
    /// The state machine holds entries that the log doesn't (safety 14).
    #[error(
        "group {group} is applied up to {applied}, but its log ends at {last}; give the node back \
         the log that belongs to its databases, or start it with an empty folder"
    )]
    AppliedBeyondLog {
        /// The group.
        group: GroupId,
        /// What the state machine says.
        applied: Index,
        /// The log's last index.
        last: Index,
    },
    /// State machine and log hold different entries at the same index (safety 14).
    #[error(
        "group {group} has applied entry {applied} of term {got}, which its log has of term \
         {expected}: one of them is another node's; give the node back its own"
    )]
    AppliedOtherTerm {
        /// The group.
        group: GroupId,
        /// What the state machine says.
        applied: Index,
        /// The log's term there.
        expected: Term,
        /// The state machine's.
        got: Term,
    },
    /// This node isn't among the group's members.
    #[error("group {group} has no member on node {node}")]
    NotAMember {
        /// The group.
        group: GroupId,
        /// This node.
        node: NodeId,
    },
    /// A member lives on a node that there is no link to.
    #[error("group {group} has a member on node {node}, which is not among the peers")]
    UnknownNode {
        /// The group.
        group: GroupId,
        /// The member's node.
        node: NodeId,
    },
    /// The consensus core refused its configuration.
    #[error("consensus refused the configuration of group {0}")]
    Refused(GroupId),
}

/// What a verified peer did that no correct one does. The caller counts it and closes the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// The bytes aren't a body.
    #[error("bad body")]
    BadBody(#[from] crate::proto::wire::WireError),
    /// A frame for another shard.
    #[error("a frame for shard {got} at shard {expected}")]
    WrongShard {
        /// This shard.
        expected: crate::id::ShardId,
        /// The frame's.
        got: crate::id::ShardId,
    },
    /// A message of this kind doesn't belong on this lane.
    #[error("a message on the wrong lane")]
    WrongLane,
    /// An ack beyond what was ever sent.
    #[error("an ack of {acked}, the log ends at {last}")]
    AckBeyondLog {
        /// What it acked.
        acked: Index,
        /// The leader's last index.
        last: Index,
    },
    /// Entries of a term above their message's, or falling terms.
    #[error("an append of term {term} holds an entry of term {got}")]
    EntryTerm {
        /// The message's term.
        term: Term,
        /// The entry's.
        got: Term,
    },
    /// A second leader in one term.
    #[error("two leaders in term {term}: {known} and {claimed}")]
    TwoLeaders {
        /// The term.
        term: Term,
        /// The one followed.
        known: ReplicaId,
        /// The one that claims it.
        claimed: ReplicaId,
    },
    /// Frames of a life of the peer that isn't the one it is connected under.
    #[error("boot {got} in a body, the link is to boot {expected}")]
    WrongBoot {
        /// What the hello said.
        expected: Boot,
        /// What the body says.
        got: Boot,
    },
}
