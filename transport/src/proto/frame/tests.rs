//! Headers, bodies and answers, alone: what is written reads back, what can't be is named.

use proptest::prelude::*;

use super::*;
use crate::testing::pair::{frame_header, ms, plain_header, reply_header};

fn bytes_of(header: &Header) -> [u8; HEADER_BYTES] {
    let mut out = BytesMut::new();
    header.encode(&mut out);
    out[..].try_into().unwrap()
}

fn frame() -> Header {
    frame_header(Lane::Control, 7, 3, &[0; 30])
}

fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, PeerMisbehaved> {
    Header::decode(bytes, Side::Acceptor, Some(Lane::Control))
}

#[test]
fn the_layout_is_the_documents() {
    let header = Header {
        word: frame_word(ms(0x0102_0304), 0x0506),
        sequence: Sequence::new(0x1112_1314_1516_1718),
        ..frame()
    };
    let expected = [
        4, 1, 1, 0, 0, 0, 0, 30, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 1, 2, 3, 4, 5, 6,
        0, 0,
    ];
    assert_eq!(bytes_of(&header), expected);
    assert_eq!(decode(&expected), Ok(header));
    assert_eq!(header.items(), 0x0506);
    assert_eq!(header.remaining(), ms(0x0102_0304));
}

#[test]
fn what_is_wrong_with_a_header_is_named() {
    let with = |at: usize, value: u8| {
        let mut bytes = bytes_of(&frame());
        bytes[at] = value;
        decode(&bytes).unwrap_err()
    };
    let (expected, kind) = (Lane::Control, Kind::Frame as u8);
    for got in [0, 8, 255] {
        assert_eq!(with(0, got), PeerMisbehaved::UnknownKind { got });
    }
    for got in [0, 2, 255] {
        let expected = FRAMING_VERSION;
        assert_eq!(
            with(1, got),
            PeerMisbehaved::UnknownVersion { expected, got }
        );
    }
    for got in [0, 2, 3, 255] {
        assert_eq!(with(2, got), PeerMisbehaved::WrongLane { expected, got });
    }
    assert_eq!(with(3, 1), PeerMisbehaved::BadHeader { kind });
    let (got, max) = (30 + (1 << 16), 64 << 10);
    assert_eq!(with(5, 1), PeerMisbehaved::OversizedBody { kind, got, max });
    for reserved in [22, 23] {
        assert_eq!(with(reserved, 1), PeerMisbehaved::BadHeader { kind });
    }
    // No items, and more than a frame may have.
    assert_eq!(with(21, 0), PeerMisbehaved::BadHeader { kind });
    assert_eq!(with(20, 0xff), PeerMisbehaved::BadHeader { kind });
}

#[test]
fn a_side_reads_back_none_of_its_own_kinds() {
    let own = [
        (Side::Dialler, vec![Kind::Hello, Kind::Frame]),
        (
            Side::Acceptor,
            vec![Kind::HelloAnswer, Kind::Refusal, Kind::Reply],
        ),
    ];
    for (reader, kinds) in own {
        for kind in kinds {
            let bytes = bytes_of(&plain_header(kind, Lane::Bulk, 1, &[]));
            let got = kind as u8;
            let refused = Header::decode(&bytes, reader, None).unwrap_err();
            assert_eq!(refused, PeerMisbehaved::Reflected { got });
        }
        for kind in [Kind::Close, Kind::Confirm] {
            let header = plain_header(kind, Lane::Bulk, 1, &[]);
            assert_eq!(Header::decode(&bytes_of(&header), reader, None), Ok(header));
        }
    }
}

#[test]
fn each_kind_has_its_own_bound_and_lane() {
    for (kind, lane, max) in [
        (Kind::Frame, Lane::Control, CONTROL_BODY_BYTES_MAX),
        (Kind::Frame, Lane::Bulk, BULK_BODY_BYTES_MAX),
        (Kind::Hello, Lane::Bulk, HELLO_BODY_BYTES_MAX),
        (Kind::Close, Lane::Control, HELLO_BODY_BYTES_MAX),
    ] {
        let word = if kind == Kind::Frame { 1 << 16 } else { 0 };
        let of = |bytes: usize| Header {
            word,
            body_bytes: u32::try_from(bytes).unwrap(),
            ..plain_header(kind, lane, 1, &[])
        };
        let decode = |header: Header| Header::decode(&bytes_of(&header), Side::Acceptor, None);
        assert_eq!(decode(of(max)), Ok(of(max)));
        let oversized = matches!(
            decode(of(max + 1)),
            Err(PeerMisbehaved::OversizedBody { .. })
        );
        assert!(oversized, "{kind:?}");
    }
}

