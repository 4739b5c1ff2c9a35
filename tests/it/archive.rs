//! The archive of a cluster of real processes: readable by another process while load runs, whole
//! when a leader was killed, exact at the end; while the store takes nothing, writes are held by
//! name, and nothing is left out afterwards.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tests::cluster::{Cluster, NODES};
use tests::soon;
use tokio::time::sleep;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u64 = 30;

struct Archived {
    cluster: Cluster,
    folder: PathBuf,
    url: String,
}

impl Archived {
    async fn up() -> Self {
        let cluster = Cluster::new(MULTIGROUP).await;
        let folder = cluster.path().with_file_name("archive");
        let url = format!("file://{}", folder.display());
        let (base, groups) = (cluster.base_port().to_string(), GROUPS.to_string());
        let set_url = format!("archive.url={url}");
        let up = [
            "cluster",
            "up",
            "--groups",
            &groups,
            "--base-port",
            &base,
            "--detach",
        ];
        let sets = [
            "--config-set",
            &set_url,
            "--config-set",
            "archive.interval=200ms",
            "--config-set",
            "archive.max_lag_bytes=256KiB",
        ];
        cluster.done(&[&up[..], &sets].concat()).await;
        Self {
            cluster,
            folder,
            url,
        }
    }

    /// The id that the nodes' configurations have.
    fn id(&self) -> String {
        let path = self.cluster.path().join("node-1/config.toml");
        let text = std::fs::read_to_string(path).expect("a configuration");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("cluster_id = "));
        line.expect("an id").trim_matches('"').to_owned()
    }

    /// What another process finds, which must be sound.
    async fn check(&self) -> Value {
        let verify = ["archive", "verify", "--from", &self.url, "--json", "-"];
        let ended = tests::process::run(MULTIGROUP, Path::new("/"), &verify).await;
        assert_eq!(ended.code, Some(0), "{}", self.cluster.told(&ended));
        serde_json::from_str(&ended.stdout).expect("JSON")
    }

    async fn until_it_grows(&self) -> u64 {
        let entries = |checked: &Value| checked["entries"].as_u64().expect("a number");
        let before = entries(&self.check().await);
        loop {
            let now = entries(&self.check().await);
            if now > before + 100 {
                return now;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The archive as each node has it in its status.
    async fn statuses(&self) -> Vec<Value> {
        let asked = self.cluster.run(&["status", "--json", "-"]).await;
        let status: Value = serde_json::from_str(&asked.stdout).expect("JSON");
        let nodes = status["nodes"].as_array().expect("nodes").iter();
        let archives = nodes.map(|node| node["status"]["archive"].clone());
        archives.filter(|archive| !archive.is_null()).collect()
    }

    async fn until(&self, what: &str, is: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let mut last = Vec::new();
        let found = soon(what, async {
            loop {
                last = self.statuses().await;
                if is(&last) {
                    return;
                }
                sleep(Duration::from_millis(100)).await;
            }
        });
        found.await;
        last
    }

    /// All replicas at one index, and every group archived up to it.
    async fn check_whole(&self) {
        let verified = self.cluster.json(&["verify"]).await;
        assert_eq!(verified["mismatches"], 0, "{verified}");
        assert_eq!(verified["archive_positions"], GROUPS, "{verified}");
        assert_eq!(verified["replicas"], GROUPS * NODES);
        let checked = self.check().await;
        let positions = checked["positions"].as_object().expect("positions");
        assert_eq!(positions.len() as u64, GROUPS);
        let groups = self.cluster.json(&["groups"]).await;
        for group in groups["groups"].as_array().expect("groups") {
            let archived = &positions[&group["group"].to_string()]["index"];
            for replica in group["replicas"].as_array().expect("replicas") {
                assert_eq!(*archived, replica["applied_index"], "{group}");
            }
        }
    }

    async fn load(&self, seconds: &str, more: &[&str]) -> Value {
        let load = ["load", "--allow-errors", "--seconds", seconds];
        self.cluster.json(&[&load[..], more].concat()).await
    }
}

#[tokio::test]
async fn an_archive_is_read_under_load_and_whole_after_a_leader_was_killed() {
    let archived = Archived::up().await;
    let (load, ()) = tokio::join!(archived.load("20", &[]), async {
        soon("entries", archived.until_it_grows()).await;
        let cluster = &archived.cluster;
        cluster.done(&["cluster", "kill", "--node", "1"]).await;
        soon("entries of other leaders", archived.until_it_grows()).await;
        cluster.done(&["cluster", "restart", "--node", "1"]).await;
        soon("entries with all nodes", archived.until_it_grows()).await;
    });
    assert!(load["pooled"]["acked"].as_u64() > Some(0), "{load}");
    archived.check_whole().await;
    let current = |all: &[Value]| {
        all.len() as u64 == NODES
            && all.iter().all(|one| {
                one["groups_current"] == GROUPS
                    && one["lag_bytes"] == 0
                    && one["groups_stopped"] == 0
            })
    };
    archived
        .until("every node to see all groups current", current)
        .await;
    // What a stop leaves is sound, and no group's archive is beyond its log.
    archived.cluster.done(&["cluster", "down"]).await;
    let offline = archived.cluster.json(&["verify", "--offline"]).await;
    assert_eq!(offline["mismatches"], 0, "{offline}");
    archived.check().await;
}

/// A folder with something else in its place, as when a mount went away: it also keeps root out.
struct Blocked {
    folder: PathBuf,
    aside: PathBuf,
}

impl Blocked {
    fn block(archive: &Path) -> Self {
        let (folder, aside) = (archive.join("segments"), archive.join("aside"));
        std::fs::rename(&folder, &aside).expect("to move it aside");
        std::fs::write(&folder, "").expect("a file in its place");
        Self { folder, aside }
    }

    fn unblock(self) {
        std::fs::remove_file(&self.folder).expect("to remove the file");
        std::fs::rename(&self.aside, &self.folder).expect("to move it back");
    }
}

#[tokio::test]
async fn while_the_store_takes_nothing_writes_are_held_and_nothing_is_left_out() {
    let archived = Archived::up().await;
    archived.load("2", &[]).await;
    archived.check_whole().await;
    let blocked = Blocked::block(&archived.folder);
    let values = ["--op", "set", "--value-bytes", "4096", "--writers", "8"];
    let (load, ()) = tokio::join!(archived.load("15", &values), async {
        let held = |all: &[Value]| {
            all.iter().any(|one| {
                let failing = one["failing"].as_str();
                one["writes_held"] == true && failing.is_some_and(|why| why.contains("store"))
            })
        };
        let all = archived.until("a node to hold its writes", held).await;
        let failures = all.iter().map(|one| one["failures_total"].as_u64());
        assert!(failures.sum::<Option<u64>>() > Some(0), "{all:?}");
    });
    // Held for longer than they may wait, they were refused, by name and without effect.
    let errors = &load["pooled"]["errors"];
    assert!(errors["refused"].as_u64() > Some(0), "{errors}");
    assert_eq!(errors["unknown"], 0, "{errors}");
    blocked.unblock();
    let caught_up = |all: &[Value]| {
        all.len() as u64 == NODES
            && all.iter().all(|one| {
                one["writes_held"] == false
                    && one["failing"].is_null()
                    && one["groups_current"] == GROUPS
            })
    };
    archived.until("the archive to catch up", caught_up).await;
    let load = archived.load("2", &values).await;
    assert_eq!(load["pooled"]["errors_total"], 0, "{load}");
    archived.check_whole().await;
}

/// Wipes every node, as a folder that is restored without its data, or a script that clears it, does.
fn wipe(cluster: &Cluster) {
    for node in 1..=NODES {
        let data = cluster.path().join(format!("node-{node}/data"));
        std::fs::remove_dir_all(data).expect("to remove the data");
    }
}

#[tokio::test]
async fn an_archive_of_another_life_is_refused_and_one_that_is_taken_away_is_missed() {
    let archived = Archived::up().await;
    let cluster = &archived.cluster;
    archived.load("2", &[]).await;
    archived.check_whole().await;
    // Taken away under running nodes: named, not made again, and taken up when it is back.
    let aside = archived.folder.with_file_name("aside");
    std::fs::rename(&archived.folder, &aside).expect("to move it aside");
    let is = |state: &'static str| move |all: &[Value]| all.iter().all(|one| one["state"] == state);
    let all = archived.until("every node to miss it", is("gone")).await;
    assert!(
        all[0]["failing"]
            .as_str()
            .expect("why")
            .contains("archive.json is gone")
    );
    archived.load("1", &[]).await;
    assert!(!archived.folder.exists(), "it was made again");
    // Nor does a node start without it.
    cluster.done(&["cluster", "kill", "--node", "1"]).await;
    let refused = cluster.run(&["cluster", "restart", "--node", "1"]).await;
    assert_eq!(refused.code, Some(3), "{}", cluster.told(&refused));
    assert!(
        refused.stderr.contains("archive.json is gone"),
        "{}",
        refused.stderr
    );
    std::fs::rename(&aside, &archived.folder).expect("to move it back");
    cluster.done(&["cluster", "restart", "--node", "1"]).await;
    archived.until("the archive to be taken up", is("ok")).await;
    archived.check_whole().await;
    // A damaged byte of an object is found by `verify`, which counts positions from it.
    let object = first_object(&archived.folder);
    let whole = std::fs::read(&object).expect("an object");
    let mut bytes = whole.clone();
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&object, bytes).expect("to damage it");
    let found = cluster.run(&["verify", "--json", "-"]).await;
    assert_eq!(found.code, Some(1), "{}", cluster.told(&found));
    assert!(found.stdout.contains("is damaged"), "{}", found.stdout);
    std::fs::write(&object, whole).expect("to mend it");
    cluster.done(&["cluster", "down"]).await;
    // A wiped cluster doesn't go on after its old objects.
    wipe(cluster);
    let refused = cluster.run(&["cluster", "up", "--detach"]).await;
    assert_eq!(refused.code, Some(3), "{}", cluster.told(&refused));
    assert!(refused.stderr.contains("was wiped"), "{}", refused.stderr);
    // Nor does one of the same name: it names both ids.
    wipe(cluster);
    let (old, new) = (archived.id(), "00112233445566778899aabbccddeeff");
    for node in 1..=NODES {
        let path = cluster.path().join(format!("node-{node}/config.toml"));
        let text = std::fs::read_to_string(&path).expect("a configuration");
        std::fs::write(path, text.replace(&old, new)).expect("another id");
    }
    let refused = cluster.run(&["cluster", "up", "--detach"]).await;
    assert_eq!(refused.code, Some(3), "{}", cluster.told(&refused));
    for part in [old.as_str(), new, "archive.url"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
}

fn first_object(archive: &Path) -> PathBuf {
    let mut path = archive.join("segments");
    while path.is_dir() {
        let mut entries = std::fs::read_dir(&path).expect("a folder");
        path = entries
            .next()
            .expect("something in it")
            .expect("an entry")
            .path();
    }
    path
}
