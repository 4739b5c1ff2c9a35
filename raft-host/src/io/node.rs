//! A host: starts a node's parts in order, hands out its groups, says how it stands, and stops it
//! in order. Starting: the log is opened and read, each group's state machine is opened, the shards
//! open their groups, then the transport begins to listen. Stopping: callers are refused, what is
//! unfinished may end until the drain's time is over, then the shards end, the apply workers, the
//! log, the transport.
//!
//! Dropping a host without `shut_down` skips the drain and the transport's farewell: what is
//! unfinished ends `Unknown`, peers see their links break. It waits for its threads, so that the
//! folder can be opened again right after; only on its own `io_runtime` it can't.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use transport::io::clock;
use transport::proto::authority::Contact;
use transport::{Credentials, LifeId, Transport};

use super::apply::{ApplyPool, GroupApply};
use super::failure::{Failing, HostFailure};
use super::group::{Group, GroupsOfShard, refusal};
use super::inbound::{AnswerClock, Receiver as FrameReceiver};
use super::inbox::{Inbox, lock};
use super::life::Life;
use super::links::Links;
use super::machine::{MachineError, MachineFactory};
use super::outbox::ControlOutbox;
use super::peers;
use super::requests::Request;
use super::shard::{self, OpeningGroup, PeerEnd, ShardSetup, ShardThread, specify};
use super::storage::{Storage, random_bits};
use super::workers::Workers;
use crate::config::{GroupConfig, HostConfig};
use crate::error::{OpenError, Refusal};
use crate::id::{Boot, GroupId, NodeId, ShardId};
use crate::limits::NUMBER_MAX;
use crate::log::{Completion, GroupView, HealthReader, Log, LogSetup, LogShard, LogSink};
use crate::metrics::{GroupCounts, ShardStats, Stats};
use crate::proto::host::HostIdentity;

