//! `verify` finds what is wrong: replicas that differ, writes that are lost on all of them.

use std::path::Path;

use multigroup::keyspace::KeySpace;
use multigroup::store::{Committed, Store, StoreOptions};
use raft_host::id::{GroupId, Index};
use raft_host::log::LogReading;
use raft_host::log::api::EntryKind;
use serde_json::Value;
use tests::cluster::{Cluster, NODES};

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 6;
const GROUP: GroupId = GroupId::new(4);

/// Makes a node's database of the group anew from the node's log, without the effect of its last
/// command: as if that had been lost in applying.
fn lose_last_command(cluster: &Cluster, node: u64) {
    let data = cluster.folder().node(node).join("data");
    let databases = data.join("groups");
    let space = KeySpace::new(GROUPS).expect("a key space");
    let open = |folder: &Path| {
        Store::open(StoreOptions::new(folder.to_owned(), space)).expect("the databases")
    };
    let applied = open(&databases)
        .applied(GROUP)
        .expect("the applied index")
        .index;
    let log = LogReading::open(&data.join("log")).expect("the log");
    let entries = log.entries(GROUP, Index::new(1), applied.next(), u64::MAX);
    let mut batch: Vec<_> = entries
        .expect("the entries")
        .into_iter()
        .map(|entry| Committed {
            index: entry.index,
            term: entry.term,
            time: raft_host::proto::group_time::read_note(&entry.context).0,
            data: match entry.kind {
                EntryKind::Normal => entry.data,
                EntryKind::ConfChange => Default::default(),
            },
        })
        .collect();
    let last = batch.iter_mut().rev().find(|entry| !entry.data.is_empty());
    last.expect("a command").data = Default::default();

    let forged = tempfile::tempdir().expect("a temporary folder");
    let store = open(forged.path());
    store.apply(GROUP, &batch).expect("a database");
    assert_eq!(
        store.applied(GROUP).expect("the applied index").index,
        applied
    );
    drop(store);
    for suffix in ["", "-wal", "-shm"] {
        let name = format!("{GROUP}.db{suffix}");
        let (from, to) = (forged.path().join(&name), databases.join(&name));
        let _absent = std::fs::remove_file(&to);
        if from.exists() {
            std::fs::copy(from, to).expect("a copy");
        }
    }
}

/// What `verify` finds, which must be something.
async fn found(cluster: &Cluster, arguments: &[&str]) -> Value {
    let ended = cluster
        .run(&[&["verify", "--json", "-"], arguments].concat())
        .await;
    assert_eq!(
        ended.code,
        Some(1),
        "{arguments:?}: {}",
        cluster.told(&ended)
    );
    assert!(
        ended.stderr.contains(&format!("group {GROUP}")),
        "{}",
        ended.stderr
    );
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let all = found["first_mismatches"].as_array().expect("mismatches");
    assert!(
        all.iter().all(|one| one["group"] == GROUP.to_u64()),
        "{found}"
    );
    found
}

#[tokio::test]
async fn a_replica_that_differs_is_named_by_group_and_node() {
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    cluster
        .done(&["load", "--writers", "2", "--seconds", "1"])
        .await;
    cluster.done(&["cluster", "down"]).await;
    cluster.done(&["verify", "--offline"]).await;
    lose_last_command(&cluster, 2);

    let offline = found(&cluster, &["--offline"]).await;
    // The replica itself, and the counter in it.
    assert_eq!(offline["mismatches"], 2, "{offline}");
    for mismatch in offline["first_mismatches"].as_array().expect("mismatches") {
        assert_eq!(mismatch["node"], 2, "{offline}");
    }
    assert_eq!(offline["counters_exact"], GROUPS - 1);
    assert_eq!(offline["replicas"], u64::from(GROUPS) * NODES);
    let again = found(&cluster, &["--offline"]).await;
    assert_eq!(again, offline, "verifying changed nothing");

    cluster.done(&["cluster", "up", "--detach"]).await;
    let online = found(&cluster, &[]).await;
    let differs = &online["first_mismatches"][0];
    assert_eq!(differs["node"], 2, "{online}");
    assert!(
        differs["what"]
            .as_str()
            .is_some_and(|what| what.contains("digest")),
        "{online}"
    );
    // A mismatch weighs more than a node that isn't there.
    let other = "3";
    cluster.done(&["cluster", "kill", "--node", other]).await;
    let ended = cluster.run(&["verify"]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
}

#[tokio::test]
async fn a_write_that_all_replicas_lost_is_found_by_the_account() {
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    cluster
        .done(&["load", "--writers", "2", "--seconds", "1"])
        .await;
    cluster.done(&["cluster", "down"]).await;
    (1..=NODES).for_each(|node| lose_last_command(&cluster, node));

    let offline = found(&cluster, &["--offline"]).await;
    assert_eq!(offline["mismatches"], NODES, "{offline}");
    assert_eq!(offline["counters_exact"], GROUPS - 1);
    cluster.done(&["cluster", "up", "--detach"]).await;
    let online = found(&cluster, &[]).await;
    assert_eq!(online["mismatches"], 1, "{online}");
    let lost = &online["first_mismatches"][0];
    assert!(lost["node"].is_u64(), "{online}");
    assert!(
        lost["what"]
            .as_str()
            .is_some_and(|what| what.contains("counter")),
        "{online}"
    );
}
