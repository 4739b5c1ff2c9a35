//! Opens a log's folder: the lock, the log's name, what an interrupted creation left; then
//! recovery, and a first segment to go on in.
//!
//! The folder holds `LOCK`, `FORMAT` and `segment-NNNNNNNN.log` files, and, while something is
//! being made, `FORMAT.new` and `segment-NNNNNNNN.new`. `FORMAT` is `MRAFTLOG`, the format version
//! in 2 bytes, 2 zero bytes, the log's id in 16 and a CRC-32 of all that.
//!
//! A new log is made in this order: `FORMAT.new`, the first segment, its start, the rename to
//! `FORMAT`. So a folder with `FORMAT.new` alone never acked anything and is made anew, and one
//! with `FORMAT` must have a segment: lost segments are refused, not taken for a new log.

use std::io;
use std::sync::Arc;

use super::config::LogConfig;
use super::engine::{Engine, LogClock};
use super::error::{Damage, OpenError};
use super::files::{Files, FolderLock};
use super::index::LogIndex;
use super::record::{FORMAT_VERSION, LogId};
use super::recovery::{Recovered, recover};
use super::segment::segment_number;

pub(super) const LOCK: &str = "LOCK";
pub(super) const FORMAT: &str = "FORMAT";
const FORMAT_NEW: &str = "FORMAT.new";
const FORMAT_MAGIC: [u8; 8] = *b"MRAFTLOG";
const FORMAT_BYTES: usize = 32;

pub(super) fn failed(op: &'static str, file: &str) -> impl FnOnce(io::Error) -> OpenError {
    let file = file.to_owned();
    move |source| OpenError::Io { op, file, source }
}

fn encode_format(log_id: &LogId) -> [u8; FORMAT_BYTES] {
    let mut out = [0; FORMAT_BYTES];
    out[..8].copy_from_slice(&FORMAT_MAGIC);
    out[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    out[12..28].copy_from_slice(log_id);
    let crc = crc32fast::hash(&out[..28]);
    out[28..].copy_from_slice(&crc.to_le_bytes());
    out
}

pub(super) fn read_format(files: &dyn Files) -> Result<LogId, OpenError> {
    let file = files.open(FORMAT).map_err(failed("open", FORMAT))?;
    let damaged = || OpenError::Corrupt {
        file: FORMAT.to_owned(),
        offset: 0,
        source: Damage::Name,
    };
    let length = file.bytes_len().map_err(failed("read", FORMAT))?;
    let mut bytes = [0; FORMAT_BYTES];
    if length < bytes.len() as u64 {
        return Err(damaged());
    }
    file.read_at(&mut bytes, 0)
        .map_err(failed("read", FORMAT))?;
    if bytes[..8] != FORMAT_MAGIC {
        return Err(OpenError::Foreign {
            file: FORMAT.to_owned(),
        });
    }
    let got = u16::from_le_bytes([bytes[8], bytes[9]]);
    let crc = crc32fast::hash(&bytes[..28]);
    let whole = bytes[28..] == crc.to_le_bytes();
    if whole && got > FORMAT_VERSION {
        let (file, expected) = (FORMAT.to_owned(), FORMAT_VERSION);
        return Err(OpenError::NewerFormat {
            file,
            expected,
            got,
        });
    }
    let mut log_id = LogId::default();
    log_id.copy_from_slice(&bytes[12..28]);
    if bytes != encode_format(&log_id) {
        return Err(damaged());
    }
    Ok(log_id)
}

/// Refuses a folder that holds what no log put there.
pub(super) fn check_names(names: &[String]) -> Result<(), OpenError> {
    let known = [LOCK, FORMAT, FORMAT_NEW];
    for name in names {
        let unfinished = name.strip_suffix(".new").map(|stem| format!("{stem}.log"));
        let segment = unfinished.as_ref().unwrap_or(name);
        if !known.contains(&name.as_str()) && segment_number(segment).is_none() {
            return Err(OpenError::Foreign { file: name.clone() });
        }
    }
    Ok(())
}

/// Opens the log of this name, or makes it. The lock is held as long as the guard.
pub(super) fn open_engine(
    files: &Arc<dyn Files>,
    config: LogConfig,
    clock: LogClock,
    id: LogId,
) -> Result<(Engine, Box<dyn FolderLock>), OpenError> {
    let lock = files.try_lock(LOCK).map_err(failed("lock", LOCK))?;
    let lock = lock.ok_or_else(|| OpenError::InUse {
        file: LOCK.to_owned(),
    })?;
    let names = files.list().map_err(failed("list", "."))?;
    check_names(&names)?;
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let recovered = if has(FORMAT) {
        let log_id = read_format(&**files)?;
        if log_id != id {
            return Err(OpenError::AnothersLog {
                file: FORMAT.to_owned(),
            });
        }
        let recovered = recover(&**files, &log_id, &names)?;
        remove_unfinished(&**files, &names)?;
        recovered.keep(&**files)?;
        (log_id, recovered)
    } else {
        let segment = names.iter().find(|name| segment_number(name).is_some());
        if let Some(file) = segment.filter(|_| !has(FORMAT_NEW)) {
            return Err(OpenError::Foreign { file: file.clone() });
        }
        make_new(&**files, &names, &id)?;
        (id, nothing())
    };
    let is_new = !has(FORMAT);
    let (log_id, recovered) = recovered;
    let engine = Engine::start(Arc::clone(files), config, clock, log_id, recovered)
        .map_err(OpenError::Start)?;
    if is_new {
        files
            .rename(FORMAT_NEW, FORMAT)
            .map_err(failed("rename", FORMAT))?;
        files.sync_folder().map_err(failed("sync", "."))?;
    }
    Ok((engine, lock))
}

fn nothing() -> Recovered {
    let (segments, free) = (Vec::new(), Vec::new());
    Recovered {
        index: LogIndex::default(),
        segments,
        free,
        epoch_max: 0,
        number: 0,
        synced_sectors: 0,
    }
}

fn remove_unfinished(files: &dyn Files, names: &[String]) -> Result<(), OpenError> {
    for name in names.iter().filter(|name| name.ends_with(".new")) {
        files.remove(name).map_err(failed("remove", name))?;
    }
    Ok(())
}

/// Clears what an interrupted creation left and writes the log's name, not yet under its own.
fn make_new(files: &dyn Files, names: &[String], log_id: &LogId) -> Result<(), OpenError> {
    // The mark of the interrupted creation goes last: without it the rest would look foreign.
    for name in names
        .iter()
        .filter(|name| *name != LOCK && *name != FORMAT_NEW)
    {
        files.remove(name).map_err(failed("remove", name))?;
    }
    let file = files
        .create(FORMAT_NEW)
        .map_err(failed("create", FORMAT_NEW))?;
    file.write_at(&encode_format(log_id), 0)
        .map_err(failed("write", FORMAT_NEW))?;
    file.sync_data().map_err(failed("sync", FORMAT_NEW))?;
    files.sync_folder().map_err(failed("sync", "."))
}
