//! Order and tags, alone.

use std::collections::BTreeSet;

use super::*;
use crate::id::Lane;
use crate::proto::deframer::Deframer;
use crate::proto::frame::Side;
use crate::testing::pair::{export, frame_header, key_context, keys, message};
use crate::testing::start;

const LANE: Lane = Lane::Control;
const BODY: &[u8] = &[0, 0, 0, 3, 1, 2, 3];

fn raw(bytes: &[u8]) -> RawMessage {
    let mut deframer = Deframer::new(Side::Acceptor, Some(LANE));
    deframer.handle_bytes(start(), bytes);
    deframer.next_message().unwrap().unwrap()
}

fn frame(session: u64, sequence: u64) -> Vec<u8> {
    let header = frame_header(LANE, sequence, 1, BODY);
    message(&keys(session, LANE).frame, header, BODY).to_vec()
}

fn verifier() -> Verifier {
    Verifier::new(keys(1, LANE).frame, Sequence::FIRST)
}

fn verify(verifier: &mut Verifier, bytes: &[u8]) -> Result<u64, PeerMisbehaved> {
    let verified = verifier.verify(raw(bytes))?;
    Ok(verified.header().sequence.to_u64())
}

#[test]
fn messages_in_order_pass_and_open() {
    let mut verifier = verifier();
    for sequence in 1..=5 {
        let verified = verifier.verify(raw(&frame(1, sequence))).unwrap();
        assert_eq!(&verified.body()[..], BODY);
        let frame = verified.into_frame().unwrap();
        assert_eq!(frame.sequence(), Sequence::new(sequence));
        assert_eq!(frame.payload_bytes(), 3);
        assert_eq!(frame.items(), [Bytes::from_static(&[1, 2, 3])]);
    }
}

#[test]
fn gap_replay_and_reorder_name_both_numbers() {
    let mut verifier = verifier();
    verify(&mut verifier, &frame(1, 1)).unwrap();
    let (expected, got) = (Sequence::new(2), Sequence::new(3));
    let gap = verify(&mut verifier, &frame(1, 3)).unwrap_err();
    assert_eq!(gap, PeerMisbehaved::SequenceGap { expected, got });
    let got = Sequence::new(1);
    let replay = verify(&mut verifier, &frame(1, 1)).unwrap_err();
    assert_eq!(replay, PeerMisbehaved::SequenceReplayed { expected, got });
    // What was refused didn't move the expected number.
    assert_eq!(verify(&mut verifier, &frame(1, 2)), Ok(2));
}

#[test]
fn a_flipped_bit_anywhere_fails_the_tag_or_an_earlier_check() {
    let whole = frame(1, 1);
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let mut deframer = Deframer::new(Side::Acceptor, Some(LANE));
            deframer.handle_bytes(start(), &bytes);
            // A longer length waits for more; the tag fails once it comes.
            deframer.handle_bytes(start(), &[0; 1 << 16]);
            let fault = match deframer.next_message() {
                Err(fault) => fault,
                Ok(message) => verifier().verify(message.unwrap()).unwrap_err(),
            };
            let tagged = match at {
                0..8 | 20..24 => continue,
                8..16 => matches!(
                    fault,
                    PeerMisbehaved::SequenceGap { .. } | PeerMisbehaved::SequenceReplayed { .. }
                ),
                _ => matches!(fault, PeerMisbehaved::BadTag { .. }),
            };
            assert!(tagged, "byte {at} bit {bit}: {fault}");
        }
    }
}

#[test]
fn only_the_sessions_own_key_of_its_direction_and_lane_proves_a_message() {
    let header = frame_header(LANE, 1, 1, BODY);
    let own = keys(1, LANE);
    let foreign = [
        own.hello,
        own.reply,
        keys(1, Lane::Bulk).frame,
        keys(2, LANE).frame,
    ];
    for key in foreign {
        let fault = verify(&mut verifier(), &message(&key, header, BODY)).unwrap_err();
        let sequence = Sequence::FIRST;
        assert_eq!(fault, PeerMisbehaved::BadTag { sequence });
    }
    assert_eq!(
        verify(&mut verifier(), &message(&own.frame, header, BODY)),
        Ok(1)
    );
}

