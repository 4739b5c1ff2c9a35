//! What a node says of itself on its admin port, over its whole life: while it starts, while its
//! host runs, and for the last time once that has ended. It counts nothing of its own.
//!
//! What isn't known yet, or isn't there in this version, has its place in the shape all the same:
//! no group sleeps, and without an archive `archive` is null.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use raft_host::Host;
use raft_host::id::{GroupId, Index};
use raft_host::io::Group;
use raft_host::log::DiskState;
use raft_host::metrics::{self, Stats};
use raft_host::proto::consensus::Role;
use time::OffsetDateTime;
use tokio::task::JoinSet;
use tokio::time::sleep;
use transport::io::clock;
use transport::{Credentials, Incarnation};

use super::live;
use super::machine::Machines;
use crate::admin::{
    CommitWaitStatus, DiskHealth, Exposition, GroupCounts, GroupRole, GroupStatus, HandoverStatus,
    Kind, LogStatus, ProposalStatus, ReplicaFault, ReplicaState, RoundStatus, STATUS_SCHEMA,
    SettingFault, Status, StatusSource, TlsStatus, Unfit, lane_statuses,
};
use crate::archive;
use crate::causes::with_causes;
use crate::certificates::rfc3339;
use crate::config::Config;
use crate::limits::{CATCH_UP_INTERVAL, GROUP_QUESTIONS_MAX};
use crate::store::Store;

/// How far a node is in its life.
enum Phase {
    Starting,
    Running(Arc<Host>),
    /// Its host is being stopped.
    Stopping,
    /// It has stopped, and this is how it stood.
    Stopped(Box<Stats>),
}

/// Answers for a node.
pub(super) struct Source {
    config: Config,
    store: Arc<Store>,
    machines: Machines,
    /// As they were at the start; a running host says what they are since.
    credentials: Credentials,
    archive: Option<Arc<archive::Shared>>,
    incarnation: OnceLock<Incarnation>,
    groups: OnceLock<Vec<Group>>,
    phase: Mutex<Phase>,
    /// Every group here has applied what was known to be committed at the start, and had a leader.
    caught_up: AtomicBool,
    stopping: AtomicBool,
}

