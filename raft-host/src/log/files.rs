//! The file layer under the log: the few operations the log does on files, and nothing else, so
//! that a test can stand in for a disk that loses, tears, refuses or blocks. The real one is over
//! `std::fs` on one folder; the simulated one is `sim_files.rs`.
//!
//! Leaves to others: what is written (record.rs), in which order and what a failure means
//! (engine.rs).
//!
//! What the log relies on:
//! - a write is durable only after `sync_data` of that file returned, a name only after
//!   `sync_folder` returned;
//! - a 512-byte sector is written wholly or not at all;
//! - a lock ends with the process.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A folder of files, as the log sees it. Names are plain, without a path.
pub trait Files: Send + Sync + fmt::Debug {
    /// Makes an empty file, or empties the one there is.
    ///
    /// # Errors
    /// What the file system says.
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// Opens a file that is there, for reading and writing.
    ///
    /// # Errors
    /// What the file system says.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// Gives a file another name, replacing what had it.
    ///
    /// # Errors
    /// What the file system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// What the file system says.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names in the folder, sorted.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes the names durable.
    ///
    /// # Errors
    /// What the file system says.
    fn sync_folder(&self) -> io::Result<()>;
    /// Takes the folder's lock, held until the guard is dropped or the process ends. `None` when
    /// another has it.
    ///
    /// # Errors
    /// What the file system says.
    fn try_lock(&self, name: &str) -> io::Result<Option<Box<dyn FolderLock>>>;
}

/// One open file.
pub trait LogFile: Send + Sync + fmt::Debug {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// What the file system says; part of it may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// What the file system says; an end of file before `bytes` is full is an error.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Returns once everything written is durable.
    ///
    /// # Errors
    /// What the file system says. After an error what was written may be lost without a trace.
    fn sync_data(&self) -> io::Result<()>;
    /// The file's length.
    ///
    /// # Errors
    /// What the file system says.
    fn bytes_len(&self) -> io::Result<u64>;
}

/// A held lock of a folder.
pub trait FolderLock: Send + Sync + fmt::Debug {}

/// A folder of the real file system.
#[derive(Debug)]
pub struct RealFiles {
    folder: PathBuf,
}

impl RealFiles {
    /// Takes a folder, making it if it isn't there.
    ///
    /// # Errors
    /// When the folder can't be made, or its parent can't be synced.
    pub fn new(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        if !folder.is_dir() {
            std::fs::create_dir_all(&folder)?;
            if let Some(parent) = folder
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
            {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(Self { folder })
    }
}

impl Files for RealFiles {
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.folder.join(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.folder.join(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.folder.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<Box<dyn FolderLock>>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.folder.join(name))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(RealLock { _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[derive(Debug)]
pub(super) struct RealFile(pub(super) File);

impl LogFile for RealFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn bytes_len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// The kernel drops the lock with the file.
#[derive(Debug)]
pub(super) struct RealLock {
    pub(super) _file: File,
}

impl FolderLock for RealLock {}
