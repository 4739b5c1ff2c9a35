//! Opening one group's file: what a new one is made of, and the proof that one that is there is
//! ours, whole enough to be used, and this group's. Everything that could be wrong is an error
//! here, so that the rest of the store may rely on the tables.

use std::path::Path;
use std::time::Duration;

use raft_host::id::{GroupId, Index, Term};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::error::StoreError;
use crate::limits::{LOCK_WAIT, PAGE_CACHE_KIB, STATEMENTS_MAX, WAL_PAGES_MAX};
use crate::session::{Dedup, UnixMillis};

/// "mgrp", in the file's header: tells our files from other programs' databases.
const APPLICATION_ID: i32 = 0x6d67_7270;
const LAYOUT_VERSION: i32 = 1;

/// All objects of a group's file, by name. `meta` and `kv` are a contract with programs that look
/// into the file; the others are ours: whose file it is, and the saved outcomes.
const OBJECTS: [(&str, &str); 5] = [
    (
        "dedup",
        "CREATE TABLE dedup(group_time_ms INTEGER NOT NULL, floor_ms INTEGER NOT NULL, \
         saved INTEGER NOT NULL)",
    ),
    (
        "kv",
        "CREATE TABLE kv(key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID",
    ),
    (
        "meta",
        "CREATE TABLE meta(applied_index INTEGER NOT NULL, applied_term INTEGER NOT NULL)",
    ),
    (
        "outcome",
        "CREATE TABLE outcome(id BLOB PRIMARY KEY NOT NULL, hash BLOB NOT NULL, \
         log_index INTEGER NOT NULL, result BLOB NOT NULL) WITHOUT ROWID",
    ),
    (
        "owner",
        "CREATE TABLE owner(group_id INTEGER NOT NULL, group_count INTEGER NOT NULL)",
    ),
];

/// How far a database got in its group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The last entry applied; 0 is none.
    pub index: Index,
    /// Its term.
    pub term: Term,
}

/// Whose file it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) group: GroupId,
    pub(super) groups: u32,
}

/// Opens a group's database for applying, and makes it if there is none.
pub(super) fn open_or_create(path: &Path, owner: Owner) -> Result<Connection, StoreError> {
    if !path
        .try_exists()
        .map_err(StoreError::io(path, "look for the file"))?
    {
        make_file(path, owner)?;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = connect(path, flags)?;
    let fault = StoreError::sqlite(path);
    if is_empty(&connection, path)? {
        make(&mut connection, owner).map_err(fault)?;
    }
    check(&connection, path, owner)?;
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
        .map_err(fault)?;
    if mode != "wal" {
        return Err(StoreError::corrupt(
            path,
            format!("journal mode is {mode}, not wal"),
        ));
    }
    Ok(connection)
}

/// Opens a group's database, which is there, beside the connection that applies.
pub(super) fn open_beside(path: &Path, owner: Owner) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = connect(path, flags)?;
    check(&connection, path, owner)?;
    Ok(connection)
}

/// Opens a file that came from elsewhere, to be looked through only.
pub(super) fn open_read_only(path: &Path, owner: Owner) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = connect(path, flags)?;
    check(&connection, path, owner)?;
    Ok(connection)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let fault = StoreError::sqlite(path);
    let connection = Connection::open_with_flags(path, flags).map_err(fault)?;
    configure(&connection, LOCK_WAIT).map_err(fault)?;
    Ok(connection)
}

fn configure(connection: &Connection, lock_wait: Duration) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.busy_timeout(lock_wait)?;
    // A file from elsewhere must not run code of its own, nor may we damage one by accident.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    // Closing a handle is routine here; the log makes up for what its file has not synced.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "cache_size", -PAGE_CACHE_KIB)?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", WAL_PAGES_MAX, |_| Ok(()))
}

/// Makes a new file under another name, with one sync instead of SQLite's handful, and gives it its
/// name when it is whole. That name may be lost with the power until the first checkpoint syncs the
/// folder; then the file is made again, and no floor said that anything was in it.
fn make_file(path: &Path, owner: Owner) -> Result<(), StoreError> {
    let fresh = path.with_extension("db.new");
    let fault = StoreError::sqlite(&fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(StoreError::io(&fresh, "remove what a crash left")(error));
        }
        _ => {}
    }
    let mut connection = Connection::open(&fresh).map_err(fault)?;
    let made = (|| {
        connection.pragma_update_and_check(None, "journal_mode", "memory", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "off")?;
        make(&mut connection, owner)?;
        connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))
    })();
    made.map_err(fault)?;
    connection.close().map_err(|(_, error)| fault(error))?;
    let sync = std::fs::File::open(&fresh).and_then(|file| file.sync_all());
    sync.map_err(StoreError::io(&fresh, "sync the file"))?;
    std::fs::rename(&fresh, path).map_err(StoreError::io(&fresh, "name the file"))
}

