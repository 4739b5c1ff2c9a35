//! Where the leaders of groups are to be (H9): who is preferred, which peers may be handed a group,
//! how long a group waits before it moves, and how many move at once. Deciding for one group, and
//! what a hand-over is made of, is `host/handover.rs`; this file knows no replica and no message.
//!
//! P1: whom a group prefers follows from its id, the replica named for it and its voters: every
//!     node comes to the same one, so only one node ever waits for a group, and it keeps it.
//! P2: a peer is handed nothing before it has been linked for the settling time and has answered a
//!     round within an election timeout; from the second early loss on, each doubles that time.
//! P3: a group moves no sooner than its wait after it got its leader; each hand-over that failed, or
//!     was undone soon, doubles that wait. So no schedule moves one to and fro at a steady pace.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::admission::Dice;
use crate::id::{GroupId, NodeId, ReplicaId};
use crate::limits::{DOUBLINGS_MAX, HANDOVER_UNDONE_WITHIN, PEER_STEADY_AFTER};

/// The voter that should lead a group: the one that was named, or, if it doesn't vote (any more),
/// the group's id going round with the voters in the order of their ids.
#[must_use]
pub fn preferred_leader(
    group: GroupId,
    named: ReplicaId,
    voters: impl IntoIterator<Item = ReplicaId>,
) -> Option<ReplicaId> {
    let voters: BTreeSet<_> = voters.into_iter().collect();
    if voters.contains(&named) {
        return Some(named);
    }
    let turn = group.to_u64().checked_rem(voters.len() as u64)?;
    voters
        .into_iter()
        .nth(usize::try_from(turn).unwrap_or_default())
}

/// `base`, doubled so often.
fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1 << times.min(DOUBLINGS_MAX))
}

/// How long a peer has been there, and when it answered last.
#[derive(Debug, Default)]
pub struct Standing {
    since: Option<Instant>,
    answered: Option<Instant>,
    lost_early: u32,
}

impl Standing {
    /// The link to it is up, or it lives anew.
    pub fn returned(&mut self, now: Instant) {
        self.lost(now);
        self.since = Some(now);
    }

    /// The link to it is lost.
    pub fn lost(&mut self, now: Instant) {
        self.answered = None;
        let Some(since) = self.since.take() else {
            return;
        };
        if now.saturating_duration_since(since) < PEER_STEADY_AFTER {
            self.lost_early = (self.lost_early + 1).min(1 + DOUBLINGS_MAX);
        } else {
            self.lost_early = 0;
        }
    }

    /// It has answered all of a round that was stamped then.
    pub fn answered(&mut self, stamp: Instant) {
        self.answered = self.answered.max(Some(stamp));
    }

    /// Whether it may be handed a group (P2).
    #[must_use]
    pub fn is_settled(&self, now: Instant, election_timeout: Duration) -> bool {
        let (Some(since), Some(answered)) = (self.since, self.answered) else {
            return false;
        };
        let again = self.lost_early.saturating_sub(1);
        let settled = since + doubled(2 * election_timeout, again);
        now >= settled && now.saturating_duration_since(answered) <= election_timeout
    }
}

/// What one replica remembers of its group's moves.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// It leads, and may hand over from then on.
    not_before: Instant,
    handed_at: Option<Instant>,
    in_vain: u32,
}

impl Moves {
    /// Of a group that was just opened.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            not_before: now,
            handed_at: None,
            in_vain: 0,
        }
    }

    /// The replica here leads from now on.
    pub fn elected(&mut self, now: Instant, wait: Duration) {
        let soon = |at: Instant| now.saturating_duration_since(at) < HANDOVER_UNDONE_WITHIN;
        self.in_vain = match self.handed_at.take() {
            Some(at) if soon(at) => self.in_vain + 1,
            Some(_) | None => 0,
        };
        self.not_before = now + doubled(wait, self.in_vain);
    }

    /// It has handed over.
    pub fn handed(&mut self, now: Instant) {
        self.handed_at = Some(now);
    }

    /// It tried to, and leads still.
    pub fn failed(&mut self, now: Instant, wait: Duration) {
        self.in_vain += 1;
        self.not_before = now + doubled(wait, self.in_vain);
    }

    /// Whether it may move (P3).
    #[must_use]
    pub fn may_move(&self, now: Instant) -> bool {
        now >= self.not_before
    }
}

