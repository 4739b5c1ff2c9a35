//! The rogue dials and sends what it shouldn't.

use super::*;
use tests::rogue::wire::{self, Hello, frame_word};

const fn sequence(number: u64) -> Sequence {
    Sequence::new(number)
}

const fn bad_tag() -> PeerMisbehaved {
    PeerMisbehaved::BadTag {
        sequence: sequence(2),
    }
}

/// What is said in the place of frame 2, by a session on which frame 1 was answered; also given
/// that frame and reply, and frame 2 of an earlier session.
struct Breach {
    name: &'static str,
    bytes: fn(&mut Session, &Exchanged, &[u8]) -> Vec<u8>,
    fault: PeerMisbehaved,
}

fn sealed(session: &Session, message: Message) -> Vec<u8> {
    message.sealed(&session.keys.frame)
}

fn second(session: &Session) -> Message {
    Message::frame(session.lane, 2, 60_000, &[b"second"])
}

fn order() -> [Breach; 9] {
    [
        Breach {
            name: "gap",
            bytes: |session, _, _| {
                sealed(
                    session,
                    Message {
                        sequence: 3,
                        ..second(session)
                    },
                )
            },
            fault: PeerMisbehaved::SequenceGap {
                expected: sequence(2),
                got: sequence(3),
            },
        },
        Breach {
            name: "replay",
            bytes: |_, exchanged, _| exchanged.frame.clone(),
            fault: PeerMisbehaved::SequenceReplayed {
                expected: sequence(2),
                got: sequence(1),
            },
        },
        Breach {
            name: "reorder",
            bytes: |session, _, _| {
                let (second, third) = (session.frame(&[b"second"]), session.frame(&[b"third"]));
                [third, second].concat()
            },
            fault: PeerMisbehaved::SequenceGap {
                expected: sequence(2),
                got: sequence(3),
            },
        },
        Breach {
            name: "reflection of a reply",
            bytes: |_, exchanged, _| exchanged.reply.clone(),
            fault: PeerMisbehaved::Reflected { got: kind::REPLY },
        },
        Breach {
            name: "splice of an earlier session's frame",
            bytes: |_, _, earlier| earlier.to_vec(),
            fault: bad_tag(),
        },
        Breach {
            name: "tag by the bulk lane's key",
            bytes: |session, _, _| second(session).sealed(&session.keys_of(BULK).frame),
            fault: bad_tag(),
        },
        Breach {
            name: "tag by the hello's key",
            bytes: |session, _, _| second(session).sealed(&session.keys.hello),
            fault: bad_tag(),
        },
        Breach {
            name: "tag by the replies' key",
            bytes: |session, _, _| second(session).sealed(&session.keys.reply),
            fault: bad_tag(),
        },
        Breach {
            name: "good frame behind a bad one",
            bytes: |session, _, _| {
                let bad = flipped(&session.frame(&[b"second"]), 8 * HEADER_BYTES);
                [bad, session.frame(&[b"third"])].concat()
            },
            fault: bad_tag(),
        },
    ]
}

