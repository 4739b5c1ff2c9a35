//! What `plans/operating-certificates.md` tells operators to do, done: its commands, as they stand
//! there, on a running cluster that is written to all the while.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use multigroup::admin::LaneState;
use multigroup::keyspace::KeySpace;
use multigroup::load::{
    self, Account, Finished, Operation, Plan, Progress, RawPlan, Route, RunId, Stop,
};
use serde_json::Value;
use tests::cluster::{Cluster, NODES};
use tests::{PATIENCE, soon};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use transport::io::clock;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const PAGE: &str = include_str!("../../plans/operating-certificates.md");
const GROUPS: u32 = 30;

/// The blocks of commands that the page has, in order.
fn blocks() -> Vec<&'static str> {
    let parts = PAGE.split("```");
    let sh = parts
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.strip_prefix("sh\n"));
    sh.collect()
}

/// Runs a block as it stands there, `prod` being the cluster's folder and `multigroup` the product.
async fn follow(cluster: &Cluster, block: &str) {
    let folder = cluster.path();
    let name = folder
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let script = format!("multigroup() {{ \"$MULTIGROUP\" \"$@\"; }}\nset -e\n{block}")
        .replace("prod", &name);
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(script)
        .env("MULTIGROUP", MULTIGROUP)
        .current_dir(folder.parent().unwrap_or(Path::new("/")))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let ended = soon("a block of commands", shell.output())
        .await
        .expect("a shell");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{block}\n{said}");
}

/// Writers that stay at it until they are told.
struct Load {
    stop: watch::Sender<Stop>,
    acked: watch::Receiver<u64>,
    running: JoinHandle<Finished>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let endpoints = (1..=NODES).map(|node| cluster.client(node).parse().expect("an endpoint"));
        let plan = Plan::try_from(RawPlan {
            endpoints: endpoints.collect(),
            space: KeySpace::new(GROUPS).expect("a key space"),
            writers: 6,
            duration: Duration::from_secs(600),
            keys: None,
            value_bytes: 16,
            operation: Operation::Incr,
            window: None,
            route: Route::Roam,
            patience: Duration::from_secs(30),
            account: Account::Ledger,
        });
        let plan = plan.expect("a plan");
        let (stop, stopped) = watch::channel(Stop::Go);
        let (acked_now, acked) = watch::channel(0);
        let on_progress = move |progress| {
            if let Progress::Running { acked, .. } = progress {
                acked_now.send_replace(acked);
            }
        };
        let running = tokio::spawn(async move {
            let run = RunId::new(1, std::process::id());
            let run = load::run(plan, run, stopped, on_progress).await;
            run.expect("a load")
        });
        Self {
            stop,
            acked,
            running,
        }
    }

    /// Waits until so many more writes are acknowledged.
    async fn flows(&mut self, writes: u64) {
        let enough = *self.acked.borrow() + writes;
        let reached = self.acked.wait_for(|acked| *acked >= enough);
        soon("writes to go on", reached).await.expect("a load");
    }

    /// Ends it; not one request may have failed.
    async fn end(self) -> u64 {
        self.stop.send_replace(Stop::Finish);
        let finished = soon("the load's end", self.running)
            .await
            .expect("no panic");
        let pooled = &finished.report.pooled;
        assert_eq!(pooled.errors_total, 0, "{pooled:?}");
        pooled.acked
    }
}

/// Every node's status, as the product prints it.
async fn statuses(cluster: &Cluster) -> Vec<Value> {
    let all = cluster.json(&["status"]).await;
    let nodes = all["nodes"].as_array().cloned();
    nodes.unwrap_or_else(|| panic!("{all}"))
}

/// The serial numbers that nodes have, and those that they see on every lane of a peer.
async fn serials(cluster: &Cluster) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut own, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for status in statuses(cluster).await {
        let status = &status["status"];
        own.insert(status["tls"]["cert_serial"].to_string());
        for lane in status["peers"].as_array().expect("peers") {
            seen.insert(lane["cert_serial"].to_string());
        }
    }
    (own, seen)
}

async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let late = clock::now() + PATIENCE;
    while !holds().await {
        assert!(clock::now() < late, "waited for {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until each node shows its present leaf on every session, and none of `old` is left.
async fn settled(cluster: &Cluster, old: &BTreeSet<String>) {
    until("sessions under the new leaves", || async {
        let (own, seen) = serials(cluster).await;
        own == seen && own.len() == 3 && own.is_disjoint(old)
    })
    .await;
}

async fn reloaded(cluster: &Cluster, count: u64) {
    until("every node to take the files over", || async {
        let statuses = statuses(cluster).await;
        let reloads = statuses
            .iter()
            .map(|status| &status["status"]["tls"]["reloads_total"]);
        reloads
            .clone()
            .all(|reloads| reloads.as_u64() >= Some(count))
    })
    .await;
}

#[tokio::test]
#[ignore = "gate: three processes under load for half a minute"]
async fn the_operators_pages_commands_work_on_a_cluster_under_load() {
    let [renew, revoke, readmit, both, leaves, next] = blocks()[..] else {
        panic!("{:?}", blocks());
    };
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let mut load = Load::start(&cluster);
    load.flows(500).await;
    let (first, _) = serials(&cluster).await;

    follow(&cluster, renew).await;
    until("node 1's new leaf at its peers", || async {
        let (own, seen) = serials(&cluster).await;
        own == seen && own != first
    })
    .await;
    load.flows(500).await;

    // Who is cut off loses what is under way: that isn't the load's to judge.
    let acked = load.end().await;
    follow(&cluster, revoke).await;
    until("node 3 to be cut off everywhere", || async {
        let statuses = statuses(&cluster).await;
        let lanes = statuses
            .iter()
            .filter(|status| status["status"]["node"] != 3)
            .map(|status| {
                let lanes = status["status"]["peers"].as_array().expect("peers").clone();
                lanes.into_iter().filter(|lane| lane["peer"] == 3)
            });
        let revoked = serde_json::to_value(LaneState::Revoked).expect("a name");
        lanes.flatten().all(|lane| lane["state"] == revoked)
    })
    .await;
    follow(&cluster, readmit).await;
    let old = first;
    until("node 3 to be back", || async {
        let (own, seen) = serials(&cluster).await;
        own == seen && own.len() == 3
    })
    .await;
    drop(old);

    let mut load = Load::start(&cluster);
    load.flows(500).await;
    let reloads = statuses(&cluster).await;
    let most = reloads
        .iter()
        .map(|status| status["status"]["tls"]["reloads_total"].as_u64());
    let most = most.flatten().max().expect("nodes");
    let (old, _) = serials(&cluster).await;
    follow(&cluster, both).await;
    until("every node to believe both", || async {
        statuses(&cluster).await.iter().all(|status| {
            let tls = &status["status"]["tls"];
            tls["reload_fault"].is_null()
        })
    })
    .await;
    reloaded(&cluster, 1.max(most.saturating_sub(2))).await;
    load.flows(500).await;
    sleep(Duration::from_secs(1)).await;
    follow(&cluster, leaves).await;
    settled(&cluster, &old).await;
    load.flows(500).await;
    follow(&cluster, next).await;
    load.flows(500).await;
    let (own, seen) = serials(&cluster).await;
    assert_eq!(own, seen);
    assert!(load.end().await > 0 && acked > 0);
    cluster.down_exactly().await;
}
