//! Groups and time: opening and closing, rounds that fall due, elections and the leaders' check of
//! their quorum, what expires, and a driver that came late.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{Group, GroupSpec, HostCore, Member, MemberKind, Output, Peer};
use crate::error::{OpenError, Outcome, ReadFailure, ReadOutcome, UnknownCause};
use crate::id::{GroupId, Index, NodeId, ReplicaId};
use crate::limits::{GROUP_MEMBERS_MAX, GROUPS_PER_SHARD_MAX, NUMBER_MAX};
use crate::log::api::{Change, GroupLog, Mutation};
use crate::proto::consensus::{Opening, Replica, Role, Status};
use crate::proto::group_table::SlotId;
use crate::proto::group_time::GroupTime;
use crate::proto::placement::{Moves, preferred_leader};
use crate::proto::reads::Reads;
use crate::proto::waiters::{Applied, Expiring, Waiters};

impl<L: GroupLog> HostCore<L> {
    /// Opens a group whose log is replayed.
    ///
    /// # Errors
    /// [`OpenError`] if what is on disk or in the list of members can't be right.
    pub fn open_group(&mut self, now: Instant, spec: GroupSpec, log: L) -> Result<(), OpenError> {
        self.time(now);
        check_members(&spec)?;
        if self.groups.len() >= GROUPS_PER_SHARD_MAX {
            return Err(OpenError::TooManyGroups {
                most: GROUPS_PER_SHARD_MAX,
            });
        }
        if self.groups.slot(spec.group).is_some() {
            return Err(OpenError::AlreadyOpen(spec.group));
        }
        let of_kind = |kind| {
            let members = spec
                .members
                .iter()
                .filter(move |member| member.kind == kind);
            members.map(|member| member.replica).collect()
        };
        let opening = Opening {
            group: spec.group,
            replica: spec.replica,
            voters: of_kind(MemberKind::Voter),
            learners: of_kind(MemberKind::Learner),
            applied: spec.applied,
            election_timeout: self.config.election_timeout(),
        };
        let preferred = preferred_leader(spec.group, spec.preferred, opening.voters.clone());
        let replica = Replica::open(log, &opening, &self.logger)?;
        let election = self.config.election_timeout();
        // Nobody leads at a start, as far as this replica knows: the preferred one doesn't wait. If
        // somebody does lead, the others' promise refuses it its pre-votes.
        let timeout = if preferred == Some(spec.replica) {
            self.dice.between(Duration::ZERO, election / 4)
        } else {
            self.dice.between(election, election * 13 / 10)
        };
        let status = replica.status();
        let group = Group {
            id: spec.group,
            replica,
            members: spec.members,
            heard_at: self.now,
            timeout,
            reported: (status.role, status.term, status.leader),
            commit_listed: Index::new(0),
            waiters: Waiters::default(),
            time: GroupTime::default(),
            reads: Reads::default(),
            asked: BTreeMap::new(),
            storing: std::collections::VecDeque::new(),
            retain_after: Index::new(0),
            flushed: Index::new(0),
            flush_asked: Index::new(0),
            released: Index::new(0),
            preferred,
            moves: Moves::new(self.now),
            called_in: None,
        };
        let slot = self.groups.insert(spec.group, group);
        let slot = slot.ok_or(OpenError::TooManyGroups {
            most: GROUPS_PER_SHARD_MAX,
        })?;
        self.due.arm(slot, self.now + timeout);
        self.queue(slot);
        Ok(())
    }

    /// Closes a group; with [`Disposal::Destroy`] its log goes too. What waited ends.
    pub fn close_group(&mut self, now: Instant, id: GroupId, disposal: Disposal) -> bool {
        self.time(now);
        let Some(slot) = self.groups.slot(id) else {
            return false;
        };
        self.fail_waiting(slot, UnknownCause::Stopped, ReadFailure::Stopped);
        self.stop_forwards(Some(id));
        self.stop_delayed(Some(id));
        self.stop_handovers(Some(id));
        self.displace(slot);
        self.groups.remove(id);
        self.reading.remove(&id);
        for peer in self.peers.values_mut() {
            peer.rounds_out.unlead(id);
            peer.rounds_in.forget(id);
        }
        if disposal == Disposal::Destroy {
            let mutation = Mutation {
                group: id,
                change: Change::Remove,
            };
            self.outputs.push_back(Output::Store {
                seq: None,
                mutation,
            });
        }
        true
    }

