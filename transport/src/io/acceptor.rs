//! The listener and the sessions that peers dial. The accept loop only takes connections from the
//! socket; each handshake runs in a task of its own, bounded in number, per source and in time
//! (T12), so that a client that says nothing keeps nobody out; a source of many failures is looked at
//! no more than its share (`penalty`). A session's task is that same task
//! further on: it waits for the hello, puts itself in place of an older session of the same peer
//! and lane, and pumps until the end. A panic in it ends that session alone.
//!
//! The end of a peer's control session ends its bulk session (safety 18).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::error::SessionEnd;
use crate::id::{Boot, Incarnation, Lane, NodeIdentity, PeerId, Sequence, SessionId};
use crate::io::clock;
use crate::io::credentials::{Credentials, PeerCertificate, Presented};
use crate::io::events::{Direction, Event};
use crate::io::pump::{self, SessionCore, Wish};
use crate::io::shared::{InboundShared, LaneShared, PeerShared, Shared, SharedJudge};
use crate::io::standing::Standing;
use crate::io::tls::{Parties, TlsPipe};
use crate::limits::{
    BULK_UNSENT_BYTES_MAX, CLOSE_TIMEOUT, CONFIRM_INTERVAL, HANDSHAKES_MAX,
    HANDSHAKES_PER_SOURCE_MAX,
};
use crate::mailbox::Mailbox;
use crate::proto::confirm::Confirm;
use crate::proto::hello::Claims;
use crate::proto::inbound::{Accepted, InboundEvent, InboundSession, InboundStats};
use crate::proto::outbound::Transmitted;
use crate::reply_slot::{FromHost, Inbound, ReplySlot};
use crate::sync::lock;

/// How long the accept loop rests after the socket failed, as when descriptors run out.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// What the acceptor's task is started with.
pub(crate) struct Acceptor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) listener: TcpListener,
    pub(crate) inbound: Arc<dyn Inbound>,
    /// What the transport wants of its inbound sessions.
    pub(crate) wish: watch::Receiver<Wish>,
}

/// Connections in handshake, by source; each holds its place until it is dropped.
#[derive(Clone, Default)]
struct Handshakes(Arc<Mutex<HashMap<IpAddr, usize>>>);

struct Place {
    of: Handshakes,
    source: IpAddr,
    shared: Arc<Shared>,
}

