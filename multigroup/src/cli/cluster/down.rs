//! `cluster down`: stops every node of the folder that runs, cleanly.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::launch::{running, stop};
use super::{block_on, folder_at, nodes_of};
use crate::cli::failure::Failure;
use crate::cluster::{ClusterFolder, NodeProcess};

/// Stop all nodes cleanly
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup cluster down --dir demo")]
pub(super) struct Down {
    /// The cluster's folder
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Down {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let folder = folder_at(&self.dir)?;
        let nodes = nodes_of(&folder)?;
        let processes = running(&folder, &nodes)?;
        if processes.is_empty() {
            let dir = self.dir.display();
            return writeln!(out, "no node of {dir} is running").map_err(Failure::of_stdout);
        }
        let names: Vec<_> = processes.iter().map(|p| p.node().to_string()).collect();
        block_on(stop_cleanly(&folder, processes))?;
        let names = names.join(", ");
        writeln!(out, "stopped node {names}").map_err(Failure::of_stdout)
    }
}

/// Stops nodes, and fails for one that didn't end cleanly.
pub(in crate::cli) async fn stop_cleanly(
    folder: &ClusterFolder,
    processes: Vec<NodeProcess>,
) -> Result<(), Failure> {
    let stopped: Vec<_> = processes.iter().map(NodeProcess::node).collect();
    stop(processes).await?;
    // A clean stop removes the file as its last act.
    match stopped.iter().find(|node| folder.pid(**node).exists()) {
        None => Ok(()),
        Some(node) => Err(Failure::work(format!(
            "node {node} ended, but not cleanly; see {}",
            folder.log(*node).display()
        ))),
    }
}
