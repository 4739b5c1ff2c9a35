//! One item and its receipt, alone: stages, outcomes, and that the first to end it is the only one.

use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;

use super::*;
use crate::budget::{Amount, Budget};
use crate::testing::{LONG, Woken, ample, item, poll, start};

fn account() -> LaneAccount {
    let [control, _] = Budget::new(ample()).open_peer();
    control
}

/// Brings a queued item to a stage.
fn bring_to(item: &Item, stage: Stage) {
    if stage >= Stage::Writing {
        assert!(item.begin_writing().is_some());
    }
    if stage >= Stage::Written {
        item.on_written();
    }
}

const STAGES: [Stage; 3] = [Stage::Queued, Stage::Writing, Stage::Written];

type Ender = fn(&Item, &Receipt) -> bool;
type OutcomeAt = fn(Stage) -> Outcome;

/// Everything that ends an item, and the outcome that it would have at a stage.
fn enders() -> Vec<(Ender, OutcomeAt)> {
    vec![
        (
            |item, _| item.end(|_| Outcome::Replied(Bytes::from_static(b"ok"))),
            |_| Outcome::Replied(Bytes::from_static(b"ok")),
        ),
        (
            |item, _| item.end(|_| Outcome::Refused(RefusalReason::Busy)),
            |_| Outcome::Refused(RefusalReason::Busy),
        ),
        (
            |item, _| item.end(|stage| Outcome::Expired { stage }),
            |stage| Outcome::Expired { stage },
        ),
        (
            |_, receipt| receipt.revoke(),
            |stage| Outcome::Revoked { stage },
        ),
        (
            |item, _| item.end(|stage| Outcome::SessionLost { stage }),
            |stage| Outcome::SessionLost { stage },
        ),
        (
            |item, _| item.end(|_| Outcome::Superseded),
            |_| Outcome::Superseded,
        ),
        (
            |item, _| item.end(|stage| Outcome::ShutDown { stage }),
            |stage| Outcome::ShutDown { stage },
        ),
    ]
}

#[test]
fn of_two_enders_the_first_wins_in_either_order_at_every_stage() {
    for stage in STAGES {
        for (first, outcome) in enders() {
            for (second, _) in enders() {
                let account = account();
                let (item, receipt) = item(&account, "payload", 0, start() + LONG);
                bring_to(&item, stage);
                assert!(first(&item, &receipt));
                assert!(!second(&item, &receipt));
                assert_eq!(receipt.outcome(), Some(outcome(stage)));
                assert_eq!(receipt.stage(), stage);
                let snapshot = account.snapshot();
                assert_eq!(snapshot.reserved(), Amount::default());
                assert_eq!(snapshot.ended_by(outcome(stage).kind()), 1);
                assert_eq!(snapshot.ended.iter().sum::<u64>(), 1);
                assert!(snapshot.is_exact());
            }
        }
    }
}

#[test]
fn an_ended_item_moves_no_further() {
    for stage in STAGES {
        let account = account();
        let (item, receipt) = item(&account, "payload", 0, start() + LONG);
        bring_to(&item, stage);
        assert!(receipt.revoke());
        assert_eq!(item.begin_writing(), None);
        item.on_written();
        assert_eq!(receipt.stage(), stage);
        assert_eq!(account.snapshot().reserved(), Amount::default());
    }
}

#[test]
fn only_what_was_not_begun_is_superseded() {
    for stage in STAGES {
        let (item, receipt) = item(&account(), "payload", 0, start() + LONG);
        bring_to(&item, stage);
        let expected = (stage == Stage::Queued).then_some(Outcome::Superseded);
        assert_eq!(item.supersede(), expected.is_some());
        assert_eq!(receipt.outcome(), expected);
        assert!(!item.supersede());
    }
}

#[test]
fn stages_come_in_order_and_each_once() {
    let account = account();
    let (item, receipt) = item(&account, "payload", 0, start() + LONG);
    item.on_written();
    assert_eq!(receipt.stage(), Stage::Queued);
    assert_eq!(item.begin_writing().as_deref(), Some(&b"payload"[..]));
    assert_eq!(item.begin_writing(), None);
    assert_eq!(receipt.stage(), Stage::Writing);
    item.on_written();
    assert_eq!(receipt.stage(), Stage::Written);
    assert_eq!(item.begin_writing(), None);
    assert_eq!(receipt.outcome(), None);
}

