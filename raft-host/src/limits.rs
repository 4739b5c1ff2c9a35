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

/// Entries that compaction must be able to drop before it is worth a record in the log.
pub const COMPACT_ENTRIES_MIN: u64 = 256;

const _: () = assert!(ENTRY_BYTES_MAX + 256 <= BULK_BODY_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_MAX <= UNCOMMITTED_BYTES_MAX);
const _: () = assert!(ENTRY_BYTES_MAX as u64 <= UNCOMMITTED_BYTES_MAX);
