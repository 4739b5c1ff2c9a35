//! The whole way of an ack: three nodes' cores over the real engine on simulated disks. For every
//! ack and vote that leaves a node, the disk is looked at as it was when the log last said that
//! something was durable: after a power cut at that very moment, what the message speaks of must be
//! found by recovery. A log that says so before its sync (mutant `ack_before_sync`) fails here.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::super::api::GroupLog;
use super::super::sim_files::SimFiles;
use super::super::{
    Completion, GroupView, Log, LogDriver, LogSetup, LogShard, RawLogConfig, ShardLog, Token,
};
use super::support::{ID, small};
use crate::config::{RAFT_DEFAULTS, RaftConfig};
use crate::id::{Boot, GroupId, Index, NodeId, ProposalId, ReplicaId, SendId, ShardId, StoreSeq};
use crate::proto::admission::Dice;
use crate::proto::consensus::Role;
use crate::proto::host::{
    Forwarding, GroupSpec, HostCore, HostIdentity, Lane, Member, MemberKind, Output, Proposal,
    SendEnd, Taken,
};
use crate::proto::waiters::Policy;
use crate::proto::wire::{GroupBody, GroupMessage, Item, decode};

const GROUPS: u64 = 3;

type View = Rc<RefCell<GroupView>>;
/// What the log has said: up to which token, and the disk as it was then.
type Told = Arc<Mutex<Option<(Token, SimFiles)>>>;

struct Node {
    core: HostCore<View>,
    views: BTreeMap<GroupId, View>,
    log: ShardLog,
    driver: LogDriver,
    told: Told,
    waiting: VecDeque<(Token, GroupId, StoreSeq)>,
    /// What a power cut would have left when the log last said that something was durable, and what
    /// recovery finds there, once that was asked for.
    disk: SimFiles,
    found: Option<BTreeMap<GroupId, GroupView>>,
    _log: Log,
}

struct Frame {
    from: usize,
    to: usize,
    lane: Lane,
    id: SendId,
    body: Bytes,
}

struct Rig {
    nodes: Vec<Node>,
    frames: VecDeque<Frame>,
    now: Instant,
    dice: Dice,
    /// A node that nobody reaches.
    alone: Option<usize>,
    acks: u64,
    votes: u64,
    committed: u64,
}

fn node_id(node: usize) -> NodeId {
    NodeId::new(u32::try_from(node).unwrap() + 1)
}

fn index_of(node: NodeId) -> usize {
    usize::try_from(node.to_u32()).unwrap() - 1
}

fn replica(node: usize) -> ReplicaId {
    ReplicaId::new(node as u64 + 11)
}

fn open(files: &SimFiles, told: &Told) -> (Log, LogDriver, Vec<GroupView>) {
    // What a node that was away is sent at once must fit into a batch.
    let config = RawLogConfig {
        segment_bytes: 128 * 1024,
        bytes_max: 64 * 128 * 1024,
        ..small()
    };
    let (told, disk) = (Arc::clone(told), files.clone());
    Log::open_driven(LogSetup {
        files: Arc::new(files.clone()),
        config: config.try_into().unwrap(),
        clock: Arc::new(|| Duration::ZERO),
        id: ID,
        sink: Box::new(move |_, completion| {
            if let Completion::Durable(token) = completion {
                *told.lock().unwrap() = Some((token, disk.fork_synced()));
            }
        }),
    })
    .unwrap()
}

