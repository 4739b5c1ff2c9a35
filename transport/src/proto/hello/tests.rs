//! The hello's bodies and what must agree, alone; then every refusal end to end, where both sides
//! must come to know both values.

use proptest::prelude::*;

use super::*;
use crate::error::SessionEnd;
use crate::id::NodeIdentity;
use crate::limits::HELLO_BODY_BYTES_MAX;
use crate::proto::authority::{Authority, NodeRecord};
use crate::testing::pair::{Pair, TIMEOUTS, claims, cluster, export, identity, peer};

const LANE: Lane = Lane::Control;

fn ours() -> Claims {
    claims(LANE, 2, 1)
}

fn theirs() -> Claims {
    claims(LANE, 1, 2)
}

fn settings(pairs: &[(&str, &str)]) -> Fingerprint {
    Fingerprint::new(pairs.iter().copied()).unwrap()
}

#[test]
fn the_lower_of_both_sides_limits_holds() {
    let (mut ours, mut theirs) = (ours(), theirs());
    (ours.limits.window_frames, theirs.limits.window_frames) = (3, 16);
    (ours.limits.window_bytes, theirs.limits.window_bytes) = (1 << 20, 1 << 19);
    (ours.limits.frame_bytes, theirs.limits.frame_bytes) = (9000, 8000);
    (ours.limits.frame_items, theirs.limits.frame_items) = (5, 6);
    let expected = PeerLimits {
        window_frames: 3,
        window_bytes: 1 << 19,
        frame_bytes: 8000,
        frame_items: 5,
    };
    for (a, b) in [(&ours, &theirs), (&theirs, &ours)] {
        assert_eq!(agree(a, b).unwrap().limits, expected);
    }
}

#[test]
fn the_highest_common_version_is_chosen_and_none_names_all_four_bounds() {
    let range = |min, max| VersionRange { min, max };
    let agreed = |a, b| {
        let ours = Claims {
            versions: a,
            ..ours()
        };
        let theirs = Claims {
            versions: b,
            ..theirs()
        };
        agree(&ours, &theirs).map(|agreed| agreed.version)
    };
    assert_eq!(agreed(range(1, 3), range(2, 5)), Ok(3));
    assert_eq!(agreed(range(2, 5), range(1, 3)), Ok(3));
    assert_eq!(agreed(range(4, 4), range(4, 4)), Ok(4));
    let refused = PeerIncompatible::ProtocolVersions {
        ours_min: 1,
        ours_max: 2,
        theirs_min: 3,
        theirs_max: 4,
    };
    assert_eq!(agreed(range(1, 2), range(3, 4)), Err(refused));
    assert!(agreed(range(1, 9), range(5, 4)).is_err(), "an empty range");
}

#[test]
fn a_difference_of_settings_is_named_with_both_values() {
    let difference = |a: &[(&str, &str)], b: &[(&str, &str)]| settings(a).difference(&settings(b));
    let named = |name: &str, ours: &str, theirs: &str| {
        Some(PeerIncompatible::Fingerprint {
            name: name.to_owned(),
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
        })
    };
    let base = [("groups", "1500"), ("lease", "9s")];
    assert_eq!(difference(&base, &base), None);
    let other = [("groups", "1501"), ("lease", "8s")];
    assert_eq!(difference(&base, &other), named("groups", "1500", "1501"));
    assert_eq!(difference(&base, &base[..1]), named("lease", "9s", ""));
    assert_eq!(difference(&base[..1], &base), named("lease", "", "9s"));
    // A setting that is there and empty isn't one that is missing.
    let empty = [("groups", "1500"), ("lease", "")];
    assert_eq!(difference(&base[..1], &empty), named("lease", "", ""));
}

