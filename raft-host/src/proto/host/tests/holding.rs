//! An embedder that copies what is committed to somewhere else: logs are kept until released, at
//! every member, what is read is what was applied, and proposals wait in order while it is behind.

use bytes::Bytes;

use super::world::{World, ms};
use crate::error::{Outcome, Refusal};
use crate::id::{GroupId, Index, ProposalId};
use crate::log::api::{LogEntry, ReadError};
use crate::proto::delayed::Admission;
use crate::proto::host::Forwarding;

const GROUP: GroupId = GroupId::new(1);

fn elected(seed: u64) -> (World, usize) {
    let mut world = World::new(3, 1, seed);
    for at in 0..3 {
        world.with(at, |core, _| core.hold_logs());
    }
    world.run_until(ms(3000), World::all_led);
    world.run(ms(300));
    let leader = world.leader(GROUP).unwrap();
    (world, leader)
}

fn fill(world: &mut World, leader: usize) {
    for _ in 0..60 {
        for _ in 0..20 {
            world.propose_at(leader, GROUP, ms(1000)).unwrap();
        }
        world.run(ms(10));
    }
    world.run(ms(300));
}

fn compacted(world: &World, at: usize) -> u64 {
    let core = &world.nodes[at].as_ref().unwrap().core;
    core.status(GROUP).unwrap().compacted.to_u64()
}

/// Everything committed from `first` on, read in small pieces.
fn read(world: &World, at: usize, first: u64) -> Result<Vec<LogEntry>, ReadError> {
    let core = &world.nodes[at].as_ref().unwrap().core;
    let mut all: Vec<LogEntry> = Vec::new();
    loop {
        let next = all
            .last()
            .map_or(Index::new(first), |entry| entry.index.next());
        let part = core.committed(GROUP, next, 100).unwrap()?;
        if let Some(last) = all.last() {
            assert_eq!(part.term_before, last.term);
        }
        if part.entries.is_empty() {
            return Ok(all);
        }
        all.extend(part.entries);
    }
}

#[test]
fn a_held_log_forgets_only_what_was_released_and_does_so_everywhere() {
    let (mut world, leader) = elected(91);
    fill(&mut world, leader);
    for at in 0..3 {
        assert_eq!(compacted(&world, at), 0, "node {at}");
    }
    let release = |core: &mut crate::proto::host::HostCore<_>, now| {
        core.release_log(now, GROUP, Index::new(700));
    };
    world.with(leader, release);
    world.run(ms(300));
    fill(&mut world, leader);
    for at in 0..3 {
        let through = compacted(&world, at);
        assert!((400..=700).contains(&through), "node {at}: {through}");
    }
    // Whoever leads next can go on from there.
    world.kill(leader);
    world.run_until(ms(4000), |world| {
        world.leader(GROUP).is_some_and(|at| at != leader)
    });
    world.run(ms(300));
    let next = world.leader(GROUP).unwrap();
    assert_eq!(read(&world, next, 701).unwrap()[0].index, Index::new(701));
    fill(&mut world, next);
    assert!(compacted(&world, next) <= 700);
}

#[test]
fn what_is_read_is_what_was_applied() {
    let (mut world, leader) = elected(92);
    fill(&mut world, leader);
    let commands = world.nodes[leader].as_ref().unwrap().machines[&GROUP]
        .commands
        .clone();
    for at in 0..3 {
        let entries = read(&world, at, 1).unwrap();
        let indexes = entries.iter().map(|entry| entry.index.to_u64());
        assert!(indexes.eq(1..=entries.len() as u64));
        let data = entries.into_iter().map(|entry| entry.data);
        let data: Vec<Bytes> = data.filter(|data| !data.is_empty()).collect();
        assert_eq!(data, commands, "node {at}");
    }
    let core = &world.nodes[leader].as_ref().unwrap().core;
    let last = core.status(GROUP).unwrap().last;
    for beyond in [last.next(), Index::new(last.to_u64() + 10)] {
        let part = core.committed(GROUP, beyond, 100).unwrap().unwrap();
        assert!(part.entries.is_empty());
    }
    assert!(core.committed(GroupId::new(9), last, 100).is_none());
    let led: Vec<_> = core.led().map(|led| (led.group, led.commit)).collect();
    assert_eq!(led, [(GROUP, last)]);
}

