//! The node's configuration. [`RawConfig`] is the file, key by key; [`Config`] is what a node runs
//! with: it can't be made from a set of values that contradict each other, nor changed into one.
//!
//! Nothing is repaired in silence: a value out of range, an unknown key or two keys that don't go
//! together are a [`ConfigError`] that names them with their values. Relative paths are left as
//! they are; whoever reads the file knows what they are relative to ([`Config::with_base`]).

mod error;
mod keys;
mod raw;
#[cfg(test)]
mod tests;
mod units;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::error::{ConfigError, Value};
pub use self::keys::{ConfigSet, check_key, parse_config_set};
pub use self::raw::{
    RawArchive, RawClient, RawCommitWait, RawConfig, RawHost, RawListen, RawLog, RawRaft, RawTls,
    RawTransport,
};
pub use self::units::{ByteSize, Span};

use crate::keyspace::KeySpace;
use crate::limits::{DEDUP_WINDOW_MAX, GROUPS_MAX, NODES_MAX};

/// `HOST:PORT`; the host is a name or an address, an IPv6 one in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    fn parse(key: &str, text: &str) -> Result<Self, ConfigError> {
        let fault = || ConfigError::Address {
            key: key.to_owned(),
            got: text.to_owned(),
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(fault)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() || !(bracketed || host.chars().all(is_plain)) {
            return Err(fault());
        }
        let port = port.parse().map_err(|_| fault())?;
        Ok(Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// The host, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// When a reply leaves, by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Once Raft has committed the entry.
    Quorum,
    /// Once every coherent replica has it, too.
    Coherent,
    /// Once so many replicas have it, too.
    AtLeast(u32),
}

/// What happens when the archive lags too far behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLag {
    /// Writes are delayed.
    Delay,
    /// Writes are refused by name.
    Refuse,
}

/// A sound configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    raw: RawConfig,
    space: KeySpace,
    peers: BTreeMap<u64, HostPort>,
    listen: [HostPort; 3],
    policy: Policy,
    on_lag: OnLag,
}

impl RawConfig {
    /// Reads a file's text.
    ///
    /// # Errors
    /// If it isn't TOML, has unknown or lacks needed keys, or a value has the wrong type.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let toml = |error: toml::de::Error| ConfigError::of_toml(text, &error);
        keys::check(&toml::from_str(text).map_err(toml)?)?;
        toml::from_str(text).map_err(toml)
    }

    /// The text of a file that reads as this.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Strings, numbers and tables of them always have a form in TOML.
        toml::to_string(self).unwrap_or_default()
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        Self::try_from(RawConfig::from_toml(
            &fs::read_to_string(path).map_err(read)?,
        )?)
    }

    /// The same with its relative paths taken from a folder.
    #[must_use]
    pub fn with_base(mut self, base: &Path) -> Self {
        let tls = &mut self.raw.tls;
        let paths = [
            &mut self.raw.data_dir,
            &mut tls.ca,
            &mut tls.cert,
            &mut tls.key,
        ];
        for path in paths.into_iter().chain(tls.crl.as_mut()) {
            *path = base.join(&*path);
        }
        self
    }

    /// The file's values: sound together, and no way to change them here.
    #[must_use]
    pub fn raw(&self) -> &RawConfig {
        &self.raw
    }

    /// This node.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.raw.node
    }

    /// Its data folder.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.raw.data_dir
    }

    /// The folder of the groups' databases.
    #[must_use]
    pub fn groups_dir(&self) -> PathBuf {
        self.raw.data_dir.join("groups")
    }

    /// The key space.
    #[must_use]
    pub fn space(&self) -> KeySpace {
        self.space
    }

    /// All nodes and where their peers reach them.
    #[must_use]
    pub fn peers(&self) -> &BTreeMap<u64, HostPort> {
        &self.peers
    }

    /// Where it listens for peers.
    #[must_use]
    pub fn listen_peer(&self) -> &HostPort {
        &self.listen[0]
    }

    /// Where it listens for clients.
    #[must_use]
    pub fn listen_client(&self) -> &HostPort {
        &self.listen[1]
    }

    /// Where it listens for operators.
    #[must_use]
    pub fn listen_admin(&self) -> &HostPort {
        &self.listen[2]
    }

    /// The policy of groups that are created.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// What happens when the archive lags.
    #[must_use]
    pub fn on_lag(&self) -> OnLag {
        self.on_lag
    }

    /// How long outcomes are kept, as an entry carries it.
    #[must_use]
    pub fn dedup_window_ms(&self) -> u32 {
        u32::try_from(self.raw.commit_wait.dedup_window.0.as_millis()).unwrap_or(u32::MAX)
    }
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    fn try_from(raw: RawConfig) -> Result<Self, ConfigError> {
        check_ranges(&raw)?;
        let (peers, listen) = (read_peers(&raw)?, read_listen(&raw)?);
        if !peers.contains_key(&raw.node) {
            let peers = peers.into_keys().collect();
            return Err(ConfigError::OwnIdNotInPeers {
                node: raw.node,
                peers,
            });
        }
        check_addresses(&raw, &peers, &listen)?;
        check_timings(&raw)?;
        check_amounts(&raw)?;
        let policy = read_policy(&raw.commit_wait.policy, peers.len())?;
        let on_lag = match raw.archive.as_ref().map(|archive| archive.on_lag.as_str()) {
            None | Some("delay") => OnLag::Delay,
            Some("refuse") => OnLag::Refuse,
            Some(got) => return Err(word("archive.on_lag", got, "`delay` or `refuse`")),
        };
        let space = KeySpace::new(raw.groups).ok_or_else(|| groups_range(raw.groups))?;
        Ok(Self {
            raw,
            space,
            peers,
            listen,
            policy,
            on_lag,
        })
    }
}

