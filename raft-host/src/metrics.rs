//! What a host counts and where it stands, as `Host::stats` gives it: the cores' own counters,
//! the shell's, the log's health and the links' status. Published by the shards' threads once a
//! heartbeat interval; nothing here decides anything.

use crate::id::{Index, NodeId, ShardId, Term};
use crate::io::HostFailure;
use crate::log::Health;
use crate::proto::consensus::Role;
use crate::proto::host::HostStats;
use transport::proto::histogram::Distribution;

/// Where a group's replica on this node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: Term,
    /// The leader's node, if one is known.
    pub leader: Option<NodeId>,
    /// What it knows to be committed.
    pub commit: Index,
    /// Its last index, durable or not.
    pub last: Index,
    /// What its state machine has applied.
    pub applied: Index,
    /// The last index that its log has forgotten.
    pub compacted: Index,
}

/// How a shard's groups stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// All.
    pub total: u64,
    /// Led here.
    pub leading: u64,
    /// Following a known leader.
    pub following: u64,
    /// Without a known leader.
    pub leaderless: u64,
    /// Times that a group here got another leader.
    pub leader_changes: u64,
}

impl GroupCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.leading += other.leading;
        self.following += other.following;
        self.leaderless += other.leaderless;
        self.leader_changes += other.leader_changes;
    }
}

/// What one shard has counted, and how it stands.
#[derive(Clone, Debug)]
pub struct ShardStats {
    /// Which shard.
    pub shard: ShardId,
    /// Its groups.
    pub groups: GroupCounts,
    /// What its core counted.
    pub core: HostStats,
    /// Groups led here that another node should lead.
    pub groups_astray: u64,
    /// Proposals and reads that wait.
    pub waiting: u64,
    /// Proposals that ended, and how.
    pub proposals: OutcomeCounts,
    /// Bytes handed to the log and not durable.
    pub store_pending_bytes: u64,
    /// Writes that the log has no room for now.
    pub stores_held: u64,
    /// Turns of the thread.
    pub turns: u64,
    /// Frames stepped, each lane.
    pub control_frames_in: u64,
    /// Frames stepped on bulk.
    pub bulk_frames_in: u64,
    /// Control bodies made.
    pub control_bodies: u64,
    /// Bulk bodies made.
    pub bulk_bodies: u64,
    /// Answers that came too late for their frame's reply.
    pub answers_late: u64,
    /// Frames of peers that no correct one sends.
    pub frames_bad: u64,
    /// Frames that the core had no room for, or whose link was not up.
    pub frames_busy: u64,
    /// Times that bulk had to wait for room.
    pub bulk_blocked: u64,
    /// Times that the disk made nothing durable for an election timeout.
    pub disk_stalls: u64,
}

/// Proposals, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Committed and applied.
    pub committed: u64,
    /// Without effect.
    pub refused: u64,
    /// Committed and applied, with acks of their policy missing at the deadline.
    pub not_durable: u64,
    /// Of unknown fate.
    pub unknown: u64,
}

/// Why proposals were waited for by a worker, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineCounts {
    /// Nothing was handed off.
    pub off: u64,
    /// As many as the cap allows were outstanding.
    pub full: u64,
    /// Their policy, or their caller, asked for it.
    pub policy: u64,
}

impl InlineCounts {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.off + self.full + self.policy
    }
}

