//! What things are called on a link: nodes, clusters, lanes, sessions, sequences, incarnations.
//! Each is a type of its own, so that none can stand in for another across a module edge.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::sync::Arc;

use crate::limits::{CLUSTER_NAME_BYTES_MAX, NODE_URI_BYTES_MAX};

/// A node of the cluster, as its certificate and the configuration number it; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(NonZeroU32);

impl PeerId {
    /// The node with this number, or `None` for 0, which names nobody.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The bare number, for codecs and configuration.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is no name, number or identity of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// A node number that isn't one.
    #[error("{got:?} is not a node number, which is a decimal from 1 to 4294967295")]
    NotANodeNumber {
        /// The text.
        got: String,
    },
    /// A cluster name with no characters, too many, or the wrong ones.
    #[error(
        "{got:?} is not a cluster name, which is 1 to {CLUSTER_NAME_BYTES_MAX} characters of \
         a-z, A-Z, 0-9, '-', '_' and '.'"
    )]
    NotAClusterName {
        /// The text, shortened.
        got: String,
    },
    /// A URI that doesn't name a node.
    #[error("{got:?} does not name a node, which reads mraft://CLUSTER/node/NUMBER")]
    NotANodeUri {
        /// The text, shortened.
        got: String,
    },
}

/// Keeps a foreign text fit for one line of a log.
fn shortened(text: &str) -> String {
    text.chars().take(NODE_URI_BYTES_MAX).collect()
}

impl FromStr for PeerId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        let number = if canonical { text.parse().ok() } else { None };
        number
            .and_then(Self::new)
            .ok_or_else(|| IdError::NotANodeNumber {
                got: shortened(text),
            })
    }
}

/// The name of a cluster: 1 to 63 of `a-z A-Z 0-9 - _ .`, so that it fits a URI unescaped. Two
/// clusters with one CA are told apart by it alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    /// The name's characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let fits = (1..=CLUSTER_NAME_BYTES_MAX).contains(&text.len());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if fits && text.bytes().all(plain) {
            Ok(Self(text.into()))
        } else {
            Err(IdError::NotAClusterName {
                got: shortened(text),
            })
        }
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who a certificate speaks for: one node of one cluster, written `mraft://CLUSTER/node/7` in the
/// leaf's one URI name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeIdentity {
    /// The cluster.
    pub cluster: ClusterName,
    /// The node in it.
    pub node: PeerId,
}

impl NodeIdentity {
    /// This node of this cluster.
    #[must_use]
    pub const fn new(cluster: ClusterName, node: PeerId) -> Self {
        Self { cluster, node }
    }
}

impl FromStr for NodeIdentity {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parts = || {
            if text.len() > NODE_URI_BYTES_MAX {
                return None;
            }
            let (cluster, node) = text.strip_prefix("mraft://")?.split_once("/node/")?;
            Some(Self {
                cluster: cluster.parse().ok()?,
                node: node.parse().ok()?,
            })
        };
        parts().ok_or_else(|| IdError::NotANodeUri {
            got: shortened(text),
        })
    }
}

impl fmt::Display for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mraft://{}/node/{}", self.cluster, self.node)
    }
}

/// One of the two classes of traffic of a link; each has its own TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Heartbeats, acks, votes: small, urgent, windowed in frames.
    Control,
    /// Appends, snapshot chunks, forwarded proposals: large, windowed in bytes.
    Bulk,
}

impl Lane {
    /// Both lanes, in the order of their urgency.
    pub const ALL: [Self; 2] = [Self::Control, Self::Bulk];
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control",
            Self::Bulk => "bulk",
        })
    }
}

/// One TLS connection after its hello: minted by the acceptor, unique for as long as anyone looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u64);

impl SessionId {
    /// The session with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number, for codecs.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A data directory's identity: 128 random bits minted once, when the directory is made. A wiped
/// node comes back under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation([u8; 16]);

impl Incarnation {
    /// The incarnation with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bare bytes, for codecs.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// How often a data directory has been started; rises by one each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boot(u64);

impl Boot {
    /// The boot with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number, for codecs.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a node: a number drawn at random at each start of its process, never 0. Of two lives
/// under one incarnation and boot, one runs on a copied or restored data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LifeId(NonZeroU64);

impl LifeId {
    /// The life with this number, or `None` for 0, which names none.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The life with these random bits; of the one pattern that names none, another.
    #[must_use]
    pub const fn from_random(bits: u64) -> Self {
        match NonZeroU64::new(bits) {
            Some(number) => Self(number),
            None => Self(NonZeroU64::MAX),
        }
    }

    /// A new life, from the randomness that the process was given.
    #[must_use]
    pub fn draw() -> Self {
        Self::from_random(RandomState::new().hash_one(std::process::id()))
    }

    /// The bare number, for codecs.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for LifeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A frame's, or a reply's, place in its session and direction; the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// The first of a session and direction.
    pub const FIRST: Self = Self(1);

    /// The place with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number, for codecs.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// The next place, or `None` at the end of the numbers, where the session must end: a
    /// sequence never wraps, since it is the nonce of the tag (safety 24).
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(next) => Some(Self(next)),
            None => None,
        }
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A sender's own mark on what it sends, opaque here: all unfinished items under one label can be
/// revoked together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u64);

impl Label {
    /// No label: what carries it is never revoked by label.
    pub const NONE: Self = Self(0);

    /// The label with this number; 0 is [`Label::NONE`].
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_uri_reads_back_as_it_was_written() {
        let identity: NodeIdentity = "mraft://dev-1.a/node/7".parse().unwrap();
        assert_eq!(identity.cluster.as_str(), "dev-1.a");
        assert_eq!(identity.node.to_u32(), 7);
        assert_eq!(identity.to_string(), "mraft://dev-1.a/node/7");
    }

    #[test]
    fn uris_that_name_no_node_are_refused() {
        let long = format!("mraft://{}/node/1", "a".repeat(64));
        for text in [
            "",
            "mraft://dev/node/0",
            "mraft://dev/node/07",
            "mraft://dev/node/+7",
            "mraft://dev/node/4294967296",
            "mraft://dev/node/",
            "mraft:///node/1",
            "mraft://d v/node/1",
            "mraft://dev/node/1/",
            "https://dev/node/1",
            "mraft://dev/1",
            &long,
        ] {
            assert!(text.parse::<NodeIdentity>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_last_sequence_has_no_next() {
        assert_eq!(Sequence::new(u64::MAX).next(), None);
        assert_eq!(Sequence::FIRST.next(), Some(Sequence::new(2)));
    }
}
