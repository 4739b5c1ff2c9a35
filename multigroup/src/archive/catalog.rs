//! How far each group is archived, out of which entries the objects hold: the end of those that lie
//! without a gap from the first on (A2). Objects may come in any order; the answer is the same.
//!
//! Leaves to others: where objects come from (`reader`), whether entries that lie in two of them
//! have the same bytes (`publisher`, `check`). Terms it compares itself: two entries of one index
//! and term are the same entry, as Raft has it.
//!
//! - C1: a position never falls.
//! - C2: whatever lies ahead of a position begins beyond the entry after it.
//! - C3: a group with a fork stands still.

use std::collections::BTreeMap;

use raft_host::id::{GroupId, Index, Term};

use super::error::Fork;

/// The last entry up to which a group is archived without a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Its index, 0 if nothing is archived.
    pub index: Index,
    /// Its term.
    pub term: Term,
}

/// Which entries of a group one object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub first: Index,
    /// The term of the one before it.
    pub term_before: Term,
    /// The last.
    pub last: Index,
    /// That one's term.
    pub last_term: Term,
}

/// What a span was to what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It went on where the position was.
    Next,
    /// Its first entries, or all, were archived already: up to here.
    Overlap {
        /// The last of those that were.
        through: Index,
    },
    /// There is a gap before it.
    Ahead,
}

#[derive(Clone, Debug, Default)]
struct Line {
    position: Position,
    /// Spans beyond a gap, by their first entry.
    ahead: BTreeMap<Index, Span>,
    fork: Option<Fork>,
}

/// The positions of all groups.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    groups: BTreeMap<GroupId, Line>,
}

impl Catalog {
    /// Takes note of what an object holds of a group.
    ///
    /// # Errors
    /// [`Fork`] when it contradicts what is known; the group stands still from then on.
    pub fn add(&mut self, group: GroupId, span: Span) -> Result<Added, Fork> {
        let line = self.groups.entry(group).or_default();
        if let Some(fork) = line.fork {
            return Err(fork);
        }
        let added = line.add(span).inspect_err(|fork| line.fork = Some(*fork));
        line.check_invariants();
        added
    }

    /// Takes a position that was derived before, if it is further.
    pub(super) fn begin_at(&mut self, group: GroupId, position: Position) {
        let line = self.groups.entry(group).or_default();
        if position.index > line.position.index {
            line.position = position;
        }
    }

    /// How far a group is archived.
    #[must_use]
    pub fn position(&self, group: GroupId) -> Position {
        let line = self.groups.get(&group);
        line.map(|line| line.position).unwrap_or_default()
    }

    /// Every group of which anything is archived.
    pub fn positions(&self) -> impl Iterator<Item = (GroupId, Position)> + '_ {
        let lines = self.groups.iter();
        lines.map(|(group, line)| (*group, line.position))
    }

    /// What stands beyond a gap, in the order of groups.
    pub fn ahead(&self) -> impl Iterator<Item = (GroupId, Span)> + '_ {
        let lines = self.groups.iter();
        lines.flat_map(|(group, line)| line.ahead.values().map(|span| (*group, *span)))
    }

    /// The groups that stand still, and why.
    pub fn forks(&self) -> impl Iterator<Item = (GroupId, Fork)> + '_ {
        let lines = self.groups.iter();
        lines.filter_map(|(group, line)| Some((*group, line.fork?)))
    }

    /// Why a group stands still, if it does.
    #[must_use]
    pub fn fork(&self, group: GroupId) -> Option<Fork> {
        self.groups.get(&group)?.fork
    }

    /// Someone found entries that differ: the group stands still.
    pub fn mark(&mut self, group: GroupId, fork: Fork) {
        let line = self.groups.entry(group).or_default();
        line.fork = line.fork.or(Some(fork));
    }
}

impl Line {
    fn add(&mut self, span: Span) -> Result<Added, Fork> {
        let Position { index, .. } = self.position;
        if span.first > index.next() {
            self.put_ahead(span);
            return Ok(Added::Ahead);
        }
        self.join(span)?;
        while let Some((_, next)) = self.ahead.first_key_value() {
            let next = *next;
            if next.first > self.position.index.next() {
                break;
            }
            self.ahead.remove(&next.first);
            self.join(next)?;
        }
        Ok(if span.first == index.next() {
            Added::Next
        } else {
            let through = span.last.min(index);
            Added::Overlap { through }
        })
    }

    /// Of two that begin at one entry the longer says all.
    fn put_ahead(&mut self, span: Span) {
        let known = self.ahead.entry(span.first).or_insert(span);
        if known.last < span.last {
            *known = span;
        }
    }

    /// Takes a span that begins at the next entry at the latest.
    fn join(&mut self, span: Span) -> Result<(), Fork> {
        let Position { index, term } = self.position;
        let differ = |at: Index, got: Term| {
            let archived = term;
            let index = at;
            Err(Fork::Terms {
                index,
                archived,
                got,
            })
        };
        if span.first == index.next() && span.term_before != term {
            return differ(index, span.term_before);
        }
        if span.last == index && span.last_term != term {
            return differ(index, span.last_term);
        }
        if span.last > index {
            // Terms never fall along a log.
            if span.last_term < term {
                return differ(span.last, span.last_term);
            }
            self.position = Position {
                index: span.last,
                term: span.last_term,
            };
        }
        Ok(())
    }

    fn check_invariants(&self) {
        if self.fork.is_none()
            && let Some((first, _)) = self.ahead.first_key_value()
        {
            debug_assert!(*first > self.position.index.next(), "C2");
        }
    }
}

#[cfg(test)]
mod tests;
