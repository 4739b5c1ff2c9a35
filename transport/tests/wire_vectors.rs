//! Holds `plans/wire-vectors.json` against the shipped code. The two session cores speak to each
//! other under fixed keys, and every byte that they exchange must be the byte in the file; the
//! messages that must end a session are fed to a core, which must give the fault in the file. Who
//! writes another implementation from `plans/wire.md` has the same file to check against.
//!
//! The file is frozen: a difference is a change of the wire, and so of its version. What the code
//! makes now is then left in `target/tmp/wire-vectors.json` to be compared.
#![expect(
    clippy::unwrap_used,
    reason = "a vector that can't be made is a failed test"
)]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};
use transport::budget::{Amount, Budget, BudgetLimits};
use transport::id::{
    Boot, Incarnation, Label, Lane, LifeId, NodeIdentity, PeerId, Sequence, SessionId,
};
use transport::proto::authority::Authority;
use transport::proto::confirm::{Confirm, Held};
use transport::proto::fifo::{Stamper, TagKey};
use transport::proto::frame::{Answer, Header, Kind, frame_word, put_item};
use transport::proto::hello::{
    Claims, Fingerprint, KEY_LABELS, KeyContext, PROTOCOL_VERSIONS, PeerLimits, SessionKeys,
};
use transport::proto::inbound::{Accepted, InboundSession};
use transport::proto::outbound::{LaneTimeouts, OutboundEvent, OutboundLane};
use transport::receipt::{Item, Outcome};
use transport::{RefusalReason, SessionEnd};

const FROZEN: &str = include_str!("../../plans/wire-vectors.json");
const CLUSTER: &str = "dev";
const DIALLER: u32 = 1;
const ACCEPTOR: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time that every frame of the file has left when it is begun.
const REMAINING: Duration = Duration::from_millis(3000);

#[expect(
    clippy::disallowed_methods,
    reason = "any instant will do as the start of virtual time"
)]
fn start_of_time() -> Instant {
    Instant::now()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn peer(number: u32) -> PeerId {
    PeerId::new(number).unwrap()
}

fn identity(node: u32) -> NodeIdentity {
    NodeIdentity {
        cluster: CLUSTER.parse().unwrap(),
        node: peer(node),
    }
}

/// Three keys that no exporter gave: their bytes count up from these.
fn key_bytes(lane: Lane) -> [[u8; 32]; 3] {
    let base = match lane {
        Lane::Control => 0x00,
        Lane::Bulk => 0x80,
    };
    [0x00, 0x20, 0x40].map(|from| std::array::from_fn(|at| base + from + u8::try_from(at).unwrap()))
}

fn keys(lane: Lane) -> SessionKeys {
    let [hello, frame, reply] = key_bytes(lane).map(|bytes| TagKey::new(&bytes));
    SessionKeys {
        hello,
        frame,
        reply,
    }
}

fn claims(from: u32, to: u32, lane: Lane) -> Claims {
    Claims {
        versions: PROTOCOL_VERSIONS,
        cluster: CLUSTER.parse().unwrap(),
        from: peer(from),
        to: peer(to),
        incarnation: Incarnation::new([u8::try_from(from).unwrap(); 16]),
        boot: Boot::new(u64::from(from) + 2),
        life: LifeId::from_random(0x0a0b_0c0d_0000_0000 + u64::from(from)),
        sync_number: 1000 + u64::from(from),
        limits: PeerLimits {
            window_frames: 16,
            window_bytes: 4 << 20,
            frame_bytes: match lane {
                Lane::Control => 64 << 10,
                Lane::Bulk => 256 << 10,
            },
            frame_items: 4096,
        },
        fingerprint: Fingerprint::new([("groups", "1500"), ("wire", "1")]).unwrap(),
    }
}

/// A message of the file, and the bytes that a reader has to find in it.
fn message(name: &str, key: &str, bytes: &[u8], says: Value) -> Value {
    let (covered, tag) = bytes.split_at(bytes.len() - 16);
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&covered[8..16]);
    json!({
        "name": name,
        "key": key,
        "nonce": hex(&nonce),
        "header": hex(&covered[..24]),
        "body": hex(&covered[24..]),
        "tag": hex(tag),
        "says": says,
    })
}

