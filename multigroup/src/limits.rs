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
pub const UNIX_MILLIS_MAX: u64 = (1 << 48) - 1;

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

/// How far a leader's wall clock may run ahead of its monotonic clock since it last saw the
/// group's time. A larger jump is cut to this, so that it can't expire the saved outcomes.
pub const GROUP_TIME_JUMP_MAX: Duration = Duration::from_secs(5);

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
