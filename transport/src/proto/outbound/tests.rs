//! The dialling core: window, deadlines, stages and sessions in virtual time, joined to a real
//! accepting core; then each way a peer that holds the right keys can answer wrongly.

use super::*;
use crate::budget::Amount;
use crate::error::{AuthorityEnded, CloseCode, RefusalReason};
use crate::limits::{HEADER_BYTES, ITEM_PREFIX_BYTES, OUTBOX_DEAD_ITEMS_MAX, TAG_BYTES};
use crate::proto::fifo::Stamper;
use crate::proto::frame::ReplyForm;
use crate::proto::hello::{HelloAnswer, encode_answer, encode_notice};
use crate::proto::inbound::InboundEvent;
use crate::receipt::{OutcomeKind, Receipt};
use crate::testing::LONG;
use crate::testing::pair::{
    PATIENT, Pair, TIMEOUTS, frame_header, keys, message, ms, plain_header, reply_header,
};

const ALL: usize = usize::MAX;

fn taken(answer: &'static str) -> Answer {
    Answer::Taken(Bytes::from_static(answer.as_bytes()))
}

fn lost() -> SessionEnd {
    std::io::ErrorKind::ConnectionReset.into()
}

fn stages(receipts: &[Receipt]) -> Vec<Stage> {
    receipts.iter().map(Receipt::stage).collect()
}

/// Checks T10 and that nothing is left.
fn assert_empty(pair: &Pair) {
    let snapshot = pair.account.snapshot();
    assert!(snapshot.is_exact());
    assert_eq!(snapshot.reserved(), Amount::default());
    assert_eq!(snapshot.live(), 0);
    assert!(pair.out.is_idle());
}

/// Sixteen frames outstanding and seen by the peer, and more items waiting.
fn full_window(waiting: usize) -> (Pair, Vec<Receipt>) {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let mut receipts: Vec<_> = (0..16).map(|_| pair.send_frame("beat")).collect();
    receipts.extend((0..waiting).map(|_| pair.send("wait", LONG)));
    pair.write(ALL);
    pair.read(ALL).unwrap();
    assert_eq!(pair.frames().len(), 16);
    (pair, receipts)
}

#[test]
fn the_seventeenth_frame_waits_for_a_reply_however_long_that_takes() {
    let (mut pair, receipts) = full_window(1);
    for _ in 0..1000 {
        pair.now += Duration::from_secs(900);
        pair.out.handle_timeout(pair.now).unwrap();
        assert_eq!(pair.transmit_all(), 0);
        pair.settle();
    }
    assert_eq!(receipts[16].stage(), Stage::Queued);
    assert_eq!(pair.frames().len(), 16);
    pair.answer(1, taken("ok"));
    pair.settle();
    assert_eq!(receipts[16].stage(), Stage::Written);
    assert_eq!(pair.frames()[16], (17, vec![Bytes::from_static(b"wait")]));
}

#[test]
fn the_window_is_the_lower_of_both_hellos() {
    for (ours, theirs, window) in [(16, 1, 1), (5, 16, 5), (256, 256, 256)] {
        let mut pair = Pair::new(Lane::Control, PATIENT);
        pair.dialler.limits.window_frames = ours;
        pair.acceptor.limits.window_frames = theirs;
        pair.connect();
        for _ in 0..window {
            let _receipt = pair.send_frame("beat");
        }
        let _receipt = pair.send("beat", LONG);
        assert!(!pair.transmit());
        assert_eq!(pair.out.outstanding_frames(), window);
    }
}

