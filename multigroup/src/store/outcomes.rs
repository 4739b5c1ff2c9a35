//! The saved outcomes as a table of the group's database, read and written in the transaction of
//! the entry they belong to. Its key is the id's issue time, then its text: so the oldest come
//! first and expired ones are deleted from one end.

use bytes::Bytes;
use raft_host::id::Index;
use rusqlite::{Connection, OptionalExtension};

use super::error::StoreError;
use crate::command::{CommandHash, Outcome};
use crate::session::{Evicted, OutcomeTable, RequestId, Saved, UnixMillis};

pub(super) struct SqlOutcomes<'a> {
    pub(super) connection: &'a Connection,
    pub(super) path: &'a std::path::Path,
}

/// Hash, log index, encoded outcome.
type Row = ([u8; 16], u64, Vec<u8>);

fn row_key(id: &RequestId) -> Vec<u8> {
    let mut key = id.issued().to_u64().to_be_bytes().to_vec();
    key.extend_from_slice(id.as_str().as_bytes());
    key
}

impl SqlOutcomes<'_> {
    fn load_row(&self, id: &RequestId) -> rusqlite::Result<Option<Row>> {
        let sql = "SELECT hash, log_index, result FROM outcome WHERE id = ?1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        statement.query_row([row_key(id)], row).optional()
    }

    fn delete_expired(&self, floor: UnixMillis, max: u32) -> rusqlite::Result<Evicted> {
        let floor = floor.to_u64().to_be_bytes();
        let sql = "DELETE FROM outcome WHERE id IN \
                   (SELECT id FROM outcome WHERE id < ?1 ORDER BY id LIMIT ?2)";
        let removed = self.connection.prepare_cached(sql)?.execute((floor, max))?;
        let removed = u32::try_from(removed).unwrap_or(max);
        let sql = "SELECT substr(id, 1, 8) FROM outcome ORDER BY id LIMIT 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let oldest: Option<[u8; 8]> = statement.query_row([], |row| row.get(0)).optional()?;
        let oldest = oldest.map(|millis| UnixMillis::new(u64::from_be_bytes(millis)));
        Ok(Evicted { removed, oldest })
    }
}

impl OutcomeTable for SqlOutcomes<'_> {
    type Error = StoreError;

    fn load(&mut self, id: &RequestId) -> Result<Option<Saved>, StoreError> {
        let row = self.load_row(id).map_err(StoreError::sqlite(self.path))?;
        let Some((hash, index, result)) = row else {
            return Ok(None);
        };
        let outcome = Outcome::decode(Bytes::from(result))
            .map_err(|fault| StoreError::corrupt(self.path, format!("outcome of {id}: {fault}")))?;
        let (hash, index) = (CommandHash::from_bytes(hash), Index::new(index));
        Ok(Some(Saved {
            hash,
            index,
            outcome,
        }))
    }

    fn save(&mut self, id: &RequestId, saved: &Saved) -> Result<(), StoreError> {
        let sql = "INSERT INTO outcome(id, hash, log_index, result) VALUES(?1, ?2, ?3, ?4)";
        let result = saved.outcome.encode();
        let row = (
            row_key(id),
            saved.hash.as_bytes(),
            saved.index.to_u64(),
            &result[..],
        );
        let insert = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut sql| sql.execute(row));
        insert.map(|_| ()).map_err(StoreError::sqlite(self.path))
    }

    fn evict(&mut self, floor: UnixMillis, max: u32) -> Result<Evicted, StoreError> {
        self.delete_expired(floor, max)
            .map_err(StoreError::sqlite(self.path))
    }
}
