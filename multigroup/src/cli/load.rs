//! `multigroup load`: a closed loop of writers against running nodes, its figures, and the ledger
//! that `verify` needs. The driver itself is [`crate::load`]; here are arguments, the terminal,
//! Ctrl-C and exit codes.

mod progress;
pub(super) mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use tokio::sync::watch;

use self::progress::Display;
use super::failure::Failure;
use super::json::Target;
use super::progress::note;
use super::wall_clock;
use crate::causes::with_causes;
use crate::config::{Config, Policy};
use crate::load::{
    self, Account, CallError, ClusterFacts, Endpoint, FactsError, Finished, Ledger, LedgerError,
    LoadError, Operation, Plan, PlanError, RawPlan, Route, RunId, Stop,
};

/// What a run does where nothing is said. An operation may take longer than a node takes to give it
/// up, so that the node's answer is heard.
const VALUE_BYTES_DEFAULT: usize = 16;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);

/// Put load on a cluster and account for every operation
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("nodes").required(true),
    after_help = "Example:\n  multigroup load --dir demo --writers 8 --seconds 30\n  \
                  multigroup load --endpoints 127.0.0.1:7201,127.0.0.1:7202 --op mixed --json -"
)]
pub(super) struct Load {
    /// The cluster's folder: nodes are those of its node-N/config.toml, the ledger is kept in it
    #[arg(long, value_name = "DIR", group = "nodes")]
    dir: Option<PathBuf>,
    /// The nodes' client addresses, without a folder and so without a ledger: the run has keys of its
    /// own (free-counter:…, free-value:…), which `verify` knows nothing of
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', group = "nodes")]
    endpoints: Vec<Endpoint>,
    /// Writers, each with one request in flight
    #[arg(long, value_name = "N", default_value_t = 8)]
    writers: usize,
    /// How long, once all keys are there
    #[arg(long, value_name = "S", default_value = "30", value_parser = parse_seconds)]
    seconds: Duration,
    /// How many keys; by default one in each group
    #[arg(long, value_name = "K")]
    keys: Option<usize>,
    /// Bytes of each value that is set, 192512 at most: a command must fit in 192 KiB
    #[arg(long, value_name = "N", default_value_t = VALUE_BYTES_DEFAULT)]
    value_bytes: usize,
    /// What the writers do
    #[arg(long, value_enum, default_value = "incr")]
    op: Op,
    /// Also give figures for windows of this length; the worst one's p99 is among the results
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    window_seconds: Option<Duration>,
    /// Keep each writer at its node, also after a failure
    #[arg(long)]
    pin: bool,
    /// Tell where the time goes
    #[arg(long)]
    phases: bool,
    /// How long an operation may take before it is given up
    #[arg(long, value_name = "S", default_value = "15", value_parser = parse_seconds)]
    timeout_seconds: Duration,
    /// End well also if operations failed
    #[arg(long)]
    allow_errors: bool,
    /// Where to write the result as JSON: a file, or - for stdout instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Op {
    /// Add one to a counter
    Incr,
    /// Set a value
    Set,
    /// Read a value
    Get,
    /// In turn: read, add, read, set
    Mixed,
}

impl From<Op> for Operation {
    fn from(op: Op) -> Self {
        match op {
            Op::Incr => Self::Incr,
            Op::Set => Self::Set,
            Op::Get => Self::Get,
            Op::Mixed => Self::Mixed,
        }
    }
}

