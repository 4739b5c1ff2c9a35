//! Proposals made where another node leads: they go to the leader over bulk and come back as a
//! message of its own. Here a proposal is queued, held until a leader is known, sent once more when
//! the first was no longer the leader, and ended; at the leader's end it is proposed and answered.
//!
//! Nobody forwards what was forwarded: a replica that doesn't lead says so. What was proven not to
//! have reached the leader's shard is `Refused`; what may have, and isn't answered, is `Unknown`
//! (safety 23), and a later answer changes nothing.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Forwarding, Group, HostCore, Output, Proposal, SendEnd};
use crate::error::{Outcome, Refusal, UnknownCause};
use crate::id::{Boot, GroupId, NodeId, ReplicaId, SendId, Term};
use crate::limits::{
    FORWARD_ANSWER_BYTES_MAX, FORWARD_ANSWER_LEAD, FORWARD_ATTEMPTS_MAX, FORWARD_RESULT_BYTES_MAX,
    FORWARDS_MAX, REQUEST_ID_BYTES_MAX,
};
use crate::log::api::GroupLog;
use crate::proto::consensus::Role;
use crate::proto::forward::{Forwarded, Stage};
use crate::proto::group_table::SlotId;
use crate::proto::handover::Incoming;
use crate::proto::waiters::{Policy, Proposer};
use crate::proto::wire::{
    BodyWriter, Forward, ForwardAnswer, GroupBody, GroupMessage, Header, Item, forward_answer_len,
    forward_len,
};

/// What waits for a bulk frame beside appends.
pub(super) enum Outgoing {
    /// One of our own, by its token: it may have ended meanwhile.
    Proposal(u64),
    /// What became of a peer's.
    Answer(GroupMessage),
}

/// The bulk queue beside appends, to one peer.
#[derive(Default)]
pub(super) struct ForwardQueue {
    queue: VecDeque<Outgoing>,
    answer_bytes: u64,
}

impl ForwardQueue {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<L: GroupLog> HostCore<L> {
    /// A proposal that isn't for this node's replica to make: it goes to the leader, or waits for
    /// one to be known.
    pub(super) fn forward(
        &mut self,
        slot: SlotId,
        group: GroupId,
        proposal: Proposal,
    ) -> Result<(), Refusal> {
        if proposal.data.is_empty() {
            return Err(Refusal::Empty);
        }
        let got = proposal.context.len();
        if got > REQUEST_ID_BYTES_MAX {
            let most = REQUEST_ID_BYTES_MAX;
            return Err(Refusal::RequestIdTooLong { got, most });
        }
        let waiting = self.forwards.len();
        if waiting >= FORWARDS_MAX {
            let most = FORWARDS_MAX;
            return Err(Refusal::ForwardsFull { waiting, most });
        }
        let cost = self.proposals.admit(proposal.data.len() + got)?;
        let forwarded = Forwarded {
            id: proposal.id,
            group,
            data: proposal.data,
            context: proposal.context,
            deadline: proposal.deadline,
            cost,
            attempts: 0,
            avoid: None,
            last: Refusal::NoLeader,
            policy: proposal.policy,
        };
        self.dispatch(slot, forwarded);
        Ok(())
    }

    /// Queues it for the leader if one is known and in reach, and holds it otherwise.
    fn dispatch(&mut self, slot: SlotId, mut forwarded: Forwarded) {
        let Some(leader) = self.route(slot, forwarded.avoid) else {
            self.stats.forwards_held += 1;
            // A group without a leader gets one within 1.5 election timeouts (H6).
            let until = self.now + self.config.election_timeout() * 3 / 2;
            self.forwards.add(Stage::Held { until }, forwarded);
            return;
        };
        forwarded.attempts += 1;
        let token = self.forwards.add(Stage::Queued { leader }, forwarded);
        if let Some(peer) = self.peers.get_mut(&leader) {
            peer.forwards.queue.push_back(Outgoing::Proposal(token));
        }
        self.tell_bulk(leader);
    }

    /// The leader's node, if it is known, another one, in reach, and not just the one that said it
    /// doesn't lead.
    fn route(&self, slot: SlotId, avoid: Option<(NodeId, Term)>) -> Option<NodeId> {
        let group = self.groups.at(slot)?;
        let status = group.replica.status();
        let node = group.node_of(status.leader?)?;
        let stale = avoid.is_some_and(|(avoid, term)| avoid == node && status.term <= term);
        let up = self.peers.get(&node).is_some_and(|peer| peer.up);
        (node != self.node && up && !stale).then_some(node)
    }

