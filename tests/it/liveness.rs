//! Links whose wires are not what they seem: cut in one direction, frozen, silent at one end, or left
//! behind by a restart. Each is found, both ends see it, another session takes its place, and no
//! other link notices.

use std::time::Duration;

use tests::certs::{Fleet, node};
use tests::node::{NodeOptions, TestNode, free_address};
use tests::relay::{Flow, Relay};
use tests::rogue::wire::{CONTROL, kind};
use tests::rogue::{Listener, Persona};
use tests::soon;
use transport::config::RawTuning;
use transport::io::{Direction, Event};
use transport::proto::link::LinkState;
use transport::{Answer, Lane, Outcome, SessionEnd, TimedOut};

/// What is not answered is given up soon.
fn impatient() -> RawTuning {
    RawTuning {
        reply_timeout_ms: 1000,
        dialback_timeout_ms: 500,
        ..RawTuning::default()
    }
}

/// No frame ever grows too old.
fn patient() -> RawTuning {
    RawTuning {
        reply_timeout_ms: 3_600_000,
        ..RawTuning::default()
    }
}

/// Two nodes that reach each other by a relay for each direction of dialling.
struct Wired {
    fleet: Fleet,
    one: TestNode,
    two: TestNode,
    /// Carries what node 1 dialled, and what node 2 did.
    forth: Relay,
    back: Relay,
}

impl Wired {
    async fn start(tuning: RawTuning) -> Self {
        let fleet = Fleet::new("dev");
        let (one_listens, two_listens) = (free_address(), free_address());
        let (forth, back) = (Relay::start(two_listens), Relay::start(one_listens));
        let options = |listen, peer, address| NodeOptions {
            listen: Some(listen),
            peers: [(peer, address)].into(),
            tuning,
            boot: 1,
            ..NodeOptions::default()
        };
        let one = TestNode::start(&fleet, 1, options(one_listens, 2, forth.address())).await;
        let two = TestNode::start(&fleet, 2, options(two_listens, 1, back.address())).await;
        let mut wired = Self {
            fleet,
            one,
            two,
            forth,
            back,
        };
        wired.both_are(LinkState::Up).await;
        wired
    }

    async fn both_are(&mut self, state: LinkState) {
        is(&mut self.one, state).await;
        is(&mut self.two, state).await;
    }

    /// Frames on control from both sides, whose answers nobody waits for: what is cut is found by
    /// them alone.
    fn beat(&self) {
        drop(self.one.send(2, Lane::Control, "beat"));
        drop(self.two.send(1, Lane::Control, "beat"));
    }
}

/// Waits until a node says that its link is so.
async fn is(node: &mut TestNode, state: LinkState) {
    let changed = |event: &Event| match event {
        Event::LinkChanged { state: now, .. } => (*now == state).then_some(()),
        _ => None,
    };
    node.event(&format!("a link that is {state:?}"), changed)
        .await;
}

async fn one_way(node: &mut TestNode) -> LinkState {
    let told = |event: &Event| match event {
        Event::OneWay { state, .. } => Some(*state),
        _ => None,
    };
    node.event("a one-way link to be told of", told).await
}

