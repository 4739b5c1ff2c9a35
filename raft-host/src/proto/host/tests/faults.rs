//! Lost, late, repeated and reordered frames, kills, restarts from what is durable alone, and the
//! safety rules' schedules.

use std::time::Duration;

use bytes::Bytes;

use super::world::{CALM, Weather, World, ms, node_id, replica};
use crate::error::Outcome;
use crate::id::{Boot, GroupId, Index, ProposalId, ReplicaId, SendId, ShardId, Term};
use crate::proto::host::{Lane, SendEnd, Taken};
use crate::proto::wire::{BodyWriter, GroupBody, GroupMessage, Header, Item};

const STORM: Weather = Weather {
    lose: 100,
    duplicate: 100,
    delay_max: Duration::from_millis(20),
    sync_max: Duration::from_millis(5),
};

/// Proposes at whoever leads, a few to each group, and returns what was sent.
fn propose_some(world: &mut World, sent: &mut Vec<(GroupId, ProposalId, Bytes)>) {
    for group in world.group_ids() {
        let Some(leader) = world.leader(group) else {
            continue;
        };
        for _ in 0..2 {
            if let Ok((id, data)) = world.propose_at(leader, group, ms(1500)) {
                sent.push((group, id, data));
            }
        }
    }
}

fn acknowledged(world: &World, sent: &[(GroupId, ProposalId, Bytes)]) -> Vec<(GroupId, Bytes)> {
    let committed = |id| matches!(world.outcomes.get(id), Some(Outcome::Committed { .. }));
    let acked = sent.iter().filter(|(_, id, _)| committed(id));
    acked
        .map(|(group, _, data)| (*group, data.clone()))
        .collect()
}

/// What every run must show: each proposal ended, nothing acknowledged is lost, all replicas equal.
fn settle(mut world: World, sent: &[(GroupId, ProposalId, Bytes)], least: usize) {
    world.weather = CALM;
    world.run_until(ms(5000), World::all_led);
    world.run(ms(1600));
    let acked = acknowledged(&world, sent);
    println!(
        "{} of {} acknowledged, {} acks",
        acked.len(),
        sent.len(),
        world.acks_sent
    );
    assert!(
        acked.len() >= least,
        "{} of {} acknowledged",
        acked.len(),
        sent.len()
    );
    world.check_converged(&acked);
}

fn storm(seed: u64) {
    let mut world = World::new(3, 12, seed);
    world.run_until(ms(3000), World::all_led);
    world.weather = STORM;
    let mut sent = Vec::new();
    for _ in 0..40 {
        propose_some(&mut world, &mut sent);
        world.run(ms(50));
    }
    settle(world, &sent, sent.len() / 2);
}

#[test]
fn lost_repeated_and_reordered_frames_lose_nothing() {
    for seed in 20..26 {
        storm(seed);
    }
}

/// Nodes are killed and started from their durable state alone, one after the other, under load.
/// The node's frames are checked against its durable state all the while (`World::check`): an ack
/// or vote that leaves before its sync fails here (mutant `ack_before_stored`).
fn kills(seed: u64) {
    let mut world = World::new(3, 12, seed);
    world.run_until(ms(3000), World::all_led);
    world.weather = Weather { lose: 20, ..STORM };
    let mut sent = Vec::new();
    for round in 0..9 {
        let victim = round % 3;
        for _ in 0..4 {
            propose_some(&mut world, &mut sent);
            world.run(ms(20));
        }
        world.kill(victim);
        for _ in 0..20 {
            propose_some(&mut world, &mut sent);
            world.run(ms(80));
        }
        world.boot(victim);
        world.run(ms(300));
    }
    // Those that waited at a node that was killed have no outcome: it is gone with them.
    settle(world, &sent, sent.len() / 3);
}

#[test]
fn killed_nodes_come_back_from_what_is_durable_alone() {
    for seed in 30..34 {
        kills(seed);
    }
}

