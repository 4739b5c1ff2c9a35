//! What a peer with a valid certificate can do to a node, over real TLS sockets: it breaks the wire's
//! rules one after another, as dialler and as acceptor. Each breach ends its own session for its
//! own reason, nothing after it is delivered, every account stays exact, and the good peer, which
//! is connected all the while, notices nothing.
//!
//! The rogue and the oracle below are written from `plans/wire.md`, not from the transport.

mod frames;
mod hellos;
mod limits;
mod replies;

use std::net::SocketAddr;

use bytes::Bytes;
use tests::certs::{Fleet, node};
use tests::node::{NodeOptions, TestNode, free_address};
use tests::rogue::wire::{
    BULK, CONTROL, HEADER_BYTES, Key, Keys, Message, TAG_BYTES, context, kind,
};
use tests::rogue::{Listener, Persona, Session, Side};
use tests::soon;
use transport::config::RawTuning;
use transport::id::Sequence;
use transport::io::{Direction, Event};
use transport::{Lane, Outcome, PeerMisbehaved, SessionEnd};

/// The code of a close that says: you broke the protocol.
const MISBEHAVED: Option<u16> = Some(2);

/// Node 1 with a good peer 2 and a rogue in the place of peer 3.
struct Scene {
    fleet: Fleet,
    one: TestNode,
    two: TestNode,
    /// Where node 1 finds its peer 3.
    rogue: Listener,
    /// Whom the rogue dials as.
    persona: Persona,
    /// Where node 1 is.
    address: SocketAddr,
}

impl Scene {
    async fn start(tuning: RawTuning) -> Self {
        let fleet = Fleet::new("dev");
        let persona = Persona::of(&fleet, "dev", 3);
        let rogue = Listener::start(persona.clone());
        let (address, two_listens) = (free_address(), free_address());
        let options = |listen, peers| NodeOptions {
            listen: Some(listen),
            peers,
            ..NodeOptions::default()
        };
        let peers = [(2, two_listens), (3, rogue.address())].into();
        let with_tuning = NodeOptions {
            tuning,
            ..options(address, peers)
        };
        let one = TestNode::start(&fleet, 1, with_tuning).await;
        let two = TestNode::start(&fleet, 2, options(two_listens, [(1, address)].into())).await;
        let mut scene = Self {
            fleet,
            one,
            two,
            rogue,
            persona,
            address,
        };
        scene.unharmed("the start").await;
        scene
    }

    /// A session of the rogue's that is up, on which one frame went and was answered; with both.
    async fn dialled(&mut self, lane: Lane) -> (Session, Exchanged) {
        let session = self.persona.dial_up(self.address, 1, number_of(lane)).await;
        self.exchanged(session).await
    }

    async fn exchanged(&mut self, mut session: Session) -> (Session, Exchanged) {
        let frame = session.frame(&[b"first"]);
        session.send(&frame).await;
        assert_eq!(self.one.echo().await, ["first"]);
        let (reply, bytes) = session.read().await.expect("a reply");
        assert_eq!((reply.kind, reply.word), (kind::REPLY, 1));
        let reply = bytes;
        (session, Exchanged { frame, reply })
    }

    /// The first event of node 1's that `wanted` makes something of, and no end of a session with
    /// the good peer before it.
    async fn event<T>(&mut self, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let checked = |event: &Event| {
            assert!(!concerns_the_good_peer(event), "{event:?}");
            wanted(event)
        };
        self.one.event(what, checked).await
    }

    /// How the rogue's session ended, as node 1 tells it.
    async fn down(&mut self, case: &str, of: Direction, on: Lane) -> SessionEnd {
        let down = |event: &Event| match event {
            Event::SessionDown {
                direction,
                lane,
                end,
                ..
            } if (*direction, *lane) == (of, on) => Some(end.clone()),
            _ => None,
        };
        self.event(&format!("the end of: {case}"), down).await
    }

