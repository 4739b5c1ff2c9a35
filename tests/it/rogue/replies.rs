//! The rogue is dialled and answers what it shouldn't.

use super::*;
use tests::rogue::wire::frame_word;
use transport::{CloseCode, PeerNotice, Receipt, Stage};

const fn sequence(number: u64) -> Sequence {
    Sequence::new(number)
}

const fn bad_tag() -> PeerMisbehaved {
    PeerMisbehaved::BadTag {
        sequence: sequence(1),
    }
}

/// Not answered: the peer may have seen it.
const LOST: Outcome = Outcome::SessionLost {
    stage: Stage::Written,
};

/// Answered before the breach.
const TAKEN: Outcome = Outcome::Replied(Bytes::new());

/// What the rogue says when frames 1 and 2 are outstanding, given frame 1 and reply 1 of an earlier
/// session; and what becomes of the two.
struct Breach {
    name: &'static str,
    bytes: fn(&mut Session, &Exchanged) -> Vec<u8>,
    fault: PeerMisbehaved,
    outcomes: [Outcome; 2],
}

fn sealed(session: &Session, message: Message) -> Vec<u8> {
    message.sealed(&session.keys.reply)
}

fn first(session: &Session) -> Message {
    Message::reply(session.lane, 1, 1, 1, b"ok".to_vec())
}

fn order() -> [Breach; 12] {
    let lost = || [LOST, LOST];
    [
        Breach {
            name: "gap",
            bytes: |session, _| {
                sealed(
                    session,
                    Message {
                        sequence: 2,
                        ..first(session)
                    },
                )
            },
            fault: PeerMisbehaved::SequenceGap {
                expected: sequence(1),
                got: sequence(2),
            },
            outcomes: lost(),
        },
        Breach {
            name: "replay",
            bytes: |session, _| session.reply(1).repeat(2),
            fault: PeerMisbehaved::SequenceReplayed {
                expected: sequence(2),
                got: sequence(1),
            },
            outcomes: [TAKEN, LOST],
        },
        Breach {
            name: "reorder",
            bytes: |session, _| {
                let (first, second) = (session.reply(1), session.reply(2));
                [second, first].concat()
            },
            fault: PeerMisbehaved::SequenceGap {
                expected: sequence(1),
                got: sequence(2),
            },
            outcomes: lost(),
        },
        Breach {
            name: "reply to the wrong frame",
            bytes: |session, _| session.reply(2),
            fault: PeerMisbehaved::ReplyOutOfOrder {
                expected: sequence(1),
                got: sequence(2),
            },
            outcomes: lost(),
        },
        Breach {
            name: "second reply to the same frame",
            bytes: |session, _| [session.reply(1), session.reply(1)].concat(),
            fault: PeerMisbehaved::SecondReply {
                answers: sequence(1),
            },
            outcomes: [TAKEN, LOST],
        },
        Breach {
            name: "reply to a frame never sent",
            bytes: |session, _| [session.reply(1), session.reply(2), session.reply(3)].concat(),
            fault: PeerMisbehaved::ReplyToUnsent {
                answers: sequence(3),
                sent: sequence(2),
            },
            outcomes: [TAKEN, TAKEN],
        },
        Breach {
            name: "reply to frame 0",
            bytes: |session, _| session.reply(0),
            fault: PeerMisbehaved::ReplyToUnsent {
                answers: sequence(0),
                sent: sequence(2),
            },
            outcomes: lost(),
        },
        Breach {
            name: "reflection of a frame",
            bytes: |_, earlier| earlier.frame.clone(),
            fault: PeerMisbehaved::Reflected { got: kind::FRAME },
            outcomes: lost(),
        },
        Breach {
            name: "splice of an earlier session's reply",
            bytes: |_, earlier| earlier.reply.clone(),
            fault: bad_tag(),
            outcomes: lost(),
        },
        Breach {
            name: "reply under the frames' key",
            bytes: |session, _| first(session).sealed(&session.keys.frame),
            fault: bad_tag(),
            outcomes: lost(),
        },
        Breach {
            name: "reply under the bulk lane's key",
            bytes: |session, _| first(session).sealed(&session.keys_of(BULK).reply),
            fault: bad_tag(),
            outcomes: lost(),
        },
        Breach {
            name: "good reply behind a forged one",
            bytes: |session, _| {
                let forged = flipped(&session.reply(1), 8 * HEADER_BYTES);
                [forged, session.reply(1)].concat()
            },
            fault: bad_tag(),
            outcomes: lost(),
        },
    ]
}

