//! Certificates for the nodes of one bench, made by the product's own code, in a folder that is
//! removed with them.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use multigroup::certificates::{Authority, Validity};
use tempfile::TempDir;
use transport::io::clock;
use transport::{Credentials, NodeIdentity, PeerId, TlsFiles};

use crate::Fault;

const CLUSTER: &str = "bench";
const HOUR: Duration = Duration::from_secs(3600);

/// A CA and a folder for what it issues.
#[derive(Debug)]
pub struct Fleet {
    folder: TempDir,
    authority: Authority,
}

/// Good since an hour ago, as clocks differ, and for so many hours more.
fn hours(hours: u32) -> Validity {
    let now = clock::wall();
    Validity {
        not_before: (now - HOUR).into(),
        not_after: (now + hours * HOUR).into(),
    }
}

impl Fleet {
    /// A new CA.
    ///
    /// # Errors
    /// The disk or the crypto library failed.
    pub fn new() -> Result<Self, Fault> {
        let folder = TempDir::new()?;
        let (authority, pair) = Authority::make(&CLUSTER.parse()?, hours(48))?;
        std::fs::write(folder.path().join("ca.pem"), pair.certificate)?;
        Ok(Self { folder, authority })
    }

    /// Who a node is.
    ///
    /// # Errors
    /// 0 is no node.
    pub fn identity(number: u32) -> Result<NodeIdentity, Fault> {
        Ok(NodeIdentity {
            cluster: CLUSTER.parse()?,
            node: node(number)?,
        })
    }

    /// A node's credentials, issued now.
    ///
    /// # Errors
    /// The disk or the crypto library failed.
    pub fn credentials(&self, number: u32) -> Result<Credentials, Fault> {
        let pair = self.authority.issue_node(node(number)?, &[], hours(24))?;
        let file = |what: &str, content: &str| -> std::io::Result<PathBuf> {
            let path = self.folder.path().join(format!("node-{number}-{what}.pem"));
            std::fs::write(&path, content)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            Ok(path)
        };
        let files = TlsFiles {
            ca: self.folder.path().join("ca.pem"),
            cert: file("cert", &pair.certificate)?,
            key: file("key", &pair.key)?,
            crl: None,
        };
        let identity = Self::identity(number)?;
        Ok(Credentials::load(&files, &identity, clock::wall())?)
    }
}

/// The node with this number.
///
/// # Errors
/// 0 is no node.
pub fn node(number: u32) -> Result<PeerId, Fault> {
    PeerId::new(number).ok_or_else(|| format!("{number} is no node number").into())
}
