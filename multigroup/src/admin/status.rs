//! What a node says of itself. The names of the fields are those of the JSON, and a contract with
//! scripts: they may grow, and what is here keeps its name and meaning.

use std::borrow::Cow;
use std::future::Future;

use raft_host::id::GroupId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::exposition::Exposition;
use crate::store::StoreError;

/// The schema of [`Status`].
pub const STATUS_SCHEMA: &str = "multigroup.status/1";

/// Answers for a node.
pub trait StatusSource: Send + Sync + 'static {
    /// How the node stands: one consistent snapshot, so that each lane's account adds up in it.
    /// Must not wait for anything.
    fn status(&self) -> Status;

    /// Whether the process works at all; if not, it wants to be restarted.
    ///
    /// # Errors
    /// Why not.
    fn health(&self) -> Result<(), Unfit>;

    /// Whether clients may be sent to it.
    ///
    /// # Errors
    /// Why not, or not yet.
    fn readiness(&self) -> Result<(), Unfit>;

    /// The groups after one, in order of their numbers, at most `limit`.
    fn groups(
        &self,
        after: Option<GroupId>,
        limit: usize,
    ) -> impl Future<Output = Vec<GroupStatus>> + Send;

    /// What its replica of a group holds. It reads a whole database, so not on this task.
    fn replica(
        &self,
        group: GroupId,
    ) -> impl Future<Output = Result<ReplicaState, ReplicaFault>> + Send;

    /// Changes a setting of the running node, until it stops, and says what that came to.
    ///
    /// # Errors
    /// [`SettingFault`]; nothing is changed then.
    fn set(&self, key: &str, value: &str) -> Result<String, SettingFault>;

    /// Adds families that the status doesn't have, such as distributions.
    fn add_metrics(&self, _out: &mut Exposition) {}
}

/// Why a node isn't healthy or not ready.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Unfit {
    /// For people.
    pub reason: Cow<'static, str>,
}

/// Why a setting wasn't changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingFault {
    /// There is no such key.
    #[error("{0}")]
    Unknown(String),
    /// Only a start reads it.
    #[error(
        "`{key}` needs a restart: change it in the node's config.toml and restart the node; \
             {LIVE_SETTINGS} can be set while it runs"
    )]
    NeedsRestart {
        /// The key.
        key: String,
    },
    /// The value can't be.
    #[error("`{key}` is `{value}`, but must be {must}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What it must be.
        must: &'static str,
    },
    /// The node is starting or stopping.
    #[error("the node isn't running now; try again when it is ready")]
    NotRunning,
}

/// What can be set while a node runs.
pub const LIVE_SETTINGS: &str =
    "commit_wait.enabled, commit_wait.max_outstanding and transport.control_window_frames";

/// `GET /status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS_SCHEMA`].
    pub schema: Cow<'static, str>,
    /// The node's number.
    pub node: u64,
    /// Its cluster.
    pub cluster: String,
    /// Its data directory.
    pub incarnation: String,
    /// Whether clients may be sent to it.
    pub ready: bool,
    /// Its replicas.
    pub groups: GroupCounts,
    /// The lanes towards each peer.
    pub peers: Vec<PeerStatus>,
    /// Replies that wait for more than the quorum.
    pub commit_wait: CommitWaitStatus,
    /// The shared log.
    pub log: LogStatus,
    /// The archive; none if it is off.
    pub archive: Option<ArchiveStatus>,
    /// Its certificate.
    pub tls: TlsStatus,
    /// The heartbeats that it sent.
    #[serde(default)]
    pub rounds: RoundStatus,
    /// What was proposed here.
    #[serde(default)]
    pub proposals: ProposalStatus,
    /// Leaders that were handed to the nodes they are to be at.
    #[serde(default)]
    pub handovers: HandoverStatus,
    /// Why it can't go on, if it can't.
    #[serde(default)]
    pub failure: Option<String>,
}

