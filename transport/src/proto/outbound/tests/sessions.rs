//! How long a session lives, and what outlives it.

use super::*;

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
