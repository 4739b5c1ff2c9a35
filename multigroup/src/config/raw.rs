//! The configuration as it stands in the file: every key of it, with its default, and nothing
//! checked but types. It is read, written and changed here; only `Config` is used to run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::{ByteSize, Span};
use crate::cluster_id::ClusterId;

const fn millis(millis: u64) -> Span {
    Span(Duration::from_millis(millis))
}

const fn mib(mib: u64) -> ByteSize {
    ByteSize(mib << 20)
}

/// What nobody asks for.
#[cfg(feature = "debug-keys")]
const fn none() -> Span {
    millis(0)
}

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    )*};
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// The cluster's name, part of every certificate.
    pub cluster: String,
    /// Which cluster of that name it is, the same on every node: what its archive is told by. Drawn by
    /// `cluster up`; absent: by the first node that begins the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// This node's number.
    pub node: u64,
    /// Where it keeps its state.
    pub data_dir: PathBuf,
    /// How many groups the cluster has.
    pub groups: u32,
    /// How late its acks leave where it follows.
    #[cfg(feature = "debug-keys")]
    #[serde(default = "none")]
    pub debug_ack_delay: Span,
    /// How long it sleeps for every append that it steps.
    #[cfg(feature = "debug-keys")]
    #[serde(default = "none")]
    pub debug_message_sleep: Span,
    /// Where it listens.
    pub listen: RawListen,
    /// All nodes, this one too, and where their peers reach them.
    pub peers: BTreeMap<String, String>,
    /// Its credentials.
    pub tls: RawTls,
    /// The links to peers.
    #[serde(default)]
    pub transport: RawTransport,
    /// Consensus.
    #[serde(default)]
    pub raft: RawRaft,
    /// Threads.
    #[serde(default)]
    pub host: RawHost,
    /// The quorum-ack waiter.
    #[serde(default)]
    pub commit_wait: RawCommitWait,
    /// The shared log.
    #[serde(default)]
    pub log: RawLog,
    /// The archive; absent: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<RawArchive>,
    /// The client front.
    #[serde(default)]
    pub client: RawClient,
}

/// `[listen]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawListen {
    /// Mutual TLS.
    pub peer: String,
    /// The Redis protocol.
    pub client: String,
    /// HTTP.
    pub admin: String,
}

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTls {
    /// The CA's certificates.
    pub ca: PathBuf,
    /// This node's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Revoked certificates, if any list is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
}

/// `[archive]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawArchive {
    /// `file:///…` or `s3://bucket/prefix`.
    pub url: String,
    /// How often it is published.
    #[serde(default = "RawArchive::default_interval")]
    pub interval: Span,
    /// How far it may lag.
    #[serde(default = "RawArchive::default_max_lag_bytes")]
    pub max_lag_bytes: ByteSize,
    /// What happens then: `delay` or `refuse`.
    #[serde(default = "RawArchive::default_on_lag")]
    pub on_lag: String,
}

impl RawArchive {
    // One object a second and node keeps an object store's request bill small.
    const fn default_interval() -> Span {
        millis(1000)
    }

    // Some seconds of full load, to ride out a store's hiccup.
    const fn default_max_lag_bytes() -> ByteSize {
        mib(256)
    }

    fn default_on_lag() -> String {
        "delay".to_owned()
    }

    /// The archive at that address, all else by default.
    #[must_use]
    pub fn at(url: String) -> Self {
        Self {
            url,
            interval: Self::default_interval(),
            max_lag_bytes: Self::default_max_lag_bytes(),
            on_lag: Self::default_on_lag(),
        }
    }
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

sections! {
    /// `[transport]`.
    RawTransport {
        /// Outstanding control frames: beyond the knee of the window curve more only queue.
        control_window_frames: u32 = 16,
        /// Bulk bytes on their way: a few round trips of a fast disk's pace.
        bulk_window_bytes: ByteSize = mib(4),
        /// Reserved bytes of one peer.
        peer_budget_bytes: ByteSize = mib(64),
        /// Reserved bytes of all peers.
        node_budget_bytes: ByteSize = mib(256),
        /// The age at which an unanswered control frame ends its session: above any pause that a
        /// healthy node makes.
        reply_timeout: Span = millis(3000),
        /// How long a link may be half up before it is reported as one-way.
        dialback_timeout: Span = millis(2000),
    }
    /// `[raft]`.
    RawRaft {
        /// How often a leader is heard of.
        heartbeat_interval: Span = millis(100),
        /// When its followers give it up: ten beats, far above a scheduler's pauses.
        election_timeout: Span = millis(1000),
        /// Campaigns a second: a dead node's 500 groups within a second.
        campaign_rate: u32 = 500,
    }
    /// `[host]`.
    RawHost {
        /// Threads that own groups: one a core.
        shards: u32 = cores(),
    }
    /// `[commit_wait]`.
    RawCommitWait {
        /// Whether commits are handed off; off: each worker waits for its own.
        enabled: bool = true,
        /// Commits handed off at once.
        max_outstanding: u32 = 1024,
        /// Workers that admit and propose.
        workers: u32 = 8,
        /// `quorum`, `coherent` or `at-least:N`; for groups that are created.
        policy: String = "quorum".to_owned(),
        /// How long the first ack may take.
        first_ack_max: Span = millis(10_000),
        /// What the others may take of the time that the first took.
        lag_percent: u32 = 50,
        /// What they may take at least.
        rest_min: Span = millis(1000),
        /// A coherent follower's read lease; zero: none.
        lease: Span = millis(500),
        /// How long a demoted replica stays demoted.
        demote_penalty: Span = millis(10_000),
        /// How near the end a replica must be to get live appends.
        catchup_window: ByteSize = ByteSize(40_000_000),
        /// How long outcomes are kept under their request ids.
        dedup_window: Span = millis(600_000),
    }
    /// `[log]`.
    RawLog {
        /// Bytes of one segment.
        segment_bytes: ByteSize = mib(64),
        /// Whether writes are synced; off only for experiments.
        sync: bool = true,
    }
    /// `[client]`.
    RawClient {
        /// Whether clients speak TLS.
        tls: bool = false,
    }
}
