//! What can go wrong with the log, at its three edges: opening it, handing something in, and while
//! it runs. Reading has its own in api.rs.

use std::io;

use super::record::DecodeError;
use crate::id::{GroupId, Index};

/// Why a configuration can't hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A segment's size is out of range or not whole sectors.
    #[error("log.segment_bytes {got} isn't a multiple of 512 from {min} to {max}")]
    SegmentBytes {
        /// What was given.
        got: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The cap leaves no room to work in.
    #[error(
        "log.bytes_max {bytes_max} is less than {segments_min} of log.segment_bytes {segment_bytes}"
    )]
    BytesMax {
        /// The cap.
        bytes_max: u64,
        /// One segment.
        segment_bytes: u64,
        /// How many it takes at least.
        segments_min: u64,
    },
    /// More segments than a segment's start can list.
    #[error(
        "log.bytes_max {bytes_max} is more than {segments_max} of log.segment_bytes {segment_bytes}"
    )]
    TooManySegments {
        /// The cap.
        bytes_max: u64,
        /// One segment.
        segment_bytes: u64,
        /// How many can be listed.
        segments_max: u64,
    },
    /// A probe without a pause.
    #[error("log.probe_interval is zero")]
    ProbeInterval,
}

/// Why the log couldn't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration can't hold.
    #[error("the log's configuration is impossible")]
    Config(#[from] ConfigError),
    /// The file system failed.
    #[error("{op} of {file} failed")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("the log folder is in use by another process (it holds the lock {file})")]
    InUse {
        /// The lock file.
        file: String,
    },
    /// The folder holds something that no log put there.
    #[error(
        "the folder is no log of this program: {file} doesn't belong there; use an empty folder"
    )]
    Foreign {
        /// What was found.
        file: String,
    },
    /// It is the log of another node or of an earlier folder: nothing of it may be acked or voted on
    /// here.
    #[error(
        "the log belongs to another node's folder, as {file} says: put this node's own log back, or \
         start it with an empty folder"
    )]
    AnothersLog {
        /// Which file says so.
        file: String,
    },
    /// A newer program wrote it.
    #[error(
        "{file} has format version {got}, this program reads up to {expected}: use a newer one"
    )]
    NewerFormat {
        /// Where.
        file: String,
        /// The newest we know.
        expected: u16,
        /// What is there.
        got: u16,
    },
    /// What was durable is damaged. Nothing was changed.
    #[error(
        "{file} is corrupt at byte {offset}: this node's replicas can't be trusted any more; leave it \
         stopped, the others go on as long as they are a majority (bringing it back, `multigroup \
         members readmit`, isn't there yet)"
    )]
    Corrupt {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        source: Damage,
    },
    /// The log thread couldn't be started, or the first segment couldn't be written.
    #[error("the log couldn't be started")]
    Start(#[source] LogFailure),
}

/// What is wrong with what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A sector bears the stamp of no epoch.
    #[error("a sector's stamp is damaged")]
    Stamp,
    /// All sectors of a batch are there, yet it isn't whole.
    #[error("a completely written batch can't be read")]
    Batch(#[source] DecodeError),
    /// A batch isn't the next one.
    #[error("batch {expected} expected, {got} found")]
    BatchNumber {
        /// The next.
        expected: u64,
        /// What is there.
        got: u64,
    },
    /// A batch isn't of the kind, epoch or size it must be at this place.
    #[error("a batch doesn't belong where it is")]
    Misplaced,
    /// The file ends where no segment does.
    #[error("the file ends here, which is too early or too late for a segment")]
    Length,
    /// What a later batch says was synced isn't there.
    #[error("a batch is missing here, but what lies behind it shows that it was synced")]
    BelowSyncedEnd,
    /// A segment that was in use has no file any more.
    #[error("the segment of epoch {epoch} is missing")]
    MissingSegment {
        /// Its epoch.
        epoch: u32,
    },
    /// Two files say they are the same segment.
    #[error("a second file holds epoch {epoch}")]
    DuplicateSegment {
        /// The epoch.
        epoch: u32,
    },
    /// The folder says it holds a log, but no segment does.
    #[error("no segment is left")]
    NoSegment,
    /// The file that names the log is damaged.
    #[error("the log's name is damaged")]
    Name,
    /// A group's entries don't follow each other.
    #[error("group {group} has no entry {index}")]
    EntryGap {
        /// The group.
        group: GroupId,
        /// What is missing.
        index: Index,
    },
}

