//! The control window over real TLS sockets.

use std::time::Duration;

use tests::certs::Fleet;
use tests::node::{Delivery, TestNode};
use tests::soon;
use transport::config::RawTuning;
use transport::io::Event;
use transport::{Lane, Outcome, Receipt, SessionEnd, Stage, TimedOut};

const WINDOW: usize = 16;

fn stages(receipts: &[Receipt]) -> Vec<Stage> {
    receipts.iter().map(Receipt::stage).collect()
}

/// Sends one item after another, each only when the host has the one before, so that each is a
/// frame of its own; stops at a full window.
async fn fill(one: &TestNode, two: &mut TestNode) -> (Vec<Receipt>, Vec<Delivery>) {
    let (mut receipts, mut held) = (Vec::new(), Vec::new());
    for at in 0..WINDOW {
        receipts.push(one.send(2, Lane::Control, at.to_string()));
        held.push(two.delivery().await);
    }
    (receipts, held)
}

/// A window that only replies can move: the oldest-frame rule is far away.
fn patient() -> RawTuning {
    RawTuning {
        reply_timeout_ms: 3_600_000,
        ..RawTuning::default()
    }
}

#[tokio::test]
async fn the_seventeenth_control_frame_never_leaves_while_the_host_is_stopped() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, patient()).await;
    let (mut receipts, held) = fill(&one, &mut two).await;
    receipts.push(one.send(2, Lane::Control, "seventeenth"));
    // Bulk goes there and back on the same link again and again: the link is well, time passes,
    // and the seventeenth stays where it is.
    for _ in 0..200 {
        let bulk = one.send(2, Lane::Bulk, "bulk");
        let Delivery { lane, slot, .. } = two.delivery().await;
        assert_eq!(lane, Lane::Bulk, "nothing on control leaves");
        slot.taken();
        soon("an outcome", bulk).await;
        assert_eq!(receipts[WINDOW].stage(), Stage::Queued);
    }
    assert_eq!(one.transport.status().lanes[0].outstanding_frames, WINDOW);
    assert!(
        stages(&receipts[..WINDOW])
            .iter()
            .all(|stage| *stage == Stage::Written)
    );
    for Delivery { slot, .. } in held {
        slot.taken();
    }
    two.delivery().await.slot.taken();
    for receipt in receipts {
        assert!(matches!(
            soon("an outcome", receipt).await,
            Outcome::Replied(_)
        ));
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn each_reply_lets_exactly_one_frame_out() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, patient()).await;
    let (mut receipts, held) = fill(&one, &mut two).await;
    // A frame takes one of these alone: two don't fit.
    let large = vec![0; 40 << 10];
    receipts.extend((0..WINDOW).map(|_| one.send(2, Lane::Control, large.clone())));
    let mut later = Vec::new();
    for (answered, delivery) in held.into_iter().enumerate() {
        delivery.slot.taken();
        let delivery = two.delivery().await;
        assert_eq!(delivery.frame.items().len(), 1);
        later.push(delivery);
        // That reply is through, so what it let out is known: one frame, and no second one.
        let at = WINDOW + answered;
        assert!(
            stages(&receipts[at + 1..])
                .iter()
                .all(|stage| *stage == Stage::Queued)
        );
        assert!(two.deliveries.try_recv().is_err(), "one reply, one frame");
        assert_eq!(one.transport.status().lanes[0].outstanding_frames, WINDOW);
    }
    drop(later);
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn replies_leave_in_the_order_of_their_frames_whatever_the_host_answers_first() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, patient()).await;
    let (receipts, mut held) = fill(&one, &mut two).await;
    let first = held.remove(0);
    for Delivery { slot, .. } in held.into_iter().rev() {
        slot.taken();
    }
    // A frame on bulk there and back: the answers above were given before it, and still wait for
    // the first.
    let bulk = one.send(2, Lane::Bulk, "bulk");
    two.delivery().await.slot.taken();
    soon("an outcome", bulk).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome().is_none()));
    first.slot.taken();
    for receipt in receipts {
        assert!(matches!(
            soon("an outcome", receipt).await,
            Outcome::Replied(_)
        ));
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn an_expired_frame_keeps_its_slot_and_its_reply_still_frees_it() {
    let fleet = Fleet::new("dev");
    let tuning = RawTuning {
        control_window_frames: 1,
        ..patient()
    };
    let (one, mut two) = TestNode::pair(&fleet, tuning).await;
    let expires = one.send_until(2, Lane::Control, "expires", Duration::from_millis(50));
    let held = two.delivery().await;
    let next = one.send(2, Lane::Control, "next");
    assert_eq!(
        soon("an outcome", expires).await,
        Outcome::Expired {
            stage: Stage::Written
        }
    );
    assert_eq!(next.stage(), Stage::Queued);
    assert_eq!(one.transport.status().lanes[0].outstanding_frames, 1);
    held.slot.taken();
    two.delivery().await.slot.taken();
    assert!(matches!(
        soon("an outcome", next).await,
        Outcome::Replied(_)
    ));
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn an_unanswered_frame_ends_its_session_at_reply_timeout_and_a_new_one_comes_up() {
    let fleet = Fleet::new("dev");
    let tuning = RawTuning {
        reply_timeout_ms: 200,
        dialback_timeout_ms: 100,
        ..RawTuning::default()
    };
    let (mut one, mut two) = TestNode::pair(&fleet, tuning).await;
    let lost = one.send(2, Lane::Control, "unanswered");
    let held = two.delivery().await;
    let outcome = soon("an outcome", lost).await;
    assert_eq!(
        outcome,
        Outcome::SessionLost {
            stage: Stage::Written
        }
    );
    let end = one
        .event("the end of the session", |event| match event {
            Event::SessionDown {
                lane: Lane::Control,
                end,
                ..
            } => Some(end.clone()),
            _ => None,
        })
        .await;
    assert!(
        matches!(end, SessionEnd::TimedOut(TimedOut::Reply { .. })),
        "{end}"
    );
    drop(held);
    let again = one.send(2, Lane::Control, "again");
    two.echo().await;
    assert_eq!(
        soon("an outcome", again).await,
        Outcome::Replied("again".into())
    );
    TestNode::stop_both(one, two).await;
}