fn word(key: &'static str, got: &str, expected: &'static str) -> ConfigError {
    ConfigError::Word {
        key,
        got: got.to_owned(),
        expected,
    }
}

fn groups_range(groups: u32) -> ConfigError {
    let (min, max) = (Value::Number(1), Value::Number(u64::from(GROUPS_MAX)));
    ConfigError::OutOfRange {
        key: "groups",
        got: Value::Number(u64::from(groups)),
        min,
        max,
    }
}

fn check_ranges(raw: &RawConfig) -> Result<(), ConfigError> {
    let name_ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if raw.cluster.is_empty() || raw.cluster.len() > 64 || !raw.cluster.chars().all(name_ok) {
        return Err(word(
            "cluster",
            &raw.cluster,
            "1 to 64 letters, digits, `-`, `_` or `.`",
        ));
    }
    let url = raw
        .archive
        .as_ref()
        .map_or("file:///", |archive| &archive.url);
    if !(url.starts_with("file:///") || url.len() > 5 && url.starts_with("s3://")) {
        return Err(word(
            "archive.url",
            url,
            "file:///PATH or s3://BUCKET/PREFIX",
        ));
    }
    let (t, w) = (&raw.transport, &raw.commit_wait);
    let numbers = [
        ("node", raw.node, 1, u64::from(u32::MAX)),
        ("groups", raw.groups.into(), 1, GROUPS_MAX.into()),
        ("peers", raw.peers.len() as u64, 1, NODES_MAX as u64),
        (
            "transport.control_window_frames",
            t.control_window_frames.into(),
            1,
            256,
        ),
        (
            "raft.campaign_rate",
            raw.raft.campaign_rate.into(),
            1,
            1_000_000,
        ),
        ("host.shards", raw.host.shards.into(), 1, 256),
        (
            "commit_wait.max_outstanding",
            w.max_outstanding.into(),
            0,
            1 << 20,
        ),
        ("commit_wait.workers", w.workers.into(), 1, 1024),
        ("commit_wait.lag_percent", w.lag_percent.into(), 1, 1000),
    ];
    for (key, got, min, max) in numbers {
        if !(min..=max).contains(&got) {
            let [got, min, max] = [got, min, max].map(Value::Number);
            return Err(ConfigError::OutOfRange { key, got, min, max });
        }
    }
    check_quantities(raw)
}