/// Why a host didn't start. Nothing of it runs then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The log can't be opened.
    #[error("the log can't be opened")]
    Log(#[from] crate::log::OpenError),
    /// A state machine can't be opened.
    #[error("the state machine of group {group} can't be opened")]
    Machine {
        /// The group.
        group: GroupId,
        /// Why not.
        #[source]
        source: MachineError,
    },
    /// A group can't be opened on what is there.
    #[error("a group can't be opened")]
    Group(#[from] OpenError),
    /// A group is configured twice.
    #[error("group {0} is configured twice")]
    GroupTwice(GroupId),
    /// The log holds a group that the configuration doesn't name.
    #[error("the log holds group {0}, which is not configured")]
    UnknownGroup(GroupId),
    /// Threads can't be had.
    #[error("a thread can't be started")]
    Thread(#[source] std::io::Error),
    /// The transport didn't start.
    #[error("the transport can't be started")]
    Transport(#[from] transport::io::StartError),
    /// A part of the host panicked while it started.
    #[error("a part of the host panicked at its start")]
    Panicked,
}

/// How a host ended.
#[derive(Clone, Debug)]
pub struct Final {
    /// Proposals and reads that were still unfinished when the drain's time was over.
    pub abandoned: usize,
    /// Everything that was counted.
    pub stats: Stats,
}

struct ShardEnd {
    inbox: Arc<Inbox>,
    stats: Arc<Mutex<ShardStats>>,
    thread: ShardThread,
}

/// A running node. See the head of this file for how it starts and ends.
pub struct Host {
    node: NodeId,
    config: HostConfig,
    shards: Vec<ShardEnd>,
    machines: Arc<dyn MachineFactory>,
    pool: ApplyPool,
    workers: Workers,
    log: Option<Log>,
    health: HealthReader,
    transport: Option<Arc<Transport>>,
    failing: Arc<Failing>,
    tasks: JoinSet<()>,
    ambient: Handle,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("node", &self.node)
            .field("groups", &self.config.groups().len())
            .finish_non_exhaustive()
    }
}

/// Which shard a group belongs to: the same on every node (H4).
fn shard_of(group: GroupId, shards: usize) -> usize {
    usize::try_from(group.to_u64() % shards as u64).unwrap_or(0)
}

/// What the blocking part of the start made.
struct Opened {
    log: Log,
    log_start: Instant,
    groups: Vec<Vec<OpeningGroup>>,
    new_views: Vec<crate::log::ShardLog>,
}

impl Host {
    /// Starts a node on its folder. `links` says who it is and where its peers are; what it says
    /// of the folder, incarnation and boot, is taken from `storage`.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start(
        config: HostConfig,
        storage: Storage,
        mut links: transport::Config,
        credentials: Credentials,
        machines: impl MachineFactory,
    ) -> Result<Self, StartError> {
        links.incarnation = storage.incarnation();
        links.boot = storage.boot();
        links.contact = Contact::FirstCounts;
        links.records = storage.peers().clone();
        let (folder, seen) = (storage.folder().to_owned(), storage.peers().clone());
        let node = NodeId::new(links.identity.node.to_u32());
        let nodes: Vec<_> = links
            .peers
            .keys()
            .map(|p| NodeId::new(p.to_u32()))
            .collect();
        let inboxes: Vec<_> = (0..config.shards())
            .map(|_| Arc::new(Inbox::new()))
            .collect();
        let failing = Arc::new(Failing::new(inboxes.clone()));
        let machines: Arc<dyn MachineFactory> = Arc::new(machines);
        let opening = {
            let (config, nodes, inboxes) = (config.clone(), nodes.clone(), inboxes.clone());
            let machines = Arc::clone(&machines);
            move || open(&config, node, &nodes, &storage, &inboxes, &*machines)
        };
        let opened = tokio::task::spawn_blocking(opening).await;
        let opened = opened.map_err(|_| StartError::Panicked)??;
        let pool = ApplyPool::start(config.apply_workers(), Arc::clone(&failing));
        let pool = pool.map_err(StartError::Thread)?;
        let health = opened.log.health_reader();
        let proposals = inboxes.iter().map(|inbox| inbox.proposals().clone());
        let workers = Workers::new(config.commit_wait(), proposals.collect());
        let mut host = Self {
            node,
            config,
            workers,
            shards: Vec::new(),
            machines,
            pool,
            log: None,
            health,
            transport: None,
            failing,
            tasks: JoinSet::new(),
            ambient: Handle::current(),
        };
        // From here on dropping the host ends what has begun.
        let life = Life {
            boot: Boot::new(1 + random_bits() % (NUMBER_MAX - 1)),
            shards: host.config.shards(),
        };
        let waiting = host.start_shards(opened, life, &nodes, &inboxes)?;
        links.life = LifeId::from_random(life.boot.to_u64());
        links.sync_number = host.health.health().sync_number;
        host.connect(waiting, links, credentials, life, &inboxes)
            .await?;
        host.workers.start(&host.io_runtime());
        if let Some(transport) = &host.transport {
            let transport = Arc::downgrade(transport);
            host.tasks.spawn(peers::keep(transport, folder, seen));
        }
        Ok(host)
    }

    fn start_shards(
        &mut self,
        opened: Opened,
        life: Life,
        nodes: &[NodeId],
        inboxes: &[Arc<Inbox>],
    ) -> Result<Vec<oneshot::Sender<Vec<PeerEnd>>>, StartError> {
        let Opened {
            log,
            log_start,
            groups,
            new_views,
        } = opened;
        self.log = Some(log);
        let (mut ends, mut results) = (Vec::new(), Vec::new());
        let parts = inboxes.iter().zip(groups).zip(new_views).zip(0..);
        for (((inbox, groups), shard_log), number) in parts {
            let shard = ShardId::new(number);
            let stats = Arc::new(Mutex::new(ShardStats::new(shard)));
            let (peers, peers_of_shard) = oneshot::channel();
            let (result, opened) = sync_channel(1);
            let setup = ShardSetup {
                identity: HostIdentity {
                    node: self.node,
                    shard,
                    boot: life.boot,
                    seed: random_bits(),
                },
                raft: self.config.raft(),
                holds_logs: self.config.holds_logs(),
                inbox: Arc::clone(inbox),
                log: shard_log,
                health: self.health.clone(),
                log_start,
                groups,
                nodes: nodes.to_vec(),
                apply: self.pool.queue(),
                failing: Arc::clone(&self.failing),
                stats: Arc::clone(&stats),
            };
            let thread = shard::start(setup, result, peers_of_shard);
            self.shards.push(ShardEnd {
                inbox: Arc::clone(inbox),
                stats,
                thread: thread.map_err(StartError::Thread)?,
            });
            ends.push(peers);
            results.push(opened);
        }
        for result in results {
            let result: Receiver<Result<(), OpenError>> = result;
            result.recv().map_err(|_| StartError::Panicked)??;
        }
        Ok(ends)
    }

    async fn connect(
        &mut self,
        waiting: Vec<oneshot::Sender<Vec<PeerEnd>>>,
        links: transport::Config,
        credentials: Credentials,
        life: Life,
        inboxes: &[Arc<Inbox>],
    ) -> Result<(), StartError> {
        let limit = self.config.raft().election_timeout();
        let limit = limit.min(links.tuning.reply_timeout());
        let known = Arc::new(Links::new(life, inboxes.to_vec()));
        let ids: Vec<_> = links.peers.keys().copied().collect();
        let outboxes: Vec<_> = ids
            .into_iter()
            .map(|id| {
                let peer = NodeId::new(id.to_u32());
                let links = Arc::clone(&known);
                let outbox = Arc::new(ControlOutbox::new(peer, life, limit, inboxes, links));
                known.add_peer(peer, Arc::clone(&outbox));
                (id, outbox)
            })
            .collect();
        let answers = Arc::new(AnswerClock::default());
        let receiver = FrameReceiver {
            shards: inboxes.to_vec(),
            links: Arc::clone(&known),
            answers: Arc::clone(&answers),
            life,
        };
        let starting = Transport::start(links, credentials, Arc::new(receiver));
        let starting = self.io_runtime().spawn(starting).await;
        let transport = starting.map_err(|_| StartError::Panicked)??;
        let transport = Arc::new(transport);
        self.transport = Some(Arc::clone(&transport));
        let events = transport.subscribe();
        let mut ends: Vec<Vec<PeerEnd>> = inboxes.iter().map(|_| Vec::new()).collect();
        for (id, outbox) in outboxes {
            // It is one of those that the transport was started with.
            let Ok(lane) = transport.peer(id) else {
                continue;
            };
            lane.set_control_source(Arc::clone(&outbox) as Arc<dyn transport::ControlSource>);
            outbox.set_lane(lane.clone());
            for ends in &mut ends {
                ends.push(PeerEnd {
                    node: NodeId::new(id.to_u32()),
                    lane: lane.clone(),
                    outbox: Arc::clone(&outbox),
                });
            }
        }
        for (sender, ends) in waiting.into_iter().zip(ends) {
            // A shard that ended meanwhile has said why.
            drop(sender.send(ends));
        }
        self.tasks.spawn(answers.run());
        let weak = Arc::downgrade(&transport);
        self.tasks.spawn(known.watch(weak.clone(), events));
        self.tasks
            .spawn(tell_sync_number(weak, self.health.clone()));
        Ok(())
    }

    /// This node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Where its transport listens, until it is shut down.
    #[must_use]
    pub fn local_addr(&self) -> Option<std::net::SocketAddr> {
        self.transport
            .as_ref()
            .map(|transport| transport.local_addr())
    }

    /// Where tasks that talk to this host at every turn run best, such as a front that takes its
    /// clients' commands: on the thread of a node's only shard, else on the runtime that the host was
    /// started on (ADR 0024). The host's links run there too, so these tasks must not block. They end
    /// with the host at the latest.
    #[must_use]
    pub fn io_runtime(&self) -> Handle {
        match &self.shards[..] {
            [only] => only.thread.runtime().clone(),
            _ => self.ambient.clone(),
        }
    }

    /// A group, whether this node has it or not: what is asked of one it hasn't is refused.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Group {
        let number = shard_of(id, self.shards.len());
        let shard = &self.shards[number];
        // As long as proposals are held for a group without a leader.
        let patience = self.config.raft().election_timeout() * 3 / 2;
        let shard = (number, Arc::clone(&shard.inbox));
        Group::new(id, shard, self.workers.clone(), patience)
    }

    /// The quorum-ack waiter's switches, for as long as the host runs.
    #[must_use]
    pub fn commit_wait(&self) -> CommitWait {
        CommitWait {
            workers: self.workers.clone(),
        }
    }

    /// Its shards, each with its groups.
    #[must_use]
    pub fn shards(&self) -> Vec<GroupsOfShard> {
        let inboxes = self.shards.iter().map(|shard| Arc::clone(&shard.inbox));
        inboxes.map(GroupsOfShard::new).collect()
    }

    /// Opens a group that isn't in the configuration. All nodes of its members must do so; it is
    /// there again after a restart only if it is configured by then.
    ///
    /// # Errors
    /// [`StartError`] as for a configured group.
    pub async fn create_group(&self, config: GroupConfig) -> Result<(), CreateError> {
        let group = config.group;
        let machines = Arc::clone(&self.machines);
        let opened = tokio::task::spawn_blocking(move || machines.open(group)).await;
        let machine = opened.unwrap_or(Err(MachineError::Panicked))?;
        let (reply, answer) = oneshot::channel();
        let shard = &self.shards[shard_of(group, self.shards.len())];
        let request = Request::Create {
            config,
            machine,
            reply,
        };
        let put = shard.inbox.put_request(request);
        put.map_err(|(_, waiting)| CreateError::Refused(refusal(waiting)))?;
        let stopped = |_| CreateError::Refused(Refusal::Stopped);
        Ok(answer.await.map_err(stopped)??)
    }

    /// The control window that the links' sessions to come claim.
    ///
    /// # Errors
    /// As [`Transport::set_control_window`]; nothing is changed then.
    pub fn set_control_window(&self, frames: u16) -> Result<(), transport::config::ConfigError> {
        self.transport
            .as_ref()
            .map_or(Ok(()), |transport| transport.set_control_window(frames))
    }

    /// How the node stands. Each shard's numbers are of one moment, at most a heartbeat interval
    /// ago; the log's and each lane's are of now.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        let status = self.transport.as_ref()?.status();
        Some(self.stats_with(status))
    }

    fn stats_with(&self, transport: transport::io::Status) -> Stats {
        let shards: Vec<_> = self.shards.iter().map(|s| lock(&s.stats).clone()).collect();
        let mut groups = GroupCounts::default();
        for shard in &shards {
            groups.add(&shard.groups);
        }
        Stats {
            node: self.node,
            groups,
            shards,
            commit_wait: self.workers.stats(),
            log: self.health.health(),
            transport,
            failure: self.failing.get(),
        }
    }

    /// Why the node has stopped, if it has; a receiver sees it when it does. The embedder ends its
    /// process then: nothing here works any more.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<HostFailure>> {
        self.failing.subscribe()
    }

    /// Stops in order; see the head of this file.
    ///
    /// # Cancel safety
    /// Dropping the future drops the host.
    pub async fn shut_down(mut self) -> Final {
        let until = clock::now() + self.config.drain_timeout();
        // Before the shards' drains: nothing is published after this, and what was is taken with them.
        self.workers.close();
        let mut drains = Vec::new();
        for shard in &self.shards {
            let (reply, answer) = oneshot::channel();
            // One that has stopped has nothing left to drain.
            if shard.inbox.begin_drain(Request::Drain { until, reply }) {
                drains.push(answer);
            }
        }
        let mut abandoned = 0;
        for drain in drains {
            abandoned += drain.await.unwrap_or(0);
        }
        if abandoned > 0 {
            tracing::warn!(abandoned, "stopped with proposals or reads unfinished");
        }
        let transport = self.transport.take();
        self.tasks.shutdown().await;
        let stopped = tokio::task::spawn_blocking(move || {
            self.stop_parts();
            self
        })
        .await;
        let status = match transport.map(Arc::try_unwrap) {
            Some(Ok(transport)) => Some(transport.shut_down(FAREWELL).await),
            Some(Err(shared)) => Some(shared.status()),
            None => None,
        };
        match (stopped, status) {
            (Ok(host), Some(status)) => Final {
                abandoned,
                stats: host.stats_with(status),
            },
            (Ok(_) | Err(_), _) => unreachable!("a host has its transport until it is shut down"),
        }
    }

    /// Ends the shards, the apply workers and the log; the shards' threads go on for what else
    /// runs on them.
    fn stop_parts(&mut self) {
        self.workers.close();
        for shard in &self.shards {
            shard.inbox.stop();
        }
        for shard in &self.shards {
            shard.thread.wait_ended();
        }
        self.pool.stop();
        if let Some(log) = self.log.take() {
            log.close();
        }
    }

    fn join_threads(&mut self) {
        for shard in &mut self.shards {
            shard.thread.join();
        }
    }
}

