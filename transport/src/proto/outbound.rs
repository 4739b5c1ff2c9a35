//! The core of one lane towards one peer: what waits, what is outstanding on the session of the
//! moment, and what becomes of each item. It outlives its sessions: what waits stays queued under
//! its deadline while the peer is away, what was begun ends with the session that carried it.
//!
//! Inputs: [`OutboundLane::push`], `handle_*`, `on_*`. After each, [`OutboundLane::step`] takes one
//! message at a time, and [`OutboundLane::poll_transmit`] gives what may be begun now; called in
//! turns, each reply lets its one frame out before the next reply is looked at (T6).
//!
//! Invariants:
//! - L1: a frame is begun only in a slot of the window, and its number is given only then.
//! - L2: an item is in the outbox, in the window, or ended.
//! - L3: a frame that was begun keeps its slot until its reply, whatever became of its items.

mod batch;
mod session;

pub(in crate::proto) use batch::Batch;
use session::{Phase, Session};

use std::sync::Arc as StdArc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::budget::LaneAccount;
use crate::error::{PeerMisbehaved, PeerNotice, SessionEnd, TimedOut};
use crate::id::{Label, Lane, NodeIdentity, Sequence, SessionId};
use crate::limits::{HEADER_BYTES, TAG_BYTES};
use crate::proto::authority::Judge;
use crate::proto::confirm::{Confirm, decode_confirm};
use crate::proto::fifo::Verified;
use crate::proto::frame::{Answer, Header, Kind, frame_word, put_item};
use crate::proto::hello::{Agreed, Claims, SessionKeys, decode_notice};
use crate::proto::histogram::Histogram;
use crate::proto::occupancy::Occupancy;
use crate::proto::outbox::Outbox;
use crate::proto::source::{ControlSource, Waiting};
use crate::proto::timers::{ItemNumber, Timers};
use crate::proto::window::Outstanding;
use crate::receipt::{Item, Outcome, Stage};
use crate::sync::Arc;

/// Bytes to hand to TLS, whole and in order.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// One message.
    pub bytes: Bytes,
    /// The frame whose last byte is the last of these, to be named to
    /// [`OutboundLane::on_written`] once the socket has accepted it.
    pub frame: Option<Sequence>,
}

/// What was appended for TLS: one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmitted {
    /// As of [`Transmit`].
    pub frame: Option<Sequence>,
}

/// The time limits of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTimeouts {
    /// From the end of the handshake to the answer to the hello.
    pub hello: Duration,
    /// The age of the oldest outstanding frame (control).
    pub reply: Duration,
    /// The time without an answer while frames are outstanding (bulk).
    pub stall: Duration,
}

/// What a lane tells its shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboundEvent {
    /// The peer answered the hello: frames may go.
    Up {
        /// The session's name.
        session: SessionId,
        /// The peer's claims.
        claims: Claims,
        /// What holds on the session.
        agreed: Agreed,
    },
    /// One frame was answered.
    Answered(Sequence),
    /// The peer says which sessions it holds to this side.
    Confirmed(Confirm),
}

/// Why frames were begun when they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushes {
    /// A reply had freed the slot that something waited for.
    pub slot_freed: u64,
    /// A slot was free when it came.
    pub urgent: u64,
    /// Of both, frames that took no more because they were full.
    pub frame_full: u64,
}

/// How long things took and how full the window was, over all sessions.
#[derive(Debug, Default)]
pub struct OutboundTimes {
    /// From an item's arrival on the lane to the beginning of its frame.
    pub queue_delay: Histogram,
    /// From the beginning of a frame to its reply.
    pub turnaround: Histogram,
    /// Outstanding frames at the beginning of each frame, counted with it.
    pub occupancy: Occupancy,
}

/// What a lane has done over all its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboundStats {
    /// Frames begun.
    pub frames_begun: u64,
    /// Frames answered.
    pub frames_answered: u64,
    /// Bytes handed to TLS.
    pub bytes_begun: u64,
    /// Sessions whose hello was answered.
    pub sessions_up: u64,
    /// Why frames were begun.
    pub flushes: Flushes,
    /// Outstanding frames, summed over the frames begun, each counted with itself: divided by the
    /// frames begun it is the mean occupancy of the window.
    pub occupancy_sum: u64,
}

