//! What the tasks of one transport share, each part with the one that writes it: the configuration,
//! the credentials of the moment, who is on record, the published view of each lane and session.
//! Locks here are leaves, but that of the accepted sessions, under which their views are read; none
//! is held over an await.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, watch};

use crate::budget::LaneAccount;
use crate::config::Config;
use crate::error::{AuthorityEnded, PeerIncompatible, SessionEnd};
use crate::id::{Boot, Incarnation, Label, Lane, NodeIdentity, PeerId, SessionId};
use crate::io::credentials::Credentials;
use crate::io::events::{AcceptorStatus, Event, InboundStatus, LaneState, Received};
use crate::io::pump::Wish;
use crate::mailbox::Mailbox;
use crate::proto::authority::{Authority, Judge};
use crate::proto::hello::{Claims, PROTOCOL_VERSIONS};
use crate::proto::inbound::InboundStats;
use crate::proto::outbound::{OutboundStats, OutboundTimes};
use crate::proto::penalty::Penalties;
use crate::proto::source::ControlSource;
use crate::receipt::Item;
use crate::sync::lock;

/// What is handed to a lane.
pub(crate) enum LaneMail {
    /// Send this.
    Item(Arc<Item>),
    /// End all that carries this label.
    Revoke(Label),
    /// Ask this for content from now on.
    Source(Arc<dyn ControlSource>),
    /// End the session of the moment: the host can't read an answer that came on it.
    Reject(&'static str),
}

/// What a lane lets others see.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneView {
    pub(crate) state: LaneState,
    pub(crate) session: Option<SessionId>,
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) boot: Option<Boot>,
    pub(crate) window_frames: u16,
    pub(crate) outstanding_frames: usize,
    pub(crate) round_trip: Option<Duration>,
    pub(crate) last_reply: Option<Instant>,
    pub(crate) stats: OutboundStats,
    pub(crate) last_end: Option<SessionEnd>,
    pub(crate) failures: u64,
    pub(crate) times: Arc<OutboundTimes>,
}

/// One lane towards one peer, as others reach it.
pub(crate) struct LaneShared {
    pub(crate) account: LaneAccount,
    pub(crate) mailbox: Mailbox<LaneMail>,
    /// The source has said that it has something; the lane is nudged with it.
    pub(crate) source_ready: AtomicBool,
    /// What came in on this lane from the peer, over the sessions that have ended.
    pub(crate) received: Mutex<InboundStats>,
    pub(crate) view: Mutex<LaneView>,
}

/// One peer, as others reach it.
pub(crate) struct PeerShared {
    pub(crate) id: PeerId,
    pub(crate) address: String,
    pub(crate) control: LaneShared,
    pub(crate) bulk: LaneShared,
    /// Why the peer may not be spoken to.
    pub(crate) revoked: watch::Sender<Option<AuthorityEnded>>,
    /// Whether the control lane towards it is up, which bulk depends on (safety 18).
    pub(crate) control_up: watch::Sender<bool>,
    /// Counts good reasons to dial at once: a peer that called in, new credentials.
    pub(crate) dial_now: watch::Sender<u64>,
}

impl PeerShared {
    pub(crate) const fn lane(&self, lane: Lane) -> &LaneShared {
        match lane {
            Lane::Control => &self.control,
            Lane::Bulk => &self.bulk,
        }
    }
}

/// One accepted session, as others reach it.
pub(crate) struct InboundShared {
    pub(crate) session: SessionId,
    pub(crate) incarnation: Incarnation,
    pub(crate) boot: Boot,
    pub(crate) wish: watch::Sender<Wish>,
    pub(crate) view: Arc<Mutex<(usize, InboundStats)>>,
}

/// The listener's counters.
#[derive(Debug, Default)]
pub(crate) struct AcceptorCounters {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) crowded_out: AtomicU64,
    pub(crate) penalised: AtomicU64,
    pub(crate) handshakes: AtomicUsize,
}

impl AcceptorCounters {
    pub(crate) fn read(&self) -> AcceptorStatus {
        AcceptorStatus {
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            crowded_out: self.crowded_out.load(Ordering::Relaxed),
            penalised: self.penalised.load(Ordering::Relaxed),
            handshakes: self.handshakes.load(Ordering::Relaxed),
        }
    }
}

/// Everything that the tasks of one transport share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) credentials: Mutex<Credentials>,
    pub(crate) authority: Mutex<Authority>,
    pub(crate) peers: BTreeMap<PeerId, Arc<PeerShared>>,
    pub(crate) inbound: Mutex<BTreeMap<(PeerId, Lane), InboundShared>>,
    pub(crate) sync_number: AtomicU64,
    pub(crate) next_session: AtomicU64,
    pub(crate) acceptor: AcceptorCounters,
    pub(crate) penalties: Mutex<Penalties>,
    pub(crate) events: broadcast::Sender<Event>,
}

impl Shared {
    /// What this node says of itself to a peer.
    pub(crate) fn claims(&self, to: PeerId, lane: Lane) -> Claims {
        Claims {
            versions: PROTOCOL_VERSIONS,
            cluster: self.config.identity.cluster.clone(),
            from: self.config.identity.node,
            to,
            incarnation: self.config.incarnation,
            boot: self.config.boot,
            sync_number: self.sync_number.load(Ordering::Acquire),
            limits: self.config.tuning.limits(lane),
            fingerprint: self.config.fingerprint.clone(),
        }
    }

    /// The credentials for a connection that begins now.
    pub(crate) fn credentials(&self) -> Credentials {
        lock(&self.credentials).clone()
    }

    /// A name for the next session: consecutive numbers from a random start.
    pub(crate) fn mint_session(&self) -> SessionId {
        SessionId::new(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// Tells subscribers and the log.
    pub(crate) fn tell(&self, event: Event) {
        event.log();
        // Nobody may be subscribed.
        drop(self.events.send(event));
    }

    /// What has come in over all sessions, ended and live.
    pub(crate) fn received(&self) -> Vec<Received> {
        let inbound = lock(&self.inbound);
        let totals = self.peers.values().flat_map(|peer| {
            let inbound = &inbound;
            Lane::ALL.map(move |lane| {
                let live = inbound
                    .get(&(peer.id, lane))
                    .map(|session| lock(&session.view).1);
                let ended = *lock(&peer.lane(lane).received);
                let stats = ended.plus(live.unwrap_or_default());
                Received {
                    peer: peer.id,
                    lane,
                    stats,
                }
            })
        });
        totals.collect()
    }

    /// How the accepted sessions stand.
    pub(crate) fn inbound_status(&self) -> Vec<InboundStatus> {
        let status = |(&(peer, lane), shared): (&(PeerId, Lane), &InboundShared)| {
            let (unanswered_frames, stats) = *lock(&shared.view);
            InboundStatus {
                peer,
                lane,
                session: shared.session,
                incarnation: shared.incarnation,
                boot: shared.boot,
                unanswered_frames,
                stats,
            }
        };
        lock(&self.inbound).iter().map(status).collect()
    }
}

/// A judge that takes the lock for each hello.
pub(crate) struct SharedJudge<'a>(pub(crate) &'a Mutex<Authority>);

impl Judge for SharedJudge<'_> {
    fn judge(&mut self, certified: &NodeIdentity, claims: &Claims) -> Result<(), PeerIncompatible> {
        lock(self.0).judge(certified, claims)
    }

    fn remember(&mut self, claims: &Claims) {
        lock(self.0).remember(claims);
    }
}
