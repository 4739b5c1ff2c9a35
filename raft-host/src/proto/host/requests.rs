//! What callers ask: proposals, reads, transfers; and what the log and the state machine report.

use std::time::Instant;

use bytes::Bytes;

use super::{HostCore, Output};
use crate::error::{Outcome, ReadFailure, ReadOutcome, Refusal};
use crate::id::{GroupId, Index, ProposalId, ReadId, StoreSeq};
use crate::limits::{
    COMPACT_ENTRIES_MIN, ENTRY_BYTES_MAX, READS_PER_GROUP_MAX, WAITERS_PER_GROUP_MAX,
};
use crate::log::api::{GroupLog, Mutation};
use crate::proto::consensus::{Role, Turn};
use crate::proto::delayed::Admission;
use crate::proto::group_table::SlotId;
use crate::proto::group_time;
use crate::proto::handover::Incoming;
use crate::proto::reads::Reader;
use crate::proto::waiters::{Expiring, Lacking, Policy, Proposer, Waiter};
use crate::proto::wire::{GroupBody, GroupMessage, Header};

/// A command for one group.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The caller's name for it, unique while it is outstanding.
    pub id: ProposalId,
    /// The command.
    pub data: Bytes,
    /// The proposer's note, kept with the entry.
    pub context: Bytes,
    /// When it ends as `Unknown`.
    pub deadline: Instant,
    /// Whether it may go to a leader elsewhere.
    pub forwarding: Forwarding,
    /// When its reply may leave.
    pub policy: Policy,
}

/// The log's room for entries, on the whole node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRoom {
    /// There is enough.
    Ample,
    /// Groups should forget what they can, however little.
    Low,
    /// The same, and proposals here are refused by this name.
    Spent(Refusal),
}

/// Whether a proposal may go to the leader when that is another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// It goes there, and its outcome comes back.
    #[default]
    Allowed,
    /// It is refused, with the leader's node.
    Never,
}

impl<L: GroupLog> HostCore<L> {
    /// Proposes a command, here or, if it may be forwarded, at the leader elsewhere; one that no
    /// leader is known for is held until one is, for 1.5 election timeouts at most. Accepted, it
    /// ends with exactly one [`Output::Proposal`].
    ///
    /// # Errors
    /// [`Refusal`]: at once, by name, and proven without effect.
    pub fn propose(
        &mut self,
        now: Instant,
        group: GroupId,
        proposal: Proposal,
    ) -> Result<(), Refusal> {
        let slot = self.serving(now, group)?;
        check_size(&proposal.data, &proposal.context)?;
        if proposal.deadline <= self.now {
            return Err(Refusal::Late);
        }
        let found = self.groups.at(slot).ok_or(Refusal::NoSuchGroup(group))?;
        let leads = found.replica.status().role == Role::Leader;
        if !leads && proposal.forwarding == Forwarding::Allowed {
            return self.forward(slot, group, proposal);
        }
        let incoming = Incoming {
            who: Proposer::Local(proposal.id),
            data: proposal.data,
            context: proposal.context,
            deadline: proposal.deadline,
            forwarding: proposal.forwarding,
            policy: proposal.policy,
        };
        self.propose_here(slot, incoming)
    }

