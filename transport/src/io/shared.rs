//! What the tasks of one transport share, each part with the one that writes it: the configuration,
//! the credentials of the moment, who is on record, the published view of each lane and session.
//! Locks here are leaves, but that of the accepted sessions, under which their views are read; none
//! is held over an await.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, watch};

use crate::budget::{Admission, LaneAccount};
use crate::config::Config;
use crate::error::{AuthorityEnded, PeerIncompatible, SessionEnd, TlsFault};
use crate::id::{Boot, Incarnation, Label, Lane, NodeIdentity, PeerId, SessionId};
use crate::io::clock;
use crate::io::credentials::{Credentials, PeerCertificate, Presented};
use crate::io::events::{AcceptorStatus, Event, InboundStatus, LaneState, Received};
use crate::io::pump::Wish;
use crate::mailbox::Mailbox;
use crate::proto::authority::{Authority, Judge};
use crate::proto::confirm::{Confirm, Held};
use crate::proto::hello::{Claims, PROTOCOL_VERSIONS};
use crate::proto::inbound::InboundStats;
use crate::proto::link::{Link, LinkView, TakenSession};
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
    /// The session that is up, for whoever may have to end it.
    pub(crate) live: Mutex<Option<LiveSession>>,
    /// Counts good reasons to put a new session in the place of the one that is up.
    pub(crate) renew: watch::Sender<u64>,
}

/// A session that this node dialled.
pub(crate) struct LiveSession {
    pub(crate) incarnation: Incarnation,
    pub(crate) boot: Boot,
    pub(crate) certificate: PeerCertificate,
    pub(crate) wish: watch::Sender<Wish>,
}

/// One peer, as others reach it.
pub(crate) struct PeerShared {
    pub(crate) id: PeerId,
    pub(crate) address: String,
    pub(crate) control: LaneShared,
    pub(crate) bulk: LaneShared,
    /// Why the peer may not be spoken to.
    pub(crate) revoked: watch::Sender<Option<AuthorityEnded>>,
    /// The sessions of both directions together.
    pub(crate) link: Mutex<Link>,
    /// The sessions that this node holds to the peer.
    pub(crate) held: Mutex<Held>,
    /// The certificate of its latest session, of either direction: what its authority is judged by.
    pub(crate) certificate: Mutex<Option<PeerCertificate>>,
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

    /// Ends the peer's authority, or changes why it has ended.
    pub(crate) fn revoke(&self, why: AuthorityEnded) {
        self.revoked.send_replace(Some(why));
        self.keep_admission();
    }

    /// Ends it for its certificate, unless it has ended by the embedder's word. Says whether it was
    /// not ended before.
    pub(crate) fn revoke_certificate(&self, why: AuthorityEnded) -> bool {
        let mut was_open = false;
        self.revoked.send_if_modified(|revoked| {
            was_open = revoked.is_none();
            let changes = revoked.is_none_or(|was| was.is_of_certificate() && was != why);
            if changes {
                *revoked = Some(why);
            }
            changes
        });
        self.keep_admission();
        was_open
    }

    /// Lets the peer be spoken to again.
    pub(crate) fn restore(&self) {
        self.revoked.send_replace(None);
        self.keep_admission();
    }

    /// The same if it was for its certificate alone. Says whether it was.
    pub(crate) fn restore_certificate(&self) -> bool {
        let restored = self.revoked.send_if_modified(|revoked| {
            let of_certificate = revoked.is_some_and(AuthorityEnded::is_of_certificate);
            if of_certificate {
                *revoked = None;
            }
            of_certificate
        });
        if restored {
            self.keep_admission();
        }
        restored
    }

    /// Brings both accounts in step with the authority, also when that changes meanwhile. No lock
    /// is held here over the accounts' wakers, which may come straight back.
    fn keep_admission(&self) {
        loop {
            let revoked = self.revoked.borrow().is_some();
            let admission = if revoked {
                Admission::Revoked
            } else {
                Admission::Open
            };
            for lane in Lane::ALL {
                self.lane(lane).account.set_admission(admission);
            }
            if self.revoked.borrow().is_some() == revoked {
                return;
            }
        }
    }
}

/// One accepted session, as others reach it.
pub(crate) struct InboundShared {
    pub(crate) session: SessionId,
    /// The session whose place it took, of the same boot of the peer.
    pub(crate) before: Option<SessionId>,
    pub(crate) incarnation: Incarnation,
    pub(crate) boot: Boot,
    pub(crate) certificate: PeerCertificate,
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

/// What became of the changes of the credentials' files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) taken: u64,
    pub(crate) refused: u64,
    /// Why the files can't be used as they are now.
    pub(crate) fault: Option<String>,
}