/// The switches of a running host's waiter. Both act at once, on what is proposed from then on; what
/// is under way stays as it was begun.
#[derive(Clone, Debug)]
pub struct CommitWait {
    workers: Workers,
}

impl CommitWait {
    /// Whether proposals are handed off.
    pub fn set_enabled(&self, enabled: bool) {
        self.workers.places().set_enabled(enabled);
    }

    /// How many may be handed off at once. With 0 all wait inline.
    pub fn set_max_outstanding(&self, max_outstanding: u32) {
        let cap = usize::try_from(max_outstanding).unwrap_or(usize::MAX);
        self.workers.places().set_cap(cap);
    }
}

/// How long the transport may take for what was sent before the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a group wasn't created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Its state machine can't be opened.
    #[error("the group's state machine can't be opened")]
    Machine(#[from] MachineError),
    /// It can't be opened on what is there.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The node takes no requests.
    #[error(transparent)]
    Refused(Refusal),
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.shards.iter().any(|shard| shard.thread.is_current()) {
            // Waiting here would be for ever: they are told, and end by themselves.
            tracing::warn!("a host was dropped on its own io runtime; its end isn't waited for");
            self.workers.close();
            self.shards.iter().for_each(|shard| shard.inbox.stop());
            return;
        }
        self.stop_parts();
        self.join_threads();
    }
}

