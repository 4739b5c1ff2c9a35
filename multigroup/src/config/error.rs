//! What can be wrong with a configuration: one name for each fault, with the keys and the values
//! that don't go together.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::units::{ByteSize, Span};

/// A value of the file, for an error to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A plain number.
    Number(u64),
    /// A duration.
    Span(Span),
    /// A size.
    Bytes(ByteSize),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Span(span) => span.fmt(f),
            Self::Bytes(size) => size.fmt(f),
        }
    }
}

/// A fault of a configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read {}; is the path right?", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It isn't TOML, or a key is missing or of the wrong type.
    #[error("{text}; correct it")]
    Toml {
        /// Where and why, in one line.
        text: String,
    },
    /// A key that doesn't exist.
    #[error("unknown key `{key}`; {}", meant(.nearest.as_deref()))]
    UnknownKey {
        /// The key.
        key: String,
        /// The existing one that is most like it, if one is.
        nearest: Option<&'static str>,
    },
    /// Not of the form `KEY=VALUE`.
    #[error("`{text}` is not of the form KEY=VALUE")]
    NotAnAssignment {
        /// What was given.
        text: String,
    },
    /// A value outside of its range.
    #[error("`{key}` is {got}, but must be {min} to {max}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        got: Value,
        /// The least.
        min: Value,
        /// The most.
        max: Value,
    },
    /// A word that the key doesn't know.
    #[error("`{key}` is `{got}`, but must be {expected}")]
    Word {
        /// The key.
        key: &'static str,
        /// Its value.
        got: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Not an address.
    #[error("`{key}` is `{got}`, but must be HOST:PORT")]
    Address {
        /// The key.
        key: String,
        /// Its value.
        got: String,
    },
    /// A key of `[peers]` that is no node's number.
    #[error("`peers.{got}`: nodes are numbered from 1")]
    PeerId {
        /// The key.
        got: String,
    },
    /// The node isn't one of its cluster.
    #[error("`node` is {node}, but `peers` names only {}; correct one of them", list(.peers))]
    OwnIdNotInPeers {
        /// The node.
        node: u64,
        /// The nodes named.
        peers: Vec<u64>,
    },
    /// Two keys have the same address.
    #[error("`{first}` and `{second}` are both {address}")]
    DuplicateAddress {
        /// One key.
        first: String,
        /// The other.
        second: String,
        /// The address.
        address: String,
    },
    /// Followers would give up a healthy leader.
    #[error(
        "`raft.heartbeat_interval` is {heartbeat}, but must be less than half of \
         `raft.election_timeout`, which is {election}"
    )]
    HeartbeatNotBelowHalfElection {
        /// `raft.heartbeat_interval`.
        heartbeat: Span,
        /// `raft.election_timeout`.
        election: Span,
    },
    /// Sessions would end between two beats.
    #[error(
        "`transport.reply_timeout` is {reply}, but must be more than twice \
         `raft.heartbeat_interval`, which is {heartbeat}"
    )]
    ReplyTimeoutNotAboveHeartbeats {
        /// `transport.reply_timeout`.
        reply: Span,
        /// `raft.heartbeat_interval`.
        heartbeat: Span,
    },
    /// A link would be reported one-way before its confirm could be late.
    #[error(
        "`transport.dialback_timeout` is {dialback}, but must not exceed \
         `transport.reply_timeout`, which is {reply}"
    )]
    DialbackAboveReplyTimeout {
        /// `transport.dialback_timeout`.
        dialback: Span,
        /// `transport.reply_timeout`.
        reply: Span,
    },
    /// A read lease would outlive the promises that it rests on.
    #[error(
        "`commit_wait.lease` is {lease}, but must be less than `raft.election_timeout`, which is \
         {election}"
    )]
    LeaseNotBelowElection {
        /// `commit_wait.lease`.
        lease: Span,
        /// `raft.election_timeout`.
        election: Span,
    },
    /// One window alone would pass the budget.
    #[error(
        "`transport.bulk_window_bytes` is {window}, but must not exceed \
         `transport.peer_budget_bytes`, which is {budget}"
    )]
    BulkWindowAbovePeerBudget {
        /// `transport.bulk_window_bytes`.
        window: ByteSize,
        /// `transport.peer_budget_bytes`.
        budget: ByteSize,
    },
    /// One peer alone would pass the node's budget.
    #[error(
        "`transport.peer_budget_bytes` is {peer}, but must not exceed \
         `transport.node_budget_bytes`, which is {node}"
    )]
    PeerBudgetAboveNodeBudget {
        /// `transport.peer_budget_bytes`.
        peer: ByteSize,
        /// `transport.node_budget_bytes`.
        node: ByteSize,
    },
    /// The floor for the others is above the bound for the first.
    #[error(
        "`commit_wait.rest_min` is {rest}, but must not exceed `commit_wait.first_ack_max`, \
         which is {first}"
    )]
    RestAboveFirstAck {
        /// `commit_wait.rest_min`.
        rest: Span,
        /// `commit_wait.first_ack_max`.
        first: Span,
    },
    /// Outcomes would be forgotten while their requests are still waited for.
    #[error(
        "`commit_wait.dedup_window` is {window}, but must be more than \
         `commit_wait.first_ack_max`, which is {first}"
    )]
    DedupWindowNotAboveFirstAck {
        /// `commit_wait.dedup_window`.
        window: Span,
        /// `commit_wait.first_ack_max`.
        first: Span,
    },
    /// More acks are asked for than there are voters.
    #[error("`commit_wait.policy` asks for {acks} acks, but `peers` names {peers} nodes")]
    PolicyAboveVoters {
        /// The acks.
        acks: u32,
        /// The nodes.
        peers: usize,
    },
    /// Some shards would have no group.
    #[error("`host.shards` is {shards}, but there are only {groups} `groups`")]
    ShardsAboveGroups {
        /// `host.shards`.
        shards: u32,
        /// `groups`.
        groups: u32,
    },
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || {
            "the keys there are stand in the config.toml that `multigroup cluster up` writes"
                .to_owned()
        },
        |nearest| format!("did you mean `{nearest}`?"),
    )
}

fn list(nodes: &[u64]) -> String {
    nodes
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl ConfigError {
    /// What the TOML reader said, without its drawing of the line: an error is one sentence.
    pub(super) fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        let why = error.message().replace('\n', ", ");
        let Some(span) = error.span() else {
            return Self::Toml { text: why };
        };
        let before = text.get(..span.start).unwrap_or(text);
        let number = before.matches('\n').count() + 1;
        let line = text.lines().nth(number - 1).unwrap_or_default().trim();
        Self::Toml {
            text: format!("line {number}, `{line}`: {why}"),
        }
    }
}
