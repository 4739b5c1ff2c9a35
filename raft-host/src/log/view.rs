//! A group's log as its shard sees it: what was submitted, durable or not.
//!
//! Leaves to others: making it durable (engine.rs), handing it in (shard.rs).
//!
//! The shard owns its views outright, so reading takes no lock: hard state, compaction point, the
//! terms (as runs, a few bytes a group) and the newest entries are here. Older entries are dropped
//! once durable, over a bound per group and one for all groups together, and are read back through
//! the shared log, which takes its lock for a look-up and then reads the segment's file on the
//! shard's thread. A shared, locked index for everything would cost each read a lock that the log
//! thread takes after every sync; asking the log thread would hang with the disk.
//!
//! - V1: the cached entries are the last ones, consecutive, up to the last index.
//! - V2: an entry that isn't known to be durable is cached.
//! - V3: the runs of terms cover exactly the entries there are.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Token;
use super::api::{Change, GroupLog, HardState, LogEntry, ReadError};
use super::error::BadChange;
use super::index::GroupState;
use super::record::entry_record_bytes;
use super::shared::Shared;
use crate::id::{GroupId, Index, Term};
use crate::limits;

/// Bytes of cached entries of all views.
#[derive(Debug)]
pub(super) struct CacheBudget {
    used: AtomicU64,
    max: u64,
}

impl CacheBudget {
    pub(super) fn new(max: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            max,
        }
    }

    fn is_over(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.max
    }
}

/// Holds a change against a log that is compacted through `compacted` and ends at `last`; gives
/// both as they are after it.
pub(super) fn check_change(
    change: &Change,
    compacted: Index,
    last: Index,
) -> Result<(Index, Index), BadChange> {
    match change {
        Change::Write { entries, .. } => {
            let Some(first) = entries.first().map(|entry| entry.index) else {
                return Ok((compacted, last));
            };
            if first <= compacted {
                return Err(BadChange::Compacted { first, compacted });
            }
            if first > last.next() {
                return Err(BadChange::Gap { first, last });
            }
            let mut end = first;
            for entry in &entries[1..] {
                if entry.index != end.next() {
                    return Err(BadChange::NotConsecutive {
                        expected: end.next(),
                        got: entry.index,
                    });
                }
                end = entry.index;
            }
            Ok((compacted, end))
        }
        Change::Compact { through, .. } => {
            if *through <= compacted {
                return Err(BadChange::Compacted {
                    first: *through,
                    compacted,
                });
            }
            if *through > last {
                return Err(BadChange::CompactBeyondEnd {
                    through: *through,
                    last,
                });
            }
            Ok((*through, last))
        }
        Change::Reset { index, .. } => Ok((*index, *index)),
        Change::Remove => Ok((Index::default(), Index::default())),
    }
}

/// One group's log, owned by its shard.
#[derive(Debug)]
pub struct GroupView {
    group: GroupId,
    shared: Arc<Shared>,
    budget: Arc<CacheBudget>,
    hard_state: HardState,
    compacted: (Index, Term),
    last: Index,
    /// Where each term begins.
    terms: VecDeque<(Index, Term)>,
    cached: VecDeque<LogEntry>,
    cached_bytes: u64,
    /// Writes not known to be durable, and the first index of each.
    pending: VecDeque<(Token, Index)>,
}

fn cache_bytes(entry: &LogEntry) -> u64 {
    (entry.data.len() + entry.context.len()) as u64 + limits::LOG_CACHE_ENTRY_BYTES
}

fn index_before(index: Index) -> Index {
    Index::new(index.to_u64().saturating_sub(1))
}

impl GroupView {
    pub(super) fn new(group: GroupId, shared: Arc<Shared>, budget: Arc<CacheBudget>) -> Self {
        Self {
            group,
            shared,
            budget,
            hard_state: HardState::default(),
            compacted: (Index::default(), Term::default()),
            last: Index::default(),
            terms: VecDeque::new(),
            cached: VecDeque::new(),
            cached_bytes: 0,
            pending: VecDeque::new(),
        }
    }

