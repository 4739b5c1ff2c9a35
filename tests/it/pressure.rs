//! Too much at once, and peers that take nothing: what is bounded, what is refused by name, and what
//! must not be disturbed by it (scenarios A and B).

use std::time::Duration;

use bytes::Bytes;
use tests::certs::{Fleet, node};
use tests::node::{NodeOptions, TestNode, free_address};
use tests::relay::Line;
use tests::soon;
use transport::budget::Amount;
use transport::config::RawTuning;
use transport::io::{SendOptions, clock};
use transport::proto::frame::item_bytes_max;
use transport::{Lane, Outcome, Receipt, ReserveRefused, Scope, SendRefused, Unit};

/// A budget that a few full frames fill.
fn small_budget() -> RawTuning {
    RawTuning {
        bulk_window_bytes: 1 << 20,
        peer_budget_bytes: 2 << 20,
        node_budget_bytes: 4 << 20,
        ..RawTuning::default()
    }
}

/// Queues full bulk frames until the budget says no; gives what it said.
fn fill_bulk(one: &TestNode) -> (Vec<Receipt>, ReserveRefused) {
    let peer = one.transport.peer(node(2)).expect("a peer");
    let payload = Bytes::from(vec![3; 200 << 10]);
    let mut receipts = Vec::new();
    loop {
        match peer.try_reserve(Lane::Bulk, Amount::new(1, payload.len() as u64)) {
            Ok(mut room) => {
                let until = SendOptions::until(clock::now() + tests::PATIENCE * 6);
                receipts.push(room.send(payload.clone(), until).expect("a receipt"));
            }
            Err(refused) => return (receipts, refused),
        }
    }
}

#[tokio::test]
async fn a_full_bulk_budget_refuses_no_control_item() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, small_budget()).await;
    // The host takes nothing on bulk: the window fills, then the budget.
    let (receipts, refused) = fill_bulk(&one);
    assert_eq!(
        refused,
        ReserveRefused::Full {
            scope: Scope::Peer,
            unit: Unit::Bytes
        }
    );
    let mut held = Vec::new();
    for at in 0..100 {
        let control = one.send(2, Lane::Control, format!("beat {at}"));
        loop {
            let delivery = two.delivery().await;
            if delivery.lane == Lane::Control {
                delivery.slot.taken();
                break;
            }
            held.push(delivery);
        }
        assert_eq!(
            soon("an outcome", control).await,
            Outcome::Replied(Bytes::new())
        );
    }
    let status = one.transport.status();
    assert!(
        status.lanes[1].account.reserved().bytes <= 2 << 20,
        "{:?}",
        status.lanes[1]
    );
    assert!(
        receipts.iter().all(|receipt| receipt.outcome().is_none()),
        "bulk still waits"
    );
    drop(held);
    // Held slots were refused, so everything that waited gets its turn and an end.
    let answer = async {
        loop {
            two.delivery().await.slot.taken();
        }
    };
    let outcomes = async {
        for receipt in receipts {
            receipt.await;
        }
    };
    soon("all outcomes", async {
        tokio::select! {
            () = outcomes => {}
            () = answer => {}
        }
    })
    .await;
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn a_frozen_bulk_connection_delays_no_control_frame() {
    let fleet = Fleet::new("dev");
    let (one, mut two, relay) = TestNode::pair_over(&fleet, Line::default(), small_budget()).await;
    relay.freeze(Some(1));
    let (receipts, _) = fill_bulk(&one);
    for at in 0..100 {
        let control = one.send(2, Lane::Control, format!("beat {at}"));
        two.echo().await;
        assert!(matches!(
            soon("an outcome", control).await,
            Outcome::Replied(_)
        ));
    }
    assert!(
        receipts.iter().all(|receipt| receipt.outcome().is_none()),
        "bulk is frozen"
    );
    relay.freeze(None);
    for receipt in receipts {
        two.delivery().await.slot.taken();
        assert!(matches!(
            soon("an outcome", receipt).await,
            Outcome::Replied(_)
        ));
    }
    TestNode::stop_both(one, two).await;
}