#[test]
fn each_reply_lets_exactly_one_frame_out_before_the_next_is_looked_at() {
    // Items are as large as a frame, so that each waits for a frame of its own. First the replies
    // come one by one, then all sixteen in one read.
    for together in [false, true] {
        let mut pair = Pair::new(Lane::Control, PATIENT);
        pair.dialler.limits.frame_bytes = 8;
        pair.connect();
        let _receipts: Vec<_> = (0..48).map(|_| pair.send("beat", LONG)).collect();
        assert_eq!(pair.transmit_all(), 16);
        pair.write(ALL);
        pair.read(ALL).unwrap();
        for frame in 1..=16 {
            pair.answer(frame, taken("ok"));
        }
        assert_eq!(pair.transmit_back_all(), 16);
        pair.write_back(ALL);
        let each = pair.back.socket.len() / 16;
        if together {
            pair.fetch_back(ALL);
        }
        for reply in 1..=16 {
            if !together {
                assert!(!pair.step().unwrap());
                pair.fetch_back(each);
            }
            assert!(pair.step().unwrap());
            assert_eq!(pair.out.outstanding_frames(), 15);
            assert!(pair.transmit());
            assert!(!pair.transmit(), "reply {reply} let two frames out");
            assert_eq!(pair.out.stats().frames_begun, 16 + reply);
            assert_eq!(pair.out.stats().frames_answered, reply);
        }
        assert!(!pair.step().unwrap());
    }
}

#[test]
fn replies_taken_without_turns_still_free_one_slot_each() {
    let (mut pair, _receipts) = full_window(0);
    for frame in 1..=3 {
        pair.answer(frame, taken("ok"));
    }
    pair.transmit_back_all();
    pair.write_back(ALL);
    pair.fetch_back(ALL);
    while pair.step().unwrap() {}
    assert_eq!(pair.out.outstanding_frames(), 13);
}

#[test]
fn what_waits_for_a_slot_leaves_together_in_the_next_frame() {
    let (mut pair, receipts) = full_window(5);
    pair.answer(1, taken("ok"));
    pair.settle();
    let (sequence, items) = pair.frames().pop().unwrap();
    assert_eq!((sequence, items.len()), (17, 5));
    assert_eq!(stages(&receipts[16..]), [Stage::Written; 5]);
    // No timer waits for more: with a slot free the next item goes at once, alone.
    pair.answer(2, taken("ok"));
    pair.settle();
    let _receipt = pair.send_frame("alone");
}

#[test]
fn a_frame_holds_no_more_than_both_sides_agreed_on() {
    let mut pair = Pair::new(Lane::Control, PATIENT);
    pair.acceptor.limits.frame_bytes = 30;
    pair.dialler.limits.frame_items = 3;
    pair.connect();
    let payloads = [10, 10, 2, 1, 1, 1, 1, 26];
    let _receipts: Vec<_> = payloads
        .map(|bytes| pair.send(vec![7; bytes], LONG))
        .into_iter()
        .collect();
    pair.settle();
    let frames: Vec<Vec<usize>> = pair
        .frames()
        .iter()
        .map(|(_, items)| items.iter().map(Bytes::len).collect())
        .collect();
    let expected: [&[usize]; 4] = [&[10, 10], &[2, 1, 1], &[1, 1], &[26]];
    assert_eq!(frames, expected);
}

