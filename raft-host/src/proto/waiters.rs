//! The proposals of one group that wait for their outcome, in index order, and the deadlines of a
//! shard's proposals and reads. Policy `quorum`: the outcome is there once Raft has committed the
//! entry and the state machine has applied it; no majority is computed here (safety 20). Under
//! `at-least:N` one that is applied goes on waiting, here too, until so many voters have acked it.
//!
//! W1: indexes rise from front to back, and those that are applied and lack acks are below the rest.
//! W2: each waiter leaves once: resolved, failed or expired. A call costs what it frees, plus a
//!     search by index.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU8;
use std::time::Instant;

use bytes::Bytes;

use super::group_table::SlotId;
use crate::id::{Boot, Index, ProposalId, ReadId, ReplicaId, Term};

/// Who proposed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proposer {
    /// A caller of this shard.
    Local(ProposalId),
    /// A follower that forwarded it, under its own name for it.
    Remote {
        /// The follower.
        replica: ReplicaId,
        /// Its node's life.
        boot: Boot,
        /// Its name for it there.
        token: u64,
    },
}

/// When the reply to a proposal may leave (commit-wait.md 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Once the entry is committed by Raft and applied at the leader.
    #[default]
    Quorum,
    /// The same, and so many voters have acked it, the leader included.
    AtLeast(NonZeroU8),
}

/// One proposal that was handed to Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Where its entry stands.
    pub index: Index,
    /// In which term.
    pub term: Term,
    /// Whose it is.
    pub who: Proposer,
    /// What it took of the shard's proposal bytes.
    pub cost: u64,
    /// When its reply may leave.
    pub policy: Policy,
}

/// One that is committed and applied, and lacks acks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The proposal.
    pub waiter: Waiter,
    /// How many acks it needs.
    pub acks: NonZeroU8,
    /// What the state machine answered.
    pub result: Bytes,
}

/// The waiters of one group.
#[derive(Debug, Default)]
pub struct Waiters {
    /// `None` where one left before its turn.
    queue: VecDeque<(Index, Option<Waiter>)>,
    live: usize,
    lacking: VecDeque<Lacking>,
}

impl Waiters {
    /// Adds a waiter behind all others.
    ///
    /// # Panics
    /// If its index isn't above the last one's: two outcomes would be mixed up.
    pub fn push(&mut self, waiter: Waiter) {
        assert!(
            self.queue
                .back()
                .is_none_or(|(last, _)| *last < waiter.index),
            "index falls"
        );
        self.queue.push_back((waiter.index, Some(waiter)));
        self.live += 1;
    }

    /// Takes the first waiter at or below `applied`.
    pub fn resolve_next(&mut self, applied: Index) -> Option<Waiter> {
        while let Some((index, _)) = self.queue.front() {
            if *index > applied {
                return None;
            }
            let waiter = self.queue.pop_front().and_then(|(_, waiter)| waiter);
            if let Some(waiter) = waiter {
                self.live -= 1;
                self.trim();
                return Some(waiter);
            }
        }
        self.trim();
        None
    }

    /// Takes any waiter, front first: leadership is lost, or the shard stops.
    pub fn fail_next(&mut self) -> Option<Waiter> {
        if let Some(lacking) = self.lacking.pop_front() {
            return Some(lacking.waiter);
        }
        self.resolve_next(Index::new(u64::MAX))
    }

    /// Keeps one that was just resolved until it has its acks.
    pub fn lack(&mut self, lacking: Lacking) {
        debug_assert!(
            self.lacking
                .back()
                .is_none_or(|last| last.waiter.index < lacking.waiter.index),
            "W1"
        );
        self.lacking.push_back(lacking);
    }

    /// Whether any lacks acks.
    #[must_use]
    pub fn any_lacks(&self) -> bool {
        !self.lacking.is_empty()
    }

