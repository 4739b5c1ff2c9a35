//! The accepting core: what it takes, what it answers, and each way a peer that holds the right
//! keys can misbehave towards it. The misbehaving peer is written by hand here, message by message.

use super::*;
use crate::id::SessionId;
use crate::limits::{HEADER_BYTES, TAG_BYTES};
use crate::proto::authority::Authority;
use crate::proto::frame::{FRAMING_VERSION, ReplyForm, frame_word};
use crate::proto::hello::{PeerLimits, encode_claims};
use crate::testing::pair::{
    Pair, TIMEOUTS, claims, frame_header, identity, keys, limits, message, ms, peer, plain_header,
    reply_header,
};
use crate::testing::{LONG, start};

/// One item of three bytes.
const BODY: &[u8] = &[0, 0, 0, 3, 1, 2, 3];

/// An accepted session, and the peer's hand.
struct Rogue {
    lane: Lane,
    session: u64,
    now: Instant,
    inbound: InboundSession,
    judge: Authority,
    /// Frames delivered to the host.
    delivered: Vec<u64>,
}

impl Rogue {
    fn dialled(lane: Lane, session: u64, limits: PeerLimits) -> Self {
        let mut ours = claims(lane, 2, 1);
        ours.limits = limits;
        let with = Accepted {
            claims: ours,
            certified: identity(1),
            keys: Lane::ALL.map(|lane| keys(session, lane)),
            session: SessionId::new(session),
            hello_timeout: TIMEOUTS.hello,
        };
        Self {
            lane,
            session,
            now: start(),
            inbound: InboundSession::new(start(), with),
            judge: Authority::new(identity(2), [peer(1)]),
            delivered: Vec::new(),
        }
    }

    fn with_limits(lane: Lane, limits: PeerLimits) -> Self {
        let mut rogue = Self::dialled(lane, 1, limits);
        rogue.feed(&rogue.hello()).unwrap();
        assert!(rogue.inbound.poll_transmit().unwrap().is_some());
        rogue
    }

    fn up(lane: Lane) -> Self {
        Self::with_limits(lane, limits(lane))
    }

    fn hello(&self) -> Vec<u8> {
        let body = encode_claims(&claims(self.lane, 1, 2));
        let header = plain_header(Kind::Hello, self.lane, 1, &body);
        message(&keys(self.session, self.lane).hello, header, &body).to_vec()
    }

    /// A message under the dialler's own key.
    fn message(&self, header: Header, body: &[u8]) -> Vec<u8> {
        message(&keys(self.session, self.lane).frame, header, body).to_vec()
    }

    fn frame(&self, sequence: u64) -> Vec<u8> {
        self.message(frame_header(self.lane, sequence, 1, BODY), BODY)
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), SessionEnd> {
        self.inbound.handle_bytes(self.now, bytes);
        while let Some(event) = self.inbound.step(self.now, &mut self.judge)? {
            if let InboundEvent::Frame(frame) = event {
                self.delivered.push(frame.sequence().to_u64());
            }
        }
        Ok(())
    }

    fn fault(&mut self, bytes: &[u8]) -> PeerMisbehaved {
        match self.feed(bytes) {
            Err(SessionEnd::PeerMisbehaved(fault)) => fault,
            other => unreachable!("{other:?}"),
        }
    }
}

fn fault_of(make: impl FnOnce(&Rogue) -> Vec<u8>) -> PeerMisbehaved {
    let mut rogue = Rogue::up(Lane::Control);
    rogue.feed(&rogue.frame(1)).unwrap();
    let bytes = make(&rogue);
    let fault = rogue.fault(&bytes);
    assert_eq!(rogue.delivered, [1], "nothing more is delivered");
    fault
}

#[test]
fn gap_replay_and_reorder_end_the_session_as_such() {
    let (expected, got) = (Sequence::new(2), Sequence::new(3));
    assert_eq!(
        fault_of(|r| r.frame(3)),
        PeerMisbehaved::SequenceGap { expected, got }
    );
    let reordered = fault_of(|r| [r.frame(3), r.frame(2)].concat());
    assert_eq!(reordered, PeerMisbehaved::SequenceGap { expected, got });
    let got = Sequence::new(1);
    let replayed = fault_of(|r| r.frame(1));
    assert_eq!(replayed, PeerMisbehaved::SequenceReplayed { expected, got });
}

