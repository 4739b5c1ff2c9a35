//! Proposals made where another node leads: their outcome comes back, lost or repeated frames and
//! leaders that change midway give no false one, and what is refused has no effect anywhere.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::world::{CALM, Weather, World, ms, node_id, replica};
use crate::error::{Outcome, Refusal, UnknownCause};
use crate::id::{GroupId, ProposalId};
use crate::limits::{FORWARDS_MAX, PROPOSAL_BYTES_MAX};
use crate::proto::host::{Forwarding, HostStats, OutFrame, SendEnd};
use crate::proto::waiters::Policy;

const GROUP: GroupId = GroupId::new(1);

pub(super) type Sent = Vec<(GroupId, ProposalId, Bytes)>;

fn elected(groups: u64, seed: u64) -> World {
    let mut world = World::new(3, groups, seed);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    world
}

pub(super) fn propose(world: &mut World, at: usize, group: GroupId, within: u64, sent: &mut Sent) {
    let proposed = world.propose_as(at, group, ms(within), Forwarding::Allowed);
    if let Ok((id, data)) = proposed {
        sent.push((group, id, data));
    }
}

fn propose_one(world: &mut World, at: usize, within: u64) -> ProposalId {
    let proposed = world.propose_as(at, GROUP, ms(within), Forwarding::Allowed);
    proposed.unwrap().0
}

fn stats(world: &World, at: usize) -> HostStats {
    world.nodes[at].as_ref().unwrap().core.stats()
}

/// At every live node nothing is on its way, and every byte has been given back.
pub(super) fn check_accounts(world: &World) {
    for node in world.nodes.iter().flatten() {
        assert_eq!(node.core.forwards_len(), 0, "forwards without an outcome");
        assert_eq!(node.core.remote_waiting(), 0);
        assert_eq!(node.core.proposal_bytes(), 0);
    }
}

/// What every run must show: nothing acknowledged is lost, nothing that was refused has an effect,
/// nothing was applied twice, and everything that was asked has an outcome.
pub(super) fn settle(mut world: World, sent: &Sent, least: usize) {
    world.weather = CALM;
    world.run_until(ms(8000), World::all_led);
    world.run(ms(3000));
    check_accounts(&world);
    let (mut acked, mut refused) = (Vec::new(), BTreeSet::new());
    for (group, id, data) in sent {
        match world.outcomes.get(id) {
            Some(Outcome::Committed { result, .. }) => {
                assert_eq!(result, data, "each gets its own entry's result");
                acked.push((*group, data.clone()));
            }
            Some(Outcome::Refused { .. }) => {
                refused.insert((*group, data.clone()));
            }
            Some(Outcome::NotDurable { .. } | Outcome::Unknown { .. }) | None => {}
        }
    }
    let (all, count) = (sent.len(), acked.len());
    println!("{count} of {all} acknowledged, {} refused", refused.len());
    assert!(count >= least, "{count} of {all} acknowledged");
    world.check_converged(&acked);
    for node in world.nodes.iter().flatten() {
        for (group, machine) in &node.machines {
            for data in &machine.commands {
                assert!(
                    !refused.contains(&(*group, data.clone())),
                    "refused and applied: {data:?}"
                );
            }
        }
    }
}

#[test]
fn a_proposal_at_any_node_commits_and_its_result_comes_back() {
    let mut world = elected(12, 1);
    let mut sent = Sent::new();
    for group in world.group_ids() {
        for at in 0..3 {
            propose(&mut world, at, group, 1000, &mut sent);
        }
    }
    assert_eq!(sent.len(), 36);
    world.run(ms(50));
    let forwarded: u64 = (0..3).map(|at| stats(&world, at).forwards_sent).sum();
    let taken: u64 = (0..3).map(|at| stats(&world, at).forwards_taken).sum();
    assert_eq!((forwarded, taken), (24, 24));
    settle(world, &sent, 36);
}

