//! What the shell's shard thread does: everything that a core wants done is done here, in the same
//! order, and what comes of it is told back; and the log's turns and the state machines beside it.

use std::time::Instant;

use bytes::Bytes;
use raft_host::error::{Outcome, ReadOutcome};
use raft_host::id::{GroupId, Index, Term, UnixMillis};
use raft_host::log::api::{Change, GroupLog};
use raft_host::log::{Completion, Turn};
use raft_host::proto::consensus::Role;
use raft_host::proto::group_time::read_note;
use raft_host::proto::host::Output;
use raft_host::proto::waiters::Policy;
use raft_host::proto::wire::{GroupBody, GroupMessage, Item, decode};
use transport::proto::confirm::{Confirm, Held};

use super::World;
use super::clients::Answer;
use super::clock::MS;
use super::disk::{Shadow, Step};
use super::events::Event;
use super::node::{Node, Sync, replica_of};

impl World {
    /// Everything that follows at a node from what has come to it.
    pub(super) fn turn(&mut self, at: usize) {
        let Some(mut node) = self.nodes[at].take() else {
            return;
        };
        let now = self.local(at);
        let reading = self.clocks[at].reading(self.now);
        node.log_clock
            .store(reading, std::sync::atomic::Ordering::Relaxed);
        node.core.set_log_room(node.stores.room());
        let wall = self.clocks[at].wall_ms(self.now);
        node.core.set_wall(UnixMillis::new(wall));
        self.retry_stores(at, &mut node);
        loop {
            if now >= node.core.poll_timeout() {
                node.core.on_tick(now);
            }
            self.check_disk(at, &mut node, now);
            let mut more = self.drain(at, &mut node, now);
            more |= self.fill(at, &mut node, now);
            more |= self.pump_all(at, &mut node, now);
            if !more {
                break;
            }
        }
        self.check_bounds(at, &node);
        self.plan_log(at, &mut node);
        self.plan_wake(at, &mut node);
        let failed = node.failed.take();
        self.nodes[at] = Some(node);
        if let Some(why) = failed {
            self.trace
                .line(self.now, Some(at), None, || format!("stops: {why}"));
            self.crash(at, super::nemesis::Crash::Process);
        }
    }

    fn retry_stores(&mut self, at: usize, node: &mut Node) {
        let held = node.stores.held();
        if held == 0 {
            return;
        }
        if let Err(failed) = node.stores.retry() {
            node.failed = Some(failed.to_string());
        }
        if node.stores.held() != held {
            let groups: Vec<_> = node.views.keys().copied().collect();
            for group in groups {
                self.note_state(at, node, group);
            }
            node.log_dirty = true;
        }
    }

    /// What the log holds of a group now, where the steps towards it aren't known.
    fn note_state(&mut self, at: usize, node: &Node, group: GroupId) {
        let state = Shadow::of(&node.views[&group].borrow());
        let token = node.stores.token().to_u64();
        let step = (token, group, Step::State(state));
        self.disks[at].unsynced.push_back(step);
    }

    /// A node whose log makes nothing durable acts as if every link were lost, as the shell does.
    fn check_disk(&mut self, at: usize, node: &mut Node, now: Instant) {
        let limit = self.shape.raft.election_timeout();
        let since = node.sync.as_ref().map(|sync| sync.since);
        let stalled = since.is_some_and(|since| now.saturating_duration_since(since) > limit);
        if stalled == node.disk_stalled {
            return;
        }
        node.disk_stalled = stalled;
        self.trace.line(self.now, Some(at), None, || {
            format!(
                "its disk {}",
                if stalled { "is stuck" } else { "works again" }
            )
        });
        let peers: Vec<_> = node.peers.keys().copied().collect();
        for peer in peers {
            self.relink(at, node, peer, now);
        }
    }

