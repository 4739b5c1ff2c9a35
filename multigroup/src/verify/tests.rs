//! Verification of what stopped nodes left: real logs and databases on disk, made entry by entry.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use bytes::Bytes;
use raft_host::id::{GroupId, Index, Term};
use raft_host::log::api::{Change, EntryKind, HardState, LogEntry};
use raft_host::log::{Log, LogConfig, LogSetup, LogShard, RawLogConfig, RealFiles, Turn};
use tempfile::TempDir;

use super::*;
use crate::command::{Body, Entry, Op};
use crate::keyspace::KeySpace;
use crate::session::UnixMillis;
use crate::store::{Committed, Store, StoreOptions};

const KEY: &str = "c";

fn space() -> KeySpace {
    KeySpace::new(1).unwrap()
}

/// An entry's term, and whether it adds one to the counter; else it is a leader's empty one.
#[derive(Clone, Copy)]
struct Step(u64, bool);

const fn adds(term: u64) -> Step {
    Step(term, true)
}

const fn empty(term: u64) -> Step {
    Step(term, false)
}

impl Step {
    fn data(self) -> Bytes {
        if !self.1 {
            return Bytes::new();
        }
        let op = Op::IncrBy {
            key: Bytes::from_static(KEY.as_bytes()),
            delta: 1,
        };
        let entry = Entry {
            identity: None,
            body: Body::Single(op),
        };
        entry.encode().unwrap()
    }
}

/// What one node holds of the one group.
struct Held<'a> {
    log: &'a [Step],
    /// Up to where the log was compacted.
    compacted: u64,
    commit: u64,
    /// Up to where the database is; its steps may be others than the log's.
    applied: &'a [Step],
}

impl<'a> Held<'a> {
    fn up_to(log: &'a [Step], applied: usize) -> Self {
        Self {
            log,
            compacted: 0,
            commit: applied as u64,
            applied: &log[..applied],
        }
    }
}

struct Left {
    dir: TempDir,
    nodes: Vec<StoppedNode>,
}