/// Heartbeats as their sender, over all peers and shards. A round is one shard's batch of beats to
/// one peer; what it costs is `beat_group_bytes_total` by `beats_listed_total` bytes a group, and
/// `beat_frames_total` by `rounds_total` frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundStatus {
    /// Threads that own groups, and so rounds a peer and interval.
    pub shards: u64,
    /// From round to round.
    pub heartbeat_interval_ms: u64,
    /// Rounds begun that cover groups.
    pub rounds_total: u64,
    /// Rounds begun for reads that wait.
    pub read_rounds_total: u64,
    /// Frames that carried beats.
    pub beat_frames_total: u64,
    /// Groups listed in them.
    pub beats_listed_total: u64,
    /// Bytes of the beats and of what surrounds them in their frames.
    pub beat_bytes_total: u64,
    /// Of these, the bytes of the groups alone.
    pub beat_group_bytes_total: u64,
    /// Rounds whose receiver asked for all groups anew.
    pub restated_total: u64,
    /// Groups that disagreed with a round.
    pub dissents_total: u64,
    /// Campaigns begun here.
    pub campaigns_total: u64,
    /// Times that a replica here became its group's leader.
    pub elected_total: u64,
}

/// Leadership that is handed over on purpose: to the node that a group's leader should be at, or on
/// request. Begun are those that finished, those that failed and those under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandoverStatus {
    /// Groups led here now that another node should lead.
    pub groups_astray: u64,
    /// Begun here.
    pub begun_total: u64,
    /// After which the replica they were for led.
    pub finished_total: u64,
    /// Given up, or after which another replica led.
    pub failed_total: u64,
    /// Taken over here from other nodes.
    pub taken_total: u64,
    /// Proposals that waited for one.
    pub proposals_held_total: u64,
}

/// Commands that were proposed at this node, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProposalStatus {
    /// Proposals and linearizable reads that wait now.
    pub waiting: u64,
    /// Committed and applied.
    pub committed_total: u64,
    /// Proven without effect.
    pub refused_total: u64,
    /// Of unknown fate.
    pub unknown_total: u64,
    /// Sent on to leaders elsewhere, repetitions included.
    pub forwards_sent_total: u64,
    /// Of these nodes' proposals, taken here as their leader.
    pub forwards_taken_total: u64,
    /// Held because no leader was known, or in reach.
    pub forwards_held_total: u64,
}

/// How many groups are in which state here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// All.
    pub total: u64,
    /// Led by this node.
    pub leading: u64,
    /// Led by another.
    pub following: u64,
    /// Of all, those that sleep.
    pub sleeping: u64,
    /// Of all, those whose leader isn't known here.
    pub leaderless: u64,
    /// Changes of any group's leader, as seen here.
    pub leader_changes_total: u64,
}

/// How far a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneState {
    /// It waits to dial again.
    Down,
    /// A connection is being made.
    Connecting,
    /// Frames may go.
    Up,
    /// The peer may not be spoken to.
    Revoked,
    /// The transport has shut down.
    Closed,
}

/// One lane towards one peer, over all its sessions.
///
/// The window counts frames (`window`, `outstanding`, `frames_begun`, `frames_answered`). A receipt
/// is for one item, of which a frame holds many: `frames_started` and what follows count items by
/// their receipts, and started = queued + writing + outstanding + all ends (see [`Self::is_exact`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The peer.
    pub peer: u64,
    /// `control` or `bulk`.
    pub lane: String,
    /// How far it is.
    pub state: LaneState,
    /// The session of the moment.
    pub session: Option<String>,
    /// The peer's data directory.
    pub incarnation: Option<String>,
    /// The serial number of the peer's certificate on that session, in hex.
    #[serde(default)]
    pub cert_serial: Option<String>,
    /// The agreed control window in frames; 0 without a session and on bulk.
    pub window: u64,
    /// Frames of the window that are begun and not answered.
    pub outstanding: u64,
    /// From the beginning of a frame to its reply, smoothed over the session's latest replies; none
    /// before the session's first.
    pub rtt_us: Option<u64>,
    /// How long ago the peer last answered, on whichever session; none before the first answer.
    pub last_reply_age_ms: Option<u64>,
    /// Frames begun.
    pub frames_begun: u64,
    /// Of these, answered.
    pub frames_answered: u64,
    /// Items sent.
    pub frames_started: u64,
    /// Of these, waiting for a slot.
    pub frames_queued: u64,
    /// Of these, begun and not wholly with the socket.
    pub frames_writing: u64,
    /// Of these, written and unanswered.
    pub frames_outstanding: u64,
    /// Of these, ended by a reply.
    pub frames_replied: u64,
    /// Of these, refused by the peer.
    pub frames_refused: u64,
    /// Of these, ended by their deadline.
    pub frames_expired: u64,
    /// Of these, revoked.
    pub frames_revoked: u64,
    /// Of these, replaced by a newer one.
    pub frames_superseded: u64,
    /// Of these, lost with their session.
    pub frames_lost: u64,
    /// Of these, ended by the shutdown.
    pub frames_shut_down: u64,
    /// Items that hold a part of the budget.
    pub reserved_items: u64,
    /// Bytes that hold a part of the budget.
    pub reserved_bytes: u64,
    /// Of these items, reserved and not sent.
    pub unused_items: u64,
    /// Of these bytes, reserved and not sent.
    pub unused_bytes: u64,
    /// Bytes handed to TLS.
    pub bytes_sent: u64,
    /// From an item's arrival to the beginning of its frame.
    pub queue_delay_us: DelayStatus,
    /// From the beginning of a frame to its reply.
    pub turnaround_us: DelayStatus,
    /// Frames outstanding, counted at the beginning of each frame and with it.
    pub window_occupancy: OccupancyStatus,
    /// Why frames were begun when they were.
    pub flushes: FlushCounts,
}

