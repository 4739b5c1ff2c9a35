//! What the fuzz targets do with their bytes, and what must hold whatever those are. The targets in
//! `tests/fuzz` are one call each; the same bodies run over the committed seeds as a plain test.
//!
//! Stands on the protocol core alone, so that a target builds without a runtime or TLS. The clock is
//! the caller's. A property that doesn't hold panics.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use raft_host::proto::wire::{self, BodyWriter, ConfChange};
use transport::budget::{Amount, Budget, BudgetLimits, LaneAccount};
use transport::id::{Label, Sequence, SessionId};
use transport::limits::{HEADER_BYTES, HELLO_BODY_BYTES_MAX, TAG_BYTES};
use transport::proto::authority::Authority;
use transport::proto::deframer::Deframer;
use transport::proto::fifo::{Stamper, TagKey};
use transport::proto::frame::{Header, Kind, Side, frame_word, put_item};
use transport::proto::hello::{
    Claims, Fingerprint, HelloAnswer, PROTOCOL_VERSIONS, PeerLimits, SessionKeys, decode_answer,
    decode_claims, decode_notice, encode_answer, encode_claims, encode_notice,
};
use transport::proto::inbound::{Accepted, InboundEvent, InboundSession};
use transport::proto::outbound::{LaneTimeouts, OutboundEvent, OutboundLane};
use transport::receipt::Item;
use transport::{
    Boot, Incarnation, Lane, LifeId, NodeIdentity, PeerId, PeerMisbehaved, Receipt, SessionEnd,
};

/// A fuzz target's body: the time, and the bytes.
pub type Body = fn(Instant, &[u8]);

/// Each target's name and body.
pub const TARGETS: [(&str, Body); 5] = [
    ("deframer", deframer),
    ("hello", hello),
    ("fifo", fifo),
    ("replies", replies),
    ("host_wire", host_wire),
];

/// Bodies of the host, as a verified peer may send them: items or an error whatever the bytes, and
/// items have one form only, so that what was read is written as the same bytes.
///
/// # Panics
/// When one of these doesn't hold.
pub fn host_wire(_now: Instant, input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    if let Ok((shard, items)) = wire::decode(body.clone()) {
        let mut writer = BodyWriter::new(shard, usize::MAX);
        for item in &items {
            assert!(writer.try_push(item), "{item:?} has no room");
        }
        assert_eq!(writer.finish(), body, "another form of {items:?}");
    }
    // A change of the configuration lies in an entry, whose bytes nobody looks at on their way.
    if let Ok(change) = ConfChange::decode(input) {
        assert_eq!(ConfChange::decode(&change.encode()), Ok(change));
    }
}

/// Longer than any session of a target.
const LONG: Duration = Duration::from_secs(3600);

/// The input as a supply of choices; it gives zeroes when it has run out.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn below(&mut self, bound: usize) -> usize {
        let number = usize::from(self.byte()) << 8 | usize::from(self.byte());
        number % bound.max(1)
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn lane(&mut self) -> Lane {
        if self.byte() & 1 == 0 {
            Lane::Control
        } else {
            Lane::Bulk
        }
    }
}

/// How many messages came out of a stream, how long each was, and how it ended: with this many
/// bytes of an unfinished one, or at a fault.
type Deframed = (Vec<usize>, Result<usize, PeerMisbehaved>);

fn deframed(now: Instant, mut deframer: Deframer, stream: &[u8], piece: usize) -> Deframed {
    let (mut lengths, mut had) = (Vec::new(), 0);
    for piece in stream.chunks(piece) {
        deframer.handle_bytes(now, piece);
        had += piece.len();
        loop {
            match deframer.next_message() {
                Ok(Some(_)) => {
                    lengths.push(had - deframer.pending_bytes());
                    had = deframer.pending_bytes();
                }
                Ok(None) => break,
                Err(fault) => return (lengths, Err(fault)),
            }
        }
    }
    (lengths, Ok(deframer.pending_bytes()))
}

