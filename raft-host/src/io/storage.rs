//! A node's folder: the shared log in `log/`, and in `node` who the node is: its incarnation, drawn
//! once, and how often the folder was started (T2). A folder with a log and without a `node` file
//! is refused: a wiped or mixed-up node must not pass for the one it was (safety 7, 21).
//!
//! Leaves to others: the log and its lock (`log`), who may come back under what (membership).
//!
//! `node` holds `MRAFTNOD`, the incarnation in 16 bytes, the boot in 8, and a CRC-32 of all that,
//! little-endian. It is replaced whole: written beside, synced, renamed, the folder synced; so a
//! crash leaves the old or the new one. The boot is raised before anything else is done, so no two
//! lives have the same.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use transport::{Boot, Incarnation, NodeIdentity, PeerId};

use super::peers::{self, Records};
use crate::log::{Files, RealFiles};

const NODE: &str = "node";
const NODE_NEW: &str = "node.new";
const LOG: &str = "log";
const MAGIC: &[u8; 8] = b"MRAFTNOD";
const NODE_BYTES: usize = 36;

/// Why a folder can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The file system refused.
    #[error("can't {op} {path}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file that names the node isn't one, or is damaged.
    #[error("{path} does not say which node this folder belongs to")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A log without the name of its node.
    #[error("{path} is missing beside a log: this is not a whole node's folder")]
    Nameless {
        /// The missing file.
        path: PathBuf,
    },
    /// The file of what was seen of the peers is damaged.
    #[error("{path} is damaged; remove it, and each peer's next contact is taken as its first")]
    DamagedPeers {
        /// The file.
        path: PathBuf,
    },
    /// The boots ran out.
    #[error("the boot counter in {path} is at its end")]
    BootsUsedUp {
        /// The file.
        path: PathBuf,
    },
}

/// An open folder, and this life of it.
#[derive(Debug)]
pub struct Storage {
    folder: PathBuf,
    files: Arc<dyn Files>,
    peers: Records,
    incarnation: Incarnation,
    boot: Boot,
}

/// Bits that differ from call to call and process to process; not for secrets.
pub(super) fn random_bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn failed(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    let path = path.to_owned();
    move |source| StorageError::Io { op, path, source }
}

fn encode(incarnation: Incarnation, boot: u64) -> [u8; NODE_BYTES] {
    let mut out = [0; NODE_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8..24].copy_from_slice(&incarnation.to_bytes());
    out[24..32].copy_from_slice(&boot.to_le_bytes());
    let crc = crc32fast::hash(&out[..32]);
    out[32..].copy_from_slice(&crc.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<(Incarnation, u64)> {
    let bytes: &[u8; NODE_BYTES] = bytes.try_into().ok()?;
    let incarnation = Incarnation::new(bytes[8..24].try_into().ok()?);
    let boot = u64::from_le_bytes(bytes[24..32].try_into().ok()?);
    (*bytes == encode(incarnation, boot)).then_some((incarnation, boot))
}

fn draw_incarnation() -> Incarnation {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random_bits().to_le_bytes());
    bytes[8..].copy_from_slice(&random_bits().to_le_bytes());
    Incarnation::new(bytes)
}

impl Storage {
    /// Opens a node's folder, making it if it isn't there, and begins its next life.
    ///
    /// # Errors
    /// [`StorageError`] names the file. Nothing of a log is touched.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, StorageError> {
        let folder = folder.into();
        fs::create_dir_all(&folder).map_err(failed("make", &folder))?;
        let (path, log) = (folder.join(NODE), folder.join(LOG));
        let (incarnation, boots) = match fs::read(&path) {
            Ok(bytes) => decode(&bytes).ok_or(StorageError::Damaged { path: path.clone() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if log.exists() {
                    return Err(StorageError::Nameless { path });
                }
                (draw_incarnation(), 0)
            }
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let peers = peers::read(&folder)?;
        let boot = boots
            .checked_add(1)
            .ok_or(StorageError::BootsUsedUp { path: path.clone() })?;
        write(&folder, &encode(incarnation, boot))?;
        let files = RealFiles::new(&log).map_err(failed("make", &log))?;
        Ok(Self {
            folder,
            files: Arc::new(files),
            peers,
            incarnation,
            boot: Boot::new(boot),
        })
    }

    /// The folder's name for itself, drawn when it was made.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// How often it was opened, this time included.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.boot
    }

    /// Links for a node on this folder, with default settings and nothing to compare beyond what
    /// the transport itself does: `listen` is its own address, `peers` are the others'.
    #[must_use]
    pub fn links(
        &self,
        identity: NodeIdentity,
        listen: SocketAddr,
        peers: BTreeMap<PeerId, String>,
    ) -> transport::Config {
        transport::Config::new(identity, self.incarnation, self.boot, listen, peers)
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What earlier lives have seen of the peers.
    pub(super) fn peers(&self) -> &Records {
        &self.peers
    }

    pub(super) fn files(&self) -> Arc<dyn Files> {
        Arc::clone(&self.files)
    }
}

fn write(folder: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    let (new, path) = (folder.join(NODE_NEW), folder.join(NODE));
    let mut file = File::create(&new).map_err(failed("make", &new))?;
    file.write_all(bytes).map_err(failed("write", &new))?;
    file.sync_all().map_err(failed("sync", &new))?;
    fs::rename(&new, &path).map_err(failed("rename", &new))?;
    let folder_file = File::open(folder).map_err(failed("open", folder))?;
    folder_file.sync_all().map_err(failed("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_its_incarnation_and_counts_its_boots() {
        let dir = tempfile::tempdir().unwrap();
        let first = Storage::open(dir.path()).unwrap();
        let second = Storage::open(dir.path()).unwrap();
        assert_eq!(first.incarnation(), second.incarnation());
        assert_eq!((first.boot(), second.boot()), (Boot::new(1), Boot::new(2)));
        let other = tempfile::tempdir().unwrap();
        let other = Storage::open(other.path()).unwrap();
        assert_ne!(first.incarnation(), other.incarnation());
    }

    #[test]
    fn every_flipped_bit_of_the_name_is_refused() {
        let bytes = encode(Incarnation::new([7; 16]), 3);
        assert_eq!(decode(&bytes), Some((Incarnation::new([7; 16]), 3)));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes), None, "bit {bit}");
        }
        assert_eq!(decode(&bytes[..35]), None);
    }

    #[test]
    fn a_log_without_its_nodes_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(Storage::open(dir.path()).unwrap());
        fs::remove_file(dir.path().join(NODE)).unwrap();
        let refused = Storage::open(dir.path());
        assert!(matches!(refused, Err(StorageError::Nameless { .. })));
    }
}
