//! Every bound of the store, its front and its codecs: the unit, why this number, and what happens
//! at the bound. Bounds that an operator may set are in `config.rs`; these are part of the program,
//! and those marked *replicated* are part of the log's meaning: replicas that disagreed on one
//! would apply the same log to different ends, so a change of it is a new `ENTRY_VERSION`.

use std::time::Duration;

/// Bytes of one key. *Replicated.* Keys are kept in inner pages of a B-tree, where long ones cost
/// fan-out. A longer key is refused by name.
pub const KEY_BYTES_MAX: usize = 8 * 1024;

/// Bytes of one value. *Replicated.* A value is rewritten as a whole and travels in one log entry.
/// A longer one is refused by name; an `APPEND` that would pass it fails and changes nothing.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Arguments of one request, its name included. Redis allows a million; what passes this in one
/// request would be one log entry. At the bound the session is closed with a protocol error.
pub const REQUEST_ARGS_MAX: usize = 16 * 1024;

/// Bytes of one request on the wire, headers included: the most that a session's read buffer
/// grows to. At the bound the session is closed with a protocol error.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of one inline request or of one header line, as in Redis. At the bound the session is
/// closed with a protocol error.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// Digits (and sign) of a length in a header; more can only be an attack or noise.
pub const LENGTH_DIGITS_MAX: usize = 20;

/// Operations of one transaction. *Replicated.* It is applied in one go and its reply is one
/// array. One more marks the transaction as failed.
pub const TRANSACTION_OPS_MAX: usize = 1024;

/// Bytes of one command in the log. *Replicated.* A larger one is refused by name before it is
/// proposed, and one that arrives in the log is not decoded.
pub const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;
const _: () = assert!(REQUEST_BYTES_MAX + KEY_BYTES_MAX < ENTRY_BYTES_MAX);
const _: () = assert!(VALUE_BYTES_MAX < REQUEST_BYTES_MAX);

/// Bytes of one encoded outcome. An `MGET` can name one large value many times; beyond the bound
/// the reply is an error that says so, and nothing of it is sent.
pub const OUTCOME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Arrays within arrays of one outcome: `MGET` within a transaction is two.
pub const OUTCOME_DEPTH_MAX: usize = 3;

/// Bytes of a request id's text. A UUID takes 36. A longer one is refused by name.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// The latest issue time that an id may name, in milliseconds since 1970: 48 bits, as in UUIDv7.
pub use raft_host::limits::UNIX_MILLIS_MAX;

/// Saved outcomes of one group. *Replicated.* About 120 bytes each, so 120 MB of the group's file.
/// At the bound an id not yet known is refused by name until old ones leave the window; none is
/// ever evicted inside it.
pub const SAVED_OUTCOMES_MAX: u64 = 1_000_000;

/// Expired outcomes deleted by one entry with a request id. *Replicated.* Two or more, so that the
/// table shrinks under any load; few, so that no apply stalls after a long idle time.
pub const EXPIRED_PER_ENTRY_MAX: u32 = 16;
const _: () = assert!(EXPIRED_PER_ENTRY_MAX >= 2);

/// How far ahead of group time an id's issue time may lie. *Replicated.* Wide enough for a badly
/// set client clock; ids from further ahead would fill the table for as long, and are refused.
pub const ID_AHEAD_MAX: Duration = Duration::from_secs(300);

/// The longest dedup window, so that it fits the entry's 32-bit field and no record is immortal.
pub const DEDUP_WINDOW_MAX: Duration = Duration::from_secs(24 * 3600);
const _: () = assert!(DEDUP_WINDOW_MAX.as_secs() * 1000 < u32::MAX as u64);

/// Groups of a cluster: the key hash has 16 bits, so no key would ever map to one more.
pub const GROUPS_MAX: u32 = 65_536;

/// Nodes of a cluster. Each node dials each other; beyond this the meshes of links and of voters
/// want another design.
pub const NODES_MAX: usize = 64;

/// Open databases of one node, unless the embedder says otherwise. Each is 3 file descriptors and
/// up to about 184 KiB. One more closes the one longest unused; if all are in use, it is opened
/// all the same and closed again at the first chance.
pub const OPEN_HANDLES_MAX: usize = 2048;

/// Prepared statements kept by one open database: all that the store has, so none is ever
/// prepared twice.
pub const STATEMENTS_MAX: usize = 32;

/// SQLite page cache of one open database. Many small databases share one node's memory.
pub const PAGE_CACHE_KIB: i64 = 256;

/// Pages in a write-ahead log before SQLite moves them by itself, within a commit: 16 MiB. The
/// host checkpoints much sooner and off the apply path; this holds the file when it can't.
pub const WAL_PAGES_MAX: u32 = 4096;

/// Batches applied to a group since its last whole checkpoint from which on one is due.
pub const CHECKPOINT_BATCHES: u64 = 512;

/// How long a statement waits for another process's lock on the file. The node is the only writer;
/// a person with a shell may hold it for a moment. Then the apply fails by name.
pub const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Client sessions of one node. One more is answered with an error and closed.
pub const SESSIONS_MAX: usize = 10_000;