/// Bytes to messages: the same whatever the pieces, each as long as its header says, and nothing
/// is held beyond one message.
///
/// # Panics
/// When one of these doesn't hold.
pub fn deframer(now: Instant, input: &[u8]) {
    let mut choices = Choices(input);
    let flags = choices.byte();
    let side = if flags & 1 == 0 {
        Side::Acceptor
    } else {
        Side::Dialler
    };
    let lane = [None, Some(Lane::Control), Some(Lane::Bulk)][usize::from(flags >> 1) % 3];
    let piece = usize::from(choices.byte()) + 1;
    let stream = choices.0;
    let new = || Deframer::new(side, lane);
    let whole = deframed(now, new(), stream, stream.len().max(1));
    assert_eq!(
        deframed(now, new(), stream, piece),
        whole,
        "in pieces of {piece}"
    );
    let (lengths, end) = whole;
    let mut at = 0;
    for length in lengths {
        let said = stream[at + 4..at + 8]
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        assert_eq!(length, HEADER_BYTES + said + TAG_BYTES);
        at += length;
    }
    match end {
        Ok(left) => assert_eq!(at + left, stream.len()),
        Err(fault) => assert!(
            at + HEADER_BYTES <= stream.len(),
            "{fault} without a header"
        ),
    }
}

/// The first exchange: what can be read says the same when it is written again, a notice can't
/// disturb a log, and a session takes or refuses it without harm.
///
/// # Panics
/// When one of these doesn't hold.
pub fn hello(now: Instant, input: &[u8]) {
    let mut choices = Choices(input);
    let which = choices.byte() % 4;
    let body = Bytes::copy_from_slice(choices.0);
    match which {
        0 => {
            if let Ok(claims) = decode_claims(body.clone()) {
                let written = encode_claims(&claims).freeze();
                assert_eq!(
                    written.len(),
                    body.len(),
                    "only the order of settings may differ"
                );
                assert!(written.len() <= HELLO_BODY_BYTES_MAX);
                assert_eq!(decode_claims(written), Ok(claims));
            }
        }
        1 => {
            if let Ok(answer) = decode_answer(body.clone()) {
                let written = encode_answer(&answer).freeze();
                assert_eq!(
                    written.len(),
                    body.len(),
                    "only the order of settings may differ"
                );
                assert_eq!(decode_answer(written), Ok(answer));
            }
        }
        2 => {
            if let Ok(notice) = decode_notice(body) {
                let text = notice.to_string();
                assert!(!text.contains(char::is_control), "{text:?}");
                let written = encode_notice(&notice).freeze();
                assert_eq!(decode_notice(written), Ok(notice));
            }
        }
        _ => {
            let mut session = inbound(now, Lane::Control);
            session.handle_bytes(now, &greeting(Lane::Control, &body));
            let up = session.step(now, &mut authority(2, 1));
            let answered = session.poll_transmit().expect("numbers left").is_some();
            assert_eq!(
                up.is_ok(),
                answered,
                "an answer goes out exactly to who is up"
            );
        }
    }
}

