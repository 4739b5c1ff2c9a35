//! What can go wrong with the processes of a cluster.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a node's process can't be found, started, signalled or waited for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A file can't be read or written.
    #[error("can't {doing} {path}", path = .path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// This program can't tell where it is, to start nodes of itself.
    #[error("can't find this program's own file")]
    Program {
        /// Why not.
        source: io::Error,
    },
    /// The process can't be started.
    #[error("can't start node {node} from {program}", program = .program.display())]
    Start {
        /// The node.
        node: u64,
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The process can't be looked at, signalled or waited for.
    #[error("can't {doing} process {pid} of node {node}")]
    Process {
        /// What was tried.
        doing: &'static str,
        /// The node.
        node: u64,
        /// The process.
        pid: i32,
        /// Why not.
        source: io::Error,
    },
}
