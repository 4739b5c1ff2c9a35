//! The names of all keys, so that an unknown one is answered with the one that was probably meant,
//! and `KEY=VALUE` as given on a command line.

use toml::{Table, Value};

use super::error::ConfigError;
use super::raw::RawConfig;

/// Every key there is, but for the nodes under `peers`. A test holds it against `RawConfig`.
pub(super) const KEYS: &[&str] = &[
    "cluster",
    "cluster_id",
    "node",
    "data_dir",
    "groups",
    #[cfg(feature = "debug-keys")]
    "debug_ack_delay",
    #[cfg(feature = "debug-keys")]
    "debug_message_sleep",
    "listen.peer",
    "listen.client",
    "listen.admin",
    "tls.ca",
    "tls.cert",
    "tls.key",
    "tls.crl",
    "transport.control_window_frames",
    "transport.bulk_window_bytes",
    "transport.peer_budget_bytes",
    "transport.node_budget_bytes",
    "transport.reply_timeout",
    "transport.dialback_timeout",
    "raft.heartbeat_interval",
    "raft.election_timeout",
    "raft.campaign_rate",
    "host.shards",
    "commit_wait.enabled",
    "commit_wait.max_outstanding",
    "commit_wait.workers",
    "commit_wait.policy",
    "commit_wait.first_ack_max",
    "commit_wait.lag_percent",
    "commit_wait.rest_min",
    "commit_wait.lease",
    "commit_wait.demote_penalty",
    "commit_wait.catchup_window",
    "commit_wait.dedup_window",
    "log.segment_bytes",
    "log.sync",
    "archive.url",
    "archive.interval",
    "archive.max_lag_bytes",
    "archive.on_lag",
    "client.tls",
];

/// Refuses the first key that doesn't exist.
pub(super) fn check(table: &Table) -> Result<(), ConfigError> {
    for (name, value) in table {
        if !is_section(name) {
            check_key(name)?;
        } else if let Some(section) = value.as_table() {
            section
                .keys()
                .try_for_each(|key| check_key(&format!("{name}.{key}")))?;
        }
    }
    Ok(())
}

fn is_section(name: &str) -> bool {
    name == "peers"
        || KEYS.iter().any(|key| {
            key.split_once('.')
                .is_some_and(|(section, _)| section == name)
        })
}

/// Whether there is such a key.
///
/// # Errors
/// [`ConfigError::UnknownKey`].
pub fn check_key(key: &str) -> Result<(), ConfigError> {
    if KEYS.contains(&key) || key.starts_with("peers.") {
        return Ok(());
    }
    Err(ConfigError::UnknownKey {
        key: key.to_owned(),
        nearest: nearest(key),
    })
}

/// The key that takes the fewest changes to get to, its section given or not; none if it takes more
/// than a slip or two.
fn nearest(key: &str) -> Option<&'static str> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let cost = |known: &&&str| distance(key, known).min(distance(&last(key), &last(known)) + 1);
    let near = KEYS.iter().map(|known| (cost(&known), *known)).min()?;
    let slips = 2.max(key.chars().count() / 5);
    (near.0 <= slips).then_some(near.1)
}

/// Insertions, removals and replacements between two words.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, one) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(one != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

/// One `KEY=VALUE` for a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigSet {
    key: String,
    value: Value,
}

/// Reads `KEY=VALUE`: the value as TOML, else as a string.
///
/// # Errors
/// If there is no `=`, or no such key.
pub fn parse_config_set(text: &str) -> Result<ConfigSet, ConfigError> {
    let fault = || ConfigError::NotAnAssignment {
        text: text.to_owned(),
    };
    let (key, value) = text.split_once('=').ok_or_else(fault)?;
    let (key, value) = (key.trim(), value.trim());
    check_key(key)?;
    let read = |text: &str| toml::from_str::<Table>(&format!("value = {text}")).ok();
    let only = |mut table: Table| {
        if table.len() == 1 {
            table.remove("value")
        } else {
            None
        }
    };
    let string = || Value::String(value.to_owned());
    let value = read(value).and_then(only).unwrap_or_else(string);
    Ok(ConfigSet {
        key: key.to_owned(),
        value,
    })
}

impl ConfigSet {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Sets the key.
    ///
    /// # Errors
    /// If the value is of another type than the key's.
    pub fn apply_to(&self, raw: &mut RawConfig) -> Result<(), ConfigError> {
        let written = raw.to_toml();
        let toml = |error: toml::de::Error| ConfigError::of_toml("", &error);
        let mut table: Table = toml::from_str(&written).map_err(toml)?;
        match self.key.split_once('.') {
            None => {
                table.insert(self.key.clone(), self.value.clone());
            }
            Some((section, key)) => {
                let section = table
                    .entry(section)
                    .or_insert_with(|| Value::Table(Table::new()));
                if let Value::Table(section) = section {
                    section.insert(key.to_owned(), self.value.clone());
                }
            }
        }
        *raw = table.try_into().map_err(toml)?;
        Ok(())
    }
}
