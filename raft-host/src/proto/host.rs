//! The core of one shard: composes what the other files of this folder do, for all groups of the
//! shard. A thread owns it, feeds it (`on_*`, `propose`, `read_index`), drains it (`poll_output`)
//! and asks it for frames when the transport has room (`fill_control`, `fill_bulk`). Nothing here
//! waits, and taking a frame depends on nothing outbound (safety 17).
//!
//! H1: the outputs of one input follow from it, the state and the seed alone.
//! H2: what must be durable first is held in `consensus`; a write is answered by `on_stored`.
//! H3: a proposal or read that was accepted ends with exactly one output.
//! H4: a message whose replicas aren't those that stand here and there has no effect (safety 7).
//!
//! Threads, clocks and sockets are `io`'s; the log's layout is `log`'s; what a command means is the
//! state machine's. Sleeping groups (H5) are not here yet: a quiet group costs its share of a
//! covering round, which is no bytes while nothing changes, and one alarm an election timeout.

mod forwarding;
mod frames;
mod groups;
mod handover;
mod holding;
mod requests;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::forwarding::ForwardQueue;
use super::admission::{CampaignGate, Dice, ProposalGate};
use super::coalesce::Acks;
use super::consensus::{Replica, Role, SilentLogger, silent_logger};
use super::delayed::{Admission, DelayedProposals};
use super::due::Due;
use super::forward::{Forwards, Seen};
use super::group_table::{GroupTable, SlotId};
use super::group_time::GroupTime;
use super::handover::Handovers;
#[cfg(feature = "debug-keys")]
use super::late_acks::LateAcks;
use super::placement::{Astray, Moves, Standing};
use super::reads::Reads;
use super::ready_queue::ReadyQueue;
use super::round::{RoundsIn, RoundsOut};
use super::waiters::{Deadlines, Waiters};
use super::wire::{GroupMessage, RoundAnswer};
use crate::config::RaftConfig;
use crate::error::{Outcome, PeerMisbehaved, ReadOutcome};
use crate::id::{
    Boot, GroupId, Index, NodeId, ProposalId, ReadId, ReplicaId, Round, SendId, ShardId, StoreSeq,
    Term, UnixMillis,
};
use crate::log::api::{GroupLog, LogEntry, Mutation};

pub use self::groups::Disposal;
pub use self::holding::Led;
pub use self::requests::{Forwarding, LogRoom, Proposal};

/// One of the two lanes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Beats, acks, votes, reads.
    Control,
    /// Appends, forwarded proposals and the answers to them.
    Bulk,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its replica id.
    pub replica: ReplicaId,
    /// Where it lives.
    pub node: NodeId,
    /// What it is.
    pub kind: MemberKind,
}

/// What a member is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// It votes and counts.
    Voter,
    /// It only follows.
    Learner,
}

/// A group as it is opened.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// Its id.
    pub group: GroupId,
    /// This node's replica.
    pub replica: ReplicaId,
    /// All members as of `applied`, this replica among them.
    pub members: Vec<Member>,
    /// Who should lead: it campaigns at once when nobody leads at a start, and others hand over to
    /// it, unless leaders are to stay ([`crate::config::LeaderPlacement`]).
    pub preferred: ReplicaId,
    /// What the state machine holds.
    pub applied: Index,
}

