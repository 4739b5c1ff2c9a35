//! `cluster kill`: sends one node a signal and waits until its process is gone.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::launch::{STOP_PATIENCE, end};
use super::{block_on, folder_with, of_cluster};
use crate::cli::failure::Failure;
use crate::cluster::{Found, NodeSignal, find};

/// Kill one node, and wait until it is gone
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup cluster kill --dir demo --node 2\n  \
                  multigroup cluster kill --dir demo --node 2 --signal STOP"
)]
pub(super) struct Kill {
    /// The cluster's folder
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The node
    #[arg(long, value_name = "N")]
    node: u64,
    /// The signal; STOP and CONT are not waited for
    #[arg(long, value_name = "NAME", default_value = "KILL")]
    signal: NodeSignal,
}

impl Kill {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let (node, folder) = (self.node, folder_with(&self.dir, self.node)?);
        let process = match find(&folder, node).map_err(of_cluster)? {
            Found::Running(process) => process,
            Found::Nothing => {
                return Err(Failure::unreachable(format!(
                    "node {node} is not running; start it with `multigroup cluster restart`"
                )));
            }
            Found::Stale { pid, why } => {
                return Err(Failure::unreachable(format!(
                    "node {node} is not running: {} names process {pid}, but {why}; start it with \
                     `multigroup cluster restart`",
                    folder.pid(node).display()
                )));
            }
        };
        let pid = process.pid();
        if !self.signal.ends() {
            process.signal(self.signal).map_err(of_cluster)?;
            return writeln!(out, "signalled node {node}, process {pid}")
                .map_err(Failure::of_stdout);
        }
        if !block_on(end(&process, self.signal, STOP_PATIENCE))? {
            return Err(Failure::work(format!(
                "node {node}, process {pid}, is still there after {} s; use --signal KILL",
                STOP_PATIENCE.as_secs()
            )));
        }
        // One that ended cleanly has done so; a killed one couldn't.
        let path = folder.pid(node);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::of_file("remove", &path, &error));
            }
            Ok(()) | Err(_) => {}
        }
        writeln!(out, "node {node}, process {pid}, is gone").map_err(Failure::of_stdout)
    }
}
