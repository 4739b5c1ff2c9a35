//! Frames, each way: what comes in is decoded whole, then stepped; what goes out is made when the
//! transport has room for it, so that it is never older than the frame.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Bytes;

use super::turns::append_bytes;
use super::{HostCore, Lane, OutFrame, SendEnd, Taken};
use crate::error::PeerMisbehaved;
use crate::id::{Boot, GroupId, Index, NodeId, ReplicaId, Round, SendId, Term};
use crate::limits::{
    ANSWERS_PER_PEER_MAX, APPEND_ENTRIES_MAX, BODY_BYTES_MIN, BULK_BODY_BYTES_MAX,
    READS_PER_GROUP_MAX, STORE_PENDING_BYTES_MAX,
};
use crate::log::api::GroupLog;
use crate::proto::consensus::{BeatRefusal, Heard, Role};
use crate::proto::group_table::SlotId;
use crate::proto::reads::Reader;
use crate::proto::round::{Asked, Settled};
use crate::proto::wire::{
    APPEND_OVERHEAD_BYTES, Append, Beat, Beats, BodyWriter, DissentReason, GroupBody, GroupMessage,
    Header, Item, RoundAnswer, beat_len, decode, entry_len,
};

impl<L: GroupLog> HostCore<L> {
    /// The link to a peer is up, to this life of it. All that was agreed with it before is void.
    pub fn on_peer_returned(&mut self, now: Instant, node: NodeId, boot: Boot) {
        self.time(now);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.rounds_out.reset();
        peer.rounds_in.reset();
        peer.standing.returned(now);
        if peer.boot != boot {
            peer.seen.reset();
        }
        (peer.up, peer.boot) = (true, boot);
        self.met_at = now;
        // What this node leads there is stated at once.
        peer.round_due = peer.rounds_out.has_to_say();
        if peer.round_due {
            self.tell_control(node);
        }
        self.release_all_held();
    }

    /// The link to a peer is lost. What was queued for it is gone; each group that sends it appends
    /// is told once. Nobody's promise gets shorter by it (H6).
    pub fn on_peer_lost(&mut self, now: Instant, node: NodeId) {
        self.time(now);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.up = false;
        peer.standing.lost(now);
        (peer.control_told, peer.bulk_told, peer.round_due) = (false, false, false);
        peer.rounds_out.reset();
        peer.rounds_in.reset();
        peer.answers.clear();
        peer.urgent.clear();
        peer.acks.clear();
        peer.bulk.clear();
        peer.bulk_bytes = 0;
        peer.forwards.clear();
        peer.control_sent.clear();
        peer.bulk_sent.clear();
        let led: Vec<_> = peer.rounds_out.led().collect();
        self.forwards_lost_with(node);
        self.handovers_lost_with(node);
        for id in led {
            let Some(slot) = self.groups.slot(id) else {
                continue;
            };
            let member = self.groups.at(slot).and_then(|group| {
                group
                    .members
                    .iter()
                    .find(|member| member.node == node)
                    .map(|m| m.replica)
            });
            if let Some(member) = member {
                self.unreachable(slot, member);
            }
        }
    }

    /// A frame has ended (safety 24). Of appends that may be lost, each group is told once; a round
    /// in a frame that ended without a reply has no answer to come.
    pub fn on_send_ended(&mut self, now: Instant, node: NodeId, id: SendId, how: SendEnd) {
        self.time(now);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if let Some(round) = peer.control_sent.remove(&id) {
            if how != SendEnd::Replied
                && let Some(round) = round
            {
                peer.rounds_out.on_lost(round);
            }
            return;
        }
        let appends = peer.bulk_sent.remove(&id).unwrap_or_default();
        self.forward_frame_ended(node, id, how);
        if how == SendEnd::Replied {
            return;
        }
        for (group, member) in appends {
            if let Some(slot) = self.groups.slot(group) {
                self.unreachable(slot, member);
            }
        }
    }

