//! Leaders go back to where they are preferred after a node's return: in a stated time, to nobody who
//! lacks something, never to and fro, and without a proposal that is lost, refused or in doubt.

use std::time::Duration;

use bytes::Bytes;

use super::forwarding::{Sent, check_accounts, propose, settle};
use super::world::{CALM, Weather, World, ms, replica};
use crate::config::{LeaderPlacement, RAFT_DEFAULTS, RaftConfig, RawRaftConfig};
use crate::error::{Outcome, Refusal, UnknownCause};
use crate::id::GroupId;
use crate::limits::HANDOVER_LAG_ENTRIES_MAX;
use crate::proto::consensus::Role;
use crate::proto::host::{Forwarding, HostStats};

fn preferred(group: GroupId) -> usize {
    usize::try_from(group.to_u64()).unwrap() % 3
}

fn is_balanced(world: &World) -> bool {
    let mut all = world.group_ids();
    all.all(|group| world.leader(group) == Some(preferred(group)))
}

fn led_by(world: &World, node: usize) -> usize {
    let mut all = world.group_ids();
    all.by_ref()
        .filter(|group| world.leader(*group) == Some(node))
        .count()
}

fn elected(groups: u64, seed: u64) -> World {
    let mut world = World::new(3, groups, seed);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    world
}

/// Node 0 is away until all its groups have other leaders.
fn without_node_0(world: &mut World) {
    world.kill(0);
    let all_led = |world: &World| world.group_ids().all(|group| world.leader(group).is_some());
    world.run_until(ms(1600), all_led);
    world.run(ms(300));
}

fn sum(world: &World, of: impl Fn(&HostStats) -> u64) -> u64 {
    let nodes = world.nodes.iter().flatten();
    nodes.map(|node| of(&node.core.stats())).sum()
}

/// The time that is promised: two election timeouts to settle, what the pace takes for the groups
/// of the slower of two nodes, and one election timeout for all else.
fn promised(groups: u64) -> Duration {
    let config = RaftConfig::try_from(RAFT_DEFAULTS).unwrap();
    let each = Duration::from_secs(1) / config.handover_rate().get();
    let share = u32::try_from(groups.div_ceil(2) + 1).unwrap();
    config.election_timeout() * 3 + each * share
}

#[test]
fn a_node_that_returns_leads_its_share_again_in_the_promised_time_and_keeps_it() {
    for (groups, seed) in [(150, 1), (150, 2), (1500, 3)] {
        let mut world = elected(groups, seed);
        without_node_0(&mut world);
        assert_eq!(led_by(&world, 0), 0);
        world.boot(0);
        let took = world.run_until(promised(groups / 3), is_balanced);
        println!(
            "{} groups were led by node 0 again after {took:?}",
            groups / 3
        );
        assert!(took >= ms(2000), "not before it has settled");
        let begun = sum(&world, |stats| stats.handovers_begun);
        assert_eq!(begun, groups / 3, "each moved once");
        world.run(ms(200));
        assert_eq!(sum(&world, |stats| stats.handovers_finished), begun);
        assert_eq!(sum(&world, |stats| stats.handovers_taken), begun);
        assert_eq!(sum(&world, |stats| stats.handovers_failed), 0);
        let elections = sum(&world, |stats| stats.elected);
        world.run(ms(30_000));
        assert_eq!(sum(&world, |stats| stats.elected), elections, "none moved");
        assert!(is_balanced(&world));
        check_accounts(&world);
    }
}

#[test]
fn leaders_that_are_to_stay_stay() {
    let mut world = World::new(3, 30, 4);
    let stay = RaftConfig::try_from(RawRaftConfig {
        leader_placement: LeaderPlacement::Stay,
        ..RAFT_DEFAULTS
    });
    world.config = stay.unwrap();
    for node in 0..3 {
        world.kill(node);
    }
    for node in 0..3 {
        world.boot(node);
    }
    world.run_until(ms(3000), is_balanced);
    without_node_0(&mut world);
    world.boot(0);
    world.run(ms(20_000));
    assert_eq!(led_by(&world, 0), 0);
}

/// Proposals of all nodes go on while leaders move: each is committed, and none is even refused.
#[test]
fn proposals_that_meet_a_hand_over_are_all_committed() {
    for seed in 20..24 {
        let mut world = elected(30, seed);
        without_node_0(&mut world);
        world.boot(0);
        // The disk takes its time, so that there is always something unfinished.
        world.weather.sync_max = ms(3);
        let mut sent = Sent::new();
        while !is_balanced(&world) {
            for group in world.group_ids() {
                let at = usize::try_from(world.dice.draw() % 3).unwrap();
                propose(&mut world, at, group, 2000, &mut sent);
            }
            world.run(ms(2));
            assert!(sent.len() < 200_000, "balanced in time");
        }
        world.run(ms(500));
        let held = sum(&world, |stats| stats.handover_proposals_held);
        println!("{} proposals, {held} of them met a hand-over", sent.len());
        assert!(held > 0);
        assert_eq!(sum(&world, |stats| stats.handovers_failed), 0);
        for (group, id, _) in &sent {
            let outcome = world.outcomes.get(id);
            let committed = matches!(outcome, Some(Outcome::Committed { .. }));
            assert!(committed, "group {group}: {outcome:?}");
        }
        let all = sent.len();
        settle(world, &sent, all);
    }
}

