//! The rogue says wrong things of itself, or speaks out of turn before a session is up.

use super::*;
use tests::rogue::wire::{Hello, frame_word};
use transport::id::{Boot, Incarnation, LifeId};
use transport::{CloseCode, PeerIncompatible, PeerNotice};

const fn sequence(number: u64) -> Sequence {
    Sequence::new(number)
}

/// What is said in the place of a first message, given the truth.
struct Breach {
    name: &'static str,
    bytes: fn(&Session, Hello) -> Vec<u8>,
    end: SessionEnd,
}

/// A lie, made of the truth, and what is found out.
type Lie = (&'static str, fn(Hello) -> Hello, PeerIncompatible);

/// What a hello or an answer may claim that can be read and whose tag is right.
fn claims() -> Vec<Lie> {
    let claimed = "prod".parse().expect("a cluster name");
    let certified = "dev".parse().expect("a cluster name");
    let settings = |hello| Hello {
        settings: vec![("groups".to_owned(), "1501".to_owned())],
        ..hello
    };
    vec![
        (
            "another cluster",
            |hello| Hello {
                cluster: "prod".to_owned(),
                ..hello
            },
            PeerIncompatible::ClaimedCluster { certified, claimed },
        ),
        (
            "another node",
            |hello| Hello { from: 2, ..hello },
            PeerIncompatible::ClaimedNode {
                certified: node(3),
                claimed: node(2),
            },
        ),
        (
            "an older boot",
            |hello| Hello { boot: 4, ..hello },
            PeerIncompatible::StaleBoot {
                known: Boot::new(5),
                got: Boot::new(4),
            },
        ),
        (
            "another life of the same boot",
            |hello| Hello { life: 12, ..hello },
            PeerIncompatible::OtherLife {
                boot: Boot::new(5),
                known: LifeId::from_random(11),
                got: LifeId::from_random(12),
            },
        ),
        (
            "an older log",
            |hello| Hello {
                boot: 6,
                life: 12,
                sync_number: 6,
                ..hello
            },
            PeerIncompatible::RolledBack { known: 7, got: 6 },
        ),
        (
            "another version",
            |hello| Hello {
                versions: [2, 3],
                ..hello
            },
            PeerIncompatible::ProtocolVersions {
                ours_min: 1,
                ours_max: 1,
                theirs_min: 2,
                theirs_max: 3,
            },
        ),
        (
            "versions the wrong way round",
            |hello| Hello {
                versions: [2, 1],
                ..hello
            },
            PeerIncompatible::ProtocolVersions {
                ours_min: 1,
                ours_max: 1,
                theirs_min: 2,
                theirs_max: 1,
            },
        ),
        (
            "for another node",
            |hello| Hello { to: 2, ..hello },
            PeerIncompatible::Misdirected {
                wanted: node(2),
                here: node(1),
            },
        ),
        (
            "other settings",
            settings,
            PeerIncompatible::Fingerprint {
                name: "groups".to_owned(),
                ours: String::new(),
                theirs: "1501".to_owned(),
            },
        ),
    ]
}

/// Bodies of a hello that can't be read.
fn unreadable(hello: &Hello) -> Vec<(String, Vec<u8>)> {
    let whole = hello.body();
    let with = |change: fn(&mut Hello)| {
        let mut hello = hello.clone();
        change(&mut hello);
        hello.body()
    };
    let text = |length| "x".repeat(length);
    let mut bodies = vec![
        (
            "something behind it".to_owned(),
            [&whole[..], &[0]].concat(),
        ),
        ("from node 0".to_owned(), with(|hello| hello.from = 0)),
        ("to node 0".to_owned(), with(|hello| hello.to = 0)),
        (
            "no window".to_owned(),
            with(|hello| hello.window_frames = 0),
        ),
        (
            "a window of 257".to_owned(),
            with(|hello| hello.window_frames = 257),
        ),
        ("no items".to_owned(), with(|hello| hello.frame_items = 0)),
        ("no bytes".to_owned(), with(|hello| hello.frame_bytes = 0)),
        (
            "a frame over the window".to_owned(),
            with(|hello| hello.window_bytes = 1),
        ),
        ("no cluster".to_owned(), with(|hello| hello.cluster.clear())),
        (
            "a cluster of two words".to_owned(),
            with(|hello| hello.cluster = "a b".to_owned()),
        ),
    ];
    for (name, settings) in [
        ("a setting twice", vec![("a".to_owned(), text(1)); 2]),
        ("a long name", vec![(text(65), text(1))]),
        ("a long value", vec![("a".to_owned(), text(65))]),
        (
            "17 settings",
            (10..27).map(|at| (at.to_string(), text(1))).collect(),
        ),
    ] {
        let hello = Hello {
            settings,
            ..hello.clone()
        };
        bodies.push((name.to_owned(), hello.body()));
    }
    bodies.extend((0..whole.len()).map(|cut| (format!("cut at {cut}"), whole[..cut].to_vec())));
    bodies
}

fn hello(session: &Session, truth: &Hello) -> Message {
    Message::new(kind::HELLO, session.lane, 1, truth.body())
}

fn answer(session: &Session, truth: &Hello) -> Message {
    Message::new(kind::ANSWER, session.lane, 2, truth.answer_body(1, 77))
}

fn out_of_turn() -> [Breach; 12] {
    let breach = |name, bytes, fault: PeerMisbehaved| {
        let end = fault.into();
        Breach { name, bytes, end }
    };
    [
        breach(
            "tag by the frames' key",
            |session, truth| hello(session, &truth).sealed(&session.keys.frame),
            PeerMisbehaved::BadTag {
                sequence: sequence(1),
            },
        ),
        breach(
            "tag by the other lane's key",
            |session, truth| hello(session, &truth).sealed(&session.keys_of(BULK).hello),
            PeerMisbehaved::BadTag {
                sequence: sequence(1),
            },
        ),
        breach(
            "turned bit",
            |session, truth| {
                flipped(
                    &hello(session, &truth).sealed(&session.keys.hello),
                    8 * HEADER_BYTES + 9,
                )
            },
            PeerMisbehaved::BadTag {
                sequence: sequence(1),
            },
        ),
        breach(
            "hello as message 2",
            |session, truth| {
                let hello = Message {
                    sequence: 2,
                    ..hello(session, &truth)
                };
                hello.sealed(&session.keys.hello)
            },
            PeerMisbehaved::SequenceGap {
                expected: sequence(1),
                got: sequence(2),
            },
        ),
        breach(
            "hello on no lane",
            |session, truth| {
                Message {
                    lane: 3,
                    ..hello(session, &truth)
                }
                .sealed(&session.keys.hello)
            },
            PeerMisbehaved::WrongLane {
                expected: Lane::Control,
                got: 3,
            },
        ),
        breach(
            "frame before the hello",
            |session, _| {
                let frame = Message::frame(session.lane, 1, 1000, &[b"early"]);
                frame.sealed(&session.keys.frame)
            },
            PeerMisbehaved::UnexpectedKind { got: kind::FRAME },
        ),
        breach(
            "close before the hello",
            |session, _| {
                let close = Message::notice(kind::CLOSE, session.lane, 1, 1, "", "");
                close.sealed(&session.keys.hello)
            },
            PeerMisbehaved::UnexpectedKind { got: kind::CLOSE },
        ),
        breach(
            "answer in the place of a hello",
            |session, truth| {
                let body = truth.answer_body(1, 1);
                Message::new(kind::ANSWER, session.lane, 1, body).sealed(&session.keys.hello)
            },
            PeerMisbehaved::Reflected { got: kind::ANSWER },
        ),
        breach(
            "hello of 4,097 bytes, and nothing behind the header",
            |session, truth| {
                let hello = Message {
                    body: vec![0; 4097],
                    ..hello(session, &truth)
                };
                hello.covered()[..HEADER_BYTES].to_vec()
            },
            PeerMisbehaved::OversizedBody {
                kind: kind::HELLO,
                got: 4097,
                max: 4096,
            },
        ),
        breach(
            "garbage",
            |_, _| b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(),
            PeerMisbehaved::UnknownVersion {
                expected: 1,
                got: b'E',
            },
        ),
        breach(
            "zeroes",
            |_, _| vec![0; 5000],
            PeerMisbehaved::UnknownVersion {
                expected: 1,
                got: 0,
            },
        ),
        breach(
            "hello with a word",
            |session, truth| {
                let hello = Message {
                    word: frame_word(0, 1),
                    ..hello(session, &truth)
                };
                hello.sealed(&session.keys.hello)
            },
            PeerMisbehaved::BadHeader { kind: kind::HELLO },
        ),
    ]
}

impl Scene {
    /// A connection on which nothing was said yet says this; it is turned away.
    async fn hello_refused(
        &mut self,
        case: &str,
        bytes: &[u8],
        session: &mut Session,
    ) -> SessionEnd {
        session.send(bytes).await;
        let end = self.refused(case).await;
        assert_eq!(self.one.transport.status().acceptor.handshakes, 0, "{case}");
        self.unharmed(case).await;
        end
    }

    /// The next dial of node 1 that got to its hello. The rogue calls first: that is a reason to
    /// dial at once.
    async fn called_back(&mut self) -> Session {
        let caller = self.persona.dial_up(self.address, 1, CONTROL).await;
        let session = self.rogue.dialled(1, CONTROL).await;
        drop(caller);
        session
    }

    /// Says `bytes` where the answer should be; the dial fails, and nothing but TLS's goodbye
    /// comes back.
    async fn answer_refused(
        &mut self,
        case: &str,
        bytes: &[u8],
        session: &mut Session,
    ) -> SessionEnd {
        session.send(bytes).await;
        let end = self.dial_failed(case, Lane::Control).await;
        assert_eq!(session.last_code().await, None, "{case}");
        self.unharmed(case).await;
        end
    }
}

#[tokio::test]
async fn a_hello_that_is_not_true_is_refused_with_the_claim_and_the_truth() {
    let mut scene = Scene::start(RawTuning::default()).await;
    drop(scene.dialled(Lane::Control).await);
    for (name, claim, fault) in claims() {
        for lane in [CONTROL, BULK] {
            let mut session = scene.persona.dial(scene.address, 1, lane).await;
            let hello = claim(scene.persona.hello(1, lane));
            let hello =
                Message::new(kind::HELLO, lane, 1, hello.body()).sealed(&session.keys.hello);
            let end = scene.hello_refused(name, &hello, &mut session).await;
            let expected = SessionEnd::from(fault.clone());
            assert_eq!(end, expected, "{name}");
            let code = expected.notice().map(|notice| notice.code.to_u16());
            assert_eq!(session.last_code().await, code, "{name}");
        }
    }
    scene.end().await;
}

#[tokio::test]
async fn a_hello_that_cannot_be_read_is_refused() {
    let mut scene = Scene::start(RawTuning::default()).await;
    for (name, body) in unreadable(&scene.persona.hello(1, CONTROL)) {
        let mut session = scene.persona.dial(scene.address, 1, CONTROL).await;
        let hello = Message::new(kind::HELLO, CONTROL, 1, body).sealed(&session.keys.hello);
        let end = scene.hello_refused(&name, &hello, &mut session).await;
        let unreadable = |end: &SessionEnd| {
            let fault = PeerMisbehaved::MalformedHello {
                what: "hello",
                at: 0,
            };
            std::mem::discriminant(end) == std::mem::discriminant(&fault.into())
                && end.to_string().contains("hello can't be read at byte")
        };
        assert!(unreadable(&end), "{name}: {end}");
        assert_eq!(session.last_code().await, MISBEHAVED, "{name}");
    }
    scene.end().await;
}

#[tokio::test]
async fn whoever_speaks_out_of_turn_before_the_hello_is_turned_away() {
    let mut scene = Scene::start(RawTuning::default()).await;
    for Breach { name, bytes, end } in out_of_turn() {
        let mut session = scene.persona.dial(scene.address, 1, CONTROL).await;
        let bytes = bytes(&session, scene.persona.hello(1, CONTROL));
        assert_eq!(
            scene.hello_refused(name, &bytes, &mut session).await,
            end,
            "{name}"
        );
        // What proves nothing gets no reason.
        assert_eq!(session.last_code().await, None, "{name}");
    }
    scene.end().await;
}

#[tokio::test]
async fn an_answer_that_is_not_true_is_not_believed() {
    let mut scene = Scene::start(RawTuning::default()).await;
    drop(scene.dialled(Lane::Control).await);
    for (name, claim, fault) in claims() {
        let mut session = scene.called_back().await;
        let answer = session.answer(&claim(session.truth()));
        let end = scene.answer_refused(name, &answer, &mut session).await;
        assert_eq!(end, fault.into(), "{name}");
    }
    scene.end().await;
}

#[tokio::test]
async fn an_answer_with_another_version_than_the_highest_common_one_ends_the_session() {
    let mut scene = Scene::start(RawTuning::default()).await;
    for (versions, got) in [([1, 1], 0), ([1, 1], 2), ([1, 9], 9)] {
        let mut session = scene.called_back().await;
        let hello = Hello {
            versions,
            ..session.truth()
        };
        let answer = Message::new(kind::ANSWER, CONTROL, 2, hello.answer_body(got, 77));
        let answer = answer.sealed(&session.keys.hello);
        let end = scene.answer_refused("version", &answer, &mut session).await;
        let fault = PeerIncompatible::ProtocolVersions {
            ours_min: 1,
            ours_max: 1,
            theirs_min: got,
            theirs_max: got,
        };
        assert_eq!(end, fault.into());
    }
    scene.end().await;
}

fn answers() -> [Breach; 10] {
    let breach = |name, bytes, fault: PeerMisbehaved| {
        let end = fault.into();
        Breach { name, bytes, end }
    };
    [
        breach(
            "tag by the replies' key",
            |session, truth| answer(session, &truth).sealed(&session.keys.reply),
            PeerMisbehaved::BadTag {
                sequence: sequence(2),
            },
        ),
        breach(
            "turned bit",
            |session, truth| {
                let answer = answer(session, &truth).sealed(&session.keys.hello);
                flipped(&answer, 8 * answer.len() - 1)
            },
            PeerMisbehaved::BadTag {
                sequence: sequence(2),
            },
        ),
        breach(
            "answer as message 1",
            |session, truth| {
                Message {
                    sequence: 1,
                    ..answer(session, &truth)
                }
                .sealed(&session.keys.hello)
            },
            PeerMisbehaved::SequenceReplayed {
                expected: sequence(2),
                got: sequence(1),
            },
        ),
        breach(
            "answer as message 3",
            |session, truth| {
                Message {
                    sequence: 3,
                    ..answer(session, &truth)
                }
                .sealed(&session.keys.hello)
            },
            PeerMisbehaved::SequenceGap {
                expected: sequence(2),
                got: sequence(3),
            },
        ),
        breach(
            "answer on the other lane",
            |session, truth| {
                Message {
                    lane: BULK,
                    ..answer(session, &truth)
                }
                .sealed(&session.keys.hello)
            },
            PeerMisbehaved::WrongLane {
                expected: Lane::Control,
                got: BULK,
            },
        ),
        breach(
            "hello in the place of an answer",
            |session, truth| {
                Message::new(kind::HELLO, session.lane, 2, truth.body()).sealed(&session.keys.hello)
            },
            PeerMisbehaved::Reflected { got: kind::HELLO },
        ),
        breach(
            "reply in the place of an answer",
            |session, _| {
                Message::reply(session.lane, 2, 1, 1, Vec::new()).sealed(&session.keys.hello)
            },
            PeerMisbehaved::UnexpectedKind { got: kind::REPLY },
        ),
        breach(
            "close in the place of an answer",
            |session, _| {
                let close = Message::notice(kind::CLOSE, session.lane, 2, 1, "", "");
                close.sealed(&session.keys.hello)
            },
            PeerMisbehaved::UnexpectedKind { got: kind::CLOSE },
        ),
        breach(
            "answer with something behind it",
            |session, truth| {
                let mut answer = answer(session, &truth);
                answer.body.push(0);
                answer.sealed(&session.keys.hello)
            },
            PeerMisbehaved::MalformedHello {
                what: "hello answer",
                at: 83,
            },
        ),
        breach(
            "garbage",
            |_, _| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            PeerMisbehaved::UnknownVersion {
                expected: 1,
                got: b'T',
            },
        ),
    ]
}

#[tokio::test]
async fn whatever_is_no_answer_ends_the_session_before_it_is_up() {
    let mut scene = Scene::start(RawTuning::default()).await;
    for Breach { name, bytes, end } in answers() {
        let mut session = scene.called_back().await;
        let bytes = bytes(&session, session.truth());
        assert_eq!(
            scene.answer_refused(name, &bytes, &mut session).await,
            end,
            "{name}"
        );
    }
    scene.end().await;
}

#[tokio::test]
async fn a_refusal_is_told_with_the_reason_and_the_values() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let mut session = scene.called_back().await;
    let refusal = Message::notice(kind::REFUSAL, CONTROL, 2, 10, "one\ndisk", "another");
    let refusal = refusal.sealed(&session.keys.hello);
    let end = scene
        .answer_refused("refusal", &refusal, &mut session)
        .await;
    let notice = PeerNotice {
        code: CloseCode::UnknownIncarnation,
        expected: "one disk".to_owned(),
        got: "another".to_owned(),
    };
    assert_eq!(end, SessionEnd::RefusedByPeer(notice));
    scene.end().await;
}

