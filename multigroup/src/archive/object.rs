//! An object of segments as bytes: a header, a directory with one record for each group, and the
//! groups' entries. Every byte is under one of three kinds of checksum; any bytes at all may come
//! in, and what isn't exactly what a publisher writes is refused by name.
//!
//! ```text
//! header     76  magic 8, version u32, reserved u32, node u64, sequence u64, incarnation 16,
//!                made u64 (ms since 1970), records u32, payload u64, crc of directory u32, crc u32
//! directory      of 56 each, groups rising: group, first, term before, last, last term,
//!                offset: u64 each; length, crc: u32
//! payload        the segments, in the directory's order and without a gap
//! ```
//! Numbers are little-endian, checksums CRC-32.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use raft_host::id::{GroupId, Index, Term};
use raft_host::log::api::LogEntry;

use super::catalog::Span;
use super::entry::{put_entry, read_entries};
use super::error::{ObjectFault, ObjectName};
use crate::limits::{ARCHIVE_OBJECT_BYTES_MAX, GROUPS_MAX};

const MAGIC: [u8; 8] = *b"mgarch\r\n";
const VERSION: u32 = 1;
/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 76;
const RECORD_BYTES: usize = 56;
/// Terms and indexes stay below this, as in the host.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// What an object says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: ObjectName,
    /// The data folder of the node that published it.
    pub incarnation: [u8; 16],
    /// When, in milliseconds since 1970.
    pub made_ms: u64,
    /// Its segments.
    pub segments: u32,
    /// Bytes of its segments.
    pub payload_bytes: u64,
    directory_crc: u32,
}

impl Header {
    /// Bytes of header and directory.
    pub(super) fn head_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.segments) * RECORD_BYTES as u64
    }

    /// Bytes of the object.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.head_bytes() + self.payload_bytes
    }
}

/// One group's entries in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRef {
    /// The group.
    pub group: GroupId,
    /// Its first entry.
    pub first: Index,
    /// The term of the entry before it.
    pub term_before: Term,
    /// Its last entry.
    pub last: Index,
    /// That entry's term.
    pub last_term: Term,
    /// Where it begins in the payload.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
    crc: u32,
}

impl SegmentRef {
    pub(super) fn span(&self) -> Span {
        Span {
            first: self.first,
            term_before: self.term_before,
            last: self.last,
            last_term: self.last_term,
        }
    }
}

/// Gathers the segments of one object.
#[derive(Debug, Default)]
pub(super) struct ObjectBuilder {
    segments: Vec<SegmentRef>,
    payload: BytesMut,
}

impl ObjectBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of segments so far.
    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    /// Adds a group's next entries, which are consecutive and none of which is there already.
    pub(super) fn add(&mut self, group: GroupId, term_before: Term, entries: &[LogEntry]) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return;
        };
        let offset = self.payload.len();
        for entry in entries {
            put_entry(&mut self.payload, entry);
        }
        let segment = &self.payload[offset..];
        self.segments.push(SegmentRef {
            group,
            first: first.index,
            term_before,
            last: last.index,
            last_term: last.term,
            offset: offset as u64,
            // The bounds of objects and entries are far below.
            length: u32::try_from(segment.len()).unwrap_or(u32::MAX),
            crc: crc32fast::hash(segment),
        });
    }

    /// The object's bytes, and its directory.
    pub(super) fn finish(
        self,
        name: ObjectName,
        incarnation: [u8; 16],
        made_ms: u64,
    ) -> (Bytes, Vec<SegmentRef>) {
        let mut segments = self.segments;
        // Groups are added in the order in which they were looked at.
        segments.sort_by_key(|segment| segment.group);
        let mut payload = BytesMut::with_capacity(self.payload.len());
        for segment in &mut segments {
            let begin = usize::try_from(segment.offset).unwrap_or(usize::MAX);
            segment.offset = payload.len() as u64;
            payload.put_slice(&self.payload[begin..begin + segment.length as usize]);
        }
        let mut directory = BytesMut::with_capacity(segments.len() * RECORD_BYTES);
        for segment in &segments {
            put_record(&mut directory, segment);
        }
        let mut out = BytesMut::with_capacity(HEADER_BYTES + directory.len() + payload.len());
        out.put_slice(&MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(0);
        out.put_u64_le(name.node);
        out.put_u64_le(name.sequence);
        out.put_slice(&incarnation);
        out.put_u64_le(made_ms);
        out.put_u32_le(u32::try_from(segments.len()).unwrap_or(u32::MAX));
        out.put_u64_le(payload.len() as u64);
        out.put_u32_le(crc32fast::hash(&directory));
        let crc = crc32fast::hash(&out);
        out.put_u32_le(crc);
        out.put_slice(&directory);
        out.put_slice(&payload);
        (out.freeze(), segments)
    }
}

fn put_record(out: &mut BytesMut, segment: &SegmentRef) {
    out.put_u64_le(segment.group.to_u64());
    out.put_u64_le(segment.first.to_u64());
    out.put_u64_le(segment.term_before.to_u64());
    out.put_u64_le(segment.last.to_u64());
    out.put_u64_le(segment.last_term.to_u64());
    out.put_u64_le(segment.offset);
    out.put_u32_le(segment.length);
    out.put_u32_le(segment.crc);
}

