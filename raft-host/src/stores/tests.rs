use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::id::{Index, Term};
use crate::log::api::{EntryKind, LogEntry};
use crate::log::sim_files::{SimFault, SimFiles};
use crate::log::{Log, LogDriver, LogSetup, LogShard, RawLogConfig, Turn};

const GROUP: GroupId = GroupId::new(1);
const CAP: u64 = 16 * 16 * 1024;

struct Rig {
    files: SimFiles,
    log: Log,
    driver: LogDriver,
    stores: Stores,
    view: View,
    seq: StoreSeq,
}

/// A log of 16 small segments, written when the test says so.
fn rig() -> Rig {
    let files = SimFiles::new();
    let raw = RawLogConfig {
        segment_bytes: 16 * 1024,
        bytes_max: CAP,
        probe_interval: Duration::from_millis(1),
        ..RawLogConfig::default()
    };
    let (log, driver, _) = Log::open_driven(LogSetup {
        files: Arc::new(files.clone()),
        config: raw.try_into().unwrap(),
        clock: Arc::new(|| Duration::ZERO),
        id: *b"a log's own name",
        sink: Box::new(|_, _| {}),
    })
    .unwrap();
    let stores = Stores::new(log.shard(LogShard::new(0)));
    let view = Rc::new(RefCell::new(stores.new_group(GROUP)));
    Rig {
        files,
        log,
        driver,
        stores,
        view,
        seq: StoreSeq::new(0),
    }
}

impl Rig {
    fn last(&self) -> u64 {
        self.view.borrow().last_index().to_u64()
    }

    fn store(&mut self, change: Change) {
        self.seq = self.seq.next();
        let seq = Some(self.seq);
        self.stores.store(&self.view, GROUP, seq, change).unwrap();
        self.stores.flush().unwrap();
    }

    fn append(&mut self, index: u64) {
        let entry = LogEntry {
            index: Index::new(index),
            term: Term::new(1),
            kind: EntryKind::Normal,
            data: Bytes::from(vec![1; 900]),
            context: Bytes::new(),
        };
        self.store(Change::Write {
            hard_state: None,
            entries: vec![entry],
        });
    }

    /// The log thread works until nothing waits for it.
    fn settle(&mut self) -> Turn {
        loop {
            let turn = self.driver.turn();
            if !matches!(turn, Turn::Synced { more: true }) {
                return turn;
            }
        }
    }

    /// Appends, as a group would, until one has to wait; says how far that was.
    fn fill(&mut self) -> u64 {
        let mut index = 0;
        while self.stores.held() == 0 {
            index += 1;
            self.append(index);
            self.settle();
        }
        index
    }
}

#[test]
fn the_room_is_ample_then_low_then_spent_by_name() {
    let mut rig = rig();
    assert_eq!(rig.stores.room(), LogRoom::Ample);
    let mut seen = vec![LogRoom::Ample];
    for index in 1.. {
        rig.append(index);
        rig.settle();
        let room = rig.stores.room();
        if seen.last() != Some(&room) {
            seen.push(room);
        }
        if let LogRoom::Spent(why) = room {
            let Refusal::LogRetainedBytes { retained, most } = why else {
                panic!("{why}");
            };
            assert!(most == CAP && retained <= CAP, "{retained} of {most}");
            break;
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen[1], LogRoom::Low);
    assert_eq!(
        rig.stores.held(),
        0,
        "proposals stop before a write has to wait"
    );
}

/// The compaction that makes room was queued behind the very write that waited for it: a group whose
/// write met the cap stood still for good.
#[test]
fn a_compaction_passes_the_writes_that_wait_at_the_cap() {
    let mut rig = rig();
    let waits = rig.fill();
    assert!(matches!(rig.stores.room(), LogRoom::Spent(_)));
    assert_eq!(rig.last(), waits - 1);
    rig.append(waits + 1);
    assert_eq!(rig.stores.held(), 2, "in their order");
    let (through, term) = (Index::new(waits - 5), Term::new(1));
    rig.store(Change::Compact { through, term });
    for _ in 0..64 {
        rig.settle();
        rig.stores.retry().unwrap();
        rig.stores.flush().unwrap();
    }
    assert_eq!((rig.stores.held(), rig.last()), (0, waits + 1));
    assert_eq!(rig.stores.room(), LogRoom::Ample);
    let told = rig.stores.on_durable(rig.stores.log.durable());
    assert_eq!(told.len() as u64, waits + 2, "each write is told once");
}

#[test]
fn a_compaction_of_what_still_waits_does_not_pass() {
    let mut rig = rig();
    let waits = rig.fill();
    let (through, term) = (Index::new(waits), Term::new(1));
    rig.store(Change::Compact { through, term });
    assert_eq!(rig.stores.held(), 2);
}

#[test]
fn a_full_disk_is_named_and_ends_when_there_is_space() {
    let mut rig = rig();
    rig.append(1);
    rig.settle();
    rig.files.inject(SimFault::NoSpace);
    let mut index = 1;
    while rig.stores.room() != LogRoom::Spent(Refusal::LogFull) {
        index += 1;
        assert!(index < 400, "the disk is full and nobody says so");
        rig.append(index);
        rig.settle();
    }
    rig.append(index + 1);
    assert_eq!(rig.stores.held(), 1);
    rig.files.heal();
    for _ in 0..8 {
        rig.settle();
        rig.stores.retry().unwrap();
        rig.stores.flush().unwrap();
    }
    assert_eq!((rig.stores.held(), rig.last()), (0, index + 1));
    assert_ne!(rig.stores.room(), LogRoom::Spent(Refusal::LogFull));
    assert!(rig.log.health().unsynced_bytes == 0);
}
