//! A follower is killed at full load, is down for a while and is started again. Measured from its
//! start: until it holds all that the leader's node had applied when it was asked (coherent again),
//! how many bytes it was sent by how many it had missed (what the other follower was sent over the
//! same time), and the clients' p99 meanwhile by that before the kill.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use benches::Fault;
use benches::clients::LedGroups;
use benches::cluster::BenchCluster;
use benches::meter::Latencies;
use bytes::Bytes;
use multigroup::admin::GroupStatus;
use multigroup::cluster::NodeSignal;
use multigroup::load::{Answer, Client};
use serde_json::Value;
use tokio::task::{LocalSet, spawn_blocking};
use tokio::time::sleep;
use transport::io::clock;

use crate::saved::Figures;
use crate::settings::Setting;
use crate::throughput::switch;
use crate::{LEADER, Pace, up};

/// The follower that is killed, and the one that isn't.
const KILLED: u16 = 3;
const OTHER: u16 = 2;

const KEYS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at how far it is, and how long it may take in all.
const LOOK: Duration = Duration::from_millis(100);
const CATCH_UP_MAX: Duration = Duration::from_secs(180);

/// What a client's write falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Warm,
    Steady,
    Down,
    CatchingUp,
    After,
}

/// What the clients share.
struct Shared {
    stop: Cell<bool>,
    phase: Cell<Phase>,
    latencies: RefCell<BTreeMap<Phase, Latencies>>,
}

impl Shared {
    async fn write(&self, mut connection: Client, keys: &[Bytes]) -> Result<(), Fault> {
        for (number, key) in (0_u64..).zip(keys.iter().cycle()) {
            if self.stop.get() {
                break;
            }
            let (sent, phase) = (clock::now(), self.phase.get());
            let value = format!("{number:016}");
            let words: [&[u8]; 3] = [b"SET", key, value.as_bytes()];
            let answer = connection.call(&words, sent + PATIENCE).await?;
            if answer != Answer::Word(Bytes::from_static(b"OK")) {
                return Err(format!("a write was answered with {answer}").into());
            }
            let mut latencies = self.latencies.borrow_mut();
            let of_phase = latencies.entry(phase).or_default();
            of_phase.record(clock::now() - sent, 1);
        }
        Ok(())
    }

    fn p99_us(&self, phase: Phase) -> f64 {
        let latencies = self.latencies.borrow();
        let of_phase = latencies.get(&phase);
        of_phase.map_or(f64::NAN, |latencies| latencies.quantile_us(0.99))
    }

    fn count(&self, phase: Phase) -> f64 {
        let latencies = self.latencies.borrow();
        latencies.get(&phase).map_or(0.0, |of| of.frames() as f64)
    }
}

pub(crate) async fn run(setting: &Setting, on: bool, pace: Pace) -> Result<Figures, Fault> {
    let cluster = up(setting)?;
    switch(&cluster, LEADER, setting, on).await?;
    let led = LedGroups::of(&cluster, LEADER).await?;
    let shared = Rc::new(Shared {
        stop: Cell::new(false),
        phase: Cell::new(Phase::Warm),
        latencies: RefCell::default(),
    });
    let set = LocalSet::new();
    let mut running = Vec::new();
    for client in 0..setting.clients {
        let until = clock::now() + PATIENCE;
        let connection = Client::connect(&cluster.client(LEADER)?, until).await?;
        let (shared, keys) = (Rc::clone(&shared), led.keys(client, KEYS));
        let writer = async move { shared.write(connection, &keys).await };
        running.push(set.spawn_local(writer));
    }
    let figures = set
        .run_until(async {
            let figures = phases(&cluster, &shared, pace).await?;
            shared.stop.set(true);
            for client in running {
                client.await??;
            }
            Ok::<_, Fault>(figures)
        })
        .await?;
    led.check(&cluster).await?;
    cluster.verify()?;
    cluster.down()?;
    Ok(figures)
}

async fn phases(cluster: &BenchCluster, shared: &Shared, pace: Pace) -> Result<Figures, Fault> {
    sleep(pace.warm).await;
    let steady = pace.timed.max(Duration::from_secs(5));
    shared.phase.set(Phase::Steady);
    sleep(steady).await;
    let killed = cluster.process(KILLED)?;
    let at_kill = cluster.status_of(LEADER).await?;
    killed.signal(NodeSignal::KILL)?;
    shared.phase.set(Phase::Down);
    sleep(pace.down).await;
    let mut restart = cluster.restart_command(KILLED);
    shared.phase.set(Phase::CatchingUp);
    let began = clock::now();
    let output = spawn_blocking(move || restart.output()).await??;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("node {KILLED} didn't start: {said}").into());
    }
    while !has_caught_up(cluster).await? {
        if clock::now() - began > CATCH_UP_MAX {
            return Err(format!("node {KILLED} isn't back after {CATCH_UP_MAX:?}").into());
        }
        sleep(LOOK).await;
    }
    let took = clock::now() - began;
    shared.phase.set(Phase::After);
    let then = cluster.status_of(LEADER).await?;
    let sent = |peer| Ok::<_, Fault>(bulk_bytes(&then, peer)? - bulk_bytes(&at_kill, peer)?);
    let (to_it, missed) = (sent(KILLED)?, sent(OTHER)?);
    sleep(pace.timed).await;
    let mut figures = Figures::new();
    let mut put = |unit: &str, value: f64| figures.insert(unit.to_owned(), value);
    put("coherent_after_s", took.as_secs_f64());
    put("bytes_sent_by_missed", to_it / missed);
    put("missed_mib", missed / f64::from(1 << 20));
    let steady_p99 = shared.p99_us(Phase::Steady);
    put("p99_us", steady_p99);
    put(
        "catching_up_p99_by_steady",
        shared.p99_us(Phase::CatchingUp) / steady_p99,
    );
    put(
        "down_p99_by_steady",
        shared.p99_us(Phase::Down) / steady_p99,
    );
    put(
        "commits_per_s",
        shared.count(Phase::Steady) / steady.as_secs_f64(),
    );
    let rate = shared.count(Phase::CatchingUp) / took.as_secs_f64();
    put("commits_per_s_catching_up", rate);
    Ok(figures)
}

/// Whether the follower holds what the leader's node had applied just before it was asked. A node
/// that doesn't answer yet doesn't.
async fn has_caught_up(cluster: &BenchCluster) -> Result<bool, Fault> {
    let ahead = cluster.groups_of(LEADER).await?;
    let Ok(behind) = cluster.groups_of(KILLED).await else {
        return Ok(false);
    };
    let applied = |groups: &[GroupStatus]| -> BTreeMap<u64, u64> {
        let groups = groups.iter();
        groups
            .map(|group| (group.group, group.applied_index))
            .collect()
    };
    let behind = applied(&behind);
    let holds = |(group, index): (u64, u64)| behind.get(&group).is_some_and(|at| *at >= index);
    Ok(applied(&ahead).into_iter().all(holds))
}

/// What a node has sent to a peer on its bulk lanes, over all sessions.
fn bulk_bytes(status: &Value, peer: u16) -> Result<f64, Fault> {
    let lanes = status["peers"].as_array().ok_or("status names no peers")?;
    let bulk = lanes
        .iter()
        .filter(|lane| lane["lane"] == "bulk" && lane["peer"] == peer);
    let bytes: Option<Vec<f64>> = bulk.map(|lane| lane["bytes_sent"].as_f64()).collect();
    let bytes = bytes.filter(|bytes| !bytes.is_empty());
    Ok(bytes.ok_or("status names no bulk lane")?.iter().sum())
}
