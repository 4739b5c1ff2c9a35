//! The public face: starts the tasks, hands out peers, says how everything stands, and stops it in
//! order. Dropping a [`Transport`] without [`Transport::shut_down`] aborts its tasks: sessions break
//! without a word and unfinished receipts stay unanswered.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use crate::budget::{Admission, Amount, Budget, Reservation};
use crate::config::{Config, ConfigError};
use crate::error::{AuthorityEnded, ReserveRefused, SendRefused};
use crate::id::{Label, Lane, PeerId};
use crate::io::acceptor::Acceptor;
use crate::io::clock;
use crate::io::credentials::Credentials;
use crate::io::events::{CredentialsStatus, Event, LaneStatus, Status};
use crate::io::keeper::Keeper;
use crate::io::lane_task::LaneTask;
use crate::io::pump::Wish;
use crate::io::shared::{AcceptorCounters, LaneMail, LaneShared, LaneView, PeerShared, Shared};
use crate::limits::EVENTS_UNREAD_MAX;
use crate::mailbox::Mailbox;
use crate::proto::authority::{Authority, NodeRecord};
use crate::proto::frame::item_bytes_max;
use crate::proto::source::ControlSource;
use crate::receipt::{Item, Receipt};
use crate::reply_slot::Inbound;
use crate::sync::lock;

/// Why a transport didn't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The credentials are another node's.
    #[error("certificate {cert} is for {got}, this node is {expected}")]
    OtherIdentity {
        /// The certificate's file.
        cert: String,
        /// This node.
        expected: crate::id::NodeIdentity,
        /// The certificate's.
        got: crate::id::NodeIdentity,
    },
    /// The listening address can't be had.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// A name that isn't among the configured peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {0} is not among the peers")]
pub struct UnknownPeer(pub PeerId);

/// How an item is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOptions {
    /// When it ends as `Expired`, wherever it is; one in the past ends so at once, and is counted
    /// like any other. The time that is left travels with the frame, and a peer refuses a late frame
    /// unread. Items that share a frame share the latest of their deadlines there: the peer may act
    /// on one that has just expired here, which its stage, `Written`, says.
    pub deadline: Instant,
    /// What it can be revoked under, together with others.
    pub label: Label,
}

impl SendOptions {
    /// Until `deadline`, under no label.
    #[must_use]
    pub const fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            label: Label::NONE,
        }
    }
}

/// The links of one node to its peers.
pub struct Transport {
    shared: Arc<Shared>,
    local: SocketAddr,
    /// What is wanted of the lanes, control's and bulk's.
    outbound_wishes: [watch::Sender<Wish>; 2],
    inbound_wish: watch::Sender<Wish>,
    /// The tasks of the lanes, control's and bulk's.
    lanes: [JoinSet<()>; 2],
    acceptor: JoinSet<()>,
    /// Keeps credentials and authority in step with files and time.
    keeper: JoinSet<()>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

/// Bits that differ from process to process and from call to call; not for secrets.
fn random_bits() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

fn open_peer(budget: &Budget, id: PeerId, address: &str) -> Arc<PeerShared> {
    let lane = |account| LaneShared {
        account,
        mailbox: Mailbox::default(),
        source_ready: AtomicBool::new(false),
        received: Mutex::default(),
        view: Mutex::new(LaneView::default()),
        live: Mutex::default(),
        renew: watch::Sender::new(0),
    };
    let [control, bulk] = budget.open_peer();
    Arc::new(PeerShared {
        id,
        address: address.to_owned(),
        control: lane(control),
        bulk: lane(bulk),
        revoked: watch::Sender::new(None),
        link: Mutex::default(),
        held: Mutex::default(),
        certificate: Mutex::default(),
        control_up: watch::Sender::new(false),
        dial_now: watch::Sender::new(0),
    })
}

impl Transport {
    /// Listens, and starts to dial every peer. Frames that come in go to `inbound`.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start(
        config: Config,
        credentials: Credentials,
        inbound: Arc<dyn Inbound>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let certified = &credentials.facts().identity;
        if *certified != config.identity {
            return Err(StartError::OtherIdentity {
                cert: credentials.files().cert.display().to_string(),
                expected: config.identity.clone(),
                got: certified.clone(),
            });
        }
        let address = config.listen;
        let listening = TcpListener::bind(address).await;
        let listener = listening.map_err(|source| StartError::Listen { address, source })?;
        let local = listener
            .local_addr()
            .map_err(|source| StartError::Listen { address, source })?;
        let budget = Budget::new(config.tuning.budgets());
        let open = |(&id, address): (&PeerId, &String)| (id, open_peer(&budget, id, address));
        let peers: BTreeMap<PeerId, Arc<PeerShared>> = config.peers.iter().map(open).collect();
        let authority = Authority::new(config.identity.clone(), peers.keys().copied())
            .remembering(config.contact, &config.records);
        let shared = Arc::new(Shared {
            credentials: Mutex::new(credentials),
            reloads: Mutex::default(),
            records: watch::Sender::new(0),
            authority: Mutex::new(authority),
            peers,
            inbound: Mutex::default(),
            sync_number: AtomicU64::new(config.sync_number),
            control_window: AtomicU16::new(config.tuning.limits(Lane::Control).window_frames),
            next_session: AtomicU64::new(random_bits()),
            acceptor: AcceptorCounters::default(),
            penalties: Mutex::default(),
            events: broadcast::Sender::new(EVENTS_UNREAD_MAX),
            config,
        });
        Ok(Self::spawn(shared, local, listener, inbound))
    }

