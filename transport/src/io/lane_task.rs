//! The task of one lane towards one peer: dial, handshake, hello, pump, and again after a wait. A
//! session that is to be renewed, since certificates changed, is handed over: the new connection is
//! made while the old one serves, what was begun on the old one is answered, and the new one begins
//! with the next frame, so that nothing is lost and nothing overtakes. It
//! is started by the transport for each peer and lane and ends when the transport shuts down. If it
//! panics the lane is dead and its items run into their deadlines unseen; the transport's shutdown
//! reports it.
//!
//! Lanes depend on each other in one way only: bulk dials once control is up, and ends with it
//! (safety 18). Peers don't depend on each other at all.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::error::{PeerMisbehaved, SessionEnd, TimedOut};
use crate::id::{Boot, Incarnation, Lane, NodeIdentity, Sequence, SessionId};
use crate::io::clock;
use crate::io::credentials::{Credentials, PeerCertificate, Presented};
use crate::io::events::{Direction, Event, LaneState};
use crate::io::pump::{self, HandedOver, SessionCore, Wish};
use crate::io::shared::{LaneMail, LaneShared, LiveSession, PeerShared, Shared, SharedJudge};
use crate::io::standing::{Standing, changed};
use crate::io::tls::{Parties, TlsPipe};
use crate::limits::{
    BACKOFF_FIRST, BACKOFF_MAX, BULK_NOTSENT_LOWAT_BYTES, BULK_UNSENT_BYTES_MAX, CLOSE_TIMEOUT,
    CONTROL_UNSENT_BYTES_MAX, REFUSAL_GRACE_MAX, REFUSAL_GRACE_MIN,
};
use crate::proto::backoff::Backoff;
use crate::proto::outbound::{LaneTimeouts, OutboundEvent, OutboundLane, Transmitted};
use crate::sync::lock;

/// What a lane task is started with.
pub(crate) struct LaneTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) lane: Lane,
    /// What the transport wants of all its lanes.
    pub(crate) wish: watch::Receiver<Wish>,
    pub(crate) jitter_seed: u64,
}

/// Why a lane stopped waiting.
enum Woken {
    /// The time it waited for has come.
    Due,
    /// There was mail, or an item's deadline.
    Other,
}

impl LaneTask {
    /// Runs until the transport shuts down.
    pub(crate) async fn run(self) {
        let Self {
            shared,
            peer,
            lane,
            wish,
            jitter_seed,
        } = self;
        let timeouts = LaneTimeouts {
            hello: shared.config.tuning.handshake_timeout(),
            reply: shared.config.tuning.reply_timeout(),
            stall: shared.config.tuning.bulk_stall(),
        };
        let account = peer.lane(lane).account.clone();
        let core = OutboundLane::new(lane, account, timeouts);
        lock(&peer.lane(lane).view).times = core.times();
        let standing = Standing {
            wish,
            revoked: Some(peer.revoked.subscribe()),
            control_up: (lane == Lane::Bulk).then(|| peer.control_up.subscribe()),
        };
        let dial_now = peer.dial_now.subscribe();
        let driven = Driven {
            shared,
            peer,
            lane,
            core,
            mail: Vec::new(),
            up: None,
            incarnation: None,
            begun: None,
            retired: None,
        };
        let backoff = |seed| Backoff::new(BACKOFF_FIRST, BACKOFF_MAX, seed);
        Runner {
            driven,
            backoff: backoff(jitter_seed),
            renewal_backoff: backoff(jitter_seed.rotate_left(32)),
            standing,
            dial_now,
            proven: None,
        }
        .run()
        .await;
    }
}

/// The lane's core, its mail, and the session that is up.
struct Driven {
    shared: Arc<Shared>,
    peer: Arc<PeerShared>,
    lane: Lane,
    core: OutboundLane,
    mail: Vec<LaneMail>,
    up: Option<SessionId>,
    /// The data directory of the peer that the session of the moment, or the last one, goes to.
    incarnation: Option<Incarnation>,
    /// What the session of the moment was begun with.
    begun: Option<Begun>,
    /// The connection whose session was handed over, until the new one is up: the peer may not
    /// learn of its end before it has heard of the other.
    retired: Option<TlsPipe>,
}

