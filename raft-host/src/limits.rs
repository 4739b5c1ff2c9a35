//! The bounds of the host: unit, reason, and what happens at each. Nothing in the crate queues,
//! batches or loops without one of these.
//!
//! Per-group buffers start empty and grow to their bound, so an idle replica pays for none of them.

// --- consensus core ------------------------------------------------------------------------------

/// Groups of one shard. At the bound `open_group` is refused.
pub const GROUPS_PER_SHARD_MAX: usize = 65_536;

/// Members of one group, learners and both halves of a joint configuration included. More voters
/// than seven never pay; the rest is room for a change. At the bound `open_group` is refused.
pub const GROUP_MEMBERS_MAX: usize = 15;

/// Bytes of one entry, command and context together. An entry must fit into one bulk frame with
/// its framing. Beyond it a proposal is refused `TooLarge`, an entry from a peer is a bad body.
pub const ENTRY_BYTES_MAX: usize = 192 * 1024;

/// Bytes of a body on the bulk lane (T1: bulk frames are at most 256 KiB, the header included).
/// `fill_bulk` never makes a longer one.
pub const BULK_BODY_BYTES_MAX: usize = 255 * 1024;

/// The least room `fill_control` and `fill_bulk` work with; below it they make nothing.
pub const BODY_BYTES_MIN: usize = 256;

/// Entries in one append. At the bound an append is split; a longer one from a peer is refused.
pub const APPEND_ENTRIES_MAX: usize = 4096;

/// Single changes in one configuration-change entry: every member leaves and another comes.
pub const CONF_CHANGES_MAX: usize = 2 * GROUP_MEMBERS_MAX;

/// Terms, indexes and ids on the wire stay below this, so that no sum of two overflows. A larger
/// one is a bad body.
pub const NUMBER_MAX: u64 = 1 << 62;

/// Bytes of entries in one append message before Raft starts the next.
pub const APPEND_BYTES_MAX: u64 = 64 * 1024;

/// Appends in flight to one follower of one group. At the bound the follower's stream waits for an
/// ack. 8 bytes each are reserved per follower while the group is busy.
pub const APPENDS_IN_FLIGHT_MAX: usize = 64;

/// Bytes of one group's uncommitted entries. At the bound proposals are refused `Uncommitted`.
pub const UNCOMMITTED_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Entries committed or appended but not yet applied in one group. At the bound a leader refuses
/// proposals as `Unapplied` and a follower takes no newer commit index (stack.md 2, pitfall 6: a
/// campaign reads this whole range at once).
pub const UNAPPLIED_ENTRIES_MAX: u64 = 8192;

/// Bytes of committed entries handed to apply in one turn of one group. More come in the next.
pub const APPLY_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of unfinished proposals of one shard. At the bound proposals are refused `NodeBusy`.
pub const PROPOSAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a proposal costs beside its bytes, so that empty ones are bounded too.
pub const PROPOSAL_OVERHEAD_BYTES: u64 = 256;

/// Waiting proposals of one group. At the bound proposals are refused `TooManyWaiting`.
pub const WAITERS_PER_GROUP_MAX: usize = 16_384;

/// Waiting reads of one group, remote ones included. At the bound reads are refused.
pub const READS_PER_GROUP_MAX: usize = 4096;

/// Proposals of one shard that are on their way to leaders elsewhere, or wait for one to be known.
/// As many as callers may have waiting in the inbox. At the bound they are refused `ForwardsFull`;
/// their bytes count as unfinished proposals.
pub const FORWARDS_MAX: usize = 16_384;

/// How often one proposal is sent to a leader: once more when the first was no longer it, which is
/// proven without effect. At the bound the refusal is the caller's.
pub const FORWARD_ATTEMPTS_MAX: u8 = 2;

/// Proposals of one shard that wait until they are let in. As many as callers may have waiting in
/// the inbox. At the bound they are refused `Backlogged`; their bytes count as unfinished proposals.
pub const DELAYED_PROPOSALS_MAX: usize = 16_384;

/// Tokens of one peer's forwarded proposals that are remembered, so that one that comes twice is
/// proposed once. What is older than all of these is taken for known and has no effect.
pub const FORWARDS_REMEMBERED_MAX: usize = 4096;

/// Bytes of a state machine's answer to a forwarded proposal: what fits into a bulk frame with its
/// framing. Beyond it the forwarder is told that it is too long.
pub const FORWARD_RESULT_BYTES_MAX: usize = ENTRY_BYTES_MAX;

