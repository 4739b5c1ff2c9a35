//! Followers whose acks leave late: commits wait for them, and nothing else does.

use super::world::{World, ms};
use crate::id::GroupId;

const GROUP: GroupId = GroupId::new(1);
const DELAY_MS: u32 = 40;

fn elected(seed: u64) -> World {
    World::elected_with(
        seed,
        crate::config::RawRaftConfig {
            debug_ack_delay_ms: DELAY_MS,
            ..crate::config::RAFT_DEFAULTS
        },
    )
}

#[test]
fn a_follower_holds_an_entry_long_before_its_ack_commits_it() {
    let mut world = elected(1);
    let leader = world.leader(GROUP).unwrap();
    let before = world.nodes[leader].as_ref().unwrap().core.status(GROUP);
    let before = before.unwrap().commit;
    world.propose_at(leader, GROUP, ms(5000)).unwrap();
    let last = |world: &World, at: usize| {
        let status = world.nodes[at].as_ref().unwrap().core.status(GROUP);
        status.unwrap().last
    };
    let commit = |world: &World| {
        let status = world.nodes[leader].as_ref().unwrap().core.status(GROUP);
        status.unwrap().commit
    };
    let held = |world: &World| (0..3).all(|at| last(world, at) == last(world, leader));
    let to_hold = world.run_until(ms(1000), held);
    assert_eq!(commit(&world), before, "no ack has come yet");
    let to_commit = to_hold + world.run_until(ms(1000), |world| commit(world) > before);
    assert!(to_commit >= ms(DELAY_MS.into()), "{to_commit:?}");
    assert!(to_commit < ms(3 * u64::from(DELAY_MS)), "{to_commit:?}");
}

#[test]
fn late_acks_elect_and_converge_as_any() {
    let mut world = elected(2);
    let leader = world.leader(GROUP).unwrap();
    for _ in 0..50 {
        world.propose_at(leader, GROUP, ms(5000)).unwrap();
        world.run(ms(3));
    }
    world.run(ms(500));
    let applied = |at: usize| {
        let status = world.nodes[at].as_ref().unwrap().core.status(GROUP);
        status.unwrap().applied
    };
    assert!(applied(leader).to_u64() >= 50);
    assert!((0..3).all(|at| applied(at) == applied(leader)));
    assert_eq!(world.leader(GROUP), Some(leader), "nobody else was elected");
}
