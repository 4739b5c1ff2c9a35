//! The rig: nodes, their disks, the network between them, and the checks that hold in every run.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::{RAFT_DEFAULTS, RaftConfig};
use crate::error::{Outcome, ReadOutcome, Refusal};
use crate::id::{
    Boot, GroupId, Index, NodeId, ProposalId, ReadId, ReplicaId, SendId, ShardId, StoreSeq, Term,
};
use crate::log::api::{Change, GroupLog, HardState, LogEntry, Mutation, ReadError};
use crate::proto::admission::Dice;
use crate::proto::consensus::Role;
use crate::proto::host::{
    Forwarding, GroupSpec, HostCore, HostIdentity, Lane, Member, MemberKind, Output, Proposal,
    SendEnd, Taken,
};
use crate::proto::waiters::Policy;
use crate::proto::wire::{GroupBody, Item, decode};

/// One group's log: what was submitted, or what is durable.
#[derive(Clone, Debug, Default)]
pub(super) struct MemGroup {
    pub(super) hard_state: HardState,
    compacted: (Index, Term),
    pub(super) entries: Vec<LogEntry>,
}

impl MemGroup {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write {
                hard_state,
                entries,
            } => {
                if let Some(state) = hard_state {
                    self.hard_state = *state;
                }
                if let Some(first) = entries.first() {
                    assert!(first.index > self.compacted.0 && first.index <= self.last().next());
                    self.entries.retain(|entry| entry.index < first.index);
                    self.entries.extend(entries.iter().cloned());
                }
            }
            Change::Compact { through, term } => {
                self.entries.retain(|entry| entry.index > *through);
                self.compacted = (*through, *term);
            }
            Change::Reset { .. } | Change::Remove => *self = Self::default(),
        }
    }

    pub(super) fn last(&self) -> Index {
        self.entries
            .last()
            .map_or(self.compacted.0, |entry| entry.index)
    }

    fn at(&self, index: Index) -> Result<usize, ReadError> {
        let first = self.compacted.0.next();
        if index < first {
            return Err(ReadError::Compacted { index, first });
        }
        if index > self.last() {
            return Err(ReadError::Unavailable {
                index,
                last: self.last(),
            });
        }
        Ok(usize::try_from(index.to_u64() - first.to_u64()).unwrap())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct MemLog(Rc<RefCell<MemGroup>>);

impl GroupLog for MemLog {
    fn hard_state(&self) -> HardState {
        self.0.borrow().hard_state
    }

    fn compacted(&self) -> (Index, Term) {
        self.0.borrow().compacted
    }

    fn last_index(&self) -> Index {
        self.0.borrow().last()
    }

    fn term(&self, index: Index) -> Result<Term, ReadError> {
        let log = self.0.borrow();
        if index == log.compacted.0 {
            return Ok(log.compacted.1);
        }
        log.at(index).map(|at| log.entries[at].term)
    }

    fn entries(&self, first: Index, end: Index, max: u64) -> Result<Vec<LogEntry>, ReadError> {
        let log = self.0.borrow();
        let mut bytes = 0;
        let mut out = Vec::new();
        let mut index = first;
        while index < end {
            let entry = &log.entries[log.at(index)?];
            bytes += entry.data.len() as u64;
            if bytes > max && !out.is_empty() {
                break;
            }
            out.push(entry.clone());
            index = index.next();
        }
        Ok(out)
    }
}

/// A state machine: the commands in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) applied: Index,
    pub(super) commands: Vec<Bytes>,
}

pub(super) struct Node {
    pub(super) core: HostCore<MemLog>,
    submitted: BTreeMap<GroupId, MemLog>,
    pub(super) machines: BTreeMap<GroupId, Machine>,
    pub(super) roles: BTreeMap<GroupId, (Role, Term)>,
}

