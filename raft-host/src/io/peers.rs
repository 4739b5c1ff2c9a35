//! What a node has seen of its peers, kept over restarts: the incarnation that each first came with,
//! the newest boot with its life and the highest sync number (T2, safety 21). A peer whose directory
//! was wiped, copied or put back is refused by it, also by a node that was down meanwhile.
//!
//! The first contact counts until membership keeps the record of nodes; then this becomes its cache.
//! Left to others: judging hellos (the transport), where the folder is (`storage`).
//!
//! `peers` holds `MRAFTPE2`, the number of records in two bytes, for each the node in four, its
//! incarnation in 16, and in eight each its boot, the highest sync number and the boot's life, 0 where
//! it isn't known, and a CRC-32 of all that; numbers are little-endian. It is replaced whole, like
//! `node`. A file of the form before, `MRAFTPEE`, is read and has no lives: it held another number in
//! their place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Weak;

use tokio::task::spawn_blocking;
use transport::io::clock;
use transport::proto::authority::NodeRecord;
use transport::{Boot, Incarnation, LifeId, PeerId, Transport};

use super::storage::StorageError;
use crate::limits::PEERS_STORE_INTERVAL;

const PEERS: &str = "peers";
const PEERS_NEW: &str = "peers.new";
const MAGIC: &[u8; 8] = b"MRAFTPE2";
/// Of the form without lives.
const MAGIC_1: &[u8; 8] = b"MRAFTPEE";
const RECORD_BYTES: usize = 44;

/// What is on record, by peer.
pub(super) type Records = BTreeMap<PeerId, NodeRecord>;

fn encode(records: &Records) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let count = u16::try_from(records.len()).unwrap_or(u16::MAX);
    out.extend(count.to_le_bytes());
    for (peer, record) in records.iter().take(usize::from(count)) {
        out.extend(peer.to_u32().to_le_bytes());
        out.extend(record.incarnation.to_bytes());
        out.extend(record.boot.to_u64().to_le_bytes());
        out.extend(record.sync_number.to_le_bytes());
        out.extend(record.life.map_or(0, LifeId::to_u64).to_le_bytes());
    }
    let crc = crc32fast::hash(&out);
    out.extend(crc.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<Records> {
    let (said, crc) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(said) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (magic, said) = said.split_first_chunk::<8>()?;
    let has_lives = match magic {
        MAGIC => true,
        MAGIC_1 => false,
        _ => return None,
    };
    let (count, records) = said.split_first_chunk::<2>()?;
    let (records, rest) = records.as_chunks::<RECORD_BYTES>();
    let whole = rest.is_empty() && records.len() == usize::from(u16::from_le_bytes(*count));
    let record = |bytes: &[u8; RECORD_BYTES]| {
        let number = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let peer = u32::from_le_bytes(bytes[..4].try_into().ok()?);
        let record = NodeRecord {
            incarnation: Incarnation::new(bytes[4..20].try_into().ok()?),
            boot: Boot::new(number(20)?),
            sync_number: number(28)?,
            life: number(36).filter(|_| has_lives).and_then(LifeId::new),
            pinned: true,
        };
        Some((PeerId::new(peer)?, record))
    };
    let records: Option<Records> = records.iter().map(record).collect();
    records.filter(|_| whole)
}

/// Reads what is on record in a node's folder; nothing is where there is no file.
pub(super) fn read(folder: &Path) -> Result<Records, StorageError> {
    let path = folder.join(PEERS);
    match fs::read(&path) {
        Ok(bytes) => decode(&bytes).ok_or(StorageError::DamagedPeers { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Records::new()),
        Err(source) => Err(StorageError::Io {
            op: "read",
            path,
            source,
        }),
    }
}

fn write(folder: &Path, records: &Records) -> io::Result<()> {
    let (new, path) = (folder.join(PEERS_NEW), folder.join(PEERS));
    let mut file = File::create(&new)?;
    file.write_all(&encode(records))?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(folder)?.sync_all()
}

/// Whether the records differ in more than how far logs are synced.
fn has_new_start(records: &Records, stored: &Records) -> bool {
    records.iter().any(|(peer, record)| {
        stored.get(peer).is_none_or(|stored| {
            let start = |it: &NodeRecord| (it.incarnation, it.boot, it.life);
            start(record) != start(stored)
        })
    })
}

/// Keeps the file in step with what the transport has seen: at once where a peer came for the first
/// time or was started anew, else now and then. Started with the host, ended with it; if it panics,
/// the file grows old. A disk that fails here costs no more than that, and is told once.
pub(super) async fn keep(transport: Weak<Transport>, folder: PathBuf, mut stored: Records) {
    let Some(mut changed) = transport.upgrade().map(|it| it.records_changed()) else {
        return;
    };
    let mut failed = false;
    let mut next = clock::now();
    // What came before this was started.
    changed.mark_changed();
    while changed.changed().await.is_ok() {
        let Some(records) = transport.upgrade().map(|it| it.records()) else {
            return;
        };
        if records == stored {
            continue;
        }
        if !has_new_start(&records, &stored) && clock::now() < next {
            tokio::time::sleep_until(next.into()).await;
            changed.mark_changed();
            continue;
        }
        let (to, what) = (folder.clone(), records.clone());
        let written = spawn_blocking(move || write(&to, &what)).await;
        next = clock::now() + PEERS_STORE_INTERVAL;
        match written {
            Ok(Ok(())) => (stored, failed) = (records, false),
            Ok(Err(error)) if !failed => {
                failed = true;
                tracing::warn!(%error, "what was seen of the peers can't be kept");
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u8) -> NodeRecord {
        NodeRecord {
            incarnation: Incarnation::new([number; 16]),
            boot: Boot::new(u64::from(number) + 3),
            sync_number: u64::from(number) << 40,
            life: LifeId::new(u64::from(number) << 20),
            pinned: true,
        }
    }

    fn records() -> Records {
        let of = |number: u8| (PeerId::new(u32::from(number)).unwrap(), record(number));
        [of(2), of(3)].into()
    }

    #[test]
    fn what_is_written_is_read_and_a_flipped_bit_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Records::new());
        write(dir.path(), &records()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), records());
        let bytes = encode(&records());
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes), None, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None);
        }
        fs::write(dir.path().join(PEERS), &bytes[1..]).unwrap();
        let refused = read(dir.path()).unwrap_err().to_string();
        assert!(
            refused.contains("peers") && refused.contains("remove"),
            "{refused}"
        );
    }

    #[test]
    fn a_file_of_the_form_without_lives_is_read() {
        let mut bytes = encode(&records());
        bytes[..8].copy_from_slice(MAGIC_1);
        let said = bytes.len() - 4;
        let crc = crc32fast::hash(&bytes[..said]);
        bytes[said..].copy_from_slice(&crc.to_le_bytes());
        let mut expected = records();
        expected.values_mut().for_each(|record| record.life = None);
        assert_eq!(decode(&bytes), Some(expected));
    }

    #[test]
    fn a_new_boot_can_not_wait_and_a_longer_log_can() {
        let stored = records();
        let mut longer = stored.clone();
        longer
            .values_mut()
            .for_each(|record| record.sync_number += 1);
        assert!(!has_new_start(&longer, &stored));
        let mut newer = stored.clone();
        newer
            .values_mut()
            .for_each(|record| record.boot = Boot::new(99));
        assert!(has_new_start(&newer, &stored));
        let mut known = stored.clone();
        known.values_mut().for_each(|record| record.life = None);
        assert!(has_new_start(&stored, &known));
        assert!(has_new_start(&stored, &Records::new()));
    }
}
