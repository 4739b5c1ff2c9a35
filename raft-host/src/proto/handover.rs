//! The hand-overs of leadership that are under way in a shard, and the proposals that wait for them.
//! What moves them on is the host core's (`host/handover.rs`).
//!
//! ```text
//! Closing ──► Called ──► Gone ──► (the other leads)
//!    └───────────┴─────────┴────► (time is up: given up)
//! ```
//!
//! *Closing*: nothing more is handed to Raft, and what was is still being committed and applied. A
//! leader's lease, once there are any, must have ended before this stage does (safety 5).
//! *Called*: the other replica has everything and was told to campaign. *Gone*: this replica leads
//! no more, and who does isn't known yet.
//!
//! V1: a proposal that waits here was not handed to Raft: it is proven without effect.
//! V2: each leaves once: when its time is up, or with the hand-over, in the order in which they came.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::host::Forwarding;
use super::waiters::{Policy, Proposer};
use crate::id::{GroupId, ReplicaId};
use bytes::Bytes;

/// A proposal for a replica that leads, or led when it came.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Whose it is.
    pub who: Proposer,
    /// The command.
    pub data: Bytes,
    /// The proposer's note.
    pub context: Bytes,
    /// When its proposer's time is up.
    pub deadline: Instant,
    /// Whether it may go to a leader elsewhere.
    pub forwarding: Forwarding,
    /// When its reply may leave.
    pub policy: Policy,
}

/// How far a hand-over is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What was proposed is being committed and applied.
    Closing,
    /// The other replica was told to campaign.
    Called,
    /// This one leads no more.
    Gone,
}

/// One hand-over.
#[derive(Debug)]
pub struct Handover {
    /// To whom.
    pub to: ReplicaId,
    /// How far it is.
    pub stage: Stage,
    /// When its stage has taken too long.
    pub until: Instant,
    held: VecDeque<(Incoming, u64)>,
    /// The first of `until` and the deadlines of what is held.
    alarm: Instant,
}

/// Those of a shard.
#[derive(Debug, Default)]
pub struct Handovers {
    under_way: BTreeMap<GroupId, Handover>,
    held: usize,
}

impl Handovers {
    /// How many are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// How many proposals wait for one.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// The group's, if there is one.
    #[must_use]
    pub fn of(&self, group: GroupId) -> Option<&Handover> {
        self.under_way.get(&group)
    }

    /// Whether the group's proposals wait.
    #[must_use]
    pub fn holds(&self, group: GroupId) -> bool {
        self.of(group)
            .is_some_and(|handover| handover.stage != Stage::Gone)
    }