#[test]
fn time_left_is_rounded_up_and_bounded() {
    let carried = |remaining| {
        let header = Header {
            word: frame_word(remaining, 1),
            ..frame()
        };
        header.remaining()
    };
    assert_eq!(carried(Duration::ZERO), ms(0));
    assert_eq!(carried(Duration::from_nanos(1)), ms(1));
    assert_eq!(carried(ms(1)), ms(1));
    assert_eq!(carried(Duration::from_nanos(1_000_001)), ms(2));
    assert_eq!(carried(REMAINING_MAX), REMAINING_MAX);
    assert_eq!(carried(Duration::MAX), REMAINING_MAX);
}

#[test]
fn bodies_that_do_not_divide_into_their_items_are_malformed() {
    let sequence = Sequence::new(9);
    let split = |body: &'static [u8], items| split_items(Bytes::from_static(body), items, sequence);
    let good = split(&[0, 0, 0, 1, 7, 0, 0, 0, 0], 2).unwrap();
    assert_eq!(good, [Bytes::from_static(&[7]), Bytes::new()]);
    let malformed: [(&[u8], u16); 6] = [
        (&[], 1),
        (&[0, 0, 0], 1),
        (&[0, 0, 0, 2, 7], 1),
        (&[0xff, 0xff, 0xff, 0xff, 7], 1),
        (&[0, 0, 0, 1, 7], 2),
        (&[0, 0, 0, 1, 7, 8], 1),
    ];
    for (body, items) in malformed {
        let expected = PeerMisbehaved::MalformedBody { sequence, items };
        assert_eq!(split(body, items), Err(expected), "{body:?}");
    }
}

fn read_back(answer: &Answer, items: u16) -> Result<Answer, PeerMisbehaved> {
    let (form, body) = answer.encode(items);
    assert!(body.len() <= REPLY_BODY_BYTES_MAX);
    let header = reply_header(Lane::Control, 1, 1, form, &body);
    Answer::decode(&header, body, items)
}

#[test]
fn an_answer_that_does_not_fit_becomes_a_refusal() {
    let long = |bytes| Bytes::from(vec![1; bytes]);
    let refused = |reason| Ok(Answer::Refused(reason));
    let fits = Answer::Taken(long(REPLY_BODY_BYTES_MAX));
    assert_eq!(read_back(&fits, 1), Ok(fits));
    let over = Answer::Taken(long(REPLY_BODY_BYTES_MAX + 1));
    assert_eq!(read_back(&over, 1), refused(RefusalReason::AnswerTooLong));
    let fits = Answer::PerItem(vec![Ok(long(REPLY_BODY_BYTES_MAX - 5))]);
    assert_eq!(read_back(&fits, 1), Ok(fits));
    let over = Answer::PerItem(vec![Ok(long(REPLY_BODY_BYTES_MAX - 4))]);
    assert_eq!(read_back(&over, 1), refused(RefusalReason::AnswerTooLong));
    let fewer = Answer::PerItem(vec![Ok(Bytes::new())]);
    assert_eq!(read_back(&fewer, 2), refused(RefusalReason::Unanswered));
}

#[test]
fn a_refusal_never_reads_back_as_taken() {
    // The number 0 stands for "taken"; a host that refused with `Unknown(0)` had its refusal of
    // an item read as a reply, and its refusal of a frame as a malformed body.
    for code in 0..=u8::MAX {
        let reason = RefusalReason::Unknown(code);
        let answers = [
            Answer::Refused(reason),
            Answer::PerItem(vec![Err(reason), Ok(Bytes::new())]),
        ];
        for answer in answers {
            match read_back(&answer, 2).unwrap() {
                Answer::Refused(_) => {}
                Answer::PerItem(verdicts) => assert!(verdicts[0].is_err() && verdicts[1].is_ok()),
                Answer::Taken(_) => unreachable!("{reason:?} came back as taken"),
            }
        }
    }
}