fn shape() -> [Breach; 14] {
    const FRAME: u8 = kind::FRAME;
    let malformed = |items| PeerMisbehaved::MalformedBody {
        sequence: sequence(2),
        items,
    };
    [
        Breach {
            name: "unknown kind",
            bytes: |session, _, _| {
                sealed(
                    session,
                    Message {
                        kind: 9,
                        ..second(session)
                    },
                )
            },
            fault: PeerMisbehaved::UnknownKind { got: 9 },
        },
        Breach {
            name: "unknown version",
            bytes: |session, _, _| {
                sealed(
                    session,
                    Message {
                        version: 2,
                        ..second(session)
                    },
                )
            },
            fault: PeerMisbehaved::UnknownVersion {
                expected: 1,
                got: 2,
            },
        },
        Breach {
            name: "wrong lane",
            bytes: |session, _, _| {
                sealed(
                    session,
                    Message {
                        lane: BULK,
                        ..second(session)
                    },
                )
            },
            fault: PeerMisbehaved::WrongLane {
                expected: Lane::Control,
                got: BULK,
            },
        },
        Breach {
            name: "no lane",
            bytes: |session, _, _| {
                sealed(
                    session,
                    Message {
                        lane: 0,
                        ..second(session)
                    },
                )
            },
            fault: PeerMisbehaved::WrongLane {
                expected: Lane::Control,
                got: 0,
            },
        },
        Breach {
            name: "second hello",
            bytes: |session, _, _| {
                sealed(session, Message::new(kind::HELLO, CONTROL, 2, Vec::new()))
            },
            fault: PeerMisbehaved::UnexpectedKind { got: kind::HELLO },
        },
        Breach {
            name: "confirm",
            bytes: |session, _, _| {
                sealed(session, Message::new(kind::CONFIRM, CONTROL, 2, Vec::new()))
            },
            fault: PeerMisbehaved::UnexpectedKind { got: kind::CONFIRM },
        },
        Breach {
            name: "length over the lane's bound, and nothing behind the header",
            bytes: |session, _, _| {
                let body = vec![0; 65_537];
                second_with(session, body, 1)[..HEADER_BYTES].to_vec()
            },
            fault: PeerMisbehaved::OversizedBody {
                kind: FRAME,
                got: 65_537,
                max: 65_536,
            },
        },
        Breach {
            name: "greatest length",
            bytes: |_, _, _| {
                let header = [FRAME, 1, CONTROL, 0, 0xff, 0xff, 0xff, 0xff];
                [&header[..], &[0; 16]].concat()
            },
            fault: PeerMisbehaved::OversizedBody {
                kind: FRAME,
                got: u32::MAX,
                max: 65_536,
            },
        },
        Breach {
            name: "no items",
            bytes: |session, _, _| second_with(session, Vec::new(), 0),
            fault: PeerMisbehaved::BadHeader { kind: FRAME },
        },
        Breach {
            name: "too many items",
            bytes: |session, _, _| second_with(session, vec![0; 4 * 4097], 4097),
            fault: PeerMisbehaved::BadHeader { kind: FRAME },
        },
        Breach {
            name: "fewer items than the header says",
            bytes: |session, _, _| second_with(session, wire::frame_body(&[b"a"]), 2),
            fault: malformed(2),
        },
        Breach {
            name: "more items than the header says",
            bytes: |session, _, _| second_with(session, wire::frame_body(&[b"a", b"b"]), 1),
            fault: malformed(1),
        },
        Breach {
            name: "item longer than the body",
            bytes: |session, _, _| second_with(session, vec![0xff; 8], 1),
            fault: malformed(1),
        },
        Breach {
            name: "half a prefix at the end",
            bytes: |session, _, _| second_with(session, vec![0, 0, 0, 1, 7, 0, 0], 2),
            fault: malformed(2),
        },
    ]
}

/// Frame 2 with this body, its tag right.
fn second_with(session: &Session, body: Vec<u8>, items: usize) -> Vec<u8> {
    let word = frame_word(60_000, items);
    sealed(
        session,
        Message {
            body,
            word,
            ..second(session)
        },
    )
}