    /// What is held in a group goes on, now that its leader has changed or is in reach.
    pub(super) fn release_held(&mut self, slot: SlotId) {
        let Some(group) = self.groups.at(slot) else {
            return;
        };
        let leads = group.replica.status().role == Role::Leader;
        for token in self.forwards.held_in(group.id) {
            let avoid = match self.forwards.peek(token) {
                Some(forwarded) => forwarded.avoid,
                None => continue,
            };
            if !leads && self.route(slot, avoid).is_none() {
                continue;
            }
            let Some((_, forwarded)) = self.forwards.take(token) else {
                continue;
            };
            if leads {
                self.propose_held(slot, forwarded);
            } else {
                self.dispatch(slot, forwarded);
            }
        }
    }

    /// The replica here has become the leader.
    fn propose_held(&mut self, slot: SlotId, forwarded: Forwarded) {
        let Forwarded {
            id,
            data,
            context,
            deadline,
            cost,
            policy,
            ..
        } = forwarded;
        self.proposals.release(cost);
        let incoming = Incoming {
            who: Proposer::Local(id),
            data,
            context,
            deadline,
            forwarding: Forwarding::Allowed,
            policy,
        };
        if let Err(why) = self.propose_here(slot, incoming) {
            let outcome = Outcome::Refused { why };
            self.outputs.push_back(Output::Proposal { id, outcome });
        }
    }

    /// The groups whose leader lives on a node that is in reach again.
    pub(super) fn release_all_held(&mut self) {
        for group in self.forwards.held_groups() {
            if let Some(slot) = self.groups.slot(group) {
                self.release_held(slot);
            }
        }
    }

    /// The link to a node is lost: what was queued for it is sent back, and of what it took nothing
    /// more is known.
    pub(super) fn forwards_lost_with(&mut self, node: NodeId) {
        for token in self.forwards.lost_with(node) {
            let Some((stage, forwarded)) = self.forwards.take(token) else {
                continue;
            };
            if stage.is_here() {
                self.again(forwarded, Refusal::NotTaken { leader: node });
            } else {
                self.end_forwarded(forwarded, unknown(UnknownCause::LinkLost));
            }
        }
    }

    /// A frame with forwarded proposals has ended. One that may have been taken is awaited as long
    /// as the link stands over which its answer would come.
    pub(super) fn forward_frame_ended(&mut self, node: NodeId, id: SendId, how: SendEnd) {
        let up = self.peers.get(&node).is_some_and(|peer| peer.up);
        let lost = how == SendEnd::Failed;
        let untaken = how == SendEnd::Untaken || lost && transport::mutant!("lost_forward_refused");
        for token in self.forwards.frame_ended(id) {
            if !untaken && up {
                self.forwards.taken(token);
                continue;
            }
            let Some((_, forwarded)) = self.forwards.take(token) else {
                continue;
            };
            if untaken {
                self.again(forwarded, Refusal::NotTaken { leader: node });
            } else {
                self.end_forwarded(forwarded, unknown(UnknownCause::LinkLost));
            }
        }
    }

    /// It is proven without effect where it was sent: once more, if attempts and time are left.
    fn again(&mut self, mut forwarded: Forwarded, why: Refusal) {
        forwarded.last = why;
        let slot = self.groups.slot(forwarded.group);
        match slot {
            Some(slot)
                if forwarded.attempts < FORWARD_ATTEMPTS_MAX && forwarded.deadline > self.now =>
            {
                let leads = self
                    .groups
                    .at(slot)
                    .is_some_and(|group| group.replica.status().role == Role::Leader);
                if leads {
                    self.propose_held(slot, forwarded);
                } else {
                    self.dispatch(slot, forwarded);
                }
            }
            Some(_) | None => self.end_forwarded(forwarded, Outcome::Refused { why }),
        }
    }

    fn end_forwarded(&mut self, forwarded: Forwarded, outcome: Outcome) {
        self.proposals.release(forwarded.cost);
        let id = forwarded.id;
        self.outputs.push_back(Output::Proposal { id, outcome });
    }