impl Load {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        if self.phases {
            return Err(Failure::usage(
                "--phases needs nodes that time the steps of a commit, which this version's don't; \
                 leave it out",
            ));
        }
        // One thread: the writers wait nearly all the time, and each wake-up of a second thread
        // would cost more than their work.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::work(format!("can't start the runtime: {error}")))?;
        let finished = runtime.block_on(async {
            let stop = stop_on_ctrl_c();
            self.drive(stop, async || ()).await
        });
        // An operation that was cut off may hold a name look-up, which can't be cancelled.
        runtime.shutdown_background();
        let (finished, ledger) = finished?;
        self.tell(&finished, ledger.as_deref(), out)?;
        self.judge(&finished)
    }

    /// Adding ones to a counter in each group of a folder's cluster.
    pub(super) fn on_every_group(dir: &Path, writers: usize, seconds: Duration) -> Self {
        Self {
            dir: Some(dir.to_owned()),
            endpoints: Vec::new(),
            writers,
            seconds,
            keys: None,
            value_bytes: VALUE_BYTES_DEFAULT,
            op: Op::Incr,
            window_seconds: None,
            pin: false,
            phases: false,
            timeout_seconds: TIMEOUT_DEFAULT,
            allow_errors: false,
            json: None,
        }
    }

    /// Does the run and keeps its account. `before_start` is done when all keys are there.
    pub(super) async fn drive(
        &self,
        stop: watch::Receiver<Stop>,
        before_start: impl AsyncFnOnce(),
    ) -> Result<(Finished, Option<PathBuf>), Failure> {
        let (endpoints, facts) = match &self.dir {
            Some(dir) => cluster_of(dir)?,
            None => {
                let facts = load::ask(&self.endpoints, self.timeout_seconds).await;
                (self.endpoints.clone(), facts.map_err(of_facts)?)
            }
        };
        let plan = self.plan(endpoints, &facts)?;
        let mut ledger = match &self.dir {
            Some(dir) => {
                warn_of_cut_lines(dir)?;
                Some(Ledger::open(dir).map_err(of_ledger)?)
            }
            None => None,
        };
        let display = Display::new();
        let show = |progress| display.show(progress);
        let finished = load::run_after(plan, run_id(), stop, show, before_start).await;
        display.clear();
        let mut finished = finished.map_err(of_load)?;
        if let Some(ledger) = &mut ledger {
            ledger.append(&finished.ledger).map_err(of_ledger)?;
        }
        finished.report.policy = facts.policy;
        finished.report.log_sync = facts.log_sync;
        Ok((finished, ledger.map(|ledger| ledger.path().to_owned())))
    }

    fn plan(&self, endpoints: Vec<Endpoint>, facts: &ClusterFacts) -> Result<Plan, Failure> {
        let raw = RawPlan {
            endpoints,
            space: facts.space,
            writers: self.writers,
            duration: self.seconds,
            keys: self.keys,
            value_bytes: self.value_bytes,
            operation: self.op.into(),
            window: self.window_seconds,
            route: if self.pin { Route::Pin } else { Route::Roam },
            patience: self.timeout_seconds,
            account: match &self.dir {
                Some(_) => Account::Ledger,
                None => Account::None,
            },
        };
        Plan::try_from(raw).map_err(|error: PlanError| {
            Failure::usage(format!(
                "this load can't be run: {error}; see `multigroup load --help`"
            ))
        })
    }

    fn tell(
        &self,
        finished: &Finished,
        ledger: Option<&Path>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        if self.json != Some(Target::Stdout) {
            table::write(&finished.report, ledger, out).map_err(Failure::of_stdout)?;
        }
        match &self.json {
            Some(target) => target.write(&finished.report, out),
            None => Ok(()),
        }
    }

    /// What is wrong with a run that came to its end.
    pub(super) fn judge(&self, finished: &Finished) -> Result<(), Failure> {
        let pooled = &finished.report.pooled;
        if finished.stopped {
            let seconds = finished.report.seconds;
            return Err(Failure::interrupted(format!(
                "stopped by Ctrl-C after {seconds} s of {} s; the figures are those until then",
                self.seconds.as_secs_f64()
            )));
        }
        if pooled.errors_total == 0 || self.allow_errors {
            return Ok(());
        }
        let kinds = pooled
            .errors
            .in_words(|kind, count| format!("{count} {kind}"));
        Err(Failure::work(format!(
            "{} of {} operations failed ({}); look into the nodes' logs, or allow failures with \
             --allow-errors",
            pooled.errors_total, pooled.operations, kinds
        )))
    }
}

/// Reads a time in seconds, with parts of one.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| "it is a number of seconds above 0, for example 30 or 0.5".to_owned())
}

/// What an earlier run couldn't write to its end is said once more before its account is added to.
fn warn_of_cut_lines(dir: &Path) -> Result<(), Failure> {
    let cut = load::read_ledger(dir).map_err(of_ledger)?.cut;
    if let Some(line) = cut.first() {
        note(&format!(
            "warning: line {line} of {} was cut off as it was written ({} such in all): what that run \
             did is not accounted for, and `verify` will find counters above their account; this \
             run's lines go after it",
            dir.join("load-ledger").display(),
            cut.len()
        ));
    }
    Ok(())
}

fn run_id() -> RunId {
    let millis = wall_clock().unix_timestamp_nanos() / 1_000_000;
    RunId::new(
        u64::try_from(millis).unwrap_or_default(),
        std::process::id(),
    )
}

