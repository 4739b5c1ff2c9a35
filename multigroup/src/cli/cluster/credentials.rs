//! Looks at a node's certificate, key, CA and revocation list before the node does: what is expired,
//! or of another CA, is said at once and with the command that mends it, instead of by a node that
//! doesn't start, or that starts and finds no peer.

use transport::id::{ClusterName, PeerId};
use transport::{Credentials, NodeIdentity, TlsFiles};

use crate::causes::with_causes;
use crate::cli::failure::Failure;
use crate::cli::wall_clock;
use crate::cluster::ClusterFolder;
use crate::config::Config;

/// Makes sure that a node can use its credentials. The configuration's paths are absolute.
pub(super) fn check(folder: &ClusterFolder, config: &Config) -> Result<(), Failure> {
    let node = config.node();
    fault(config).map_or(Ok(()), |fault| {
        Err(Failure::unreachable(format!(
            "node {node} can't use its certificate: {fault}; `multigroup certs node --dir {} --node \
             {node}` makes a new one",
            folder.root().display()
        )))
    })
}

/// What a node would say.
pub(super) fn fault(config: &Config) -> Option<String> {
    let raw = config.raw();
    let cluster = raw.cluster.parse::<ClusterName>().ok()?;
    let node = u32::try_from(config.node()).ok().and_then(PeerId::new)?;
    let files = TlsFiles {
        ca: raw.tls.ca.clone(),
        cert: raw.tls.cert.clone(),
        key: raw.tls.key.clone(),
        crl: raw.tls.crl.clone(),
    };
    let identity = NodeIdentity { cluster, node };
    let loaded = Credentials::load(&files, &identity, wall_clock().into());
    loaded.err().map(|error| with_causes(&error))
}