/// Frames that were sent, then changed on their way: exactly those come out that come before the
/// first change, as they were sent.
///
/// # Panics
/// When others do.
pub fn fifo(now: Instant, input: &[u8]) {
    let mut choices = Choices(input);
    let lane = choices.lane();
    let mut stamper = Stamper::new(keys(lane).frame, Sequence::FIRST);
    let mut sent = Vec::new();
    for _ in 0..choices.below(8) + 1 {
        let items: Vec<Bytes> = (0..choices.below(3) + 1)
            .map(|_| {
                let bytes = choices.below(40);
                Bytes::copy_from_slice(choices.take(bytes))
            })
            .collect();
        sent.push((frame(&mut stamper, lane, &items), items));
    }
    let mut messages: Vec<Bytes> = sent.iter().map(|(bytes, _)| bytes.clone()).collect();
    let piece = choices.below(300) + 1;
    // First messages are lost, doubled, put elsewhere; then bytes are.
    for _ in 0..choices.below(4) {
        let (from, to) = (choices.below(messages.len()), choices.below(messages.len()));
        match (choices.byte() % 3, messages.is_empty()) {
            (_, true) => {}
            (0, _) => drop(messages.remove(from)),
            (1, _) => messages.insert(to, messages[from].clone()),
            (_, _) => messages.swap(from, to),
        }
    }
    let original: Vec<u8> = sent.iter().flat_map(|(bytes, _)| bytes.to_vec()).collect();
    let mut stream = messages.concat();
    while !choices.is_empty() && !stream.is_empty() {
        let (change, at) = (choices.byte(), choices.below(stream.len()));
        match change % 4 {
            0 => stream[at] ^= 1 << (change >> 5),
            1 => stream.truncate(at),
            2 => stream.insert(at, change),
            _ => drop(stream.remove(at)),
        }
    }
    let same = original
        .iter()
        .zip(&stream)
        .take_while(|(was, is)| was == is)
        .count();
    let mut untouched = 0;
    let mut at = 0;
    for (bytes, _) in &sent {
        at += bytes.len();
        untouched += usize::from(at <= same);
    }
    let delivered = delivered(now, lane, &stream, piece);
    assert_eq!(delivered.len(), untouched, "of {} frames", sent.len());
    for ((_, items), delivered) in sent.iter().zip(&delivered) {
        assert_eq!(items, delivered);
    }
}

/// What an acceptor delivers of a stream, until the session ends.
fn delivered(now: Instant, lane: Lane, stream: &[u8], piece: usize) -> Vec<Vec<Bytes>> {
    let mut session = inbound(now, lane);
    let mut judge = authority(2, 1);
    session.handle_bytes(now, &greeting(lane, &encode_claims(&claims(lane, 1, 2))));
    let up = session.step(now, &mut judge);
    assert!(matches!(up, Ok(Some(InboundEvent::Up { .. }))), "{up:?}");
    let mut delivered = Vec::new();
    for piece in stream.chunks(piece) {
        session.handle_bytes(now, piece);
        loop {
            match session.step(now, &mut judge) {
                Ok(Some(InboundEvent::Frame(frame))) => {
                    assert_eq!(frame.sequence(), Sequence::new(delivered.len() as u64 + 1));
                    delivered.push(frame.into_items());
                }
                Ok(Some(event)) => panic!("{event:?}"),
                Ok(None) => break,
                Err(_) => return delivered,
            }
        }
    }
    delivered
}

/// Replies of any form to frames that are outstanding: each frame is answered at most once and in
/// order, each item ends exactly once, and the account is exact after each step and empty at the
/// end.
///
/// # Panics
/// When one of these doesn't hold.
pub fn replies(now: Instant, input: &[u8]) {
    let mut choices = Choices(input);
    let mut rig = Replies::new(now, &mut choices);
    let mut end = SessionEnd::ShutDown;
    while !choices.is_empty() {
        let bytes = rig.reply(&mut choices);
        rig.lane.handle_bytes(now, &bytes);
        match rig.take_replies() {
            Ok(()) => {}
            Err(fault) => {
                end = fault;
                break;
            }
        }
        rig.transmit(&mut choices);
        rig.check();
    }
    rig.lane.end_session(&end);
    rig.check();
    // What had not been begun waits for the next session, and ends with the lane.
    rig.lane.end_session(&SessionEnd::ShutDown);
    assert_eq!(rig.account.snapshot().live(), 0);
    assert_eq!(rig.account.snapshot().reserved(), Amount::default());
    for receipt in &rig.receipts {
        assert!(receipt.outcome().is_some(), "an item without an end");
    }
}

struct Replies {
    now: Instant,
    on: Lane,
    lane: OutboundLane,
    account: LaneAccount,
    receipts: Vec<Receipt>,
    stamper: Stamper,
    answered: u64,
    begun: u64,
}

