//! A folder with a CA and the certificates of a few nodes, made by the product's own code.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use multigroup::certificates::{Authority, PemPair, Revocation, RevocationList, Validity};
use tempfile::TempDir;
use transport::io::clock;
use transport::{Credentials, NodeIdentity, PeerId, TlsFiles};

/// A CA and what it issued, in a folder that goes with it.
#[derive(Debug)]
pub struct Fleet {
    dir: TempDir,
    cluster: String,
    authority: Authority,
}

/// The node with this number.
///
/// # Panics
/// For 0.
#[must_use]
pub fn node(number: u32) -> PeerId {
    PeerId::new(number).expect("a node number above 0")
}

/// A validity from an hour ago to so many days from now.
#[must_use]
pub fn days(days: u64) -> Validity {
    let now = clock::wall();
    Validity {
        not_before: (now - Duration::from_secs(3600)).into(),
        not_after: (now + Duration::from_secs(days * 86_400)).into(),
    }
}

impl Fleet {
    /// A new CA for `cluster`.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        Self::lasting(cluster, Duration::from_secs(10 * 86_400))
    }

    /// The same, whose CA is good for so long from now.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn lasting(cluster: &str, lasts: Duration) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let name = cluster.parse().expect("a cluster name");
        let validity = Validity {
            not_after: (clock::wall() + lasts).into(),
            ..days(1)
        };
        let (authority, pair) = Authority::make(&name, validity).expect("a CA");
        std::fs::write(dir.path().join("ca.pem"), &pair.certificate).expect("the CA's file");
        std::fs::write(dir.path().join("ca-key.pem"), &pair.key).expect("the CA key's file");
        Self {
            dir,
            cluster: cluster.to_owned(),
            authority,
        }
    }

    /// A file of the fleet.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Who a node of the fleet is.
    ///
    /// # Panics
    /// For node 0.
    #[must_use]
    pub fn identity(&self, number: u32) -> NodeIdentity {
        let cluster = self.cluster.parse().expect("a cluster name");
        NodeIdentity {
            cluster,
            node: node(number),
        }
    }

    /// The files of a node, its certificate issued now.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn files(&self, number: u32) -> TlsFiles {
        let issued = self.authority.issue_node(node(number), &[], days(1));
        let pair = issued.expect("a certificate");
        self.store(&format!("node-{number}"), &pair.certificate, &pair.key)
    }

    /// The files of a node that has a folder of its own: the CA, its empty list, a leaf and its key.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn own_files(&self, number: u32) -> TlsFiles {
        self.own_files_lasting(number, Duration::from_secs(86_400))
    }

    /// The same, with a leaf that is good for so long from now.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn own_files_lasting(&self, number: u32, lasts: Duration) -> TlsFiles {
        let folder = self.path(&format!("own-{number}"));
        std::fs::create_dir_all(&folder).expect("a node's folder");
        let file = |name: &str| folder.join(name);
        let files = TlsFiles {
            ca: file("ca.pem"),
            cert: file("cert.pem"),
            key: file("key.pem"),
            crl: Some(file("crl.pem")),
        };
        write(&files.ca, &self.ca());
        self.reissue(&files, number, lasts);
        self.publish(&files, &[]);
        files
    }

    /// The CA's certificate.
    #[must_use]
    pub fn ca(&self) -> String {
        self.authority.certificate().to_owned()
    }

    /// A leaf of the node's and its key, good for so long from now.
    ///
    /// # Panics
    /// When the crypto library fails.
    #[must_use]
    pub fn leaf(&self, number: u32, lasts: Duration) -> PemPair {
        let now = clock::wall();
        let validity = Validity {
            not_before: (now - Duration::from_secs(60)).into(),
            not_after: (now + lasts).into(),
        };
        let issued = self.authority.issue_node(node(number), &[], validity);
        issued.expect("a certificate")
    }

    /// Puts a new leaf and its key into a node's files.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    pub fn reissue(&self, files: &TlsFiles, number: u32, lasts: Duration) {
        let pair = self.leaf(number, lasts);
        write(&files.key, &pair.key);
        restrict(&files.key);
        write(&files.cert, &pair.certificate);
    }

    /// The list of this CA that revokes the leaves which stand in these files now.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn list(&self, revoked: &[&TlsFiles]) -> String {
        self.list_lasting(revoked, Duration::from_secs(86_400))
    }

    /// The same, due to be replaced after so long.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn list_lasting(&self, revoked: &[&TlsFiles], lasts: Duration) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let now = clock::wall();
        let revoked = revoked.iter().map(|files| Revocation {
            serial: serial_of(&files.cert),
            since: now.into(),
        });
        let list = RevocationList {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            next_update: (now + lasts).into(),
            revoked: revoked.collect(),
        };
        let issued = now - Duration::from_secs(60);
        self.authority
            .make_crl(&list, issued.into())
            .expect("a list")
    }

    /// Puts such a list where a node finds it.
    ///
    /// # Panics
    /// When the disk or the crypto library fails, or the node goes without lists.
    pub fn publish(&self, to: &TlsFiles, revoked: &[&TlsFiles]) {
        write(to.crl.as_ref().expect("a list's file"), &self.list(revoked));
    }

    /// Loads a node's files as a node does at its start.
    ///
    /// # Panics
    /// When they can't be used.
    #[must_use]
    pub fn load(&self, files: &TlsFiles, number: u32) -> Credentials {
        Credentials::load(files, &self.identity(number), clock::wall()).expect("credentials")
    }

    /// The files of a leaf that this CA signed with these names, whatever they are: what a careless
    /// operator of the CA could have issued.
    ///
    /// # Panics
    /// When the disk or the crypto library fails.
    #[must_use]
    pub fn files_naming(&self, uris: &[&str]) -> TlsFiles {
        let read = |name| std::fs::read_to_string(self.path(name)).expect("a file of the CA");
        let ca_key = rcgen::KeyPair::from_pem(&read("ca-key.pem")).expect("the CA's key");
        let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).expect("the CA");
        let mut params = rcgen::CertificateParams::default();
        let uri = |uri: &&str| rcgen::SanType::URI((*uri).try_into().expect("an ASCII URI"));
        params.subject_alt_names = uris.iter().map(uri).collect();
        params.not_before = days(1).not_before;
        params.not_after = days(1).not_after;
        params.use_authority_key_identifier_extension = true;
        let key = rcgen::KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &issuer).expect("a certificate");
        self.store("careless", &leaf.pem(), &key.serialize_pem())
    }

    fn store(&self, name: &str, certificate: &str, key: &str) -> TlsFiles {
        let file = |what: &str, content: &str| {
            let path = self.path(&format!("{name}-{what}.pem"));
            std::fs::write(&path, content).expect("a node's file");
            restrict(&path);
            path
        };
        let (cert, key) = (file("cert", certificate), file("key", key));
        TlsFiles {
            ca: self.path("ca.pem"),
            cert,
            key,
            crl: None,
        }
    }

    /// The credentials of a node, issued and loaded now.
    ///
    /// # Panics
    /// When they can't be.
    #[must_use]
    pub fn credentials(&self, number: u32) -> Credentials {
        let files = self.files(number);
        Credentials::load(&files, &self.identity(number), clock::wall()).expect("credentials")
    }
}

/// Replaces a file whole, as a careful operator's tool does.
///
/// # Panics
/// When the disk fails.
pub fn write(path: &Path, content: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).expect("a new file");
    std::fs::rename(&new, path).expect("the file's place");
}

fn serial_of(cert: &Path) -> Vec<u8> {
    let text = std::fs::read(cert).expect("a certificate's file");
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text).expect("PEM");
    pem.parse_x509()
        .expect("a certificate")
        .raw_serial()
        .to_vec()
}

fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).expect("a key file's mode");
}
