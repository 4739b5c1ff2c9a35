//! What can go wrong with an archive: the store didn't do it, an object isn't what it should be,
//! or the archive is another cluster's.

use std::io;
use std::path::PathBuf;

use raft_host::id::{GroupId, Index, Term};
use thiserror::Error;

use super::claim::Whose;
use crate::admin::ArchiveState;
use crate::cluster_id::{ClusterId, NoRandomness};
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
    #[error(
        "{url} is no archive: file:///PATH, with the whole path from the root, and s3://BUCKET/PREFIX are"
    )]
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
    /// There was an archive, and its beginning isn't there any more.
    #[error(
        "{url} held this cluster's archive, and its archive.json is gone; bring back what was there \
         (a mount, a folder that was moved), or give `archive.url` another place"
    )]
    Gone {
        /// Where.
        url: String,
    },
    /// Objects without anything that says whose they are.
    #[error(
        "{url} holds an archive's objects and no archive.json, so it isn't known whose they are; \
         bring that file back, or give `archive.url` another place"
    )]
    Ownerless {
        /// Where.
        url: String,
    },
    /// The archive's folder can't be made or looked at.
    #[error(
        "the archive's folder {} can't be used: {source}; give `archive.url` a folder in which this \
         user may write", .path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Nobody says who asks the store.
    #[error(
        "there are no credentials for {url}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the \
         environment (and AWS_REGION, or AWS_ENDPOINT for a store that isn't Amazon's); this \
         machine has no role that would give some"
    )]
    NoCredentials {
        /// Where.
        url: String,
    },
    /// Half of what says who asks the store.
    #[error("{given} is set and {missing} isn't; set both in the environment to reach {url}")]
    HalfCredentials {
        /// Where.
        url: String,
        /// The variable that is there.
        given: &'static str,
        /// The one that isn't.
        missing: &'static str,
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
    #[error(
        "{url} is the archive of {archived}, and this is {own}; give `archive.url` a place of its \
         own (making a cluster out of an archive, `archive restore`, isn't there yet)"
    )]
    Foreign {
        /// Where.
        url: String,
        /// Whose it is.
        archived: Box<Whose>,
        /// Who would publish there.
        own: Box<Whose>,
    },
    /// An earlier version began it, and didn't say which cluster it was.
    #[error(
        "{url} was begun by a version that gave clusters no id, so it isn't known which cluster \
         {cluster} it is of; give `archive.url` another place"
    )]
    Unidentified {
        /// Where.
        url: String,
        /// The cluster's name.
        cluster: String,
    },
    /// This node published there from another data folder.
    #[error(
        "node {node} published to {url} from another data folder than the one that it has now \
         ({archived} there, {own} here): this node or its whole cluster was wiped; bring its data \
         back, or give `archive.url` another place (making a cluster out of an archive, `archive \
         restore`, isn't there yet)"
    )]
    Wiped {
        /// Where.
        url: String,
        /// The node.
        node: u64,
        /// The incarnation in its first object.
        archived: String,
        /// The one that it has.
        own: String,
    },
    /// The configuration has another id than what the data folder is of.
    #[error(
        "`cluster_id` is {configured}, and {} says {known}; correct `cluster_id` or `data_dir`",
        .path.display()
    )]
    OtherId {
        /// What is remembered, where.
        path: PathBuf,
        /// The configuration's.
        configured: ClusterId,
        /// The folder's.
        known: ClusterId,
    },
    /// What is remembered of the archive can't be read or written.
    #[error("can't {doing} {}; check that file, and that this user may write there", .path.display())]
    Memory {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No id can be drawn.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
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

impl ArchiveError {
    /// Whether trying again can't help: someone must act first. The rest may pass, as a store that
    /// is down does.
    #[must_use]
    pub fn wants_an_operator(&self) -> bool {
        match self {
            Self::Store { source, .. } => matches!(
                **source,
                object_store::Error::InvalidPath { .. }
                    | object_store::Error::NotSupported { .. }
                    | object_store::Error::NotImplemented { .. }
                    | object_store::Error::PermissionDenied { .. }
                    | object_store::Error::Unauthenticated { .. }
                    | object_store::Error::UnknownConfigurationKey { .. }
            ),
            Self::Late { .. } | Self::Host(_) => false,
            Self::Url { .. }
            | Self::Absent { .. }
            | Self::Gone { .. }
            | Self::Ownerless { .. }
            | Self::Folder { .. }
            | Self::NoCredentials { .. }
            | Self::HalfCredentials { .. }
            | Self::Foreign { .. }
            | Self::Unidentified { .. }
            | Self::Wiped { .. }
            | Self::OtherId { .. }
            | Self::Memory { .. }
            | Self::Randomness(_)
            | Self::Identity(_)
            | Self::Object { .. } => true,
        }
    }

    /// In one word, for programs.
    #[must_use]
    pub(super) const fn state(&self) -> ArchiveState {
        match self {
            Self::Gone { .. } | Self::Ownerless { .. } | Self::Absent { .. } => ArchiveState::Gone,
            Self::Foreign { .. }
            | Self::Unidentified { .. }
            | Self::Wiped { .. }
            | Self::OtherId { .. } => ArchiveState::Foreign,
            Self::Url { .. }
            | Self::Folder { .. }
            | Self::NoCredentials { .. }
            | Self::HalfCredentials { .. }
            | Self::Store { .. }
            | Self::Late { .. }
            | Self::Memory { .. }
            | Self::Randomness(_)
            | Self::Identity(_)
            | Self::Object { .. }
            | Self::Host(_) => ArchiveState::Failing,
        }
    }
}