#[test]
fn a_frame_of_an_earlier_session_another_lane_or_direction_is_no_proof() {
    let sequence = Sequence::new(2);
    let under = |key: crate::proto::fifo::TagKey| {
        let header = frame_header(Lane::Control, 2, 1, BODY);
        fault_of(|_| message(&key, header, BODY).to_vec())
    };
    let own = keys(1, Lane::Control);
    for key in [
        keys(0, Lane::Control).frame,
        keys(1, Lane::Bulk).frame,
        own.reply,
        own.hello,
    ] {
        assert_eq!(under(key), PeerMisbehaved::BadTag { sequence });
    }
}

#[test]
fn our_own_messages_come_back_as_reflected() {
    let reply = |r: &Rogue| {
        let header = reply_header(r.lane, 2, 1, ReplyForm::Taken, &[]);
        message(&keys(1, r.lane).reply, header, &[]).to_vec()
    };
    let got = Kind::Reply as u8;
    assert_eq!(fault_of(reply), PeerMisbehaved::Reflected { got });
    for kind in [Kind::HelloAnswer, Kind::Refusal] {
        let header = plain_header(kind, Lane::Control, 2, &[]);
        let got = kind as u8;
        let fault = fault_of(|r| r.message(header, &[]));
        assert_eq!(fault, PeerMisbehaved::Reflected { got });
    }
}

#[test]
fn a_flipped_bit_in_any_byte_ends_the_session_with_the_fault_of_that_byte() {
    let whole = Rogue::up(Lane::Control).frame(2);
    let sequence = Sequence::new(2);
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let value = bytes[at];
            // Enough behind it to complete a length that grew.
            let fault = fault_of(|_| [bytes, vec![0; 64 << 10]].concat());
            let expected = match at {
                0 => match value {
                    // Frame is 4: one flip makes it unknown, a reply of ours, a confirm, or 0.
                    5 => PeerMisbehaved::Reflected { got: 5 },
                    6 => PeerMisbehaved::BadHeader { kind: 6 },
                    got => PeerMisbehaved::UnknownKind { got },
                },
                1 => PeerMisbehaved::UnknownVersion {
                    expected: FRAMING_VERSION,
                    got: value,
                },
                2 => PeerMisbehaved::WrongLane {
                    expected: Lane::Control,
                    got: value,
                },
                3 | 22 | 23 => PeerMisbehaved::BadHeader { kind: 4 },
                4..8 if length(&whole, at, bit) > 64 << 10 => PeerMisbehaved::OversizedBody {
                    kind: 4,
                    got: length(&whole, at, bit),
                    max: 64 << 10,
                },
                8..16 => {
                    let got = Sequence::new(number(&whole, at, bit));
                    let expected = sequence;
                    if got > expected {
                        PeerMisbehaved::SequenceGap { expected, got }
                    } else {
                        PeerMisbehaved::SequenceReplayed { expected, got }
                    }
                }
                20 | 21 if !(1..=4096).contains(&items(&whole, at, bit)) => {
                    PeerMisbehaved::BadHeader { kind: 4 }
                }
                _ => PeerMisbehaved::BadTag { sequence },
            };
            assert_eq!(fault, expected, "byte {at} bit {bit}");
        }
    }
}

fn flipped(whole: &[u8], at: usize, bit: usize) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    bytes[at] ^= 1 << bit;
    bytes
}

fn length(whole: &[u8], at: usize, bit: usize) -> u32 {
    u32::from_be_bytes(flipped(whole, at, bit)[4..8].try_into().unwrap())
}

fn number(whole: &[u8], at: usize, bit: usize) -> u64 {
    u64::from_be_bytes(flipped(whole, at, bit)[8..16].try_into().unwrap())
}

fn items(whole: &[u8], at: usize, bit: usize) -> u16 {
    u16::from_be_bytes(flipped(whole, at, bit)[20..22].try_into().unwrap())
}

#[test]
fn a_length_over_the_bound_is_refused_by_the_header_alone() {
    let (kind, max) = (Kind::Frame as u8, 64 << 10);
    let got = max + 1;
    let header = Header {
        body_bytes: got,
        ..frame_header(Lane::Control, 2, 1, &[])
    };
    let fault = fault_of(|r| r.message(header, &[])[..HEADER_BYTES].to_vec());
    assert_eq!(fault, PeerMisbehaved::OversizedBody { kind, got, max });
}

