//! Reads a log's folder after a stop of any kind: which segments are in use, where the newest ends,
//! and what each group's log is. Reading changes nothing on disk.
//!
//! Leaves to others: what the records mean (replay.rs), the lock and the log's name (open.rs),
//! going on (engine.rs, which starts a new segment and never writes into what was read here), when
//! to make durable what was read ([`Recovered::keep`], for whoever goes on from it: open.rs).
//!
//! Torn or corrupt (safety 13):
//! - Every segment but the newest has its end declared in the newest one's start, and is whole up
//!   to there or refused. A listed segment that is missing is refused.
//! - In the newest, damage below the highest end of a completed sync that any later batch records
//!   is refused. Above it a batch is cut only if a sector of it still holds what was there before
//!   the epoch: zeros, or the stamp of an earlier one. All sectors new and not readable, or a stamp
//!   of no epoch: refused.
//! - The limit: a last batch that was synced, and of which whole sectors then went back to exactly
//!   their earlier content, looks like a tear and is cut. The idle probe closes that within its
//!   interval.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::error::{Damage, OpenError};
use super::files::Files;
use super::index::{Effect, Located, LogIndex, Place, Point};
use super::record::{
    BATCH_HEADER_BYTES, BatchHeader, BatchKind, Body, DecodeError, FORMAT_VERSION, ListedSegment,
    LogId, SECTOR_BYTES, SECTOR_PAYLOAD_BYTES, SectorState, decode_record, decode_start, payload,
    sector_epoch, sector_state,
};
use super::replay::replay;
use super::segment::{SegmentFile, segment_name, segment_number};
use crate::id::GroupId;
use crate::limits;

/// Sectors of a file's beginning in which an interrupted start can have left something.
const START_SECTORS_MAX: u64 = (BATCH_HEADER_BYTES as u64 + 20 + 8 * limits::LOG_SEGMENTS_MAX)
    / SECTOR_PAYLOAD_BYTES as u64
    + 1;

/// What was found.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) index: LogIndex,
    /// The segments in use and their ends, oldest first.
    pub(super) segments: Vec<(ListedSegment, SegmentFile)>,
    /// Files that hold nothing any more.
    pub(super) free: Vec<SegmentFile>,
    /// The highest epoch any sector names.
    pub(super) epoch_max: u32,
    /// The number of the last whole batch.
    pub(super) number: u64,
    /// Up to where the last segment in use is known to be synced.
    pub(super) synced_sectors: u32,
}

impl Recovered {
    /// Makes durable what was read and isn't known to be: a process that was killed before its sync
    /// ended leaves its last batch where only a reader sees it. Whoever goes on from here acks and
    /// votes by it. The batch is written again, with the same content, because a sync after one
    /// that failed may do nothing for bytes that were written before; and the names are synced,
    /// one of which may be new.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn keep(&self, files: &dyn Files) -> Result<(), OpenError> {
        if let Some((listed, segment)) = self.segments.last() {
            let (first, end) = (self.synced_sectors, listed.end_sectors);
            let bytes = read(segment, u64::from(end))?;
            let from = first as usize * SECTOR_BYTES;
            let io = |op| {
                move |source| OpenError::Io {
                    op,
                    file: segment.name(),
                    source,
                }
            };
            if let Some(rest) = bytes.get(from..).filter(|rest| !rest.is_empty()) {
                let written = segment.file.write_at(rest, from as u64);
                written.map_err(io("write"))?;
            }
            segment.file.sync_data().map_err(io("sync"))?;
        }
        files.sync_folder().map_err(|source| OpenError::Io {
            op: "sync",
            file: ".".to_owned(),
            source,
        })
    }
}

/// What a file's beginning says.
enum Head {
    /// A segment.
    Start {
        epoch: u32,
        number: u64,
        listed: Vec<ListedSegment>,
    },
    /// A start that never was completed, or an earlier one that is being replaced.
    Torn,
    /// Nothing was written.
    Blank,
}

