//! One node: the shipped cores and what the shell would hold for them. Its start from what is on its
//! disk; its end.
//!
//! Left out of the shell, and stood in for here: threads, TLS (a session's keys are drawn from its
//! number), SQLite (`machine`). What the shell decides about links is done over in `sessions`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raft_host::id::{Boot, GroupId, NodeId, ProposalId, ReadId, ReplicaId, ShardId};
use raft_host::log::api::LogEntry;
use raft_host::log::{Completion, GroupView, Log, LogDriver, LogSetup, LogShard, OpenError};
use raft_host::proto::host::{GroupSpec, HostCore, HostIdentity, Member, MemberKind};
use raft_host::stores::Stores;
use transport::budget::{Budget, BudgetLimits};
use transport::id::{Incarnation, LifeId, NodeIdentity, PeerId};
use transport::proto::authority::{Authority, Contact};
use transport::{Amount, ClusterName};

use super::clock::Nanos;
use super::dice::Dice;
use super::disk::Disk;
use super::links::{InboundEnd, PeerEnd};
use super::machine::Machine;
use super::shape::Shape;

/// A group's log as its replica sees it.
pub type View = Rc<RefCell<GroupView>>;

/// What the log has said, and whether a sync was still under way behind it.
pub type Told = Arc<Mutex<Vec<(Completion, bool)>>>;

/// A sync of the log.
#[derive(Debug)]
pub struct Sync {
    /// Its number, so that its end finds it.
    pub number: u64,
    /// When it began, on the node's clock.
    pub since: Instant,
    /// What the log says once it is over.
    pub then: Vec<Completion>,
    /// Whether there is more to do after it.
    pub more: bool,
    /// It hangs until the disk is mended.
    pub hangs: bool,
}