/// Whether nothing was ever made in the file: it is new, or a crash came before its tables.
fn is_empty(connection: &Connection, path: &Path) -> Result<bool, StoreError> {
    let fault = StoreError::sqlite(path);
    let id: i32 = pragma(connection, "application_id").map_err(fault)?;
    let objects: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(fault)?;
    Ok(id == 0 && objects == 0)
}

fn make(connection: &mut Connection, owner: Owner) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", LAYOUT_VERSION)?;
    for (_, sql) in OBJECTS {
        transaction.execute(sql, [])?;
    }
    transaction.execute("INSERT INTO meta VALUES(0, 0)", [])?;
    transaction.execute("INSERT INTO dedup VALUES(0, 0, 0)", [])?;
    let group = i64::try_from(owner.group.to_u64()).unwrap_or(i64::MAX);
    transaction.execute("INSERT INTO owner VALUES(?1, ?2)", (group, owner.groups))?;
    transaction.commit()
}

fn pragma<T: rusqlite::types::FromSql>(connection: &Connection, name: &str) -> rusqlite::Result<T> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn check(connection: &Connection, path: &Path, owner: Owner) -> Result<(), StoreError> {
    let fault = StoreError::sqlite(path);
    let got: i32 = pragma(connection, "application_id").map_err(fault)?;
    if got != APPLICATION_ID {
        return Err(StoreError::Foreign {
            path: path.to_owned(),
            expected: APPLICATION_ID,
            got,
        });
    }
    let got: i32 = pragma(connection, "user_version").map_err(fault)?;
    if got != LAYOUT_VERSION {
        return Err(StoreError::Version {
            path: path.to_owned(),
            expected: LAYOUT_VERSION,
            got,
        });
    }
    check_objects(connection, path)?;
    let (group, groups): (u64, u64) = connection
        .prepare_cached("SELECT group_id, group_count FROM owner")
        .and_then(|mut owner| owner.query_one([], |row| Ok((row.get(0)?, row.get(1)?))))
        .map_err(fault)?;
    if (group, groups) != (owner.group.to_u64(), u64::from(owner.groups)) {
        return Err(StoreError::Owner {
            path: path.to_owned(),
            expected: (owner.group, owner.groups),
            got: (GroupId::new(group), groups),
        });
    }
    Ok(())
}

/// The file has exactly our objects: an extra trigger or view would change what our statements do.
fn check_objects(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let fault = StoreError::sqlite(path);
    // SQLite's own tables (a person's ANALYZE leaves some) do no harm.
    let sql = "SELECT name, sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*' ORDER BY name";
    let mut statement = connection.prepare(sql).map_err(fault)?;
    let found = statement
        .query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
        })
        .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
        .map_err(fault)?;
    let schema = |object: &str| StoreError::Schema {
        path: path.to_owned(),
        object: object.into(),
    };
    for (at, (name, sql)) in found.iter().enumerate() {
        if OBJECTS.get(at) != Some(&(name.as_str(), sql.as_deref().unwrap_or(""))) {
            return Err(schema(name));
        }
    }
    match OBJECTS.get(found.len()) {
        None => Ok(()),
        Some((missing, _)) => Err(schema(missing)),
    }
}

/// Reads how far the database got.
pub(super) fn read_applied(connection: &Connection) -> rusqlite::Result<Applied> {
    let mut statement =
        connection.prepare_cached("SELECT applied_index, applied_term FROM meta")?;
    let row = |row: &rusqlite::Row<'_>| {
        Ok(Applied {
            index: Index::new(row.get(0)?),
            term: Term::new(row.get(1)?),
        })
    };
    statement.query_one([], row)
}

/// Reads the books of the saved outcomes.
pub(super) fn read_dedup(connection: &Connection) -> rusqlite::Result<Dedup> {
    let sql = "SELECT group_time_ms, floor_ms, saved FROM dedup";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_one([], |row| {
        let (time, floor) = (UnixMillis::new(row.get(0)?), UnixMillis::new(row.get(1)?));
        let saved = row.get(2)?;
        Dedup::restore(time, floor, saved)
            .ok_or_else(|| rusqlite::Error::IntegralValueOutOfRange(2, i64::MAX))
    })
}