    /// A frame of a peer's shard to this one. It is taken whole or, on the bulk lane, refused.
    pub fn on_frame(&mut self, now: Instant, node: NodeId, lane: Lane, body: Bytes) -> Taken {
        self.time(now);
        if self.stopped || !self.peers.get(&node).is_some_and(|peer| peer.up) {
            return Taken::Busy;
        }
        if lane == Lane::Bulk && self.store_pending > STORE_PENDING_BYTES_MAX {
            return Taken::Busy;
        }
        match self.take_body(node, lane, body) {
            Err(misbehaved) => Taken::Bad(misbehaved),
            Ok(answers) => {
                if answers.is_empty() {
                    return Taken::Yes { answer: None };
                }
                let mut writer = BodyWriter::new(self.shard, usize::MAX);
                for answer in answers {
                    writer.try_push(&Item::Answer(answer));
                }
                Taken::Yes {
                    answer: Some(writer.finish()),
                }
            }
        }
    }

    /// An answer that came in a frame's reply.
    ///
    /// # Errors
    /// [`PeerMisbehaved`] if it is none.
    pub fn on_round_answer(
        &mut self,
        now: Instant,
        node: NodeId,
        body: Bytes,
    ) -> Result<(), PeerMisbehaved> {
        self.time(now);
        if self.stopped {
            return Ok(());
        }
        self.take_body(node, Lane::Control, body).map(|_| ())
    }