impl Handshakes {
    fn enter(&self, source: IpAddr, shared: &Arc<Shared>) -> Option<Place> {
        let mut pending = lock(&self.0);
        let here = pending.get(&source).copied().unwrap_or(0);
        if here >= HANDSHAKES_PER_SOURCE_MAX || pending.values().sum::<usize>() >= HANDSHAKES_MAX {
            return None;
        }
        pending.insert(source, here + 1);
        shared.acceptor.handshakes.fetch_add(1, Ordering::Relaxed);
        Some(Place {
            of: self.clone(),
            source,
            shared: Arc::clone(shared),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared
            .acceptor
            .handshakes
            .fetch_sub(1, Ordering::Relaxed);
        let mut pending = lock(&self.of.0);
        if let Some(here) = pending.get_mut(&self.source) {
            *here -= 1;
            if *here == 0 {
                pending.remove(&self.source);
            }
        }
    }
}

impl Acceptor {
    /// Accepts until the transport shuts down, then waits for its sessions to end.
    pub(crate) async fn run(mut self) {
        let handshakes = Handshakes::default();
        let mut sessions = JoinSet::new();
        while *self.wish.borrow_and_update() == Wish::Run {
            tokio::select! {
                biased;
                _ = self.wish.changed() => {}
                Some(ended) = sessions.join_next() => report_panic(ended),
                taken = self.listener.accept() => match taken {
                    Ok((stream, remote)) => self.take(stream, remote, &handshakes, &mut sessions),
                    Err(error) => {
                        tracing::warn!("can't accept a connection: {error}");
                        tokio::time::sleep(ACCEPT_REST).await;
                    }
                },
            }
        }
        drop(self.listener);
        while let Some(ended) = sessions.join_next().await {
            report_panic(ended);
        }
    }

    fn take(
        &self,
        stream: TcpStream,
        remote: SocketAddr,
        handshakes: &Handshakes,
        sessions: &mut JoinSet<()>,
    ) {
        self.shared
            .acceptor
            .accepted
            .fetch_add(1, Ordering::Relaxed);
        if !lock(&self.shared.penalties).may_try(clock::now(), remote.ip()) {
            self.shared
                .acceptor
                .penalised
                .fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(place) = handshakes.enter(remote.ip(), &self.shared) else {
            self.shared
                .acceptor
                .crowded_out
                .fetch_add(1, Ordering::Relaxed);
            return;
        };
        let task = SessionTask {
            shared: Arc::clone(&self.shared),
            inbound: Arc::clone(&self.inbound),
            wish: self.wish.clone(),
            remote,
        };
        sessions.spawn(task.run(stream, place));
    }
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!("an inbound session's task failed: {error}");
    }
}

struct SessionTask {
    shared: Arc<Shared>,
    inbound: Arc<dyn Inbound>,
    wish: watch::Receiver<Wish>,
    remote: SocketAddr,
}

impl SessionTask {
    async fn run(self, stream: TcpStream, place: Place) {
        let mut wish = self.wish.clone();
        let handshake = self.handshake(stream);
        let handshaken = tokio::select! {
            biased;
            _ = wish.wait_for(|wish| *wish != Wish::Run) => Err((None, SessionEnd::ShutDown)),
            handshaken = handshake => handshaken,
        };
        match handshaken {
            Ok(handshaken) => self.serve(handshaken, place).await,
            Err((identity, end)) => self.turn_away(identity, end),
        }
    }

    fn turn_away(&self, identity: Option<NodeIdentity>, end: SessionEnd) {
        self.shared.acceptor.refused.fetch_add(1, Ordering::Relaxed);
        if end != SessionEnd::ShutDown {
            lock(&self.shared.penalties).on_failure(clock::now(), self.remote.ip());
            self.shared.tell(Event::Refused {
                remote: self.remote,
                identity,
                end,
            });
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
    ) -> Result<Handshaken, (Option<NodeIdentity>, SessionEnd)> {
        let limit = self.shared.config.tuning.handshake_timeout();
        stream
            .set_nodelay(true)
            .map_err(|error| (None, error.kind().into()))?;
        let credentials = self.shared.credentials();
        let pipe = TlsPipe::accept(stream, &credentials.accept(), limit)
            .await
            .map_err(|end| (None, end))?;
        let certified = pipe.peer().facts().identity.clone();
        if certified.cluster != self.shared.config.identity.cluster {
            let authority = lock(&self.shared.authority);
            if let Err(fault) = authority.check_certified(&certified) {
                return Err((Some(certified), fault.into()));
            }
        }
        Ok(Handshaken { pipe, credentials })
    }

    /// Waits for the hello and runs the session to its end.
    async fn serve(self, handshaken: Handshaken, place: Place) {
        let certified = handshaken.pipe.peer().facts().identity.clone();
        let mut driven = match self.accept_session(&handshaken, &certified, place) {
            Ok(driven) => driven,
            Err(end) => return self.turn_away(Some(certified), end),
        };
        let mut pipe = handshaken.pipe;
        let (session_wish, mut session_wishes) = watch::channel(Wish::Run);
        driven.session_wish = Some(session_wish.clone());
        let mut standing = Standing {
            wish: self.wish.clone(),
            revoked: None,
            control_up: None,
        };
        let (told_up, mut up) = watch::channel(false);
        driven.told_up = Some(told_up);
        let peer = driven.known.clone();
        // Until it is up the hello is refused, with the reason.
        let relay = async move {
            let early = standing.clone().relay(session_wish.clone());
            tokio::select! {
                never = early => match never {},
                _ = up.wait_for(|up| *up) => {}
            }
            standing.revoked = peer.map(|peer| peer.revoked.subscribe());
            standing.relay(session_wish).await
        };
        let end = tokio::select! {
            ended = pump::run(&mut pipe, &mut driven, &mut session_wishes, CLOSE_TIMEOUT) => {
                // Nobody wishes to hand over a session that the peer dialled.
                ended.err().unwrap_or(SessionEnd::Replaced)
            }
            never = relay => match never {},
        };
        match driven.up {
            Some(lane) => driven.leave(lane, &end),
            None => self.turn_away(Some(certified), end),
        }
    }

    fn accept_session(
        &self,
        handshaken: &Handshaken,
        certified: &NodeIdentity,
        place: Place,
    ) -> Result<Driven, SessionEnd> {
        let Handshaken { pipe, credentials } = handshaken;
        let known = self.shared.peers.get(&certified.node).cloned();
        if let Some(peer) = &known {
            // What it lost with another certificate it has again.
            self.shared
                .recheck(credentials, pipe.peer(), Presented::AsClient)?;
            if peer.restore_certificate() {
                self.shared.tell(Event::AuthorityRegained { peer: peer.id });
            }
        }
        let parties = Parties {
            cluster: self.shared.config.identity.cluster.clone(),
            dialler: certified.node,
            acceptor: self.shared.config.identity.node,
        };
        let session = self.shared.mint_session();
        let accepted = Accepted {
            // The hello says which lane it is; the core then holds the answer to that lane's.
            claims: self.shared.claims(certified.node, Lane::Bulk),
            certified: certified.clone(),
            keys: [
                pipe.keys(&parties, Lane::Control)?,
                pipe.keys(&parties, Lane::Bulk)?,
            ],
            session,
            hello_timeout: self.shared.config.tuning.handshake_timeout(),
        };
        Ok(Driven {
            shared: Arc::clone(&self.shared),
            inbound: Arc::clone(&self.inbound),
            peer: certified.node,
            known,
            session,
            certificate: pipe.peer().clone(),
            credentials: credentials.clone(),
            core: InboundSession::new(clock::now(), accepted),
            answers: Mailbox::default(),
            mail: Vec::new(),
            view: Arc::default(),
            place: Some(place),
            session_wish: None,
            told_up: None,
            up: None,
            confirmed: Confirm::default(),
            confirmed_at: None,
        })
    }
}

/// A connection whose certificate was accepted, and by which credentials.
struct Handshaken {
    pipe: TlsPipe,
    credentials: Credentials,
}

/// An accepted session's core, its host's answers, and where it stands.
struct Driven {
    shared: Arc<Shared>,
    inbound: Arc<dyn Inbound>,
    peer: PeerId,
    /// The peer as this node reaches it; `None` if it isn't configured.
    known: Option<Arc<PeerShared>>,
    session: SessionId,
    certificate: PeerCertificate,
    credentials: Credentials,
    core: InboundSession,
    answers: Mailbox<FromHost>,
    mail: Vec<FromHost>,
    view: Arc<Mutex<(usize, InboundStats)>>,
    place: Option<Place>,
    session_wish: Option<watch::Sender<Wish>>,
    told_up: Option<watch::Sender<bool>>,
    up: Option<Lane>,
    /// What the peer was told last, and when that was last looked at.
    confirmed: Confirm,
    confirmed_at: Option<Instant>,
}

impl Driven {
    /// The hello stands: takes the place of an older session of this peer and lane.
    ///
    /// # Errors
    /// Its certificate was believed when the handshake began and isn't any more.
    fn enter(&mut self, lane: Lane, claims: &Claims) -> Result<(), SessionEnd> {
        self.up = Some(lane);
        self.place = None;
        if let Some(told) = &self.told_up {
            told.send_replace(true);
        }
        let Some(wish) = self.session_wish.clone() else {
            return Ok(());
        };
        let (session, view) = (self.session, Arc::clone(&self.view));
        let (incarnation, boot) = (claims.incarnation, claims.boot);
        let mut inbound = lock(&self.shared.inbound);
        let older = inbound.get(&(self.peer, lane)).filter(|older| {
            // One after a restart has nothing to do with the one before.
            older.incarnation == incarnation && older.boot == boot
        });
        let entry = InboundShared {
            session,
            before: older.map(|older| older.session),
            incarnation,
            boot,
            certificate: self.certificate.clone(),
            wish,
            view,
        };
        let older = inbound.insert((self.peer, lane), entry);
        drop(inbound);
        if let Some(older) = older {
            older.wish.send_replace(Wish::End(SessionEnd::Replaced));
        }
        if let Some(peer) = &self.known {
            *lock(&peer.certificate) = Some(self.certificate.clone());
            // It calls, so it lives: no need to sit out a back-off towards it.
            peer.dial_now.send_modify(|count| *count += 1);
            self.renew_if_it_did(peer.lane(lane));
            retire(peer, incarnation, boot);
        }
        self.shared.tell(Event::SessionUp {
            peer: self.peer,
            lane,
            direction: Direction::Inbound,
            session,
            incarnation,
            boot,
        });
        self.review(lane);
        let judged = self
            .shared
            .recheck(&self.credentials, &self.certificate, Presented::AsClient);
        Ok(judged?)
    }

    /// A control session came or went: the link may be another.
    fn review(&self, lane: Lane) {
        if let (Some(peer), Lane::Control) = (&self.known, lane) {
            self.shared.review_link(peer, |_| ());
        }
    }

    /// Tells the peer what this node holds to it, when that changed, and at times how far the log
    /// is synced.
    fn confirm(&mut self, now: Instant) {
        let (Some(peer), Some(Lane::Control)) = (&self.known, self.up) else {
            return;
        };
        let confirm = self.shared.confirm(peer);
        let rested = self
            .confirmed_at
            .is_none_or(|at| now.saturating_duration_since(at) >= CONFIRM_INTERVAL);
        let news = confirm.held != self.confirmed.held
            || (rested && confirm.sync_number != self.confirmed.sync_number);
        if news {
            self.core.confirm(confirm);
            (self.confirmed, self.confirmed_at) = (confirm, Some(now));
        } else if rested {
            // To look again in a while.
            self.confirmed_at = Some(now);
        }
    }

    /// A peer that calls with another leaf than it shows where it is called has a new one, and an
    /// old one there, which may stand for less long: what it shows there is renewed as well.
    fn renew_if_it_did(&self, lane: &LaneShared) {
        let live = lock(&lane.live);
        if let Some(live) = live.as_ref()
            && !live.certificate.has_leaf_of(&self.certificate)
        {
            lane.renew.send_modify(|count| *count += 1);
        }
    }

    /// Whether frames may still be taken: neither the peer's authority nor the session has ended.
    fn stands(&self) -> Result<(), SessionEnd> {
        if self.up.is_none() {
            return Ok(());
        }
        let revoked = self.known.as_ref().and_then(|peer| *peer.revoked.borrow());
        if let Some(why) = revoked {
            return Err(why.into());
        }
        match self.session_wish.as_ref().map(|wish| wish.borrow().clone()) {
            Some(Wish::End(end)) => Err(end),
            Some(Wish::Run | Wish::Drain(_) | Wish::HandOver) | None => Ok(()),
        }
    }

    fn leave(&mut self, lane: Lane, end: &SessionEnd) {
        drop(self.answers.close());
        let mut inbound = lock(&self.shared.inbound);
        if let Some(peer) = self.shared.peers.get(&self.peer) {
            let mut received = lock(&peer.lane(lane).received);
            *received = received.plus(self.core.stats());
        }
        let key = (self.peer, lane);
        let in_place = inbound
            .get(&key)
            .is_some_and(|entry| entry.session == self.session);
        if in_place {
            inbound.remove(&key);
            match lane {
                Lane::Control => end_with_control(inbound.get(&(self.peer, Lane::Bulk)), end),
                // A control session that drains waits for this.
                Lane::Bulk => {
                    if let Some(control) = inbound.get(&(self.peer, Lane::Control)) {
                        control.wish.send_modify(|_| ());
                    }
                }
            }
        }
        drop(inbound);
        self.review(lane);
        self.shared.tell(Event::SessionDown {
            peer: self.peer,
            lane,
            direction: Direction::Inbound,
            session: self.session,
            end: end.clone(),
        });
    }
}

/// A peer that was started anew has nobody at the other end of the sessions that go to its earlier
/// life, whatever their sockets say: they end now, not when their frames grow old.
fn retire(peer: &PeerShared, incarnation: Incarnation, boot: Boot) {
    for lane in Lane::ALL {
        let live = lock(&peer.lane(lane).live);
        let Some(live) = live.as_ref() else { continue };
        let same = live.incarnation == incarnation;
        if same && live.boot >= boot {
            continue;
        }
        let (known, got) = (live.boot, boot);
        pump::end_session(&live.wish, SessionEnd::PeerRestarted { known, got });
    }
}

/// The end of control ends bulk, unless that is ending already; the peer's authority that of both.
fn end_with_control(bulk: Option<&InboundShared>, control: &SessionEnd) {
    let Some(bulk) = bulk else { return };
    let end = if let SessionEnd::Authority(why) = control {
        SessionEnd::Authority(*why)
    } else {
        SessionEnd::ControlEnded
    };
    bulk.wish.send_if_modified(|wish| {
        let runs = *wish == Wish::Run;
        if runs {
            *wish = Wish::End(end);
        }
        runs
    });
}

impl SessionCore for Driven {
    fn take_mail(&mut self, now: Instant) -> Result<(), SessionEnd> {
        let mut mail = std::mem::take(&mut self.mail);
        self.answers.drain(&mut mail);
        let mut rejected = None;
        for mail in mail.drain(..) {
            match mail {
                FromHost::Answer(frame, answer) => self.core.answer(frame, answer),
                FromHost::End(fault) => rejected = rejected.or(Some(fault)),
            }
        }
        self.mail = mail;
        self.confirm(now);
        rejected.map_or(Ok(()), |fault| Err(fault.into()))
    }

    fn poll_mail(&self, context: &mut Context<'_>) -> Poll<()> {
        self.answers.poll_ready(context)
    }

    fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        self.core.handle_bytes(now, bytes);
    }

    fn step(&mut self, now: Instant) -> Result<bool, SessionEnd> {
        // Before each message, not once a turn: nothing that is verified later is delivered (T9).
        self.stands()?;
        match self.core.step(now, &mut SharedJudge(&self.shared))? {
            None => return Ok(false),
            Some(InboundEvent::Up { lane, claims, .. }) => self.enter(lane, &claims)?,
            Some(InboundEvent::Late(_)) => {}
            Some(InboundEvent::Frame(frame)) => {
                let slot = ReplySlot::new(self.answers.clone(), frame.sequence());
                if let Some(lane) = self.up {
                    self.inbound.deliver(self.peer, lane, frame, slot);
                }
                // What the host answered at once goes out with this turn.
                self.take_mail(now)?;
            }
        }
        Ok(true)
    }

    fn poll_transmit(
        &mut self,
        _now: Instant,
        out: &mut BytesMut,
    ) -> Result<Option<Transmitted>, SessionEnd> {
        let was_one = self.core.poll_transmit_into(out)?;
        Ok(was_one.then_some(Transmitted { frame: None }))
    }

    fn unsent_bytes_max(&self) -> usize {
        BULK_UNSENT_BYTES_MAX
    }

    fn on_written(&mut self, _frame: Sequence) {}

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionEnd> {
        self.core.handle_timeout(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let look = match self.up {
            Some(Lane::Control) => self.confirmed_at.map(|at| at + CONFIRM_INTERVAL),
            Some(Lane::Bulk) | None => None,
        };
        [self.core.poll_timeout(), look].into_iter().flatten().min()
    }

    fn on_eof(&self) -> SessionEnd {
        self.core.on_eof()
    }

    /// A control session waits for its peer's bulk session, which would end with it.
    fn is_idle(&self) -> bool {
        let held_by_bulk = || {
            self.up == Some(Lane::Control)
                && lock(&self.shared.inbound).contains_key(&(self.peer, Lane::Bulk))
        };
        self.core.unanswered() == 0 && !held_by_bulk()
    }

    fn hold(&mut self) -> bool {
        false
    }

    fn close_message(&mut self, end: &SessionEnd) -> Option<Bytes> {
        self.core.close_message(&end.notice()?)
    }

    fn publish(&self) {
        *lock(&self.view) = (self.core.unanswered(), self.core.stats());
    }
}