fn corrupt(file: &str, sector: u64, source: Damage) -> OpenError {
    let offset = sector * SECTOR_BYTES as u64;
    OpenError::Corrupt {
        file: file.to_owned(),
        offset,
        source,
    }
}

fn unreadable(file: &str, sector: u64, error: DecodeError) -> OpenError {
    if let DecodeError::Version { got, .. } = error {
        return OpenError::NewerFormat {
            file: file.to_owned(),
            expected: FORMAT_VERSION,
            got,
        };
    }
    corrupt(file, sector, Damage::Batch(error))
}

fn read(segment: &SegmentFile, sectors: u64) -> Result<Vec<u8>, OpenError> {
    let bytes = usize::try_from(sectors * SECTOR_BYTES as u64).unwrap_or(usize::MAX);
    let mut out = vec![0; bytes];
    segment
        .file
        .read_at(&mut out, 0)
        .map_err(|source| OpenError::Io {
            op: "read",
            file: segment.name(),
            source,
        })?;
    Ok(out)
}

fn sectors_of(segment: &SegmentFile) -> Result<u64, OpenError> {
    let fits = segment.bytes.is_multiple_of(SECTOR_BYTES as u64)
        && (limits::LOG_SEGMENT_BYTES_MIN..=limits::LOG_SEGMENT_BYTES_MAX).contains(&segment.bytes);
    if fits {
        Ok(segment.bytes / SECTOR_BYTES as u64)
    } else {
        let end = segment.bytes / SECTOR_BYTES as u64;
        Err(corrupt(&segment.name(), end, Damage::Length))
    }
}

fn read_head(log_id: &LogId, segment: &SegmentFile) -> Result<Head, OpenError> {
    let name = segment.name();
    let sectors = sectors_of(segment)?;
    let first = read(segment, 1)?;
    let Some(epoch) = sector_epoch(log_id, &first, 0) else {
        if first.iter().all(|byte| *byte == 0) {
            return Ok(Head::Blank);
        }
        return Err(corrupt(&name, 0, Damage::Stamp));
    };
    let header =
        BatchHeader::decode(log_id, 0, &first).map_err(|error| unreadable(&name, 0, error))?;
    let taken = header.sectors();
    if header.kind != BatchKind::Start || header.epoch != epoch || taken > sectors {
        return Err(corrupt(&name, 0, Damage::Misplaced));
    }
    let bytes = read(segment, taken)?;
    let mut torn = false;
    for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR_BYTES)) {
        match sector_state(log_id, bytes, sector, epoch) {
            SectorState::New => {}
            SectorState::Blank | SectorState::Old(_) | SectorState::Newer(_) => torn = true,
            SectorState::Damaged => return Err(corrupt(&name, u64::from(sector), Damage::Stamp)),
        }
    }
    if torn {
        return Ok(Head::Torn);
    }
    let stripped = payload(&bytes);
    let body = body_of(&stripped, &header).map_err(|error| unreadable(&name, 0, error))?;
    let (found, listed) = decode_start(body).map_err(|error| unreadable(&name, 0, error))?;
    if found != *log_id {
        return Err(corrupt(&name, 0, Damage::Misplaced));
    }
    Ok(Head::Start {
        epoch,
        number: header.number,
        listed,
    })
}

/// The bytes after the header, if they are what it says.
fn body_of<'a>(payload: &'a [u8], header: &BatchHeader) -> Result<&'a [u8], DecodeError> {
    let end = BATCH_HEADER_BYTES + header.body_bytes as usize;
    let body = payload
        .get(BATCH_HEADER_BYTES..end)
        .ok_or(DecodeError::Short {
            expected: end,
            got: payload.len(),
        })?;
    let got = crc32fast::hash(body);
    if got != header.body_crc {
        return Err(DecodeError::Checksum {
            expected: header.body_crc,
            got,
        });
    }
    if payload[end..].iter().any(|byte| *byte != 0) {
        return Err(DecodeError::Padding);
    }
    Ok(body)
}

