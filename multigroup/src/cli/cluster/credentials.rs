//! Looks at a node's certificate, key, CA and revocation list before the node does: what is expired,
//! or of another CA, is said at once and with the command that mends it, instead of by a node that
//! doesn't start, or that starts and finds no peer.

use transport::id::{ClusterName, PeerId};
use transport::io::credentials::{CredentialError, Role};
use transport::{Credentials, NodeIdentity, TlsFiles};

use crate::causes::with_causes;
use crate::cli::failure::Failure;
use crate::cli::wall_clock;
use crate::cluster::ClusterFolder;
use crate::config::Config;

/// Makes sure that a node can use its credentials. The configuration's paths are absolute.
pub(super) fn check(folder: &ClusterFolder, config: &Config) -> Result<(), Failure> {
    let node = config.node();
    let Some(fault) = loaded(config).and_then(Result::err) else {
        return Ok(());
    };
    let (dir, text) = (folder.root().display(), with_causes(&fault));
    // One that is over its time is signed anew with the next certificate.
    let is_expired = matches!(&fault, CredentialError::ListExpired { .. });
    let is_list = !is_expired && text.starts_with(&Role::Crl.to_string());
    Err(Failure::unreachable(if is_list {
        format!(
            "node {node} can't use its revocation list: {text}; bring a copy of it back: one made anew \
             with `multigroup certs revoke --dir {dir}` has none of the certificates that were \
             revoked before"
        )
    } else {
        format!(
            "node {node} can't use its certificate: {text}; `multigroup certs node --dir {dir} --node \
             {node}` makes a new one"
        )
    }))
}

/// What a node would say.
pub(super) fn fault(config: &Config) -> Option<String> {
    let fault = loaded(config)?.err()?;
    Some(with_causes(&fault))
}

/// What comes of loading them; `None` where the configuration names no node.
fn loaded(config: &Config) -> Option<Result<(), CredentialError>> {
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
    Some(loaded.map(|_| ()))
}
