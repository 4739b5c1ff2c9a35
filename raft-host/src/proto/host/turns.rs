//! What a replica wants done, and where it goes: writes, entries to apply, messages by lane, reads
//! that were confirmed, and what follows from a change of role.

use super::{HostCore, Output};
use crate::error::{Outcome, Refusal, UnknownCause};
use crate::id::{GroupId, NodeId, ReplicaId};
use crate::limits::{BULK_QUEUE_BYTES_MAX, URGENT_PER_PEER_MAX};
use crate::log::api::{Change, GroupLog, LogEntry, Mutation};
use crate::proto::consensus::{Role, Turn};
use crate::proto::group_table::SlotId;
use crate::proto::group_time::read_note;
use crate::proto::wire::{APPEND_OVERHEAD_BYTES, GroupBody, GroupMessage, Header, entry_len};

impl<L: GroupLog> HostCore<L> {
    /// Gives every group with work its turn.
    pub(super) fn pump(&mut self) {
        if self.stopped {
            return;
        }
        while let Some(slot) = self.ready.pop() {
            let Some(group) = self.groups.at_mut(slot) else {
                continue;
            };
            let mut turn = Turn::default();
            group.replica.ready(&mut turn);
            self.finish_turn(slot, turn);
            self.note_changes(slot);
        }
    }

    /// Sends the parts of a turn where they go.
    pub(super) fn finish_turn(&mut self, slot: SlotId, turn: Turn) {
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        let id = group.id;
        let follows = group.replica.status().role != Role::Leader;
        for (seq, change) in turn.writes {
            if follows && let Change::Write { entries, .. } = &change {
                for entry in entries {
                    group.time.observe(read_note(&entry.context).0, self.now);
                }
            }
            let bytes = change_bytes(&change);
            self.store_pending += bytes;
            group.storing.push_back((seq, bytes));
            let mutation = Mutation { group: id, change };
            self.outputs.push_back(Output::Store {
                seq: Some(seq),
                mutation,
            });
        }
        if !turn.committed.is_empty() {
            if !group.waiters.is_empty() && !transport::mutant!("deposed_leader_replies") {
                self.end_overwritten(slot, &turn.committed);
            }
            self.outputs.push_back(Output::Apply {
                group: id,
                entries: turn.committed,
            });
        }
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        let from = group.replica.id();
        let term = group.replica.status().term;
        let mut answers = Vec::new();
        for (token, index) in turn.reads {
            for (to, token) in group.reads.confirm(token, index) {
                let header = Header {
                    group: id,
                    from,
                    to,
                    term,
                };
                let body = GroupBody::ReadIndexAnswer {
                    token,
                    index: Some(index),
                };
                answers.push(GroupMessage { header, body });
            }
        }
        if !group.reads.wants_round() {
            self.reading.remove(&id);
        }
        for message in turn.messages.into_iter().chain(answers) {
            self.send(slot, message);
        }
        let ended = self.finish_reads(slot);
        self.forget_deadlines(ended);
    }

    /// Proposals at whose index an entry of another term was committed have no effect.
    fn end_overwritten(&mut self, slot: SlotId, committed: &[LogEntry]) {
        for entry in committed {
            let index = entry.index;
            let group = self.groups.at_mut(slot);
            if let Some(waiter) = group.and_then(|g| g.waiters.overwritten(index, entry.term)) {
                self.proposals.release(waiter.cost);
                let why = Refusal::Overwritten { index };
                self.end_proposal(slot, waiter.who, Outcome::Refused { why });
            }
        }
    }