    /// An answer that could not ride in its frame's reply goes with the next control frame.
    pub fn answer_later(&mut self, node: NodeId, answer: Bytes) {
        let Ok((_, items)) = decode(answer) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.up) else {
            return;
        };
        for item in items {
            if let Item::Answer(answer) = item {
                if peer.answers.len() >= ANSWERS_PER_PEER_MAX {
                    peer.answers.pop_front();
                    self.stats.messages_dropped += 1;
                }
                peer.answers.push_back(answer);
            }
        }
        self.tell_control(node);
    }

    fn take_body(
        &mut self,
        node: NodeId,
        lane: Lane,
        body: Bytes,
    ) -> Result<Vec<RoundAnswer>, PeerMisbehaved> {
        let (shard, items) = decode(body)?;
        if shard != self.shard {
            return Err(PeerMisbehaved::WrongShard {
                expected: self.shard,
                got: shard,
            });
        }
        let mut answers = Vec::new();
        for item in items {
            let bulk = matches!(&item, Item::Group(message) if message.body.is_bulk());
            if bulk != (lane == Lane::Bulk) {
                return Err(PeerMisbehaved::WrongLane);
            }
            match item {
                Item::Group(message) => self.on_message(node, message)?,
                Item::Beats(beats) => {
                    self.check_boot(node, beats.from_boot)?;
                    answers.push(self.on_beats(node, &beats));
                }
                Item::Answer(answer) => {
                    self.check_boot(node, answer.from_boot)?;
                    self.on_answer(node, &answer);
                }
            }
        }
        Ok(answers)
    }

    fn check_boot(&self, node: NodeId, got: Boot) -> Result<(), PeerMisbehaved> {
        let expected = self.peers.get(&node).map_or(got, |peer| peer.boot);
        if expected == got {
            Ok(())
        } else {
            Err(PeerMisbehaved::WrongBoot { expected, got })
        }
    }

    /// The group a message is for, if the replicas named stand here and there (safety 7).
    pub(super) fn addressed(
        &self,
        node: NodeId,
        group: GroupId,
        from: ReplicaId,
        to: ReplicaId,
    ) -> Result<SlotId, DissentReason> {
        let slot = self.groups.slot(group).ok_or(DissentReason::Unknown)?;
        let found = self.groups.at(slot).ok_or(DissentReason::Unknown)?;
        if found.replica.id() != to || found.node_of(from) != Some(node) {
            return Err(DissentReason::WrongReplica);
        }
        Ok(slot)
    }

    fn on_message(
        &mut self,
        node: NodeId,
        mut message: GroupMessage,
    ) -> Result<(), PeerMisbehaved> {
        if let GroupBody::Forward(forward) = &message.body {
            self.on_forwarded(node, message.header, forward.clone());
            return Ok(());
        }
        let Header {
            group, from, to, ..
        } = message.header;
        let Ok(slot) = self.addressed(node, group, from, to) else {
            self.stats.messages_void += 1;
            return Ok(());
        };
        match &message.body {
            GroupBody::ForwardAnswer(answer) => {
                self.on_forward_answered(node, message.header, answer.clone());
                return Ok(());
            }
            GroupBody::ReadIndex { token } => {
                self.on_read_asked(slot, message.header, *token);
                return Ok(());
            }
            GroupBody::ReadIndexAnswer { token, index } => {
                self.on_read_answered(slot, *token, *index);
                return Ok(());
            }
            GroupBody::PreVote { .. } | GroupBody::Vote { .. } | GroupBody::TimeoutNow => {
                // A promise made before the restart may still run (safety 5).
                let silent = self.now < self.started + self.config.restart_silence();
                if silent && !transport::mutant!("vote_right_after_restart") {
                    return Ok(());
                }
            }
            GroupBody::PreVoteAnswer { .. }
            | GroupBody::VoteAnswer { .. }
            | GroupBody::Append(_)
            | GroupBody::Ack { .. }
            | GroupBody::Reject { .. }
            | GroupBody::Forward(_) => {}
        }
        let Some(found) = self.groups.at_mut(slot) else {
            return Ok(());
        };
        if message.body == GroupBody::TimeoutNow {
            // Whoever is called to lead campaigns in the next term, without a pre-vote.
            let Header { term, .. } = message.header;
            if term >= found.replica.status().term {
                found.called_in = Some(term.next());
            }
        }
        #[cfg(feature = "debug-keys")]
        if matches!(message.body, GroupBody::Append(_)) {
            self.late_acks.on_append();
        }
        let elapsed = self.now.saturating_duration_since(found.heard_at);
        let acked = matches!(message.body, GroupBody::Ack { .. });
        if transport::mutant!("stale_ack_counted") && acked {
            let term = found.replica.status().term;
            message.header.term = message.header.term.max(term);
        }
        let heard = found.replica.step(message, elapsed)?;
        let leads = found.replica.status().role == Role::Leader;
        if acked
            && leads
            && let Some(peer) = self.peers.get_mut(&node)
        {
            // Its beat may now say a higher commit index.
            peer.rounds_out.touch(group);
        }
        if heard == Heard::Renewed && !leads {
            self.rearm(slot);
        }
        self.queue(slot);
        Ok(())
    }

    fn on_read_asked(&mut self, slot: SlotId, header: Header, token: u64) {
        let Some(found) = self.groups.at_mut(slot) else {
            return;
        };
        let full = found.reads.len() >= READS_PER_GROUP_MAX;
        if !full && found.replica.has_committed_in_term() {
            found.reads.wait(Reader::Remote {
                replica: header.from,
                token,
            });
            return self.read_waits(slot, header.group);
        }
        let term = found.replica.status().term.max(Term::new(1));
        let header = Header {
            from: header.to,
            to: header.from,
            term,
            ..header
        };
        let body = GroupBody::ReadIndexAnswer { token, index: None };
        self.send(slot, GroupMessage { header, body });
    }

    fn on_read_answered(&mut self, slot: SlotId, token: u64, index: Option<Index>) {
        let Some(found) = self.groups.at_mut(slot) else {
            return;
        };
        if let Some(id) = found.reads.answered(token, index) {
            let why = crate::error::ReadFailure::NoLeader;
            let outcome = crate::error::ReadOutcome::Failed { why };
            self.outputs.push_back(super::Output::Read { id, outcome });
            self.forget_deadlines(1);
        }
        let ended = self.finish_reads(slot);
        self.forget_deadlines(ended);
    }

    fn on_beats(&mut self, node: NodeId, beats: &Beats) -> RoundAnswer {
        // Taken out for the call: stepping needs the rest of the shard.
        let mut rounds = self
            .peers
            .get_mut(&node)
            .map(|peer| std::mem::take(&mut peer.rounds_in))
            .unwrap_or_default();
        let answer = rounds.on_beats(self.boot, beats, |asked| self.step_beat(node, asked));
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.rounds_in = rounds;
        }
        answer
    }

    fn step_beat(&mut self, node: NodeId, asked: Asked) -> Result<(), DissentReason> {
        let (group, from, to, term) = match asked {
            Asked::Listed(beat) => (beat.group, beat.from, beat.to, beat.term),
            Asked::Covered {
                group,
                from,
                to,
                term,
            } => (group, from, to, term),
        };
        let slot = self.addressed(node, group, from, to)?;
        let now = self.now;
        let found = self.groups.at_mut(slot).ok_or(DissentReason::Unknown)?;
        let Asked::Listed(beat) = asked else {
            if !found.replica.is_following(from, term) {
                return Err(DissentReason::NotFollowing);
            }
            found.heard_at = now;
            return Ok(());
        };
        let elapsed = now.saturating_duration_since(found.heard_at);
        let stepped = found.replica.on_beat(from, term, beat.commit, elapsed);
        if found.replica.is_following(from, term) {
            found.retain_after = found.retain_after.max(beat.retain_after);
            let fresh = found.reported.2 != Some(from) || found.reported.1 != term;
            found.heard_at = now;
            if fresh {
                self.rearm(slot);
            }
            self.queue(slot);
            self.compact(slot);
        }
        stepped.map_err(|refusal| match refusal {
            BeatRefusal::HigherTerm(term) => DissentReason::HigherTerm(term),
            BeatRefusal::NotFollowing => DissentReason::NotFollowing,
            BeatRefusal::Behind => DissentReason::Behind,
            BeatRefusal::NotYet => DissentReason::NotYet,
        })
    }

    fn on_answer(&mut self, node: NodeId, answer: &RoundAnswer) {
        let boot = self.boot;
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if answer.to_boot != boot {
            return;
        }
        let Some(settled) = peer.rounds_out.on_answer(answer) else {
            return;
        };
        if let Some(stamp) = settled.stamp {
            peer.standing.answered(stamp);
        }
        if settled.restate {
            self.stats.restated += 1;
            peer.round_due = true;
            self.tell_control(node);
        }
        self.settle(settled);
    }

    fn settle(&mut self, settled: Settled) {
        for consent in settled.consents {
            let Some(slot) = self.groups.slot(consent.group) else {
                continue;
            };
            let Some(found) = self.groups.at_mut(slot) else {
                continue;
            };
            found
                .replica
                .on_consent(consent.follower, consent.term, consent.token);
            if found.replica.has_ready() {
                self.queue(slot);
            }
        }
        for (group, member, reason) in settled.dissents {
            self.stats.dissents += 1;
            let Some(slot) = self.groups.slot(group) else {
                continue;
            };
            let Some(found) = self.groups.at_mut(slot) else {
                continue;
            };
            match reason {
                DissentReason::HigherTerm(term) => found.replica.on_higher_term(member, term),
                DissentReason::Behind => found.replica.on_unreachable(member),
                // The next round or append tells it what it lacks; consent it is not.
                DissentReason::Unknown
                | DissentReason::WrongReplica
                | DissentReason::NotFollowing
                | DissentReason::NotYet => {}
            }
            self.queue(slot);
        }
    }

    /// Reads that wait are asked about from here on: the round that lists them is stamped after.
    pub(super) fn begin_reads(&mut self) {
        let reading: Vec<_> = self.reading.iter().copied().collect();
        for group in reading {
            let Some(slot) = self.groups.slot(group) else {
                continue;
            };
            let Some(found) = self.groups.at_mut(slot) else {
                continue;
            };
            if !found.reads.wants_token() {
                continue;
            }
            self.read_token += 1;
            if found.replica.read(self.read_token).is_err() {
                self.fail_reads(slot);
                continue;
            }
            found.reads.ask(self.read_token);
            self.queue(slot);
        }
    }

    /// A control frame for this peer, of at most so many bytes, or `None` if there is nothing to
    /// say. Votes first, then beats, then answers and acks. Call until `None` while there are slots.
    pub fn fill_control(
        &mut self,
        now: Instant,
        node: NodeId,
        bytes_max: usize,
    ) -> Option<OutFrame> {
        self.time(now);
        if self.stopped || bytes_max < BODY_BYTES_MIN {
            return None;
        }
        self.pump();
        self.begin_reads();
        let mut writer = BodyWriter::new(self.shard, bytes_max);
        let peer = self.peers.get_mut(&node).filter(|peer| peer.up)?;
        peer.control_told = false;
        while let Some(message) = peer.urgent.pop_front() {
            let item = Item::Group(message);
            if !writer.try_push(&item) {
                if let Item::Group(message) = item {
                    peer.urgent.push_front(message);
                }
                break;
            }
        }
        let round = self.push_beats(node, &mut writer);
        let peer = self.peers.get_mut(&node)?;
        while let Some(answer) = peer.answers.pop_front() {
            let item = Item::Answer(answer);
            if !writer.try_push(&item) {
                if let Item::Answer(answer) = item
                    && !writer.is_empty()
                {
                    peer.answers.push_front(answer);
                }
                break;
            }
        }
        while let Some(message) = peer.acks.peek() {
            if !writer.try_push(&Item::Group(message.clone())) {
                break;
            }
            peer.acks.pop();
        }
        self.stats.acks_merged += std::mem::take(&mut peer.acks.merged);
        self.stats.messages_dropped += std::mem::take(&mut peer.acks.dropped);
        if writer.is_empty() {
            return None;
        }
        self.next_send = self.next_send.next();
        peer.control_sent.insert(self.next_send, round);
        Some(OutFrame {
            id: self.next_send,
            body: writer.finish(),
        })
    }

    /// One part of one round, if one is due or under way, or reads wait.
    fn push_beats(&mut self, node: NodeId, writer: &mut BodyWriter) -> Option<Round> {
        // Taken out for the call: beats are made from the groups.
        let (mut rounds, due, to_boot) = {
            let peer = self.peers.get_mut(&node)?;
            (
                std::mem::take(&mut peer.rounds_out),
                peer.round_due,
                peer.boot,
            )
        };
        if !rounds.has_part() {
            let beat = |group| self.beat(node, group);
            if due {
                rounds.begin(self.now, &self.reading, beat);
                self.stats.rounds += 1;
            } else if self.reads_to_ask(node) {
                rounds.begin_partial(self.now, &self.reading, beat);
                self.stats.read_rounds += 1;
            }
        }
        let mut sent = None;
        // Answers and acks find room in the same frame: a part leaves some.
        if let Some(beats) = rounds.next_part(self.boot, to_boot, writer.room()) {
            sent = Some(beats.round);
            self.stats.beat_frames += 1;
            self.stats.beats_listed += beats.beats.len() as u64;
            self.stats.beat_group_bytes += group_bytes(&beats);
            let asked: BTreeSet<_> = beats.beats.iter().map(|beat| beat.group).collect();
            let room = writer.room();
            writer.try_push(&Item::Beats(beats));
            self.stats.beat_bytes += (room - writer.room()) as u64;
            self.mark_asked(node, &asked);
        }
        let peer = self.peers.get_mut(&node)?;
        peer.round_due = due && sent.is_none();
        peer.rounds_out = rounds;
        let more = peer.rounds_out.has_part();
        if more {
            self.tell_control(node);
        }
        sent
    }

    fn reads_to_ask(&self, node: NodeId) -> bool {
        self.reading.iter().any(|id| {
            self.groups.find(*id).is_some_and(|group| {
                let here = group.members.iter().any(|member| member.node == node);
                here && group.reads.token() > group.asked_at(node)
            })
        })
    }

    fn mark_asked(&mut self, node: NodeId, groups: &BTreeSet<GroupId>) {
        for id in groups.intersection(&self.reading.clone()) {
            if let Some(group) = self.groups.find_mut(*id) {
                let token = group.reads.token();
                group.set_asked(node, token);
            }
        }
    }

    /// A group's beat to its member on that node, and the newest read token asked.
    fn beat(&self, node: NodeId, id: GroupId) -> Option<(Beat, Option<u64>)> {
        let group = self.groups.find(id)?;
        let status = group.replica.status();
        let member = group.members.iter().find(|member| member.node == node)?;
        if status.role != Role::Leader || member.replica == group.replica.id() {
            return None;
        }
        // Never beyond what the follower has acked (H4, safety 7).
        let mut commit = status.commit.min(group.replica.matched(member.replica)?);
        if transport::mutant!("beat_commit_beyond_match") {
            commit = status.commit;
        }
        let retain_after = self.may_forget(group).unwrap_or_default().min(commit);
        let (from, to, term) = (group.replica.id(), member.replica, status.term);
        Some((
            Beat {
                group: id,
                from,
                to,
                term,
                commit,
                retain_after,
            },
            group.reads.token(),
        ))
    }

    /// A bulk frame for this peer, of at most so many bytes, or `None` if there is nothing to send
    /// or it doesn't fit. Appends leave in the order in which Raft made them; a long one is cut.
    pub fn fill_bulk(&mut self, now: Instant, node: NodeId, bytes_max: usize) -> Option<OutFrame> {
        self.time(now);
        if self.stopped || bytes_max < BODY_BYTES_MIN {
            return None;
        }
        self.pump();
        let mut writer = BodyWriter::new(self.shard, bytes_max.min(BULK_BODY_BYTES_MAX));
        let peer = self.peers.get_mut(&node).filter(|peer| peer.up)?;
        peer.bulk_told = false;
        // Callers wait for these: they go first, but leave half of the frame to appends.
        let share = writer.room() / 2;
        let mut tokens = self.fill_forwards(node, &mut writer, share);
        let peer = self.peers.get_mut(&node)?;
        let mut sent = BTreeSet::new();
        while let Some(message) = peer.bulk.pop_front() {
            peer.bulk_bytes = peer.bulk_bytes.saturating_sub(append_bytes(&message));
            let (now_sent, rest) = cut(message, writer.room());
            if let Some(message) = now_sent {
                sent.insert((message.header.group, message.header.to));
                writer.try_push(&Item::Group(message));
            }
            if let Some(rest) = rest {
                peer.bulk_bytes += append_bytes(&rest);
                peer.bulk.push_front(rest);
                break;
            }
        }
        let room = writer.room();
        tokens.extend(self.fill_forwards(node, &mut writer, room));
        if writer.is_empty() {
            return None;
        }
        self.next_send = self.next_send.next();
        self.forwards.sent(self.next_send, tokens);
        let peer = self.peers.get_mut(&node)?;
        peer.bulk_sent.insert(self.next_send, sent);
        Some(OutFrame {
            id: self.next_send,
            body: writer.finish(),
        })
    }
}

