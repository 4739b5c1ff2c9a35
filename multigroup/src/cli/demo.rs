//! `multigroup demo`: a cluster of its own, the main job on it, and its proof: `cluster up`, `load`,
//! `verify`, `cluster down` in one folder, with one table at the end. The steps are those commands';
//! here are their order, what is asked of the nodes in between, and the judgement of it all.
//!
//! - D1: no node outlives the command, whatever it ends with, short of its own sudden death.
//! - D2: what failed is kept and named; of a run that went well, or that Ctrl-C ended, a fresh
//!   folder is removed, and a folder that was named never is.
//! - D3: it ends well only if all was written, everything was found as it must be, and each node's
//!   last status is a closed account. A load's account is on disk before anything else is done.

mod place;
mod report;
mod table;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use tokio::sync::watch;

use self::place::Place;
use self::report::{DEMO_SCHEMA, Report, lanes_since, leader_changes};
use super::Exit;
use super::cluster::{self, Options, Ports, Started, Stops, Turn, Wanted};
use super::failure::Failure;
use super::json::Target;
use super::load::{Load, parse_seconds};
use super::progress::{count, note};
use super::verify::{self, Subject};
use crate::admin::{self, AdminUrl, Status, fetch};
use crate::cluster::{ClusterFolder, FileSystem};
use crate::config::Config;
use crate::limits::LOAD_WRITERS_MAX;
use crate::load::Stop;

/// How long a node may take to say how it stands.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);

/// Start a cluster, put load on it, verify everything and stop it
///
/// Three nodes with certificates of their own, in a fresh folder of the current one that is removed
/// at the end; a folder that --dir names stays. Exit code 0 says that every group was written, every
/// replica, archive position and counter is as it must be, and every node's last account is exact.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup demo\n  \
                  multigroup demo --nodes 5 --groups 150 --seconds 5 --dir demo --json demo.json")]
pub(super) struct Demo {
    #[command(flatten)]
    options: Options,
    /// Writers, each with one request in flight
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parse_writers)]
    writers: usize,
    /// How long the load lasts, once all keys are there
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    seconds: Duration,
    /// The cluster's folder, which stays; by default a fresh ./multigroup-demo-XXXX, which doesn't
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep a fresh folder, too; one of a run that failed is kept anyway, one of a run that was
    /// stopped, or couldn't begin, is not
    #[arg(long)]
    keep: bool,
    /// Where to write the result as JSON: a file, or - for stdout instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

