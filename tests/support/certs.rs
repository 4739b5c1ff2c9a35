//! A folder with a CA and the certificates of a few nodes, made by the product's own code.

use std::path::{Path, PathBuf};
use std::time::Duration;

use multigroup::certificates::{Authority, Validity};
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
        let dir = TempDir::new().expect("a temporary folder");
        let name = cluster.parse().expect("a cluster name");
        let (authority, pair) = Authority::make(&name, days(10)).expect("a CA");
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

fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).expect("a key file's mode");
}
