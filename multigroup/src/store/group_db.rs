//! One group's open database: applies committed entries, answers reads, checkpoints. Used by one
//! thread at a time; which databases are open is `handles.rs`'s business.
//!
//! - G1: `applied` and `dedup` are what the file says as of its last commit; a batch that fails
//!   changes neither.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use raft_host::id::{GroupId, Index, Term};
use rusqlite::Connection;

use super::error::StoreError;
use super::ops;
use super::outcomes::SqlOutcomes;
use super::schema::{self, Applied, Owner};
use crate::command::{Body, Entry, Outcome};
use crate::session::{Dedup, Saved, UnixMillis, Verdict};

/// A committed entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its position.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// When its leader proposed it.
    pub time: UnixMillis,
    /// An encoded [`Entry`]; empty for entries without a command (a new leader's own, changes of
    /// the configuration), which only move the applied index.
    pub data: Bytes,
}

/// What applying an entry came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// The entry.
    pub index: Index,
    /// Its effect.
    pub effect: Effect,
}

/// The effect of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It held no command.
    Empty,
    /// It was executed, or refused for its request id, with this outcome.
    Done(Outcome),
    /// Its request id was executed before: nothing was done, and this is the saved outcome.
    Known {
        /// The entry that did it.
        index: Index,
        /// What that one came to.
        outcome: Outcome,
    },
}

/// How a checkpoint went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Every frame was moved: all entries up to the floor survive a loss of power, and the log may
    /// be compacted up to it.
    Whole {
        /// The last such entry.
        floor: Index,
    },
    /// A reader held some frames back: nothing new is known to be safe.
    Partial {
        /// Frames in the write-ahead log.
        frames: i64,
        /// Those moved.
        moved: i64,
    },
}

#[derive(Debug)]
pub(super) struct GroupDb {
    connection: Connection,
    path: PathBuf,
    group: GroupId,
    applied: Applied,
    dedup: Dedup,
    folder_synced: bool,
}

impl GroupDb {
    pub(super) fn open(path: PathBuf, owner: Owner) -> Result<Self, StoreError> {
        let connection = schema::open_or_create(&path, owner)?;
        let fault = StoreError::sqlite(&path);
        let applied = schema::read_applied(&connection).map_err(fault)?;
        let dedup = schema::read_dedup(&connection).map_err(fault)?;
        let group = owner.group;
        Ok(Self {
            connection,
            path,
            group,
            applied,
            dedup,
            folder_synced: false,
        })
    }

    pub(super) fn applied(&self) -> Applied {
        self.applied
    }

    /// Applies those entries of a batch that are new, in one transaction.
    pub(super) fn apply(&mut self, batch: &[Committed]) -> Result<Vec<AppliedEntry>, StoreError> {
        let fresh = self.fresh(batch)?;
        let Some(last) = fresh.last() else {
            return Ok(Vec::new());
        };
        let applied = Applied {
            index: last.index,
            term: last.term,
        };
        self.run("BEGIN IMMEDIATE")?;
        let result = self.apply_fresh(fresh, applied).and_then(|done| {
            self.run("COMMIT")?;
            Ok(done)
        });
        match result {
            Ok((dedup, effects)) => {
                self.dedup = dedup;
                self.applied = applied;
                Ok(effects)
            }
            Err(error) => {
                // SQLite may have undone it already (a full disk, an I/O error). Whatever this
                // says, the caller drops the handle, which undoes what is left.
                let _ = self.run("ROLLBACK");
                Err(error)
            }
        }
    }

