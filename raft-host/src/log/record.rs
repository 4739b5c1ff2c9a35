//! The log's bytes: sectors, batches, records, segment starts. Pure, both ways; garbage is an
//! error, never a panic, and every size is checked against what is there before it is used.
//!
//! Leaves to others: where a batch goes (engine.rs) and what a damaged one means (recovery.rs).
//! All numbers are little-endian.
//!
//! **Sector** (512 bytes, the unit a disk writes whole):
//!
//! | bytes | what |
//! |---|---|
//! | 0..504 | payload |
//! | 504..508 | the segment's epoch, rising with every use of a file |
//! | 508..512 | CRC-32 of (log id, epoch, sector's number in the file) |
//!
//! No sector is written twice in one epoch, so its stamp alone tells new from pre-written (all 512
//! bytes zero), from what an earlier use of the file left, and from damage. That is what lets
//! recovery tell a torn batch from a corrupt one (safety 13).
//!
//! **Batch**: whole sectors; their payloads, one after the other, are a header and then records,
//! the rest of the last sector zero. The header lies in the first sector, so it is never torn:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `MRLB` |
//! | 4..6 | format version |
//! | 6..8 | kind: 1 segment start, 2 records (none: a probe) |
//! | 8..12 | epoch |
//! | 12..16 | bytes after the header |
//! | 16..24 | batch number; in a start, that of the batch before it |
//! | 24..28, 28..32 | epoch and end (in sectors) of the last completed sync |
//! | 32..40 | number of the last batch that sync covered |
//! | 40..44 | records |
//! | 44..48 | CRC-32 of the bytes after the header |
//! | 48..52 | CRC-32 of (log id, sector's number, bytes 0..48) |
//!
//! **Record**: 0..4 CRC-32 of the rest, 4..8 length of the whole, 8 kind, 9 entry kind, 10..12
//! zero, 12..20 group, 20..28 version, then by kind: 1 hard state (term, vote or 0, commit), 2
//! compaction (through, its term, the last index at that time), 3 removal (nothing), 4 entry
//! (index, term, bytes of context in 4, context, data).
//!
//! **Segment start** (the bytes after the header): log id in 16, count in 4, then for each segment
//! still in use its epoch in 4 and its end in sectors in 4.

use bytes::Bytes;

use super::api::{EntryKind, HardState, LogEntry};
use crate::id::{GroupId, Index, ReplicaId, Term, Version};

/// What a disk writes whole.
pub const SECTOR_BYTES: usize = 512;
/// What of it is ours to fill.
pub const SECTOR_PAYLOAD_BYTES: usize = 504;
/// Of the first sector of a batch.
pub const BATCH_HEADER_BYTES: usize = 52;
/// Of each record, before what its kind adds.
pub const RECORD_HEADER_BYTES: usize = 28;
/// The newest format this code writes and reads.
pub const FORMAT_VERSION: u16 = 1;

const BATCH_MAGIC: [u8; 4] = *b"MRLB";
const ENTRY_FIXED_BYTES: usize = 20;
const START_FIXED_BYTES: usize = 20;

/// The random name of one log, drawn when its folder was made.
pub type LogId = [u8; 16];

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They end before what they announce.
    #[error("cut short: {expected} bytes announced, {got} there")]
    Short {
        /// Announced.
        expected: usize,
        /// There.
        got: usize,
    },
    /// They don't begin like a batch.
    #[error("no batch begins here")]
    Magic,
    /// The checksum doesn't fit.
    #[error("checksum {expected:08x} expected, {got:08x} computed")]
    Checksum {
        /// Written.
        expected: u32,
        /// Computed.
        got: u32,
    },
    /// A newer program wrote it.
    #[error("format version {got}, this program reads up to {expected}")]
    Version {
        /// The newest we know.
        expected: u16,
        /// What is there.
        got: u16,
    },
    /// A kind that doesn't exist.
    #[error("unknown kind {got}")]
    Kind {
        /// What is there.
        got: u16,
    },
    /// Something behind the last record.
    #[error("the rest of the last sector isn't zero")]
    Padding,
    /// Lengths that contradict each other.
    #[error("length {got} contradicts {expected}")]
    Length {
        /// What it should be, or at least or at most be.
        expected: usize,
        /// What is there.
        got: usize,
    },
}

