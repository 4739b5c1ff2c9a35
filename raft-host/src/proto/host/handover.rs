//! Handing groups over: which may go where they are preferred, and what becomes of the proposals
//! that meet a hand-over. `placement` says when and how many, `handover` keeps those under way.
//!
//! - M1: the other replica is told to campaign only once everything that was proposed here is
//!   committed, applied and answered, and it has it durably. So no proposal's outcome is in doubt
//!   because its leader was changed on purpose.
//! - M2: what is proposed meanwhile waits; it goes to the new leader, or on here if there is none.
//! - M3: a replica that was told to campaign and isn't preferred was asked for by somebody: it keeps
//!   the group as long as it leads (the host itself only ever hands over to the preferred).
//!
//! No lease is granted yet (reads are by read index, which asks a quorum after the fact): nothing
//! has to be given up before the call. A lease will have to end within `Closing` (safety 5).

use std::time::Duration;

use super::{Group, HostCore, LogRoom};
use crate::config::LeaderPlacement;
use crate::error::{Outcome, Refusal};
use crate::id::{GroupId, NodeId, ReplicaId};
use crate::limits::{
    HANDOVER_BACKLOG_BYTES_MAX, HANDOVER_HELD_MAX, HANDOVER_LAG_ENTRIES_MAX, HANDOVER_LOOKS_MAX,
    HANDOVERS_AT_ONCE_MAX,
};
use crate::log::api::GroupLog;
use crate::proto::consensus::Role;
use crate::proto::delayed::Admission;
use crate::proto::group_table::SlotId;
use crate::proto::handover::{Incoming, Stage};
use crate::proto::host::{Forwarding, Proposal};
use crate::proto::waiters::Proposer;

impl<L: GroupLog> HostCore<L> {
    /// The replica here has become the leader: it may not be the one that should lead.
    pub(super) fn place(&mut self, slot: SlotId) {
        let (now, wait) = (self.now, self.config.election_timeout());
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        group.moves.elected(now, wait);
        let called = group.called_in == Some(group.replica.status().term);
        self.stats.handovers_taken += u64::from(called);
        let (id, preferred) = (group.id, group.preferred);
        let here = preferred == Some(group.replica.id());
        let node = preferred.and_then(|preferred| group.node_of(preferred));
        let follows = self.config.leader_placement() == LeaderPlacement::Preferred;
        if let Some(node) = node.filter(|_| follows && !here && !called) {
            self.astray.add(node, id);
        }
    }

    /// Leadership here is lost.
    pub(super) fn displace(&mut self, slot: SlotId) {
        let now = self.now;
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        let id = group.id;
        if let Some(node) = group.preferred.and_then(|p| group.node_of(p)) {
            self.astray.remove(node, id);
        }
        if !self.handovers.holds(id) {
            return;
        }
        group.moves.handed(now);
        let until = now + self.config.election_timeout() * 3 / 2;
        self.handovers.advance(id, Stage::Gone, until);
        self.resume_held(slot, id);
    }

    /// Looks for a group to hand over, if it is time to. At most one begins in a look.
    pub(super) fn look_for_handovers(&mut self) {
        if self.astray.next_look().is_none_or(|at| at > self.now) {
            return;
        }
        if self.is_calm() {
            let nodes: Vec<_> = self.astray.nodes().collect();
            for node in nodes {
                if !self.is_settled(node) {
                    continue;
                }
                for group in self.astray.next_of(node, HANDOVER_LOOKS_MAX) {
                    if self.hand_to_preferred(group) {
                        self.astray.stopped_at(node, group);
                        self.astray.began(self.now, &mut self.dice);
                        return;
                    }
                }
            }
        }
        let pause = self.config.heartbeat_interval();
        self.astray.looked(self.now, pause);
    }

    /// Whether the shard has nothing to do that hand-overs would make worse.
    fn is_calm(&self) -> bool {
        self.now >= self.grace_until
            && self.handovers.len() < HANDOVERS_AT_ONCE_MAX
            && self.campaigns.waiting() == 0
            && self.admission == Admission::Open
            && self.delayed.is_empty()
            && !matches!(self.log_room, LogRoom::Spent(_))
            && self.store_pending <= HANDOVER_BACKLOG_BYTES_MAX
    }

    /// Whether a node has been there long enough, answers, and isn't being caught up.
    fn is_settled(&self, node: NodeId) -> bool {
        let election = self.config.election_timeout();
        self.peers.get(&node).is_some_and(|peer| {
            peer.up
                && peer.standing.is_settled(self.now, election)
                && peer.bulk_bytes <= HANDOVER_BACKLOG_BYTES_MAX
        })
    }