/// The quorum-ack waiter of a node (commit-wait.md 9).
#[derive(Clone, Debug, Default)]
pub struct CommitWaitStats {
    /// Whether proposals are handed off.
    pub enabled: bool,
    /// How many may be at once.
    pub cap: u64,
    /// How many are, reservations included.
    pub outstanding: u64,
    /// The workers.
    pub workers: u64,
    /// Those that wait inline now.
    pub workers_held: u64,
    /// Times that a worker looked into the line: it was woken, or had ended an inline wait.
    pub worker_wakeups: u64,
    /// Proposals that no worker has begun.
    pub line: u64,
    /// Handed off.
    pub enqueued: u64,
    /// Waited for by a worker.
    pub inline: InlineCounts,
    /// Repetitions that waited for the first of their id.
    pub joined: u64,
    /// Given up by their callers before a worker began them.
    pub withdrawn: u64,
    /// Refused before they reached a shard.
    pub refused: u64,
    /// Handed off, and how they ended.
    pub resolved: OutcomeCounts,
    /// Those of them that ended `Unknown` at their deadline.
    pub expired: u64,
    /// From the call until a worker began it.
    pub queued: Distribution,
    /// From the hand-off until the reply.
    pub waited: Distribution,
}

/// A host at one moment.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The node.
    pub node: NodeId,
    /// The groups of all shards.
    pub groups: GroupCounts,
    /// The shards.
    pub shards: Vec<ShardStats>,
    /// The quorum-ack waiter.
    pub commit_wait: CommitWaitStats,
    /// The log.
    pub log: Health,
    /// The links.
    pub transport: transport::io::Status,
    /// Why the node has stopped, if it has.
    pub failure: Option<HostFailure>,
}

/// What the rounds of all shards have cost since the start, for the promise of at most two beat
/// frames per peer and round, and of at most 24 bytes a group (H4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTotals {
    /// Rounds begun, of each shard to each peer.
    pub rounds_total: u64,
    /// Rounds begun for linearizable reads, listing their groups only.
    pub read_rounds_total: u64,
    /// Frames that carried beats, for either kind.
    pub beat_frames_total: u64,
    /// Bytes of the beats with what surrounds them in their frames.
    pub beat_bytes_total: u64,
    /// Groups listed in them. One that hasn't changed is not listed.
    pub beat_groups_total: u64,
    /// Bytes of the listed groups alone.
    pub beat_group_bytes_total: u64,
    /// Shards, each of which has a round of its own to each peer.
    pub shards: u64,
}

impl RoundTotals {
    /// Beat frames per peer and heartbeat interval, all shards together, reads' rounds included;
    /// 0 before the first round.
    #[must_use]
    pub fn frames_per_round(&self) -> f64 {
        ratio(self.beat_frames_total * self.shards, self.rounds_total)
    }

    /// Bytes per listed group; 0 before the first.
    #[must_use]
    pub fn bytes_per_group(&self) -> f64 {
        ratio(self.beat_group_bytes_total, self.beat_groups_total)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn ratio(of: u64, by: u64) -> f64 {
    if by == 0 { 0.0 } else { of as f64 / by as f64 }
}

impl Stats {
    /// What the rounds have cost, all shards together.
    #[must_use]
    pub fn rounds(&self) -> RoundTotals {
        let mut totals = RoundTotals::default();
        for shard in &self.shards {
            let core = &shard.core;
            totals.rounds_total += core.rounds;
            totals.read_rounds_total += core.read_rounds;
            totals.beat_frames_total += core.beat_frames;
            totals.beat_bytes_total += core.beat_bytes;
            totals.beat_groups_total += core.beats_listed;
            totals.beat_group_bytes_total += core.beat_group_bytes;
            totals.shards += 1;
        }
        totals
    }

    /// Whether every group here knows a leader.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.groups.leaderless == 0
    }
}

impl ShardStats {
    pub(crate) fn new(shard: ShardId) -> Self {
        Self {
            shard,
            groups: GroupCounts::default(),
            core: HostStats::default(),
            groups_astray: 0,
            waiting: 0,
            proposals: OutcomeCounts::default(),
            store_pending_bytes: 0,
            stores_held: 0,
            turns: 0,
            control_frames_in: 0,
            bulk_frames_in: 0,
            control_bodies: 0,
            bulk_bodies: 0,
            answers_late: 0,
            frames_bad: 0,
            frames_busy: 0,
            bulk_blocked: 0,
            disk_stalls: 0,
        }
    }
}