    /// Queues a message for the node of the replica it is for.
    pub(super) fn send(&mut self, slot: SlotId, message: GroupMessage) {
        let Some(group) = self.groups.at(slot) else {
            return;
        };
        let Some(node) = group.node_of(message.header.to) else {
            self.stats.messages_void += 1;
            return;
        };
        if message.body == (GroupBody::PreVoteAnswer { granted: true }) {
            self.give_way(slot);
        }
        match message.body {
            GroupBody::Append(_) => self.send_append(slot, node, message),
            GroupBody::Ack { .. } | GroupBody::Reject { .. } => {
                #[cfg(feature = "debug-keys")]
                let Some(message) = self.late_acks.delay(self.now, node, message) else {
                    return;
                };
                self.send_ack(node, message);
            }
            GroupBody::PreVote { .. }
            | GroupBody::PreVoteAnswer { .. }
            | GroupBody::Vote { .. }
            | GroupBody::VoteAnswer { .. }
            | GroupBody::TimeoutNow
            | GroupBody::ReadIndex { .. }
            | GroupBody::ReadIndexAnswer { .. } => self.send_urgent(node, message),
            // They have their own queue, and never come from Raft.
            GroupBody::Forward(_) | GroupBody::ForwardAnswer(_) => {}
        }
    }

