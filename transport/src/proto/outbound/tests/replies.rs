//! What a peer may not reply: each breach ends the session as what it is.

use super::*;

// From here on the peer is written by hand: it holds the session's keys and means harm.

/// A lane that is up, three frames of it written and a fourth begun.
fn three_written() -> (Pair, Vec<Receipt>) {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let mut receipts: Vec<_> = (0..3).map(|_| pair.send_frame("beat")).collect();
    pair.write(ALL);
    receipts.push(pair.send_frame("begun"));
    (pair, receipts)
}

fn reply(sequence: u64, answers: u64) -> Vec<u8> {
    reply_of(sequence, answers, ReplyForm::Taken, &[])
}

fn reply_of(sequence: u64, answers: u64, form: ReplyForm, body: &[u8]) -> Vec<u8> {
    let header = reply_header(Lane::Control, sequence, answers, form, body);
    message(&keys(1, Lane::Control).reply, header, body).to_vec()
}

/// Feeds `good` replies to frames 1, 2, ... and then the bytes; checks that they change nothing
/// but to end the session, and exactly with what that says of each item.
fn fault(good: u64, bytes: &[u8]) -> PeerMisbehaved {
    let (mut pair, receipts) = three_written();
    for number in 1..=good {
        pair.out.handle_bytes(pair.now, &reply(number, number));
    }
    pair.out.handle_bytes(pair.now, bytes);
    let end = loop {
        match pair.step() {
            Ok(true) => {}
            Ok(false) => unreachable!("nothing was wrong"),
            Err(end) => break end,
        }
    };
    let replied = |receipt: &Receipt| {
        receipt.outcome().map(|outcome| outcome.kind()) == Some(OutcomeKind::Replied)
    };
    assert_eq!(receipts.iter().filter(|r| replied(r)).count() as u64, good);
    pair.lose(&end);
    for (at, receipt) in receipts
        .iter()
        .enumerate()
        .skip(usize::try_from(good).unwrap())
    {
        let stage = [Stage::Written, Stage::Writing][usize::from(at == 3)];
        assert_eq!(receipt.outcome(), Some(Outcome::SessionLost { stage }));
    }
    assert_empty(&pair);
    let SessionEnd::PeerMisbehaved(fault) = end else {
        unreachable!("{end}")
    };
    fault
}

#[test]
fn replies_out_of_place_end_the_session_each_as_its_own_fault() {
    let unsent = |answers| PeerMisbehaved::ReplyToUnsent {
        answers: Sequence::new(answers),
        sent: Sequence::new(3),
    };
    let answers = Sequence::new(1);
    let second = PeerMisbehaved::SecondReply { answers };
    assert_eq!(fault(1, &reply(2, 1)), second);
    assert_eq!(fault(3, &reply(4, 1)), second);
    assert_eq!(fault(0, &reply(1, 5)), unsent(5));
    assert_eq!(fault(0, &reply(1, 0)), unsent(0));
    // Begun, and its last byte isn't with the socket: nobody can have answered it.
    assert_eq!(fault(3, &reply(4, 4)), unsent(4));
    let (expected, got) = (Sequence::new(1), Sequence::new(2));
    let early = PeerMisbehaved::ReplyOutOfOrder { expected, got };
    assert_eq!(fault(0, &reply(1, 2)), early);
}

#[test]
fn gap_replay_and_reorder_of_replies_end_the_session_as_such() {
    let (expected, got) = (Sequence::new(2), Sequence::new(3));
    assert_eq!(
        fault(1, &reply(3, 2)),
        PeerMisbehaved::SequenceGap { expected, got }
    );
    let got = Sequence::new(1);
    assert_eq!(
        fault(1, &reply(1, 1)),
        PeerMisbehaved::SequenceReplayed { expected, got }
    );
    let reordered = [reply(2, 2), reply(1, 1)].concat();
    let (expected, got) = (Sequence::new(1), Sequence::new(2));
    assert_eq!(
        fault(0, &reordered),
        PeerMisbehaved::SequenceGap { expected, got }
    );
}

