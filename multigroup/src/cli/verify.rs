//! `multigroup verify`: every replica of every group against the others, and the account that
//! `load` kept against the values. The work is [`crate::verify`]'s; here are the folder, the
//! terminal and exit codes.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;

use super::cluster::{self, running_node};
use super::failure::Failure;
use super::json::Target;
use super::load::{configs_of, of_ledger};
use super::progress::Display;
use crate::archive::{ArchiveUrl, Whose};
use crate::causes::with_causes;
use crate::cluster::ClusterFolder;
use crate::config::Config;
use crate::keyspace::KeySpace;
use crate::load::read_ledger;
use crate::verify::{
    Account, Report, RunningNode, StoppedNode, VerifyError, accounts, archived_online, offline,
    online, read_archive,
};

/// Between two notes of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Compare every replica of every group, and the values with what load was acknowledged
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup verify --dir demo\n  \
                  multigroup verify --dir demo --offline --json -")]
pub(super) struct Verify {
    /// The cluster's folder. Nothing may be writing meanwhile
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Read what stopped nodes have on disk, instead of asking running ones
    #[arg(long)]
    offline: bool,
    /// Where to write the result as JSON: a file, or - for stdout instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

/// The cluster that is verified.
pub(super) struct Subject {
    folder: ClusterFolder,
    configs: Vec<Config>,
    space: KeySpace,
    accounts: Vec<Account>,
    /// Where the nodes publish, if they do.
    archive: Option<ArchiveUrl>,
    /// Whose archive that is to be.
    own: Whose,
    /// Lines of the ledger that a crash cut off.
    cut: Vec<usize>,
}

/// What was found, and whom nobody could ask.
pub(super) type Found = (Report, BTreeMap<u64, String>);

impl Verify {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let subject = Subject::of(&self.dir)?;
        let (mut report, unreachable) = if self.offline {
            (subject.offline()?, BTreeMap::new())
        } else {
            cluster::block_on(subject.online())?
        };
        report.ledger_lines_cut = subject.cut.len() as u64;
        if let Some(target) = &self.json {
            target.write(&report, out)?;
        }
        if self.json != Some(Target::Stdout) {
            write_table(&report, unreachable.len(), out).map_err(Failure::of_stdout)?;
        }
        judge(&report, &unreachable)
    }
}

impl Subject {
    /// Reads a cluster's folder.
    pub(super) fn of(dir: &Path) -> Result<Self, Failure> {
        let folder = cluster::folder_at(dir)?;
        let configs = configs_of(dir)?.into_iter().map(|(_, config)| config);
        let configs: Vec<_> = configs
            .map(|config| config.with_base(folder.root()))
            .collect();
        let Some(first) = configs.first() else {
            return Err(Failure::usage(format!(
                "{} holds no node-N/config.toml, so there is no cluster to verify; correct --dir",
                dir.display()
            )));
        };
        let space = first.space();
        if let Some(other) = configs.iter().find(|config| config.space() != space) {
            return Err(Failure::usage(format!(
                "groups is {} in {} and {} in {}; give both the number that the cluster was made \
                 with",
                space.groups(),
                folder.config(first.node()).display(),
                other.space().groups(),
                folder.config(other.node()).display()
            )));
        }
        let archive = archive_of(first)?;
        let own = Whose {
            cluster: first.raw().cluster.clone(),
            id: first.raw().cluster_id,
            groups: space.groups(),
        };
        let ledger = read_ledger(dir).map_err(of_ledger)?;
        let accounts = accounts(&ledger.entries, space);
        let cut = ledger.cut;
        Ok(Self {
            folder,
            configs,
            space,
            accounts,
            archive,
            own,
            cut,
        })
    }

