//! Refusals by name, full disks, the cap, a disk that fails or hangs.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::api::{Change, GroupLog, ReadError};
use super::super::sim_files::{SimFault, SimFiles, SimOp};
use super::super::{
    BadChange, DiskState, LogFailure, LogShard, OpenError, RawLogConfig, SubmitError, SyncMode,
    Turn,
};
use super::support::{World, hard_state, shard_of, small, write};
use crate::id::{GroupId, Index, Term};
use crate::log::files::Files;

const GROUP: GroupId = GroupId::new(2);

fn compact(world: &mut World, group: GroupId, through: u64) {
    let term = Term::new(world.naive(group).term(through));
    world
        .stage(
            group,
            Change::Compact {
                through: Index::new(through),
                term,
            },
        )
        .unwrap();
}

#[test]
fn a_folder_in_use_is_refused_by_name_and_opens_once_it_is_free() {
    let files = SimFiles::new();
    let world = World::open(&files, small()).unwrap();
    assert!(matches!(
        World::open(&files, small()),
        Err(OpenError::InUse { .. })
    ));
    drop(world);
    World::open(&files, small()).unwrap();
}

#[test]
fn a_foreign_or_newer_folder_is_refused_by_name() {
    let foreign = SimFiles::new();
    foreign.put("photo.jpg", vec![1]);
    assert!(
        matches!(World::open(&foreign, small()), Err(OpenError::Foreign { file }) if file == "photo.jpg")
    );

    let files = SimFiles::new();
    drop(World::open(&files, small()).unwrap());
    let fork = files.fork();
    fork.remove("FORMAT").unwrap();
    assert!(matches!(
        World::open(&fork, small()),
        Err(OpenError::Foreign { .. })
    ));

    let fork = files.fork();
    let mut format = fork.bytes_of("FORMAT").unwrap();
    format[8] = 9;
    let crc = crc32fast::hash(&format[..28]);
    format[28..].copy_from_slice(&crc.to_le_bytes());
    fork.put("FORMAT", format.clone());
    let newer = World::open(&fork, small());
    assert!(matches!(
        newer,
        Err(OpenError::NewerFormat {
            got: 9,
            expected: 1,
            ..
        })
    ));

    format[0] = b'X';
    fork.put("FORMAT", format);
    assert!(matches!(
        World::open(&fork, small()),
        Err(OpenError::Foreign { .. })
    ));

    let fork = files.fork();
    for name in fork
        .list()
        .unwrap()
        .iter()
        .filter(|name| name.starts_with("segment"))
    {
        fork.remove(name).unwrap();
    }
    assert!(matches!(
        World::open(&fork, small()),
        Err(OpenError::Corrupt { .. })
    ));

    // The log of another node, by the same program.
    let fork = files.fork();
    let mut format = fork.bytes_of("FORMAT").unwrap();
    format[12] ^= 1;
    let crc = crc32fast::hash(&format[..28]);
    format[28..].copy_from_slice(&crc.to_le_bytes());
    fork.put("FORMAT", format);
    assert!(matches!(
        World::open(&fork, small()),
        Err(OpenError::AnothersLog { file }) if file == "FORMAT"
    ));
}

#[test]
fn a_failed_write_or_sync_stops_the_log_for_good() {
    for fault in [SimFault::WriteError, SimFault::SyncError] {
        let files = SimFiles::new();
        let mut world = World::open(&files, small()).unwrap();
        world.write(2, 1, 1, 1, 10);
        world.write(3, 1, 1, 1, 10);
        world.flush().unwrap();
        files.inject(fault);
        assert_eq!(world.driver.turn(), Turn::Failed);
        assert_eq!(
            *world.failures.lock().unwrap(),
            [LogShard::new(0), LogShard::new(1)]
        );
        assert_eq!(*world.acked.lock().unwrap(), [0, 0]);
        assert_eq!(world.log.health().disk, DiskState::Failed);
        let later = world.stage(GROUP, write(2, 1, 1, 10));
        assert!(matches!(
            later,
            Err(SubmitError::Failed(LogFailure::Io { .. }))
        ));
        let before = files.trace().len();
        assert_eq!(world.driver.turn(), Turn::Failed);
        assert_eq!(files.trace().len(), before, "nothing is tried again");
        assert_eq!(world.failures.lock().unwrap().len(), 2, "told once");
    }
}