    /// Takes the first of those that lack acks and now have them. `acked` says how many voters have
    /// acked everything up to an index; it never rises with the index, so the search ends at the
    /// first that nobody has acked.
    pub fn acked_next(&mut self, acked: impl Fn(Index) -> u64) -> Option<Lacking> {
        for at in 0..self.lacking.len() {
            let lacking = self.lacking.get(at)?;
            match acked(lacking.waiter.index) {
                0 => return None,
                acks if acks >= lacking.acks.get().into() => return self.lacking.remove(at),
                _ => {}
            }
        }
        None
    }

    /// Takes the waiter at this index if an entry of another term was committed there.
    pub fn overwritten(&mut self, index: Index, term: Term) -> Option<Waiter> {
        let at = self.find(index)?;
        self.take(at, |waiter| waiter.term != term)
    }

    /// Takes this waiter, whose deadline has passed, if it still waits, and says whether it was
    /// applied and lacked acks only.
    pub fn expire(&mut self, index: Index, who: Proposer) -> Option<(Waiter, Applied)> {
        if let Some(at) = self.find_lacking(index, who) {
            let lacking = self.lacking.remove(at)?;
            return Some((lacking.waiter, Applied::Yes));
        }
        let at = self.find(index)?;
        let waiter = self.take(at, |waiter| waiter.who == who)?;
        Some((waiter, Applied::NotYet))
    }

    fn find_lacking(&self, index: Index, who: Proposer) -> Option<usize> {
        let at = self
            .lacking
            .binary_search_by_key(&index, |lacking| lacking.waiter.index);
        at.ok().filter(|at| {
            self.lacking
                .get(*at)
                .is_some_and(|found| found.waiter.who == who)
        })
    }

    fn find(&self, index: Index) -> Option<usize> {
        self.queue
            .binary_search_by_key(&index, |(index, _)| *index)
            .ok()
    }

    fn take(&mut self, at: usize, wanted: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let (_, place) = self.queue.get_mut(at)?;
        let waiter = place.filter(wanted)?;
        *place = None;
        self.live -= 1;
        while self
            .queue
            .front()
            .is_some_and(|(_, waiter)| waiter.is_none())
        {
            self.queue.pop_front();
        }
        self.trim();
        Some(waiter)
    }

    fn trim(&mut self) {
        if self.queue.is_empty() && self.queue.capacity() > 16 {
            self.queue.shrink_to(0);
        }
    }

    /// How many places are taken, those of waiters that left before their turn included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len() + self.lacking.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0 && self.lacking.is_empty()
    }
}

/// Whether a proposal that expired was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It is committed and applied.
    Yes,
    /// Not as far as is known here.
    NotYet,
}

/// What expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expiring {
    /// A proposal.
    Proposal {
        /// Where it stands.
        index: Index,
        /// Whose it is.
        who: Proposer,
    },
    /// A read.
    Read {
        /// Its name.
        id: ReadId,
    },
}

/// The deadlines of a shard. What ended early stays in the heap until most of it is dead.
#[derive(Debug, Default)]
pub struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, SlotId, Expiring)>>,
    dead: usize,
}

impl Deadlines {
    /// Adds one.
    pub fn push(&mut self, at: Instant, slot: SlotId, what: Expiring) {
        self.heap.push(Reverse((at, slot, what)));
    }

    /// One of them ended early. Once most are dead, those that `is_live` denies are dropped: each
    /// is looked at once for about each that ended.
    pub fn ended(&mut self, is_live: impl Fn(SlotId, Expiring) -> bool) {
        self.dead += 1;
        if self.dead > 64 && self.dead > self.heap.len() / 2 {
            self.heap
                .retain(|Reverse((_, slot, what))| is_live(*slot, *what));
            self.dead = 0;
        }
    }

