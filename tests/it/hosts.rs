//! Three hosts in one process, over real TLS and real log files, whose state machines note what they
//! apply.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use raft_host::config::{
    COMMIT_WAIT_DEFAULTS, GroupConfig, HostConfig, RAFT_DEFAULTS, RawCommitWaitConfig,
    RawHostConfig,
};
use raft_host::error::ProposalOutcome;
use raft_host::id::{GroupId, Index, NodeId};
use raft_host::io::{
    Applied, Committed, Final, Forwarding, MachineError, ProposeOptions, StartError,
};
use raft_host::log::RawLogConfig;
use raft_host::metrics::Stats;
use raft_host::proto::consensus::Role;
use raft_host::{Host, StateMachine, Storage};
use tempfile::TempDir;
use transport::Config;

use tests::certs::{Fleet, node};
use tests::node::free_address;
use tests::{log_to_test, soon};

/// The commands that one replica has applied, in order.
pub(crate) type Applies = Arc<Mutex<Vec<(Index, Bytes)>>>;
/// By group.
pub(crate) type Journal = Arc<Mutex<BTreeMap<GroupId, Applies>>>;

/// Notes what it applies, and answers with the command's length. Lost at a restart.
pub(crate) struct Journaled {
    /// Whether it says that it is durable when asked, so that the log may forget.
    flushes: bool,
    applied: Applied,
    applies: Applies,
}

impl StateMachine for Journaled {
    fn applied(&self) -> Applied {
        self.applied
    }

    fn apply(&mut self, batch: &[Committed]) -> Result<Vec<Bytes>, MachineError> {
        let mut applies = self.applies.lock().expect("no applier panicked");
        let mut replies = Vec::new();
        for entry in batch {
            assert_eq!(entry.index, self.applied.index.next(), "a gap");
            assert!(entry.term >= self.applied.term, "terms fell");
            let (index, term) = (entry.index, entry.term);
            self.applied = Applied { index, term };
            if entry.command == "fail" {
                return Err(MachineError::failed("the test asked for it"));
            }
            if !entry.command.is_empty() {
                applies.push((entry.index, entry.command.clone()));
            }
            replies.push(Bytes::from(entry.command.len().to_string()));
        }
        Ok(replies)
    }

    fn flush(&mut self) -> Result<Index, MachineError> {
        let none = Index::new(0);
        Ok(if self.flushes {
            self.applied.index
        } else {
            none
        })
    }
}

/// Waits until it holds. A host publishes what it counts by the clock, so it is looked at again and
/// again; how often decides nothing.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let holding = async {
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        while !holds() {
            looks.tick().await;
        }
    };
    soon(what, holding).await;
}

pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) journal: Journal,
}

pub(crate) struct Cluster {
    pub(crate) fleet: Fleet,
    pub(crate) dir: TempDir,
    pub(crate) addresses: BTreeMap<u32, SocketAddr>,
    pub(crate) groups: u64,
    pub(crate) shards: u16,
    pub(crate) log_bytes_max: u64,
    pub(crate) machines_flush: bool,
    pub(crate) commit_wait: RawCommitWaitConfig,
    pub(crate) drain_timeout_ms: u32,
    pub(crate) nodes: BTreeMap<u32, Node>,
    /// What was acknowledged, by group.
    pub(crate) acknowledged: BTreeMap<GroupId, Vec<Bytes>>,
}

impl Cluster {
    pub(crate) fn new(groups: u64, shards: u16) -> Self {
        log_to_test();
        Self {
            fleet: Fleet::new("dev"),
            dir: TempDir::new().expect("a temporary folder"),
            addresses: (1..=3).map(|node| (node, free_address())).collect(),
            groups,
            shards,
            log_bytes_max: 64 << 20,
            machines_flush: false,
            commit_wait: COMMIT_WAIT_DEFAULTS,
            drain_timeout_ms: 10_000,
            nodes: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
        }
    }

    pub(crate) async fn started(groups: u64, shards: u16) -> Self {
        Self::new(groups, shards).all_started().await
    }

    pub(crate) async fn all_started(mut self) -> Self {
        for node in 1..=3 {
            self.start(node).await;
        }
        self.wait_led().await;
        self
    }