    /// Proposes at the replica here, which must lead.
    pub(super) fn propose_here(&mut self, slot: SlotId, incoming: Incoming) -> Result<(), Refusal> {
        let deadline = incoming.deadline;
        if deadline <= self.now {
            return Err(Refusal::Late);
        }
        let got = check_size(&incoming.data, &incoming.context)?;
        let most = self.config.retained_entries_max();
        let found = self.groups.at_mut(slot).ok_or(Refusal::Stopped)?;
        let status = found.replica.status();
        if status.role != Role::Leader {
            let leader = status.leader.and_then(|leader| found.node_of(leader));
            return Err(Refusal::NotLeader { leader });
        }
        if self.handovers.holds(found.id) {
            let id = found.id;
            return self.hold(id, incoming);
        }
        if let Policy::AtLeast(acks) = incoming.policy {
            let (wanted, voters) = (acks.get().into(), found.replica.voters());
            if wanted > voters {
                return Err(Refusal::TooFewVoters { wanted, voters });
            }
        }
        if self.admission != Admission::Open {
            return self.delay(slot, incoming);
        }
        if let LogRoom::Spent(refusal) = self.log_room {
            return Err(refusal);
        }
        let waiting = found.waiters.len();
        if waiting >= WAITERS_PER_GROUP_MAX {
            return Err(Refusal::TooManyWaiting {
                waiting,
                most: WAITERS_PER_GROUP_MAX,
            });
        }
        let retained = status.last.to_u64() - status.compacted.to_u64();
        if retained >= most {
            return Err(Refusal::LogRetained { retained, most });
        }
        let cost = self.proposals.admit(got)?;
        let Incoming {
            who,
            data,
            context,
            policy,
            ..
        } = incoming;
        let time = found.time.stamp(self.wall, self.now);
        let note = group_time::note(time, &context);
        let (index, term) = match found.replica.propose(data, note) {
            Ok(at) => at,
            Err(refusal) => {
                self.proposals.release(cost);
                return Err(refusal);
            }
        };
        found.waiters.push(Waiter {
            index,
            term,
            who,
            cost,
            policy,
        });
        self.remote_waiting += u64::from(matches!(who, Proposer::Remote { .. }));
        let what = Expiring::Proposal { index, who };
        self.deadlines.push(deadline, slot, what);
        self.queue(slot);
        Ok(())
    }

    /// How much room the log has for entries. As it gets low, every group forgets what it can.
    pub fn set_log_room(&mut self, room: LogRoom) {
        let was = std::mem::replace(&mut self.log_room, room);
        if was == LogRoom::Ample && room != LogRoom::Ample && !self.stopped {
            let slots: Vec<_> = self.groups.iter().map(|(_, slot)| slot).collect();
            for slot in slots {
                self.compact(slot);
            }
        }
    }

    /// Asks for a linearizable read: at the leader one round confirms it, elsewhere the leader is
    /// asked. Accepted, it ends with exactly one [`Output::Read`].
    ///
    /// # Errors
    /// [`Refusal`], at once and by name.
    pub fn read_index(
        &mut self,
        now: Instant,
        group: GroupId,
        id: ReadId,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let slot = self.serving(now, group)?;
        if deadline <= self.now {
            return Err(Refusal::Late);
        }
        let token = self.read_token + 1;
        let found = self
            .groups
            .at_mut(slot)
            .ok_or(Refusal::NoSuchGroup(group))?;
        let status = found.replica.status();
        let waiting = found.reads.len();
        if waiting >= READS_PER_GROUP_MAX {
            return Err(Refusal::TooManyWaiting {
                waiting,
                most: READS_PER_GROUP_MAX,
            });
        }
        if status.role == Role::Leader {
            if !found.replica.has_committed_in_term() {
                return Err(Refusal::NotReady { term: status.term });
            }
            found.reads.wait(Reader::Local(id));
            self.read_waits(slot, group);
        } else {
            let leader = status.leader.filter(|leader| *leader != found.replica.id());
            let node = leader.and_then(|leader| found.node_of(leader));
            let (Some(leader), Some(node)) = (leader, node) else {
                return Err(Refusal::NotLeader { leader: None });
            };
            if !self.peers.get(&node).is_some_and(|peer| peer.up) {
                return Err(Refusal::NotLeader { leader: Some(node) });
            }
            self.read_token = token;
            found.reads.forward(token, id);
            let from = found.replica.id();
            let header = Header {
                group,
                from,
                to: leader,
                term: status.term,
            };
            let message = GroupMessage {
                header,
                body: GroupBody::ReadIndex { token },
            };
            self.send_urgent(node, message);
        }
        self.deadlines.push(deadline, slot, Expiring::Read { id });
        Ok(())
    }

