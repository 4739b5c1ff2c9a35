//! `demo` as its users have it: what it reports, what it leaves, and how it ends when it is stopped
//! or when a node dies under it.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use multigroup::admin::Status;
use multigroup::cluster::{ClusterFolder, Found, NodeProcess, NodeSignal, find, scan};
use serde_json::Value;
use tests::cluster::{Cluster, NODES, is_closed_exactly};
use tests::process::{Finished, run};
use tests::soon;
use tokio::process::{Child, Command};
use tokio::time::sleep;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u64 = 12;

/// A folder to run demos in, one at a time; no node outlives it.
struct Stage {
    cluster: Cluster,
}

impl Stage {
    async fn new() -> Self {
        let cluster = Cluster::new(MULTIGROUP).await;
        Self { cluster }
    }

    /// Where fresh folders are made.
    fn path(&self) -> &Path {
        self.cluster.path().parent().expect("a folder around it")
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let (groups, base) = (GROUPS.to_string(), self.cluster.base_port().to_string());
        let own = ["demo", "--groups", &groups, "--base-port", &base];
        let all = own.iter().chain(more);
        all.map(|word| (*word).to_owned()).collect()
    }

    async fn run(&self, more: &[&str]) -> Finished {
        let all = self.arguments(more);
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        run(MULTIGROUP, self.path(), &all).await
    }

    fn spawn(&self, more: &[&str]) -> Child {
        let mut command = Command::new(MULTIGROUP);
        command
            .current_dir(self.path())
            .args(self.arguments(more))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command.spawn().expect("a process")
    }