/// Everything that the tasks of one transport share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) credentials: Mutex<Credentials>,
    pub(crate) reloads: Mutex<Reloads>,
    /// Counts changes of what is on record of peers.
    pub(crate) records: watch::Sender<u64>,
    pub(crate) authority: Mutex<Authority>,
    pub(crate) peers: BTreeMap<PeerId, Arc<PeerShared>>,
    pub(crate) inbound: Mutex<BTreeMap<(PeerId, Lane), InboundShared>>,
    pub(crate) sync_number: AtomicU64,
    /// What hellos to come claim as this node's control window.
    pub(crate) control_window: AtomicU16,
    pub(crate) next_session: AtomicU64,
    pub(crate) acceptor: AcceptorCounters,
    pub(crate) penalties: Mutex<Penalties>,
    pub(crate) events: broadcast::Sender<Event>,
}

impl Shared {
    /// What this node says of itself to a peer.
    pub(crate) fn claims(&self, to: PeerId, lane: Lane) -> Claims {
        let mut limits = self.config.tuning.limits(lane);
        limits.window_frames = self.control_window.load(Ordering::Acquire);
        Claims {
            versions: PROTOCOL_VERSIONS,
            cluster: self.config.identity.cluster.clone(),
            from: self.config.identity.node,
            to,
            incarnation: self.config.incarnation,
            boot: self.config.boot,
            life: self.config.life,
            sync_number: self.config.sync_number,
            limits,
            fingerprint: self.config.fingerprint.clone(),
        }
    }

    /// The credentials for a connection that begins now.
    pub(crate) fn credentials(&self) -> Credentials {
        lock(&self.credentials).clone()
    }

    /// A session of a peer's came or went, or the peer said which it holds.
    pub(crate) fn review_link(&self, peer: &PeerShared, change: impl FnOnce(&mut LinkView)) {
        let taken = lock(&self.inbound)
            .get(&(peer.id, Lane::Control))
            .map(|entry| TakenSession {
                session: entry.session,
                before: entry.before,
            });
        let mut link = lock(&peer.link);
        let mut view = link.view();
        view.taken = taken;
        change(&mut view);
        if let Some(state) = link.on_view(clock::now(), view) {
            // Under the lock, so that two changes are told in one order.
            let peer = peer.id;
            self.tell(Event::LinkChanged { peer, state });
        }
    }

    /// This node holds this session to the peer now, or none; the peer is told.
    pub(crate) fn hold(&self, peer: &PeerShared, lane: Lane, session: Option<SessionId>) {
        let mut held = lock(&peer.held);
        match lane {
            Lane::Control => held.control = session,
            Lane::Bulk => held.bulk = session,
        }
        drop(held);
        if lane == Lane::Control {
            self.review_link(peer, |view| {
                view.out = session;
                if session.is_none() {
                    view.told = None;
                }
            });
        }
        if let Some(entry) = lock(&self.inbound).get(&(peer.id, Lane::Control)) {
            // Wakes it: what it is wished stays.
            entry.wish.send_modify(|_| ());
        }
    }

    /// What the peer confirms on the control session that this node dialled.
    pub(crate) fn on_confirm(&self, peer: &PeerShared, incarnation: Incarnation, said: Confirm) {
        let Confirm { held, sync_number } = said;
        if lock(&self.authority).on_synced(peer.id, incarnation, sync_number) {
            self.records.send_modify(|count| *count += 1);
        }
        self.review_link(peer, |view| view.told = Some(held));
    }

    /// What is to be confirmed to a peer.
    pub(crate) fn confirm(&self, peer: &PeerShared) -> Confirm {
        Confirm {
            held: *lock(&peer.held),
            sync_number: self.sync_number.load(Ordering::Acquire),
        }
    }

    /// Judges anew what was judged under `used`, where these aren't the credentials any more: a
    /// handshake may have overlapped with a reload. The session must be where a reload finds it.
    pub(crate) fn recheck(
        &self,
        used: &Credentials,
        certificate: &PeerCertificate,
        presented: Presented,
    ) -> Result<(), TlsFault> {
        let credentials = self.credentials();
        if credentials.is_same_load(used) {
            return Ok(());
        }
        credentials.recheck(certificate, presented, clock::wall())
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
                certificate: shared.certificate.facts().clone(),
                unanswered_frames,
                stats,
            }
        };
        lock(&self.inbound).iter().map(status).collect()
    }
}

/// A judge that takes the lock for each hello.
pub(crate) struct SharedJudge<'a>(pub(crate) &'a Shared);

impl Judge for SharedJudge<'_> {
    fn judge(&mut self, certified: &NodeIdentity, claims: &Claims) -> Result<(), PeerIncompatible> {
        lock(&self.0.authority).judge(certified, claims)?;
        let got = certified.node;
        let peer = self.0.peers.get(&got);
        match peer.and_then(|peer| *peer.revoked.borrow()) {
            Some(why) => Err(PeerIncompatible::AuthorityEnded { got, why }),
            None => Ok(()),
        }
    }

    fn remember(&mut self, claims: &Claims) {
        lock(&self.0.authority).remember(claims);
        self.0.records.send_modify(|count| *count += 1);
    }
}
