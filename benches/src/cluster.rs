//! A cluster of real processes for a bench: brought up, verified and ended by the product's own
//! command line; loaded by the product's own driver, in the bench's process, so that the timed part
//! can be told from the making of keys.
//!
//! Its folder is under `target/bench`, on the disk that the workspace is on: a temporary folder may
//! be memory, where a sync costs nothing. It is removed with the cluster, and with it the processes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use multigroup::admin::{AdminUrl, GroupPage, GroupStatus, fetch, post};
use multigroup::cluster::{ClusterFolder, NodeProcess, NodeSignal, scan};
use multigroup::keyspace::KeySpace;
use multigroup::load::{
    self, Account, Endpoint, Finished, Operation, Plan, Progress, RawPlan, Route, RunId, Stop,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use transport::io::clock;

use crate::Fault;
use crate::arguments::workspace;

/// The first port of the block that is tried first, how far blocks lie apart, and how many there are.
const BASE_PORT: u16 = 17_100;
const BLOCK_PORTS: u16 = 300;
const BLOCKS: u16 = 20;

/// How long one operation may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long an admin port may take, and how many groups it is asked for at once.
const ADMIN_PATIENCE: Duration = Duration::from_secs(10);
const PAGE: usize = 1_000;

/// What a cluster is to be.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The product's binary.
    pub program: &'static str,
    /// Nodes.
    pub nodes: u16,
    /// Groups, each with a replica on each node.
    pub groups: u32,
    /// Keys of the nodes' configuration that are set otherwise than by default.
    pub config: Vec<(String, String)>,
}

/// A running cluster.
#[derive(Debug)]
pub struct BenchCluster {
    shape: Shape,
    folder: ClusterFolder,
    base_port: u16,
    /// From the start of its processes until every group had a leader.
    pub started_in: Duration,
    _dir: TempDir,
}

/// What was asked of one timed run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writers, each with one operation in flight.
    pub writers: usize,
    /// The timed part.
    pub lasting: Duration,
    /// The length of a window within it.
    pub window: Duration,
}

impl BenchCluster {
    /// Makes certificates and configurations in a fresh folder and starts the nodes.
    ///
    /// # Errors
    /// It didn't come up; what the command said is in the error.
    pub fn up(shape: Shape) -> Result<Self, Fault> {
        let parent = workspace().join("target/bench");
        fs::create_dir_all(&parent)?;
        let dir = TempDir::with_prefix_in("cluster-", parent)?;
        let folder = ClusterFolder::new(&dir.path().join("cluster"))?;
        let mut cluster = Self {
            base_port: free_ports(shape.nodes)?,
            shape,
            folder,
            started_in: Duration::ZERO,
            _dir: dir,
        };
        let mut words = vec!["--nodes".to_owned(), cluster.shape.nodes.to_string()];
        words.extend(["--groups".to_owned(), cluster.shape.groups.to_string()]);
        words.extend(["--base-port".to_owned(), cluster.base_port.to_string()]);
        words.push("--detach".to_owned());
        for (key, value) in &cluster.shape.config {
            words.extend(["--config-set".to_owned(), format!("{key}={value}")]);
        }
        let began = clock::now();
        cluster.done(&["cluster", "up"], &words)?;
        cluster.started_in = clock::now() - began;
        Ok(cluster)
    }