    /// A read waits for the next round of this group's leader, here.
    pub(super) fn read_waits(&mut self, slot: SlotId, group: GroupId) {
        self.reading.insert(group);
        let Some(found) = self.groups.at(slot) else {
            return;
        };
        if found.members.len() == 1 {
            // No round to wait for: Raft answers a group of one at once.
            self.begin_reads();
            return;
        }
        let nodes: Vec<_> = found.members.iter().map(|member| member.node).collect();
        for node in nodes {
            self.tell_control(node);
        }
    }

    pub(super) fn serving(&mut self, now: Instant, group: GroupId) -> Result<SlotId, Refusal> {
        self.time(now);
        if self.stopped {
            return Err(Refusal::Stopped);
        }
        self.groups.slot(group).ok_or(Refusal::NoSuchGroup(group))
    }

    /// A write of this group is durable, and all of this group's before it.
    pub fn on_stored(&mut self, now: Instant, group: GroupId, seq: StoreSeq) {
        self.time(now);
        if self.stopped {
            return;
        }
        let Some(slot) = self.groups.slot(group) else {
            return;
        };
        let Some(found) = self.groups.at_mut(slot) else {
            return;
        };
        while found
            .storing
            .front()
            .is_some_and(|(stored, _)| *stored <= seq)
        {
            if let Some((_, bytes)) = found.storing.pop_front() {
                self.store_pending = self.store_pending.saturating_sub(bytes);
            }
        }
        let mut turn = Turn::default();
        found.replica.on_stored(seq, &mut turn);
        self.finish_turn(slot, turn);
        self.queue(slot);
    }

    /// The state machine has applied everything up to `index`; `results` are its answers, by index.
    /// An entry without one is answered with no bytes.
    pub fn on_applied(
        &mut self,
        now: Instant,
        group: GroupId,
        index: Index,
        results: Vec<(Index, Bytes)>,
    ) {
        self.time(now);
        let Some(slot) = self.groups.slot(group) else {
            return;
        };
        let Some(found) = self.groups.at_mut(slot) else {
            return;
        };
        if self.stopped || !found.replica.on_applied(index) {
            return;
        }
        let mut results = results.into_iter().peekable();
        let mut ended = 0_usize;
        self.stats.waiter_passes += u64::from(!found.waiters.is_empty());
        let next = |core: &mut Self| {
            let waiters = &mut core.groups.at_mut(slot)?.waiters;
            core.stats.waiters_looked_at += u64::from(!waiters.is_empty());
            waiters.resolve_next(index)
        };
        while let Some(waiter) = next(self) {
            let mut result = Bytes::new();
            while let Some((_, bytes)) = results.next_if(|(at, _)| *at <= waiter.index) {
                result = bytes;
            }
            if let Policy::AtLeast(acks) = waiter.policy
                && !transport::mutant!("applied_counts_as_acked")
            {
                let lacking = Lacking {
                    waiter,
                    acks,
                    result,
                };
                if let Some(found) = self.groups.at_mut(slot) {
                    found.waiters.lack(lacking);
                }
                continue;
            }
            self.proposals.release(waiter.cost);
            let outcome = Outcome::Committed {
                index: waiter.index,
                result,
            };
            self.end_proposal(slot, waiter.who, outcome);
            ended += 1;
        }
        ended += self.finish_acked(slot);
        ended += self.finish_reads(slot);
        self.forget_deadlines(ended);
        self.queue(slot);
    }

    /// Ends the applied proposals that have got the acks that they lacked, and says how many. It is
    /// judged by the voters in force now (safety 20); what was acked in another term, or by who is
    /// no voter, counts nothing.
    pub(super) fn finish_acked(&mut self, slot: SlotId) -> usize {
        let mut ended = 0;
        while let Some(found) = self.groups.at_mut(slot)
            && found.waiters.any_lacks()
        {
            let replica = &found.replica;
            let acked = found.waiters.acked_next(|index| replica.acked(index));
            let Some(Lacking { waiter, result, .. }) = acked else {
                break;
            };
            self.proposals.release(waiter.cost);
            let index = waiter.index;
            self.end_proposal(slot, waiter.who, Outcome::Committed { index, result });
            ended += 1;
        }
        ended
    }