/// What a sector holds, seen from an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorState {
    /// Written in this epoch.
    New,
    /// Never written: all zeros.
    Blank,
    /// Written in that earlier epoch.
    Old(u32),
    /// Written in that later epoch.
    Newer(u32),
    /// None of these.
    Damaged,
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], DecodeError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or(DecodeError::Short {
            expected: at.saturating_add(N),
            got: bytes.len(),
        })
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, DecodeError> {
    take(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, DecodeError> {
    take(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, DecodeError> {
    take(bytes, at).map(u64::from_le_bytes)
}

fn stamp(log_id: &LogId, epoch: u32, sector: u32) -> [u8; 8] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(log_id);
    hasher.update(&epoch.to_le_bytes());
    hasher.update(&sector.to_le_bytes());
    let mut stamp = [0; 8];
    stamp[..4].copy_from_slice(&epoch.to_le_bytes());
    stamp[4..].copy_from_slice(&hasher.finalize().to_le_bytes());
    stamp
}

/// The epoch in which a sector was written, if its stamp is whole.
#[must_use]
pub fn sector_epoch(log_id: &LogId, bytes: &[u8], sector: u32) -> Option<u32> {
    let found: [u8; 8] = take(bytes, SECTOR_PAYLOAD_BYTES).ok()?;
    let epoch = u32_at(&found, 0).ok()?;
    (epoch > 0 && stamp(log_id, epoch, sector) == found).then_some(epoch)
}

/// What the sector with this number in its file holds, seen from `epoch`.
#[must_use]
pub fn sector_state(log_id: &LogId, bytes: &[u8], sector: u32, epoch: u32) -> SectorState {
    match sector_epoch(log_id, bytes, sector) {
        Some(found) if found == epoch => SectorState::New,
        Some(found) if found < epoch => SectorState::Old(found),
        Some(found) => SectorState::Newer(found),
        None if bytes.iter().all(|byte| *byte == 0) => SectorState::Blank,
        None => SectorState::Damaged,
    }
}

/// What kind of batch it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// The first of a segment.
    Start,
    /// Records.
    Records,
}

/// A batch's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// What follows.
    pub kind: BatchKind,
    /// The segment's epoch.
    pub epoch: u32,
    /// Bytes after the header.
    pub body_bytes: u32,
    /// Rises by one with each batch of records.
    pub number: u64,
    /// The segment in which the last completed sync ended.
    pub synced_epoch: u32,
    /// Where in it, in sectors.
    pub synced_sectors: u32,
    /// The number of the last batch it covered.
    pub synced_number: u64,
    /// How many records follow.
    pub records: u32,
    /// Of the bytes after the header.
    pub body_crc: u32,
}

impl BatchHeader {
    /// The whole sectors the batch takes.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        (BATCH_HEADER_BYTES as u64 + u64::from(self.body_bytes))
            .div_ceil(SECTOR_PAYLOAD_BYTES as u64)
    }

    fn encode(&self, log_id: &LogId, sector: u32) -> [u8; BATCH_HEADER_BYTES] {
        let mut out = [0; BATCH_HEADER_BYTES];
        let kind: u16 = match self.kind {
            BatchKind::Start => 1,
            BatchKind::Records => 2,
        };
        out[0..4].copy_from_slice(&BATCH_MAGIC);
        out[4..6].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&kind.to_le_bytes());
        out[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        out[12..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..28].copy_from_slice(&self.synced_epoch.to_le_bytes());
        out[28..32].copy_from_slice(&self.synced_sectors.to_le_bytes());
        out[32..40].copy_from_slice(&self.synced_number.to_le_bytes());
        out[40..44].copy_from_slice(&self.records.to_le_bytes());
        out[44..48].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = header_crc(log_id, sector, &out[..48]);
        out[48..52].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header from the beginning of a sector's payload. The checksum is over the log's id
    /// too, so no bytes a client chose can pass for a header.
    ///
    /// # Errors
    /// When there is none, or one that isn't whole.
    pub fn decode(log_id: &LogId, sector: u32, bytes: &[u8]) -> Result<Self, DecodeError> {
        if take::<4>(bytes, 0)? != BATCH_MAGIC {
            return Err(DecodeError::Magic);
        }
        let expected = u32_at(bytes, 48)?;
        let covered = bytes.get(..48).ok_or(DecodeError::Short {
            expected: 48,
            got: bytes.len(),
        })?;
        let got = header_crc(log_id, sector, covered);
        if expected != got {
            return Err(DecodeError::Checksum { expected, got });
        }
        let version = u16_at(bytes, 4)?;
        if version != FORMAT_VERSION {
            return Err(DecodeError::Version {
                expected: FORMAT_VERSION,
                got: version,
            });
        }
        let kind = match u16_at(bytes, 6)? {
            1 => BatchKind::Start,
            2 => BatchKind::Records,
            got => return Err(DecodeError::Kind { got }),
        };
        Ok(Self {
            kind,
            epoch: u32_at(bytes, 8)?,
            body_bytes: u32_at(bytes, 12)?,
            number: u64_at(bytes, 16)?,
            synced_epoch: u32_at(bytes, 24)?,
            synced_sectors: u32_at(bytes, 28)?,
            synced_number: u64_at(bytes, 32)?,
            records: u32_at(bytes, 40)?,
            body_crc: u32_at(bytes, 44)?,
        })
    }
}

fn header_crc(log_id: &LogId, sector: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(log_id);
    hasher.update(&sector.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// Lays a batch out in sectors. `header.body_bytes` and `body_crc` are set from `body`.
///
/// # Errors
/// [`DecodeError::Length`] when the body is longer than a batch can say.
pub fn encode_batch(
    log_id: &LogId,
    first_sector: u32,
    header: BatchHeader,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let body_bytes = u32::try_from(body.len()).map_err(|_| DecodeError::Length {
        expected: u32::MAX as usize,
        got: body.len(),
    })?;
    let header = BatchHeader {
        body_bytes,
        body_crc: crc32fast::hash(body),
        ..header
    };
    let head = header.encode(log_id, first_sector);
    out.clear();
    let mut parts: [&[u8]; 2] = [&head, body];
    let sectors = u32::try_from(header.sectors()).unwrap_or(u32::MAX);
    for sector in first_sector..first_sector.saturating_add(sectors) {
        let end = out.len() + SECTOR_PAYLOAD_BYTES;
        for part in &mut parts {
            let (now, later) = part.split_at(part.len().min(end - out.len()));
            out.extend_from_slice(now);
            *part = later;
        }
        out.resize(end, 0);
        out.extend_from_slice(&stamp(log_id, header.epoch, sector));
    }
    Ok(())
}

/// Takes the stamps out of whole sectors, leaving their payloads.
#[must_use]
pub fn payload(sectors: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(sectors.len() / SECTOR_BYTES * SECTOR_PAYLOAD_BYTES);
    for sector in sectors.chunks_exact(SECTOR_BYTES) {
        out.extend_from_slice(&sector[..SECTOR_PAYLOAD_BYTES]);
    }
    out
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The group's hard state from here on.
    HardState(HardState),
    /// Entries up to `through` are gone, and so is every older entry above `last`.
    Compact {
        /// The compaction point.
        through: Index,
        /// Its term.
        term: Term,
        /// The log's last index when this was written.
        last: Index,
    },
    /// The group is gone, and everything older with it.
    Remove,
    /// One entry. Every older entry at or above the lowest index of this version is gone.
    Entry(LogEntry),
}

/// One step of one group, or one entry of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The group.
    pub group: GroupId,
    /// The version of the mutation it belongs to; a rewritten copy keeps it.
    pub version: Version,
    /// What it says.
    pub body: Body,
}

/// How many bytes an entry's record takes.
#[must_use]
pub fn entry_record_bytes(entry: &LogEntry) -> usize {
    RECORD_HEADER_BYTES + ENTRY_FIXED_BYTES + entry.context.len() + entry.data.len()
}

/// Appends a record.
///
/// # Errors
/// [`DecodeError::Length`] when an entry is longer than a record can say.
pub fn encode_record(
    group: GroupId,
    version: Version,
    body: &Body,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let start = out.len();
    let mut entry_kind = 0;
    let kind = match body {
        Body::HardState(_) => 1,
        Body::Compact { .. } => 2,
        Body::Remove => 3,
        Body::Entry(entry) => {
            entry_kind = match entry.kind {
                EntryKind::Normal => 1,
                EntryKind::ConfChange => 2,
            };
            4
        }
    };
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[kind, entry_kind, 0, 0]);
    out.extend_from_slice(&group.to_u64().to_le_bytes());
    out.extend_from_slice(&version.to_u64().to_le_bytes());
    match body {
        Body::HardState(state) => {
            let vote = state.vote.map_or(0, ReplicaId::to_u64);
            for number in [state.term.to_u64(), vote, state.commit.to_u64()] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Body::Compact {
            through,
            term,
            last,
        } => {
            for number in [through.to_u64(), term.to_u64(), last.to_u64()] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Body::Remove => {}
        Body::Entry(entry) => {
            let context_bytes = length_u32(entry.context.len())?;
            out.extend_from_slice(&entry.index.to_u64().to_le_bytes());
            out.extend_from_slice(&entry.term.to_u64().to_le_bytes());
            out.extend_from_slice(&context_bytes.to_le_bytes());
            out.extend_from_slice(&entry.context);
            out.extend_from_slice(&entry.data);
        }
    }
    let bytes = length_u32(out.len() - start)?;
    out[start + 4..start + 8].copy_from_slice(&bytes.to_le_bytes());
    let crc = crc32fast::hash(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

fn length_u32(got: usize) -> Result<u32, DecodeError> {
    u32::try_from(got).map_err(|_| DecodeError::Length {
        expected: u32::MAX as usize,
        got,
    })
}

/// Reads the record at the beginning of `bytes`; gives it and its length. An entry's bytes are
/// parts of `bytes`, not copies.
///
/// # Errors
/// When there is none, or one that isn't whole.
pub fn decode_record(bytes: &Bytes) -> Result<(Record, usize), DecodeError> {
    let announced = u32_at(bytes, 4)? as usize;
    if announced < RECORD_HEADER_BYTES {
        return Err(DecodeError::Length {
            expected: RECORD_HEADER_BYTES,
            got: announced,
        });
    }
    if announced > bytes.len() {
        return Err(DecodeError::Short {
            expected: announced,
            got: bytes.len(),
        });
    }
    let record = bytes.slice(..announced);
    let (expected, got) = (u32_at(&record, 0)?, crc32fast::hash(&record[4..]));
    if expected != got {
        return Err(DecodeError::Checksum { expected, got });
    }
    let (kind, entry_kind) = (record[8], record[9]);
    let group = GroupId::new(u64_at(&record, 12)?);
    let version = Version::new(u64_at(&record, 20)?);
    let at = RECORD_HEADER_BYTES;
    let fixed = |expected: usize| {
        if announced == expected {
            Ok(())
        } else {
            Err(DecodeError::Length {
                expected,
                got: announced,
            })
        }
    };
    let body = match kind {
        1 => {
            fixed(at + 24)?;
            let vote = u64_at(&record, at + 8)?;
            Body::HardState(HardState {
                term: Term::new(u64_at(&record, at)?),
                vote: (vote != 0).then(|| ReplicaId::new(vote)),
                commit: Index::new(u64_at(&record, at + 16)?),
            })
        }
        2 => {
            fixed(at + 24)?;
            Body::Compact {
                through: Index::new(u64_at(&record, at)?),
                term: Term::new(u64_at(&record, at + 8)?),
                last: Index::new(u64_at(&record, at + 16)?),
            }
        }
        3 => {
            fixed(at)?;
            Body::Remove
        }
        4 => Body::Entry(decode_entry(&record, entry_kind)?),
        got => {
            return Err(DecodeError::Kind {
                got: u16::from(got),
            });
        }
    };
    Ok((
        Record {
            group,
            version,
            body,
        },
        announced,
    ))
}

fn decode_entry(record: &Bytes, kind: u8) -> Result<LogEntry, DecodeError> {
    let at = RECORD_HEADER_BYTES;
    let kind = match kind {
        1 => EntryKind::Normal,
        2 => EntryKind::ConfChange,
        got => {
            return Err(DecodeError::Kind {
                got: u16::from(got),
            });
        }
    };
    let context_bytes = u32_at(record, at + 16)? as usize;
    let rest = record.len().checked_sub(at + ENTRY_FIXED_BYTES);
    let rest = rest.ok_or(DecodeError::Short {
        expected: at + ENTRY_FIXED_BYTES,
        got: record.len(),
    })?;
    if context_bytes > rest {
        return Err(DecodeError::Length {
            expected: rest,
            got: context_bytes,
        });
    }
    let context_at = at + ENTRY_FIXED_BYTES;
    Ok(LogEntry {
        index: Index::new(u64_at(record, at)?),
        term: Term::new(u64_at(record, at + 8)?),
        kind,
        context: record.slice(context_at..context_at + context_bytes),
        data: record.slice(context_at + context_bytes..),
    })
}

/// A segment that was in use when another was started: its epoch and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSegment {
    /// Its epoch.
    pub epoch: u32,
    /// Everything before this sector is whole.
    pub end_sectors: u32,
}

/// The body of a segment's first batch.
#[must_use]
pub fn encode_start(log_id: &LogId, listed: &[ListedSegment]) -> Vec<u8> {
    let count = u32::try_from(listed.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(START_FIXED_BYTES + listed.len() * 8);
    out.extend_from_slice(log_id);
    out.extend_from_slice(&count.to_le_bytes());
    for segment in listed {
        out.extend_from_slice(&segment.epoch.to_le_bytes());
        out.extend_from_slice(&segment.end_sectors.to_le_bytes());
    }
    out
}

/// Reads the body of a segment's first batch.
///
/// # Errors
/// When it isn't one.
pub fn decode_start(bytes: &[u8]) -> Result<(LogId, Vec<ListedSegment>), DecodeError> {
    let log_id: LogId = take(bytes, 0)?;
    let count = u32_at(bytes, 16)? as usize;
    let there = bytes.len().saturating_sub(START_FIXED_BYTES);
    if count.checked_mul(8) != Some(there) {
        return Err(DecodeError::Length {
            expected: there / 8,
            got: count,
        });
    }
    let mut listed = Vec::with_capacity(count);
    for at in (START_FIXED_BYTES..bytes.len()).step_by(8) {
        listed.push(ListedSegment {
            epoch: u32_at(bytes, at)?,
            end_sectors: u32_at(bytes, at + 4)?,
        });
    }
    Ok((log_id, listed))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: LogId = *b"0123456789abcdef";

    fn header(kind: BatchKind) -> BatchHeader {
        BatchHeader {
            kind,
            epoch: 3,
            body_bytes: 0,
            number: 9,
            synced_epoch: 3,
            synced_sectors: 1,
            synced_number: 8,
            records: 1,
            body_crc: 0,
        }
    }

    fn entry(data: Vec<u8>, context: Vec<u8>) -> Body {
        Body::Entry(LogEntry {
            index: Index::new(4),
            term: Term::new(2),
            kind: EntryKind::ConfChange,
            data: data.into(),
            context: context.into(),
        })
    }

    fn round_trip(body: &Body) {
        let mut bytes = Vec::new();
        encode_record(GroupId::new(7), Version::new(11), body, &mut bytes).unwrap();
        let (record, used) = decode_record(&Bytes::from(bytes.clone())).unwrap();
        assert_eq!(used, bytes.len());
        let version = Version::new(11);
        assert_eq!(
            record,
            Record {
                group: GroupId::new(7),
                version,
                body: body.clone()
            }
        );
        for cut in 0..bytes.len() {
            assert!(decode_record(&Bytes::copy_from_slice(&bytes[..cut])).is_err());
        }
    }

    #[test]
    fn every_kind_of_record_comes_back_and_none_comes_back_cut() {
        let state = HardState {
            term: Term::new(3),
            vote: Some(ReplicaId::new(2)),
            commit: Index::new(1),
        };
        round_trip(&Body::HardState(state));
        round_trip(&Body::HardState(HardState::default()));
        round_trip(&Body::Compact {
            through: Index::new(5),
            term: Term::new(1),
            last: Index::new(8),
        });
        round_trip(&Body::Remove);
        round_trip(&entry(vec![1; 700], vec![2; 30]));
        round_trip(&entry(vec![], vec![]));
    }

    #[test]
    fn a_start_comes_back_and_a_false_count_is_refused() {
        let listed = [
            ListedSegment {
                epoch: 1,
                end_sectors: 2,
            },
            ListedSegment {
                epoch: 5,
                end_sectors: 7,
            },
        ];
        let mut bytes = encode_start(&ID, &listed);
        assert_eq!(decode_start(&bytes), Ok((ID, listed.to_vec())));
        bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(decode_start(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn a_batch_of_any_size_comes_back_from_its_sectors(body in prop::collection::vec(any::<u8>(), 0..3000)) {
            let mut sectors = Vec::new();
            encode_batch(&ID, 5, header(BatchKind::Records), &body, &mut sectors).unwrap();
            let stripped = payload(&sectors);
            let head = BatchHeader::decode(&ID, 5, &stripped).unwrap();
            prop_assert_eq!(head.sectors() as usize * SECTOR_BYTES, sectors.len());
            prop_assert_eq!(&stripped[BATCH_HEADER_BYTES..][..body.len()], &body[..]);
            prop_assert_eq!(head.body_crc, crc32fast::hash(&body));
            for (sector, bytes) in (5..).zip(sectors.chunks(SECTOR_BYTES)) {
                prop_assert_eq!(sector_state(&ID, bytes, sector, 3), SectorState::New);
                prop_assert_eq!(sector_state(&ID, bytes, sector, 4), SectorState::Old(3));
                prop_assert_eq!(sector_state(&ID, bytes, sector, 2), SectorState::Newer(3));
                prop_assert_eq!(sector_state(&ID, bytes, sector + 1, 3), SectorState::Damaged);
            }
        }

        #[test]
        fn garbage_is_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(BatchHeader::decode(&ID, 0, &bytes).is_err());
            prop_assert!(decode_record(&Bytes::from(bytes.clone())).is_err());
            let _ = decode_start(&bytes);
            let _ = sector_state(&ID, &bytes, 0, 1);
        }

        #[test]
        fn a_record_with_a_valid_checksum_over_garbage_is_no_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 28..120), kind in 0u8..6, entry_kind in 0u8..4,
        ) {
            let length = bytes.len() as u32;
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[8] = kind;
            bytes[9] = entry_kind;
            let crc = crc32fast::hash(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            let _ = decode_record(&Bytes::from(bytes));
        }
    }
}
