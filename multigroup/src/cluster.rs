//! A cluster on one machine, as its folder shows it: where each node's files are, which of its
//! nodes run, and how a node's process is started, signalled and waited for.
//!
//! Leaves to others: what a node is (`node`), what configurations say (`config`), when a node is
//! started or stopped and what people are told of it (`cli`).
//!
//! - C1: a process is taken for a node of the folder only if its command line says so at the moment
//!   of looking: a pid file alone proves nothing, since numbers are used again.
//! - C2: a signal goes to the very process that was looked at, and waiting waits for that one: both
//!   go through a descriptor of it, which no later process of the same number gets.

mod disk;
mod error;
mod process;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use self::disk::FileSystem;
pub use self::error::ClusterError;
pub use self::process::{Found, Launched, NodeProcess, NodeSignal, find, launch, scan};

/// The folder of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFolder {
    root: PathBuf,
}

impl ClusterFolder {
    /// Takes a folder, which may not be there yet. Relative to the current one.
    ///
    /// # Errors
    /// If the current folder isn't known.
    pub fn new(root: &Path) -> io::Result<Self> {
        let root = std::path::absolute(root)?;
        Ok(Self { root })
    }

    /// The folder itself, as an absolute path.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A node's own folder.
    #[must_use]
    pub fn node(&self, node: u64) -> PathBuf {
        self.root.join(format!("node-{node}"))
    }

    /// A node's configuration.
    #[must_use]
    pub fn config(&self, node: u64) -> PathBuf {
        self.node(node).join("config.toml")
    }

    /// What a node writes to its standard error.
    #[must_use]
    pub fn log(&self, node: u64) -> PathBuf {
        self.root.join("logs").join(format!("node-{node}.log"))
    }

    /// What a node says last, as it stops.
    #[must_use]
    pub fn final_status(&self, node: u64) -> PathBuf {
        let name = format!("node-{node}.final.json");
        self.root.join("logs").join(name)
    }

    /// Where the nodes publish, unless the configurations say otherwise.
    #[must_use]
    pub fn archive(&self) -> PathBuf {
        self.root.join("archive")
    }

    /// Where the number of a node's process is found while it runs.
    #[must_use]
    pub fn pid(&self, node: u64) -> PathBuf {
        self.root.join("pids").join(format!("node-{node}"))
    }

    /// The nodes that have a configuration or a pid file, in order.
    ///
    /// # Errors
    /// What the file system says; a folder that isn't there is an error.
    pub fn nodes(&self) -> io::Result<Vec<u64>> {
        let number = |entry: io::Result<fs::DirEntry>| {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node-"));
            Ok::<_, io::Error>(number.and_then(|number| number.parse().ok()))
        };
        let mut nodes = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            nodes.extend(number(entry)?.filter(|node| self.config(*node).exists()));
        }
        match fs::read_dir(self.root.join("pids")) {
            Ok(pids) => {
                for entry in pids {
                    nodes.extend(number(entry)?);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_with_a_configuration_or_a_pid() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ClusterFolder::new(dir.path()).unwrap();
        assert!(folder.nodes().unwrap().is_empty());
        for node in [10, 2] {
            fs::create_dir(folder.node(node)).unwrap();
            fs::write(folder.config(node), "").unwrap();
        }
        fs::create_dir(folder.node(7)).unwrap();
        fs::create_dir(dir.path().join("pids")).unwrap();
        fs::write(folder.pid(3), "1\n").unwrap();
        fs::write(folder.pid(2), "1\n").unwrap();
        assert_eq!(folder.nodes().unwrap(), [2, 3, 10]);
        let absent = ClusterFolder::new(&dir.path().join("absent")).unwrap();
        assert!(absent.nodes().is_err());
    }
}