    /// Ends those whose time is up.
    pub(super) fn expire_forwards(&mut self) {
        while let Some(token) = self.forwards.expired(self.now) {
            let Some((stage, forwarded)) = self.forwards.take(token) else {
                return;
            };
            let outcome = match stage {
                Stage::Held { .. } => Outcome::Refused {
                    why: forwarded.last,
                },
                Stage::Queued { leader } => Outcome::Refused {
                    why: Refusal::NotTaken { leader },
                },
                Stage::Sent { .. } | Stage::Taken { .. } => unknown(UnknownCause::Deadline),
            };
            self.end_forwarded(forwarded, outcome);
        }
    }

    /// The shard stops, or the group is closed here.
    pub(super) fn stop_forwards(&mut self, group: Option<GroupId>) {
        for token in self.forwards.tokens(group) {
            let Some((stage, forwarded)) = self.forwards.take(token) else {
                continue;
            };
            let outcome = if stage.is_here() {
                let why = Refusal::Stopped;
                Outcome::Refused { why }
            } else {
                unknown(UnknownCause::Stopped)
            };
            self.end_forwarded(forwarded, outcome);
        }
    }

    /// The leader's word on a forwarded proposal.
    pub(super) fn on_forward_answered(
        &mut self,
        node: NodeId,
        header: Header,
        answer: ForwardAnswer,
    ) {
        if answer.boot != self.boot || !self.forwards.awaits(answer.token, node) {
            self.stats.messages_void += 1;
            return;
        }
        let Some((_, mut forwarded)) = self.forwards.take(answer.token) else {
            return;
        };
        if let Outcome::Refused { why } = answer.outcome
            && matches!(why, Refusal::NotLeader { .. } | Refusal::Transferring)
        {
            forwarded.avoid = Some((node, header.term));
            self.again(forwarded, why);
        } else {
            self.end_forwarded(forwarded, answer.outcome);
        }
    }

    /// A peer's proposal for a group that is led here, as it thinks.
    pub(super) fn on_forwarded(&mut self, node: NodeId, header: Header, forward: Forward) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let Forward { boot, token, .. } = forward;
        // One that came twice has its answer, or will have it. None is for another life.
        if boot != peer.boot || !peer.seen.is_new(token) {
            self.stats.messages_void += 1;
            return;
        }
        self.stats.forwards_taken += 1;
        let Header {
            group, from, to, ..
        } = header;
        let proposed = match self.addressed(node, group, from, to) {
            Ok(slot) => self.propose_forwarded(slot, from, forward),
            Err(_) => Err(Refusal::NoSuchGroup(group)),
        };
        if let Err(why) = proposed {
            let term = self.groups.find(group);
            let term = term.map_or(header.term, |group| group.replica.status().term);
            let header = Header {
                group,
                from: to,
                to: from,
                term: term.max(Term::new(1)),
            };
            self.send_forward_answer(node, header, (boot, token), Outcome::Refused { why });
        }
    }

    fn propose_forwarded(
        &mut self,
        slot: SlotId,
        replica: ReplicaId,
        forward: Forward,
    ) -> Result<(), Refusal> {
        let Forward {
            boot,
            token,
            within_ms,
            context,
            data,
            policy,
        } = forward;
        let who = Proposer::Remote {
            replica,
            boot,
            token,
        };
        let mut within = Duration::from_millis(within_ms.into());
        // Only this end can tell that extra acks are what is missing, and has to say so in time.
        if policy != Policy::Quorum {
            within -= (within / 4).min(FORWARD_ANSWER_LEAD);
        }
        let incoming = Incoming {
            who,
            data,
            context,
            deadline: self.now + within,
            forwarding: Forwarding::Never,
            policy,
        };
        self.propose_here(slot, incoming)
    }

    /// Tells whoever proposed it how it ended.
    pub(super) fn end_proposal(&mut self, slot: SlotId, who: Proposer, outcome: Outcome) {
        match who {
            Proposer::Local(id) => self.outputs.push_back(Output::Proposal { id, outcome }),
            Proposer::Remote {
                replica,
                boot,
                token,
            } => {
                self.remote_waiting = self.remote_waiting.saturating_sub(1);
                let Some(group) = self.groups.at(slot) else {
                    return;
                };
                let Some(node) = group.node_of(replica) else {
                    return;
                };
                let header = answer_header(group, replica);
                self.send_forward_answer(node, header, (boot, token), outcome);
            }
        }
    }

