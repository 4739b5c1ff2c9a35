//! The host's configuration: `RawRaftConfig` is what a file holds (contracts.md, `[raft]`),
//! [`RaftConfig`] is what was checked; its private fields can't hold a broken set. No value is
//! repaired silently. Bounds that nobody tunes are in `limits.rs`.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{GroupId, NodeId, ReplicaId};
use crate::limits::{APPLY_WORKERS_MAX, SHARDS_MAX, WORKERS_MAX};
use crate::log::LogConfig;
use crate::proto::host::{Member, MemberKind};

/// `[raft]` as written, units in the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRaftConfig {
    /// From round to round.
    pub heartbeat_interval_ms: u32,
    /// Without a beat for this long, a replica may campaign and vote.
    pub election_timeout_ms: u32,
    /// Campaigns a second and shard, so that a lost node doesn't become a storm (H6).
    pub campaign_rate: u32,
    /// After a start, no vote and no campaign for this long: the longest lease that may be out
    /// (safety 5).
    pub restart_silence_ms: u32,
    /// Entries one group retains for its slowest member before it refuses proposals.
    pub retained_entries_max: u64,
    /// Where the leaders of groups are to be.
    pub leader_placement: LeaderPlacement,
    /// Hand-overs of leadership begun a second and shard, for the sake of placement.
    pub handover_rate: u32,
    /// How late every ack of a follower leaves; for benches and tests.
    #[cfg(feature = "debug-keys")]
    pub debug_ack_delay_ms: u32,
    /// How long a follower's shard sleeps for every append that it stepped; for benches and tests.
    #[cfg(feature = "debug-keys")]
    pub debug_message_sleep_ms: u32,
}

/// Where the leaders of groups are to be (H9). It may differ between nodes: it is the leader's node
/// that hands over, or doesn't.
///
/// Whoever asks for a group to be led elsewhere (`Group::transfer_leader`) wins over either: that
/// replica leads until its leadership ends, by a failure, a restart or another request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaderPlacement {
    /// At the preferred replica of each group. One that leads in its place hands over once the
    /// preferred one has been linked for a while, answers and lacks nothing: after a node's return
    /// it leads its share again. Proposals wait for a hand-over, some milliseconds; none is refused
    /// or of unknown fate because of it.
    #[default]
    Preferred,
    /// Where elections put them: a node that returns leads nothing until others fail or are asked
    /// to hand over. At a start of all nodes the preferred replicas lead first all the same.
    Stay,
}

/// The defaults of contracts.md 3. No lease is granted yet, so nothing has to be waited out at a
/// start; a million retained entries are some hundred MB of log for one group; fifty hand-overs a
/// second and shard bring 500 groups back in some five seconds and take a few percent of a core.
pub const RAFT_DEFAULTS: RawRaftConfig = RawRaftConfig {
    heartbeat_interval_ms: 100,
    election_timeout_ms: 1000,
    campaign_rate: 500,
    restart_silence_ms: 0,
    retained_entries_max: 1_000_000,
    leader_placement: LeaderPlacement::Preferred,
    handover_rate: 50,
    #[cfg(feature = "debug-keys")]
    debug_ack_delay_ms: 0,
    #[cfg(feature = "debug-keys")]
    debug_message_sleep_ms: 0,
};

impl Default for RawRaftConfig {
    fn default() -> Self {
        RAFT_DEFAULTS
    }
}

/// `[raft]`, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftConfig {
    heartbeat_interval: Duration,
    election_timeout: Duration,
    campaign_rate: NonZeroU32,
    restart_silence: Duration,
    retained_entries_max: u64,
    leader_placement: LeaderPlacement,
    handover_rate: NonZeroU32,
    #[cfg(feature = "debug-keys")]
    debug_ack_delay: Duration,
    #[cfg(feature = "debug-keys")]
    debug_message_sleep: Duration,
}

