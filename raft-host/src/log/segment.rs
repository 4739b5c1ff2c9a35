//! A segment's file: its name, and how one is made.
//!
//! Leaves to others: what is in it (record.rs), when one is made, used again or removed (engine.rs).
//!
//! A file has its full length and its zeros on disk before it gets its name, and the name is on
//! disk before it is used. So a file with a segment's name is always whole.

use std::io;
use std::sync::Arc;

use super::files::{Files, LogFile};
use crate::limits;

/// A segment's file.
#[derive(Clone, Debug)]
pub(super) struct SegmentFile {
    /// The number in its name, which it keeps for ever.
    pub(super) number: u64,
    /// The open file.
    pub(super) file: Arc<dyn LogFile>,
    /// Its length.
    pub(super) bytes: u64,
}

impl SegmentFile {
    pub(super) fn name(&self) -> String {
        segment_name(self.number)
    }
}

/// The name of a segment's file.
pub(super) fn segment_name(number: u64) -> String {
    format!("segment-{number:08}.log")
}

/// The number in a segment's name.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    let number = digits.parse().ok()?;
    (segment_name(number) == name).then_some(number)
}

/// Makes a segment's file: filled with zeros, synced, and only then under its name.
///
/// # Errors
/// What the file system says, with what was tried.
pub(super) fn make_segment(
    files: &dyn Files,
    number: u64,
    bytes: u64,
) -> Result<SegmentFile, (&'static str, io::Error)> {
    let (name, unfinished) = (segment_name(number), format!("segment-{number:08}.new"));
    let make = || {
        let file = files
            .create(&unfinished)
            .map_err(|error| ("create", error))?;
        let zeros = vec![0; limits::LOG_ZERO_CHUNK_BYTES];
        let mut at = 0;
        while at < bytes {
            let chunk = usize::try_from(bytes - at)
                .unwrap_or(usize::MAX)
                .min(zeros.len());
            file.write_at(&zeros[..chunk], at)
                .map_err(|error| ("zero", error))?;
            at += chunk as u64;
        }
        file.sync_data().map_err(|error| ("sync", error))?;
        files
            .rename(&unfinished, &name)
            .map_err(|error| ("rename", error))?;
        files.sync_folder().map_err(|error| ("sync", error))?;
        Ok(SegmentFile {
            number,
            file,
            bytes,
        })
    };
    let made = make();
    if made.is_err() {
        // It gives its space back; if that fails too, the next open removes it.
        let _ = files.remove(&unfinished);
    }
    made
}
