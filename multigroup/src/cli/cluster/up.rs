//! `cluster up`: makes what the folder lacks, starts all nodes and waits until every group has a
//! leader and the leaders are spread evenly. Then it leaves them running (`--detach`), or stays, names
//! a node that dies, and stops them at Ctrl-C.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use transport::io::clock;

use super::launch::{
    LOOK_INTERVAL, check_ports, ended_early, kill, running, show_last_lines, start, stop,
};
use super::ports::Ports;
use super::prepare::{self, Options, Wanted};
use super::standing::{Standing, ask};
use super::turn::Turn;
use super::{block_on, credentials, folder_of, of_cluster};
use crate::cli::failure::Failure;
use crate::cli::progress::{Display, count, note};
use crate::cluster::{ClusterFolder, Found, Launched, find, scan};
use crate::config::Config;

/// How long a start may go on without any progress.
const STANDSTILL_MAX: Duration = Duration::from_secs(60);

/// How long to wait for an even spread once every group has a leader.
const BALANCE_PATIENCE: Duration = Duration::from_secs(15);

/// For how long a foreground cluster waits for a node to come back when none is left.
const ALONE_PATIENCE: Duration = Duration::from_secs(2);

/// Start a cluster, and make its certificates and configurations if there are none
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup cluster up --dir demo --nodes 3 --groups 150 --detach\n  \
                  multigroup cluster up --dir demo --config-set log.segment_bytes=16MiB"
)]
pub(super) struct Up {
    /// The cluster's folder
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    options: Options,
    /// Leave the nodes running and return
    #[arg(long)]
    detach: bool,
}

impl Up {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let folder = folder_of(&self.dir)?;
        let wanted = Wanted::of(&self.options, Ports::Default);
        block_on(async {
            let mut stops = Stops::new()?;
            let turn = Turn::take(&folder)?;
            let configs = prepare(&folder, &wanted)?;
            let stopped = async {
                stops.next().await;
            };
            let up = start_all(&folder, &configs, turn, stopped).await?;
            tell(&folder, &configs, &up, self.detach, out).map_err(Failure::of_stdout)?;
            if self.detach {
                return Ok(());
            }
            stay(&folder, up.launched, &mut stops).await
        })
    }
}

/// Makes what a cluster's folder lacks. Of a new cluster that can't have its ports nothing is made:
/// the next attempt may say otherwise.
pub(in crate::cli) fn prepare(
    folder: &ClusterFolder,
    wanted: &Wanted,
) -> Result<Vec<Config>, Failure> {
    let prepared = prepare::plan(folder, wanted)?;
    if prepared.is_new() {
        wanted.ports.hold()?;
        prepared.configs().iter().try_for_each(check_ports)?;
    }
    prepared.make()
}

/// What people call the signal that they send most.
const CTRL_C: &str = "Ctrl-C";

/// What ends a command that stays: Ctrl-C, the request to terminate, or the terminal's end.
pub(in crate::cli) struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Stops {
    pub(in crate::cli) fn new() -> Result<Self, Failure> {
        let caught = |kind| {
            signal(kind).map_err(|error| Failure::work(format!("can't catch Ctrl-C: {error}")))
        };
        Ok(Self {
            interrupt: caught(SignalKind::interrupt())?,
            terminate: caught(SignalKind::terminate())?,
            hang_up: caught(SignalKind::hangup())?,
        })
    }

    /// Waits for one of them, and gives its name.
    pub(in crate::cli) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => CTRL_C,
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "the end of its terminal",
        }
    }
}

/// A cluster that stands.
pub(in crate::cli) struct Started {
    pub(in crate::cli) launched: Vec<Launched>,
    pub(in crate::cli) standing: Standing,
    pub(in crate::cli) took: Duration,
}

