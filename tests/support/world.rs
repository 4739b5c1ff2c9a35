//! A whole cluster in one thread from one seed: the shipped cores of transport, host and log, and
//! around them a world whose time, bytes on links and files are simulated, and nothing else. A run
//! prints its seed first (whoever runs it does) and goes the same way each time.
//!
//! A run has three parts: faults for a while; then everything is mended and the cluster must serve
//! and agree again within a stated time; then the links are shut down and every account must be
//! empty. What must hold all along is in [`crate::oracle`], and is checked as things happen.
//!
//! - V1: the only order is that of [`events::Events`]; nothing reads a clock, a thread or a hash
//!   map's order.
//! - V2: every choice is drawn from the seed.

mod carrying;
pub mod clients;
pub mod clock;
pub mod dice;
pub mod disk;
pub mod events;
pub mod focus;
mod hosting;
pub mod links;
pub mod machine;
mod nemesis;
pub mod network;
pub mod node;
mod recovery;
mod requests;
mod run;
mod sessions;
pub mod shape;
pub mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use raft_host::id::GroupId;

use self::clients::{Client, Histories};
use self::clock::{MS, Nanos, NodeClock};
use self::dice::Dice;
use self::disk::Disk;
use self::events::{Event, Events};
use self::focus::{Focus, Script};
use self::network::Network;
use self::node::{Node, Started};
use self::shape::Shape;
use self::trace::Trace;
use crate::oracle::safety::Safety;

pub use self::run::{Failure, Summary, run_seed, run_seed_traced};

/// What became of one attempt to propose something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Attempt {
    /// Where it was applied first, if anywhere.
    applied: bool,
    /// Its proposer was told that it has no effect.
    refused: bool,
}

/// What was counted in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events.
    pub events: u64,
    /// Faults.
    pub faults: u64,
    /// Processes killed and machines without power.
    pub crashes: u64,
    /// Frames sent.
    pub frames: u64,
    /// Entries applied, over all nodes.
    pub applied: u64,
    /// Sessions that came up.
    pub sessions: u64,
}

/// The world of one run.
#[derive(Debug)]
pub struct World {
    seed: u64,
    shape: Shape,
    now: Nanos,
    events: Events,
    dice: Dice,
    trace: Trace,
    network: Network,
    disks: Vec<Disk>,
    /// What is done in the place of chance.
    script: Option<Script>,
    nodes: Vec<Option<Box<Node>>>,
    clocks: Vec<NodeClock>,
    /// Until when a process is stopped.
    paused: Vec<Nanos>,
    /// Whether a machine without a process has power: what is sent to it is refused at once.
    powered: Vec<bool>,
    /// How long a node's syncs take, and whether they hang.
    sync_time: Vec<(Nanos, Nanos)>,
    hung: BTreeSet<usize>,
    /// The next sync of a node's disk fails.
    sync_fails: BTreeSet<usize>,
    clients: Vec<Client>,
    histories: Histories,
    safety: Safety,
    attempts: BTreeMap<u64, Attempt>,
    /// The first outcome under each request id, encoded.
    outcomes: BTreeMap<multigroup::session::RequestId, bytes::Bytes>,
    /// What was sent under each client's number.
    sent: BTreeMap<(usize, u64), clients::Doing>,
    next_sync: u64,
    /// There are faults no more.
    mended: bool,
    /// Clients begin nothing more.
    resting: bool,
    counts: Counts,
    /// Requests of the recovery, by number, and those places that were answered.
    probes: BTreeMap<u64, (GroupId, usize)>,
    probed: BTreeSet<(GroupId, usize)>,
    /// When a replica's role last changed.
    role_changed: Nanos,
}

impl World {
    /// The world of a seed, with every node started.
    ///
    /// # Panics
    /// When a start fails.
    #[must_use]
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut dice = Dice::new(seed);
        let mut shape = Shape::draw(&mut dice);
        let focus = Focus::of(seed);
        if let Some(focus) = focus {
            focus.bend(&mut shape, &mut dice);
        }
        let nodes = shape.nodes;
        let clocks = (0..nodes).map(|node| NodeClock::new(dice.below(1000) * MS + node as u64));
        let clocks: Vec<_> = clocks.collect();
        let clients = (0..shape.clients).map(|_| Client::new(dice.fork()));
        let clients: Vec<_> = clients.collect();
        let network = Network::new(dice.fork());
        let mut world = Self {
            seed,
            script: focus.map(Focus::script),
            now: 0,
            events: Events::default(),
            trace,
            network,
            disks: (0..nodes).map(|_| Disk::default()).collect(),
            nodes: (0..nodes).map(|_| None).collect(),
            clocks,
            paused: vec![0; nodes],
            powered: vec![true; nodes],
            sync_time: vec![(MS / 20, MS / 2); nodes],
            hung: BTreeSet::new(),
            sync_fails: BTreeSet::new(),
            clients,
            histories: Histories::default(),
            safety: Safety::default(),
            attempts: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            sent: BTreeMap::new(),
            next_sync: 0,
            mended: false,
            resting: false,
            counts: Counts::default(),
            probes: BTreeMap::new(),
            probed: BTreeSet::new(),
            role_changed: 0,
            dice,
            shape,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for node in 0..self.shape.nodes {
            let at = self.dice.below(20 * MS);
            self.events.push(at, Event::Boot { node, boots: 0 });
        }
        for client in 0..self.clients.len() {
            let at = 100 * MS + self.dice.below(100 * MS);
            self.events.push(at, Event::Client { client, attempt: 0 });
        }
        let at = 300 * MS + self.dice.below(self.shape.fault_pause);
        self.events.push(at, Event::Nemesis);
    }