fn says_claims(claims: &Claims) -> Value {
    json!({
        "versions": [claims.versions.min, claims.versions.max],
        "from": claims.from.to_u32(),
        "to": claims.to.to_u32(),
        "incarnation": claims.incarnation.to_string(),
        "boot": claims.boot.to_u64(),
        "life": claims.life.to_string(),
        "sync_number": claims.sync_number,
        "window_frames": claims.limits.window_frames,
        "frame_items": claims.limits.frame_items,
        "frame_bytes": claims.limits.frame_bytes,
        "window_bytes": claims.limits.window_bytes,
        "cluster": claims.cluster.as_str(),
        "fingerprint": [["groups", "1500"], ["wire", "1"]],
    })
}

/// Both cores of one lane, joined by calls.
struct Link {
    lane: Lane,
    now: Instant,
    dialler: OutboundLane,
    account: transport::budget::LaneAccount,
    acceptor: InboundSession,
    dialler_judge: Authority,
    acceptor_judge: Authority,
    messages: Vec<Value>,
}

const SESSION: u64 = 0x0102_0304_0506_0708;

impl Link {
    fn new(lane: Lane) -> Self {
        let now = start_of_time();
        let plenty = Amount::new(1 << 16, 1 << 24);
        let budget = Budget::new(BudgetLimits {
            peer: plenty,
            node: plenty,
        });
        let [control, bulk] = budget.open_peer();
        let account = match lane {
            Lane::Control => control,
            Lane::Bulk => bulk,
        };
        let timeouts = LaneTimeouts {
            hello: TIMEOUT,
            reply: TIMEOUT,
            stall: TIMEOUT,
        };
        let mut dialler = OutboundLane::new(lane, account.clone(), timeouts);
        dialler.begin_session(
            now,
            claims(DIALLER, ACCEPTOR, lane),
            identity(ACCEPTOR),
            keys(lane),
        );
        let acceptor = InboundSession::new(
            now,
            Accepted {
                claims: claims(ACCEPTOR, DIALLER, lane),
                certified: identity(DIALLER),
                keys: [keys(Lane::Control), keys(Lane::Bulk)],
                session: SessionId::new(SESSION),
                hello_timeout: TIMEOUT,
            },
        );
        Self {
            lane,
            now,
            dialler,
            account,
            acceptor,
            dialler_judge: Authority::new(identity(DIALLER), [peer(ACCEPTOR)]),
            acceptor_judge: Authority::new(identity(ACCEPTOR), [peer(DIALLER)]),
            messages: Vec::new(),
        }
    }

    fn note(&mut self, name: &str, key: &str, bytes: &[u8], says: Value) {
        let name = format!("{}: {name}", self.lane);
        let key = format!("{} {key}", self.lane);
        self.messages.push(message(&name, &key, bytes, says));
    }

    /// Hello and answer: the session is up afterwards.
    fn greet(&mut self) {
        let hello = self.dialler.poll_transmit(self.now).unwrap().bytes;
        self.note(
            "hello",
            "hello",
            &hello,
            says_claims(&claims(DIALLER, ACCEPTOR, self.lane)),
        );
        self.acceptor.handle_bytes(self.now, &hello);
        self.acceptor
            .step(self.now, &mut self.acceptor_judge)
            .unwrap()
            .unwrap();
        let answer = self.acceptor.poll_transmit().unwrap().unwrap();
        let mut says = says_claims(&claims(ACCEPTOR, DIALLER, self.lane));
        says["version"] = json!(1);
        says["session"] = json!(SessionId::new(SESSION).to_string());
        self.note("answer", "hello", &answer, says);
        self.dialler.handle_bytes(self.now, &answer);
        self.dialler
            .step(self.now, &mut self.dialler_judge)
            .unwrap()
            .unwrap();
    }