    /// Ends the reads whose index is applied, and says how many.
    pub(super) fn finish_reads(&mut self, slot: SlotId) -> usize {
        let Some(found) = self.groups.at_mut(slot) else {
            return 0;
        };
        let applied = found.replica.status().applied;
        let mut ended = 0;
        while let Some((index, id)) = found.reads.ready_next(applied) {
            let outcome = ReadOutcome::Ready { index };
            self.outputs.push_back(Output::Read { id, outcome });
            ended += 1;
        }
        ended
    }

    pub(super) fn forget_deadlines(&mut self, ended: usize) {
        let groups = &self.groups;
        for _ in 0..ended {
            self.deadlines.ended(|slot, what| {
                let Some(group) = groups.at(slot) else {
                    return false;
                };
                match what {
                    Expiring::Proposal { index, who } => group.waiters.is_waiting(index, who),
                    Expiring::Read { id } => group.reads.is_live(id),
                }
            });
        }
    }

    /// The state machine has everything up to `index` durably: the log need not keep it for this
    /// node's sake.
    pub fn on_flushed(&mut self, now: Instant, group: GroupId, index: Index) {
        self.time(now);
        let Some(slot) = self.groups.slot(group) else {
            return;
        };
        if let Some(found) = self.groups.at_mut(slot) {
            found.flushed = found.flushed.max(index);
        }
        self.compact(slot);
    }

    /// Compacts what neither this node's state machine nor any member's log needs, and, where logs
    /// are held, what was released.
    pub(super) fn compact(&mut self, slot: SlotId) {
        let low = self.log_room != LogRoom::Ample;
        let all = self
            .groups
            .at(slot)
            .and_then(|group| self.may_forget(group));
        let Some(found) = self.groups.at_mut(slot) else {
            return;
        };
        if let Some(all) = all {
            found.retain_after = found.retain_after.max(all);
        }
        let applied = found.replica.status().applied;
        let in_the_way = found.flushed < found.retain_after.min(applied);
        if low && in_the_way && found.flush_asked < applied {
            found.flush_asked = applied;
            let group = found.id;
            self.outputs.push_back(Output::Flush { group });
        }
        let through = found.retain_after.min(found.flushed);
        let least = if low { 1 } else { COMPACT_ENTRIES_MIN };
        if let Some(change) = found.replica.compact(through, least) {
            let mutation = Mutation {
                group: found.id,
                change,
            };
            self.outputs.push_back(Output::Store {
                seq: None,
                mutation,
            });
        }
    }

    /// Leadership here or there is lost: reads that need it end.
    pub(super) fn fail_reads(&mut self, slot: SlotId) {
        let Some(found) = self.groups.at_mut(slot) else {
            return;
        };
        let (local, remote) = found.reads.fail();
        let (group, from) = (found.id, found.replica.id());
        let term = found.replica.status().term;
        for id in local {
            let outcome = ReadOutcome::Failed {
                why: ReadFailure::NoLeader,
            };
            self.outputs.push_back(Output::Read { id, outcome });
        }
        for (to, token) in remote {
            let header = Header {
                group,
                from,
                to,
                term,
            };
            self.send(
                slot,
                GroupMessage {
                    header,
                    body: GroupBody::ReadIndexAnswer { token, index: None },
                },
            );
        }
        self.reading.remove(&group);
    }
}

/// What a command takes as an entry, its leader's note included, if that is no more than it may.
fn check_size(data: &Bytes, context: &Bytes) -> Result<usize, Refusal> {
    let (got, most) = (
        data.len() + context.len() + group_time::TIME_BYTES,
        ENTRY_BYTES_MAX,
    );
    if got > most {
        return Err(Refusal::TooLarge { got, most });
    }
    Ok(got)
}