/// Starts all nodes; if that fails, or `stopped` is told before they stand, none is left.
pub(in crate::cli) async fn start_all(
    folder: &ClusterFolder,
    configs: &[Config],
    _turn: Turn,
    stopped: impl Future<Output = ()>,
) -> Result<Started, Failure> {
    let nodes: Vec<_> = configs.iter().map(Config::node).collect();
    // Stale pid files are named; a node is found also without one.
    running(folder, &nodes)?;
    if let Some(process) = scan(folder).map_err(of_cluster)?.first() {
        let (dir, node) = (folder.root().display(), process.node());
        return Err(Failure::usage(format!(
            "{dir} is in use: node {node} runs as process {}; stop it with `multigroup cluster \
             down --dir {dir}`, or start a missing node with `multigroup cluster restart`",
            process.pid()
        )));
    }
    for config in configs {
        credentials::check(folder, config)?;
        check_ports(config)?;
    }
    let began = clock::now();
    let mut launched = Vec::with_capacity(nodes.len());
    let risen = rise(folder, configs, &mut launched, began, stopped).await;
    match risen {
        Ok(standing) => Ok(Started {
            launched,
            standing,
            took: clock::now().duration_since(began),
        }),
        Err(failure) => {
            abandon(folder, launched).await;
            Err(failure)
        }
    }
}

/// Starts the processes and waits until they are a cluster.
async fn rise(
    folder: &ClusterFolder,
    configs: &[Config],
    launched: &mut Vec<Launched>,
    began: Instant,
    stopped: impl Future<Output = ()>,
) -> Result<Standing, Failure> {
    for config in configs {
        launched.push(start(folder, config.node())?);
    }
    let mut display = Display::new("cluster up");
    let risen = tokio::select! {
        biased;
        () = stopped => Err(Failure::interrupted("stopped while the nodes were starting")),
        risen = wait(configs, launched, began, &mut display) => risen,
    };
    display.clear();
    risen
}

async fn wait(
    configs: &[Config],
    launched: &mut [Launched],
    began: Instant,
    display: &mut Display,
) -> Result<Standing, Failure> {
    let (mut best, mut moved, mut led_since) = ((0, 0), began, None);
    loop {
        if let Some(failure) = launched.iter_mut().find_map(ended_early) {
            return Err(failure);
        }
        let standing = ask(configs).await;
        let now = clock::now();
        if standing.is_led() {
            let since = *led_since.get_or_insert(now);
            if standing.is_balanced() {
                return Ok(standing);
            }
            if now.duration_since(since) > BALANCE_PATIENCE {
                note(&format!(
                    "note: the leaders are not spread evenly: {}",
                    standing.spread()
                ));
                return Ok(standing);
            }
        } else {
            led_since = None;
        }
        let reached = (standing.up(), standing.led());
        if reached > best {
            (best, moved) = (reached, now);
        }
        if led_since.is_none() && now.duration_since(moved) > STANDSTILL_MAX {
            let first = launched
                .iter()
                .find(|one| Some(one.node) == standing.silent());
            if let Some(silent) = first {
                show_last_lines(silent);
            }
            return Err(Failure::unreachable(format!(
                "{}, and nothing has moved for {} s; see the logs in {}",
                standing.message(),
                STANDSTILL_MAX.as_secs(),
                log_folder(launched)
            )));
        }
        display.show(standing.led(), standing.groups(), &standing.awaited());
        sleep(LOOK_INTERVAL).await;
    }
}

fn log_folder(launched: &[Launched]) -> String {
    let folder = launched.first().and_then(|one| one.log().parent());
    folder.map_or_else(
        || "the cluster's folder".to_owned(),
        |path| path.display().to_string(),
    )
}

/// Ends whatever of a start is there.
async fn abandon(folder: &ClusterFolder, mut launched: Vec<Launched>) {
    let nodes: Vec<_> = launched.iter().map(|one| one.node).collect();
    let stopped = match running(folder, &nodes) {
        Ok(processes) => stop(processes).await,
        Err(failure) => Err(failure),
    };
    if let Err(failure) = stopped {
        note(&format!("note: {failure}"));
    }
    // Also those that have no pid file yet.
    for one in &mut launched {
        // It fails only for a process that has ended.
        let _ended = one.child.kill().await;
    }
}