#[tokio::test]
async fn each_breach_of_order_form_or_authenticity_ends_its_session_for_its_own_reason() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let (mut session, _) = scene.dialled(Lane::Control).await;
    let earlier = session.frame(&[b"second"]);
    session.send(&earlier).await;
    assert_eq!(scene.one.echo().await, ["second"]);
    session.read().await.expect("a reply");
    session.close().await;
    scene
        .down("an honest session", Direction::Inbound, Lane::Control)
        .await;
    for Breach { name, bytes, fault } in order().into_iter().chain(shape()) {
        let (mut session, exchanged) = scene.dialled(Lane::Control).await;
        let bytes = bytes(&mut session, &exchanged, &earlier);
        scene.breach(name, &mut session, &bytes, fault.into()).await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_turned_bit_anywhere_in_a_frame_ends_its_session() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let mut bit = 0;
    loop {
        let (mut session, _) = scene.dialled(Lane::Control).await;
        let frame = session.frame(&[b"second"]);
        if bit == 8 * frame.len() {
            break;
        }
        let bytes = flipped(&frame, bit);
        let fault = fault_of(&bytes, Side::Acceptor, Lane::Control, 2);
        session.send(&bytes).await;
        // A greater length waits for more, which doesn't come.
        session.close().await;
        scene
            .ended(&format!("bit {bit}"), &mut session, fault.into())
            .await;
        bit += 1;
    }
    assert_eq!(bit, 8 * (HEADER_BYTES + 4 + "second".len() + TAG_BYTES));
    scene.end().await;
}

#[tokio::test]
async fn an_end_inside_a_frame_is_told_from_an_end_between_two() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let whole = HEADER_BYTES + 4 + "second".len() + TAG_BYTES;
    for cut in 0..whole {
        let (mut session, _) = scene.dialled(Lane::Control).await;
        let frame = session.frame(&[b"second"]);
        session.send(&frame[..cut]).await;
        if cut % 2 == 0 {
            session.close().await;
        } else {
            // No goodbye to TLS either.
            drop(session);
        }
        let name = format!("cut at {cut}");
        let end = scene.down(&name, Direction::Inbound, Lane::Control).await;
        let expected = if cut == 0 {
            SessionEnd::from(std::io::ErrorKind::UnexpectedEof)
        } else {
            PeerMisbehaved::Truncated { got: cut }.into()
        };
        assert_eq!(end, expected, "{name}");
        scene.unharmed(&name).await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_frame_beyond_the_agreed_control_window_ends_the_session() {
    let mut scene = Scene::start(RawTuning::default()).await;
    for window in [1, 5, 16, 256] {
        let hello = Hello {
            window_frames: window,
            ..scene.persona.hello(1, CONTROL)
        };
        let mut session = scene
            .persona
            .dial_up_with(scene.address, 1, CONTROL, &hello)
            .await;
        let agreed = window.min(16);
        for _ in 0..agreed {
            let frame = session.frame(&[b"within"]);
            session.send(&frame).await;
        }
        let mut held = Vec::new();
        for _ in 0..agreed {
            held.push(scene.one.delivery().await);
        }
        let beyond = session.frame(&[b"beyond"]);
        let end = PeerMisbehaved::WindowExceeded { window: agreed };
        scene
            .breach("window exceeded", &mut session, &beyond, end.into())
            .await;
        // The host's answers come too late for anybody, and harm nobody.
        held.into_iter().for_each(|delivery| delivery.slot.taken());
        scene.unharmed("late answers").await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_reply_makes_room_for_one_frame_and_not_for_two() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let hello = Hello {
        window_frames: 2,
        ..scene.persona.hello(1, CONTROL)
    };
    let mut session = scene
        .persona
        .dial_up_with(scene.address, 1, CONTROL, &hello)
        .await;
    for _ in 0..2 {
        let frame = session.frame(&[b"within"]);
        session.send(&frame).await;
    }
    scene.one.delivery().await.slot.taken();
    let second = scene.one.delivery().await;
    session.read().await.expect("a reply");
    let third = session.frame(&[b"third"]);
    session.send(&third).await;
    let third = scene.one.delivery().await;
    let fourth = session.frame(&[b"fourth"]);
    let end = PeerMisbehaved::WindowExceeded { window: 2 };
    scene
        .breach("one too many", &mut session, &fourth, end.into())
        .await;
    drop((second, third));
    scene.end().await;
}

#[tokio::test]
async fn bytes_beyond_the_agreed_bulk_window_end_the_session() {
    let mut scene = Scene::start(RawTuning::default()).await;
    // The lower of both hellos' holds: 262,144 bytes here.
    let hello = Hello {
        window_bytes: 262_144,
        ..scene.persona.hello(1, BULK)
    };
    let mut session = scene
        .persona
        .dial_up_with(scene.address, 1, BULK, &hello)
        .await;
    let item = vec![7; 131_072 - 4];
    let mut held = Vec::new();
    for _ in 0..2 {
        let frame = session.frame(&[&item]);
        session.send(&frame).await;
        held.push(scene.one.delivery().await);
    }
    let beyond = session.frame(&[b""]);
    let end = PeerMisbehaved::WindowBytesExceeded {
        window: 262_144,
        got: 262_148,
    };
    scene
        .breach("window exceeded", &mut session, &beyond, end.into())
        .await;
    drop(held);
    scene.end().await;
}

#[tokio::test]
async fn a_frame_over_what_both_hellos_allow_ends_the_session() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let hello = Hello {
        frame_items: 2,
        frame_bytes: 20,
        ..scene.persona.hello(1, CONTROL)
    };
    let over = PeerMisbehaved::OversizedBody {
        kind: kind::FRAME,
        got: 21,
        max: 20,
    };
    let many = PeerMisbehaved::TooManyItems { got: 3, max: 2 };
    let cases = [
        ("bytes", wire::frame_body(&[&[0; 17]]), 1, over),
        ("items", wire::frame_body(&[b"", b"", b""]), 3, many),
    ];
    for (name, body, items, fault) in cases {
        let session = scene
            .persona
            .dial_up_with(scene.address, 1, CONTROL, &hello)
            .await;
        let (mut session, _) = scene.exchanged(session).await;
        let bytes = second_with(&session, body, items);
        scene.breach(name, &mut session, &bytes, fault.into()).await;
    }
    scene.end().await;
}

#[tokio::test]
async fn nothing_behind_a_close_is_delivered() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let (mut session, _) = scene.dialled(Lane::Control).await;
    let close = Message::notice(kind::CLOSE, CONTROL, 2, 1, "", "\u{1b}[2J");
    session.next = 3;
    let bytes = [
        close.sealed(&session.keys.frame),
        session.frame(&[b"behind"]),
    ]
    .concat();
    let end = SessionEnd::ClosedByPeer(transport::PeerNotice {
        code: transport::CloseCode::ShutDown,
        expected: String::new(),
        // Nothing that a terminal would obey.
        got: " [2J".to_owned(),
    });
    scene.breach("close", &mut session, &bytes, end).await;
    scene.end().await;
}

