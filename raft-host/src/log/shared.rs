//! What the log thread and the shards both touch: the live index with the segments' files, for
//! reading back what a shard no longer keeps in memory, and the figures of health.
//!
//! Leaves to others: writing (engine.rs), what isn't durable yet (view.rs).
//!
//! The lock is held for looking up and for noting what became durable, never across an operation
//! on a file. A reader takes the file's handle under it and reads after; a segment's file is used
//! again only when no reader holds it, so a read can't race a rewrite or a recycled file. What was
//! read is held against stamp and checksum all the same.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::api::LogEntry;
use super::error::LogFailure;
use super::index::{LogIndex, Place};
use super::record::{
    Body, LogId, Record, SECTOR_BYTES, SECTOR_PAYLOAD_BYTES, decode_record, payload, sector_epoch,
};
use super::segment::SegmentFile;
use crate::id::{GroupId, Index};

/// What the disk is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    /// Everything works.
    Ok,
    /// No space is left. What was handed in waits; it goes on by itself.
    Full,
    /// The log has stopped for good.
    Failed,
}

/// A look at the log, taken without asking its thread. The numbers are from about the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// What the disk is like.
    pub disk: DiskState,
    /// The number of the last durable batch: rises with every sync, also when idle.
    pub sync_number: u64,
    /// How long the last write and sync took.
    pub last_sync: Duration,
    /// Since when a write and sync is under way, on the clock given at open.
    pub sync_since: Option<Duration>,
    /// Bytes handed in and not yet durable.
    pub unsynced_bytes: u64,
    /// Bytes that entries may still take before the cap.
    pub room_bytes: u64,
    /// Bytes of the segments in use.
    pub segments_bytes: u64,
}

/// Index and files, under one lock.
#[derive(Debug, Default)]
pub(super) struct ReadState {
    pub(super) index: LogIndex,
    pub(super) files: BTreeMap<u32, Arc<SegmentFile>>,
}

const NOT_SYNCING: u64 = u64::MAX;

/// What both sides touch.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) log_id: LogId,
    state: Mutex<ReadState>,
    failure: Mutex<Option<LogFailure>>,
    disk: AtomicU8,
    sync_number: AtomicU64,
    last_sync_us: AtomicU64,
    sync_since_us: AtomicU64,
    pub(super) unsynced_bytes: AtomicU64,
    room_bytes: AtomicU64,
    segments_bytes: AtomicU64,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX - 1)
}

