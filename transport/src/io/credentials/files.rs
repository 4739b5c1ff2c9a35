//! The credential files: found, bounded, read as one consistent set, and taken out of their PEM.
//! What stands in them is `credentials`' business. A set is consistent if no file changed between
//! the first byte read and the last, so a renewal in progress is never seen by half.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use super::error::{CredentialError, Role};
use crate::limits::{CREDENTIAL_FILE_BYTES_MAX, CREDENTIAL_READS_MAX};

/// Where a node's credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA certificates that peers' chains must lead to; several while a CA is replaced.
    pub ca: PathBuf,
    /// The node's own chain, leaf first.
    pub cert: PathBuf,
    /// The leaf's private key.
    pub key: PathBuf,
    /// The revocation lists, one for each CA; `None` for no revocation check.
    pub crl: Option<PathBuf>,
}

/// What the file system says of a set of credential files; two stamps differ when a file was
/// replaced, rewritten, added or removed in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesStamp([Option<FileStamp>; 4]);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStamp {
    bytes: u64,
    modified: Option<SystemTime>,
    place: (u64, u64),
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        #[cfg(unix)]
        let place = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let place = (0, 0);
        Some(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            place,
        })
    }
}

impl TlsFiles {
    /// These files, and no revocation list.
    #[must_use]
    pub fn new(ca: PathBuf, cert: PathBuf, key: PathBuf) -> Self {
        Self {
            ca,
            cert,
            key,
            crl: None,
        }
    }

    /// The present stamp of the set, to be compared with an earlier one. It follows symbolic links
    /// and reads no contents.
    #[must_use]
    pub fn stamp(&self) -> FilesStamp {
        FilesStamp([
            FileStamp::of(&self.ca),
            FileStamp::of(&self.cert),
            FileStamp::of(&self.key),
            self.crl.as_deref().and_then(FileStamp::of),
        ])
    }

    /// Reads all files until none changed meanwhile.
    pub(super) fn read(&self) -> Result<(PemSet, FilesStamp), CredentialError> {
        let mut before = self.stamp();
        for _ in 0..CREDENTIAL_READS_MAX {
            let set = self.read_once();
            let after = self.stamp();
            if before == after {
                return Ok((set?, after));
            }
            before = after;
        }
        Err(CredentialError::KeepsChanging {
            cert: self.cert.clone(),
        })
    }

    fn read_once(&self) -> Result<PemSet, CredentialError> {
        let set = PemSet {
            authorities: blocks(Role::Ca, &self.ca)?,
            chain: blocks(Role::Cert, &self.cert)?,
            key: private_key(&self.key)?,
            lists: match &self.crl {
                Some(crl) => Some(blocks(Role::Crl, crl)?),
                None => None,
            },
        };
        warn_of_open_key(&self.key);
        Ok(set)
    }
}

/// What stands in the files, out of its PEM but not yet understood.
pub(super) struct PemSet {
    pub(super) authorities: Vec<CertificateDer<'static>>,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) lists: Option<Vec<CertificateRevocationListDer<'static>>>,
}

fn unreadable(role: Role, file: &Path, error: &io::Error) -> CredentialError {
    let file = file.to_owned();
    if error.kind() == io::ErrorKind::NotFound {
        CredentialError::Missing { role, file }
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        CredentialError::Denied { role, file }
    } else {
        let kind = error.kind();
        CredentialError::Unreadable { role, file, kind }
    }
}

fn read_bounded(role: Role, file: &Path) -> Result<Vec<u8>, CredentialError> {
    let failed = |error: io::Error| unreadable(role, file, &error);
    // Looked at before it is opened: opening a pipe would wait for its writer.
    if !fs::metadata(file).map_err(failed)?.is_file() {
        return Err(CredentialError::NotAFile {
            role,
            file: file.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    let mut bounded = opened.take(CREDENTIAL_FILE_BYTES_MAX + 1);
    bounded.read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > CREDENTIAL_FILE_BYTES_MAX {
        return Err(CredentialError::TooLong {
            role,
            file: file.to_owned(),
            bytes_max: CREDENTIAL_FILE_BYTES_MAX,
        });
    }
    Ok(bytes)
}

/// The labels of the PEM blocks that begin in these bytes.
fn labels(bytes: &[u8]) -> Vec<String> {
    let lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r'));
    let label = |line: &[u8]| {
        let label = line.strip_prefix(b"-----BEGIN ")?;
        let end = label.windows(5).position(|dashes| dashes == b"-----")?;
        Some(super::certificate::printable(&String::from_utf8_lossy(
            &label[..end],
        )))
    };
    lines.filter_map(label).collect()
}

/// Says why no block of the right kind was found.
fn wrong_kind(role: Role, file: &Path, bytes: &[u8]) -> CredentialError {
    let file = file.to_owned();
    match labels(bytes).into_iter().next() {
        None => CredentialError::NotPem { role, file },
        Some(got) => CredentialError::WrongPem { role, file, got },
    }
}

/// All blocks of one kind in a file; at least one, and none of another kind.
fn blocks<T: PemObject>(role: Role, file: &Path) -> Result<Vec<T>, CredentialError> {
    let bytes = read_bounded(role, file)?;
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|_| CredentialError::BrokenPem {
        role,
        file: file.to_owned(),
    })?;
    let foreign = labels(&bytes)
        .into_iter()
        .find(|label| label != role.label());
    match foreign {
        _ if found.is_empty() => Err(wrong_kind(role, file, &bytes)),
        Some(got) => Err(CredentialError::WrongPem {
            role,
            file: file.to_owned(),
            got,
        }),
        None => Ok(found),
    }
}

/// The one private key of a file. `EC PARAMETERS` and certificates may stand beside it, since the
/// usual tools write both.
fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, CredentialError> {
    let role = Role::Key;
    let bytes = read_bounded(role, file)?;
    let labels = labels(&bytes);
    let encrypted_header = bytes
        .windows(20)
        .any(|text| text == b"Proc-Type: 4,ENCRYPT");
    if encrypted_header || labels.iter().any(|label| label == "ENCRYPTED PRIVATE KEY") {
        return Err(CredentialError::EncryptedKey {
            file: file.to_owned(),
        });
    }
    let keys: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(&bytes).collect();
    let mut keys = keys.map_err(|_| CredentialError::BrokenPem {
        role,
        file: file.to_owned(),
    })?;
    match (keys.pop(), keys.len()) {
        (Some(key), 0) => Ok(key),
        (Some(_), others) => Err(CredentialError::ManyKeys {
            file: file.to_owned(),
            got: others + 1,
        }),
        (None, _) => Err(wrong_kind(role, file, &bytes)),
    }
}

fn warn_of_open_key(key: &Path) {
    if let Some(mode) = open_mode(key) {
        tracing::warn!(
            file = %key.display(),
            mode = format_args!("{mode:04o}"),
            "private key is open to other users of this machine; set its mode to 0600"
        );
    }
}

/// The mode of a key file that others than its owner can use.
#[cfg(unix)]
pub(super) fn open_mode(key: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(key).ok()?.permissions().mode() & 0o7777;
    (mode & 0o077 != 0).then_some(mode)
}

#[cfg(not(unix))]
pub(super) fn open_mode(_key: &Path) -> Option<u32> {
    None
}