#[test]
fn a_right_tag_on_the_wrong_sequence_still_fails() {
    // The tag of frame 1 over a header that says 2, and the other way round.
    let (one, two) = (frame(1, 1), frame(1, 2));
    let tag_at = one.len() - TAG_BYTES;
    let spliced = [&two[..tag_at], &one[tag_at..]].concat();
    let mut verifier = verifier();
    verify(&mut verifier, &one).unwrap();
    let sequence = Sequence::new(2);
    let fault = verify(&mut verifier, &spliced).unwrap_err();
    assert_eq!(fault, PeerMisbehaved::BadTag { sequence });
}

#[test]
fn tags_are_gmac_of_header_and_body_under_the_sequence_as_nonce() {
    // AES-256-GCM's own test vector 13 (no text, no associated data, zero key and nonce), then
    // the same key against the library with our inputs.
    let key = TagKey::new(&[0; KEY_BYTES]);
    let zero = key.tag(Sequence::new(0), &[]);
    let expected = 0x530f_8afb_c745_36b9_a963_b4f1_c4cb_738b_u128;
    assert_eq!(u128::from_be_bytes(zero), expected);
    let nonce = {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&7u64.to_be_bytes());
        nonce
    };
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[0; KEY_BYTES]).unwrap());
    let tag = cipher
        .seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(b"message"),
            &mut [],
        )
        .unwrap();
    assert_eq!(tag.as_ref(), key.tag(Sequence::new(7), b"message"));
}

#[test]
fn sequences_never_wrap_and_nothing_follows_the_last() {
    let last = Sequence::new(u64::MAX);
    let key = keys(1, LANE).frame;
    let mut stamper = Stamper::new(key.clone(), last);
    let header = frame_header(LANE, u64::MAX, 1, BODY);
    let (sequence, bytes) = stamper.stamp_body(header, BODY).unwrap();
    assert_eq!(sequence, last);
    assert_eq!(stamper.next(), None);
    assert!(stamper.stamp_body(header, BODY).is_none());

    let mut verifier = Verifier::new(key.clone(), last);
    verify(&mut verifier, &bytes).unwrap();
    for sequence in [1, u64::MAX, 0] {
        let forged = message(&key, frame_header(LANE, sequence, 1, BODY), BODY);
        assert!(verify(&mut verifier, &forged).is_err(), "{sequence}");
    }
}

#[test]
fn a_verified_message_opens_as_a_frame_only_if_it_is_one() {
    let mut bytes = frame(1, 1);
    bytes[0] = Kind::Close as u8;
    bytes[16..24].fill(0);
    let tag_at = bytes.len() - TAG_BYTES;
    let tag = keys(1, LANE).frame.tag(Sequence::FIRST, &bytes[..tag_at]);
    bytes[tag_at..].copy_from_slice(&tag);
    let verified = verifier().verify(raw(&bytes)).unwrap();
    let got = Kind::Close as u8;
    let refused = verified.into_frame().unwrap_err();
    assert_eq!(refused, PeerMisbehaved::UnexpectedKind { got });
}

#[test]
fn every_key_of_every_session_lane_and_direction_is_its_own() {
    let mut all = BTreeSet::new();
    for session in 1..=3 {
        for lane in Lane::ALL {
            let mut swapped = key_context(lane);
            std::mem::swap(&mut swapped.dialler, &mut swapped.acceptor);
            for context in [key_context(lane), swapped] {
                for label in super::super::hello::KEY_LABELS {
                    assert!(all.insert(export(session, label, &context.to_bytes())));
                }
            }
        }
    }
    assert_eq!(all.len(), 3 * 2 * 2 * 3);
}

#[test]
fn a_key_does_not_show_itself() {
    let text = format!("{:?} {:?}", keys(1, LANE), verifier());
    assert!(!text.contains('['), "{text}");
}
