//! Who may speak for a node: holds what a hello claims against the certificate that carried it and
//! against what is on record of that node (T2, safety 21). Certificates themselves are judged by
//! TLS before; their loss of validity while a session lives is decided above.
//!
//! The record of a node is what the embedder pinned, and the newest boot and sync seen of it. A
//! node that was never pinned may come back under another data directory; what stands on record is
//! its latest hello, for as long as this process lives.

use std::collections::BTreeMap;

use crate::error::PeerIncompatible;
use crate::id::{Boot, Incarnation, NodeIdentity, PeerId};
use crate::proto::hello::Claims;

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its data directory.
    pub incarnation: Incarnation,
    /// The newest boot seen.
    pub boot: Boot,
    /// The highest sync number seen.
    pub sync_number: u64,
    /// Whether only the embedder may replace the incarnation.
    pub pinned: bool,
}

/// The peers of this node and what is known of each.
#[derive(Clone, Debug)]
pub struct Authority {
    here: NodeIdentity,
    peers: BTreeMap<PeerId, Option<NodeRecord>>,
}

impl Authority {
    /// For the node `here` and its configured peers.
    #[must_use]
    pub fn new(here: NodeIdentity, peers: impl IntoIterator<Item = PeerId>) -> Self {
        Self {
            here,
            peers: peers.into_iter().map(|peer| (peer, None)).collect(),
        }
    }

    /// Puts a node on record by the embedder's word.
    pub fn pin(&mut self, peer: PeerId, record: NodeRecord) {
        self.peers.insert(
            peer,
            Some(NodeRecord {
                pinned: true,
                ..record
            }),
        );
    }

    /// What is on record of a node.
    #[must_use]
    pub fn record(&self, peer: PeerId) -> Option<NodeRecord> {
        self.peers.get(&peer).copied().flatten()
    }

    /// Whether the holder of a certificate may speak here at all.
    ///
    /// # Errors
    /// Another cluster's node, or one that is no peer.
    pub fn check_certified(&self, certified: &NodeIdentity) -> Result<(), PeerIncompatible> {
        if certified.cluster != self.here.cluster {
            return Err(PeerIncompatible::WrongCluster {
                expected: self.here.cluster.to_string(),
                got: certified.cluster.to_string(),
            });
        }
        if self.peers.contains_key(&certified.node) {
            Ok(())
        } else {
            Err(PeerIncompatible::UnknownPeer {
                here: self.here.node,
                got: certified.node,
            })
        }
    }

    /// Holds claims against the certificate and the record.
    ///
    /// # Errors
    /// The first claim that doesn't stand.
    pub fn check_claims(
        &self,
        certified: &NodeIdentity,
        claims: &Claims,
    ) -> Result<(), PeerIncompatible> {
        self.check_certified(certified)?;
        if claims.cluster != certified.cluster {
            return Err(PeerIncompatible::ClaimedCluster {
                certified: certified.cluster.clone(),
                claimed: claims.cluster.clone(),
            });
        }
        if claims.from != certified.node {
            return Err(PeerIncompatible::ClaimedNode {
                certified: certified.node,
                claimed: claims.from,
            });
        }
        let Some(record) = self.record(certified.node) else {
            return Ok(());
        };
        if record.incarnation != claims.incarnation {
            return if record.pinned {
                Err(PeerIncompatible::UnknownIncarnation {
                    known: record.incarnation,
                    got: claims.incarnation,
                })
            } else {
                Ok(())
            };
        }
        if claims.boot < record.boot {
            return Err(PeerIncompatible::StaleBoot {
                known: record.boot,
                got: claims.boot,
            });
        }
        if claims.sync_number < record.sync_number {
            return Err(PeerIncompatible::RolledBack {
                known: record.sync_number,
                got: claims.sync_number,
            });
        }
        Ok(())
    }

    /// Remembers claims that stood.
    pub fn on_accepted(&mut self, claims: &Claims) {
        let Some(slot) = self.peers.get_mut(&claims.from) else {
            return;
        };
        let pinned = slot.is_some_and(|record| record.pinned);
        *slot = Some(NodeRecord {
            incarnation: claims.incarnation,
            boot: claims.boot,
            sync_number: claims.sync_number,
            pinned,
        });
    }
}

/// What decides on claims while a hello is read: an [`Authority`], or a lock around one.
pub trait Judge {
    /// Holds claims against the certificate and the record.
    ///
    /// # Errors
    /// The first claim that doesn't stand.
    fn judge(&mut self, certified: &NodeIdentity, claims: &Claims) -> Result<(), PeerIncompatible>;

    /// Remembers claims that stood, once the rest of the hello has been agreed on too.
    fn remember(&mut self, claims: &Claims);
}

impl Judge for Authority {
    fn judge(&mut self, certified: &NodeIdentity, claims: &Claims) -> Result<(), PeerIncompatible> {
        self.check_claims(certified, claims)
    }

    fn remember(&mut self, claims: &Claims) {
        self.on_accepted(claims);
    }
}

#[cfg(test)]
mod tests;