/// The groups that are led here although another node is preferred, and the pace at which they go
/// there.
///
/// A group is looked at in turn, so that one that can't move holds up no other.
#[derive(Debug)]
pub struct Astray {
    by_node: BTreeMap<NodeId, BTreeSet<GroupId>>,
    /// Where the next look begins.
    cursor: BTreeMap<NodeId, GroupId>,
    each: Duration,
    look_at: Instant,
}

impl Astray {
    /// None; later ones leave at most at this rate a second.
    #[must_use]
    pub fn new(rate: NonZeroU32, now: Instant) -> Self {
        Self {
            by_node: BTreeMap::new(),
            cursor: BTreeMap::new(),
            each: Duration::from_secs(1) / rate.get(),
            look_at: now,
        }
    }

    /// This group is led here, and `node` is preferred.
    pub fn add(&mut self, node: NodeId, group: GroupId) {
        self.by_node.entry(node).or_default().insert(group);
    }

    /// It is not any more.
    pub fn remove(&mut self, node: NodeId, group: GroupId) {
        if let Some(groups) = self.by_node.get_mut(&node) {
            groups.remove(&group);
            if groups.is_empty() {
                self.by_node.remove(&node);
                self.cursor.remove(&node);
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_node.values().map(BTreeSet::len).sum()
    }

    /// Whether every group that is led here is to be led here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// The nodes that groups here should be led by.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.by_node.keys().copied()
    }

    /// When to look again, if there is anything to look at.
    #[must_use]
    pub fn next_look(&self) -> Option<Instant> {
        (!self.is_empty()).then_some(self.look_at)
    }

    /// Up to `most` groups for this node, beginning behind those that the last look saw.
    pub fn next_of(&mut self, node: NodeId, most: usize) -> Vec<GroupId> {
        let Some(groups) = self.by_node.get(&node) else {
            return Vec::new();
        };
        let from = self.cursor.get(&node).copied().unwrap_or_default();
        let behind = groups.range(from.next()..);
        let seen: Vec<_> = behind
            .chain(groups.range(..=from))
            .take(most)
            .copied()
            .collect();
        if let Some(last) = seen.last() {
            self.cursor.insert(node, *last);
        }
        seen
    }

    /// The last look at this node's groups stopped at this one.
    pub fn stopped_at(&mut self, node: NodeId, group: GroupId) {
        self.cursor.insert(node, group);
    }

    /// One has begun to leave: the next may after between a half and one and a half of the pace, so
    /// that nodes and shards that begin together don't go on together.
    pub fn began(&mut self, now: Instant, dice: &mut Dice) {
        self.look_at = now + dice.between(self.each / 2, self.each * 3 / 2);
    }

    /// None could: look again after so long.
    pub fn looked(&mut self, now: Instant, pause: Duration) {
        self.look_at = now + pause.max(self.each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(1);

    fn group(id: u64) -> GroupId {
        GroupId::new(id)
    }

    fn voters(ids: &[u64]) -> Vec<ReplicaId> {
        ids.iter().map(|id| ReplicaId::new(*id)).collect()
    }

    #[test]
    fn the_named_voter_is_preferred_and_without_it_the_groups_go_round() {
        let named = ReplicaId::new(12);
        let of = |id, ids: &[u64]| preferred_leader(group(id), named, voters(ids));
        assert_eq!(of(7, &[11, 12, 13]), Some(named));
        assert_eq!(of(7, &[]), None);
        let mut led = BTreeMap::new();
        for id in 0..1500 {
            *led.entry(of(id, &[13, 11, 14])).or_insert(0) += 1;
            assert_eq!(of(id, &[11, 13, 14]), of(id, &[14, 13, 11]), "P1");
        }
        assert!(led.values().all(|count| *count == 500), "{led:?}");
    }

    #[test]
    fn a_peer_settles_only_while_it_answers_and_later_each_time_it_is_lost_early_again() {
        let start = crate::proto::test_time::start();
        let mut peer = Standing::default();
        let settles_after = |peer: &mut Standing, from: Instant| {
            peer.returned(from);
            (0_u32..1000).find(|tenths| {
                let now = from + T * *tenths / 10;
                assert!(
                    !peer.is_settled(now, T) || *tenths > 0,
                    "it has not answered"
                );
                peer.answered(now);
                peer.is_settled(now, T)
            })
        };
        assert_eq!(settles_after(&mut peer, start), Some(20));
        assert!(!peer.is_settled(start + T * 4, T), "it answers no more");
        let mut now = start + T * 4;
        for expected in [20, 40, 80, 160, 320, 640, 640] {
            peer.lost(now);
            assert!(!peer.is_settled(now + T * 500, T));
            // It is gone again as soon as it has settled, or sooner.
            assert_eq!(settles_after(&mut peer, now), Some(expected));
            now += T;
        }
        peer.lost(now + PEER_STEADY_AFTER);
        assert_eq!(settles_after(&mut peer, now + PEER_STEADY_AFTER), Some(20));
    }

    #[test]
    fn a_group_that_comes_back_soon_waits_longer_each_time() {
        let start = crate::proto::test_time::start();
        let mut moves = Moves::new(start);
        let mut now = start;
        for wait in [1, 2, 4, 8, 16, 32, 32] {
            moves.elected(now, T);
            assert!(!moves.may_move(now + T * wait - T / 10));
            now += T * wait;
            assert!(moves.may_move(now));
            moves.handed(now);
            now += T / 2;
        }
        now += HANDOVER_UNDONE_WITHIN;
        moves.elected(now, T);
        assert!(moves.may_move(now + T), "the last move held");
        moves.failed(now + T, T);
        assert!(!moves.may_move(now + T * 2) && moves.may_move(now + T * 3));
    }

    #[test]
    fn a_look_begins_where_the_last_one_stopped() {
        let start = crate::proto::test_time::start();
        let (node, other) = (NodeId::new(2), NodeId::new(3));
        let mut astray = Astray::new(NonZeroU32::new(50).unwrap(), start);
        assert_eq!(astray.next_look(), None);
        for id in 0..5 {
            astray.add(node, group(id));
        }
        astray.add(other, group(9));
        let ids = |groups: Vec<GroupId>| -> Vec<u64> {
            groups.iter().map(|group| group.to_u64()).collect()
        };
        assert_eq!(ids(astray.next_of(node, 3)), [1, 2, 3]);
        assert_eq!(ids(astray.next_of(node, 3)), [4, 0, 1]);
        astray.stopped_at(node, group(4));
        assert_eq!(ids(astray.next_of(node, 9)), [0, 1, 2, 3, 4]);
        assert_eq!(ids(astray.next_of(other, 9)), [9]);
        for id in 0..5 {
            astray.remove(node, group(id));
        }
        assert_eq!((astray.len(), astray.nodes().collect()), (1, vec![other]));
    }

    #[test]
    fn hand_overs_keep_to_their_rate() {
        let start = crate::proto::test_time::start();
        let mut dice = Dice::new(7);
        let mut astray = Astray::new(NonZeroU32::new(50).unwrap(), start);
        astray.add(NodeId::new(2), group(1));
        let mut began = 0;
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            if astray.next_look().is_some_and(|at| at <= now) {
                astray.began(now, &mut dice);
                began += 1;
            }
        }
        assert!((450..=550).contains(&began), "{began} in ten seconds");
    }
}