/// Bytes of the groups that a part of a round lists.
fn group_bytes(beats: &Beats) -> u64 {
    let (mut bytes, mut previous) = (0, None);
    for beat in &beats.beats {
        bytes += beat_len(beat, previous);
        previous = Some(beat.group);
    }
    bytes as u64
}

/// What of an append fits into so many bytes, and what is left of it.
fn cut(message: GroupMessage, room: usize) -> (Option<GroupMessage>, Option<GroupMessage>) {
    let GroupMessage {
        header,
        body: GroupBody::Append(mut append),
    } = message
    else {
        return (Some(message), None);
    };
    let mut bytes = APPEND_OVERHEAD_BYTES;
    let mut fits = |entry: &crate::log::api::LogEntry| {
        bytes += entry_len(entry);
        bytes <= room
    };
    let count = append
        .entries
        .iter()
        .take(APPEND_ENTRIES_MAX)
        .take_while(|e| fits(e))
        .count();
    if APPEND_OVERHEAD_BYTES > room || count == 0 && !append.entries.is_empty() {
        return (
            None,
            Some(GroupMessage {
                header,
                body: GroupBody::Append(append),
            }),
        );
    }
    if count == append.entries.len() {
        return (
            Some(GroupMessage {
                header,
                body: GroupBody::Append(append),
            }),
            None,
        );
    }
    let entries = append.entries.split_off(count);
    let (prev_index, prev_term) = append
        .entries
        .last()
        .map_or((append.prev_index, append.prev_term), |entry| {
            (entry.index, entry.term)
        });
    let rest = Append {
        prev_index,
        prev_term,
        commit: append.commit,
        entries,
    };
    let message = |append| GroupMessage {
        header,
        body: GroupBody::Append(append),
    };
    (Some(message(append)), Some(message(rest)))
}
