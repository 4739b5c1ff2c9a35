//! The log with its threads: real files, a disk that hangs, readers beside the writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::api::{Change, GroupLog};
use super::super::sim_files::{SimFault, SimFiles};
use super::super::{
    Completion, DiskState, Files, Log, LogConfig, LogSetup, LogShard, OpenError, RawLogConfig,
    RealFiles, Token,
};
use super::support::{ID, World, entry, shown, small, write};
use crate::id::{GroupId, Index, Term};

type Told = Receiver<(LogShard, Completion)>;

fn setup(files: Arc<dyn Files>, raw: RawLogConfig) -> (LogSetup, Told) {
    let (tell, told) = sync_channel(4096);
    let time = AtomicU64::new(1);
    let setup = LogSetup {
        files,
        config: LogConfig::try_from(raw).unwrap(),
        clock: Arc::new(move || Duration::from_micros(time.fetch_add(1, Ordering::Relaxed))),
        id: ID,
        sink: Box::new(move |shard, completion| {
            let _ = tell.send((shard, completion));
        }),
    };
    (setup, told)
}

fn wait_durable(told: &Told, token: Token) {
    loop {
        match told
            .recv_timeout(Duration::from_secs(60))
            .expect("a completion")
        {
            (_, Completion::Durable(through)) if through >= token => return,
            (_, Completion::Durable(_)) => {}
            (_, Completion::Failed(failure)) => panic!("{failure}"),
        }
    }
}

/// Waits for something another thread brings about.
fn until(mut happened: impl FnMut() -> bool) {
    while !happened() {
        std::thread::yield_now();
    }
}

#[test]
fn two_shards_write_to_real_files_and_find_it_all_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let files: Arc<dyn Files> = Arc::new(RealFiles::new(&path).unwrap());
    let raw = RawLogConfig {
        segment_bytes: 256 * 1024,
        bytes_max: 64 * 256 * 1024,
        ..small()
    };
    let (setup_first, told) = setup(Arc::clone(&files), raw);
    let (log, groups) = Log::open(setup_first).unwrap();
    assert!(groups.is_empty());
    let told = Mutex::new(told);
    let tokens = Mutex::new(vec![Token::default(); 2]);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let mut shard = log.shard(LogShard::new(number));
            let tokens = &tokens;
            scope.spawn(move || {
                let ids = (0..8).map(|at| GroupId::new(u64::from(number) + 2 * at));
                let mut views: Vec<_> = ids.map(|group| shard.new_group(group)).collect();
                for round in 0..40 {
                    for view in &mut views {
                        shard
                            .stage(view, write(round * 3 + 1, 3, 1 + round, 200))
                            .unwrap();
                    }
                    let token = shard.flush().unwrap().unwrap();
                    tokens.lock().unwrap()[number as usize] = token;
                }
            });
        }
    });
    let last = tokens.lock().unwrap().clone();
    let mut durable = [Token::default(); 2];
    while durable[..] != last[..] {
        let told = told
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(60))
            .unwrap();
        match told {
            (shard, Completion::Durable(token)) => durable[shard.to_u32() as usize] = token,
            (_, Completion::Failed(failure)) => panic!("{failure}"),
        }
    }
    let (second, _told) = setup(Arc::clone(&files), raw);
    assert!(matches!(Log::open(second), Err(OpenError::InUse { .. })));
    let sync_number = log.health().sync_number;
    log.close();

    let (again, _told) = setup(files, raw);
    let (log, groups) = Log::open(again).unwrap();
    assert!(log.health().sync_number >= sync_number);
    assert_eq!(groups.len(), 16);
    for view in &groups {
        let expected: Vec<_> = (1..=120)
            .map(|index| entry(index, 1 + (index - 1) / 3, 200))
            .collect();
        assert_eq!(shown(view).entries, expected, "group {}", view.group());
    }
    log.close();
}

#[test]
fn a_hung_disk_shows_in_the_health_and_acks_nothing() {
    let files = SimFiles::new();
    let (setup, told) = setup(Arc::new(files.clone()), small());
    let (log, _) = Log::open(setup).unwrap();
    let mut shard = log.shard(LogShard::new(0));
    let mut view = shard.new_group(GroupId::new(2));
    shard.stage(&mut view, write(1, 1, 1, 10)).unwrap();
    let token = shard.flush().unwrap().unwrap();
    wait_durable(&told, token);
    files.inject(SimFault::BlockedSync);
    shard.stage(&mut view, write(2, 1, 1, 10)).unwrap();
    let token = shard.flush().unwrap().unwrap();
    let reader = log.health_reader();
    until(|| reader.health().sync_since.is_some() && reader.health().unsynced_bytes > 0);
    let number = reader.health().sync_number;
    // The log thread is stuck in the sync; nothing here is.
    shard.stage(&mut view, write(3, 1, 1, 10)).unwrap();
    let after = shard.flush().unwrap().unwrap();
    assert_eq!(view.last_index(), Index::new(3));
    assert!(!shard.is_durable(&view));
    assert!(told.try_recv().is_err());
    assert_eq!(reader.health().sync_number, number);
    assert_eq!(reader.health().disk, DiskState::Ok);
    files.heal();
    wait_durable(&told, token);
    wait_durable(&told, after);
    assert!(shard.is_durable(&view));
    log.close();
}