#[test]
fn a_connection_that_ends_inside_a_message_says_after_how_many_bytes() {
    let whole = Rogue::up(Lane::Control).frame(2);
    for got in 0..whole.len() {
        let mut rogue = Rogue::up(Lane::Control);
        rogue.feed(&rogue.frame(1)).unwrap();
        rogue.feed(&whole[..got]).unwrap();
        let expected = if got == 0 {
            std::io::ErrorKind::UnexpectedEof.into()
        } else {
            PeerMisbehaved::Truncated { got }.into()
        };
        assert_eq!(rogue.inbound.on_eof(), expected);
        assert_eq!(rogue.delivered, [1]);
    }
}

#[test]
fn kinds_out_of_place_are_named() {
    let unexpected = |kind: Kind| PeerMisbehaved::UnexpectedKind { got: kind as u8 };
    for kind in [Kind::Hello, Kind::Confirm] {
        let header = plain_header(kind, Lane::Control, 2, &[]);
        assert_eq!(fault_of(|r| r.message(header, &[])), unexpected(kind));
    }
    // Before the hello, whatever their tag.
    for header in [
        frame_header(Lane::Control, 1, 1, BODY),
        plain_header(Kind::Close, Lane::Control, 1, BODY),
        plain_header(Kind::Confirm, Lane::Control, 1, BODY),
    ] {
        let mut rogue = Rogue::dialled(Lane::Control, 1, limits(Lane::Control));
        let fault = rogue.fault(&rogue.message(header, BODY));
        assert_eq!(fault, unexpected(header.kind));
    }
    // A second hello is one under a key that is no longer asked.
    let mut rogue = Rogue::up(Lane::Control);
    let sequence = Sequence::FIRST;
    let fault = rogue.fault(&rogue.hello());
    assert_eq!(fault, PeerMisbehaved::BadTag { sequence });
}

#[test]
fn a_hello_under_a_wrong_number_or_with_garbage_is_refused() {
    let mut rogue = Rogue::dialled(Lane::Bulk, 1, limits(Lane::Bulk));
    let key = keys(1, Lane::Bulk).hello;
    let hello = |sequence, body: &[u8]| {
        let header = plain_header(Kind::Hello, Lane::Bulk, sequence, body);
        message(&key, header, body).to_vec()
    };
    let (expected, got) = (HELLO_SEQUENCE, Sequence::new(2));
    let fault = rogue.fault(&hello(2, b""));
    assert_eq!(fault, PeerMisbehaved::SequenceGap { expected, got });
    let mut rogue = Rogue::dialled(Lane::Bulk, 1, limits(Lane::Bulk));
    let (what, at) = ("hello", 4);
    let fault = rogue.fault(&hello(1, b"\0\x01\0\x01abc"));
    assert_eq!(fault, PeerMisbehaved::MalformedHello { what, at });
}

#[test]
fn bodies_that_do_not_divide_are_malformed_and_not_delivered() {
    let sequence = Sequence::new(2);
    for (body, items) in [
        (&[][..], 1),
        (&BODY[..6], 1),
        (BODY, 2),
        (&[0, 0, 0, 0, 0], 1),
    ] {
        let header = frame_header(Lane::Control, 2, items, body);
        let fault = fault_of(|r| r.message(header, body));
        assert_eq!(fault, PeerMisbehaved::MalformedBody { sequence, items });
    }
    let header = plain_header(Kind::Close, Lane::Control, 2, &[0]);
    let (what, at) = ("notice", 0);
    let fault = fault_of(|r| r.message(header, &[0]));
    assert_eq!(fault, PeerMisbehaved::MalformedHello { what, at });
}

#[test]
fn a_frame_beyond_the_agreed_window_ends_the_session() {
    for window in [1, 16, 256] {
        let agreed = PeerLimits {
            window_frames: window,
            ..limits(Lane::Control)
        };
        // The peer claims 16 in its hello; the lower holds.
        let window = window.min(16);
        let mut rogue = Rogue::with_limits(Lane::Control, agreed);
        for sequence in 1..=u64::from(window) {
            rogue.feed(&rogue.frame(sequence)).unwrap();
        }
        // An answer that hasn't left frees nothing.
        rogue
            .inbound
            .answer(Sequence::new(2), Answer::Taken(Bytes::new()));
        let over = u64::from(window) + 1;
        let fault = rogue.fault(&rogue.frame(over));
        assert_eq!(fault, PeerMisbehaved::WindowExceeded { window });
        assert_eq!(rogue.delivered.len(), usize::from(window));
    }
}

