//! A group's log as the crate reads it.
//!
//! L1: what was handed over is read back from the moment it was, whatever the log has done by then.
//! L2: what the log reports durable is read from the log from then on.

use std::collections::VecDeque;

use raft::eraftpb::{Entry, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::convert::to_entry;
use crate::id::{Index, Term};
use crate::limits::NUMBER_MAX;
use crate::log::api::{GroupLog, ReadError};

/// Raft's sight of a group's log: what was handed over and isn't durable yet is kept here, the rest
/// is read from the log. So the log may take a write at any time before it reports it durable.
pub(super) struct LogView<L> {
    pub(super) log: L,
    /// The last index compacted away, and its term.
    pub(super) compacted: (u64, u64),
    /// The last index and its term.
    last: (u64, u64),
    /// Entries not yet durable, each with the number of its write; consecutive, ending at `last`.
    tail: VecDeque<(u64, Entry)>,
    opened_with: RaftState,
}

impl<L: GroupLog> LogView<L> {
    pub(super) fn new(log: L, opened_with: RaftState) -> Self {
        let (index, term) = log.compacted();
        let last = log.last_index();
        let last_term = log.term(last).map_or(0, Term::to_u64);
        Self {
            log,
            compacted: (index.to_u64(), term.to_u64()),
            last: (last.to_u64(), last_term),
            tail: VecDeque::new(),
            opened_with,
        }
    }

    pub(super) fn write(&mut self, number: u64, entries: Vec<Entry>) {
        let Some(first) = entries.first().map(|entry| entry.index) else {
            return;
        };
        while self
            .tail
            .back()
            .is_some_and(|(_, entry)| entry.index >= first)
        {
            self.tail.pop_back();
        }
        self.tail
            .extend(entries.into_iter().map(|entry| (number, entry)));
        if let Some((_, last)) = self.tail.back() {
            self.last = (last.index, last.term);
        }
    }

    pub(super) fn stored(&mut self, number: u64) {
        while self
            .tail
            .front()
            .is_some_and(|(written, _)| *written <= number)
        {
            self.tail.pop_front();
        }
        if self.tail.is_empty() {
            self.tail.shrink_to(4);
        }
    }

    /// Up to here and without it, entries are read from the log itself.
    pub(super) fn readable_end(&self) -> u64 {
        self.tail_from()
    }

    fn tail_from(&self) -> u64 {
        self.tail
            .front()
            .map_or(self.last.0 + 1, |(_, entry)| entry.index)
    }

    fn in_tail(&self, index: u64) -> Option<&Entry> {
        let at = usize::try_from(index.checked_sub(self.tail_from())?).ok()?;
        self.tail.get(at).map(|(_, entry)| entry)
    }
}

fn read_error(error: ReadError) -> raft::Error {
    raft::Error::Store(match error {
        ReadError::Compacted { .. } => StorageError::Compacted,
        ReadError::Unavailable { .. } => StorageError::Unavailable,
        // The log has stopped. A follower's append can do without; where Raft can't go on without
        // the entry it panics, which stops the node, as it must (pitfall 8).
        ReadError::Lost { .. } => StorageError::LogTemporarilyUnavailable,
    })
}

impl<L: GroupLog> Storage for LogView<L> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.opened_with.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.compacted.0 {
            return Err(StorageError::Compacted.into());
        }
        let bytes_max = max_size.into().unwrap_or(NUMBER_MAX);
        let mut entries = Vec::new();
        let mut bytes = 0_u64;
        let log_end = high.min(self.tail_from());
        if low < log_end {
            let (first, end) = (Index::new(low), Index::new(log_end));
            let read = self
                .log
                .entries(first, end, bytes_max)
                .map_err(read_error)?;
            assert!(
                !read.is_empty(),
                "the log lost entry {first}, which it had stored"
            );
            bytes = read
                .iter()
                .map(|entry| (entry.data.len() + entry.context.len()) as u64)
                .sum();
            entries.extend(read.into_iter().map(to_entry));
            if (entries.len() as u64) < log_end - low {
                return Ok(entries);
            }
        }
        for index in low.max(log_end)..high {
            let entry = self.in_tail(index).ok_or(StorageError::Unavailable)?;
            bytes += (entry.data.len() + entry.context.len()) as u64;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.last.0 {
            return Ok(self.last.1);
        }
        if index == self.compacted.0 {
            return Ok(self.compacted.1);
        }
        if index < self.compacted.0 {
            return Err(StorageError::Compacted.into());
        }
        if let Some(entry) = self.in_tail(index) {
            return Ok(entry.term);
        }
        if index > self.last.0 {
            return Err(StorageError::Unavailable.into());
        }
        self.log
            .term(Index::new(index))
            .map(Term::to_u64)
            .map_err(read_error)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.compacted.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last.0)
    }

    /// There are none yet: a member that needs one waits, and the log is kept for it.
    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        Err(StorageError::SnapshotTemporarilyUnavailable.into())
    }
}