impl Demo {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        cluster::block_on(async {
            // From here on a signal ends it cleanly, whatever is there by then.
            let (stop, by) = stop_on_signals()?;
            let place = Place::choose(self.dir.as_deref(), self.keep)?;
            let prepared = self.prepare(&place).and_then(|(folder, configs, turn)| {
                let report = self.blank(&folder, &configs)?;
                Ok((folder, configs, turn, report))
            });
            let (folder, configs, turn, mut report) = match prepared {
                Ok(prepared) => prepared,
                Err(failure) => {
                    place.discard()?;
                    return Err(failure);
                }
            };
            let done = self.perform(&folder, &configs, turn, stop, &mut report);
            let done = done.await.map_err(|failure| match by.get() {
                Some(by) => failure.by(by),
                None => failure,
            });
            report.ok = done.is_ok();
            report.failure = done.as_ref().err().map(ToString::to_string);
            let told = self.tell(&report, out);
            leave(place, done).and(told)
        })
    }

    fn prepare(&self, place: &Place) -> Result<(ClusterFolder, Vec<Config>, Turn), Failure> {
        let folder = cluster::folder_of(place.path())?;
        let wanted = Wanted::of(&self.options, Ports::AnyFree);
        let turn = Turn::take(&folder)?;
        let configs = cluster::prepare(&folder, &wanted)?;
        Ok((folder, configs, turn))
    }

    /// What is known before anything has run.
    fn blank(&self, folder: &ClusterFolder, configs: &[Config]) -> Result<Report, Failure> {
        let root = folder.root();
        let disk =
            FileSystem::of(root).map_err(|error| Failure::of_file("look at", root, &error))?;
        let log_sync = configs.iter().all(|config| config.raw().log.sync);
        if !disk.keeps_what_is_synced() {
            note(&format!(
                "warning: {} is on {}, which keeps nothing over a power cut: the figures are not \
                 those of a disk; choose another --dir",
                root.display(),
                disk.name()
            ));
        }
        if !log_sync {
            note("warning: log.sync is false, so nothing that is acknowledged is durable");
        }
        Ok(Report {
            schema: DEMO_SCHEMA,
            ok: false,
            nodes: configs.len() as u64,
            groups: configs.first().map_or(0, |one| one.raw().groups.into()),
            fs: disk.name().to_owned(),
            log_sync,
            durable: log_sync && disk.keeps_what_is_synced(),
            archive: configs.iter().all(|config| config.raw().archive.is_some()),
            start_seconds: None,
            load: None,
            verify: None,
            leader_changes_during_load: None,
            rss_max_bytes: Vec::new(),
            peers: Vec::new(),
            final_accounting: None,
            failure: None,
        })
    }

    /// From the first process to the last; the report has all that it came to.
    async fn perform(
        &self,
        folder: &ClusterFolder,
        configs: &[Config],
        turn: Turn,
        mut stop: watch::Receiver<Stop>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        forget_last_statuses(folder, configs)?;
        let (nodes, groups) = (report.nodes, report.groups);
        note(&format!(
            "demo: starting {} with {} in {}",
            count(nodes, "node"),
            count(groups, "group"),
            folder.root().display()
        ));
        let stopped = told(&mut stop, Stop::Finish);
        let mut up = cluster::start_all(folder, configs, turn, stopped).await?;
        report.start_seconds = Some((up.took.as_secs_f64() * 1000.0).round() / 1000.0);
        note(&format!(
            "demo: up after {:.1} s, leading {}; load for {} s",
            up.took.as_secs_f64(),
            up.standing.spread(),
            self.seconds.as_secs_f64()
        ));
        let worked = self.work(folder, configs, &stop, report).await;
        let died = up
            .launched
            .iter_mut()
            .find_map(|one| cluster::ended(one, "during the demo"));
        report.rss_max_bytes = peak_memory(folder, configs);
        note("demo: stopping the nodes");
        let stopped = stop_nodes(folder, up, stop.clone()).await;
        let killed = matches!(&stopped, Err(failure) if failure.exit() == Exit::Interrupted);
        report.final_accounting = Some(if killed {
            "not taken, the nodes were ended at once".to_owned()
        } else {
            accounting(folder, configs).map_or_else(|off| off, |()| "exact".to_owned())
        });
        if let Some(died) = died {
            return Err(Failure::work(died));
        }
        // What was asked for comes before how it ended.
        worked.and(stopped)?;
        match report.final_accounting.as_deref() {
            Some("exact") if *stop.borrow() >= Stop::Finish => Err(Failure::interrupted(
                "stopped by Ctrl-C when all was verified and the nodes were stopping",
            )),
            Some("exact") => Ok(()),
            Some(off) => Err(Failure::work(format!(
                "the final accounting is off, {off}; see {}",
                folder.root().join("logs").display()
            ))),
            None => Ok(()),
        }
    }

    /// The load and its proof.
    async fn work(
        &self,
        folder: &ClusterFolder,
        configs: &[Config],
        stop: &watch::Receiver<Stop>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let load = Load::on_every_group(folder.root(), self.writers, self.seconds);
        let mut before = Vec::new();
        let look = async || before = statuses(configs).await;
        let (finished, _) = load.drive(stop.clone(), look).await?;
        let after = statuses(configs).await;
        report.leader_changes_during_load = leader_changes(&before, &after);
        report.peers = lanes_since(&before, &after);
        let judged = load.judge(&finished);
        report.load = Some(finished.report);
        if finished.stopped {
            return judged;
        }
        note("demo: comparing every replica");
        let subject = Subject::of(folder.root())?;
        let mut stop = stop.clone();
        let found = tokio::select! {
            biased;
            () = told(&mut stop, Stop::Finish) => Err(Failure::interrupted("stopped by Ctrl-C")),
            found = subject.online() => found,
        };
        let (found, unreachable) = found?;
        let verified = verify::judge(&found, &unreachable).map_err(Failure::into_work);
        let complete = complete(report, &found);
        report.verify = Some(found);
        judged.and(verified).and(complete)
    }

    fn tell(&self, report: &Report, out: &mut dyn Write) -> Result<(), Failure> {
        if self.json != Some(Target::Stdout) {
            table::write(report, out).map_err(Failure::of_stdout)?;
        }
        match &self.json {
            Some(target) => target.write(report, out),
            None => Ok(()),
        }
    }
}

/// Refused before anything is started, not when the load begins.
fn parse_writers(text: &str) -> Result<usize, String> {
    let writers = text.parse().ok();
    writers
        .filter(|writers| (1..=LOAD_WRITERS_MAX).contains(writers))
        .ok_or_else(|| format!("it is a number from 1 to {LOAD_WRITERS_MAX}"))
}

