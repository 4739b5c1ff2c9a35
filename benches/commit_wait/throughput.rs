//! One half of a run: the waiter is switched, the clients write, and it is held that the writes went
//! the way that was meant: handed off, or each waited for by a worker. CPU time is that of the timed
//! part alone; the waiter's own counters also cover the moments before and after it, and are
//! divided by the commits of the same time.

use std::time::Duration;

use benches::Fault;
use benches::clients::{LedGroups, Writing, write};
use benches::cluster::BenchCluster;
use benches::processes::{ByThread, usage};
use serde_json::Value;
use transport::io::clock;

use crate::saved::Figures;
use crate::settings::Setting;
use crate::{LEADER, Pace};

/// Keys of each client.
const KEYS: usize = 8;

/// Counters of shards are published once a heartbeat.
const PUBLISHED: Duration = Duration::from_millis(250);

/// What has been used so far, by whom.
struct Used {
    nodes: ByThread,
    leader: ByThread,
    clients: ByThread,
    machine: Duration,
}

impl Used {
    fn read(nodes: &[i32], leader: i32) -> Result<Self, Fault> {
        Ok(Self {
            nodes: usage(nodes)?,
            leader: usage(&[leader])?,
            clients: usage(&[i32::try_from(std::process::id())?])?,
            machine: machine()?,
        })
    }
}

/// The time that this machine's cores have worked, for whomever.
fn machine() -> Result<Duration, Fault> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks: Option<Vec<u64>> = text.lines().next().and_then(|line| {
        let numbers = line.split_whitespace().skip(1);
        numbers.map(|number| number.parse().ok()).collect()
    });
    let ticks = ticks.ok_or("/proc/stat isn't as expected")?;
    // All but what was idle or waited for a disk; guests are in the first two already.
    let worked = ticks.iter().take(8).enumerate();
    let worked = worked.filter(|(kind, _)| ![3, 4].contains(kind));
    Ok(Duration::from_millis(
        10 * worked.map(|(_, ticks)| ticks).sum::<u64>(),
    ))
}

/// Switches the waiter of one node.
pub(crate) async fn switch(
    cluster: &BenchCluster,
    node: u16,
    setting: &Setting,
    on: bool,
) -> Result<(), Fault> {
    let (enabled, cap) = (on.to_string(), setting.cap.to_string());
    cluster.set(node, "commit_wait.enabled", &enabled).await?;
    cluster.set(node, "commit_wait.max_outstanding", &cap).await
}

pub(crate) async fn run(
    cluster: &BenchCluster,
    setting: &Setting,
    on: bool,
    pace: Pace,
) -> Result<Figures, Fault> {
    switch(cluster, LEADER, setting, on).await?;
    let led = LedGroups::of(cluster, LEADER).await?;
    let nodes = cluster.processes()?;
    let leader = cluster.process(LEADER)?.pid();
    tokio::time::sleep(PUBLISHED).await;
    let (before, began) = (cluster.status_of(LEADER).await?, clock::now());
    let writing = Writing {
        clients: setting.clients,
        keys: KEYS,
        warm: pace.warm,
        lasting: pace.timed,
    };
    let endpoint = cluster.client(LEADER)?;
    let mut used = Vec::new();
    let written = write(&endpoint, &led, writing, || {
        used.push(Used::read(&nodes, leader)?);
        Ok(())
    });
    let written = written.await?;
    let took = clock::now() - began;
    tokio::time::sleep(PUBLISHED).await;
    let after = cluster.status_of(LEADER).await?;
    led.check(cluster).await?;
    let [from, until] = &used[..] else {
        return Err("the timed part wasn't measured at both ends".into());
    };
    let mut figures = Figures::new();
    let mut put = |unit: &str, value: f64| {
        figures.insert(unit.to_owned(), value);
    };
    put("commits_per_s", written.per_s);
    put("p50_us", written.latencies.quantile_us(0.5));
    put("p99_us", written.latencies.quantile_us(0.99));
    if setting.ack_delay_ms > 0 {
        let most = setting.clients as f64 / (f64::from(setting.ack_delay_ms) / 1e3);
        put("share_of_clients_by_delay", written.per_s / most);
    }
    costs(&mut put, from, until, written.acked as f64, pace.timed);
    counted(&mut put, &before, &after, took)?;
    check_way(setting, on, &figures)?;
    Ok(figures)
}

fn costs(put: &mut impl FnMut(&str, f64), from: &Used, until: &Used, acked: f64, time: Duration) {
    let leader = until.leader.since(&from.leader);
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / acked;
    let nodes = until.nodes.since(&from.nodes).total().cpu;
    let clients = until.clients.since(&from.clients).total().cpu;
    put("nodes_cpu_us_per_commit", each(nodes));
    put("leader_cpu_us_per_commit", each(leader.total().cpu));
    put("clients_cpu_us_per_commit", each(clients));
    let shard: Duration = leader
        .kinds()
        .filter(|(kind, _)| *kind == "raft-shard")
        .map(|(_, used)| used.cpu)
        .sum();
    put("leader_shard_cpu_us_per_commit", each(shard));
    put(
        "leader_sleeps_per_commit",
        leader.total().sleeps as f64 / acked,
    );
    let machine = until.machine.saturating_sub(from.machine);
    let others = machine.saturating_sub(nodes + clients);
    put(
        "others_busy_cores",
        others.as_secs_f64() / time.as_secs_f64(),
    );
}

/// The waiter's own counters, by the commits that it counted.
fn counted(
    put: &mut impl FnMut(&str, f64),
    before: &Value,
    after: &Value,
    took: Duration,
) -> Result<(), Fault> {
    let grown = |name: &str| {
        let of = |status: &Value| status["commit_wait"][name].as_f64();
        let (before, after) = (of(before), of(after));
        let grown = after.zip(before).map(|(after, before)| after - before);
        grown.ok_or_else(|| format!("status names no commit_wait.{name}"))
    };
    let (handed_off, inline) = (grown("enqueued_total")?, grown("inline_total")?);
    let commits = handed_off + inline;
    put("handed_off_share", handed_off / commits);
    put(
        "inline_since_full_share",
        grown("inline_full_total")? / commits,
    );
    put("passes_per_s", grown("passes_total")? / took.as_secs_f64());
    put("passes_per_commit", grown("passes_total")? / commits);
    put("looked_at_per_reply", grown("looked_at_total")? / commits);
    put(
        "worker_wakeups_per_commit",
        grown("worker_wakeups_total")? / commits,
    );
    put(
        "shard_turns_per_commit",
        grown("shard_turns_total")? / commits,
    );
    Ok(())
}

/// Off, nothing is handed off; on, all is, or as much as the cap allows.
fn check_way(setting: &Setting, on: bool, figures: &Figures) -> Result<(), Fault> {
    let of = |unit: &str| figures.get(unit).copied().unwrap_or(f64::NAN);
    let (handed_off, full) = (of("handed_off_share"), of("inline_since_full_share"));
    let right = if on {
        let fits = setting.clients <= usize::try_from(setting.cap)?;
        // A write at the switch may still go the other way.
        handed_off + full > 0.999 && (!fits || full == 0.0)
    } else {
        handed_off == 0.0
    };
    if right {
        return Ok(());
    }
    Err(format!(
        "{}: with the waiter {}, {handed_off} of the commits were handed off, and {full} weren't \
         since the cap was reached",
        setting.id(),
        if on { "on" } else { "off" }
    )
    .into())
}