    fn check_bounds(&self, at: usize, node: &Node) {
        let core = &node.core;
        let pending = core.store_pending_bytes();
        let most = raft_host::limits::STORE_PENDING_BYTES_MAX
            + raft_host::limits::BULK_BODY_BYTES_MAX as u64;
        let segments = node.log.health().segments_bytes;
        let cap = self.shape.log.bytes_max() + 2 * self.shape.log.segment_bytes();
        let proposals = core.proposal_bytes();
        let held = pending <= most
            && proposals <= raft_host::limits::PROPOSAL_BYTES_MAX
            && core.forwards_len() <= raft_host::limits::FORWARDS_MAX
            && segments <= cap;
        if !held {
            self.fail(&format!(
                "bounds: node {} has {pending} bytes to store, {proposals} of proposals, {} \
                 forwards, {segments} bytes of segments",
                at + 1,
                core.forwards_len()
            ));
        }
    }

    fn drain(&mut self, at: usize, node: &mut Node, now: Instant) -> bool {
        let mut any = false;
        while let Some(output) = node.core.poll_output() {
            any = true;
            match output {
                Output::Store { seq, mutation } => {
                    self.store(at, node, seq, mutation.group, mutation.change);
                }
                Output::Apply { group, entries } => {
                    let waiting = node.applying.entry(group).or_default();
                    let first = waiting.is_empty();
                    waiting.extend(entries);
                    if first {
                        let life = node.life;
                        let after = match node.dice.below(20) {
                            0 => node.dice.below(30 * MS),
                            _ => node.dice.below(MS),
                        };
                        let event = Event::Apply {
                            node: at,
                            life,
                            group,
                        };
                        self.events.push(self.now + after, event);
                    }
                }
                Output::Flush { group } => self.make_durable(at, node, group, now),
                Output::Proposal { id, outcome } => {
                    if let Some((client, attempt, deadline)) = node.proposals.remove(&id) {
                        self.on_outcome(at, (client, attempt), (now, deadline), outcome);
                    }
                }
                Output::Read { id, outcome } => {
                    if let Some((client, attempt, deadline)) = node.reads.remove(&id) {
                        self.check_deadline(at, now, deadline, "a read");
                        let answer = self.read(at, node, (client, attempt), outcome);
                        self.tell(client, attempt, answer);
                    }
                }
                Output::RoleChanged {
                    group, role, term, ..
                } => self.on_role(at, node, group, role, term),
                Output::ControlWaits { peer } => {
                    if let Some(peer) = node.peers.get_mut(&super::node::node_of(peer)) {
                        peer.control_waits = true;
                    }
                }
                Output::BulkWaits { peer } => {
                    if let Some(peer) = node.peers.get_mut(&super::node::node_of(peer)) {
                        peer.bulk_waits = true;
                    }
                }
            }
        }
        if let Err(failed) = node.stores.flush() {
            node.failed = Some(failed.to_string());
        }
        for group in self.shape.groups() {
            if let Some(status) = node.core.status(group)
                && status.role == Role::Leader
            {
                self.safety.on_commit(group, status.term, status.commit);
            }
        }
        any
    }

    fn store(
        &mut self,
        at: usize,
        node: &mut Node,
        seq: Option<raft_host::id::StoreSeq>,
        group: GroupId,
        change: Change,
    ) {
        let view = std::rc::Rc::clone(&node.views[&group]);
        if let Change::Write { entries, .. } = &change
            && let Some(first) = entries.first()
        {
            let before = Index::new(first.index.to_u64() - 1);
            let term = if before == Index::new(0) {
                Some(Term::new(0))
            } else {
                view.borrow().term(before).ok()
            };
            // While the log has no room, what comes before may not be in it yet.
            if let Some(term) = term
                && node.stores.held() == 0
            {
                let matched = self.safety.on_append(group, term, entries);
                self.require(matched);
            }
            let last = entries.last().map_or(first.index, |entry| entry.index);
            self.trace
                .line(self.now, Some(at), Some(group.to_u64()), || {
                    format!("stores {}..={last} of term {}", first.index, first.term)
                });
        }
        let held = node.stores.held();
        let known = change.clone();
        if let Err(failed) = node.stores.store(&view, group, seq, change) {
            node.failed = Some(failed.to_string());
            return;
        }
        node.log_dirty = true;
        if node.stores.held() == held {
            let token = node.stores.token().to_u64();
            let step = (token, group, Step::Change(known));
            self.disks[at].unsynced.push_back(step);
        } else {
            self.note_state(at, node, group);
        }
    }

