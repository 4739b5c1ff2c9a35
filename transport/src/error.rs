//! Why things end or are refused, grouped by whose fault it is: a peer that breaks the protocol is
//! closed and counted, one that doesn't fit is refused and its operator told, a limit lets the
//! caller retry, an I/O fault is redialled. Every payload is the value expected and the value got,
//! never a finished sentence; the sentence is `Display`.
//!
//! The one table from these to codes on the wire is [`CloseCode`].

use std::io;
use std::time::Duration;

use crate::id::{Boot, ClusterName, IdError, Incarnation, Lane, PeerId, Sequence};

/// A peer broke the protocol. The session ends, nothing after the fault is delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// A sequence beyond the next one: frames are missing, or came out of order.
    #[error("sequence gap: expected {expected}, got {got}")]
    SequenceGap {
        /// The next in order.
        expected: Sequence,
        /// What came.
        got: Sequence,
    },
    /// A sequence that was already taken.
    #[error("replayed sequence: expected {expected}, got {got}")]
    SequenceReplayed {
        /// The next in order.
        expected: Sequence,
        /// What came.
        got: Sequence,
    },
    /// The tag doesn't prove the message: changed bytes, another session's, or another key.
    #[error("tag of message {sequence} does not match its bytes and this session")]
    BadTag {
        /// The message's place.
        sequence: Sequence,
    },
    /// A kind of message that this version doesn't have.
    #[error("unknown message kind {got}")]
    UnknownKind {
        /// The kind.
        got: u8,
    },
    /// A version of the framing that this build doesn't speak.
    #[error("unknown framing version {got}, expected {expected}")]
    UnknownVersion {
        /// Ours.
        expected: u8,
        /// Theirs.
        got: u8,
    },
    /// A message for the other lane, or for none.
    #[error("message names lane number {got} on the {expected} lane")]
    WrongLane {
        /// The session's lane.
        expected: Lane,
        /// The number in the header.
        got: u8,
    },
    /// A message kind that only this side may send: our own message came back.
    #[error("reflected message of kind {got}, which only this side sends")]
    Reflected {
        /// The kind.
        got: u8,
    },
    /// A known kind in a state that has no place for it.
    #[error("message kind {got} is out of place here")]
    UnexpectedKind {
        /// The kind.
        got: u8,
    },
    /// Bits in a header that must be zero, or a form that isn't known.
    #[error("header of message kind {kind} has an unknown form or a reserved bit set")]
    BadHeader {
        /// The kind.
        kind: u8,
    },
    /// A body longer than its kind and lane allow. It is refused on its length alone.
    #[error("body of {got} bytes is over the {max} that message kind {kind} may have")]
    OversizedBody {
        /// The kind.
        kind: u8,
        /// The length in the header.
        got: u32,
        /// The bound.
        max: u32,
    },
    /// A frame of more items than both sides agreed on.
    #[error("frame of {got} items is over the agreed {max}")]
    TooManyItems {
        /// The number in the header.
        got: u16,
        /// The agreed bound.
        max: u16,
    },
    /// A body whose parts don't add up.
    #[error("body of message {sequence} does not divide into its {items} items")]
    MalformedBody {
        /// The message's place.
        sequence: Sequence,
        /// The number of items in the header.
        items: u16,
    },
    /// A hello, an answer or a refusal that can't be read.
    #[error("{what} can't be read at byte {at}")]
    MalformedHello {
        /// What it was.
        what: &'static str,
        /// Where reading stopped.
        at: usize,
    },
    /// More frames at once than the agreed window.
    #[error("more than the agreed window of {window} frames outstanding")]
    WindowExceeded {
        /// The agreed window.
        window: u16,
    },
    /// More bulk bytes at once than the agreed window.
    #[error("{got} bytes outstanding, over the agreed window of {window}")]
    WindowBytesExceeded {
        /// The agreed window.
        window: u64,
        /// What would be outstanding with this frame.
        got: u64,
    },
    /// A reply to a frame that was never sent.
    #[error("reply to frame {answers}, but the last one sent is {sent}")]
    ReplyToUnsent {
        /// The frame it names.
        answers: Sequence,
        /// The last frame wholly written, 0 for none. One that was begun and is not yet with the
        /// socket can't have been answered.
        sent: Sequence,
    },
    /// A reply to a frame whose turn hasn't come: replies are in order.
    #[error("reply to frame {got}, but the oldest unanswered one is {expected}")]
    ReplyOutOfOrder {
        /// The oldest unanswered frame.
        expected: Sequence,
        /// The frame it names.
        got: Sequence,
    },
    /// A second reply to the same frame.
    #[error("second reply to frame {answers}")]
    SecondReply {
        /// The frame it names.
        answers: Sequence,
    },
    /// The connection ended inside a message.
    #[error("connection ended inside a message, after {got} of its bytes")]
    Truncated {
        /// Bytes of the message that came.
        got: usize,
    },
}