    fn spawn(
        shared: Arc<Shared>,
        local: SocketAddr,
        listener: TcpListener,
        inbound: Arc<dyn Inbound>,
    ) -> Self {
        let inbound_wish = watch::Sender::new(Wish::Run);
        let outbound_wishes = Lane::ALL.map(|_| watch::Sender::new(Wish::Run));
        let (mut lanes, mut acceptor) = (Lane::ALL.map(|_| JoinSet::new()), JoinSet::new());
        for peer in shared.peers.values() {
            for lane in Lane::ALL {
                let task = LaneTask {
                    shared: Arc::clone(&shared),
                    peer: Arc::clone(peer),
                    lane,
                    wish: outbound_wishes[lane as usize].subscribe(),
                    jitter_seed: random_bits(),
                };
                lanes[lane as usize].spawn(task.run());
            }
        }
        let wish = inbound_wish.subscribe();
        let task = Acceptor {
            shared: Arc::clone(&shared),
            listener,
            inbound,
            wish,
        };
        acceptor.spawn(task.run());
        let mut keeper = JoinSet::new();
        keeper.spawn(Keeper::new(Arc::clone(&shared)).run());
        Self {
            shared,
            local,
            outbound_wishes,
            inbound_wish,
            lanes,
            acceptor,
            keeper,
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// A peer, to send to. Clones are the same peer.
    ///
    /// # Errors
    /// [`UnknownPeer`] for a node that isn't configured.
    pub fn peer(&self, id: PeerId) -> Result<Peer, UnknownPeer> {
        let shared = self.shared.peers.get(&id).ok_or(UnknownPeer(id))?;
        Ok(Peer {
            shared: Arc::clone(shared),
        })
    }

    /// What happens to links from now on. A subscriber that reads too slowly is told how many
    /// events it missed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }

    /// Puts a peer's incarnation on record: another one is refused from now on (safety 21).
    pub fn pin(&self, peer: PeerId, record: NodeRecord) {
        lock(&self.shared.authority).pin(peer, record);
        self.shared.records.send_modify(|count| *count += 1);
    }

    /// What is on record of the peers, to be given back at the next start.
    #[must_use]
    pub fn records(&self) -> BTreeMap<PeerId, NodeRecord> {
        lock(&self.shared.authority).records()
    }

    /// Changes when what is on record may have.
    #[must_use]
    pub fn records_changed(&self) -> watch::Receiver<u64> {
        self.shared.records.subscribe()
    }

    /// The number of the last completed sync of this node's log, for hellos and confirms to come.
    pub fn set_sync_number(&self, number: u64) {
        self.shared.sync_number.fetch_max(number, Ordering::AcqRel);
    }

    /// The control window that hellos to come claim: each session goes by the lower of its two ends',
    /// from its beginning, so those that stand aren't changed.
    ///
    /// # Errors
    /// [`ConfigError::ControlWindow`] for one outside of its bounds; nothing is changed then.
    pub fn set_control_window(&self, frames: u16) -> Result<(), ConfigError> {
        ConfigError::check_control_window(frames)?;
        self.shared.control_window.store(frames, Ordering::Release);
        Ok(())
    }

    /// How everything stands. Each lane's account is of one instant.
    #[must_use]
    pub fn status(&self) -> Status {
        status(&self.shared)
    }

    /// Stops: takes nothing more, lets what was sent finish until `drain` has passed, ends the
    /// rest as `ShutDown`, then ends the sessions that peers dialled, and gives the last status.
    ///
    /// # Cancel safety
    /// Dropping the future aborts what still runs, as dropping the transport does.
    pub async fn shut_down(mut self, drain: Duration) -> Status {
        let until = clock::now() + drain;
        for peer in self.shared.peers.values() {
            for lane in Lane::ALL {
                peer.lane(lane).account.set_admission(Admission::Closed);
            }
        }
        // The end of control ends bulk, so bulk comes first, here and at the peers.
        for lane in [Lane::Bulk, Lane::Control] {
            self.outbound_wishes[lane as usize].send_replace(Wish::Drain(until));
            join(&mut self.lanes[lane as usize]).await;
        }
        self.inbound_wish.send_replace(Wish::Drain(until));
        join(&mut self.acceptor).await;
        self.keeper.shutdown().await;
        status(&self.shared)
    }
}

async fn join(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!("a task of the transport failed: {error}");
        }
    }
}