/// What a session was begun with, for whoever may have to judge or end it.
struct Begun {
    certificate: PeerCertificate,
    credentials: Credentials,
    wish: watch::Sender<Wish>,
}

struct Runner {
    driven: Driven,
    backoff: Backoff,
    /// Of dials that are to renew a session while that lives on.
    renewal_backoff: Backoff,
    standing: Standing,
    dial_now: watch::Receiver<u64>,
    /// The connection that proved that the peer has a good certificate again.
    proven: Option<Connected>,
}

/// A connection to the peer, proven to be the peer's, and by which credentials.
struct Connected {
    pipe: TlsPipe,
    certified: NodeIdentity,
    credentials: Credentials,
    /// Reasons to renew it: those that came since it was dialled are news.
    reasons: watch::Receiver<u64>,
}

impl Runner {
    async fn run(&mut self) {
        loop {
            let end = match self.standing.wish() {
                Wish::Run | Wish::HandOver => self.one_session().await,
                Wish::Drain(_) => SessionEnd::ShutDown,
                Wish::End(end) => end,
            };
            self.driven.on_end(&end);
            if end == SessionEnd::ShutDown {
                break;
            } else if matches!(end, SessionEnd::Authority(_)) {
                self.wait_for_authority().await;
                if self.standing.is_stopping() {
                    break;
                }
            } else {
                // Bulk follows control and needs no back-off of its own.
                let follows = end == SessionEnd::ControlEnded;
                let wait = if follows {
                    None
                } else {
                    Some(self.backoff.on_failure())
                };
                self.wait_to_dial(wait.map(|wait| clock::now() + wait))
                    .await;
            }
        }
        for mail in self.driven.lane_shared().mailbox.close() {
            if let LaneMail::Item(item) = mail {
                self.driven.core.push(clock::now(), item);
            }
        }
        self.driven.core.end_session(&SessionEnd::ShutDown);
        self.driven.set_state(LaneState::Closed);
        self.driven.publish();
    }

    /// Dials and runs one session to its end.
    async fn one_session(&mut self) -> SessionEnd {
        self.driven.set_state(LaneState::Connecting);
        let connected = match self.proven.take() {
            Some(proven) => Ok(proven),
            None => self.connect().await,
        };
        let mut connected = match connected {
            Ok(connected) => connected,
            Err(end) => return end,
        };
        loop {
            let ended = self.serve(&mut connected).await;
            if self.driven.up.is_some() {
                self.backoff.reset();
            }
            match ended {
                Ok(next) => {
                    self.driven.hand_over();
                    let old = std::mem::replace(&mut connected, next);
                    self.driven.retired = Some(old.pipe);
                }
                Err(end) => return end,
            }
        }
    }

    /// Runs a session over a connection, to its end or until another connection is to take over.
    async fn serve(&mut self, connected: &mut Connected) -> Result<Connected, SessionEnd> {
        let (session_wish, mut session_wishes) = watch::channel(Wish::Run);
        self.driven.begin(connected, session_wish.clone())?;
        let (shared, peer) = (
            Arc::clone(&self.driven.shared),
            Arc::clone(&self.driven.peer),
        );
        let lane = self.driven.lane;
        let reasons = connected.reasons.clone();
        let renewed = renew(&shared, &peer, lane, reasons, &mut self.renewal_backoff);
        let relay = self.standing.clone().relay(session_wish.clone());
        let pumped = pump::run(
            &mut connected.pipe,
            &mut self.driven,
            &mut session_wishes,
            CLOSE_TIMEOUT,
        );
        tokio::pin!(renewed, relay, pumped);
        let mut next = None;
        loop {
            tokio::select! {
                ended = &mut pumped => {
                    let HandedOver = ended?;
                    return next.ok_or(SessionEnd::Replaced);
                }
                never = &mut relay => match never {},
                connected = &mut renewed, if next.is_none() => {
                    next = Some(connected);
                    session_wish.send_if_modified(|wish| {
                        let runs = *wish == Wish::Run;
                        if runs {
                            *wish = Wish::HandOver;
                        }
                        runs
                    });
                }
            }
        }
    }