/// Who a certificate speaks for doesn't fit, or what the two sides want of each other doesn't.
/// The peer is refused and both operators are told both values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerIncompatible {
    /// Another cluster's node.
    #[error("wrong cluster: wanted {expected:?}, certificate says {got:?}")]
    WrongCluster {
        /// This side's.
        expected: String,
        /// The certificate's.
        got: String,
    },
    /// Another node than the one dialled, or a hello that isn't its certificate's.
    #[error("wrong node: wanted {expected}, certificate says {got}")]
    WrongNode {
        /// The node dialled.
        expected: PeerId,
        /// The node in the certificate.
        got: PeerId,
    },
    /// A hello that claims another cluster than its certificate.
    #[error("hello claims cluster {claimed:?}, certificate says {certified:?}")]
    ClaimedCluster {
        /// The certificate's.
        certified: ClusterName,
        /// The hello's.
        claimed: ClusterName,
    },
    /// A hello that claims another node than its certificate.
    #[error("hello claims node {claimed}, certificate says {certified}")]
    ClaimedNode {
        /// The certificate's.
        certified: PeerId,
        /// The hello's.
        claimed: PeerId,
    },
    /// A hello meant for another node.
    #[error("hello is for node {wanted}, this is node {here}")]
    Misdirected {
        /// The node it is for.
        wanted: PeerId,
        /// This node.
        here: PeerId,
    },
    /// A node that isn't among the configured peers.
    #[error(
        "node {got} is not among the peers of node {here}; add it to [peers] or remove it there"
    )]
    UnknownPeer {
        /// This node.
        here: PeerId,
        /// The node in the certificate.
        got: PeerId,
    },
    /// A certificate that names no node.
    #[error("certificate names no node: {fault}")]
    NoIdentity {
        /// What it has instead.
        fault: IdentityFault,
    },
    /// No version of the protocol that both speak.
    #[error(
        "no common protocol version: this side speaks {ours_min} to {ours_max}, \
         the other {theirs_min} to {theirs_max}"
    )]
    ProtocolVersions {
        /// This side's lowest.
        ours_min: u16,
        /// This side's highest.
        ours_max: u16,
        /// The other's lowest.
        theirs_min: u16,
        /// The other's highest.
        theirs_max: u16,
    },
    /// A part of the clusters' configuration that must be equal everywhere isn't.
    #[error("cluster setting {name:?} differs: here {ours:?}, there {theirs:?}")]
    Fingerprint {
        /// The setting.
        name: String,
        /// This side's value, empty if it has none.
        ours: String,
        /// The other's value, empty if it has none.
        theirs: String,
    },
    /// A boot older than one already seen: a leftover process, or a copied directory.
    #[error("stale boot: boot {known} of this incarnation was seen, this is boot {got}")]
    StaleBoot {
        /// The newest seen.
        known: Boot,
        /// The one that calls.
        got: Boot,
    },
    /// A data directory that isn't the one this node was admitted with.
    #[error(
        "unknown incarnation: node was admitted as {known}, this is {got}; readmit it if its disk is gone"
    )]
    UnknownIncarnation {
        /// The one on record.
        known: Incarnation,
        /// The one that calls.
        got: Incarnation,
    },
    /// A data directory older than what it once made durable: restored from a backup.
    #[error("rolled back: sync {known} was seen, its log ends at sync {got}")]
    RolledBack {
        /// The highest seen.
        known: u64,
        /// The hello's.
        got: u64,
    },
}

