//! Reads a whole archive and judges it: every checksum, every entry, that each node's objects are
//! numbered without a gap, that each group's entries lie without a gap up to its position, that
//! nothing stands beyond one, and that entries which are in several objects have the same bytes.
//! It trusts no manifest, and holds each against what the objects say.
//!
//! Nodes may publish meanwhile. What was published when the check began is judged; of what came
//! later only what it read. A gap is judged after everything was followed a second time: whatever
//! a segment stands on was published before it.
//!
//! Memory: one object of each node, and the entries that are in several objects.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use raft_host::id::{GroupId, Index};

use super::catalog::{Catalog, Position};
use super::entry::put_entry;
use super::error::{ArchiveError, Fork, ObjectName};
use super::manifest::Manifest;
use super::object::{Header, SegmentRef, read_object, read_segment, segment_range};
use super::place::{ArchiveUrl, Identity, Place};
use crate::limits::ARCHIVE_FAULTS_TOLD;

/// What was found.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Whose archive it is.
    pub identity: Identity,
    /// Objects that were read.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their segments.
    pub segments: u64,
    /// The entries in them, those in several objects counted in each.
    pub entries: u64,
    /// Entries that were in several objects, and compared.
    pub overlaps: u64,
    /// When the newest object was made, in milliseconds since 1970.
    pub newest_ms: u64,
    /// How far each group is archived.
    pub positions: BTreeMap<GroupId, Position>,
    /// All faults.
    pub faults: u64,
    /// The first of them.
    pub first_faults: Vec<String>,
}

/// A range of a group's entries, both ends included.
type Range = (Index, Index);

/// The entries of a group that were seen: ranges that neither meet nor touch, by their begin.
#[derive(Clone, Debug, Default)]
struct Covered(BTreeMap<u64, u64>);