    /// As recovery found it. The commit index may be ahead of what was kept, since it isn't synced
    /// on its own account, or behind a compaction: it is brought between the two (safety 13).
    pub(super) fn recovered(
        group: GroupId,
        state: &GroupState,
        shared: Arc<Shared>,
        budget: Arc<CacheBudget>,
    ) -> Self {
        let mut view = Self::new(group, shared, budget);
        if let Some(point) = state.point {
            view.compacted = (point.value.through, point.value.term);
        }
        view.last = state.last();
        for (index, slot) in (view.compacted.0.to_u64() + 1..).zip(&state.entries) {
            view.push_term(Index::new(index), slot.term);
        }
        view.hard_state = state
            .hard_state
            .map_or_else(HardState::default, |placed| placed.value);
        view.hard_state.commit = view.hard_state.commit.clamp(view.compacted.0, view.last);
        view
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Bytes of entries it keeps in memory.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// Whether everything it shows is durable, given its shard's last durable token.
    #[must_use]
    pub fn is_durable(&self, durable: Token) -> bool {
        self.pending
            .back()
            .is_none_or(|(token, _)| *token <= durable)
    }

    /// Holds a change against the log as it is here.
    ///
    /// # Errors
    /// When the change contradicts it.
    pub fn check(&self, change: &Change) -> Result<(), BadChange> {
        check_change(change, self.compacted.0, self.last)?;
        if let Change::Compact { through, term: got } = *change {
            let expected = self.term_of(through);
            if expected != got {
                return Err(BadChange::CompactTerm {
                    through,
                    expected,
                    got,
                });
            }
        }
        Ok(())
    }

    /// Shows a checked change that goes out under `token`.
    pub(super) fn apply(&mut self, change: &Change, token: Token) {
        let mut first_pending = self.last.next();
        match change {
            Change::Write {
                hard_state,
                entries,
            } => {
                if let Some(hard_state) = hard_state {
                    self.hard_state = *hard_state;
                }
                if let Some(first) = entries.first() {
                    self.truncate(first.index);
                    first_pending = first.index;
                }
                for entry in entries {
                    self.push(entry.clone());
                }
            }
            Change::Compact { through, term } => self.compact(*through, *term),
            Change::Reset {
                index,
                term,
                hard_state,
            } => {
                self.clear(*index, *term);
                self.hard_state = *hard_state;
            }
            Change::Remove => {
                self.clear(Index::default(), Term::default());
                self.hard_state = HardState::default();
            }
        }
        self.pending.push_back((token, first_pending));
        self.check_invariants();
    }

    /// Drops durable entries that are over the bounds.
    pub(super) fn evict(&mut self, durable: Token) {
        let keep_from = self.first_not_durable(durable);
        while self
            .cached
            .front()
            .is_some_and(|entry| entry.index < keep_from)
            && (self.cached_bytes > limits::LOG_CACHE_GROUP_BYTES || self.budget.is_over())
        {
            self.drop_oldest();
        }
        self.check_invariants();
    }

    /// Drops all durable entries, as when the group goes to sleep.
    pub(super) fn shed(&mut self, durable: Token) {
        let keep_from = self.first_not_durable(durable);
        while self
            .cached
            .front()
            .is_some_and(|entry| entry.index < keep_from)
        {
            self.drop_oldest();
        }
        self.cached.shrink_to_fit();
        self.terms.shrink_to_fit();
        self.pending.shrink_to_fit();
        self.check_invariants();
    }

    fn first_not_durable(&mut self, durable: Token) -> Index {
        while self
            .pending
            .front()
            .is_some_and(|(token, _)| *token <= durable)
        {
            self.pending.pop_front();
        }
        let first = self.pending.iter().map(|(_, first)| *first).min();
        first.unwrap_or_else(|| self.last.next())
    }

    fn count(&mut self, bytes: u64) {
        self.cached_bytes += bytes;
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn uncount(&mut self, bytes: u64) {
        self.cached_bytes -= bytes;
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn drop_oldest(&mut self) {
        if let Some(entry) = self.cached.pop_front() {
            self.uncount(cache_bytes(&entry));
        }
    }

    fn push_term(&mut self, index: Index, term: Term) {
        if self.terms.back().is_none_or(|(_, last)| *last != term) {
            self.terms.push_back((index, term));
        }
    }

    fn push(&mut self, entry: LogEntry) {
        self.push_term(entry.index, entry.term);
        self.last = entry.index;
        self.count(cache_bytes(&entry));
        self.cached.push_back(entry);
    }

    fn truncate(&mut self, first: Index) {
        while self.cached.back().is_some_and(|entry| entry.index >= first) {
            if let Some(entry) = self.cached.pop_back() {
                self.uncount(cache_bytes(&entry));
            }
        }
        while self.terms.back().is_some_and(|(begin, _)| *begin >= first) {
            self.terms.pop_back();
        }
        self.last = index_before(first).min(self.last);
    }

    fn compact(&mut self, through: Index, term: Term) {
        while self
            .cached
            .front()
            .is_some_and(|entry| entry.index <= through)
        {
            self.drop_oldest();
        }
        let next = through.next();
        while self.terms.get(1).is_some_and(|(begin, _)| *begin <= next) {
            self.terms.pop_front();
        }
        match self.terms.front_mut() {
            Some(_) if self.last == through => self.terms.clear(),
            Some((begin, _)) => *begin = next.max(*begin),
            None => {}
        }
        self.compacted = (through, term);
    }

    fn clear(&mut self, index: Index, term: Term) {
        while !self.cached.is_empty() {
            self.drop_oldest();
        }
        self.terms.clear();
        self.compacted = (index, term);
        self.last = index;
    }

    /// The term at an index that is in the log.
    fn term_of(&self, index: Index) -> Term {
        let after = self.terms.partition_point(|(begin, _)| *begin <= index);
        after
            .checked_sub(1)
            .map_or(self.compacted.1, |at| self.terms[at].1)
    }

    fn cache_begin(&self) -> Index {
        self.cached
            .front()
            .map_or_else(|| self.last.next(), |entry| entry.index)
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let begin = self.cache_begin().to_u64();
        let end = begin + self.cached.len() as u64;
        debug_assert_eq!(end, self.last.to_u64() + 1, "V1");
        debug_assert!(begin > self.compacted.0.to_u64(), "V1");
        let first_pending = self.pending.iter().map(|(_, first)| first.to_u64()).min();
        let kept =
            first_pending.is_none_or(|first| begin <= first.max(self.compacted.0.to_u64() + 1));
        debug_assert!(kept || self.cached.is_empty(), "V2");
        let first = self.terms.front().map(|(begin, _)| begin.to_u64());
        let expected = (self.last > self.compacted.0).then_some(self.compacted.0.to_u64() + 1);
        debug_assert_eq!(first, expected, "V3");
    }
}

impl GroupLog for GroupView {
    fn hard_state(&self) -> HardState {
        self.hard_state
    }

    fn compacted(&self) -> (Index, Term) {
        self.compacted
    }

    fn last_index(&self) -> Index {
        self.last
    }

    fn term(&self, index: Index) -> Result<Term, ReadError> {
        let (compacted, term) = self.compacted;
        if index == compacted {
            return Ok(term);
        }
        if index < compacted {
            return Err(ReadError::Compacted {
                index,
                first: compacted.next(),
            });
        }
        if index > self.last {
            return Err(ReadError::Unavailable {
                index,
                last: self.last,
            });
        }
        Ok(self.term_of(index))
    }

    fn entries(
        &self,
        first: Index,
        end: Index,
        bytes_max: u64,
    ) -> Result<Vec<LogEntry>, ReadError> {
        if first >= end {
            return Ok(Vec::new());
        }
        if first <= self.compacted.0 {
            return Err(ReadError::Compacted {
                index: first,
                first: self.compacted.0.next(),
            });
        }
        if index_before(end) > self.last {
            return Err(ReadError::Unavailable {
                index: index_before(end),
                last: self.last,
            });
        }
        let begin = self.cache_begin();
        let mut out = Vec::new();
        let mut bytes = 0;
        if first < begin {
            let cold_end = begin.min(end);
            let cold = self
                .shared
                .read_entries(self.group, first, cold_end, bytes_max);
            out = cold.map_err(|error| ReadError::Lost { index: error.index })?;
            bytes = out
                .iter()
                .map(|entry| entry_record_bytes(entry) as u64)
                .sum();
            if out.len() as u64 != cold_end.to_u64() - first.to_u64() {
                return Ok(out);
            }
        }
        let from = first.max(begin).to_u64() - begin.to_u64();
        let count = end.to_u64().saturating_sub(first.max(begin).to_u64());
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        for entry in self
            .cached
            .iter()
            .skip(from)
            .take(usize::try_from(count).unwrap_or(usize::MAX))
        {
            bytes += entry_record_bytes(entry) as u64;
            if bytes > bytes_max && !out.is_empty() {
                break;
            }
            out.push(entry.clone());
        }
        Ok(out)
    }
}

/// A view that the consensus core reads and the shard thread stages into, on one thread: stage
/// through `borrow_mut` between two calls of the core, never within one.
impl GroupLog for Rc<RefCell<GroupView>> {
    fn hard_state(&self) -> HardState {
        self.borrow().hard_state()
    }

    fn compacted(&self) -> (Index, Term) {
        self.borrow().compacted()
    }

    fn last_index(&self) -> Index {
        self.borrow().last_index()
    }

    fn term(&self, index: Index) -> Result<Term, ReadError> {
        self.borrow().term(index)
    }

    fn entries(
        &self,
        first: Index,
        end: Index,
        bytes_max: u64,
    ) -> Result<Vec<LogEntry>, ReadError> {
        self.borrow().entries(first, end, bytes_max)
    }
}

impl Drop for GroupView {
    fn drop(&mut self) {
        self.budget
            .used
            .fetch_sub(self.cached_bytes, Ordering::Relaxed);
    }
}
