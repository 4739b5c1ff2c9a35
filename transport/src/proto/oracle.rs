//! The pair of cores against an oracle: the same random list of operations goes to two real cores,
//! joined by sockets that take part of what they are given, and to a model that counts bytes in
//! plain vectors and searches them from the front each time. After each operation every receipt's
//! stage and outcome, the account (T10) and the window must be what the model says.
//!
//! The model leaves to the other tests what a hello, a tag or a malformed message does.

use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use crate::budget::Amount;
use crate::error::{RefusalReason, SessionEnd, TimedOut};
use crate::id::{Label, Lane};
use crate::limits::{HEADER_BYTES, TAG_BYTES};
use crate::proto::frame::Answer;
use crate::proto::inbound::InboundEvent;
use crate::proto::outbound::LaneTimeouts;
use crate::receipt::{Item, Outcome, OutcomeKind, Receipt, Stage};
use crate::testing::pair::{Pair, ms};
use crate::testing::{item, start};

const AROUND: usize = HEADER_BYTES + TAG_BYTES;
const WINDOW_FRAMES: usize = 3;
const WINDOW_BYTES: usize = 120;
const FRAME_BYTES: usize = 60;
const FRAME_ITEMS: usize = 3;
const CAPACITY: usize = 150;

/// Short, so that a list of operations often reaches them.
const TIMEOUTS: LaneTimeouts = LaneTimeouts {
    hello: ms(5000),
    reply: ms(1500),
    stall: ms(2000),
};

#[derive(Clone, Debug)]
enum Op {
    Send {
        bytes: usize,
        deadline: u64,
        label: u64,
    },
    Transmit,
    Write(usize),
    Read(usize),
    Answer {
        pick: usize,
        form: u8,
    },
    TransmitBack,
    WriteBack(usize),
    ReadBack(usize),
    Advance(u64),
    RevokeItem(usize),
    RevokeLabel(u64),
    Supersede(usize),
    Lose,
    Connect,
}

fn op() -> impl Strategy<Value = Op> {
    let some = || prop_oneof![1..40usize, Just(usize::MAX)];
    prop_oneof![
        8 => (0..70usize, prop_oneof![3 => 0..4000u64, 1 => 0..60u64], 0..3u64)
            .prop_map(|(bytes, deadline, label)| Op::Send { bytes, deadline, label }),
        6 => Just(Op::Transmit),
        6 => some().prop_map(Op::Write),
        6 => some().prop_map(Op::Read),
        6 => (any::<usize>(), 0..3u8).prop_map(|(pick, form)| Op::Answer { pick, form }),
        4 => Just(Op::TransmitBack),
        4 => some().prop_map(Op::WriteBack),
        4 => some().prop_map(Op::ReadBack),
        3 => prop_oneof![0..40u64, 0..2500u64].prop_map(Op::Advance),
        1 => any::<usize>().prop_map(Op::RevokeItem),
        1 => (0..3u64).prop_map(Op::RevokeLabel),
        1 => any::<usize>().prop_map(Op::Supersede),
        1 => Just(Op::Lose),
        3 => Just(Op::Connect),
    ]
}

#[derive(Debug)]
struct ModelItem {
    bytes: usize,
    deadline: Instant,
    label: u64,
    stage: Stage,
    end: Option<Outcome>,
}

#[derive(Debug)]
struct ModelFrame {
    items: Vec<usize>,
    body: usize,
    /// Of its first and behind its last byte, among all that the dialler sent.
    place: (usize, usize),
    begun: Instant,
    remaining: Duration,
    started: Option<Instant>,
    read: bool,
    answer: Option<Answer>,
    reply_begun: bool,
    replied: bool,
}

/// One direction in bytes: handed to TLS, accepted by the socket, read.
#[derive(Debug, Default)]
struct ModelWire {
    begun: usize,
    accepted: usize,
    read: usize,
}

impl ModelWire {
    fn write(&mut self, max: usize) {
        let room = CAPACITY - (self.accepted - self.read);
        self.accepted += max.min(room).min(self.begun - self.accepted);
    }