    /// Makes a connection, unless it is no longer wanted; deadlines run on meanwhile.
    async fn connect(&mut self) -> Result<Connected, SessionEnd> {
        let shared = Arc::clone(&self.driven.shared);
        let peer = Arc::clone(&self.driven.peer);
        let connecting = connect(&shared, &peer, self.driven.lane);
        let unwanted = self.standing.clone().until_unwanted();
        tokio::pin!(connecting, unwanted);
        loop {
            tokio::select! {
                biased;
                end = &mut unwanted => return Err(end),
                connected = &mut connecting => return connected,
                _ = self.driven.tend(None) => {}
            }
        }
    }

    /// Waits for this time, or until control is up, or for a reason to dial sooner.
    async fn wait_to_dial(&mut self, until: Option<Instant>) {
        self.driven.set_state(LaneState::Down);
        loop {
            let due = match self.standing.wish() {
                Wish::Run | Wish::HandOver if until.is_none_or(|until| until <= clock::now()) => {
                    return;
                }
                Wish::Run | Wish::HandOver => until,
                Wish::End(SessionEnd::ControlEnded) => None,
                Wish::Drain(_) | Wish::End(_) => return,
            };
            tokio::select! {
                biased;
                woken = self.driven.tend(due) => match woken {
                    Woken::Due => return,
                    Woken::Other => {}
                },
                () = self.standing.changed() => {}
                () = changed(&mut self.dial_now) => {
                    self.backoff.reset();
                    if self.standing.wish() == Wish::Run {
                        return;
                    }
                }
            }
        }
    }

    /// The peer may not be spoken to: whatever comes is ended, until that changes. One that lost its
    /// certificate is dialled now and then: it may have another.
    async fn wait_for_authority(&mut self) {
        self.driven.set_state(LaneState::Revoked);
        let (shared, peer) = (
            Arc::clone(&self.driven.shared),
            Arc::clone(&self.driven.peer),
        );
        let lane = self.driven.lane;
        self.backoff.reset();
        let first = self.backoff.on_failure();
        let proof = prove(
            &shared,
            &peer,
            lane,
            &mut self.backoff,
            first,
            &mut self.dial_now,
        );
        tokio::pin!(proof);
        while let Wish::End(end @ SessionEnd::Authority(why)) = self.standing.wish() {
            self.driven.take_mail_between_sessions();
            self.driven.core.end_session(&end);
            if self.standing.is_stopping() {
                return;
            }
            // Control's proof is enough for both.
            let may_prove = why.is_of_certificate() && lane == Lane::Control;
            tokio::select! {
                biased;
                () = self.standing.changed() => {}
                connected = &mut proof, if may_prove => {
                    if peer.restore_certificate() {
                        shared.tell(Event::AuthorityRegained { peer: peer.id });
                    }
                    self.proven = Some(connected);
                    return;
                }
                _ = self.driven.tend(None) => {}
            }
        }
    }
}

/// Waits for a reason to renew a session, then dials until there is another connection.
async fn renew(
    shared: &Shared,
    peer: &PeerShared,
    lane: Lane,
    mut reasons: watch::Receiver<u64>,
    backoff: &mut Backoff,
) -> Connected {
    changed(&mut reasons).await;
    backoff.reset();
    loop {
        match connect_accepted(shared, peer, lane).await {
            Ok(connected) => return connected,
            Err(end) => dial_failed(shared, peer, lane, end),
        }
        tokio::select! {
            () = clock::sleep_until(Some(clock::now() + backoff.on_failure())) => {}
            () = changed(&mut reasons) => backoff.reset(),
        }
    }
}

/// A connection, and time for the peer to refuse our certificate, which it does after the handshake
/// looks finished here: a good session is not given up for one that won't come up.
async fn connect_accepted(
    shared: &Shared,
    peer: &PeerShared,
    lane: Lane,
) -> Result<Connected, SessionEnd> {
    let began = clock::now();
    let mut connected = connect(shared, peer, lane).await?;
    let took = clock::now().saturating_duration_since(began);
    let grace = (took * 3).clamp(REFUSAL_GRACE_MIN, REFUSAL_GRACE_MAX);
    connected.pipe.listen(grace).await?;
    Ok(connected)
}