/// Scenario 1. What it shows is counted in bulk frames, not in time: a slow machine slows both.
#[tokio::test]
async fn a_beat_crosses_a_slow_line_past_the_bulk_that_fills_it() {
    const FRAME_BYTES: usize = 64 << 10;
    // 20 Mbit/s and 250 ms each way: 19 of these frames cross it in one round trip.
    const BYTES_PER_S: u32 = 2_500_000;
    let line = Line {
        delay: Duration::from_millis(250),
        bytes_per_s: Some(BYTES_PER_S),
    };
    // A round trip and 100 ms are 23 frames, and what crosses in one delay may arrive together
    // where the relay was late. A beat behind all that waits would see it delivered first.
    const DELIVERED_MAX: usize = 23 + 10;
    const WAITING: usize = 100;
    let fleet = Fleet::new("dev");
    let tuning = RawTuning {
        reply_timeout_ms: 60_000,
        ..RawTuning::default()
    };
    let (one, mut two, _relay) = TestNode::pair_over(&fleet, line, tuning).await;
    let session = one.transport.status().lanes[0].session;
    let mut bulk = std::collections::VecDeque::new();
    let mut delivered = Vec::new();
    for beat in 0..8 {
        while bulk.len() < WAITING {
            bulk.push_back(one.send(2, Lane::Bulk, vec![7; FRAME_BYTES]));
        }
        // The line is full of bulk before the first beat goes: frames have come out of it, and
        // as many are in it as cross it in one delay.
        while beat == 0 && one.transport.status().lanes[1].outstanding_frames < 8 {
            two.delivery().await.slot.taken();
        }
        let mut control = one.send(2, Lane::Control, format!("beat {beat}"));
        let mut past = 0;
        soon("the beat's outcome", async {
            loop {
                tokio::select! {
                    outcome = &mut control => break assert_eq!(outcome, Outcome::Replied(Bytes::new())),
                    delivery = two.deliveries.recv() => {
                        let delivery = delivery.expect("a running node");
                        past += usize::from(delivery.lane == Lane::Bulk);
                        delivery.slot.taken();
                    }
                }
            }
        })
        .await;
        delivered.push(past);
        while bulk
            .front()
            .is_some_and(|receipt| receipt.outcome().is_some())
        {
            bulk.pop_front();
        }
    }
    assert!(
        delivered.iter().all(|past| *past <= DELIVERED_MAX),
        "{delivered:?}"
    );
    assert!(
        delivered.iter().sum::<usize>() > 8,
        "bulk flowed meanwhile: {delivered:?}"
    );
    let control = &one.transport.status().lanes[0];
    assert_eq!(control.session, session, "and no session was lost for it");
    drop((bulk, two));
}

#[tokio::test]
async fn only_an_item_over_the_bound_is_refused_and_the_session_stays() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    for lane in Lane::ALL {
        let max = item_bytes_max(lane);
        let first = one.send(2, lane, vec![0; max - 1]);
        two.delivery().await.slot.taken();
        soon("an outcome", first).await;
        let session = one.transport.status().lanes[lane as usize].session;
        let peer = one.transport.peer(node(2)).expect("a peer");
        let mut room = peer
            .try_reserve(lane, Amount::new(1, max as u64 + 1))
            .expect("room");
        let until = SendOptions::until(clock::now() + tests::PATIENCE);
        let refused = room
            .send(vec![0; max + 1].into(), until)
            .expect_err("too large");
        let (asked, max) = (max as u64 + 1, max as u64);
        assert_eq!(refused, SendRefused::ItemTooLarge { lane, asked, max });
        // The room is as it was, and the largest item goes.
        let largest = room
            .send(vec![0; item_bytes_max(lane)].into(), until)
            .expect("a receipt");
        two.delivery().await.slot.taken();
        assert_eq!(
            soon("an outcome", largest).await,
            Outcome::Replied(Bytes::new())
        );
        assert_eq!(one.transport.status().lanes[lane as usize].session, session);
        drop(room);
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn what_waits_for_a_peer_that_is_away_is_bounded_and_refused_by_name() {
    let fleet = Fleet::new("dev");
    let options = NodeOptions {
        peers: [(2, free_address())].into(),
        tuning: small_budget(),
        ..NodeOptions::default()
    };
    let one = TestNode::start(&fleet, 1, options).await;
    let (receipts, refused) = fill_bulk(&one);
    assert_eq!(refused.to_string(), "peer budget has no room in bytes");
    let account = one.transport.status().lanes[1].account;
    assert_eq!(account.queued.items, receipts.len() as u64);
    assert!(account.reserved().bytes <= 2 << 20, "{account:?}");
    let status = one.stop().await;
    assert!(status.lanes[1].account.is_exact());
}

#[tokio::test]
async fn a_peer_that_answers_no_handshake_delays_no_other() {
    let fleet = Fleet::new("dev");
    // It accepts connections, which the kernel does for it, and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let (one_listens, two_listens) = (free_address(), free_address());
    let peers = [
        (2, two_listens),
        (3, silent.local_addr().expect("its address")),
    ]
    .into();
    let options = NodeOptions {
        listen: Some(one_listens),
        peers,
        ..NodeOptions::default()
    };
    let one = TestNode::start(&fleet, 1, options).await;
    let peers = [(1, one_listens)].into();
    let options = NodeOptions {
        listen: Some(two_listens),
        peers,
        ..NodeOptions::default()
    };
    let mut two = TestNode::start(&fleet, 2, options).await;
    for at in 0..100 {
        let beat = one.send(2, Lane::Control, format!("beat {at}"));
        two.echo().await;
        assert!(matches!(
            soon("an outcome", beat).await,
            Outcome::Replied(_)
        ));
    }
    let state = one.transport.status().lanes[2].state;
    assert_eq!(
        state,
        transport::io::LaneState::Connecting,
        "node 3 is shown for what it is"
    );
    TestNode::stop_both(one, two).await;
}
