//! The control window and the bulk one: what leaves when, and what each reply lets out.

use super::*;

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
fn nothing_is_begun_before_the_hello_is_answered() {
    let mut pair = Pair::new(Lane::Control, PATIENT);
    let waits = pair.send("waits", LONG);
    assert!(!pair.transmit());
    pair.dial();
    assert_eq!(pair.transmit_all(), 1, "the hello alone");
    assert_eq!(waits.stage(), Stage::Queued);
    assert!(!pair.out.is_up());
}