/// Bytes of answers to forwarded proposals that wait for a bulk frame to one peer. At the bound an
/// answer is given up, and the forwarder's caller learns at its deadline that nothing is known.
pub const FORWARD_ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Hand-overs of leadership under way at once in a shard, for the sake of placement: each has a vote
/// and an entry to sync on its way, and its group's proposals wait. At the bound none is begun.
pub const HANDOVERS_AT_ONCE_MAX: usize = 8;

/// Groups looked at for one that may be handed over to a node. At the bound the look ends, and the
/// next one begins behind it.
pub const HANDOVER_LOOKS_MAX: usize = 64;

/// Entries that a replica may lack when a hand-over to it begins: what a busy group has on its way.
/// Beyond it the group isn't handed over yet. Before it is called it lacks nothing.
pub const HANDOVER_LAG_ENTRIES_MAX: u64 = 256;

/// Bytes that wait for this node's disk, or for the link to that node, beyond which no group is
/// handed over: something is being caught up.
pub const HANDOVER_BACKLOG_BYTES_MAX: u64 = 1024 * 1024;

/// Proposals of one shard that wait for hand-overs. As many as callers may have waiting in the
/// inbox. At the bound they are refused `Transferring`; their bytes count as unfinished proposals.
pub const HANDOVER_HELD_MAX: usize = 16_384;

/// A peer that is lost sooner after its return is unsteady. From the second time in a row on it must
/// be there for twice as long before it is handed anything. Ten times a start with its catching up.
pub const PEER_STEADY_AFTER: std::time::Duration = std::time::Duration::from_secs(30);

/// A hand-over is undone if the group is led here again within this time: it then stays for twice
/// as long. Longer than the longest wait (32 election timeouts) makes it by default.
pub const HANDOVER_UNDONE_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);

/// How often a wait is doubled at most.
pub const DOUBLINGS_MAX: u32 = 5;

/// Bytes handed to the log and not yet durable, per shard. At the bound bulk frames are refused
/// `Busy`, so that a slow disk holds back its senders and no memory.
pub const STORE_PENDING_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bytes of appends that wait for a bulk frame to one peer. At the bound further appends are not
/// queued and their follower is reported unreachable, which makes Raft probe it.
pub const BULK_QUEUE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Unmerged acks of one group to one peer. Rejections don't merge; at the bound the oldest goes,
/// as if the network had lost it.
pub const ACKS_PER_GROUP_MAX: usize = 32;

/// Votes, answers to votes and other small messages that wait for a control frame to one peer: two
/// for each group. At the bound the oldest goes, as if the network had lost it.
pub const URGENT_PER_PEER_MAX: usize = 2 * GROUPS_PER_SHARD_MAX;

/// Round answers that wait for a control frame to one peer. At the bound the oldest goes; its
/// sender states its groups anew.
pub const ANSWERS_PER_PEER_MAX: usize = 64;

/// Covering rounds to one peer whose answers may still count. At the bound the oldest is given up.
pub const ROUNDS_IN_FLIGHT_MAX: usize = 16;

/// Parts of one round: frames it is cut into when it doesn't fit one.
pub const ROUND_PARTS_MAX: u32 = 4096;

/// Bytes a group takes in a round, in the reference shape and far beyond it: group numbers less
/// than 16,384 apart (2), replica numbers below 2^21 (3 + 3), terms below 2^28 (4), indexes below
/// 2^49 (7), retention lag below 2^28 (4).
pub const BEAT_BYTES_MAX: usize = 24;

/// Entries that compaction must be able to drop before it is worth a record in the log. One, while
/// the log's room is low: 256 long entries in each of many groups would fill it for good.
pub const COMPACT_ENTRIES_MIN: u64 = 256;

/// The log's room counts as low below this share of what its cap leaves to entries (1/4): every group
/// compacts what it can, and state machines are asked to become durable where that is in the way.
pub const LOG_ROOM_LOW_DIVISOR: u64 = 4;

/// Below this share (1/16) proposals are refused `LogRetainedBytes`. What is left is for entries of
/// other leaders that were proposed before their nodes refused as well.
pub const LOG_ROOM_SPENT_DIVISOR: u64 = 16;

