//! The dialler's end of one session: the hello and its answer, the two directions' order and
//! authenticity, the window, and the time limits. What the frames carry, and what becomes of it, is
//! the lane's business; a session ends before its lane does.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{LaneTimeouts, OutboundEvent};
use crate::error::{PeerIncompatible, PeerMisbehaved, PeerNotice, SessionEnd, TimedOut};
use crate::id::{Lane, NodeIdentity, Sequence};
use crate::proto::authority::Judge;
use crate::proto::deframer::{Deframer, RawMessage};
use crate::proto::fifo::{Stamper, Verified, Verifier};
use crate::proto::frame::{Kind, Side};
use crate::proto::hello::{
    ANSWER_SEQUENCE, Claims, HELLO_SEQUENCE, SessionKeys, agree, decode_answer, decode_notice,
    encode_claims, encode_notice,
};
use crate::proto::window::{Window, WindowBound};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    HelloDue,
    HelloSent,
    Up,
}

#[derive(Debug)]
pub(super) struct Session {
    lane: Lane,
    pub(super) phase: Phase,
    claims: Claims,
    certified: NodeIdentity,
    keys: SessionKeys,
    pub(super) deframer: Deframer,
    pub(super) frames: Stamper,
    replies: Verifier,
    pub(super) window: Window,
    /// Bytes of a frame's body, as agreed.
    pub(super) frame_bytes: usize,
    /// Items of a frame, as agreed.
    pub(super) frame_items: usize,
    hello_deadline: Instant,
    /// When a frame was last answered, or the first of those outstanding was begun.
    pub(super) last_answer: Instant,
    /// From a frame's beginning to its reply, smoothed.
    pub(super) round_trip: Option<Duration>,
}

/// What one reply counts for in the smoothed round trip, one in so many: as in TCP (RFC 6298).
const ROUND_TRIP_WEIGHT: u32 = 8;

impl Session {
    pub(super) fn new(
        now: Instant,
        lane: Lane,
        claims: Claims,
        certified: NodeIdentity,
        keys: SessionKeys,
        hello_limit: Duration,
    ) -> Self {
        Self {
            lane,
            phase: Phase::HelloDue,
            certified,
            deframer: Deframer::new(Side::Dialler, Some(lane)),
            frames: Stamper::new(keys.frame.clone(), Sequence::FIRST),
            replies: Verifier::new(keys.reply.clone(), Sequence::FIRST),
            // Nothing is begun before both hellos have said what the window is.
            window: Window::new(WindowBound::Frames(0)),
            frame_bytes: 0,
            frame_items: 0,
            hello_deadline: now + hello_limit,
            last_answer: now,
            round_trip: None,
            claims,
            keys,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// A frame was answered at `now`, so long after its beginning.
    pub(super) fn on_answer(&mut self, now: Instant, took: Duration) {
        self.last_answer = now;
        let smoothed =
            |so_far: Duration| (so_far * (ROUND_TRIP_WEIGHT - 1) + took) / ROUND_TRIP_WEIGHT;
        self.round_trip = Some(self.round_trip.map_or(took, smoothed));
    }

    /// Our hello, once.
    pub(super) fn hello(&mut self) -> Option<Bytes> {
        self.phase = Phase::HelloSent;
        let mut stamper = Stamper::new(self.keys.hello.clone(), HELLO_SEQUENCE);
        stamper.stamp_plain(Kind::Hello, self.lane, &encode_claims(&self.claims))
    }

    /// Takes the next whole message in order, if there is one.
    pub(super) fn next_message(&mut self) -> Result<Option<Verified<RawMessage>>, SessionEnd> {
        if self.frames.next().is_none() {
            return Err(SessionEnd::SequenceExhausted);
        }
        let Some(message) = self.deframer.next_message()? else {
            return Ok(None);
        };
        let verified = if self.is_up() {
            self.replies.verify(message)
        } else {
            Verifier::new(self.keys.hello.clone(), ANSWER_SEQUENCE).verify(message)
        };
        Ok(Some(verified?))
    }

    /// What came before the session is up: the answer to our hello, or a refusal.
    pub(super) fn on_hello_answer(
        &mut self,
        now: Instant,
        message: &Verified<RawMessage>,
        judge: &mut dyn Judge,
    ) -> Result<OutboundEvent, SessionEnd> {
        let kind = message.header().kind;
        match kind {
            Kind::HelloAnswer if self.phase == Phase::HelloSent => {}
            Kind::Refusal => return Err(SessionEnd::RefusedByPeer(decode_notice(message.body())?)),
            Kind::Hello
            | Kind::HelloAnswer
            | Kind::Frame
            | Kind::Reply
            | Kind::Confirm
            | Kind::Close => {
                return Err(PeerMisbehaved::UnexpectedKind { got: kind as u8 }.into());
            }
        }
        let answer = decode_answer(message.body())?;
        // Who it is comes before what it is set to: a stranger's settings are of no interest.
        judge.judge(&self.certified, &answer.claims)?;
        let agreed = agree(&self.claims, &answer.claims)?;
        if answer.version != agreed.version {
            return Err(PeerIncompatible::ProtocolVersions {
                ours_min: agreed.version,
                ours_max: agreed.version,
                theirs_min: answer.version,
                theirs_max: answer.version,
            }
            .into());
        }
        judge.remember(&answer.claims);
        self.window = Window::new(match self.lane {
            Lane::Control => WindowBound::Frames(agreed.limits.window_frames),
            Lane::Bulk => WindowBound::Bytes(agreed.limits.window_bytes),
        });
        self.frame_bytes = agreed.limits.frame_bytes as usize;
        self.frame_items = usize::from(agreed.limits.frame_items);
        self.phase = Phase::Up;
        self.last_answer = now;
        Ok(OutboundEvent::Up {
            session: answer.session,
            claims: answer.claims,
            agreed,
        })
    }

    /// The limit that runs out next, and when.
    pub(super) fn timeout(&self, limits: &LaneTimeouts) -> Option<(Instant, TimedOut)> {
        if !self.is_up() {
            let limit = limits.hello;
            return Some((self.hello_deadline, TimedOut::Hello { limit }));
        }
        let front = self.window.oldest()?;
        let oldest = front.sequence;
        Some(match self.lane {
            Lane::Control => {
                let limit = limits.reply;
                (front.begun + limit, TimedOut::Reply { oldest, limit })
            }
            Lane::Bulk => {
                let limit = limits.stall;
                (
                    self.last_answer + limit,
                    TimedOut::BulkStall { oldest, limit },
                )
            }
        })
    }

    /// The last message of a session that this side ends, where there is one to send.
    pub(super) fn close_message(&mut self, notice: &PeerNotice) -> Option<Bytes> {
        if !self.is_up() {
            return None;
        }
        self.frames
            .stamp_plain(Kind::Close, self.lane, &encode_notice(notice))
    }
}
