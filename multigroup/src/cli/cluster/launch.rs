//! Starting nodes until they are ready, and stopping them. A node that ends while it should start
//! is a failure with its last log lines; whoever started the others stops them then.

use std::net::TcpListener;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use transport::io::clock;

use super::of_cluster;
use crate::cli::failure::Failure;
use crate::cli::progress::note;
use crate::cluster::{ClusterFolder, Found, Launched, NodeProcess, NodeSignal, find, launch};
use crate::config::{Config, HostPort};

/// How long a node has to end cleanly; then it is ended at once.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// How long the kernel may take to end a process that can't refuse.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// How long a started process may take to write its pid file.
const PID_PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at what gives no notice.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Lines of a node's log that are shown when it ends at its start.
const LINES_SHOWN: usize = 10;

/// The processes of a folder that run. Stale pid files are named and left to whom they belong.
pub(in crate::cli) fn running(
    folder: &ClusterFolder,
    nodes: &[u64],
) -> Result<Vec<NodeProcess>, Failure> {
    let mut running = Vec::new();
    for node in nodes {
        match find(folder, *node).map_err(of_cluster)? {
            Found::Nothing => {}
            Found::Stale { pid, why } => note(&format!(
                "note: {} names process {pid}, but {why}; node {node} did not stop cleanly",
                folder.pid(*node).display()
            )),
            Found::Running(process) => running.push(process),
        }
    }
    Ok(running)
}

/// Makes sure that a node can have its ports.
pub(super) fn check_ports(config: &Config) -> Result<(), Failure> {
    let listen = [
        ("listen.peer", config.listen_peer()),
        ("listen.client", config.listen_client()),
        ("listen.admin", config.listen_admin()),
    ];
    for (key, address) in listen {
        check_port(config.node(), key, address)?;
    }
    Ok(())
}

fn check_port(node: u64, key: &str, address: &HostPort) -> Result<(), Failure> {
    let Err(error) = TcpListener::bind((address.host(), address.port())) else {
        return Ok(());
    };
    Err(Failure::unreachable(
        if error.kind() == std::io::ErrorKind::AddrInUse {
            format!(
                "{address}, which is {key} of node {node}, is taken by another program; stop that \
                 one, or make the cluster with another --base-port"
            )
        } else {
            format!("node {node} can't listen at {address}, its {key}: {error}; correct it")
        },
    ))
}

/// Waits until a node that was started has written its pid file, or has ended.
pub(super) async fn settled(
    folder: &ClusterFolder,
    launched: &mut Launched,
) -> Result<(), Failure> {
    let node = launched.node;
    let start = clock::now();
    loop {
        if let Some(failure) = ended_early(launched) {
            return Err(failure);
        }
        if let Found::Running(process) = find(folder, node).map_err(of_cluster)?
            && launched.child.id() == u32::try_from(process.pid()).ok()
        {
            return Ok(());
        }
        if clock::now().duration_since(start) > PID_PATIENCE {
            return Err(Failure::unreachable(format!(
                "node {node} was started and did not write {}; see {}",
                folder.pid(node).display(),
                launched.log().display()
            )));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// The failure of a node that has ended though it should start. Its last words are shown.
pub(super) fn ended_early(launched: &mut Launched) -> Option<Failure> {
    let said = ended(launched, "at its start")?;
    Some(Failure::unreachable(said))
}

/// What is to be said of a node that has ended though it should run. Its last words are shown.
pub(in crate::cli) fn ended(launched: &mut Launched, when: &str) -> Option<String> {
    let status = launched.child.try_wait().ok()??;
    show_last_lines(launched);
    Some(format!(
        "node {} ended {when} ({status}); see above and {}",
        launched.node,
        launched.log().display()
    ))
}

pub(super) fn show_last_lines(launched: &Launched) {
    for line in launched.last_lines(LINES_SHOWN) {
        note(&format!("node {} | {line}", launched.node));
    }
}

/// Starts a node.
pub(super) fn start(folder: &ClusterFolder, node: u64) -> Result<Launched, Failure> {
    launch(folder, node).map_err(of_cluster)
}

/// Sends a process a signal and waits until it is gone.
///
/// Gives whether it went in time.
pub(super) async fn end(
    process: &NodeProcess,
    signal: NodeSignal,
    patience: Duration,
) -> Result<bool, Failure> {
    process.signal(signal).map_err(of_cluster)?;
    match timeout(patience, process.gone()).await {
        Ok(gone) => gone.map(|()| true).map_err(of_cluster),
        Err(_) => Ok(false),
    }
}

/// Ends a process at once.
pub(in crate::cli) async fn kill(process: &NodeProcess) -> Result<(), Failure> {
    if end(process, NodeSignal::KILL, KILL_PATIENCE).await? {
        return Ok(());
    }
    Err(Failure::work(format!(
        "process {} of node {} was killed and is still there after {} s; its disk may hang",
        process.pid(),
        process.node(),
        KILL_PATIENCE.as_secs()
    )))
}

/// Stops nodes cleanly, all at once; those that don't go are ended and named.
pub(super) async fn stop(processes: Vec<NodeProcess>) -> Result<(), Failure> {
    for process in &processes {
        process.signal(NodeSignal::TERM).map_err(of_cluster)?;
    }
    let deadline = clock::now() + STOP_PATIENCE;
    let mut forced = Vec::new();
    for process in &processes {
        let left = deadline.saturating_duration_since(clock::now());
        match timeout(left, process.gone()).await {
            Ok(gone) => gone.map_err(of_cluster)?,
            Err(_) => {
                forced.push(process.node().to_string());
                kill(process).await?;
            }
        }
    }
    if forced.is_empty() {
        return Ok(());
    }
    Err(Failure::work(format!(
        "node {} did not stop within {} s and was killed; see its log",
        forced.join(" and node "),
        STOP_PATIENCE.as_secs()
    )))
}