/// What a certificate has in place of one node's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityFault {
    /// The other side sent no certificate.
    #[error("none was sent")]
    NoCertificate,
    /// A certificate that can't be read.
    #[error("it can't be read")]
    Unreadable,
    /// No URI among its names.
    #[error("it has no URI name")]
    NoUri,
    /// More than one URI.
    #[error("it has {got} URI names, expected 1")]
    ManyUris {
        /// How many.
        got: usize,
    },
    /// A URI that names no node.
    #[error("{0}")]
    NotANode(#[from] IdError),
}

/// What the handshake, or the TLS session after it, failed on. Built where rustls is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// Bytes that aren't TLS.
    #[error("the other side sent bytes that are not TLS; is this the peer port of a node?")]
    NotTls,
    /// The other side's chain doesn't lead to our CA.
    #[error(
        "certificate of {subject} was issued by {issuer}, which is not in the CA file {ca}; \
         do both nodes use the same CA?"
    )]
    UnknownIssuer {
        /// The leaf's subject.
        subject: String,
        /// The leaf's issuer.
        issuer: String,
        /// The file that our CA set came from.
        ca: String,
    },
    /// The other side's certificate has expired.
    #[error("certificate of {subject} expired at {not_after}; renew it")]
    Expired {
        /// The leaf's subject.
        subject: String,
        /// Its last second, RFC 3339.
        not_after: String,
    },
    /// The other side's certificate isn't valid yet, so a clock is wrong.
    #[error("certificate of {subject} is not valid before {not_before}; check both clocks")]
    NotYetValid {
        /// The leaf's subject.
        subject: String,
        /// Its first second, RFC 3339.
        not_before: String,
    },
    /// The other side's certificate is on our revocation list.
    #[error("certificate of {subject}, serial {serial}, is revoked by the list {crl}")]
    Revoked {
        /// The leaf's subject.
        subject: String,
        /// Its serial number, in hex.
        serial: String,
        /// The file that the list came from.
        crl: String,
    },
    /// Our revocation list is too old to be believed.
    #[error("revocation list {crl} expired at {next_update}; publish a new one")]
    ListExpired {
        /// The file that the list came from.
        crl: String,
        /// When the next one was due, RFC 3339.
        next_update: String,
    },
    /// A certificate that is wrong in another way.
    #[error("certificate of {subject} is not acceptable: {fault}")]
    BadCertificate {
        /// The leaf's subject, or where it came from.
        subject: String,
        /// The TLS library's word for it.
        fault: String,
    },
    /// The other side sent no certificate.
    #[error("the other side sent no certificate; it must present one of this cluster's")]
    NoCertificate,
    /// The other side won't have our certificate.
    #[error(
        "the other side refused our certificate {cert} ({alert}); \
         it is {subject}, issued by {issuer}: {}",
        refusal_hint(alert)
    )]
    OursRefused {
        /// The file that our certificate came from.
        cert: String,
        /// The alert's name.
        alert: String,
        /// Our leaf's subject.
        subject: String,
        /// Our leaf's issuer.
        issuer: String,
    },
    /// The other side ended the handshake or session with an alert.
    #[error("the other side ended TLS with the alert {alert}")]
    Alert {
        /// The alert's name.
        alert: String,
    },
    /// Both sides speak TLS, but not a version or suite in common.
    #[error("no TLS version or cipher suite in common; TLS 1.3 is the only version spoken here")]
    NothingInCommon,
    /// Both sides speak TLS, but not for the same purpose.
    #[error(
        "the other side speaks TLS but not mraft/1{}; is this the peer port of a node?",
        instead(got)
    )]
    OtherProtocol {
        /// The protocol that was agreed on, empty for none.
        got: String,
    },
    /// The connection was closed inside the handshake.
    #[error("connection closed inside the TLS handshake")]
    ClosedInHandshake,
    /// Anything else that the TLS library names.
    #[error("TLS failed: {fault}")]
    Failed {
        /// The TLS library's word for it.
        fault: String,
    },
}