fn status(shared: &Shared) -> Status {
    let mut lanes = Vec::new();
    let now = clock::now();
    for peer in shared.peers.values() {
        for lane in Lane::ALL {
            let view = lock(&peer.lane(lane).view).clone();
            let live = lock(&peer.lane(lane).live);
            let certificate = live.as_ref().map(|live| live.certificate.facts().clone());
            drop(live);
            lanes.push(LaneStatus {
                peer: peer.id,
                lane,
                state: view.state,
                session: view.session,
                incarnation: view.incarnation,
                boot: view.boot,
                window_frames: view.window_frames,
                outstanding_frames: view.outstanding_frames,
                account: peer.lane(lane).account.snapshot(),
                stats: view.stats,
                queue_delay: view.times.queue_delay.read(),
                turnaround: view.times.turnaround.read(),
                occupancy: view.times.occupancy.read(),
                round_trip: view.round_trip,
                last_reply_age: view.last_reply.map(|at| now.saturating_duration_since(at)),
                last_end: view.last_end,
                failures: view.failures,
                certificate,
            });
        }
    }
    let links = shared.peers.values();
    let links = links.map(|peer| (peer.id, lock(&peer.link).state()));
    Status {
        lanes,
        links: links.collect(),
        inbound: shared.inbound_status(),
        received: shared.received(),
        acceptor: shared.acceptor.read(),
        credentials: credentials_status(shared),
    }
}

fn credentials_status(shared: &Shared) -> CredentialsStatus {
    let credentials = shared.credentials();
    let reloads = lock(&shared.reloads).clone();
    CredentialsStatus {
        leaf: credentials.facts().clone(),
        list_issued: credentials.list_issued(),
        list_due: credentials.list_due(),
        reloads: reloads.taken,
        refused_reloads: reloads.refused,
        fault: reloads.fault,
    }
}

/// One peer, to send to.
#[derive(Clone)]
pub struct Peer {
    shared: Arc<PeerShared>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("id", &self.shared.id)
            .finish_non_exhaustive()
    }
}