impl Replies {
    /// A lane with a session that is up and some items, some of their frames written.
    fn new(now: Instant, choices: &mut Choices<'_>) -> Self {
        let on = choices.lane();
        let amount = Amount::new(1 << 10, 1 << 20);
        let [control, bulk] = Budget::new(BudgetLimits {
            peer: amount,
            node: amount,
        })
        .open_peer();
        let account = match on {
            Lane::Control => control,
            Lane::Bulk => bulk,
        };
        let timeouts = LaneTimeouts {
            hello: LONG,
            reply: LONG,
            stall: LONG,
        };
        let mut rig = Self {
            now,
            on,
            lane: OutboundLane::new(on, account.clone(), timeouts),
            account,
            receipts: Vec::new(),
            stamper: Stamper::new(keys(on).reply, Sequence::FIRST),
            answered: 0,
            begun: 0,
        };
        let mut window = claims(on, 2, 1);
        window.limits.window_frames = u16::from(choices.byte() % 8) + 1;
        window.limits.frame_items = u16::from(choices.byte() % 4) + 1;
        rig.lane
            .begin_session(now, claims(on, 1, 2), identity(2), keys(on));
        assert!(rig.lane.poll_transmit(now).is_some(), "the hello");
        let answer = HelloAnswer {
            claims: window,
            version: 1,
            session: SessionId::new(1),
        };
        let header = plain(Kind::HelloAnswer, on, 2);
        let mut hello = Stamper::new(keys(on).hello, Sequence::new(2));
        let answer = sealed(&mut hello, header, &encode_answer(&answer));
        rig.lane.handle_bytes(now, &answer);
        let up = rig.lane.step(now, &mut authority(1, 2));
        assert!(matches!(up, Ok(Some(OutboundEvent::Up { .. }))), "{up:?}");
        for _ in 0..choices.below(12) + 1 {
            rig.push(choices);
        }
        rig.transmit(choices);
        rig
    }

    fn push(&mut self, choices: &mut Choices<'_>) {
        let bytes = usize::from(choices.byte() % 16);
        let payload = Bytes::copy_from_slice(choices.take(bytes));
        let amount = Amount::new(1, payload.len() as u64);
        let mut room = self.account.try_reserve(amount).expect("room");
        let item = Item::start(&mut room, payload, Label::new(0), self.now + LONG);
        let (item, receipt) = item.expect("a reservation that fits");
        self.lane.push(self.now, item);
        self.receipts.push(receipt);
    }

    /// Begins what may be begun; the socket takes some of it.
    fn transmit(&mut self, choices: &mut Choices<'_>) {
        while let Some(transmit) = self.lane.poll_transmit(self.now) {
            self.begun += 1;
            assert_eq!(transmit.frame, Some(Sequence::new(self.begun)));
            if choices.byte() & 7 != 0 {
                self.lane.on_written(Sequence::new(self.begun));
            }
        }
    }

    /// The next reply: mostly one that could stand, now and then one that is wrong somewhere.
    fn reply(&mut self, choices: &mut Choices<'_>) -> Bytes {
        let how = choices.byte();
        let form = [1, 2, 3, choices.byte()][usize::from(how & 3)];
        let answers = match how >> 2 & 3 {
            0 => u64::from(choices.byte()),
            _ => self.answered + 1,
        };
        let body = match how >> 4 & 3 {
            0 => BytesMut::from(&[0][..]),
            1 => BytesMut::from(&[choices.byte()][..]),
            2 => {
                let mut verdicts = BytesMut::new();
                for _ in 0..choices.byte() % 6 {
                    verdicts.put_u8(choices.byte() & 3);
                    put_item(&mut verdicts, &[]);
                }
                verdicts
            }
            _ => {
                let bytes = choices.below(64);
                BytesMut::from(choices.take(bytes))
            }
        };
        let sequence = self.stamper.next().expect("numbers left");
        let header = Header {
            kind: Kind::Reply,
            lane: self.on,
            form,
            body_bytes: 0,
            sequence,
            word: answers,
        };
        let mut bytes = sealed(&mut self.stamper, header, &body).to_vec();
        if how == 0xff {
            let at = choices.below(bytes.len());
            bytes[at] ^= choices.byte();
        }
        bytes.into()
    }

