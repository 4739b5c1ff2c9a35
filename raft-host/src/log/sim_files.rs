//! A folder in memory that behaves like a disk at its worst, from a seed: what wasn't synced may
//! be lost or torn at any sector when the power goes, names too; writes and syncs fail, space runs
//! out, a sync hangs. For tests and for the simulation.
//!
//! Leaves to others: when the power goes. Every operation is counted and traced, so a test can cut
//! it after any of them, and can put its own notes (an ack) between them.
//!
//! What it promises, as a disk does: what `sync_data` returned for is kept; a 512-byte sector is
//! kept wholly or not at all; a name is kept once `sync_folder` returned, and of two unsynced name
//! changes the later is never kept without the earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::files::{Files, FolderLock, LogFile};
use super::record::SECTOR_BYTES;

/// One traced operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimOp {
    /// A file was made.
    Create(String),
    /// Bytes were written.
    Write {
        /// The file.
        file: String,
        /// Where.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// A file was synced.
    Sync(String),
    /// A name was changed.
    Rename(String, String),
    /// A name was removed.
    Remove(String),
    /// The names were synced.
    SyncFolder,
    /// A test's own note.
    Note(String),
}

/// What is to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// The next write fails halfway.
    WriteError,
    /// The next sync of a file fails, and what it should have kept is as unsynced as before.
    SyncError,
    /// Making files and filling them fails until the fault is lifted.
    NoSpace,
    /// Syncs hang until the fault is lifted.
    BlockedSync,
}

/// The folder. Clones are the same folder.
#[derive(Clone)]
pub struct SimFiles {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Mutex<Disk>,
    unblocked: Condvar,
}

#[derive(Default)]
struct Disk {
    files: Vec<SimInode>,
    names: BTreeMap<String, usize>,
    names_durable: BTreeMap<String, usize>,
    names_unsynced: Vec<NameChange>,
    locks: BTreeSet<String>,
    trace: Vec<SimOp>,
    untraced: bool,
    operations: u64,
    cut_after: Option<u64>,
    dead: bool,
    faults: Vec<SimFault>,
    /// Rises with each power cycle: handles of before are dead.
    power: u64,
}

#[derive(Default)]
struct SimInode {
    /// Its latest name, for the trace.
    name: String,
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: BTreeSet<usize>,
}

enum NameChange {
    Set(String, usize),
    Rename(String, String, usize),
    Unset(String),
}

impl fmt::Debug for SimFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFiles").finish_non_exhaustive()
    }
}

impl Default for SimFiles {
    fn default() -> Self {
        Self::new()
    }
}

