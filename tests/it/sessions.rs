//! What a host learns of a session and what it can do to one: whose it is, how well it goes, and its
//! end where the peer says what no correct peer says.

use std::collections::BTreeMap;

use bytes::Bytes;
use tests::certs::{Fleet, node};
use tests::node::{NodeOptions, TestNode, free_address};
use tests::soon;
use transport::config::RawTuning;
use transport::io::{Direction, Event};
use transport::{Answer, Boot, CloseCode, Incarnation, Lane, Outcome, PeerMisbehaved, SessionEnd};

#[tokio::test]
async fn the_first_word_of_a_session_names_the_peers_boot_and_incarnation() {
    let fleet = Fleet::new("dev");
    let (one_listens, two_listens) = (free_address(), free_address());
    let start = |number, peer, address, listen, boot| {
        let options = NodeOptions {
            peers: [(peer, address)].into(),
            listen: Some(listen),
            boot,
            ..NodeOptions::default()
        };
        TestNode::start(&fleet, number, options)
    };
    let mut one = start(1, 2, two_listens, one_listens, 11).await;
    let mut two = start(2, 1, one_listens, two_listens, 12).await;
    for (node, theirs, number) in [(&mut one, 12, 2), (&mut two, 11, 1)] {
        let theirs = (Boot::new(theirs), Incarnation::new([number; 16]));
        let mut told = BTreeMap::new();
        while told.len() < 4 {
            let up = |event: &Event| match event {
                Event::SessionUp {
                    lane,
                    direction,
                    boot,
                    incarnation,
                    ..
                } => Some(((*lane, *direction), (*boot, *incarnation))),
                _ => None,
            };
            let (session, who) = node.event("a session on each lane and way", up).await;
            told.insert(session, who);
        }
        assert!(told.values().all(|who| *who == theirs), "{told:?}");
        let status = node.transport.status();
        for lane in &status.lanes {
            assert_eq!(
                (lane.boot, lane.incarnation),
                (Some(theirs.0), Some(theirs.1))
            );
        }
        for inbound in &status.inbound {
            assert_eq!((inbound.boot, inbound.incarnation), theirs);
        }
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn occupancy_round_trip_and_age_of_the_last_reply_follow_the_frames() {
    let fleet = Fleet::new("dev");
    let (one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    let control = |one: &TestNode| one.transport.status().lanes[0].clone();
    assert_eq!(control(&one).last_reply_age, None, "there was none");
    let (mut receipts, mut held) = (Vec::new(), Vec::new());
    for at in 0..10 {
        receipts.push(one.send(2, Lane::Control, at.to_string()));
        held.push(two.delivery().await);
    }
    let full = control(&one);
    assert_eq!((full.occupancy.count, full.occupancy.max), (10, 10));
    assert_eq!((full.occupancy.p50, full.occupancy.p99), (5, 10));
    assert_eq!(full.occupancy.mean_hundredths, 550);
    assert_eq!((full.round_trip, full.last_reply_age), (None, None));
    for delivery in held {
        delivery.slot.taken();
    }
    for receipt in receipts {
        soon("an outcome", receipt).await;
    }
    // Published at the end of the turn that ended the last item.
    soon("a round trip", async {
        while control(&one).round_trip.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(control(&one).last_reply_age.is_some());
    TestNode::stop_both(one, two).await;
}

/// How both ends tell the end of the session that `from` dialled on this lane.
async fn both_ends(from: &mut TestNode, to: &mut TestNode, on: Lane) -> [SessionEnd; 2] {
    let mut ends = Vec::new();
    for (node, way) in [(from, Direction::Outbound), (to, Direction::Inbound)] {
        let down = |event: &Event| match event {
            Event::SessionDown {
                lane,
                direction,
                end,
                ..
            } if (*lane, *direction) == (on, way) => Some(end.clone()),
            _ => None,
        };
        ends.push(node.event("the end of a session", down).await);
    }
    ends.try_into().expect("two ends")
}

/// The other side was told so in a close.
fn assert_told(end: &SessionEnd, words: &str) {
    let SessionEnd::ClosedByPeer(notice) = end else {
        panic!("{end}");
    };
    assert_eq!(notice.code, CloseCode::Misbehaved);
    assert!(notice.got.contains(words), "{notice}");
}

#[tokio::test]
async fn a_host_that_rejects_a_frames_content_ends_its_session_before_the_next_frame() {
    let fleet = Fleet::new("dev");
    for lane in Lane::ALL {
        let (mut one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
        let bad = one.send(2, lane, "bad");
        let held = two.delivery().await;
        let session = held.slot.session();
        // Also from another thread, and after the answer.
        let frame = held.frame.sequence();
        held.slot.taken();
        assert_eq!(
            soon("an outcome", bad).await,
            Outcome::Replied(Bytes::new())
        );
        std::thread::spawn(move || session.reject("no such body"))
            .join()
            .expect("a thread");
        let [told, end] = both_ends(&mut one, &mut two, lane).await;
        let fault = "no such body";
        let rejected = PeerMisbehaved::PayloadRejected { frame, fault };
        assert_eq!(end, SessionEnd::PeerMisbehaved(rejected));
        assert_told(&told, fault);
        // The next session is another one, and works.
        let again = one.send(2, lane, "good");
        assert_eq!(two.echo().await, ["good"]);
        assert_eq!(
            soon("an outcome", again).await,
            Outcome::Replied("good".into())
        );
        TestNode::stop_both(one, two).await;
    }
}

#[tokio::test]
async fn a_rejection_of_an_old_session_leaves_the_one_after_it_alone() {
    let fleet = Fleet::new("dev");
    let (mut one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    let lost = one.send(2, Lane::Control, "bad");
    let session = two.delivery().await.slot.session();
    soon("an outcome", lost).await;
    session.reject("first");
    both_ends(&mut one, &mut two, Lane::Control).await;
    let again = one.send(2, Lane::Control, "good");
    two.echo().await;
    soon("an outcome", again).await;
    let now = one.transport.status().lanes[0].session;
    session.reject("second");
    for _ in 0..20 {
        let beat = one.send(2, Lane::Control, "beat");
        two.echo().await;
        assert_eq!(
            soon("an outcome", beat).await,
            Outcome::Replied("beat".into())
        );
    }
    assert_eq!(one.transport.status().lanes[0].session, now);
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn a_host_that_rejects_an_answer_ends_the_session_it_came_on() {
    let fleet = Fleet::new("dev");
    let (mut one, mut two) = TestNode::pair(&fleet, RawTuning::default()).await;
    let asked = one.send(2, Lane::Control, "question");
    let held = two.delivery().await;
    held.slot.answer(Answer::Taken("nonsense".into()));
    assert_eq!(
        soon("an outcome", asked).await,
        Outcome::Replied("nonsense".into())
    );
    let peer = one.transport.peer(node(2)).expect("a peer");
    peer.reject_answer(Lane::Control, "no such answer");
    let [end, told] = both_ends(&mut one, &mut two, Lane::Control).await;
    let fault = "no such answer";
    let rejected = PeerMisbehaved::AnswerRejected { fault };
    assert_eq!(end, SessionEnd::PeerMisbehaved(rejected));
    assert_told(&told, fault);
    let again = one.send(2, Lane::Control, "good");
    two.echo().await;
    soon("an outcome", again).await;
    TestNode::stop_both(one, two).await;
}