const _: () = assert!(ENTRY_BYTES_MAX + 256 <= BULK_BODY_BYTES_MAX);
const _: () = assert!(FORWARD_RESULT_BYTES_MAX + 256 <= BULK_BODY_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_MAX <= UNCOMMITTED_BYTES_MAX);
const _: () = assert!(ENTRY_BYTES_MAX as u64 <= UNCOMMITTED_BYTES_MAX);

// --- log ----------------------------------------------------------------------------------------

/// Bytes of the smallest segment: what a start with a few listed segments and one batch take. A
/// smaller one is refused in the configuration.
pub const LOG_SEGMENT_BYTES_MIN: u64 = 16 * 1024;
/// Bytes of the largest segment: a place within it fits in 32 bits and recovery reads a segment at
/// once. A larger one is refused in the configuration.
pub const LOG_SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Bytes of a segment by default: at 5 MB/s a new one every 13 s, so the two syncs of a change of
/// segment don't show.
pub const LOG_SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of all segments by default, beyond which entries are refused by name (`CapReached`).
pub const LOG_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// Segments the cap must allow at least: one being written, one being emptied, two in reserve.
pub const LOG_SEGMENTS_MIN: u64 = 6;
/// Segments that can be listed: 8 bytes each in a segment's start. A cap above it is refused in
/// the configuration.
pub const LOG_SEGMENTS_MAX: u64 = 8192;
/// Segments kept back from entries, so that hard states, compactions and rewrites still have room
/// when the cap is reached.
pub const LOG_SEGMENTS_RESERVED: u64 = 2;
/// A batch takes at most this share of a segment (1/4) ...
pub const LOG_BATCH_SEGMENT_DIVISOR: u64 = 4;
/// ... and at most these bytes: about 20 ms of disk. What doesn't fit waits for the next batch; one
/// submission that doesn't fit is refused (`TooLarge`).
pub const LOG_BATCH_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Bytes that may wait for the disk, over all shards: some 300 ms of it. Beyond, a submission is
/// refused (`Busy`).
pub const LOG_QUEUE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of rewritten records in one batch: 1 ms of disk, so that they don't show in latency.
pub const LOG_REWRITE_BYTES_PER_BATCH: u64 = 256 * 1024;
/// Rewritten records in one batch, for the same reason. The rest waits for the next batch.
pub const LOG_REWRITE_RECORDS_PER_BATCH: usize = 2048;
/// Hard states in one batch when commit indexes are brought back at open; more take more batches.
pub const LOG_CLAMPED_PER_BATCH: usize = 64;
/// Segments in use below which nothing is rewritten: it would only wear the disk.
pub const LOG_REWRITE_SEGMENTS_MIN: usize = 4;
/// A segment is emptied once its live bytes fall to this share, in percent: each freed byte then
/// costs at most a third of a written one.
pub const LOG_REWRITE_LIVE_PERCENT: u64 = 25;
/// The same when the cap is near: up to three written bytes for a freed one.
pub const LOG_REWRITE_LIVE_PERCENT_PRESSED: u64 = 75;
/// Free segment files kept for the next start; more are removed.
pub const LOG_SPARES_MAX: usize = 2;
/// Bytes of zeros in one write when a segment is made.
pub const LOG_ZERO_CHUNK_BYTES: usize = 1024 * 1024;
/// Bytes of entries kept in memory over all groups by default. Beyond it a group that appends
/// drops its oldest durable ones; they are read back from the segments.
pub const LOG_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of entries one group keeps at most, so that a hot group doesn't take all: a follower
/// that is less behind is served from memory.
pub const LOG_CACHE_GROUP_BYTES: u64 = 1024 * 1024;
/// Bytes of one entry when memory is counted, beside its data and context.
pub const LOG_CACHE_ENTRY_BYTES: u64 = 96;

const _: () = assert!(LOG_SEGMENT_BYTES_MIN <= LOG_SEGMENT_BYTES);
const _: () = assert!(LOG_SEGMENT_BYTES <= LOG_SEGMENT_BYTES_MAX);
const _: () = assert!(LOG_SEGMENTS_RESERVED < LOG_SEGMENTS_MIN);
const _: () = assert!(LOG_BYTES_MAX / LOG_SEGMENT_BYTES <= LOG_SEGMENTS_MAX);
const _: () = assert!(LOG_REWRITE_BYTES_PER_BATCH < LOG_BATCH_BYTES_MAX);

