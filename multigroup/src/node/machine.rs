//! The store as the host's state machine: each call applies a whole batch of one group in one
//! transaction. What SQLite does with it is `store`'s business, what is committed is the host's.
//!
//! - M1: entries without a command (a new leader's own, changes of the members) touch no file while
//!   nothing else comes: they wait in memory for the next command of their group. So an election
//!   over thousands of groups opens no database, and a group that nobody uses has none.
//! - M2: `flush` never claims more than a checkpoint that moved every frame has made durable
//!   (safety 14); it asks for the next one and reports the last, since it may not wait for the disk.
//! - M3: a batch that finds the disk full is tried again until there is room or the node stops;
//!   any other failure of the store is the host's to stop for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use raft_host::id::{GroupId, Index};
use raft_host::io::{Applied, Committed, MachineError, MachineFactory, StateMachine};
use tracing::{error, warn};

use crate::archive;
use crate::limits::{CHECKPOINTS_WAITING_MAX, DISK_FULL_PAUSE, EMPTY_ENTRIES_HELD_MAX};
use crate::store::{self, Checkpoint, Digest, Effect, Store, StoreError};

/// Where one group stands in its file and beyond it.
#[derive(Debug, Default)]
struct Standing {
    marks: Mutex<Marks>,
    /// Everything up to here survives a loss of power.
    floor: AtomicU64,
    /// A checkpoint was asked for and hasn't begun.
    asked: AtomicBool,
}

/// M1: what lies between the two is entries without a command.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    in_file: Index,
    applied: Index,
}

impl Standing {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    groups: Vec<Standing>,
    stopping: AtomicBool,
    disk_full: AtomicBool,
    /// Counts what is applied and not archived, if there is an archive.
    archive: Option<Arc<archive::Shared>>,
}

impl Shared {
    fn standing(&self, group: GroupId) -> Option<&Standing> {
        let at = usize::try_from(group.to_u64()).ok()?;
        self.groups.get(at)
    }
}

/// All state machines of a node, and the thread that makes their checkpoints. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Machines {
    shared: Arc<Shared>,
    /// `None` ends the thread.
    checkpoints: SyncSender<Option<GroupId>>,
}

/// The thread of the checkpoints.
#[derive(Debug)]
pub(super) struct Checkpointer(JoinHandle<()>);

impl Machines {
    /// Begins with what the store holds.
    pub(super) fn start(
        store: Arc<Store>,
        groups: u32,
        archive: Option<Arc<archive::Shared>>,
    ) -> std::io::Result<(Self, Checkpointer)> {
        let shared = Arc::new(Shared {
            store,
            groups: (0..groups).map(|_| Standing::default()).collect(),
            stopping: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            archive,
        });
        let (checkpoints, asked) = sync_channel(CHECKPOINTS_WAITING_MAX);
        let machines = Self {
            shared: Arc::clone(&shared),
            checkpoints,
        };
        let thread = std::thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(move || checkpoint_all(&shared, &asked))?;
        Ok((machines, Checkpointer(thread)))
    }

    /// Whether a batch is waiting for room on the disk.
    pub(super) fn is_disk_full(&self) -> bool {
        self.shared.disk_full.load(Ordering::Relaxed)
    }

    /// No batch waits for room on the disk any more, and no checkpoint begins.
    pub(super) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // With no room the thread has something to wake it, and sees the flag then.
        let _ = self.checkpoints.try_send(None);
    }

    /// What a group's replica holds, and up to which entry that is: entries without a command that
    /// follow on what is in the file change none of its rows.
    pub(super) fn digest(&self, group: GroupId) -> Result<(Index, Digest), StoreError> {
        let digest = self.shared.store.digest(group)?;
        let in_file = digest.applied.index;
        let marks = self.shared.standing(group).map(|it| *it.marks());
        let applied = match marks {
            Some(marks) if marks.in_file == in_file => marks.applied,
            Some(_) | None => in_file,
        };
        Ok((applied, digest))
    }

    fn ask_checkpoint(&self, group: GroupId) {
        let Some(standing) = self.shared.standing(group) else {
            return;
        };
        if standing.asked.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.checkpoints.try_send(Some(group))
        {
            standing.asked.store(false, Ordering::Release);
        }
    }

    fn open(&self, group: GroupId) -> Result<GroupMachine, StoreError> {
        let applied = self.shared.store.applied(group)?;
        if let Some(standing) = self.shared.standing(group) {
            let (in_file, applied) = (applied.index, applied.index);
            *standing.marks() = Marks { in_file, applied };
        }
        if let Some(archive) = &self.shared.archive {
            archive.ledger.opened(group, applied.index);
        }
        Ok(GroupMachine {
            group,
            machines: self.clone(),
            held: Vec::new(),
            applied: Applied {
                index: applied.index,
                term: applied.term,
            },
        })
    }
}

