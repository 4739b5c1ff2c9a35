//! Verifies a running cluster: asks each node for the digest of its replica of each group, again
//! until a group's replicas stand at one index, and reads every key of the accounts.
//!
//! For a cluster at rest: while something writes, its groups don't settle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raft_host::id::GroupId;
use tokio::task::JoinSet;
use tokio::time::sleep;
use transport::io::clock;

use super::compare::{Reading, compare, count};
use super::ledger::Account;
use super::report::{Mismatch, Report};
use crate::admin::{AdminUrl, FetchError, GroupPage, ReplicaState, fetch};
use crate::causes::with_causes;
use crate::keyspace::KeySpace;
use crate::limits::{LOAD_PIPELINE, VERIFY_GROUPS_AT_ONCE, VERIFY_SETTLE};
use crate::load::{Answer, CallError, Client, Endpoint};

/// Between two looks at a group that hasn't settled, or two tries of a read.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries in a row after which a node counts as not there.
const TRIES: u32 = 3;

/// A node that should run.
#[derive(Clone, Debug)]
pub struct RunningNode {
    /// Its number.
    pub node: u64,
    /// Its admin port.
    pub admin: AdminUrl,
    /// Its port for clients.
    pub client: Endpoint,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The result, of the nodes that answered.
    pub report: Report,
    /// Those that didn't, and why.
    pub unreachable: BTreeMap<u64, String>,
    /// What the replicas of each group have applied, where they stand at one index.
    pub applied: BTreeMap<GroupId, u64>,
}

pub(super) type Unreachable = Arc<Mutex<BTreeMap<u64, String>>>;

fn lock(unreachable: &Unreachable) -> std::sync::MutexGuard<'_, BTreeMap<u64, String>> {
    unreachable.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Verifies all groups and accounts. `on_progress` is told how many groups are done.
pub async fn online(
    nodes: &[RunningNode],
    space: KeySpace,
    accounts: &[Account],
    mut on_progress: impl FnMut(u64),
) -> Answered {
    let unreachable = Unreachable::default();
    let shared: Arc<[RunningNode]> = nodes.into();
    let mut results = Vec::new();
    let mut under_way = JoinSet::new();
    let mut groups = space.all();
    loop {
        while under_way.len() < VERIFY_GROUPS_AT_ONCE
            && let Some(group) = groups.next()
        {
            let (nodes, unreachable) = (Arc::clone(&shared), Arc::clone(&unreachable));
            under_way.spawn(async move { (group, settle(group, &nodes, &unreachable).await) });
        }
        let Some(ended) = under_way.join_next().await else {
            break;
        };
        // A task of ours neither panics nor is aborted.
        if let Ok(result) = ended {
            results.push(result);
            on_progress(results.len() as u64);
        }
    }
    results.sort_by_key(|(group, _)| *group);
    let mut report = Report::default();
    let mut applied = BTreeMap::new();
    for (group, (readings, mismatches)) in results {
        let first = readings.first().map(|reading| reading.applied);
        if let Some(index) = first.filter(|index| readings.iter().all(|one| one.applied == *index))
        {
            applied.insert(group, index);
        }
        count(&mut report, &readings);
        report.add_all(mismatches);
    }
    if lock(&unreachable).len() < nodes.len() {
        judge_accounts(nodes, accounts, &unreachable, &mut report).await;
    }
    let unreachable = lock(&unreachable).clone();
    Answered {
        report,
        unreachable,
        applied,
    }
}

/// What one node says of a group.
enum Said {
    Reading(Reading),
    /// It can't be read now, or the node gave no answer this time.
    NotNow(String),
    /// It won't be otherwise.
    Wrong(String),
}

/// Asks until the replicas stand at one index.
pub(super) async fn settle(
    group: GroupId,
    nodes: &[RunningNode],
    unreachable: &Unreachable,
) -> (Vec<Reading>, Vec<Mismatch>) {
    let number = group.to_u64();
    let start = clock::now();
    let mut tries: BTreeMap<u64, u32> = BTreeMap::new();
    loop {
        let (mut readings, mut wrong, mut not_now) = (Vec::new(), Vec::new(), Vec::new());
        for node in nodes {
            if lock(unreachable).contains_key(&node.node) {
                continue;
            }
            let mismatch = |what| Mismatch {
                group: Some(number),
                node: Some(node.node),
                what,
            };
            match ask(group, node, &mut tries, unreachable).await {
                Said::Reading(reading) => readings.push(reading),
                Said::Wrong(what) => wrong.push(mismatch(what)),
                Said::NotNow(what) => not_now.push(mismatch(what)),
            }
        }
        let first = readings.first().map(|reading| reading.applied);
        let at_one = readings
            .iter()
            .all(|reading| Some(reading.applied) == first);
        if not_now.is_empty() && at_one {
            wrong.extend(compare(number, &readings));
            return (readings, wrong);
        }
        if clock::now().duration_since(start) >= VERIFY_SETTLE {
            wrong.extend(not_now);
            wrong.extend((!at_one).then(|| unsettled(number, &readings)));
            return (readings, wrong);
        }
        sleep(PAUSE).await;
    }
}

fn unsettled(group: u64, readings: &[Reading]) -> Mismatch {
    let last = readings.iter().min_by_key(|reading| reading.applied);
    let all: Vec<_> = readings
        .iter()
        .map(|reading| format!("{} on node {}", reading.applied, reading.node))
        .collect();
    Mismatch {
        group: Some(group),
        node: last.map(|reading| reading.node),
        what: format!(
            "did not settle within {} s: the applied index is {}",
            VERIFY_SETTLE.as_secs(),
            all.join(", ")
        ),
    }
}

