//! The log's writer, without a thread: takes what was submitted, writes it as one batch, syncs,
//! notes it in the index, says what is acked. Changes segments, empties laggard ones, recycles dead
//! ones. The thread (thread.rs), the tests and the simulation drive it step by step.
//!
//! Leaves to others: when to step, and telling the shards (thread.rs); reading (shared.rs).
//!
//! - E1: one batch at a time: it is written only after the one before it was synced, and acked only
//!   after its own sync.
//! - E2: no sector is written twice in one epoch. After a failure nothing is written any more, and
//!   after a restart a new segment is started.
//! - E3: a segment's start is synced before anything behind it is written, its name before that.
//! - E4: a file is used again, or removed, only once a durable start no longer lists it.
//! - E5: rewritten records come last in a batch, from the index as it was before the batch. If the
//!   same batch overwrites one of them, the copy lies behind and has the lower version.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::api::{Change, Mutation};
use super::config::{LogConfig, SyncMode};
use super::error::LogFailure;
use super::files::Files;
use super::index::{Effect, Located, Place};
use super::record::{
    BATCH_HEADER_BYTES, BatchHeader, BatchKind, Body, DecodeError, ListedSegment, LogId,
    SECTOR_BYTES, SECTOR_PAYLOAD_BYTES, encode_batch, encode_record, encode_start,
};
use super::recovery::{Recovered, effect_of};
use super::segment::{SegmentFile, make_segment, segment_name};
use super::shared::{ReadState, Shared, read_record};
use super::view::check_change;
use super::{LogShard, Token};
use crate::id::{GroupId, Index, Version};
use crate::limits;

/// What a shard handed in at once.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) shard: LogShard,
    pub(super) token: Token,
    pub(super) mutations: Vec<Mutation>,
    /// The records' length.
    pub(super) bytes: u64,
}

/// The time since some fixed moment.
pub type LogClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// One batch is durable. `more` says whether there is something to do at once.
    Synced { more: bool },
    /// There was no space for a new segment; what waits still waits.
    NoSpace,
}

struct Active {
    epoch: u32,
    file: Arc<SegmentFile>,
    next_sector: u32,
    sectors: u32,
}

