//! The task of one lane towards one peer: dial, handshake, hello, pump, and again after a wait. It
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
use crate::id::{Lane, NodeIdentity, Sequence, SessionId};
use crate::io::clock;
use crate::io::events::{Direction, Event, LaneState};
use crate::io::pump::{self, SessionCore, Wish};
use crate::io::shared::{LaneMail, LaneShared, PeerShared, Shared, SharedJudge};
use crate::io::standing::{Standing, changed};
use crate::io::tls::{Parties, TlsPipe};
use crate::limits::{
    BACKOFF_FIRST, BACKOFF_MAX, BULK_NOTSENT_LOWAT_BYTES, BULK_UNSENT_BYTES_MAX, CLOSE_TIMEOUT,
    CONTROL_UNSENT_BYTES_MAX,
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
        };
        let backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX, jitter_seed);
        Runner {
            driven,
            backoff,
            standing,
            dial_now,
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
}

struct Runner {
    driven: Driven,
    backoff: Backoff,
    standing: Standing,
    dial_now: watch::Receiver<u64>,
}

impl Runner {
    async fn run(&mut self) {
        loop {
            let end = match self.standing.wish() {
                Wish::Run => self.one_session().await,
                Wish::Drain(_) => SessionEnd::ShutDown,
                Wish::End(end) => end,
            };
            self.driven.on_end(&end);
            if end == SessionEnd::ShutDown {
                break;
            } else if matches!(end, SessionEnd::Authority(_)) {
                self.wait_for_authority().await;
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
        let (mut pipe, certified) = match self.connect().await {
            Ok(connected) => connected,
            Err(end) => return end,
        };
        if let Err(end) = self.driven.begin(&pipe, certified) {
            return end;
        }
        let (session_wish, mut session_wishes) = watch::channel(Wish::Run);
        let relay = self.standing.clone().relay(session_wish);
        let pumped = pump::run(
            &mut pipe,
            &mut self.driven,
            &mut session_wishes,
            CLOSE_TIMEOUT,
        );
        let end = tokio::select! {
            end = pumped => end,
            never = relay => match never {},
        };
        if self.driven.up.is_some() {
            self.backoff.reset();
        }
        end
    }

    /// Makes a connection, unless it is no longer wanted; deadlines run on meanwhile.
    async fn connect(&mut self) -> Result<(TlsPipe, NodeIdentity), SessionEnd> {
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
                Wish::Run if until.is_none_or(|until| until <= clock::now()) => return,
                Wish::Run => until,
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

    /// The peer may not be spoken to: whatever comes is ended, until that changes.
    async fn wait_for_authority(&mut self) {
        self.driven.set_state(LaneState::Revoked);
        while let Wish::End(end @ SessionEnd::Authority(_)) = self.standing.wish() {
            self.driven.take_mail_between_sessions();
            self.driven.core.end_session(&end);
            tokio::select! {
                biased;
                () = self.standing.changed() => {}
                _ = self.driven.tend(None) => {}
            }
        }
    }
}

/// A connection to the peer, proven to be that peer's.
async fn connect(
    shared: &Shared,
    peer: &PeerShared,
    lane: Lane,
) -> Result<(TlsPipe, NodeIdentity), SessionEnd> {
    let limit = shared.config.tuning.handshake_timeout();
    let wanted = NodeIdentity {
        cluster: shared.config.identity.cluster.clone(),
        node: peer.id,
    };
    let stream = dial(&peer.address, lane, limit).await?;
    let dial = shared.credentials().dial(&wanted);
    let pipe = TlsPipe::connect(stream, &dial, limit).await?;
    Ok((pipe, wanted))
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
    fn begin(&mut self, pipe: &TlsPipe, certified: NodeIdentity) -> Result<(), SessionEnd> {
        let parties = Parties {
            cluster: certified.cluster.clone(),
            dialler: self.shared.config.identity.node,
            acceptor: certified.node,
        };
        let keys = pipe.keys(&parties, self.lane)?;
        let claims = self.shared.claims(self.peer.id, self.lane);
        self.core
            .begin_session(clock::now(), claims, certified, keys);
        Ok(())
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
        if self.lane == Lane::Control {
            self.peer
                .control_up
                .send_if_modified(|up| std::mem::replace(up, false));
        }
        let up = self.up.take();
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
            None => {
                let address = self.peer.address.clone();
                self.shared.tell(Event::DialFailed {
                    peer,
                    lane,
                    address,
                    end,
                });
            }
        }
    }

    fn on_event(&mut self, event: OutboundEvent) {
        let OutboundEvent::Up {
            session,
            claims,
            agreed,
        } = event
        else {
            return;
        };
        self.up = Some(session);
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
        let event = self
            .core
            .step(now, &mut SharedJudge(&self.shared.authority))?;
        let was_one = event.is_some();
        if let Some(event) = event {
            self.on_event(event);
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
