//! What becomes of each item: its stages, its one end, and what an end leaves behind.

use super::*;

#[test]
fn an_expired_frame_keeps_its_slot_until_its_reply() {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let mut receipts = Vec::new();
    for _ in 0..16 {
        receipts.push(pair.send("beat", ms(100)));
        assert!(pair.transmit());
    }
    pair.write(ALL);
    pair.read(ALL).unwrap();
    pair.now += ms(100);
    pair.out.handle_timeout(pair.now).unwrap();
    let stage = Stage::Written;
    for receipt in &receipts {
        assert_eq!(receipt.outcome(), Some(Outcome::Expired { stage }));
    }
    let next = pair.send("next", LONG);
    assert_eq!(pair.transmit_all(), 0);
    assert_eq!(pair.account.snapshot().outstanding, Amount::default());
    assert_eq!(pair.out.outstanding_frames(), 16);
    pair.answer(1, taken("ok"));
    pair.settle();
    assert_eq!(next.stage(), Stage::Written);
    assert_eq!(pair.out.outstanding_frames(), 16);
    assert_eq!(receipts[0].outcome(), Some(Outcome::Expired { stage }));
}

#[test]
fn past_deadline_items_are_shed_before_the_write() {
    let (mut pair, _window) = full_window(0);
    let soon = pair.send("soon", ms(50));
    let late = pair.send("late", LONG);
    pair.now += ms(50);
    pair.answer(1, taken("ok"));
    pair.settle();
    let stage = Stage::Queued;
    assert_eq!(soon.outcome(), Some(Outcome::Expired { stage }));
    assert_eq!(late.stage(), Stage::Written);
    assert_eq!(pair.frames()[16], (17, vec![Bytes::from_static(b"late")]));
}

#[test]
fn a_lane_that_is_asked_to_transmit_sheds_first() {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let soon = pair.send("soon", ms(50));
    assert_eq!(pair.out.poll_timeout(), Some(pair.now + ms(50)));
    pair.now += ms(50);
    assert!(!pair.transmit());
    let stage = Stage::Queued;
    assert_eq!(soon.outcome(), Some(Outcome::Expired { stage }));
    assert_eq!(pair.out.stats().frames_begun, 0);
    assert_empty(&pair);
}

#[test]
fn receipts_are_written_exactly_when_the_socket_takes_the_last_byte() {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let (first, second) = (pair.send_frame("first"), pair.send_frame("second"));
    let waits = pair.send("waits", LONG);
    let bytes = HEADER_BYTES + ITEM_PREFIX_BYTES + "first".len() + TAG_BYTES;
    for at in 0..bytes {
        assert_eq!(first.stage(), Stage::Writing, "byte {at} of {bytes}");
        pair.write(1);
    }
    assert_eq!(stages(&[first, second]), [Stage::Written, Stage::Writing]);
    assert_eq!(waits.stage(), Stage::Queued);
    let snapshot = pair.account.snapshot();
    assert_eq!(snapshot.outstanding, Amount::new(1, 5));
    assert_eq!(snapshot.writing, Amount::new(1, 6));
    assert_eq!(snapshot.queued, Amount::new(1, 5));
}

#[test]
fn a_full_socket_leaves_frames_writing_until_the_peer_reads() {
    let mut pair = Pair::new(Lane::Bulk, PATIENT);
    pair.capacity = 1000;
    pair.connect();
    let receipts: Vec<_> = (0..3).map(|_| pair.send_frame(vec![7; 600])).collect();
    pair.write(ALL);
    assert_eq!(
        stages(&receipts),
        [Stage::Written, Stage::Writing, Stage::Writing]
    );
    pair.now += Duration::from_secs(3600);
    pair.out.handle_timeout(pair.now).unwrap();
    pair.write(ALL);
    assert_eq!(receipts[1].stage(), Stage::Writing);
    pair.read(500).unwrap();
    pair.write(ALL);
    assert_eq!(
        stages(&receipts),
        [Stage::Written, Stage::Written, Stage::Writing]
    );
}