#[test]
fn a_fingerprint_fits_a_hello_or_is_not_built() {
    let many =
        |count: usize| Fingerprint::new((0..count).map(|at| (format!("{at:064}"), "v".repeat(64))));
    let got = FINGERPRINT_ENTRIES_MAX + 1;
    assert_eq!(many(got), Err(FingerprintError::TooMany { got }));
    let text = "x".repeat(65);
    for pair in [("name", &*text), (&*text, "value")] {
        let text = text.clone();
        assert_eq!(
            Fingerprint::new([pair]),
            Err(FingerprintError::TooLong { text })
        );
    }
    let claims = Claims {
        fingerprint: many(FINGERPRINT_ENTRIES_MAX).unwrap(),
        cluster: cluster(&"c".repeat(63)),
        ..ours()
    };
    let answer = HelloAnswer {
        claims,
        version: 1,
        session: SessionId::new(9),
    };
    let body = encode_answer(&answer).freeze();
    assert!(body.len() <= HELLO_BODY_BYTES_MAX);
    assert_eq!(decode_answer(body), Ok(answer));
}

#[test]
fn keys_differ_by_session_label_lane_and_direction() {
    let context = |lane, dialler, acceptor, name: &str| KeyContext {
        cluster: cluster(name),
        lane,
        dialler: peer(dialler),
        acceptor: peer(acceptor),
    };
    let contexts = [
        context(Lane::Control, 1, 2, "dev"),
        context(Lane::Bulk, 1, 2, "dev"),
        context(Lane::Control, 2, 1, "dev"),
        context(Lane::Control, 1, 3, "dev"),
        context(Lane::Control, 1, 2, "dev2"),
    ];
    let mut drawn = Vec::new();
    for context in &contexts {
        for session in [1, 2] {
            let keys = SessionKeys::derive(context, |label, bytes| {
                let key = export(session, label, bytes);
                drawn.push(key);
                Ok::<_, ()>(key)
            });
            assert!(keys.is_ok());
        }
    }
    assert_eq!(drawn.len(), contexts.len() * 2 * KEY_LABELS.len());
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), contexts.len() * 2 * KEY_LABELS.len());
    let failed = SessionKeys::derive(&contexts[0], |_, _| Err::<[u8; KEY_BYTES], _>("no"));
    assert_eq!(failed.err(), Some("no"));
}

#[test]
fn the_context_reads_only_one_way() {
    // A cluster's name is of any length: without its length before it two contexts could be one.
    let context = KeyContext {
        cluster: cluster("dev"),
        lane: Lane::Bulk,
        dialler: peer(0x0102_0304),
        acceptor: peer(5),
    };
    assert_eq!(
        context.to_bytes(),
        b"\x03dev\x02\x01\x02\x03\x04\x00\x00\x00\x05"
    );
}

#[test]
fn every_cut_of_a_hello_is_malformed_at_its_place() {
    let body = encode_claims(&ours()).freeze();
    for cut in 0..body.len() {
        match decode_claims(body.slice(..cut)) {
            Err(PeerMisbehaved::MalformedHello { what, at }) => {
                assert_eq!(what, "hello");
                assert!(at <= cut);
            }
            other => unreachable!("cut at {cut}: {other:?}"),
        }
    }
    let mut longer = BytesMut::from(&body[..]);
    longer.put_u8(0);
    let (what, at) = ("hello", body.len());
    let refused = decode_claims(longer.freeze()).unwrap_err();
    assert_eq!(refused, PeerMisbehaved::MalformedHello { what, at });
}

#[test]
fn claims_that_no_session_could_work_under_are_malformed() {
    let changes: [fn(&mut Claims); 6] = [
        |claims| claims.limits.window_frames = 0,
        |claims| claims.limits.window_frames = CONTROL_WINDOW_FRAMES_MAX + 1,
        |claims| claims.limits.frame_items = 0,
        |claims| claims.limits.frame_bytes = 0,
        |claims| claims.limits.window_bytes = u64::from(claims.limits.frame_bytes) - 1,
        |claims| claims.fingerprint = Fingerprint([("a".repeat(65), String::new())].into()),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut claims = ours();
        change(&mut claims);
        let decoded = decode_claims(encode_claims(&claims).freeze());
        let malformed = matches!(decoded, Err(PeerMisbehaved::MalformedHello { .. }));
        assert!(malformed, "change {at}: {decoded:?}");
    }
}