    fn on_role(&mut self, at: usize, node: &Node, group: GroupId, role: Role, term: Term) {
        self.trace
            .mix(&[at as u64, group.to_u64(), term.to_u64(), role as u64]);
        self.trace
            .line(self.now, Some(at), Some(group.to_u64()), || {
                format!("is {role:?} in term {term}")
            });
        self.role_changed = self.now;
        if role != Role::Leader {
            return;
        }
        let view = node.views[&group].borrow();
        let led = self
            .safety
            .on_leader(at, group, term, |index| view.term(index).ok());
        drop(view);
        self.require(led);
    }

    /// A linearizable read is answered with what the state machine holds now.
    fn read(&self, at: usize, node: &Node, request: (usize, u64), outcome: ReadOutcome) -> Answer {
        let ReadOutcome::Ready { index } = outcome else {
            return Answer::Refused;
        };
        let Some(doing) = self.sent.get(&request) else {
            return Answer::Refused;
        };
        let group = super::clients::group_of(doing.key, self.shape.group_count);
        let machine = &node.machines[&group];
        if machine.applied.0 < index {
            self.fail(&format!(
                "node {} is to read group {group} at {index} and has applied {}",
                at + 1,
                machine.applied.0
            ));
        }
        Answer::Value(machine.number(&super::clients::name_of(doing.key)))
    }

    pub(super) fn check_deadline(&self, at: usize, now: Instant, deadline: Instant, what: &str) {
        // One step of the clock, and what a stopped process or a late timer can't know better.
        let late = now.saturating_duration_since(deadline);
        let woken = self.now.saturating_sub(self.paused[at]) < 50 * MS;
        if late > std::time::Duration::from_millis(2) && !woken {
            self.fail(&format!(
                "deadlines: {what} at node {} ends {late:?} after its deadline",
                at + 1
            ));
        }
    }

    /// A reply under `at-least:N` says that so many disks have its entry, and so have all before it.
    fn check_acks(&self, client: usize, attempt: u64, index: Index) {
        let number = super::requests::attempt_number(client, attempt);
        let (Policy::AtLeast(wanted), Some(doing)) = (
            super::requests::policy(number),
            self.sent.get(&(client, attempt)),
        ) else {
            return;
        };
        let group = super::clients::group_of(doing.key, self.shape.group_count);
        let has = |disk: &&super::Disk| {
            disk.durable(group)
                .any(|it| it.compacted.0 >= index || it.term(index).is_some())
        };
        let got = self.disks.iter().filter(has).count();
        if got < usize::from(wanted.get()) {
            self.fail(&format!(
                "outcomes: attempt {number} at {index} of group {group} asks for {wanted} acks, and \
                 {got} disks have it"
            ));
        }
    }

    fn on_outcome(
        &mut self,
        at: usize,
        (client, attempt): (usize, u64),
        (now, deadline): (Instant, Instant),
        outcome: Outcome,
    ) {
        self.check_deadline(at, now, deadline, "a proposal");
        let number = super::requests::attempt_number(client, attempt);
        let committed = matches!(outcome, Outcome::Committed { .. });
        let standing = self.attempts.entry(number).or_default();
        let answer = match outcome {
            Outcome::Committed { result, index } => {
                if !standing.applied {
                    self.fail(&format!(
                        "outcomes: attempt {number} is told to be committed at {index}, and nobody \
                         has applied it"
                    ));
                }
                self.check_acks(client, attempt, index);
                Answer::Committed(result)
            }
            Outcome::Refused { .. } => {
                standing.refused = true;
                if standing.applied {
                    self.fail(&format!(
                        "outcomes: attempt {number} is refused and was applied"
                    ));
                }
                Answer::Refused
            }
            Outcome::NotDurable { index } => {
                if !standing.applied {
                    self.fail(&format!(
                        "outcomes: attempt {number} is told to lack acks at {index}, and nobody has \
                         applied it"
                    ));
                }
                Answer::Unknown
            }
            Outcome::Unknown { .. } => Answer::Unknown,
        };
        if client == super::recovery::PROBE {
            if committed {
                self.on_probe(attempt);
            }
            return;
        }
        self.tell(client, attempt, answer);
    }

