//! The load ledger: one line of JSON per key and run, appended to `DIR/load-ledger` and synced, that
//! `verify` holds against what the replicas have.
//!
//! - G1: a run's lines are written in one piece at the end of the file, and are durable once
//!   [`Ledger::append`] returns.
//! - G2: a line that a crash cut off is never joined by the next run's, and is counted by whoever
//!   reads it: the operations that it told of are unaccounted for.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The ledger's name in a cluster's folder.
const NAME: &str = "load-ledger";

/// What a run did with one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The run.
    pub run: String,
    /// `incr` or `set`.
    pub op: String,
    /// The key.
    pub key: String,
    /// Operations acknowledged.
    pub acked: u64,
    /// Operations that may have happened.
    pub unknown: u64,
    /// Of a counter, the highest value acknowledged; of a value, the one acknowledged last, without
    /// the dots that fill it up. Empty if there is none.
    pub last: String,
}

/// Why the ledger can't be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The file system refused.
    #[error("can't {doing} {path}", path = .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line is no entry.
    #[error("line {line} of {path} is no ledger entry", path = .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// A ledger that can be written.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
}

impl Ledger {
    /// Opens or makes the ledger of a cluster's folder, so that a run needn't find out at its end
    /// that it can't keep its account.
    ///
    /// # Errors
    /// [`LedgerError::Io`].
    pub fn open(dir: &Path) -> Result<Self, LedgerError> {
        let path = dir.join(NAME);
        let opened = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path);
        let synced = opened.and_then(|file| {
            // The name must survive as well as what will be written under it.
            File::open(dir)?.sync_all()?;
            Ok(file)
        });
        match synced {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(fault("open", &path)(source)),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a run's lines and syncs them.
    ///
    /// # Errors
    /// [`LedgerError::Io`].
    pub fn append(&mut self, entries: &[LedgerEntry]) -> Result<(), LedgerError> {
        let written = self.try_append(entries);
        written.map_err(fault("write", &self.path))
    }

    fn try_append(&mut self, entries: &[LedgerEntry]) -> io::Result<()> {
        // Two runs may end at once; the lock goes with the file or with the process.
        self.file.lock()?;
        let mut text = Vec::new();
        if self.ends_in_a_torn_line()? {
            text.push(b'\n');
        }
        for entry in entries {
            serde_json::to_writer(&mut text, entry)?;
            text.push(b'\n');
        }
        self.file.write_all(&text)?;
        self.file.sync_all()?;
        self.file.unlock()
    }

    fn ends_in_a_torn_line(&mut self) -> io::Result<bool> {
        if self.file.metadata()?.len() == 0 {
            return Ok(false);
        }
        let mut last = [0];
        self.file.seek(SeekFrom::End(-1))?;
        self.file.read_exact(&mut last)?;
        Ok(last != *b"\n")
    }
}

/// What a ledger says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Its entries.
    pub entries: Vec<LedgerEntry>,
    /// The lines that a crash cut off, from 1: what they told of, and what would have followed them
    /// in their run, is not accounted for.
    pub cut: Vec<usize>,
}

/// Reads the ledger of a cluster's folder; none is an empty one.
///
/// # Errors
/// [`LedgerError`].
pub fn read_ledger(dir: &Path) -> Result<Accounts, LedgerError> {
    let path = dir.join(NAME);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Accounts::default()),
        Err(source) => return Err(fault("read", &path)(source)),
    };
    let mut read = Accounts::default();
    for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        if text.is_empty() {
            continue;
        }
        match serde_json::from_slice(text) {
            Ok(entry) => read.entries.push(entry),
            Err(error) if error.is_eof() => read.cut.push(line),
            Err(source) => {
                let path = path.clone();
                return Err(LedgerError::Line { path, line, source });
            }
        }
    }
    Ok(read)
}

fn fault(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> LedgerError + use<> {
    let path = path.to_owned();
    move |source| LedgerError::Io {
        doing,
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn entry(run: &str, acked: u64) -> LedgerEntry {
        LedgerEntry {
            run: run.to_owned(),
            op: "incr".to_owned(),
            key: "counter:{7}:0".to_owned(),
            acked,
            unknown: 1,
            last: "12".to_owned(),
        }
    }

    #[test]
    fn runs_add_their_lines_in_the_agreed_form() {
        let dir = TempDir::new().unwrap();
        assert_eq!(read_ledger(dir.path()).unwrap(), Accounts::default());
        for (run, acked) in [("a", 12), ("b", 0)] {
            Ledger::open(dir.path())
                .unwrap()
                .append(&[entry(run, acked)])
                .unwrap();
        }
        let text = fs::read_to_string(dir.path().join("load-ledger")).unwrap();
        let first =
            r#"{"run":"a","op":"incr","key":"counter:{7}:0","acked":12,"unknown":1,"last":"12"}"#;
        assert_eq!(text.lines().next(), Some(first));
        assert_eq!(
            read_ledger(dir.path()).unwrap().entries,
            [entry("a", 12), entry("b", 0)]
        );
    }

    #[test]
    fn a_line_cut_off_by_a_crash_is_counted_and_spoils_no_other() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("load-ledger");
        fs::write(&path, r#"{"run":"a","op":"in"#).unwrap();
        assert_eq!(read_ledger(dir.path()).unwrap().cut, [1]);
        let mut ledger = Ledger::open(dir.path()).unwrap();
        ledger.append(&[entry("b", 2)]).unwrap();
        let read = read_ledger(dir.path()).unwrap();
        assert_eq!((read.entries, read.cut), (vec![entry("b", 2)], vec![1]));
        // Something else in it is no cut.
        fs::write(&path, "{\"run\":7}\n").unwrap();
        let error = read_ledger(dir.path()).unwrap_err();
        let of_line = matches!(error, LedgerError::Line { line: 1, .. });
        assert!(of_line, "{error}");
    }

    #[test]
    fn a_folder_that_isn_t_there_is_found_out_at_once() {
        let dir = TempDir::new().unwrap();
        let error = Ledger::open(&dir.path().join("absent")).unwrap_err();
        assert!(
            matches!(error, LedgerError::Io { doing: "open", .. }),
            "{error}"
        );
    }
}
