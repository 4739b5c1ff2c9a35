//! The numbers that name things in the host, each a type of its own so that none can stand in for
//! another. They are plain values: what may be compared with what is said on each.

use std::fmt;

use crate::limits::UNIX_MILLIS_MAX;
use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Wraps the bare number.
            #[must_use]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The bare number, for codecs and for display.
            #[must_use]
            pub const fn to_u64(self) -> u64 {
                self.0
            }

            /// The number after this one.
            ///
            /// # Panics
            /// When the number is the largest there is: no counter here ever gets there.
            #[must_use]
            pub const fn next(self) -> Self {
                match self.0.checked_add(1) {
                    Some(next) => Self(next),
                    None => panic!("a 64-bit counter ran out"),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A Raft group of this cluster.
    GroupId
}
number! {
    /// One member of one group, on one node's disk. Allocated by the group's log and never reused
    /// (safety 7): a wiped node comes back under new ones. 0 is nobody.
    ReplicaId
}
number! {
    /// A Raft term of one group.
    Term
}
number! {
    /// A position in one group's Raft log; the first entry's is 1, 0 is before all.
    Index
}
number! {
    /// A mutation of one group's part of the shared log: rises with each append, truncation, hard
    /// state, compaction and removal, and recovery orders by it alone (safety 12).
    Version
}
number! {
    /// A heartbeat round of this node to one peer.
    Round
}
number! {
    /// A proposal, as the caller of this shard names it. Unique while it is outstanding.
    ProposalId
}
number! {
    /// A linearizable read, as the caller of this shard names it.
    ReadId
}
number! {
    /// One frame handed to the transport, so that its end can be told (safety 24).
    SendId
}
number! {
    /// One life of a node process: drawn anew at each start, learnt from the transport's hello.
    Boot
}
number! {
    /// A step of one group's replica that the log makes durable; rises with each.
    StoreSeq
}

/// Milliseconds since 1970, by a client's clock or by group time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(u64);

impl UnixMillis {
    /// Wraps the bare number; one beyond the end of time is the end of time.
    #[must_use]
    pub const fn new(millis: u64) -> Self {
        if millis > UNIX_MILLIS_MAX {
            Self(UNIX_MILLIS_MAX)
        } else {
            Self(millis)
        }
    }

    /// The bare number, for codecs and for display.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// So much later, or the end of time.
    #[must_use]
    pub fn saturating_add(self, by: std::time::Duration) -> Self {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(by).min(UNIX_MILLIS_MAX))
    }

    /// So many milliseconds earlier, or the beginning of time.
    #[must_use]
    pub fn saturating_sub(self, millis: u32) -> Self {
        Self(self.0.saturating_sub(u64::from(millis)))
    }
}

impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node of this cluster. Replicas of many groups live on one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct NodeId(u32);

impl NodeId {
    /// Wraps the bare number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The bare number, for codecs and for display.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A shard of a node. Groups map to shards by the same function on every node (H4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(u16);

impl ShardId {
    /// Wraps the bare number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The bare number.
    #[must_use]
    pub const fn to_u16(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