fn start(node: usize, now: Instant, seed: u64) -> Node {
    let (files, told) = (SimFiles::new(), Told::default());
    let (log, driver, _) = open(&files, &told);
    let identity = HostIdentity {
        node: node_id(node),
        shard: ShardId::new(0),
        boot: Boot::new(node as u64 + 1),
        seed,
    };
    let peers = (0..3).filter(|peer| *peer != node).map(node_id);
    let config = RaftConfig::try_from(RAFT_DEFAULTS).unwrap();
    let mut core = HostCore::new(config, identity, peers, now);
    let shard = log.shard(LogShard::new(0));
    let mut views = BTreeMap::new();
    for group in (1..=GROUPS).map(GroupId::new) {
        let view = Rc::new(RefCell::new(shard.new_group(group)));
        let members = (0..3).map(|member| Member {
            replica: replica(member),
            node: node_id(member),
            kind: MemberKind::Voter,
        });
        let spec = GroupSpec {
            group,
            replica: replica(node),
            members: members.collect(),
            preferred: replica(usize::try_from(group.to_u64()).unwrap() % 3),
            applied: Index::new(0),
        };
        core.open_group(now, spec, Rc::clone(&view)).unwrap();
        views.insert(group, view);
    }
    for peer in (0..3).filter(|peer| *peer != node) {
        core.on_peer_returned(now, node_id(peer), Boot::new(peer as u64 + 1));
    }
    Node {
        core,
        views,
        log: shard,
        driver,
        told,
        waiting: VecDeque::new(),
        disk: files.fork_synced(),
        found: None,
        _log: log,
    }
}

impl Rig {
    fn new(seed: u64) -> Self {
        let now = crate::proto::test_time::start();
        let mut dice = Dice::new(seed);
        Self {
            nodes: (0..3).map(|node| start(node, now, dice.draw())).collect(),
            frames: VecDeque::new(),
            now,
            dice,
            alone: None,
            acks: 0,
            votes: 0,
            committed: 0,
        }
    }

