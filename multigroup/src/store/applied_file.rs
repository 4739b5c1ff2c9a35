//! How far each group's database got, in one small file beside their folder, so that a start opens
//! none of thousands. Written after each batch is committed, never synced, and so only believed
//! while the system hasn't been started anew since: what a process wrote stays in the page cache
//! when it is killed, and only a loss of power can part this file from the databases.
//!
//! - P1: a record never says more than its database holds, as long as both are of the same boot of
//!   the system. It may say less, by the batch that was committed when the process was killed; those
//!   entries come again from the log and are skipped.
//! - P2: a file of another boot, another number of groups, or without its mark is made anew.
//!
//! `MGAPPLY1`, the boot's id (36 characters), the number of groups (u32), zeros to 64 bytes; then for
//! each group index (u64), term (u64), and a CRC-32 of the boot's id, the group's number and both,
//! padded to 24 bytes. All little-endian.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use raft_host::id::{GroupId, Index, Term};

use super::error::StoreError;
use super::schema::Applied;

const MAGIC: &[u8; 8] = b"MGAPPLY1";
const HEAD_BYTES: usize = 64;
const RECORD_BYTES: usize = 24;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The open file; none where nothing is to be noted, or the system doesn't tell its boots apart.
#[derive(Debug)]
pub(super) struct AppliedFile {
    open: Option<(File, String)>,
    path: PathBuf,
}

fn head(boot: &str, groups: u32) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    for (to, from) in head[8..44].iter_mut().zip(boot.bytes()) {
        *to = from;
    }
    head[44..48].copy_from_slice(&groups.to_le_bytes());
    head
}

fn record(boot: &str, group: u64, applied: Applied) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&applied.index.to_u64().to_le_bytes());
    record[8..16].copy_from_slice(&applied.term.to_u64().to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(boot.as_bytes());
    crc.update(&group.to_le_bytes());
    crc.update(&record[..16]);
    record[16..20].copy_from_slice(&crc.finalize().to_le_bytes());
    record
}

fn read_record(boot: &str, group: u64, bytes: &[u8]) -> Option<Applied> {
    let (index, rest) = bytes.split_first_chunk::<8>()?;
    let (term, _) = rest.split_first_chunk::<8>()?;
    let applied = Applied {
        index: Index::new(u64::from_le_bytes(*index)),
        term: Term::new(u64::from_le_bytes(*term)),
    };
    let said = applied.index > Index::new(0) && bytes == record(boot, group, applied);
    said.then_some(applied)
}

impl AppliedFile {
    /// Opens the file and reads what may be believed of it, by group number.
    pub(super) fn open(
        path: Option<PathBuf>,
        groups: u32,
    ) -> Result<(Self, Vec<Option<Applied>>), StoreError> {
        let Some(path) = path else {
            return Self::open_at(PathBuf::new(), groups, "");
        };
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
        Self::open_at(path, groups, boot.trim())
    }

    fn open_at(
        path: PathBuf,
        groups: u32,
        boot: &str,
    ) -> Result<(Self, Vec<Option<Applied>>), StoreError> {
        let nothing = vec![None; groups as usize];
        if boot.len() != 36 {
            return Ok((Self { open: None, path }, nothing));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path);
        let file = file.map_err(StoreError::io(&path, "open the file"))?;
        let said = fs::read(&path).map_err(StoreError::io(&path, "read the file"))?;
        let head = head(boot, groups);
        let believed = if said.starts_with(&head) {
            let records = said[HEAD_BYTES..].chunks(RECORD_BYTES).zip(0..);
            let records = records.map(|(bytes, group)| read_record(boot, group, bytes));
            let all = records.chain(std::iter::repeat(None));
            all.take(groups as usize).collect()
        } else {
            let made = file.set_len(0).and_then(|()| file.write_all_at(&head, 0));
            made.map_err(StoreError::io(&path, "write the file"))?;
            nothing
        };
        let open = Some((file, boot.to_owned()));
        Ok((Self { open, path }, believed))
    }

    /// Notes how far a group's database got. What can't be noted is only read anew at the next start.
    pub(super) fn note(&self, group: GroupId, applied: Applied) {
        let Some((file, boot)) = &self.open else {
            return;
        };
        let group = group.to_u64();
        let at = HEAD_BYTES as u64 + group * RECORD_BYTES as u64;
        if let Err(error) = file.write_all_at(&record(boot, group, applied), at) {
            // Half a record would fail its sum; an older one is true, too.
            tracing::debug!(path = %self.path.display(), %error, "can't note what was applied");
        }
    }

    /// Forgets what was noted of a group.
    pub(super) fn forget(&self, group: GroupId) -> Result<(), StoreError> {
        let Some((file, _)) = &self.open else {
            return Ok(());
        };
        let at = HEAD_BYTES as u64 + group.to_u64() * RECORD_BYTES as u64;
        file.write_all_at(&[0; RECORD_BYTES], at)
            .map_err(StoreError::io(&self.path, "write the file"))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "01234567-89ab-cdef-0123-456789abcdef";

    fn at(index: u64, term: u64) -> Applied {
        Applied {
            index: Index::new(index),
            term: Term::new(term),
        }
    }

    #[test]
    fn what_was_noted_is_believed_within_the_same_boot_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("applied");
        let open = |groups, boot: &str| AppliedFile::open_at(path.clone(), groups, boot).unwrap();
        let (file, said) = open(3, BOOT);
        assert_eq!(said, [None, None, None]);
        file.note(GroupId::new(2), at(9, 4));
        file.note(GroupId::new(0), at(1, 1));
        file.note(GroupId::new(0), at(7, 2));
        let said = open(3, BOOT).1;
        assert_eq!(said, [Some(at(7, 2)), None, Some(at(9, 4))]);
        file.forget(GroupId::new(0)).unwrap();
        assert_eq!(open(3, BOOT).1[0], None);
        assert_eq!(open(3, &BOOT.replace('0', "f")).1, [None, None, None]);
        assert_eq!(open(3, BOOT).1, [None, None, None], "it was made anew");
        open(3, BOOT).0.note(GroupId::new(1), at(1, 1));
        assert_eq!(open(4, BOOT).1, [None; 4], "of another number of groups");
        assert_eq!(open(4, "").1, [None; 4]);
    }

    #[test]
    fn no_damaged_record_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("applied");
        let (file, _) = AppliedFile::open_at(path.clone(), 2, BOOT).unwrap();
        file.note(GroupId::new(0), at(300, 7));
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let said = AppliedFile::open_at(path.clone(), 2, BOOT).unwrap().1;
            assert_eq!(said, [None, None], "bit {bit}");
        }
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let said = AppliedFile::open_at(path.clone(), 2, BOOT).unwrap().1;
            assert_eq!(said, [None, None], "{length} bytes");
        }
    }
}