    /// The part of a batch that is not yet applied, checked to follow on what is.
    fn fresh<'a>(&self, batch: &'a [Committed]) -> Result<&'a [Committed], StoreError> {
        let skip = batch
            .iter()
            .take_while(|entry| entry.index <= self.applied.index)
            .count();
        let (known, fresh) = batch.split_at(skip);
        if let Some(same) = known.iter().find(|entry| entry.index == self.applied.index)
            && same.term != self.applied.term
        {
            return Err(self.term_mismatch(same, self.applied.term));
        }
        let mut last = self.applied;
        for entry in fresh {
            let expected = last.index.next();
            if entry.index != expected {
                let (path, got) = (self.path.clone(), entry.index);
                return Err(StoreError::Gap {
                    path,
                    expected,
                    got,
                });
            }
            if entry.term < last.term {
                return Err(self.term_mismatch(entry, last.term));
            }
            last = Applied {
                index: entry.index,
                term: entry.term,
            };
        }
        Ok(fresh)
    }

    fn term_mismatch(&self, entry: &Committed, expected: Term) -> StoreError {
        let (path, index, got) = (self.path.clone(), entry.index, entry.term);
        StoreError::TermMismatch {
            path,
            index,
            expected,
            got,
        }
    }

    fn apply_fresh(
        &self,
        fresh: &[Committed],
        applied: Applied,
    ) -> Result<(Dedup, Vec<AppliedEntry>), StoreError> {
        let mut dedup = self.dedup;
        let mut effects = Vec::with_capacity(fresh.len());
        for entry in fresh {
            let effect = self.apply_entry(entry, &mut dedup)?;
            effects.push(AppliedEntry {
                index: entry.index,
                effect,
            });
        }
        self.update_one(
            "UPDATE meta SET applied_index = ?1, applied_term = ?2",
            (applied.index.to_u64(), applied.term.to_u64()),
        )?;
        if dedup != self.dedup {
            self.update_one(
                "UPDATE dedup SET group_time_ms = ?1, floor_ms = ?2, saved = ?3",
                (dedup.time().to_u64(), dedup.floor().to_u64(), dedup.saved()),
            )?;
        }
        Ok((dedup, effects))
    }

    fn apply_entry(&self, entry: &Committed, dedup: &mut Dedup) -> Result<Effect, StoreError> {
        if entry.data.is_empty() {
            return Ok(Effect::Empty);
        }
        let decoded = Entry::decode(entry.data.clone()).map_err(|source| {
            let (path, index) = (self.path.clone(), entry.index);
            StoreError::Undecodable {
                path,
                index,
                source,
            }
        })?;
        let Some(identity) = &decoded.identity else {
            return self.execute(&decoded.body).map(Effect::Done);
        };
        let mut table = SqlOutcomes {
            connection: &self.connection,
            path: &self.path,
        };
        let hash = decoded.body.hash();
        match dedup.judge(&mut table, entry.time, identity, &hash)? {
            Verdict::Refuse(refusal) => Ok(Effect::Done(Outcome::Refused(refusal))),
            Verdict::Known(saved) => Ok(Effect::Known {
                index: saved.index,
                outcome: saved.outcome,
            }),
            Verdict::Execute => {
                let outcome = self.execute(&decoded.body)?;
                let saved = Saved {
                    hash,
                    index: entry.index,
                    outcome,
                };
                dedup.record(&mut table, &identity.id, &saved)?;
                Ok(Effect::Done(saved.outcome))
            }
        }
    }

    fn execute(&self, body: &Body) -> Result<Outcome, StoreError> {
        ops::execute(&self.connection, body).map_err(StoreError::sqlite(&self.path))
    }

    /// Executes a command that reads, on all that is applied.
    pub(super) fn read(&self, body: &Body) -> Result<Outcome, StoreError> {
        if body.is_write() {
            return Err(StoreError::NotARead { group: self.group });
        }
        self.execute(body)
    }

    pub(super) fn row_count(&self) -> Result<u64, StoreError> {
        let mut count = self
            .connection
            .prepare_cached("SELECT count(*) FROM kv")
            .map_err(StoreError::sqlite(&self.path))?;
        count
            .query_one([], |row| row.get(0))
            .map_err(StoreError::sqlite(&self.path))
    }

    /// Moves the write-ahead log into the database and syncs both. The floor is the applied index
    /// read before (safety 14): whatever is committed meanwhile is not part of the promise.
    pub(super) fn checkpoint(&mut self) -> Result<Checkpoint, StoreError> {
        let fault = StoreError::sqlite(&self.path);
        let floor = schema::read_applied(&self.connection).map_err(fault)?.index;
        if !self.folder_synced {
            // The file may be new: without its name in the folder its content is no use.
            sync_folder_of(&self.path)?;
            self.folder_synced = true;
        }
        let (busy, frames, moved): (i64, i64, i64) = self
            .connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .map_err(fault)?;
        // Without a write-ahead log SQLite answers -1, -1.
        if busy == 0 && frames >= 0 && frames == moved {
            Ok(Checkpoint::Whole { floor })
        } else {
            Ok(Checkpoint::Partial { frames, moved })
        }
    }

    /// Moves everything into the database and gives back the write-ahead log's space.
    pub(super) fn truncate_wal(&mut self) -> Result<(), StoreError> {
        self.connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(StoreError::sqlite(&self.path))
    }

    fn run(&self, sql: &str) -> Result<(), StoreError> {
        let done = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut sql| sql.execute([]));
        done.map(|_| ()).map_err(StoreError::sqlite(&self.path))
    }

    fn update_one(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), StoreError> {
        let changed = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut sql| sql.execute(values));
        match changed.map_err(StoreError::sqlite(&self.path))? {
            1 => Ok(()),
            rows => Err(StoreError::corrupt(
                &self.path,
                format!("{rows} rows at `{sql}`"),
            )),
        }
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// Makes the names of a folder's files survive a loss of power.
pub(super) fn sync_folder_of(path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let sync = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    sync.map_err(StoreError::io(folder, "sync the folder"))
}
