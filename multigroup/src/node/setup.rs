//! From the configuration to what the parts are started with. Nothing is started, opened or bound
//! here; what a part refuses is told with the keys of the file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::time::Duration;

use raft_host::config::{
    GroupConfig, HostConfig, RawCommitWaitConfig, RawHostConfig, RawRaftConfig,
};
use raft_host::id::NodeId;
use raft_host::io;
use raft_host::limits::{GROUP_MEMBERS_MAX, LOG_BYTES_MAX, LOG_SEGMENTS_MAX};
use raft_host::log::{LogConfig, RawLogConfig, SyncMode};
use transport::config::RawTuning;
use transport::{Fingerprint, NodeIdentity, PeerId, TlsFiles, Tuning};

use super::error::{NodeError, SettingError};
use crate::config::{Config, HostPort, Policy};

/// The version of the map from keys to groups, of the log's entries and of the host's wire: nodes
/// that differ in one can't share a cluster.
const KEY_MAP: &str = "crc16-tag-mod/1";
const RECORDS: &str = "2";

/// What the parts are started with.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) identity: NodeIdentity,
    pub(super) host: HostConfig,
    pub(super) tuning: Tuning,
    pub(super) fingerprint: Fingerprint,
    /// The other nodes.
    pub(super) peers: BTreeMap<PeerId, String>,
    pub(super) tls: TlsFiles,
}

impl Setup {
    pub(super) fn of(config: &Config) -> Result<Self, SettingError> {
        refuse_what_is_not_offered(config)?;
        let nodes = config.peers().len();
        if nodes > GROUP_MEMBERS_MAX {
            let max = GROUP_MEMBERS_MAX;
            return Err(SettingError::TooManyNodes { nodes, max });
        }
        let raw = config.raw();
        let tls = TlsFiles {
            ca: raw.tls.ca.clone(),
            cert: raw.tls.cert.clone(),
            key: raw.tls.key.clone(),
            crl: raw.tls.crl.clone(),
        };
        let (identity, peers) = (identity(config)?, peers(config)?);
        Ok(Self {
            identity,
            host: host(config)?,
            tuning: tuning(config)?,
            fingerprint: fingerprint(config)?,
            peers,
            tls,
        })
    }
}

fn refuse_what_is_not_offered(config: &Config) -> Result<(), SettingError> {
    let raw = config.raw();
    let not_offered =
        |key, value: String, remedy| Err(SettingError::NotOffered { key, value, remedy });
    if raw.client.tls {
        return not_offered("client.tls", "true".to_owned(), "set it to false");
    }
    match config.policy() {
        Policy::Quorum | Policy::AtLeast(_) => Ok(()),
        Policy::Coherent => not_offered(
            "commit_wait.policy",
            raw.commit_wait.policy.clone(),
            "set it to \"quorum\" or \"at-least:N\"",
        ),
    }
}

/// When the reply to a write may leave, unless its caller says otherwise.
pub(super) fn policy(config: &Config) -> io::Policy {
    let acks = match config.policy() {
        Policy::AtLeast(acks) => u8::try_from(acks).ok().and_then(NonZeroU8::new),
        Policy::Quorum | Policy::Coherent => None,
    };
    acks.map_or(io::Policy::Quorum, io::Policy::AtLeast)
}

fn peer_id(key: &'static str, number: u64) -> Result<PeerId, SettingError> {
    let value = number.to_string();
    value
        .parse()
        .map_err(|source| SettingError::Name { key, value, source })
}

fn identity(config: &Config) -> Result<NodeIdentity, SettingError> {
    let value = config.raw().cluster.clone();
    let cluster = value.parse();
    let cluster = cluster.map_err(|source| SettingError::Name {
        key: "cluster",
        value,
        source,
    })?;
    let node = peer_id("node", config.node())?;
    Ok(NodeIdentity { cluster, node })
}

fn peers(config: &Config) -> Result<BTreeMap<PeerId, String>, SettingError> {
    let others = config
        .peers()
        .iter()
        .filter(|(id, _)| **id != config.node());
    others
        .map(|(id, address)| Ok((peer_id("peers", *id)?, address.to_string())))
        .collect()
}

