//! Counts, group by group, the bytes that were applied here and aren't archived yet, as they will
//! stand in an object. The apply workers add, the publisher takes off; each holds one group's lock
//! for an addition.
//!
//! What was applied before this process began isn't counted, since its bytes aren't known: it is
//! part of a group's position, not of the lag. Where a group is archived up to what was applied, its
//! lag is exactly none, so that nothing estimated lasts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use raft_host::id::{GroupId, Index};
use raft_host::io::Committed;
use tokio::sync::Notify;

use super::catalog::Position;
use super::entry::entry_len;

#[derive(Debug, Default)]
struct Account {
    applied: u64,
    /// Applied when the group was opened.
    opened: u64,
    position: u64,
    pending_bytes: u64,
    /// Nothing is published for it any more.
    stopped: bool,
}

/// The accounts of all groups of a node.
#[derive(Debug)]
pub(crate) struct Ledger {
    groups: Vec<Mutex<Account>>,
    pending_bytes: AtomicU64,
    /// An object's worth is there.
    object_bytes: u64,
    object_full: Notify,
    /// As much as may lag.
    max_bytes: u64,
    beyond: Notify,
}

impl Ledger {
    pub(super) fn new(groups: u32, object_bytes: u64, max_bytes: u64) -> Self {
        Self {
            groups: (0..groups).map(|_| Mutex::default()).collect(),
            pending_bytes: AtomicU64::new(0),
            object_bytes,
            object_full: Notify::new(),
            max_bytes,
            beyond: Notify::new(),
        }
    }

    fn account(&self, group: GroupId) -> Option<MutexGuard<'_, Account>> {
        let at = usize::try_from(group.to_u64()).ok()?;
        let account = self.groups.get(at)?;
        Some(account.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A group's state machine is open and holds everything up to here.
    pub(crate) fn opened(&self, group: GroupId, applied: Index) {
        if let Some(mut account) = self.account(group) {
            account.applied = account.applied.max(applied.to_u64());
            account.opened = account.applied;
        }
    }

    /// A batch was applied.
    pub(crate) fn applied(&self, group: GroupId, batch: &[Committed]) {
        let (Some(last), Some(mut account)) = (batch.last(), self.account(group)) else {
            return;
        };
        let position = Index::new(account.position);
        let beyond = batch.iter().filter(|entry| entry.index > position);
        let lens = beyond.map(|entry| {
            let (context, data) = (entry.note_len(), entry.command.len());
            entry_len(entry.term, context, data)
        });
        let bytes: u64 = lens.sum();
        account.applied = last.index.to_u64();
        account.pending_bytes += bytes;
        let total = self.pending_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        drop(account);
        if total >= self.object_bytes {
            self.object_full.notify_one();
        }
        if total > self.max_bytes {
            self.beyond.notify_one();
        }
    }

    /// An object holds a group's entries from `first` on, in so many bytes, and with it the group
    /// is archived up to `position`.
    pub(super) fn archived(&self, group: GroupId, position: Position, first: Index, bytes: u64) {
        let Some(mut account) = self.account(group) else {
            return;
        };
        let index = position.index.to_u64();
        let known = account.position;
        account.position = known.max(index);
        let before = account.pending_bytes;
        if account.position >= account.applied {
            account.pending_bytes = 0;
        } else {
            let before_first = first.to_u64().saturating_sub(1);
            let entries = index.saturating_sub(before_first).max(1);
            let counted = index.saturating_sub(account.opened.max(before_first).max(known));
            let share = u128::from(bytes) * u128::from(counted) / u128::from(entries);
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            account.pending_bytes = before.saturating_sub(share);
        }
        let less = before - account.pending_bytes;
        self.pending_bytes.fetch_sub(less, Ordering::AcqRel);
    }

    /// A group's position was derived without looking at each object.
    pub(super) fn derived(&self, group: GroupId, position: Position) {
        self.archived(group, position, position.index.next(), 0);
    }

    /// Nothing is published for this group any more: its own log's bound is what holds it now.
    pub(super) fn stop(&self, group: GroupId) {
        if let Some(mut account) = self.account(group) {
            account.stopped = true;
        }
    }

    /// Bytes of all groups that aren't archived.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Acquire)
    }

