//! The node's databases, opened on demand and kept open within a bound: beyond it the one longest
//! unused is closed. A handle in use is never closed under its user.
//!
//! Each group has a slot with a lock of its own, held while its database works; the order of use
//! is kept apart. A use only notes the time on its slot; the order is put right when a handle must
//! go (a second chance for each that was used since). Lock order: a slot, then the order; the other
//! way round a slot is only tried.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use raft_host::id::GroupId;

use super::applied_file::AppliedFile;
use super::digest::{self, Digest};
use super::error::StoreError;
use super::group_db::{AppliedEntry, Checkpoint, Committed, GroupDb};
use super::install;
use super::ops;
use super::schema::{Applied, Owner};
use crate::command::{Body, Outcome};
use crate::keyspace::KeySpace;
use crate::limits::{CHECKPOINT_BATCHES, OPEN_HANDLES_MAX, WAL_SETTLED_BYTES_MIN};

/// Where the store is and how much of it may be open.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The folder of the databases: `groups` in the node's data folder. Made if missing.
    pub folder: PathBuf,
    /// The cluster's key space: which groups there are.
    pub space: KeySpace,
    /// Databases open at once, at least one.
    pub open_max: usize,
    /// The file in which it is noted how far each database got, so that the next start need not open
    /// them; none, and each is opened for it.
    pub noted: Option<PathBuf>,
}

impl StoreOptions {
    /// The usual bound on open databases.
    #[must_use]
    pub fn new(folder: PathBuf, space: KeySpace) -> Self {
        Self {
            folder,
            space,
            open_max: OPEN_HANDLES_MAX,
            noted: None,
        }
    }
}

/// All group databases of one node.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    space: KeySpace,
    open_max: usize,
    slots: Vec<Slot>,
    noted: AppliedFile,
    order: Mutex<Order>,
    uses: AtomicU64,
    due: Mutex<BTreeSet<GroupId>>,
}

#[derive(Debug, Default)]
struct Slot {
    db: Mutex<Option<Box<GroupDb>>>,
    last_use: AtomicU64,
    /// Batches since the last whole checkpoint; counts on over closing and opening.
    unmoved: AtomicU64,
    /// Whether its file is there. One that isn't stands for a group with nothing applied.
    present: AtomicBool,
    /// How far it got at least, by what was noted; until the file itself is opened.
    noted: Mutex<Option<Applied>>,
}

