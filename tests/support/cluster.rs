//! A cluster of real processes, brought up by the product's own command line, and ended with
//! whoever holds it: also when a test panics, no process is left.
//!
//! One at a time in a test program: three nodes, a load and a test are as much as two cores take.
//! Ports are of a block that no other test program has, below those that the system gives out.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use multigroup::admin::{LaneState, Status};
use multigroup::cluster::{ClusterFolder, Found, NodeProcess, NodeSignal, find, scan};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::process::{Finished, run, run_within};

/// The first port that is tried, and how many blocks there are above it.
const FIRST_PORT: u16 = 10_000;
const BLOCKS: u16 = 70;

/// Ports of one cluster: peers from 1, clients from 101, admin from 201.
const BLOCK_PORTS: u16 = 300;

/// Nodes of a cluster.
pub const NODES: u64 = 3;

/// A cluster of three nodes.
#[derive(Debug)]
pub struct Cluster {
    program: &'static str,
    dir: TempDir,
    folder: ClusterFolder,
    base_port: u16,
    _ports: File,
    _turn: OwnedMutexGuard<()>,
}

async fn turn() -> OwnedMutexGuard<()> {
    static TURN: OnceLock<Arc<Mutex<()>>> = OnceLock::new();
    Arc::clone(TURN.get_or_init(Arc::default))
        .lock_owned()
        .await
}

/// A block of free ports, which is ours as long as the file is open.
fn ports() -> (u16, File) {
    let first = u16::try_from(std::process::id() % u32::from(BLOCKS)).expect("less than BLOCKS");
    for at in 0..BLOCKS {
        let base = FIRST_PORT + (first + at) % BLOCKS * BLOCK_PORTS;
        let name = format!("multigroup-test-ports-{base}");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let opened = options.open(std::env::temp_dir().join(name));
        let Ok(file) = opened else { continue };
        if file.try_lock().is_ok() && is_free(base) {
            return (base, file);
        }
    }
    panic!("no block of free ports");
}

fn is_free(base: u16) -> bool {
    [0, 100, 200].into_iter().all(|offset| {
        (1..=u16::try_from(NODES).expect("a few"))
            .all(|node| TcpListener::bind(("127.0.0.1", base + offset + node)).is_ok())
    })
}

impl Cluster {
    /// A cluster that isn't there yet. `program` is the product's binary.
    ///
    /// # Panics
    /// When there is no temporary folder or no port.
    pub async fn new(program: &'static str) -> Self {
        let turn = turn().await;
        let dir = TempDir::new().expect("a temporary folder");
        let folder = ClusterFolder::new(&dir.path().join("cluster")).expect("its path");
        let (base_port, ports) = ports();
        Self {
            program,
            dir,
            folder,
            base_port,
            _ports: ports,
            _turn: turn,
        }
    }

    /// A running cluster.
    ///
    /// # Panics
    /// When it doesn't come up.
    pub async fn up(program: &'static str, groups: u32) -> Self {
        let cluster = Self::new(program).await;
        let base_port = cluster.base_port.to_string();
        let groups = groups.to_string();
        let made = ["--groups", &groups, "--base-port", &base_port, "--detach"];
        cluster
            .done(&[&["cluster", "up"], &made[..]].concat())
            .await;
        cluster
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &ClusterFolder {
        &self.folder
    }

    /// Its folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.root()
    }

    /// The port that those of its nodes are counted from.
    #[must_use]
    pub fn base_port(&self) -> u16 {
        self.base_port
    }

    /// A node's address for clients.
    ///
    /// # Panics
    /// For a number that is no node's.
    #[must_use]
    pub fn client(&self, node: u64) -> String {
        let node = u16::try_from(node).expect("a node");
        format!("127.0.0.1:{}", self.base_port + 100 + node)
    }

    /// A node's address for operators.
    ///
    /// # Panics
    /// For a number that is no node's.
    #[must_use]
    pub fn admin(&self, node: u64) -> String {
        let node = u16::try_from(node).expect("a node");
        format!("http://127.0.0.1:{}", self.base_port + 200 + node)
    }

    /// Runs a command on its folder.
    ///
    /// # Panics
    /// When the program can't be started, or doesn't end in time.
    pub async fn run(&self, arguments: &[&str]) -> Finished {
        let root = self.path().display().to_string();
        let all = [arguments, &["--dir", &root]].concat();
        run(self.program, self.dir.path(), &all).await
    }