#[test]
fn only_what_was_never_wholly_written_or_was_refused_is_proven_without_effect() {
    for stage in STAGES {
        let unwritten = stage != Stage::Written;
        for outcome in [
            Outcome::Expired { stage },
            Outcome::Revoked { stage },
            Outcome::SessionLost { stage },
            Outcome::ShutDown { stage },
        ] {
            assert_eq!(outcome.is_proven_without_effect(), unwritten, "{outcome:?}");
        }
    }
    assert!(!Outcome::Replied(Bytes::new()).is_proven_without_effect());
    assert!(Outcome::Refused(RefusalReason::Busy).is_proven_without_effect());
    assert!(Outcome::Superseded.is_proven_without_effect());
}

#[test]
fn every_kind_is_at_its_own_number() {
    for (at, kind) in OutcomeKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, at);
    }
    let kinds: Vec<_> = enders()
        .into_iter()
        .map(|(_, outcome)| outcome(Stage::Queued).kind())
        .collect();
    assert_eq!(kinds, OutcomeKind::ALL);
}

#[test]
fn the_task_is_woken_once_at_the_end_and_not_before() {
    let (item, mut receipt) = item(&account(), "payload", 0, start() + LONG);
    let woken = Woken::new();
    assert!(poll(&mut receipt, &woken.clone().into()).is_pending());
    bring_to(&item, Stage::Written);
    assert_eq!(woken.count(), 0);
    assert!(item.end(|_| Outcome::Superseded));
    assert!(!item.end(|_| Outcome::Superseded));
    assert_eq!(woken.count(), 1);
    for _ in 0..2 {
        let outcome = poll(&mut receipt, Waker::noop());
        assert_eq!(outcome, Poll::Ready(Outcome::Superseded));
    }
}

#[test]
fn the_latest_waker_is_the_one_that_is_woken() {
    let (item, mut receipt) = item(&account(), "payload", 0, start() + LONG);
    let (old, new) = (Woken::new(), Woken::new());
    assert!(poll(&mut receipt, &old.clone().into()).is_pending());
    assert!(poll(&mut receipt, &new.clone().into()).is_pending());
    item.end(|_| Outcome::Superseded);
    assert_eq!((old.count(), new.count()), (0, 1));
}

#[test]
fn a_dropped_receipt_lets_its_item_run_on() {
    let account = account();
    let (item, receipt) = item(&account, "payload", 0, start() + LONG);
    drop(receipt);
    bring_to(&item, Stage::Written);
    assert_eq!(account.snapshot().outstanding, Amount::new(1, 7));
    assert!(item.end(|_| Outcome::Replied(Bytes::new())));
    assert_eq!(account.snapshot().reserved(), Amount::default());
}

#[test]
fn the_payload_is_gone_once_the_item_is_no_longer_queued() {
    let freed = |payload: &Bytes| payload.is_unique();
    for (stage, ends) in [(Stage::Writing, false), (Stage::Queued, true)] {
        let payload = Bytes::from(vec![7; 100]);
        let account = account();
        let (item, receipt) = item(&account, payload.clone(), 0, start() + LONG);
        assert!(!freed(&payload));
        bring_to(&item, stage);
        if ends {
            receipt.revoke();
        }
        assert!(freed(&payload));
        assert_eq!(item.bytes(), 100);
    }
}

#[test]
fn whoever_waits_for_the_freed_room_may_look_at_the_item_that_freed_it() {
    // Waiters were once woken while the ended item's cell was locked: a waker that looked at the
    // receipt never came back.
    let limits = crate::budget::BudgetLimits {
        peer: Amount::new(1, 100),
        node: Amount::new(1, 100),
    };
    let [control, _] = Budget::new(limits).open_peer();
    let (item, receipt) = item(&control, "payload", 0, start() + LONG);
    let receipt = Arc::new(receipt);
    let seen = Arc::clone(&receipt);
    let woken = Woken::then(move || assert_eq!(seen.outcome(), Some(Outcome::Superseded)));
    let mut reserve = control.reserve(Amount::new(1, 1));
    assert!(poll(&mut reserve, &woken.clone().into()).is_pending());
    item.end(|_| Outcome::Superseded);
    assert_eq!(woken.count(), 1);
}
