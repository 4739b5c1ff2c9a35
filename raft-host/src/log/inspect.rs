//! A log's folder read as it lies on disk, with nothing in it changed: for programs that look at a
//! node that is stopped.
//!
//! Leaves to others: what is whole, torn or corrupt (recovery.rs, the same that a node's start goes
//! through), what the entries mean.
//!
//! - The folder's lock is held as long as the reading, so no node starts on what is being read.
//! - Files are opened for reading only; what an interrupted creation or a torn tail left stays.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::api::{HardState, LogEntry, ReadError};
use super::error::OpenError;
use super::files::{Files, FolderLock, LogFile, RealFile, RealLock};
use super::index::{GroupState, LogIndex};
use super::open::{FORMAT, LOCK, check_names, failed, read_format};
use super::record::{Body, LogId};
use super::recovery::recover;
use super::segment::SegmentFile;
use super::shared::read_record;
use crate::id::{GroupId, Index, Term};

/// A folder whose files can be read, and that is all.
#[derive(Debug)]
struct ReadOnlyFiles {
    folder: PathBuf,
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "opened for reading only")
}

impl Files for ReadOnlyFiles {
    fn create(&self, _name: &str) -> io::Result<Arc<dyn LogFile>> {
        Err(read_only())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = File::open(self.folder.join(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Err(read_only())
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
        Err(read_only())
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<Box<dyn FolderLock>>> {
        let file = File::open(self.folder.join(name))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(RealLock { _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// How far one group's log reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The index before the first entry, and its term; 0, 0 if nothing was compacted.
    pub compacted: (Index, Term),
    /// The last entry's index and term, or the compacted point's if there are none.
    pub last: (Index, Term),
    /// The hard state, its commit index as it was stored.
    pub hard_state: HardState,
}

/// A log that is being looked at.
#[derive(Debug)]
pub struct LogReading {
    log_id: LogId,
    index: LogIndex,
    files: BTreeMap<u32, SegmentFile>,
    _lock: Box<dyn FolderLock>,
}

impl LogReading {
    /// Reads the log in a folder, as a start would find it.
    ///
    /// # Errors
    /// [`OpenError`]: when it is in use, can't be read, or is corrupt.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let folder = folder.to_owned();
        Self::of(&ReadOnlyFiles { folder })
    }

    pub(super) fn of(files: &dyn Files) -> Result<Self, OpenError> {
        let lock = files.try_lock(LOCK).map_err(failed("lock", LOCK))?;
        let lock = lock.ok_or_else(|| OpenError::InUse {
            file: LOCK.to_owned(),
        })?;
        let names = files.list().map_err(failed("list", "."))?;
        check_names(&names)?;
        let (mut log_id, mut index, mut found) = Default::default();
        // Without its name the log was never made whole, and acked nothing.
        if names.iter().any(|name| name == FORMAT) {
            log_id = read_format(files)?;
            let recovered = recover(files, &log_id, &names)?;
            index = recovered.index;
            let segments = recovered.segments.into_iter();
            found = segments
                .map(|(listed, file)| (listed.epoch, file))
                .collect();
        }
        Ok(Self {
            log_id,
            index,
            files: found,
            _lock: lock,
        })
    }

    /// All groups that the log holds anything of, in order.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        let groups = self.index.groups();
        groups
            .filter(|(_, state)| state.exists())
            .map(|(group, _)| group)
    }

    fn group(&self, group: GroupId) -> Option<&GroupState> {
        self.index.group(group).filter(|state| state.exists())
    }

    /// How far a group's log reaches; `None` if the log holds nothing of it.
    #[must_use]
    pub fn extent(&self, group: GroupId) -> Option<Extent> {
        let state = self.group(group)?;
        let point = state.point.map(|point| point.value).unwrap_or_default();
        let compacted = (point.through, point.term);
        let last_term = state.entries.back().map_or(point.term, |slot| slot.term);
        Some(Extent {
            compacted,
            last: (state.last(), last_term),
            hard_state: state
                .hard_state
                .map_or_else(HardState::default, |placed| placed.value),
        })
    }

    /// The term of the entry at an index, also of the compacted point itself; `None` outside of
    /// the log.
    #[must_use]
    pub fn term(&self, group: GroupId, index: Index) -> Option<Term> {
        let state = self.group(group)?;
        if index == state.compacted() {
            return Some(
                state
                    .point
                    .map(|point| point.value.term)
                    .unwrap_or_default(),
            );
        }
        state.slot(index).map(|slot| slot.term)
    }

    /// The entries from `first` up to and without `end`, as many as fit in `bytes_max` but at
    /// least one.
    ///
    /// # Errors
    /// [`ReadError`] when an index is outside of the log, or the disk doesn't give an entry back.
    pub fn entries(
        &self,
        group: GroupId,
        first: Index,
        end: Index,
        bytes_max: u64,
    ) -> Result<Vec<LogEntry>, ReadError> {
        let extent = self.extent(group).unwrap_or_default();
        let lost = |index| ReadError::Lost { index };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for index in (first.to_u64()..end.to_u64()).map(Index::new) {
            if index <= extent.compacted.0 {
                let first = extent.compacted.0.next();
                return Err(ReadError::Compacted { index, first });
            }
            let slot = self.group(group).and_then(|state| state.slot(index));
            let slot = slot.ok_or(ReadError::Unavailable {
                index,
                last: extent.last.0,
            })?;
            bytes += u64::from(slot.place.bytes);
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            let file = self.files.get(&slot.place.epoch).ok_or(lost(index))?;
            let (record, _) =
                read_record(&self.log_id, file, slot.place).map_err(|_| lost(index))?;
            match record.body {
                Body::Entry(entry)
                    if record.group == group
                        && record.version == slot.version
                        && entry.index == index =>
                {
                    entries.push(entry);
                }
                Body::Entry(_) | Body::HardState(_) | Body::Compact { .. } | Body::Remove => {
                    return Err(lost(index));
                }
            }
        }
        Ok(entries)
    }
}