    /// A group's state machine becomes durable, and the log may forget what is in it.
    fn make_durable(&mut self, at: usize, node: &mut Node, group: GroupId, now: Instant) {
        let machine = node.machines.entry(group).or_default();
        self.disks[at].machines.insert(group, machine.clone());
        node.core.on_flushed(now, group, machine.applied.0);
    }

    pub(super) fn apply(&mut self, at: usize, life: u64, group: GroupId) {
        if self.alive(at, life).is_none() {
            return;
        }
        let Some(mut node) = self.nodes[at].take() else {
            return;
        };
        let now = self.local(at);
        let entries = node.applying.remove(&group).unwrap_or_default();
        let mut results = Vec::new();
        for entry in &entries {
            self.counts.applied += 1;
            let majority = self.shape.nodes / 2 + 1;
            let disks = &self.disks;
            let durable = || {
                let has = |disk: &&super::Disk| {
                    disk.durable(group).any(|it| {
                        it.compacted.0 >= entry.index || it.term(entry.index) == Some(entry.term)
                    })
                };
                disks.iter().filter(has).count()
            };
            let applied = self.safety.on_apply(group, entry, majority, durable);
            self.require(applied);
            self.note_attempt(&entry.context);
            let machine = node.machines.entry(group).or_default();
            let Some(effect) = machine.apply(entry) else {
                continue;
            };
            let encoded = effect.outcome.encode();
            if let Some(id) = effect.id
                && (effect.executed
                    || !matches!(effect.outcome, multigroup::command::Outcome::Refused(_)))
            {
                let first = self.outcomes.entry(id).or_insert_with(|| encoded.clone());
                if *first != encoded {
                    self.fail("exactly once: one request id has two outcomes");
                }
            }
            results.push((entry.index, encoded));
        }
        if let Some(last) = entries.back().map(|entry| entry.index) {
            self.trace
                .line(self.now, Some(at), Some(group.to_u64()), || {
                    format!("applies up to {last}")
                });
            self.trace.mix(&[at as u64, last.to_u64()]);
            node.core.on_applied(now, group, last, results);
            if node.dice.chance(self.shape.flushes) {
                self.make_durable(at, &mut node, group, now);
            }
        }
        self.nodes[at] = Some(node);
        self.turn(at);
    }

    fn note_attempt(&mut self, context: &Bytes) {
        let (_, name) = read_note(context);
        let Ok(number) = <[u8; 8]>::try_from(&name[..]) else {
            return;
        };
        let number = u64::from_le_bytes(number);
        let standing = self.attempts.entry(number).or_default();
        standing.applied = true;
        if standing.refused {
            self.fail(&format!(
                "outcomes: attempt {number} is applied and was refused"
            ));
        }
    }

    fn plan_log(&mut self, at: usize, node: &mut Node) {
        if node.sync.is_none() && !node.log_turn && node.log_dirty {
            node.log_turn = true;
            let event = Event::LogTurn {
                node: at,
                life: node.life,
            };
            let after = node.dice.below(MS / 20);
            self.events.push(self.now + after, event);
        }
    }

    fn plan_wake(&mut self, at: usize, node: &mut Node) {
        let lanes = node.peers.values().flat_map(|peer| &peer.lanes);
        let lanes = lanes.filter_map(|lane| lane.out.poll_timeout());
        let sessions = node.inbound.values();
        let sessions = sessions.filter_map(|end| end.session.poll_timeout());
        let next = lanes.chain(sessions).min();
        let core = node.core.poll_timeout();
        let next = next.map_or(core, |next| next.min(core));
        let due = self.clocks[at].when(next).max(self.now + 1000);
        if node.wake_at.is_none_or(|planned| planned > due) {
            node.wake_at = Some(due);
            let life = node.life;
            self.events.push(due, Event::Wake { node: at, life });
        }
    }