#[test]
fn all_nodes_killed_at_once_come_back_by_themselves() {
    for seed in 40..44 {
        let mut world = World::new(3, 20, seed);
        world.run_until(ms(3000), World::all_led);
        world.weather = Weather { lose: 0, ..STORM };
        let mut sent = Vec::new();
        for _ in 0..5 {
            propose_some(&mut world, &mut sent);
            world.run(ms(15));
        }
        for node in 0..3 {
            world.kill(node);
        }
        world.run(ms(50));
        for node in 0..3 {
            world.boot(node);
        }
        let took = world.run_until(ms(2000), World::all_led);
        println!("cold restart took {took:?}");
        settle(world, &sent, 1);
    }
}

/// The deciding line of C1: a follower whose disk makes nothing durable acks nothing, whatever it
/// has taken, and what it held leaves once the disk moves. The leader commits by the other.
#[test]
fn acks_leave_only_after_the_write_is_stored() {
    let mut world = World::new(3, 3, 50);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let group = GroupId::new(1);
    let leader = world.leader(group).unwrap();
    let (slow, other) = ((leader + 1) % 3, (leader + 2) % 3);
    world.stuck_disks.insert(slow);
    let (id, _) = world.propose_at(leader, group, ms(1500)).unwrap();
    world.run(ms(300));
    let Some(Outcome::Committed { index, .. }) = world.outcomes.get(&id).cloned() else {
        panic!("a quorum of two commits")
    };
    let matched = |world: &World, at| {
        world.nodes[leader]
            .as_ref()
            .unwrap()
            .core
            .matched(group, replica(at))
            .unwrap()
    };
    assert!(matched(&world, other) >= index);
    assert!(matched(&world, slow) < index);
    world.stuck_disks.clear();
    world.run(ms(300));
    assert!(matched(&world, slow) >= index);
}

/// C2: the leader's own disk is no exception: with both followers' acks missing, or with its own
/// sync and one follower's missing, nothing commits.
#[test]
fn nothing_commits_on_one_durable_copy() {
    let mut world = World::new(3, 1, 51);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let group = GroupId::new(1);
    let leader = world.leader(group).unwrap();
    world.stuck_disks.extend([leader, (leader + 1) % 3]);
    let (id, _) = world.propose_at(leader, group, ms(2000)).unwrap();
    world.run(ms(500));
    assert_eq!(world.outcomes.get(&id), None);
    // The leader's sync still missing, both followers' done: committed without the leader's disk,
    // and applied there once it has the entry durably too.
    world.stuck_disks.remove(&((leader + 1) % 3));
    world.run(ms(200));
    let at = world.nodes[leader]
        .as_ref()
        .unwrap()
        .core
        .status(group)
        .unwrap();
    assert_eq!(at.commit, at.last);
    assert_eq!(world.outcomes.get(&id), None);
    world.stuck_disks.clear();
    world.run(ms(50));
    assert!(matches!(
        world.outcomes.get(&id),
        Some(Outcome::Committed { .. })
    ));
}

fn body_of(message: GroupMessage) -> Bytes {
    let mut writer = BodyWriter::new(ShardId::new(0), 4096);
    assert!(writer.try_push(&Item::Group(message)));
    writer.finish()
}

