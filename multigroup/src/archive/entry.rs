//! The entries of one group within an object: for each its term, kind, note and command. Their
//! indexes follow from the segment's first. The encoding of an entry doesn't depend on its
//! neighbours, so that the same entry has the same bytes in every object.

use bytes::{BufMut, Bytes, BytesMut};
use raft_host::id::{Index, Term};
use raft_host::log::api::{EntryKind, LogEntry};

use super::error::ObjectFault;
use super::object::SegmentRef;
use crate::command::DecodeError;
use crate::command::codec::{Reader, put_bytes, put_varint};
use crate::limits::ARCHIVED_ENTRY_BYTES_MAX;

pub(super) fn put_entry(out: &mut BytesMut, entry: &LogEntry) {
    put_varint(out, entry.term.to_u64());
    out.put_u8(match entry.kind {
        EntryKind::Normal => 0,
        EntryKind::ConfChange => 1,
    });
    put_bytes(out, &entry.context);
    put_bytes(out, &entry.data);
}

fn number_len(number: u64) -> u64 {
    let bits = u64::from(64 - number.leading_zeros()).max(1);
    bits.div_ceil(7)
}

/// Bytes that an entry takes in an object.
pub(super) fn entry_len(term: Term, context_len: usize, data_len: usize) -> u64 {
    let (context, data) = (context_len as u64, data_len as u64);
    number_len(term.to_u64()) + 1 + number_len(context) + context + number_len(data) + data
}

fn read_entry(reader: &mut Reader, index: Index) -> Result<LogEntry, DecodeError> {
    let term = Term::new(reader.varint()?);
    let kind = match reader.byte()? {
        0 => EntryKind::Normal,
        1 => EntryKind::ConfChange,
        got => {
            return Err(DecodeError::Tag {
                field: "entry kind",
                got,
            });
        }
    };
    let context = reader.bytes("note", ARCHIVED_ENTRY_BYTES_MAX)?;
    let data = reader.bytes("command", ARCHIVED_ENTRY_BYTES_MAX)?;
    Ok(LogEntry {
        index,
        term,
        kind,
        data,
        context,
    })
}

/// The entries of a segment, whose checksum is right.
pub(super) fn read_entries(
    segment: &SegmentRef,
    payload: Bytes,
) -> Result<Vec<LogEntry>, ObjectFault> {
    let group = segment.group;
    let fault = |source| ObjectFault::Entries { group, source };
    let impossible = ObjectFault::Impossible { part: "entries" };
    let (first, last) = (segment.first.to_u64(), segment.last.to_u64());
    // An entry takes four bytes at least, so the segment's length bounds their number.
    let count = usize::try_from(last - first + 1).unwrap_or(usize::MAX);
    if count > payload.len() / 4 {
        return Err(impossible);
    }
    let mut reader = Reader::new(payload);
    let mut entries = Vec::with_capacity(count);
    let mut term = segment.term_before;
    for index in first..=last {
        let entry = read_entry(&mut reader, Index::new(index)).map_err(fault)?;
        if entry.term < term {
            return Err(impossible);
        }
        term = entry.term;
        entries.push(entry);
    }
    reader.end().map_err(fault)?;
    if term != segment.last_term {
        return Err(impossible);
    }
    Ok(entries)
}
