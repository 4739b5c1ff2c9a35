//! Verifies what stopped nodes left on disk: per group the log that would win an election is
//! found, a copy of each replica's database is replayed to its end, and those are compared; then
//! the accounts are held against each of them.
//!
//! The nodes' logs stay locked meanwhile, so that no node starts on them.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use raft_host::id::GroupId;
use raft_host::log::{LogReading, OpenError};
use thiserror::Error;

use super::archived::{Archived, archived_offline};
use super::compare::{Reading, compare, count};
use super::ledger::Account;
use super::replay::{Left, Winner, replay};
use super::report::{Mismatch, Report};
use super::scratch::Scratch;
use crate::command::{Body, Op, Outcome};
use crate::keyspace::KeySpace;
use crate::store::Store;

/// A node that doesn't run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedNode {
    /// Its number.
    pub node: u64,
    /// The folder of its log.
    pub log: PathBuf,
    /// The folder of its databases.
    pub databases: PathBuf,
}

/// Why nothing was verified.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A node runs.
    #[error("node {node} is running")]
    Running {
        /// The node.
        node: u64,
    },
    /// A node's log can't be read.
    #[error("the log of node {node} in {log} can't be read", log = .log.display())]
    Log {
        /// The node.
        node: u64,
        /// The folder.
        log: PathBuf,
        /// Why not.
        source: OpenError,
    },
    /// There is no room for copies.
    #[error("can't make a temporary folder")]
    Scratch {
        /// Why not.
        source: io::Error,
    },
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
}

struct Node<'a> {
    node: u64,
    databases: &'a std::path::Path,
    log: LogReading,
}

struct Work<'a> {
    nodes: Vec<Node<'a>>,
    space: KeySpace,
    accounts: &'a [Account],
    scratch: Scratch,
}

/// What came of one group.
struct GroupResult {
    group: GroupId,
    readings: Vec<Reading>,
    mismatches: Vec<Mismatch>,
    counters_exact: u64,
}