#[test]
fn lost_and_repeated_frames_during_hand_overs_give_no_false_outcome() {
    for seed in 30..34 {
        let mut world = elected(12, seed);
        let mut sent = Sent::new();
        for round in 0..3 {
            world.kill(round);
            world.run(ms(1500));
            world.boot(round);
            world.weather = Weather {
                lose: 60,
                duplicate: 200,
                delay_max: ms(15),
                sync_max: ms(5),
            };
            for _ in 0..80 {
                for group in world.group_ids() {
                    let at = usize::try_from(world.dice.draw() % 3).unwrap();
                    propose(&mut world, at, group, 1500, &mut sent);
                }
                world.run(ms(50));
            }
            world.weather = CALM;
        }
        let begun = sum(&world, |stats| stats.handovers_begun);
        println!("{begun} hand-overs begun");
        assert!(begun > 0);
        let least = sent.len() / 2;
        settle(world, &sent, least);
    }
}

#[test]
fn nothing_is_handed_to_a_node_that_lacks_much() {
    let mut world = elected(6, 40);
    without_node_0(&mut world);
    for _ in 0..=HANDOVER_LAG_ENTRIES_MAX {
        for group in world.group_ids() {
            let leader = world.leader(group).unwrap();
            world.propose_at(leader, group, ms(2000)).unwrap();
        }
        world.run(ms(2));
    }
    // It answers rounds, and makes nothing durable of what it is sent.
    world.stuck_disks.insert(0);
    world.boot(0);
    world.run(ms(10_000));
    assert_eq!(sum(&world, |stats| stats.handovers_begun), 0);
    assert_eq!(led_by(&world, 0), 0);
    world.stuck_disks.clear();
    world.run_until(promised(6), is_balanced);
}

/// A node that stores no vote can't take over. Proposals wait for each attempt and then go on; the
/// attempts get rarer.
#[test]
fn a_hand_over_that_fails_is_given_up_and_tried_ever_more_rarely() {
    let mut world = elected(1, 41);
    let group = GroupId::new(1);
    assert_eq!(preferred(group), 1);
    world.kill(1);
    world.run(ms(2500));
    world.boot(1);
    world.run(ms(1000));
    world.stuck_disks.insert(1);
    let mut sent = Vec::new();
    for _ in 0..600 {
        let leader = world.leader(group).unwrap();
        let (id, _) = world.propose_at(leader, group, ms(5000)).unwrap();
        sent.push(id);
        world.run(ms(100));
    }
    let failed = sum(&world, |stats| stats.handovers_failed);
    println!("{failed} attempts in a minute");
    assert!((2..=7).contains(&failed), "{failed}");
    world.run(ms(5000));
    for id in sent {
        let outcome = world.outcomes.get(&id);
        assert!(
            matches!(outcome, Some(Outcome::Committed { .. })),
            "{outcome:?}"
        );
    }
    check_accounts(&world);
}

/// A node that goes again soon after each return: its groups follow it ever more rarely.
#[test]
fn a_node_that_comes_and_goes_is_handed_its_groups_ever_more_rarely() {
    let mut world = elected(30, 42);
    let begun = |world: &World| sum(world, |stats| stats.handovers_begun);
    for _ in 0..12 {
        without_node_0(&mut world);
        world.boot(0);
        world.run(ms(4000));
    }
    let came = begun(&world);
    println!("{came} hand-overs of 10 groups in 12 returns");
    assert!((10..=20).contains(&came), "{came}");
    let long = Duration::from_secs(70);
    world.run_until(long, is_balanced);
    world.run(long);
    assert!(is_balanced(&world));
}

/// Leadership that somebody asked for holds until it ends, wherever the group is preferred.
#[test]
fn who_was_asked_to_lead_leads_until_its_leadership_ends() {
    let mut world = elected(3, 43);
    let group = GroupId::new(1);
    let (old, asked) = (1, 2);
    world.with(old, |core, now| {
        core.transfer_leader(now, group, replica(asked)).unwrap();
    });
    world.run_until(ms(100), |world| world.leader(group) == Some(asked));
    world.run(ms(60_000));
    assert_eq!(world.leader(group), Some(asked));
    // And back by the same way.
    world.with(asked, |core, now| {
        core.transfer_leader(now, group, replica(old)).unwrap();
    });
    world.run_until(ms(100), |world| world.leader(group) == Some(old));
    // Whoever leads by election, not by request, hands over.
    world.with(old, |core, now| {
        core.transfer_leader(now, group, replica(asked)).unwrap();
    });
    world.run_until(ms(100), |world| world.leader(group) == Some(asked));
    world.kill(asked);
    world.run(ms(2500));
    world.boot(asked);
    world.run_until(promised(3), is_balanced);
}