/// The nodes of a folder and what their configurations say of the cluster.
fn cluster_of(dir: &Path) -> Result<(Vec<Endpoint>, ClusterFacts), Failure> {
    let configs = configs_of(dir)?;
    let Some((first_path, first)) = configs.first() else {
        return Err(Failure::usage(format!(
            "{} holds no node-N/config.toml; make a cluster there with `multigroup cluster up --dir \
             {}`, or name its nodes with --endpoints",
            dir.display(),
            dir.display()
        )));
    };
    for (path, config) in &configs {
        if config.raw().client.tls {
            return Err(Failure::usage(format!(
                "client.tls is true in {}, and load doesn't speak TLS to clients' ports; set it to \
                 false",
                path.display()
            )));
        }
        if config.space() != first.space() {
            return Err(Failure::usage(format!(
                "groups is {} in {} and {} in {}; give both the number that the cluster was made with",
                first.space().groups(),
                first_path.display(),
                config.space().groups(),
                path.display()
            )));
        }
    }
    let endpoints = configs
        .iter()
        .map(|(_, config)| config.listen_client().into())
        .collect();
    let facts = ClusterFacts {
        space: first.space(),
        policy: Some(name_of(first.policy())),
        // A figure counts as synced only if every node syncs.
        log_sync: Some(configs.iter().all(|(_, config)| config.raw().log.sync)),
    };
    Ok((endpoints, facts))
}

fn name_of(policy: Policy) -> String {
    match policy {
        Policy::Quorum => "quorum".to_owned(),
        Policy::Coherent => "coherent".to_owned(),
        Policy::AtLeast(count) => format!("at-least:{count}"),
    }
}

/// The configurations of a cluster's folder, by node number.
pub(super) fn configs_of(dir: &Path) -> Result<Vec<(PathBuf, Config)>, Failure> {
    let listed = fs::read_dir(dir).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let listed = listed.map_err(|error| Failure::of_input("read", dir, &error))?;
    let mut found = BTreeMap::new();
    for entry in listed {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node-"));
        let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else {
            continue;
        };
        let path = entry.path().join("config.toml");
        if path.exists() {
            let config = config_at(&path)?;
            found.insert(number, (path, config));
        }
    }
    Ok(found.into_values().collect())
}

/// One node's configuration.
pub(super) fn config_at(path: &Path) -> Result<Config, Failure> {
    Config::load(path).map_err(|error| {
        Failure::usage(format!(
            "{} can't be used: {}",
            path.display(),
            with_causes(&error)
        ))
    })
}

/// The first Ctrl-C ends the run cleanly, the second at once, with what is under way as unknown;
/// the third ends the process, for a disk that doesn't take the ledger.
fn stop_on_ctrl_c() -> watch::Receiver<Stop> {
    let (told, stop) = watch::channel(Stop::Go);
    tokio::spawn(async move {
        for next in [Stop::Finish, Stop::AtOnce] {
            if let Err(error) = tokio::signal::ctrl_c().await {
                tracing::warn!(%error, "Ctrl-C can't be caught and will end the run without results");
                return;
            }
            told.send_replace(next);
        }
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(super::Exit::Interrupted.code().into());
        }
    });
    stop
}

fn of_facts(error: FactsError) -> Failure {
    let text = with_causes(&error);
    match error {
        FactsError::Unreachable {
            source: CallError::Protocol { .. },
        }
        | FactsError::NoEndpoint
        | FactsError::NotANode { .. }
        | FactsError::StrangeMap { .. } => Failure::usage(format!(
            "{text}; give the nodes' client addresses to --endpoints"
        )),
        FactsError::Unreachable { .. } => {
            Failure::unreachable(format!("{text}; is the cluster running?"))
        }
    }
}

fn of_load(error: LoadError) -> Failure {
    let text = with_causes(&error);
    match error {
        LoadError::Unreachable { .. } => {
            Failure::unreachable(format!("{text}; is the cluster running?"))
        }
        LoadError::NotMade { .. } | LoadError::Refused { .. } => Failure::work(format!(
            "{text}; wait until every group has a leader, and look into the nodes' logs"
        )),
        LoadError::Stopped => Failure::interrupted(
            "stopped by Ctrl-C while the keys were being created; no operation was begun",
        ),
        LoadError::Writer { .. } => {
            Failure::work(format!("{text}, which is a fault of this program"))
        }
    }
}

pub(super) fn of_ledger(error: LedgerError) -> Failure {
    match &error {
        LedgerError::Io {
            doing,
            path,
            source,
        } => Failure::of_input(doing, path, source),
        LedgerError::Line { .. } => Failure::work(with_causes(&error)),
    }
}
