//! What the embedder holds back on behalf of something outside, such as an archive: the log, of
//! which nothing is forgotten before it was released, and proposals while that outside is behind.
//! Also how it reads what was committed.
//!
//! A held log is released at the leader; how far rides in the beats as part of what every member
//! may forget, so that any of them can go on from there as the next leader (safety 15).

use std::time::Instant;

use super::{Group, HostCore};
use crate::error::{Outcome, Refusal};
use crate::id::{GroupId, Index, Term};
use crate::limits::DELAYED_PROPOSALS_MAX;
use crate::log::api::{GroupLog, ReadError};
use crate::proto::consensus::{CommittedEntries, Role};
use crate::proto::delayed::{Admission, Delayed};
use crate::proto::group_table::SlotId;
use crate::proto::handover::Incoming;
use crate::proto::waiters::Proposer;

/// A group led here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// The group.
    pub group: GroupId,
    /// In which term.
    pub term: Term,
    /// The last entry known to be committed.
    pub commit: Index,
}

impl<L: GroupLog> HostCore<L> {
    /// From now on no log forgets an entry that wasn't released by [`HostCore::release_log`].
    pub fn hold_logs(&mut self) {
        self.holding = true;
    }

    /// The embedder has taken care of everything up to `through`.
    pub fn release_log(&mut self, now: Instant, group: GroupId, through: Index) {
        self.time(now);
        let Some(slot) = self.groups.slot(group) else {
            return;
        };
        if let Some(found) = self.groups.at_mut(slot) {
            found.released = found.released.max(through);
        }
        self.touch(slot);
        self.compact(slot);
    }

    /// What no member needs any more, as the leader knows it: every member has it durably and, where
    /// logs are held, it was released.
    pub(super) fn may_forget(&self, group: &Group<L>) -> Option<Index> {
        let all = group.replica.matched_by_all()?;
        if self.holding && !transport::mutant!("log_not_held") {
            Some(all.min(group.released))
        } else {
            Some(all)
        }
    }

    /// The groups led here.
    pub fn led(&self) -> impl Iterator<Item = Led> + '_ {
        self.groups.iter().filter_map(|(group, slot)| {
            let status = self.groups.at(slot)?.replica.status();
            (status.role == Role::Leader).then_some(Led {
                group,
                term: status.term,
                commit: status.commit,
            })
        })
    }

    /// Committed entries from `first` on, as many as fit in `bytes_max` but at least one, as far as
    /// the log can be read: the newest may not be there yet.
    ///
    /// # Errors
    /// [`ReadError`] when the log has forgotten `first`, or the disk doesn't give it back.
    pub fn committed(
        &self,
        group: GroupId,
        first: Index,
        bytes_max: u64,
    ) -> Option<Result<CommittedEntries, ReadError>> {
        let found = self.groups.find(group)?;
        Some(found.replica.committed(first, bytes_max))
    }

    /// Whether proposals are let in. Those that wait go on, in their order, once they are.
    pub fn set_admission(&mut self, now: Instant, admission: Admission) {
        self.time(now);
        self.admission = admission;
        match admission {
            Admission::Open => {
                while self.admission == Admission::Open
                    && let Some(delayed) = self.delayed.pop()
                {
                    self.let_in(delayed);
                }
            }
            Admission::Delay { .. } => {}
            Admission::Refuse => {
                while let Some(delayed) = self.delayed.pop() {
                    self.turn_away(delayed, Refusal::Backlogged);
                }
            }
        }
    }

    /// A proposal at its leader while proposals aren't let in.
    pub(super) fn delay(&mut self, slot: SlotId, incoming: Incoming) -> Result<(), Refusal> {
        let Admission::Delay { at_most } = self.admission else {
            return Err(Refusal::Backlogged);
        };
        if self.delayed.len() >= DELAYED_PROPOSALS_MAX {
            return Err(Refusal::Backlogged);
        }
        let group = self.groups.at(slot).ok_or(Refusal::Stopped)?.id;
        let cost = self
            .proposals
            .admit(incoming.data.len() + incoming.context.len())?;
        let (who, deadline) = (incoming.who, incoming.deadline);
        self.remote_waiting += u64::from(matches!(who, Proposer::Remote { .. }));
        self.stats.proposals_delayed += 1;
        self.delayed.push(Delayed {
            slot,
            group,
            incoming,
            until: deadline.min(self.now + at_most),
            cost,
        });
        Ok(())
    }

    fn let_in(&mut self, delayed: Delayed) {
        self.proposals.release(delayed.cost);
        self.resume(delayed.slot, delayed.group, delayed.incoming);
    }

    fn turn_away(&mut self, delayed: Delayed, why: Refusal) {
        self.proposals.release(delayed.cost);
        self.end_proposal(delayed.slot, delayed.incoming.who, Outcome::Refused { why });
    }

    /// Refuses those that have waited long enough.
    pub(super) fn expire_delayed(&mut self) {
        while let Some(delayed) = self.delayed.pop_expired(self.now) {
            self.turn_away(delayed, Refusal::Backlogged);
        }
    }

    /// Refuses those of a group that is closed, or all at the end.
    pub(super) fn stop_delayed(&mut self, group: Option<GroupId>) {
        let next = |core: &mut Self| match group {
            Some(group) => core.delayed.pop_of(group),
            None => core.delayed.pop(),
        };
        while let Some(delayed) = next(self) {
            self.turn_away(delayed, Refusal::Stopped);
        }
    }

    /// Proposals here that wait to be let in.
    #[must_use]
    pub fn delayed_len(&self) -> usize {
        self.delayed.len()
    }
}