/// Dials a peer that lost its certificate until it shows a good one.
async fn prove(
    shared: &Shared,
    peer: &PeerShared,
    lane: Lane,
    backoff: &mut Backoff,
    first: Duration,
    dial_now: &mut watch::Receiver<u64>,
) -> Connected {
    let mut wait = first;
    loop {
        tokio::select! {
            () = clock::sleep_until(Some(clock::now() + wait)) => {}
            () = changed(dial_now) => backoff.reset(),
        }
        match connect(shared, peer, lane).await {
            Ok(connected) => return connected,
            Err(end) => lock(&peer.lane(lane).view).last_end = Some(end),
        }
        wait = backoff.on_failure();
    }
}

fn dial_failed(shared: &Shared, peer: &PeerShared, lane: Lane, end: SessionEnd) {
    shared.tell(Event::DialFailed {
        peer: peer.id,
        lane,
        address: peer.address.clone(),
        end,
    });
}

/// A connection to the peer, proven to be that peer's.
async fn connect(shared: &Shared, peer: &PeerShared, lane: Lane) -> Result<Connected, SessionEnd> {
    let limit = shared.config.tuning.handshake_timeout();
    let certified = NodeIdentity {
        cluster: shared.config.identity.cluster.clone(),
        node: peer.id,
    };
    let reasons = peer.lane(lane).renew.subscribe();
    let stream = dial(&peer.address, lane, limit).await?;
    let credentials = shared.credentials();
    let pipe = TlsPipe::connect(stream, &credentials.dial(&certified), limit).await?;
    shared.recheck(&credentials, pipe.peer(), Presented::AsServer)?;
    Ok(Connected {
        pipe,
        certified,
        credentials,
        reasons,
    })
}

/// Makes a TCP connection, with the options of its lane.
async fn dial(address: &str, lane: Lane, limit: Duration) -> Result<TcpStream, SessionEnd> {
    let stream = match tokio::time::timeout(limit, TcpStream::connect(address)).await {
        Err(_) => return Err(TimedOut::Connect { limit }.into()),
        Ok(Err(error)) => return Err(error.kind().into()),
        Ok(Ok(stream)) => stream,
    };
    set_options(&stream, lane).map_err(|error| SessionEnd::from(error.kind()))?;
    Ok(stream)
}

/// No delay on either lane; on bulk the kernel holds little that was not sent, so that what waits
/// can still be shed and a stalled peer is seen at once.
fn set_options(stream: &TcpStream, lane: Lane) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if lane == Lane::Bulk {
        socket2::SockRef::from(stream).set_tcp_notsent_lowat(BULK_NOTSENT_LOWAT_BYTES)?;
    }
    Ok(())
}

impl Driven {
    fn lane_shared(&self) -> &LaneShared {
        self.peer.lane(self.lane)
    }

    /// Starts the core's session on a fresh connection.
    fn begin(
        &mut self,
        connected: &Connected,
        wish: watch::Sender<Wish>,
    ) -> Result<(), SessionEnd> {
        let Connected {
            pipe,
            certified,
            credentials,
            reasons: _,
        } = connected;
        let parties = Parties {
            cluster: certified.cluster.clone(),
            dialler: self.shared.config.identity.node,
            acceptor: certified.node,
        };
        let keys = pipe.keys(&parties, self.lane)?;
        let claims = self.shared.claims(self.peer.id, self.lane);
        self.core
            .begin_session(clock::now(), claims, certified.clone(), keys);
        self.begun = Some(Begun {
            certificate: pipe.peer().clone(),
            credentials: credentials.clone(),
            wish,
        });
        Ok(())
    }

    /// The session of the moment has nothing outstanding, and another one is begun in its place. It
    /// stays the one that is up until the other is.
    fn hand_over(&mut self) {
        self.core.end_session(&SessionEnd::Replaced);
        *lock(&self.lane_shared().live) = None;
    }

    /// Whether replies may still be taken: neither the peer's authority nor the session has ended.
    fn stands(&self) -> Result<(), SessionEnd> {
        if let Some(why) = *self.peer.revoked.borrow() {
            return Err(why.into());
        }
        match self.begun.as_ref().map(|begun| begun.wish.borrow().clone()) {
            Some(Wish::End(end @ SessionEnd::Certificate(_))) => Err(end),
            Some(Wish::Run | Wish::Drain(_) | Wish::HandOver | Wish::End(_)) | None => Ok(()),
        }
    }

