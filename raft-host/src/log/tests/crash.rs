//! The power goes after the k-th operation on a file, for every k of a script that changes
//! segments, recycles them, empties laggards, removes and makes groups anew; whatever of the
//! unsynced survives, everything acked is there, and nothing that wasn't submitted.

use std::collections::BTreeMap;

use super::super::Turn;
use super::super::api::{Change, GroupLog};
use super::super::sim_files::{SimFault, SimFiles, SimOp};
use super::support::{World, hard_state, shown, small, write};
use crate::id::{GroupId, Index, Term};

/// One round of the script. False once the log has failed.
fn round(world: &mut World, round: u64) -> bool {
    let term = round + 1;
    let filler = GroupId::new(2);
    let mut changes = Vec::new();
    // A filler whose old entries die, so that segments are recycled.
    let last = world.naive(filler).last();
    changes.push((filler, write(last + 1, 5, term, 700)));
    if last > KEPT && last - KEPT > world.naive(filler).compacted.0 {
        let through = last - KEPT;
        let of = Term::new(world.naive(filler).term(through));
        changes.push((
            filler,
            Change::Compact {
                through: Index::new(through),
                term: of,
            },
        ));
    }
    // A laggard that is overwritten all the time, also while it is rewritten.
    let laggard = GroupId::new(4);
    let last = world.naive(laggard).last();
    let first = if round.is_multiple_of(3) {
        last + 1
    } else {
        last.saturating_sub(1).max(1)
    };
    changes.push((laggard, write(first, 2, term, 40)));
    // One that comes and goes, and one that only votes.
    let visitor = GroupId::new(3);
    match round % 8 {
        0 => changes.push((visitor, write(1, 3, term, 90))),
        3 => changes.push((visitor, Change::Remove)),
        5 => {
            let (index, term) = (Index::new(round), Term::new(term));
            let hard_state = hard_state(round, 1, round);
            changes.push((
                visitor,
                Change::Reset {
                    index,
                    term,
                    hard_state,
                },
            ));
        }
        7 => changes.push((visitor, Change::Remove)),
        _ => {}
    }
    if round.is_multiple_of(5) {
        let hard_state = Some(hard_state(term, 2, 0));
        changes.push((
            GroupId::new(5),
            Change::Write {
                hard_state,
                entries: Vec::new(),
            },
        ));
    }
    for (group, change) in changes {
        if world.stage(group, change).is_err() {
            return false;
        }
    }
    world.flush().is_ok() && !matches!(world.settle(), Turn::Failed)
}

const ROUNDS: u64 = 48;
/// Entries the filler keeps: two segments of them, so that laggards are worth rewriting.
const KEPT: u64 = 45;

fn script(files: &SimFiles) -> Option<World> {
    let mut world = World::open(files, small()).ok()?;
    for at in 0..ROUNDS {
        if !round(&mut world, at) {
            return Some(world);
        }
    }
    Some(world)
}

#[test]
fn the_script_recycles_segments_and_rewrites_laggards() {
    let files = SimFiles::new();
    let world = script(&files).unwrap();
    world.check_views();
    let mut starts: BTreeMap<String, u64> = BTreeMap::new();
    for op in files.trace() {
        if let SimOp::Write {
            file, offset: 0, ..
        } = op
            && file.ends_with(".log")
        {
            *starts.entry(file).or_default() += 1;
        }
    }
    assert!(
        starts.values().any(|uses| *uses > 1),
        "no segment was used again: {starts:?}"
    );
    let state = world.driver.engine_for_tests().shared().lock();
    let epochs: Vec<_> = state.index.segments().map(|(epoch, _)| epoch).collect();
    assert!(
        epochs.len() < 8 && epochs[0] > 3,
        "the oldest segments are gone: {epochs:?}"
    );
    let laggard = &state.index.group(GroupId::new(4)).unwrap().entries[0];
    assert!(
        laggard.place.epoch > 3,
        "its first entry was copied, last into {:?}",
        laggard.place
    );
}

#[test]
fn a_power_cut_after_any_operation_loses_nothing_acked() {
    let files = SimFiles::new();
    script(&files).unwrap();
    let operations = files.operations();
    let mut recovered = 0;
    for cut in 0..operations {
        for seed in 0..3 {
            let files = SimFiles::new();
            files.cut_after(cut);
            let Some(world) = script(&files) else {
                // Not even opened: nothing was acked, and it opens anew.
                files.power_cycle(cut * 3 + seed);
                World::open(&files, small()).unwrap();
                continue;
            };
            assert!(files.is_dead(), "the script ran into the cut at {cut}");
            files.power_cycle(cut * 3 + seed);
            let mut world = world.reopen();
            // It goes on, and comes back again: the cut tail doesn't stand in the way.
            assert!(round(&mut world, ROUNDS + 1 + seed));
            files.power_cycle(seed);
            world.reopen().check_views();
            recovered += 1;
        }
    }
    assert!(recovered > 300, "{recovered} of {operations} operations");
}

