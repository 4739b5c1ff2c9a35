//! One shard's thread: it owns its groups' core, and their ends of the log and of the links. It
//! takes what waits in its inbox, applies it to the core, and drains what the core wants done:
//! writes go to the log, entries to the apply workers, outcomes to their callers, frames to the
//! transport. All that came in one turn is written and sent together.
//!
//! Leaves to others: every decision of the protocol (`proto/host.rs`), syncing (`log`), running
//! state machines (`apply.rs`), carrying frames (`outbox.rs` and the transport).
//!
//! The thread is an event loop: the shard is its first task, and what is spawned on
//! [`ShardThread::runtime`] runs between the shard's turns. A node's only shard carries the links
//! and the clients so, and nothing that concerns them has to wake another thread (ADR 0024).
//!
//! - S1: it never waits but for its inbox: room is reserved at once or not at all, and what has
//!   no room stays in the core until some comes back (safety 17).
//! - S2: a group's writes reach the log in the core's order, also those it had no room for.
//! - S3: every request ends with one answer, also when the shard stops.
//! - S4: ticks are never made up: the core is told the time once a turn, whatever it has become.
//!
//! Started by the host; the shard ends by `Inbox::stop` or a failure of the log, its thread with
//! [`ShardThread::join`]. If the shard panics, the node stops: its callers are told that the fate of
//! what they proposed is unknown. A panic of another task on the thread ends that task.

mod frames;
mod groups;
mod serve;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot::{self, Sender};
use tokio::time::sleep_until;
use transport::io::clock;

pub(super) use self::groups::specify;
use self::groups::{GroupEnd, Roles};
use super::apply::{ApplyQueue, GroupApply};
use super::failure::{Failing, HostFailure};
use super::inbox::{Inbox, Note, Work, lock, room_waker};
use super::outbox::ControlOutbox;
use super::requests::answer;
use super::workers::Owed;
use crate::config::RaftConfig;
use crate::error::{OpenError, ReadFailed};
use crate::id::{Boot, GroupId, Index, NodeId, ProposalId, ReadId, UnixMillis};
use crate::log::{GroupView, HealthReader, ShardLog};
use crate::metrics::ShardStats;
use crate::proto::host::{GroupSpec, HostCore, HostIdentity, Output};
use crate::stores::Stores;

/// A group that is opened with its shard.
pub(super) struct OpeningGroup {
    pub(super) spec: GroupSpec,
    pub(super) view: GroupView,
    pub(super) machine: Arc<GroupApply>,
}

/// A shard's end of the link to one peer.
pub(super) struct PeerEnd {
    pub(super) node: NodeId,
    pub(super) lane: transport::Peer,
    pub(super) outbox: Arc<ControlOutbox>,
}

/// What a shard is started with.
pub(super) struct ShardSetup {
    pub(super) identity: HostIdentity,
    pub(super) raft: RaftConfig,
    pub(super) holds_logs: bool,
    pub(super) inbox: Arc<Inbox>,
    pub(super) log: ShardLog,
    pub(super) health: HealthReader,
    /// What the log's times are counted from.
    pub(super) log_start: Instant,
    pub(super) groups: Vec<OpeningGroup>,
    /// All nodes that there is a link to.
    pub(super) nodes: Vec<NodeId>,
    pub(super) apply: ApplyQueue,
    pub(super) failing: Arc<Failing>,
    pub(super) stats: Arc<Mutex<ShardStats>>,
}

struct Peer {
    end: PeerEnd,
    control_waits: bool,
    bulk_waits: bool,
    bulk_on_the_way: u64,
}

/// Why the thread leaves its loop.
enum Ended {
    Stopped,
    Failed(HostFailure),
}

struct Shard {
    core: HostCore<Rc<RefCell<GroupView>>>,
    identity: HostIdentity,
    election_timeout: Duration,
    publish_interval: Duration,
    #[cfg(feature = "debug-keys")]
    message_sleep: Duration,
    inbox: Arc<Inbox>,
    stores: Stores,
    health: HealthReader,
    log_start: Instant,
    groups: BTreeMap<GroupId, GroupEnd>,
    roles: Roles,
    peers: BTreeMap<NodeId, Peer>,
    /// The peers that are up, also while this node's own disk keeps it from saying so.
    up: BTreeMap<NodeId, Boot>,
    disk_stalled: bool,
    apply: ApplyQueue,
    failing: Arc<Failing>,
    /// Bulk frames that wait until more of what came before is durable.
    held_frames: VecDeque<super::inbox::FramePart>,
    proposals: HashMap<ProposalId, (Owed, bytes::Bytes)>,
    reads: HashMap<ReadId, Sender<Result<Index, ReadFailed>>>,
    next_id: u64,
    /// What the transport wakes when there is room for bulk again.
    room: Waker,
    /// Whether it waits for ends of its own bulk frames.
    wants_ends: bool,
    drain: Option<(Instant, Sender<usize>)>,
    stats: ShardStats,
    published: Arc<Mutex<ShardStats>>,
    publish_at: Instant,
}