/// What outlives a crash.
#[derive(Default)]
pub(super) struct Disk {
    pub(super) logs: BTreeMap<GroupId, MemGroup>,
    machines: BTreeMap<GroupId, Machine>,
    boots: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Tick(usize),
    Deliver {
        from: usize,
        to: usize,
        lane: Lane,
        id: SendId,
        body: Bytes,
    },
    Ended {
        at: usize,
        peer: usize,
        id: SendId,
        how: SendEnd,
        answer: Option<Bytes>,
    },
    Stored {
        at: usize,
        seq: Option<StoreSeq>,
        mutation: Mutation,
    },
    Link {
        at: usize,
        peer: usize,
        up: bool,
    },
}

/// How bad the network is; all chances of 1000.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) lose: u64,
    pub(super) duplicate: u64,
    pub(super) delay_max: Duration,
    pub(super) sync_max: Duration,
}

pub(super) const CALM: Weather = Weather {
    lose: 0,
    duplicate: 0,
    delay_max: Duration::from_micros(500),
    sync_max: Duration::from_micros(400),
};

pub(super) struct World {
    pub(super) config: RaftConfig,
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) disks: Vec<Disk>,
    pub(super) groups: u64,
    pub(super) now: Instant,
    pub(super) dice: Dice,
    pub(super) weather: Weather,
    /// Links cut, each way.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// Nodes whose log makes nothing durable.
    pub(super) stuck_disks: BTreeSet<usize>,
    events: BinaryHeap<Reverse<(Instant, u64, u64)>>,
    bodies: BTreeMap<u64, (u64, Event)>,
    sequence: u64,
    pub(super) outcomes: BTreeMap<ProposalId, Outcome>,
    pub(super) reads: BTreeMap<ReadId, ReadOutcome>,
    history: BTreeMap<(GroupId, Index), (Term, Bytes)>,
    leaders: BTreeMap<(GroupId, Term), usize>,
    pub(super) control_frames: u64,
    pub(super) control_bytes: u64,
    pub(super) acks_sent: u64,
    pub(super) flushes: u64,
    next_id: u64,
}

pub(super) fn node_id(node: usize) -> NodeId {
    NodeId::new(u32::try_from(node).unwrap() + 1)
}