#[test]
fn an_item_larger_than_the_agreed_frame_is_refused_and_delays_nobody() {
    let mut pair = Pair::new(Lane::Control, PATIENT);
    pair.acceptor.limits.frame_bytes = 30;
    pair.connect();
    let large = pair.send(vec![7; 27], LONG);
    let fits = pair.send(vec![7; 26], LONG);
    pair.settle();
    let refused = Outcome::Refused(RefusalReason::TooLarge);
    assert!(refused.is_proven_without_effect());
    assert_eq!(large.outcome(), Some(refused));
    assert_eq!(large.stage(), Stage::Queued);
    assert_eq!(fits.stage(), Stage::Written);
    assert_eq!(pair.frames().len(), 1);
    assert_eq!(pair.frames()[0].0, 1, "no number was spent on it");
    assert_eq!(pair.out.timers.next(), Some(pair.now + LONG));
}

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
fn the_oldest_unanswered_frame_ends_a_control_session() {
    let mut pair = Pair::up(Lane::Control, TIMEOUTS);
    let began = pair.now;
    let first = pair.send_frame("first");
    pair.now += ms(2000);
    let second = pair.send_frame("second");
    pair.write(ALL);
    pair.read(ALL).unwrap();
    assert_eq!(pair.out.poll_timeout(), Some(began + TIMEOUTS.reply));
    pair.now = began + TIMEOUTS.reply - ms(1);
    assert_eq!(pair.out.handle_timeout(pair.now), Ok(()));
    // An answer to the oldest hands the rule on to the next, whose age is its own: a peer that
    // answers one frame every 2.9 s isn't healthy (safety 18).
    pair.answer(1, taken("ok"));
    pair.settle();
    assert!(first.outcome().is_some());
    let due = began + ms(2000) + TIMEOUTS.reply;
    assert_eq!(pair.out.poll_timeout(), Some(due));
    pair.now = due;
    let (oldest, limit) = (Sequence::new(2), TIMEOUTS.reply);
    let end = pair.out.handle_timeout(pair.now).unwrap_err();
    assert_eq!(end, TimedOut::Reply { oldest, limit }.into());
    pair.lose(&end);
    let stage = Stage::Written;
    assert_eq!(second.outcome(), Some(Outcome::SessionLost { stage }));
    assert_empty(&pair);
}

#[test]
fn an_expired_frame_still_counts_as_the_oldest() {
    let mut pair = Pair::up(Lane::Control, TIMEOUTS);
    let _receipt = pair.send("item", ms(10));
    assert!(pair.transmit());
    pair.now += TIMEOUTS.reply;
    let end = pair.out.handle_timeout(pair.now).unwrap_err();
    assert!(matches!(end, SessionEnd::TimedOut(TimedOut::Reply { .. })));
}

#[test]
fn a_bulk_session_ends_only_when_nothing_at_all_is_answered() {
    let mut pair = Pair::up(Lane::Bulk, TIMEOUTS);
    // Idle for long: the stall counts from the first byte outstanding.
    pair.now += TIMEOUTS.stall * 3;
    assert_eq!(pair.out.poll_timeout(), None);
    let _receipts: Vec<_> = (0..4).map(|_| pair.send_frame("chunk")).collect();
    pair.write(ALL);
    pair.read(ALL).unwrap();
    // One answer every 9 s: the fourth frame is 27 s old and nothing ends.
    for frame in 1..=3 {
        pair.now += TIMEOUTS.stall - ms(1000);
        assert_eq!(pair.out.handle_timeout(pair.now), Ok(()));
        pair.answer(frame, taken("ok"));
        pair.settle();
    }
    let due = pair.now + TIMEOUTS.stall;
    assert_eq!(pair.out.poll_timeout(), Some(due));
    assert_eq!(pair.out.handle_timeout(due - ms(1)), Ok(()));
    let (oldest, limit) = (Sequence::new(4), TIMEOUTS.stall);
    let end = pair.out.handle_timeout(due).unwrap_err();
    assert_eq!(end, TimedOut::BulkStall { oldest, limit }.into());
}

#[test]
fn an_unanswered_hello_ends_its_session() {
    let mut pair = Pair::new(Lane::Bulk, TIMEOUTS);
    let waits = pair.send("waits", LONG);
    pair.dial();
    pair.transmit_all();
    let due = pair.now + TIMEOUTS.hello;
    assert_eq!(pair.out.poll_timeout(), Some(due));
    assert_eq!(pair.out.handle_timeout(due - ms(1)), Ok(()));
    let limit = TIMEOUTS.hello;
    let end = pair.out.handle_timeout(due).unwrap_err();
    assert_eq!(end, TimedOut::Hello { limit }.into());
    pair.lose(&end);
    assert_eq!((waits.stage(), waits.outcome()), (Stage::Queued, None));
}

#[test]
fn nothing_is_begun_before_the_hello_is_answered() {
    let mut pair = Pair::new(Lane::Control, PATIENT);
    let waits = pair.send("waits", LONG);
    assert!(!pair.transmit());
    pair.dial();
    assert_eq!(pair.transmit_all(), 1, "the hello alone");
    assert_eq!(waits.stage(), Stage::Queued);
    assert!(!pair.out.is_up());
}