impl Source {
    pub(super) fn new(
        config: Config,
        store: Arc<Store>,
        machines: Machines,
        credentials: Credentials,
        archive: Option<Arc<archive::Shared>>,
    ) -> Self {
        Self {
            config,
            store,
            machines,
            credentials,
            archive,
            incarnation: OnceLock::new(),
            groups: OnceLock::new(),
            phase: Mutex::new(Phase::Starting),
            caught_up: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The data folder is known.
    pub(super) fn name(&self, incarnation: Incarnation) {
        // It is named once.
        let _ = self.incarnation.set(incarnation);
    }

    /// The data folder's identity, once it is known.
    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation.get().copied()
    }

    /// Speaks for a host from now on, and its groups, which are all of the key space.
    pub(super) fn begin(&self, host: Arc<Host>, groups: Vec<Group>) {
        // It is begun once.
        let _ = self.groups.set(groups);
        *self.phase() = Phase::Running(host);
    }

    /// Clients had better go elsewhere.
    pub(super) fn announce_stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Gives the host back, so that it can be stopped.
    pub(super) fn release(&self) -> Option<Arc<Host>> {
        match std::mem::replace(&mut *self.phase(), Phase::Stopping) {
            Phase::Running(host) => Some(host),
            Phase::Starting | Phase::Stopping | Phase::Stopped(_) => None,
        }
    }

    /// How the node stood when its host had ended.
    pub(super) fn end(&self, stats: Stats) -> Status {
        *self.phase() = Phase::Stopped(Box::new(stats));
        self.status()
    }

    /// Waits until every group here knows a leader and has applied what was known to be committed
    /// when this was called.
    pub(super) async fn catch_up(&self) {
        let mut behind: Vec<(Group, Option<Index>)> = self
            .groups
            .get()
            .map(|groups| groups.iter().map(|group| (group.clone(), None)).collect())
            .unwrap_or_default();
        while !behind.is_empty() {
            let mut left = Vec::new();
            for chunk in behind.chunks(GROUP_QUESTIONS_MAX) {
                let asked = ask_all(chunk.iter().map(|(group, _)| group.clone())).await;
                for ((group, goal), status) in chunk.iter().zip(asked) {
                    let Some(status) = status else {
                        left.push((group.clone(), *goal));
                        continue;
                    };
                    let goal = goal.unwrap_or(status.commit);
                    if status.leader.is_none() || status.applied < goal {
                        left.push((group.clone(), Some(goal)));
                    }
                }
            }
            behind = left;
            if !behind.is_empty() {
                sleep(CATCH_UP_INTERVAL).await;
            }
        }
        self.caught_up.store(true, Ordering::Release);
        tracing::info!("every group has a leader and has caught up");
    }

    fn stats(&self) -> Option<Stats> {
        let host = match &*self.phase() {
            Phase::Running(host) => Arc::clone(host),
            Phase::Stopped(stats) => return Some((**stats).clone()),
            Phase::Starting | Phase::Stopping => return None,
        };
        host.stats()
    }

    fn unfit(&self, stats: Option<&Stats>) -> Result<(), Unfit> {
        let unfit = |reason: String| {
            let reason = reason.into();
            Err(Unfit { reason })
        };
        if self.stopping.load(Ordering::Acquire) {
            return unfit("the node is stopping".to_owned());
        }
        let Some(stats) = stats else {
            return unfit("the node is starting".to_owned());
        };
        if let Some(failure) = &stats.failure {
            return unfit(with_causes(failure));
        }
        if stats.groups.leaderless > 0 {
            let count = stats.groups.leaderless;
            return unfit(format!("{count} groups know no leader"));
        }
        if !self.caught_up.load(Ordering::Acquire) {
            return unfit("some groups have not applied what was committed yet".to_owned());
        }
        Ok(())
    }

    fn tls(&self) -> TlsStatus {
        let (facts, issued) = (self.credentials.facts(), self.credentials.list_issued());
        tls_status(facts.not_after, &facts.serial, issued)
    }

    fn shape(&self) -> Status {
        let groups = u64::from(self.config.space().groups());
        Status {
            schema: STATUS_SCHEMA.into(),
            node: self.config.node(),
            cluster: self.config.raw().cluster.clone(),
            incarnation: self
                .incarnation
                .get()
                .map(ToString::to_string)
                .unwrap_or_default(),
            ready: false,
            groups: GroupCounts {
                total: groups,
                leaderless: groups,
                ..GroupCounts::default()
            },
            peers: Vec::new(),
            commit_wait: CommitWaitStatus {
                enabled: self.config.raw().commit_wait.enabled,
                cap: self.config.raw().commit_wait.max_outstanding.into(),
                workers: self.config.raw().commit_wait.workers.into(),
                ..CommitWaitStatus::default()
            },
            log: LogStatus::default(),
            archive: self.archive.as_ref().map(|archive| archive.status()),
            tls: self.tls(),
            rounds: RoundStatus::default(),
            handovers: HandoverStatus::default(),
            proposals: ProposalStatus::default(),
            failure: None,
        }
    }
}

fn tls_status(not_after: i64, serial: &str, list_issued: Option<i64>) -> TlsStatus {
    let not_after = OffsetDateTime::from_unix_timestamp(not_after);
    let now = OffsetDateTime::from(clock::wall()).unix_timestamp();
    let age = list_issued.map(|issued| u64::try_from(now - issued).unwrap_or(0));
    TlsStatus {
        cert_not_after: not_after.map(rfc3339).unwrap_or_default(),
        cert_serial: serial.to_owned(),
        crl_age_s: age,
        ..TlsStatus::default()
    }
}

/// What the transport presents and believes now.
fn live_tls(credentials: &transport::io::CredentialsStatus) -> TlsStatus {
    let leaf = &credentials.leaf;
    TlsStatus {
        reloads_total: credentials.reloads,
        reloads_refused_total: credentials.refused_reloads,
        reload_fault: credentials.fault.clone(),
        ..tls_status(leaf.not_after, &leaf.serial, credentials.list_issued)
    }
}

/// Each group's status, in order; all are asked at once.
async fn ask_all(groups: impl Iterator<Item = Group>) -> Vec<Option<metrics::GroupStatus>> {
    let mut asking = JoinSet::new();
    for (at, group) in groups.enumerate() {
        asking.spawn(async move { (at, group.status().await) });
    }
    let mut answers = vec![None; asking.len()];
    while let Some(answer) = asking.join_next().await {
        if let Ok((at, status)) = answer
            && let Some(slot) = answers.get_mut(at)
        {
            *slot = status;
        }
    }
    answers
}

fn group_status(
    group: GroupId,
    status: &metrics::GroupStatus,
    archived_index: Option<u64>,
) -> GroupStatus {
    GroupStatus {
        group: group.to_u64(),
        role: match status.role {
            Role::Leader => GroupRole::Leader,
            Role::Follower => GroupRole::Follower,
            Role::Candidate => GroupRole::Candidate,
        },
        leader: status.leader.map(|node| node.to_u32().into()),
        term: status.term.to_u64(),
        commit_index: status.commit.to_u64(),
        applied_index: status.applied.to_u64(),
        sleeping: false,
        archived_index,
    }
}

fn group_counts(counts: &metrics::GroupCounts) -> GroupCounts {
    GroupCounts {
        total: counts.total,
        leading: counts.leading,
        following: counts.following,
        sleeping: 0,
        leaderless: counts.leaderless,
        leader_changes_total: counts.leader_changes,
    }
}

fn log_status(stats: &Stats, applying_waits: bool) -> LogStatus {
    let log = &stats.log;
    LogStatus {
        last_sync_us: u64::try_from(log.last_sync.as_micros()).unwrap_or(u64::MAX),
        unsynced_bytes: log.unsynced_bytes,
        disk: match log.disk {
            DiskState::Failed => DiskHealth::Failed,
            DiskState::Full => DiskHealth::Full,
            DiskState::Ok if applying_waits => DiskHealth::Full,
            DiskState::Ok => DiskHealth::Ok,
        },
    }
}

fn round_status(stats: &Stats, config: &Config) -> RoundStatus {
    let interval = config.raw().raft.heartbeat_interval.0;
    let totals = stats.rounds();
    let mut rounds = RoundStatus {
        shards: totals.shards,
        heartbeat_interval_ms: u64::try_from(interval.as_millis()).unwrap_or(u64::MAX),
        rounds_total: totals.rounds_total,
        read_rounds_total: totals.read_rounds_total,
        beat_frames_total: totals.beat_frames_total,
        beats_listed_total: totals.beat_groups_total,
        beat_bytes_total: totals.beat_bytes_total,
        beat_group_bytes_total: totals.beat_group_bytes_total,
        ..RoundStatus::default()
    };
    for shard in &stats.shards {
        let core = &shard.core;
        rounds.restated_total += core.restated;
        rounds.dissents_total += core.dissents;
        rounds.campaigns_total += core.campaigns;
        rounds.elected_total += core.elected;
    }
    rounds
}

fn handover_status(stats: &Stats) -> HandoverStatus {
    let mut all = HandoverStatus::default();
    for shard in &stats.shards {
        all.groups_astray += shard.groups_astray;
        all.begun_total += shard.core.handovers_begun;
        all.finished_total += shard.core.handovers_finished;
        all.failed_total += shard.core.handovers_failed;
        all.taken_total += shard.core.handovers_taken;
        all.proposals_held_total += shard.core.handover_proposals_held;
    }
    all
}

fn proposal_status(stats: &Stats) -> ProposalStatus {
    let mut all = ProposalStatus::default();
    for shard in &stats.shards {
        all.waiting += shard.waiting;
        all.committed_total += shard.proposals.committed;
        all.refused_total += shard.proposals.refused;
        all.unknown_total += shard.proposals.unknown;
        all.forwards_sent_total += shard.core.forwards_sent;
        all.forwards_taken_total += shard.core.forwards_taken;
        all.forwards_held_total += shard.core.forwards_held;
    }
    all
}

impl StatusSource for Source {
    fn status(&self) -> Status {
        let (stats, mut status) = (self.stats(), self.shape());
        if let Some(stats) = &stats {
            status.ready = self.unfit(Some(stats)).is_ok();
            status.groups = group_counts(&stats.groups);
            status.peers = lane_statuses(&stats.transport);
            status.log = log_status(stats, self.machines.is_disk_full());
            status.rounds = round_status(stats, &self.config);
            status.proposals = proposal_status(stats);
            status.commit_wait = live::commit_wait(&stats.commit_wait, &stats.shards);
            status.handovers = handover_status(stats);
            status.tls = live_tls(&stats.transport.credentials);
            status.failure = stats.failure.as_ref().map(|it| with_causes(it));
        }
        status
    }