#[test]
fn what_was_staged_before_the_failure_is_refused_at_the_flush() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    world.write(2, 1, 1, 1, 10);
    files.inject(SimFault::SyncError);
    assert_eq!(world.driver.turn(), Turn::Failed);
    assert!(matches!(world.flush(), Err(SubmitError::Failed(_))));
}

#[test]
fn a_full_disk_is_a_state_that_ends_by_itself() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    files.inject(SimFault::NoSpace);
    let mut last = 0;
    while world.log.health().disk == DiskState::Ok {
        world.write(2, last + 1, 3, 1, 900);
        last += 3;
        world.flush().unwrap();
        world.settle();
    }
    assert_eq!(world.log.health().disk, DiskState::Full);
    assert!(world.log.health().unsynced_bytes > 0);
    assert!(matches!(
        world.stage(GROUP, write(last + 1, 1, 1, 9)),
        Err(SubmitError::DiskFull)
    ));
    let vote = Change::Write {
        hard_state: Some(hard_state(9, 1, 0)),
        entries: Vec::new(),
    };
    world
        .stage(GROUP, vote)
        .expect("a vote still waits its turn");
    world.flush().unwrap();
    assert_eq!(world.driver.turn(), Turn::NoSpace);
    world.check_views();
    files.heal();
    world.settle();
    assert_eq!(world.log.health().disk, DiskState::Ok);
    assert_eq!(world.log.health().unsynced_bytes, 0);
    files.power_cycle(0);
    let world = world.reopen();
    assert_eq!(world.naive(GROUP).last(), last);
}

#[test]
fn the_cap_refuses_entries_by_name_until_something_is_compacted() {
    let files = SimFiles::new();
    let raw = RawLogConfig {
        bytes_max: 8 * 16 * 1024,
        ..small()
    };
    let mut world = World::open(&files, raw).unwrap();
    let mut last = 0;
    let refused = loop {
        match world.stage(GROUP, write(last + 1, 3, 1, 900)) {
            Ok(()) => last += 3,
            Err(error) => break error,
        }
        world.flush().unwrap();
        world.settle();
    };
    assert!(matches!(
        refused,
        SubmitError::CapReached { bytes_max: 131_072 }
    ));
    assert!(last > 60, "{last}");
    let segments = files
        .list()
        .unwrap()
        .iter()
        .filter(|name| name.starts_with("segment"))
        .count();
    assert!(segments <= 8, "{segments}");
    world.check_views();
    let vote = Change::Write {
        hard_state: Some(hard_state(9, 1, 0)),
        entries: Vec::new(),
    };
    world.stage(GROUP, vote).unwrap();
    compact(&mut world, GROUP, last - 5);
    world.flush().unwrap();
    world.settle();
    world.stage(GROUP, write(last + 1, 3, 2, 900)).unwrap();
    world.flush().unwrap();
    world.settle();
    files.power_cycle(3);
    world.reopen().check_views();
}

#[test]
fn segments_of_another_size_are_read_and_replaced() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    world.write(2, 1, 4, 1, 500);
    world.flush().unwrap();
    world.settle();
    drop(world);
    let larger = RawLogConfig {
        segment_bytes: 32 * 1024,
        ..small()
    };
    let mut world = World::open(&files, larger).unwrap();
    assert_eq!(world.naive(GROUP).last(), 4);
    for round in 0..40 {
        let last = world.naive(GROUP).last();
        world.write(2, last + 1, 3, 2 + round, 900);
        compact(&mut world, GROUP, last);
        world.flush().unwrap();
        world.settle();
    }
    let sizes: Vec<_> = files.list().unwrap();
    for name in sizes.iter().filter(|name| name.starts_with("segment")) {
        assert_eq!(files.bytes_of(name).unwrap().len(), 32 * 1024, "{name}");
    }
}

