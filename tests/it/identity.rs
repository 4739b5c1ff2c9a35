//! Nodes that come back as somebody else: with a wiped directory, with one from a backup, at swapped
//! addresses, with other settings. Real processes: each is refused by the others, also by one that
//! was down meanwhile, and their logs say so with both values; the others serve on.

use std::fs;
use std::path::Path;
use std::time::Duration;

use multigroup::config::Span;
use multigroup::load::Answer;
use tests::PATIENCE;
use tests::nodes::Cluster;
use transport::io::clock;

use super::node::MULTIGROUP;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).expect("a file");
        }
    }
}

/// Waits until a node's log has a line with all these words.
async fn said(cluster: &Cluster, node: u64, words: &[&str]) -> String {
    let late = clock::now() + PATIENCE;
    loop {
        let log = cluster.log(node);
        let mut lines = log.lines();
        if let Some(line) = lines.find(|line| words.iter().all(|word| line.contains(word))) {
            return line.to_owned();
        }
        assert!(
            clock::now() < late,
            "node {node} never said {words:?}:\n{log}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The others serve.
async fn serves(cluster: &Cluster, key: &str) {
    for node in [1, 2] {
        let mut client = cluster.client(node).await;
        let answer = client.call_led(&format!("INCR {key}")).await;
        assert!(matches!(answer, Answer::Integer(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn a_wiped_or_rolled_back_directory_is_refused_also_by_a_node_that_was_down_meanwhile() {
    let mut cluster = Cluster::make(MULTIGROUP, 3, 4).await;
    cluster.start_all(3).await;
    let data = cluster.path("node-3/data");
    let backup = cluster.path("backup");
    cluster.signal(3, "STOP").await;
    copy(&data, &backup);
    cluster.signal(3, "CONT").await;

    // It lives on, and the others see how far.
    for _ in 0..50 {
        serves(&cluster, "a").await;
    }
    let peers = cluster.path("node-1/data/peers");
    let before = fs::read(&peers).expect("what node 1 has seen");
    let late = clock::now() + PATIENCE;
    while fs::read(&peers).expect("what node 1 has seen") == before {
        assert!(clock::now() < late, "{}", cluster.log(1));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.kill(3).await;
    // Node 1 wasn't there: it knows from before.
    cluster.kill(1).await;

    fs::rename(&data, cluster.path("node-3/lost")).expect("a folder");
    copy(&backup, &data);
    cluster.start(1).await;
    cluster.start(3).await;
    let line = said(
        &cluster,
        1,
        &["rolled back", "was seen", "its log ends at sync"],
    )
    .await;
    assert!(!line.contains("sync 0 was seen"), "{line}");
    said(
        &cluster,
        3,
        &["refused by the peer", "rolled back", "it expected"],
    )
    .await;
    cluster.kill(3).await;
    serves(&cluster, "b").await;

    fs::remove_dir_all(&data).expect("a folder");
    cluster.start(3).await;
    for node in [1, 2] {
        let words = [
            "unknown incarnation",
            "was admitted as",
            "this is",
            "readmit",
        ];
        said(&cluster, node, &words).await;
    }
    said(&cluster, 3, &["refused by the peer", "unknown incarnation"]).await;
    serves(&cluster, "c").await;
    cluster.kill(3).await;

    // The directory that it lost is found again.
    fs::remove_dir_all(&data).expect("a folder");
    fs::rename(cluster.path("node-3/lost"), &data).expect("a folder");
    cluster.start(3).await;
    cluster.wait_ready(3).await;
    serves(&cluster, "d").await;
}

#[tokio::test]
async fn swapped_addresses_and_other_settings_are_named_in_the_logs_of_both_sides() {
    let mut cluster = Cluster::make(MULTIGROUP, 3, 4).await;
    cluster.change(1, |raw| {
        let (two, three) = (raw.peers["2"].clone(), raw.peers["3"].clone());
        raw.peers.insert("2".to_owned(), three);
        raw.peers.insert("3".to_owned(), two);
    });
    cluster.change(3, |raw| {
        raw.raft.election_timeout = Span(Duration::from_millis(1500))
    });
    for node in 1..=3 {
        cluster.start(node).await;
    }
    said(&cluster, 1, &["wrong node: wanted 2, certificate says 3"]).await;
    said(&cluster, 1, &["wrong node: wanted 3, certificate says 2"]).await;
    said(
        &cluster,
        2,
        &["the other side wanted another node", "[peers]"],
    )
    .await;
    let setting = "cluster setting \"raft.election_timeout\" differs";
    said(&cluster, 2, &[setting, "here \"1s\"", "there \"1500ms\""]).await;
    said(
        &cluster,
        3,
        &["refused by the peer", "cluster settings differ", "1s"],
    )
    .await;
    for node in 1..=3 {
        cluster.kill(node).await;
    }
}