    /// How node 1 put it that it turned a connection away.
    async fn refused(&mut self, case: &str) -> SessionEnd {
        let refused = |event: &Event| match event {
            Event::Refused { identity, end, .. } => {
                let of = identity.as_ref().map(|identity| identity.node);
                assert_eq!(of, Some(node(3)), "who was refused: {event:?}");
                Some(end.clone())
            }
            _ => None,
        };
        self.event(&format!("the refusal of: {case}"), refused)
            .await
    }

    /// How a dial of node 1's failed.
    async fn dial_failed(&mut self, case: &str, on: Lane) -> SessionEnd {
        let failed = |event: &Event| match event {
            Event::DialFailed { lane, end, .. } if *lane == on => Some(end.clone()),
            _ => None,
        };
        self.event(&format!("a failed dial: {case}"), failed).await
    }

    /// The good peer's session works, on both lanes and both ways; nothing of the rogue's was
    /// delivered; and every account of node 1 is exact.
    async fn unharmed(&mut self, case: &str) {
        let stray = self.one.deliveries.try_recv();
        assert!(stray.is_err(), "delivered after {case}: {stray:?}");
        for lane in Lane::ALL {
            let forth = self.one.send(2, lane, "good");
            assert_eq!(self.two.echo().await, ["good"], "{case}");
            let back = self.two.send(1, lane, "good");
            assert_eq!(self.one.echo().await, ["good"], "{case}");
            for receipt in [forth, back] {
                let replied = Outcome::Replied(Bytes::from("good"));
                assert_eq!(soon("an outcome", receipt).await, replied, "{case}");
            }
        }
        while let Ok(event) = self.two.events.try_recv() {
            assert!(
                !matches!(event, Event::SessionDown { .. }),
                "{case}: {event:?}"
            );
        }
        for lane in self.one.transport.status().lanes {
            assert!(lane.account.is_exact(), "{case}: {lane:?}");
        }
    }

    /// Says `bytes` on a session of the rogue's that is up, as dialler; it must end like this, and
    /// say so.
    async fn breach(&mut self, case: &str, session: &mut Session, bytes: &[u8], end: SessionEnd) {
        let up = self.one.transport.status().inbound;
        assert!(
            up.iter().any(|session| session.peer == node(3)),
            "{case}: {up:?}"
        );
        session.send(bytes).await;
        self.ended(case, session, end).await;
    }

    /// The session of a rogue dialler ends like this, says so, and nobody else is touched.
    async fn ended(&mut self, case: &str, session: &mut Session, end: SessionEnd) {
        let lane = lane_of(session);
        assert_eq!(
            self.down(case, Direction::Inbound, lane).await,
            end,
            "{case}"
        );
        let code = end.notice().map(|notice| notice.code.to_u16());
        assert_eq!(session.last_code().await, code, "{case}");
        let left = self.one.transport.status().inbound;
        assert!(
            left.iter().all(|session| session.peer != node(3)),
            "{case}: {left:?}"
        );
        self.unharmed(case).await;
    }

    /// Stops both nodes, which asserts that nothing is left and every account is exact.
    async fn end(self) {
        drop((self.one.stop().await, self.two.stop().await));
    }
}

/// A frame of the rogue's and the transport's reply, or the other way round, as bytes.
struct Exchanged {
    frame: Vec<u8>,
    reply: Vec<u8>,
}

fn concerns_the_good_peer(event: &Event) -> bool {
    match event {
        Event::SessionDown { peer, .. } => *peer == node(2),
        _ => false,
    }
}

const fn number_of(lane: Lane) -> u8 {
    match lane {
        Lane::Control => CONTROL,
        Lane::Bulk => BULK,
    }
}

fn lane_of(session: &Session) -> Lane {
    let lane = Lane::ALL
        .into_iter()
        .find(|lane| number_of(*lane) == session.lane);
    lane.expect("a lane")
}

