//! Why a node doesn't start, or ends: each names the thing, both values where two disagree, and the
//! way out. Which exit code a fault has is the command's business.

use std::io;
use std::path::PathBuf;

use raft_host::io::{HostFailure, StartError, StorageError};
use thiserror::Error;
use transport::io::credentials::CredentialError;

use crate::config::HostPort;
use crate::store::StoreError;

/// A fault of a node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A part refuses what the configuration says of it.
    #[error("the configuration is refused")]
    Setting(#[from] SettingError),
    /// An address can't be found out.
    #[error("`{key}` = {address} can't be resolved; correct it or the name service")]
    Resolve {
        /// The key.
        key: &'static str,
        /// Its value.
        address: HostPort,
        /// What the system said.
        source: io::Error,
    },
    /// An address can't be listened on.
    #[error(
        "can't listen on `{key}` = {address}; end the process that has the port, or choose another \
         address"
    )]
    Listen {
        /// The key.
        key: &'static str,
        /// Its value.
        address: HostPort,
        /// What the system said.
        source: io::Error,
    },
    /// A file or folder can't be used.
    #[error(
        "can't {doing} {}; check that it is where it should be, that this user may write there and \
         that its disk has room",
        .path.display()
    )]
    Folder {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The data folder holds something that no node put there.
    #[error(
        "{} is no node's data folder: it has no identity.toml and holds {found:?}; give `data_dir` \
         an empty folder or the right one", .path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What was found in it.
        found: String,
    },
    /// The data folder is another node's.
    #[error(
        "{} says `{key}` = {got}, the configuration says {expected}; correct `data_dir` or `{key}`",
        .path.display()
    )]
    OtherNode {
        /// The file that names the folder's owner.
        path: PathBuf,
        /// What differs.
        key: &'static str,
        /// The configuration's.
        expected: String,
        /// The folder's.
        got: String,
    },
    /// The file that names the data folder's owner can't be read.
    #[error(
        "{} does not say whose data this is; write it anew if you know (`cluster`, `node` and `groups`, \
         as in the configuration), else leave the node stopped, the others go on as long as they are \
         a majority (bringing it back, `members readmit`, isn't there yet)", .path.display()
    )]
    IdentityDamaged {
        /// The file.
        path: PathBuf,
    },
    /// It runs already.
    #[error("node {node} runs already as process {pid}, which holds {}; stop it first", .path.display())]
    AlreadyRuns {
        /// The node.
        node: u64,
        /// The file of its number.
        path: PathBuf,
        /// Its number.
        pid: String,
    },
    /// The process may not have as many open files as it needs.
    #[error(
        "{groups} groups need {need} open files, and this process may have {have}; raise the limit \
         (`ulimit -Hn`, or LimitNOFILE= of a service)"
    )]
    TooFewFiles {
        /// How many it needs.
        need: u64,
        /// For so many groups.
        groups: u32,
        /// How many it may have.
        have: u64,
    },
    /// Its credentials can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// Its databases can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The folder of its log can't be used.
    #[error(
        "the data folder can't be used; check that this user may write there and that its disk has \
         room"
    )]
    Storage(#[from] StorageError),
    /// The archive can't be this node's.
    #[error("nothing can be archived")]
    Archive(#[from] crate::archive::ArchiveError),
    /// A thread can't be had.
    #[error("a thread can't be started; raise the limit of processes")]
    Thread(#[source] io::Error),
    /// The log, a group or the transport can't be started.
    #[error("{} can't be started on", .data.display())]
    Start {
        /// The data folder.
        data: PathBuf,
        /// Why not.
        source: Box<StartError>,
    },
    /// Its data folder was taken away while it ran.
    #[error(
        "{} is gone or is another's: what this node kept is not there any more, so it has ended; \
         bring the folder back before it starts again, else leave it stopped, the others go on as \
         long as they are a majority (bringing it back, `members readmit`, isn't there yet)",
        .path.display()
    )]
    DataGone {
        /// The file that is missed.
        path: PathBuf,
    },
    /// It ran, and can't go on.
    #[error("node {node} has stopped by itself; correct the cause and start it again")]
    Failed {
        /// The node.
        node: u64,
        /// Why.
        source: Box<HostFailure>,
    },
    /// It stopped, and couldn't say how it stood.
    #[error("the node stopped, but its last status can't be written to {}", .path.display())]
    FinalStatus {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What a part refuses of a configuration that agrees with itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// Not a name of a cluster, or not a number of a node, as certificates have them.
    #[error("`{key}` = {value} can't stand in a certificate")]
    Name {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why not.
        source: transport::id::IdError,
    },
    /// More nodes than a group has members; every node is a member of every group.
    #[error("`peers` names {nodes} nodes, at most {max} can be members of one group")]
    TooManyNodes {
        /// How many.
        nodes: usize,
        /// The bound.
        max: usize,
    },
    /// A setting whose effect isn't there yet: ignoring it would be a lie.
    #[error("`{key}` = {value} is not offered by this version; {remedy}")]
    NotOffered {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The archive can't be there.
    #[error("`archive.url` is refused")]
    Archive(#[source] Box<crate::archive::ArchiveError>),
    /// The links refuse it.
    #[error("`[transport]` is refused")]
    Transport(#[from] transport::config::ConfigError),
    /// The consensus refuses it.
    #[error("`[raft]` or `[host]` is refused")]
    Raft(#[from] raft_host::config::ConfigError),
    /// The log refuses it.
    #[error("`[log]` is refused")]
    Log(#[from] raft_host::log::ConfigError),
    /// The cluster's settings don't fit a hello.
    #[error("the cluster's settings are too long to be compared")]
    Fingerprint(#[from] transport::proto::hello::FingerprintError),
}