/// What the shard's owner is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Make this durable; of one group in this order. With a sequence, answer by
    /// [`HostCore::on_stored`]. The log must be able to read it back by then.
    Store {
        /// What to answer with; without one nobody waits for it.
        seq: Option<StoreSeq>,
        /// What to write.
        mutation: Mutation,
    },
    /// Apply these in order, then answer by [`HostCore::on_applied`]. Entries without data, a new
    /// leader's and configuration changes have no effect on the state machine but count.
    Apply {
        /// The group.
        group: GroupId,
        /// Consecutive committed entries.
        entries: Vec<LogEntry>,
    },
    /// The log's room is low and this group's state machine stands in the way of forgetting entries:
    /// it should become durable, and say so by [`HostCore::on_flushed`].
    Flush {
        /// The group.
        group: GroupId,
    },
    /// A proposal has ended.
    Proposal {
        /// Which.
        id: ProposalId,
        /// How.
        outcome: Outcome,
    },
    /// A read has ended.
    Read {
        /// Which.
        id: ReadId,
        /// How.
        outcome: ReadOutcome,
    },
    /// A replica's role, term or leader has changed.
    RoleChanged {
        /// The group.
        group: GroupId,
        /// Its role now.
        role: Role,
        /// Its term now.
        term: Term,
        /// The leader's node, if one is known.
        leader: Option<NodeId>,
    },
    /// There is content for a control frame to this peer: call [`HostCore::fill_control`] when the
    /// transport has a slot.
    ControlWaits {
        /// The peer.
        peer: NodeId,
    },
    /// There is content for a bulk frame to this peer: call [`HostCore::fill_bulk`] when the
    /// transport has room.
    BulkWaits {
        /// The peer.
        peer: NodeId,
    },
}

/// A body to send, and the name under which its end is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutFrame {
    /// For [`HostCore::on_send_ended`].
    pub id: SendId,
    /// The body.
    pub body: Bytes,
}

/// What became of a frame that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Taken. The answer, if there is one, goes into the frame's reply; if it can't, hand it to
    /// [`HostCore::answer_later`].
    Yes {
        /// Answers to the rounds in it.
        answer: Option<Bytes>,
    },
    /// No room: refuse the frame by this name; it had no effect.
    Busy,
    /// The peer misbehaved; the rest of the frame had no effect.
    Bad(PeerMisbehaved),
}

/// How a frame that was sent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendEnd {
    /// The peer took it.
    Replied,
    /// The peer certainly did nothing with it: it wasn't wholly written, or was refused unread.
    Untaken,
    /// Anything else: the peer may have taken it.
    Failed,
}

/// What the core has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Campaigns begun.
    pub campaigns: u64,
    /// Campaigns that the rate made wait.
    pub campaigns_delayed: u64,
    /// Times that a replica here became a leader.
    pub elected: u64,
    /// Covering rounds begun, over all peers.
    pub rounds: u64,
    /// Rounds begun for reads.
    pub read_rounds: u64,
    /// Frames that carried beats.
    pub beat_frames: u64,
    /// Beats listed in them.
    pub beats_listed: u64,
    /// Bytes of the beats and of what surrounds them in their frames.
    pub beat_bytes: u64,
    /// Bytes of the listed groups alone: at most [`crate::limits::BEAT_BYTES_MAX`] each.
    pub beat_group_bytes: u64,
    /// Rounds answered by `Restate`, here as their sender.
    pub restated: u64,
    /// Dissents received.
    pub dissents: u64,
    /// Messages without effect: unknown group, or replicas that aren't these.
    pub messages_void: u64,
    /// Messages given up at a bound.
    pub messages_dropped: u64,
    /// Acks that a later one stood in for.
    pub acks_merged: u64,
    /// Appends reported to Raft as lost.
    pub unreachable: u64,
    /// Proposals sent to leaders elsewhere, repetitions included.
    pub forwards_sent: u64,
    /// Proposals that no leader was known for, or in reach.
    pub forwards_held: u64,
    /// Proposals of other nodes that came here.
    pub forwards_taken: u64,
    /// Proposals that had to wait until they were let in.
    pub proposals_delayed: u64,
    /// Late drivers noticed: their groups were given time to read what had come meanwhile.
    pub stalls: u64,
    /// Hand-overs of leadership begun here, for placement or on request.
    pub handovers_begun: u64,
    /// Those after which the replica they were for led.
    pub handovers_finished: u64,
    /// Those that were given up, or after which another replica led.
    pub handovers_failed: u64,
    /// Times that a replica here took over because it was called to.
    pub handovers_taken: u64,
    /// Proposals that waited for a hand-over.
    pub handover_proposals_held: u64,
    /// Times that a group's waiters were gone through since more was applied.
    pub waiter_passes: u64,
    /// Waiters looked at in them: those that ended, and the one that a pass stopped at.
    pub waiters_looked_at: u64,
}