/// Reads everything.
///
/// # Errors
/// When a file can't be read, or is corrupt, missing or foreign.
pub(super) fn recover(
    files: &dyn Files,
    log_id: &LogId,
    names: &[String],
) -> Result<Recovered, OpenError> {
    let mut started: BTreeMap<u32, (SegmentFile, u64, Vec<ListedSegment>)> = BTreeMap::new();
    let mut others = Vec::new();
    for name in names {
        let Some(number) = segment_number(name) else {
            continue;
        };
        let io = |source| OpenError::Io {
            op: "open",
            file: name.clone(),
            source,
        };
        let file = files.open(name).map_err(io)?;
        // A part of a sector at the end, left by whoever cut the file, can't hold anything.
        let bytes = file.bytes_len().map_err(io)?;
        let bytes = bytes - bytes % SECTOR_BYTES as u64;
        let segment = SegmentFile {
            number,
            file,
            bytes,
        };
        match read_head(log_id, &segment)? {
            Head::Start {
                epoch,
                number,
                listed,
            } => {
                if started.insert(epoch, (segment, number, listed)).is_some() {
                    return Err(corrupt(name, 0, Damage::DuplicateSegment { epoch }));
                }
            }
            Head::Torn | Head::Blank => others.push(segment),
        }
    }
    let Some((newest, (file, number, listed))) = started.pop_last() else {
        return Err(corrupt(&segment_name(0), 0, Damage::NoSegment));
    };
    let mut segments = Vec::new();
    for listed in listed {
        let epoch = listed.epoch;
        let (file, ..) = started
            .remove(&epoch)
            .ok_or_else(|| corrupt(&file.name(), 0, Damage::MissingSegment { epoch }))?;
        segments.push((listed, file));
    }
    let mut epoch_max = newest;
    for segment in &others {
        let sectors = sectors_of(segment)?;
        epoch_max = epoch_max.max(look_for_later(log_id, segment, newest, sectors)?);
    }
    let mut free = others;
    for (_, (segment, ..)) in started {
        let sectors = sectors_of(&segment)?.min(START_SECTORS_MAX);
        epoch_max = epoch_max.max(look_for_later(log_id, &segment, newest, sectors)?);
        free.push(segment);
    }
    let mut records = BTreeMap::new();
    for (listed, segment) in &segments {
        scan(log_id, segment, *listed, false, None, &mut records)?;
    }
    let open = ListedSegment {
        epoch: newest,
        end_sectors: 0,
    };
    let scanned = scan(log_id, &file, open, true, Some(number), &mut records)?;
    let (end_sectors, number, synced_sectors) = scanned;
    segments.push((
        ListedSegment {
            epoch: newest,
            end_sectors,
        },
        file,
    ));
    let index = build_index(&segments, records)?;
    Ok(Recovered {
        index,
        segments,
        free,
        epoch_max,
        number,
        synced_sectors,
    })
}

fn build_index(
    segments: &[(ListedSegment, SegmentFile)],
    records: BTreeMap<GroupId, Vec<Located>>,
) -> Result<LogIndex, OpenError> {
    let mut index = LogIndex::default();
    for (listed, _) in segments {
        index.start_segment(listed.epoch);
    }
    let newest = segments
        .last()
        .map_or_else(String::new, |(_, segment)| segment.name());
    for (group, records) in records {
        let state = replay(group, records).map_err(|damage| corrupt(&newest, 0, damage))?;
        index.install(group, state);
    }
    index.check_invariants();
    Ok(index)
}