/// Verifies all groups of a cluster that is stopped; `accounts` in the order of groups. `done` counts
/// groups; `stop` ends it early. With an archive, its positions are held against the logs.
///
/// # Errors
/// [`VerifyError`] if it can't be done. What is wrong with the replicas is in the report.
pub fn offline(
    stopped: &[StoppedNode],
    space: KeySpace,
    accounts: &[Account],
    archive: Option<&Archived>,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result<Report, VerifyError> {
    let mut nodes = Vec::with_capacity(stopped.len());
    for StoppedNode {
        node,
        log,
        databases,
    } in stopped
    {
        let opened = LogReading::open(log).map_err(|source| {
            if let OpenError::InUse { .. } = source {
                return VerifyError::Running { node: *node };
            }
            VerifyError::Log {
                node: *node,
                log: log.clone(),
                source,
            }
        })?;
        nodes.push(Node {
            node: *node,
            databases,
            log: opened,
        });
    }
    let scratch = Scratch::new().map_err(|source| VerifyError::Scratch { source })?;
    let work = Work {
        nodes,
        space,
        accounts,
        scratch,
    };
    let results = run_all(&work, done, stop);
    if stop.load(Ordering::Relaxed) {
        return Err(VerifyError::Stopped);
    }
    let mut report = Report::default();
    let mut applied = BTreeMap::new();
    for result in results {
        if let Some(reading) = result.readings.first() {
            applied.insert(result.group, reading.applied);
        }
        count(&mut report, &result.readings);
        report.counters_exact += result.counters_exact;
        report.add_all(result.mismatches);
    }
    if let Some(archive) = archive {
        archived_offline(archive, &applied, &mut report);
    }
    Ok(report)
}

/// Works through the groups on all cores; the results are in the groups' order.
fn run_all(work: &Work<'_>, done: &AtomicU64, stop: &AtomicBool) -> Vec<GroupResult> {
    let groups: Vec<GroupId> = work.space.all().collect();
    let next = AtomicU64::new(0);
    let results = Mutex::new(Vec::with_capacity(groups.len()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads.min(groups.len()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(group) = usize::try_from(at).ok().and_then(|at| groups.get(at)) else {
                        break;
                    };
                    let result = work.group(*group);
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.push((at, result));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

impl Work<'_> {
    fn group(&self, group: GroupId) -> GroupResult {
        let mut result = GroupResult {
            group,
            readings: Vec::new(),
            mismatches: Vec::new(),
            counters_exact: 0,
        };
        let Some(winner) = self.winner(group) else {
            return result;
        };
        let number = group.to_u64();
        let mut stores = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let mismatch = |what| Mismatch {
                group: Some(number),
                node: Some(node.node),
                what,
            };
            result
                .mismatches
                .extend(self.committed_fault(group, node, winner).map(mismatch));
            let folder = self.scratch.path().join(format!("{group}-{at}"));
            let left = Left {
                group,
                space: self.space,
                log: &node.log,
                databases: node.databases,
            };
            let replayed = replay(&left, winner, &folder);
            match replayed.and_then(|store| Ok((read(node.node, group, &store)?, store))) {
                Ok((reading, store)) => {
                    result.readings.push(reading);
                    stores.push((node.node, store));
                }
                Err(what) => result.mismatches.push(mismatch(what)),
            }
        }
        result.mismatches.extend(compare(number, &result.readings));
        self.judge_accounts(number, &stores, &mut result);
        drop(stores);
        for at in 0..self.nodes.len() {
            let folder = self.scratch.path().join(format!("{group}-{at}"));
            // What is left goes with the whole folder.
            let _left_over = std::fs::remove_dir_all(folder);
        }
        result
    }

    /// The log that would win an election: the last term decides, then the last index.
    fn winner(&self, group: GroupId) -> Option<Winner<'_>> {
        let logs = self.nodes.iter().map(|node| Winner {
            log: &node.log,
            extent: node.log.extent(group).unwrap_or_default(),
        });
        logs.max_by_key(|winner| (winner.extent.last.1, winner.extent.last.0))
    }

    /// What a node knows to be committed must be in the log that would win.
    fn committed_fault(
        &self,
        group: GroupId,
        node: &Node<'_>,
        winner: Winner<'_>,
    ) -> Option<String> {
        let own = node.log.extent(group)?;
        // It isn't synced on its own account, and may be ahead of what a crash left.
        let commit = own.hard_state.commit.min(own.last.0);
        let last = winner.extent.last.0;
        if commit > last {
            return Some(format!(
                "entry {commit} is committed, and the log that would win ends at {last}"
            ));
        }
        let (own, won) = (
            node.log.term(group, commit)?,
            winner.log.term(group, commit)?,
        );
        (own != won).then(|| {
            format!(
                "entry {commit} of term {own} is committed, the log that would win has term {won}"
            )
        })
    }

    fn judge_accounts(&self, group: u64, stores: &[(u64, Store)], result: &mut GroupResult) {
        let from = self
            .accounts
            .partition_point(|account| account.group < group);
        let accounts = self.accounts[from..]
            .iter()
            .take_while(|account| account.group == group);
        for account in accounts {
            let mut exact = !stores.is_empty();
            for (node, store) in stores {
                let fault = match value(store, GroupId::new(group), &account.key) {
                    Ok(value) => account.fault(value.as_deref()),
                    Err(what) => Some(what),
                };
                exact &= fault.is_none();
                let mismatch = fault.map(|what| account.mismatch(Some(*node), what));
                result.mismatches.extend(mismatch);
            }
            if exact && account.is_counter {
                result.counters_exact += 1;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(node: u64, group: GroupId, store: &Store) -> Result<Reading, String> {
    let digest = store
        .digest(group)
        .map_err(|error| format!("can't be read: {error}"))?;
    Ok(Reading {
        node,
        applied: digest.applied.index.to_u64(),
        rows: digest.rows,
        digest: digest.to_hex(),
        saved: Some(hex(&digest.outcomes_sha256)),
    })
}

fn value(store: &Store, group: GroupId, key: &str) -> Result<Option<Bytes>, String> {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let read = store.read(group, &Body::Single(Op::Get { key }));
    match read {
        Ok((_, Outcome::Bulk(value))) => Ok(Some(value)),
        Ok((_, Outcome::Nil)) => Ok(None),
        Ok((_, other)) => Err(format!("a read answered {other:?}")),
        Err(error) => Err(format!("can't be read: {error}")),
    }
}