#[test]
fn a_notice_reads_back_bounded_and_fit_for_a_log_line() {
    let notice = PeerNotice {
        code: CloseCode::WrongCluster,
        expected: "é".repeat(200),
        got: "line\nbreak\u{7f}".to_owned(),
    };
    let read = decode_notice(encode_notice(&notice).freeze()).unwrap();
    assert_eq!(read.code, CloseCode::WrongCluster);
    assert_eq!(read.expected, "é".repeat(REFUSAL_TEXT_BYTES_MAX / 2));
    assert_eq!(read.got, "line break ");
}

/// Runs a hello that must be refused; gives the refuser's reason and what the other side was told.
fn refused(change: impl FnOnce(&mut Pair)) -> (SessionEnd, PeerNotice) {
    let mut pair = Pair::new(LANE, TIMEOUTS);
    change(&mut pair);
    pair.dial();
    pair.transmit_all();
    pair.write(usize::MAX);
    let end = pair.read(usize::MAX).unwrap_err();
    let notice = end.notice().unwrap();
    let session = pair.inbound.as_mut().unwrap();
    let bytes = session.close_message(&notice).unwrap();
    assert!(
        session.close_message(&notice).is_none(),
        "a nonce used twice"
    );
    assert_eq!(session.poll_transmit(), Ok(None));
    pair.out.handle_bytes(pair.now, &bytes);
    let SessionEnd::RefusedByPeer(told) = pair.step().unwrap_err() else {
        unreachable!("a refusal ends the session as one")
    };
    assert_eq!(told, notice);
    (end, told)
}

#[test]
fn every_refusal_tells_both_sides_both_values() {
    type Case = (fn(&mut Pair), CloseCode, &'static str, &'static str);
    let record = NodeRecord {
        incarnation: theirs().incarnation,
        boot: Boot::new(5),
        life: Some(theirs().life),
        sync_number: 70,
        pinned: true,
    };
    let cases: [Case; 10] = [
        (
            |pair| pair.dialler.versions = VersionRange { min: 7, max: 9 },
            CloseCode::ProtocolVersions,
            "1 to 1",
            "7 to 9",
        ),
        (
            |pair| pair.dialler.to = peer(3),
            CloseCode::WrongNode,
            "2",
            "3",
        ),
        (
            |pair| pair.dialler.from = peer(3),
            CloseCode::WrongNode,
            "1",
            "3",
        ),
        (
            |pair| pair.dialler.cluster = cluster("prod"),
            CloseCode::WrongCluster,
            "dev",
            "prod",
        ),
        (
            |pair| pair.acceptor_judge = Authority::new(identity(2), [peer(3)]),
            CloseCode::UnknownPeer,
            "a peer of node 2",
            "node 1",
        ),
        (
            |pair| {
                let here = NodeIdentity {
                    cluster: cluster("prod"),
                    node: peer(2),
                };
                pair.acceptor_judge = Authority::new(here, [peer(1)]);
            },
            CloseCode::WrongCluster,
            "prod",
            "dev",
        ),
        (
            |pair| pair.dialler.fingerprint = settings(&[("groups", "1501"), ("lease", "9s")]),
            CloseCode::Fingerprint,
            "groups = 1500",
            "groups = 1501",
        ),
        (
            |pair| pair.dialler.boot = Boot::new(4),
            CloseCode::StaleBoot,
            "5",
            "4",
        ),
        (
            |pair| pair.dialler.life = LifeId::from_random(0xab),
            CloseCode::OtherLife,
            "0000000000000001",
            "00000000000000ab",
        ),
        (
            |pair| (pair.dialler.boot, pair.dialler.sync_number) = (Boot::new(6), 69),
            CloseCode::RolledBack,
            "70",
            "69",
        ),
    ];
    for (change, code, expected, got) in cases {
        let (end, told) = refused(|pair| {
            pair.dialler.boot = Boot::new(5);
            pair.dialler.sync_number = 70;
            pair.acceptor_judge.pin(peer(1), record);
            change(pair);
        });
        assert!(matches!(end, SessionEnd::PeerIncompatible(_)), "{end}");
        assert_eq!(
            (told.code, &*told.expected, &*told.got),
            (code, expected, got)
        );
        // Both operators read both values.
        for text in [end.to_string(), told.to_string()] {
            let values = [expected, got].map(|side| side.rsplit(' ').next().unwrap_or_default());
            assert!(values.iter().all(|value| text.contains(value)), "{text}");
        }
    }
    let wiped = Incarnation::new([9; 16]);
    let (_, told) = refused(|pair| {
        pair.acceptor_judge.pin(peer(1), record);
        pair.dialler.incarnation = wiped;
    });
    assert_eq!(told.code, CloseCode::UnknownIncarnation);
    assert_eq!(told.expected, record.incarnation.to_string());
    assert_eq!(told.got, wiped.to_string());
}