    /// The log writes one batch and begins to sync it.
    pub(super) fn log_turn(&mut self, at: usize, life: u64) {
        let (hangs, fails) = (self.hung.contains(&at), self.sync_fails.remove(&at));
        let since = self.local(at);
        let probe = self.shape.log.probe_interval();
        let now = self.now;
        let slow = self.disks[at].slow.clone();
        let (least, most) = self.sync_time[at];
        let number = self.next_sync + 1;
        let Some(node) = self.alive(at, life) else {
            return;
        };
        node.log_turn = false;
        if node.sync.is_some() {
            return;
        }
        node.log_dirty = false;
        slow.begin_turn();
        let turn = node.driver.turn();
        let told = {
            let mut told = node
                .told
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            std::mem::take(&mut *told)
        };
        let took = node.dice.between(least, most);
        let (later, mut at_once): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|(_, behind)| *behind);
        let mut retry = None;
        match turn {
            Turn::Synced { more } => {
                node.sync = Some(Sync {
                    number,
                    since,
                    then: later
                        .into_iter()
                        .map(|(completion, _)| completion)
                        .collect(),
                    more,
                    hangs,
                });
            }
            Turn::NoSpace => {
                node.log_turn = true;
                retry = Some(now + u64::try_from(probe.as_nanos()).unwrap_or(MS));
                if slow.end_sync().is_ok() {
                    at_once.extend(later);
                }
            }
            Turn::Closed | Turn::Failed => node.failed = Some("its log has failed".to_owned()),
        }
        self.next_sync = number;
        if fails {
            self.disks[at].inject(raft_host::log::sim_files::SimFault::SyncError);
        }
        if let Some(due) = retry {
            let event = Event::LogTurn { node: at, life };
            self.events.push(due, event);
        } else if !hangs {
            let event = Event::Synced {
                node: at,
                life,
                number,
            };
            self.events.push(now + took, event);
        }
        for (completion, _) in at_once {
            self.complete(at, life, completion);
        }
        self.turn(at);
    }

    /// The sync under way ends, well or not.
    pub(super) fn synced(&mut self, at: usize, life: u64, number: u64) {
        let slow = self.disks[at].slow.clone();
        let probe = self.shape.log.probe_interval();
        let Some(node) = self.alive(at, life) else {
            return;
        };
        let Some(sync) = node.sync.take_if(|sync| sync.number == number) else {
            return;
        };
        if let Err(error) = slow.end_sync() {
            node.failed = Some(format!("a sync failed: {error}"));
            return self.turn(at);
        }
        // Idle, it syncs a probe now and then.
        node.log_turn = true;
        let after = if sync.more {
            0
        } else if node.log_dirty {
            node.dice.below(MS / 20)
        } else {
            node.log_turn = false;
            u64::try_from(probe.as_nanos()).unwrap_or(MS)
        };
        let sync_number = node.log.health().sync_number;
        // The shell says so once a second.
        if node.dice.chance(50) {
            for end in node.inbound.values_mut().filter(|end| end.lane.is_some()) {
                end.session.confirm(Confirm {
                    held: Held::default(),
                    sync_number,
                });
            }
        }
        let event = Event::LogTurn { node: at, life };
        self.events.push(self.now + after, event);
        self.disks[at].sync_number = sync_number;
        for completion in sync.then {
            self.complete(at, life, completion);
        }
        self.turn(at);
    }

    fn complete(&mut self, at: usize, life: u64, completion: Completion) {
        let now = self.local(at);
        let stuck = self.alive(at, life).is_some_and(|node| node.sync.is_some());
        match completion {
            Completion::Durable(token) => {
                // What the log says while its sync is still under way isn't so.
                if !stuck {
                    self.disks[at].made_durable(token.to_u64());
                }
                let Some(node) = self.alive(at, life) else {
                    return;
                };
                for (group, seq) in node.stores.on_durable(token) {
                    node.core.on_stored(now, group, seq);
                }
            }
            Completion::Failed(failure) => {
                if let Some(node) = self.alive(at, life) {
                    node.failed = Some(failure.to_string());
                }
            }
        }
    }

    /// What a node says must be durable at it (C1), and no vote be given twice.
    pub(super) fn check_body(&mut self, at: usize, to: usize, body: &Bytes) {
        let Ok((_, items)) = decode(body.clone()) else {
            self.fail("a body that was made can't be read");
        };
        for item in items {
            let Item::Group(message) = item else {
                if let Item::Beats(beats) = &item {
                    self.trace.line(self.now, Some(at), None, || {
                        let (round, part, all) = (beats.round, beats.part, beats.beats.len());
                        format!("→ {} round {round} part {part}, {all} beats", to + 1)
                    });
                }
                continue;
            };
            self.trace.line(
                self.now,
                Some(at),
                Some(message.header.group.to_u64()),
                || format!("→ {} {}", to + 1, describe(&message)),
            );
            self.check_message(at, &message);
        }
    }

    fn is_durable(&self, at: usize, group: GroupId, holds: impl Fn(&Shadow) -> bool) -> bool {
        // A group that is new has nothing, and says nothing that needs anything.
        let new = Shadow::default();
        self.disks[at].durable(group).any(&holds) || holds(&new)
    }

    fn check_message(&mut self, at: usize, message: &GroupMessage) {
        let header = message.header;
        let mut vote = None;
        let term = header.term;
        let held = match message.body {
            // It may leave when a later leader has cut the log already.
            GroupBody::Ack { index, .. } => {
                self.disks[at].reached(header.group, term) >= Some(index)
                    || self.is_durable(at, header.group, |it| {
                        it.last() >= index && it.hard_state.term >= term
                    })
            }
            GroupBody::VoteAnswer { granted: true } => {
                vote = Some(header.to);
                self.is_durable(at, header.group, |it| {
                    let state = it.hard_state;
                    state.term > term || (state.term == term && state.vote == Some(header.to))
                })
            }
            GroupBody::Vote { .. } => {
                vote = Some(replica_of(at));
                self.is_durable(at, header.group, |it| it.hard_state.term >= term)
            }
            GroupBody::VoteAnswer { granted: false }
            | GroupBody::PreVote { .. }
            | GroupBody::PreVoteAnswer { .. }
            | GroupBody::Append(_)
            | GroupBody::Reject { .. }
            | GroupBody::TimeoutNow
            | GroupBody::ReadIndex { .. }
            | GroupBody::ReadIndexAnswer { .. }
            | GroupBody::Forward(_)
            | GroupBody::ForwardAnswer(_) => true,
        };
        if !held {
            let durable = self.disks[at].shadow.get(&header.group);
            self.fail(&format!(
                "durability: node {} says {} and has durably {:?}, last {:?}",
                at + 1,
                describe(message),
                durable.map(|it| it.hard_state),
                durable.map(Shadow::last),
            ));
        }
        if let Some(to) = vote {
            let voted = self
                .safety
                .on_vote(header.group, header.from, header.term, to);
            self.require(voted);
        }
    }
}