fn tell(
    folder: &ClusterFolder,
    configs: &[Config],
    up: &Started,
    detach: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let cluster = configs.first().map_or("", |config| &config.raw().cluster);
    writeln!(
        out,
        "cluster {cluster}: {}, {}, all led after {:.1} s ({})",
        count(configs.len() as u64, "node"),
        count(up.standing.groups(), "group"),
        up.took.as_secs_f64(),
        up.standing.spread()
    )?;
    for (config, launched) in configs.iter().zip(&up.launched) {
        writeln!(
            out,
            "node {}: clients {}, admin http://{}, process {}, log {}",
            config.node(),
            config.listen_client(),
            config.listen_admin(),
            launched.child.id().unwrap_or_default(),
            launched.log().display()
        )?;
    }
    if detach {
        let dir = folder.root().display();
        writeln!(out, "stop it with `multigroup cluster down --dir {dir}`")?;
    } else {
        writeln!(out, "stop it with Ctrl-C")?;
    }
    out.flush()
}

/// Stays until told to stop, or until no node is left. A node may be killed and started again from
/// elsewhere meanwhile.
async fn stay(
    folder: &ClusterFolder,
    mut launched: Vec<Launched>,
    stops: &mut Stops,
) -> Result<(), Failure> {
    let nodes: Vec<_> = launched.iter().map(|one| one.node).collect();
    let by = tokio::select! {
        biased;
        by = stops.next() => by,
        ended = watch(folder, &nodes, &mut launched) => {
            return match ended {
                Ended::Stopped => {
                    note("all nodes have been stopped");
                    Ok(())
                }
                Ended::Died => Err(Failure::work(
                    "all nodes have ended, and not all of them were stopped; see above and their logs",
                )),
            };
        }
    };
    note("stopping the nodes; Ctrl-C again kills them");
    let stopped = tokio::select! {
        biased;
        _ = stops.next() => {
            note("killing the nodes");
            for process in running(folder, &nodes)? {
                kill(&process).await?;
            }
            Ok(())
        }
        stopped = async { stop(running(folder, &nodes)?).await } => stopped,
    };
    stopped?;
    Err(Failure::interrupted(format!("stopped by {by}")))
}

/// How the nodes ended that were started here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Somebody stopped them all, as `cluster down` does.
    Stopped,
    /// One ended in another way.
    Died,
}

/// Names each node that ends; returns when none has run for a moment.
async fn watch(folder: &ClusterFolder, nodes: &[u64], launched: &mut Vec<Launched>) -> Ended {
    let mut alone_since = None;
    let mut how = Ended::Stopped;
    loop {
        let mut at = 0;
        while let Some(one) = launched.get_mut(at) {
            let Some(status) = one.child.try_wait().ok().flatten() else {
                at += 1;
                continue;
            };
            if status.success() {
                note(&format!("node {} has stopped", one.node));
            } else {
                how = Ended::Died;
                show_last_lines(one);
                note(&format!(
                    "node {} died ({status}); start it again with `multigroup cluster restart \
                     --dir {} --node {}`",
                    one.node,
                    folder.root().display(),
                    one.node
                ));
            }
            launched.remove(at);
        }
        let now = clock::now();
        if launched.is_empty() && !any_runs(folder, nodes) {
            let since = *alone_since.get_or_insert(now);
            if now.duration_since(since) > ALONE_PATIENCE {
                return how;
            }
        } else {
            alone_since = None;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn any_runs(folder: &ClusterFolder, nodes: &[u64]) -> bool {
    nodes
        .iter()
        .any(|node| matches!(find(folder, *node), Ok(Found::Running(_))))
}