    /// Bytes of one group that wait to be published.
    pub(super) fn pending_bytes_of(&self, group: GroupId) -> u64 {
        let account = self.account(group).filter(|account| !account.stopped);
        account.map_or(0, |account| account.pending_bytes)
    }

    /// Groups of which everything that was applied here is archived.
    pub(super) fn groups_current(&self) -> u64 {
        let groups = self.groups.iter();
        let current = groups.filter(|account| {
            let account = account.lock().unwrap_or_else(PoisonError::into_inner);
            account.position >= account.applied
        });
        current.count() as u64
    }

    /// How far a group is archived, as far as this node has seen.
    pub(super) fn position(&self, group: GroupId) -> Option<u64> {
        self.account(group).map(|account| account.position)
    }

    /// Ends when an object's worth waits.
    pub(super) async fn object_full(&self) {
        self.object_full.notified().await;
    }

    /// Ends when more lags than may.
    pub(super) async fn beyond(&self) {
        self.beyond.notified().await;
    }

    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use raft_host::id::Term;

    use super::*;

    const GROUP: GroupId = GroupId::new(1);
    /// Term 1, no note, five bytes.
    const EACH: u64 = 9;

    fn batch(from: u64, to: u64) -> Vec<Committed> {
        let entry = |index| Committed {
            index: Index::new(index),
            term: Term::new(1),
            command: Bytes::from_static(b"hello"),
            request_id: Bytes::new(),
            time: raft_host::id::UnixMillis::default(),
        };
        (from..=to).map(entry).collect()
    }

    fn at(index: u64) -> Position {
        Position {
            index: Index::new(index),
            term: Term::new(1),
        }
    }

    #[test]
    fn what_was_applied_lags_until_it_is_archived() {
        let ledger = Ledger::new(3, u64::MAX, u64::MAX);
        assert_eq!(ledger.groups_current(), 3);
        ledger.applied(GROUP, &batch(1, 10));
        assert_eq!(ledger.pending_bytes(), 10 * EACH);
        assert_eq!(ledger.groups_current(), 2);
        ledger.archived(GROUP, at(4), Index::new(1), 4 * EACH);
        assert_eq!(ledger.pending_bytes_of(GROUP), 6 * EACH);
        ledger.applied(GROUP, &batch(11, 12));
        ledger.archived(GROUP, at(12), Index::new(5), 8 * EACH);
        assert_eq!(ledger.pending_bytes(), 0);
        assert_eq!(ledger.position(GROUP), Some(12));
        assert_eq!(ledger.groups_current(), 3);
    }

    #[test]
    fn what_was_applied_before_the_start_is_not_counted() {
        let ledger = Ledger::new(3, u64::MAX, u64::MAX);
        ledger.opened(GROUP, Index::new(10));
        assert_eq!(ledger.groups_current(), 2);
        ledger.applied(GROUP, &batch(11, 14));
        ledger.derived(GROUP, at(6));
        assert_eq!(ledger.pending_bytes(), 4 * EACH);
        // Half of what this object has was counted.
        ledger.archived(GROUP, at(12), Index::new(9), 4 * EACH);
        assert_eq!(ledger.pending_bytes(), 2 * EACH);
        ledger.derived(GROUP, at(14));
        assert_eq!(ledger.pending_bytes(), 0);
    }

    #[test]
    fn what_is_archived_twice_is_taken_off_once() {
        let ledger = Ledger::new(3, u64::MAX, u64::MAX);
        ledger.applied(GROUP, &batch(1, 10));
        for _ in 0..3 {
            ledger.archived(GROUP, at(6), Index::new(1), 6 * EACH);
            assert_eq!(ledger.pending_bytes(), 4 * EACH);
        }
        ledger.archived(GROUP, at(8), Index::new(5), 4 * EACH);
        assert_eq!(ledger.pending_bytes(), 2 * EACH);
    }

    #[test]
    fn what_is_applied_after_it_was_archived_never_lags() {
        let ledger = Ledger::new(3, u64::MAX, u64::MAX);
        ledger.derived(GROUP, at(8));
        ledger.applied(GROUP, &batch(1, 10));
        assert_eq!(ledger.pending_bytes(), 2 * EACH);
        ledger.stop(GROUP);
        assert_eq!(ledger.pending_bytes_of(GROUP), 0);
        ledger.applied(GroupId::new(9), &batch(1, 10));
        assert_eq!(ledger.pending_bytes(), 2 * EACH);
    }
}