pub(super) fn replica(node: usize) -> ReplicaId {
    ReplicaId::new(node as u64 + 11)
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl World {
    pub(super) fn new(nodes: usize, groups: u64, seed: u64) -> Self {
        println!("seed {seed}");
        let start = crate::proto::test_time::start();
        let mut world = Self {
            config: RaftConfig::try_from(RAFT_DEFAULTS).unwrap(),
            nodes: (0..nodes).map(|_| None).collect(),
            disks: (0..nodes).map(|_| Disk::default()).collect(),
            groups,
            now: start,
            dice: Dice::new(seed),
            weather: CALM,
            cut: BTreeSet::new(),
            stuck_disks: BTreeSet::new(),
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            sequence: 0,
            outcomes: BTreeMap::new(),
            reads: BTreeMap::new(),
            history: BTreeMap::new(),
            leaders: BTreeMap::new(),
            control_frames: 0,
            control_bytes: 0,
            acks_sent: 0,
            flushes: 0,
            next_id: 0,
        };
        for node in 0..nodes {
            world.boot(node);
        }
        world
    }

    pub(super) fn group_ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.groups).map(|group| GroupId::new(group + 1))
    }

    /// Starts a node from what is durable.
    pub(super) fn boot(&mut self, node: usize) {
        let disk = &mut self.disks[node];
        disk.boots += 1;
        let identity = HostIdentity {
            node: node_id(node),
            shard: ShardId::new(0),
            boot: Boot::new((node as u64 + 1) * 1000 + disk.boots),
            seed: self.dice.draw(),
        };
        let peers: Vec<_> = (0..self.nodes.len()).filter(|peer| *peer != node).collect();
        let ids = peers.iter().map(|peer| node_id(*peer));
        let mut core = HostCore::new(self.config, identity, ids, self.now);
        let mut submitted = BTreeMap::new();
        for group in (0..self.groups).map(|group| GroupId::new(group + 1)) {
            let durable = disk.logs.entry(group).or_default().clone();
            let machine = disk.machines.entry(group).or_default();
            let log = MemLog(Rc::new(RefCell::new(durable)));
            submitted.insert(group, log.clone());
            let members = (0..self.nodes.len())
                .map(|peer| Member {
                    replica: replica(peer),
                    node: node_id(peer),
                    kind: MemberKind::Voter,
                })
                .collect();
            let preferred = replica(usize::try_from(group.to_u64()).unwrap() % self.nodes.len());
            let (replica, applied) = (replica(node), machine.applied);
            let spec = GroupSpec {
                group,
                replica,
                members,
                preferred,
                applied,
            };
            core.open_group(self.now, spec, log).unwrap();
        }
        let machines = disk.machines.clone();
        self.nodes[node] = Some(Node {
            core,
            submitted,
            machines,
            roles: BTreeMap::new(),
        });
        self.at(Duration::ZERO, node, Event::Tick(node));
        for peer in peers {
            if self.nodes[peer].is_some() {
                self.link(node, peer, true);
            }
        }
    }

    /// Kills a node: what isn't durable is gone.
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
        let dead = |(owner, _): &(u64, Event)| *owner == node as u64;
        self.bodies.retain(|_, event| !dead(event));
        for peer in 0..self.nodes.len() {
            if peer != node && self.nodes[peer].is_some() {
                self.at(
                    ms(1),
                    peer,
                    Event::Link {
                        at: peer,
                        peer: node,
                        up: false,
                    },
                );
            }
        }
    }

    /// Both ends see the link come or go.
    pub(super) fn link(&mut self, a: usize, b: usize, up: bool) {
        for (at, peer) in [(a, b), (b, a)] {
            if up {
                self.cut.remove(&(at, peer));
            } else {
                self.cut.insert((at, peer));
            }
            self.at(Duration::ZERO, at, Event::Link { at, peer, up });
        }
    }

    /// An event of `owner`'s: it dies with it.
    fn at(&mut self, after: Duration, owner: usize, event: Event) {
        self.sequence += 1;
        self.events
            .push(Reverse((self.now + after, self.sequence, owner as u64)));
        self.bodies.insert(self.sequence, (owner as u64, event));
    }

    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(Reverse((at, sequence, _))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = self.now.max(at);
            if let Some((_, event)) = self.bodies.remove(&sequence) {
                self.handle(event);
            }
        }
        self.now = end;
    }

    /// Runs until it holds, and says how long that took.
    pub(super) fn run_until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> Duration {
        let begin = self.now;
        while !holds(self) {
            let spent = self.now - begin;
            if spent >= limit {
                for group in self
                    .group_ids()
                    .filter(|group| self.leader(*group).is_none())
                {
                    let nodes = self.nodes.iter().flatten();
                    let all: Vec<_> = nodes.map(|node| node.core.status(group)).collect();
                    println!("group {group} has no leader: {all:?}");
                }
                panic!("not within {limit:?}");
            }
            self.run(ms(5));
        }
        self.now - begin
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Tick(node) => {
                let Some(found) = &mut self.nodes[node] else {
                    return;
                };
                found.core.on_tick(now);
                self.drain(node);
                // As the shell does: when the core asks for it, at the latest.
                let wake = self.nodes[node]
                    .as_ref()
                    .map(|node| node.core.poll_timeout());
                let after = wake.map_or(ms(10), |at| at.saturating_duration_since(now));
                let least = Duration::from_micros(50);
                self.at(after.clamp(least, ms(10)), node, Event::Tick(node));
            }
            Event::Deliver {
                from,
                to,
                lane,
                id,
                body,
            } => self.deliver(from, to, lane, id, body),
            Event::Ended {
                at,
                peer,
                id,
                how,
                answer,
            } => {
                let Some(node) = &mut self.nodes[at] else {
                    return;
                };
                if let Some(answer) = answer {
                    node.core
                        .on_round_answer(now, node_id(peer), answer)
                        .unwrap();
                }
                node.core.on_send_ended(now, node_id(peer), id, how);
                self.drain(at);
            }
            Event::Stored { at, seq, mutation } => {
                if self.stuck_disks.contains(&at) {
                    return self.at(ms(1), at, Event::Stored { at, seq, mutation });
                }
                let log = self.disks[at].logs.entry(mutation.group).or_default();
                log.apply(&mutation.change);
                if let (Some(node), Some(seq)) = (&mut self.nodes[at], seq) {
                    node.core.on_stored(now, mutation.group, seq);
                    self.drain(at);
                }
            }
            Event::Link { at, peer, up } => {
                let boot = (peer as u64 + 1) * 1000 + self.disks[peer].boots;
                let Some(node) = &mut self.nodes[at] else {
                    return;
                };
                if up {
                    node.core
                        .on_peer_returned(now, node_id(peer), Boot::new(boot));
                } else {
                    node.core.on_peer_lost(now, node_id(peer));
                }
                self.drain(at);
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, lane: Lane, id: SendId, body: Bytes) {
        let delay = self.delay();
        let ended = |how, answer| Event::Ended {
            at: from,
            peer: to,
            id,
            how,
            answer,
        };
        let lost = ended(SendEnd::Failed, None);
        if self.cut.contains(&(from, to)) || self.nodes[to].is_none() {
            return self.at(ms(50), from, lost);
        }
        let Some(node) = &mut self.nodes[to] else {
            return;
        };
        // A reply can be lost as well: the frame was taken, and its sender isn't told.
        let reply_lost = self.weather.lose > 0 && self.dice.draw() % 1000 < self.weather.lose;
        let event = match node.core.on_frame(self.now, node_id(from), lane, body) {
            Taken::Bad(error) => panic!("a correct peer was called {error}"),
            Taken::Busy => lost,
            Taken::Yes { answer } if reply_lost || self.cut.contains(&(to, from)) => {
                drop(answer);
                lost
            }
            Taken::Yes { answer } => ended(SendEnd::Replied, answer),
        };
        self.at(delay, from, event);
        self.drain(to);
    }

    fn delay(&mut self) -> Duration {
        self.dice
            .between(Duration::from_micros(50), self.weather.delay_max)
    }

    fn drain(&mut self, at: usize) {
        loop {
            let Some(node) = &mut self.nodes[at] else {
                return;
            };
            let Some(output) = node.core.poll_output() else {
                return;
            };
            match output {
                Output::Store { seq, mutation } => {
                    let log = &node.submitted[&mutation.group];
                    log.0.borrow_mut().apply(&mutation.change);
                    // One log thread: writes end in the order in which they began.
                    let sync = self.weather.sync_max;
                    self.at(sync, at, Event::Stored { at, seq, mutation });
                }
                Output::Apply { group, entries } => self.apply(at, group, entries),
                Output::Flush { group } => self.flush(at, group),
                Output::Proposal { id, outcome } => {
                    assert!(
                        self.outcomes.insert(id, outcome).is_none(),
                        "{id} ended twice"
                    );
                }
                Output::Read { id, outcome } => {
                    assert!(
                        self.reads.insert(id, outcome).is_none(),
                        "read {id} ended twice"
                    );
                }
                Output::RoleChanged {
                    group, role, term, ..
                } => {
                    node.roles.insert(group, (role, term));
                    if role == Role::Leader {
                        let leader = *self.leaders.entry((group, term)).or_insert(at);
                        assert_eq!(leader, at, "two leaders of group {group} in term {term}");
                    }
                }
                Output::ControlWaits { peer } => self.fill(at, peer, Lane::Control),
                Output::BulkWaits { peer } => self.fill(at, peer, Lane::Bulk),
            }
        }
    }

    fn apply(&mut self, at: usize, group: GroupId, entries: Vec<LogEntry>) {
        let Some(node) = &mut self.nodes[at] else {
            return;
        };
        let machine = node.machines.entry(group).or_default();
        let mut results = Vec::new();
        for entry in entries {
            assert_eq!(
                entry.index,
                machine.applied.next(),
                "a gap in what is applied"
            );
            let is = (entry.term, entry.data.clone());
            let was = self
                .history
                .entry((group, entry.index))
                .or_insert_with(|| is.clone());
            assert_eq!(*was, is, "group {group} has two entries at {}", entry.index);
            machine.applied = entry.index;
            if !entry.data.is_empty() {
                machine.commands.push(entry.data.clone());
                results.push((entry.index, entry.data));
            }
        }
        let applied = machine.applied;
        // Now and then the state machine becomes durable.
        if self.dice.draw().is_multiple_of(8) {
            self.disks[at].machines.insert(group, machine.clone());
            node.core.on_flushed(self.now, group, applied);
        }
        node.core.on_applied(self.now, group, applied, results);
    }

    /// The state machine becomes durable.
    fn flush(&mut self, at: usize, group: GroupId) {
        let Some(node) = &mut self.nodes[at] else {
            return;
        };
        let machine = node.machines.entry(group).or_default().clone();
        let applied = machine.applied;
        self.disks[at].machines.insert(group, machine);
        self.flushes += 1;
        node.core.on_flushed(self.now, group, applied);
    }

    fn fill(&mut self, at: usize, peer: NodeId, lane: Lane) {
        let to = usize::try_from(peer.to_u32()).unwrap() - 1;
        loop {
            let Some(node) = &mut self.nodes[at] else {
                return;
            };
            let frame = match lane {
                Lane::Control => node.core.fill_control(self.now, peer, 16 * 1024),
                Lane::Bulk => node.core.fill_bulk(self.now, peer, 256 * 1024),
            };
            let Some(frame) = frame else { return };
            self.check(at, &frame.body);
            if lane == Lane::Control {
                self.control_frames += 1;
                self.control_bytes += frame.body.len() as u64;
            }
            let delay = self.delay();
            let (id, body) = (frame.id, frame.body);
            if self.dice.draw() % 1000 < self.weather.lose {
                let how = SendEnd::Failed;
                self.at(
                    ms(40),
                    at,
                    Event::Ended {
                        at,
                        peer: to,
                        id,
                        how,
                        answer: None,
                    },
                );
                continue;
            }
            if self.dice.draw() % 1000 < self.weather.duplicate {
                let later = self.delay() * 3;
                let (id, body) = (SendId::new(0), body.clone());
                self.at(
                    later,
                    at,
                    Event::Deliver {
                        from: at,
                        to,
                        lane,
                        id,
                        body,
                    },
                );
            }
            self.at(
                delay,
                at,
                Event::Deliver {
                    from: at,
                    to,
                    lane,
                    id,
                    body,
                },
            );
        }
    }

    /// What a node says must be durable at it: acks up to their index, votes in their term.
    fn check(&mut self, at: usize, body: &Bytes) {
        let (_, items) = decode(body.clone()).unwrap();
        for item in items {
            let Item::Group(message) = item else { continue };
            let durable = &self.disks[at].logs[&message.header.group];
            let header = message.header;
            match message.body {
                GroupBody::Ack { index, .. } => {
                    self.acks_sent += 1;
                    assert!(
                        durable.last() >= index,
                        "{header:?} acks {index} before it is stored"
                    );
                    assert!(
                        durable.hard_state.term >= header.term,
                        "acked in an unstored term"
                    );
                }
                GroupBody::VoteAnswer { granted: true } => {
                    let HardState { term, vote, .. } = durable.hard_state;
                    let voted =
                        (term == header.term && vote == Some(header.to)) || term > header.term;
                    assert!(voted, "{header:?} votes before it is stored");
                }
                GroupBody::Vote { .. } => {
                    assert!(
                        durable.hard_state.term >= header.term,
                        "{header:?} unstored"
                    );
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
                | GroupBody::ForwardAnswer(_) => {}
            }
        }
    }

    /// The node that leads a group, if exactly one says so in the highest term.
    pub(super) fn leader(&self, group: GroupId) -> Option<usize> {
        let nodes = self.nodes.iter().enumerate();
        let leads = nodes.filter_map(|(at, node)| {
            let status = node.as_ref()?.core.status(group)?;
            (status.role == Role::Leader).then_some((status.term, at))
        });
        leads.max().map(|(_, at)| at)
    }

    /// Three nodes of one group that have this configuration, and a leader.
    pub(super) fn elected_with(seed: u64, raw: crate::config::RawRaftConfig) -> Self {
        let mut world = Self::new(3, 1, seed);
        world.config = raw.try_into().unwrap();
        for node in 0..3 {
            world.kill(node);
        }
        world.run(ms(10));
        for node in 0..3 {
            world.boot(node);
        }
        world.run_until(ms(3000), Self::all_led);
        world.run(ms(300));
        world
    }

    pub(super) fn all_led(&self) -> bool {
        self.group_ids().all(|group| {
            self.leader(group).is_some_and(|at| {
                let node = self.nodes[at].as_ref().unwrap();
                let log = node.core.status(group).unwrap();
                log.commit.to_u64() > 0
            })
        })
    }

    pub(super) fn next(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn propose_at(
        &mut self,
        at: usize,
        group: GroupId,
        within: Duration,
    ) -> Result<(ProposalId, Bytes), Refusal> {
        self.propose_as(at, group, within, Forwarding::Never)
    }

    pub(super) fn propose_as(
        &mut self,
        at: usize,
        group: GroupId,
        within: Duration,
        forwarding: Forwarding,
    ) -> Result<(ProposalId, Bytes), Refusal> {
        let id = ProposalId::new(self.next());
        let data = Bytes::from(format!("{group}/{id}"));
        let deadline = self.now + within;
        let proposal = Proposal {
            id,
            data: data.clone(),
            context: Bytes::new(),
            deadline,
            forwarding,
            policy: Policy::Quorum,
        };
        let node = self.nodes[at].as_mut().unwrap();
        node.core.propose(self.now, group, proposal)?;
        self.drain(at);
        Ok((id, data))
    }

    pub(super) fn read_at(&mut self, at: usize, group: GroupId) -> Result<ReadId, Refusal> {
        let id = ReadId::new(self.next());
        let node = self.nodes[at].as_mut().unwrap();
        node.core
            .read_index(self.now, group, id, self.now + ms(2000))?;
        self.drain(at);
        Ok(id)
    }

    pub(super) fn with(&mut self, at: usize, call: impl FnOnce(&mut HostCore<MemLog>, Instant)) {
        let now = self.now;
        call(&mut self.nodes[at].as_mut().unwrap().core, now);
        self.drain(at);
    }

    /// After faults: all nodes hold the same commands, and every acknowledged one is among them.
    pub(super) fn check_converged(&mut self, acknowledged: &[(GroupId, Bytes)]) {
        self.run_until(ms(8000), |world| {
            world.group_ids().all(|group| {
                let Some(leader) = world.leader(group) else {
                    return false;
                };
                let core = &world.nodes[leader].as_ref().unwrap().core;
                let last = core.status(group).unwrap().last;
                let nodes = world.nodes.iter().flatten();
                nodes.clone().all(|node| {
                    node.machines
                        .get(&group)
                        .is_some_and(|machine| machine.applied == last)
                })
            })
        });
        for group in self.group_ids() {
            let all: Vec<_> = self
                .nodes
                .iter()
                .flatten()
                .map(|node| &node.machines[&group].commands)
                .collect();
            assert!(all.iter().all(|commands| *commands == all[0]));
            let held: BTreeSet<_> = all[0].iter().collect();
            assert_eq!(held.len(), all[0].len(), "a command was applied twice");
            for (_, data) in acknowledged.iter().filter(|(of, _)| *of == group) {
                assert!(held.contains(data), "acknowledged and lost: {data:?}");
            }
        }
    }
}
