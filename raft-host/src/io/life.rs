//! The first thing that a node says on each control session it dialled, and the answer to it: which
//! life of the node this is, and how many shards it has. Both sides know by it that what they hear
//! and what they say concerns the same two lives (safety 8: a round belongs to both boots), and
//! that groups map to the same shards (H4).
//!
//! ```text
//! | 0xff | 1 | life u64 | shards u16 |
//! ```
//!
//! The first byte can't be that of a shard's body, which is the wire's version.

use bytes::{BufMut, Bytes, BytesMut};

use crate::id::Boot;
use crate::limits::NUMBER_MAX;
use crate::proto::wire::WIRE_VERSION;

const MARK: u8 = 0xff;
const _: () = assert!(MARK != WIRE_VERSION);
const VERSION: u8 = 1;

/// What a node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// Drawn anew at each start.
    pub(super) boot: Boot,
    /// How many shards its groups are spread over.
    pub(super) shards: u16,
}

/// Whether an item is one of these, well formed or not.
pub(super) fn is_life(body: &[u8]) -> bool {
    body.first() == Some(&MARK)
}

impl Life {
    pub(super) fn encode(self) -> Bytes {
        let mut out = BytesMut::with_capacity(12);
        out.put_u8(MARK);
        out.put_u8(VERSION);
        out.put_u64(self.boot.to_u64());
        out.put_u16(self.shards);
        out.freeze()
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let [MARK, VERSION, life @ ..] = body else {
            return None;
        };
        let (boot, shards) = life.split_first_chunk::<8>()?;
        let boot = u64::from_be_bytes(*boot);
        let shards = u16::from_be_bytes(shards.try_into().ok()?);
        ((1..NUMBER_MAX).contains(&boot) && shards > 0).then_some(Self {
            boot: Boot::new(boot),
            shards,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_and_everything_else_is_refused() {
        let life = Life {
            boot: Boot::new(77),
            shards: 2,
        };
        let body = life.encode();
        assert!(is_life(&body));
        assert_eq!(Life::decode(&body), Some(life));
        for length in 0..body.len() {
            assert_eq!(Life::decode(&body[..length]), None);
        }
        let longer = [&body[..], &[0]].concat();
        assert_eq!(Life::decode(&longer), None);
        let none = Life {
            boot: Boot::new(0),
            shards: 2,
        };
        assert_eq!(Life::decode(&none.encode()), None);
    }
}