    /// Ends the run: something that must hold doesn't.
    fn fail(&self, what: &str) -> ! {
        panic!("seed {}, at {:.6} s: {what}", self.seed, seconds(self.now));
    }

    fn require(&self, held: Result<(), String>) {
        if let Err(what) = held {
            self.fail(&what);
        }
    }

    fn local(&self, node: usize) -> Instant {
        self.clocks[node].instant(self.now)
    }

    /// The node an event is for; it waits while that node is stopped.
    fn addressee(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Wake { node, .. }
            | Event::Dial { node, .. }
            | Event::Dialled { node, .. }
            | Event::LogTurn { node, .. }
            | Event::Synced { node, .. }
            | Event::Apply { node, .. }
            | Event::Request { node, .. } => Some(*node),
            Event::Look { connection, end } => {
                let connection = self.network.connections.get(connection)?;
                Some(connection.node(*end))
            }
            Event::Boot { .. } | Event::Answer { .. } | Event::Client { .. } | Event::Nemesis => {
                None
            }
        }
    }

    /// Lets everything happen that happens by `end`.
    fn run_to(&mut self, end: Nanos) {
        while let Some((at, event)) = self.events.pop(end) {
            self.now = self.now.max(at);
            if let Some(node) = self.addressee(&event)
                && self.paused[node] > self.now
            {
                self.events.push(self.paused[node], event);
                continue;
            }
            self.counts.events += 1;
            self.trace.mix(&[self.now]);
            self.handle(event);
        }
        self.now = self.now.max(end);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake { node, life } => {
                if let Some(found) = self.alive(node, life) {
                    found.wake_at = None;
                    self.turn(node);
                }
            }
            Event::Look { connection, end } => self.look(connection, end),
            Event::Dial {
                node,
                life,
                peer,
                lane,
            } => self.dial(node, life, peer, lane),
            Event::Dialled {
                node,
                life,
                peer,
                lane,
            } => self.dialled(node, life, peer, lane),
            Event::LogTurn { node, life } => self.log_turn(node, life),
            Event::Synced { node, life, number } => self.synced(node, life, number),
            Event::Apply { node, life, group } => self.apply(node, life, group),
            Event::Boot { node, boots } => self.boot(node, boots),
            Event::Request {
                client,
                attempt,
                node,
            } => self.request(client, attempt, node),
            Event::Answer {
                client,
                attempt,
                answer,
            } => self.answered(client, attempt, answer),
            Event::Client { client, attempt } => self.client(client, attempt),
            Event::Nemesis => self.nemesis(),
        }
    }

    fn alive(&mut self, node: usize, life: u64) -> Option<&mut Node> {
        let found = self.nodes[node].as_deref_mut()?;
        (found.life == life).then_some(found)
    }

    /// Starts a node, if nobody has since this was planned.
    fn boot(&mut self, node: usize, boots: u64) {
        if self.nodes[node].is_some() || self.disks[node].boots != boots {
            return;
        }
        self.powered[node] = true;
        self.paused[node] = 0;
        self.disks[node].boots += 1;
        let (reading, now) = (self.clocks[node].reading(self.now), self.local(node));
        let dice = self.dice.fork();
        let disk = &mut self.disks[node];
        let started = Node::start(node, &self.shape, disk, reading, now, dice);
        let boots = self.disks[node].boots;
        match started {
            Ok(Started::Node(found)) => {
                self.trace.line(self.now, Some(node), None, || {
                    format!("starts, life {boots}")
                });
                self.nodes[node] = Some(found);
                for peer in (0..self.shape.nodes).filter(|peer| *peer != node) {
                    self.plan_dial(node, boots, peer, transport::Lane::Control, 0);
                }
                self.turn(node);
            }
            Ok(Started::NotNow) => {
                self.trace
                    .line(self.now, Some(node), None, || "can't start now".to_owned());
                self.disks[node].process_died();
                self.events
                    .push(self.now + 100 * MS, Event::Boot { node, boots });
            }
            Err(what) => self.fail(&format!("node {}: {what}", node + 1)),
        }
    }
}

fn seconds(now: Nanos) -> f64 {
    // For a person: what is lost beyond 2^53 ns is nothing.
    #[expect(clippy::cast_precision_loss, reason = "it is printed with six digits")]
    let seconds = now as f64 / 1e9;
    seconds
}