/// Tells hellos to come how far the log is (safety 21).
async fn tell_sync_number(transport: std::sync::Weak<Transport>, health: HealthReader) {
    loop {
        let Some(transport) = transport.upgrade() else {
            return;
        };
        transport.set_sync_number(health.health().sync_number);
        drop(transport);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The blocking part of the start: the log is read and every state machine opened.
fn open(
    config: &HostConfig,
    node: NodeId,
    peers: &[NodeId],
    storage: &Storage,
    inboxes: &[Arc<Inbox>],
    machines: &dyn MachineFactory,
) -> Result<Opened, StartError> {
    let log_start = clock::now();
    let (log, views) = Log::open(LogSetup {
        files: storage.files(),
        config: config.log(),
        clock: Arc::new(move || clock::now().saturating_duration_since(log_start)),
        id: storage.incarnation().to_bytes(),
        sink: sink(inboxes.to_vec()),
    })?;
    let mut views: BTreeMap<_, _> = views.into_iter().map(|v| (v.group(), v)).collect();
    let shard_logs: Vec<_> = (0..inboxes.len())
        .map(|shard| log.shard(LogShard::new(u32::try_from(shard).unwrap_or(u32::MAX))))
        .collect();
    let mut groups: Vec<Vec<OpeningGroup>> = inboxes.iter().map(|_| Vec::new()).collect();
    let mut seen = std::collections::BTreeSet::new();
    for wanted in config.groups() {
        let group = wanted.group;
        if !seen.insert(group) {
            return Err(StartError::GroupTwice(group));
        }
        let at = shard_of(group, inboxes.len());
        let view: GroupView = match views.remove(&group) {
            Some(view) => view,
            None => shard_logs[at].new_group(group),
        };
        let machine = machines.open(group);
        let machine = machine.map_err(|source| StartError::Machine { group, source })?;
        let applied = machine.applied();
        let spec = specify(node, peers, wanted, applied, &view)?;
        let inbox = Arc::clone(&inboxes[at]);
        let machine = Arc::new(GroupApply::new(group, machine, applied.index, inbox));
        groups[at].push(OpeningGroup {
            spec,
            view,
            machine,
        });
    }
    if let Some(group) = views.into_keys().next() {
        return Err(StartError::UnknownGroup(group));
    }
    Ok(Opened {
        log,
        log_start,
        groups,
        new_views: shard_logs,
    })
}

/// Tells the shards what the log says.
fn sink(inboxes: Vec<Arc<Inbox>>) -> LogSink {
    Box::new(move |shard, completion| {
        let inbox = usize::try_from(shard.to_u32())
            .ok()
            .and_then(|shard| inboxes.get(shard));
        match (inbox, completion) {
            (Some(inbox), Completion::Durable(token)) => inbox.put_durable(token),
            (Some(inbox), Completion::Failed(failure)) => inbox.put_log_failure(failure),
            (None, _) => {}
        }
    })
}