/// The highest epoch in a file that isn't in use. A batch of records of a later epoch than the
/// newest proves that its segment's start was synced, and is damaged.
fn look_for_later(
    log_id: &LogId,
    segment: &SegmentFile,
    newest: u32,
    sectors: u64,
) -> Result<u32, OpenError> {
    let bytes = read(segment, sectors)?;
    let mut epoch_max = 0;
    for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR_BYTES)) {
        let Some(epoch) = sector_epoch(log_id, bytes, sector) else {
            continue;
        };
        epoch_max = epoch_max.max(epoch);
        let later = epoch > newest
            && BatchHeader::decode(log_id, sector, bytes)
                .is_ok_and(|header| header.kind == BatchKind::Records);
        if later {
            return Err(corrupt(&segment.name(), 0, Damage::BelowSyncedEnd));
        }
    }
    Ok(epoch_max)
}

/// One segment's sectors, and how far they were read.
struct Scan<'a> {
    log_id: &'a LogId,
    name: String,
    bytes: &'a [u8],
    epoch: u32,
    sectors: u32,
    /// The highest end of a sync that a batch of this segment records.
    synced: u32,
}

impl Scan<'_> {
    fn sector(&self, sector: u32) -> &[u8] {
        let at = sector as usize * SECTOR_BYTES;
        &self.bytes[at..at + SECTOR_BYTES]
    }

    fn state(&self, sector: u32) -> SectorState {
        sector_state(self.log_id, self.sector(sector), sector, self.epoch)
    }

    fn header(&self, sector: u32) -> Result<BatchHeader, DecodeError> {
        BatchHeader::decode(self.log_id, sector, self.sector(sector))
    }

    fn corrupt(&self, sector: u32, damage: Damage) -> OpenError {
        corrupt(&self.name, u64::from(sector), damage)
    }

    fn note_synced(&mut self, header: &BatchHeader) {
        if header.synced_epoch == self.epoch {
            self.synced = self.synced.max(header.synced_sectors);
        }
    }

    /// The batch at a sector, or `None` if the log may end there: nothing was written, or not all
    /// of it.
    fn batch(
        &mut self,
        at: u32,
        number: Option<u64>,
    ) -> Result<Option<(BatchHeader, u32, Vec<u8>)>, OpenError> {
        match self.state(at) {
            SectorState::New => {}
            SectorState::Blank | SectorState::Old(_) => return Ok(None),
            SectorState::Newer(_) => return Err(self.corrupt(at, Damage::Misplaced)),
            SectorState::Damaged => return Err(self.corrupt(at, Damage::Stamp)),
        }
        // The first sector is written wholly or not at all: from here on nothing about the header
        // can be the trace of an interrupted write.
        let header = self
            .header(at)
            .map_err(|error| unreadable(&self.name, at.into(), error))?;
        let kind = if at == 0 {
            BatchKind::Start
        } else {
            BatchKind::Records
        };
        let end = u64::from(at) + header.sectors();
        if header.kind != kind || header.epoch != self.epoch || end > u64::from(self.sectors) {
            return Err(self.corrupt(at, Damage::Misplaced));
        }
        if let Some(expected) = number.filter(|expected| *expected != header.number) {
            return Err(self.corrupt(
                at,
                Damage::BatchNumber {
                    expected,
                    got: header.number,
                },
            ));
        }
        self.note_synced(&header);
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        let mut torn = false;
        for sector in at..end {
            match self.state(sector) {
                SectorState::New => {}
                SectorState::Blank | SectorState::Old(_) => torn = true,
                SectorState::Newer(_) => return Err(self.corrupt(sector, Damage::Misplaced)),
                SectorState::Damaged => return Err(self.corrupt(sector, Damage::Stamp)),
            }
        }
        if torn {
            // Something behind it was begun, so it had been completed.
            if (end..self.sectors).any(|sector| self.state(sector) == SectorState::New) {
                return Err(self.corrupt(at, Damage::BelowSyncedEnd));
            }
            return Ok(None);
        }
        let from = at as usize * SECTOR_BYTES;
        let stripped = payload(&self.bytes[from..end as usize * SECTOR_BYTES]);
        body_of(&stripped, &header).map_err(|error| unreadable(&self.name, at.into(), error))?;
        Ok(Some((header, end, stripped)))
    }

    /// Whether the log may end here, by what lies behind.
    fn check_end(&mut self, end: u32) -> Result<(), OpenError> {
        for sector in end..self.sectors {
            if self.state(sector) == SectorState::New
                && let Ok(header) = self.header(sector)
            {
                self.note_synced(&header);
            }
        }
        if self.synced > end {
            return Err(self.corrupt(end, Damage::BelowSyncedEnd));
        }
        Ok(())
    }
}

