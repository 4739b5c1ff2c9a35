//! What the store's tests share: stores in temporary folders and entries to apply.

mod applying;
mod damage;
mod files;
mod model;

use std::fs;
use std::path::Path;

use bytes::Bytes;
use raft_host::id::{GroupId, Index, Term};
use tempfile::TempDir;

use super::*;
use crate::command::{Body, Entry, Identity, Op, Outcome};
use crate::keyspace::KeySpace;
use crate::session::{RequestId, UnixMillis};

const GROUPS: u32 = 8;

fn group() -> GroupId {
    GroupId::new(3)
}

fn space() -> KeySpace {
    KeySpace::new(GROUPS).unwrap()
}

fn open_at(folder: &Path) -> Store {
    Store::open(StoreOptions::new(folder.to_owned(), space())).unwrap()
}

fn new_store() -> (TempDir, Store) {
    let folder = TempDir::new().unwrap();
    let store = open_at(folder.path());
    (folder, store)
}

fn b(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn incr(key: &str) -> Op {
    Op::IncrBy {
        key: b(key),
        delta: 1,
    }
}

fn set(key: &str, value: &str) -> Op {
    Op::Set {
        key: b(key),
        value: b(value),
    }
}

/// An entry of term 1 at `index` without a request id.
fn entry(index: u64, body: Body) -> Committed {
    let identity = None;
    committed(index, UnixMillis::new(index), Entry { identity, body })
}

fn single(index: u64, op: Op) -> Committed {
    entry(index, Body::Single(op))
}

/// An entry with a request id, proposed at `time` with a window of one second.
fn identified(index: u64, time: u64, id: &str, op: Op) -> Committed {
    let identity = Identity {
        id: RequestId::parse(id.as_bytes()).unwrap(),
        window_ms: 1000,
    };
    let (time, identity, body) = (UnixMillis::new(time), Some(identity), Body::Single(op));
    committed(index, time, Entry { identity, body })
}

fn committed(index: u64, time: UnixMillis, entry: Entry) -> Committed {
    let data = entry.encode().unwrap();
    Committed {
        index: Index::new(index),
        term: Term::new(1),
        time,
        data,
    }
}

fn empty(index: u64, term: u64) -> Committed {
    Committed {
        index: Index::new(index),
        term: Term::new(term),
        time: UnixMillis::default(),
        data: Bytes::new(),
    }
}

fn done(index: u64, outcome: Outcome) -> AppliedEntry {
    AppliedEntry {
        index: Index::new(index),
        effect: Effect::Done(outcome),
    }
}

fn value_of(store: &Store, key: &str) -> Outcome {
    store
        .read(group(), &Body::Single(Op::Get { key: b(key) }))
        .unwrap()
        .1
}

fn applied_index(store: &Store) -> u64 {
    store.applied(group()).unwrap().index.to_u64()
}

/// Copies a group's files as they are at this moment, as a crash of the process would leave them.
fn copy_files(from: &Store, to: &Path) {
    for suffix in ["", "-wal"] {
        let name = format!("{}.db{suffix}", group());
        let source = from.path_of(group()).with_file_name(&name);
        if source.exists() {
            fs::copy(source, to.join(name)).unwrap();
        }
    }
}