    /// Where a group's replica stands.
    #[must_use]
    pub fn status(&self, group: GroupId) -> Option<Status> {
        self.groups.find(group).map(|group| group.replica.status())
    }

    /// The leader's node, as this replica knows it.
    #[must_use]
    pub fn leader_node(&self, group: GroupId) -> Option<NodeId> {
        let group = self.groups.find(group)?;
        group.node_of(group.replica.status().leader?)
    }

    /// What a member has acked in this term, if this replica leads.
    #[must_use]
    pub fn matched(&self, group: GroupId, member: ReplicaId) -> Option<Index> {
        self.groups.find(group)?.replica.matched(member)
    }

    /// All groups of the shard, by id.
    pub fn group_ids(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().map(|(id, _)| id)
    }

    /// Time has passed. Late or early is no harm: what counts is measured, not counted.
    pub fn on_tick(&mut self, now: Instant) {
        self.time(now);
        if self.stopped {
            return;
        }
        let interval = self.config.heartbeat_interval();
        if now.saturating_duration_since(self.last_tick) > interval * 3 {
            // The driver was held up: what came meanwhile is still to be read. Deadlines of
            // elections wait for it; they are only ever put off by this (safety 5c).
            self.grace_until = now + interval;
            self.stats.stalls += 1;
        }
        self.last_tick = self.now;
        #[cfg(feature = "debug-keys")]
        self.send_late_acks();
        if now >= self.next_round {
            self.next_round = (self.next_round + interval).max(now + interval / 2);
            self.rounds_fall_due();
        }
        while let Some(slot) = self.due.pop(now) {
            self.on_due(slot);
        }
        self.begin_campaigns();
        while let Some((slot, what)) = self.deadlines.pop(now) {
            self.on_expired(slot, what);
        }
        self.expire_forwards();
        self.expire_delayed();
        self.expire_handovers();
        self.look_for_handovers();
    }

    fn rounds_fall_due(&mut self) {
        for (node, peer) in &mut self.peers {
            if peer.up && peer.rounds_out.has_to_say() {
                peer.round_due = true;
                if !std::mem::replace(&mut peer.control_told, true) {
                    self.outputs.push_back(Output::ControlWaits { peer: *node });
                }
            }
        }
    }

    fn on_due(&mut self, slot: SlotId) {
        let (now, grace, met) = (self.now, self.grace_until, self.met_at);
        let may_campaign = self.started + self.config.restart_silence();
        let election = self.config.election_timeout();
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        let deadline = group.deadline(met).max(grace);
        if now < deadline {
            return self.due.arm(slot, deadline);
        }
        if group.replica.status().role == Role::Leader {
            group.replica.check_quorum();
            (group.heard_at, group.timeout) = (now, election);
            self.due.arm(slot, now + election);
            return self.queue(slot);
        }
        if now < may_campaign {
            return self.due.arm(slot, may_campaign);
        }
        // Whoever can't campaign looks again.
        if !group.replica.is_voter() {
            return self.due.arm(slot, now + election);
        }
        self.campaigns.wait(slot);
    }

    /// Begins what the rate admits of the campaigns that wait. A group that has heard of a leader or
    /// another candidate meanwhile waits for its alarm again.
    fn begin_campaigns(&mut self) {
        let (now, grace, met) = (self.now, self.grace_until, self.met_at);
        let soon = now + self.config.election_timeout() / 20;
        while let Some(slot) = self.campaigns.next(now) {
            let Some(group) = self.groups.at_mut(slot) else {
                continue;
            };
            let deadline = group.deadline(met).max(grace);
            if now < deadline || group.replica.status().role == Role::Leader {
                self.due.arm(slot, deadline);
                continue;
            }
            // The first leader is to be the preferred one, whose campaign would be wasted as long as
            // too few are there to vote.
            if group.is_new() && !reaches_quorum(self.node, &self.peers, &group.members) {
                self.due.arm(slot, soon);
                continue;
            }
            // One whose writes are on their way looks again soon.
            if group.replica.has_ready() || !group.replica.is_stored() {
                self.queue(slot);
                self.due.arm(slot, soon);
                continue;
            }
            group.replica.campaign();
            self.campaigns.began(now);
            self.stats.campaigns += 1;
            self.rearm(slot);
            self.queue(slot);
        }
        let waiting = self.campaigns.waiting() as u64;
        let more = waiting.saturating_sub(self.campaigns_waiting);
        self.stats.campaigns_delayed += more;
        self.campaigns_waiting = waiting;
    }