/// Which rule a configuration breaks, with both values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Rounds need a pace.
    #[error("raft.heartbeat_interval is zero")]
    HeartbeatZero,
    /// Two rounds may be lost before anybody campaigns.
    #[error(
        "raft.heartbeat_interval {heartbeat:?} is more than a third of raft.election_timeout \
         {election:?}"
    )]
    HeartbeatNotBelowElection {
        /// The interval.
        heartbeat: Duration,
        /// The timeout.
        election: Duration,
    },
    /// Somebody has to be able to campaign.
    #[error("raft.campaign_rate is zero")]
    CampaignRateZero,
    /// Whoever places leaders has to be able to hand over.
    #[error("raft.handover_rate is zero")]
    HandoverRateZero,
    /// A lease never outlasts an election timeout.
    #[error("raft.restart_silence {silence:?} is longer than raft.election_timeout {election:?}")]
    SilenceBeyondElection {
        /// The silence.
        silence: Duration,
        /// The timeout.
        election: Duration,
    },
    /// A group that may retain nothing can't replicate.
    #[error("raft.retained_entries_max {got} is below {least}")]
    RetainedTooFew {
        /// The value.
        got: u64,
        /// The least that works.
        least: u64,
    },
    /// No thread at all, or more than a node takes.
    #[error("{name} = {got} is outside of 1 to {most}")]
    ThreadsOutOfRange {
        /// The setting.
        name: &'static str,
        /// The value.
        got: u16,
        /// The bound.
        most: u16,
    },
}

impl TryFrom<RawRaftConfig> for RaftConfig {
    type Error = ConfigError;

    fn try_from(raw: RawRaftConfig) -> Result<Self, ConfigError> {
        let heartbeat = Duration::from_millis(raw.heartbeat_interval_ms.into());
        let election = Duration::from_millis(raw.election_timeout_ms.into());
        let silence = Duration::from_millis(raw.restart_silence_ms.into());
        if heartbeat.is_zero() {
            return Err(ConfigError::HeartbeatZero);
        }
        if heartbeat * 3 > election {
            return Err(ConfigError::HeartbeatNotBelowElection {
                heartbeat,
                election,
            });
        }
        let Some(campaign_rate) = NonZeroU32::new(raw.campaign_rate) else {
            return Err(ConfigError::CampaignRateZero);
        };
        let Some(handover_rate) = NonZeroU32::new(raw.handover_rate) else {
            return Err(ConfigError::HandoverRateZero);
        };
        if silence > election {
            return Err(ConfigError::SilenceBeyondElection { silence, election });
        }
        let least = 2 * crate::limits::UNAPPLIED_ENTRIES_MAX;
        if raw.retained_entries_max < least {
            return Err(ConfigError::RetainedTooFew {
                got: raw.retained_entries_max,
                least,
            });
        }
        Ok(Self {
            heartbeat_interval: heartbeat,
            election_timeout: election,
            campaign_rate,
            restart_silence: silence,
            retained_entries_max: raw.retained_entries_max,
            leader_placement: raw.leader_placement,
            handover_rate,
            #[cfg(feature = "debug-keys")]
            debug_ack_delay: Duration::from_millis(raw.debug_ack_delay_ms.into()),
            #[cfg(feature = "debug-keys")]
            debug_message_sleep: Duration::from_millis(raw.debug_message_sleep_ms.into()),
        })
    }
}

impl RaftConfig {
    /// From round to round.
    #[must_use]
    pub fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_interval
    }

    /// Without a beat for this long, a replica may campaign and vote.
    #[must_use]
    pub fn election_timeout(&self) -> Duration {
        self.election_timeout
    }

    /// Campaigns a second and shard.
    #[must_use]
    pub fn campaign_rate(&self) -> NonZeroU32 {
        self.campaign_rate
    }

    /// No vote and no campaign for this long after a start.
    #[must_use]
    pub fn restart_silence(&self) -> Duration {
        self.restart_silence
    }

    /// Where the leaders of groups are to be.
    #[must_use]
    pub fn leader_placement(&self) -> LeaderPlacement {
        self.leader_placement
    }

    /// Hand-overs begun a second and shard, for the sake of placement.
    #[must_use]
    pub fn handover_rate(&self) -> NonZeroU32 {
        self.handover_rate
    }

    /// How late every ack of a follower leaves.
    #[cfg(feature = "debug-keys")]
    #[must_use]
    pub fn debug_ack_delay(&self) -> Duration {
        self.debug_ack_delay
    }

    /// How long a follower's shard sleeps for every append that it stepped.
    #[cfg(feature = "debug-keys")]
    #[must_use]
    pub fn debug_message_sleep(&self) -> Duration {
        self.debug_message_sleep
    }

    /// Entries one group retains for its slowest member.
    #[must_use]
    pub fn retained_entries_max(&self) -> u64 {
        self.retained_entries_max
    }
}