#[tokio::test]
async fn a_node_on_another_disk_than_the_admitted_one_is_refused() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let (known, got) = (Incarnation::new([9; 16]), Incarnation::new([3; 16]));
    let record = transport::proto::authority::NodeRecord {
        incarnation: known,
        boot: Boot::new(1),
        life: None,
        sync_number: 0,
        pinned: true,
    };
    scene.one.transport.pin(node(3), record);
    let mut session = scene.persona.dial(scene.address, 1, CONTROL).await;
    let hello = Message::new(
        kind::HELLO,
        CONTROL,
        1,
        scene.persona.hello(1, CONTROL).body(),
    );
    let hello = hello.sealed(&session.keys.hello);
    let end = scene.hello_refused("disk", &hello, &mut session).await;
    assert_eq!(
        end,
        PeerIncompatible::UnknownIncarnation { known, got }.into()
    );
    assert_eq!(session.last_code().await, Some(10));
    scene.end().await;
}

#[tokio::test]
async fn a_proxy_that_ends_tls_with_valid_certificates_on_both_sides_is_found_out() {
    let mut scene = Scene::start(RawTuning::default()).await;
    // It is node 1 towards node 3, and node 3 towards node 1, and passes on whatever is said.
    let proxy = Listener::start(Persona::of(&scene.fleet, "dev", 1));
    let options = NodeOptions {
        peers: [(1, proxy.address())].into(),
        ..NodeOptions::default()
    };
    let mut three = TestNode::start(&scene.fleet, 3, options).await;
    let near = proxy.accept(3).await;
    let far = scene.persona.dial(scene.address, 1, CONTROL).await;
    let (mut near, mut far) = (near.into_tls(), far.into_tls());
    let passing = tokio::spawn(async move {
        drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
    });
    let end = scene.refused("a proxy").await;
    assert_eq!(
        end,
        PeerMisbehaved::BadTag {
            sequence: sequence(1)
        }
        .into()
    );
    let failed = |event: &Event| match event {
        Event::DialFailed { end, .. } => Some(end.clone()),
        _ => None,
    };
    let end = three.event("a failed dial", failed).await;
    assert_eq!(end, SessionEnd::from(std::io::ErrorKind::UnexpectedEof));
    soon("the proxy's end", passing).await.expect("no panic");
    three.stop().await;
    scene.unharmed("a proxy").await;
    scene.end().await;
}