/// One lane towards one peer; see the head of this file.
pub struct OutboundLane {
    lane: Lane,
    account: LaneAccount,
    timeouts: LaneTimeouts,
    outbox: Outbox,
    timers: Timers,
    next_item: u64,
    session: Option<Session>,
    source: Option<StdArc<dyn ControlSource>>,
    source_waits: Waiting,
    /// Something waits that found no slot.
    blocked: bool,
    /// No frame is begun: the session of the moment is to be handed over.
    held: bool,
    last_reply: Option<Instant>,
    stats: OutboundStats,
    times: StdArc<OutboundTimes>,
}

impl std::fmt::Debug for OutboundLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboundLane")
            .field("lane", &self.lane)
            .field("session", &self.session)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// How the items of a session end with it.
fn outcome_of(end: &SessionEnd, stage: Stage) -> Outcome {
    match end {
        SessionEnd::Authority(_) | SessionEnd::Certificate(_) => Outcome::Revoked { stage },
        SessionEnd::ShutDown => Outcome::ShutDown { stage },
        SessionEnd::PeerMisbehaved(_)
        | SessionEnd::PeerIncompatible(_)
        | SessionEnd::Tls(_)
        | SessionEnd::TimedOut(_)
        | SessionEnd::RefusedByPeer(_)
        | SessionEnd::ClosedByPeer(_)
        | SessionEnd::Io { .. }
        | SessionEnd::SequenceExhausted
        | SessionEnd::Replaced
        | SessionEnd::PeerRestarted { .. }
        | SessionEnd::ControlEnded => Outcome::SessionLost { stage },
    }
}

impl OutboundLane {
    /// A lane with nothing on it and no session.
    #[must_use]
    pub fn new(lane: Lane, account: LaneAccount, timeouts: LaneTimeouts) -> Self {
        Self {
            lane,
            account,
            timeouts,
            outbox: Outbox::default(),
            timers: Timers::default(),
            next_item: 0,
            session: None,
            source: None,
            source_waits: Waiting::Nothing,
            blocked: false,
            held: false,
            last_reply: None,
            stats: OutboundStats::default(),
            times: StdArc::default(),
        }
    }

    /// Queues an item.
    pub fn push(&mut self, now: Instant, item: Arc<Item>) {
        let number = ItemNumber(self.next_item);
        self.next_item += 1;
        self.timers.insert(number, Arc::clone(&item));
        self.outbox.push(now, number, item);
        self.sweep();
    }

    /// Asks this source for content from now on, whenever it has some and a slot is free.
    pub fn set_source(&mut self, source: StdArc<dyn ControlSource>) {
        self.source = Some(source);
        self.source_waits = Waiting::More;
    }

    /// The source has something.
    pub const fn on_source_ready(&mut self) {
        self.source_waits = Waiting::More;
    }

    fn sweep(&mut self) {
        if self.outbox.may_need_sweep() {
            self.outbox
                .sweep(self.account.snapshot().queued.items, &mut self.timers);
        }
    }

    /// Starts a session over a fresh TLS connection to the holder of `certified`. Our hello is the
    /// next thing to transmit.
    pub fn begin_session(
        &mut self,
        now: Instant,
        claims: Claims,
        certified: NodeIdentity,
        keys: SessionKeys,
    ) {
        debug_assert!(self.session.is_none(), "one session at a time");
        self.held = false;
        let (lane, limit) = (self.lane, self.timeouts.hello);
        self.session = Some(Session::new(now, lane, claims, certified, keys, limit));
    }