/// `[host]` as written, and where a stop may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawHostConfig {
    /// Threads that own the groups; the same number on every node, as groups map to shards by it.
    /// Absent: one per core.
    pub shards: Option<u16>,
    /// Threads that run state machines. Absent: as many as shards.
    pub apply_workers: Option<u16>,
    /// How long a stop waits for what is unfinished.
    pub drain_timeout_ms: u32,
}

/// The defaults; ten seconds are commit-wait.md's bound of a drain.
pub const HOST_DEFAULTS: RawHostConfig = RawHostConfig {
    shards: None,
    apply_workers: None,
    drain_timeout_ms: 10_000,
};

impl Default for RawHostConfig {
    fn default() -> Self {
        HOST_DEFAULTS
    }
}

/// A group of the node, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Its id.
    pub group: GroupId,
    /// Its members, one of them on this node.
    pub members: Vec<Member>,
    /// Who should lead: it campaigns first at a start, and others hand over to it
    /// ([`LeaderPlacement`]).
    pub preferred: ReplicaId,
}

impl GroupConfig {
    /// A new group with one voter on each of these nodes, whose replica id is its node's number;
    /// who is preferred as the leader goes round with the groups' ids.
    #[must_use]
    pub fn spread(group: GroupId, nodes: &[NodeId]) -> Self {
        let member = |node: &NodeId| Member {
            replica: ReplicaId::new(node.to_u32().into()),
            node: *node,
            kind: MemberKind::Voter,
        };
        let members: Vec<_> = nodes.iter().map(member).collect();
        let turn = usize::try_from(group.to_u64()).unwrap_or(0);
        let preferred = turn
            .checked_rem(members.len())
            .map(|at| members[at].replica);
        Self {
            group,
            members,
            preferred: preferred.unwrap_or_default(),
        }
    }
}

/// `[commit_wait]` as it is written, as far as the host's shell is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawCommitWaitConfig {
    /// Whether proposals are handed off to the waiter; else a worker waits for each.
    pub enabled: bool,
    /// Proposals that may be handed off at once, on the whole node; the next ones wait inline.
    pub max_outstanding: u32,
    /// Workers that admit and propose.
    pub workers: u16,
}

/// The defaults of the published system: commit-wait.md 1 and 3.
pub const COMMIT_WAIT_DEFAULTS: RawCommitWaitConfig = RawCommitWaitConfig {
    enabled: true,
    max_outstanding: 1024,
    workers: 8,
};

impl Default for RawCommitWaitConfig {
    fn default() -> Self {
        COMMIT_WAIT_DEFAULTS
    }
}

/// `[commit_wait]`, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitWaitConfig {
    enabled: bool,
    max_outstanding: usize,
    workers: u16,
}

impl TryFrom<RawCommitWaitConfig> for CommitWaitConfig {
    type Error = ConfigError;

    fn try_from(raw: RawCommitWaitConfig) -> Result<Self, ConfigError> {
        let (name, got, most) = ("commit_wait.workers", raw.workers, WORKERS_MAX);
        if !(1..=most).contains(&got) {
            return Err(ConfigError::ThreadsOutOfRange { name, got, most });
        }
        Ok(Self {
            enabled: raw.enabled,
            max_outstanding: usize::try_from(raw.max_outstanding).unwrap_or(usize::MAX),
            workers: raw.workers,
        })
    }
}

impl CommitWaitConfig {
    /// Whether proposals are handed off at the start.
    #[must_use]
    pub fn enabled(self) -> bool {
        self.enabled
    }

    /// How many may be at once, at the start.
    #[must_use]
    pub fn max_outstanding(self) -> usize {
        self.max_outstanding
    }

    /// Workers that admit and propose.
    #[must_use]
    pub fn workers(self) -> u16 {
        self.workers
    }
}