/// Every way in which a begun or waiting item ends early, and the outcome at a stage.
#[test]
fn every_early_end_is_reached_at_every_stage() {
    type Ender = fn(&mut Pair, &Receipt);
    type Case = (Ender, fn(Stage) -> Outcome);
    let cases: [Case; 6] = [
        (
            |pair, _| {
                pair.now += ms(500);
                pair.out.handle_timeout(pair.now).unwrap();
            },
            |stage| Outcome::Expired { stage },
        ),
        (
            |_, receipt| assert!(receipt.revoke()),
            |stage| Outcome::Revoked { stage },
        ),
        (
            |pair, _| assert_eq!(pair.out.revoke(Label::new(7)), 1),
            |stage| Outcome::Revoked { stage },
        ),
        (
            |pair, _| pair.lose(&AuthorityEnded::Revoked.into()),
            |stage| Outcome::Revoked { stage },
        ),
        (
            |pair, _| pair.lose(&SessionEnd::ShutDown),
            |stage| Outcome::ShutDown { stage },
        ),
        (
            |pair, _| pair.lose(&lost()),
            |stage| Outcome::SessionLost { stage },
        ),
    ];
    for (at, (end, outcome)) in cases.into_iter().enumerate() {
        for stage in [Stage::Queued, Stage::Writing, Stage::Written] {
            let mut pair = Pair::up(Lane::Control, PATIENT);
            let receipt = pair.send_labelled("item", 7, ms(500));
            if stage >= Stage::Writing {
                assert!(pair.transmit());
            }
            if stage >= Stage::Written {
                pair.write(ALL);
            }
            end(&mut pair, &receipt);
            let survives =
                stage == Stage::Queued && outcome(stage).kind() == OutcomeKind::SessionLost;
            let expected = (!survives).then(|| outcome(stage));
            assert_eq!(receipt.outcome(), expected, "case {at}");
            if survives {
                assert_eq!(pair.account.snapshot().queued, Amount::new(1, 4));
                pair.connect();
                pair.settle();
                assert_eq!(receipt.stage(), Stage::Written);
                continue;
            }
            let snapshot = pair.account.snapshot();
            assert!(snapshot.is_exact());
            assert_eq!(snapshot.reserved(), Amount::default());
            assert_eq!(snapshot.ended_by(outcome(stage).kind()), 1);
            let begun = stage != Stage::Queued && pair.out.is_up();
            assert_eq!(pair.out.outstanding_frames(), usize::from(begun));
        }
    }
}

#[test]
fn answers_reach_the_receipts_they_are_for() {
    let mut pair = Pair::up(Lane::Control, TIMEOUTS);
    let all = [pair.send("a", LONG), pair.send("b", LONG)];
    pair.settle();
    pair.answer(1, taken("both"));
    pair.settle();
    let reply = |text: &'static str| Some(Outcome::Replied(Bytes::from_static(text.as_bytes())));
    assert_eq!(
        all.map(|receipt| receipt.outcome()),
        [reply("both"), reply("both")]
    );

    let all = [
        pair.send("a", LONG),
        pair.send("b", LONG),
        pair.send("c", LONG),
    ];
    pair.settle();
    let refused = RefusalReason::WrongDestination;
    let verdicts = vec![Ok("one".into()), Err(refused), Ok(Bytes::new())];
    pair.answer(2, Answer::PerItem(verdicts));
    pair.settle();
    assert_eq!(
        all.map(|receipt| receipt.outcome()),
        [reply("one"), Some(Outcome::Refused(refused)), reply("")]
    );

    let one = pair.send("a", LONG);
    pair.settle();
    pair.answer(3, Answer::Refused(RefusalReason::Busy));
    pair.settle();
    let busy = Some(Outcome::Refused(RefusalReason::Busy));
    assert_eq!(one.outcome(), busy);
    assert_empty(&pair);
    assert_eq!(pair.account.snapshot().started, 6);
}