    /// Asks the running nodes.
    pub(super) async fn online(&self) -> Result<Found, Failure> {
        let nodes: Vec<_> = self
            .configs
            .iter()
            .map(|config| RunningNode {
                node: config.node(),
                admin: config.listen_admin().into(),
                client: config.listen_client().into(),
            })
            .collect();
        let groups = u64::from(self.space.groups());
        let mut display = Display::new("verify");
        let asking = online(&nodes, self.space, &self.accounts, |done| {
            display.show(done, groups, &format!("{done} of {groups} groups"));
        });
        let asking = async {
            let mut answered = asking.await;
            if let Some(url) = &self.archive {
                archived_online(url, &self.own, &nodes, &mut answered).await;
            }
            answered
        };
        let answered = tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => None,
            answered = asking => Some(answered),
        };
        display.clear();
        let answered = answered.ok_or_else(stopped)?;
        Ok((answered.report, answered.unreachable))
    }

    /// Reads what the nodes, which are stopped, have on disk.
    fn offline(&self) -> Result<Report, Failure> {
        let mut nodes = Vec::new();
        for config in &self.configs {
            let node = config.node();
            if let Some(process) = running_node(&self.folder, node)? {
                return Err(self.is_running(node, &format!(", as process {}", process.pid())));
            }
            let log = config.data_dir().join("log");
            if !log.exists() {
                return Err(Failure::unreachable(format!(
                    "node {node} has no log in {}: it never ran, or its folder was moved; restore \
                     it, or verify the running cluster without --offline",
                    log.display()
                )));
            }
            nodes.push(StoppedNode {
                node,
                log,
                databases: config.groups_dir(),
            });
        }
        let verified = cluster::block_on(self.replay(nodes))?;
        verified.map_err(|error| match error {
            VerifyError::Running { node } => self.is_running(node, ""),
            VerifyError::Stopped => stopped(),
            error @ VerifyError::Log { .. } => Failure::work(with_causes(&error)),
            error @ VerifyError::Scratch { .. } => Failure::work(format!(
                "{}; set TMPDIR to a folder with room for copies of a few databases",
                with_causes(&error)
            )),
        })
    }

    async fn replay(
        &self,
        nodes: Vec<StoppedNode>,
    ) -> Result<Result<Report, VerifyError>, Failure> {
        let (done, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (space, accounts) = (self.space, self.accounts.clone());
        let archive = match &self.archive {
            Some(url) => Some(read_archive(url, &self.own).await),
            None => None,
        };
        let mut work = {
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            tokio::task::spawn_blocking(move || {
                let archive = archive.as_ref();
                offline(&nodes, space, &accounts, archive, &done, &stop)
            })
        };
        let groups = u64::from(space.groups());
        let mut display = Display::new("verify");
        let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
        let verified = loop {
            tokio::select! {
                biased;
                verified = &mut work => break verified,
                _ = tokio::signal::ctrl_c() => stop.store(true, Ordering::Relaxed),
                _ = ticks.tick() => {
                    let done = done.load(Ordering::Relaxed);
                    display.show(done, groups, &format!("{done} of {groups} groups"));
                }
            }
        };
        display.clear();
        verified.map_err(|error| {
            Failure::work(format!(
                "a check failed, which is a fault of this program: {error}"
            ))
        })
    }

    fn is_running(&self, node: u64, how: &str) -> Failure {
        Failure::usage(format!(
            "node {node} is running{how}, and --offline reads stopped nodes; stop them with \
             `multigroup cluster down --dir {}`, or leave --offline out",
            self.folder.root().display()
        ))
    }
}

/// The archive that a node's configuration names.
fn archive_of(config: &Config) -> Result<Option<ArchiveUrl>, Failure> {
    let archive = config.raw().archive.as_ref();
    let url = archive.map(|archive| archive.url.parse::<ArchiveUrl>());
    let url = url.transpose();
    url.map_err(|error| Failure::usage(format!("{error}; correct archive.url")))
}

fn stopped() -> Failure {
    Failure::interrupted("stopped by Ctrl-C; nothing is known of what was not compared")
}

fn write_table(report: &Report, silent: usize, out: &mut dyn Write) -> std::io::Result<()> {
    if silent > 0 {
        writeln!(out, "INCOMPLETE: {silent} of the nodes gave no answer")?;
    }
    let empty = match report.replicas_empty {
        0 => String::new(),
        empty => format!(", and {empty} empty ones"),
    };
    writeln!(out, "replicas compared   {}{empty}", report.replicas)?;
    writeln!(out, "archive positions   {}", report.archive_positions)?;
    writeln!(out, "counters exact      {}", report.counters_exact)?;
    if report.ledger_lines_cut > 0 {
        writeln!(
            out,
            "ledger lines cut    {}: what they told of is unaccounted for, and counters may be above \
             their account",
            report.ledger_lines_cut
        )?;
    }
    writeln!(out, "mismatches          {}", report.mismatches)?;
    for mismatch in &report.first_mismatches {
        writeln!(out, "  {mismatch}")?;
    }
    Ok(())
}

/// A mismatch weighs more than a node that isn't there.
pub(super) fn judge(report: &Report, unreachable: &BTreeMap<u64, String>) -> Result<(), Failure> {
    if let Some(first) = report.first_mismatches.first() {
        return Err(Failure::work(format!(
            "{} mismatches, the first in {first}; keep the nodes' folders and look into their logs",
            report.mismatches
        )));
    }
    match unreachable.first_key_value() {
        None => Ok(()),
        Some((node, why)) => Err(Failure::unreachable(format!(
            "node {node} gave no answer: {why}; is it running?"
        ))),
    }
}