#[tokio::test]
async fn the_end_of_control_ends_the_bulk_session_of_the_same_dialler_and_not_the_other_way() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let (mut control, _) = scene.dialled(Lane::Control).await;
    let (mut bulk, _) = scene.dialled(Lane::Bulk).await;
    bulk.send(&[0; HEADER_BYTES]).await;
    let end = PeerMisbehaved::UnknownVersion {
        expected: 1,
        got: 0,
    };
    assert_eq!(
        scene.down("bulk", Direction::Inbound, Lane::Bulk).await,
        end.into()
    );
    assert_eq!(bulk.last_code().await, MISBEHAVED);
    // Control is still there.
    let frame = control.frame(&[b"still"]);
    control.send(&frame).await;
    assert_eq!(scene.one.echo().await, ["still"]);
    control.read().await.expect("a reply");
    let (mut bulk, _) = scene.dialled(Lane::Bulk).await;
    control.send(&[0; HEADER_BYTES]).await;
    scene
        .down("control", Direction::Inbound, Lane::Control)
        .await;
    let end = scene.down("bulk", Direction::Inbound, Lane::Bulk).await;
    assert_eq!(end, SessionEnd::ControlEnded);
    assert_eq!(bulk.last_code().await, Some(15));
    scene.unharmed("the end of control").await;
    scene.end().await;
}