#[test]
fn the_sync_number_rises_when_idle_and_never_falls_over_a_restart() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    let mut before = world.log.health().sync_number;
    for seed in 0..6 {
        for _ in 0..10 {
            assert_eq!(world.driver.turn(), Turn::Synced { more: false });
            assert_eq!(world.log.health().sync_number, before + 1);
            before += 1;
        }
        drop(world);
        files.power_cycle(seed);
        world = World::open(&files, small()).unwrap();
        assert_eq!(world.log.health().sync_number, before);
    }
    assert!(files.trace().iter().any(|op| matches!(op, SimOp::Sync(_))));
}

#[test]
fn an_impossible_change_is_refused_and_changes_nothing() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    world.write(2, 1, 5, 1, 10);
    compact(&mut world, GROUP, 2);
    let before = world.naive(GROUP);
    let refused = |world: &mut World, change| match world.stage(GROUP, change) {
        Err(SubmitError::BadChange(why)) => why,
        other => panic!("{other:?}"),
    };
    let (first, last) = (Index::new(7), Index::new(5));
    assert_eq!(
        refused(&mut world, write(7, 1, 1, 1)),
        BadChange::Gap { first, last }
    );
    let why = refused(&mut world, write(2, 1, 1, 1));
    assert!(matches!(why, BadChange::Compacted { .. }));
    let mut entries = vec![
        super::support::entry(6, 1, 1),
        super::support::entry(8, 1, 1),
    ];
    let why = refused(
        &mut world,
        Change::Write {
            hard_state: None,
            entries: entries.clone(),
        },
    );
    assert!(matches!(why, BadChange::NotConsecutive { .. }));
    entries.clear();
    let through = Change::Compact {
        through: Index::new(6),
        term: Term::new(1),
    };
    assert!(matches!(
        refused(&mut world, through),
        BadChange::CompactBeyondEnd { .. }
    ));
    let term = Change::Compact {
        through: Index::new(4),
        term: Term::new(3),
    };
    assert!(matches!(
        refused(&mut world, term),
        BadChange::CompactTerm { .. }
    ));
    let large = world.stage(GROUP, write(6, 3, 1, 2000));
    assert!(matches!(large, Err(SubmitError::TooLarge { .. })));
    assert_eq!(super::support::shown(&world.views[&GROUP]), before);
}

#[test]
fn reads_outside_of_the_log_are_refused_by_name() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    world.write(2, 1, 5, 1, 10);
    compact(&mut world, GROUP, 2);
    let view = &world.views[&GROUP];
    let (one, two, six) = (Index::new(1), Index::new(2), Index::new(6));
    assert_eq!(
        view.term(one),
        Err(ReadError::Compacted {
            index: one,
            first: Index::new(3)
        })
    );
    assert_eq!(
        view.term(six),
        Err(ReadError::Unavailable {
            index: six,
            last: Index::new(5)
        })
    );
    assert!(matches!(
        view.entries(two, six, 1),
        Err(ReadError::Compacted { .. })
    ));
    let beyond = view.entries(Index::new(3), Index::new(7), 1);
    assert!(matches!(beyond, Err(ReadError::Unavailable { .. })));
    assert_eq!(
        view.entries(Index::new(3), six, 0).unwrap().len(),
        1,
        "at least one"
    );
    assert_eq!(view.entries(Index::new(3), six, u64::MAX).unwrap().len(), 3);
}

#[test]
fn memory_holds_the_newest_entries_and_the_disk_gives_the_rest() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    for at in 0..40 {
        world.write(2, at * 2 + 1, 2, 1 + at / 7, 500);
        world.flush().unwrap();
        world.settle();
    }
    let cached = world.views[&GROUP].cached_bytes();
    assert!(cached < 6 * 1024, "{cached} bytes are kept");
    world.check_views();
    let shard = &world.shards[shard_of(GROUP)];
    let view = world.views.get_mut(&GROUP).unwrap();
    shard.shed(view);
    assert_eq!(view.cached_bytes(), 0);
    assert!(shard.is_durable(view));
    world.check_views();
}