struct Group<L: GroupLog> {
    id: GroupId,
    replica: Replica<L>,
    members: Vec<Member>,
    /// When the promise to a leader or candidate was last renewed; of a leader: when it last
    /// checked its quorum.
    heard_at: Instant,
    /// How long after that it is due.
    timeout: Duration,
    reported: (Role, Term, Option<ReplicaId>),
    commit_listed: Index,
    waiters: Waiters,
    time: GroupTime,
    reads: Reads,
    /// The newest read token that each member's node was asked about.
    asked: BTreeMap<NodeId, u64>,
    storing: VecDeque<(StoreSeq, u64)>,
    /// Every member has this durably, as far as is known here.
    retain_after: Index,
    /// The state machine has this durably.
    flushed: Index,
    /// What it had applied when it was last asked to become durable for the log's sake.
    flush_asked: Index,
    /// What the embedder has released of a log that is held.
    released: Index,
    /// Who should lead.
    preferred: Option<ReplicaId>,
    moves: Moves,
    /// The term in which this replica was called to lead, if it was.
    called_in: Option<Term>,
}

impl<L: GroupLog> Group<L> {
    /// Whether it never had a leader, as far as is known here.
    fn is_new(&self) -> bool {
        self.replica.status().term == Term::new(0)
    }

    /// When its alarm rings. A new group counts from the moment at which a peer's link last came up,
    /// so that whoever is preferred is first also where nodes start at different times.
    fn deadline(&self, met_at: Instant) -> Instant {
        let from = if self.is_new() {
            self.heard_at.max(met_at)
        } else {
            self.heard_at
        };
        from + self.timeout
    }

    fn node_of(&self, replica: ReplicaId) -> Option<NodeId> {
        let member = self.members.iter().find(|member| member.replica == replica);
        member.map(|member| member.node)
    }

    fn asked_at(&self, node: NodeId) -> Option<u64> {
        self.asked.get(&node).copied()
    }

    fn set_asked(&mut self, node: NodeId, token: Option<u64>) {
        if let Some(token) = token {
            self.asked.insert(node, token);
        }
    }
}

struct Peer {
    up: bool,
    standing: Standing,
    boot: Boot,
    rounds_out: RoundsOut,
    rounds_in: RoundsIn,
    round_due: bool,
    answers: VecDeque<RoundAnswer>,
    urgent: VecDeque<GroupMessage>,
    acks: Acks,
    bulk: VecDeque<GroupMessage>,
    bulk_bytes: u64,
    forwards: ForwardQueue,
    /// What of this peer's forwarded proposals came here before.
    seen: Seen,
    control_told: bool,
    bulk_told: bool,
    control_sent: BTreeMap<SendId, Option<Round>>,
    bulk_sent: BTreeMap<SendId, BTreeSet<(GroupId, ReplicaId)>>,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            up: false,
            standing: Standing::default(),
            boot: Boot::new(0),
            rounds_out: RoundsOut::default(),
            rounds_in: RoundsIn::default(),
            round_due: false,
            answers: VecDeque::new(),
            urgent: VecDeque::new(),
            acks: Acks::default(),
            bulk: VecDeque::new(),
            bulk_bytes: 0,
            forwards: ForwardQueue::default(),
            seen: Seen::default(),
            control_told: false,
            bulk_told: false,
            control_sent: BTreeMap::new(),
            bulk_sent: BTreeMap::new(),
        }
    }
}

/// The core of one shard.
pub struct HostCore<L: GroupLog> {
    config: RaftConfig,
    node: NodeId,
    shard: ShardId,
    boot: Boot,
    logger: SilentLogger,
    groups: GroupTable<Group<L>>,
    peers: BTreeMap<NodeId, Peer>,
    due: Due,
    ready: ReadyQueue,
    outputs: VecDeque<Output>,
    dice: Dice,
    campaigns: CampaignGate,
    /// How many waited for the rate after the last tick.
    campaigns_waiting: u64,
    proposals: ProposalGate,
    deadlines: Deadlines,
    forwards: Forwards,
    remote_waiting: u64,
    log_room: LogRoom,
    /// Logs forget only what was released.
    holding: bool,
    admission: Admission,
    delayed: DelayedProposals,
    astray: Astray,
    handovers: Handovers,
    #[cfg(feature = "debug-keys")]
    late_acks: LateAcks,
    /// Groups led here with reads that need a round.
    reading: BTreeSet<GroupId>,
    read_token: u64,
    next_send: SendId,
    started: Instant,
    now: Instant,
    /// What the wall clock said last.
    wall: UnixMillis,
    last_tick: Instant,
    next_round: Instant,
    /// After a stall, no timer of a group rings before this.
    grace_until: Instant,
    /// When a peer's link last came up.
    met_at: Instant,
    store_pending: u64,
    stopped: bool,
    stats: HostStats,
}