const _: () =
    assert!(LOG_CLAMPED_PER_BATCH as u64 * 64 <= LOG_SEGMENT_BYTES_MIN / LOG_BATCH_SEGMENT_DIVISOR);

// --- shell --------------------------------------------------------------------------------------

/// Bytes of control frames that wait for one shard. A window of 16 frames of 64 KiB from each of
/// four peers. At the bound a frame is refused `Busy`.
pub const INBOX_CONTROL_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Bytes of bulk frames that wait for one shard, two default windows. At the bound a frame is
/// refused `Busy`; its appends are sent again by Raft.
pub const INBOX_BULK_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// What a frame costs in an inbox beside its bytes.
pub const INBOX_FRAME_BYTES: u64 = 128;

/// Proposals of callers that no worker has begun, on the whole node. At the bound one is refused
/// `InboxFull`.
pub const LINE_MAX: usize = 16_384;

/// Proposals that a worker hands off before other tasks on its thread have their turn.
pub const WORKER_STEPS_MAX: usize = 64;

/// The most workers that may be configured: each costs a task, and waits for one proposal at a time.
pub const WORKERS_MAX: u16 = 1024;

/// Repetitions of one request that wait for the first. At the bound one is refused `TooManyWaiting`.
pub const JOINED_MAX: usize = 1024;

/// Requests of callers that wait for one shard. At the bound one is refused `InboxFull`.
pub const INBOX_REQUESTS_MAX: usize = 16_384;

/// Bytes of bulk frames that one shard has on its way to one peer, waiting in the transport
/// included: four default windows. At the bound appends wait in the core, where they can be
/// dropped when the link is lost.
pub const BULK_ON_THE_WAY_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Shards of one node. At the bound the configuration is refused.
pub const SHARDS_MAX: u16 = 256;

/// Apply workers of one node. At the bound the configuration is refused.
pub const APPLY_WORKERS_MAX: u16 = 256;

/// Entries in one call of a state machine. More come in the next.
pub const APPLY_ENTRIES_MAX: usize = 1024;

/// Entries applied since the state machine was last asked to become durable. At the bound it is
/// asked again.
pub const FLUSH_AFTER_ENTRIES: u64 = 4096;

/// Bytes of a request id. Room for a UUID with a prefix. A longer one is refused.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// How long the reply to a control frame may wait for the shards that step its items (safety 16):
/// twice what a shard takes for a batch of 1,500 groups. At the bound the reply leaves, and the
/// shard's answer follows in a control frame.
pub const ANSWER_BUDGET: std::time::Duration = std::time::Duration::from_millis(1);

/// How long appends may wait for room and for their reply before they end as lost, which makes
/// Raft probe the follower. Longer than a full bulk window takes at 20 Mbit/s.
pub const BULK_DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);

/// How long a read that found no leader waits before it asks again: a hand-over takes some
/// milliseconds. Each further wait is twice as long ...
pub const READ_PAUSE_MIN: std::time::Duration = std::time::Duration::from_millis(2);

/// ... up to this one, a twentieth of an election.
pub const READ_PAUSE_MAX: std::time::Duration = std::time::Duration::from_millis(50);

/// How much before a forwarded proposal's deadline its leader says that it lacks acks, so that the
/// word gets there in time: a few round trips of a busy pair. At most a quarter of the time there is.
pub const FORWARD_ANSWER_LEAD: std::time::Duration = std::time::Duration::from_millis(100);

/// How much longer than its deadline a caller waits for its shard to answer: two ticks of a busy
/// node. At the bound the caller answers itself, as the shard would have at the deadline.
pub const CALLER_GRACE: std::time::Duration = std::time::Duration::from_millis(200);

/// How often what was seen of the peers is written down, while nothing but their logs' progress
/// changes: one small file and two syncs. A directory that was put back by less than this and
/// [`transport::limits::CONFIRM_INTERVAL`] before this node was killed can't be told from a good one.
pub const PEERS_STORE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

/// The last millisecond since 1970 that a time here can name: 48 bits, as in UUIDv7.
pub const UNIX_MILLIS_MAX: u64 = (1 << 48) - 1;

/// How far a leader's wall clock may run ahead of its monotonic clock since the group's time was last
/// seen. A larger jump is cut to this, so that it can't expire what is kept for a time.
pub const GROUP_TIME_JUMP_MAX: std::time::Duration = std::time::Duration::from_secs(5);