/// Requests of one session that were handed on and not yet answered. At the bound its socket is
/// not read until one is answered.
pub const SESSION_IN_FLIGHT_MAX: usize = 64;

/// Reply bytes of one session that wait for its socket. At the bound no reply is taken from the
/// session's queue and no request read: a client that doesn't read stalls itself alone.
pub const SESSION_UNSENT_BYTES_MAX: usize = 256 * 1024;

/// Bytes taken from a session's socket at once.
pub const SESSION_READ_BYTES: usize = 16 * 1024;

/// How long sessions have at shutdown to get the answers they are owed. Then they are closed.
pub const SESSION_DRAIN: Duration = Duration::from_secs(10);

/// The pause after a failed accept: descriptors are used up, and come back as sessions end.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bytes of a client's name as set by `CLIENT SETNAME`.
pub const CLIENT_NAME_BYTES_MAX: usize = 256;

/// Bytes of one reply that a client of ours takes: the largest value, with room for its headers. At
/// the bound the connection is given up as broken.
pub const ANSWER_BYTES_MAX: usize = 2 * 1024 * 1024;
const _: () = assert!(VALUE_BYTES_MAX + LINE_BYTES_MAX < ANSWER_BYTES_MAX);

/// Items of one array in a reply, and arrays within arrays, that a client of ours takes. At either
/// bound the connection is given up as broken.
pub const ANSWER_ITEMS_MAX: usize = 16 * 1024;
/// See [`ANSWER_ITEMS_MAX`].
pub const ANSWER_DEPTH_MAX: usize = 4;

/// Writers of one load run. Each holds a connection to every node that it went to, so this keeps
/// three nodes' worth below the usual 20,000 descriptors. More are refused as bad usage.
pub const LOAD_WRITERS_MAX: usize = 4096;

/// Keys of one load run, each about 100 bytes and a ledger line. More are refused as bad usage.
pub const LOAD_KEYS_MAX: usize = 1_000_000;

/// Windows of one load run, each with a histogram of up to 200 KiB. More are refused as bad usage.
pub const LOAD_WINDOWS_MAX: usize = 256;

/// The longest load run; a longer one is refused as bad usage.
pub const LOAD_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The least length of a value that `load` sets: it holds a token that no other write has.
pub const LOAD_VALUE_BYTES_MIN: usize = 16;

/// Bytes of a value that `load` sets, at most: 4 KiB are left of an entry for the key and for what an
/// entry has besides. A longer one is refused before the run, since every write of it would be.
pub const LOAD_VALUE_BYTES_MAX: usize = raft_host::limits::ENTRY_BYTES_MAX - 4096;
const _: () = assert!(LOAD_VALUE_BYTES_MAX < VALUE_BYTES_MAX);

/// The longest latency that is told apart; a longer one is recorded as this.
pub const LOAD_LATENCY_MAX: Duration = Duration::from_secs(3600);

/// How long a load writer waits after operations failed at each of its nodes in a row, so that it
/// doesn't turn a cluster that refuses at once into millions of failures a minute.
pub const LOAD_FAILURE_PAUSE: Duration = Duration::from_millis(20);

/// Requests that `load` sends at once while it creates its keys: fewer than a session takes.
pub const LOAD_PIPELINE: usize = 32;
const _: () = assert!(LOAD_PIPELINE <= SESSION_IN_FLIGHT_MAX);

/// Keys that `load` creates before it says how far it is: a pipeline for each of three nodes.
pub const LOAD_PREPARE_KEYS: usize = 3 * LOAD_PIPELINE;

/// How long `load` goes on creating keys without one success. Then the run fails by name.
pub const LOAD_PREPARE_PATIENCE: Duration = Duration::from_secs(30);

/// Connections to the admin port. At the bound no more are accepted until one ends.
pub const ADMIN_CONNECTIONS_MAX: usize = 128;

/// How long an admin connection may take to send a request's head, which is also how long it may
/// stay idle. Then it is closed.
pub const ADMIN_HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// The longest life of an admin connection, for clients that don't read. Then it is closed after
/// [`ADMIN_DRAIN`].
pub const ADMIN_CONNECTION_TIME: Duration = Duration::from_secs(300);

/// How long an admin connection has to finish at shutdown. Then it is cut off.
pub const ADMIN_DRAIN: Duration = Duration::from_secs(2);

/// Bytes of one admin request's head: no path or query of ours is near it. A longer one is answered
/// with an error and closed.
pub const ADMIN_HEAD_BYTES_MAX: usize = 16 * 1024;

/// Replicas that are being digested at once for the admin port; each reads a whole database. More
/// requests wait in turn.
pub const ADMIN_DIGESTS_MAX: usize = 4;

/// Groups of one page of `/groups`, at most and by default. A larger page is refused by name.
pub const GROUPS_PAGE_MAX: usize = 1000;
/// See [`GROUPS_PAGE_MAX`].
pub const GROUPS_PAGE_DEFAULT: usize = 100;
const _: () = assert!(GROUPS_PAGE_DEFAULT <= GROUPS_PAGE_MAX);