async fn ask(
    group: GroupId,
    node: &RunningNode,
    tries: &mut BTreeMap<u64, u32>,
    unreachable: &Unreachable,
) -> Said {
    let path = format!("/replica?group={group}");
    let error = match fetch(&node.admin, &path, PATIENCE).await {
        Ok(body) => {
            tries.remove(&node.node);
            return match serde_json::from_slice::<ReplicaState>(&body) {
                Ok(state) => Said::Reading(Reading {
                    node: node.node,
                    applied: state.applied_index,
                    rows: state.rows,
                    digest: state.digest,
                    saved: None,
                }),
                Err(error) => Said::Wrong(format!("{path} has an unreadable answer: {error}")),
            };
        }
        Err(error) => error,
    };
    let text = with_causes(&error);
    if error.is_unreachable() {
        let tries = tries.entry(node.node).or_default();
        *tries += 1;
        if *tries >= TRIES {
            lock(unreachable)
                .entry(node.node)
                .or_insert_with(|| text.clone());
        }
        return Said::NotNow(text);
    }
    match error {
        FetchError::Refused {
            code: 503, error, ..
        } => Said::NotNow(error),
        FetchError::Refused { error, .. } => Said::Wrong(error),
        FetchError::Connect { .. }
        | FetchError::TimedOut { .. }
        | FetchError::Http { .. }
        | FetchError::TooLong { .. }
        | FetchError::Path { .. } => Said::Wrong(text),
    }
}

/// Reads every key and holds it against its account.
async fn judge_accounts(
    nodes: &[RunningNode],
    accounts: &[Account],
    unreachable: &Unreachable,
    report: &mut Report,
) {
    let gone = lock(unreachable).clone();
    let there: Vec<_> = nodes
        .iter()
        .filter(|node| !gone.contains_key(&node.node))
        .collect();
    let mut leaders = None;
    for part in accounts.chunks(LOAD_PIPELINE) {
        for (account, value) in part.iter().zip(values(&there, part).await) {
            let fault = match value {
                Ok(value) => account.fault(value.as_deref()),
                Err(what) => Some(format!("key {} can't be read: {what}", account.key)),
            };
            let Some(what) = fault else {
                report.counters_exact += u64::from(account.is_counter);
                continue;
            };
            if leaders.is_none() {
                leaders = Some(leaders_of(&there).await);
            }
            let leader = leaders.as_ref().and_then(|all| all.get(&account.group));
            report.add(account.mismatch(leader.copied(), what));
        }
    }
}

type Value = Result<Option<bytes::Bytes>, String>;

/// Reads some keys, those that fail again at the next node.
async fn values(nodes: &[&RunningNode], accounts: &[Account]) -> Vec<Value> {
    let mut values: Vec<Value> = vec![Err("no node was asked".to_owned()); accounts.len()];
    let start = clock::now();
    for node in nodes.iter().cycle() {
        let missing: Vec<usize> = (0..accounts.len())
            .filter(|at| values[*at].is_err())
            .collect();
        if missing.is_empty() || clock::now().duration_since(start) >= VERIFY_SETTLE {
            break;
        }
        let keys: Vec<&str> = missing
            .iter()
            .map(|at| accounts[*at].key.as_str())
            .collect();
        let (read, failed) = get(&node.client, &keys).await;
        for (at, value) in missing.iter().zip(read) {
            values[*at] = value;
        }
        if let Some(error) = failed {
            let text = with_causes(&error);
            for at in missing {
                if let Err(why) = &mut values[at] {
                    why.clone_from(&text);
                }
            }
        }
        if values.iter().any(Result::is_err) {
            sleep(PAUSE).await;
        }
    }
    values
}

/// The values that a node gives, and what ended the conversation early.
async fn get(endpoint: &Endpoint, keys: &[&str]) -> (Vec<Value>, Option<CallError>) {
    let deadline = clock::now() + PATIENCE;
    let mut values = Vec::with_capacity(keys.len());
    let talking = async {
        let mut client = Client::connect(endpoint, deadline).await?;
        for key in keys {
            client.queue(&[b"GET", key.as_bytes()]);
        }
        client.send(deadline).await?;
        for _ in keys {
            values.push(match client.next(deadline).await? {
                Answer::Bulk(value) => Ok(Some(value)),
                Answer::Nil => Ok(None),
                other @ (Answer::Word(_)
                | Answer::Error(_)
                | Answer::Integer(_)
                | Answer::Array(_)) => Err(format!("{endpoint} answered {other}")),
            });
        }
        Ok(())
    };
    let failed = talking.await.err();
    (values, failed)
}

/// Who leads which group, as the first node that answers says it.
async fn leaders_of(nodes: &[&RunningNode]) -> BTreeMap<u64, u64> {
    for node in nodes {
        let mut leaders = BTreeMap::new();
        let mut path = "/groups?limit=1000".to_owned();
        while let Ok(body) = fetch(&node.admin, &path, PATIENCE).await {
            let Ok(page) = serde_json::from_slice::<GroupPage>(&body) else {
                break;
            };
            let led = page.groups.iter();
            leaders.extend(led.filter_map(|group| Some((group.group, group.leader?))));
            let Some(after) = page.next_after else {
                return leaders;
            };
            path = format!("/groups?limit=1000&after={after}");
        }
    }
    BTreeMap::new()
}