    fn read(&mut self, max: usize) {
        self.read += max.min(self.accepted - self.read);
    }
}

#[derive(Debug)]
struct ModelSession {
    frames: Vec<ModelFrame>,
    forward: ModelWire,
    back: ModelWire,
    /// The ends of the replies that were begun, in bytes.
    replies: Vec<usize>,
    last_answer: Instant,
}

#[derive(Debug, Default)]
struct Model {
    items: Vec<ModelItem>,
    waiting: Vec<usize>,
    session: Option<ModelSession>,
    frames_begun: u64,
    delivered: usize,
    late: usize,
}

impl Model {
    fn end(&mut self, at: usize, how: impl FnOnce(Stage) -> Outcome) -> bool {
        let item = &mut self.items[at];
        let first = item.end.is_none();
        if first {
            item.end = Some(how(item.stage));
        }
        first
    }

    fn expire(&mut self, now: Instant) {
        for at in 0..self.items.len() {
            if self.items[at].deadline <= now {
                self.end(at, |stage| Outcome::Expired { stage });
            }
        }
    }

    fn outstanding(&self) -> Vec<&ModelFrame> {
        let frames = self.session.iter().flat_map(|session| &session.frames);
        frames.filter(|frame| !frame.replied).collect()
    }

    fn has_room(&self, lane: Lane, body: usize) -> bool {
        let out = self.outstanding();
        let bytes: usize = out.iter().map(|frame| frame.body).sum();
        match lane {
            Lane::Control => out.len() < WINDOW_FRAMES,
            Lane::Bulk => out.is_empty() || bytes + body <= WINDOW_BYTES,
        }
    }

    fn transmit(&mut self, lane: Lane, now: Instant) -> bool {
        self.expire(now);
        if self.session.is_none() {
            return false;
        }
        let (mut taken, mut body, mut deadline) = (Vec::new(), 0, now);
        while let Some(&at) = self.waiting.first() {
            let needed = self.items[at].bytes + 4;
            if self.items[at].end.is_some() {
                self.waiting.remove(0);
            } else if needed > FRAME_BYTES {
                self.end(at, |_| Outcome::Refused(RefusalReason::TooLarge));
            } else if !self.has_room(lane, body + needed)
                || body + needed > FRAME_BYTES
                || taken.len() == FRAME_ITEMS
            {
                break;
            } else {
                self.waiting.remove(0);
                body += needed;
                deadline = deadline.max(self.items[at].deadline);
                self.items[at].stage = Stage::Writing;
                taken.push(at);
            }
        }
        let idle = self.outstanding().is_empty();
        let (Some(session), false) = (&mut self.session, taken.is_empty()) else {
            return false;
        };
        if idle {
            session.last_answer = now;
        }
        let nanos = (deadline - now).as_nanos();
        let first = session.forward.begun;
        session.forward.begun += body + AROUND;
        session.frames.push(ModelFrame {
            items: taken,
            body,
            place: (first, session.forward.begun),
            begun: now,
            remaining: ms(u64::try_from(nanos.div_ceil(1_000_000)).unwrap()),
            started: None,
            read: false,
            answer: None,
            reply_begun: false,
            replied: false,
        });
        self.frames_begun += 1;
        true
    }