impl TlsFault {
    /// What a live session's chain has lost when judging it anew found this; `None` for a fault
    /// that isn't the peer's, such as our own list being too old.
    #[must_use]
    pub const fn authority_ended(&self) -> Option<AuthorityEnded> {
        if let Self::Expired { .. } = self {
            Some(AuthorityEnded::Expired)
        } else if let Self::Revoked { .. } = self {
            Some(AuthorityEnded::Revoked)
        } else if let Self::UnknownIssuer { .. } = self {
            Some(AuthorityEnded::CaRemoved)
        } else {
            None
        }
    }
}

fn instead(got: &str) -> String {
    if got.is_empty() {
        String::new()
    } else {
        format!(", it agreed on {got:?}")
    }
}

/// What to look at when the other side refuses our certificate with this alert.
fn refusal_hint(alert: &str) -> &'static str {
    match alert {
        "unknown_ca" => "do both nodes use the same CA?",
        "certificate_expired" => "has it expired, or is a clock wrong?",
        "certificate_revoked" => "it is on the other side's revocation list; issue a new one",
        "unsupported_certificate" => "does it allow both client and server use?",
        "access_denied" => "the other side wanted another node; check this address in its [peers]",
        _ => "the other side's log says why",
    }
}

/// Why a node's authority to speak ended while it spoke (T9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityEnded {
    /// Its certificate's time ran out.
    #[error("its certificate expired")]
    Expired,
    /// Its certificate was revoked.
    #[error("its certificate was revoked")]
    Revoked,
    /// The CA that issued it is no longer trusted.
    #[error("its CA is no longer trusted")]
    CaRemoved,
    /// The node was removed from the cluster.
    #[error("the node was removed from the cluster")]
    MemberRemoved,
    /// The embedder ended it by hand.
    #[error("its authority was revoked by this node")]
    ByCaller,
}

/// A time limit that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimedOut {
    /// No TCP connection in time.
    #[error("no TCP connection within {limit:?}")]
    Connect {
        /// The limit.
        limit: Duration,
    },
    /// No finished TLS handshake in time.
    #[error("TLS handshake not finished within {limit:?}")]
    Handshake {
        /// The limit.
        limit: Duration,
    },
    /// No hello, or no answer to ours, in time.
    #[error("no hello within {limit:?} after the TLS handshake")]
    Hello {
        /// The limit.
        limit: Duration,
    },
    /// The oldest outstanding frame stayed unanswered.
    #[error("frame {oldest} was not answered within reply_timeout, {limit:?}")]
    Reply {
        /// The oldest outstanding frame.
        oldest: Sequence,
        /// The limit.
        limit: Duration,
    },
    /// None of the outstanding bulk bytes were answered.
    #[error("no bulk frame was answered for {limit:?}, frame {oldest} waits")]
    BulkStall {
        /// The oldest outstanding frame.
        oldest: Sequence,
        /// The limit.
        limit: Duration,
    },
}

/// What the other side said when it refused or ended a session, and the values it named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerNotice {
    /// Its reason.
    pub code: CloseCode,
    /// What it expected, cut to a bounded length; may be empty.
    pub expected: String,
    /// What it got, likewise.
    pub got: String,
}

impl std::fmt::Display for PeerNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code.sentence())?;
        if !self.expected.is_empty() || !self.got.is_empty() {
            write!(f, " (it expected {:?}, got {:?})", self.expected, self.got)?;
        }
        Ok(())
    }
}