/// A message in a few words.
fn describe(message: &GroupMessage) -> String {
    let term = message.header.term;
    match &message.body {
        GroupBody::Append(append) => format!(
            "append in term {term}: after {}/{}, {} entries, commit {}",
            append.prev_index,
            append.prev_term,
            append.entries.len(),
            append.commit
        ),
        GroupBody::Ack { index, commit } => {
            format!("ack in term {term}: {index}, commit {commit}")
        }
        GroupBody::Reject { rejected, hint, .. } => {
            format!("reject in term {term}: {rejected}, try {hint}")
        }
        GroupBody::Vote {
            last_index,
            last_term,
            transfer,
        } => {
            format!("vote? in term {term}: log ends {last_index}/{last_term}, transfer {transfer}")
        }
        GroupBody::PreVote {
            last_index,
            last_term,
        } => format!("pre-vote? in term {term}: log ends {last_index}/{last_term}"),
        GroupBody::VoteAnswer { granted } => format!("vote in term {term}: {granted}"),
        GroupBody::PreVoteAnswer { granted } => format!("pre-vote in term {term}: {granted}"),
        GroupBody::TimeoutNow => format!("timeout-now in term {term}"),
        GroupBody::ReadIndex { token } => format!("read-index? {token}"),
        GroupBody::ReadIndexAnswer { token, index } => format!("read-index {token}: {index:?}"),
        GroupBody::Forward(_) => format!("forward in term {term}"),
        GroupBody::ForwardAnswer(_) => format!("answer to a forward in term {term}"),
    }
}