#[test]
fn an_entry_that_cannot_be_read_back_stops_the_log() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    world.write(2, 1, 2, 1, 500);
    world.flush().unwrap();
    world.settle();
    let shard = &world.shards[shard_of(GROUP)];
    shard.shed(world.views.get_mut(&GROUP).unwrap());
    // The open file itself is damaged, not another one under its name.
    files.damage("segment-00000001.log", 3 * 512 + 30);
    let index = Index::new(1);
    let read = world.views[&GROUP].entries(index, Index::new(3), u64::MAX);
    assert!(matches!(read, Err(ReadError::Lost { .. })), "{read:?}");
    assert_eq!(world.log.health().disk, DiskState::Failed);
    assert_eq!(world.driver.turn(), Turn::Failed);
    assert_eq!(world.failures.lock().unwrap().len(), 2);
}

#[test]
fn a_removed_group_stays_removed_though_older_segments_name_it() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    let gone = GroupId::new(3);
    world.write(3, 1, 5, 1, 50);
    let keep = Change::Write {
        hard_state: Some(hard_state(1, 1, 0)),
        entries: Vec::new(),
    };
    world.stage(GroupId::new(5), keep).unwrap();
    world.flush().unwrap();
    world.settle();
    world.stage(gone, Change::Remove).unwrap();
    world.flush().unwrap();
    for round in 0..120 {
        let last = world.naive(GROUP).last();
        world.write(2, last + 1, 3, 1 + round, 900);
        if last > 60 {
            compact(&mut world, GROUP, last - 60);
        }

        world.flush().unwrap();
        world.settle();
        let fork = files.fork();
        let found = World::open(&fork, small()).unwrap();
        assert!(!found.views.contains_key(&gone), "round {round}");
    }
    let state = world.driver.engine_for_tests().shared().lock();
    assert!(
        state.index.group(gone).is_none(),
        "the tombstone has gone too"
    );
}

#[test]
fn without_syncs_nothing_is_lost_when_only_the_process_dies() {
    let files = SimFiles::new();
    let raw = RawLogConfig {
        sync: SyncMode::Unsafe,
        ..small()
    };
    let mut world = World::open(&files, raw).unwrap();
    for at in 0..30 {
        world.write(2, at * 2 + 1, 2, 1, 600);
        world.flush().unwrap();
        world.settle();
    }
    files.kill();
    let world = world.reopen();
    assert_eq!(world.naive(GROUP).last(), 60);
}

/// What the last index was when an index beyond it was stored as committed must not come back as
/// committed once other entries stand there.
#[test]
fn a_commit_index_beyond_the_log_is_brought_back_for_good() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    world.write(2, 1, 2, 1, 10);
    let ahead = Change::Write {
        hard_state: Some(hard_state(1, 1, 9)),
        entries: Vec::new(),
    };
    world.stage(GROUP, ahead).unwrap();
    world.flush().unwrap();
    world.settle();
    files.kill();
    let mut world = world.reopen();
    assert_eq!(world.views[&GROUP].hard_state().commit, Index::new(2));
    world.write(2, 3, 4, 2, 10);
    world.flush().unwrap();
    world.settle();
    files.kill();
    let world = world.reopen();
    assert_eq!(world.views[&GROUP].hard_state().commit, Index::new(2));
}

#[test]
fn a_shared_view_shows_what_is_staged_into_it() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    let shard = &mut world.shards[shard_of(GROUP)];
    let view = Rc::new(RefCell::new(shard.new_group(GROUP)));
    let core = Rc::clone(&view);
    shard
        .stage(&mut view.borrow_mut(), write(1, 3, 1, 10))
        .unwrap();
    assert_eq!(core.last_index(), Index::new(3));
    assert_eq!(core.term(Index::new(2)), Ok(Term::new(1)));
    assert_eq!(
        core.entries(Index::new(1), Index::new(4), u64::MAX)
            .unwrap()
            .len(),
        3
    );
}