/// Why a session ended, or never came up. Every session ends with exactly one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The peer broke the protocol.
    #[error("peer broke the protocol: {0}")]
    PeerMisbehaved(#[from] PeerMisbehaved),
    /// The peer isn't who or what was wanted.
    #[error("{0}")]
    PeerIncompatible(#[from] PeerIncompatible),
    /// TLS failed.
    #[error("{0}")]
    Tls(#[from] TlsFault),
    /// The peer's authority ended.
    #[error("{0}")]
    Authority(#[from] AuthorityEnded),
    /// A limit ran out.
    #[error("{0}")]
    TimedOut(#[from] TimedOut),
    /// The peer refused this side in its answer to the hello.
    #[error("refused by the peer: {0}")]
    RefusedByPeer(PeerNotice),
    /// The peer ended the session and said why.
    #[error("ended by the peer: {0}")]
    ClosedByPeer(PeerNotice),
    /// The connection couldn't be made, broke, or was closed without a word.
    #[error("connection failed: {}", io_word(*.kind))]
    Io {
        /// The kind of fault.
        kind: io::ErrorKind,
    },
    /// The sequence of a direction came to its last number.
    #[error("sequence numbers of the session ran out")]
    SequenceExhausted,
    /// A newer session took this one's place.
    #[error("replaced by a newer session")]
    Replaced,
    /// The link's other lane ended: the end of control ends bulk (safety 18).
    #[error("the control lane of the link ended")]
    ControlEnded,
    /// This side shut down.
    #[error("this node shut down")]
    ShutDown,
}

/// A word for an I/O fault that an operator can act on.
fn io_word(kind: io::ErrorKind) -> String {
    if kind == io::ErrorKind::UnexpectedEof {
        "closed by the other side".to_owned()
    } else if kind == io::ErrorKind::ConnectionRefused {
        "nothing listens there".to_owned()
    } else {
        kind.to_string()
    }
}

impl From<io::ErrorKind> for SessionEnd {
    fn from(kind: io::ErrorKind) -> Self {
        Self::Io { kind }
    }
}

macro_rules! close_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $sentence:literal;)*) => {
        /// A reason as it travels: one number for each fault that the other side can act on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CloseCode {
            $($(#[$doc])* $name,)*
            /// A code that this build doesn't know.
            Unknown(u16),
        }

        impl CloseCode {
            /// The number on the wire.
            #[must_use]
            pub const fn to_u16(self) -> u16 {
                match self { $(Self::$name => $code,)* Self::Unknown(code) => code }
            }

            /// The code with this number.
            #[must_use]
            pub const fn from_u16(code: u16) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Unknown(code) }
            }

            const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)*
                    Self::Unknown(_) => "it gave a reason that this version does not know",
                }
            }
        }
    };
}

close_codes! {
    /// [`SessionEnd::ShutDown`].
    ShutDown = 1, "it is shutting down";
    /// [`SessionEnd::PeerMisbehaved`].
    Misbehaved = 2, "it says that this side broke the protocol";
    /// [`PeerIncompatible::WrongCluster`] and [`PeerIncompatible::ClaimedCluster`].
    WrongCluster = 3, "wrong cluster";
    /// [`PeerIncompatible::WrongNode`], [`PeerIncompatible::ClaimedNode`] and
    /// [`PeerIncompatible::Misdirected`].
    WrongNode = 4, "wrong node";
    /// [`PeerIncompatible::UnknownPeer`].
    UnknownPeer = 5, "this node is not among its peers";
    /// [`PeerIncompatible::NoIdentity`].
    NoIdentity = 6, "this node's certificate names no node";
    /// [`PeerIncompatible::ProtocolVersions`].
    ProtocolVersions = 7, "no common protocol version";
    /// [`PeerIncompatible::Fingerprint`].
    Fingerprint = 8, "cluster settings differ";
    /// [`PeerIncompatible::StaleBoot`].
    StaleBoot = 9, "stale boot: it has seen a newer one of this node";
    /// [`PeerIncompatible::UnknownIncarnation`].
    UnknownIncarnation = 10, "unknown incarnation: it knows this node under another data directory";
    /// [`PeerIncompatible::RolledBack`].
    RolledBack = 11, "rolled back: it has seen this node's log further on";
    /// [`SessionEnd::Authority`].
    Authority = 12, "this node's authority ended";
    /// [`SessionEnd::TimedOut`].
    TimedOut = 13, "it waited too long for this side";
    /// [`SessionEnd::Replaced`].
    Replaced = 14, "a newer session took this one's place";
    /// [`SessionEnd::ControlEnded`].
    ControlEnded = 15, "the control lane of the link ended";
    /// [`SessionEnd::SequenceExhausted`].
    SequenceExhausted = 16, "sequence numbers of the session ran out";
}

