//! A manifest: where all groups stood once a node had read so many objects of each node. It is made
//! from objects and can be made again; whoever has one need not read what it covers. It is written
//! only when nothing stands beyond a gap, so positions are all that there is to say.
//!
//! Bytes: magic 8, version u32, nodes u32, groups u32, of each node its number and the last
//! sequence that is covered, of each group its number, index and term (u64 each), CRC-32 of all.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use raft_host::id::{GroupId, Index, Term};

use super::catalog::{Catalog, Position};
use super::error::ObjectFault;
use super::object::NUMBER_MAX;
use crate::limits::{ARCHIVE_NODES_MAX, GROUPS_MAX};

const MAGIC: [u8; 8] = *b"mgmani\r\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 20;

/// What a manifest says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The last object of each node that is covered.
    pub(super) covered: BTreeMap<u64, u64>,
    pub(super) positions: BTreeMap<GroupId, Position>,
}

impl Manifest {
    /// `None` while something stands beyond a gap, or a group stands still.
    pub(super) fn of(catalog: &Catalog, covered: BTreeMap<u64, u64>) -> Option<Self> {
        let whole = catalog.ahead().next().is_none() && catalog.forks().next().is_none();
        whole.then(|| Self {
            covered,
            positions: catalog.positions().collect(),
        })
    }

    /// How much it saves reading.
    pub(super) fn objects(&self) -> u64 {
        self.covered
            .values()
            .fold(0, |sum, n| sum.saturating_add(*n))
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(&MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(u32::try_from(self.covered.len()).unwrap_or(u32::MAX));
        out.put_u32_le(u32::try_from(self.positions.len()).unwrap_or(u32::MAX));
        for (node, sequence) in &self.covered {
            out.put_u64_le(*node);
            out.put_u64_le(*sequence);
        }
        for (group, position) in &self.positions {
            out.put_u64_le(group.to_u64());
            out.put_u64_le(position.index.to_u64());
            out.put_u64_le(position.term.to_u64());
        }
        let crc = crc32fast::hash(&out);
        out.put_u32_le(crc);
        out.freeze()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ObjectFault> {
        let length = |expected: usize| ObjectFault::Length {
            expected: expected as u64,
            got: bytes.len() as u64,
        };
        let Some((mut head, _)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(length(HEADER_BYTES));
        };
        if head[..8] != MAGIC {
            return Err(ObjectFault::Magic);
        }
        head.advance(8);
        let version = head.get_u32_le();
        let (nodes, groups) = (head.get_u32_le(), head.get_u32_le());
        if version != VERSION {
            let (expected, got) = (VERSION, version);
            return Err(ObjectFault::Version { expected, got });
        }
        if nodes > ARCHIVE_NODES_MAX || groups > GROUPS_MAX {
            return Err(ObjectFault::Impossible { part: "header" });
        }
        let end = HEADER_BYTES + nodes as usize * 16 + groups as usize * 24;
        if bytes.len() != end + 4 {
            return Err(length(end + 4));
        }
        let (mut body, mut crc) = bytes.split_at(end);
        if crc.get_u32_le() != crc32fast::hash(body) {
            return Err(ObjectFault::Checksum { part: "manifest" });
        }
        body.advance(HEADER_BYTES);
        let mut read = Self::default();
        for _ in 0..nodes {
            read.covered.insert(body.get_u64_le(), body.get_u64_le());
        }
        for _ in 0..groups {
            let group = GroupId::new(body.get_u64_le());
            let (index, term) = (body.get_u64_le(), body.get_u64_le());
            if index >= NUMBER_MAX || term >= NUMBER_MAX {
                return Err(ObjectFault::Impossible { part: "positions" });
            }
            let (index, term) = (Index::new(index), Term::new(term));
            read.positions.insert(group, Position { index, term });
        }
        if read.covered.len() != nodes as usize || read.positions.len() != groups as usize {
            return Err(ObjectFault::Impossible { part: "positions" });
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let position = |index, term| Position {
            index: Index::new(index),
            term: Term::new(term),
        };
        Manifest {
            covered: BTreeMap::from([(1, 9), (3, 70)]),
            positions: BTreeMap::from([
                (GroupId::new(0), position(12, 2)),
                (GroupId::new(1499), position(1, 1)),
            ]),
        }
    }

    #[test]
    fn a_manifest_reads_as_it_was_written() {
        let manifest = manifest();
        assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), manifest);
        assert_eq!(manifest.objects(), 79);
        let none = Manifest::default();
        assert_eq!(Manifest::decode(&none.encode()).unwrap(), none);
    }

    #[test]
    fn no_flipped_bit_and_no_cut_is_read_as_a_manifest() {
        let whole = manifest().encode();
        for at in 0..whole.len() {
            assert!(Manifest::decode(&whole[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = whole.to_vec();
                bytes[at] ^= 1 << bit;
                assert!(Manifest::decode(&bytes).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