/// Safety 7: a replica id that isn't the one standing there has no effect, whatever it says.
#[test]
fn another_replica_id_has_no_effect() {
    let mut world = World::new(3, 1, 52);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let group = GroupId::new(1);
    let leader = world.leader(group).unwrap();
    let peer = (leader + 1) % 3;
    let before = world.nodes[leader]
        .as_ref()
        .unwrap()
        .core
        .status(group)
        .unwrap();
    let old = ReplicaId::new(replica(peer).to_u64() + 100);
    let cases = [
        (old, replica(leader)),
        (replica(peer), old),
        (replica((leader + 2) % 3), replica(leader)),
    ];
    for (from, to) in cases {
        let header = Header {
            group,
            from,
            to,
            term: Term::new(99),
        };
        for body in [
            GroupBody::Ack {
                index: before.last,
                commit: before.commit,
            },
            GroupBody::Vote {
                last_index: Index::new(99),
                last_term: Term::new(99),
                transfer: true,
            },
            GroupBody::VoteAnswer { granted: true },
        ] {
            let body = body_of(GroupMessage { header, body });
            world.with(leader, |core, now| {
                let taken = core.on_frame(now, node_id(peer), Lane::Control, body);
                assert_eq!(taken, Taken::Yes { answer: None });
            });
        }
    }
    let core = &world.nodes[leader].as_ref().unwrap().core;
    assert_eq!(core.status(group).unwrap(), before);
    assert_eq!(core.stats().messages_void, 9);
}

#[test]
fn an_ack_beyond_the_log_is_a_fault_of_the_peer_and_has_no_effect() {
    let mut world = World::new(3, 1, 53);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let group = GroupId::new(1);
    let leader = world.leader(group).unwrap();
    let peer = (leader + 1) % 3;
    let status = world.nodes[leader]
        .as_ref()
        .unwrap()
        .core
        .status(group)
        .unwrap();
    let header = Header {
        group,
        from: replica(peer),
        to: replica(leader),
        term: status.term,
    };
    let index = Index::new(status.last.to_u64() + 1);
    let body = body_of(GroupMessage {
        header,
        body: GroupBody::Ack {
            index,
            commit: index,
        },
    });
    world.with(leader, |core, now| {
        let taken = core.on_frame(now, node_id(peer), Lane::Control, body);
        assert!(matches!(taken, Taken::Bad(_)), "{taken:?}");
    });
    assert_eq!(
        world.nodes[leader].as_ref().unwrap().core.status(group),
        Some(status)
    );
}

/// Safety 24: an append whose frame ended otherwise than `Replied` is reported to Raft, once for
/// its group; the follower is probed and gets the entry although nothing else is ever proposed.
#[test]
fn a_failed_append_is_reported_once_and_sent_again() {
    let mut world = World::new(3, 1, 54);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let group = GroupId::new(1);
    let leader = world.leader(group).unwrap();
    let peer = (leader + 1) % 3;
    world.cut.insert((leader, peer));
    let (id, _) = world.propose_at(leader, group, ms(1500)).unwrap();
    world.run(ms(20));
    world.cut.clear();
    world.run(ms(400));
    assert!(matches!(
        world.outcomes.get(&id),
        Some(Outcome::Committed { .. })
    ));
    let core = &world.nodes[leader].as_ref().unwrap().core;
    assert_eq!(core.stats().unreachable, 1);
    assert_eq!(
        core.matched(group, replica(peer)),
        Some(core.status(group).unwrap().last)
    );
    // A second end of the same frame says nothing new.
    world.with(leader, |core, now| {
        core.on_send_ended(now, node_id(peer), SendId::new(1), SendEnd::Failed);
        assert_eq!(core.stats().unreachable, 1);
    });
}

#[test]
fn bytes_that_are_no_body_and_bodies_on_the_wrong_lane_are_refused() {
    let mut world = World::new(3, 1, 55);
    world.run_until(ms(3000), World::all_led);
    let group = GroupId::new(1);
    let header = Header {
        group,
        from: replica(1),
        to: replica(0),
        term: Term::new(1),
    };
    let vote = body_of(GroupMessage {
        header,
        body: GroupBody::VoteAnswer { granted: true },
    });
    world.with(0, |core, now| {
        let bad = |taken| matches!(taken, Taken::Bad(_));
        assert!(bad(core.on_frame(now, node_id(1), Lane::Bulk, vote)));
        let nested = Bytes::from(vec![0x0b; 1000]);
        assert!(bad(core.on_frame(
            now,
            node_id(1),
            Lane::Bulk,
            nested.clone()
        )));
        assert!(core.on_round_answer(now, node_id(1), nested).is_err());
    });
}