    fn write(&mut self, max: usize) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.forward.write(max);
        for frame in &session.frames {
            for &at in &frame.items {
                let item = &mut self.items[at];
                if frame.place.1 <= session.forward.accepted && item.end.is_none() {
                    item.stage = Stage::Written;
                }
            }
        }
    }

    fn read(&mut self, now: Instant, max: usize) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.forward.read(max);
        for frame in &mut session.frames {
            if frame.place.0 < session.forward.read {
                frame.started.get_or_insert(now);
            }
            let (Some(started), false) = (frame.started, frame.read) else {
                continue;
            };
            if frame.place.1 <= session.forward.read {
                frame.read = true;
                if now > started + frame.remaining {
                    frame.answer = Some(Answer::Refused(RefusalReason::Late));
                    self.late += 1;
                } else {
                    self.delivered += 1;
                }
            }
        }
    }

    /// The sequence and number of items of one frame that the host may answer.
    fn pick(&self, pick: usize) -> Option<(usize, usize)> {
        let frames = &self.session.as_ref()?.frames;
        let open: Vec<_> = (0..frames.len())
            .filter(|&at| frames[at].read && frames[at].answer.is_none())
            .collect();
        let at = open[pick.checked_rem(open.len())?];
        Some((at, frames[at].items.len()))
    }

    fn transmit_back(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        for frame in &mut session.frames {
            let Some(answer) = &frame.answer else { break };
            if !std::mem::replace(&mut frame.reply_begun, true) {
                let body = match answer {
                    Answer::Taken(bytes) => bytes.len(),
                    Answer::Refused(_) => 1,
                    Answer::PerItem(verdicts) => verdicts
                        .iter()
                        .map(|verdict| 5 + verdict.as_ref().map_or(0, Bytes::len))
                        .sum(),
                };
                session.back.begun += body + AROUND;
                session.replies.push(session.back.begun);
            }
        }
    }

    fn read_back(&mut self, lane: Lane, now: Instant, max: usize) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.back.read(max);
        loop {
            let Some(session) = &mut self.session else {
                return;
            };
            let Some(at) = session.frames.iter().position(|frame| !frame.replied) else {
                return;
            };
            if session
                .replies
                .get(at)
                .is_none_or(|&end| end > session.back.read)
            {
                return;
            }
            let frame = &mut session.frames[at];
            frame.replied = true;
            session.last_answer = now;
            let (items, answer) = (frame.items.clone(), frame.answer.clone().unwrap());
            for (place, at) in items.into_iter().enumerate() {
                self.end(at, |_| match &answer {
                    Answer::Taken(bytes) => Outcome::Replied(bytes.clone()),
                    Answer::Refused(reason) => Outcome::Refused(*reason),
                    Answer::PerItem(verdicts) => match &verdicts[place] {
                        Ok(bytes) => Outcome::Replied(bytes.clone()),
                        Err(reason) => Outcome::Refused(*reason),
                    },
                });
            }
            while self.transmit(lane, now) {}
        }
    }

    /// Whether the session must end at this time.
    fn times_out(&self, lane: Lane, now: Instant) -> bool {
        let since = match (self.outstanding().first(), &self.session) {
            (Some(oldest), Some(session)) => match lane {
                Lane::Control => oldest.begun + TIMEOUTS.reply,
                Lane::Bulk => session.last_answer + TIMEOUTS.stall,
            },
            _ => return false,
        };
        since <= now
    }

    fn lose(&mut self, how: impl Fn(Stage) -> Outcome) {
        for frame in self.session.take().into_iter().flat_map(|s| s.frames) {
            for at in frame.items {
                self.end(at, &how);
            }
        }
    }
}

struct World {
    pair: Pair,
    model: Model,
    items: Vec<(crate::sync::Arc<Item>, Receipt)>,
    late: usize,
}

impl World {
    fn new(lane: Lane) -> Self {
        let mut pair = Pair::new(lane, TIMEOUTS);
        pair.capacity = CAPACITY;
        for claims in [&mut pair.dialler, &mut pair.acceptor] {
            claims.limits.window_frames = u16::try_from(WINDOW_FRAMES).unwrap();
            claims.limits.window_bytes = WINDOW_BYTES as u64;
            claims.limits.frame_bytes = u32::try_from(FRAME_BYTES).unwrap();
            claims.limits.frame_items = u16::try_from(FRAME_ITEMS).unwrap();
        }
        Self {
            pair,
            model: Model::default(),
            items: Vec::new(),
            late: 0,
        }
    }