/// What section 4 of the wire document makes of a first message in this state whose tag is wrong,
/// if the stream ends behind it. `lane` is the session's, which is up.
fn fault_of(bytes: &[u8], reader: Side, lane: Lane, expected: u64) -> PeerMisbehaved {
    let byte = |at: usize| bytes[at];
    let number = |from: usize, to: usize| {
        let place = |sum: u64, at: usize| sum << 8 | u64::from(byte(at));
        (from..to).fold(0, place)
    };
    let kind = byte(0);
    if byte(1) != 1 {
        let got = byte(1);
        return PeerMisbehaved::UnknownVersion { expected: 1, got };
    }
    let from_the_reader = match (kind, reader) {
        (1 | 4, side) => side == Side::Dialler,
        (2 | 3 | 5, side) => side == Side::Acceptor,
        (6 | 7, _) => false,
        _ => return PeerMisbehaved::UnknownKind { got: kind },
    };
    if from_the_reader {
        return PeerMisbehaved::Reflected { got: kind };
    }
    if byte(2) != number_of(lane) {
        return PeerMisbehaved::WrongLane {
            expected: lane,
            got: byte(2),
        };
    }
    let length = number(4, 8);
    let max = match (kind, lane) {
        (4, Lane::Bulk) => 262_144,
        (4, Lane::Control) | (5, _) => 65_536,
        _ => 4096,
    };
    if length > max {
        let got = u32::try_from(length).expect("four bytes");
        let max = u32::try_from(max).expect("a bound");
        return PeerMisbehaved::OversizedBody { kind, got, max };
    }
    let word = number(16, 24);
    let fits = match kind {
        4 => byte(3) == 0 && word & 0xffff == 0 && (1..=4096).contains(&(word >> 16 & 0xffff)),
        5 => (1..=3).contains(&byte(3)),
        _ => byte(3) == 0 && word == 0,
    };
    if !fits {
        return PeerMisbehaved::BadHeader { kind };
    }
    if bytes.len() < HEADER_BYTES + usize::try_from(length).expect("a length") + TAG_BYTES {
        return PeerMisbehaved::Truncated { got: bytes.len() };
    }
    let (got, sequence) = (Sequence::new(number(8, 16)), Sequence::new(expected));
    match got.cmp(&sequence) {
        std::cmp::Ordering::Greater => PeerMisbehaved::SequenceGap {
            expected: sequence,
            got,
        },
        std::cmp::Ordering::Less => PeerMisbehaved::SequenceReplayed {
            expected: sequence,
            got,
        },
        std::cmp::Ordering::Equal => PeerMisbehaved::BadTag { sequence },
    }
}

/// `bytes` with one bit turned.
fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 0x80 >> (bit % 8);
    bytes
}

fn hex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("two hex digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

#[test]
fn the_rogue_writes_the_vectors_of_the_wire() {
    let text = include_str!("../../plans/wire-vectors.json");
    let vectors: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let string = |value: &serde_json::Value| value.as_str().expect("a string").to_owned();
    let messages = vectors["messages"].as_array().expect("messages");
    for vector in messages {
        let name = string(&vector["name"]);
        let key = hex(&string(&vectors["keys"][string(&vector["key"])]));
        let key = Key(key.try_into().expect("a key"));
        let parts = ["header", "body", "tag"].map(|part| hex(&string(&vector[part])));
        let bytes = parts.concat();
        let (message, length) = Message::first_of(&bytes).expect("a whole message");
        assert_eq!(length, bytes.len(), "{name}");
        assert_eq!(message.sealed(&key), bytes, "{name}");
    }
    assert_eq!(messages.len(), 25);
    let exporter = &vectors["exporter"];
    for (lane, of) in [1, 2]
        .into_iter()
        .zip(exporter["contexts"].as_array().expect("both"))
    {
        let mut labels = Vec::new();
        let said = context("dev", lane, 1, 2);
        assert_eq!(said, hex(&string(&of["context"])));
        let keys = Keys::draw(&said, |label, context| {
            assert_eq!(context, said);
            labels.push(String::from_utf8(label.to_vec()).expect("a label"));
            [0; 32]
        });
        assert_eq!(keys.hello, Key([0; 32]));
        assert_eq!(serde_json::json!(labels), exporter["labels"]);
    }
}