/// Answers whatever comes until a link stands so.
async fn until_down(wired: &mut Wired) {
    let Wired { one, two, .. } = wired;
    let down = |node: &TestNode| node.transport.status().links[0].1 != LinkState::Up;
    soon("both ends to see it", async {
        while !(down(one) && down(two)) {
            tokio::select! {
                Some(delivery) = one.deliveries.recv() => delivery.slot.taken(),
                Some(delivery) = two.deliveries.recv() => delivery.slot.taken(),
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
    })
    .await;
}

async fn exchange(from: &mut TestNode, to: &mut TestNode, number: u32) {
    while to.deliveries.try_recv().is_ok() {}
    let receipt = from.send(number, Lane::Control, "hello");
    soon("the frame", async {
        loop {
            let delivery = to.delivery().await;
            let items = delivery.frame.into_items();
            let found = items.contains(&"hello".into());
            let answers = items.into_iter().map(Ok).collect();
            delivery.slot.answer(Answer::PerItem(answers));
            if found {
                return;
            }
        }
    })
    .await;
    let outcome = soon("an outcome", receipt).await;
    assert_eq!(outcome, Outcome::Replied("hello".into()));
}

/// Scenarios 54 and 55, for each direction of dialling and each direction of bytes.
#[tokio::test]
async fn a_cut_in_either_direction_of_either_connection_is_seen_by_both_ends_and_healed() {
    let mut wired = Wired::start(impatient()).await;
    let (dead_forth, dead_back) = (
        Flow {
            forth: false,
            back: true,
        },
        Flow {
            forth: true,
            back: false,
        },
    );
    for (dialled, flow) in [
        (Direction::Outbound, dead_forth),
        (Direction::Outbound, dead_back),
        (Direction::Outbound, Flow::STOPPED),
        (Direction::Inbound, dead_forth),
        (Direction::Inbound, dead_back),
    ] {
        let relay = match dialled {
            Direction::Outbound => &wired.forth,
            Direction::Inbound => &wired.back,
        };
        relay.set(flow);
        wired.beat();
        until_down(&mut wired).await;
        // Each says which direction is there, once.
        let seen = [one_way(&mut wired.one).await, one_way(&mut wired.two).await];
        let expected = match dialled {
            Direction::Outbound => [LinkState::OnlyIn, LinkState::OnlyOut],
            Direction::Inbound => [LinkState::OnlyOut, LinkState::OnlyIn],
        };
        assert_eq!(seen, expected, "{dialled:?} {flow:?}");
        let relay = match dialled {
            Direction::Outbound => &wired.forth,
            Direction::Inbound => &wired.back,
        };
        relay.set(Flow::OPEN);
        wired.both_are(LinkState::Up).await;
        let Wired { one, two, .. } = &mut wired;
        exchange(one, two, 2).await;
        exchange(two, one, 1).await;
    }
    TestNode::stop_both(wired.one, wired.two).await;
}

/// Scenario 54: only new connections are refused, in one direction.
#[tokio::test]
async fn a_peer_that_cannot_dial_back_is_down_on_both_sides() {
    let mut wired = Wired::start(impatient()).await;
    wired.back.retarget(None);
    wired.back.cut();
    is(&mut wired.two, LinkState::OnlyIn).await;
    is(&mut wired.one, LinkState::OnlyOut).await;
    assert_eq!(one_way(&mut wired.one).await, LinkState::OnlyOut);
    assert_eq!(one_way(&mut wired.two).await, LinkState::OnlyIn);
    // Sessions of the direction that is there go on.
    let Wired { one, two, .. } = &mut wired;
    exchange(one, two, 2).await;
    let address = wired.one.transport.local_addr();
    wired.back.retarget(Some(address));
    wired.both_are(LinkState::Up).await;
    TestNode::stop_both(wired.one, wired.two).await;
}

/// Scenarios 50 and 52.
#[tokio::test]
async fn a_frozen_connection_is_given_up_once_and_another_takes_its_place() {
    let mut wired = Wired::start(impatient()).await;
    let before = wired.one.transport.status().lanes[0].session;
    wired.forth.freeze(Some(0));
    let frozen = wired.one.send(2, Lane::Control, "into the ice");
    let down = |event: &Event| match event {
        Event::SessionDown {
            lane: Lane::Control,
            direction: Direction::Outbound,
            end,
            ..
        } => Some(end.clone()),
        _ => None,
    };
    let end = wired.one.event("the frozen session's end", down).await;
    assert!(
        matches!(end, SessionEnd::TimedOut(TimedOut::Reply { .. })),
        "{end}"
    );
    let outcome = soon("an outcome", frozen).await;
    assert!(
        matches!(outcome, Outcome::SessionLost { .. }),
        "{outcome:?}"
    );
    is(&mut wired.one, LinkState::Up).await;
    let Wired { one, two, .. } = &mut wired;
    exchange(one, two, 2).await;
    exchange(two, one, 1).await;
    let after = wired.one.transport.status().lanes[0].session;
    assert_ne!(before, after);
    let mut ends = 0;
    while let Ok(event) = wired.one.events.try_recv() {
        ends += u32::from(down(&event).is_some());
    }
    assert_eq!(ends, 0, "one reconnect");
    TestNode::stop_both(wired.one, wired.two).await;
}

/// Scenario 59: the peer comes back elsewhere, and nobody says that its old place is dead.
#[tokio::test]
async fn a_peer_that_restarts_elsewhere_behind_a_black_hole_is_found_when_it_calls() {
    let Wired {
        fleet,
        mut one,
        two,
        forth,
        back,
    } = Wired::start(patient()).await;
    // Frames into the hole: they would wait for an hour.
    forth.set(Flow::STOPPED);
    let lost = one.send(2, Lane::Control, "into the hole");
    let elsewhere = free_address();
    // What is there stays black; what is new goes to the new place, by a relay of its own.
    two.stop().await;
    let options = NodeOptions {
        listen: Some(elsewhere),
        peers: [(1, back.address())].into(),
        tuning: patient(),
        boot: 2,
        ..NodeOptions::default()
    };
    forth.retarget(Some(elsewhere));
    forth.freeze_all_there();
    forth.set(Flow::OPEN);
    let mut two = TestNode::start(&fleet, 2, options).await;
    let outcome = soon("an outcome", lost).await;
    assert!(
        matches!(outcome, Outcome::SessionLost { .. }),
        "{outcome:?}"
    );
    let down = |event: &Event| match event {
        Event::SessionDown {
            end: end @ SessionEnd::PeerRestarted { .. },
            ..
        } => Some(end.to_string()),
        _ => None,
    };
    let sentence = one.event("the old session's end", down).await;
    assert!(
        sentence.contains("boot 1") && sentence.contains("boot 2"),
        "{sentence}"
    );
    is(&mut one, LinkState::Up).await;
    exchange(&mut one, &mut two, 2).await;
    exchange(&mut two, &mut one, 1).await;
    TestNode::stop_both(one, two).await;
}

/// Node 1, whose peer 3 is played by the rogue.
async fn with_rogue() -> (TestNode, Listener) {
    let fleet = Fleet::new("dev");
    let rogue = Listener::start(Persona::of(&fleet, "dev", 3));
    let options = NodeOptions {
        peers: [(3, rogue.address())].into(),
        tuning: impatient(),
        ..NodeOptions::default()
    };
    let one = TestNode::start(&fleet, 1, options).await;
    (one, rogue)
}

async fn control_ended(node: &mut TestNode) -> SessionEnd {
    let down = |event: &Event| match event {
        Event::SessionDown {
            lane: Lane::Control,
            end,
            ..
        } => Some(end.clone()),
        _ => None,
    };
    node.event("the end of the session", down).await
}

#[tokio::test]
async fn a_peer_that_reads_and_never_replies_is_given_up_and_dialled_again() {
    let (mut one, mut rogue) = with_rogue().await;
    for _ in 0..2 {
        let mut session = rogue.up(1, CONTROL).await;
        let asked = one.send(3, Lane::Control, "anybody?");
        let (frame, _) = session.read().await.expect("a frame");
        assert_eq!(frame.kind, kind::FRAME);
        let end = control_ended(&mut one).await;
        assert!(
            matches!(end, SessionEnd::TimedOut(TimedOut::Reply { .. })),
            "{end}"
        );
        let outcome = soon("an outcome", asked).await;
        assert!(
            matches!(outcome, Outcome::SessionLost { .. }),
            "{outcome:?}"
        );
        assert_eq!(session.last_code().await, Some(13), "it is told why");
    }
    one.stop().await;
}

#[tokio::test]
async fn a_peer_that_replies_and_never_reads_is_given_up_when_its_socket_is_full() {
    let (mut one, mut rogue) = with_rogue().await;
    let mut session = rogue.up(1, CONTROL).await;
    let mut answered = 0;
    let end = soon("the end of the session", async {
        loop {
            // As many as go out; it answers each that the socket took, unread.
            let large = vec![0; 60 << 10];
            let receipt = one.send(3, Lane::Control, large);
            let written = async {
                while receipt.stage() != transport::Stage::Written {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                biased;
                () = written => {
                    answered += 1;
                    let reply = session.reply(answered);
                    session.send(&reply).await;
                }
                end = control_ended(&mut one) => return end,
            }
        }
    })
    .await;
    assert!(answered > 0, "it was believed while it could be");
    assert!(
        matches!(end, SessionEnd::TimedOut(TimedOut::Reply { .. })),
        "{end}"
    );
    drop(session);
    let mut next = rogue.up(1, CONTROL).await;
    let asked = one.send(3, Lane::Control, "again");
    let (frame, _) = next.read().await.expect("a frame");
    assert_eq!(frame.items(), [b"again"]);
    let reply = next.reply(1);
    next.send(&reply).await;
    let outcome = soon("an outcome", asked).await;
    assert!(matches!(outcome, Outcome::Replied(_)), "{outcome:?}");
    one.stop().await;
}

#[tokio::test]
async fn a_node_tells_a_caller_what_it_holds_to_it_and_that_it_lost_it() {
    let fleet = Fleet::new("dev");
    let persona = Persona::of(&fleet, "dev", 3);
    let mut rogue = Listener::start(persona.clone());
    let options = NodeOptions {
        peers: [(3, rogue.address())].into(),
        ..NodeOptions::default()
    };
    let mut one = TestNode::start(&fleet, 1, options).await;
    let address = one.transport.local_addr();
    let held = rogue.up(1, CONTROL).await;
    let mut session = persona.dial_up(address, 1, CONTROL).await;
    // By the wire document: sync number, then for each lane whether there is one and which.
    let none = [0; 9];
    let control = [&[1][..], &77_u64.to_be_bytes()].concat();
    let said = session.confirm().await;
    assert_eq!(said.body, [&[0; 8][..], &control, &none].concat());
    one.transport.set_sync_number(9);
    let said = session.confirm().await;
    assert_eq!(
        said.body,
        [&9_u64.to_be_bytes()[..], &control, &none].concat()
    );
    drop(held);
    let said = session.confirm().await;
    assert_eq!(said.body, [&9_u64.to_be_bytes()[..], &none, &none].concat());
    is(&mut one, LinkState::OnlyIn).await;
    let three = one.transport.peer(node(3)).expect("a peer");
    assert_eq!(three.authority_ended(), None);
    one.stop().await;
}