    /// Takes mail where there is no session that it could end.
    fn take_mail_between_sessions(&mut self) {
        drop(self.take_mail(clock::now()));
    }

    /// Keeps mail and deadlines going while there is no session.
    async fn tend(&mut self, until: Option<Instant>) -> Woken {
        self.take_mail_between_sessions();
        // Without a session there is nothing that could end.
        drop(self.core.handle_timeout(clock::now()));
        self.publish();
        let due = [self.core.poll_timeout(), until]
            .into_iter()
            .flatten()
            .min();
        tokio::select! {
            biased;
            () = std::future::poll_fn(|context| self.poll_mail(context)) => Woken::Other,
            () = clock::sleep_until(due) => match until {
                Some(until) if until <= clock::now() => Woken::Due,
                _ => Woken::Other,
            },
        }
    }

    fn set_state(&self, state: LaneState) {
        lock(&self.lane_shared().view).state = state;
    }

    /// The session, or the attempt at one, has ended: ends its items first, then says so.
    fn on_end(&mut self, end: &SessionEnd) {
        self.take_mail_between_sessions();
        self.core.end_session(end);
        *lock(&self.lane_shared().live) = None;
        (self.begun, self.retired) = (None, None);
        if self.lane == Lane::Control {
            self.peer
                .control_up
                .send_if_modified(|up| std::mem::replace(up, false));
        }
        let up = self.up.take();
        if up.is_some() {
            self.shared.hold(&self.peer, self.lane, None);
        }
        let (peer, lane) = (self.peer.id, self.lane);
        // Not dialling for the sake of something else is no failure of the peer's.
        let unwanted = matches!(
            end,
            SessionEnd::ShutDown | SessionEnd::ControlEnded | SessionEnd::Authority(_)
        );
        let mut view = lock(&self.lane_shared().view);
        view.session = None;
        view.incarnation = None;
        view.boot = None;
        view.round_trip = None;
        view.window_frames = 0;
        if up.is_some() || !unwanted {
            view.last_end = Some(end.clone());
        }
        if up.is_none() && !unwanted {
            view.failures += 1;
        }
        drop(view);
        self.publish();
        let end = end.clone();
        match up {
            Some(session) => {
                let direction = Direction::Outbound;
                self.shared.tell(Event::SessionDown {
                    peer,
                    lane,
                    direction,
                    session,
                    end,
                });
            }
            None if unwanted => {}
            None => dial_failed(&self.shared, &self.peer, lane, end),
        }
    }

    fn on_event(&mut self, event: OutboundEvent) -> Result<(), SessionEnd> {
        let (session, claims, agreed) = match event {
            OutboundEvent::Up {
                session,
                claims,
                agreed,
            } => (session, claims, agreed),
            OutboundEvent::Confirmed(confirm) => {
                if let (Some(to), Lane::Control) = (self.incarnation, self.lane) {
                    self.shared.on_confirm(&self.peer, to, confirm);
                }
                return Ok(());
            }
            OutboundEvent::Answered(_) => return Ok(()),
        };
        let old = self.up.replace(session);
        self.incarnation = Some(claims.incarnation);
        self.retired = None;
        let mut view = lock(&self.lane_shared().view);
        view.state = LaneState::Up;
        view.session = Some(session);
        view.incarnation = Some(claims.incarnation);
        view.boot = Some(claims.boot);
        view.failures = 0;
        view.window_frames = match self.lane {
            Lane::Control => agreed.limits.window_frames,
            Lane::Bulk => 0,
        };
        drop(view);
        if self.lane == Lane::Control {
            self.peer.control_up.send_replace(true);
        }
        self.shared.tell(Event::SessionUp {
            peer: self.peer.id,
            lane: self.lane,
            direction: Direction::Outbound,
            session,
            incarnation: claims.incarnation,
            boot: claims.boot,
        });
        // Told in this order, since the link was never down.
        if let Some(session) = old {
            self.shared.tell(Event::SessionDown {
                peer: self.peer.id,
                lane: self.lane,
                direction: Direction::Outbound,
                session,
                end: SessionEnd::Replaced,
            });
        }
        self.shared.hold(&self.peer, self.lane, Some(session));
        self.register(claims.incarnation, claims.boot)
    }