#[test]
fn proposals_before_the_first_leader_are_held_until_there_is_one() {
    let mut world = World::new(3, 6, 2);
    let mut sent = Sent::new();
    for group in world.group_ids() {
        for at in 0..3 {
            propose(&mut world, at, group, 5000, &mut sent);
        }
    }
    assert!(stats(&world, 0).forwards_held > 0);
    settle(world, &sent, 18);
}

/// A node that is cut off: whoever asks it is told so, in time and without effect.
#[test]
fn without_a_leader_in_reach_a_proposal_is_refused_by_name_in_time() {
    let mut world = elected(1, 3);
    let leader = world.leader(GROUP).unwrap();
    let lonely = (leader + 1) % 3;
    for peer in (0..3).filter(|peer| *peer != lonely) {
        world.link(lonely, peer, false);
    }
    world.run(ms(5));
    let begin = world.now;
    let long = propose_one(&mut world, lonely, 20_000);
    let short = propose_one(&mut world, lonely, 100);
    let refused = Outcome::Refused {
        why: Refusal::NoLeader,
    };
    world.run_until(ms(120), |world| world.outcomes.contains_key(&short));
    assert_eq!(world.outcomes[&short], refused);
    let held = world.config.election_timeout() * 3 / 2;
    world.run_until(held + ms(20), |world| world.outcomes.contains_key(&long));
    assert_eq!(world.outcomes[&long], refused);
    assert!(world.now - begin >= held, "not before its time");
    check_accounts(&world);
}

#[test]
fn lost_repeated_and_reordered_frames_give_no_false_outcome() {
    for seed in 60..66 {
        let mut world = elected(6, seed);
        world.weather = Weather {
            lose: 100,
            duplicate: 300,
            delay_max: Duration::from_millis(20),
            sync_max: Duration::from_millis(5),
        };
        let mut sent = Sent::new();
        for _ in 0..30 {
            for group in world.group_ids() {
                let at = usize::try_from(world.dice.draw() % 3).unwrap();
                propose(&mut world, at, group, 1500, &mut sent);
            }
            world.run(ms(50));
        }
        settle(world, &sent, sent.len() / 2);
    }
}

#[test]
fn a_frame_that_comes_twice_is_proposed_once() {
    let mut world = elected(3, 5);
    world.weather = Weather {
        duplicate: 1000,
        ..CALM
    };
    let mut sent = Sent::new();
    for _ in 0..20 {
        for group in world.group_ids() {
            for at in 0..3 {
                propose(&mut world, at, group, 1000, &mut sent);
            }
        }
        world.run(ms(5));
    }
    settle(world, &sent, 180);
}

/// Leaders are killed while proposals are on their way to them.
#[test]
fn leaders_that_die_midway_give_no_false_outcome() {
    for seed in 70..76 {
        let mut world = elected(6, seed);
        let mut sent = Sent::new();
        for round in 0..6 {
            let victim = round % 3;
            for step in 0..30 {
                for group in world.group_ids() {
                    let at = (victim + 1 + step % 2) % 3;
                    propose(&mut world, at, group, 3000, &mut sent);
                }
                if step == 9 {
                    world.kill(victim);
                }
                world.run(if step < 10 { ms(1) } else { ms(100) });
            }
            world.boot(victim);
            world.run(ms(500));
        }
        settle(world, &sent, sent.len() / 3);
    }
}

/// Who was the leader says that it isn't; nothing is sent on from there, and the forwarder asks the
/// new one once it knows it.
#[test]
fn whoever_no_longer_leads_says_so_and_the_new_leader_is_asked_once_more() {
    let mut world = elected(1, 7);
    let old = world.leader(GROUP).unwrap();
    let (new, third) = ((old + 1) % 3, (old + 2) % 3);
    world.link(new, third, false);
    world.with(old, |core, now| {
        core.transfer_leader(now, GROUP, replica(new)).unwrap();
    });
    world.run_until(ms(300), |world| world.leader(GROUP) == Some(new));
    let known = world.nodes[third].as_ref().unwrap().core.leader_node(GROUP);
    assert_eq!(known, Some(node_id(old)), "it has heard nothing yet");
    let id = propose_one(&mut world, third, 3000);
    world.run(ms(20));
    assert!(!world.outcomes.contains_key(&id));
    assert_eq!(stats(&world, third).forwards_sent, 1);
    assert_eq!(
        stats(&world, old).forwards_sent,
        0,
        "no forward of a forward"
    );
    world.link(new, third, true);
    world.run_until(ms(1000), |world| world.outcomes.contains_key(&id));
    let outcome = &world.outcomes[&id];
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    assert_eq!(stats(&world, third).forwards_sent, 2);
    check_accounts(&world);
}