/// Reads a header.
pub(super) fn read_header(bytes: &[u8]) -> Result<Header, ObjectFault> {
    let Some((mut head, _)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(ObjectFault::Length {
            expected: HEADER_BYTES as u64,
            got: bytes.len() as u64,
        });
    };
    if head[..8] != MAGIC {
        return Err(ObjectFault::Magic);
    }
    let crc = crc32fast::hash(&head[..HEADER_BYTES - 4]);
    head.advance(8);
    let version = head.get_u32_le();
    let reserved = head.get_u32_le();
    let (node, sequence) = (head.get_u64_le(), head.get_u64_le());
    let mut incarnation = [0; 16];
    head.copy_to_slice(&mut incarnation);
    let header = Header {
        name: ObjectName { node, sequence },
        incarnation,
        made_ms: head.get_u64_le(),
        segments: head.get_u32_le(),
        payload_bytes: head.get_u64_le(),
        directory_crc: head.get_u32_le(),
    };
    if crc != head.get_u32_le() {
        return Err(ObjectFault::Checksum { part: "header" });
    }
    if version != VERSION {
        let (expected, got) = (VERSION, version);
        return Err(ObjectFault::Version { expected, got });
    }
    let bounded = header.segments <= GROUPS_MAX
        && header.segments > 0
        && header.payload_bytes <= ARCHIVE_OBJECT_BYTES_MAX
        && reserved == 0;
    if !bounded {
        return Err(ObjectFault::Impossible { part: "header" });
    }
    Ok(header)
}

/// Reads the directory that follows a header.
pub(super) fn read_directory(
    header: &Header,
    bytes: &[u8],
) -> Result<Vec<SegmentRef>, ObjectFault> {
    let end = usize::try_from(header.head_bytes()).unwrap_or(usize::MAX);
    let Some(mut directory) = bytes.get(HEADER_BYTES..end) else {
        return Err(ObjectFault::Length {
            expected: header.head_bytes(),
            got: bytes.len() as u64,
        });
    };
    if crc32fast::hash(directory) != header.directory_crc {
        return Err(ObjectFault::Checksum { part: "directory" });
    }
    let mut segments: Vec<SegmentRef> = Vec::new();
    let mut offset = 0;
    while directory.has_remaining() {
        let segment = read_record(&mut directory);
        let above = segments
            .last()
            .is_none_or(|last| last.group < segment.group);
        if !(above && segment.offset == offset && is_possible(&segment)) {
            return Err(ObjectFault::Impossible { part: "directory" });
        }
        offset += u64::from(segment.length);
        segments.push(segment);
    }
    if offset != header.payload_bytes {
        return Err(ObjectFault::Impossible { part: "directory" });
    }
    Ok(segments)
}

/// The directory's length is a multiple of a record's.
fn read_record(directory: &mut &[u8]) -> SegmentRef {
    SegmentRef {
        group: GroupId::new(directory.get_u64_le()),
        first: Index::new(directory.get_u64_le()),
        term_before: Term::new(directory.get_u64_le()),
        last: Index::new(directory.get_u64_le()),
        last_term: Term::new(directory.get_u64_le()),
        offset: directory.get_u64_le(),
        length: directory.get_u32_le(),
        crc: directory.get_u32_le(),
    }
}

fn is_possible(segment: &SegmentRef) -> bool {
    segment.group.to_u64() < u64::from(GROUPS_MAX)
        && segment.first >= Index::new(1)
        && segment.first <= segment.last
        && segment.last.to_u64() < NUMBER_MAX
        && segment.term_before <= segment.last_term
        && segment.last_term.to_u64() < NUMBER_MAX
        && segment.length > 0
}

/// One segment's entries out of its own bytes.
pub(super) fn read_segment(
    segment: &SegmentRef,
    bytes: Bytes,
) -> Result<Vec<LogEntry>, ObjectFault> {
    if bytes.len() != segment.length as usize || crc32fast::hash(&bytes) != segment.crc {
        let group = segment.group;
        return Err(ObjectFault::SegmentChecksum { group });
    }
    read_entries(segment, bytes)
}

/// Reads a whole object, and every entry in it once, for its faults.
pub(super) fn read_object(
    name: ObjectName,
    bytes: &Bytes,
) -> Result<(Header, Vec<SegmentRef>), ObjectFault> {
    let header = read_header(bytes)?;
    check_name(name, &header)?;
    if header.bytes() != bytes.len() as u64 {
        return Err(ObjectFault::Length {
            expected: header.bytes(),
            got: bytes.len() as u64,
        });
    }
    let segments = read_directory(&header, bytes)?;
    for segment in &segments {
        read_segment(segment, segment_bytes(&header, segment, bytes))?;
    }
    Ok((header, segments))
}

pub(super) fn check_name(name: ObjectName, header: &Header) -> Result<(), ObjectFault> {
    let ObjectName { node, sequence } = header.name;
    if name == header.name {
        Ok(())
    } else {
        Err(ObjectFault::Misnamed { node, sequence })
    }
}

/// Where a segment lies in its object.
pub(super) fn segment_range(header: &Header, segment: &SegmentRef) -> std::ops::Range<u64> {
    let begin = header.head_bytes() + segment.offset;
    begin..begin + u64::from(segment.length)
}

/// A segment of an object whose length and directory are right.
fn segment_bytes(header: &Header, segment: &SegmentRef, object: &Bytes) -> Bytes {
    let range = segment_range(header, segment);
    let at = |place| usize::try_from(place).unwrap_or(usize::MAX);
    object.slice(at(range.start)..at(range.end))
}

#[cfg(test)]
mod tests;