fn nodes(config: &Config) -> Result<Vec<NodeId>, SettingError> {
    let ids = config.peers().keys();
    ids.map(|id| Ok(NodeId::new(peer_id("peers", *id)?.to_u32())))
        .collect()
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn host(config: &Config) -> Result<HostConfig, SettingError> {
    let (raft, nodes) = (&config.raw().raft, nodes(config)?);
    let raft = RawRaftConfig {
        heartbeat_interval_ms: millis(raft.heartbeat_interval.0),
        election_timeout_ms: millis(raft.election_timeout.0),
        campaign_rate: raft.campaign_rate,
        #[cfg(feature = "debug-keys")]
        debug_ack_delay_ms: millis(config.raw().debug_ack_delay.0),
        #[cfg(feature = "debug-keys")]
        debug_message_sleep_ms: millis(config.raw().debug_message_sleep.0),
        ..RawRaftConfig::default()
    };
    let shell = RawHostConfig {
        shards: Some(u16::try_from(config.raw().host.shards).unwrap_or(u16::MAX)),
        ..RawHostConfig::default()
    };
    let wait = &config.raw().commit_wait;
    let commit_wait = RawCommitWaitConfig {
        enabled: wait.enabled,
        max_outstanding: wait.max_outstanding,
        workers: u16::try_from(wait.workers).unwrap_or(u16::MAX),
    };
    let groups = config.space().all();
    let groups = groups.map(|group| GroupConfig::spread(group, &nodes));
    let host = HostConfig::new(raft.try_into()?, log(config)?, shell, groups.collect())?
        .with_commit_wait(commit_wait.try_into()?);
    // What isn't archived yet is in the logs alone.
    Ok(if config.raw().archive.is_some() {
        host.holding_logs()
    } else {
        host
    })
}

/// The log's cap is its usual one, or as many segments as can be listed if they are small.
fn log(config: &Config) -> Result<LogConfig, SettingError> {
    let raw = config.raw();
    let segment_bytes = raw.log.segment_bytes.0;
    let segments = LOG_SEGMENTS_MAX.min(segment_bytes / 64);
    let log = RawLogConfig {
        segment_bytes,
        bytes_max: LOG_BYTES_MAX.min(segment_bytes.saturating_mul(segments)),
        sync: if raw.log.sync {
            SyncMode::Durable
        } else {
            SyncMode::Unsafe
        },
        probe_interval: raw.raft.election_timeout.0 / 4,
        ..RawLogConfig::default()
    };
    Ok(log.try_into()?)
}

fn tuning(config: &Config) -> Result<Tuning, SettingError> {
    let raw = &config.raw().transport;
    let limit = |span: Duration| u64::from(millis(span));
    let tuning = RawTuning {
        control_window_frames: u16::try_from(raw.control_window_frames).unwrap_or(u16::MAX),
        bulk_window_bytes: raw.bulk_window_bytes.0,
        peer_budget_bytes: raw.peer_budget_bytes.0,
        node_budget_bytes: raw.node_budget_bytes.0,
        reply_timeout_ms: limit(raw.reply_timeout.0),
        dialback_timeout_ms: limit(raw.dialback_timeout.0),
        ..RawTuning::default()
    };
    Ok(tuning.try_into()?)
}

/// What must be equal on every node (safety 21), each by its name.
fn fingerprint(config: &Config) -> Result<Fingerprint, SettingError> {
    let raw = config.raw();
    let settings = [
        ("cluster", raw.cluster.clone()),
        ("groups", raw.groups.to_string()),
        ("key_map", KEY_MAP.to_owned()),
        ("records", RECORDS.to_owned()),
        ("wire", raft_host::proto::wire::WIRE_VERSION.to_string()),
        ("commit_wait.lease", raw.commit_wait.lease.to_string()),
        (
            "raft.election_timeout",
            raw.raft.election_timeout.to_string(),
        ),
    ];
    Ok(Fingerprint::new(settings)?)
}

/// The address that a key's host and port stand for.
pub(super) async fn resolve(
    key: &'static str,
    address: &HostPort,
) -> Result<SocketAddr, NodeError> {
    let found = tokio::net::lookup_host((address.host(), address.port())).await;
    let first = found.and_then(|mut found| {
        let none = || std::io::Error::new(std::io::ErrorKind::NotFound, "no address has that name");
        found.next().ok_or_else(none)
    });
    first.map_err(|source| NodeError::Resolve {
        key,
        address: address.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    const FILE: &str = "cluster = \"dev\"\nnode = 2\ndata_dir = \"data\"\ngroups = 12\n\
        [listen]\npeer = \"127.0.0.1:1\"\nclient = \"127.0.0.1:2\"\nadmin = \"127.0.0.1:3\"\n\
        [peers]\n1 = \"127.0.0.1:4\"\n2 = \"127.0.0.1:1\"\n3 = \"127.0.0.1:5\"\n\
        [tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n";

    fn of(change: impl FnOnce(&mut RawConfig)) -> Result<Setup, SettingError> {
        let mut raw = RawConfig::from_toml(FILE).unwrap();
        change(&mut raw);
        Setup::of(&raw.try_into().unwrap())
    }

    #[test]
    fn every_node_is_a_member_of_every_group_and_no_peer_of_itself() {
        let setup = of(|_| ()).unwrap();
        assert_eq!(setup.identity.to_string(), "mraft://dev/node/2");
        let peers: Vec<_> = setup.peers.keys().map(|id| id.to_u32()).collect();
        assert_eq!(peers, [1, 3]);
        let groups = setup.host.groups();
        assert_eq!(groups.len(), 12);
        assert!(groups.iter().all(|group| group.members.len() == 3));
        let mut first: Vec<_> = groups.iter().map(|group| group.preferred).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 3, "who leads first goes round");
    }

    #[test]
    fn the_smallest_and_the_largest_segments_have_a_cap_that_the_log_takes() {
        for bytes in [1 << 20, 64 << 20, 1 << 30] {
            let setup = of(|raw| raw.log.segment_bytes.0 = bytes).unwrap();
            assert_eq!(setup.host.log().segment_bytes(), bytes);
        }
    }

    #[test]
    fn what_would_be_ignored_is_refused_by_name() {
        let refused = |change: fn(&mut RawConfig)| of(change).unwrap_err().to_string();
        let tls = refused(|raw| raw.client.tls = true);
        assert!(tls.contains("`client.tls` = true"), "{tls}");
        let policy = refused(|raw| raw.commit_wait.policy = "coherent".to_owned());
        assert!(
            policy.contains("`commit_wait.policy` = coherent"),
            "{policy}"
        );
    }

    #[test]
    fn with_an_archive_logs_are_held() {
        let archive = "file:///tmp/a".to_owned();
        let with = of(|raw| raw.archive = Some(crate::config::RawArchive::at(archive)));
        assert!(with.unwrap().host.holds_logs());
        assert!(!of(|_| ()).unwrap().host.holds_logs());
    }
}