impl<L: GroupLog> std::fmt::Debug for HostCore<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCore")
            .field("node", &self.node)
            .field("shard", &self.shard)
            .field("groups", &self.groups.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// Who a shard core is.
#[derive(Clone, Copy, Debug)]
pub struct HostIdentity {
    /// This node.
    pub node: NodeId,
    /// This shard.
    pub shard: ShardId,
    /// This life of the node's process; never 0, never that of another life.
    pub boot: Boot,
    /// For the draw of timeouts; differs between nodes.
    pub seed: u64,
}

impl<L: GroupLog> HostCore<L> {
    /// A shard without groups. `peers` are the other nodes; all begin lost.
    #[must_use]
    pub fn new(
        config: RaftConfig,
        identity: HostIdentity,
        peers: impl IntoIterator<Item = NodeId>,
        now: Instant,
    ) -> Self {
        Self {
            config,
            node: identity.node,
            shard: identity.shard,
            boot: identity.boot,
            logger: silent_logger(),
            groups: GroupTable::default(),
            peers: peers
                .into_iter()
                .map(|peer| (peer, Peer::default()))
                .collect(),
            due: Due::default(),
            ready: ReadyQueue::default(),
            outputs: VecDeque::new(),
            dice: Dice::new(identity.seed),
            campaigns: CampaignGate::new(config.campaign_rate(), now),
            campaigns_waiting: 0,
            proposals: ProposalGate::default(),
            deadlines: Deadlines::default(),
            forwards: Forwards::default(),
            remote_waiting: 0,
            log_room: LogRoom::Ample,
            holding: false,
            admission: Admission::Open,
            delayed: DelayedProposals::default(),
            astray: Astray::new(config.handover_rate(), now),
            handovers: Handovers::default(),
            #[cfg(feature = "debug-keys")]
            late_acks: LateAcks::new(config.debug_ack_delay()),
            reading: BTreeSet::new(),
            read_token: 0,
            next_send: SendId::new(0),
            started: now,
            now,
            wall: UnixMillis::default(),
            last_tick: now,
            next_round: now + config.heartbeat_interval(),
            grace_until: now,
            met_at: now,
            store_pending: 0,
            stopped: false,
            stats: HostStats::default(),
        }
    }

    /// The next thing to do, or `None` until the next input.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.pump();
        }
        self.outputs.pop_front()
    }

    /// When [`HostCore::on_tick`] is to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let alarms = [
            self.due.next(),
            self.deadlines.next(),
            self.forwards.next_alarm(),
            self.campaigns.next_at(),
            self.delayed.next_alarm(),
            self.astray.next_look(),
            self.handovers.next_alarm(),
            #[cfg(feature = "debug-keys")]
            self.late_acks.next_due(),
        ];
        let least = alarms.into_iter().flatten().min();
        least.map_or(self.next_round, |at| at.min(self.next_round))
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> HostStats {
        self.stats
    }

    /// Bytes handed to the log and not yet durable.
    #[must_use]
    pub fn store_pending_bytes(&self) -> u64 {
        self.store_pending
    }

    /// Bytes of unfinished proposals.
    #[must_use]
    pub fn proposal_bytes(&self) -> u64 {
        self.proposals.in_use()
    }

    /// What the wall clock says: entries proposed from now on are timed by it.
    pub fn set_wall(&mut self, wall: UnixMillis) {
        self.wall = wall;
    }

    fn time(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn queue(&mut self, slot: SlotId) {
        self.ready.push(slot);
    }
}

#[cfg(test)]
mod tests;