#[test]
fn without_a_quorum_a_forwarded_proposal_ends_unknown_at_its_deadline() {
    let mut world = elected(1, 8);
    let leader = world.leader(GROUP).unwrap();
    let follower = (leader + 1) % 3;
    for node in 0..3 {
        world.stuck_disks.insert(node);
    }
    let begin = world.now;
    let id = propose_one(&mut world, follower, 200);
    world.run_until(ms(400), |world| world.outcomes.contains_key(&id));
    let why = UnknownCause::Deadline;
    assert_eq!(world.outcomes[&id], Outcome::Unknown { why });
    assert!(world.now - begin >= ms(200));
}

#[test]
fn a_lost_link_ends_what_the_leader_has_taken_as_unknown() {
    let mut world = elected(1, 9);
    let leader = world.leader(GROUP).unwrap();
    let follower = (leader + 1) % 3;
    for node in 0..3 {
        world.stuck_disks.insert(node);
    }
    let id = propose_one(&mut world, follower, 3000);
    world.run(ms(20));
    assert_eq!(stats(&world, leader).forwards_taken, 1);
    world.link(leader, follower, false);
    world.run(ms(5));
    let why = UnknownCause::LinkLost;
    assert_eq!(world.outcomes[&id], Outcome::Unknown { why });
}

/// Takes the bulk frame that a node has for a peer, so that the test says how it ended.
fn take_frame(world: &mut World, at: usize, peer: usize, id: u64) -> OutFrame {
    let mut frame = None;
    let core = &mut world.nodes[at].as_mut().unwrap().core;
    let proposal = crate::proto::host::Proposal {
        id: ProposalId::new(id),
        data: Bytes::from_static(b"by hand"),
        context: Bytes::new(),
        deadline: world.now + ms(1000),
        forwarding: Forwarding::Allowed,
        policy: Policy::Quorum,
    };
    core.propose(world.now, GROUP, proposal).unwrap();
    frame.replace(core.fill_bulk(world.now, node_id(peer), 64 * 1024));
    frame.flatten().expect("a frame with the proposal")
}

#[test]
fn a_frame_proven_unwritten_is_sent_once_more_and_then_refused() {
    let mut world = elected(1, 10);
    let leader = world.leader(GROUP).unwrap();
    let follower = (leader + 1) % 3;
    let first = take_frame(&mut world, follower, leader, 900);
    let peer = node_id(leader);
    let now = world.now;
    let core = &mut world.nodes[follower].as_mut().unwrap().core;
    core.on_send_ended(now, peer, first.id, SendEnd::Untaken);
    let second = core.fill_bulk(now, peer, 64 * 1024).expect("once more");
    assert_ne!(first.body, second.body, "each attempt has its own token");
    core.on_send_ended(now, peer, second.id, SendEnd::Untaken);
    assert_eq!(core.forwards_len(), 0);
    world.with(follower, |_, _| {});
    let why = Refusal::NotTaken { leader: peer };
    let id = ProposalId::new(900);
    assert_eq!(world.outcomes[&id], Outcome::Refused { why });
    check_accounts(&world);
}