impl SessionEnd {
    /// What to tell the other side, or `None` where it can't be told or needn't be.
    #[must_use]
    pub fn notice(&self) -> Option<PeerNotice> {
        let (code, expected, got) = match self {
            Self::PeerMisbehaved(fault) => {
                (CloseCode::Misbehaved, String::new(), fault.to_string())
            }
            Self::PeerIncompatible(fault) => fault.notice(),
            Self::Authority(why) => (CloseCode::Authority, String::new(), why.to_string()),
            Self::TimedOut(limit) => (CloseCode::TimedOut, String::new(), limit.to_string()),
            Self::SequenceExhausted => (CloseCode::SequenceExhausted, String::new(), String::new()),
            Self::Replaced => (CloseCode::Replaced, String::new(), String::new()),
            Self::ControlEnded => (CloseCode::ControlEnded, String::new(), String::new()),
            Self::ShutDown => (CloseCode::ShutDown, String::new(), String::new()),
            Self::Tls(_) | Self::RefusedByPeer(_) | Self::ClosedByPeer(_) | Self::Io { .. } => {
                return None;
            }
        };
        Some(PeerNotice {
            code,
            expected,
            got,
        })
    }
}

impl PeerIncompatible {
    fn notice(&self) -> (CloseCode, String, String) {
        match self {
            Self::WrongCluster { expected, got } => {
                (CloseCode::WrongCluster, expected.clone(), got.clone())
            }
            Self::ClaimedCluster { certified, claimed } => (
                CloseCode::WrongCluster,
                certified.to_string(),
                claimed.to_string(),
            ),
            Self::WrongNode { expected, got } => {
                (CloseCode::WrongNode, expected.to_string(), got.to_string())
            }
            Self::ClaimedNode { certified, claimed } => (
                CloseCode::WrongNode,
                certified.to_string(),
                claimed.to_string(),
            ),
            Self::Misdirected { wanted, here } => {
                (CloseCode::WrongNode, here.to_string(), wanted.to_string())
            }
            Self::UnknownPeer { here, got } => (
                CloseCode::UnknownPeer,
                format!("a peer of node {here}"),
                format!("node {got}"),
            ),
            Self::NoIdentity { fault } => (
                CloseCode::NoIdentity,
                "one node URI".to_owned(),
                fault.to_string(),
            ),
            Self::ProtocolVersions {
                ours_min,
                ours_max,
                theirs_min,
                theirs_max,
            } => (
                CloseCode::ProtocolVersions,
                format!("{ours_min} to {ours_max}"),
                format!("{theirs_min} to {theirs_max}"),
            ),
            Self::Fingerprint { name, ours, theirs } => (
                CloseCode::Fingerprint,
                format!("{name} = {ours}"),
                format!("{name} = {theirs}"),
            ),
            Self::StaleBoot { known, got } => {
                (CloseCode::StaleBoot, known.to_string(), got.to_string())
            }
            Self::UnknownIncarnation { known, got } => (
                CloseCode::UnknownIncarnation,
                known.to_string(),
                got.to_string(),
            ),
            Self::RolledBack { known, got } => {
                (CloseCode::RolledBack, known.to_string(), got.to_string())
            }
        }
    }
}

