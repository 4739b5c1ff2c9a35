//! What can be wrong with a group's database, each naming the file, the two values that disagree
//! where there are two, and the way out. SQLite's codes are sorted into these in one place.

use std::io;
use std::path::{Path, PathBuf};

use raft_host::id::{GroupId, Index, Term};
use rusqlite::ffi::{self, ErrorCode};
use thiserror::Error;

use crate::command::DecodeError;

const READMIT: &str = "this node's replicas can't be used any more: stop it and leave it stopped, the \
                       others go on as long as they are a majority (bringing it back, `members readmit`, \
                       isn't there yet)";

/// A fault of the store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk is full. The transaction was undone; nothing of the batch is in the database.
    #[error("{}: the disk is full; make room, the batch was undone and can be applied again", .path.display())]
    DiskFull {
        /// The database.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error("{}: the database is damaged ({what}); {READMIT}", .path.display())]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// What gave it away.
        what: String,
    },
    /// The file is no SQLite database.
    #[error("{}: not a SQLite database; move it away, or {READMIT}", .path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// The file is a database of another program.
    #[error(
        "{}: a database of another program (application id {got:#x}, ours is {expected:#x}); \
         move it away or correct `data_dir`", .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// This program's.
        expected: i32,
        /// The file's.
        got: i32,
    },
    /// The file has another layout than this version of the program.
    #[error(
        "{}: layout version {got}, this program knows {expected}; run the version that wrote it",
        .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// This program's.
        expected: i32,
        /// The file's.
        got: i32,
    },
    /// The file has tables that this program doesn't make.
    #[error("{}: unexpected schema at `{object}`; {READMIT}", .path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// The first table, index, view or trigger that is missing or should not be there.
        object: String,
    },
    /// The file belongs to another group, or to a cluster with another number of groups.
    #[error(
        "{}: belongs to group {} of {}, not to group {} of {}; correct `groups` or `data_dir`",
        .path.display(), .got.0, .got.1, .expected.0, .expected.1
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Group and number of groups by name and configuration.
        expected: (GroupId, u32),
        /// Those that the file names.
        got: (GroupId, u64),
    },
    /// There is no such group.
    #[error("group {group} does not exist, there are {groups}; correct `groups`")]
    NoSuchGroup {
        /// The group asked for.
        group: GroupId,
        /// How many there are.
        groups: u32,
    },
    /// The entries to be applied don't follow on what was applied: applying them would lose some.
    #[error("{}: entry {got} was to be applied where {expected} is due; {READMIT}", .path.display())]
    Gap {
        /// The database.
        path: PathBuf,
        /// The index that is due.
        expected: Index,
        /// The index that came.
        got: Index,
    },
    /// An entry has another term than the one applied at its index, or a term before an earlier
    /// entry's: the database and the log have different histories.
    #[error("{}: entry {index} has term {got}, at least {expected} was applied; {READMIT}", .path.display())]
    TermMismatch {
        /// The database.
        path: PathBuf,
        /// The entry.
        index: Index,
        /// The term applied.
        expected: Term,
        /// The entry's.
        got: Term,
    },
    /// An entry that this program can't read; skipping it would part this replica from others.
    #[error("{}: entry {index} can't be read; run the version that wrote it", .path.display())]
    Undecodable {
        /// The database.
        path: PathBuf,
        /// The entry.
        index: Index,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A database holds less than was noted of it: it was replaced, or lost what it held.
    #[error(
        "{}: stands at {got}, {} says {expected}; restore the right file, or stop the node and remove          {1} to have the log applied anew", .path.display(), .noted.display()
    )]
    Behind {
        /// The database.
        path: PathBuf,
        /// Where it is noted how far databases got.
        noted: PathBuf,
        /// What is noted.
        expected: Index,
        /// Where it stands.
        got: Index,
    },
    /// A command that writes was given to be read with. A fault of the caller.
    #[error("group {group}: a command that writes must go through the log")]
    NotARead {
        /// The group.
        group: GroupId,
    },
    /// A snapshot doesn't stand where it was said to, or nothing is staged.
    #[error("{}: snapshot stands at {got}, expected {expected}; fetch it again", .path.display())]
    SnapshotMismatch {
        /// The snapshot, or the database.
        path: PathBuf,
        /// Where it should stand.
        expected: Index,
        /// Where it does.
        got: Index,
    },
    /// Another process holds the file.
    #[error("{}: locked by another process; end it (is another node or a shell using the file?)", .path.display())]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// The system refused a file operation.
    #[error("{}: can't {action}; check that the folder exists and may be written", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// SQLite failed in a way that has no name here.
    #[error("{}: SQLite failed; restart the node, and if it comes back {READMIT}", .path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

impl StoreError {
    pub(super) fn corrupt(path: &Path, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| {
            let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
            if full.contains(&source.kind()) {
                Self::DiskFull { path }
            } else {
                Self::Io {
                    path,
                    action,
                    source,
                }
            }
        }
    }

    /// Sorts an error of SQLite.
    pub(super) fn sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> Self + Copy + '_ {
        move |source| Self::sort(path.to_owned(), source)
    }

    fn sort(path: PathBuf, source: rusqlite::Error) -> Self {
        use rusqlite::Error as E;
        if let E::SqliteFailure(failure, message) = &source {
            let code = failure.code;
            // Without room for the index of the write-ahead log SQLite reports an I/O error.
            let no_index = failure.extended_code == ffi::SQLITE_IOERR_SHMSIZE;
            return if no_index || code == ErrorCode::DiskFull {
                Self::DiskFull { path }
            } else if code == ErrorCode::NotADatabase {
                Self::NotADatabase { path }
            } else if code == ErrorCode::DatabaseCorrupt {
                Self::Corrupt {
                    path,
                    what: message.clone().unwrap_or_default(),
                }
            } else if matches!(code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) {
                Self::Locked { path }
            } else {
                Self::Sqlite { path, source }
            };
        }
        let wrong_content = matches!(
            source,
            E::InvalidColumnType(..)
                | E::FromSqlConversionFailure(..)
                | E::IntegralValueOutOfRange(..)
                | E::QueryReturnedNoRows
                | E::QueryReturnedMoreThanOneRow
                | E::StatementChangedRows(_)
        );
        if wrong_content {
            return Self::Corrupt {
                path,
                what: source.to_string(),
            };
        }
        Self::Sqlite { path, source }
    }
}