#[test]
fn a_late_frame_comes_back_refused() {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let receipt = pair.send("item", ms(50));
    assert!(pair.transmit());
    pair.write(ALL);
    // The acceptor reads its head in time and its end too late.
    pair.read(1).unwrap();
    pair.now += ms(51);
    pair.read(ALL).unwrap();
    assert!(matches!(pair.delivered.last(), Some(InboundEvent::Late(_))));
    pair.settle();
    assert_eq!(pair.out.outstanding_frames(), 0);
    // Its own deadline came first here.
    let stage = Stage::Written;
    assert_eq!(receipt.outcome(), Some(Outcome::Expired { stage }));
    assert_empty(&pair);
}

#[test]
fn a_label_revokes_what_waits_and_what_is_out_and_nothing_else() {
    let (mut pair, _window) = full_window(0);
    let mut labelled = |label| pair.send_labelled("item", label, LONG);
    let (one, other) = (labelled(1), labelled(2));
    pair.answer(1, taken("ok"));
    pair.settle();
    assert_eq!(one.stage(), Stage::Written);
    let (waits, stays) = (
        pair.send_labelled("item", 1, LONG),
        pair.send_labelled("item", 2, LONG),
    );
    assert_eq!(pair.out.revoke(Label::new(1)), 2);
    assert_eq!(pair.out.revoke(Label::new(1)), 0);
    let revoked = |stage| Some(Outcome::Revoked { stage });
    assert_eq!(one.outcome(), revoked(Stage::Written));
    assert_eq!(waits.outcome(), revoked(Stage::Queued));
    assert_eq!((other.outcome(), stays.outcome()), (None, None));
    // The frame that carried both keeps its slot, and its reply still serves the other.
    assert_eq!(pair.out.outstanding_frames(), 16);
    for frame in 2..=17 {
        pair.answer(frame, taken("ok"));
    }
    pair.settle();
    assert_eq!(
        other.outcome().map(|o| o.kind()),
        Some(OutcomeKind::Replied)
    );
    assert_eq!(stays.stage(), Stage::Written);
    assert_eq!(one.outcome(), revoked(Stage::Written));
}

#[test]
fn a_shed_item_leaves_no_gap_in_the_numbers() {
    let (mut pair, _window) = full_window(0);
    let shed = pair.send("shed", ms(1));
    let revoked = pair.send("revoked", LONG);
    let _kept = pair.send("kept", LONG);
    pair.now += ms(1);
    revoked.revoke();
    pair.answer(1, taken("ok"));
    pair.settle();
    assert_eq!(pair.frames()[16], (17, vec![Bytes::from_static(b"kept")]));
    assert!(shed.outcome().is_some());
}

#[test]
fn a_lane_whose_waiting_items_have_all_ended_is_idle() {
    // Ended items are swept only once they are many; a lane that waited to be idle before it
    // closed waited for ever.
    let mut pair = Pair::new(Lane::Control, PATIENT);
    let expired = pair.send("item", ms(1));
    let revoked = pair.send("item", LONG);
    assert!(!pair.out.is_idle());
    pair.now += ms(1);
    pair.out.handle_timeout(pair.now).unwrap();
    revoked.revoke();
    assert!(expired.outcome().is_some());
    assert_empty(&pair);
    let _waits = pair.send("item", LONG);
    assert!(!pair.out.is_idle());
    pair.lose(&SessionEnd::ShutDown);
    assert_empty(&pair);
}

#[test]
fn ended_items_do_not_pile_up_while_the_peer_is_away() {
    let mut pair = Pair::new(Lane::Control, PATIENT);
    for round in 0..2000 {
        let receipt = pair.send("item", LONG);
        let live = pair.account.snapshot().queued.items;
        let most = usize::try_from(live).unwrap() * 2 + OUTBOX_DEAD_ITEMS_MAX;
        assert!(pair.out.outbox.len() <= most, "{}", pair.out.outbox.len());
        if round % 4 != 0 {
            receipt.revoke();
        }
    }
}
