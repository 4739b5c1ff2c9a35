//! Frames over real TLS sockets: both lanes, both directions, what each receipt says and when.

use std::time::Duration;

use bytes::Bytes;
use tests::certs::{Fleet, node};
use tests::node::{Delivery, NodeOptions, TestNode, free_address};
use tests::relay::{Flow, Line};
use tests::soon;
use transport::config::RawTuning;
use transport::io::{Direction, Event, LaneState, SendOptions, clock};
use transport::proto::frame::item_bytes_max;
use transport::receipt::OutcomeKind;
use transport::{Amount, Answer, Label, Lane, Outcome, RefusalReason, SessionEnd, Stage};

#[tokio::test]
async fn frames_cross_both_lanes_in_both_directions_and_are_answered() {
    let fleet = Fleet::new("dev");
    let (mut one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    for lane in Lane::ALL {
        let forth = one.send(2, lane, format!("forth on {lane}"));
        assert_eq!(two.echo().await, [Bytes::from(format!("forth on {lane}"))]);
        let answer = Outcome::Replied(Bytes::from(format!("forth on {lane}")));
        assert_eq!(soon("an outcome", forth).await, answer);
        let back = two.send(1, lane, Bytes::from(vec![7; 60_000]));
        assert_eq!(one.echo().await, [Bytes::from(vec![7; 60_000])]);
        assert_eq!(
            soon("an outcome", back).await,
            Outcome::Replied(vec![7; 60_000].into())
        );
    }
    let (one, two) = tokio::join!(one.stop(), two.stop());
    for status in [one, two] {
        let replied = |lane: usize| status.lanes[lane].account.ended_by(OutcomeKind::Replied);
        assert_eq!([replied(0), replied(1)], [1, 1], "one item a lane");
    }
}

#[tokio::test]
async fn the_largest_item_of_each_lane_arrives_whole() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    for lane in Lane::ALL {
        let largest: Vec<u8> = (0..item_bytes_max(lane)).map(|at| at as u8).collect();
        let receipt = one.send(2, lane, largest.clone());
        let Delivery { frame, slot, .. } = two.delivery().await;
        assert!(frame.items() == [Bytes::from(largest)], "the same bytes");
        slot.taken();
        assert_eq!(
            soon("an outcome", receipt).await,
            Outcome::Replied(Bytes::new())
        );
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn each_item_of_a_batch_gets_its_own_verdict() {
    let fleet = Fleet::new("dev");
    let tuning = RawTuning {
        control_window_frames: 1,
        ..RawTuning::default()
    };
    let (one, mut two) = TestNode::pair(&fleet, tuning).await;
    let first = one.send(2, Lane::Control, "first");
    let held = two.delivery().await;
    // The window is taken, so these three wait together and leave together.
    let batch = ["a", "b", "c"].map(|payload| one.send(2, Lane::Control, payload));
    held.slot.taken();
    assert_eq!(
        soon("an outcome", first).await,
        Outcome::Replied(Bytes::new())
    );
    let Delivery { frame, slot, .. } = two.delivery().await;
    assert_eq!(
        frame.items(),
        ["a", "b", "c"],
        "one frame takes all that waits"
    );
    slot.answer(Answer::PerItem(vec![
        Ok(Bytes::from("yes")),
        Err(RefusalReason::Busy),
        Ok(Bytes::new()),
    ]));
    let outcomes = [
        Outcome::Replied(Bytes::from("yes")),
        Outcome::Refused(RefusalReason::Busy),
        Outcome::Replied(Bytes::new()),
    ];
    for (receipt, outcome) in batch.into_iter().zip(outcomes) {
        assert_eq!(soon("an outcome", receipt).await, outcome);
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn a_frame_that_the_host_lets_go_of_is_refused() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    let receipt = one.send(2, Lane::Control, "forgotten");
    drop(two.delivery().await);
    let outcome = soon("an outcome", receipt).await;
    assert_eq!(outcome, Outcome::Refused(RefusalReason::Unanswered));
    assert!(outcome.is_proven_without_effect());
    TestNode::stop_both(one, two).await;
}

/// Frames that share TLS records end where their own last record ends. They were marked as written
/// with the last of the frames that were encrypted together, and the reply to the first of them
/// could come before that, which then looked like a reply to a frame that was never sent.
#[tokio::test]
async fn a_small_frame_is_answered_while_the_large_one_behind_it_is_still_being_written() {
    let fleet = Fleet::new("dev");
    let (one, mut two, relay) =
        TestNode::pair_over(&fleet, Line::default(), RawTuning::default()).await;
    // The first record goes through, and not the whole frame behind it.
    relay.allow_forth(Some(24 << 10));
    let small = one.send(2, Lane::Bulk, "small");
    let large = one.send(2, Lane::Bulk, vec![1; item_bytes_max(Lane::Bulk)]);
    two.delivery().await.slot.taken();
    assert_eq!(
        soon("an outcome", small).await,
        Outcome::Replied(Bytes::new())
    );
    assert_eq!(large.stage(), Stage::Writing);
    relay.allow_forth(None);
    two.delivery().await.slot.taken();
    assert_eq!(
        soon("an outcome", large).await,
        Outcome::Replied(Bytes::new())
    );
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn written_is_set_only_when_the_socket_has_the_last_byte() {
    let fleet = Fleet::new("dev");
    let (one, mut two, relay) =
        TestNode::pair_over(&fleet, Line::default(), RawTuning::default()).await;
    relay.set(Flow::STOPPED);
    // Fifteen frames of 256 KiB: within the bulk window, far more than the sockets take.
    let payload = Bytes::from(vec![1; 255 << 10]);
    let receipts: Vec<_> = (0..15)
        .map(|_| one.send(2, Lane::Bulk, payload.clone()))
        .collect();
    let stages = || {
        receipts
            .iter()
            .map(transport::Receipt::stage)
            .collect::<Vec<_>>()
    };
    soon("a full socket", async {
        // Begun, and then nothing moves: the frame that the socket is full of is not written.
        while !stages().contains(&Stage::Writing) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let written = stages()
        .iter()
        .filter(|stage| **stage == Stage::Written)
        .count();
    assert!(
        written < 5,
        "the sockets can't hold five frames: {:?}",
        stages()
    );
    assert!(
        stages()[6..].iter().all(|stage| *stage == Stage::Queued),
        "{:?}",
        stages()
    );
    let account = one.transport.status().lanes[1].account;
    assert_eq!(account.live(), 15);
    assert!(
        account.queued.items >= 9 && account.writing.items >= 1,
        "{account:?}"
    );
    // The peer reads: everything goes out, is answered, and passed through Written.
    relay.set(Flow::OPEN);
    for receipt in receipts {
        let Delivery { frame, slot, .. } = two.delivery().await;
        assert!(frame.items() == [payload.clone()], "the same bytes");
        slot.taken();
        assert_eq!(
            soon("an outcome", receipt).await,
            Outcome::Replied(Bytes::new())
        );
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn a_lost_session_says_of_each_item_whether_the_peer_may_have_seen_it() {
    let fleet = Fleet::new("dev");
    let tuning = RawTuning {
        control_window_frames: 2,
        ..RawTuning::default()
    };
    let (one, mut two) = TestNode::pair(&fleet, tuning).await;
    let seen = [one.send(2, Lane::Control, "a"), {
        // The second frame is begun only after the first, so that neither joins the other.
        two.delivery().await.slot.taken();
        one.send(2, Lane::Control, "b")
    }];
    let held = two.delivery().await;
    let more = one.send(2, Lane::Control, "c");
    let also_held = two.delivery().await;
    let waiting = one.send_until(2, Lane::Control, "d", Duration::from_millis(300));
    drop(soon("a stopped node", two.transport.shut_down(Duration::ZERO)).await);
    let [first, second] = seen;
    assert_eq!(
        soon("an outcome", first).await,
        Outcome::Replied(Bytes::new())
    );
    let unknown = Outcome::SessionLost {
        stage: Stage::Written,
    };
    assert_eq!(soon("an outcome", second).await, unknown);
    assert_eq!(soon("an outcome", more).await, unknown);
    // What never left waits for the peer until its own deadline, and is proven unwritten.
    let outcome = soon("an outcome", waiting).await;
    assert_eq!(
        outcome,
        Outcome::Expired {
            stage: Stage::Queued
        }
    );
    assert!(outcome.is_proven_without_effect() && !unknown.is_proven_without_effect());
    drop((held, also_held));
    one.stop().await;
}

#[tokio::test]
async fn what_waits_is_sent_once_the_peer_is_there() {
    let fleet = Fleet::new("dev");
    let (one_listens, two_listens) = (free_address(), free_address());
    let options = |listen, peer| NodeOptions {
        listen: Some(listen),
        peers: [peer].into(),
        ..NodeOptions::default()
    };
    let mut one = TestNode::start(&fleet, 1, options(one_listens, (2, two_listens))).await;
    let early = one.send(2, Lane::Control, "early");
    one.event("a failed dial", |event| match event {
        Event::DialFailed {
            end: SessionEnd::Io { kind },
            ..
        } => Some(*kind),
        _ => None,
    })
    .await;
    let mut two = TestNode::start(&fleet, 2, options(two_listens, (1, one_listens))).await;
    assert_eq!(two.echo().await, [Bytes::from("early")]);
    assert_eq!(
        soon("an outcome", early).await,
        Outcome::Replied("early".into())
    );
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn a_node_that_shuts_down_says_so() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    let receipt = one.send(2, Lane::Bulk, "last words");
    two.delivery().await.slot.taken();
    assert_eq!(
        soon("an outcome", receipt).await,
        Outcome::Replied(Bytes::new())
    );
    let status = soon("a stopped node", one.stop()).await;
    for lane in &status.lanes {
        assert_eq!(lane.state, LaneState::Closed);
        assert_eq!(lane.last_end, Some(SessionEnd::ShutDown));
    }
    let down = |event: &Event| match event {
        Event::SessionDown {
            direction: Direction::Inbound,
            end,
            ..
        } => Some(end.to_string()),
        _ => None,
    };
    for _ in Lane::ALL {
        let end = two.event("the end of an inbound session", down).await;
        assert_eq!(end, "ended by the peer: it is shutting down");
    }
    let received = two.stop().await.received;
    assert_eq!(
        received
            .iter()
            .map(|lane| lane.stats.frames)
            .collect::<Vec<_>>(),
        [0, 1]
    );
}

/// Two nodes whose four sessions are up and are never closed for want of a reply.
async fn both_ways_up(fleet: &Fleet) -> (TestNode, TestNode) {
    let tuning = RawTuning {
        reply_timeout_ms: 3_600_000,
        ..RawTuning::default()
    };
    let (mut one, mut two) = TestNode::pair(fleet, tuning).await;
    // Bulk comes up after control.
    let (forth, back) = (one.send(2, Lane::Bulk, "up"), two.send(1, Lane::Bulk, "up"));
    two.delivery().await.slot.taken();
    one.delivery().await.slot.taken();
    soon("two outcomes", async { (forth.await, back.await) }).await;
    (one, two)
}

/// Control was idle and closed at once, which ended bulk at the peer with its answer still owed; and
/// a lane whose last reply came during the drain slept on to the drain's end.
#[tokio::test]
async fn what_was_sent_on_either_lane_finishes_before_a_shutdown_and_ends_it() {
    for lane in Lane::ALL {
        let fleet = Fleet::new("dev");
        let (one, mut two) = both_ways_up(&fleet).await;
        let receipt = one.send(2, lane, "last words");
        let held = two.delivery().await;
        let mut events = one.transport.subscribe();
        let began = clock::now();
        // An hour to drain: only the answer can end it in time.
        let stopping = tokio::spawn(one.transport.shut_down(Duration::from_secs(3600)));
        // The lane that owes nothing may end; the other one must not.
        let idle = Lane::ALL
            .into_iter()
            .find(|other| *other != lane)
            .expect("another lane");
        if idle == Lane::Bulk {
            soon("the idle lane's end", async {
                while !matches!(events.recv().await, Ok(Event::SessionDown { .. })) {}
            })
            .await;
        } else {
            let beat = two.send(1, Lane::Control, "still here");
            drop(one.deliveries);
            drop(soon("an outcome", beat).await);
        }
        assert_eq!(receipt.outcome(), None, "it is waited for");
        held.slot.taken();
        assert_eq!(
            soon("an outcome", receipt).await,
            Outcome::Replied(Bytes::new())
        );
        soon("a stopped node", stopping)
            .await
            .expect("a clean stop");
        assert!(clock::now() - began < Duration::from_secs(3600));
        two.stop().await;
    }
}

#[tokio::test]
async fn a_node_that_owes_an_answer_on_bulk_gives_it_before_it_stops() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = both_ways_up(&fleet).await;
    let receipt = one.send(2, Lane::Bulk, "owed");
    let held = two.delivery().await;
    let mut one_events = one.transport.subscribe();
    let stopping = tokio::spawn(two.transport.shut_down(Duration::from_secs(3600)));
    // Its own lanes have closed, so the drain of what it accepted is next.
    soon("the other direction's end", async {
        let mut ended = 0;
        while ended < 2 {
            let inbound = matches!(
                one_events.recv().await,
                Ok(Event::SessionDown {
                    direction: Direction::Inbound,
                    ..
                })
            );
            ended += u32::from(inbound);
        }
    })
    .await;
    assert_eq!(receipt.outcome(), None, "its session is held");
    held.slot.taken();
    assert_eq!(
        soon("an outcome", receipt).await,
        Outcome::Replied(Bytes::new())
    );
    soon("a stopped node", stopping)
        .await
        .expect("a clean stop");
    one.stop().await;
}

#[tokio::test]
async fn revoking_a_label_ends_what_carries_it_and_nothing_without_one() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    let peer = one.transport.peer(node(2)).expect("a peer");
    let mut room = peer
        .try_reserve(Lane::Control, Amount::new(2, 100))
        .expect("room");
    let until = SendOptions::until(clock::now() + tests::PATIENCE);
    let plain = room.send("plain".into(), until).expect("a receipt");
    let label = Label::new(7);
    let labelled = room
        .send("labelled".into(), SendOptions { label, ..until })
        .expect("a receipt");
    drop(room);
    peer.revoke_label(Label::NONE);
    peer.revoke_label(label);
    assert!(matches!(
        soon("an outcome", labelled).await,
        Outcome::Revoked { .. }
    ));
    let answered = async {
        loop {
            two.delivery().await.slot.taken();
        }
    };
    tokio::select! {
        outcome = plain => assert_eq!(outcome, Outcome::Replied(Bytes::new())),
        () = answered => {}
    }
    TestNode::stop_both(one, two).await;
}