/// A small generator of its own (SplitMix64): a seed gives the same disk for ever.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl SimFiles {
    /// An empty folder.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                disk: Mutex::default(),
                unblocked: Condvar::new(),
            }),
        }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.inner
            .disk
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a fault.
    pub fn inject(&self, fault: SimFault) {
        self.disk().faults.push(fault);
    }

    /// Ends all faults; what hangs goes on.
    pub fn heal(&self) {
        self.disk().faults.clear();
        self.inner.unblocked.notify_all();
    }

    /// The power goes after so many more operations: each later one fails.
    pub fn cut_after(&self, operations: u64) {
        let mut disk = self.disk();
        disk.cut_after = Some(disk.operations + operations);
    }

    /// How many changing operations there were.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.disk().operations
    }

    /// Whether an operation came after the cut.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.disk().dead
    }

    /// Everything done so far.
    #[must_use]
    pub fn trace(&self) -> Vec<SimOp> {
        self.disk().trace.clone()
    }

    /// Traces nothing from now on: a long run would only gather it.
    pub fn keep_no_trace(&self) {
        self.disk().untraced = true;
    }

    /// Puts a note between the operations.
    pub fn note(&self, note: impl Into<String>) {
        let note = note.into();
        self.disk().trace(|_| SimOp::Note(note));
    }

    /// The power goes and comes back: of what wasn't synced the seed decides, sector by sector,
    /// what is kept. Faults end; open handles and locks are dead.
    pub fn power_cycle(&self, seed: u64) {
        let mut dice = Dice(seed);
        // Also the extremes: everything kept, nothing kept.
        let share = [0, 1, 4, 7, 8][usize::try_from(dice.roll() % 5).unwrap_or(0)];
        let mut disk = self.disk();
        let disk = &mut *disk;
        let kept = match disk.names_unsynced.len() as u64 {
            0 => 0,
            changes => usize::try_from(dice.roll() % (changes + 1)).unwrap_or(0),
        };
        for change in disk.names_unsynced.drain(..).take(kept) {
            change.apply(&mut disk.names_durable);
        }
        disk.names_unsynced.clear();
        disk.names = disk.names_durable.clone();
        for inode in &mut disk.files {
            for sector in std::mem::take(&mut inode.unsynced) {
                if dice.roll() % 8 < share {
                    inode.keep(sector);
                }
            }
            inode.now = inode.durable.clone();
        }
        disk.after_restart();
    }

    /// The process dies, the machine doesn't: everything written is still there.
    pub fn kill(&self) {
        self.disk().after_restart();
    }

    /// The bytes of a file, as a reader would see them.
    #[must_use]
    pub fn bytes_of(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.disk();
        disk.names
            .get(name)
            .map(|inode| disk.files[*inode].now.clone())
    }

    /// Puts bytes there, durable at once: a backup restored, a bit flipped.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut disk = self.disk();
        let inode = disk.files.len();
        disk.files.push(SimInode {
            name: name.to_owned(),
            durable: bytes.clone(),
            now: bytes,
            unsynced: BTreeSet::new(),
        });
        disk.names.insert(name.to_owned(), inode);
        disk.names_durable.insert(name.to_owned(), inode);
    }

    /// Flips a bit of a file in place, durable at once: open handles see it too.
    pub fn damage(&self, name: &str, at: usize) {
        let mut disk = self.disk();
        if let Some(inode) = disk.names.get(name).copied() {
            let inode = &mut disk.files[inode];
            for bytes in [&mut inode.now, &mut inode.durable] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1;
                }
            }
        }
    }

    /// A folder of its own with what is certain to be there after a power cut now: names and content
    /// that were synced, and nothing else.
    #[must_use]
    pub fn fork_synced(&self) -> Self {
        let fork = Self::new();
        let disk = self.disk();
        for (name, inode) in &disk.names_durable {
            fork.put(name, disk.files[*inode].durable.clone());
        }
        fork
    }

    /// A folder of its own with the same content, all of it durable.
    #[must_use]
    pub fn fork(&self) -> Self {
        let fork = Self::new();
        let disk = self.disk();
        for (name, inode) in &disk.names {
            fork.put(name, disk.files[*inode].now.clone());
        }
        fork
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Set(name, inode) => {
                names.insert(name, inode);
            }
            NameChange::Rename(from, to, inode) => {
                names.remove(&from);
                names.insert(to, inode);
            }
            NameChange::Unset(name) => {
                names.remove(&name);
            }
        }
    }
}

impl SimInode {
    fn keep(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.now.len());
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[start..end].copy_from_slice(&self.now[start..end]);
    }

    fn sync(&mut self) {
        for sector in std::mem::take(&mut self.unsynced) {
            self.keep(sector);
        }
        self.durable.resize(self.now.len(), 0);
    }

    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(bytes);
        self.unsynced
            .extend(offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
    }
}

impl Disk {
    fn trace(&mut self, op: impl FnOnce(&Self) -> SimOp) {
        if !self.untraced {
            let op = op(self);
            self.trace.push(op);
        }
    }

    fn after_restart(&mut self) {
        self.locks.clear();
        self.faults.clear();
        self.cut_after = None;
        self.dead = false;
        self.power += 1;
    }