/// A shard's thread, from outside.
pub(super) struct ShardThread {
    runtime: Handle,
    /// What else runs on the thread runs until this is dropped.
    lasting: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
    /// Locked because a receiver alone can't be shared; one thread waits.
    ended: Mutex<Receiver<Infallible>>,
}

impl ShardThread {
    /// What is spawned on it runs on the shard's thread, between the shard's turns.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether the caller runs on this thread, and so must not wait for it.
    pub(super) fn is_current(&self) -> bool {
        let own = self.thread.as_ref().map(|thread| thread.thread().id());
        own == Some(std::thread::current().id())
    }

    /// Waits until the shard has ended. What else runs on its thread goes on.
    pub(super) fn wait_ended(&self) {
        // It never sends anything.
        let _ = lock(&self.ended).recv();
    }

    /// Ends what else runs on the thread, and waits for the thread.
    pub(super) fn join(&mut self) {
        drop(self.lasting.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a shard's thread panicked at its end");
        }
    }
}

/// Starts a shard's thread. The groups' openings are told through `opened`; the links are handed
/// over through `peers` once the transport runs.
pub(super) fn start(
    setup: ShardSetup,
    opened: SyncSender<Result<(), OpenError>>,
    peers: oneshot::Receiver<Vec<PeerEnd>>,
) -> std::io::Result<ShardThread> {
    let (inbox, failing) = (Arc::clone(&setup.inbox), Arc::clone(&setup.failing));
    let shard = setup.identity.shard;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (lasting, last) = oneshot::channel();
    let (end, ended) = sync_channel(0);
    let run = move || async move {
        let mut shard = match Shard::open(setup) {
            Ok(shard) => shard,
            Err(error) => {
                // Nobody listens when the start was given up.
                let _ = opened.send(Err(error));
                return;
            }
        };
        let _ = opened.send(Ok(()));
        if let Ok(peers) = peers.await {
            shard.connect(peers);
            shard.run().await;
        }
    };
    let thread = std::thread::Builder::new()
        .name(format!("raft-shard-{shard}"))
        .spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| runtime.block_on(run()))).is_err() {
                failing.fail(HostFailure::ShardPanicked { shard });
            }
            // What still waits is dropped, which tells its callers.
            drop(inbox.close());
            drop(end);
            // Nothing is ever sent: its sender is dropped.
            let _ = runtime.block_on(last);
        })?;
    Ok(ShardThread {
        runtime: handle,
        lasting: Some(lasting),
        thread: Some(thread),
        ended: Mutex::new(ended),
    })
}

impl Shard {
    fn open(setup: ShardSetup) -> Result<Self, OpenError> {
        let now = clock::now();
        let nodes = setup.nodes.iter().copied();
        let mut core = HostCore::new(setup.raft, setup.identity, nodes, now);
        if setup.holds_logs {
            core.hold_logs();
        }
        let mut shard = Self {
            core,
            identity: setup.identity,
            election_timeout: setup.raft.election_timeout(),
            publish_interval: setup.raft.heartbeat_interval(),
            #[cfg(feature = "debug-keys")]
            message_sleep: setup.raft.debug_message_sleep(),
            room: room_waker(&setup.inbox),
            wants_ends: false,
            inbox: setup.inbox,
            stores: Stores::new(setup.log),
            health: setup.health,
            log_start: setup.log_start,
            groups: BTreeMap::new(),
            roles: Roles::default(),
            peers: BTreeMap::new(),
            up: BTreeMap::new(),
            disk_stalled: false,
            apply: setup.apply,
            failing: setup.failing,
            held_frames: VecDeque::new(),
            proposals: HashMap::new(),
            reads: HashMap::new(),
            next_id: 0,
            drain: None,
            stats: ShardStats::new(setup.identity.shard),
            published: setup.stats,
            publish_at: now,
        };
        for group in setup.groups {
            shard.open_group(now, group)?;
        }
        Ok(shard)
    }

    fn connect(&mut self, peers: Vec<PeerEnd>) {
        for end in peers {
            let peer = Peer {
                end,
                control_waits: false,
                bulk_waits: false,
                bulk_on_the_way: 0,
            };
            self.peers.insert(peer.end.node, peer);
        }
    }

    async fn run(mut self) {
        let inbox = Arc::clone(&self.inbox);
        let mut alarm = pin!(sleep_until(self.wake_at().into()));
        let ended = loop {
            let work = inbox.take(alarm.as_mut(), self.wake_at()).await;
            if work.stop {
                self.refuse(work);
                break Ended::Stopped;
            }
            if let Err(failure) = self.turn(clock::now(), work) {
                break Ended::Failed(failure);
            }
        };
        if let Ended::Failed(failure) = ended {
            self.failing.fail(failure);
        }
        self.finish();
    }

    fn wake_at(&self) -> Instant {
        let at = self.core.poll_timeout().min(self.publish_at);
        self.drain.as_ref().map_or(at, |(until, _)| at.min(*until))
    }

