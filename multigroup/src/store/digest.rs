//! What a group's database holds, in one hash, so that replicas can be compared exactly. The form
//! is fixed: replicas of different builds must agree on it.

use std::fmt;
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use rusqlite::Connection;

use super::error::StoreError;
use super::schema::{self, Applied, Owner};

/// A group's content at one point of its log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Where it stands.
    pub applied: Applied,
    /// How many keys there are.
    pub rows: u64,
    /// SHA-256 of all rows in the bytewise order of their keys: of each the key's length (u64,
    /// little-endian), the key, the value's length, the value.
    pub sha256: [u8; 32],
    /// The same of the saved outcomes and their books, which replicas must agree on too.
    pub outcomes_sha256: [u8; 32],
}

impl Digest {
    /// That of a group without a file: nothing is applied and nothing saved.
    pub(super) fn of_nothing() -> Self {
        let nothing = finish(Context::new(&SHA256));
        Self {
            applied: Applied::default(),
            rows: 0,
            sha256: nothing,
            outcomes_sha256: outcomes_sha256(&nothing, [0; 3]),
        }
    }

    /// The digest of the rows as 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.sha256
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Applied { index, term } = self.applied;
        write!(
            f,
            "Digest({index}/{term}, {} rows, {}, ",
            self.rows,
            self.to_hex()
        )?;
        write!(f, "{:02x?})", &self.outcomes_sha256[..8])
    }
}

pub(super) fn digest(path: &Path, owner: Owner) -> Result<Digest, StoreError> {
    let mut connection = schema::open_beside(path, owner)?;
    read(&mut connection).map_err(StoreError::sqlite(path))
}

/// Reads all in one transaction, so that the content is that of the applied index beside it.
fn read(connection: &mut Connection) -> rusqlite::Result<Digest> {
    let transaction = connection.transaction()?;
    let applied = schema::read_applied(&transaction)?;
    let (rows, sha256) = hash_rows(&transaction, "SELECT key, value FROM kv ORDER BY key")?;
    let saved = "SELECT id, hash, CAST(log_index AS BLOB), result FROM outcome ORDER BY id";
    let (_, saved) = hash_rows(&transaction, saved)?;
    let dedup = schema::read_dedup(&transaction)?;
    let books = [dedup.time().to_u64(), dedup.floor().to_u64(), dedup.saved()];
    Ok(Digest {
        applied,
        rows,
        sha256,
        outcomes_sha256: outcomes_sha256(&saved, books),
    })
}

fn outcomes_sha256(saved: &[u8; 32], books: [u64; 3]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(saved);
    for number in books {
        context.update(&number.to_le_bytes());
    }
    finish(context)
}

fn hash_rows(connection: &Connection, sql: &str) -> rusqlite::Result<(u64, [u8; 32])> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let mut context = Context::new(&SHA256);
    let mut count = 0;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for column in 0..columns {
            let bytes = row.get_ref(column)?.as_bytes()?;
            context.update(&(bytes.len() as u64).to_le_bytes());
            context.update(bytes);
        }
        count += 1;
    }
    Ok((count, finish(context)))
}

fn finish(context: Context) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}