    /// A millisecond: frames arrive, time passes, and now and then a disk gets to write.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        for frame in std::mem::take(&mut self.frames) {
            self.deliver(frame);
        }
        for at in 0..3 {
            if self.dice.draw().is_multiple_of(3) {
                self.write(at);
            }
            let (now, node) = (self.now, &mut self.nodes[at]);
            if now >= node.core.poll_timeout() {
                node.core.on_tick(now);
            }
            self.drain(at);
        }
    }

    fn deliver(&mut self, frame: Frame) {
        let Frame {
            from,
            to,
            lane,
            id,
            body,
        } = frame;
        let (now, sender, receiver) = (self.now, node_id(from), node_id(to));
        if self.alone.is_some_and(|alone| alone == from || alone == to) {
            let core = &mut self.nodes[from].core;
            return core.on_send_ended(now, receiver, id, SendEnd::Failed);
        }
        let taken = self.nodes[to].core.on_frame(now, sender, lane, body);
        self.drain(to);
        let core = &mut self.nodes[from].core;
        match taken {
            Taken::Yes { answer } => {
                if let Some(answer) = answer {
                    core.on_round_answer(now, receiver, answer).unwrap();
                }
                core.on_send_ended(now, receiver, id, SendEnd::Replied);
            }
            Taken::Busy => core.on_send_ended(now, receiver, id, SendEnd::Untaken),
            Taken::Bad(misbehaved) => panic!("{misbehaved}"),
        }
        self.drain(from);
    }

    /// One turn of a node's log; what it says while it works is taken with the disk of that moment.
    fn write(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.driver.turn();
        let Some((token, disk)) = node.told.lock().unwrap().take() else {
            return;
        };
        (node.disk, node.found) = (disk, None);
        while let Some((_, group, seq)) = node.waiting.front().copied().filter(|w| w.0 <= token) {
            node.waiting.pop_front();
            node.core.on_stored(self.now, group, seq);
        }
        self.drain(at);
    }

    fn drain(&mut self, at: usize) {
        loop {
            let now = self.now;
            let node = &mut self.nodes[at];
            let Some(output) = node.core.poll_output() else {
                node.log.flush().unwrap();
                return;
            };
            match output {
                Output::Store { seq, mutation } => {
                    let group = mutation.group;
                    let mut view = node.views[&group].borrow_mut();
                    let token = node.log.stage(&mut view, mutation.change).unwrap();
                    if let Some(seq) = seq {
                        node.waiting.push_back((token, group, seq));
                    }
                }
                Output::Apply { group, entries } => {
                    let last = entries.last().map(|entry| entry.index).unwrap();
                    node.core.on_applied(now, group, last, Vec::new());
                    node.core.on_flushed(now, group, last);
                }
                Output::Proposal { outcome, .. } => {
                    let committed = matches!(outcome, crate::error::Outcome::Committed { .. });
                    self.committed += u64::from(committed);
                }
                Output::ControlWaits { peer } => self.fill(at, peer, Lane::Control),
                Output::BulkWaits { peer } => self.fill(at, peer, Lane::Bulk),
                Output::Read { .. } | Output::RoleChanged { .. } | Output::Flush { .. } => {}
            }
        }
    }

    fn fill(&mut self, at: usize, peer: NodeId, lane: Lane) {
        loop {
            let core = &mut self.nodes[at].core;
            let frame = match lane {
                Lane::Control => core.fill_control(self.now, peer, 16 * 1024),
                Lane::Bulk => core.fill_bulk(self.now, peer, 64 * 1024),
            };
            let Some(frame) = frame else { return };
            for item in decode(frame.body.clone()).unwrap().1 {
                if let Item::Group(message) = item {
                    self.check(at, &message);
                }
            }
            self.frames.push_back(Frame {
                from: at,
                to: index_of(peer),
                lane,
                id: frame.id,
                body: frame.body,
            });
        }
    }

    /// What a message says must be found after a power cut at the moment when the log said so.
    fn check(&mut self, at: usize, message: &GroupMessage) {
        let header = message.header;
        let node = &mut self.nodes[at];
        let disk = &node.disk;
        let find = || {
            let (_, _, views) = open(disk, &Told::default());
            views.into_iter().map(|view| (view.group(), view)).collect()
        };
        let mut durable = || {
            let found: &BTreeMap<_, GroupView> = node.found.get_or_insert_with(find);
            let view = found.get(&header.group);
            view.map(|view| (view.hard_state(), view.last_index()))
                .unwrap_or_default()
        };
        match message.body {
            GroupBody::Ack { index, .. } => {
                let (state, last) = durable();
                assert!(last >= index, "{header:?} acks {index}, {last} is synced");
                assert!(state.term >= header.term, "acked in an unsynced term");
                self.acks += 1;
            }
            GroupBody::VoteAnswer { granted: true } => {
                let (state, _) = durable();
                let voted = state.term == header.term && state.vote == Some(header.to);
                assert!(voted || state.term > header.term, "{header:?} isn't synced");
                self.votes += 1;
            }
            GroupBody::Vote { .. } => {
                let (state, _) = durable();
                assert!(state.term >= header.term, "{header:?} isn't synced");
                self.votes += 1;
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

    fn propose(&mut self, id: u64) {
        for group in (1..=GROUPS).map(GroupId::new) {
            for at in 0..3 {
                let core = &mut self.nodes[at].core;
                if core.status(group).unwrap().role != Role::Leader {
                    continue;
                }
                let size = usize::try_from(self.dice.draw() % 60).unwrap() + 1;
                let proposal = Proposal {
                    id: ProposalId::new(id * GROUPS + group.to_u64()),
                    data: vec![7; size].into(),
                    context: Bytes::new(),
                    deadline: self.now + Duration::from_secs(2),
                    forwarding: Forwarding::Never,
                    policy: Policy::Quorum,
                };
                // A refusal is no matter here.
                let _ = core.propose(self.now, group, proposal);
                self.drain(at);
            }
        }
    }
}

#[test]
fn whatever_a_node_acks_or_votes_outlives_a_power_cut_at_that_moment() {
    let mut rig = Rig::new(7);
    for round in 0..90 {
        // Each node is out of reach for a while, so that others are elected.
        rig.alone = match round % 30 {
            10..25 => Some(usize::try_from(round / 30).unwrap()),
            _ => None,
        };
        for step in 0..100 {
            if step % 10 == 0 {
                rig.propose(round * 10 + step / 10);
            }
            rig.step();
        }
    }
    let Rig {
        acks,
        votes,
        committed,
        ..
    } = rig;
    assert!(
        acks > 500 && votes > 10 && committed > 300,
        "{acks} {votes} {committed}"
    );
}