    /// One frame with these items, answered so.
    fn exchange(&mut self, name: &str, items: &[&[u8]], answer: Answer, outcomes: &[Outcome]) {
        let amount = Amount::new(
            items.len() as u64,
            items.iter().map(|i| i.len() as u64).sum(),
        );
        let mut room = self.account.try_reserve(amount).unwrap();
        let mut receipts = Vec::new();
        for &item in items {
            let payload = Bytes::copy_from_slice(item);
            let deadline = self.now + REMAINING;
            let (item, receipt) =
                Item::start(&mut room, payload, Label::default(), deadline).unwrap();
            self.dialler.push(self.now, item);
            receipts.push(receipt);
        }
        let frame = self.dialler.poll_transmit(self.now).unwrap();
        let sequence = frame.frame.unwrap();
        self.note(
            &format!("frame, {name}"),
            "frame",
            &frame.bytes,
            json!({
                "remaining_ms": 3000,
                "items": items.iter().map(|item| hex(item)).collect::<Vec<_>>(),
            }),
        );
        self.dialler.on_written(sequence);
        self.acceptor.handle_bytes(self.now, &frame.bytes);
        self.acceptor
            .step(self.now, &mut self.acceptor_judge)
            .unwrap()
            .unwrap();
        let says = match &answer {
            Answer::Taken(bytes) => json!({ "taken": hex(bytes) }),
            Answer::Refused(reason) => json!({ "refused": reason.to_u8() }),
            Answer::PerItem(verdicts) => json!({ "per_item": verdicts.iter().map(|v| match v {
                Ok(bytes) => json!([0, hex(bytes)]),
                Err(reason) => json!([reason.to_u8(), ""]),
            }).collect::<Vec<_>>() }),
        };
        self.acceptor.answer(sequence, answer);
        let reply = self.acceptor.poll_transmit().unwrap().unwrap();
        self.note(
            &format!("reply, {name}"),
            "reply",
            &reply,
            json!({
                "answers": sequence.to_u64(),
                "answer": says,
            }),
        );
        self.dialler.handle_bytes(self.now, &reply);
        self.dialler
            .step(self.now, &mut self.dialler_judge)
            .unwrap()
            .unwrap();
        let ended: Vec<_> = receipts
            .iter()
            .filter_map(|receipt| receipt.outcome())
            .collect();
        assert_eq!(ended, outcomes, "{name}");
    }

    /// The acceptor says what it holds to the dialler and how far its log is synced.
    fn confirm(&mut self, name: &str, confirm: Confirm) {
        self.acceptor.confirm(confirm);
        let bytes = self.acceptor.poll_transmit().unwrap().unwrap();
        let session = |held: Option<SessionId>| held.map(|it| it.to_string());
        self.note(
            &format!("confirm, {name}"),
            "reply",
            &bytes,
            json!({
                "sync_number": confirm.sync_number,
                "control": session(confirm.held.control),
                "bulk": session(confirm.held.bulk),
            }),
        );
        self.dialler.handle_bytes(self.now, &bytes);
        let said = self.dialler.step(self.now, &mut self.dialler_judge);
        let Ok(Some(OutboundEvent::Confirmed(said))) = said else {
            panic!("{name}: a confirm was read as {said:?}")
        };
        assert_eq!(said, confirm);
    }

    /// Both sides end the session; each close is the last of its direction.
    fn part(&mut self) {
        let notice = SessionEnd::ShutDown.notice().unwrap();
        let close = self.dialler.close_message(&notice).unwrap();
        self.note(
            "close, by the dialler",
            "frame",
            &close,
            json!({ "code": 1, "texts": ["", ""] }),
        );
        let notice = SessionEnd::Replaced.notice().unwrap();
        let close = self.acceptor.close_message(&notice).unwrap();
        self.note(
            "close, by the acceptor",
            "reply",
            &close,
            json!({ "code": 14, "texts": ["", ""] }),
        );
        self.dialler.handle_bytes(self.now, &close);
        let end = self
            .dialler
            .step(self.now, &mut self.dialler_judge)
            .unwrap_err();
        assert_eq!(end, SessionEnd::ClosedByPeer(notice));
    }
}