fn shape() -> [Breach; 14] {
    const REPLY: u8 = kind::REPLY;
    let lost = || [LOST, LOST];
    let malformed = || PeerMisbehaved::MalformedBody {
        sequence: sequence(1),
        items: 1,
    };
    let breach = |name, bytes, fault| Breach {
        name,
        bytes,
        fault,
        outcomes: lost(),
    };
    [
        breach(
            "unknown kind",
            |session, _| {
                sealed(
                    session,
                    Message {
                        kind: 0,
                        ..first(session)
                    },
                )
            },
            PeerMisbehaved::UnknownKind { got: 0 },
        ),
        breach(
            "unknown version",
            |session, _| {
                sealed(
                    session,
                    Message {
                        version: 0,
                        ..first(session)
                    },
                )
            },
            PeerMisbehaved::UnknownVersion {
                expected: 1,
                got: 0,
            },
        ),
        breach(
            "wrong lane",
            |session, _| {
                sealed(
                    session,
                    Message {
                        lane: BULK,
                        ..first(session)
                    },
                )
            },
            PeerMisbehaved::WrongLane {
                expected: Lane::Control,
                got: BULK,
            },
        ),
        breach(
            "unknown form",
            |session, _| {
                sealed(
                    session,
                    Message {
                        form: 4,
                        ..first(session)
                    },
                )
            },
            PeerMisbehaved::BadHeader { kind: REPLY },
        ),
        breach(
            "length over the bound, and nothing behind the header",
            |session, _| {
                let reply = Message {
                    body: vec![0; 65_537],
                    ..first(session)
                };
                reply.covered()[..HEADER_BYTES].to_vec()
            },
            PeerMisbehaved::OversizedBody {
                kind: REPLY,
                got: 65_537,
                max: 65_536,
            },
        ),
        breach(
            "second answer to the hello",
            |session, _| sealed(session, Message::new(kind::ANSWER, CONTROL, 1, Vec::new())),
            PeerMisbehaved::UnexpectedKind { got: kind::ANSWER },
        ),
        breach(
            "refusal of a session that is up",
            |session, _| {
                sealed(
                    session,
                    Message::notice(kind::REFUSAL, CONTROL, 1, 4, "", ""),
                )
            },
            PeerMisbehaved::UnexpectedKind { got: kind::REFUSAL },
        ),
        breach(
            "frame",
            |session, _| {
                let word = frame_word(1000, 1);
                sealed(
                    session,
                    Message {
                        kind: kind::FRAME,
                        form: 0,
                        word,
                        ..first(session)
                    },
                )
            },
            PeerMisbehaved::Reflected { got: kind::FRAME },
        ),
        breach(
            "refusal of a frame for no reason",
            |session, _| sealed(session, Message::reply(CONTROL, 1, 1, 2, vec![0])),
            malformed(),
        ),
        breach(
            "refusal of a frame for two reasons",
            |session, _| sealed(session, Message::reply(CONTROL, 1, 1, 2, vec![1, 1])),
            malformed(),
        ),
        breach(
            "verdicts on fewer items than the frame had",
            |session, _| sealed(session, Message::reply(CONTROL, 1, 1, 3, Vec::new())),
            malformed(),
        ),
        breach(
            "verdicts on more items than the frame had",
            |session, _| sealed(session, Message::reply(CONTROL, 1, 1, 3, vec![0; 10])),
            malformed(),
        ),
        breach(
            "answer longer than the body",
            |session, _| {
                sealed(
                    session,
                    Message::reply(CONTROL, 1, 1, 3, vec![0, 0xff, 0xff, 0xff, 0xff]),
                )
            },
            malformed(),
        ),
        breach(
            "refused item with an answer",
            |session, _| {
                sealed(
                    session,
                    Message::reply(CONTROL, 1, 1, 3, vec![1, 0, 0, 0, 1, 7]),
                )
            },
            malformed(),
        ),
    ]
}

impl Scene {
    /// A session of node 1's that is up on control, with two frames outstanding, and their bytes.
    async fn outstanding(&mut self) -> (Session, [Vec<u8>; 2], [Receipt; 2]) {
        let mut session = self.rogue.up(1, CONTROL).await;
        let first = self.one.send(3, Lane::Control, "a");
        let (a, first_frame) = session.read().await.expect("frame 1");
        let second = self.one.send(3, Lane::Control, "b");
        let (b, second_frame) = session.read().await.expect("frame 2");
        assert_eq!([a.items(), b.items()], [[b"a"], [b"b"]]);
        (session, [first_frame, second_frame], [first, second])
    }

    /// The session that node 1 dialled ends like this, says so, and its frames end like these.
    async fn answered_to_the_end(
        &mut self,
        case: &str,
        session: Option<&mut Session>,
        end: SessionEnd,
        receipts: impl IntoIterator<Item = (Receipt, Outcome)>,
    ) {
        assert_eq!(
            self.down(case, Direction::Outbound, Lane::Control).await,
            end,
            "{case}"
        );
        if let Some(session) = session {
            let code = end.notice().map(|notice| notice.code.to_u16());
            assert_eq!(session.last_code().await, code, "{case}");
        }
        for (receipt, outcome) in receipts {
            assert_eq!(soon("an outcome", receipt).await, outcome, "{case}");
        }
        self.unharmed(case).await;
    }
}

