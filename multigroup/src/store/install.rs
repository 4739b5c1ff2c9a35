//! A group's content as a file: taken from a running database, checked when it arrives, and put in
//! the database's place so that a crash at any point is made good by doing it again.
//!
//! The order of an install is the caller's: *stage* (checked, synced, under a name of its own), the
//! log's record "installing", *install*, the log's record "installed". After the first record the
//! old database counts for nothing: its write-ahead log goes first, since SQLite would take it for
//! the new file's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::group_db::sync_folder_of;
use super::schema::{self, Applied, Owner};

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn staged(path: &Path) -> PathBuf {
    beside(path, ".staged")
}

fn exists(path: &Path) -> Result<bool, StoreError> {
    path.try_exists()
        .map_err(StoreError::io(path, "look for the file"))
}

fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io(path, "remove the file")(error))
        }
        _ => Ok(()),
    }
}

pub(super) fn snapshot(path: &Path, owner: Owner, to: &Path) -> Result<Applied, StoreError> {
    if exists(to)? {
        let taken = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(StoreError::io(to, "write the snapshot")(taken));
    }
    let written = write_snapshot(path, owner, to);
    if written.is_err() {
        // Half a snapshot is of no use to anyone; the first error is the one that counts.
        let _ = remove_if_there(to);
    }
    written
}

fn write_snapshot(path: &Path, owner: Owner, to: &Path) -> Result<Applied, StoreError> {
    let fault = StoreError::sqlite(to);
    let connection = schema::open_beside(path, owner)?;
    let name = to.to_str().ok_or_else(|| {
        StoreError::io(to, "name the file in UTF-8")(io::ErrorKind::InvalidFilename.into())
    })?;
    connection
        .execute("VACUUM INTO ?1", [name])
        .map_err(fault)?;
    sync_file(to)?;
    sync_folder_of(to)?;
    let copy = schema::open_read_only(to, owner)?;
    schema::read_applied(&copy).map_err(fault)
}

fn sync_file(path: &Path) -> Result<(), StoreError> {
    let sync = fs::File::open(path).and_then(|file| file.sync_all());
    sync.map_err(StoreError::io(path, "sync the file"))
}

pub(super) fn stage(
    path: &Path,
    owner: Owner,
    from: &Path,
    expected: Applied,
) -> Result<(), StoreError> {
    verify(from, owner, expected)?;
    sync_file(from)?;
    let staged = staged(path);
    fs::rename(from, &staged).map_err(StoreError::io(from, "move the snapshot"))?;
    sync_folder_of(&staged)
}

/// Reads a whole file through: its pages, its rows, whose it is and where it stands.
fn verify(path: &Path, owner: Owner, expected: Applied) -> Result<(), StoreError> {
    let fault = StoreError::sqlite(path);
    let connection = schema::open_read_only(path, owner)?;
    let sound: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(fault)?;
    if sound != "ok" {
        return Err(StoreError::corrupt(path, sound));
    }
    schema::read_dedup(&connection).map_err(fault)?;
    let applied = schema::read_applied(&connection).map_err(fault)?;
    if applied != expected {
        let (path, expected, got) = (path.to_owned(), expected.index, applied.index);
        return Err(StoreError::SnapshotMismatch {
            path,
            expected,
            got,
        });
    }
    Ok(())
}

pub(super) fn install(path: &Path, owner: Owner, expected: Applied) -> Result<(), StoreError> {
    let staged = staged(path);
    if exists(&staged)? {
        verify(&staged, owner, expected)?;
        for suffix in ["-wal", "-shm", "-journal"] {
            remove_if_there(&beside(path, suffix))?;
        }
        sync_folder_of(path)?;
        fs::rename(&staged, path).map_err(StoreError::io(&staged, "move the snapshot"))?;
        return sync_folder_of(path);
    }
    // Cut off after the move, or done: the database itself stands there, or further.
    let got = if exists(path)? {
        let connection = schema::open_beside(path, owner)?;
        schema::read_applied(&connection).map_err(StoreError::sqlite(path))?
    } else {
        Applied::default()
    };
    if got.index < expected.index {
        let (path, expected, got) = (path.to_owned(), expected.index, got.index);
        return Err(StoreError::SnapshotMismatch {
            path,
            expected,
            got,
        });
    }
    sync_folder_of(path)
}