    /// Where its files are.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.root()
    }

    /// The numbers of its nodes.
    pub fn nodes(&self) -> impl Iterator<Item = u16> + use<> {
        1..=self.shape.nodes
    }

    /// The processes of its nodes, in the nodes' order.
    ///
    /// # Errors
    /// One isn't running.
    pub fn processes(&self) -> Result<Vec<i32>, Fault> {
        let mut found = scan(&self.folder)?;
        found.sort_by_key(|process| process.node());
        if found.len() != usize::from(self.shape.nodes) {
            return Err(format!("{} of {} nodes run", found.len(), self.shape.nodes).into());
        }
        Ok(found.iter().map(|process| process.pid()).collect())
    }

    fn command(&self, words: &[&str], more: &[impl AsRef<OsStr>]) -> Result<Output, Fault> {
        let mut command = Command::new(self.shape.program);
        command.args(words).arg("--dir").arg(self.path()).args(more);
        Ok(command.stdin(Stdio::null()).output()?)
    }

    fn done(&self, words: &[&str], more: &[impl AsRef<OsStr>]) -> Result<String, Fault> {
        let output = self.command(words, more)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let words = words.join(" ");
            return Err(format!("multigroup {words} ended with {}: {said}", output.status).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Loads it with counters, one in each group, and gives the account. `on_progress` hears of the
    /// timed part's begin at once.
    ///
    /// # Errors
    /// The run came to nothing, or an operation failed: a timed run has no failures.
    pub async fn load(
        &self,
        load: Load,
        on_progress: impl FnMut(Progress),
    ) -> Result<Finished, Fault> {
        let endpoints: Result<Vec<_>, _> = self.nodes().map(|node| self.client(node)).collect();
        let plan = Plan::try_from(RawPlan {
            endpoints: endpoints?,
            space: self.space()?,
            writers: load.writers,
            duration: load.lasting,
            keys: None,
            value_bytes: 16,
            operation: Operation::Incr,
            window: Some(load.window),
            route: Route::Roam,
            patience: PATIENCE,
            account: Account::Ledger,
        })?;
        let now = clock::wall().duration_since(std::time::UNIX_EPOCH)?;
        let run = RunId::new(u64::try_from(now.as_millis())?, std::process::id());
        let (_go_on, stop) = watch::channel(Stop::Go);
        let finished = load::run(plan, run, stop, on_progress).await?;
        let failed = finished.report.pooled.errors_total;
        if failed > 0 {
            let errors = serde_json::to_string(&finished.report.pooled.errors)?;
            return Err(format!("{failed} operations failed: {errors}").into());
        }
        let mut ledger = load::Ledger::open(self.path())?;
        ledger.append(&finished.ledger)?;
        Ok(finished)
    }

    /// Where a node takes clients.
    ///
    /// # Errors
    /// None, for any node of it.
    pub fn client(&self, node: u16) -> Result<Endpoint, Fault> {
        Ok(format!("127.0.0.1:{}", self.base_port + 100 + node).parse()?)
    }

    /// How its keys map to groups.
    ///
    /// # Errors
    /// None, for any number of groups that it came up with.
    pub fn space(&self) -> Result<KeySpace, Fault> {
        Ok(KeySpace::new(self.shape.groups).ok_or("no such number of groups")?)
    }

    fn admin(&self, node: u16) -> Result<AdminUrl, Fault> {
        Ok(format!("http://127.0.0.1:{}", self.base_port + 200 + node).parse()?)
    }

    /// Changes a setting of a running node, as `multigroup config set` does.
    ///
    /// # Errors
    /// The node refused, or isn't there.
    pub async fn set(&self, node: u16, key: &str, value: &str) -> Result<(), Fault> {
        let body = json!({"key": key, "value": value});
        post(&self.admin(node)?, "/config", &body, ADMIN_PATIENCE).await?;
        Ok(())
    }

    /// What one node says of itself.
    ///
    /// # Errors
    /// It doesn't answer.
    pub async fn status_of(&self, node: u16) -> Result<Value, Fault> {
        let said = fetch(&self.admin(node)?, "/status", ADMIN_PATIENCE).await?;
        Ok(serde_json::from_slice(&said)?)
    }

    /// All groups as one node sees them, in order.
    ///
    /// # Errors
    /// It doesn't answer.
    pub async fn groups_of(&self, node: u16) -> Result<Vec<GroupStatus>, Fault> {
        let mut all: Vec<GroupStatus> = Vec::new();
        let mut next = Some(String::new());
        while let Some(after) = next {
            let path = format!("/groups?limit={PAGE}{after}");
            let said = fetch(&self.admin(node)?, &path, ADMIN_PATIENCE).await?;
            let page: GroupPage = serde_json::from_slice(&said)?;
            next = page.next_after.map(|last| format!("&after={last}"));
            all.extend(page.groups);
        }
        Ok(all)
    }

    /// A running node's process.
    ///
    /// # Errors
    /// It isn't running.
    pub fn process(&self, node: u16) -> Result<NodeProcess, Fault> {
        let mut found = scan(&self.folder)?.into_iter();
        let found = found.find(|process| process.node() == u64::from(node));
        found.ok_or_else(|| format!("node {node} isn't running").into())
    }

    /// The command that starts a node again and doesn't wait until it is ready.
    #[must_use]
    pub fn restart_command(&self, node: u16) -> Command {
        let mut command = Command::new(self.shape.program);
        command.args(["cluster", "restart", "--no-wait", "--dir"]);
        command.arg(self.path()).args(["--node", &node.to_string()]);
        command.stdin(Stdio::null());
        command
    }

    /// What `verify` found, all of it right.
    ///
    /// # Errors
    /// A replica, a position or a counter isn't as it must be.
    pub fn verify(&self) -> Result<Value, Fault> {
        let said = self.done(&["verify"], &["--json", "-"])?;
        Ok(serde_json::from_str(&said)?)
    }

    /// What its nodes say of themselves now, in their order.
    ///
    /// # Errors
    /// One doesn't answer.
    pub fn status(&self) -> Result<Value, Fault> {
        let said = self.done(&["status"], &["--json", "-"])?;
        Ok(serde_json::from_str(&said)?)
    }

    /// Stops the nodes cleanly.
    ///
    /// # Errors
    /// One didn't stop, or not cleanly.
    pub fn down(self) -> Result<(), Fault> {
        self.done(&["cluster", "down"], &[] as &[&str]).map(drop)
    }
}

impl Drop for BenchCluster {
    /// A bench that failed leaves no process.
    fn drop(&mut self) {
        let Ok(found) = scan(&self.folder) else {
            return;
        };
        for process in found {
            if process.signal(NodeSignal::KILL).is_ok() {
                let _ = process.wait_gone();
            }
        }
    }
}

/// The base of a block of ports that nobody listens on.
fn free_ports(nodes: u16) -> Result<u16, Fault> {
    let is_free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    (0..BLOCKS)
        .map(|block| BASE_PORT + block * BLOCK_PORTS)
        .find(|base| {
            [0, 100, 200]
                .iter()
                .all(|kind| (1..=nodes).all(|node| is_free(base + kind + node)))
        })
        .ok_or_else(|| "no block of free ports".into())
}

/// The most memory that a process has had, in bytes.
///
/// # Errors
/// It isn't running.
pub fn memory_peak_bytes(process: i32) -> Result<u64, Fault> {
    let path = PathBuf::from(format!("/proc/{process}/status"));
    let status = fs::read_to_string(&path)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let kib = kib.ok_or_else(|| format!("{} names no peak", path.display()))?;
    Ok(kib * 1024)
}