/// Whose bound a reservation ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// This peer's budget.
    Peer,
    /// The whole node's.
    Node,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Items, whatever their size.
    Items,
    /// Payload bytes.
    Bytes,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Peer => "peer",
            Self::Node => "node",
        })
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Items => "items",
            Self::Bytes => "bytes",
        })
    }
}

/// Why a reservation wasn't given. Nothing was queued; the caller may try again where that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveRefused {
    /// A budget has no room now.
    #[error("{scope} budget has no room in {unit}")]
    Full {
        /// Whose.
        scope: Scope,
        /// Of what.
        unit: Unit,
    },
    /// More than the budget could ever give.
    #[error("{asked} {unit} can never fit the {scope} budget of {limit}")]
    TooLarge {
        /// Whose.
        scope: Scope,
        /// Of what.
        unit: Unit,
        /// What was asked for.
        asked: u64,
        /// All that this lane may have.
        limit: u64,
    },
    /// Too many wait in line already.
    #[error("{limit} reservations wait in line already")]
    LineFull {
        /// The bound of the line.
        limit: usize,
    },
    /// The peer may no longer be spoken to.
    #[error("authority of the peer was revoked")]
    Revoked,
    /// The deadline came first.
    #[error("deadline passed before there was room")]
    Expired,
    /// The transport, or the peer's link, was closed.
    #[error("transport is closed")]
    Closed,
}

/// Why an item couldn't be sent under its reservation. The item comes to no harm: nothing was
/// queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefused {
    /// The reservation's items are used up.
    #[error("reservation has no items left")]
    NoItemsLeft,
    /// The item is larger than what is left of the reservation.
    #[error("item of {asked} bytes exceeds the {left} bytes left of the reservation")]
    NoBytesLeft {
        /// The item's bytes.
        asked: u64,
        /// What is left.
        left: u64,
    },
    /// No frame of this lane could hold the item.
    #[error("item of {asked} bytes exceeds the {max} that a frame of the {lane} lane can hold")]
    ItemTooLarge {
        /// The lane.
        lane: Lane,
        /// The item's bytes.
        asked: u64,
        /// The most that fits.
        max: u64,
    },
    /// The peer may no longer be spoken to.
    #[error("authority of the peer was revoked")]
    Revoked,
    /// The transport was closed.
    #[error("transport is closed")]
    Closed,
}

macro_rules! refusal_reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $word:literal;)*) => {
        /// Why the peer didn't take a frame or an item of one. It had no effect there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum RefusalReason {
            $($(#[$doc])* $name,)*
            /// A reason that this build doesn't know.
            Unknown(u8),
        }

        impl RefusalReason {
            /// The number on the wire, never 0.
            #[must_use]
            pub const fn to_u8(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                    // On the wire 0 stands for no refusal at all.
                    Self::Unknown(0) => u8::MAX,
                    Self::Unknown(code) => code,
                }
            }

            /// The reason with this number.
            #[must_use]
            pub const fn from_u8(code: u8) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Unknown(code) }
            }
        }

        impl std::fmt::Display for RefusalReason {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$name => f.write_str($word),)*
                    Self::Unknown(code) => write!(f, "reason {code}"),
                }
            }
        }
    };
}

refusal_reasons! {
    /// The host has no room for it now (safety 17).
    Busy = 1, "busy";
    /// It came after its deadline and was refused unread (T8).
    Late = 2, "late";
    /// The host let go of it without an answer.
    Unanswered = 3, "unanswered";
    /// The host can't read it.
    NotUnderstood = 4, "not understood";
    /// It is meant for another destination than this node holds.
    WrongDestination = 5, "wrong destination";
    /// The host is shutting down.
    ShuttingDown = 6, "shutting down";
    /// The host's answer was longer than a reply may be.
    AnswerTooLong = 7, "answer too long";
    /// The item exceeds the frames that the peer takes; it never left this side.
    TooLarge = 8, "larger than the peer's frames";
}
