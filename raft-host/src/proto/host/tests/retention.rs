//! What the log retains for the slowest member and for the state machine: the caps are named, and
//! they end when the member is back or the state machine is durable.

use super::world::{World, ms};
use crate::error::{Outcome, Refusal};
use crate::id::{GroupId, Index};
use crate::limits::{COMPACT_ENTRIES_MIN, UNAPPLIED_ENTRIES_MAX};
use crate::proto::host::LogRoom;

const GROUP: GroupId = GroupId::new(1);

fn elected(seed: u64, retained_entries_max: u64) -> World {
    World::elected_with(
        seed,
        crate::config::RawRaftConfig {
            retained_entries_max,
            ..crate::config::RAFT_DEFAULTS
        },
    )
}

fn retained(world: &World, at: usize) -> u64 {
    let status = world.nodes[at].as_ref().unwrap().core.status(GROUP);
    let status = status.unwrap();
    status.last.to_u64() - status.compacted.to_u64()
}

fn cut(world: &mut World, slow: usize, up: bool) {
    for peer in (0..3).filter(|peer| *peer != slow) {
        world.link(slow, peer, up);
    }
}

/// At the cap nothing is proposed, so nothing is committed either: the slow member's acks alone must
/// end it.
#[test]
fn the_cap_of_retained_entries_is_named_and_ends_when_the_slow_member_is_back() {
    let most = 2 * UNAPPLIED_ENTRIES_MAX;
    let mut world = elected(1, most);
    let leader = world.leader(GROUP).unwrap();
    let slow = (leader + 1) % 3;
    cut(&mut world, slow, false);
    let mut refused = None;
    for round in 0..200 {
        for _ in 0..200 {
            if let Err(why) = world.propose_at(leader, GROUP, ms(5000)) {
                refused.get_or_insert(why);
            }
        }
        world.run(ms(3));
        if refused.is_some() {
            println!("refused in round {round}");
            break;
        }
    }
    let retained_now = retained(&world, leader);
    assert_eq!(
        refused,
        Some(Refusal::LogRetained {
            retained: most,
            most
        })
    );
    assert!(retained_now <= most, "{retained_now}");
    world.run(ms(500));
    assert!(
        world.propose_at(leader, GROUP, ms(500)).is_err(),
        "it stays"
    );
    cut(&mut world, slow, true);
    world.run_until(ms(5000), |world| retained(world, leader) < most / 2);
    let (id, _) = world.propose_at(leader, GROUP, ms(1000)).unwrap();
    world.run_until(ms(1000), |world| world.outcomes.contains_key(&id));
    assert!(matches!(world.outcomes[&id], Outcome::Committed { .. }));
}

#[test]
fn while_the_room_is_low_even_little_is_forgotten_and_state_machines_are_asked() {
    let mut world = elected(2, 1_000_000);
    let leader = world.leader(GROUP).unwrap();
    for _ in 0..20 {
        world.propose_at(leader, GROUP, ms(1000)).unwrap();
        world.run(ms(5));
    }
    world.run(ms(300));
    let before = retained(&world, leader);
    assert!((20..COMPACT_ENTRIES_MIN).contains(&before), "{before}");
    let flushes = world.flushes;
    world.with(leader, |core, _| core.set_log_room(LogRoom::Low));
    assert_eq!(retained(&world, leader), 0, "nobody needs any of it");
    assert!(world.flushes <= flushes + 1, "asked once");
    world.propose_at(leader, GROUP, ms(1000)).unwrap();
    world.run(ms(300));
    assert_eq!(retained(&world, leader), 0);
    let last = world.nodes[leader].as_ref().unwrap().core.status(GROUP);
    assert!(last.unwrap().last > Index::new(20));
}

#[test]
fn without_room_in_the_log_proposals_are_refused_by_name_until_there_is_some() {
    let mut world = elected(3, 1_000_000);
    let leader = world.leader(GROUP).unwrap();
    let why = Refusal::LogRetainedBytes {
        retained: 900,
        most: 1000,
    };
    world.with(leader, |core, _| core.set_log_room(LogRoom::Spent(why)));
    assert_eq!(world.propose_at(leader, GROUP, ms(500)), Err(why));
    // A follower that asks is told the same.
    let follower = (leader + 1) % 3;
    let forwarding = crate::proto::host::Forwarding::Allowed;
    let asked = world.propose_as(follower, GROUP, ms(500), forwarding);
    let (id, _) = asked.unwrap();
    world.run_until(ms(500), |world| world.outcomes.contains_key(&id));
    assert_eq!(world.outcomes[&id], Outcome::Refused { why });
    world.with(leader, |core, _| core.set_log_room(LogRoom::Low));
    assert!(world.propose_at(leader, GROUP, ms(500)).is_ok());
}