#[test]
fn an_idle_log_goes_on_syncing_probes() {
    let files = SimFiles::new();
    let (setup, _told) = setup(Arc::new(files), small());
    let (log, _) = Log::open(setup).unwrap();
    let before = log.health().sync_number;
    until(|| log.health().sync_number >= before + 20);
    log.close();
}

#[test]
fn closing_makes_everything_submitted_durable() {
    let files = SimFiles::new();
    let (setup_first, told) = setup(Arc::new(files.clone()), small());
    let (log, _) = Log::open(setup_first).unwrap();
    let mut shard = log.shard(LogShard::new(0));
    let mut view = shard.new_group(GroupId::new(2));
    let mut token = Token::default();
    for index in 1..=200 {
        shard.stage(&mut view, write(index, 1, 1, 30)).unwrap();
        token = shard.flush().unwrap().unwrap();
    }
    log.close();
    assert_eq!(shard.durable(), token);
    shard.stage(&mut view, write(201, 1, 1, 30)).unwrap();
    assert!(matches!(
        shard.flush(),
        Err(super::super::SubmitError::Closed)
    ));
    drop(told);
    files.power_cycle(7);
    let (again, _told) = setup(Arc::new(files), small());
    let (log, groups) = Log::open(again).unwrap();
    assert_eq!(groups[0].last_index(), Index::new(200));
    log.close();
}

#[test]
fn a_panic_of_the_log_thread_is_told_and_refused_by_name() {
    let files = SimFiles::new();
    let (tell, told) = sync_channel(16);
    let (mut setup, _told) = setup(Arc::new(files), small());
    let first = AtomicBool::new(true);
    setup.sink = Box::new(move |shard, completion| {
        let _ = tell.send((shard, completion));
        assert!(
            !first.swap(false, Ordering::Relaxed),
            "a sink's own fault, on purpose"
        );
    });
    let (log, _) = Log::open(setup).unwrap();
    let mut shard = log.shard(LogShard::new(0));
    let mut view = shard.new_group(GroupId::new(2));
    shard.stage(&mut view, write(1, 1, 1, 10)).unwrap();
    shard.flush().unwrap();
    let wait = || told.recv_timeout(Duration::from_secs(60)).unwrap().1;
    assert!(matches!(wait(), Completion::Durable(_)));
    assert!(matches!(
        wait(),
        Completion::Failed(super::super::LogFailure::Panicked)
    ));
    assert!(shard.stage(&mut view, write(2, 1, 1, 10)).is_err());
}

/// A reader that holds on to old places used to fail once the segment was rewritten or recycled.
#[test]
fn reading_beside_rewrites_and_recycling_never_fails() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    let (read, filler) = (GroupId::new(0), GroupId::new(2));
    world.stage(read, write(1, 12, 3, 200)).unwrap();
    world.flush().unwrap();
    world.settle();
    let shared = Arc::clone(world.driver.engine_for_tests().shared());
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let entries = shared.read_entries(read, Index::new(1), Index::new(13), u64::MAX);
                let entries = entries.expect("the entries are there");
                assert!(
                    entries
                        .iter()
                        .zip(1..)
                        .all(|(found, index)| *found == entry(index, 3, 200))
                );
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..400 {
            let last = world.naive(filler).last();
            world
                .stage(filler, write(last + 1, 4, 4 + round, 700))
                .unwrap();
            if last > 60 {
                let term = Term::new(world.naive(filler).term(last - 60));
                let change = Change::Compact {
                    through: Index::new(last - 60),
                    term,
                };
                world.stage(filler, change).unwrap();
            }
            world.flush().unwrap();
            world.settle();
        }
        until(|| reads.load(Ordering::Relaxed) > 20);
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(world.log.health().disk, DiskState::Ok);
    let state = shared.lock();
    let place = state.index.group(read).unwrap().entries[0].place;
    assert!(
        place.epoch > 50,
        "it was rewritten over and over, last into {}",
        place.epoch
    );
}