/// A node that runs.
pub struct Node {
    /// Which life of it this is.
    pub life: u64,
    /// What its hellos call that life.
    pub life_id: LifeId,
    /// How far its log was synced as it was opened.
    pub opened_at_sync: u64,
    /// The core of its one shard.
    pub core: HostCore<View>,
    /// Its writes.
    pub stores: Stores,
    /// Its groups' logs.
    pub views: BTreeMap<GroupId, View>,
    /// Its log.
    pub log: Log,
    /// The log's own side.
    pub driver: LogDriver,
    /// What the log has said.
    pub told: Told,
    /// The log's sync under way.
    pub sync: Option<Sync>,
    /// Something was handed to the log since its last turn.
    pub log_dirty: bool,
    /// A turn of the log is coming.
    pub log_turn: bool,
    /// Its log or its shard has failed: it must stop.
    pub failed: Option<String>,
    /// Its state machines.
    pub machines: BTreeMap<GroupId, Machine>,
    /// What waits for them.
    pub applying: BTreeMap<GroupId, VecDeque<LogEntry>>,
    /// Its budgets.
    pub budget: Budget,
    /// Whom it takes for whom.
    pub authority: Authority,
    /// Its ends of the links, by peer.
    pub peers: BTreeMap<usize, PeerEnd>,
    /// Sessions that others dialled.
    pub inbound: BTreeMap<u64, InboundEnd>,
    /// Whose proposal that is: client and request.
    pub proposals: BTreeMap<ProposalId, (usize, u64, Instant)>,
    /// Whose read that is.
    pub reads: BTreeMap<ReadId, (usize, u64, Instant)>,
    /// The next name of either.
    pub next_id: u64,
    /// The disk makes nothing durable: it acts as if every link were lost.
    pub disk_stalled: bool,
    /// When its next look at the clock is due.
    pub wake_at: Option<Nanos>,
    /// The log's clock.
    pub log_clock: Arc<AtomicU64>,
    /// Chance of its own.
    pub dice: Dice,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("life", &self.life)
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

/// A node's number among hosts.
#[must_use]
pub fn node_id(node: usize) -> NodeId {
    NodeId::new(u32::try_from(node).unwrap_or(u32::MAX - 1) + 1)
}

/// Which node that is.
#[must_use]
pub fn node_of(id: NodeId) -> usize {
    usize::try_from(id.to_u32()).unwrap_or(usize::MAX) - 1
}

/// A node's number among transports.
///
/// # Panics
/// Never: the number isn't 0.
#[must_use]
pub fn peer_id(node: usize) -> PeerId {
    PeerId::new(node_id(node).to_u32()).expect("numbers begin at 1")
}

/// A node's replica of each group.
#[must_use]
pub fn replica_of(node: usize) -> ReplicaId {
    ReplicaId::new(node as u64 + 11)
}

/// The life of a host, by the boots of its folder.
#[must_use]
pub fn boot_of(node: usize, boots: u64) -> Boot {
    Boot::new((node as u64 + 1) * 1000 + boots)
}

/// The cluster's name.
///
/// # Panics
/// Never: it is a name.
#[must_use]
pub fn cluster() -> ClusterName {
    "sim".parse().expect("a name")
}

/// Who a node is to transports.
#[must_use]
pub fn identity(node: usize) -> NodeIdentity {
    NodeIdentity::new(cluster(), peer_id(node))
}

/// A node's folder.
#[must_use]
pub fn incarnation(node: usize) -> Incarnation {
    Incarnation::new([u8::try_from(node + 1).unwrap_or(u8::MAX); 16])
}

fn log_id(node: usize) -> [u8; 16] {
    [u8::try_from(node + 65).unwrap_or(u8::MAX); 16]
}

/// What came of a start.
#[derive(Debug)]
pub enum Started {
    /// It runs.
    Node(Box<Node>),
    /// The disk has no room, or failed, right now.
    NotNow,
}

impl Node {
    /// Starts a node on what its disk holds.
    ///
    /// # Errors
    /// What no start after any crash may come to.
    pub fn start(
        node: usize,
        shape: &Shape,
        disk: &mut Disk,
        reading: Nanos,
        now: Instant,
        mut dice: Dice,
    ) -> Result<Started, String> {
        let log_clock = Arc::new(AtomicU64::new(reading));
        let told = Told::default();
        let (log, driver, views) = match open_log(node, shape, disk, &log_clock, &told) {
            Ok(opened) => opened,
            Err(OpenError::Start(_) | OpenError::Io { .. }) => return Ok(Started::NotNow),
            Err(error) => return Err(format!("the log refuses to open: {error:?}")),
        };
        disk.check_recovered(&views)?;
        disk.sync_number = log.health().sync_number;
        let identity_here = HostIdentity {
            node: node_id(node),
            shard: ShardId::new(0),
            boot: boot_of(node, disk.boots),
            seed: dice.draw(),
        };
        let others: Vec<_> = (0..shape.nodes).filter(|peer| *peer != node).collect();
        let ids = others.iter().map(|peer| node_id(*peer));
        let mut core = HostCore::new(shape.raft, identity_here, ids, now);
        let stores = Stores::new(log.shard(LogShard::new(0)));
        let mut found: BTreeMap<_, _> =
            views.into_iter().map(|view| (view.group(), view)).collect();
        let mut open = BTreeMap::new();
        for group in shape.groups() {
            let view = found.remove(&group);
            let view = Rc::new(RefCell::new(
                view.unwrap_or_else(|| stores.new_group(group)),
            ));
            let machine = disk.machines.entry(group).or_default();
            let spec = spec_of(node, shape, group, machine);
            core.open_group(now, spec, Rc::clone(&view))
                .map_err(|error| format!("group {group} can't be opened: {error}"))?;
            open.insert(group, view);
        }
        let budget = Budget::new(BudgetLimits {
            peer: Amount::new(512, 4 << 20),
            node: Amount::new(2048, 16 << 20),
        });
        let mut peers = BTreeMap::new();
        for peer in &others {
            let own = boot_of(node, disk.boots);
            let end = PeerEnd::new(shape, own, budget.open_peer(), &mut dice);
            peers.insert(*peer, end);
        }
        let authority = Authority::new(identity(node), others.iter().map(|peer| peer_id(*peer)))
            .remembering(Contact::FirstCounts, &disk.records);
        let life_id = LifeId::from_random(dice.draw());
        Ok(Started::Node(Box::new(Self {
            life: disk.boots,
            life_id,
            opened_at_sync: disk.sync_number,
            core,
            stores,
            views: open,
            log,
            driver,
            told,
            sync: None,
            log_dirty: false,
            log_turn: false,
            failed: None,
            machines: disk.machines.clone(),
            applying: BTreeMap::new(),
            budget,
            authority,
            peers,
            inbound: BTreeMap::new(),
            proposals: BTreeMap::new(),
            reads: BTreeMap::new(),
            next_id: 0,
            disk_stalled: false,
            wake_at: None,
            log_clock,
            dice,
        })))
    }

    /// The next name of a proposal or read.
    pub fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

fn open_log(
    node: usize,
    shape: &Shape,
    disk: &Disk,
    clock: &Arc<AtomicU64>,
    told: &Told,
) -> Result<(Log, LogDriver, Vec<GroupView>), OpenError> {
    let (clock, told, slow) = (Arc::clone(clock), Arc::clone(told), disk.slow.clone());
    Log::open_driven(LogSetup {
        files: Arc::new(disk.slow.clone()),
        config: shape.log,
        clock: Arc::new(move || Duration::from_nanos(clock.load(Ordering::Relaxed))),
        id: log_id(node),
        sink: Box::new(move |_, completion| {
            let under_way = slow.is_syncing();
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            told.push((completion, under_way));
        }),
    })
}

fn spec_of(node: usize, shape: &Shape, group: GroupId, machine: &Machine) -> GroupSpec {
    let member = |member| Member {
        replica: replica_of(member),
        node: node_id(member),
        kind: MemberKind::Voter,
    };
    let turn = usize::try_from(group.to_u64()).unwrap_or(0) % shape.nodes;
    GroupSpec {
        group,
        replica: replica_of(node),
        members: (0..shape.nodes).map(member).collect(),
        preferred: replica_of(turn),
        applied: machine.applied.0,
    }
}
