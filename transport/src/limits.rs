//! Every bound of the transport: its unit, why this number, and what happens at it.

use std::time::Duration;

/// Bytes of a cluster's name. It stands in every certificate and hello; at the bound the name is
/// refused when it is read.
pub const CLUSTER_NAME_BYTES_MAX: usize = 63;

/// Bytes of a node's URI that are looked at, and of a foreign one that are shown: room for the
/// longest cluster name and number. A longer URI names no node.
pub const NODE_URI_BYTES_MAX: usize = 96;
const _: () = assert!("mraft://".len() + CLUSTER_NAME_BYTES_MAX + "/node/4294967295".len() <= 96);

/// Bytes before a message's body.
pub const HEADER_BYTES: usize = 24;

/// Bytes of the tag behind a message's body: a whole GMAC.
pub const TAG_BYTES: usize = 16;

/// Bytes before each item of a frame, its length.
pub const ITEM_PREFIX_BYTES: usize = 4;

/// Bytes of a control frame's body: a beat batch of 2,700 groups at 24 bytes. A longer one is
/// refused before it is built, and ends the session where it comes in.
pub const CONTROL_BODY_BYTES_MAX: usize = 64 << 10;

/// Bytes of a bulk frame's body. Longer ones would hold the wire for more than 100 ms at
/// 20 Mbit/s; at the bound as above.
pub const BULK_BODY_BYTES_MAX: usize = 256 << 10;

/// Bytes of a reply's body: what the host may answer at once. A longer answer is replaced by the
/// refusal [`AnswerTooLong`](crate::RefusalReason::AnswerTooLong).
pub const REPLY_BODY_BYTES_MAX: usize = 64 << 10;

/// Bytes of a hello, its answer, a refusal or a close. A longer one ends the session unread.
pub const HELLO_BODY_BYTES_MAX: usize = 4 << 10;

/// Items in one frame. What doesn't fit waits for the next.
pub const FRAME_ITEMS_MAX: usize = 4096;

/// Control frames outstanding at one peer, the most that can be configured. Beyond a few hundred
/// a window no longer bounds what a stalled peer must answer within `reply_timeout`.
pub const CONTROL_WINDOW_FRAMES_MAX: u16 = 256;

/// Control frames outstanding at one peer, if nothing else is configured: 64 KiB of 4 KiB frames
/// cover a round trip of 0.5 ms at 1 Gbit/s.
pub const CONTROL_WINDOW_FRAMES_DEFAULT: u16 = 16;

/// Bulk bytes outstanding at one peer, if nothing else is configured: 32 Mbit cover a round trip
/// of 30 ms at 1 Gbit/s.
pub const BULK_WINDOW_BYTES_DEFAULT: u64 = 4 << 20;
const _: () = assert!(BULK_WINDOW_BYTES_DEFAULT as usize >= BULK_BODY_BYTES_MAX);

/// Bytes that may be reserved for one peer, if nothing else is configured. At the bound a
/// reservation waits or is refused.
pub const PEER_BUDGET_BYTES_DEFAULT: u64 = 64 << 20;

/// Bytes that may be reserved on the whole node, if nothing else is configured. As above.
pub const NODE_BUDGET_BYTES_DEFAULT: u64 = 256 << 20;
const _: () = assert!(NODE_BUDGET_BYTES_DEFAULT >= PEER_BUDGET_BYTES_DEFAULT);

/// Items that may be reserved for one peer: about 300 bytes of bookkeeping each, so 20 MiB. As
/// above.
pub const PEER_BUDGET_ITEMS: u64 = 65_536;

/// Items that may be reserved on the whole node. As above.
pub const NODE_BUDGET_ITEMS: u64 = 262_144;
const _: () = assert!(NODE_BUDGET_ITEMS >= PEER_BUDGET_ITEMS);

/// The part of each budget, one in so many, that bulk can't take and control always finds.
pub const CONTROL_SHARE_DIVISOR: u64 = 8;

/// Reservations that may wait in line at one peer and lane. At the bound the next is refused
/// `LineFull` instead of waiting.
pub const RESERVE_WAITERS_MAX: usize = 4096;

/// Peers of one node: a cluster of a few dozen nodes at the most. At the bound the configuration
/// is refused.
pub const PEERS_MAX: usize = 64;

/// Names and values in a cluster's fingerprint, and the bytes of each. They travel in the hello;
/// at the bound the fingerprint can't be built.
pub const FINGERPRINT_ENTRIES_MAX: usize = 16;
/// Bytes of one name or value of a fingerprint.
pub const FINGERPRINT_TEXT_BYTES_MAX: usize = 64;
const _: () = assert!(
    FINGERPRINT_ENTRIES_MAX * 2 * (1 + FINGERPRINT_TEXT_BYTES_MAX) + 512 <= HELLO_BODY_BYTES_MAX
);

/// Bytes of each value that a refusal quotes. A longer one is cut at a character's edge.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 256;

/// Bytes of ciphertext that may wait for the control socket before the next frame is begun: one
/// large frame, so that the kernel never runs dry between two turns of the task.
pub const CONTROL_UNSENT_BYTES_MAX: usize = 64 << 10;