/// A distribution of delays in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayStatus {
    /// Its mean.
    pub mean: u64,
    /// 99 of 100 are no longer.
    pub p99: u64,
    /// All of them together.
    #[serde(default)]
    pub sum: u64,
    /// How many there are of each size, by its longest; by these the distribution between two looks
    /// can be found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<(u64, u64)>,
}

/// A distribution of the number of outstanding frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OccupancyStatus {
    /// Its mean, in hundredths of a frame.
    pub mean_hundredths: u64,
    /// Half of the counts are no higher.
    pub p50: u16,
    /// 99 of 100 are no higher.
    pub p99: u16,
    /// The highest.
    pub max: u16,
}

/// Why frames were begun when they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushCounts {
    /// A reply had freed the slot that something waited for.
    pub slot_freed: u64,
    /// Of all, frames that took no more because they were full.
    pub frame_full: u64,
    /// Something had waited long enough with a slot free. A lane that never holds anything back
    /// while a slot is free has none.
    pub deadline: u64,
    /// A slot was free when it came.
    pub urgent: u64,
}

/// Commits that wait for their acks while no worker does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommitWaitStatus {
    /// Whether commits are handed off.
    pub enabled: bool,
    /// How many may be at once.
    pub cap: u64,
    /// How many are, places reserved for them included.
    pub outstanding: u64,
    /// Handed off.
    pub enqueued_total: u64,
    /// Waited for by a worker itself: the three that follow.
    pub inline_total: u64,
    /// ... since nothing was handed off.
    pub inline_off_total: u64,
    /// ... since the cap was reached.
    pub inline_full_total: u64,
    /// ... since the policy asks for it.
    pub inline_policy_total: u64,
    /// Handed off, and ended with a result.
    pub committed_total: u64,
    /// Handed off, and proven without effect.
    pub refused_total: u64,
    /// Handed off, and of unknown fate, by whatever cause.
    pub unknown_total: u64,
    /// Those of unknown fate whose deadline passed.
    pub expired_total: u64,
    /// Repetitions that waited for the first under their request id.
    pub joined_total: u64,
    /// Given up by their clients before a worker began them.
    pub withdrawn_total: u64,
    /// Turned away before they were begun.
    pub turned_away_total: u64,
    /// The workers.
    pub workers: u64,
    /// Those that wait for a commit now.
    pub workers_held: u64,
    /// Times that a worker looked for something to begin.
    pub worker_wakeups_total: u64,
    /// Times that a group's waiting commits were gone through since more was applied.
    pub passes_total: u64,
    /// Commits looked at in them.
    pub looked_at_total: u64,
    /// Turns of the threads that own groups.
    pub shard_turns_total: u64,
    /// Commands that no worker has begun.
    pub line: u64,
    /// From a command's arrival until a worker began it.
    pub queued_us: DelayStatus,
    /// From the hand-off until the reply.
    pub reply_us: DelayStatus,
}

