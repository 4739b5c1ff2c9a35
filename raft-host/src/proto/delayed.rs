//! Proposals at their leader that wait because the embedder is behind with something it owes for
//! what was committed before, such as an archive. They are let in again in the order in which they
//! came, or refused when they have waited long enough: until then nothing was handed to Raft, so
//! they are proven without effect.
//!
//! D1: there is one alarm for each; it leaves the table once.
//! D2: none that came later leaves for Raft before one that came earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::group_table::SlotId;
use super::handover::Incoming;
use crate::id::GroupId;

/// Whether a leader here takes proposals, as its embedder says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// It does.
    #[default]
    Open,
    /// They wait until it does again, so long at most; then they are refused `Backlogged`.
    Delay {
        /// The longest that one waits.
        at_most: Duration,
    },
    /// They are refused `Backlogged` at once.
    Refuse,
}

/// A proposal that waits.
#[derive(Clone, Debug)]
pub struct Delayed {
    /// Its group's place in the table.
    pub slot: SlotId,
    /// Its group.
    pub group: GroupId,
    /// The proposal.
    pub incoming: Incoming,
    /// When it has waited long enough; not after the deadline.
    pub until: Instant,
    /// What it took of the shard's proposal bytes.
    pub cost: u64,
}

/// Those of one shard.
#[derive(Debug, Default)]
pub struct DelayedProposals {
    next: u64,
    queue: BTreeMap<u64, Delayed>,
    alarms: BTreeSet<(Instant, u64)>,
}

impl DelayedProposals {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds one behind all others.
    pub fn push(&mut self, delayed: Delayed) {
        self.next += 1;
        self.alarms.insert((delayed.until, self.next));
        self.queue.insert(self.next, delayed);
        self.check_invariants();
    }

    /// Takes the one that came first.
    pub fn pop(&mut self) -> Option<Delayed> {
        let number = *self.queue.first_key_value()?.0;
        self.take(number)
    }

    /// Takes one that has waited long enough by `now`.
    pub fn pop_expired(&mut self, now: Instant) -> Option<Delayed> {
        let (at, number) = *self.alarms.first()?;
        if at > now {
            return None;
        }
        self.take(number)
    }

    /// Takes one of a group.
    pub fn pop_of(&mut self, group: GroupId) -> Option<Delayed> {
        let mut all = self.queue.iter();
        let number = *all.find(|(_, delayed)| delayed.group == group)?.0;
        self.take(number)
    }

    /// When the next has waited long enough.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    fn take(&mut self, number: u64) -> Option<Delayed> {
        let delayed = self.queue.remove(&number)?;
        self.alarms.remove(&(delayed.until, number));
        self.check_invariants();
        Some(delayed)
    }

    fn check_invariants(&self) {
        debug_assert_eq!(self.alarms.len(), self.queue.len(), "D1");
    }
}
