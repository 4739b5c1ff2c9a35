//! A cluster's life on one machine, by the product's own command line.

use std::path::Path;

use tests::cluster::{Cluster, NODES};
use tests::process::run;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 150;

#[tokio::test]
async fn a_cluster_comes_up_takes_load_verifies_and_goes_down() {
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let leading = cluster.leading().await;
    assert_eq!(
        leading.values().sum::<usize>(),
        GROUPS as usize,
        "{leading:?}"
    );

    let load = cluster
        .json(&["load", "--writers", "8", "--seconds", "3"])
        .await;
    assert_eq!(load["schema"], "multigroup.load/1");
    assert_eq!(load["pooled"]["errors_total"], 0);
    assert!(load["pooled"]["acked"].as_u64() > Some(0), "{load}");
    assert_eq!(load["log_sync"], true);
    let verified = cluster.json(&["verify"]).await;
    assert_eq!(verified["schema"], "multigroup.verify/1");
    assert_eq!(verified["replicas"], u64::from(GROUPS) * NODES);
    assert_eq!(verified["counters_exact"], GROUPS);
    assert_eq!(verified["mismatches"], 0);

    let again = cluster.run(&["cluster", "up", "--detach"]).await;
    assert_eq!(again.code, Some(2), "{}", again.stderr);
    assert!(again.stderr.contains("is in use"), "{}", again.stderr);
    let offline = cluster.run(&["verify", "--offline"]).await;
    assert_eq!(offline.code, Some(2), "{}", offline.stderr);

    cluster.down_exactly().await;
    for node in 1..=NODES {
        assert!(!cluster.folder().pid(node).exists());
    }
    let offline = cluster.json(&["verify", "--offline"]).await;
    assert_eq!(offline["replicas"], u64::from(GROUPS) * NODES);
    assert_eq!(offline["counters_exact"], GROUPS);
    let gone = cluster.run(&["verify"]).await;
    assert_eq!(gone.code, Some(3), "{}", gone.stderr);
}

#[tokio::test]
async fn a_node_that_cannot_start_is_named_with_its_last_words_and_none_is_left() {
    let cluster = Cluster::up(MULTIGROUP, 4).await;
    cluster.done(&["cluster", "down"]).await;
    let identity = cluster.folder().node(2).join("data/identity.toml");
    std::fs::write(&identity, "nobody").expect("an identity that is none");
    let failed = cluster.run(&["cluster", "up", "--detach"]).await;
    assert_eq!(failed.code, Some(3), "{}", failed.stderr);
    assert!(
        failed.stderr.contains("node 2 ended at its start"),
        "{}",
        failed.stderr
    );
    let told: Vec<_> = failed
        .stderr
        .lines()
        .filter(|line| line.starts_with("node 2 | "))
        .collect();
    assert!(
        told.iter().any(|line| line.contains("identity.toml")),
        "{}",
        failed.stderr
    );
    let left = multigroup::cluster::scan(cluster.folder()).expect("the processes");
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn credentials_that_are_no_good_are_named_before_a_node_starts() {
    let cluster = Cluster::up(MULTIGROUP, 4).await;
    let dir = cluster.path().display().to_string();
    let certs = async |words: &[&str]| {
        let all = [&["certs"], words, &["--dir", &dir]].concat();
        let ended = run(MULTIGROUP, Path::new("/"), &all).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    };
    // Another CA of the same name, and a new certificate for one node alone.
    let ca = cluster.path().join("ca");
    std::fs::rename(&ca, cluster.path().join("old-ca")).expect("to move it");
    certs(&["init", "--cluster", "dev"]).await;
    let refused = cluster.run(&["cluster", "restart", "--node", "2"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    for words in [
        "node 2",
        "issued by another CA",
        "multigroup certs node --dir",
    ] {
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    certs(&["node", "--node", "2"]).await;
    let restart = ["cluster", "restart", "--node", "2", "--no-wait"];
    let warned = cluster.run(&restart).await;
    assert_eq!(warned.code, Some(0), "{}", warned.stderr);
    let warning = "warning: the certificate of node 1";
    assert!(warned.stderr.contains(warning), "{}", warned.stderr);
    cluster.done(&["cluster", "down"]).await;
    let refused = cluster.run(&["cluster", "up", "--detach"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("node 1"), "{}", refused.stderr);
    certs(&["node", "--node", "1"]).await;
    certs(&["node", "--node", "3"]).await;
    cluster.done(&["cluster", "up", "--detach"]).await;
    cluster.done(&["verify"]).await;
}

#[tokio::test]
async fn a_node_is_killed_restarted_and_missed_by_name() {
    let cluster = Cluster::up(MULTIGROUP, 4).await;
    let before = cluster.process(2).pid();
    cluster.done(&["cluster", "restart", "--node", "2"]).await;
    let after = cluster.process(2).pid();
    assert_ne!(before, after);
    cluster.done(&["cluster", "kill", "--node", "2"]).await;
    let missed = cluster.run(&["cluster", "kill", "--node", "2"]).await;
    assert_eq!(missed.code, Some(3), "{}", missed.stderr);
    let down = cluster.run(&["verify"]).await;
    assert_eq!(down.code, Some(3), "{}", down.stderr);
    assert!(down.stderr.contains("node 2"), "{}", down.stderr);
    // A number that is another process's by now: this test's own.
    std::fs::write(cluster.folder().pid(2), std::process::id().to_string()).expect("a pid file");
    let stale = cluster.run(&["cluster", "kill", "--node", "2"]).await;
    assert_eq!(stale.code, Some(3), "{}", stale.stderr);
    assert!(stale.stderr.contains("another program"), "{}", stale.stderr);
    cluster
        .done(&["cluster", "restart", "--node", "2", "--no-wait"])
        .await;
    cluster
        .done(&["cluster", "kill", "--node", "2", "--signal", "TERM"])
        .await;
    cluster.done(&["cluster", "restart", "--node", "2"]).await;
    cluster.done(&["verify"]).await;
}

/// The stock tools, against each node.
#[tokio::test]
#[ignore = "gate: needs redis-tools"]
async fn the_stock_redis_tools_work_against_each_node() {
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    for node in 1..=NODES {
        let address = cluster.client(node);
        let port = address.rsplit(':').next().expect("a port");
        let key = format!("key-{node}");
        for (words, expected) in [
            (&["PING"][..], "PONG"),
            (&["SET", &key, "value"], "OK"),
            (&["GET", &key], "value"),
            (&["INCRBY", &format!("counter-{node}"), "41"], "41"),
            (&["INCR", &format!("counter-{node}")], "42"),
            (&["DEL", &key], "1"),
            (&["EXISTS", &key], "0"),
        ] {
            let all = [&["-p", port], words].concat();
            let ended = run("redis-cli", cluster.path(), &all).await;
            assert_eq!(
                ended.code,
                Some(0),
                "{words:?} at node {node}: {}",
                ended.stderr
            );
            assert_eq!(ended.stdout.trim(), expected, "{words:?} at node {node}");
        }
        let bench = [
            "-p",
            port,
            "-t",
            "set,get,incr",
            "-P",
            "16",
            "-n",
            "2000",
            "-q",
        ];
        let ended = run("redis-benchmark", cluster.path(), &bench).await;
        assert_eq!(ended.code, Some(0), "node {node}: {}", ended.stderr);
        for test in ["SET", "GET", "INCR"] {
            let figure = format!("{test}:");
            assert!(ended.stdout.contains(&figure), "{}", ended.stdout);
        }
        let shown = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!shown.contains("Error"), "node {node}: {shown}");
    }
    cluster.done(&["verify"]).await;
}