impl Peer {
    /// Who it is.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.shared.id
    }

    /// Reserves room at once or not at all. Works also while the peer is away: what is sent waits
    /// for it until its deadline.
    ///
    /// # Errors
    /// [`ReserveRefused`] names what stands against it.
    pub fn try_reserve(&self, lane: Lane, amount: Amount) -> Result<Room, ReserveRefused> {
        let reservation = self.shared.lane(lane).account.try_reserve(amount)?;
        Ok(Room {
            peer: Arc::clone(&self.shared),
            lane,
            reservation,
        })
    }

    /// The same, and if there is no room now, wakes `waker` once when this call would give
    /// something else than [`ReserveRefused::Full`]. It must be made again then: nothing is held
    /// meanwhile, and another may have been faster. So a thread that can't wait needs no polling.
    ///
    /// # Errors
    /// As [`Peer::try_reserve`]; [`ReserveRefused::LineFull`] where nobody more can be woken.
    pub fn try_reserve_or_wake(
        &self,
        lane: Lane,
        amount: Amount,
        waker: &Waker,
    ) -> Result<Room, ReserveRefused> {
        let account = &self.shared.lane(lane).account;
        let reservation = account.try_reserve_or_wake(amount, waker)?;
        Ok(Room {
            peer: Arc::clone(&self.shared),
            lane,
            reservation,
        })
    }

    /// Reserves room when its turn in line has come, until `deadline`.
    ///
    /// # Errors
    /// [`ReserveRefused::Expired`] at the deadline, and whatever else stands against it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line; nothing stays reserved.
    pub async fn reserve(
        &self,
        lane: Lane,
        amount: Amount,
        deadline: Instant,
    ) -> Result<Room, ReserveRefused> {
        let turn = self.shared.lane(lane).account.reserve(amount);
        match tokio::time::timeout_at(deadline.into(), turn).await {
            Ok(turn) => {
                let peer = Arc::clone(&self.shared);
                turn.map(|reservation| Room {
                    peer,
                    lane,
                    reservation,
                })
            }
            Err(_) => Err(ReserveRefused::Expired),
        }
    }

    /// Has the control lane ask `source` for content from now on; one source a peer, a later one
    /// takes its place.
    pub fn set_control_source(&self, source: Arc<dyn ControlSource>) {
        // A closed lane asks nobody.
        drop(self.shared.control.mailbox.push(LaneMail::Source(source)));
    }

    /// The control source has something: it is asked as soon as a slot is free. Any number of calls
    /// before that are one.
    pub fn control_ready(&self) {
        if !self
            .shared
            .control
            .source_ready
            .swap(true, Ordering::AcqRel)
        {
            self.shared.control.mailbox.nudge();
        }
    }

    /// Ends everything on its way to this peer that carries `label`, as `Revoked`: soon, on the
    /// lanes' own tasks.
    pub fn revoke_label(&self, label: Label) {
        for lane in Lane::ALL {
            // A closed lane has nothing left to revoke.
            drop(self.shared.lane(lane).mailbox.push(LaneMail::Revoke(label)));
        }
    }

    /// Ends the session that `lane` has to this peer now: an answer that came on it is one that no
    /// correct peer gives, and `fault` names it. Both sides are told
    /// [`PeerMisbehaved::AnswerRejected`](crate::PeerMisbehaved::AnswerRejected), the peer in the
    /// close; the lane dials again after its back-off. For a frame of the peer's there is
    /// [`FrameSession::reject`](crate::FrameSession::reject).
    pub fn reject_answer(&self, lane: Lane, fault: &'static str) {
        // A closed lane has no session.
        drop(self.shared.lane(lane).mailbox.push(LaneMail::Reject(fault)));
    }

    /// Ends this peer's authority: its sessions in both directions close, whatever is on its way
    /// to it ends `Revoked`, and reservations are refused until [`Peer::restore`]. What its
    /// certificate loses, the transport sees by itself.
    pub fn revoke(&self, why: AuthorityEnded) {
        self.shared.revoke(why);
    }

    /// Lets the peer be spoken to again. One whose certificate doesn't stand loses its authority
    /// again when that is judged next.
    pub fn restore(&self) {
        self.shared.restore();
    }

    /// Why the peer may not be spoken to; `None` while it may.
    #[must_use]
    pub fn authority_ended(&self) -> Option<AuthorityEnded> {
        *self.shared.revoked.borrow()
    }
}

/// Reserved room on a lane. What isn't used is returned when it is dropped.
#[derive(Debug)]
pub struct Room {
    peer: Arc<PeerShared>,
    lane: Lane,
    reservation: Reservation,
}

impl fmt::Debug for PeerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerShared")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Room {
    /// What is left.
    #[must_use]
    pub const fn left(&self) -> Amount {
        self.reservation.left()
    }

    /// Sends one item of it. Returns at once; what becomes of the item is in the receipt. The largest
    /// item of a lane is [`item_bytes_max`]; bytes that were reserved and not used stay so until the
    /// room is dropped.
    ///
    /// # Errors
    /// [`SendRefused`]; nothing was queued then, and the room is as it was.
    pub fn send(&mut self, payload: Bytes, options: SendOptions) -> Result<Receipt, SendRefused> {
        let max = item_bytes_max(self.lane);
        if payload.len() > max {
            return Err(SendRefused::ItemTooLarge {
                lane: self.lane,
                asked: payload.len() as u64,
                max: max as u64,
            });
        }
        let SendOptions { deadline, label } = options;
        let (item, receipt) = Item::start(&mut self.reservation, payload, label, deadline)?;
        let pushed = self.peer.lane(self.lane).mailbox.push(LaneMail::Item(item));
        if let Err(LaneMail::Item(item)) = pushed {
            // The lane closed between the reservation's check and the push.
            item.end(|stage| crate::receipt::Outcome::ShutDown { stage });
        }
        Ok(receipt)
    }
}