    fn hand_to_preferred(&mut self, id: GroupId) -> bool {
        let Some(slot) = self.groups.slot(id) else {
            return false;
        };
        let ready = |group: &Group<L>| {
            let to = group.preferred?;
            let lag = group.lag(to)?;
            let ready = group.moves.may_move(self.now)
                && lag <= HANDOVER_LAG_ENTRIES_MAX
                && group.replica.has_committed_in_term()
                && !group.replica.has_pending_change();
            ready.then_some(to)
        };
        if self.handovers.of(id).is_some() {
            return false;
        }
        let Some(to) = self.groups.at(slot).and_then(ready) else {
            return false;
        };
        self.begin_handover(slot, id, to);
        true
    }

    fn begin_handover(&mut self, slot: SlotId, id: GroupId, to: ReplicaId) {
        let until = self.now + self.closing_max();
        self.handovers.begin(id, to, until);
        self.stats.handovers_begun += 1;
        self.advance_handover(slot);
    }

    /// How long proposals may wait for those before them and for a replica that lacks something.
    fn closing_max(&self) -> Duration {
        self.config.election_timeout() / 2
    }

    /// Calls the other replica once nothing is unfinished here that it could spoil (M1).
    pub(super) fn advance_handover(&mut self, slot: SlotId) {
        if self.handovers.is_empty() {
            return;
        }
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        let Some(handover) = self.handovers.of(group.id) else {
            return;
        };
        let to = handover.to;
        if handover.stage != Stage::Closing || !group.is_finished() || group.lag(to) != Some(0) {
            return;
        }
        if group.replica.transfer(to).is_err() {
            // It doesn't lead, which its turn will tell, or the other doesn't vote any more.
            return;
        }
        let until = self.now + self.config.election_timeout();
        self.handovers.advance(group.id, Stage::Called, until);
        self.queue(slot);
    }

    /// The group's leader is known: a hand-over that had come so far has ended.
    pub(super) fn finish_handover(&mut self, slot: SlotId) {
        if self.handovers.is_empty() {
            return;
        }
        let Some(group) = self.groups.at(slot) else {
            return;
        };
        let Some(leader) = group.replica.status().leader else {
            return;
        };
        let gone = |stage| stage == Stage::Gone;
        if self.handovers.of(group.id).is_none_or(|h| !gone(h.stage)) {
            return;
        }
        if let Some(ended) = self.handovers.end(group.id) {
            if ended.to == leader {
                self.stats.handovers_finished += 1;
            } else {
                self.stats.handovers_failed += 1;
            }
        }
    }

    /// What waits for a hand-over and has no time left is refused; a hand-over that takes too long
    /// is given up.
    pub(super) fn expire_handovers(&mut self) {
        for id in self.handovers.due(self.now) {
            let Some(slot) = self.groups.slot(id) else {
                continue;
            };
            for (incoming, cost) in self.handovers.expired(id, self.now) {
                self.proposals.release(cost);
                let why = Refusal::Transferring;
                self.end_proposal(slot, incoming.who, Outcome::Refused { why });
            }
            let over = |until| until <= self.now;
            if self.handovers.of(id).is_some_and(|h| over(h.until)) {
                self.give_up_handover(slot, id);
            }
        }
    }

    /// The link to a node is lost: nobody there will take over.
    pub(super) fn handovers_lost_with(&mut self, node: NodeId) {
        for id in self.handovers.groups().collect::<Vec<_>>() {
            let Some(slot) = self.groups.slot(id) else {
                continue;
            };
            let to = self.handovers.of(id).map(|handover| handover.to);
            let there = |group: &Group<L>| to.and_then(|to| group.node_of(to)) == Some(node);
            if self.handovers.holds(id) && self.groups.at(slot).is_some_and(there) {
                self.give_up_handover(slot, id);
            }
        }
    }

    /// This replica leads on, as far as it knows. A call that was on its way may still depose it.
    fn give_up_handover(&mut self, slot: SlotId, id: GroupId) {
        let (now, wait) = (self.now, self.config.election_timeout());
        if let Some(group) = self.groups.at_mut(slot) {
            group.replica.abort_transfer();
            group.moves.failed(now, wait);
        }
        self.stats.handovers_failed += 1;
        let held = self.handovers.release(id);
        self.handovers.end(id);
        self.resume_all(slot, id, held);
    }

    fn resume_held(&mut self, slot: SlotId, id: GroupId) {
        let held = self.handovers.release(id);
        self.resume_all(slot, id, held);
    }

    fn resume_all(
        &mut self,
        slot: SlotId,
        id: GroupId,
        held: impl IntoIterator<Item = (Incoming, u64)>,
    ) {
        for (incoming, cost) in held {
            self.proposals.release(cost);
            self.resume(slot, id, incoming);
        }
    }