#[test]
fn forged_spliced_and_reflected_replies_end_the_session() {
    let sequence = Sequence::new(1);
    let header = reply_header(Lane::Control, 1, 1, ReplyForm::Taken, &[]);
    for key in [
        keys(0, Lane::Control).reply,
        keys(1, Lane::Bulk).reply,
        keys(1, Lane::Control).frame,
        keys(1, Lane::Control).hello,
    ] {
        let bytes = message(&key, header, &[]);
        assert_eq!(fault(0, &bytes), PeerMisbehaved::BadTag { sequence });
    }
    let body = [0, 0, 0, 0];
    let header = frame_header(Lane::Control, 1, 1, &body);
    let own = message(&keys(1, Lane::Control).frame, header, &body);
    let got = Kind::Frame as u8;
    assert_eq!(fault(0, &own), PeerMisbehaved::Reflected { got });
    let header = plain_header(Kind::Hello, Lane::Control, 1, &[]);
    let own = message(&keys(1, Lane::Control).hello, header, &[]);
    let got = Kind::Hello as u8;
    assert_eq!(fault(0, &own), PeerMisbehaved::Reflected { got });
}

#[test]
fn a_flipped_bit_of_a_reply_ends_the_session() {
    let whole = reply_of(1, 1, ReplyForm::Taken, b"answer");
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            // Enough behind it to complete a length that grew.
            bytes.extend([0; 64 << 10]);
            let fault = fault(0, &bytes);
            let own = match at {
                0 => matches!(
                    fault,
                    PeerMisbehaved::UnknownKind { .. }
                        | PeerMisbehaved::Reflected { .. }
                        | PeerMisbehaved::BadHeader { .. }
                        | PeerMisbehaved::OversizedBody { .. }
                ),
                1 => matches!(fault, PeerMisbehaved::UnknownVersion { .. }),
                2 => matches!(fault, PeerMisbehaved::WrongLane { .. }),
                3 => matches!(
                    fault,
                    PeerMisbehaved::BadHeader { .. } | PeerMisbehaved::BadTag { .. }
                ),
                4..8 => matches!(
                    fault,
                    PeerMisbehaved::OversizedBody { .. } | PeerMisbehaved::BadTag { .. }
                ),
                8..16 => matches!(
                    fault,
                    PeerMisbehaved::SequenceGap { .. } | PeerMisbehaved::SequenceReplayed { .. }
                ),
                // The word, the body and the tag.
                _ => {
                    fault
                        == PeerMisbehaved::BadTag {
                            sequence: Sequence::new(1),
                        }
                }
            };
            assert!(own, "byte {at} bit {bit}: {fault}");
        }
    }
}

#[test]
fn kinds_and_bodies_out_of_place_end_the_session() {
    let plain = |kind, body: &[u8]| {
        let header = plain_header(kind, Lane::Control, 1, body);
        message(&keys(1, Lane::Control).reply, header, body)
    };
    let confirm = PeerMisbehaved::MalformedHello {
        what: "confirm",
        at: 0,
    };
    assert_eq!(fault(0, &plain(Kind::Confirm, &[])), confirm);
    for kind in [Kind::HelloAnswer, Kind::Refusal] {
        let got = kind as u8;
        assert_eq!(
            fault(0, &plain(kind, &[])),
            PeerMisbehaved::UnexpectedKind { got }
        );
    }
    let (what, at) = ("notice", 0);
    assert_eq!(
        fault(0, &plain(Kind::Close, &[1])),
        PeerMisbehaved::MalformedHello { what, at }
    );
    let long = reply_header(Lane::Control, 1, 1, ReplyForm::Taken, &[0; (64 << 10) + 1]);
    let bytes = message(&keys(1, Lane::Control).reply, long, &[]);
    let (kind, got, max) = (Kind::Reply as u8, (64 << 10) + 1, 64 << 10);
    let fault = fault(0, &bytes[..HEADER_BYTES]);
    assert_eq!(fault, PeerMisbehaved::OversizedBody { kind, got, max });
}

