//! `load` as a user types it, against nodes that run in this process.

use std::fs;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::cli::Exit;
use crate::cli::tests::{Ended, done, failure, multigroup};
use crate::config::RawConfig;
use crate::load::read_ledger;
use crate::load::tests::{Backend, Manner, Running, closed_endpoint};

/// A node of one store, and a folder that names it.
struct Cluster {
    runtime: Runtime,
    backend: Arc<Backend>,
    node: Running,
    folder: TempDir,
}

impl Cluster {
    fn new(manner: Manner) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let backend = Backend::new(6);
        let node = runtime.block_on(Running::start(&backend, manner));
        let cluster = Self {
            runtime,
            backend,
            node,
            folder: TempDir::new().unwrap(),
        };
        cluster.write_config(1, &cluster.node.endpoint.to_string(), 6, "");
        cluster
    }

    fn write_config(&self, number: u64, client: &str, groups: u32, more: &str) {
        let folder = self.folder.path().join(format!("node-{number}"));
        fs::create_dir_all(&folder).unwrap();
        let (peer, admin) = (7100 + number, 7300 + number);
        let text = format!(
            "cluster = \"dev\"\nnode = {number}\ndata_dir = \"data\"\ngroups = {groups}\n{more}\n\
             [listen]\npeer = \"127.0.0.1:{peer}\"\nclient = \"{client}\"\n\
             admin = \"127.0.0.1:{admin}\"\n[peers]\n1 = \"127.0.0.1:7101\"\n2 = \"127.0.0.1:7102\"\n\
             [tls]\nca = \"ca\"\ncert = \"cert\"\nkey = \"key\"\n"
        );
        RawConfig::from_toml(&text).unwrap();
        fs::write(folder.join("config.toml"), text).unwrap();
    }

    fn dir(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn load(&self, more: &[&str]) -> Ended {
        let dir = self.dir();
        let words = ["load", "--dir", &dir, "--seconds", "0.2", "--writers", "2"];
        multigroup(&[&words, more].concat())
    }
}

#[test]
fn a_good_run_prints_its_figures_and_keeps_its_ledger() {
    let cluster = Cluster::new(Manner::Good);
    let ended = cluster.load(&[]);
    assert_eq!((ended.exit, ended.err.as_str()), (Exit::Done, ""));
    for part in [
        "load          incr by 2 writers for 0.2 s; policy quorum, log sync on",
        "0 failed",
    ] {
        assert!(ended.out.contains(part), "{}", ended.out);
    }
    let ledger = read_ledger(cluster.folder.path()).unwrap().entries;
    assert_eq!(ledger.len(), 6);
    for entry in &ledger {
        assert_eq!(cluster.backend.count(&entry.key), entry.acked, "{entry:?}");
    }
    assert_eq!(cluster.load(&[]).exit, Exit::Done);
    let ledger = read_ledger(cluster.folder.path()).unwrap().entries;
    assert_eq!(ledger.len(), 12, "a line for each key and run");
    assert_ne!(ledger[0].run, ledger[6].run);
}

#[test]
fn the_json_result_has_exactly_the_agreed_keys() {
    let cluster = Cluster::new(Manner::Good);
    let endpoint = cluster.node.endpoint.to_string();
    let out = done(&[
        "load",
        "--endpoints",
        &endpoint,
        "--seconds",
        "0.2",
        "--window-seconds",
        "0.1",
        "--json",
        "-",
    ]);
    let json: Value = serde_json::from_str(&out).unwrap();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        keys(&json),
        "build log_sync op policy pooled schema seconds windows worst_window_p99_us writers"
    );
    let figures = "acked errors errors_total max_us operations operations_per_s p50_us p90_us p999_us \
                   p99_us";
    assert_eq!(keys(&json["pooled"]), figures);
    assert_eq!(
        keys(&json["windows"][1]),
        "acked errors errors_total max_us operations operations_per_s p50_us p90_us p999_us p99_us \
         seconds start_s"
    );
    assert_eq!(
        keys(&json["pooled"]["errors"]),
        "connection no_leader protocol refused timeout unknown"
    );
    assert_eq!(keys(&json["build"]), "commit profile");
    assert_eq!(json["schema"], "multigroup.load/1");
    assert_eq!(
        (&json["writers"], &json["seconds"]),
        (&8.into(), &0.2.into())
    );
    assert_eq!(
        (&json["policy"], &json["log_sync"]),
        (&"quorum".into(), &true.into())
    );
    assert_eq!(json["windows"][1]["start_s"], 0.1);
    let pooled = &json["pooled"];
    let sum = pooled["acked"].as_u64().unwrap() + pooled["errors_total"].as_u64().unwrap();
    assert_eq!(pooled["operations"], sum);
    assert!(pooled["p50_us"].as_u64().unwrap() > 0);
    assert!(
        !cluster.folder.path().join("load-ledger").exists(),
        "there is no folder to keep one"
    );
}