#[test]
fn what_the_log_has_forgotten_is_named() {
    let (mut world, leader) = elected(93);
    fill(&mut world, leader);
    world.with(leader, |core, now| {
        core.release_log(now, GROUP, Index::new(1000));
    });
    fill(&mut world, leader);
    let first = Index::new(compacted(&world, leader) + 1);
    assert!(first > Index::new(1));
    let error = read(&world, leader, 1).unwrap_err();
    let index = Index::new(0);
    assert_eq!(error, ReadError::Compacted { index, first });
}

fn ask(world: &mut World, at: usize) -> ProposalId {
    let asked = world.propose_as(at, GROUP, ms(5000), Forwarding::Allowed);
    asked.unwrap().0
}

fn set(world: &mut World, at: usize, admission: Admission) {
    world.with(at, |core, now| core.set_admission(now, admission));
}

fn check_accounts(world: &World) {
    for node in world.nodes.iter().flatten() {
        assert_eq!(node.core.delayed_len(), 0);
        assert_eq!(node.core.remote_waiting(), 0);
        assert_eq!(node.core.proposal_bytes(), 0);
    }
}

#[test]
fn delayed_proposals_go_on_in_their_order_wherever_they_were_made() {
    let (mut world, leader) = elected(94);
    let at_most = ms(3000);
    set(&mut world, leader, Admission::Delay { at_most });
    let mut asked = Vec::new();
    for step in 0..12 {
        asked.push(ask(&mut world, (leader + step) % 3));
        // So long that each has reached the leader before the next is made.
        world.run(ms(20));
    }
    assert!(asked.iter().all(|id| !world.outcomes.contains_key(id)));
    set(&mut world, leader, Admission::Open);
    asked.push(ask(&mut world, leader));
    world.run(ms(200));
    let indexes = asked.iter().map(|id| {
        let outcome = &world.outcomes[id];
        let Outcome::Committed { index, .. } = outcome else {
            panic!("{outcome:?}");
        };
        *index
    });
    assert!(indexes.is_sorted());
    check_accounts(&world);
}

#[test]
fn who_waited_long_enough_is_refused_by_name_and_without_effect() {
    let (mut world, leader) = elected(95);
    let at_most = ms(400);
    let before = world.nodes[leader].as_ref().unwrap().machines[&GROUP]
        .commands
        .len();
    set(&mut world, leader, Admission::Delay { at_most });
    let here = ask(&mut world, leader);
    let there = ask(&mut world, (leader + 1) % 3);
    world.run(ms(300));
    assert!(world.outcomes.is_empty(), "not before its time");
    world.run(ms(300));
    let why = Refusal::Backlogged;
    for id in [here, there] {
        assert_eq!(world.outcomes[&id], Outcome::Refused { why });
    }
    set(&mut world, leader, Admission::Refuse);
    let refused = world.propose_at(leader, GROUP, ms(1000));
    assert_eq!(refused.unwrap_err(), why);
    let there = ask(&mut world, (leader + 1) % 3);
    world.run(ms(100));
    assert_eq!(world.outcomes[&there], Outcome::Refused { why });
    set(&mut world, leader, Admission::Open);
    world.run(ms(500));
    let after = world.nodes[leader].as_ref().unwrap().machines[&GROUP]
        .commands
        .len();
    assert_eq!(after, before);
    check_accounts(&world);
}

#[test]
fn at_the_end_those_that_wait_are_refused() {
    let (mut world, leader) = elected(96);
    let at_most = ms(3000);
    set(&mut world, leader, Admission::Delay { at_most });
    let waiting = ask(&mut world, leader);
    world.with(leader, |core, _| core.stop());
    let why = Refusal::Stopped;
    assert_eq!(world.outcomes[&waiting], Outcome::Refused { why });
}
