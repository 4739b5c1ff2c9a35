//! Which group a key belongs to: CRC16 of the key, or of its tag, modulo the number of groups. The
//! hash and the tag rule are those of Redis Cluster, so client libraries that know `{tags}` work.
//!
//! What a group holds and who leads it are others' business. The map is part of the cluster's
//! fingerprint: two nodes with different numbers of groups would split the data, so nothing here
//! may change for a running cluster.

use std::num::NonZeroU32;

use raft_host::id::GroupId;

use crate::limits::GROUPS_MAX;

/// CRC-16/XMODEM: polynomial 0x1021, start 0, no reflection.
const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

static CRC16_TABLE: [u16; 256] = crc16_table();

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ CRC16_TABLE[usize::from(high ^ byte)]
    })
}

/// The part of a key that is hashed: what stands between the first `{` and the next `}`, unless
/// that is nothing; else the whole key.
fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else {
        return key;
    };
    let rest = &key[open + 1..];
    match rest.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &rest[..close],
    }
}

/// The map from keys to the groups `0..groups`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpace {
    groups: NonZeroU32,
}

impl KeySpace {
    /// The key space of so many groups; `None` for none or more than [`GROUPS_MAX`].
    #[must_use]
    pub fn new(groups: u32) -> Option<Self> {
        let groups = NonZeroU32::new(groups).filter(|groups| groups.get() <= GROUPS_MAX)?;
        Some(Self { groups })
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(self) -> u32 {
        self.groups.get()
    }

    /// The group of a key.
    #[must_use]
    pub fn group_of(self, key: &[u8]) -> GroupId {
        GroupId::new(u64::from(u32::from(crc16(tag(key))) % self.groups))
    }

    /// All groups, in order.
    pub fn all(self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.groups.get()).map(|group| GroupId::new(u64::from(group)))
    }

    /// A tag, without its braces, whose keys all map to `group`; `None` if there is no such group.
    /// Costs about as many hashes as there are groups: for all of them at once use [`Self::tags`].
    #[must_use]
    pub fn tag_for(self, group: GroupId) -> Option<String> {
        if group.to_u64() >= u64::from(self.groups.get()) {
            return None;
        }
        (0u32..)
            .map(|number| number.to_string())
            .find(|tag| self.group_of(tag.as_bytes()) == group)
    }

    /// One tag for each group, by group number: the same that [`Self::tag_for`] gives.
    #[must_use]
    pub fn tags(self) -> Vec<String> {
        let mut tags = vec![None; self.groups.get() as usize];
        let mut missing = tags.len();
        let mut number = 0u32;
        while missing > 0 {
            let text = number.to_string();
            let group = u32::from(crc16(text.as_bytes())) % self.groups;
            let slot = &mut tags[group as usize];
            if slot.is_none() {
                *slot = Some(text);
                missing -= 1;
            }
            number += 1;
        }
        tags.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_agrees_with_published_vectors() {
        // The check value of CRC-16/XMODEM, and slots of Redis Cluster (modulo 16384).
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
        assert_eq!(crc16(b"foo") % 16384, 12182);
        assert_eq!(crc16(b"bar") % 16384, 5061);
        assert_eq!(crc16(b"hello") % 16384, 866);
    }

    #[test]
    fn only_a_tag_with_content_is_hashed_alone() {
        assert_eq!(tag(b"{user1000}.following"), b"user1000");
        assert_eq!(tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(tag(b"foo{bar"), b"foo{bar");
        assert_eq!(tag(b"foo}bar{"), b"foo}bar{");
        assert_eq!(tag(b""), b"");
    }

    #[test]
    fn keys_of_one_tag_share_a_group() {
        let space = KeySpace::new(1500).unwrap();
        assert_eq!(space.group_of(b"{a}:1"), space.group_of(b"x{a}y"));
        assert_eq!(space.group_of(b"a"), space.group_of(b"{a}:2"));
    }

    #[test]
    fn every_group_has_a_tag_that_maps_to_it() {
        for groups in [1, 2, 150, 1500, GROUPS_MAX] {
            let space = KeySpace::new(groups).unwrap();
            let tags = space.tags();
            assert_eq!(tags.len(), groups as usize);
            for (group, tag) in space.all().zip(&tags) {
                assert_eq!(
                    space.group_of(format!("counter:{{{tag}}}").as_bytes()),
                    group
                );
            }
        }
        let space = KeySpace::new(150).unwrap();
        let tags = space.tags();
        assert!(
            space
                .all()
                .all(|g| space.tag_for(g) == Some(tags[g.to_u64() as usize].clone()))
        );
        assert_eq!(space.tag_for(GroupId::new(150)), None);
    }

    #[test]
    fn no_groups_and_too_many_groups_are_no_key_space() {
        assert_eq!(KeySpace::new(0), None);
        assert_eq!(KeySpace::new(GROUPS_MAX + 1), None);
    }
}