    /// The same for a command that must end well; gives what it printed.
    ///
    /// # Panics
    /// When it doesn't.
    pub async fn done(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", self.told(&ended));
        ended.stdout
    }

    /// The same for a command that prints JSON.
    ///
    /// # Panics
    /// When it doesn't.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.done(&[arguments, &["--json", "-"]].concat()).await;
        serde_json::from_str(&text).expect("JSON")
    }

    /// Compares all replicas, which at thousands of groups takes its time on a busy machine.
    ///
    /// # Panics
    /// When they can't be compared, or something doesn't match.
    pub async fn verify_within(&self, limit: Duration) -> Value {
        let root = self.path().display().to_string();
        let all = ["verify", "--json", "-", "--dir", &root];
        let ended = run_within(limit, self.program, self.dir.path(), &all).await;
        assert_eq!(ended.code, Some(0), "verify: {}", self.told(&ended));
        serde_json::from_str(&ended.stdout).expect("JSON")
    }

    /// What a command printed, and the last lines of the nodes' logs, for a test that fails.
    #[must_use]
    pub fn told(&self, ended: &Finished) -> String {
        let mut text = format!("{}\n{}", ended.stdout, ended.stderr);
        for node in 1..=NODES {
            let log = std::fs::read_to_string(self.folder.log(node)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(20)..] {
                text.push_str(&format!("\nnode {node} | {line}"));
            }
        }
        text
    }

    /// A node's process.
    ///
    /// # Panics
    /// When it doesn't run.
    #[must_use]
    pub fn process(&self, node: u64) -> NodeProcess {
        match find(&self.folder, node).expect("its pid file") {
            Found::Running(process) => process,
            other @ (Found::Nothing | Found::Stale { .. }) => {
                panic!("node {node} does not run: {other:?}")
            }
        }
    }

    /// How many groups each node leads, by what the nodes say.
    ///
    /// # Panics
    /// When they can't be asked.
    pub async fn leading(&self) -> BTreeMap<u64, usize> {
        let listing = self.json(&["groups"]).await;
        let mut leading: BTreeMap<u64, usize> = (1..=NODES).map(|node| (node, 0)).collect();
        for group in listing["groups"].as_array().expect("groups") {
            if let Some(node) = group["leader"].as_u64() {
                *leading.entry(node).or_default() += 1;
            }
        }
        leading
    }

    /// Holds what `verify` said against a cluster of so many groups: every replica compared, every
    /// counter exact.
    ///
    /// # Panics
    /// When it isn't so.
    pub fn assert_exact(verified: &Value, groups: u32) {
        assert_eq!(verified["mismatches"], 0, "{verified}");
        assert_eq!(
            verified["replicas"],
            u64::from(groups) * NODES,
            "{verified}"
        );
        assert_eq!(verified["counters_exact"], groups, "{verified}");
    }

    /// Stops the nodes and holds the last status of each to account.
    ///
    /// # Panics
    /// When a node doesn't stop, or its account isn't closed.
    pub async fn down_exactly(&self) {
        self.done(&["cluster", "down"]).await;
        for node in 1..=NODES {
            let path = self.path().join(format!("logs/node-{node}.final.json"));
            let text = std::fs::read_to_string(path).expect("the last status");
            is_closed_exactly(&serde_json::from_str(&text).expect("a status"));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A node that is just being started has no pid file; a second look finds what the first
        // one came too early for.
        for _ in 0..2 {
            for process in scan(&self.folder).unwrap_or_default() {
                let ended = process
                    .signal(NodeSignal::KILL)
                    .and_then(|()| process.wait_gone());
                if let Err(error) = ended {
                    tracing::error!(%error, "a node may be left");
                }
            }
        }
    }
}

/// Holds a stopped node's last status to account: everything that was begun has ended, and nothing
/// is left.
///
/// # Panics
/// If not.
pub fn is_closed_exactly(status: &Status) {
    for lane in &status.peers {
        assert!(lane.is_exact(), "{lane:?}");
        let live = [
            lane.outstanding,
            lane.frames_queued,
            lane.frames_writing,
            lane.frames_outstanding,
            lane.reserved_items,
            lane.reserved_bytes,
            lane.unused_items,
            lane.unused_bytes,
        ];
        assert_eq!(live, [0; 8], "{lane:?}");
        assert_eq!(lane.state, LaneState::Closed);
        assert!(lane.frames_started > 0 || lane.lane == "bulk", "{lane:?}");
    }
    assert_eq!(status.proposals.waiting, 0);
    assert!(!status.ready, "it has stopped");
}