    /// Takes in what the session read at `now`; [`OutboundLane::step`] acts on it.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if let Some(session) = &mut self.session {
            session.deframer.handle_bytes(now, bytes);
        }
    }

    /// Takes the next whole message, if there is one.
    ///
    /// # Errors
    /// Why the session must end; the caller then calls [`OutboundLane::end_session`].
    pub fn step(
        &mut self,
        now: Instant,
        judge: &mut dyn Judge,
    ) -> Result<Option<OutboundEvent>, SessionEnd> {
        let Some(session) = &mut self.session else {
            return Ok(None);
        };
        let Some(message) = session.next_message()? else {
            return Ok(None);
        };
        if session.is_up() {
            return self.on_message(now, &message);
        }
        let up = session.on_hello_answer(now, &message, judge)?;
        self.stats.sessions_up += 1;
        Ok(Some(up))
    }

    fn on_message(
        &mut self,
        now: Instant,
        message: &Verified<crate::proto::deframer::RawMessage>,
    ) -> Result<Option<OutboundEvent>, SessionEnd> {
        let Some(session) = &mut self.session else {
            unreachable!("stepped without a session")
        };
        let header = message.header();
        match header.kind {
            Kind::Reply => {}
            Kind::Close => return Err(SessionEnd::ClosedByPeer(decode_notice(message.body())?)),
            Kind::Confirm => {
                let confirm = decode_confirm(message.body())?;
                return Ok(Some(OutboundEvent::Confirmed(confirm)));
            }
            Kind::Hello | Kind::HelloAnswer | Kind::Refusal | Kind::Frame => {
                return Err(PeerMisbehaved::UnexpectedKind {
                    got: header.kind as u8,
                }
                .into());
            }
        }
        let frame = session.window.on_reply(header.answers())?;
        let items = u16::try_from(frame.items.len()).unwrap_or(u16::MAX);
        let answer = Answer::decode(header, message.body(), items);
        let turnaround = now.saturating_duration_since(frame.begun);
        session.on_answer(now, turnaround);
        self.last_reply = Some(now);
        self.stats.frames_answered += 1;
        self.times.turnaround.record(turnaround);
        let verdict = |at: usize| match &answer {
            Ok(Answer::Taken(bytes)) => Outcome::Replied(bytes.clone()),
            Ok(Answer::Refused(reason)) => Outcome::Refused(*reason),
            Ok(Answer::PerItem(verdicts)) => match verdicts.get(at) {
                Some(Ok(bytes)) => Outcome::Replied(bytes.clone()),
                Some(Err(reason)) => Outcome::Refused(*reason),
                None => Outcome::SessionLost {
                    stage: Stage::Written,
                },
            },
            Err(_) => Outcome::SessionLost {
                stage: Stage::Written,
            },
        };
        for (at, (number, item)) in frame.items.iter().enumerate() {
            self.timers.remove(*number, item);
            item.end(|_| verdict(at));
        }
        answer
            .map(|_| Some(OutboundEvent::Answered(frame.sequence)))
            .map_err(SessionEnd::from)
    }

    /// The next message that may be handed to TLS now. The caller takes one only while little is
    /// unsent: what waits here can still be shed.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let mut message = BytesMut::new();
        let Transmitted { frame } = self.poll_transmit_into(now, &mut message)?;
        let bytes = message.freeze();
        Some(Transmit { bytes, frame })
    }

    /// The same, appended to `out`.
    pub fn poll_transmit_into(&mut self, now: Instant, out: &mut BytesMut) -> Option<Transmitted> {
        self.expire(now);
        let session = self.session.as_mut()?;
        match session.phase {
            Phase::HelloDue => {
                let bytes = session.hello()?;
                self.stats.bytes_begun += bytes.len() as u64;
                out.extend_from_slice(&bytes);
                Some(Transmitted { frame: None })
            }
            Phase::HelloSent => None,
            Phase::Up => self.begin_frame(now, out),
        }
    }

    /// Begins no more frames on the session of the moment, so that another one can take over once
    /// the last is answered: what waits stays in order (see [`OutboundLane::is_settled`]).
    pub const fn hold(&mut self) {
        self.held = true;
    }

    /// Whether a session that is held has nothing outstanding any more.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.held && self.outstanding_frames() == 0
    }

    /// Begins the next frame, if something waits and a slot is free.
    fn begin_frame(&mut self, now: Instant, out: &mut BytesMut) -> Option<Transmitted> {
        if self.held {
            return None;
        }
        let sequence = self.session.as_ref()?.frames.next()?;
        let batch = self.gather(now)?;
        let session = self.session.as_mut()?;
        let at = out.len();
        out.reserve(HEADER_BYTES + batch.body_bytes + TAG_BYTES);
        let header = Header {
            kind: Kind::Frame,
            lane: self.lane,
            form: 0,
            body_bytes: u32::try_from(batch.body_bytes).unwrap_or(u32::MAX),
            sequence,
            word: frame_word(
                batch.deadline.saturating_duration_since(now),
                u16::try_from(batch.entries.len()).unwrap_or(u16::MAX),
            ),
        };
        header.encode(out);
        for payload in &batch.payloads {
            put_item(out, payload);
        }
        let sequence = session.frames.stamp_from(out, at)?;
        if session.window.len() == 0 {
            session.last_answer = now;
        }
        session.window.push(Outstanding {
            sequence,
            body_bytes: batch.body_bytes,
            begun: now,
            items: batch.entries,
        });
        self.stats.frames_begun += 1;
        self.stats.bytes_begun += (out.len() - at) as u64;
        self.stats.occupancy_sum += session.window.len() as u64;
        self.times.occupancy.record(session.window.len());
        let flushes = &mut self.stats.flushes;
        flushes.frame_full += u64::from(batch.full);
        if std::mem::take(&mut self.blocked) {
            flushes.slot_freed += 1;
        } else {
            flushes.urgent += 1;
        }
        Some(Transmitted {
            frame: Some(sequence),
        })
    }

    /// The socket accepted the last byte of this frame, and so of all before it.
    pub fn on_written(&mut self, frame: Sequence) {
        if let Some(session) = &mut self.session {
            for (_, item) in session.window.on_written(frame) {
                item.on_written();
            }
        }
    }

    /// Ends what is past its deadline; a frame that was begun keeps its slot.
    fn expire(&mut self, now: Instant) {
        while let Some(item) = self.timers.pop_due(now) {
            item.end(|stage| Outcome::Expired { stage });
        }
    }

    /// Acts on the time.
    ///
    /// # Errors
    /// The limit that ran out on the session, which must end.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionEnd> {
        self.expire(now);
        let Some((due, end)) = self.session_timeout() else {
            return Ok(());
        };
        if due <= now { Err(end.into()) } else { Ok(()) }
    }

    /// When [`OutboundLane::handle_timeout`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let session = self.session_timeout().map(|(due, _)| due);
        [self.timers.next(), session].into_iter().flatten().min()
    }

    fn session_timeout(&self) -> Option<(Instant, TimedOut)> {
        self.session.as_ref()?.timeout(&self.timeouts)
    }

    /// The connection ended; says how that is to be taken.
    #[must_use]
    pub fn on_eof(&self) -> SessionEnd {
        match self
            .session
            .as_ref()
            .map_or(0, |session| session.deframer.pending_bytes())
        {
            0 => std::io::ErrorKind::UnexpectedEof.into(),
            got => PeerMisbehaved::Truncated { got }.into(),
        }
    }

    /// The last message of a session that this side ends, where there is one to send.
    pub fn close_message(&mut self, notice: &PeerNotice) -> Option<Bytes> {
        self.session.as_mut()?.close_message(notice)
    }

    /// The session is gone: ends what it carried. What waits stays, unless this side shuts down or
    /// the peer may no longer be spoken to.
    pub fn end_session(&mut self, end: &SessionEnd) {
        self.held = false;
        if let Some(session) = self.session.take() {
            for frame in session.window.into_frames() {
                for (number, item) in frame.items {
                    self.timers.remove(number, &item);
                    item.end(|stage| outcome_of(end, stage));
                }
            }
        }
        if matches!(end, SessionEnd::Authority(_) | SessionEnd::ShutDown) {
            self.outbox.end_all(None, |stage| outcome_of(end, stage));
            self.outbox.sweep(0, &mut self.timers);
        }
    }

    /// Ends everything under `label` that hasn't ended; returns how many items that was.
    pub fn revoke(&mut self, label: Label) -> usize {
        if label == Label::NONE {
            return 0;
        }
        let revoked = |stage| Outcome::Revoked { stage };
        let mut ended = self.outbox.end_all(Some(label), revoked);
        if let Some(session) = &self.session {
            let items = session.window.frames().flat_map(|frame| &frame.items);
            ended += items
                .filter(|(_, i)| i.label() == label && i.end(revoked))
                .count();
        }
        self.sweep();
        ended
    }

    /// Frames begun and not answered on the session of the moment.
    #[must_use]
    pub fn outstanding_frames(&self) -> usize {
        self.session
            .as_ref()
            .map_or(0, |session| session.window.len())
    }

    /// Whether nothing waits and nothing is outstanding.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.outbox.is_idle() && self.outstanding_frames() == 0
    }

    /// Whether a hello was answered on the session of the moment.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_up)
    }

    /// From the beginning of a frame to its reply, smoothed over the session's latest replies.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.session.as_ref()?.round_trip
    }

    /// When the last reply came, on whichever session.
    #[must_use]
    pub const fn last_reply(&self) -> Option<Instant> {
        self.last_reply
    }

    /// How long things took; shared, so that others can read it while the lane runs.
    #[must_use]
    pub fn times(&self) -> StdArc<OutboundTimes> {
        StdArc::clone(&self.times)
    }

    /// What the lane has done.
    #[must_use]
    pub const fn stats(&self) -> OutboundStats {
        self.stats
    }
}

#[cfg(test)]
mod tests;
