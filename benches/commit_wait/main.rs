//! The quorum-ack waiter, off and on: what it brings by the number of clients, of workers and by its
//! cap, where acks come late, where followers are slow, when the leader's node dies and when a
//! follower comes back, and what it costs.
//!
//! Three real node processes. All clients talk to one of them and write keys of groups that it leads,
//! as in the published setting of one leader and its pool of workers. Off and on are switched on the
//! running cluster and alternate, so that all else is the same (A6 and A8 leave no cluster to switch:
//! each of their halves has a fresh one); off is the reference of each row.
//! A finished run is kept under its commit and not repeated when the bench is started again.
//!
//! Ids: `A1` … `A6`, `A8`, `A11`, and their cells such as `A3/64-clients/5-ms`. README says what the
//! figures mean and what they can't show.

#![expect(
    clippy::print_stdout,
    reason = "a bench shows how far it is and what it found"
)]

mod catch_up;
mod kill;
mod saved;
mod settings;
mod show;
mod throughput;

use std::time::Duration;

use benches::Fault;
use benches::arguments::Arguments;
use benches::cluster::{BenchCluster, Shape};
use benches::end::single_threaded;
use benches::report::Report;

use self::saved::{Pair, Saved};
use self::settings::Setting;

const BENCH: &str = "commit_wait";
const NODES: u16 = 3;

/// The node that all clients talk to.
const LEADER: u16 = 1;

/// How long things are, in a full run and in a quick one.
#[derive(Clone, Copy, Debug)]
struct Pace {
    quick: bool,
    runs: usize,
    warm: Duration,
    timed: Duration,
    /// Before a node is killed, and at most after that.
    before_kill: Duration,
    after_kill: Duration,
    /// How long a follower is down.
    down: Duration,
}

const FULL: Pace = Pace {
    quick: false,
    runs: 3,
    warm: Duration::from_secs(1),
    timed: Duration::from_secs(15),
    before_kill: Duration::from_secs(6),
    after_kill: Duration::from_secs(30),
    down: Duration::from_secs(60),
};

const QUICK: Pace = Pace {
    quick: true,
    runs: 2,
    warm: Duration::from_millis(500),
    timed: Duration::from_secs(3),
    before_kill: Duration::from_secs(3),
    after_kill: Duration::from_secs(40),
    down: Duration::from_secs(10),
};

/// A cell with its finished runs.
struct Cell {
    setting: Setting,
    runs: Vec<Pair>,
}

fn main() -> Result<(), Fault> {
    let arguments = Arguments::from_process(BENCH);
    let mut report = Report::new(BENCH, &arguments);
    let pace = if arguments.quick { QUICK } else { FULL };
    let saved = Saved::open(pace.quick);
    let mut cells: Vec<_> = settings::all()
        .into_iter()
        .filter(|setting| arguments.wants(&setting.id()))
        .map(|setting| Cell {
            setting,
            runs: Vec::new(),
        })
        .collect();
    single_threaded()?.block_on(async {
        for run in 1..=pace.runs {
            for alike in cells.chunk_by_mut(|one, other| one.setting.is_like(&other.setting)) {
                run_alike(alike, run, pace, &saved).await?;
            }
        }
        Ok::<_, Fault>(())
    })?;
    show::finish(&mut report, &arguments, &cells)
}

/// One run of cells that can share a cluster; those that were finished before are read.
async fn run_alike(cells: &mut [Cell], run: usize, pace: Pace, saved: &Saved) -> Result<(), Fault> {
    let mut cluster = None;
    for Cell { setting, runs } in cells {
        let id = setting.id();
        if let Some(pair) = saved.load(&id, run) {
            println!("{id}, run {run}: kept from before");
            runs.push(pair);
            continue;
        }
        // Which half is first alternates too.
        let mut pair = Pair::default();
        let order = if run % 2 == 1 {
            [false, true]
        } else {
            [true, false]
        };
        for on in order {
            let half = match setting.experiment {
                "A6" => kill::run(setting, on, pace).await?,
                "A8" => catch_up::run(setting, on, pace).await?,
                _ => {
                    if cluster.is_none() {
                        cluster = Some(up(setting)?);
                    }
                    let cluster = cluster.as_ref().ok_or("no cluster")?;
                    throughput::run(cluster, setting, on, pace).await?
                }
            };
            let shown = show::in_short(setting, &half);
            println!(
                "{id}, run {run}, {}: {shown}",
                if on { "on" } else { "off" }
            );
            *(if on { &mut pair.on } else { &mut pair.off }) = half;
        }
        saved.keep(&id, run, &pair)?;
        runs.push(pair);
    }
    if let Some(cluster) = cluster {
        cluster.verify()?;
        cluster.down()?;
    }
    Ok(())
}

/// A fresh cluster for a setting.
fn up(setting: &Setting) -> Result<BenchCluster, Fault> {
    let millis = |millis: u32| format!("{millis}ms");
    let config = [
        ("commit_wait.workers", setting.workers.to_string()),
        ("debug_ack_delay", millis(setting.ack_delay_ms)),
        ("debug_message_sleep", millis(setting.message_sleep_ms)),
    ];
    BenchCluster::up(Shape {
        program: env!("CARGO_BIN_EXE_multigroup-under-bench"),
        nodes: NODES,
        groups: setting.groups,
        config: config.map(|(key, value)| (key.to_owned(), value)).into(),
    })
}