#[test]
fn errors_in_the_run_fail_it_unless_they_are_allowed() {
    let cluster = Cluster::new(Manner::Faulty);
    let ended = cluster.load(&[]);
    assert_eq!(ended.exit, Exit::Failed);
    assert!(ended.err.contains(" operations failed (") && ended.err.contains("--allow-errors"));
    assert!(
        ended.out.contains("failures      timeout "),
        "{}",
        ended.out
    );
    let file = cluster.folder.path().join("result.json");
    let ended = cluster.load(&["--allow-errors", "--json", &file.display().to_string()]);
    assert_eq!((ended.exit, ended.err.as_str()), (Exit::Done, ""));
    let json: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert!(json["pooled"]["errors_total"].as_u64().unwrap() > 0);
    // Acknowledged ones and those that may have happened, over both runs.
    for key in 0..6 {
        let ledger = read_ledger(cluster.folder.path()).unwrap().entries;
        let lines: Vec<_> = ledger
            .iter()
            .filter(|e| e.key.ends_with(&format!(":{key}")))
            .collect();
        let acked: u64 = lines.iter().map(|entry| entry.acked).sum();
        let unknown: u64 = lines.iter().map(|entry| entry.unknown).sum();
        let value = cluster.backend.count(&lines[0].key);
        assert!((acked..=acked + unknown).contains(&value), "{lines:?}");
    }
}

#[test]
fn nodes_that_can_t_be_reached_end_it_with_a_code_of_their_own() {
    let cluster = Cluster::new(Manner::Good);
    let closed = cluster.runtime.block_on(closed_endpoint()).to_string();
    let err = failure(&["load", "--endpoints", &closed], Exit::Unreachable);
    assert!(
        err.contains(&closed) && err.contains("is the cluster running?"),
        "{err}"
    );
    cluster.write_config(1, &closed, 6, "");
    let ended = cluster.load(&[]);
    assert_eq!(ended.exit, Exit::Unreachable);
    assert!(ended.err.contains(&closed), "{}", ended.err);
}

#[test]
fn what_can_t_be_a_load_is_bad_usage() {
    let cluster = Cluster::new(Manner::Good);
    let dir = cluster.dir();
    let endpoint = cluster.node.endpoint.to_string();
    let with = |more: &[&'static str]| [&["load", "--dir", "DIR"], more].concat();
    let cases = [
        (vec!["load"], "<--dir <DIR>|--endpoints <HOST:PORT>>"),
        (with(&["--endpoints", "127.0.0.1:1"]), "cannot be used with"),
        (
            vec!["load", "--endpoints", "nowhere"],
            "\"nowhere\" is no HOST:PORT",
        ),
        (
            with(&["--seconds", "0"]),
            "it is a number of seconds above 0",
        ),
        (
            with(&["--seconds", "inf"]),
            "it is a number of seconds above 0",
        ),
        (with(&["--writers", "0"]), "the number of writers is 0"),
        (
            with(&["--op", "del"]),
            "[possible values: incr, set, get, mixed]",
        ),
        (
            with(&["--op", "set", "--value-bytes", "8"]),
            "the length of a value is 8",
        ),
        (
            with(&["--phases"]),
            "--phases needs nodes that time the steps of a commit",
        ),
        (
            vec!["load", "--dir", "/absent"],
            "can't read /absent: it does not exist",
        ),
    ];
    for (words, sentence) in cases {
        let words: Vec<&str> = words
            .into_iter()
            .map(|word| if word == "DIR" { &dir } else { word })
            .collect();
        let err = failure(&words, Exit::Usage);
        assert!(err.contains(sentence), "{words:?}: {err}");
    }
    cluster.write_config(2, "127.0.0.1:7202", 7, "");
    let err = failure(&["load", "--dir", &dir], Exit::Usage);
    assert!(
        err.contains("groups is 6 in") && err.contains("and 7 in"),
        "{err}"
    );
    fs::write(
        cluster.folder.path().join("node-2/config.toml"),
        "cluster = 5",
    )
    .unwrap();
    let err = failure(&["load", "--dir", &dir], Exit::Usage);
    assert!(err.contains("node-2/config.toml can't be used: "), "{err}");
    let empty = TempDir::new().unwrap();
    let err = failure(
        &["load", "--dir", &empty.path().display().to_string()],
        Exit::Usage,
    );
    assert!(err.contains("holds no node-N/config.toml"), "{err}");
    assert_eq!(
        cluster.backend.value("counter:{0}:0"),
        None,
        "{endpoint} was never asked"
    );
}