/// Whether the log's disk takes what it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskHealth {
    /// It does.
    #[default]
    Ok,
    /// It has no room.
    Full,
    /// It failed; nothing is acknowledged any more.
    Failed,
}

/// The shared log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// How long the last sync took.
    pub last_sync_us: u64,
    /// Bytes that no sync covers yet.
    pub unsynced_bytes: u64,
    /// The disk.
    pub disk: DiskHealth,
}

/// Whether the archive takes what is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveState {
    /// It does, or has not been asked yet.
    #[default]
    Ok,
    /// The last try failed; it is tried again.
    Failing,
    /// What was begun there isn't there any more; nothing is published until it is back.
    Gone,
    /// It isn't this cluster's; nothing is published.
    Foreign,
}

/// The archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveStatus {
    /// Whether it takes what is published; why not is in `failing`.
    #[serde(default)]
    pub state: ArchiveState,
    /// Groups of which all is there.
    pub groups_current: u64,
    /// Bytes that aren't.
    pub lag_bytes: u64,
    /// How long ago something was published.
    pub last_publish_age_ms: u64,
    /// Whether writes to the groups led here wait, or are refused, because too much lags.
    #[serde(default)]
    pub writes_held: bool,
    /// Objects that this node has published since it started.
    #[serde(default)]
    pub objects_total: u64,
    /// Their bytes.
    #[serde(default)]
    pub bytes_total: u64,
    /// Tries that the object store failed.
    #[serde(default)]
    pub failures_total: u64,
    /// Why the last try failed, until one succeeds.
    #[serde(default)]
    pub failing: Option<String>,
    /// Groups for which nothing more is published, since archive and log contradict each other.
    #[serde(default)]
    pub groups_stopped: u64,
    /// The first of them, and why.
    #[serde(default)]
    pub first_stopped: Option<String>,
}

/// The node's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsStatus {
    /// When it lapses, as in RFC 3339.
    pub cert_not_after: String,
    /// Its serial number, in hex.
    #[serde(default)]
    pub cert_serial: String,
    /// The age of the revocation list; none if there is none.
    pub crl_age_s: Option<u64>,
    /// Changes of the files that were taken over since the start.
    #[serde(default)]
    pub reloads_total: u64,
    /// Changes of the files that couldn't be used.
    #[serde(default)]
    pub reloads_refused_total: u64,
    /// Why the files can't be used as they are now; what was loaded before stays in use.
    #[serde(default)]
    pub reload_fault: Option<String>,
}

/// What a replica is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupRole {
    /// It leads.
    Leader,
    /// It follows.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It follows and has no vote.
    Learner,
}

/// One group, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The group.
    pub group: u64,
    /// What this node is in it.
    pub role: GroupRole,
    /// The node that leads it, if that is known here.
    pub leader: Option<u64>,
    /// Its term.
    pub term: u64,
    /// The last entry known to be committed.
    pub commit_index: u64,
    /// The last entry in the database.
    pub applied_index: u64,
    /// Whether it sleeps.
    pub sleeping: bool,
    /// The last entry up to which it is archived, as far as this node has seen; none if the archive
    /// is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_index: Option<u64>,
}

/// `GET /groups`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPage {
    /// `multigroup.groups/1`.
    pub schema: Cow<'static, str>,
    /// One page of them.
    pub groups: Vec<GroupStatus>,
    /// The last of them, if more may follow: the next page's `after`.
    pub next_after: Option<u64>,
}

/// `GET /replica`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaState {
    /// The last entry in the database.
    pub applied_index: u64,
    /// SHA-256 of all rows in the order of their keys, in hexadecimal.
    pub digest: String,
    /// Rows.
    pub rows: u64,
}

/// Why a replica can't be told of.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplicaFault {
    /// There is no such group here.
    #[error("this node has no replica of group {group}")]
    Absent {
        /// The group.
        group: GroupId,
    },
    /// Not now.
    #[error("the replica of group {group} can't be read now: {reason}")]
    Unavailable {
        /// The group.
        group: GroupId,
        /// Why.
        reason: Cow<'static, str>,
    },
    /// Its database failed.
    #[error("the replica of group {group} can't be read")]
    Store {
        /// The group.
        group: GroupId,
        /// How.
        source: StoreError,
    },
}