    fn send(&mut self, bytes: usize, deadline: u64, label: u64) {
        let deadline = self.pair.now + ms(deadline);
        let sent = item(&self.pair.account, vec![7; bytes], label, deadline);
        self.pair.out.push(self.pair.now, sent.0.clone());
        self.items.push(sent);
        self.model.waiting.push(self.model.items.len());
        self.model.items.push(ModelItem {
            bytes,
            deadline,
            label,
            stage: Stage::Queued,
            end: None,
        });
    }

    fn answer(&mut self, pick: usize, form: u8) {
        let Some((at, items)) = self.model.pick(pick) else {
            return;
        };
        let answer = match form {
            0 => Answer::Taken(Bytes::from_static(b"ok")),
            1 => Answer::Refused(RefusalReason::Busy),
            _ => {
                let verdict = |place: usize| match place % 2 {
                    0 => Err(RefusalReason::NotUnderstood),
                    _ => Ok(Bytes::from_static(b"yes")),
                };
                Answer::PerItem((0..items).map(verdict).collect())
            }
        };
        self.pair.answer(at as u64 + 1, answer.clone());
        let session = self.model.session.as_mut().unwrap();
        session.frames[at].answer = Some(answer);
    }

    fn connect(&mut self) {
        if self.model.session.is_some() {
            return;
        }
        // A hello is longer than this socket is large.
        self.pair.capacity = usize::MAX;
        self.pair.connect();
        self.pair.capacity = CAPACITY;
        self.pair.forward.capacity = CAPACITY;
        self.pair.back.capacity = CAPACITY;
        self.model.expire(self.pair.now);
        self.model.session = Some(ModelSession {
            frames: Vec::new(),
            forward: ModelWire::default(),
            back: ModelWire::default(),
            replies: Vec::new(),
            last_answer: self.pair.now,
        });
    }

    fn advance(&mut self, millis: u64) {
        self.pair.now += ms(millis);
        let (lane, now) = (self.pair.lane, self.pair.now);
        let ended = self.pair.out.handle_timeout(now);
        self.model.expire(now);
        let timed_out = self.model.times_out(lane, now);
        let limit = match &ended {
            Ok(()) => None,
            Err(SessionEnd::TimedOut(limit)) => Some(limit),
            Err(other) => unreachable!("{other}"),
        };
        assert_eq!(limit.is_some(), timed_out);
        if let Some(limit) = limit {
            let oldest = self.model.session.as_ref().unwrap().frames.iter();
            let oldest = oldest.take_while(|frame| frame.replied).count() as u64 + 1;
            let (TimedOut::Reply { oldest: named, .. } | TimedOut::BulkStall { oldest: named, .. }) =
                limit
            else {
                unreachable!("{limit}")
            };
            assert_eq!(named.to_u64(), oldest);
        }
        if let Err(end) = ended {
            self.pair.lose(&end);
            self.model.lose(|stage| Outcome::SessionLost { stage });
        }
    }

