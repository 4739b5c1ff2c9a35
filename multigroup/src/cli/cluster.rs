//! `multigroup cluster`: a cluster on this machine, as one folder. `prepare` makes what the folder
//! must hold, on `ports` of its own and in its `turn`; `credentials` looks at certificates before nodes
//! do; `launch` starts nodes and stops them, `standing` asks how they stand; the commands
//! are in files of their names.

mod credentials;
mod down;
mod kill;
mod launch;
mod ports;
mod prepare;
mod restart;
mod standing;
#[cfg(test)]
mod tests;
mod turn;
mod up;

use std::io::Write;
use std::path::Path;

pub(super) use self::down::stop_cleanly;
pub(super) use self::launch::{ended, kill, running};
pub(super) use self::ports::Ports;
pub(super) use self::prepare::{Options, Wanted};
pub(super) use self::turn::Turn;
pub(super) use self::up::{Started, Stops, prepare, start_all};

use clap::{Args, Subcommand};

use super::failure::Failure;
use crate::causes::with_causes;
use crate::cluster::{ClusterError, ClusterFolder, NodeProcess};

/// Run a cluster on this machine
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup cluster up --dir demo --groups 150 --detach\n  \
                  multigroup cluster kill --dir demo --node 2\n  \
                  multigroup cluster restart --dir demo --node 2\n  \
                  multigroup cluster down --dir demo"
)]
pub(super) struct Cluster {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Up),
    Down(down::Down),
    Kill(kill::Kill),
    Restart(restart::Restart),
}

impl Cluster {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        match self.command {
            Command::Up(command) => command.run(out),
            Command::Down(command) => command.run(out),
            Command::Kill(command) => command.run(out),
            Command::Restart(command) => command.run(out),
        }
    }
}

/// The folder of a cluster that must be there.
pub(super) fn folder_at(dir: &Path) -> Result<ClusterFolder, Failure> {
    let folder = folder_of(dir)?;
    std::fs::read_dir(dir).map_err(|error| Failure::of_input("read", dir, &error))?;
    Ok(folder)
}

pub(super) fn folder_of(dir: &Path) -> Result<ClusterFolder, Failure> {
    ClusterFolder::new(dir).map_err(|error| Failure::of_input("find", dir, &error))
}

/// A folder that must have this node.
fn folder_with(dir: &Path, node: u64) -> Result<ClusterFolder, Failure> {
    let folder = folder_at(dir)?;
    if folder.config(node).exists() {
        return Ok(folder);
    }
    Err(Failure::usage(format!(
        "{} does not exist; name a node of the cluster with --node, or correct --dir",
        folder.config(node).display()
    )))
}

/// A node's process, if it runs.
pub(super) fn running_node(
    folder: &ClusterFolder,
    node: u64,
) -> Result<Option<NodeProcess>, Failure> {
    Ok(running(folder, &[node])?.pop())
}

fn nodes_of(folder: &ClusterFolder) -> Result<Vec<u64>, Failure> {
    let nodes = folder.nodes();
    nodes.map_err(|error| Failure::of_input("read", folder.root(), &error))
}

fn of_cluster(error: ClusterError) -> Failure {
    let text = with_causes(&error);
    match error {
        ClusterError::File { .. } | ClusterError::Program { .. } => {
            Failure::work(format!("{text}; check the path and the disk"))
        }
        ClusterError::Start { .. } => Failure::unreachable(format!("{text}; see its log")),
        ClusterError::Process { .. } => {
            Failure::work(format!("{text}; does it belong to this user?"))
        }
    }
}

/// Runs what a command does, and gives up what is left of it at its end.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("can't start the runtime: {error}")))?;
    let done = runtime.block_on(work);
    // What still waits for a process or a name can't be cancelled.
    runtime.shutdown_background();
    done
}