    /// Everything that came, and everything that follows from it.
    fn turn(&mut self, now: Instant, work: Work) -> Result<(), HostFailure> {
        self.stats.turns += 1;
        self.core.set_wall(wall_millis());
        if let Some(failure) = work.log_failure {
            return Err(HostFailure::Log(failure));
        }
        if let Some(token) = work.durable {
            for (group, seq) in self.stores.on_durable(token) {
                self.core.on_stored(now, group, seq);
            }
        }
        self.core.set_log_room(self.stores.room());
        for (peer, change) in work.links {
            self.on_link(now, peer, change);
        }
        for note in work.notes {
            self.on_note(now, note);
        }
        self.step_held(now);
        for part in work.frames {
            self.on_part(now, part);
        }
        for item in work.items {
            self.on_item(now, item);
        }
        for request in work.requests {
            self.on_request(now, request);
        }
        self.stores.retry()?;
        if now >= self.core.poll_timeout() {
            self.core.on_tick(now);
        }
        self.drain_core(now)?;
        self.after(now);
        Ok(())
    }

    /// Does what the core wants until it wants nothing more.
    fn drain_core(&mut self, now: Instant) -> Result<(), HostFailure> {
        loop {
            let mut drained = false;
            while let Some(output) = self.core.poll_output() {
                drained = true;
                self.on_output(now, output)?;
            }
            self.stores.flush()?;
            if !self.fill(now) && !drained {
                return Ok(());
            }
        }
    }

    fn on_output(&mut self, _now: Instant, output: Output) -> Result<(), HostFailure> {
        match output {
            Output::Store { seq, mutation } => {
                if let Some(group) = self.groups.get(&mutation.group) {
                    let (view, id) = (&group.view, mutation.group);
                    self.stores.store(view, id, seq, mutation.change)?;
                }
            }
            Output::Apply { group, entries } => {
                if let Some(found) = self.groups.get(&group) {
                    self.apply.push(&found.apply, entries);
                }
            }
            Output::Flush { group } => {
                if let Some(found) = self.groups.get(&group) {
                    self.apply.ask_flush(&found.apply);
                }
            }
            Output::Proposal { id, outcome } => self.on_proposal_ended(id, outcome),
            Output::Read { id, outcome } => self.on_read_ended(id, outcome),
            Output::RoleChanged {
                group,
                role,
                leader,
                ..
            } => self.roles.change(group, role, leader),
            Output::ControlWaits { peer } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.control_waits = true;
                }
            }
            Output::BulkWaits { peer } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.bulk_waits = true;
                }
            }
        }
        Ok(())
    }

    fn on_note(&mut self, now: Instant, note: Note) {
        match note {
            Note::Applied {
                group,
                index,
                replies,
                flushed,
            } => {
                self.core.on_applied(now, group, index, replies);
                if let Some(flushed) = flushed {
                    self.core.on_flushed(now, group, flushed);
                }
            }
            Note::Flushed { group, index } => self.core.on_flushed(now, group, index),
            Note::ControlTaken { peer } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.control_waits = true;
                }
            }
            Note::Ended {
                peer,
                lane,
                id,
                bytes,
                how,
                answer,
            } => self.on_ended(now, peer, lane, id, bytes, how, answer),
        }
    }

    /// Once a turn: what is due by the clock of the shell.
    fn after(&mut self, now: Instant) {
        if let Some((until, _)) = &self.drain {
            let waiting = self.proposals.len() + self.reads.len();
            // Other nodes' callers are owed an answer as well, but are told by the loss of the link
            // if there is none in time.
            let owed = waiting as u64 + self.core.remote_waiting();
            if (owed == 0 || now >= *until)
                && let Some((_, reply)) = self.drain.take()
            {
                answer(reply, waiting);
            }
        }
        if now >= self.publish_at {
            self.publish_at = now + self.publish_interval;
            self.check_disk(now);
            for peer in self.peers.values() {
                peer.end.outbox.remind(self.identity.shard.to_u16().into());
            }
            self.publish();
        }
    }

    fn publish(&mut self) {
        let waiting = self.proposals.len() + self.reads.len();
        self.stats.waiting = waiting as u64;
        self.stats.groups = self.roles.counts();
        self.stats.groups_astray = self.core.astray_len() as u64;
        self.stats.core = self.core.stats();
        self.stats.store_pending_bytes = self.core.store_pending_bytes();
        self.stats.stores_held = self.stores.held();
        lock(&self.published).clone_from(&self.stats);
    }

    /// The end: nothing begins any more, and everything that waits is answered.
    fn finish(&mut self) {
        let rest = self.inbox.close();
        self.refuse(rest);
        self.core.stop();
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Proposal { id, outcome } => self.on_proposal_ended(id, outcome),
                Output::Read { id, outcome } => self.on_read_ended(id, outcome),
                Output::Store { .. }
                | Output::Apply { .. }
                | Output::Flush { .. }
                | Output::RoleChanged { .. }
                | Output::ControlWaits { .. }
                | Output::BulkWaits { .. } => {}
            }
        }
        self.drain = None;
        self.publish();
    }
}

/// What the wall clock says. One before 1970 stands at its beginning.
fn wall_millis() -> UnixMillis {
    let since = clock::wall().duration_since(std::time::UNIX_EPOCH);
    UnixMillis::default().saturating_add(since.unwrap_or_default())
}