impl MachineFactory for Machines {
    fn open(&self, group: GroupId) -> Result<Box<dyn StateMachine>, MachineError> {
        let machine = Self::open(self, group).map_err(MachineError::failed)?;
        Ok(Box::new(machine))
    }
}

impl Checkpointer {
    /// Waits for the checkpoint under way, after [`Machines::stop`].
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            error!("the thread of the checkpoints panicked; logs were not shortened any more");
        }
    }
}

/// Started with the node; ends when the node stops. If it panics
/// no group's log is shortened any more, which the log's cap bounds by name.
fn checkpoint_all(shared: &Shared, asked: &Receiver<Option<GroupId>>) {
    while let Ok(Some(group)) = asked.recv() {
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let Some(standing) = shared.standing(group) else {
            continue;
        };
        standing.asked.store(false, Ordering::Release);
        match shared.store.checkpoint(group) {
            Ok(Checkpoint::Whole { floor }) => {
                standing.floor.fetch_max(floor.to_u64(), Ordering::AcqRel);
            }
            // Someone reads beside it; the next batches ask again.
            Ok(Checkpoint::Partial { .. }) => {}
            Err(error) => warn!(%group, %error, "a checkpoint failed; the log keeps its entries"),
        }
    }
}

/// One group.
struct GroupMachine {
    group: GroupId,
    machines: Machines,
    /// Entries without a command that follow on what is in the file.
    held: Vec<store::Committed>,
    applied: Applied,
}

impl GroupMachine {
    fn write(&self, entries: &[store::Committed]) -> Result<Vec<store::AppliedEntry>, StoreError> {
        let shared = &self.machines.shared;
        loop {
            match shared.store.apply(self.group, entries) {
                Err(StoreError::DiskFull { path }) if !shared.stopping.load(Ordering::Acquire) => {
                    if !shared.disk_full.swap(true, Ordering::Relaxed) {
                        warn!(path = %path.display(), "the disk is full; applying waits for room");
                    }
                    std::thread::sleep(DISK_FULL_PAUSE);
                }
                applied => {
                    if applied.is_ok() && shared.disk_full.swap(false, Ordering::Relaxed) {
                        warn!(group = %self.group, "the disk has room again");
                    }
                    return applied;
                }
            }
        }
    }

    fn note(&self, in_file: Option<Index>) {
        let Some(standing) = self.machines.shared.standing(self.group) else {
            return;
        };
        let mut marks = standing.marks();
        marks.applied = self.applied.index;
        marks.in_file = in_file.unwrap_or(marks.in_file);
    }

    fn count(&self, batch: &[Committed]) {
        if let Some(archive) = &self.machines.shared.archive {
            archive.ledger.applied(self.group, batch);
        }
    }

    /// M1.
    fn hold(&mut self, batch: &[Committed]) -> bool {
        let bare = batch.iter().all(|entry| entry.command.is_empty());
        let fits = self.held.len() + batch.len() <= EMPTY_ENTRIES_HELD_MAX;
        if bare && fits {
            self.held.extend(batch.iter().map(stored));
        }
        bare && fits
    }
}

fn stored(entry: &Committed) -> store::Committed {
    store::Committed {
        index: entry.index,
        term: entry.term,
        time: entry.time,
        data: entry.command.clone(),
    }
}

fn reply_of(effect: &Effect) -> Bytes {
    match effect {
        Effect::Empty => Bytes::new(),
        Effect::Done(outcome) | Effect::Known { outcome, .. } => outcome.encode(),
    }
}

impl StateMachine for GroupMachine {
    fn applied(&self) -> Applied {
        self.applied
    }

    fn apply(&mut self, batch: &[Committed]) -> Result<Vec<Bytes>, MachineError> {
        let Some(last) = batch.last() else {
            return Ok(Vec::new());
        };
        let now = Applied {
            index: last.index,
            term: last.term,
        };
        if self.hold(batch) {
            self.applied = now;
            self.note(None);
            self.count(batch);
            return Ok(vec![Bytes::new(); batch.len()]);
        }
        let mut entries = std::mem::take(&mut self.held);
        entries.extend(batch.iter().map(stored));
        let effects = self.write(&entries).map_err(MachineError::failed)?;
        self.applied = now;
        self.note(Some(now.index));
        self.count(batch);
        if let Some(due) = self.machines.shared.store.take_checkpoint_due() {
            self.machines.ask_checkpoint(due);
        }
        // The effects are those of the last entries; what was applied before has none.
        let mut replies: Vec<_> = effects
            .iter()
            .rev()
            .take(batch.len())
            .map(|applied| reply_of(&applied.effect))
            .collect();
        replies.resize(batch.len(), Bytes::new());
        replies.reverse();
        Ok(replies)
    }

    fn flush(&mut self) -> Result<Index, MachineError> {
        self.machines.ask_checkpoint(self.group);
        let standing = self.machines.shared.standing(self.group);
        let floor = standing.map_or(0, |it| it.floor.load(Ordering::Acquire));
        Ok(Index::new(floor))
    }
}

#[cfg(test)]
mod tests;