impl Left {
    fn of(held: &[Held<'_>]) -> Self {
        let dir = TempDir::new().unwrap();
        let nodes = (1..).zip(held).map(|(node, held)| {
            let folder = dir.path().join(format!("node-{node}"));
            write_log(&folder.join("log"), held);
            let databases = folder.join("groups");
            fs::create_dir_all(&databases).unwrap();
            apply(&databases, held.applied);
            StoppedNode {
                node,
                log: folder.join("log"),
                databases,
            }
        });
        let nodes = nodes.collect();
        Self { dir, nodes }
    }

    /// Verifies with a ledger of so many acknowledged and unknown additions.
    fn verify(&self, acked: u64, unknown: u64) -> Report {
        let account = Account {
            key: KEY.to_owned(),
            group: 0,
            is_counter: true,
            acked,
            unknown,
        };
        let before = contents(self.dir.path());
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let report = offline(&self.nodes, space(), &[account], None, &done, &stop).unwrap();
        assert!(contents(self.dir.path()) == before, "the originals changed");
        report
    }

    fn database(&self, node: usize) -> PathBuf {
        self.nodes[node - 1].databases.join("0.db")
    }
}

fn write_log(folder: &Path, held: &Held<'_>) {
    let raw = RawLogConfig {
        segment_bytes: 64 * 1024,
        bytes_max: 64 * 64 * 1024,
        ..RawLogConfig::default()
    };
    let (log, mut driver, _) = Log::open_driven(LogSetup {
        files: Arc::new(RealFiles::new(folder).unwrap()),
        config: LogConfig::try_from(raw).unwrap(),
        clock: Arc::new(|| Duration::ZERO),
        id: [7; 16],
        sink: Box::new(|_, _| {}),
    })
    .unwrap();
    let mut shard = log.shard(LogShard::new(0));
    let mut view = shard.new_group(GroupId::new(0));
    let entries = (1..).zip(held.log).map(|(index, step)| LogEntry {
        index: Index::new(index),
        term: Term::new(step.0),
        kind: EntryKind::Normal,
        data: step.data(),
        context: Bytes::new(),
    });
    let term = held.log.last().map_or(0, |step| step.0);
    let hard_state = HardState {
        term: Term::new(term),
        vote: None,
        commit: Index::new(held.commit),
    };
    let write = Change::Write {
        hard_state: Some(hard_state),
        entries: entries.collect(),
    };
    shard.stage(&mut view, write).unwrap();
    if held.compacted > 0 {
        let term = held.log[held.compacted as usize - 1].0;
        let (through, term) = (Index::new(held.compacted), Term::new(term));
        let compact = Change::Compact { through, term };
        shard.stage(&mut view, compact).unwrap();
    }
    shard.flush().unwrap();
    while driver.turn() == (Turn::Synced { more: true }) {}
}

fn apply(databases: &Path, steps: &[Step]) {
    let store = Store::open(StoreOptions::new(databases.to_owned(), space())).unwrap();
    let batch = (1..).zip(steps).map(|(index, step)| Committed {
        index: Index::new(index),
        term: Term::new(step.0),
        time: UnixMillis::default(),
        data: step.data(),
    });
    let batch: Vec<_> = batch.collect();
    if !batch.is_empty() {
        store.apply(GroupId::new(0), &batch).unwrap();
    }
}

fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

/// The only mismatch there is.
fn only(report: &Report) -> &Mismatch {
    assert_eq!(report.mismatches, 1, "{:?}", report.first_mismatches);
    &report.first_mismatches[0]
}

const LOG: [Step; 6] = [empty(1), adds(1), adds(1), empty(3), adds(3), adds(3)];

#[test]
fn databases_that_stand_at_different_entries_are_brought_to_one_end() {
    let left = Left::of(&[
        Held::up_to(&LOG, 6),
        Held::up_to(&LOG[..5], 2),
        Held::up_to(&LOG, 0),
    ]);
    let report = left.verify(4, 0);
    assert_eq!((report.replicas, report.replicas_empty), (3, 0));
    assert_eq!((report.mismatches, report.counters_exact), (0, 1));
    // What nobody acknowledged may be there, if it is accounted for.
    assert_eq!(left.verify(2, 2).mismatches, 0);
    let lost = left.verify(5, 0);
    assert_eq!((lost.mismatches, lost.counters_exact), (3, 0));
}

#[test]
fn the_last_term_decides_who_would_win_and_not_the_length() {
    // Node 3 led term 2 alone, and committed nothing of it.
    let long = [
        empty(1),
        adds(1),
        adds(1),
        empty(2),
        adds(2),
        adds(2),
        adds(2),
    ];
    let left = Left::of(&[
        Held::up_to(&LOG[..5], 3),
        Held::up_to(&LOG, 5),
        Held::up_to(&long, 3),
    ]);
    assert_eq!(left.verify(4, 0).mismatches, 0);
    // Had it committed and applied there, that would be seen.
    let left = Left::of(&[
        Held::up_to(&LOG, 3),
        Held::up_to(&LOG, 6),
        Held::up_to(&long, 5),
    ]);
    let report = left.verify(4, 0);
    assert!(report.mismatches >= 1);
    for mismatch in &report.first_mismatches {
        assert_eq!(mismatch.node, Some(3), "{mismatch}");
    }
    assert_eq!(report.replicas, 2, "the third is not compared");
}

#[test]
fn a_database_beyond_the_logs_is_named() {
    let left = Left::of(&[
        Held::up_to(&LOG[..5], 5),
        Held {
            applied: &LOG,
            ..Held::up_to(&LOG[..5], 5)
        },
    ]);
    let report = left.verify(3, 1);
    let mismatch = only(&report);
    assert_eq!(mismatch.node, Some(2));
    assert!(mismatch.what.contains("its own log"), "{mismatch}");
}

#[test]
fn what_the_winner_has_compacted_comes_from_the_replica_s_own_log() {
    let compacted = Held {
        compacted: 5,
        ..Held::up_to(&LOG, 6)
    };
    let left = Left::of(&[compacted, Held::up_to(&LOG[..5], 2)]);
    assert_eq!(left.verify(4, 0).mismatches, 0);

    // A database that lost a part which its own log has forgotten: its node can't start, whatever
    // the others still have.
    let cut = Held {
        compacted: 5,
        ..Held::up_to(&LOG, 6)
    };
    let cut = Held {
        applied: &LOG[..2],
        ..cut
    };
    let left = Left::of(&[Held::up_to(&LOG, 6), cut, Held::up_to(&LOG, 6)]);
    let report = left.verify(4, 0);
    let mismatch = only(&report);
    assert_eq!(mismatch.node, Some(2));
    assert!(mismatch.what.contains("can't start"), "{mismatch}");

    // A database that is gone, and no log that still has its beginning.
    let compacted = || Held {
        compacted: 5,
        ..Held::up_to(&LOG, 6)
    };
    let left = Left::of(&[compacted(), compacted()]);
    for suffix in ["", "-wal", "-shm"] {
        let path = left.database(2).with_extension(format!("db{suffix}"));
        let _absent = fs::remove_file(path);
    }
    let report = left.verify(4, 0);
    let mismatch = only(&report);
    assert_eq!(mismatch.node, Some(2));
    assert!(mismatch.what.contains("snapshot"), "{mismatch}");
}

#[test]
fn a_changed_row_is_named_by_its_node() {
    let left = Left::of(&[
        Held::up_to(&LOG, 6),
        Held::up_to(&LOG, 5),
        Held::up_to(&LOG, 4),
    ]);
    let database = rusqlite::Connection::open(left.database(3)).unwrap();
    let changed = database.execute("UPDATE kv SET value = CAST('1' AS BLOB)", []);
    assert_eq!(changed, Ok(1));
    drop(database);
    let report = left.verify(4, 0);
    assert_eq!(report.mismatches, 2, "{:?}", report.first_mismatches);
    for mismatch in &report.first_mismatches {
        assert_eq!(
            (mismatch.group, mismatch.node),
            (Some(0), Some(3)),
            "{mismatch}"
        );
    }
}

#[test]
fn a_database_that_cannot_be_read_is_a_mismatch_of_its_node() {
    let left = Left::of(&[Held::up_to(&LOG, 6), Held::up_to(&LOG, 6)]);
    fs::write(
        left.database(2),
        "no database at all, but long enough to be one",
    )
    .unwrap();
    let report = left.verify(4, 0);
    let mismatch = only(&report);
    assert_eq!(mismatch.node, Some(2));
    let file = left.database(2).display().to_string();
    assert!(
        mismatch.what.contains(&file),
        "{mismatch} does not name {file}"
    );
}

#[test]
fn a_log_that_is_in_use_is_a_node_that_runs() {
    let left = Left::of(&[Held::up_to(&LOG, 6)]);
    let _reading = raft_host::log::LogReading::open(&left.nodes[0].log).unwrap();
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let error = offline(&left.nodes, space(), &[], None, &done, &stop).unwrap_err();
    assert!(matches!(error, VerifyError::Running { node: 1 }), "{error}");
}