/// The open databases by the use at which each was last put in order.
#[derive(Debug, Default)]
struct Order {
    by_use: BTreeSet<(u64, GroupId)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the store; no database yet. A group's file is made by the first batch that is applied
    /// to it, so that groups which nobody uses cost none.
    ///
    /// # Errors
    /// If the folder can't be made or read.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let StoreOptions {
            folder,
            space,
            open_max,
            noted,
        } = options;
        fs::create_dir_all(&folder).map_err(StoreError::io(&folder, "make the folder"))?;
        let slots: Vec<_> = space.all().map(|_| Slot::default()).collect();
        note_present(&folder, &slots)?;
        let (noted, believed) = AppliedFile::open(noted, space.groups())?;
        for (slot, applied) in slots.iter().zip(believed) {
            if slot.present.load(Ordering::Acquire) {
                *lock(&slot.noted) = applied;
            }
        }
        let open_max = open_max.max(1);
        let (order, due) = (Mutex::default(), Mutex::default());
        Ok(Self {
            folder,
            space,
            open_max,
            slots,
            noted,
            order,
            uses: AtomicU64::new(0),
            due,
        })
    }

    /// The file of a group.
    #[must_use]
    pub fn path_of(&self, group: GroupId) -> PathBuf {
        path_in(&self.folder, group)
    }

    /// Whether a group has a file.
    ///
    /// # Errors
    /// [`StoreError::NoSuchGroup`].
    pub fn exists(&self, group: GroupId) -> Result<bool, StoreError> {
        Ok(self.slot(group)?.present.load(Ordering::Acquire))
    }

    /// How far a group's database got at least: nowhere if it has no file. Until its file is opened
    /// for something else, the last batch may be in it and not be told of here.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn applied(&self, group: GroupId) -> Result<Applied, StoreError> {
        if !self.exists(group)? {
            return Ok(Applied::default());
        }
        let noted = *lock(&self.slot(group)?.noted);
        match noted {
            Some(applied) => Ok(applied),
            None => self.with(group, |db| Ok(db.applied())),
        }
    }

    /// Applies a batch of committed entries of one group in one transaction: all or nothing.
    /// Entries that are applied already are skipped and not among the results, so a batch may be
    /// given again after a crash.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`] may pass: the same batch can be given again. After
    /// [`StoreError::Gap`], [`StoreError::TermMismatch`] or [`StoreError::Undecodable`] this
    /// replica can't go on; after others a restart may help.
    pub fn apply(
        &self,
        group: GroupId,
        batch: &[Committed],
    ) -> Result<Vec<AppliedEntry>, StoreError> {
        let effects = self.with(group, |db| {
            let effects = db.apply(batch)?;
            if !effects.is_empty() {
                self.noted.note(group, db.applied());
            }
            Ok(effects)
        })?;
        if !effects.is_empty() {
            let unmoved = self.slot(group)?.unmoved.fetch_add(1, Ordering::Relaxed) + 1;
            if unmoved.is_multiple_of(CHECKPOINT_BATCHES) {
                lock(&self.due).insert(group);
            }
        }
        Ok(effects)
    }

    /// Answers a command that reads, and tells which state it saw.
    ///
    /// # Errors
    /// [`StoreError::NotARead`] for a command that writes, else those of the database.
    pub fn read(&self, group: GroupId, body: &Body) -> Result<(Applied, Outcome), StoreError> {
        if !self.exists(group)? {
            let outcome = ops::read_nothing(body).ok_or(StoreError::NotARead { group })?;
            return Ok((Applied::default(), outcome));
        }
        self.with(group, |db| Ok((db.applied(), db.read(body)?)))
    }

    /// How many keys a group holds. Walks all of them.
    ///
    /// # Errors
    /// Those of the database.
    pub fn row_count(&self, group: GroupId) -> Result<u64, StoreError> {
        if !self.exists(group)? {
            return Ok(0);
        }
        self.with(group, |db| db.row_count())
    }

    /// Moves what a group's write-ahead log holds into its file, with syncs. Not for the apply
    /// path: it waits for the disk.
    ///
    /// # Errors
    /// Those of the database.
    pub fn checkpoint(&self, group: GroupId) -> Result<Checkpoint, StoreError> {
        let slot = self.slot(group)?;
        let checkpoint = self.with(group, |db| {
            let checkpoint = db.checkpoint()?;
            if let Checkpoint::Whole { .. } = checkpoint {
                slot.unmoved.store(0, Ordering::Relaxed);
            }
            Ok(checkpoint)
        })?;
        Ok(checkpoint)
    }

    /// A group whose write-ahead log has grown enough for a checkpoint; each is given once.
    #[must_use]
    pub fn take_checkpoint_due(&self) -> Option<GroupId> {
        lock(&self.due).pop_first()
    }

    /// The digest of a group's content and where it stands. Reads beside the applying handle and
    /// holds nothing up, except that no checkpoint is whole while it reads.
    ///
    /// # Errors
    /// Those of the database.
    pub fn digest(&self, group: GroupId) -> Result<Digest, StoreError> {
        if !self.exists(group)? {
            return Ok(Digest::of_nothing());
        }
        let (path, owner) = self.existing(group)?;
        digest::digest(&path, owner)
    }

    /// Writes a group's content to a new file, synced, that [`Store::stage`] takes; tells where it
    /// stands. Reads beside the applying handle, as [`Store::digest`].
    ///
    /// # Errors
    /// Those of the database and of the new file, which must not exist.
    pub fn snapshot(&self, group: GroupId, to: &Path) -> Result<Applied, StoreError> {
        let (path, owner) = self.existing(group)?;
        install::snapshot(&path, owner, to)
    }

    /// Checks a received snapshot through and puts it, synced, in the place from which
    /// [`Store::install_staged`] takes it. The file is moved, so it must be on the same file
    /// system. The group's database isn't touched yet.
    ///
    /// # Errors
    /// If it is damaged, another group's, or stands elsewhere than `expected`; then the file is
    /// left where it was.
    pub fn stage(&self, group: GroupId, from: &Path, expected: Applied) -> Result<(), StoreError> {
        let owner = self.owner(group)?;
        install::stage(&self.path_of(group), owner, from, expected)
    }

    /// Puts the staged snapshot in the place of the group's database. To be called once the log
    /// holds the record "installing", and again after a crash until it holds "installed": it goes
    /// on wherever it was cut off, and does nothing if it was done (safety 14).
    ///
    /// # Errors
    /// [`StoreError::SnapshotMismatch`] if neither the staged file nor the database stands at
    /// `expected`, else those of the file system.
    pub fn install_staged(&self, group: GroupId, expected: Applied) -> Result<(), StoreError> {
        let owner = self.owner(group)?;
        let slot = self.slot(group)?;
        let mut db = self.lock_slot(group, slot);
        self.close_locked(group, &mut db);
        *lock(&slot.noted) = None;
        self.noted.forget(group)?;
        install::install(&self.path_of(group), owner, expected)?;
        slot.present.store(true, Ordering::Release);
        slot.unmoved.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Databases open at this moment.
    #[must_use]
    pub fn open_count(&self) -> usize {
        lock(&self.order).by_use.len()
    }

    /// Closes all databases that nobody uses at this moment. They open again on demand.
    pub fn close_idle(&self) {
        for (group, slot) in self.space.all().zip(&self.slots) {
            if let Ok(mut db) = slot.db.try_lock() {
                self.close_locked(group, &mut db);
            }
        }
    }

    /// The same, with what lies in large write-ahead logs moved into the databases and the space given
    /// back, as long as `go_on` says so. It saves room; nothing depends on it.
    pub fn close_settled(&self, go_on: &impl Fn() -> bool) {
        for group in self.space.all() {
            let wal = self.path_of(group).with_extension("db-wal");
            let is_large = fs::metadata(wal).is_ok_and(|wal| wal.len() >= WAL_SETTLED_BYTES_MIN);
            if !is_large {
                continue;
            }
            if !go_on() {
                break;
            }
            if let Err(error) = self.with(group, |db| db.truncate_wal()) {
                tracing::warn!(%group, %error, "the write-ahead log stays as it is");
            }
        }
        self.close_idle();
    }

    fn owner(&self, group: GroupId) -> Result<Owner, StoreError> {
        self.slot(group)?;
        Ok(Owner {
            group,
            groups: self.space.groups(),
        })
    }

    fn slot(&self, group: GroupId) -> Result<&Slot, StoreError> {
        let slot = usize::try_from(group.to_u64())
            .ok()
            .and_then(|at| self.slots.get(at));
        slot.ok_or(StoreError::NoSuchGroup {
            group,
            groups: self.space.groups(),
        })
    }

    /// The file of a group that is there, since it was opened or made just now.
    fn existing(&self, group: GroupId) -> Result<(PathBuf, Owner), StoreError> {
        self.with(group, |_| Ok(()))?;
        Ok((self.path_of(group), self.owner(group)?))
    }

    /// Runs `work` on a group's open database; a database that failed is closed, so that the next
    /// use starts from what its file says.
    pub(super) fn with<T>(
        &self,
        group: GroupId,
        work: impl FnOnce(&mut GroupDb) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let slot = self.slot(group)?;
        let mut db = self.lock_slot(group, slot);
        let now = self.uses.fetch_add(1, Ordering::Relaxed) + 1;
        slot.last_use.store(now, Ordering::Relaxed);
        let mut evicted = Vec::new();
        let open = match &mut *db {
            Some(open) => open,
            empty => {
                let opened = GroupDb::open(self.path_of(group), self.owner(group)?)?;
                self.hold_to_note(slot, &opened, group)?;
                slot.present.store(true, Ordering::Release);
                evicted = self.enter(group, now);
                empty.insert(Box::new(opened))
            }
        };
        let result = work(open);
        if result.is_err() {
            self.close_locked(group, &mut db);
        }
        drop(db);
        drop(evicted);
        result
    }

    /// P1: a file that holds less than was told of it was replaced, or lost pages.
    fn hold_to_note(&self, slot: &Slot, db: &GroupDb, group: GroupId) -> Result<(), StoreError> {
        let mut noted = lock(&slot.noted);
        if let Some(told) = *noted
            && db.applied().index < told.index
        {
            return Err(StoreError::Behind {
                path: self.path_of(group),
                noted: self.noted.path().to_owned(),
                expected: told.index,
                got: db.applied().index,
            });
        }
        *noted = None;
        Ok(())
    }

    /// Takes a slot's lock. If a user panicked in it, its database is opened anew.
    fn lock_slot<'a>(
        &self,
        group: GroupId,
        slot: &'a Slot,
    ) -> MutexGuard<'a, Option<Box<GroupDb>>> {
        slot.db.lock().unwrap_or_else(|poisoned| {
            slot.db.clear_poison();
            let mut db = poisoned.into_inner();
            self.close_locked(group, &mut db);
            db
        })
    }

    fn close_locked(&self, group: GroupId, db: &mut Option<Box<GroupDb>>) {
        if db.take().is_some() {
            lock(&self.order).by_use.retain(|(_, open)| *open != group);
        }
    }

    /// Enters a newly opened database in the order, and takes out those that must go for it.
    fn enter(&self, group: GroupId, now: u64) -> Vec<GroupDb> {
        let mut evicted = Vec::new();
        let mut order = lock(&self.order);
        order.by_use.insert((now, group));
        // Twice around: the first may only find that each was used since it was put in order.
        for _ in 0..order.by_use.len() * 2 {
            if order.by_use.len() <= self.open_max {
                break;
            }
            let Some((entered, oldest)) = order.by_use.pop_first() else {
                break;
            };
            let Ok(slot) = self.slot(oldest) else {
                continue;
            };
            let used = slot.last_use.load(Ordering::Relaxed);
            if used > entered {
                order.by_use.insert((used, oldest));
            } else if let Ok(mut db) = slot.db.try_lock() {
                evicted.extend(db.take().map(|db| *db));
            } else {
                // In use at this moment: as good as used now.
                order.by_use.insert((now, oldest));
            }
        }
        evicted
    }
}

/// Notes which groups have a file.
fn note_present(folder: &Path, slots: &[Slot]) -> Result<(), StoreError> {
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder, "read the folder"))? {
        let entry = entry.map_err(StoreError::io(folder, "read the folder"))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".db"));
        let slot = number
            .and_then(|number| number.parse::<usize>().ok())
            .and_then(|at| slots.get(at));
        if let Some(slot) = slot {
            slot.present.store(true, Ordering::Release);
        }
    }
    Ok(())
}

/// The file of a group in a folder of databases.
pub(super) fn path_in(folder: &Path, group: GroupId) -> PathBuf {
    folder.join(format!("{group}.db"))
}
