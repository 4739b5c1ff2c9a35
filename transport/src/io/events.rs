//! What happened to links and sessions, told to whoever subscribed and written to the log, once
//! each. And how everything stands at one moment: the status.

use std::net::SocketAddr;
use std::time::Duration;

use crate::budget::AccountSnapshot;
use crate::error::{AuthorityEnded, SessionEnd};
use crate::id::{Boot, Incarnation, Lane, NodeIdentity, PeerId, SessionId};
use crate::io::credentials::{CertificateFacts, CredentialError};
use crate::proto::histogram::Distribution;
use crate::proto::inbound::InboundStats;
use crate::proto::link::LinkState;
use crate::proto::occupancy::OccupancyReading;
use crate::proto::outbound::OutboundStats;

/// Which side of a session this node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// This node dialled: its frames, the peer's replies.
    Outbound,
    /// This node accepted: the peer's frames, its replies.
    Inbound,
}

/// A step in the life of a link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A session is up: hellos were exchanged and stand.
    SessionUp {
        /// The other node.
        peer: PeerId,
        /// The session's lane.
        lane: Lane,
        /// Who dialled.
        direction: Direction,
        /// The session.
        session: SessionId,
        /// The other node's data directory.
        incarnation: Incarnation,
        /// How often that directory was started.
        boot: Boot,
    },
    /// A session that was up has ended.
    SessionDown {
        /// The other node.
        peer: PeerId,
        /// The session's lane.
        lane: Lane,
        /// Who dialled.
        direction: Direction,
        /// The session.
        session: SessionId,
        /// Why.
        end: SessionEnd,
    },
    /// A peer was dialled and no session came up.
    DialFailed {
        /// The node that was wanted.
        peer: PeerId,
        /// The lane it was for.
        lane: Lane,
        /// Where it was dialled.
        address: String,
        /// Why there is no session.
        end: SessionEnd,
    },
    /// A connection that came in was turned away.
    Refused {
        /// Where it came from.
        remote: SocketAddr,
        /// Whom its certificate spoke for, if it came that far.
        identity: Option<NodeIdentity>,
        /// Why.
        end: SessionEnd,
    },
    /// Both directions of a link are confirmed, or no longer.
    LinkChanged {
        /// The peer.
        peer: PeerId,
        /// How it stands now.
        state: LinkState,
    },
    /// A link has been up in one direction only for longer than `dialback_timeout`.
    OneWay {
        /// The peer.
        peer: PeerId,
        /// Which direction there is.
        state: LinkState,
    },
    /// A peer lost its authority: nothing is sent to it or taken from it.
    AuthorityLost {
        /// The peer.
        peer: PeerId,
        /// Why.
        why: AuthorityEnded,
    },
    /// A peer that had lost its authority for its certificate has a good one.
    AuthorityRegained {
        /// The peer.
        peer: PeerId,
    },
    /// The credentials changed on disk and are in use.
    CredentialsReloaded {
        /// What this node's leaf says now.
        leaf: CertificateFacts,
    },
    /// The credentials changed on disk and can't be used; the old ones stay.
    CredentialsRefused {
        /// Why.
        fault: CredentialError,
    },
}

impl Event {
    /// Writes it to the log: one line, at the level of what there is to do about it.
    pub(crate) fn log(&self) {
        match self {
            Self::SessionUp {
                peer,
                lane,
                direction,
                session,
                boot,
                ..
            } => {
                tracing::info!(%peer, %lane, ?direction, %session, %boot, "session up");
            }
            Self::SessionDown {
                peer,
                lane,
                direction,
                session,
                end,
            } => match end {
                SessionEnd::ShutDown
                | SessionEnd::ClosedByPeer(_)
                | SessionEnd::ControlEnded
                | SessionEnd::PeerRestarted { .. }
                | SessionEnd::Replaced => {
                    tracing::info!(%peer, %lane, ?direction, %session, "session ended: {end}");
                }
                SessionEnd::PeerMisbehaved(_)
                | SessionEnd::PeerIncompatible(_)
                | SessionEnd::Tls(_)
                | SessionEnd::Authority(_)
                | SessionEnd::Certificate(_)
                | SessionEnd::TimedOut(_)
                | SessionEnd::RefusedByPeer(_)
                | SessionEnd::Io { .. }
                | SessionEnd::SequenceExhausted => {
                    tracing::warn!(%peer, %lane, ?direction, %session, "session ended: {end}");
                }
            },
            Self::DialFailed {
                peer,
                lane,
                address,
                end,
            } => {
                tracing::warn!(%peer, %lane, "no session with node {peer} at {address}: {end}");
            }
            Self::Refused {
                remote,
                identity: Some(identity),
                end,
            } => {
                tracing::warn!(%remote, "turned away {identity} from {remote}: {end}");
            }
            Self::Refused {
                remote,
                identity: None,
                end,
            } => {
                tracing::warn!(%remote, "turned away a connection from {remote}: {end}");
            }
            Self::LinkChanged { peer, state } => {
                tracing::debug!(%peer, ?state, "link changed");
            }
            Self::OneWay {
                peer,
                state: LinkState::OnlyIn,
            } => {
                tracing::warn!(
                    %peer,
                    "the link with node {peer} is one-way: it reaches this node, and is not reached"
                );
            }
            Self::OneWay { peer, .. } => {
                tracing::warn!(
                    %peer,
                    "the link with node {peer} is one-way: it is reached, and does not confirm a \
                     session of its own to this node"
                );
            }
            Self::AuthorityLost { peer, why } => {
                tracing::warn!(%peer, "node {peer} may not speak any more: {why}");
            }
            Self::AuthorityRegained { peer } => {
                tracing::info!(%peer, "node {peer} may speak again: it has a good certificate");
            }
            Self::CredentialsReloaded { leaf } => {
                let (serial, subject) = (&leaf.serial, &leaf.subject);
                tracing::info!(%serial, "credentials reloaded; certificate of {subject}");
            }
            Self::CredentialsRefused { fault } => {
                tracing::error!("credentials changed, and the old ones stay in use: {fault}");
            }
        }
    }
}

