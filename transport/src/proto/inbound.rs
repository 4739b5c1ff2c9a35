//! The core of one accepted session: the peer's hello, its frames in order, and a reply to each in
//! the same order. Which frame is answered when is the host's choice, from any thread; the replies
//! leave in the frames' order all the same (T11), each as soon as all before it are answered.
//!
//! A reply needs no slot and no budget (safety 17): frames not yet answered are bounded by the
//! window that both hellos agreed on, and a peer that exceeds it is cut off.
//!
//! Invariants: I1: slots are the consecutive sequences from the oldest unanswered frame to the
//! newest. I2: a slot is answered at most once, and a reply leaves only when all before it have.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::error::{PeerMisbehaved, PeerNotice, RefusalReason, SessionEnd, TimedOut};
use crate::id::{Lane, NodeIdentity, Sequence, SessionId};
use crate::proto::authority::Judge;
use crate::proto::confirm::{Confirm, encode_confirm};
use crate::proto::deframer::{Deframer, RawMessage};
use crate::proto::fifo::{Frame, Stamper, Verified, Verifier};
use crate::proto::frame::{Answer, Header, Kind, Side, frame_body_bytes_max};
use crate::proto::hello::{
    ANSWER_SEQUENCE, Agreed, Claims, HELLO_SEQUENCE, HelloAnswer, SessionKeys, agree,
    decode_claims, decode_notice, encode_answer, encode_notice,
};

/// What a session tells its shell.
#[derive(Debug)]
pub enum InboundEvent {
    /// The peer's hello stands and was answered.
    Up {
        /// The lane that the session carries.
        lane: Lane,
        /// The peer's claims.
        claims: Claims,
        /// What holds on the session.
        agreed: Agreed,
    },
    /// A frame for the host, which owes an answer under the frame's sequence.
    Frame(Verified<Frame>),
    /// A frame came after its deadline and was refused unread.
    Late(Sequence),
}

/// What a session has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboundStats {
    /// Frames verified.
    pub frames: u64,
    /// Frames refused as late.
    pub late: u64,
    /// Replies handed to TLS.
    pub replies: u64,
    /// Bytes of the bodies of verified frames.
    pub body_bytes: u64,
}

impl InboundStats {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            frames: self.frames + other.frames,
            late: self.late + other.late,
            replies: self.replies + other.replies,
            body_bytes: self.body_bytes + other.body_bytes,
        }
    }
}

#[derive(Debug)]
struct Slot {
    items: u16,
    body_bytes: u64,
    answer: Option<Answer>,
}

#[derive(Debug)]
struct Open {
    lane: Lane,
    agreed: Agreed,
    frames: Verifier,
    replies: Stamper,
}

/// What a session is accepted with.
#[derive(Debug)]
pub struct Accepted {
    /// This node's claims; `to` is set to the peer, and its frames are cut to what the lane allows.
    pub claims: Claims,
    /// Who the peer's certificate speaks for.
    pub certified: NodeIdentity,
    /// The keys that the session has if it carries control, and if it carries bulk.
    pub keys: [SessionKeys; 2],
    /// The session's name.
    pub session: SessionId,
    /// From now to the hello.
    pub hello_timeout: Duration,
}

/// One accepted session; see the head of this file.
#[derive(Debug)]
pub struct InboundSession {
    with: Accepted,
    hello_deadline: Instant,
    /// The lane whose key a refusal can be tagged with.
    lane: Option<Lane>,
    open: Option<Open>,
    deframer: Deframer,
    answer: Option<Bytes>,
    /// What is to be confirmed next; the latest counts.
    confirm: Option<Confirm>,
    slots: VecDeque<Slot>,
    oldest: Sequence,
    body_bytes: u64,
    stats: InboundStats,
}

impl InboundSession {
    /// Waits for the hello of a peer whose certificate was accepted at `now`.
    #[must_use]
    pub fn new(now: Instant, with: Accepted) -> Self {
        Self {
            hello_deadline: now + with.hello_timeout,
            with,
            lane: None,
            open: None,
            deframer: Deframer::new(Side::Acceptor, None),
            answer: None,
            confirm: None,
            slots: VecDeque::new(),
            oldest: Sequence::FIRST,
            body_bytes: 0,
            stats: InboundStats::default(),
        }
    }

