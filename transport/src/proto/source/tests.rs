//! A host's source on the control lane: asked when a slot opens, for what should go then.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::{ControlSource, FrameSpace, PushRefused, Waiting};
use crate::budget::{Amount, BudgetLimits};
use crate::error::{ReserveRefused, Scope, Unit};
use crate::id::{Label, Lane};
use crate::limits::{CONTROL_BODY_BYTES_MAX, ITEM_PREFIX_BYTES};
use crate::proto::frame::Answer;
use crate::receipt::{Outcome, OutcomeKind, Receipt, Stage};
use crate::testing::pair::{PATIENT, Pair, ms};
use crate::testing::{LONG, ample};

/// A host whose newest round takes the place of the one that waits.
#[derive(Default)]
struct Rounds {
    newest: Mutex<Option<Bytes>>,
    asked: Mutex<u32>,
    receipts: Mutex<Vec<Receipt>>,
    refused: Mutex<Vec<PushRefused>>,
}

impl Rounds {
    fn set(&self, round: impl Into<Bytes>) {
        *self.newest.lock().unwrap() = Some(round.into());
    }

    fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }
}

impl ControlSource for Rounds {
    fn fill(&self, frame: &mut FrameSpace<'_>) -> Waiting {
        *self.asked.lock().unwrap() += 1;
        if let Some(round) = self.newest.lock().unwrap().take() {
            match frame.push(round, Label::default(), frame.now() + LONG) {
                Ok(receipt) => self.receipts.lock().unwrap().push(receipt),
                Err(refused) => self.refused.lock().unwrap().push(refused),
            }
        }
        Waiting::Nothing
    }
}

fn with_source(window_frames: u16, limits: BudgetLimits) -> (Pair, Arc<Rounds>) {
    let mut pair = Pair::with_budget(Lane::Control, PATIENT, limits);
    pair.dialler.limits.window_frames = window_frames;
    pair.connect();
    let rounds = Arc::new(Rounds::default());
    pair.out.set_source(rounds.clone());
    (pair, rounds)
}

/// What the acceptor's host was given in its last frame.
fn last_items(pair: &mut Pair) -> Vec<Bytes> {
    pair.write(usize::MAX);
    pair.read(usize::MAX).unwrap();
    match pair.delivered.last() {
        Some(crate::proto::inbound::InboundEvent::Frame(frame)) => frame.items().to_vec(),
        other => panic!("expected a frame, got {other:?}"),
    }
}

/// The host answers the frame with this sequence, and the dialler takes the reply.
fn answer(pair: &mut Pair, sequence: u64, answer: &'static str) {
    pair.answer(sequence, Answer::Taken(Bytes::from(answer)));
    assert!(pair.transmit_back());
    pair.write_back(usize::MAX);
    pair.fetch_back(usize::MAX);
    assert!(pair.step().unwrap());
}

#[test]
fn a_newer_round_takes_the_place_of_one_that_waits_for_a_slot() {
    let (mut pair, rounds) = with_source(1, ample());
    rounds.set("round 1");
    pair.out.on_source_ready();
    assert!(pair.transmit());
    assert_eq!(last_items(&mut pair), ["round 1"]);
    let asked = rounds.asked();
    for round in ["round 2", "round 3", "round 4"] {
        rounds.set(round);
        pair.out.on_source_ready();
        assert!(!pair.transmit(), "no slot is free");
    }
    assert_eq!(rounds.asked(), asked, "it is asked only with a slot free");
    answer(&mut pair, 1, "");
    assert!(pair.transmit());
    assert_eq!(
        last_items(&mut pair),
        ["round 4"],
        "the newest goes, the others never were items"
    );
    let snapshot = pair.account.snapshot();
    assert_eq!((snapshot.started, snapshot.live()), (2, 1));
    assert!(snapshot.is_exact());
}

#[test]
fn a_source_with_nothing_begins_no_frame_and_is_not_asked_again() {
    let (mut pair, rounds) = with_source(16, ample());
    pair.out.on_source_ready();
    for _ in 0..3 {
        assert!(!pair.transmit());
    }
    assert_eq!(rounds.asked(), 1);
}