#[test]
fn a_malformed_answer_is_no_answer_and_the_peer_may_have_acted() {
    for (form, body) in [
        (ReplyForm::Refused, &[][..]),
        (ReplyForm::Refused, &[0]),
        (ReplyForm::PerItem, &[0, 0, 0, 0, 9]),
        (ReplyForm::PerItem, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let (sequence, items) = (Sequence::new(1), 1);
        let fault = fault(0, &reply_of(1, 1, form, body));
        assert_eq!(fault, PeerMisbehaved::MalformedBody { sequence, items });
    }
}

#[test]
fn a_connection_that_ends_inside_a_reply_says_after_how_many_bytes() {
    let whole = reply(1, 1);
    for got in 0..whole.len() {
        let (mut pair, receipts) = three_written();
        pair.out.handle_bytes(pair.now, &whole[..got]);
        assert!(!pair.step().unwrap());
        let end = pair.out.on_eof();
        if got == 0 {
            assert_eq!(end, std::io::ErrorKind::UnexpectedEof.into());
        } else {
            assert_eq!(end, PeerMisbehaved::Truncated { got }.into());
        }
        assert_eq!(receipts[0].outcome(), None);
    }
}

/// A dialled lane with its hello sent or not, fed one message of the acceptor.
fn hello_fault(sent: bool, kind: Kind, sequence: u64, body: &[u8]) -> SessionEnd {
    let mut pair = Pair::new(Lane::Control, TIMEOUTS);
    pair.dial();
    if sent {
        pair.transmit_all();
    }
    let header = if kind == Kind::Reply {
        reply_header(Lane::Control, sequence, 1, ReplyForm::Taken, body)
    } else {
        plain_header(kind, Lane::Control, sequence, body)
    };
    let bytes = message(&keys(1, Lane::Control).hello, header, body);
    pair.out.handle_bytes(pair.now, &bytes);
    let end = pair.step().unwrap_err();
    assert!(!pair.out.is_up());
    end
}

#[test]
fn what_is_no_answer_to_the_hello_ends_the_session() {
    let unexpected = |kind: Kind| PeerMisbehaved::UnexpectedKind { got: kind as u8 }.into();
    for kind in [Kind::Reply, Kind::Close, Kind::Confirm] {
        assert_eq!(hello_fault(true, kind, 2, &[]), unexpected(kind));
    }
    let good = encode_answer(&HelloAnswer {
        claims: crate::testing::pair::claims(Lane::Control, 2, 1),
        version: 1,
        session: SessionId::new(1),
    });
    // An answer to a hello that hasn't left.
    let early = hello_fault(false, Kind::HelloAnswer, 2, &good);
    assert_eq!(early, unexpected(Kind::HelloAnswer));
    let (expected, got) = (Sequence::new(2), Sequence::new(3));
    let gap = hello_fault(true, Kind::HelloAnswer, 3, &good);
    assert_eq!(gap, PeerMisbehaved::SequenceGap { expected, got }.into());
    let (what, at) = ("hello answer", good.len() - 8);
    let cut = hello_fault(true, Kind::HelloAnswer, 2, &good[..good.len() - 1]);
    assert_eq!(cut, PeerMisbehaved::MalformedHello { what, at }.into());
    // A refusal may come at any time before the answer.
    let notice = PeerNotice {
        code: CloseCode::Authority,
        expected: String::new(),
        got: String::new(),
    };
    let body = encode_notice(&notice);
    for sent in [false, true] {
        let refused = hello_fault(sent, Kind::Refusal, 2, &body);
        assert_eq!(refused, SessionEnd::RefusedByPeer(notice.clone()));
    }
}