    /// The peer may have called with a new leaf while this session, dialled before it had one, wasn't
    /// there yet to be compared.
    fn renew_if_renewed_meanwhile(&self, shown: &PeerCertificate) {
        let inbound = lock(&self.shared.inbound);
        let called = inbound.get(&(self.peer.id, self.lane));
        if called.is_some_and(|called| shown.is_renewed_by(&called.certificate)) {
            self.lane_shared().renew.send_modify(|count| *count += 1);
        }
    }

    /// Puts the session where whoever judges certificates finds it.
    ///
    /// # Errors
    /// Its certificate was believed when the handshake began and isn't any more.
    fn register(&self, incarnation: Incarnation, boot: Boot) -> Result<(), SessionEnd> {
        let Some(Begun {
            certificate,
            credentials,
            wish,
        }) = &self.begun
        else {
            return Ok(());
        };
        *lock(&self.peer.certificate) = Some(certificate.clone());
        *lock(&self.lane_shared().live) = Some(LiveSession {
            incarnation,
            boot,
            certificate: certificate.clone(),
            wish: wish.clone(),
        });
        self.renew_if_renewed_meanwhile(certificate);
        Ok(self
            .shared
            .recheck(credentials, certificate, Presented::AsServer)?)
    }
}

impl SessionCore for Driven {
    fn take_mail(&mut self, now: Instant) -> Result<(), SessionEnd> {
        let mut mail = std::mem::take(&mut self.mail);
        self.lane_shared().mailbox.drain(&mut mail);
        let mut rejected = None;
        for mail in mail.drain(..) {
            match mail {
                LaneMail::Item(item) => self.core.push(now, item),
                LaneMail::Revoke(label) => {
                    self.core.revoke(label);
                }
                LaneMail::Source(source) => self.core.set_source(source),
                LaneMail::Reject(fault) => rejected = rejected.or(Some(fault)),
            }
        }
        self.mail = mail;
        if self
            .lane_shared()
            .source_ready
            .swap(false, Ordering::AcqRel)
        {
            self.core.on_source_ready();
        }
        match rejected {
            Some(fault) => Err(PeerMisbehaved::AnswerRejected { fault }.into()),
            None => Ok(()),
        }
    }

    fn poll_mail(&self, context: &mut Context<'_>) -> Poll<()> {
        self.lane_shared().mailbox.poll_ready(context)
    }

    fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        self.core.handle_bytes(now, bytes);
    }

    fn step(&mut self, now: Instant) -> Result<bool, SessionEnd> {
        // Before each message, not once a turn: no reply that is verified later counts (T9).
        self.stands()?;
        let event = self.core.step(now, &mut SharedJudge(&self.shared))?;
        let was_one = event.is_some();
        if let Some(event) = event {
            self.on_event(event)?;
        }
        Ok(was_one)
    }

    fn poll_transmit(
        &mut self,
        now: Instant,
        out: &mut BytesMut,
    ) -> Result<Option<Transmitted>, SessionEnd> {
        Ok(self.core.poll_transmit_into(now, out))
    }

    fn unsent_bytes_max(&self) -> usize {
        match self.lane {
            Lane::Control => CONTROL_UNSENT_BYTES_MAX,
            Lane::Bulk => BULK_UNSENT_BYTES_MAX,
        }
    }

    fn on_written(&mut self, frame: Sequence) {
        self.core.on_written(frame);
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionEnd> {
        self.core.handle_timeout(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.core.poll_timeout()
    }

    fn on_eof(&self) -> SessionEnd {
        self.core.on_eof()
    }

    fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    fn hold(&mut self) -> bool {
        self.core.hold();
        self.core.is_settled()
    }

    fn close_message(&mut self, end: &SessionEnd) -> Option<Bytes> {
        self.core.close_message(&end.notice()?)
    }

    fn publish(&self) {
        let mut view = lock(&self.lane_shared().view);
        view.outstanding_frames = self.core.outstanding_frames();
        view.round_trip = self.core.round_trip();
        view.last_reply = self.core.last_reply();
        view.stats = self.core.stats();
    }
}