    /// The fresh folders that are there.
    fn fresh(&self) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.path()).expect("the folder");
        let paths = listed.map(|entry| entry.expect("an entry").path());
        let is_fresh = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("multigroup-demo-"))
        };
        paths.filter(is_fresh).collect()
    }

    /// A node of the demo that runs, once its load is under way.
    async fn node_under_load(&self, node: u64) -> NodeProcess {
        let client = self.cluster.client(node);
        let running = async {
            loop {
                let folder = self.fresh().pop();
                let folder = folder.map(|path| ClusterFolder::new(&path).expect("its path"));
                let found = folder.and_then(|folder| find(&folder, node).ok());
                if let Some(Found::Running(process)) = found
                    && loaded(&client, &self.cluster).await
                {
                    return process;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        soon("a demo under load", running).await
    }

    fn nothing_is_left(&self) {
        assert_eq!(self.fresh(), Vec::<PathBuf>::new());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for path in self.fresh() {
            let folder = ClusterFolder::new(&path).expect("its path");
            for process in scan(&folder).unwrap_or_default() {
                let _ended = process.signal(NodeSignal::KILL);
            }
        }
    }
}

/// Whether a node answers, and has committed more than its keys.
async fn loaded(client: &str, cluster: &Cluster) -> bool {
    let admin = client
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    let admin = admin.map_or(0, |port: u16| port + 100);
    let url = format!("http://127.0.0.1:{admin}");
    let status = ["status", "--admin", &url, "--json", "-"];
    let ended = run(
        MULTIGROUP,
        cluster.path().parent().expect("a folder"),
        &status,
    )
    .await;
    let status: Option<Value> = serde_json::from_str(&ended.stdout).ok();
    let committed = status.map(|status| status["proposals"]["committed_total"].clone());
    committed.and_then(|committed| committed.as_u64()) > Some(GROUPS)
}

fn json(ended: &Finished) -> Value {
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

#[tokio::test]
async fn a_demo_reports_all_that_it_did_and_leaves_nothing() {
    let stage = Stage::new().await;
    let words = ["demo", "--groups", "12", "--seconds", "1", "--json", "-"];
    let ended = run(MULTIGROUP, stage.path(), &words).await;
    let report = json(&ended);
    let fields = report.as_object().expect("an object").keys();
    let fields: BTreeSet<_> = fields.map(String::as_str).collect();
    for field in [
        "schema",
        "ok",
        "nodes",
        "groups",
        "fs",
        "log_sync",
        "durable",
        "start_seconds",
        "load",
        "verify",
        "leader_changes_during_load",
        "rss_max_bytes",
        "peers",
        "final_accounting",
    ] {
        assert!(fields.contains(field), "{field}: {fields:?}");
    }
    assert_eq!(report["schema"], "multigroup.demo/1");
    assert_eq!(report["ok"], true);
    assert_eq!(
        (&report["nodes"], &report["groups"]),
        (&3.into(), &12.into())
    );
    assert_eq!(report["log_sync"], true);
    let durable = report["fs"] != "tmpfs";
    assert_eq!(report["durable"], durable, "{}", report["fs"]);
    assert!(report["start_seconds"].as_f64() > Some(0.0));
    assert_eq!(report["load"]["schema"], "multigroup.load/1");
    assert_eq!(report["load"]["writers"], 8);
    assert!(report["load"]["pooled"]["acked"].as_u64() > Some(0));
    let verified = &report["verify"];
    assert_eq!(verified["replicas"], GROUPS * NODES);
    assert_eq!(verified["replicas_empty"], 0);
    assert_eq!(verified["archive_positions"], GROUPS);
    assert_eq!(verified["counters_exact"], GROUPS);
    assert_eq!(verified["mismatches"], 0);
    assert!(report["leader_changes_during_load"].is_u64());
    let memory = report["rss_max_bytes"].as_array().expect("by node");
    assert_eq!(memory.len() as u64, NODES);
    assert!(memory.iter().all(|bytes| bytes.as_u64() > Some(1 << 20)));
    assert_eq!(report["final_accounting"], "exact");
    lanes_are_told(report["peers"].as_array().expect("lanes"));
    assert!(ended.stderr.contains("starting 3 nodes with 12 groups"));
    stage.nothing_is_left();
}

/// Two lanes to each of two peers of three nodes, each with what happened while the load ran.
fn lanes_are_told(lanes: &[Value]) {
    let of = |lane: &Value| {
        let number = |name| lane[name].as_u64().expect("a number");
        let kind = lane["lane"].as_str().expect("a lane").to_owned();
        (number("node"), number("peer"), kind)
    };
    let all: BTreeSet<_> = lanes.iter().map(of).collect();
    assert_eq!((lanes.len(), all.len()), (12, 12));
    for lane in lanes {
        assert!(lane["frames_started"].as_u64() > Some(0), "{lane}");
        assert_eq!(lane["frames_lost"], 0, "{lane}");
        assert_eq!(lane["frames_expired"], 0, "{lane}");
        assert!(lane["turnaround_us"]["p99"].is_u64(), "{lane}");
    }
}

#[tokio::test]
async fn a_named_folder_stays_and_takes_another_demo() {
    let stage = Stage::new().await;
    let words = ["--dir", "named", "--seconds", "0.5", "--writers", "2"];
    let set = ["--config-set", "archive.interval=200ms"];
    let ended = stage.run(&[&words[..], &set].concat()).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let folder = ClusterFolder::new(&stage.path().join("named")).expect("its path");
    for node in 1..=NODES {
        let text = std::fs::read_to_string(folder.final_status(node)).expect("a last status");
        let status: Status = serde_json::from_str(&text).expect("a status");
        is_closed_exactly(&status);
        let config = std::fs::read_to_string(folder.config(node)).expect("a configuration");
        assert!(config.contains("interval = \"200ms\""), "{config}");
        assert!(!folder.pid(node).exists());
    }
    for line in [
        "operations ",
        "verified ",
        "accounting    exact",
        "result        ok",
    ] {
        assert!(ended.stdout.contains(line), "{line}: {}", ended.stdout);
    }
    // The accounts of both runs add up.
    let again = json(&stage.run(&[&words[..], &["--json", "-"]].concat()).await);
    assert_eq!(again["verify"]["counters_exact"], GROUPS, "{again}");
    let other = stage
        .run(&["--dir", "named", "--config-set", "log.sync=false"])
        .await;
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    let both = other.stderr.contains("log.sync=false") && other.stderr.contains("config.toml");
    assert!(both, "{}", other.stderr);
    let offline = ["verify", "--offline", "--dir", "named"];
    let ended = run(MULTIGROUP, stage.path(), &offline).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test]
async fn a_fresh_folder_is_kept_if_asked_also_of_a_cluster_of_one() {
    let stage = Stage::new().await;
    let report = stage
        .run(&[
            "--keep",
            "--nodes",
            "1",
            "--seconds",
            "0.2",
            "--no-archive",
            "--json",
            "-",
        ])
        .await;
    let value = json(&report);
    assert_eq!((&value["ok"], &value["nodes"]), (&true.into(), &1.into()));
    assert_eq!(value["verify"]["replicas"], GROUPS);
    assert_eq!(
        (&value["archive"], &value["verify"]["archive_positions"]),
        (&false.into(), &0.into())
    );
    let kept = stage.fresh();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let dir = kept[0].display().to_string();
    let name = kept[0]
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    assert!(report.stderr.contains(name), "{}", report.stderr);
    let offline = ["verify", "--offline", "--dir", &dir];
    let ended = run(MULTIGROUP, stage.path(), &offline).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test]
async fn a_demo_that_can_not_begin_says_why_and_leaves_nothing() {
    let stage = Stage::new().await;
    let unknown = stage.run(&["--config-set", "log.sink=1"]).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("log.sync"), "{}", unknown.stderr);
    let impossible = stage
        .run(&["--config-set", "raft.election_timeout=1ms"])
        .await;
    assert_eq!(impossible.code, Some(2), "{}", impossible.stderr);
    let port = stage.cluster.base_port() + 102;
    let _taken = TcpListener::bind(("127.0.0.1", port)).expect("a port of ours");
    let taken = stage.run(&[]).await;
    assert_eq!(taken.code, Some(3), "{}", taken.stderr);
    let named = taken.stderr.contains(&port.to_string()) && taken.stderr.contains("--base-port");
    assert!(named, "{}", taken.stderr);
    stage.nothing_is_left();
}

#[tokio::test]
async fn a_demo_whose_node_dies_fails_and_keeps_its_folder() {
    let stage = Stage::new().await;
    let demo = stage.spawn(&["--seconds", "4", "--json", "-"]);
    let node = stage.node_under_load(2).await;
    node.signal(NodeSignal::KILL).expect("to kill it");
    let ended = soon("its end", demo.wait_with_output())
        .await
        .expect("an end");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(told.contains("node 2 ended during the demo"), "{told}");
    let kept = stage.fresh();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let name = kept[0]
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    assert!(told.contains("kept") && told.contains(name), "{told}");
    let report: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    assert!(
        report["failure"]
            .as_str()
            .is_some_and(|why| why.contains("node 2"))
    );
    let accounting = report["final_accounting"].as_str().expect("words");
    assert!(accounting.contains("node-2"), "{accounting}");
    let left = scan(&ClusterFolder::new(&kept[0]).expect("its path")).expect("the processes");
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_demo_that_is_stopped_ends_cleanly_and_leaves_nothing() {
    let stage = Stage::new().await;
    let demo = stage.spawn(&["--seconds", "100", "--json", "-"]);
    let node = stage.node_under_load(3).await;
    let kill = format!("kill -INT {}", demo.id().expect("it runs"));
    let interrupt = run("sh", stage.path(), &["-c", &kill]).await;
    assert_eq!(interrupt.code, Some(0), "{}", interrupt.stderr);
    let ended = soon("its end", demo.wait_with_output())
        .await
        .expect("an end");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.contains("Ctrl-C"), "{told}");
    let report: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    // What ran until then is told, and the nodes ended as they should.
    assert!(report["load"]["pooled"]["acked"].as_u64() > Some(0));
    assert_eq!(report["final_accounting"], "exact");
    soon("the node's end", node.gone()).await.expect("its end");
    stage.nothing_is_left();
}