    /// Takes in what was read at `now`; [`InboundSession::step`] acts on it.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        self.deframer.handle_bytes(now, bytes);
    }

    /// Takes the next whole message, if there is one.
    ///
    /// # Errors
    /// Why the session must end.
    pub fn step(
        &mut self,
        now: Instant,
        judge: &mut dyn Judge,
    ) -> Result<Option<InboundEvent>, SessionEnd> {
        let Some(message) = self.deframer.next_message()? else {
            return Ok(None);
        };
        let Some(open) = &mut self.open else {
            return self.on_hello(message, judge).map(Some);
        };
        let message = open.frames.verify(message)?;
        match message.header().kind {
            Kind::Frame => self.on_frame(now, message).map(Some),
            Kind::Close => Err(SessionEnd::ClosedByPeer(decode_notice(message.body())?)),
            kind @ (Kind::Hello
            | Kind::HelloAnswer
            | Kind::Refusal
            | Kind::Reply
            | Kind::Confirm) => Err(PeerMisbehaved::UnexpectedKind { got: kind as u8 }.into()),
        }
    }

    fn keys(&self, lane: Lane) -> &SessionKeys {
        let [control, bulk] = &self.with.keys;
        match lane {
            Lane::Control => control,
            Lane::Bulk => bulk,
        }
    }

    fn on_hello(
        &mut self,
        message: RawMessage,
        judge: &mut dyn Judge,
    ) -> Result<InboundEvent, SessionEnd> {
        let Header { kind, lane, .. } = message.header;
        if kind != Kind::Hello {
            return Err(PeerMisbehaved::UnexpectedKind { got: kind as u8 }.into());
        }
        let hello_key = self.keys(lane).hello.clone();
        let message = Verifier::new(hello_key.clone(), HELLO_SEQUENCE).verify(message)?;
        self.lane = Some(lane);
        let theirs = decode_claims(message.body())?;
        let mut ours = Claims {
            to: self.with.certified.node,
            ..self.with.claims.clone()
        };
        let lane_max = u32::try_from(frame_body_bytes_max(lane)).unwrap_or(u32::MAX);
        ours.limits.frame_bytes = ours.limits.frame_bytes.min(lane_max);
        judge.judge(&self.with.certified, &theirs)?;
        let agreed = agree(&ours, &theirs)?;
        judge.remember(&theirs);
        let answer = HelloAnswer {
            claims: ours,
            version: agreed.version,
            session: self.with.session,
        };
        self.answer = self.hello_message(lane, Kind::HelloAnswer, &encode_answer(&answer));
        let keys = self.keys(lane);
        self.open = Some(Open {
            lane,
            agreed,
            frames: Verifier::new(keys.frame.clone(), Sequence::FIRST),
            replies: Stamper::new(keys.reply.clone(), Sequence::FIRST),
        });
        Ok(InboundEvent::Up {
            lane,
            claims: theirs,
            agreed,
        })
    }

    fn hello_message(&self, lane: Lane, kind: Kind, body: &[u8]) -> Option<Bytes> {
        let mut stamper = Stamper::new(self.keys(lane).hello.clone(), ANSWER_SEQUENCE);
        stamper.stamp_plain(kind, lane, body)
    }

    fn on_frame(
        &mut self,
        now: Instant,
        message: Verified<RawMessage>,
    ) -> Result<InboundEvent, SessionEnd> {
        let Some(open) = &self.open else {
            unreachable!("a frame before the hello")
        };
        let header = *message.header();
        let body_bytes = u64::from(header.body_bytes);
        let limits = open.agreed.limits;
        match open.lane {
            Lane::Control => {
                let window = limits.window_frames;
                if self.slots.len() >= usize::from(window) {
                    return Err(PeerMisbehaved::WindowExceeded { window }.into());
                }
            }
            Lane::Bulk => {
                let (window, got) = (limits.window_bytes, self.body_bytes + body_bytes);
                if got > window && !self.slots.is_empty() {
                    return Err(PeerMisbehaved::WindowBytesExceeded { window, got }.into());
                }
            }
        }
        if header.items() > limits.frame_items {
            let (got, max) = (header.items(), limits.frame_items);
            return Err(PeerMisbehaved::TooManyItems { got, max }.into());
        }
        if header.body_bytes > limits.frame_bytes {
            let kind = header.kind as u8;
            let (got, max) = (header.body_bytes, limits.frame_bytes);
            return Err(PeerMisbehaved::OversizedBody { kind, got, max }.into());
        }
        self.stats.frames += 1;
        self.stats.body_bytes += body_bytes;
        let late = now > message.started() + header.remaining();
        let answer = late.then_some(Answer::Refused(RefusalReason::Late));
        self.body_bytes += body_bytes;
        self.slots.push_back(Slot {
            items: header.items(),
            body_bytes,
            answer,
        });
        if late {
            self.stats.late += 1;
            return Ok(InboundEvent::Late(header.sequence));
        }
        Ok(InboundEvent::Frame(message.into_frame()?))
    }

    /// The host's answer to the frame with this sequence; a second one is ignored.
    pub fn answer(&mut self, frame: Sequence, answer: Answer) {
        let at = frame.to_u64().checked_sub(self.oldest.to_u64());
        let slot = at.and_then(|at| self.slots.get_mut(usize::try_from(at).ok()?));
        if let Some(slot @ Slot { answer: None, .. }) = slot {
            slot.answer = Some(answer);
        }
    }

    /// Tells the peer which sessions this side holds to it, ahead of what waits.
    pub const fn confirm(&mut self, confirm: Confirm) {
        self.confirm = Some(confirm);
    }

    /// The next message that may be handed to TLS now.
    ///
    /// # Errors
    /// [`SessionEnd::SequenceExhausted`] when no reply can be numbered any more.
    pub fn poll_transmit(&mut self) -> Result<Option<Bytes>, SessionEnd> {
        let mut message = BytesMut::new();
        let was_one = self.poll_transmit_into(&mut message)?;
        Ok(was_one.then(|| message.freeze()))
    }

    /// The same, appended to `out`; says whether there was one.
    ///
    /// # Errors
    /// As [`InboundSession::poll_transmit`].
    pub fn poll_transmit_into(&mut self, out: &mut BytesMut) -> Result<bool, SessionEnd> {
        if let Some(bytes) = self.answer.take() {
            out.extend_from_slice(&bytes);
            return Ok(true);
        }
        let Some(open) = &mut self.open else {
            return Ok(false);
        };
        if let Some(confirm) = self.confirm.take() {
            let body = encode_confirm(&confirm);
            let stamped = open.replies.stamp_plain(Kind::Confirm, open.lane, &body);
            out.extend_from_slice(&stamped.ok_or(SessionEnd::SequenceExhausted)?);
            return Ok(true);
        }
        let Some(Slot {
            items,
            answer: Some(answer),
            ..
        }) = self.slots.front()
        else {
            return Ok(false);
        };
        let Some(sequence) = open.replies.next() else {
            return Err(SessionEnd::SequenceExhausted);
        };
        let (form, body) = answer.encode(*items);
        let header = Header {
            kind: Kind::Reply,
            lane: open.lane,
            form: form as u8,
            body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
            sequence,
            word: self.oldest.to_u64(),
        };
        open.replies.stamp_body_into(header, &body, out);
        if let Some(slot) = self.slots.pop_front() {
            self.body_bytes -= slot.body_bytes;
        }
        self.oldest = self.oldest.next().ok_or(SessionEnd::SequenceExhausted)?;
        self.stats.replies += 1;
        Ok(true)
    }

    /// Acts on the time.
    ///
    /// # Errors
    /// [`TimedOut::Hello`] when the hello is overdue.
    pub fn handle_timeout(&self, now: Instant) -> Result<(), SessionEnd> {
        match self.poll_timeout() {
            Some(due) if due <= now => Err(TimedOut::Hello {
                limit: self.with.hello_timeout,
            }
            .into()),
            _ => Ok(()),
        }
    }

    /// When [`InboundSession::handle_timeout`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.open.is_none().then_some(self.hello_deadline)
    }

    /// The connection ended; says how that is to be taken.
    #[must_use]
    pub fn on_eof(&self) -> SessionEnd {
        match self.deframer.pending_bytes() {
            0 => std::io::ErrorKind::UnexpectedEof.into(),
            got => PeerMisbehaved::Truncated { got }.into(),
        }
    }

    /// The last message of a session that this side ends: a refusal before the answer to the
    /// hello, a close after. `None` while nothing can be tagged yet, and for a second refusal, which
    /// would use the first one's nonce again.
    pub fn close_message(&mut self, notice: &PeerNotice) -> Option<Bytes> {
        let body = encode_notice(notice);
        let Some(open) = &mut self.open else {
            let lane = self.lane.take()?;
            return self.hello_message(lane, Kind::Refusal, &body);
        };
        open.replies.stamp_plain(Kind::Close, open.lane, &body)
    }

    /// Frames that the host hasn't answered, or whose reply waits for an older one's.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.slots.len()
    }

    /// What the session has done.
    #[must_use]
    pub const fn stats(&self) -> InboundStats {
        self.stats
    }
}

#[cfg(test)]
mod tests;