    /// The groups, by id.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.under_way.keys().copied()
    }

    /// Begins one, or turns the group's to another replica. What waits goes on waiting.
    pub fn begin(&mut self, group: GroupId, to: ReplicaId, until: Instant) {
        let handover = self.under_way.entry(group).or_insert(Handover {
            to,
            stage: Stage::Closing,
            until,
            held: VecDeque::new(),
            alarm: until,
        });
        (handover.to, handover.stage, handover.until) = (to, Stage::Closing, until);
        handover.alarm = handover.alarm.min(until);
    }

    /// The group's has come so far, and may stay there until then.
    pub fn advance(&mut self, group: GroupId, stage: Stage, until: Instant) {
        if let Some(handover) = self.under_way.get_mut(&group) {
            (handover.stage, handover.until) = (stage, until);
            handover.alarm = next_alarm(handover);
        }
    }

    /// A proposal waits for the group's, and took so much of the shard's proposal bytes. Says whether
    /// there is one to wait for; nothing is kept if not.
    pub fn hold(&mut self, group: GroupId, incoming: Incoming, cost: u64) -> bool {
        let Some(handover) = self.under_way.get_mut(&group) else {
            return false;
        };
        handover.alarm = handover.alarm.min(incoming.deadline);
        handover.held.push_back((incoming, cost));
        self.held += 1;
        self.check_invariants();
        true
    }

    /// Takes what waits for the group's, first come first.
    pub fn release(&mut self, group: GroupId) -> VecDeque<(Incoming, u64)> {
        let Some(handover) = self.under_way.get_mut(&group) else {
            return VecDeque::new();
        };
        let held = std::mem::take(&mut handover.held);
        handover.alarm = handover.until;
        self.held -= held.len();
        self.check_invariants();
        held
    }

    /// Takes what waits for the group's and has no time left.
    pub fn expired(&mut self, group: GroupId, now: Instant) -> Vec<(Incoming, u64)> {
        let Some(handover) = self.under_way.get_mut(&group) else {
            return Vec::new();
        };
        let all = std::mem::take(&mut handover.held);
        let (over, held): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|(incoming, _)| incoming.deadline <= now);
        handover.held = held.into();
        handover.alarm = next_alarm(handover);
        self.held -= over.len();
        self.check_invariants();
        over
    }

    /// The group's has ended. What waited must have been taken.
    pub fn end(&mut self, group: GroupId) -> Option<Handover> {
        let ended = self.under_way.remove(&group)?;
        debug_assert!(ended.held.is_empty(), "V2");
        Some(ended)
    }

    /// Those whose time is up, or that of a proposal that waits for them.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<GroupId> {
        let due = self.under_way.iter().filter(|(_, h)| h.alarm <= now);
        due.map(|(group, _)| *group).collect()
    }

    /// When the next time is up. Few are under way at once.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Instant> {
        self.under_way.values().map(|handover| handover.alarm).min()
    }

    fn check_invariants(&self) {
        debug_assert_eq!(
            self.held,
            self.under_way.values().map(|h| h.held.len()).sum::<usize>(),
            "V2"
        );
    }
}

fn next_alarm(handover: &Handover) -> Instant {
    let deadlines = handover.held.iter().map(|(incoming, _)| incoming.deadline);
    deadlines.fold(handover.until, Instant::min)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::ProposalId;

    fn incoming(id: u64, deadline: Instant) -> Incoming {
        Incoming {
            who: Proposer::Local(ProposalId::new(id)),
            data: Bytes::from_static(b"command"),
            context: Bytes::new(),
            deadline,
            forwarding: Forwarding::Allowed,
            policy: Policy::Quorum,
        }
    }

    #[test]
    fn what_waits_leaves_once_and_in_order() {
        let start = crate::proto::test_time::start();
        let after = |ms| start + Duration::from_millis(ms);
        let (group, to) = (GroupId::new(1), ReplicaId::new(12));
        let mut handovers = Handovers::default();
        assert!(!handovers.hold(group, incoming(0, after(9)), 1));
        handovers.begin(group, to, after(100));
        for (id, deadline) in [(1, 500), (2, 50), (3, 500)] {
            assert!(handovers.hold(group, incoming(id, after(deadline)), 1));
        }
        assert_eq!(handovers.next_alarm(), Some(after(50)));
        assert!(handovers.due(after(49)).is_empty());
        assert_eq!(handovers.due(after(50)), [group]);
        assert_eq!(handovers.expired(group, after(50)).len(), 1);
        assert_eq!(handovers.next_alarm(), Some(after(100)));
        handovers.advance(group, Stage::Called, after(900));
        assert_eq!(handovers.next_alarm(), Some(after(500)));
        assert!(handovers.holds(group));
        let left: Vec<_> = handovers
            .release(group)
            .into_iter()
            .map(|(incoming, _)| incoming.who)
            .collect();
        let local = |id| Proposer::Local(ProposalId::new(id));
        assert_eq!((left, handovers.held()), (vec![local(1), local(3)], 0));
        handovers.advance(group, Stage::Gone, after(950));
        assert!(!handovers.holds(group), "it leads no more");
        assert_eq!(handovers.end(group).map(|ended| ended.to), Some(to));
        assert_eq!((handovers.len(), handovers.next_alarm()), (0, None));
    }
}