/// Why the log stopped for good. Nothing is ever retried: after a failed sync the kernel may have
/// dropped the pages, so a second one that succeeds would prove nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogFailure {
    /// The file system failed.
    #[error("{op} of {file} failed ({kind}), the log has stopped")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        file: String,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// Its cause.
        #[source]
        source: std::sync::Arc<io::Error>,
    },
    /// What was read back isn't what was written.
    #[error("group {group}, entry {index} read back from {file} is damaged, the log has stopped")]
    ReadBack {
        /// The group.
        group: GroupId,
        /// The entry.
        index: Index,
        /// The file.
        file: String,
    },
    /// A shard handed in what contradicts the group's log: a fault of this program.
    #[error("group {group} was given an impossible change, the log has stopped")]
    BadChange {
        /// The group.
        group: GroupId,
        /// What is impossible.
        #[source]
        source: BadChange,
    },
    /// A record is longer than the format can say; what is handed in is checked before.
    #[error("a record is too long to be written, the log has stopped")]
    TooLong {
        /// What is too long.
        #[source]
        source: DecodeError,
    },
    /// The epochs ran out, after 4 billion segments.
    #[error("the segment epochs ran out, the log has stopped")]
    EpochsUsedUp,
    /// The log thread panicked.
    #[error("the log thread panicked, the log has stopped")]
    Panicked,
    /// The log thread couldn't be started.
    #[error("the log thread couldn't be started ({kind})")]
    Thread {
        /// Why.
        kind: io::ErrorKind,
    },
}

/// Why a change contradicts the group's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadChange {
    /// The first entry would leave a gap.
    #[error("entries start at {first}, the last index is {last}")]
    Gap {
        /// The first entry.
        first: Index,
        /// The last index there is.
        last: Index,
    },
    /// The first entry lies at or below the compaction point.
    #[error("entries start at {first}, the log is compacted through {compacted}")]
    Compacted {
        /// The first entry.
        first: Index,
        /// The compaction point.
        compacted: Index,
    },
    /// The entries don't follow each other.
    #[error("entry {expected} must be next, {got} was given")]
    NotConsecutive {
        /// The next.
        expected: Index,
        /// What was given.
        got: Index,
    },
    /// A compaction beyond the last entry; that is a reset.
    #[error("compaction through {through}, the last index is {last}")]
    CompactBeyondEnd {
        /// What was asked for.
        through: Index,
        /// The last index.
        last: Index,
    },
    /// The compaction point's term isn't the entry's.
    #[error("compaction through {through} with term {got}, the entry has {expected}")]
    CompactTerm {
        /// What was asked for.
        through: Index,
        /// The entry's term.
        expected: crate::id::Term,
        /// What was given.
        got: crate::id::Term,
    },
}

/// Why something wasn't taken. Nothing of it was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The change contradicts the group's log: the caller's bug.
    #[error("the change contradicts the group's log")]
    BadChange(#[from] BadChange),
    /// It doesn't fit in one batch.
    #[error("{bytes} bytes in one change, {bytes_max} fit")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The most.
        bytes_max: u64,
    },
    /// More waits to be written than may wait; try again after the next completion.
    #[error("{queued_bytes} bytes wait for the disk, {bytes_max} may")]
    Busy {
        /// What waits.
        queued_bytes: u64,
        /// The most.
        bytes_max: u64,
    },
    /// The log is at its cap. Compactions are still taken, and make room.
    #[error("the log is at its cap of {bytes_max} bytes, compact groups or raise log.bytes_max")]
    CapReached {
        /// The cap.
        bytes_max: u64,
    },
    /// The disk is full. Goes on by itself once there is space.
    #[error("the disk is full")]
    DiskFull,
    /// The log has stopped for good.
    #[error("the log has failed")]
    Failed(#[source] LogFailure),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}