/// Reads a segment up to its declared end or, if `open`, up to the last whole batch. Gives the end,
/// the last batch's number, and up to where it says itself that it was synced.
fn scan(
    log_id: &LogId,
    segment: &SegmentFile,
    listed: ListedSegment,
    open: bool,
    mut number: Option<u64>,
    records: &mut BTreeMap<GroupId, Vec<Located>>,
) -> Result<(u32, u64, u32), OpenError> {
    let sectors = sectors_of(segment)?;
    let bytes = read(segment, sectors)?;
    let sectors = u32::try_from(sectors).unwrap_or(u32::MAX);
    let (name, epoch) = (segment.name(), listed.epoch);
    let mut scan = Scan {
        log_id,
        name,
        bytes: &bytes,
        epoch,
        sectors,
        synced: 0,
    };
    let end = if open { sectors } else { listed.end_sectors };
    if end > sectors {
        return Err(scan.corrupt(0, Damage::Misplaced));
    }
    let mut at = 0;
    while at < end {
        let Some((header, next, stripped)) = scan.batch(at, number)? else {
            if open {
                scan.check_end(at)?;
                break;
            }
            return Err(scan.corrupt(at, Damage::BelowSyncedEnd));
        };
        if next > end {
            return Err(scan.corrupt(at, Damage::Misplaced));
        }
        if header.kind == BatchKind::Records {
            let first = u64::from(at) * SECTOR_PAYLOAD_BYTES as u64;
            read_records(Bytes::from(stripped), &header, first, records)
                .map_err(|error| unreadable(&scan.name, at.into(), error))?;
        }
        number = Some(header.number.saturating_add(1));
        at = next;
    }
    let number = number.unwrap_or(1).saturating_sub(1);
    Ok((at, number, scan.synced))
}

fn read_records(
    stripped: Bytes,
    header: &BatchHeader,
    first: u64,
    records: &mut BTreeMap<GroupId, Vec<Located>>,
) -> Result<(), DecodeError> {
    let end = BATCH_HEADER_BYTES + header.body_bytes as usize;
    let mut at = BATCH_HEADER_BYTES;
    for _ in 0..header.records {
        let (record, used) = decode_record(&stripped.slice(at..end))?;
        let place = Place {
            epoch: header.epoch,
            offset: u32::try_from(first + at as u64).unwrap_or(u32::MAX),
            bytes: u32::try_from(used).unwrap_or(u32::MAX),
        };
        let effect = effect_of(&record.body);
        let group = record.group;
        records.entry(group).or_default().push(Located {
            group,
            version: record.version,
            place,
            effect,
        });
        at += used;
    }
    if at != end {
        return Err(DecodeError::Length {
            expected: end,
            got: at,
        });
    }
    Ok(())
}

/// What a record changes.
pub(super) fn effect_of(body: &Body) -> Effect {
    match body {
        Body::HardState(state) => Effect::HardState(*state),
        Body::Compact {
            through,
            term,
            last,
        } => Effect::Compact(Point {
            through: *through,
            term: *term,
            last: *last,
        }),
        Body::Remove => Effect::Remove,
        Body::Entry(entry) => Effect::Entry(entry.index, entry.term),
    }
}
