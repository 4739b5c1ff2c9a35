//! `multigroup groups`: who leads each group, and how far each node's replica is, asked from the
//! admin ports.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::cluster::block_on;
use super::failure::Failure;
use super::json::Target;
use super::load::configs_of;
use crate::admin::{AdminUrl, FetchError, GroupPage, GroupStatus, ReplicaState, fetch};
use crate::causes::with_causes;
use crate::limits::GROUPS_PAGE_MAX;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Show who leads each group and how far its replicas are
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup groups --dir demo\n  \
                        multigroup groups --dir demo --group 7")]
pub(super) struct Groups {
    /// The cluster's folder
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Only this group, with a digest of what each replica holds
    #[arg(long, value_name = "ID")]
    group: Option<u64>,
    /// Where to write the result as JSON: a file, or - for stdout instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

#[derive(Debug, Serialize)]
struct Listing {
    schema: &'static str,
    groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
struct Group {
    group: u64,
    /// The node that says it leads; of two, that of the higher term.
    leader: Option<u64>,
    replicas: Vec<Replica>,
}

#[derive(Debug, Serialize)]
struct Replica {
    node: u64,
    #[serde(flatten)]
    status: GroupStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<ReplicaState>,
}

impl Groups {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let nodes = configs_of(&self.dir)?;
        let Some((_, first)) = nodes.first() else {
            return Err(Failure::usage(format!(
                "{} holds no node-N/config.toml; correct --dir",
                self.dir.display()
            )));
        };
        let groups = first.space().groups();
        if let Some(group) = self.group.filter(|group| *group >= groups.into()) {
            return Err(Failure::usage(format!(
                "--group is {group}, and groups are numbered from 0 to {}",
                groups - 1
            )));
        }
        let urls = nodes
            .iter()
            .map(|(_, config)| (config.node(), config.listen_admin().into()));
        let urls: Vec<(u64, AdminUrl)> = urls.collect();
        let (groups, failed) = block_on(async { Ok(self.ask(&urls).await) })?;
        if let (Some(failure), true) = (&failed, groups.is_empty()) {
            return Err(of_fetch(failure));
        }
        let listing = Listing {
            schema: "multigroup.group_list/1",
            groups,
        };
        if let Some(target) = &self.json {
            target.write(&listing, out)?;
        }
        if self.json != Some(Target::Stdout) {
            write_table(&listing.groups, out).map_err(Failure::of_stdout)?;
        }
        failed.map_or(Ok(()), |error| Err(of_fetch(&error)))
    }

    /// What the nodes that answer say, and the failure of the first that doesn't.
    async fn ask(&self, urls: &[(u64, AdminUrl)]) -> (Vec<Group>, Option<FetchError>) {
        let mut found: BTreeMap<u64, Vec<Replica>> = BTreeMap::new();
        let mut failed = None;
        for (node, url) in urls {
            match self.replicas(*node, url).await {
                Ok(replicas) => {
                    for replica in replicas {
                        found.entry(replica.status.group).or_default().push(replica);
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let groups = found.into_iter().map(|(group, replicas)| Group {
            group,
            leader: leader(&replicas),
            replicas,
        });
        (groups.collect(), failed)
    }

    async fn replicas(&self, node: u64, url: &AdminUrl) -> Result<Vec<Replica>, FetchError> {
        let mut replicas = Vec::new();
        let (mut after, limit) = match self.group {
            None => (None, GROUPS_PAGE_MAX),
            Some(group) => (group.checked_sub(1), 1),
        };
        loop {
            let from = after.map_or_else(String::new, |after| format!("&after={after}"));
            let body = fetch(url, &format!("/groups?limit={limit}{from}"), PATIENCE).await?;
            let Ok(page) = serde_json::from_slice::<GroupPage>(&body) else {
                return Err(FetchError::Refused {
                    url: url.clone(),
                    path: "/groups".to_owned(),
                    code: 200,
                    error: "a page that this version can't read".to_owned(),
                });
            };
            for status in page.groups {
                let content = match self.group {
                    None => None,
                    Some(group) => content(url, group).await?,
                };
                replicas.push(Replica {
                    node,
                    status,
                    content,
                });
            }
            after = page.next_after;
            if after.is_none() || self.group.is_some() {
                return Ok(replicas);
            }
        }
    }
}

/// What a replica holds; `None` if it can't be read now.
async fn content(url: &AdminUrl, group: u64) -> Result<Option<ReplicaState>, FetchError> {
    match fetch(url, &format!("/replica?group={group}"), PATIENCE).await {
        Ok(body) => Ok(serde_json::from_slice(&body).ok()),
        Err(FetchError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn leader(replicas: &[Replica]) -> Option<u64> {
    let says = |replica: &&Replica| replica.status.leader == Some(replica.node);
    let leading = replicas.iter().filter(says);
    leading
        .max_by_key(|replica| replica.status.term)
        .map(|replica| replica.node)
}

fn of_fetch(error: &FetchError) -> Failure {
    let text = with_causes(error);
    if error.is_unreachable() {
        Failure::unreachable(format!("{text}; is the node running?"))
    } else {
        Failure::work(format!("{text}; is this a node's admin port?"))
    }
}

fn write_table(groups: &[Group], out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:>6}  {:>6}  {:>6}  {:>9}  applied",
        "group", "leader", "term", "commit"
    )?;
    for group in groups {
        let most = |of: fn(&GroupStatus) -> u64| {
            let all = group.replicas.iter().map(|replica| of(&replica.status));
            all.max().unwrap_or(0)
        };
        let applied: Vec<_> = group
            .replicas
            .iter()
            .map(|replica| format!("node {}: {}", replica.node, replica.status.applied_index))
            .collect();
        let leader = group
            .leader
            .map_or_else(|| "-".to_owned(), |node| node.to_string());
        writeln!(
            out,
            "{:>6}  {leader:>6}  {:>6}  {:>9}  {}",
            group.group,
            most(|status| status.term),
            most(|status| status.commit_index),
            applied.join(", ")
        )?;
        for replica in &group.replicas {
            if let Some(content) = &replica.content {
                writeln!(
                    out,
                    "        node {}: {} rows at index {}, digest {}",
                    replica.node, content.rows, content.applied_index, content.digest
                )?;
            }
        }
    }
    Ok(())
}