fn check_quantities(raw: &RawConfig) -> Result<(), ConfigError> {
    let (t, r, w) = (&raw.transport, &raw.raft, &raw.commit_wait);
    let (ms, hour) = (Duration::from_millis(1), Duration::from_secs(3600));
    let archive_interval = raw
        .archive
        .as_ref()
        .map_or(Span(ms), |archive| archive.interval);
    let spans = [
        ("transport.reply_timeout", t.reply_timeout, ms, hour),
        ("transport.dialback_timeout", t.dialback_timeout, ms, hour),
        ("raft.heartbeat_interval", r.heartbeat_interval, ms, hour),
        ("raft.election_timeout", r.election_timeout, ms, hour),
        ("commit_wait.first_ack_max", w.first_ack_max, ms, hour),
        ("commit_wait.rest_min", w.rest_min, Duration::ZERO, hour),
        ("commit_wait.lease", w.lease, Duration::ZERO, hour),
        (
            "commit_wait.demote_penalty",
            w.demote_penalty,
            Duration::ZERO,
            hour,
        ),
        (
            "commit_wait.dedup_window",
            w.dedup_window,
            ms,
            DEDUP_WINDOW_MAX,
        ),
        ("archive.interval", archive_interval, ms, hour),
        #[cfg(feature = "debug-keys")]
        (
            "debug_ack_delay",
            raw.debug_ack_delay,
            Duration::ZERO,
            Duration::from_secs(1),
        ),
        #[cfg(feature = "debug-keys")]
        (
            "debug_message_sleep",
            raw.debug_message_sleep,
            Duration::ZERO,
            Duration::from_secs(1),
        ),
    ];
    for (key, got, min, max) in spans {
        if !(min..=max).contains(&got.0) {
            let [got, min, max] = [got, Span(min), Span(max)].map(Value::Span);
            return Err(ConfigError::OutOfRange { key, got, min, max });
        }
    }
    // One bulk frame is the least that any window or budget can hold.
    let (frame, most) = (256 << 10, 1 << 40);
    let lag = raw
        .archive
        .as_ref()
        .map_or(ByteSize(frame), |archive| archive.max_lag_bytes);
    let sizes = [
        (
            "transport.bulk_window_bytes",
            t.bulk_window_bytes,
            frame,
            1 << 30,
        ),
        (
            "transport.peer_budget_bytes",
            t.peer_budget_bytes,
            frame,
            most,
        ),
        (
            "transport.node_budget_bytes",
            t.node_budget_bytes,
            frame,
            most,
        ),
        ("commit_wait.catchup_window", w.catchup_window, frame, most),
        ("log.segment_bytes", raw.log.segment_bytes, 1 << 20, 1 << 30),
        ("archive.max_lag_bytes", lag, frame, most),
    ];
    for (key, got, min, max) in sizes {
        if !(min..=max).contains(&got.0) {
            let [got, min, max] = [got, ByteSize(min), ByteSize(max)].map(Value::Bytes);
            return Err(ConfigError::OutOfRange { key, got, min, max });
        }
    }
    Ok(())
}

fn read_peers(raw: &RawConfig) -> Result<BTreeMap<u64, HostPort>, ConfigError> {
    let read = |(id, address): (&String, &String)| {
        let number = id
            .parse()
            .ok()
            .filter(|number: &u64| *number > 0 && number.to_string() == *id);
        let number = number.ok_or_else(|| ConfigError::PeerId { got: id.clone() })?;
        let address = HostPort::parse(&format!("peers.{id}"), address)?;
        Ok((number, address))
    };
    raw.peers.iter().map(read).collect()
}

fn read_listen(raw: &RawConfig) -> Result<[HostPort; 3], ConfigError> {
    Ok([
        HostPort::parse("listen.peer", &raw.listen.peer)?,
        HostPort::parse("listen.client", &raw.listen.client)?,
        HostPort::parse("listen.admin", &raw.listen.admin)?,
    ])
}