#[tokio::test]
async fn each_reply_that_is_not_the_next_one_ends_its_session_for_its_own_reason() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let (mut session, [frame, _], receipts) = scene.outstanding().await;
    let reply = session.reply(1);
    let both = [reply.clone(), session.reply(2)].concat();
    let earlier = Exchanged { frame, reply };
    session.send(&both).await;
    for receipt in receipts {
        assert_eq!(soon("an outcome", receipt).await, TAKEN);
    }
    session.close().await;
    scene
        .down("an honest session", Direction::Outbound, Lane::Control)
        .await;
    for breach in order().into_iter().chain(shape()) {
        let (mut session, _, receipts) = scene.outstanding().await;
        let bytes = (breach.bytes)(&mut session, &earlier);
        session.send(&bytes).await;
        let outcomes = receipts.into_iter().zip(breach.outcomes);
        let end = breach.fault.into();
        scene
            .answered_to_the_end(breach.name, Some(&mut session), end, outcomes)
            .await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_turned_bit_in_any_byte_of_a_reply_ends_its_session() {
    let mut scene = Scene::start(RawTuning::default()).await;
    // Each byte once; which of its bits goes round.
    for at in 0..HEADER_BYTES + "ok".len() + TAG_BYTES {
        let (mut session, _, receipts) = scene.outstanding().await;
        let bit = 8 * at + at % 8;
        let bytes = flipped(&sealed(&session, first(&session)), bit);
        let fault = fault_of(&bytes, Side::Dialler, Lane::Control, 1);
        session.send(&bytes).await;
        session.close().await;
        let (name, outcomes) = (
            format!("bit {bit}"),
            receipts.map(|receipt| (receipt, LOST)),
        );
        scene
            .answered_to_the_end(&name, Some(&mut session), fault.into(), outcomes)
            .await;
    }
    scene.end().await;
}

#[tokio::test]
async fn an_end_inside_a_reply_is_told_from_an_end_between_two() {
    let mut scene = Scene::start(RawTuning::default()).await;
    for cut in (0..HEADER_BYTES + "ok".len() + TAG_BYTES).step_by(3) {
        let (mut session, _, receipts) = scene.outstanding().await;
        let bytes = sealed(&session, first(&session));
        session.send(&bytes[..cut]).await;
        if cut % 2 == 0 {
            session.close().await;
        }
        drop(session);
        let (name, outcomes) = (
            format!("cut at {cut}"),
            receipts.map(|receipt| (receipt, LOST)),
        );
        let end = if cut == 0 {
            SessionEnd::from(std::io::ErrorKind::UnexpectedEof)
        } else {
            PeerMisbehaved::Truncated { got: cut }.into()
        };
        scene.answered_to_the_end(&name, None, end, outcomes).await;
    }
    scene.end().await;
}

#[tokio::test]
async fn the_reason_of_an_acceptors_close_is_shown_and_nothing_behind_it_counts() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let (mut session, _, receipts) = scene.outstanding().await;
    let close = Message::notice(kind::CLOSE, CONTROL, 1, 999, "one thing", "another");
    session.next = 2;
    let bytes = [sealed(&session, close), session.reply(1)].concat();
    session.send(&bytes).await;
    let end = SessionEnd::ClosedByPeer(PeerNotice {
        code: CloseCode::from_u16(999),
        expected: "one thing".to_owned(),
        got: "another".to_owned(),
    });
    let outcomes = receipts.map(|receipt| (receipt, LOST));
    scene
        .answered_to_the_end("close", Some(&mut session), end, outcomes)
        .await;
    scene.end().await;
}

#[tokio::test]
async fn a_reply_to_a_frame_that_is_still_being_written_ends_the_session() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let control = scene.rogue.up(1, CONTROL).await;
    let mut bulk = scene.rogue.up(1, BULK).await;
    // The rogue doesn't read, so one of these fills the socket and stays begun.
    let item = Bytes::from(vec![1; 250_000]);
    let receipts: Vec<_> = (0..15)
        .map(|_| scene.one.send(3, Lane::Bulk, item.clone()))
        .collect();
    let count = |stage| {
        let at_it = receipts.iter().filter(|receipt| receipt.stage() == stage);
        at_it.count() as u64
    };
    soon("a full socket", async {
        while count(Stage::Writing) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let begun = count(Stage::Written) + count(Stage::Writing);
    assert!(count(Stage::Queued) > 0, "all were begun");
    let reply = bulk.reply(begun);
    bulk.send(&reply).await;
    let down = scene.down("bulk", Direction::Outbound, Lane::Bulk).await;
    let mut written = 0;
    for (at, receipt) in (1..).zip(receipts) {
        if at > begun {
            // Not begun: it waits for the next session.
            assert_eq!(receipt.stage(), Stage::Queued);
            continue;
        }
        match soon("an outcome", receipt).await {
            LOST => written = at,
            outcome => assert_eq!(
                outcome,
                Outcome::SessionLost {
                    stage: Stage::Writing
                }
            ),
        }
    }
    assert!(written < begun);
    let end = PeerMisbehaved::ReplyToUnsent {
        answers: sequence(begun),
        sent: sequence(written),
    };
    assert_eq!(down, end.into());
    drop((control, bulk));
    scene.unharmed("a reply too early").await;
    scene.end().await;
}