/// Safety 8: answers and rounds of another life of the peer count nothing.
#[test]
fn a_body_of_another_boot_is_refused() {
    let mut world = World::new(3, 1, 56);
    world.run_until(ms(3000), World::all_led);
    let answer = crate::proto::wire::RoundAnswer {
        round: crate::id::Round::new(1),
        part: 0,
        from_boot: Boot::new(7),
        to_boot: Boot::new(1001),
        verdict: crate::proto::wire::Verdict::Taken(Vec::new()),
    };
    let mut writer = BodyWriter::new(ShardId::new(0), 4096);
    assert!(writer.try_push(&Item::Answer(answer)));
    let body = writer.finish();
    world.with(0, |core, now| {
        assert!(core.on_round_answer(now, node_id(1), body).is_err());
    });
}

/// The log may go where every member and the state machine have it, and not before.
#[test]
fn the_log_is_compacted_behind_the_slowest_member_only() {
    let mut world = World::new(3, 1, 57);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let group = GroupId::new(1);
    let leader = world.leader(group).unwrap();
    let slow = (leader + 1) % 3;
    let fill = |world: &mut World| {
        for _ in 0..60 {
            for _ in 0..20 {
                world.propose_at(leader, group, ms(1000)).unwrap();
            }
            world.run(ms(10));
        }
    };
    world.link(leader, slow, false);
    world.link((leader + 2) % 3, slow, false);
    fill(&mut world);
    let compacted = |world: &World, at: usize| {
        world.nodes[at]
            .as_ref()
            .unwrap()
            .core
            .status(group)
            .unwrap()
            .compacted
            .to_u64()
    };
    assert_eq!(compacted(&world, leader), 0);
    world.link(leader, slow, true);
    world.link((leader + 2) % 3, slow, true);
    world.run(ms(500));
    fill(&mut world);
    world.run(ms(300));
    for at in 0..3 {
        assert!(
            compacted(&world, at) > 1000,
            "node {at}: {}",
            compacted(&world, at)
        );
    }
    // And what is left is enough to start from.
    world.kill(slow);
    world.run(ms(100));
    world.boot(slow);
    world.check_converged(&[]);
}

/// Safety 5a: a follower answered its leader's round, was killed and is back at once: until the
/// longest lease has run out it gives its vote to nobody.
#[test]
fn a_node_back_from_a_restart_keeps_silent_about_votes() {
    let mut world = World::new(3, 1, 58);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let group = GroupId::new(1);
    let leader = world.leader(group).unwrap();
    let (voter, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let raw = crate::config::RawRaftConfig {
        restart_silence_ms: 500,
        ..crate::config::RAFT_DEFAULTS
    };
    world.config = crate::config::RaftConfig::try_from(raw).unwrap();
    world.kill(voter);
    world.run(ms(2));
    // Alone with the candidate: the leader is not heard again.
    world.cut.insert((leader, voter));
    world.boot(voter);
    world.cut.insert((leader, voter));
    world.run(ms(5));
    let status = world.nodes[other]
        .as_ref()
        .unwrap()
        .core
        .status(group)
        .unwrap();
    let ask = |world: &mut World| {
        let (last_index, last_term) = (status.last, status.term);
        let term = Term::new(status.term.to_u64() + 5);
        let header = Header {
            group,
            from: replica(other),
            to: replica(voter),
            term,
        };
        let body = GroupBody::Vote {
            last_index,
            last_term,
            transfer: false,
        };
        let body = body_of(GroupMessage { header, body });
        world.with(voter, |core, now| {
            core.on_frame(now, node_id(other), Lane::Control, body);
        });
        world.run(ms(10));
        world.nodes[voter]
            .as_ref()
            .unwrap()
            .core
            .status(group)
            .unwrap()
            .term
    };
    assert_eq!(ask(&mut world), status.term, "within the silence");
    world.run(ms(500));
    assert!(ask(&mut world) > status.term, "after it");
}
