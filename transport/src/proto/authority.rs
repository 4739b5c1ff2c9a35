//! Who may speak for a node: holds what a hello claims against the certificate that carried it and
//! against what is on record of that node (T2, safety 21). Certificates themselves are judged by
//! TLS before; their loss of validity while a session lives is decided above.
//!
//! The record of a node is what the embedder pinned, and the newest boot and sync seen of it. Hellos
//! of one life may overtake each other and are all the same; a second life of one boot is another
//! directory; a newer boot must have all of the log that was seen. A
//! node that was never pinned may come back under another data directory; what stands on record is
//! its latest hello. The embedder may keep the records and bring them back at the next start, and
//! have the first contact with a node pin it.

use std::collections::BTreeMap;

use crate::error::PeerIncompatible;
use crate::id::{Boot, Incarnation, LifeId, NodeIdentity, PeerId};
use crate::proto::hello::Claims;

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its data directory.
    pub incarnation: Incarnation,
    /// The newest boot seen.
    pub boot: Boot,
    /// The life that this boot had; a directory that was copied while its node was stopped counts up
    /// to the same boot once more. Not known of records from before lives had numbers: then the
    /// next hello of that boot says it.
    pub life: Option<LifeId>,
    /// The highest sync number seen: the log of a newer boot may not end below it.
    pub sync_number: u64,
    /// Whether only the embedder may replace the incarnation.
    pub pinned: bool,
}

/// Which directory a node may come with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contact {
    /// Any: what stands on record is its latest, until the embedder pins one.
    #[default]
    AnyTime,
    /// The one that it first came with, until the embedder pins another (safety 21).
    FirstCounts,
}

/// The peers of this node and what is known of each.
#[derive(Clone, Debug)]
pub struct Authority {
    here: NodeIdentity,
    contact: Contact,
    peers: BTreeMap<PeerId, Option<NodeRecord>>,
}

impl Authority {
    /// For the node `here` and its configured peers.
    #[must_use]
    pub fn new(here: NodeIdentity, peers: impl IntoIterator<Item = PeerId>) -> Self {
        Self {
            here,
            contact: Contact::AnyTime,
            peers: peers.into_iter().map(|peer| (peer, None)).collect(),
        }
    }

    /// The same where the first contact with a node counts, and what earlier lives of this node had on
    /// record. Of nodes that are no peers nothing is kept.
    #[must_use]
    pub fn remembering(mut self, contact: Contact, records: &BTreeMap<PeerId, NodeRecord>) -> Self {
        self.contact = contact;
        for (peer, slot) in &mut self.peers {
            *slot = records.get(peer).copied();
        }
        self
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
        if claims.boot == record.boot {
            return match record.life {
                Some(known) if known != claims.life => Err(PeerIncompatible::OtherLife {
                    boot: record.boot,
                    known,
                    got: claims.life,
                }),
                Some(_) | None => Ok(()),
            };
        }
        let (known, got) = (record.sync_number, claims.sync_number);
        if got < known {
            return Err(PeerIncompatible::RolledBack { known, got });
        }
        Ok(())
    }

    /// Remembers claims that stood. Where the first contact counts, it pins the node.
    pub fn on_accepted(&mut self, claims: &Claims) {
        let first = self.contact == Contact::FirstCounts;
        let Some(slot) = self.peers.get_mut(&claims.from) else {
            return;
        };
        let pinned = first || slot.is_some_and(|record| record.pinned);
        let same = slot.filter(|record| record.incarnation == claims.incarnation);
        *slot = Some(NodeRecord {
            incarnation: claims.incarnation,
            boot: claims.boot,
            life: Some(claims.life),
            sync_number: same
                .map_or(0, |record| record.sync_number)
                .max(claims.sync_number),
            pinned,
        });
    }
}

impl Authority {
    /// A node has said on a session of this incarnation that its log is synced so far. Says whether
    /// that is news.
    pub fn on_synced(&mut self, peer: PeerId, incarnation: Incarnation, sync_number: u64) -> bool {
        match self.peers.get_mut(&peer) {
            Some(Some(record)) if record.incarnation == incarnation => {
                let news = sync_number > record.sync_number;
                record.sync_number = record.sync_number.max(sync_number);
                news
            }
            Some(_) | None => false,
        }
    }

    /// All that is on record.
    #[must_use]
    pub fn records(&self) -> BTreeMap<PeerId, NodeRecord> {
        let known = |(&peer, record): (&PeerId, &Option<NodeRecord>)| Some((peer, (*record)?));
        self.peers.iter().filter_map(known).collect()
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