/// Ends with the folder as it must be.
fn leave(place: Place, done: Result<(), Failure>) -> Result<(), Failure> {
    let path = place.path().display().to_string();
    match done {
        Ok(()) => {
            if place.stays() {
                note(&format!("demo: all of it is in {path}"));
            }
            place.done()
        }
        Err(failure) if failure.exit() == Exit::Interrupted => place.done().and(Err(failure)),
        Err(failure) => {
            note(&format!("demo: what failed is kept in {path}"));
            Err(failure)
        }
    }
}

/// Whether everything that there is was found, and is not merely without fault.
fn complete(report: &Report, found: &crate::verify::Report) -> Result<(), Failure> {
    let positions = if report.archive { report.groups } else { 0 };
    let all = [
        ("replicas", found.replicas, report.nodes * report.groups),
        ("archive positions", found.archive_positions, positions),
        ("exact counters", found.counters_exact, report.groups),
    ];
    match all.into_iter().find(|(_, found, of)| found < of) {
        None => Ok(()),
        Some((what, found, of)) => Err(Failure::work(format!(
            "only {found} of {of} {what} were found; look into the nodes' logs"
        ))),
    }
}

/// Each node's status, from those that answer.
async fn statuses(configs: &[Config]) -> Vec<Option<Status>> {
    let ask = |config: &Config| {
        let url: AdminUrl = config.listen_admin().into();
        tokio::spawn(async move {
            let body = fetch(&url, "/status", STATUS_PATIENCE).await.ok()?;
            serde_json::from_slice::<Status>(&body).ok()
        })
    };
    let asking: Vec<_> = configs.iter().map(ask).collect();
    let mut statuses = Vec::with_capacity(asking.len());
    for asking in asking {
        statuses.push(asking.await.ok().flatten());
    }
    statuses
}

fn peak_memory(folder: &ClusterFolder, configs: &[Config]) -> Vec<Option<u64>> {
    let of = |config: &Config| {
        let process = cluster::running_node(folder, config.node()).ok().flatten();
        process.and_then(|process| process.peak_resident_bytes())
    };
    configs.iter().map(of).collect()
}

/// Ends all nodes: cleanly, or at once if that is told meanwhile.
async fn stop_nodes(
    folder: &ClusterFolder,
    up: Started,
    mut stop: watch::Receiver<Stop>,
) -> Result<(), Failure> {
    let nodes: Vec<_> = up.launched.iter().map(|one| one.node).collect();
    let cleanly = async { cluster::stop_cleanly(folder, cluster::running(folder, &nodes)?).await };
    let stopped = tokio::select! {
        biased;
        () = told(&mut stop, Stop::AtOnce) => None,
        stopped = cleanly => Some(stopped),
    };
    if let Some(stopped) = stopped {
        return stopped;
    }
    note("demo: ending the nodes at once");
    for process in cluster::running(folder, &nodes)? {
        cluster::kill(&process).await?;
    }
    Err(Failure::interrupted("stopped at once by Ctrl-C"))
}

/// An older run's last statuses must not be taken for this one's.
fn forget_last_statuses(folder: &ClusterFolder, configs: &[Config]) -> Result<(), Failure> {
    for config in configs {
        let path = folder.final_status(config.node());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::of_file("remove", &path, &error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Holds the last status of each node to account; what is off comes back in words.
fn accounting(folder: &ClusterFolder, configs: &[Config]) -> Result<(), String> {
    for config in configs {
        let path = folder.final_status(config.node());
        let unread = |why: String| format!("{} can't be read: {why}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| unread(error.to_string()))?;
        let status: Status =
            serde_json::from_str(&text).map_err(|error| unread(error.to_string()))?;
        admin::closed(&status).map_err(|fault| fault.to_string())?;
    }
    Ok(())
}

async fn told(stop: &mut watch::Receiver<Stop>, least: Stop) {
    if stop.wait_for(|now| *now >= least).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The first Ctrl-C, or request to terminate, ends the demo cleanly; the second ends the nodes at
/// once. Also which it was.
fn stop_on_signals() -> Result<(watch::Receiver<Stop>, Arc<OnceLock<&'static str>>), Failure> {
    let mut stops = Stops::new()?;
    let (tell, stop) = watch::channel(Stop::Go);
    let by = Arc::new(OnceLock::new());
    let first = Arc::clone(&by);
    tokio::spawn(async move {
        for next in [Stop::Finish, Stop::AtOnce] {
            let name = stops.next().await;
            if next == Stop::Finish {
                first.get_or_init(|| name);
                note(&format!(
                    "demo: stopping on {name}; Ctrl-C now ends the nodes at once"
                ));
            }
            tell.send_replace(next);
        }
        // More of them change nothing: what is left takes no longer than the kernel.
        std::future::pending::<()>().await;
    });
    Ok((stop, by))
}