/// The writer.
pub(super) struct Engine {
    files: Arc<dyn Files>,
    config: LogConfig,
    clock: LogClock,
    shared: Arc<Shared>,
    active: Option<Active>,
    /// What the newest start lists.
    closed: Vec<(ListedSegment, Arc<SegmentFile>)>,
    free: Vec<Arc<SegmentFile>>,
    file_number_next: u64,
    epoch_max: u32,
    /// The last batch's number.
    number: u64,
    /// Where the last completed sync ended, and the batch it covered.
    synced: (ListedSegment, u64),
    pending: VecDeque<Submission>,
    /// The segment being emptied, and the group to go on with.
    rewrite: Option<(u32, GroupId)>,
    body: Vec<u8>,
    sectors: Vec<u8>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("epoch_max", &self.epoch_max)
            .field("number", &self.number)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

/// One batch while it is put together.
#[derive(Default)]
struct Plan {
    /// New records, then copies.
    records: Vec<Located>,
    copies: Vec<Located>,
    acks: Vec<(LogShard, Token)>,
    bytes: u64,
}

fn io_failure(op: &'static str, file: impl Into<String>) -> impl FnOnce(io::Error) -> LogFailure {
    let file = file.into();
    move |error| LogFailure::Io {
        op,
        file,
        kind: error.kind(),
        source: Arc::new(error),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The sectors a batch takes whose records have this length.
fn batch_sectors(bytes: u64) -> u64 {
    (BATCH_HEADER_BYTES as u64 + bytes).div_ceil(SECTOR_PAYLOAD_BYTES as u64)
}

/// How long the records of a change are.
pub(super) fn change_bytes(change: &Change) -> u64 {
    let fixed = |bytes: usize| bytes as u64 + super::record::RECORD_HEADER_BYTES as u64;
    match change {
        Change::Write {
            hard_state,
            entries,
        } => {
            let entries = entries
                .iter()
                .map(|entry| super::record::entry_record_bytes(entry) as u64);
            hard_state.map_or(0, |_| fixed(24)) + entries.sum::<u64>()
        }
        Change::Compact { .. } => fixed(24),
        Change::Reset { .. } => 2 * fixed(24),
        Change::Remove => fixed(0),
    }
}

impl Engine {
    /// Takes over what recovery found and starts a segment.
    ///
    /// # Errors
    /// When the segment can't be written.
    pub(super) fn start(
        files: Arc<dyn Files>,
        config: LogConfig,
        clock: LogClock,
        log_id: LogId,
        recovered: Recovered,
    ) -> Result<Self, LogFailure> {
        let closed: Vec<_> = recovered
            .segments
            .into_iter()
            .map(|(listed, segment)| (listed, Arc::new(segment)))
            .collect();
        let free: Vec<_> = recovered.free.into_iter().map(Arc::new).collect();
        let numbers = closed
            .iter()
            .map(|(_, file)| file)
            .chain(&free)
            .map(|file| file.number);
        let file_number_next = numbers.max().map_or(1, |number| number + 1);
        let open = closed
            .iter()
            .map(|(listed, file)| (listed.epoch, Arc::clone(file)));
        let state = ReadState {
            index: recovered.index,
            files: open.collect(),
        };
        let synced = ListedSegment {
            epoch: 0,
            end_sectors: 0,
        };
        let mut engine = Self {
            files,
            config,
            clock,
            shared: Arc::new(Shared::new(log_id, state)),
            active: None,
            closed,
            free,
            file_number_next,
            epoch_max: recovered.epoch_max,
            number: recovered.number,
            synced: (synced, recovered.number),
            pending: VecDeque::new(),
            rewrite: None,
            body: Vec::new(),
            sectors: Vec::new(),
        };
        if !engine.change_segment()? {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(io_failure("create", segment_name(engine.file_number_next))(
                full,
            ));
        }
        let now = (engine.clock)();
        engine.shared.sync_ended(now, now, engine.number);
        engine.publish_space();
        Ok(engine)
    }

    /// The failure of a log that has no space to begin in.
    pub(super) fn no_space(&self) -> LogFailure {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        io_failure("create", segment_name(self.file_number_next))(full)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn push(&mut self, submission: Submission) {
        self.pending.push_back(submission);
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn take_pending(&mut self) -> VecDeque<Submission> {
        std::mem::take(&mut self.pending)
    }

    /// The epoch of the segment being written.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch_max
    }

    /// The number and size of a segment's file worth making ahead, if there is none.
    pub(super) fn wanted_spare(&mut self) -> Option<(u64, u64)> {
        let bytes = self.config.segment_bytes();
        if self.free.iter().any(|file| file.bytes == bytes) {
            return None;
        }
        self.file_number_next += 1;
        Some((self.file_number_next - 1, bytes))
    }

    pub(super) fn add_spare(&mut self, file: SegmentFile) {
        self.free.push(Arc::new(file));
    }

    /// Writes one batch of what waits, or a probe, and syncs it. What it acks is said to `ack` in
    /// the order it was submitted.
    ///
    /// # Errors
    /// When the disk fails or a change is impossible: the log must not be used any more.
    pub(super) fn step(
        &mut self,
        ack: &mut dyn FnMut(LogShard, Token),
    ) -> Result<Step, LogFailure> {
        let batch = self.take_batch();
        let bytes = batch.iter().map(|submission| submission.bytes).sum();
        if !self.has_room(bytes) && !self.change_segment()? {
            for submission in batch.into_iter().rev() {
                self.pending.push_front(submission);
            }
            return Ok(Step::NoSpace);
        }
        let mut plan = Plan {
            bytes,
            ..Plan::default()
        };
        self.body.clear();
        self.encode_submissions(batch, &mut plan)?;
        let copied = self.encode_copies(&mut plan)?;
        // A copy that doesn't fit needs a new segment; what is in the batch by then doesn't.
        let full = !copied && plan.records.is_empty() && !self.change_segment()?;
        self.write(&plan, ack)?;
        if full {
            return Ok(Step::NoSpace);
        }
        let more = !self.pending.is_empty() || self.rewrite.is_some();
        Ok(Step::Synced { more })
    }

    fn take_batch(&mut self) -> Vec<Submission> {
        let mut batch = Vec::new();
        let mut left = self.config.batch_bytes_max();
        while let Some(next) = self.pending.front() {
            if next.bytes > left && !batch.is_empty() {
                break;
            }
            left = left.saturating_sub(next.bytes);
            batch.extend(self.pending.pop_front());
        }
        batch
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.active.as_ref().is_some_and(|active| {
            u64::from(active.next_sector) + batch_sectors(bytes) <= u64::from(active.sectors)
        })
    }

    /// Where the next batch goes.
    #[cfg(test)]
    pub(super) fn next_sector(&self) -> usize {
        self.active
            .as_ref()
            .map_or(0, |active| active.next_sector as usize)
    }

    /// Payload bytes from the active segment's beginning to where the batch's records begin.
    fn body_offset(&self) -> (u32, u64) {
        self.active.as_ref().map_or((0, 0), |active| {
            let sectors = u64::from(active.next_sector) * SECTOR_PAYLOAD_BYTES as u64;
            (active.epoch, sectors + BATCH_HEADER_BYTES as u64)
        })
    }

    fn place(&self, start: usize) -> Place {
        let (epoch, before) = self.body_offset();
        // Segments are at most 1 GiB.
        let offset = u32::try_from(before + start as u64).unwrap_or(u32::MAX);
        let bytes = u32::try_from(self.body.len() - start).unwrap_or(u32::MAX);
        Place {
            epoch,
            offset,
            bytes,
        }
    }

    fn encode_submissions(
        &mut self,
        batch: Vec<Submission>,
        plan: &mut Plan,
    ) -> Result<(), LogFailure> {
        let steps = self.versions(&batch)?;
        let mut steps = steps.into_iter();
        for submission in batch {
            for mutation in submission.mutations {
                let Some((version, last)) = steps.next() else {
                    continue;
                };
                self.encode_mutation(mutation, version, last, plan)?;
            }
            plan.acks.push((submission.shard, submission.token));
        }
        Ok(())
    }

    /// Checks each mutation against its group's log as it will be by then; gives its version and
    /// the last index before it.
    fn versions(&self, batch: &[Submission]) -> Result<Vec<(Version, Index)>, LogFailure> {
        let mut state = self.shared.lock();
        let mut ends: BTreeMap<GroupId, (Index, Index)> = BTreeMap::new();
        let mut steps = Vec::new();
        for mutation in batch.iter().flat_map(|submission| &submission.mutations) {
            let group = mutation.group;
            let (compacted, last) = *ends.entry(group).or_insert_with(|| {
                let log = state.index.group(group);
                log.map_or_else(Default::default, |log| (log.compacted(), log.last()))
            });
            let after = check_change(&mutation.change, compacted, last)
                .map_err(|source| LogFailure::BadChange { group, source })?;
            ends.insert(group, after);
            steps.push((state.index.next_version(group), last));
        }
        Ok(steps)
    }

    fn encode_mutation(
        &mut self,
        mutation: Mutation,
        version: Version,
        last: Index,
        plan: &mut Plan,
    ) -> Result<(), LogFailure> {
        let group = mutation.group;
        match mutation.change {
            Change::Write {
                hard_state,
                entries,
            } => {
                let hard_state = hard_state.map(Body::HardState);
                for body in hard_state
                    .into_iter()
                    .chain(entries.into_iter().map(Body::Entry))
                {
                    self.encode(group, version, &body, plan)?;
                }
            }
            Change::Compact { through, term } => {
                self.encode(
                    group,
                    version,
                    &Body::Compact {
                        through,
                        term,
                        last,
                    },
                    plan,
                )?;
            }
            Change::Reset {
                index,
                term,
                hard_state,
            } => {
                let point = Body::Compact {
                    through: index,
                    term,
                    last: index,
                };
                self.encode(group, version, &point, plan)?;
                self.encode(group, version, &Body::HardState(hard_state), plan)?;
            }
            Change::Remove => self.encode(group, version, &Body::Remove, plan)?,
        }
        Ok(())
    }

    fn encode(
        &mut self,
        group: GroupId,
        version: Version,
        body: &Body,
        plan: &mut Plan,
    ) -> Result<(), LogFailure> {
        let start = self.body.len();
        encode_record(group, version, body, &mut self.body).map_err(too_long)?;
        let (place, effect) = (self.place(start), effect_of(body));
        plan.records.push(Located {
            group,
            version,
            place,
            effect,
        });
        Ok(())
    }

    /// Adds copies of what is live in a laggard segment, byte for byte. False when the next one
    /// doesn't fit in the active segment.
    fn encode_copies(&mut self, plan: &mut Plan) -> Result<bool, LogFailure> {
        let Some((epoch, from)) = self.rewrite.or_else(|| self.choose_victim()) else {
            return Ok(true);
        };
        let (live, next, file) = {
            let state = self.shared.lock();
            let budget = limits::LOG_REWRITE_BYTES_PER_BATCH;
            let (live, next) = state.index.live_records(epoch, from, budget);
            (live, next, state.files.get(&epoch).cloned())
        };
        self.rewrite = next.map(|group| (epoch, group));
        let Some(file) = file else { return Ok(true) };
        for record in live {
            let bytes = self.body.len() as u64 + u64::from(record.place.bytes);
            if !self.has_room(bytes) {
                self.rewrite = Some((epoch, record.group));
                return Ok(!plan.copies.is_empty());
            }
            let damaged = || {
                let (group, file) = (record.group, file.name());
                let index = match record.effect {
                    Effect::Entry(index, _) => index,
                    Effect::HardState(_) | Effect::Compact(_) | Effect::Remove => Index::default(),
                };
                LogFailure::ReadBack { group, index, file }
            };
            let read = read_record(&self.shared.log_id, &file, record.place);
            let (found, raw) = read.map_err(|_| damaged())?;
            let same = found.group == record.group
                && found.version == record.version
                && effect_of(&found.body) == record.effect;
            if !same {
                return Err(damaged());
            }
            let start = self.body.len();
            self.body.extend_from_slice(&raw);
            plan.copies.push(Located {
                place: self.place(start),
                ..record
            });
        }
        Ok(true)
    }

    fn choose_victim(&self) -> Option<(u32, GroupId)> {
        let active = self.active.as_ref()?.epoch;
        let percent = if self.room_segments() <= 1 {
            limits::LOG_REWRITE_LIVE_PERCENT_PRESSED
        } else {
            limits::LOG_REWRITE_LIVE_PERCENT
        };
        let state = self.shared.lock();
        let victim = state
            .index
            .rewrite_victim(active, self.config.segment_bytes(), percent)?;
        Some((victim, GroupId::default()))
    }

    fn header(&self, kind: BatchKind, epoch: u32, number: u64, records: u32) -> BatchHeader {
        let (synced, synced_number) = self.synced;
        BatchHeader {
            kind,
            epoch,
            body_bytes: 0,
            number,
            synced_epoch: synced.epoch,
            synced_sectors: synced.end_sectors,
            synced_number,
            records,
            body_crc: 0,
        }
    }

    /// Writes the batch, syncs it, notes it, acks it.
    fn write(
        &mut self,
        plan: &Plan,
        ack: &mut dyn FnMut(LogShard, Token),
    ) -> Result<(), LogFailure> {
        let Some(Active {
            epoch,
            next_sector,
            ref file,
            ..
        }) = self.active
        else {
            return Ok(());
        };
        let file = Arc::clone(file);
        let records = plan.records.len() + plan.copies.len();
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        let header = self.header(BatchKind::Records, epoch, self.number + 1, records);
        let log_id = self.shared.log_id;
        encode_batch(&log_id, next_sector, header, &self.body, &mut self.sectors)
            .map_err(too_long)?;
        let began = (self.clock)();
        self.shared.sync_begins(began);
        let offset = u64::from(next_sector) * SECTOR_BYTES as u64;
        file.file
            .write_at(&self.sectors, offset)
            .map_err(io_failure("write", file.name()))?;
        // The deciding line of "ack after the sync": the mutant acks first.
        let ack_first = transport::mutant!("ack_before_sync");
        if !ack_first {
            self.sync(&file)?;
        }
        self.note_written(plan)?;
        for (shard, token) in &plan.acks {
            ack(*shard, *token);
        }
        if ack_first {
            self.sync(&file)?;
        }
        self.shared.sync_ended(began, (self.clock)(), self.number);
        self.shared
            .unsynced_bytes
            .fetch_sub(plan.bytes, Ordering::AcqRel);
        self.publish_space();
        Ok(())
    }

    fn sync(&self, file: &SegmentFile) -> Result<(), LogFailure> {
        match self.config.sync() {
            SyncMode::Durable => file
                .file
                .sync_data()
                .map_err(io_failure("sync", file.name())),
            SyncMode::Unsafe => Ok(()),
        }
    }

    fn note_written(&mut self, plan: &Plan) -> Result<(), LogFailure> {
        self.number += 1;
        let sectors = u32::try_from(self.sectors.len() / SECTOR_BYTES).unwrap_or(u32::MAX);
        if let Some(active) = &mut self.active {
            active.next_sector += sectors;
            if self.config.sync() == SyncMode::Durable {
                let end = ListedSegment {
                    epoch: active.epoch,
                    end_sectors: active.next_sector,
                };
                self.synced = (end, self.number);
            }
        }
        let mut state = self.shared.lock();
        for record in &plan.records {
            let group = record.group;
            let applied = state.index.apply(record);
            applied.map_err(|source| LogFailure::BadChange { group, source })?;
        }
        for copy in &plan.copies {
            state.index.apply_rewrite(copy);
        }
        state.index.check_invariants();
        Ok(())
    }

    /// Goes on in another segment. False when there is no space for one.
    fn change_segment(&mut self) -> Result<bool, LogFailure> {
        let Some(file) = self.take_free()? else {
            return Ok(false);
        };
        if let Some(active) = self.active.take() {
            if self.config.sync() == SyncMode::Unsafe {
                let sync = active.file.file.sync_data();
                sync.map_err(io_failure("sync", active.file.name()))?;
            }
            let end_sectors = active.next_sector;
            self.closed.push((
                ListedSegment {
                    epoch: active.epoch,
                    end_sectors,
                },
                active.file,
            ));
        }
        let epoch = self
            .epoch_max
            .checked_add(1)
            .ok_or(LogFailure::EpochsUsedUp)?;
        self.epoch_max = epoch;
        let closed = std::mem::take(&mut self.closed);
        let (dead, live): (Vec<_>, Vec<_>) = {
            let state = self.shared.lock();
            closed
                .into_iter()
                .partition(|(listed, _)| state.index.is_dead(listed.epoch))
        };
        self.closed = live;
        let listed: Vec<_> = self.closed.iter().map(|(listed, _)| *listed).collect();
        let log_id = self.shared.log_id;
        let header = self.header(BatchKind::Start, epoch, self.number, 0);
        let start = encode_start(&log_id, &listed);
        encode_batch(&log_id, 0, header, &start, &mut self.sectors).map_err(too_long)?;
        file.file
            .write_at(&self.sectors, 0)
            .map_err(io_failure("write", file.name()))?;
        file.file
            .sync_data()
            .map_err(io_failure("sync", file.name()))?;
        let sectors_of =
            |bytes: u64| u32::try_from(bytes / SECTOR_BYTES as u64).unwrap_or(u32::MAX);
        let next_sector = sectors_of(self.sectors.len() as u64);
        self.synced = (
            ListedSegment {
                epoch,
                end_sectors: next_sector,
            },
            self.number,
        );
        {
            let mut state = self.shared.lock();
            state.index.start_segment(epoch);
            state.files.insert(epoch, Arc::clone(&file));
            for (listed, _) in &dead {
                state.index.retire(listed.epoch);
                state.files.remove(&listed.epoch);
            }
        }
        self.rewrite = self
            .rewrite
            .filter(|(victim, _)| dead.iter().all(|(d, _)| d.epoch != *victim));
        let sectors = sectors_of(file.bytes);
        self.active = Some(Active {
            epoch,
            file,
            next_sector,
            sectors,
        });
        self.free.extend(dead.into_iter().map(|(_, file)| file));
        self.trim_free();
        self.publish_space();
        Ok(true)
    }

    /// A file of the right size that no reader holds; else a new one, if there is space.
    fn take_free(&mut self) -> Result<Option<Arc<SegmentFile>>, LogFailure> {
        let bytes = self.config.segment_bytes();
        let usable = |file: &Arc<SegmentFile>| file.bytes == bytes && Arc::strong_count(file) == 1;
        if let Some(at) = self.free.iter().position(usable) {
            return Ok(Some(self.free.remove(at)));
        }
        let number = self.file_number_next;
        self.file_number_next += 1;
        match make_segment(&*self.files, number, bytes) {
            Ok(file) => Ok(Some(Arc::new(file))),
            Err((_, error)) if is_full(&error) => Ok(None),
            Err((op, error)) => Err(io_failure(op, segment_name(number))(error)),
        }
    }

    /// Keeps a few free files of the right size and removes the rest.
    fn trim_free(&mut self) {
        let bytes = self.config.segment_bytes();
        let mut kept = 0;
        for file in std::mem::take(&mut self.free) {
            if file.bytes == bytes && kept < limits::LOG_SPARES_MAX {
                kept += 1;
                self.free.push(file);
            } else if let Err(error) = self.files.remove(&file.name()) {
                tracing::warn!(file = file.name(), %error, "a free segment couldn't be removed");
            }
        }
    }

    /// How many more segments entries may fill.
    fn room_segments(&self) -> u64 {
        let state = self.shared.lock();
        let live = state
            .index
            .segments()
            .filter(|(_, segment)| segment.live_records > 0)
            .count();
        let active = self.active.as_ref().map_or(0, |active| active.epoch);
        let used = live as u64 + u64::from(state.index.is_dead(active));
        (self.config.segments_max() - limits::LOG_SEGMENTS_RESERVED).saturating_sub(used)
    }

    fn publish_space(&self) {
        let segment_bytes = self.config.segment_bytes();
        let left = self.active.as_ref().map_or(0, |active| {
            u64::from(active.sectors - active.next_sector) * SECTOR_PAYLOAD_BYTES as u64
        });
        // A batch may leave the rest of a segment unused, so only three quarters count.
        let room = self.room_segments() * (segment_bytes / 4 * 3);
        let used = (self.closed.len() as u64 + 1) * segment_bytes;
        self.shared.set_space(room + left, used);
    }
}

fn too_long(source: DecodeError) -> LogFailure {
    LogFailure::TooLong { source }
}