#[test]
fn bulk_bytes_beyond_the_agreed_window_end_the_session() {
    let agreed = PeerLimits {
        window_bytes: 100,
        frame_bytes: 100,
        ..limits(Lane::Bulk)
    };
    let mut rogue = Rogue::with_limits(Lane::Bulk, agreed);
    let body = |bytes: u8| [&[0, 0, 0, bytes - 4][..], &vec![0; usize::from(bytes) - 4]].concat();
    let frame = |rogue: &Rogue, sequence, bytes| {
        let body = body(bytes);
        rogue.message(frame_header(Lane::Bulk, sequence, 1, &body), &body)
    };
    rogue.feed(&frame(&rogue, 1, 60)).unwrap();
    rogue.feed(&frame(&rogue, 2, 40)).unwrap();
    rogue
        .inbound
        .answer(Sequence::new(1), Answer::Taken(Bytes::new()));
    assert!(rogue.inbound.poll_transmit().unwrap().is_some());
    rogue.feed(&frame(&rogue, 3, 60)).unwrap();
    let (window, got) = (100, 104);
    let fault = rogue.fault(&frame(&rogue, 4, 4));
    assert_eq!(fault, PeerMisbehaved::WindowBytesExceeded { window, got });
    assert_eq!(rogue.delivered, [1, 2, 3]);
}

#[test]
fn a_frame_over_the_agreed_bytes_or_items_ends_the_session() {
    let agreed = PeerLimits {
        frame_bytes: 8,
        frame_items: 2,
        ..limits(Lane::Control)
    };
    let fault = |items: u16, body: &[u8]| {
        let mut rogue = Rogue::with_limits(Lane::Control, agreed);
        let header = frame_header(Lane::Control, 1, items, body);
        let bytes = rogue.message(header, body);
        rogue.feed(&bytes)
    };
    assert_eq!(fault(2, &[0; 8]), Ok(()));
    let (kind, got, max) = (Kind::Frame as u8, 9, 8);
    let body = [0, 0, 0, 5, 0, 0, 0, 0, 0];
    let over = PeerMisbehaved::OversizedBody { kind, got, max };
    assert_eq!(fault(1, &body), Err(over.into()));
    // It named the bytes, which were fine, where the items were too many.
    let (got, max) = (3, 2);
    let over = PeerMisbehaved::TooManyItems { got, max };
    assert_eq!(fault(3, &[0; 8]), Err(over.into()));
}

/// Header and body of the next reply.
fn reply(inbound: &mut InboundSession) -> Option<(Header, Bytes)> {
    let bytes = inbound.poll_transmit().unwrap()?;
    let first = bytes.first_chunk().unwrap();
    let header = Header::decode(first, Side::Dialler, None).unwrap();
    Some((header, bytes.slice(HEADER_BYTES..bytes.len() - TAG_BYTES)))
}

#[test]
fn replies_leave_in_the_frames_order_whatever_the_order_of_the_answers() {
    let mut rogue = Rogue::up(Lane::Control);
    for sequence in 1..=4 {
        rogue.feed(&rogue.frame(sequence)).unwrap();
    }
    let answer = |rogue: &mut Rogue, frame: u64| {
        let body = Bytes::from(vec![u8::try_from(frame).unwrap()]);
        rogue
            .inbound
            .answer(Sequence::new(frame), Answer::Taken(body));
    };
    let mut sent = Vec::new();
    for (frame, leave) in [(3, 0), (2, 0), (1, 3), (4, 1)] {
        answer(&mut rogue, frame);
        let before = sent.len();
        while let Some((header, body)) = reply(&mut rogue.inbound) {
            sent.push((header.sequence.to_u64(), header.answers().to_u64(), body[0]));
        }
        assert_eq!(sent.len() - before, leave, "after {frame}");
    }
    assert_eq!(sent, [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)]);
    assert_eq!(rogue.inbound.unanswered(), 0);
    assert_eq!(rogue.inbound.stats().replies, 4);
}

