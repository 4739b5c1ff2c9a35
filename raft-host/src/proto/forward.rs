//! Proposals that leave for a leader elsewhere: where each stands, when its time is up, and, at the
//! leader's end, which of a peer's have been seen. What is done with them is the host core's.
//!
//! ```text
//! Held ──► Queued ──► Sent ──► Taken ──► (answered)
//!   ▲        │          │
//!   └────────┴──────────┘  proven not taken, or refused by a node that no longer leads
//! ```
//!
//! *Held* and *Queued* are proven without effect. From *Sent* on, the frame is with the transport,
//! and only its receipt or the leader's answer says what became of it (safety 23).
//!
//! F1: a proposal is in one stage, and leaves the table once; each attempt has a token of its own.
//! F2: there is one alarm for each: its deadline, or when it has been held long enough.
//! F3: a token of a peer's life that was seen, or is older than all that are remembered, is never
//!     new again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;

use crate::error::Refusal;
use crate::id::{GroupId, NodeId, ProposalId, SendId, Term};
use crate::limits::FORWARDS_REMEMBERED_MAX;
use crate::proto::waiters::Policy;

/// How far a forwarded proposal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for a leader to be known and in reach, until then at the latest.
    Held {
        /// Its time here is up then.
        until: Instant,
    },
    /// It waits for a frame.
    Queued {
        /// The leader's node.
        leader: NodeId,
    },
    /// Its frame is with the transport.
    Sent {
        /// The leader's node.
        leader: NodeId,
    },
    /// The leader's node has taken it, as far as is known.
    Taken {
        /// The leader's node.
        leader: NodeId,
    },
}

impl Stage {
    /// Whether it is proven without effect.
    #[must_use]
    pub fn is_here(self) -> bool {
        matches!(self, Self::Held { .. } | Self::Queued { .. })
    }

    /// The node that it is for, or went to.
    #[must_use]
    pub fn leader(self) -> Option<NodeId> {
        match self {
            Self::Held { .. } => None,
            Self::Queued { leader } | Self::Sent { leader } | Self::Taken { leader } => {
                Some(leader)
            }
        }
    }
}

/// A proposal that leaves for a leader elsewhere.
#[derive(Clone, Debug)]
pub struct Forwarded {
    /// The caller's name for it.
    pub id: ProposalId,
    /// Its group.
    pub group: GroupId,
    /// The command.
    pub data: Bytes,
    /// The proposer's note.
    pub context: Bytes,
    /// When it ends at the latest.
    pub deadline: Instant,
    /// What it took of the shard's proposal bytes.
    pub cost: u64,
    /// How often it was queued for a leader.
    pub attempts: u8,
    /// Who refused it last as no longer leading, and in which term: not asked again in it.
    pub avoid: Option<(NodeId, Term)>,
    /// What it is refused as when its time here is up.
    pub last: Refusal,
    /// When its reply may leave.
    pub policy: Policy,
}

/// The forwarded proposals of a shard.
#[derive(Debug, Default)]
pub struct Forwards {
    next: u64,
    pending: BTreeMap<u64, (Stage, Forwarded)>,
    alarms: BTreeSet<(Instant, u64)>,
    held: BTreeSet<(GroupId, u64)>,
    frames: BTreeMap<SendId, Vec<u64>>,
}

impl Forwards {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds one, held or queued, under a token that is new.
    pub fn add(&mut self, stage: Stage, forwarded: Forwarded) -> u64 {
        debug_assert!(stage.is_here(), "{stage:?} at the beginning");
        self.next += 1;
        let token = self.next;
        self.alarms.insert((alarm(stage, &forwarded), token));
        if matches!(stage, Stage::Held { .. }) {
            self.held.insert((forwarded.group, token));
        }
        self.pending.insert(token, (stage, forwarded));
        self.check_invariants();
        token
    }

    /// Takes one out.
    pub fn take(&mut self, token: u64) -> Option<(Stage, Forwarded)> {
        let (stage, forwarded) = self.pending.remove(&token)?;
        self.alarms.remove(&(alarm(stage, &forwarded), token));
        self.held.remove(&(forwarded.group, token));
        self.check_invariants();
        Some((stage, forwarded))
    }

    /// One that still waits for its frame, and the node that it is for.
    #[must_use]
    pub fn queued(&self, token: u64) -> Option<(NodeId, &Forwarded)> {
        let (stage, forwarded) = self.pending.get(&token)?;
        let Stage::Queued { leader } = *stage else {
            return None;
        };
        Some((leader, forwarded))
    }

    /// One of them.
    #[must_use]
    pub fn peek(&self, token: u64) -> Option<&Forwarded> {
        self.pending.get(&token).map(|(_, forwarded)| forwarded)
    }

    /// These left in that frame.
    pub fn sent(&mut self, frame: SendId, tokens: Vec<u64>) {
        for token in &tokens {
            if let Some((stage, _)) = self.pending.get_mut(token)
                && let Some(leader) = stage.leader()
            {
                *stage = Stage::Sent { leader };
            }
        }
        if !tokens.is_empty() {
            self.frames.insert(frame, tokens);
        }
    }

    /// A frame has ended: those that were in it and are still awaited.
    pub fn frame_ended(&mut self, frame: SendId) -> Vec<u64> {
        let mut tokens = self.frames.remove(&frame).unwrap_or_default();
        tokens.retain(|token| self.pending.contains_key(token));
        tokens
    }

    /// The leader's node took it, or may have.
    pub fn taken(&mut self, token: u64) {
        if let Some((stage, _)) = self.pending.get_mut(&token)
            && let Some(leader) = stage.leader()
        {
            *stage = Stage::Taken { leader };
        }
    }