#[test]
fn the_bulk_window_is_in_bytes_of_bodies() {
    let mut pair = Pair::new(Lane::Bulk, PATIENT);
    pair.acceptor.limits.window_bytes = 1000;
    pair.acceptor.limits.frame_bytes = 500;
    pair.connect();
    // Bodies of 400 bytes: two fit, the third doesn't, though a smaller one would.
    let receipts: Vec<_> = (0..3).map(|_| pair.send(vec![7; 396], LONG)).collect();
    let small = pair.send(vec![7; 96], LONG);
    assert_eq!(pair.transmit_all(), 2);
    pair.write(ALL);
    pair.read(ALL).unwrap();
    let written = [Stage::Written, Stage::Written, Stage::Queued];
    assert_eq!(stages(&receipts), written);
    assert_eq!(small.stage(), Stage::Queued, "nobody overtakes on a lane");
    pair.answer(1, taken(""));
    pair.settle();
    assert_eq!(receipts[2].stage(), Stage::Written);
    assert_eq!(small.stage(), Stage::Written);
    assert_eq!(pair.frames().len(), 3, "both in one frame of 500");
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
fn what_waits_survives_a_session_and_what_was_begun_ends_with_it() {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let written = pair.send_frame("written");
    pair.write(ALL);
    let begun = pair.send_frame("begun");
    pair.write(10);
    let waits = pair.send("waits", LONG);
    pair.lose(&lost());
    let lost = |stage| Some(Outcome::SessionLost { stage });
    assert_eq!(written.outcome(), lost(Stage::Written));
    assert_eq!(begun.outcome(), lost(Stage::Writing));
    assert_eq!((waits.outcome(), waits.stage()), (None, Stage::Queued));
    pair.connect();
    pair.settle();
    assert_eq!(pair.frames(), [(1, vec![Bytes::from_static(b"waits")])]);
    pair.answer(1, taken("ok"));
    pair.settle();
    assert_eq!(
        waits.outcome().map(|o| o.kind()),
        Some(OutcomeKind::Replied)
    );
    assert_empty(&pair);
}

#[test]
fn no_key_and_nonce_is_used_twice_over_reconnects() {
    // `Pair` records each key and number that tags a message and fails at the second use.
    let mut pair = Pair::new(Lane::Control, PATIENT);
    for round in 0..20 {
        pair.connect();
        for _ in 0..5 {
            let _receipt = pair.send_frame("item");
            let _receipt = pair.send("waits", ms(1));
        }
        pair.write(ALL);
        pair.read(ALL).unwrap();
        for frame in 1..=round % 5 {
            pair.answer(frame, taken("ok"));
        }
        pair.now += ms(1);
        pair.transmit_back_all();
        pair.write_back(ALL);
        pair.read_back(ALL).unwrap();
        pair.lose(&lost());
    }
    // Hello and answer, five frames or more, and the replies of each round.
    assert!(pair.tagged() >= 20 * 7 + 40, "{}", pair.tagged());
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

#[test]
fn a_session_ends_before_its_numbers_do() {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let key = keys(1, Lane::Control).frame;
    let session = pair.out.session.as_mut().unwrap();
    session.frames = Stamper::new(key, Sequence::new(u64::MAX));
    let last = pair.send_frame("last");
    let waits = pair.send("waits", LONG);
    assert!(!pair.transmit());
    let end = pair.step().unwrap_err();
    assert_eq!(end, SessionEnd::SequenceExhausted);
    assert!(pair.out.close_message(&end.notice().unwrap()).is_none());
    pair.lose(&end);
    let stage = Stage::Writing;
    assert_eq!(last.outcome(), Some(Outcome::SessionLost { stage }));
    pair.connect();
    pair.settle();
    assert_eq!(waits.stage(), Stage::Written);
}

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
    for kind in [Kind::HelloAnswer, Kind::Refusal, Kind::Confirm] {
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