#[test]
fn a_second_power_cut_during_recovery_loses_nothing() {
    let files = SimFiles::new();
    files.cut_after(150);
    let world = script(&files).unwrap();
    files.power_cycle(1);
    let (history, acked) = (world.history.clone(), world.acked.lock().unwrap().clone());
    for cut in 0..8 {
        let fork = files.fork();
        fork.cut_after(cut);
        let _ = World::open(&fork, small());
        fork.power_cycle(cut);
        let found = World::open(&fork, small()).unwrap();
        super::support::check_found(&found, &history, &acked);
    }
}

#[test]
fn every_ack_comes_after_the_sync_of_what_it_acks() {
    let files = SimFiles::new();
    script(&files).unwrap();
    let mut written = None;
    let (mut acks, mut synced) = (0, false);
    for op in files.trace() {
        match op {
            SimOp::Write { file, .. } => {
                assert!(written.is_none() || synced, "one batch at a time");
                (written, synced) = (Some(file), false);
            }
            SimOp::Sync(file) => synced |= Some(&file) == written.as_ref(),
            SimOp::Note(_) => {
                assert!(synced, "acked before its sync");
                acks += 1;
            }
            SimOp::Create(_) | SimOp::Rename(..) | SimOp::Remove(_) | SimOp::SyncFolder => {}
        }
    }
    assert!(acks > 40);
}

#[test]
fn a_new_segment_has_its_name_synced_before_it_is_written() {
    let files = SimFiles::new();
    script(&files).unwrap();
    let mut unsynced = Vec::new();
    for op in files.trace() {
        match op {
            SimOp::Rename(_, to) => unsynced.push(to),
            SimOp::SyncFolder => unsynced.clear(),
            SimOp::Write { file, .. } => assert!(!unsynced.contains(&file), "{file}"),
            SimOp::Create(_) | SimOp::Sync(_) | SimOp::Remove(_) | SimOp::Note(_) => {}
        }
    }
}

#[test]
fn overwriting_while_a_laggard_is_rewritten_survives_a_power_cut() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    let (laggard, filler) = (GroupId::new(0), GroupId::new(2));
    world.stage(laggard, write(1, 10, 5, 60)).unwrap();
    world.flush().unwrap();
    world.settle();
    let mut raced = 0;
    for term in 6..90 {
        // Overwrites 8.. in every batch, so that the copy of the old ones lies behind in its own.
        world.stage(laggard, write(8, 3, term, 60)).unwrap();
        let last = world.naive(filler).last();
        world.stage(filler, write(last + 1, 4, term, 700)).unwrap();

        if last > KEPT {
            let of = Term::new(world.naive(filler).term(last - KEPT));
            let through = Index::new(last - KEPT);

            world
                .stage(filler, Change::Compact { through, term: of })
                .unwrap();
        }
        world.flush().unwrap();
        let segment = |world: &World| {
            let state = world.driver.engine_for_tests().shared().lock();
            state.index.group(laggard).unwrap().entries[0].place.epoch
        };
        let before = segment(&world);
        assert!(matches!(world.driver.turn(), Turn::Synced { .. }));
        if segment(&world) != before {
            raced += 1;
            let fork = files.fork();
            let found = World::open(&fork, small()).unwrap();
            let acked = world.acked.lock().unwrap().clone();
            super::support::check_found(&found, &world.history, &acked);
            assert_eq!(
                found.views[&laggard].term(Index::new(9)),
                Ok(Term::new(term))
            );
        }
    }
    assert!(raced >= 2, "the laggard was rewritten {raced} times");
}

/// A process that is killed before its sync ended leaves its last batch where only a reader sees it.
/// The next life went on from it, acked and voted by it, and lost it with the power; worse, its
/// start declared it synced, so that the log wouldn't open any more. Found by the simulation.
#[test]
fn what_a_killed_process_had_not_synced_is_kept_by_the_life_that_found_it() {
    let group = GroupId::new(1);
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    world.write(1, 1, 3, 1, 100);
    world.flush().unwrap();
    assert_ne!(world.settle(), Turn::Failed);
    world.write(1, 4, 2, 1, 100);
    world.flush().unwrap();
    files.inject(SimFault::SyncError);
    assert_eq!(world.settle(), Turn::Failed);
    drop(world);
    files.kill();
    let found = World::open(&files, small()).unwrap();
    let seen = shown(&found.views[&group]);
    assert_eq!(seen.last(), 5, "a reader sees it");
    let after_the_cut = World::open(&files.fork_synced(), small()).unwrap();
    assert_eq!(shown(&after_the_cut.views[&group]), seen);
}