#[test]
fn the_first_answer_to_a_frame_stands_and_answers_to_no_frame_are_ignored() {
    let mut rogue = Rogue::up(Lane::Control);
    rogue.feed(&rogue.frame(1)).unwrap();
    let busy = Answer::Refused(RefusalReason::Busy);
    for frame in [0, 2, u64::MAX] {
        rogue.inbound.answer(Sequence::new(frame), busy.clone());
    }
    assert!(reply(&mut rogue.inbound).is_none());
    rogue
        .inbound
        .answer(Sequence::new(1), Answer::Taken(Bytes::new()));
    rogue.inbound.answer(Sequence::new(1), busy.clone());
    let (header, _) = reply(&mut rogue.inbound).unwrap();
    assert_eq!(header.form, ReplyForm::Taken as u8);
    rogue.inbound.answer(Sequence::new(1), busy);
    assert!(reply(&mut rogue.inbound).is_none());
}

#[test]
fn a_late_frame_is_refused_unread_and_keeps_its_turn() {
    let mut rogue = Rogue::up(Lane::Control);
    let timed = |rogue: &Rogue, sequence, body: &[u8]| {
        let word = frame_word(ms(100), 1);
        let header = Header {
            word,
            ..frame_header(rogue.lane, sequence, 1, body)
        };
        rogue.message(header, body)
    };
    // The first byte counts, not the last; and "unread": this body couldn't be split.
    let garbage = timed(&rogue, 2, &[9; 5]);
    rogue.feed(&rogue.frame(1)).unwrap();
    rogue.feed(&garbage[..1]).unwrap();
    rogue.now += ms(101);
    rogue.feed(&garbage[1..]).unwrap();
    assert_eq!(rogue.delivered, [1]);
    assert_eq!(rogue.inbound.stats().late, 1);
    assert!(reply(&mut rogue.inbound).is_none(), "frame 1 comes first");
    rogue
        .inbound
        .answer(Sequence::new(2), Answer::Taken(Bytes::new()));
    rogue
        .inbound
        .answer(Sequence::new(1), Answer::Taken(Bytes::new()));
    assert!(reply(&mut rogue.inbound).is_some());
    let (header, body) = reply(&mut rogue.inbound).unwrap();
    assert_eq!(header.form, ReplyForm::Refused as u8);
    assert_eq!(body[..], [RefusalReason::Late.to_u8()]);
    // At the last moment it is in time.
    let just = timed(&rogue, 3, BODY);
    rogue.feed(&just[..1]).unwrap();
    rogue.now += ms(100);
    rogue.feed(&just[1..]).unwrap();
    assert_eq!(rogue.delivered, [1, 3]);
}

#[test]
fn a_silent_peer_is_given_up_at_the_hellos_deadline_and_not_after_it() {
    let mut rogue = Rogue::dialled(Lane::Control, 1, limits(Lane::Control));
    let due = start() + TIMEOUTS.hello;
    assert_eq!(rogue.inbound.poll_timeout(), Some(due));
    assert_eq!(rogue.inbound.handle_timeout(due - ms(1)), Ok(()));
    let limit = TIMEOUTS.hello;
    let expected = Err(TimedOut::Hello { limit }.into());
    assert_eq!(rogue.inbound.handle_timeout(due), expected);
    rogue.feed(&rogue.hello()).unwrap();
    assert_eq!(rogue.inbound.poll_timeout(), None);
    assert_eq!(rogue.inbound.handle_timeout(due + LONG), Ok(()));
}

#[test]
fn a_close_is_told_and_understood_on_both_sides() {
    let mut pair = Pair::up(Lane::Control, TIMEOUTS);
    let notice = SessionEnd::ShutDown.notice().unwrap();
    let bytes = pair
        .inbound
        .as_mut()
        .unwrap()
        .close_message(&notice)
        .unwrap();
    pair.out.handle_bytes(pair.now, &bytes);
    assert_eq!(
        pair.step().unwrap_err(),
        SessionEnd::ClosedByPeer(notice.clone())
    );

    let mut pair = Pair::up(Lane::Control, TIMEOUTS);
    let bytes = pair.out.close_message(&notice).unwrap();
    let session = pair.inbound.as_mut().unwrap();
    session.handle_bytes(pair.now, &bytes);
    let end = session
        .step(pair.now, &mut pair.acceptor_judge)
        .unwrap_err();
    assert_eq!(end, SessionEnd::ClosedByPeer(notice));
}