#[test]
fn a_request_to_a_node_out_of_reach_is_refused_and_one_to_a_stuck_node_is_given_up() {
    let mut world = elected(1, 44);
    let group = GroupId::new(1);
    let leader = preferred(group);
    let (gone, stuck) = ((leader + 1) % 3, (leader + 2) % 3);
    world.kill(gone);
    world.run(ms(20));
    world.with(leader, |core, now| {
        let refused = core.transfer_leader(now, group, replica(gone));
        assert_eq!(refused, Err(Refusal::OutOfReach(replica(gone))));
        core.transfer_leader(now, group, replica(leader)).unwrap();
    });
    world.boot(gone);
    world.run(ms(100));
    world.stuck_disks.insert(stuck);
    world.propose_at(leader, group, ms(1000)).unwrap();
    world.with(leader, |core, now| {
        core.transfer_leader(now, group, replica(stuck)).unwrap();
    });
    // One has no time to wait for it, the other does; neither was handed to Raft meanwhile.
    let (short, _) = world.propose_at(leader, group, ms(200)).unwrap();
    let (long, _) = world.propose_at(leader, group, ms(3000)).unwrap();
    world.run(ms(210));
    let why = Refusal::Transferring;
    assert_eq!(world.outcomes[&short], Outcome::Refused { why });
    assert!(!world.outcomes.contains_key(&long));
    world.run(ms(500));
    let outcome = &world.outcomes[&long];
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    assert_eq!(sum(&world, |stats| stats.handovers_failed), 1);
    assert_eq!(world.leader(group), Some(leader));
    check_accounts(&world);
}

/// What was proposed for this node alone is told who leads now; a stop refuses what waits.
#[test]
fn what_waits_and_may_not_be_forwarded_is_refused_with_the_new_leader_or_at_the_stop() {
    let mut world = elected(2, 45);
    let (first, second) = (GroupId::new(1), GroupId::new(2));
    for group in [first, second] {
        let leader = preferred(group);
        world.propose_at(leader, group, ms(1000)).unwrap();
        world.with(leader, |core, now| {
            core.transfer_leader(now, group, replica(0)).unwrap();
        });
    }
    let (here, _) = world.propose_at(1, first, ms(3000)).unwrap();
    let (stopped, _) = world.propose_at(2, second, ms(3000)).unwrap();
    world.with(2, |core, _| core.stop());
    let why = Refusal::Stopped;
    assert_eq!(world.outcomes[&stopped], Outcome::Refused { why });
    world.run(ms(100));
    assert!(
        matches!(
            world.outcomes[&here],
            Outcome::Refused {
                why: Refusal::NotLeader { .. }
            }
        ),
        "{:?}",
        world.outcomes[&here]
    );
}

/// A leader that is deposed before it was done hands nothing on that was Raft's already.
#[test]
fn what_raft_has_when_leadership_is_lost_is_in_doubt_and_the_rest_goes_on() {
    let mut world = elected(1, 46);
    let group = GroupId::new(1);
    let leader = preferred(group);
    for peer in (0..3).filter(|peer| *peer != leader) {
        world.stuck_disks.insert(peer);
    }
    let (raft_has, _) = world.propose_at(leader, group, ms(9000)).unwrap();
    world.with(leader, |core, now| {
        let to = replica((leader + 1) % 3);
        core.transfer_leader(now, group, to).unwrap();
    });
    let within = ms(9000);
    let waits = world.propose_as(leader, group, within, Forwarding::Allowed);
    let (waits, data) = waits.unwrap();
    for peer in (0..3).filter(|peer| *peer != leader) {
        world.link(leader, peer, false);
    }
    world.stuck_disks.clear();
    world.run(ms(4000));
    let status = world.nodes[leader].as_ref().unwrap().core.status(group);
    assert_ne!(status.unwrap().role, Role::Leader);
    let why = UnknownCause::LeadershipLost;
    assert_eq!(world.outcomes[&raft_has], Outcome::Unknown { why });
    for peer in (0..3).filter(|peer| *peer != leader) {
        world.link(leader, peer, true);
    }
    world.run(ms(2000));
    let acked: Vec<(GroupId, Bytes)> = match &world.outcomes[&waits] {
        Outcome::Committed { .. } => vec![(group, data)],
        Outcome::Refused { .. } | Outcome::NotDurable { .. } => Vec::new(),
        // Its hand-over was given up with the link, and it was Raft's from then on.
        Outcome::Unknown { why } => {
            assert_eq!(*why, UnknownCause::LeadershipLost);
            Vec::new()
        }
    };
    world.check_converged(&acked);
}