    fn take_replies(&mut self) -> Result<(), SessionEnd> {
        while let Some(event) = self.lane.step(self.now, &mut authority(1, 2))? {
            self.answered += 1;
            let next = OutboundEvent::Answered(Sequence::new(self.answered));
            assert_eq!(event, next, "in order, each once");
        }
        Ok(())
    }

    fn check(&self) {
        let snapshot = self.account.snapshot();
        assert!(snapshot.is_exact(), "{snapshot:?}");
        let ended = self
            .receipts
            .iter()
            .filter(|receipt| receipt.outcome().is_some())
            .count();
        let live = self.receipts.len() - ended;
        assert_eq!(snapshot.live(), live as u64, "{snapshot:?}");
        assert!(self.answered <= self.begun);
    }
}

fn keys(lane: Lane) -> SessionKeys {
    let of_lane = match lane {
        Lane::Control => 0x10,
        Lane::Bulk => 0x20,
    };
    SessionKeys {
        hello: TagKey::new(&[of_lane + 1; 32]),
        frame: TagKey::new(&[of_lane + 2; 32]),
        reply: TagKey::new(&[of_lane + 3; 32]),
    }
}

fn peer(number: u32) -> PeerId {
    PeerId::new(number).expect("a node number above 0")
}

fn identity(number: u32) -> NodeIdentity {
    NodeIdentity {
        cluster: "dev".parse().expect("a cluster name"),
        node: peer(number),
    }
}

fn authority(here: u32, other: u32) -> Authority {
    Authority::new(identity(here), [peer(other)])
}

fn claims(lane: Lane, from: u32, to: u32) -> Claims {
    let frame_bytes = match lane {
        Lane::Control => 64 << 10,
        Lane::Bulk => 256 << 10,
    };
    Claims {
        versions: PROTOCOL_VERSIONS,
        cluster: "dev".parse().expect("a cluster name"),
        from: peer(from),
        to: peer(to),
        incarnation: Incarnation::new([7; 16]),
        boot: Boot::new(1),
        life: LifeId::from_random(7),
        sync_number: 0,
        limits: PeerLimits {
            window_frames: 16,
            window_bytes: 4 << 20,
            frame_bytes,
            frame_items: 4096,
        },
        fingerprint: Fingerprint::default(),
    }
}

fn inbound(now: Instant, lane: Lane) -> InboundSession {
    let with = Accepted {
        claims: claims(lane, 2, 1),
        certified: identity(1),
        keys: [keys(Lane::Control), keys(Lane::Bulk)],
        session: SessionId::new(1),
        hello_timeout: LONG,
    };
    InboundSession::new(now, with)
}

const fn plain(kind: Kind, lane: Lane, sequence: u64) -> Header {
    Header {
        kind,
        lane,
        form: 0,
        body_bytes: 0,
        sequence: Sequence::new(sequence),
        word: 0,
    }
}

/// The message with this header, but for the length, and this body.
fn sealed(stamper: &mut Stamper, header: Header, body: &[u8]) -> Bytes {
    let body_bytes = u32::try_from(body.len()).expect("a short body");
    let mut message = BytesMut::new();
    Header {
        body_bytes,
        ..header
    }
    .encode(&mut message);
    message.put_slice(body);
    let (_, bytes) = stamper.stamp(message).expect("numbers left");
    bytes
}

/// A hello with this body.
fn greeting(lane: Lane, body: &[u8]) -> Bytes {
    let mut stamper = Stamper::new(keys(lane).hello, Sequence::FIRST);
    sealed(&mut stamper, plain(Kind::Hello, lane, 1), body)
}

fn frame(stamper: &mut Stamper, lane: Lane, items: &[Bytes]) -> Bytes {
    let mut body = BytesMut::new();
    for item in items {
        put_item(&mut body, item);
    }
    let count = u16::try_from(items.len()).expect("few items");
    let sequence = stamper.next().expect("numbers left");
    let header = Header {
        word: frame_word(LONG, count),
        ..plain(Kind::Frame, lane, sequence.to_u64())
    };
    sealed(stamper, header, &body)
}