impl Shared {
    pub(super) fn new(log_id: LogId, state: ReadState) -> Self {
        Self {
            log_id,
            state: Mutex::new(state),
            failure: Mutex::new(None),
            disk: AtomicU8::new(0),
            sync_number: AtomicU64::new(0),
            last_sync_us: AtomicU64::new(0),
            sync_since_us: AtomicU64::new(NOT_SYNCING),
            unsynced_bytes: AtomicU64::new(0),
            room_bytes: AtomicU64::new(0),
            segments_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ReadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn health(&self) -> Health {
        let since = self.sync_since_us.load(Ordering::Acquire);
        Health {
            disk: self.disk(),
            sync_number: self.sync_number.load(Ordering::Acquire),
            last_sync: Duration::from_micros(self.last_sync_us.load(Ordering::Acquire)),
            sync_since: (since != NOT_SYNCING).then(|| Duration::from_micros(since)),
            unsynced_bytes: self.unsynced_bytes.load(Ordering::Acquire),
            room_bytes: self.room_bytes.load(Ordering::Acquire),
            segments_bytes: self.segments_bytes.load(Ordering::Acquire),
        }
    }

    pub(super) fn disk(&self) -> DiskState {
        match self.disk.load(Ordering::Acquire) {
            0 => DiskState::Ok,
            1 => DiskState::Full,
            _ => DiskState::Failed,
        }
    }

    /// Notes whether space was found; a failed log stays failed.
    pub(super) fn set_full(&self, full: bool) {
        let (from, to) = if full { (0, 1) } else { (1, 0) };
        let _ = self
            .disk
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The log has stopped for good; the first cause is kept.
    pub(super) fn fail(&self, failure: LogFailure) {
        let mut slot = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            tracing::error!(error = %failure, "the log has stopped, this node must stop too");
            *slot = Some(failure);
        }
        self.disk.store(2, Ordering::Release);
    }

    pub(super) fn failure(&self) -> Option<LogFailure> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn sync_begins(&self, now: Duration) {
        self.sync_since_us.store(micros(now), Ordering::Release);
    }

    pub(super) fn sync_ended(&self, began: Duration, now: Duration, number: u64) {
        self.last_sync_us
            .store(micros(now.saturating_sub(began)), Ordering::Release);
        self.sync_since_us.store(NOT_SYNCING, Ordering::Release);
        self.sync_number.store(number, Ordering::Release);
    }

    pub(super) fn set_space(&self, room_bytes: u64, segments_bytes: u64) {
        self.room_bytes.store(room_bytes, Ordering::Release);
        self.segments_bytes.store(segments_bytes, Ordering::Release);
    }

    /// Reads durable entries back, as many as fit in `bytes_max` but at least one. A failure stops
    /// the log: what was acked isn't there any more.
    pub(super) fn read_entries(
        &self,
        group: GroupId,
        first: Index,
        end: Index,
        bytes_max: u64,
    ) -> Result<Vec<LogEntry>, ReadBack> {
        let mut wanted = Vec::new();
        {
            let state = self.lock();
            let log = state.index.group(group).ok_or(ReadBack { index: first })?;
            let mut bytes = 0;
            for index in (first.to_u64()..end.to_u64()).map(Index::new) {
                let slot = log.slot(index).ok_or(ReadBack { index })?;
                bytes += u64::from(slot.place.bytes);
                if bytes > bytes_max && !wanted.is_empty() {
                    break;
                }
                let file = state
                    .files
                    .get(&slot.place.epoch)
                    .ok_or(ReadBack { index })?;
                wanted.push((index, *slot, Arc::clone(file)));
            }
        }
        let mut entries = Vec::with_capacity(wanted.len());
        for (index, slot, file) in wanted {
            let record = read_record(&self.log_id, &file, slot.place);
            let found = match record {
                Ok((
                    Record {
                        group: of,
                        version,
                        body: Body::Entry(entry),
                    },
                    _,
                )) if of == group && version == slot.version && entry.index == index => Some(entry),
                Ok(_) | Err(_) => None,
            };
            let Some(entry) = found else {
                self.fail(LogFailure::ReadBack {
                    group,
                    index,
                    file: file.name(),
                });
                return Err(ReadBack { index });
            };
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// An entry couldn't be read back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadBack {
    pub(super) index: Index,
}

/// Reads one record and holds it against stamps and checksum; gives it and its bytes.
pub(super) fn read_record(
    log_id: &LogId,
    file: &SegmentFile,
    place: Place,
) -> Result<(Record, Bytes), ReadBackCause> {
    let sector_payload = SECTOR_PAYLOAD_BYTES as u64;
    let (start, end) = (
        u64::from(place.offset),
        u64::from(place.offset) + u64::from(place.bytes),
    );
    let (first, last) = (start / sector_payload, end.div_ceil(sector_payload));
    let mut raw = vec![0; usize::try_from(last - first).unwrap_or(0) * SECTOR_BYTES];
    file.file
        .read_at(&mut raw, first * SECTOR_BYTES as u64)
        .map_err(|_| ReadBackCause)?;
    for (sector, bytes) in (first..).zip(raw.chunks(SECTOR_BYTES)) {
        let sector = u32::try_from(sector).map_err(|_| ReadBackCause)?;
        if sector_epoch(log_id, bytes, sector) != Some(place.epoch) {
            return Err(ReadBackCause);
        }
    }
    let stripped = Bytes::from(payload(&raw));
    let skip = usize::try_from(start - first * sector_payload).map_err(|_| ReadBackCause)?;
    let bytes = stripped.slice(skip..skip + place.bytes as usize);
    let (record, _) = decode_record(&bytes).map_err(|_| ReadBackCause)?;
    Ok((record, bytes))
}

/// The record isn't there, or isn't what was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadBackCause;