/// Everything that a host is started with, beside storage, links and state machines.
#[derive(Clone, Debug)]
pub struct HostConfig {
    raft: RaftConfig,
    log: LogConfig,
    shards: u16,
    apply_workers: u16,
    drain_timeout: Duration,
    holds_logs: bool,
    commit_wait: CommitWaitConfig,
    groups: Vec<GroupConfig>,
}

impl HostConfig {
    /// Checks `[host]` and puts it together with the rest.
    ///
    /// # Errors
    /// [`ConfigError`] for a number that is 0 or too large.
    pub fn new(
        raft: RaftConfig,
        log: LogConfig,
        host: RawHostConfig,
        groups: Vec<GroupConfig>,
    ) -> Result<Self, ConfigError> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let cores = u16::try_from(cores).unwrap_or(SHARDS_MAX).min(SHARDS_MAX);
        let checked = |name, got: Option<u16>, default, most| {
            let got = got.unwrap_or(default);
            if (1..=most).contains(&got) {
                Ok(got)
            } else {
                Err(ConfigError::ThreadsOutOfRange { name, got, most })
            }
        };
        let shards = checked("host.shards", host.shards, cores, SHARDS_MAX)?;
        let workers = host.apply_workers;
        let apply_workers = checked("host.apply_workers", workers, shards, APPLY_WORKERS_MAX)?;
        Ok(Self {
            raft,
            log,
            shards,
            apply_workers,
            drain_timeout: Duration::from_millis(host.drain_timeout_ms.into()),
            holds_logs: false,
            commit_wait: CommitWaitConfig::try_from(COMMIT_WAIT_DEFAULTS)?,
            groups,
        })
    }

    /// The same with another `[commit_wait]`.
    #[must_use]
    pub fn with_commit_wait(mut self, commit_wait: CommitWaitConfig) -> Self {
        self.commit_wait = commit_wait;
        self
    }

    /// `[commit_wait]`.
    #[must_use]
    pub fn commit_wait(&self) -> CommitWaitConfig {
        self.commit_wait
    }

    /// The same with every group's log kept until the embedder releases it, as one that copies
    /// what was committed to somewhere else wants it.
    #[must_use]
    pub fn holding_logs(mut self) -> Self {
        self.holds_logs = true;
        self
    }

    /// Whether logs are kept until they are released.
    #[must_use]
    pub fn holds_logs(&self) -> bool {
        self.holds_logs
    }

    /// `[raft]`.
    #[must_use]
    pub fn raft(&self) -> RaftConfig {
        self.raft
    }

    /// `[log]`.
    #[must_use]
    pub fn log(&self) -> LogConfig {
        self.log
    }

    /// Threads that own the groups.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Threads that run state machines.
    #[must_use]
    pub fn apply_workers(&self) -> u16 {
        self.apply_workers
    }

    /// How long a stop waits for what is unfinished.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        self.drain_timeout
    }

    /// The groups.
    #[must_use]
    pub fn groups(&self) -> &[GroupConfig] {
        &self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_accepted() {
        let config = RaftConfig::try_from(RAFT_DEFAULTS).unwrap();
        assert_eq!(config.election_timeout(), Duration::from_secs(1));
    }

    #[test]
    fn each_contradiction_is_named() {
        let with = |change: fn(&mut RawRaftConfig)| {
            let mut raw = RAFT_DEFAULTS;
            change(&mut raw);
            RaftConfig::try_from(raw).unwrap_err()
        };
        assert_eq!(
            with(|r| r.heartbeat_interval_ms = 0),
            ConfigError::HeartbeatZero
        );
        assert!(matches!(
            with(|r| r.heartbeat_interval_ms = 400),
            ConfigError::HeartbeatNotBelowElection { .. }
        ));
        assert_eq!(with(|r| r.campaign_rate = 0), ConfigError::CampaignRateZero);
        assert_eq!(with(|r| r.handover_rate = 0), ConfigError::HandoverRateZero);
        assert!(matches!(
            with(|r| r.restart_silence_ms = 1001),
            ConfigError::SilenceBeyondElection { .. }
        ));
        assert!(matches!(
            with(|r| r.retained_entries_max = 1),
            ConfigError::RetainedTooFew { got: 1, .. }
        ));
    }
}