    fn send_ack(&mut self, node: NodeId, message: GroupMessage) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.up) else {
            return;
        };
        peer.acks.push(message);
        self.tell_control(node);
    }

    /// Sends the acks that were to be late and have been late enough.
    #[cfg(feature = "debug-keys")]
    pub(super) fn send_late_acks(&mut self) {
        while let Some((node, message)) = self.late_acks.pop_due(self.now) {
            self.send_ack(node, message);
        }
    }

    /// How many appends were stepped since the last call, for a shell that is to sleep for each.
    #[cfg(feature = "debug-keys")]
    pub fn take_appends_stepped(&mut self) -> u32 {
        self.late_acks.take_appends()
    }

    pub(super) fn send_urgent(&mut self, node: NodeId, message: GroupMessage) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.up) else {
            return;
        };
        if peer.urgent.len() >= URGENT_PER_PEER_MAX {
            peer.urgent.pop_front();
            self.stats.messages_dropped += 1;
        }
        peer.urgent.push_back(message);
        self.tell_control(node);
    }

    /// An append that can't be queued is as good as lost: Raft is told so, and probes.
    fn send_append(&mut self, slot: SlotId, node: NodeId, message: GroupMessage) {
        let to = message.header.to;
        let bytes = append_bytes(&message);
        let room = |peer: &super::Peer| {
            peer.up && (peer.bulk_bytes + bytes <= BULK_QUEUE_BYTES_MAX || peer.bulk.is_empty())
        };
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| room(peer)) else {
            self.unreachable(slot, to);
            return;
        };
        peer.bulk_bytes += bytes;
        peer.bulk.push_back(message);
        self.tell_bulk(node);
    }

    pub(super) fn tell_bulk(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.up)
            && !std::mem::replace(&mut peer.bulk_told, true)
        {
            self.outputs.push_back(Output::BulkWaits { peer: node });
        }
    }

    pub(super) fn unreachable(&mut self, slot: SlotId, member: ReplicaId) {
        if let Some(group) = self.groups.at_mut(slot) {
            group.replica.on_unreachable(member);
            self.stats.unreachable += 1;
        }
    }

    pub(super) fn tell_control(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.up)
            && !std::mem::replace(&mut peer.control_told, true)
        {
            self.outputs.push_back(Output::ControlWaits { peer: node });
        }
    }

    /// After a turn: a new role, term, leader or commit index, and what follows from it.
    fn note_changes(&mut self, slot: SlotId) {
        let election = self.config.election_timeout();
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        let status = group.replica.status();
        let id = group.id;
        let leads = status.role == Role::Leader;
        if leads && status.commit != group.commit_listed {
            group.commit_listed = status.commit;
            self.touch(slot);
        }
        // Not with the commit index alone: the slowest member also acks while nothing is proposed,
        // and that may be what proposals wait for.
        if leads {
            self.compact(slot);
            let ended = self.finish_acked(slot);
            self.forget_deadlines(ended);
            self.advance_handover(slot);
        }
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        let (role, term, leader) = group.reported;
        if (role, term, leader) == (status.role, status.term, status.leader) {
            return;
        }
        group.reported = (status.role, status.term, status.leader);
        let led = role == Role::Leader;
        // A leader of another term is another leader: it lost the one before it.
        let lost = led && (!leads || term != status.term);
        if leads && !(led && term == status.term) {
            (group.heard_at, group.timeout) = (self.now, election);
            self.stats.elected += 1;
            let due = self.now + election;
            self.due.arm(slot, due);
        }
        if lost && !transport::mutant!("deposed_leader_replies") {
            self.fail_proposals(slot, UnknownCause::LeadershipLost);
        }
        if lost || leader.is_some() && leader != status.leader {
            self.fail_reads(slot);
        }
        if leads || led {
            self.cover(slot, id, leads);
        }
        if led && !leads {
            self.rearm(slot);
        }
        if lost {
            self.displace(slot);
        }
        if leads && (lost || !led) {
            self.place(slot);
        }
        self.finish_handover(slot);
        self.release_held(slot);
        let node = self.leader_node(id);
        let (role, term) = (status.role, status.term);
        self.outputs.push_back(Output::RoleChanged {
            group: id,
            role,
            term,
            leader: node,
        });
    }

    /// Lists the group in the rounds to its members, or takes it off.
    fn cover(&mut self, slot: SlotId, id: GroupId, leads: bool) {
        let Some(group) = self.groups.at(slot) else {
            return;
        };
        for member in &group.members {
            let Some(peer) = self.peers.get_mut(&member.node) else {
                continue;
            };
            if leads {
                peer.rounds_out.lead(id);
            } else {
                peer.rounds_out.unlead(id);
            }
        }
    }

    /// A beat of the group has changed: its members hear of it in the next round.
    pub(super) fn touch(&mut self, slot: SlotId) {
        let Some(group) = self.groups.at(slot) else {
            return;
        };
        for member in &group.members {
            if let Some(peer) = self.peers.get_mut(&member.node) {
                peer.rounds_out.touch(group.id);
            }
        }
    }

    /// Another replica was told that it would be voted for: it is given the time to be elected before
    /// this one campaigns as well, which could only split the votes. It promises nothing more by it.
    fn give_way(&mut self, slot: SlotId) {
        let election = self.config.election_timeout();
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        if group.replica.status().role != Role::Follower {
            return;
        }
        let least = self.now + self.dice.between(election / 20, election / 10);
        let timeout = least.saturating_duration_since(group.heard_at);
        group.timeout = group.timeout.max(timeout);
        self.due.arm(slot, group.heard_at + group.timeout);
    }

    /// The promise was renewed, or the role changed: the election timer starts anew. A longer
    /// deadline needs no new alarm.
    pub(super) fn rearm(&mut self, slot: SlotId) {
        let election = self.config.election_timeout();
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        // A vote that was split or lost is tried again well within an election timeout: pre-votes
        // disturb nobody, and every group must be led within 1.5 of it (H6).
        let timeout = if group.replica.status().role == Role::Candidate {
            self.dice.between(election / 20, election / 5)
        } else {
            self.dice.between(election, election * 13 / 10)
        };
        (group.heard_at, group.timeout) = (self.now, timeout);
        self.due.arm(slot, self.now + timeout);
    }
}

fn change_bytes(change: &Change) -> u64 {
    match change {
        Change::Write { entries, .. } => {
            let entries: usize = entries.iter().map(entry_len).sum();
            entries as u64 + 64
        }
        Change::Compact { .. } | Change::Reset { .. } | Change::Remove => 64,
    }
}

/// Bytes of an append in a body, at most.
pub(super) fn append_bytes(message: &GroupMessage) -> u64 {
    let entries = match &message.body {
        GroupBody::Append(append) => append.entries.iter().map(entry_len).sum(),
        GroupBody::PreVote { .. }
        | GroupBody::PreVoteAnswer { .. }
        | GroupBody::Vote { .. }
        | GroupBody::VoteAnswer { .. }
        | GroupBody::Ack { .. }
        | GroupBody::Reject { .. }
        | GroupBody::TimeoutNow
        | GroupBody::ReadIndex { .. }
        | GroupBody::ReadIndexAnswer { .. }
        | GroupBody::Forward(_)
        | GroupBody::ForwardAnswer(_) => 0,
    };
    (entries + APPEND_OVERHEAD_BYTES) as u64
}