/// How far a lane towards a peer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneState {
    /// No session, and none being made: it waits to dial again.
    #[default]
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

/// One lane towards one peer.
#[derive(Clone, Debug)]
pub struct LaneStatus {
    /// The peer.
    pub peer: PeerId,
    /// The lane.
    pub lane: Lane,
    /// How far it is.
    pub state: LaneState,
    /// The session of the moment.
    pub session: Option<SessionId>,
    /// The peer's data directory, by that session's hello.
    pub incarnation: Option<Incarnation>,
    /// How often that directory was started, by the same hello.
    pub boot: Option<Boot>,
    /// The agreed control window, 0 with no session and on bulk.
    pub window_frames: u16,
    /// Frames begun and not answered.
    pub outstanding_frames: usize,
    /// Where the lane's items stand, over all sessions.
    pub account: AccountSnapshot,
    /// What the lane has done, over all sessions.
    pub stats: OutboundStats,
    /// From an item's arrival on the lane to the beginning of its frame.
    pub queue_delay: Distribution,
    /// From the beginning of a frame to its reply.
    pub turnaround: Distribution,
    /// Frames outstanding, counted at the beginning of each frame and with it, over all sessions.
    pub occupancy: OccupancyReading,
    /// From the beginning of a frame to its reply, smoothed over this session's latest replies as
    /// TCP smooths its own: what the peer's host took to answer is in it.
    pub round_trip: Option<Duration>,
    /// How long ago the last reply came, on whichever session; `None` before the first.
    pub last_reply_age: Option<Duration>,
    /// Why the last session ended or didn't come up.
    pub last_end: Option<SessionEnd>,
    /// Dials that failed since the last session was up.
    pub failures: u64,
    /// What the peer's certificate on the session of the moment says.
    pub certificate: Option<CertificateFacts>,
}

/// One session that a peer dialled.
#[derive(Clone, Debug)]
pub struct InboundStatus {
    /// The peer.
    pub peer: PeerId,
    /// The session's lane.
    pub lane: Lane,
    /// The session.
    pub session: SessionId,
    /// The peer's data directory, by its hello.
    pub incarnation: Incarnation,
    /// How often that directory was started, by the same hello.
    pub boot: Boot,
    /// What its certificate on this session says.
    pub certificate: CertificateFacts,
    /// Frames that the host hasn't answered, or whose reply waits for an older one's.
    pub unanswered_frames: usize,
    /// What the session has done.
    pub stats: InboundStats,
}

/// What a peer's lane has brought, over all sessions that it dialled.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The peer.
    pub peer: PeerId,
    /// The lane.
    pub lane: Lane,
    /// The frames that came and the replies that went.
    pub stats: InboundStats,
}

/// The listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptorStatus {
    /// Connections taken from the socket.
    pub accepted: u64,
    /// Of these, turned away before a session was up.
    pub refused: u64,
    /// Of these, closed unanswered since too many were in handshake.
    pub crowded_out: u64,
    /// Of these, closed unanswered since too many of their source's came to nothing.
    pub penalised: u64,
    /// In handshake now.
    pub handshakes: usize,
}

/// How a transport stands.
#[derive(Clone, Debug)]
pub struct Status {
    /// The lanes towards each peer, control before bulk.
    pub lanes: Vec<LaneStatus>,
    /// Whether both directions of each peer's link are there.
    pub links: Vec<(PeerId, LinkState)>,
    /// The sessions that peers dialled.
    pub inbound: Vec<InboundStatus>,
    /// What each configured peer's lanes have brought, control before bulk.
    pub received: Vec<Received>,
    /// The listener.
    pub acceptor: AcceptorStatus,
    /// What this node presents and believes.
    pub credentials: CredentialsStatus,
}

/// The credentials in use.
#[derive(Clone, Debug)]
pub struct CredentialsStatus {
    /// What this node's leaf says.
    pub leaf: CertificateFacts,
    /// When the oldest revocation list was issued, in seconds from 1970.
    pub list_issued: Option<i64>,
    /// When the first revocation list is due to be replaced, likewise.
    pub list_due: Option<i64>,
    /// Changes on disk that were taken over.
    pub reloads: u64,
    /// Changes on disk that couldn't be used.
    pub refused_reloads: u64,
    /// Why the files can't be used as they are now.
    pub fault: Option<String>,
}