    pub(crate) fn group_ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        (1..=self.groups).map(GroupId::new)
    }

    pub(crate) async fn try_start(&self, number: u32) -> Result<Node, StartError> {
        let folder = self.dir.path().join(format!("node-{number}"));
        let storage = Storage::open(folder).expect("a folder");
        let others = self.addresses.iter().filter(|(peer, _)| **peer != number);
        let peers = others.map(|(&peer, address)| (node(peer), address.to_string()));
        let links = Config::new(
            self.fleet.identity(number),
            storage.incarnation(),
            storage.boot(),
            self.addresses[&number],
            peers.collect(),
        );
        let nodes = [1, 2, 3].map(NodeId::new);
        let groups = self.group_ids().map(|id| GroupConfig::spread(id, &nodes));
        let log = RawLogConfig {
            segment_bytes: 256 << 10,
            bytes_max: self.log_bytes_max,
            ..RawLogConfig::default()
        };
        let shell = RawHostConfig {
            shards: Some(self.shards),
            drain_timeout_ms: self.drain_timeout_ms,
            ..RawHostConfig::default()
        };
        let config = HostConfig::new(
            RAFT_DEFAULTS.try_into().expect("a configuration"),
            log.try_into().expect("a configuration"),
            shell,
            groups.collect(),
        );
        let journal = Journal::default();
        let machines = {
            let (journal, flushes) = (Arc::clone(&journal), self.machines_flush);
            move |group| -> Result<Box<dyn StateMachine>, MachineError> {
                let applies = Applies::default();
                let mut journal = journal.lock().expect("a whole journal");
                journal.insert(group, Arc::clone(&applies));
                let applied = Applied::default();
                Ok(Box::new(Journaled {
                    flushes,
                    applied,
                    applies,
                }))
            }
        };
        let credentials = self.fleet.credentials(number);
        let commit_wait = self.commit_wait.try_into().expect("a configuration");
        let config = config
            .expect("a configuration")
            .with_commit_wait(commit_wait);
        let host = Host::start(config, storage, links, credentials, machines).await?;
        Ok(Node { host, journal })
    }

    pub(crate) async fn start(&mut self, number: u32) {
        let started = self.try_start(number).await.expect("a started host");
        self.nodes.insert(number, started);
    }

    pub(crate) async fn stop(&mut self, number: u32) -> Final {
        let node = self.nodes.remove(&number).expect("a running node");
        soon("a stopped host", node.host.shut_down()).await
    }

    /// Stops all nodes, and looks at what their transports have counted to the last item.
    pub(crate) async fn stop_all(&mut self) {
        for number in 1..=3 {
            let ended = self.stop(number).await;
            assert_eq!(ended.abandoned, 0);
            for lane in ended.stats.transport.lanes {
                assert!(lane.account.is_exact(), "started = ended + live: {lane:?}");
                assert_eq!(lane.account.live(), 0, "{lane:?}");
            }
        }
    }

    pub(crate) fn stats(&self, number: u32) -> Stats {
        self.nodes[&number].host.stats().expect("a running host")
    }

    /// Until each running node knows a leader for each group, and that leader says so itself.
    pub(crate) async fn wait_led(&self) {
        until("a leader for every group", || self.is_led()).await;
    }

    pub(crate) fn is_led(&self) -> bool {
        let all: Vec<_> = self.nodes.keys().map(|node| self.stats(*node)).collect();
        let leading: u64 = all.iter().map(|stats| stats.groups.leading).sum();
        let whole = |stats: &Stats| stats.is_led() && stats.groups.total == self.groups;
        leading == self.groups && all.iter().all(whole)
    }

    pub(crate) async fn leader(&self, group: GroupId) -> Option<u32> {
        for (number, node) in &self.nodes {
            let status = node.host.group(group).status().await?;
            if status.role == Role::Leader {
                return Some(*number);
            }
        }
        None
    }

    /// Proposes at one node after the other until the leader takes it, and says which that is: a
    /// refusal is proven without effect.
    pub(crate) async fn commit(&mut self, group: GroupId, command: &str) -> u32 {
        let taken = async {
            loop {
                for (number, node) in &self.nodes {
                    let options = ProposeOptions {
                        forwarding: Forwarding::Never,
                        ..ProposeOptions::within(Duration::from_secs(8))
                    };
                    let at = node.host.group(group);
                    match at.propose(command.to_owned(), options).await {
                        ProposalOutcome::Committed { result, .. } => {
                            assert_eq!(result, command.len().to_string(), "its own reply");
                            return *number;
                        }
                        ProposalOutcome::Refused(_) => {}
                        other => panic!("{command} in {group}: {other:?}"),
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let leader = soon("a committed command", taken).await;
        let list = self.acknowledged.entry(group).or_default();
        list.push(Bytes::copy_from_slice(command.as_bytes()));
        leader
    }

    pub(crate) async fn commit_everywhere(&mut self, word: &str) {
        for group in self.group_ids() {
            self.commit(group, &format!("{word}-{group}")).await;
        }
    }

    pub(crate) fn applies(&self, number: u32, group: GroupId) -> Vec<(Index, Bytes)> {
        let journal = self.nodes[&number].journal.lock().expect("a whole journal");
        let applies = journal[&group].lock().expect("no applier panicked");
        applies.clone()
    }

    /// Until all running nodes have applied the same, with all that was acknowledged, each once.
    pub(crate) async fn wait_equal(&self) {
        for group in self.group_ids() {
            let acknowledged = self.acknowledged.get(&group).cloned().unwrap_or_default();
            let equal = || {
                let mut all = self.nodes.keys().map(|node| self.applies(*node, group));
                let first = all.next().expect("a running node");
                let held = |command| first.iter().filter(|(_, c)| c == command).count();
                all.all(|other| other == first) && acknowledged.iter().all(|c| held(c) == 1)
            };
            until(&format!("equal replicas of group {group}"), equal).await;
        }
    }
}
