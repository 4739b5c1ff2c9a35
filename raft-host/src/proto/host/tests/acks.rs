//! Policy `at-least:N` (safety 20, 23): a reply that waits for more acks than Raft's quorum gives.

use std::num::NonZeroU8;

use bytes::Bytes;

use super::world::{World, ms, node_id};
use crate::error::{Outcome, Refusal, UnknownCause};
use crate::id::{GroupId, ProposalId};
use crate::proto::host::{Forwarding, Proposal};
use crate::proto::waiters::Policy;

const GROUP: GroupId = GroupId::new(1);

fn elected(seed: u64) -> (World, usize) {
    let mut world = World::new(3, 1, seed);
    world.run_until(ms(3000), World::all_led);
    let leader = world.leader(GROUP).unwrap();
    (world, leader)
}

fn proposal(world: &mut World, acks: u8, within: u64, forwarding: Forwarding) -> Proposal {
    Proposal {
        id: ProposalId::new(world.next()),
        data: Bytes::from_static(b"command"),
        context: Bytes::new(),
        deadline: world.now + ms(within),
        forwarding,
        policy: NonZeroU8::new(acks).map_or(Policy::Quorum, Policy::AtLeast),
    }
}

fn propose(world: &mut World, at: usize, proposal: Proposal) -> Result<ProposalId, Refusal> {
    let (id, mut proposed) = (proposal.id, Ok(()));
    world.with(at, |core, now| {
        proposed = core.propose(now, GROUP, proposal)
    });
    proposed.map(|()| id)
}

fn is_committed(world: &World, id: ProposalId) -> bool {
    matches!(world.outcomes.get(&id), Some(Outcome::Committed { .. }))
}

/// Cuts one follower off and gives its place.
fn cut_one(world: &mut World, leader: usize) -> usize {
    let cut = (leader + 1) % 3;
    for other in (0..3).filter(|other| *other != cut) {
        world.link(cut, other, false);
    }
    world.run(ms(20));
    cut
}

#[test]
fn a_reply_under_at_least_three_waits_for_the_third_ack() {
    let (mut world, leader) = elected(31);
    let cut = cut_one(&mut world, leader);
    let two = proposal(&mut world, 2, 3000, Forwarding::Never);
    let two = propose(&mut world, leader, two).unwrap();
    let three = proposal(&mut world, 3, 3000, Forwarding::Never);
    let three = propose(&mut world, leader, three).unwrap();
    let plain = proposal(&mut world, 0, 3000, Forwarding::Never);
    let plain = propose(&mut world, leader, plain).unwrap();
    world.run(ms(300));
    assert!(is_committed(&world, two), "two have it");
    assert!(
        is_committed(&world, plain),
        "it doesn't wait for one before it"
    );
    assert_eq!(
        world.outcomes.get(&three),
        None,
        "two of three aren't three"
    );
    for other in (0..3).filter(|other| *other != cut) {
        world.link(cut, other, true);
    }
    world.run(ms(1500));
    assert!(is_committed(&world, three));
}

#[test]
fn at_the_deadline_it_is_not_durable_and_later_acks_change_nothing() {
    let (mut world, leader) = elected(32);
    cut_one(&mut world, leader);
    let here = proposal(&mut world, 3, 300, Forwarding::Never);
    let here = propose(&mut world, leader, here).unwrap();
    let other = (leader + 2) % 3;
    let there = proposal(&mut world, 3, 400, Forwarding::Allowed);
    let there = propose(&mut world, other, there).unwrap();
    world.run(ms(1000));
    for id in [here, there] {
        let outcome = world.outcomes.get(&id);
        assert!(
            matches!(outcome, Some(Outcome::NotDurable { .. })),
            "{outcome:?}"
        );
    }
}

#[test]
fn more_acks_than_there_are_voters_are_refused_with_both_numbers() {
    let (mut world, leader) = elected(33);
    let four = proposal(&mut world, 4, 300, Forwarding::Never);
    let refused = Refusal::TooFewVoters {
        wanted: 4,
        voters: 3,
    };
    assert_eq!(propose(&mut world, leader, four), Err(refused));
}

#[test]
fn with_leadership_the_acks_that_it_waits_for_are_lost() {
    let (mut world, leader) = elected(34);
    let cut = cut_one(&mut world, leader);
    let three = proposal(&mut world, 3, 8000, Forwarding::Never);
    let three = propose(&mut world, leader, three).unwrap();
    world.run(ms(100));
    assert_eq!(world.outcomes.get(&three), None);
    // Now the other two are on their own, and the old leader steps down.
    let other = (leader + 2) % 3;
    world.link(leader, other, false);
    world.link(cut, other, true);
    world.run(ms(3000));
    assert_ne!(world.leader(GROUP), Some(leader), "{:?}", node_id(leader));
    let why = UnknownCause::LeadershipLost;
    assert_eq!(world.outcomes.get(&three), Some(&Outcome::Unknown { why }));
}