    /// The next that has passed by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<(SlotId, Expiring)> {
        let Reverse((at, ..)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, slot, what))| (slot, what))
    }

    /// When the next may pass.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// How many are kept, dead ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl Waiters {
    /// Whether this proposal still waits.
    #[must_use]
    pub fn is_waiting(&self, index: Index, who: Proposer) -> bool {
        let place = self.find(index).and_then(|at| self.queue.get(at));
        place.is_some_and(|(_, waiter)| waiter.is_some_and(|waiter| waiter.who == who))
            || self.find_lacking(index, who).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(id: u64) -> Proposer {
        Proposer::Local(ProposalId::new(id))
    }

    fn waiter(index: u64) -> Waiter {
        let (index, who) = (Index::new(index), local(index + 100));
        Waiter {
            index,
            term: Term::new(2),
            who,
            cost: 1,
            policy: Policy::Quorum,
        }
    }

    #[test]
    fn resolving_stops_at_the_first_above_the_mark() {
        let mut waiters = Waiters::default();
        for index in [3, 4, 7] {
            waiters.push(waiter(index));
        }
        assert_eq!(waiters.resolve_next(Index::new(5)), Some(waiter(3)));
        assert_eq!(waiters.resolve_next(Index::new(5)), Some(waiter(4)));
        assert_eq!(waiters.resolve_next(Index::new(5)), None);
        assert_eq!(waiters.fail_next(), Some(waiter(7)));
        assert!(waiters.is_empty());
    }

    #[test]
    fn an_expired_waiter_is_not_resolved_again() {
        let mut waiters = Waiters::default();
        for index in [3, 4, 5] {
            waiters.push(waiter(index));
        }
        let expired = Some((waiter(4), Applied::NotYet));
        assert_eq!(waiters.expire(Index::new(4), local(104)), expired);
        assert_eq!(waiters.expire(Index::new(4), local(104)), None);
        assert_eq!(waiters.expire(Index::new(5), local(9)), None);
        assert_eq!(waiters.resolve_next(Index::new(9)), Some(waiter(3)));
        assert_eq!(waiters.resolve_next(Index::new(9)), Some(waiter(5)));
        assert_eq!(
            (waiters.resolve_next(Index::new(9)), waiters.len()),
            (None, 0)
        );
    }

    #[test]
    fn what_lacks_acks_leaves_with_them_each_by_its_own_number() {
        let mut waiters = Waiters::default();
        let lacking = |index, acks| Lacking {
            waiter: waiter(index),
            acks: NonZeroU8::new(acks).unwrap(),
            result: Bytes::new(),
        };
        for (index, acks) in [(3, 3), (4, 2), (5, 2), (6, 1)] {
            waiters.lack(lacking(index, acks));
        }
        // The leader has acked 5, one follower 4.
        let acked = |index: Index| u64::from(index.to_u64() <= 5) + u64::from(index.to_u64() <= 4);
        assert_eq!(waiters.acked_next(acked), Some(lacking(4, 2)));
        assert_eq!(waiters.acked_next(acked), None);
        assert!(waiters.is_waiting(Index::new(5), local(105)) && waiters.any_lacks());
        assert_eq!(
            waiters.expire(Index::new(5), local(105)),
            Some((waiter(5), Applied::Yes))
        );
        assert_eq!(waiters.fail_next(), Some(waiter(3)));
        assert_eq!(waiters.fail_next(), Some(waiter(6)));
        assert!(waiters.is_empty());
    }

    #[test]
    fn only_another_terms_entry_overwrites() {
        let mut waiters = Waiters::default();
        waiters.push(waiter(3));
        assert_eq!(waiters.overwritten(Index::new(3), Term::new(2)), None);
        assert_eq!(
            waiters.overwritten(Index::new(3), Term::new(3)),
            Some(waiter(3))
        );
    }

    #[test]
    fn dead_deadlines_are_dropped_in_bulk() {
        let start = crate::proto::test_time::start();
        let slot = crate::proto::group_table::GroupTable::default()
            .insert(crate::id::GroupId::new(1), ())
            .unwrap();
        let mut deadlines = Deadlines::default();
        for n in 0..1000 {
            deadlines.push(start, slot, Expiring::Read { id: ReadId::new(n) });
        }
        for _ in 0..700 {
            deadlines.ended(|_, what| {
                what >= Expiring::Read {
                    id: ReadId::new(900),
                }
            });
        }
        assert!(deadlines.len() < 500, "{}", deadlines.len());
    }
}