    /// Counts a changing operation, or fails it because the power is gone.
    fn begin(&mut self, power: u64) -> io::Result<()> {
        if power != self.power || self.cut_after.is_some_and(|cut| self.operations >= cut) {
            self.dead = true;
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the power is gone",
            ));
        }
        self.operations += 1;
        Ok(())
    }

    fn take_fault(&mut self, fault: SimFault) -> bool {
        let at = self.faults.iter().position(|there| *there == fault);
        at.map(|at| self.faults.remove(at)).is_some()
    }

    fn has_space(&self) -> io::Result<()> {
        if self.faults.contains(&SimFault::NoSpace) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space"));
        }
        Ok(())
    }

    fn inode(&self, name: &str) -> io::Result<usize> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, name.to_owned());
        self.names.get(name).copied().ok_or_else(missing)
    }
}

impl Files for SimFiles {
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let mut disk = self.disk();
        let power = disk.power;
        disk.begin(power)?;
        disk.has_space()?;
        let inode = disk.files.len();
        disk.files.push(SimInode {
            name: name.to_owned(),
            ..SimInode::default()
        });
        disk.names.insert(name.to_owned(), inode);
        disk.names_unsynced
            .push(NameChange::Set(name.to_owned(), inode));
        disk.trace(|_| SimOp::Create(name.to_owned()));
        Ok(Arc::new(SimFile {
            files: self.clone(),
            inode,
            power,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let disk = self.disk();
        let (inode, power) = (disk.inode(name)?, disk.power);
        Ok(Arc::new(SimFile {
            files: self.clone(),
            inode,
            power,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        let power = disk.power;
        disk.begin(power)?;
        let inode = disk.inode(from)?;
        disk.names.remove(from);
        disk.names.insert(to.to_owned(), inode);
        disk.files[inode].name = to.to_owned();
        disk.names_unsynced
            .push(NameChange::Rename(from.to_owned(), to.to_owned(), inode));
        disk.trace(|_| SimOp::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        let power = disk.power;
        disk.begin(power)?;
        disk.inode(name)?;
        disk.names.remove(name);
        disk.names_unsynced.push(NameChange::Unset(name.to_owned()));
        disk.trace(|_| SimOp::Remove(name.to_owned()));
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk().names.keys().cloned().collect())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut disk = self.disk();
        let power = disk.power;
        disk.begin(power)?;
        disk.names_unsynced.clear();
        disk.names_durable = disk.names.clone();
        disk.trace(|_| SimOp::SyncFolder);
        Ok(())
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<Box<dyn FolderLock>>> {
        let mut disk = self.disk();
        if !disk.locks.insert(name.to_owned()) {
            return Ok(None);
        }
        let power = disk.power;
        Ok(Some(Box::new(SimLock {
            files: self.clone(),
            name: name.to_owned(),
            power,
        })))
    }
}

#[derive(Debug)]
struct SimLock {
    files: SimFiles,
    name: String,
    power: u64,
}

impl FolderLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut disk = self.files.disk();
        if disk.power == self.power {
            disk.locks.remove(&self.name);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    files: SimFiles,
    inode: usize,
    power: u64,
}

impl LogFile for SimFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.files.disk();
        disk.begin(self.power)?;
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        if at + bytes.len() > disk.files[self.inode].now.len() {
            disk.has_space()?;
        }
        let failing = disk.take_fault(SimFault::WriteError);
        let written = if failing {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        disk.files[self.inode].write(written, at);
        let bytes = written.len() as u64;
        disk.trace(|disk| SimOp::Write {
            file: disk.files[self.inode].name.clone(),
            offset,
            bytes,
        });
        if failing {
            Err(io::Error::other("a write failed"))
        } else {
            Ok(())
        }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let disk = self.files.disk();
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        let there = disk.files[self.inode].now.get(at..at + bytes.len());
        bytes.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.files.disk();
        disk.begin(self.power)?;
        while disk.faults.contains(&SimFault::BlockedSync) {
            disk = self
                .files
                .inner
                .unblocked
                .wait(disk)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if disk.take_fault(SimFault::SyncError) {
            return Err(io::Error::other("a sync failed"));
        }
        disk.files[self.inode].sync();
        disk.trace(|disk| SimOp::Sync(disk.files[self.inode].name.clone()));
        Ok(())
    }

    fn bytes_len(&self) -> io::Result<u64> {
        Ok(self.files.disk().files[self.inode].now.len() as u64)
    }
}