#[test]
fn what_waits_goes_before_the_source_in_the_same_frame() {
    let (mut pair, rounds) = with_source(16, ample());
    rounds.set("round");
    pair.out.on_source_ready();
    let direct = pair.send("vote", LONG);
    assert!(pair.transmit());
    assert_eq!(last_items(&mut pair), ["vote", "round"]);
    answer(&mut pair, 1, "ok");
    let receipts = rounds.receipts.lock().unwrap();
    for receipt in receipts.iter().chain([&direct]) {
        assert_eq!(receipt.outcome(), Some(Outcome::Replied(Bytes::from("ok"))));
    }
}

#[test]
fn a_source_is_held_to_the_frame_and_to_the_budget() {
    let (mut pair, rounds) = with_source(16, ample());
    let largest = CONTROL_BODY_BYTES_MAX - ITEM_PREFIX_BYTES;
    rounds.set(vec![0; largest + 1]);
    pair.out.on_source_ready();
    assert!(!pair.transmit());
    let refused = rounds.refused.lock().unwrap().pop();
    assert_eq!(
        refused,
        Some(PushRefused::NoSpace {
            asked: largest + 1,
            left: largest
        })
    );

    let tight = BudgetLimits {
        peer: Amount::new(1, 1 << 20),
        ..ample()
    };
    let (mut pair, rounds) = with_source(16, tight);
    rounds.set("first");
    pair.out.on_source_ready();
    assert!(pair.transmit());
    rounds.set("second");
    pair.out.on_source_ready();
    assert!(!pair.transmit());
    let refused = rounds.refused.lock().unwrap().pop();
    let full = ReserveRefused::Full {
        scope: Scope::Peer,
        unit: Unit::Items,
    };
    assert_eq!(refused, Some(PushRefused::Reserve(full)));
    assert!(pair.account.snapshot().is_exact());
}

#[test]
fn a_session_that_ends_takes_what_its_source_had_begun() {
    let (mut pair, rounds) = with_source(16, ample());
    rounds.set("round");
    pair.out.on_source_ready();
    assert!(pair.transmit());
    pair.out
        .end_session(&std::io::ErrorKind::ConnectionReset.into());
    let outcome = rounds.receipts.lock().unwrap()[0].outcome();
    assert_eq!(
        outcome,
        Some(Outcome::SessionLost {
            stage: Stage::Writing
        })
    );
    assert_eq!(pair.account.snapshot().reserved(), Amount::default());
}

#[test]
fn an_item_is_superseded_only_until_its_frame_is_begun() {
    let (mut pair, _) = with_source(1, ample());
    let begun = pair.send("begun", LONG);
    assert!(pair.transmit());
    let waiting = pair.send("waiting", LONG);
    assert!(!begun.supersede(), "its frame is on its way");
    assert!(waiting.supersede());
    assert_eq!(waiting.outcome(), Some(Outcome::Superseded));
    assert!(!waiting.supersede(), "once");
    let snapshot = pair.account.snapshot();
    assert_eq!(snapshot.ended_by(OutcomeKind::Superseded), 1);
    assert!(snapshot.is_exact());
}

#[test]
fn times_and_flushes_are_counted_where_they_happen() {
    let (mut pair, _) = with_source(1, ample());
    drop(pair.send("urgent", LONG));
    assert!(pair.transmit());
    drop(pair.send("waits", LONG));
    assert!(!pair.transmit(), "no slot is free");
    pair.now += ms(40);
    pair.write(usize::MAX);
    pair.read(usize::MAX).unwrap();
    answer(&mut pair, 1, "");
    assert!(pair.transmit());
    let stats = pair.out.stats();
    assert_eq!((stats.flushes.urgent, stats.flushes.slot_freed), (1, 1));
    assert_eq!((stats.flushes.frame_full, stats.occupancy_sum), (0, 2));
    let times = pair.out.times();
    assert_eq!(times.queue_delay.read().count, 2);
    assert!((40_000..42_500).contains(&times.queue_delay.read().p99_micros));
    assert!((40_000..42_500).contains(&times.turnaround.read().p50_micros));
}