    /// Whether this token went to that node and has no answer.
    #[must_use]
    pub fn awaits(&self, token: u64, node: NodeId) -> bool {
        self.pending
            .get(&token)
            .is_some_and(|(stage, _)| !stage.is_here() && stage.leader() == Some(node))
    }

    /// Those of a group that wait for a leader, oldest first.
    #[must_use]
    pub fn held_in(&self, group: GroupId) -> Vec<u64> {
        let range = (group, 0)..=(group, u64::MAX);
        self.held.range(range).map(|(_, token)| *token).collect()
    }

    /// The groups in which one waits for a leader.
    #[must_use]
    pub fn held_groups(&self) -> BTreeSet<GroupId> {
        self.held.iter().map(|(group, _)| *group).collect()
    }

    /// Those that the loss of the link to a node leaves in doubt or sends back: queued for it, or
    /// taken by it. A frame on its way still has a receipt to come.
    #[must_use]
    pub fn lost_with(&self, node: NodeId) -> Vec<u64> {
        let lost =
            |stage: Stage| stage.leader() == Some(node) && !matches!(stage, Stage::Sent { .. });
        let pending = self.pending.iter().filter(|(_, (stage, _))| lost(*stage));
        pending.map(|(token, _)| *token).collect()
    }

    /// Those of one group, or all.
    #[must_use]
    pub fn tokens(&self, group: Option<GroupId>) -> Vec<u64> {
        let of = |forwarded: &Forwarded| group.is_none_or(|group| forwarded.group == group);
        let pending = self.pending.iter().filter(|(_, (_, found))| of(found));
        pending.map(|(token, _)| *token).collect()
    }

    /// The next whose time is up by `now`.
    #[must_use]
    pub fn expired(&self, now: Instant) -> Option<u64> {
        let (at, token) = self.alarms.first()?;
        (*at <= now).then_some(*token)
    }

    /// When the next time is up.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    fn check_invariants(&self) {
        debug_assert_eq!(self.alarms.len(), self.pending.len(), "F2");
        debug_assert!(self.held.len() <= self.pending.len(), "F1");
    }
}

fn alarm(stage: Stage, forwarded: &Forwarded) -> Instant {
    match stage {
        Stage::Held { until } => until.min(forwarded.deadline),
        Stage::Queued { .. } | Stage::Sent { .. } | Stage::Taken { .. } => forwarded.deadline,
    }
}

/// Which of a peer's forwarded proposals came here before, within one life of it.
#[derive(Debug, Default)]
pub struct Seen {
    tokens: BTreeSet<u64>,
    /// Everything up to here counts as seen.
    floor: u64,
}

impl Seen {
    /// Forgets everything: the peer lives anew.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Notes a token, and says whether it is new.
    pub fn is_new(&mut self, token: u64) -> bool {
        if token <= self.floor || !self.tokens.insert(token) {
            return transport::mutant!("forwarded_twice");
        }
        if self.tokens.len() > FORWARDS_REMEMBERED_MAX
            && let Some(oldest) = self.tokens.pop_first()
        {
            self.floor = oldest;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEADER: NodeId = NodeId::new(2);

    fn forwarded(group: u64, deadline: Instant) -> Forwarded {
        Forwarded {
            id: ProposalId::new(7),
            group: GroupId::new(group),
            data: Bytes::from_static(b"command"),
            context: Bytes::new(),
            deadline,
            cost: 1,
            attempts: 0,
            avoid: None,
            last: Refusal::NoLeader,
            policy: Policy::Quorum,
        }
    }

    #[test]
    fn what_is_held_rings_before_its_deadline_and_what_is_queued_at_it() {
        let start = crate::proto::test_time::start();
        let (until, deadline) = (
            start + Duration::from_secs(1),
            start + Duration::from_secs(5),
        );
        let mut forwards = Forwards::default();
        let held = forwards.add(Stage::Held { until }, forwarded(1, deadline));
        let queued = forwards.add(Stage::Queued { leader: LEADER }, forwarded(1, deadline));
        assert_eq!(forwards.next_alarm(), Some(until));
        assert_eq!(forwards.expired(until), Some(held));
        assert_eq!(forwards.held_in(GroupId::new(1)), [held]);
        assert!(forwards.take(held).is_some());
        assert!(forwards.take(held).is_none(), "it leaves once");
        assert_eq!(forwards.expired(until), None);
        assert_eq!(forwards.expired(deadline), Some(queued));
    }

    #[test]
    fn only_what_was_sent_to_a_node_is_answered_by_it() {
        let start = crate::proto::test_time::start();
        let mut forwards = Forwards::default();
        let stage = Stage::Queued { leader: LEADER };
        let token = forwards.add(stage, forwarded(1, start));
        assert!(!forwards.awaits(token, LEADER), "it hasn't left");
        forwards.sent(SendId::new(1), vec![token]);
        assert!(forwards.awaits(token, LEADER));
        assert!(!forwards.awaits(token, NodeId::new(3)));
        assert!(
            forwards.lost_with(LEADER).is_empty(),
            "its receipt will say"
        );
        assert_eq!(forwards.frame_ended(SendId::new(1)), [token]);
        forwards.taken(token);
        assert_eq!(forwards.lost_with(LEADER), [token]);
    }

    #[test]
    fn a_token_is_new_once_and_never_when_it_is_forgotten() {
        let mut seen = Seen::default();
        assert!(seen.is_new(5) && seen.is_new(3));
        assert!(!seen.is_new(5) && !seen.is_new(3));
        let most = FORWARDS_REMEMBERED_MAX as u64;
        for token in 10..10 + most {
            assert!(seen.is_new(token));
        }
        assert!(!seen.is_new(4), "older than all that are remembered");
        assert!(!seen.is_new(3) && !seen.is_new(10));
        seen.reset();
        assert!(seen.is_new(3), "of another life");
    }
}