/// No two of all addresses are the same, but for this node's own two for its peers. Port 0 is any.
fn check_addresses(
    raw: &RawConfig,
    peers: &BTreeMap<u64, HostPort>,
    listen: &[HostPort; 3],
) -> Result<(), ConfigError> {
    let mut named: Vec<(String, &HostPort)> = peers
        .iter()
        .map(|(id, address)| (format!("peers.{id}"), address))
        .collect();
    let own = peers.get(&raw.node);
    for (key, address) in ["listen.peer", "listen.client", "listen.admin"]
        .into_iter()
        .zip(listen)
    {
        if key != "listen.peer" || Some(address) != own {
            named.push((key.to_owned(), address));
        }
    }
    for (at, (second, address)) in named.iter().enumerate() {
        let same = |(_, other): &&(String, &HostPort)| other == address && address.port != 0;
        if let Some((first, _)) = named[..at].iter().find(same) {
            let (first, second, address) = (first.clone(), second.clone(), address.to_string());
            return Err(ConfigError::DuplicateAddress {
                first,
                second,
                address,
            });
        }
    }
    Ok(())
}

fn check_timings(raw: &RawConfig) -> Result<(), ConfigError> {
    let (t, w) = (&raw.transport, &raw.commit_wait);
    let (heartbeat, election) = (raw.raft.heartbeat_interval, raw.raft.election_timeout);
    let (reply, dialback) = (t.reply_timeout, t.dialback_timeout);
    if heartbeat.0 * 2 >= election.0 {
        return Err(ConfigError::HeartbeatNotBelowHalfElection {
            heartbeat,
            election,
        });
    }
    if reply.0 <= heartbeat.0 * 2 {
        return Err(ConfigError::ReplyTimeoutNotAboveHeartbeats { reply, heartbeat });
    }
    if dialback > reply {
        return Err(ConfigError::DialbackAboveReplyTimeout { dialback, reply });
    }
    let (lease, rest, first) = (w.lease, w.rest_min, w.first_ack_max);
    if lease >= election {
        return Err(ConfigError::LeaseNotBelowElection { lease, election });
    }
    if rest > first {
        return Err(ConfigError::RestAboveFirstAck { rest, first });
    }
    let window = w.dedup_window;
    if window <= first {
        return Err(ConfigError::DedupWindowNotAboveFirstAck { window, first });
    }
    Ok(())
}

fn check_amounts(raw: &RawConfig) -> Result<(), ConfigError> {
    let t = &raw.transport;
    let (window, budget) = (t.bulk_window_bytes, t.peer_budget_bytes);
    if window > budget {
        return Err(ConfigError::BulkWindowAbovePeerBudget { window, budget });
    }
    let node = t.node_budget_bytes;
    if budget > node {
        return Err(ConfigError::PeerBudgetAboveNodeBudget { peer: budget, node });
    }
    // A few groups on a machine of many cores are no contradiction of the operator's.
    let (shards, groups) = (raw.host.shards, raw.groups);
    if shards > groups && raw.host != RawHost::default() {
        return Err(ConfigError::ShardsAboveGroups { shards, groups });
    }
    Ok(())
}

fn read_policy(text: &str, peers: usize) -> Result<Policy, ConfigError> {
    let expected = "`quorum`, `coherent` or `at-least:N`";
    match (
        text,
        text.strip_prefix("at-least:")
            .and_then(|acks| acks.parse::<u32>().ok()),
    ) {
        ("quorum", _) => Ok(Policy::Quorum),
        ("coherent", _) => Ok(Policy::Coherent),
        (_, Some(acks)) if acks > 0 && acks as usize > peers => {
            Err(ConfigError::PolicyAboveVoters { acks, peers })
        }
        (_, Some(acks)) if acks > 0 => Ok(Policy::AtLeast(acks)),
        _ => Err(word("commit_wait.policy", text, expected)),
    }
}