    fn health(&self) -> Result<(), Unfit> {
        match self.stats().and_then(|stats| stats.failure) {
            None => Ok(()),
            Some(failure) => {
                let reason = with_causes(&failure).into();
                Err(Unfit { reason })
            }
        }
    }

    fn readiness(&self) -> Result<(), Unfit> {
        self.unfit(self.stats().as_ref())
    }

    async fn groups(&self, after: Option<GroupId>, limit: usize) -> Vec<GroupStatus> {
        let Some(groups) = self.groups.get() else {
            return Vec::new();
        };
        let from = after.map_or(0, |after| after.to_u64().saturating_add(1));
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let page: Vec<_> = groups.iter().skip(from).take(limit).cloned().collect();
        let mut told = Vec::with_capacity(page.len());
        for chunk in page.chunks(GROUP_QUESTIONS_MAX) {
            let answers = ask_all(chunk.iter().cloned()).await;
            for (group, status) in chunk.iter().zip(answers) {
                let archived = self.archive.as_ref();
                let archived = archived.and_then(|archive| archive.position(group.id()));
                told.extend(status.map(|status| group_status(group.id(), &status, archived)));
            }
        }
        told
    }

    async fn replica(&self, group: GroupId) -> Result<ReplicaState, ReplicaFault> {
        if group.to_u64() >= self.config.space().groups().into() {
            return Err(ReplicaFault::Absent { group });
        }
        let machines = self.machines.clone();
        let digest = tokio::task::spawn_blocking(move || machines.digest(group)).await;
        match digest {
            Ok(Ok((applied, digest))) => Ok(ReplicaState {
                applied_index: applied.to_u64(),
                digest: digest.to_hex(),
                rows: digest.rows,
            }),
            Ok(Err(source)) => Err(ReplicaFault::Store { group, source }),
            Err(_) => Err(ReplicaFault::Unavailable {
                group,
                reason: "reading it was broken off".into(),
            }),
        }
    }

    fn set(&self, key: &str, value: &str) -> Result<String, SettingFault> {
        let host = match &*self.phase() {
            Phase::Running(host) => Arc::clone(host),
            Phase::Starting | Phase::Stopping | Phase::Stopped(_) => {
                return Err(SettingFault::NotRunning);
            }
        };
        live::set(&host, key, value)
    }

    fn add_metrics(&self, out: &mut Exposition) {
        let open = self.store.open_count() as u64;
        let (name, help) = ("multigroup_open_databases", "Databases that are open.");
        out.family(name, Kind::Gauge, help).sample(&[], open);
    }
}