/// The same for bulk: the rest waits in the outbox, where it can still be shed.
pub const BULK_UNSENT_BYTES_MAX: usize = 256 << 10;

/// Bytes that the kernel may hold unsent on a bulk socket before it stops taking more.
pub const BULK_NOTSENT_LOWAT_BYTES: u32 = 128 << 10;

/// Bytes read from a socket in one turn of a task, so that one busy peer leaves room for others, and
/// what they bring is answered before more is read; the next turn reads on.
pub const READ_BYTES_MAX: usize = 64 << 10;

/// Bytes of messages that go to the socket together while more are being made: half of a usual
/// control window of 4 KiB frames, so that both ends work on one half each. Less than this goes when
/// nothing more is to be sent. In 16 KiB both ends overlap as well, but where they share a core each
/// frame costs a quarter more CPU (`plans/measurements/0004-overlap.md`).
pub const FLUSH_BYTES: usize = 32 << 10;

/// Bytes of messages that a task hands to TLS between two looks at the socket, so that replies and
/// other peers aren't kept waiting by a fast socket. What is left goes in the next turn.
pub const TURN_BYTES_MAX: usize = 256 << 10;
const _: () = assert!(TURN_BYTES_MAX >= BULK_BODY_BYTES_MAX);

/// Ended items that an outbox may hold before it is swept, beside as many as are alive.
pub const OUTBOX_DEAD_ITEMS_MAX: usize = 64;

/// TLS handshakes in progress on the acceptor. At the bound a new connection is closed unanswered
/// and counted.
pub const HANDSHAKES_MAX: usize = 64;

/// Connections in handshake from one source address. At the bound as above.
pub const HANDSHAKES_PER_SOURCE_MAX: usize = 16;

/// Connections of one source that may come to nothing at once, before more of them are closed
/// unanswered and counted: as many as a whole cluster behind one address may fail with while its
/// certificates are being changed.
pub const HANDSHAKE_FAILURES_AT_ONCE: u32 = 64;

/// How many more may in each second after that: at about 1 ms of CPU each, less than two percent of
/// a core for a source.
pub const HANDSHAKE_FAILURES_PER_S: u32 = 16;

/// Sources whose failures are remembered. At the bound the least guilty is forgotten.
pub const PENALISED_SOURCES_MAX: usize = 1024;

/// Life-cycle events that a subscriber may leave unread; older ones are lost to it, and it is
/// told how many.
pub const EVENTS_UNREAD_MAX: usize = 1024;

/// How long a peer may take for the TCP connection, for the TLS handshake and for the hello, each.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a bulk session may go without an answer to any of its outstanding bytes (safety 18).
pub const BULK_STALL: Duration = Duration::from_secs(10);

/// How long the oldest outstanding control frame may stay unanswered, if nothing else is
/// configured.
pub const REPLY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// How long one direction of a link may be up alone before it is reported, if nothing else is
/// configured (safety 19).
pub const DIALBACK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);

/// How often a peer is told how far this node's log is synced, while it goes on: what a peer has
/// seen of it is at most this old, and a directory that is put back by more is found out.
pub const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);

/// The first wait before a peer is dialled again; it doubles with each failure.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// The longest wait before a peer is dialled again, so that a returning peer is found in time.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// How long an outgoing session may take to hand over its last bytes at shutdown.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The farthest deadline that fits a frame's header, in whole milliseconds; a later one is carried
/// as this.
pub const REMAINING_MAX: Duration = Duration::from_millis(u32::MAX as u64);

/// Bytes of a certificate, key, CA or revocation-list file: a list of about 100,000 revoked
/// serials. A longer file is refused unread.
pub const CREDENTIAL_FILE_BYTES_MAX: u64 = 4 << 20;

/// Times that the credential files are read again because one changed meanwhile. At the bound the
/// load fails, and the next change of a file starts it anew.
pub const CREDENTIAL_READS_MAX: usize = 4;

/// How long a dialler that renews a session waits for the acceptor to refuse its certificate, at
/// the least and the most: three times what connecting took, since the alert takes one round trip.
pub const REFUSAL_GRACE_MIN: Duration = Duration::from_millis(50);
/// The most of it; a peer that takes longer to refuse costs the old session.
pub const REFUSAL_GRACE_MAX: Duration = Duration::from_secs(1);
const _: () = assert!(REFUSAL_GRACE_MAX.as_millis() < HANDSHAKE_TIMEOUT.as_millis());

/// How often the files of the credentials are looked at: four calls of `stat` each time. A change
/// is acted on within this and the time it takes to load, well within the second that a revocation
/// may take (T9).
pub const CREDENTIAL_LOOK: Duration = Duration::from_millis(250);

/// How often a set that can't be used is tried again though its files stay the same: its time may
/// have come, or a file system gave a change no new time.
pub const CREDENTIAL_RETRY: Duration = Duration::from_secs(2);

/// Seconds before its end from which a certificate or list is warned of, where a third of its life
/// is longer: time enough for a person who looks once a week.
pub const LAPSE_WARNING_S_MAX: i64 = 30 * 86_400;

/// Bytes of a name, or hex digits of a serial, that are shown of a certificate. A longer one is
/// cut.
pub const CERTIFICATE_TEXT_BYTES_MAX: usize = 160;