impl Covered {
    /// Adds a range, and gives the parts of it that were there already.
    fn add(&mut self, first: u64, last: u64) -> Vec<Range> {
        let (mut begin, mut end) = (first, last);
        let mut twice = Vec::new();
        // Those that begin at the entry after it at the latest, from the last on.
        while let Some((&from, &to)) = self.0.range(..=last + 1).next_back() {
            if to + 1 < first {
                break;
            }
            let (a, b) = (from.max(first), to.min(last));
            if a <= b {
                twice.push((Index::new(a), Index::new(b)));
            }
            (begin, end) = (begin.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(begin, end);
        twice.reverse();
        twice
    }
}

/// An object that was read and has not been judged.
struct Read {
    header: Header,
    segments: Vec<SegmentRef>,
    bytes: u64,
}

struct Checker<'a> {
    place: Place,
    checked: Checked,
    catalog: Catalog,
    covered: BTreeMap<GroupId, Covered>,
    twice: BTreeMap<GroupId, Vec<Range>>,
    /// The object of each node that is looked at next.
    next: BTreeMap<u64, u64>,
    /// Objects and bytes so far.
    progress: &'a mut (dyn FnMut(u64, u64) + Send),
}

/// Reads and judges a whole archive.
///
/// # Errors
/// Why it can't be read. What is wrong with it is in the result.
pub async fn check(
    url: &ArchiveUrl,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Checked, ArchiveError> {
    let (place, identity) = Place::open(url).await?;
    check_place(place, identity, progress).await
}

pub(super) async fn check_place(
    place: Place,
    identity: Identity,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Checked, ArchiveError> {
    let mut checker = Checker {
        place,
        checked: Checked {
            identity,
            objects: 0,
            bytes: 0,
            segments: 0,
            entries: 0,
            overlaps: 0,
            newest_ms: 0,
            positions: BTreeMap::new(),
            faults: 0,
            first_faults: Vec::new(),
        },
        catalog: Catalog::default(),
        covered: BTreeMap::new(),
        twice: BTreeMap::new(),
        next: BTreeMap::new(),
        progress,
    };
    let manifests = checker.manifests().await?;
    checker.follow().await?;
    let gaps: BTreeSet<_> = checker.gaps().collect();
    checker.follow().await?;
    let left: Vec<_> = checker.gaps().filter(|gap| gaps.contains(gap)).collect();
    for (group, first) in left {
        let position = checker.catalog.position(group).index;
        checker.fault(format!(
            "group {group}: entries {} to {} are missing, later ones are there",
            position.next(),
            first.to_u64() - 1
        ));
    }
    checker.compare_twice().await?;
    checker.judge_manifests(&manifests);
    checker.checked.positions = checker.catalog.positions().collect();
    Ok(checker.checked)
}

impl Checker<'_> {
    fn fault(&mut self, what: String) {
        self.checked.faults += 1;
        if self.checked.first_faults.len() < ARCHIVE_FAULTS_TOLD {
            self.checked.first_faults.push(what);
        }
    }

    fn gaps(&self) -> impl Iterator<Item = (GroupId, Index)> + '_ {
        let ahead = self.catalog.ahead();
        ahead.map(|(group, span)| (group, span.first))
    }

    /// Reads what there is beyond what was read, of all nodes in the order in which it was made.
    async fn follow(&mut self) -> Result<(), ArchiveError> {
        for node in self.place.nodes().await? {
            self.next.entry(node).or_insert(1);
        }
        let mut waiting: BTreeMap<u64, Read> = BTreeMap::new();
        let nodes: Vec<u64> = self.next.keys().copied().collect();
        for node in nodes {
            if let Some(read) = self.read_next(node).await? {
                waiting.insert(node, read);
            }
        }
        while let Some(node) = oldest(&waiting) {
            if let Some(read) = waiting.remove(&node) {
                self.take(&read);
            }
            if let Some(read) = self.read_next(node).await? {
                waiting.insert(node, read);
            }
        }
        Ok(())
    }

    /// The next object of a node that can be read; what is in the way is a fault.
    async fn read_next(&mut self, node: u64) -> Result<Option<Read>, ArchiveError> {
        loop {
            let sequence = self.next.get(&node).copied().unwrap_or(1);
            let name = ObjectName { node, sequence };
            let Some(bytes) = self.place.get(&self.place.segments_key(name), None).await? else {
                if self.skip_to_next(name).await? {
                    continue;
                }
                return Ok(None);
            };
            self.next.insert(node, sequence + 1);
            match read_object(name, &bytes) {
                Ok((header, segments)) => {
                    let bytes = bytes.len() as u64;
                    return Ok(Some(Read {
                        header,
                        segments,
                        bytes,
                    }));
                }
                Err(fault) => self.fault(format!("{name} is damaged: {fault}")),
            }
        }
    }

    /// There is no object of this name: it is the end, or some are missing and others follow.
    async fn skip_to_next(&mut self, name: ObjectName) -> Result<bool, ArchiveError> {
        let ObjectName { node, sequence } = name;
        let listed = self.place.objects(node).await?;
        let Some(next) = listed.into_iter().find(|there| *there >= sequence) else {
            return Ok(false);
        };
        // It may have been created between the two questions.
        if next > sequence {
            let last = ObjectName {
                node,
                sequence: next - 1,
            };
            self.fault(if last == name {
                format!("{name} is missing, later ones are there")
            } else {
                format!("{name} to {last} are missing, later ones are there")
            });
            self.next.insert(node, next);
        }
        Ok(true)
    }

    fn take(&mut self, read: &Read) {
        let name = read.header.name;
        for segment in &read.segments {
            let group = segment.group;
            let (first, last) = (segment.first.to_u64(), segment.last.to_u64());
            self.checked.segments += 1;
            self.checked.entries += last - first + 1;
            if group.to_u64() >= u64::from(self.checked.identity.groups) {
                self.fault(format!(
                    "{name} has group {group}, which the cluster hasn't"
                ));
                continue;
            }
            let twice = self.covered.entry(group).or_default().add(first, last);
            if !twice.is_empty() {
                self.twice.entry(group).or_default().extend(twice);
            }
            let known = self.catalog.fork(group);
            if let Err(fork) = self.catalog.add(group, segment.span())
                && known.is_none()
            {
                self.fault(format!("group {group} at {name}: {fork}"));
            }
        }
        self.checked.objects += 1;
        self.checked.bytes += read.bytes;
        self.checked.newest_ms = self.checked.newest_ms.max(read.header.made_ms);
        (self.progress)(self.checked.objects, self.checked.bytes);
    }

    /// Reads once more the segments with entries that are in several objects.
    async fn compare_twice(&mut self) -> Result<(), ArchiveError> {
        if self.twice.is_empty() {
            return Ok(());
        }
        let mut seen: BTreeMap<(GroupId, Index), Bytes> = BTreeMap::new();
        let ends = self.next.clone();
        for (node, end) in ends {
            for sequence in 1..end {
                let name = ObjectName { node, sequence };
                let key = self.place.segments_key(name);
                // What is missing or damaged was told.
                let Some(bytes) = self.place.get(&key, None).await? else {
                    continue;
                };
                if let Ok((header, segments)) = read_object(name, &bytes) {
                    for segment in &segments {
                        self.compare_segment(&header, segment, &bytes, &mut seen);
                    }
                }
            }
        }
        self.checked.overlaps = seen.len() as u64;
        Ok(())
    }

    fn compare_segment(
        &mut self,
        header: &Header,
        segment: &SegmentRef,
        object: &Bytes,
        seen: &mut BTreeMap<(GroupId, Index), Bytes>,
    ) {
        let group = segment.group;
        let Some(ranges) = self.twice.get(&group) else {
            return;
        };
        let meets = |range: &&Range| range.0 <= segment.last && segment.first <= range.1;
        let ranges: Vec<Range> = ranges.iter().filter(meets).copied().collect();
        if ranges.is_empty() {
            return;
        }
        let at = |place| usize::try_from(place).unwrap_or(usize::MAX);
        let range = segment_range(header, segment);
        let payload = object.slice(at(range.start)..at(range.end));
        let Ok(entries) = read_segment(segment, payload) else {
            return;
        };
        for entry in entries {
            let index = entry.index;
            if !ranges
                .iter()
                .any(|(from, to)| (*from..=*to).contains(&index))
            {
                continue;
            }
            let mut bytes = BytesMut::new();
            put_entry(&mut bytes, &entry);
            let bytes = bytes.freeze();
            let first = seen.entry((group, index)).or_insert_with(|| bytes.clone());
            if *first != bytes {
                let object = header.name;
                let fork = Fork::Bytes { index, object };
                return self.fault(format!("group {group}: {fork}"));
            }
        }
    }

    async fn manifests(&mut self) -> Result<Vec<(ObjectName, Manifest)>, ArchiveError> {
        let mut manifests = Vec::new();
        for node in self.place.nodes_with_manifests().await? {
            for sequence in self.place.manifests(node).await? {
                let name = ObjectName { node, sequence };
                let key = self.place.manifest_key(node, sequence);
                // An old one may just have been removed.
                let Some(bytes) = self.place.get(&key, None).await? else {
                    continue;
                };
                match Manifest::decode(&bytes) {
                    Ok(manifest) => manifests.push((name, manifest)),
                    Err(fault) => self.fault(format!("the manifest with {name}: {fault}")),
                }
            }
        }
        Ok(manifests)
    }

    /// A manifest that says more than the objects would make a reader skip what isn't there.
    fn judge_manifests(&mut self, manifests: &[(ObjectName, Manifest)]) {
        for (name, manifest) in manifests {
            for (group, position) in &manifest.positions {
                let derived = self.catalog.position(*group);
                if derived.index < position.index {
                    self.fault(format!(
                        "the manifest with {name} has group {group} archived up to {}, the objects \
                         have it up to {}",
                        position.index, derived.index
                    ));
                }
            }
        }
    }
}

fn oldest(waiting: &BTreeMap<u64, Read>) -> Option<u64> {
    let oldest = waiting.iter().min_by_key(|(_, read)| read.header.made_ms);
    oldest.map(|(node, _)| *node)
}

#[cfg(test)]
mod tests;