/// Bytes of one admin answer that a client of ours takes: a page of groups or a status with
/// [`NODES_MAX`] peers is far below. At the bound the answer is given up.
pub const ADMIN_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Files of one open database: itself and its write-ahead log, once for the connection that applies
/// and once for the one that reads, and the index that both share.
pub const DATABASE_FILES: u64 = 5;

/// Open files that a node keeps for all else: the log's segments, links, listeners, and a few
/// hundred sessions. Where the system allows no more, further clients wait to be accepted.
pub const FILES_RESERVED: u64 = 512;

/// Entries without a command that a group holds back in memory until one with a command comes; each
/// is an election or a change of members. At the bound they are written to its file.
pub const EMPTY_ENTRIES_HELD_MAX: usize = 64;

/// Groups that wait for a checkpoint. At the bound one more is not noted; its next batches ask again.
pub const CHECKPOINTS_WAITING_MAX: usize = 4096;

/// The pause between two tries of a batch that finds the disk full.
pub const DISK_FULL_PAUSE: Duration = Duration::from_millis(200);

/// Databases whose keys are counted at once for `DBSIZE`, a node over; each count walks all keys of a
/// group. More requests wait in turn.
pub const COUNTS_MAX: usize = 1;

/// Questions to shards about single groups that are under way at once for one page of `/groups` or
/// for readiness. More wait in turn.
pub const GROUP_QUESTIONS_MAX: usize = 64;

/// How often a node that has just started looks whether its groups have caught up.
pub const CATCH_UP_INTERVAL: Duration = Duration::from_millis(50);

/// Bytes from the end of a node's log that are looked through for its last lines.
pub const LOG_TAIL_BYTES: u64 = 64 * 1024;

/// Mismatches that a verification tells, of all that it counts: enough to see a pattern.
pub const MISMATCHES_SHOWN: usize = 10;

/// How long a verification waits until a group's replicas stand at one index. Then the group "did
/// not settle", which is a mismatch.
pub const VERIFY_SETTLE: Duration = Duration::from_secs(30);

/// Groups that an online verification asks for at once: as many as nodes digest at once, and some
/// that wait meanwhile for a node that is slow.
pub const VERIFY_GROUPS_AT_ONCE: usize = 8;

/// Bytes of the segments of one object that the archive's publisher aims at: few objects, and what
/// it holds in memory. At the bound the object is published and the rest goes into the next.
pub const ARCHIVE_OBJECT_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of the segments of one object that a reader takes. A larger one is refused by name.
pub const ARCHIVE_OBJECT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
const _: () = assert!(ARCHIVE_OBJECT_BYTES * 4 <= ARCHIVE_OBJECT_BYTES_MAX);

/// Bytes of a note or a command that a reader takes. The host's own bound is far below. A longer one
/// is refused by name.
pub const ARCHIVED_ENTRY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one group's entries that are read at once for the archive, on the group's shard. More
/// are read in the next step.
pub const ARCHIVE_READ_BYTES: u64 = 256 * 1024;

/// Bytes that are read of an object for its header and directory: room for 1,169 groups. A longer
/// directory costs a second read.
pub const ARCHIVE_HEAD_BYTES: u64 = 64 * 1024;

/// Objects of one folder of the archive, so that no folder grows without end.
pub const ARCHIVE_BLOCK_OBJECTS: u64 = 4096;

/// Objects of a node from one manifest to its next: what a node that starts reads at most of each.
pub const ARCHIVE_MANIFEST_EVERY: u64 = 64;

/// Nodes that a manifest may name, those that have left included. One with more is refused by name.
pub const ARCHIVE_NODES_MAX: u32 = 4096;

/// How long the object store may take for one thing. At the bound it is counted as failed and tried
/// again.
pub const ARCHIVE_STORE_PATIENCE: Duration = Duration::from_secs(20);

/// The first and the longest wait between two tries when the object store fails; it doubles from
/// one to the other.
pub const ARCHIVE_RETRY_WAIT: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(5));

/// How long a node that stops goes on publishing what is committed. At the bound the rest is left to
/// the next leaders, or to the next start.
pub const ARCHIVE_FAREWELL: Duration = Duration::from_secs(5);

/// How often it is looked at least whether the archive lags, and at most when writes report it.
pub const ARCHIVE_GATE_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_millis(20));

/// Groups whose logs are read at once for the archive: one turn of a shard. More wait in turn.
pub const ARCHIVE_READS: usize = 32;

/// Entries that a group is archived further before its log is released up to there: as many as
/// compaction must be able to drop before it is worth a record.
pub const ARCHIVE_RELEASE_ENTRIES: u64 = 256;

/// Faults of an archive that are told one by one; the rest is counted.
pub const ARCHIVE_FAULTS_TOLD: usize = 10;

/// Bytes of a database's write-ahead log from which a clean stop moves it into the database: below, a
/// stop of 1,500 groups would sync 3,000 files for little room.
pub const WAL_SETTLED_BYTES_MIN: u64 = 1024 * 1024;