#[test]
fn malformed_replies_are_named() {
    let decode = |form, body: &'static [u8], items| {
        let header = reply_header(Lane::Control, 5, 1, form, body);
        Answer::decode(&header, Bytes::from_static(body), items)
    };
    let cases: [(ReplyForm, &[u8], u16); 8] = [
        (ReplyForm::Refused, &[], 1),
        (ReplyForm::Refused, &[0], 1),
        (ReplyForm::Refused, &[1, 1], 1),
        (ReplyForm::PerItem, &[0, 0, 0, 0], 1),
        (ReplyForm::PerItem, &[0, 0, 0, 0, 1], 1),
        (ReplyForm::PerItem, &[1, 0, 0, 0, 1, 9], 1),
        (ReplyForm::PerItem, &[0, 0, 0, 0, 0], 2),
        (ReplyForm::PerItem, &[0, 0, 0, 0, 0, 7], 1),
    ];
    for (form, body, items) in cases {
        let sequence = Sequence::new(5);
        let expected = PeerMisbehaved::MalformedBody { sequence, items };
        assert_eq!(
            decode(form, body, items),
            Err(expected),
            "{form:?} {body:?}"
        );
    }
}

fn reason() -> impl Strategy<Value = RefusalReason> {
    (1..=u8::MAX).prop_map(RefusalReason::from_u8)
}

fn payload() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn answer() -> impl Strategy<Value = (Answer, u16)> {
    let verdict = prop_oneof![payload().prop_map(Ok), reason().prop_map(Err)];
    prop_oneof![
        payload().prop_map(|bytes| (Answer::Taken(bytes), 1)),
        reason().prop_map(|reason| (Answer::Refused(reason), 1)),
        proptest::collection::vec(verdict, 1..20).prop_map(|verdicts| {
            let items = u16::try_from(verdicts.len()).unwrap();
            (Answer::PerItem(verdicts), items)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn headers_decode_or_are_refused_and_what_decodes_encodes_to_the_same(
        bytes in proptest::array::uniform24(any::<u8>()),
        // Most random bytes fail at once; these come further.
        near in any::<bool>(),
        kind in 1..8u8,
        lane in 1..3u8,
        dialler in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if near {
            let form = bytes[3] % 4;
            bytes[..6].copy_from_slice(&[kind, 1, lane, form, 0, 0]);
            if kind != Kind::Reply as u8 {
                bytes[3] = 0;
                bytes[16..].fill(0);
                bytes[21] = u8::from(kind == Kind::Frame as u8);
            }
        }
        let reader = if dialler { Side::Dialler } else { Side::Acceptor };
        if let Ok(header) = Header::decode(&bytes, reader, None) {
            prop_assert_eq!(bytes_of(&header), bytes);
        }
    }

    #[test]
    fn items_read_back_as_they_were_put(
        items in proptest::collection::vec(payload(), 1..20)
    ) {
        let mut body = BytesMut::new();
        items.iter().for_each(|item| put_item(&mut body, item));
        let count = u16::try_from(items.len()).unwrap();
        let split = split_items(body.freeze(), count, Sequence::FIRST);
        prop_assert_eq!(split, Ok(items));
    }

    #[test]
    fn splitting_takes_any_bytes(body in payload(), items in 0..10u16) {
        if let Ok(split) = split_items(body.clone(), items, Sequence::FIRST) {
            let bytes: usize = split.iter().map(|item| item.len() + ITEM_PREFIX_BYTES).sum();
            prop_assert_eq!(bytes, body.len());
        }
    }

    #[test]
    fn answers_read_back_as_they_were_given((answer, items) in answer()) {
        prop_assert_eq!(read_back(&answer, items), Ok(answer));
    }

    #[test]
    fn decoding_an_answer_takes_any_bytes(body in payload(), form in 0..5u8, items in 0..10u16) {
        let header = Header { form, ..reply_header(Lane::Bulk, 1, 1, ReplyForm::Taken, &body) };
        if let Ok(Answer::PerItem(verdicts)) = Answer::decode(&header, body, items) {
            prop_assert_eq!(verdicts.len(), usize::from(items));
        }
    }
}
