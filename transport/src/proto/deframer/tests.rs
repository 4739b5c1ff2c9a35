//! Bytes to messages, alone: whatever the pieces they come in, and without waiting for what a
//! header already rules out.

use proptest::prelude::*;

use super::*;
use crate::limits::{BULK_BODY_BYTES_MAX, CONTROL_BODY_BYTES_MAX};
use crate::proto::frame::{FRAMING_VERSION, Kind};
use crate::testing::pair::{frame_header, keys, message, ms, plain_header};
use crate::testing::start;

fn frame(sequence: u64, body: &[u8]) -> Vec<u8> {
    let header = frame_header(Lane::Control, sequence, 1, body);
    message(&keys(1, Lane::Control).frame, header, body).to_vec()
}

fn deframer() -> Deframer {
    Deframer::new(Side::Acceptor, Some(Lane::Control))
}

fn all(deframer: &mut Deframer) -> Result<Vec<Bytes>, PeerMisbehaved> {
    let mut out = Vec::new();
    while let Some(message) = deframer.next_message()? {
        out.push(message.bytes);
    }
    Ok(out)
}

#[test]
fn a_message_comes_out_only_when_its_last_byte_is_in() {
    let bytes = frame(1, b"some body");
    let mut deframer = deframer();
    for (at, byte) in bytes.iter().enumerate() {
        assert!(deframer.next_message().unwrap().is_none());
        assert_eq!(deframer.pending_bytes(), at);
        deframer.handle_bytes(start(), &[*byte]);
    }
    let message = deframer.next_message().unwrap().unwrap();
    assert_eq!(&message.bytes[..], &bytes[..]);
    assert_eq!(deframer.pending_bytes(), 0);
    assert!(deframer.next_message().unwrap().is_none());
}

#[test]
fn a_bad_header_is_refused_before_a_byte_of_its_body() {
    let max = u32::try_from(CONTROL_BODY_BYTES_MAX).unwrap();
    let oversized = |bytes: u32| {
        let mut frame = frame(1, &[0; 8]);
        frame[4..8].copy_from_slice(&bytes.to_be_bytes());
        let mut deframer = deframer();
        deframer.handle_bytes(start(), &frame[..HEADER_BYTES]);
        deframer.next_message().map(|message| message.is_some())
    };
    assert_eq!(oversized(max), Ok(false));
    for got in [max + 1, u32::MAX] {
        let kind = Kind::Frame as u8;
        assert_eq!(
            oversized(got),
            Err(PeerMisbehaved::OversizedBody { kind, got, max })
        );
    }
    for (at, got) in [(0, 9), (1, 9)] {
        let mut bytes = frame(1, &[0; 8]);
        bytes[at] = got;
        let mut deframer = deframer();
        deframer.handle_bytes(start(), &bytes[..HEADER_BYTES]);
        let expected = match at {
            0 => PeerMisbehaved::UnknownKind { got },
            _ => PeerMisbehaved::UnknownVersion {
                expected: FRAMING_VERSION,
                got,
            },
        };
        for _ in 0..2 {
            assert_eq!(deframer.next_message().unwrap_err(), expected);
        }
    }
}

#[test]
fn nothing_after_a_bad_header_comes_out() {
    let mut deframer = deframer();
    let mut bad = frame(2, b"bad");
    bad[0] = 99;
    for bytes in [frame(1, b"good"), bad, frame(3, b"good again")] {
        deframer.handle_bytes(start(), &bytes);
    }
    assert!(deframer.next_message().unwrap().is_some());
    for _ in 0..3 {
        assert!(deframer.next_message().is_err());
    }
}

#[test]
fn the_first_message_fixes_the_lane_where_none_is_known() {
    let mut deframer = Deframer::new(Side::Acceptor, None);
    let key = keys(1, Lane::Bulk).hello;
    let hello = message(&key, plain_header(Kind::Hello, Lane::Bulk, 1, b"hi"), b"hi");
    deframer.handle_bytes(start(), &hello);
    let message = deframer.next_message().unwrap().unwrap();
    assert_eq!(message.header.lane, Lane::Bulk);
    deframer.handle_bytes(start(), &frame(1, b"control"));
    let (expected, got) = (Lane::Bulk, 1);
    let refused = deframer.next_message().unwrap_err();
    assert_eq!(refused, PeerMisbehaved::WrongLane { expected, got });
}

#[test]
fn a_message_started_when_its_first_byte_was_read() {
    let (one, two) = (frame(1, b"one"), frame(2, b"two"));
    let joined = [&one[..], &two[..]].concat();
    let (first, rest) = joined.split_at(10);
    let (second, third) = rest.split_at(one.len());
    let mut deframer = deframer();
    let mut started = Vec::new();
    for (after, bytes) in [(1, first), (2, second), (3, third)] {
        deframer.handle_bytes(start() + ms(after), bytes);
        while let Some(message) = deframer.next_message().unwrap() {
            started.push(message.started);
        }
    }
    assert_eq!(started, [1, 2].map(|after| start() + ms(after)));
}

#[test]
fn the_largest_frame_of_each_lane_passes() {
    for (lane, bytes) in [
        (Lane::Control, CONTROL_BODY_BYTES_MAX),
        (Lane::Bulk, BULK_BODY_BYTES_MAX),
    ] {
        let body = vec![3; bytes];
        let header = frame_header(lane, 1, 1, &body);
        let bytes = message(&keys(1, lane).frame, header, &body);
        let mut deframer = Deframer::new(Side::Acceptor, Some(lane));
        for piece in bytes.chunks(16 << 10) {
            assert!(deframer.next_message().unwrap().is_none());
            deframer.handle_bytes(start(), piece);
        }
        assert_eq!(all(&mut deframer).unwrap(), [bytes.freeze()]);
    }
}

/// A stream of messages, and where it is cut.
fn stream() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<usize>)> {
    let body = proptest::collection::vec(any::<u8>(), 0..200);
    let frames = proptest::collection::vec(body, 1..6).prop_map(|bodies| {
        let numbered = bodies.iter().zip(1..);
        numbered.map(|(body, at)| frame(at, body)).collect()
    });
    (frames, proptest::collection::vec(1..300usize, 0..40))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_split_gives_the_same_messages_as_the_whole((frames, cuts) in stream()) {
        let whole = frames.concat();
        let mut deframer = deframer();
        let mut out = Vec::new();
        let mut rest = &whole[..];
        for cut in cuts {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            rest = after;
            deframer.handle_bytes(start(), piece);
            out.extend(all(&mut deframer)?);
        }
        deframer.handle_bytes(start(), rest);
        out.extend(all(&mut deframer)?);
        prop_assert_eq!(out, frames);
        prop_assert_eq!(deframer.pending_bytes(), 0);
    }

    #[test]
    fn any_bytes_give_messages_or_an_error(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
        near in any::<bool>(),
        cut in any::<usize>(),
    ) {
        if near && bytes.len() >= 6 {
            bytes[..6].copy_from_slice(&[Kind::Close as u8, FRAMING_VERSION, 1, 0, 0, 0]);
        }
        let (first, second) = bytes.split_at(cut % (bytes.len() + 1));
        let mut deframer = deframer();
        deframer.handle_bytes(start(), first);
        let early = all(&mut deframer);
        deframer.handle_bytes(start(), second);
        let late = all(&mut deframer);
        prop_assert!(early.is_ok() || late == early, "an error stays");
    }
}