#[test]
fn the_dialler_holds_the_answer_to_the_same_rules() {
    let ended = |change: fn(&mut Pair)| {
        let mut pair = Pair::new(LANE, TIMEOUTS);
        change(&mut pair);
        pair.dial();
        pair.transmit_all();
        pair.write(usize::MAX);
        pair.read(usize::MAX).unwrap();
        pair.transmit_back_all();
        pair.write_back(usize::MAX);
        pair.read_back(usize::MAX).unwrap_err()
    };
    let (certified, claimed) = (peer(2), peer(3));
    // The acceptor's hello of another node than its certificate's; here the dialler is at fault
    // for nothing, so its own hello passes.
    let posing = ended(|pair| {
        pair.acceptor.from = peer(3);
        pair.dialler.to = peer(3);
    });
    assert_eq!(
        posing,
        PeerIncompatible::ClaimedNode { certified, claimed }.into()
    );
    let (known, got) = (Boot::new(3), Boot::new(1));
    let stale = ended(|pair| {
        let record = NodeRecord {
            incarnation: ours().incarnation,
            boot: Boot::new(3),
            life: None,
            sync_number: 0,
            pinned: true,
        };
        pair.dialler_judge.pin(peer(2), record);
    });
    assert_eq!(stale, PeerIncompatible::StaleBoot { known, got }.into());
}

#[test]
fn a_hello_proves_itself_on_its_own_tls_session_only() {
    // A proxy that ends TLS on both sides passes the bytes on; the exporters differ.
    let mut near = Pair::new(LANE, TIMEOUTS);
    near.dial();
    let hello = near.out.poll_transmit(near.now).unwrap().bytes;
    let mut far = Pair::new(LANE, TIMEOUTS);
    far.session = 100;
    far.dial();
    let session = far.inbound.as_mut().unwrap();
    session.handle_bytes(far.now, &hello);
    let end = session.step(far.now, &mut far.acceptor_judge).unwrap_err();
    let sequence = HELLO_SEQUENCE;
    assert_eq!(end, PeerMisbehaved::BadTag { sequence }.into());
    // Nothing was proven, so nothing is said under a key.
    assert_eq!(session.close_message(&end.notice().unwrap()), None);
    assert_eq!(far.acceptor_judge.record(peer(1)), None);

    // And back: the answer to another session's hello.
    near.write(usize::MAX);
    let mut other = Pair::new(LANE, TIMEOUTS);
    other.session = 200;
    other.dial();
    other.transmit_all();
    other.write(usize::MAX);
    other.read(usize::MAX).unwrap();
    other.transmit_back_all();
    let answer: Vec<u8> = other.back.unsent.drain(..).collect();
    near.out.handle_bytes(near.now, &answer);
    let sequence = ANSWER_SEQUENCE;
    assert_eq!(
        near.step().unwrap_err(),
        PeerMisbehaved::BadTag { sequence }.into()
    );
}

fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-z0-9é]{0,20}").unwrap()
}

prop_compose! {
    fn any_claims()(
        numbers in any::<[u64; 2]>(),
        life in 1..=u64::MAX,
        versions in any::<[u16; 2]>(),
        nodes in [1..=u32::MAX, 1..=u32::MAX],
        incarnation in any::<[u8; 16]>(),
        window_frames in 1..=CONTROL_WINDOW_FRAMES_MAX,
        frame_items in 1..=u16::MAX,
        frame_bytes in 1..=u32::MAX,
        more in any::<u32>(),
        name in "[a-zA-Z0-9._-]{1,63}",
        settings in proptest::collection::btree_map(text(), text(), 0..16),
    ) -> Claims {
        Claims {
            versions: VersionRange { min: versions[0], max: versions[1] },
            cluster: cluster(&name),
            from: peer(nodes[0]),
            to: peer(nodes[1]),
            incarnation: Incarnation::new(incarnation),
            boot: Boot::new(numbers[0]),
            life: LifeId::from_random(life),
            sync_number: numbers[1],
            limits: PeerLimits {
                window_frames,
                window_bytes: u64::from(frame_bytes) + u64::from(more),
                frame_bytes,
                frame_items,
            },
            fingerprint: Fingerprint(settings),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn claims_and_answers_read_back_as_they_were_written(
        claims in any_claims(), version in any::<u16>(), session in any::<u64>(),
    ) {
        prop_assert_eq!(decode_claims(encode_claims(&claims).freeze()), Ok(claims.clone()));
        let answer = HelloAnswer { claims, version, session: SessionId::new(session) };
        prop_assert_eq!(decode_answer(encode_answer(&answer).freeze()), Ok(answer));
    }

    #[test]
    fn decoders_take_any_bytes(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let body = Bytes::from(body);
        if let Ok(claims) = decode_claims(body.clone()) {
            prop_assert_eq!(decode_claims(encode_claims(&claims).freeze()), Ok(claims));
        }
        let _ = decode_answer(body.clone());
        let _ = decode_notice(body);
    }

    #[test]
    fn decoders_take_any_change_of_a_good_hello(
        claims in any_claims(), at in any::<usize>(), byte in any::<u8>(), cut in any::<usize>(),
    ) {
        let mut body = encode_claims(&claims);
        let length = body.len();
        body[at % length] = byte;
        body.truncate(length - cut % 4);
        let _ = decode_claims(body.clone().freeze());
        let _ = decode_answer(body.clone().freeze());
        let _ = decode_notice(body.freeze());
    }

    #[test]
    fn notices_read_back(code in any::<u16>(), expected in text(), got in text()) {
        let notice = PeerNotice { code: CloseCode::from_u16(code), expected, got };
        prop_assert_eq!(decode_notice(encode_notice(&notice).freeze()), Ok(notice));
    }
}

/// A peer whose settings were refused used to be remembered with its boot, which made the same
/// process, set right without a restart of its count, look stale.
#[test]
fn a_hello_that_is_refused_for_its_settings_leaves_no_record() {
    let mut pair = Pair::new(LANE, TIMEOUTS);
    pair.dialler.fingerprint = Fingerprint::new([("groups", "1501")]).unwrap();
    pair.dialler.boot = Boot::new(9);
    pair.dial();
    assert!(pair.transmit());
    pair.write(usize::MAX);
    assert!(pair.read(usize::MAX).is_err());
    assert_eq!(pair.acceptor_judge.record(peer(1)), None);
}
