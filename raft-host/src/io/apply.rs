//! The apply workers: threads that run the groups' state machines, off the shards' threads. A
//! group's entries wait in its own queue, and the group stands in the workers' line at most once:
//! so its batches are applied in order, one at a time, while others go on beside it.
//!
//! Leaves to others: what is committed and how far a group may run ahead (the core bounds what it
//! hands over, `UNAPPLIED_ENTRIES_MAX`), who waits for a reply (the core's waiters).
//!
//! - W1: a group's entries are applied in the order in which they were handed over, each once.
//! - W2: a failed or panicked state machine is never called again, and the node stops.
//!
//! The workers: started with the host, ended by `stop`, which lets the calls under way finish. A
//! worker doesn't panic of a state machine's panic.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;

use super::failure::{Failing, HostFailure};
use super::inbox::{Inbox, Note, lock};
use super::machine::{Committed, MachineError, StateMachine};
use crate::id::{GroupId, Index};
use crate::limits::{APPLY_ENTRIES_MAX, FLUSH_AFTER_ENTRIES};
use crate::log::api::{EntryKind, LogEntry};
use crate::proto::group_time::read_note;

#[derive(Debug, Default)]
struct Waiting {
    entries: VecDeque<LogEntry>,
    /// It is to become durable, for the log's sake.
    flush: bool,
    /// It stands in the workers' line, or a worker has it.
    queued: bool,
}

struct Machine {
    machine: Box<dyn StateMachine>,
    /// Applied when it was last asked to become durable.
    flushed_at: Index,
    failed: bool,
}

/// One group as the apply workers know it.
pub(super) struct GroupApply {
    group: GroupId,
    inbox: Arc<Inbox>,
    waiting: Mutex<Waiting>,
    machine: Mutex<Machine>,
}

impl std::fmt::Debug for GroupApply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupApply")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl GroupApply {
    pub(super) fn new(
        group: GroupId,
        machine: Box<dyn StateMachine>,
        applied: Index,
        inbox: Arc<Inbox>,
    ) -> Self {
        Self {
            group,
            inbox,
            waiting: Mutex::default(),
            machine: Mutex::new(Machine {
                machine,
                flushed_at: applied,
                failed: false,
            }),
        }
    }

    /// Takes the next entries to apply, at most a batch.
    fn next_batch(&self) -> Vec<LogEntry> {
        let mut waiting = lock(&self.waiting);
        let count = waiting.entries.len().min(APPLY_ENTRIES_MAX);
        waiting.entries.drain(..count).collect()
    }

    /// Whether there is more; if not, the group has left the line.
    fn has_more(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        waiting.queued = !waiting.entries.is_empty() || waiting.flush;
        waiting.queued
    }

    /// Makes the state machine durable if that was asked for.
    fn flush(&self) -> Result<(), MachineError> {
        if !std::mem::take(&mut lock(&self.waiting).flush) {
            return Ok(());
        }
        let mut machine = lock(&self.machine);
        if machine.failed {
            return Ok(());
        }
        let flushed = catch_unwind(AssertUnwindSafe(|| machine.flush()));
        let flushed = flushed.unwrap_or(Err(MachineError::Panicked));
        machine.failed = flushed.is_err();
        drop(machine);
        let (group, index) = (self.group, flushed?);
        self.inbox.put_note(Note::Flushed { group, index });
        Ok(())
    }

    fn apply(&self, entries: Vec<LogEntry>) -> Result<(), MachineError> {
        let Some(last) = entries.last().map(|entry| entry.index) else {
            return Ok(());
        };
        let batch: Vec<_> = entries.into_iter().map(committed).collect();
        let mut machine = lock(&self.machine);
        if machine.failed {
            return Ok(());
        }
        let applied = catch_unwind(AssertUnwindSafe(|| machine.run(&batch, last)));
        let applied = applied.unwrap_or(Err(MachineError::Panicked));
        machine.failed = applied.is_err();
        drop(machine);
        let (replies, flushed) = applied?;
        let replies = batch.iter().zip(replies);
        let replies = replies.map(|(entry, reply)| (entry.index, reply));
        self.inbox.put_note(Note::Applied {
            group: self.group,
            index: last,
            replies: replies.filter(|(_, reply)| !reply.is_empty()).collect(),
            flushed,
        });
        Ok(())
    }
}