/// One session of a lane, from hello to close.
fn session(lane: Lane) -> Vec<Value> {
    let mut link = Link::new(lane);
    link.greet();
    let taken = |bytes: &'static [u8]| Outcome::Replied(Bytes::from_static(bytes));
    link.exchange(
        "one item, all taken",
        &[b"beat"],
        Answer::Taken(Bytes::from_static(b"ok")),
        &[taken(b"ok")],
    );
    link.exchange(
        "three items, a verdict on each",
        &[b"first", b"", b"third"],
        Answer::PerItem(vec![
            Ok(Bytes::from_static(b"1")),
            Err(RefusalReason::WrongDestination),
            Ok(Bytes::new()),
        ]),
        &[
            taken(b"1"),
            Outcome::Refused(RefusalReason::WrongDestination),
            taken(b""),
        ],
    );
    link.exchange(
        "one item, none taken",
        &[&[0xff; 40]],
        Answer::Refused(RefusalReason::Busy),
        &[Outcome::Refused(RefusalReason::Busy)],
    );
    if lane == Lane::Control {
        confirms(&mut link);
    }
    link.part();
    link.messages
}

/// What the acceptor of a control session tells beside its replies.
fn confirms(link: &mut Link) {
    link.confirm(
        "control alone",
        Confirm {
            held: Held {
                control: Some(SessionId::new(0x1112_1314_1516_1718)),
                bulk: None,
            },
            sync_number: 1003,
        },
    );
    link.confirm(
        "both lanes",
        Confirm {
            held: Held {
                control: Some(SessionId::new(0x1112_1314_1516_1718)),
                bulk: Some(SessionId::new(0x2122_2324_2526_2728)),
            },
            sync_number: 1004,
        },
    );
    link.confirm(
        "nothing held",
        Confirm {
            held: Held::default(),
            sync_number: 1004,
        },
    );
}

/// A dialler that wants another node is refused, under the hello's key.
fn refusal() -> Vec<Value> {
    let mut link = Link::new(Lane::Control);
    let hello = claims(DIALLER, 3, Lane::Control);
    link.dialler = OutboundLane::new(
        Lane::Control,
        link.account.clone(),
        LaneTimeouts {
            hello: TIMEOUT,
            reply: TIMEOUT,
            stall: TIMEOUT,
        },
    );
    link.dialler.begin_session(
        link.now,
        hello.clone(),
        identity(ACCEPTOR),
        keys(Lane::Control),
    );
    let bytes = link.dialler.poll_transmit(link.now).unwrap().bytes;
    link.note("hello for node 3", "hello", &bytes, says_claims(&hello));
    link.acceptor.handle_bytes(link.now, &bytes);
    let end = link
        .acceptor
        .step(link.now, &mut link.acceptor_judge)
        .unwrap_err();
    let notice = end.notice().unwrap();
    let refusal = link.acceptor.close_message(&notice).unwrap();
    link.note(
        "refusal by node 2",
        "hello",
        &refusal,
        json!({ "code": 4, "texts": ["2", "3"] }),
    );
    link.dialler.handle_bytes(link.now, &refusal);
    let end = link
        .dialler
        .step(link.now, &mut link.dialler_judge)
        .unwrap_err();
    assert_eq!(end, SessionEnd::RefusedByPeer(notice));
    link.messages
}

/// A frame stamped as a dialler would, with whatever is wrong with it.
fn frame(key: &[u8; 32], sequence: u64, header: impl FnOnce(&mut Header), body: &[u8]) -> BytesMut {
    let mut head = Header {
        kind: Kind::Frame,
        lane: Lane::Control,
        form: 0,
        body_bytes: u32::try_from(body.len()).unwrap(),
        sequence: Sequence::new(sequence),
        word: frame_word(REMAINING, 1),
    };
    header(&mut head);
    let mut message = BytesMut::new();
    head.encode(&mut message);
    message.put_slice(body);
    let mut stamper = Stamper::new(TagKey::new(key), Sequence::new(sequence));
    BytesMut::from(&stamper.stamp(message).unwrap().1[..])
}