    /// Ends what is under way in a group that is closed, or all at the end.
    pub(super) fn stop_handovers(&mut self, group: Option<GroupId>) {
        let all: Vec<_> = self.handovers.groups().collect();
        for id in all.into_iter().filter(|id| group.is_none_or(|g| g == *id)) {
            let held = self.handovers.release(id);
            self.handovers.end(id);
            let slot = self.groups.slot(id);
            for (incoming, cost) in held {
                self.proposals.release(cost);
                if let Some(slot) = slot {
                    let why = Refusal::Stopped;
                    self.end_proposal(slot, incoming.who, Outcome::Refused { why });
                }
            }
        }
    }

    /// A proposal at a leader that hands over waits until that has ended (M2).
    pub(super) fn hold(&mut self, id: GroupId, incoming: Incoming) -> Result<(), Refusal> {
        if self.handovers.held() >= HANDOVER_HELD_MAX {
            return Err(Refusal::Transferring);
        }
        let bytes = incoming.data.len() + incoming.context.len();
        let cost = self.proposals.admit(bytes)?;
        let remote = matches!(incoming.who, Proposer::Remote { .. });
        if !self.handovers.hold(id, incoming, cost) {
            self.proposals.release(cost);
            return Err(Refusal::Transferring);
        }
        self.remote_waiting += u64::from(remote);
        self.stats.handover_proposals_held += 1;
        Ok(())
    }

    /// Proposes what was kept back, here or where the group is led by now.
    pub(super) fn resume(&mut self, slot: SlotId, id: GroupId, incoming: Incoming) {
        let who = incoming.who;
        let leads = |group: &Group<L>| group.replica.status().role == Role::Leader;
        let leads = self.groups.at(slot).is_some_and(leads);
        let elsewhere = !leads && incoming.forwarding == Forwarding::Allowed;
        let proposed = match who {
            Proposer::Local(proposal) if elsewhere => {
                let Incoming {
                    data,
                    context,
                    deadline,
                    forwarding,
                    policy,
                    ..
                } = incoming;
                let proposal = Proposal {
                    id: proposal,
                    data,
                    context,
                    deadline,
                    forwarding,
                    policy,
                };
                self.forward(slot, id, proposal)
            }
            Proposer::Local(_) | Proposer::Remote { .. } => self.propose_here(slot, incoming),
        };
        match proposed {
            Ok(()) => {
                // It was counted anew, among those handed to Raft.
                let counted = u64::from(matches!(who, Proposer::Remote { .. }));
                self.remote_waiting = self.remote_waiting.saturating_sub(counted);
            }
            Err(why) => self.end_proposal(slot, who, Outcome::Refused { why }),
        }
    }

    /// Hands leadership to another voter, as asked for by the embedder: it leads from then on until
    /// its leadership ends, also where another is preferred. Proposals that come meanwhile wait. It
    /// is given up, which the stats count, if the other lacks something for half an election
    /// timeout, or doesn't take over within another whole one.
    ///
    /// # Errors
    /// [`Refusal`] if this replica doesn't lead, `to` doesn't vote, or its node isn't in reach.
    pub fn transfer_leader(
        &mut self,
        now: std::time::Instant,
        group: GroupId,
        to: ReplicaId,
    ) -> Result<(), Refusal> {
        let slot = self.serving(now, group)?;
        let found = self.groups.at_mut(slot).ok_or(Refusal::Stopped)?;
        found.replica.may_transfer(to)?;
        if to == found.replica.id() {
            return Ok(());
        }
        let node = found.node_of(to).ok_or(Refusal::NotAVoter(to))?;
        if !self.peers.get(&node).is_some_and(|peer| peer.up) {
            return Err(Refusal::OutOfReach(to));
        }
        if self
            .handovers
            .of(group)
            .is_some_and(|h| h.to == to && h.stage != Stage::Gone)
        {
            return Ok(());
        }
        found.replica.abort_transfer();
        self.begin_handover(slot, group, to);
        Ok(())
    }

    /// Groups led here that another node is to lead, and hand-overs under way.
    #[must_use]
    pub fn astray_len(&self) -> usize {
        self.astray.len()
    }
}

impl<L: GroupLog> Group<L> {
    /// Whether all that was proposed is committed, applied and answered.
    fn is_finished(&self) -> bool {
        let status = self.replica.status();
        self.waiters.is_empty() && status.commit == status.last && self.replica.is_stored()
    }

    /// How many entries a member lacks, as their leader here knows it.
    fn lag(&self, member: ReplicaId) -> Option<u64> {
        let matched = self.replica.matched(member)?;
        let last = self.replica.status().last;
        Some(last.to_u64().saturating_sub(matched.to_u64()))
    }
}
