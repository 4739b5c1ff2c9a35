//! Why things end or are refused, grouped by whose fault it is: a peer that breaks the protocol is
//! closed and counted, one that doesn't fit is refused and its operator told, a limit lets the
//! caller retry, an I/O fault is redialled. Every payload is the value expected and the value got,
//! never a finished sentence; the sentence is `Display`.
//!
//! The one table from these to codes on the wire is [`CloseCode`].

mod caller;
mod peer;
mod tls;

use std::io;
use std::time::Duration;

use crate::id::{Boot, Sequence};

pub use caller::{RefusalReason, ReserveRefused, Scope, SendRefused, Unit};
pub use peer::{IdentityFault, PeerIncompatible, PeerMisbehaved};
pub use tls::TlsFault;

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

impl AuthorityEnded {
    /// Whether it is the certificate that was lost, so that another one brings the authority back.
    /// Else only the embedder does.
    #[must_use]
    pub const fn is_of_certificate(self) -> bool {
        match self {
            Self::Expired | Self::Revoked | Self::CaRemoved => true,
            Self::MemberRemoved | Self::ByCaller => false,
        }
    }
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
    /// The certificate that the session was begun under no longer stands; the peer has a newer one.
    #[error("the session's certificate no longer stands: {0}")]
    Certificate(AuthorityEnded),
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
    /// The peer was started anew, and this session goes to its earlier life.
    #[error("the peer was started anew: boot {known} of it has ended, boot {got} calls")]
    PeerRestarted {
        /// The boot that the session goes to.
        known: Boot,
        /// The one that called.
        got: Boot,
    },
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
    /// [`SessionEnd::Authority`], [`SessionEnd::Certificate`] and
    /// [`PeerIncompatible::AuthorityEnded`].
    Authority = 12, "this node's authority ended";
    /// [`SessionEnd::TimedOut`].
    TimedOut = 13, "it waited too long for this side";
    /// [`SessionEnd::Replaced`].
    Replaced = 14, "a newer session took this one's place";
    /// [`SessionEnd::ControlEnded`].
    ControlEnded = 15, "the control lane of the link ended";
    /// [`SessionEnd::SequenceExhausted`].
    SequenceExhausted = 16, "sequence numbers of the session ran out";
    /// [`PeerIncompatible::OtherLife`].
    OtherLife = 17, "another life: it has seen this boot of this node in another life";
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
            Self::Authority(why) | Self::Certificate(why) => {
                (CloseCode::Authority, String::new(), why.to_string())
            }
            Self::TimedOut(limit) => (CloseCode::TimedOut, String::new(), limit.to_string()),
            Self::SequenceExhausted => (CloseCode::SequenceExhausted, String::new(), String::new()),
            Self::Replaced => (CloseCode::Replaced, String::new(), String::new()),
            Self::ControlEnded => (CloseCode::ControlEnded, String::new(), String::new()),
            Self::ShutDown => (CloseCode::ShutDown, String::new(), String::new()),
            Self::Tls(_)
            | Self::RefusedByPeer(_)
            | Self::ClosedByPeer(_)
            | Self::PeerRestarted { .. }
            | Self::Io { .. } => {
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
