//! What can go wrong with an archive: the store didn't do it, an object isn't what it should be,
//! or the archive is another cluster's.

use raft_host::id::{GroupId, Index, Term};
use thiserror::Error;

use crate::command::DecodeError;

/// Why an object's bytes are refused. Whatever is wrong with one, nothing of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ObjectFault {
    /// It is shorter or longer than it says.
    #[error("it has {got} bytes, its header says {expected}")]
    Length {
        /// What the header says, or the least that it could be.
        expected: u64,
        /// What there are.
        got: u64,
    },
    /// It is something else.
    #[error("it is no object of an archive")]
    Magic,
    /// Another version of this program wrote it.
    #[error("it has version {got}, this program reads {expected}")]
    Version {
        /// What this program reads.
        expected: u32,
        /// What it says.
        got: u32,
    },
    /// A part of it was changed or lost.
    #[error("the checksum of its {part} is wrong")]
    Checksum {
        /// Which.
        part: &'static str,
    },
    /// The checksum of a segment is wrong.
    #[error("the checksum of group {group} is wrong")]
    SegmentChecksum {
        /// Whose segment.
        group: GroupId,
    },
    /// It says what no publisher writes.
    #[error("its {part} says what no publisher writes")]
    Impossible {
        /// Which part.
        part: &'static str,
    },
    /// It is under a name that isn't its own.
    #[error("it is object {sequence} of node {node}, under another name")]
    Misnamed {
        /// Whose it says it is.
        node: u64,
        /// Which it says it is.
        sequence: u64,
    },
    /// The entries of a group can't be read.
    #[error("the entries of group {group} can't be read: {source}")]
    Entries {
        /// Whose.
        group: GroupId,
        /// Why not.
        source: DecodeError,
    },
}

/// Why segments of a group don't fit together (A3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fork {
    /// The entry before a segment isn't the one that is archived there.
    #[error("entry {index} has term {archived} in one object and {got} in another")]
    Terms {
        /// Which.
        index: Index,
        /// Its term as it was archived first.
        archived: Term,
        /// Its term as the other has it.
        got: Term,
    },
    /// The same entry has other bytes.
    #[error("entry {index} has other bytes in {object} than elsewhere")]
    Bytes {
        /// Which.
        index: Index,
        /// Where.
        object: ObjectName,
    },
}

/// Names an object of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Who published it.
    pub node: u64,
    /// Which of that node's it is, from 1.
    pub sequence: u64,
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, sequence } = self;
        write!(f, "object {sequence} of node {node}")
    }
}

/// Why an archive can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It isn't named by a URL that this program knows.
    #[error("{url} is no archive: file:///PATH and s3://BUCKET/PREFIX are")]
    Url {
        /// What was given.
        url: String,
    },
    /// There is nothing there.
    #[error("{url} holds no archive")]
    Absent {
        /// Where.
        url: String,
    },
    /// The store didn't do what it was asked.
    #[error("the store did not {doing}")]
    Store {
        /// What it was asked.
        doing: &'static str,
        /// Why not.
        #[source]
        source: Box<object_store::Error>,
    },
    /// The store didn't answer in time.
    #[error("the store did not {doing} within {seconds} s")]
    Late {
        /// What it was asked.
        doing: &'static str,
        /// How long it was given.
        seconds: u64,
    },
    /// Another cluster's archive is there, or one of another key space.
    #[error("{url} is the archive of cluster {cluster} with {groups} groups, not of this one")]
    Foreign {
        /// Where.
        url: String,
        /// Whose it is.
        cluster: String,
        /// The groups of that cluster.
        groups: u32,
    },
    /// What says whose archive it is can't be read.
    #[error("archive.json can't be read, so it isn't known whose archive this is")]
    Identity(#[source] serde_json::Error),
    /// An object is damaged.
    #[error("{object} is damaged: {fault}")]
    Object {
        /// Which.
        object: ObjectName,
        /// How.
        fault: ObjectFault,
    },
    /// The groups' logs can't be read.
    #[error("the host takes no questions")]
    Host(#[source] raft_host::error::Refusal),
}