    fn send_forward_answer(
        &mut self,
        node: NodeId,
        header: Header,
        (boot, token): (Boot, u64),
        outcome: Outcome,
    ) {
        let too_large = matches!(&outcome, Outcome::Committed { result, .. }
            if result.len() > FORWARD_RESULT_BYTES_MAX);
        let outcome = if too_large {
            unknown(UnknownCause::ResultTooLarge)
        } else {
            outcome
        };
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.up) else {
            return;
        };
        let answer = ForwardAnswer {
            boot,
            token,
            outcome,
        };
        let bytes = forward_answer_len(&answer) as u64;
        if peer.boot != boot || peer.forwards.answer_bytes + bytes > FORWARD_ANSWER_BYTES_MAX {
            self.stats.messages_dropped += 1;
            return;
        }
        peer.forwards.answer_bytes += bytes;
        let body = GroupBody::ForwardAnswer(answer);
        let message = GroupMessage { header, body };
        peer.forwards.queue.push_back(Outgoing::Answer(message));
        self.tell_bulk(node);
    }

    /// Puts what waits beside appends into a frame: whatever fits, but once there is something in
    /// it, no more than `share` bytes. Gives the tokens of our own among it.
    pub(super) fn fill_forwards(
        &mut self,
        node: NodeId,
        writer: &mut BodyWriter,
        share: usize,
    ) -> Vec<u64> {
        let mut tokens = Vec::new();
        let Some(peer) = self.peers.get_mut(&node) else {
            return tokens;
        };
        let mut queue = std::mem::take(&mut peer.forwards);
        let begin = writer.room();
        while let Some(next) = queue.queue.pop_front() {
            let item = match &next {
                Outgoing::Answer(message) => Some(message.clone()),
                Outgoing::Proposal(token) => self.forward_message(*token),
            };
            // One that has ended meanwhile leaves nothing to send.
            let Some(message) = item else { continue };
            let bytes = message_len(&message);
            let used = begin - writer.room();
            if bytes > writer.room() || used > 0 && used + bytes > share {
                queue.queue.push_front(next);
                break;
            }
            writer.try_push(&Item::Group(message));
            match next {
                Outgoing::Proposal(token) => tokens.push(token),
                Outgoing::Answer(_) => {
                    queue.answer_bytes = queue.answer_bytes.saturating_sub(bytes as u64);
                }
            }
        }
        self.stats.forwards_sent += tokens.len() as u64;
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.forwards = queue;
        }
        tokens
    }

    fn forward_message(&self, token: u64) -> Option<GroupMessage> {
        let (leader, forwarded) = self.forwards.queued(token)?;
        let group = self.groups.find(forwarded.group)?;
        let status = group.replica.status();
        let to = group
            .members
            .iter()
            .find(|member| member.node == leader)?
            .replica;
        let left = forwarded.deadline.saturating_duration_since(self.now);
        let forward = Forward {
            boot: self.boot,
            token,
            within_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
            context: forwarded.context.clone(),
            data: forwarded.data.clone(),
            policy: forwarded.policy,
        };
        let header = Header {
            group: forwarded.group,
            from: group.replica.id(),
            to,
            term: status.term.max(Term::new(1)),
        };
        let body = GroupBody::Forward(forward);
        Some(GroupMessage { header, body })
    }

    /// Proposals of this shard that wait for a leader elsewhere, or for one to be known.
    #[must_use]
    pub fn forwards_len(&self) -> usize {
        self.forwards.len()
    }

    /// Proposals of other nodes that wait for their outcome here.
    #[must_use]
    pub fn remote_waiting(&self) -> u64 {
        self.remote_waiting
    }
}

fn answer_header<L: GroupLog>(group: &Group<L>, to: ReplicaId) -> Header {
    Header {
        group: group.id,
        from: group.replica.id(),
        to,
        term: group.replica.status().term.max(Term::new(1)),
    }
}

fn unknown(why: UnknownCause) -> Outcome {
    Outcome::Unknown { why }
}

fn message_len(message: &GroupMessage) -> usize {
    if let GroupBody::Forward(forward) = &message.body {
        forward_len(forward)
    } else if let GroupBody::ForwardAnswer(answer) = &message.body {
        forward_answer_len(answer)
    } else {
        0
    }
}
