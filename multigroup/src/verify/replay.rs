//! Brings a copy of one replica's database to the end of the log that would win its group's
//! election, by the store's own apply (safety 14).
//!
//! That log's entries are all taken: its holder would be elected and commit them, so they are what
//! every replica will hold. A database is never ahead of it: what was applied was committed, so a
//! majority had it, and no log without it could win.
//!
//! Where the winner has compacted what a database still lacks, the entries are taken from the
//! replica's own log, if the two agree at the winner's compaction point: then they agree on
//! everything up to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use raft_host::id::{GroupId, Index};
use raft_host::log::api::{EntryKind, LogEntry};
use raft_host::log::{Extent, LogReading};
use raft_host::proto::group_time::read_note;

use crate::keyspace::KeySpace;
use crate::store::{Applied, Committed, Store, StoreError, StoreOptions};

/// Bytes of entries that are read and applied at once.
const BATCH_BYTES: u64 = 4 << 20;

/// What a replica of one group left.
pub(super) struct Left<'a> {
    pub(super) group: GroupId,
    pub(super) space: KeySpace,
    /// Its own log.
    pub(super) log: &'a LogReading,
    /// The folder of its databases.
    pub(super) databases: &'a Path,
}

/// The log that would win, and how far it reaches.
#[derive(Clone, Copy)]
pub(super) struct Winner<'a> {
    pub(super) log: &'a LogReading,
    pub(super) extent: Extent,
}

/// Copies a replica's database to a folder and replays it; gives the copy, or what is wrong.
pub(super) fn replay(left: &Left<'_>, winner: Winner<'_>, folder: &Path) -> Result<Store, String> {
    copy_database(left, folder)?;
    let mut options = StoreOptions::new(folder.to_owned(), left.space);
    options.open_max = 1;
    let of_store = |error: StoreError| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        let text = format!("{error}{}", cause.unwrap_or_default());
        // The file at fault is the one that was copied.
        let copies = folder.display().to_string();
        text.replace(&copies, &left.databases.display().to_string())
    };
    let store = Store::open(options).map_err(of_store)?;
    let applied = store.applied(left.group).map_err(of_store)?;
    check_applied(left, winner, applied)?;
    let mut next = applied.index.next();
    while next <= winner.extent.last.0 {
        let batch = read(left, winner, next)?;
        let Some(last) = batch.last() else {
            return Err(format!("entry {next} can't be read from any log"));
        };
        next = last.index.next();
        store.apply(left.group, &batch).map_err(of_store)?;
    }
    Ok(store)
}

/// The database's files: the database itself and what is not yet moved into it.
fn copy_database(left: &Left<'_>, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder)
        .map_err(|error| format!("can't create {}: {error}", folder.display()))?;
    for suffix in ["", "-wal"] {
        let name = format!("{}.db{suffix}", left.group);
        let from: PathBuf = left.databases.join(&name);
        match fs::copy(&from, folder.join(&name)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !from.exists() => {}
            Err(error) => {
                return Err(format!(
                    "can't copy {} to {}: {error}",
                    from.display(),
                    folder.display()
                ));
            }
        }
    }
    Ok(())
}

/// Holds where the database stands against both logs.
fn check_applied(left: &Left<'_>, winner: Winner<'_>, applied: Applied) -> Result<(), String> {
    let Applied { index, term } = applied;
    let own = left.log.extent(left.group).unwrap_or_default();
    if index > own.last.0 {
        return Err(format!(
            "its database stands at entry {index}, beyond the end {} of its own log",
            own.last.0
        ));
    }
    if index < own.compacted.0 {
        return Err(format!(
            "its database stands at entry {index}, and its own log has forgotten everything up to \
             {}, so the node can't start: a part of the database is missing, as after its -wal file \
             was removed, and only a snapshot could bring it up",
            own.compacted.0
        ));
    }
    let last = winner.extent.last.0;
    if index > last {
        return Err(format!(
            "its database stands at entry {index}, beyond the end {last} of the log that would win"
        ));
    }
    for (whose, log) in [
        ("its own log", left.log),
        ("the log that would win", winner.log),
    ] {
        match log.term(left.group, index) {
            Some(expected) if expected != term => {
                return Err(format!(
                    "its database stands at entry {index} of term {term}, where {whose} has term \
                     {expected}"
                ));
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// The next entries, from the winner's log, or from the replica's own what that has forgotten.
fn read(left: &Left<'_>, winner: Winner<'_>, next: Index) -> Result<Vec<Committed>, String> {
    let (compacted, compacted_term) = winner.extent.compacted;
    let own = left.log.extent(left.group).unwrap_or_default();
    let agrees = left.log.term(left.group, compacted) == Some(compacted_term);
    let (log, end) = if next > compacted {
        (winner.log, winner.extent.last.0.next())
    } else if agrees && next > own.compacted.0 {
        (left.log, compacted.next())
    } else {
        return Err(format!(
            "its database lacks entry {next}, which neither its own log nor the one that would \
             win still has: only a snapshot could bring it up"
        ));
    };
    let entries = log.entries(left.group, next, end, BATCH_BYTES);
    let entries = entries.map_err(|error| format!("entry {next} can't be read: {error}"))?;
    Ok(entries.into_iter().map(committed).collect())
}

/// As the host hands it over.
fn committed(entry: LogEntry) -> Committed {
    Committed {
        index: entry.index,
        term: entry.term,
        time: read_note(&entry.context).0,
        data: match entry.kind {
            EntryKind::Normal => entry.data,
            EntryKind::ConfChange => Default::default(),
        },
    }
}