impl Machine {
    fn run(
        &mut self,
        batch: &[Committed],
        last: Index,
    ) -> Result<(Vec<Bytes>, Option<Index>), MachineError> {
        let replies = self.machine.apply(batch)?;
        if replies.len() != batch.len() {
            return Err(MachineError::Replies {
                expected: batch.len(),
                got: replies.len(),
            });
        }
        let behind = last.to_u64().saturating_sub(self.flushed_at.to_u64());
        if behind < FLUSH_AFTER_ENTRIES {
            return Ok((replies, None));
        }
        let flushed = self.flush()?.min(last);
        Ok((replies, Some(flushed)))
    }

    fn flush(&mut self) -> Result<Index, MachineError> {
        let flushed = self.machine.flush()?;
        self.flushed_at = self.flushed_at.max(flushed);
        Ok(flushed)
    }
}

fn committed(entry: LogEntry) -> Committed {
    let (time, request_id) = read_note(&entry.context);
    Committed {
        time,
        index: entry.index,
        term: entry.term,
        command: match entry.kind {
            EntryKind::Normal => entry.data,
            EntryKind::ConfChange => Bytes::new(),
        },
        request_id,
    }
}

#[derive(Debug, Default)]
struct Line {
    groups: VecDeque<Arc<GroupApply>>,
    stopped: bool,
}

#[derive(Debug)]
struct Shared {
    line: Mutex<Line>,
    filled: Condvar,
    failing: Arc<Failing>,
}

/// The workers' line, as the shards use it.
#[derive(Clone, Debug)]
pub(super) struct ApplyQueue(Arc<Shared>);

impl ApplyQueue {
    /// Hands over the next committed entries of a group.
    pub(super) fn push(&self, group: &Arc<GroupApply>, entries: Vec<LogEntry>) {
        let mut waiting = lock(&group.waiting);
        waiting.entries.extend(entries);
        let queued = std::mem::replace(&mut waiting.queued, true);
        drop(waiting);
        if !queued {
            self.enter(Arc::clone(group));
        }
    }

    /// Has a group's state machine become durable, after what waits to be applied.
    pub(super) fn ask_flush(&self, group: &Arc<GroupApply>) {
        let mut waiting = lock(&group.waiting);
        waiting.flush = true;
        let queued = std::mem::replace(&mut waiting.queued, true);
        drop(waiting);
        if !queued {
            self.enter(Arc::clone(group));
        }
    }

    fn enter(&self, group: Arc<GroupApply>) {
        lock(&self.0.line).groups.push_back(group);
        self.0.filled.notify_one();
    }

    fn next(&self) -> Option<Arc<GroupApply>> {
        let mut line = lock(&self.0.line);
        loop {
            if line.stopped {
                return None;
            }
            if let Some(group) = line.groups.pop_front() {
                return Some(group);
            }
            let filled = self.0.filled.wait(line);
            line = filled.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        while let Some(group) = self.next() {
            let worked = group.apply(group.next_batch()).and_then(|()| group.flush());
            if let Err(error) = worked {
                let (group, error) = (group.group, Arc::new(error));
                self.0.failing.fail(HostFailure::Machine { group, error });
            }
            if group.has_more() {
                self.enter(group);
            }
        }
    }
}

/// The workers.
#[derive(Debug)]
pub(super) struct ApplyPool {
    queue: ApplyQueue,
    threads: Vec<JoinHandle<()>>,
}

impl ApplyPool {
    pub(super) fn start(workers: u16, failing: Arc<Failing>) -> std::io::Result<Self> {
        let queue = ApplyQueue(Arc::new(Shared {
            line: Mutex::default(),
            filled: Condvar::new(),
            failing,
        }));
        let mut pool = Self {
            queue,
            threads: Vec::new(),
        };
        for worker in 0..workers {
            let queue = pool.queue.clone();
            let thread = std::thread::Builder::new()
                .name(format!("raft-apply-{worker}"))
                .spawn(move || queue.work())?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(super) fn queue(&self) -> ApplyQueue {
        self.queue.clone()
    }

    /// Lets the calls under way finish, and ends.
    pub(super) fn stop(&mut self) {
        lock(&self.queue.0.line).stopped = true;
        self.queue.0.filled.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an apply worker panicked");
            }
        }
    }
}

impl Drop for ApplyPool {
    fn drop(&mut self) {
        self.stop();
    }
}