    fn on_expired(&mut self, slot: SlotId, what: Expiring) {
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        match what {
            Expiring::Proposal { index, who } => {
                if let Some((waiter, applied)) = group.waiters.expire(index, who) {
                    self.proposals.release(waiter.cost);
                    let why = UnknownCause::Deadline;
                    let outcome = match applied {
                        Applied::Yes => Outcome::NotDurable { index },
                        Applied::NotYet => Outcome::Unknown { why },
                    };
                    self.end_proposal(slot, who, outcome);
                }
            }
            Expiring::Read { id } => {
                if group.reads.expire(id) {
                    let outcome = ReadOutcome::Failed {
                        why: ReadFailure::Deadline,
                    };
                    self.outputs.push_back(Output::Read { id, outcome });
                }
            }
        }
    }

    /// The log has failed or the node stops: everything that waits ends, nothing begins any more,
    /// and Raft is never called again (stack.md 2, pitfall 8).
    pub fn stop(&mut self) {
        self.stopped = true;
        self.stop_forwards(None);
        self.stop_delayed(None);
        self.stop_handovers(None);
        let slots: Vec<_> = self.groups.iter().map(|(_, slot)| slot).collect();
        for slot in slots {
            self.fail_waiting(slot, UnknownCause::Stopped, ReadFailure::Stopped);
        }
    }

    /// Ends every proposal and read of a group.
    pub(super) fn fail_waiting(&mut self, slot: SlotId, why: UnknownCause, read: ReadFailure) {
        self.fail_proposals(slot, why);
        let Some(group) = self.groups.at_mut(slot) else {
            return;
        };
        for id in group.reads.fail_all() {
            let outcome = ReadOutcome::Failed { why: read };
            self.outputs.push_back(Output::Read { id, outcome });
        }
    }

    pub(super) fn fail_proposals(&mut self, slot: SlotId, why: UnknownCause) {
        let next = |core: &mut Self| core.groups.at_mut(slot)?.waiters.fail_next();
        while let Some(waiter) = next(self) {
            self.proposals.release(waiter.cost);
            let (index, result) = (waiter.index, bytes::Bytes::new());
            let outcome = if transport::mutant!("unknown_as_success") {
                Outcome::Committed { index, result }
            } else {
                Outcome::Unknown { why }
            };
            self.end_proposal(slot, waiter.who, outcome);
        }
    }
}

/// Whether a closed group's log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposal {
    /// The node stops, or the group moves to another shard.
    Keep,
    /// The group leaves this node for good.
    Destroy,
}

fn check_members(spec: &GroupSpec) -> Result<(), OpenError> {
    let bad = Err(OpenError::BadMembers(spec.group));
    let replicas: BTreeSet<_> = spec.members.iter().map(|member| member.replica).collect();
    let nodes: BTreeSet<_> = spec.members.iter().map(|member| member.node).collect();
    let distinct = replicas.len() == spec.members.len() && nodes.len() == spec.members.len();
    let in_range = |id: &ReplicaId| id.to_u64() != 0 && id.to_u64() < NUMBER_MAX;
    let voters = spec
        .members
        .iter()
        .filter(|member| member.kind == MemberKind::Voter)
        .count();
    if !distinct || !replicas.iter().all(in_range) || spec.group.to_u64() >= NUMBER_MAX {
        return bad;
    }
    if voters == 0 || spec.members.len() > GROUP_MEMBERS_MAX || !replicas.contains(&spec.replica) {
        return bad;
    }
    Ok(())
}

/// Whether a majority of the voters is here or behind a link that is up.
fn reaches_quorum(node: NodeId, peers: &BTreeMap<NodeId, Peer>, members: &[Member]) -> bool {
    let voters = || {
        members
            .iter()
            .filter(|member| member.kind == MemberKind::Voter)
    };
    let reached = voters()
        .filter(|voter| voter.node == node || peers.get(&voter.node).is_some_and(|peer| peer.up));
    reached.count() * 2 > voters().count()
}