#[test]
fn a_stopped_shard_refuses_what_never_left_and_knows_nothing_of_the_rest() {
    let mut world = elected(1, 11);
    let leader = world.leader(GROUP).unwrap();
    let follower = (leader + 1) % 3;
    take_frame(&mut world, follower, leader, 901);
    let core = &mut world.nodes[follower].as_mut().unwrap().core;
    let stays = crate::proto::host::Proposal {
        id: ProposalId::new(902),
        data: Bytes::from_static(b"stays"),
        context: Bytes::new(),
        deadline: world.now + ms(1000),
        forwarding: Forwarding::Allowed,
        policy: Policy::Quorum,
    };
    core.propose(world.now, GROUP, stays).unwrap();
    core.stop();
    world.with(follower, |_, _| {});
    let outcome = |id| world.outcomes[&ProposalId::new(id)].clone();
    let (unknown, refused) = (UnknownCause::Stopped, Refusal::Stopped);
    assert_eq!(outcome(901), Outcome::Unknown { why: unknown });
    assert_eq!(outcome(902), Outcome::Refused { why: refused });
}

#[test]
fn an_answer_of_a_frame_that_was_given_up_changes_nothing() {
    let mut world = elected(1, 12);
    let leader = world.leader(GROUP).unwrap();
    let follower = (leader + 1) % 3;
    let frame = take_frame(&mut world, follower, leader, 903);
    let peer = node_id(leader);
    // The receipt says lost, the link is gone: unknown. The leader got it all the same.
    world.with(follower, |core, now| {
        core.on_peer_lost(now, peer);
        core.on_send_ended(now, peer, frame.id, SendEnd::Failed);
    });
    let unknown = Outcome::Unknown {
        why: UnknownCause::LinkLost,
    };
    assert_eq!(world.outcomes[&ProposalId::new(903)], unknown);
    world.with(leader, |core, now| {
        core.on_frame(
            now,
            node_id(follower),
            crate::proto::host::Lane::Bulk,
            frame.body,
        );
    });
    world.link(follower, leader, true);
    // The rig fails if it ends a second time.
    world.run(ms(300));
    assert_eq!(world.outcomes[&ProposalId::new(903)], unknown);
    check_accounts(&world);
}

#[test]
fn forwards_are_bounded_in_number_and_bytes() {
    let mut world = elected(1, 13);
    let leader = world.leader(GROUP).unwrap();
    let lonely = (leader + 1) % 3;
    for peer in (0..3).filter(|peer| *peer != lonely) {
        world.link(lonely, peer, false);
    }
    world.run(ms(5));
    let now = world.now;
    let core = &mut world.nodes[lonely].as_mut().unwrap().core;
    let mut propose = |id: u64, bytes: usize| {
        let proposal = crate::proto::host::Proposal {
            id: ProposalId::new(10_000 + id),
            data: Bytes::from(vec![1; bytes]),
            context: Bytes::new(),
            deadline: now + ms(500),
            forwarding: Forwarding::Allowed,
            policy: Policy::Quorum,
        };
        core.propose(now, GROUP, proposal)
    };
    let mut id = 0;
    let refused = loop {
        id += 1;
        if let Err(refused) = propose(id, 100 * 1024) {
            break refused;
        }
        assert!(id * 100 * 1024 <= PROPOSAL_BYTES_MAX, "bounded in bytes");
    };
    assert!(matches!(refused, Refusal::NodeBusy { .. }), "{refused}");
    world.run(ms(600));
    check_accounts(&world);
    let now = world.now;
    let core = &mut world.nodes[lonely].as_mut().unwrap().core;
    for id in 0..=FORWARDS_MAX as u64 {
        let proposal = crate::proto::host::Proposal {
            id: ProposalId::new(50_000 + id),
            data: Bytes::from_static(b"x"),
            context: Bytes::new(),
            deadline: now + ms(500),
            forwarding: Forwarding::Allowed,
            policy: Policy::Quorum,
        };
        let proposed = core.propose(now, GROUP, proposal);
        let (waiting, most) = (FORWARDS_MAX, FORWARDS_MAX);
        if id < FORWARDS_MAX as u64 {
            assert_eq!(proposed, Ok(()));
        } else {
            assert_eq!(proposed, Err(Refusal::ForwardsFull { waiting, most }));
        }
    }
    world.run(ms(600));
    check_accounts(&world);
}