    fn apply(&mut self, op: Op) {
        let up = self.model.session.is_some();
        let (lane, now) = (self.pair.lane, self.pair.now);
        let index = |pick: usize, len: usize| pick.checked_rem(len);
        match op {
            Op::Send {
                bytes,
                deadline,
                label,
            } => self.send(bytes, deadline, label),
            Op::Transmit => {
                assert_eq!(self.pair.transmit(), self.model.transmit(lane, now));
            }
            Op::Write(max) => {
                self.pair.write(max);
                self.model.write(max);
            }
            Op::Read(max) if up => {
                self.pair.read(max).unwrap();
                self.model.read(now, max);
            }
            Op::Answer { pick, form } => self.answer(pick, form),
            Op::TransmitBack if up => {
                self.pair.transmit_back_all();
                self.model.transmit_back();
            }
            Op::WriteBack(max) if up => {
                self.pair.write_back(max);
                if let Some(session) = &mut self.model.session {
                    session.back.write(max);
                }
            }
            Op::ReadBack(max) if up => {
                self.pair.read_back(max).unwrap();
                self.model.read_back(lane, now, max);
            }
            Op::Advance(millis) => self.advance(millis),
            Op::RevokeItem(pick) => {
                if let Some(at) = index(pick, self.items.len()) {
                    let expected = self.model.end(at, |stage| Outcome::Revoked { stage });
                    assert_eq!(self.items[at].1.revoke(), expected);
                }
            }
            Op::RevokeLabel(label) => {
                let named = (0..self.model.items.len()).filter(|&at| {
                    // 0 is no label, and names nothing.
                    label != 0
                        && self.model.items[at].label == label
                        && self.model.items[at].end.is_none()
                });
                let named: Vec<_> = named.collect();
                assert_eq!(self.pair.out.revoke(Label::new(label)), named.len());
                for at in named {
                    self.model.end(at, |stage| Outcome::Revoked { stage });
                }
            }
            Op::Supersede(pick) => {
                if let Some(at) = index(pick, self.items.len()) {
                    let expected = self.model.items[at].stage == Stage::Queued
                        && self.model.end(at, |_| Outcome::Superseded);
                    assert_eq!(self.items[at].0.supersede(), expected);
                }
            }
            Op::Lose if up => {
                self.pair.lose(&std::io::ErrorKind::ConnectionReset.into());
                self.model.lose(|stage| Outcome::SessionLost { stage });
            }
            Op::Connect => self.connect(),
            Op::Read(_) | Op::TransmitBack | Op::WriteBack(_) | Op::ReadBack(_) | Op::Lose => {}
        }
    }

    fn check(&mut self) {
        let mut held = [Amount::default(); 3];
        let mut ended = [0; OutcomeKind::ALL.len()];
        for (modelled, (_, receipt)) in self.model.items.iter().zip(&self.items) {
            assert_eq!(receipt.outcome(), modelled.end);
            assert_eq!(receipt.stage(), modelled.stage);
            match &modelled.end {
                Some(outcome) => ended[outcome.kind() as usize] += 1,
                None => {
                    let held = &mut held[modelled.stage as usize];
                    held.items += 1;
                    held.bytes += modelled.bytes as u64;
                }
            }
        }
        let snapshot = self.pair.account.snapshot();
        assert!(snapshot.is_exact());
        assert_eq!(snapshot.unused, Amount::default());
        let account = [snapshot.queued, snapshot.writing, snapshot.outstanding];
        assert_eq!(account, held);
        assert_eq!(snapshot.ended, ended);
        assert_eq!(snapshot.started, self.items.len() as u64);
        let out = &self.pair.out;
        assert_eq!(out.outstanding_frames(), self.model.outstanding().len());
        assert_eq!(out.stats().frames_begun, self.model.frames_begun);
        assert_eq!(self.pair.frames().len(), self.model.delivered);
        let late = |event: &&InboundEvent| matches!(event, InboundEvent::Late(_));
        self.late = self.pair.delivered.iter().filter(late).count();
        assert_eq!(self.late, self.model.late);
    }

    /// Shuts down: everything ends, and nothing is left.
    fn finish(mut self) {
        self.pair.lose(&SessionEnd::ShutDown);
        self.model.lose(|stage| Outcome::ShutDown { stage });
        for at in std::mem::take(&mut self.model.waiting) {
            self.model.end(at, |stage| Outcome::ShutDown { stage });
        }
        self.check();
        let snapshot = self.pair.account.snapshot();
        assert_eq!(snapshot.reserved(), Amount::default());
        assert_eq!(snapshot.live(), 0);
        assert!(self.pair.out.is_idle());
    }
}

fn run(lane: Lane, ops: Vec<Op>) {
    let mut world = World::new(lane);
    world.connect();
    assert_eq!(world.pair.now, start());
    for op in ops {
        world.apply(op);
        world.check();
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn control_does_what_the_oracle_says(ops in proptest::collection::vec(op(), 1..200)) {
        run(Lane::Control, ops);
    }

    #[test]
    fn bulk_does_what_the_oracle_says(ops in proptest::collection::vec(op(), 1..200)) {
        run(Lane::Bulk, ops);
    }
}
