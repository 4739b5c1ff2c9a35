//! The settings of a running node that can be changed: `POST /config`, which `multigroup config set`
//! asks. What is changed holds until the node stops; its file stays as it is.

use std::str::FromStr;

use raft_host::Host;
use raft_host::metrics::{CommitWaitStats, ShardStats};

use crate::admin::{CommitWaitStatus, SettingFault};
use crate::config::check_key;

/// Changes one setting and says what that came to.
pub(super) fn set(host: &Host, key: &str, value: &str) -> Result<String, SettingFault> {
    match key {
        "commit_wait.enabled" => {
            let enabled = read(key, value, "true or false")?;
            host.commit_wait().set_enabled(enabled);
        }
        "commit_wait.max_outstanding" => {
            let most = read(key, value, "a number from 0 to 4294967295")?;
            host.commit_wait().set_max_outstanding(most);
        }
        "transport.control_window_frames" => {
            let must = "a number from 1 to 256";
            let frames = read(key, value, must)?;
            let set = host.set_control_window(frames);
            set.map_err(|_| fault(key, value, must))?;
            return Ok(format!(
                "{key} is {value} for sessions to come, until the node stops; those that stand keep theirs"
            ));
        }
        _ => {
            check_key(key).map_err(|error| SettingFault::Unknown(error.to_string()))?;
            let key = key.to_owned();
            return Err(SettingFault::NeedsRestart { key });
        }
    }
    Ok(format!("{key} is {value} until the node stops"))
}

fn read<T: FromStr>(key: &str, value: &str, must: &'static str) -> Result<T, SettingFault> {
    value.parse().map_err(|_| fault(key, value, must))
}

fn fault(key: &str, value: &str, must: &'static str) -> SettingFault {
    SettingFault::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        must,
    }
}

/// The waiter's counters in their place in the status.
pub(super) fn commit_wait(stats: &CommitWaitStats, shards: &[ShardStats]) -> CommitWaitStatus {
    let sum = |count: fn(&ShardStats) -> u64| shards.iter().map(count).sum();
    CommitWaitStatus {
        enabled: stats.enabled,
        cap: stats.cap,
        outstanding: stats.outstanding,
        enqueued_total: stats.enqueued,
        inline_total: stats.inline.total(),
        inline_off_total: stats.inline.off,
        inline_full_total: stats.inline.full,
        inline_policy_total: stats.inline.policy,
        committed_total: stats.resolved.committed,
        refused_total: stats.resolved.refused,
        unknown_total: stats.resolved.unknown,
        expired_total: stats.expired,
        joined_total: stats.joined,
        withdrawn_total: stats.withdrawn,
        turned_away_total: stats.refused,
        workers: stats.workers,
        workers_held: stats.workers_held,
        worker_wakeups_total: stats.worker_wakeups,
        passes_total: sum(|shard| shard.core.waiter_passes),
        looked_at_total: sum(|shard| shard.core.waiters_looked_at),
        shard_turns_total: sum(|shard| shard.turns),
        line: stats.line,
        queued_us: stats.queued.clone().into(),
        reply_us: stats.waited.clone().into(),
    }
}
