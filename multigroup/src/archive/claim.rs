//! Whose archive it is, made sure of before anything is published there, and again before each round:
//! a cluster is told by its id (`cluster_id.rs`), a node by the incarnation of its data folder.
//!
//! The id is the configuration's, else what this data folder remembers, else what the archive says,
//! else it is drawn; of several nodes that begin an archive at once one creates `archive.json`, and
//! all take what is in it. `DATA/archive.toml` remembers the id and where the archive was begun.
//!
//! - K1: an archive whose id isn't the known one is never written to.
//! - K2: one that was begun is never begun again in the same place: what was there is missed by name.
//! - K3: a node whose objects there are of another data folder publishes nothing: its log isn't the
//!   one that those objects were read from.
//!
//! Leaves to others: which fault ends a start and which is tried again (`node/archiving.rs`).

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{ArchiveError, ObjectName};
use super::object::{HEADER_BYTES, read_header};
use super::place::{ArchiveUrl, Identity, Place};
use crate::cli::durable::{self, Readers};
use crate::cluster_id::ClusterId;

/// Remembers, in the data folder.
const MEMORY: &str = "archive.toml";

/// A cluster as an archive knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    /// Its name.
    pub cluster: String,
    /// Its id, if it has one yet.
    pub id: Option<ClusterId>,
    /// Its groups.
    pub groups: u32,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {} ", self.cluster)?;
        match self.id {
            Some(id) => write!(f, "with id {id} ")?,
            None => f.write_str("without an id ")?,
        }
        write!(f, "and {} groups", self.groups)
    }
}

/// What a data folder remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    cluster_id: Option<ClusterId>,
    /// Where an archive of this cluster was seen.
    url: Option<String>,
}

/// A node that wants to publish.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// Where to.
    pub(crate) url: ArchiveUrl,
    /// The cluster, with the id that its configuration has.
    pub(crate) own: Whose,
    /// This node.
    pub(crate) node: u64,
    /// That of its data folder.
    pub(crate) incarnation: [u8; 16],
    /// Its data folder.
    pub(crate) data: PathBuf,
}

impl Claim {
    /// Opens the archive as this cluster's own, and begins it where nothing is.
    pub(crate) async fn open(&self) -> Result<(Place, Identity), ArchiveError> {
        let memory = self.remembered()?;
        let mut own = self.own.clone();
        if let (Some(configured), Some(known)) = (own.id, memory.cluster_id)
            && configured != known
        {
            let path = self.data.join(MEMORY);
            return Err(ArchiveError::OtherId {
                path,
                configured,
                known,
            });
        }
        own.id = own.id.or(memory.cluster_id);
        let url = self.url.to_string();
        let begun = memory.url.as_ref() == Some(&url);
        let place = Place::connect_to_write(&self.url, begun).await?;
        let identity = match place.identity().await? {
            Some(identity) => identity,
            None if begun => return Err(ArchiveError::Gone { url }),
            None if !place.nodes().await?.is_empty() => {
                return Err(ArchiveError::Ownerless { url });
            }
            None => self.begin(&place, &own).await?,
        };
        let id = check(&url, &identity, &own)?;
        self.check_incarnation(&place, &url).await?;
        self.remember(&memory, id, url)?;
        Ok((place, identity))
    }

    /// Another node may be doing the same: what is there then is what holds.
    async fn begin(&self, place: &Place, own: &Whose) -> Result<Identity, ArchiveError> {
        let id = match own.id {
            Some(id) => id,
            None => ClusterId::draw()?,
        };
        place
            .create_identity(&Identity::new(&own.cluster, id, own.groups))
            .await?;
        let url = self.url.to_string();
        let found = place.identity().await?;
        found.ok_or(ArchiveError::Gone { url })
    }

    async fn check_incarnation(&self, place: &Place, url: &str) -> Result<(), ArchiveError> {
        let first = ObjectName {
            node: self.node,
            sequence: 1,
        };
        let key = place.segments_key(first);
        let head = place.get(&key, Some(0..HEADER_BYTES as u64)).await?;
        // One that is damaged is named by whoever reads it.
        let header = head.and_then(|head| read_header(&head).ok());
        let archived = header.map_or(self.incarnation, |header| header.incarnation);
        if archived == self.incarnation {
            return Ok(());
        }
        Err(ArchiveError::Wiped {
            url: url.to_owned(),
            node: self.node,
            archived: in_hex(archived),
            own: in_hex(self.incarnation),
        })
    }

    fn remembered(&self) -> Result<Memory, ArchiveError> {
        let path = self.data.join(MEMORY);
        let read = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
            Err(error) => Err(error),
            Ok(text) => toml::from_str(&text)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.message())),
        };
        read.map_err(|source| ArchiveError::Memory {
            doing: "read",
            path,
            source,
        })
    }

    fn remember(&self, known: &Memory, id: ClusterId, url: String) -> Result<(), ArchiveError> {
        let memory = Memory {
            cluster_id: Some(id),
            url: Some(url),
        };
        if memory == *known {
            return Ok(());
        }
        let path = self.data.join(MEMORY);
        let text = toml::to_string(&memory).unwrap_or_default();
        let written = durable::write(&path, text.as_bytes(), Readers::All);
        written.map_err(|source| ArchiveError::Memory {
            doing: "write",
            path,
            source,
        })
    }
}

/// Holds what an archive says of itself against who asks; gives its id.
fn check(url: &str, identity: &Identity, own: &Whose) -> Result<ClusterId, ArchiveError> {
    let Some(id) = identity.cluster_id else {
        return Err(ArchiveError::Unidentified {
            url: url.to_owned(),
            cluster: identity.cluster.clone(),
        });
    };
    let is_own = identity.cluster == own.cluster
        && identity.groups == own.groups
        && own.id.is_none_or(|own| own == id);
    if is_own {
        return Ok(id);
    }
    let archived = Whose {
        cluster: identity.cluster.clone(),
        id: Some(id),
        groups: identity.groups,
    };
    Err(ArchiveError::Foreign {
        url: url.to_owned(),
        archived: Box::new(archived),
        own: Box::new(own.clone()),
    })
}

/// Makes sure that an archive which was opened is still there and still the same (K1, K2).
pub(super) async fn still_there(place: &Place, opened: &Identity) -> Result<(), ArchiveError> {
    let url = place.url();
    let Some(identity) = place.identity().await? else {
        let url = url.to_owned();
        return Err(ArchiveError::Gone { url });
    };
    let own = Whose {
        cluster: opened.cluster.clone(),
        id: opened.cluster_id,
        groups: opened.groups,
    };
    check(url, &identity, &own).map(|_| ())
}

fn in_hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests;
