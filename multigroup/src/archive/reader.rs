//! Follows what nodes publish. A node's objects are numbered without a gap, so the next one is
//! asked for by its name until there is none: nothing is listed, and an object is read once. Of each
//! only header and directory are read.
//!
//! Leaves to others: what the entries are (`check` reads them), and writing.

use std::collections::BTreeMap;

use raft_host::id::GroupId;
use tracing::warn;

use super::catalog::{Added, Catalog, Position};
use super::error::{ArchiveError, Fork, ObjectFault, ObjectName};
use super::manifest::Manifest;
use super::object::{Header, SegmentRef, check_name, read_directory, read_header};
use super::place::{ArchiveUrl, Place};
use crate::limits::ARCHIVE_HEAD_BYTES;

/// Header and directory of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its header.
    pub header: Header,
    /// Its segments.
    pub segments: Vec<SegmentRef>,
}

/// What a followed object said of one group that wants looking at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) group: GroupId,
    /// Where it is said again.
    pub(super) header: Header,
    pub(super) segment: SegmentRef,
}

/// A reader of one archive, and where it is.
#[derive(Debug)]
pub(super) struct Reader {
    place: Place,
    pub(super) catalog: Catalog,
    /// The last object that was read of each node.
    read: BTreeMap<u64, u64>,
}

impl Reader {
    /// Begins with the manifest that saves most.
    pub(super) async fn open(
        place: Place,
        nodes: impl IntoIterator<Item = u64>,
    ) -> Result<Self, ArchiveError> {
        let mut best = Manifest::default();
        for node in place.nodes_with_manifests().await? {
            for sequence in place.manifests(node).await?.into_iter().rev() {
                let key = place.manifest_key(node, sequence);
                // One that was removed meanwhile has a newer one.
                let Some(bytes) = place.get(&key, None).await? else {
                    continue;
                };
                match Manifest::decode(&bytes) {
                    Ok(manifest) if manifest.objects() > best.objects() => best = manifest,
                    Ok(_) => {}
                    // An older one, or the objects themselves, say the same.
                    Err(fault) => {
                        warn!(node, sequence, %fault, "a manifest of the archive is damaged");
                        continue;
                    }
                }
                break;
            }
        }
        let mut reader = Self::at_beginning(place, nodes);
        for (group, position) in best.positions {
            reader.catalog.begin_at(group, position);
        }
        reader.read.extend(best.covered);
        reader.discover().await?;
        Ok(reader)
    }

    /// Begins with the first object of each.
    pub(super) fn at_beginning(place: Place, nodes: impl IntoIterator<Item = u64>) -> Self {
        Self {
            place,
            catalog: Catalog::default(),
            read: nodes.into_iter().map(|node| (node, 0)).collect(),
        }
    }

    /// Looks for nodes that it doesn't know.
    pub(super) async fn discover(&mut self) -> Result<(), ArchiveError> {
        for node in self.place.nodes().await? {
            self.read.entry(node).or_insert(0);
        }
        Ok(())
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// The nodes, and the last object that was read of each.
    pub(super) fn read(&self) -> &BTreeMap<u64, u64> {
        &self.read
    }

    /// The name of the object that would be read next of a node.
    pub(super) fn next_of(&self, node: u64) -> ObjectName {
        let read = self.read.get(&node).copied().unwrap_or(0);
        ObjectName {
            node,
            sequence: read.saturating_add(1),
        }
    }

    /// Reads the next object of a node, if there is one.
    pub(super) async fn next(&mut self, node: u64) -> Result<Option<Listed>, ArchiveError> {
        let name = self.next_of(node);
        let Some(listed) = head(&self.place, name).await? else {
            return Ok(None);
        };
        self.read.insert(node, name.sequence);
        Ok(Some(listed))
    }

    /// Takes note of what an object holds. Gives what was there already, and what contradicts it.
    pub(super) fn note(&mut self, listed: &Listed) -> (Vec<Overlap>, Vec<(GroupId, Fork)>) {
        let (mut overlaps, mut forks) = (Vec::new(), Vec::new());
        for segment in &listed.segments {
            let group = segment.group;
            let known = self.catalog.fork(group);
            match self.catalog.add(group, segment.span()) {
                Ok(Added::Next | Added::Ahead) => {}
                Ok(Added::Overlap { .. }) => overlaps.push(Overlap {
                    group,
                    header: listed.header,
                    segment: *segment,
                }),
                Err(fork) if known.is_none() => forks.push((group, fork)),
                Err(_) => {}
            }
        }
        (overlaps, forks)
    }

    /// An object of this reader's own making, which was created under its next name.
    pub(super) fn created(&mut self, name: ObjectName) {
        self.read.insert(name.node, name.sequence);
    }

    /// Reads everything there is now. Gives how many objects that were.
    pub(super) async fn catch_up(&mut self) -> Result<u64, ArchiveError> {
        let mut objects = 0;
        let nodes: Vec<u64> = self.read.keys().copied().collect();
        for node in nodes {
            while let Some(listed) = self.next(node).await? {
                self.note(&listed);
                objects += 1;
            }
        }
        Ok(objects)
    }
}

/// Header and directory of one object.
async fn head(place: &Place, name: ObjectName) -> Result<Option<Listed>, ArchiveError> {
    let key = place.segments_key(name);
    let damaged = |fault: ObjectFault| ArchiveError::Object {
        object: name,
        fault,
    };
    let Some(mut bytes) = place.get(&key, Some(0..ARCHIVE_HEAD_BYTES)).await? else {
        return Ok(None);
    };
    let header = read_header(&bytes).map_err(damaged)?;
    check_name(name, &header).map_err(damaged)?;
    if (bytes.len() as u64) < header.head_bytes() {
        let more = place.get(&key, Some(0..header.head_bytes())).await?;
        bytes = more.unwrap_or_default();
    }
    let segments = read_directory(&header, &bytes).map_err(damaged)?;
    Ok(Some(Listed { header, segments }))
}

/// How far each group of an archive is archived. Whoever publishes meanwhile doesn't disturb it:
/// each position was the group's at some time since the call.
///
/// # Errors
/// Why the archive can't be read, or which object of it is damaged.
pub async fn positions(url: &ArchiveUrl) -> Result<BTreeMap<GroupId, Position>, ArchiveError> {
    let (place, _) = Place::open(url).await?;
    let mut reader = Reader::open(place, []).await?;
    reader.catch_up().await?;
    // What one node published may stand on what another published after that one was read.
    reader.catch_up().await?;
    Ok(reader.catalog.positions().collect())
}

/// Every object of an archive, node by node.
///
/// # Errors
/// Why the archive can't be read, or which object of it is damaged.
pub async fn list(url: &ArchiveUrl, mut each: impl FnMut(Listed)) -> Result<(), ArchiveError> {
    let (place, _) = Place::open(url).await?;
    let mut reader = Reader::at_beginning(place, []);
    reader.discover().await?;
    let nodes: Vec<u64> = reader.read.keys().copied().collect();
    for node in nodes {
        while let Some(listed) = reader.next(node).await? {
            each(listed);
        }
    }
    Ok(())
}
