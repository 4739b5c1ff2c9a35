//! Looking at a log without touching it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::super::api::{Change, LogEntry, ReadError};
use super::super::inspect::LogReading;
use super::super::sim_files::SimFiles;
use super::super::{Log, LogConfig, LogSetup, OpenError, RealFiles};
use super::support::{ID, Naive, World, hard_state, small};
use crate::id::{GroupId, Index, Term};

fn read_all(reading: &LogReading, group: GroupId) -> Vec<LogEntry> {
    let extent = reading.extent(group).unwrap();
    let (mut next, end) = (extent.compacted.0.next(), extent.last.0.next());
    let mut entries = Vec::new();
    while next < end {
        let part = reading.entries(group, next, end, 1500).unwrap();
        next = part.last().unwrap().index.next();
        entries.extend(part);
    }
    entries
}

fn check(reading: &LogReading, group: u64, expected: &Naive) {
    let group = GroupId::new(group);
    let extent = reading.extent(group).unwrap();
    let (index, term) = extent.compacted;
    assert_eq!((index.to_u64(), term.to_u64()), expected.compacted);
    let last = expected.last();
    assert_eq!(extent.last.0.to_u64(), last);
    assert_eq!(extent.last.1.to_u64(), expected.term(last));
    assert_eq!(extent.hard_state, expected.hard_state);
    assert_eq!(read_all(reading, group), expected.entries);
    for index in expected.compacted.0..=last {
        let term = Some(Term::new(expected.term(index)));
        assert_eq!(reading.term(group, Index::new(index)), term);
    }
    assert_eq!(reading.term(group, Index::new(last + 1)), None);
}

#[test]
fn a_reading_shows_what_a_start_would_find_and_writes_nothing() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    for round in 0..12 {
        for group in 1..5 {
            world.write(group, round * 4 + 1, 4, 1 + round, 300);
        }
        world.flush().unwrap();
        world.settle();
    }
    let through = Index::new(20);
    let term = Term::new(world.naive(GroupId::new(2)).term(20));
    let compact = Change::Compact { through, term };
    world.stage(GroupId::new(2), compact).unwrap();
    world.write(3, 40, 3, 99, 200);
    let state = Change::Write {
        hard_state: Some(hard_state(99, 2, 41)),
        entries: Vec::new(),
    };
    world.stage(GroupId::new(3), state).unwrap();
    world.stage(GroupId::new(4), Change::Remove).unwrap();
    world.flush().unwrap();
    world.settle();
    let expected: BTreeMap<_, _> = (1..4)
        .map(|group| (group, world.naive(GroupId::new(group))))
        .collect();
    drop(world);

    let operations = files.trace().len();
    let reading = LogReading::of(&files).unwrap();
    assert_eq!(reading.groups().count(), 3);
    assert_eq!(reading.extent(GroupId::new(4)), None);
    for (group, expected) in &expected {
        check(&reading, *group, expected);
    }
    let group = GroupId::new(2);
    let compacted = reading.entries(group, Index::new(20), Index::new(30), 100);
    assert!(matches!(compacted, Err(ReadError::Compacted { .. })));
    let beyond = reading.entries(group, Index::new(48), Index::new(50), 100_000);
    assert!(matches!(beyond, Err(ReadError::Unavailable { .. })));
    assert_eq!(files.trace().len(), operations, "nothing was written");
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn a_reading_holds_the_folder_s_lock_and_leaves_its_files_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let open = || {
        let (log, _driver, _views) = Log::open_driven(LogSetup {
            files: Arc::new(RealFiles::new(&path).unwrap()),
            config: LogConfig::try_from(small()).unwrap(),
            clock: Arc::new(|| Duration::ZERO),
            id: ID,
            sink: Box::new(|_, _| {}),
        })?;
        Ok::<_, OpenError>((log, _driver))
    };
    let running = open().unwrap();
    let refused = LogReading::open(&path).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    drop(running);

    let before = contents(&path);
    let reading = LogReading::open(&path).unwrap();
    assert_eq!(reading.groups().count(), 0);
    let refused = open().map(|_| ()).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    assert_eq!(contents(&path), before);
    drop(reading);
    open().unwrap();

    let absent = LogReading::open(&folder.path().join("absent")).unwrap_err();
    assert!(matches!(absent, OpenError::Io { .. }), "{absent}");
}
