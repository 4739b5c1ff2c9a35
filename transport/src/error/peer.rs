//! Faults of the peer: it broke the protocol, or it isn't who or what was wanted.

use crate::error::{AuthorityEnded, CloseCode};
use crate::id::{Boot, ClusterName, IdError, Incarnation, Lane, LifeId, PeerId, Sequence};

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
    /// An item of a verified frame that the host says no correct peer sends.
    #[error("host rejects the content of frame {frame}: {fault}")]
    PayloadRejected {
        /// The frame that it came in.
        frame: Sequence,
        /// The host's name for the fault.
        fault: &'static str,
    },
    /// An answer in a verified reply that the host says no correct peer gives.
    #[error("host rejects an answer: {fault}")]
    AnswerRejected {
        /// The host's name for the fault.
        fault: &'static str,
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
    /// A node whose authority was ended here, whatever its certificate says.
    #[error("node {got} calls, but {why}")]
    AuthorityEnded {
        /// The node in the certificate.
        got: PeerId,
        /// Why it may not speak.
        why: AuthorityEnded,
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
    /// A second life of a boot that had one: a directory that was copied while its node was stopped
    /// and started after the node ran again.
    #[error(
        "another life: boot {boot} of this incarnation was seen as life {known}, this is life {got}; its \
         data directory is a copy"
    )]
    OtherLife {
        /// The boot of both.
        boot: Boot,
        /// The life seen.
        known: LifeId,
        /// The one that calls.
        got: LifeId,
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

impl PeerIncompatible {
    pub(super) fn notice(&self) -> (CloseCode, String, String) {
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
            Self::AuthorityEnded { got, why } => (
                CloseCode::Authority,
                format!("node {got} not to call"),
                why.to_string(),
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
            Self::OtherLife { known, got, .. } => {
                (CloseCode::OtherLife, known.to_string(), got.to_string())
            }
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