/// First frames of a control session that must end it, each with the fault that the acceptor names.
fn faults() -> Vec<Value> {
    let [hello_key, frame_key, reply_key] = key_bytes(Lane::Control);
    let [_, bulk_frame_key, _] = key_bytes(Lane::Bulk);
    let mut item = BytesMut::new();
    put_item(&mut item, b"beat");
    let good = || frame(&frame_key, 1, |_| {}, &item);
    let with = |at: usize, byte: u8| {
        let mut bytes = good();
        bytes[at] = byte;
        bytes
    };
    let cases: Vec<(&str, BytesMut)> = vec![
        (
            "a sequence that skips one",
            frame(&frame_key, 2, |_| {}, &item),
        ),
        (
            "a sequence from before",
            frame(&frame_key, 0, |_| {}, &item),
        ),
        ("a bit of the body turned", with(30, good()[30] ^ 1)),
        ("a bit of the tag turned", with(47, good()[47] ^ 0x80)),
        (
            "another session's key",
            frame(&[0xa5; 32], 1, |_| {}, &item),
        ),
        (
            "the bulk lane's key",
            frame(&bulk_frame_key, 1, |_| {}, &item),
        ),
        ("the hello's key", frame(&hello_key, 1, |_| {}, &item)),
        (
            "the acceptor's own reply",
            frame(
                &reply_key,
                1,
                |h| {
                    h.kind = Kind::Reply;
                    h.form = 1;
                    h.word = 1;
                },
                b"",
            ),
        ),
        ("an unknown version", with(1, 2)),
        ("an unknown kind", with(0, 9)),
        ("the other lane", with(2, 2)),
        ("a form on a frame", with(3, 1)),
        ("a reserved bit of the word", with(23, 1)),
        (
            "no items",
            frame(&frame_key, 1, |h| h.word = frame_word(REMAINING, 0), b""),
        ),
        (
            "too many items",
            frame(
                &frame_key,
                1,
                |h| h.word = frame_word(REMAINING, 4097),
                &item,
            ),
        ),
        ("a length over the lane's bound", {
            let mut bytes = good();
            bytes[4..8].copy_from_slice(&65_537_u32.to_be_bytes());
            bytes
        }),
        (
            "items that don't fill the body",
            frame(&frame_key, 1, |_| {}, &[&item[..], b"x"].concat()),
        ),
        (
            "an item longer than the body",
            frame(&frame_key, 1, |_| {}, &[0, 0, 0, 9, 1]),
        ),
        (
            "a second hello",
            frame(
                &frame_key,
                1,
                |h| {
                    h.kind = Kind::Hello;
                    h.word = 0;
                },
                b"",
            ),
        ),
    ];
    cases
        .into_iter()
        .map(|(name, bytes)| {
            let mut link = Link::new(Lane::Control);
            link.greet();
            link.acceptor.handle_bytes(link.now, &bytes);
            match link.acceptor.step(link.now, &mut link.acceptor_judge) {
                Err(SessionEnd::PeerMisbehaved(fault)) => {
                    json!({ "name": name, "bytes": hex(&bytes), "fault": fault.to_string() })
                }
                other => panic!("{name} must end the session, but gave {other:?}"),
            }
        })
        .collect()
}

fn vectors() -> Value {
    let contexts: Vec<_> = Lane::ALL
        .map(|lane| {
            let context = KeyContext {
                cluster: CLUSTER.parse().unwrap(),
                lane,
                dialler: peer(DIALLER),
                acceptor: peer(ACCEPTOR),
            };
            json!({ "lane": lane.to_string(), "context": hex(&context.to_bytes()) })
        })
        .into();
    let keys: serde_json::Map<String, Value> = Lane::ALL
        .into_iter()
        .flat_map(|lane| {
            ["hello", "frame", "reply"]
                .into_iter()
                .zip(key_bytes(lane))
                .map(move |(name, bytes)| (format!("{lane} {name}"), json!(hex(&bytes))))
        })
        .collect();
    let messages = [session(Lane::Control), session(Lane::Bulk), refusal()].concat();
    json!({
        "schema": "mraft.wire-vectors/1",
        "exporter": {
            "labels": KEY_LABELS,
            "cluster": CLUSTER,
            "dialler": DIALLER,
            "acceptor": ACCEPTOR,
            "contexts": contexts,
        },
        "keys": keys,
        "messages": messages,
        "first_frames_that_end_a_control_session": faults(),
    })
}

#[test]
fn the_wire_is_the_one_in_the_document() {
    let made = vectors();
    let frozen: Value = serde_json::from_str(FROZEN).unwrap();
    if made != frozen {
        let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/wire-vectors.json");
        let mut text = serde_json::to_string_pretty(&made).unwrap();
        text.push('\n');
        std::fs::write(path, text).unwrap();
        panic!("plans/wire-vectors.json isn't what the code speaks; that is in {path}");
    }
}
