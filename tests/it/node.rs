//! Three nodes as three processes, asked through the ports that users ask: any node takes any
//! command, every replica comes to hold the same, and a node that was killed comes back.

use std::collections::BTreeMap;

use multigroup::load::{Answer, Endpoint, ask};
use serde_json::Value;
use tests::PATIENCE;
use tests::nodes::{Cluster, TestClient};
use transport::io::clock;

pub(crate) const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 12;

fn text(answer: &Answer) -> String {
    match answer {
        Answer::Bulk(bytes) | Answer::Word(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Answer::Error(text) => text.clone(),
        Answer::Integer(_) | Answer::Nil | Answer::Array(_) => format!("{answer:?}"),
    }
}

/// Waits until all nodes' replicas of every group are at one index, and holds them equal there.
async fn replicas_agree(cluster: &Cluster, nodes: &[u64]) -> u64 {
    let until = clock::now() + PATIENCE;
    let mut rows = 0;
    for group in 0..GROUPS {
        loop {
            let mut seen = BTreeMap::new();
            for node in nodes {
                let path = format!("/replica?group={group}");
                let replica: Value = serde_json::from_str(&cluster.ask(*node, &path).await)
                    .expect("a replica's state");
                seen.insert(*node, replica);
            }
            let first = &seen[&nodes[0]];
            let settled = seen
                .values()
                .all(|it| it["applied_index"] == first["applied_index"]);
            if settled {
                assert!(
                    seen.values().all(|it| it == first),
                    "group {group}: {seen:?}"
                );
                rows += first["rows"].as_u64().expect("a number");
                break;
            }
            assert!(
                clock::now() < until,
                "group {group} did not settle: {seen:?}"
            );
        }
    }
    rows
}

#[tokio::test]
async fn any_node_takes_any_command_and_a_killed_one_comes_back() {
    let mut cluster = Cluster::make(MULTIGROUP, 3, GROUPS).await;
    cluster.start_all(3).await;
    let mut clients = Vec::new();
    for node in 1..=3 {
        clients.push(cluster.client(node).await);
    }
    let keys: Vec<_> = (0..30).map(|key| format!("key-{key}")).collect();
    for (at, key) in keys.iter().enumerate() {
        let client = &mut clients[at % 3];
        assert_eq!(text(&client.call_led(&format!("SET {key} 40")).await), "OK");
        for expected in [41, 42] {
            let next = client.call_led(&format!("INCR {key}")).await;
            assert_eq!(next, Answer::Integer(expected), "{key}");
        }
    }
    // A read anywhere sees every write that was acknowledged before it, wherever that was.
    for (at, key) in keys.iter().enumerate() {
        let client = &mut clients[(at + 1) % 3];
        assert_eq!(text(&client.call_led(&format!("GET {key}")).await), "42");
    }
    assert_eq!(replicas_agree(&cluster, &[1, 2, 3]).await, 30);

    cluster.kill(2).await;
    for key in &keys {
        let next = clients[0].call_led(&format!("INCRBY {key} 8")).await;
        assert_eq!(next, Answer::Integer(50), "{key}");
    }
    cluster.start(2).await;
    cluster.wait_ready(2).await;
    let mut back = cluster.client(2).await;
    for key in &keys {
        assert_eq!(text(&back.call_led(&format!("GET {key}")).await), "50");
    }
    assert_eq!(replicas_agree(&cluster, &[1, 2, 3]).await, 30);
}

async fn strings_and_counters(client: &mut TestClient) {
    for (line, expected) in [
        ("PING", "PONG"),
        ("ECHO hello", "hello"),
        ("SET {t}a 1", "OK"),
        ("GET {t}a", "1"),
        ("GET {t}none", "Nil"),
        ("SETNX {t}a 9", "Integer(0)"),
        ("INCRBY {t}a 10", "Integer(11)"),
        ("DECR {t}a", "Integer(10)"),
        ("DECRBY {t}a 4", "Integer(6)"),
        ("APPEND {t}a x", "Integer(2)"),
        ("INCR {t}a", "ERR value is not an integer or out of range"),
        ("STRLEN {t}a", "Integer(2)"),
        ("MSET {t}b 2 {t}c 3", "OK"),
        ("EXISTS {t}a {t}b {t}none", "Integer(2)"),
        ("DEL {t}a {t}none", "Integer(1)"),
        ("MG.READ linear {t}b", "2"),
        ("MG.READ stale {t}none", "Nil"),
        ("SELECT 0", "OK"),
        ("HELLO 3", "NOPROTO unsupported protocol version"),
        ("CONFIG GET save", "Array([])"),
    ] {
        assert_eq!(text(&client.call_led(line).await), expected, "{line}");
    }
    let values = client.call_led("MGET {t}b {t}none {t}c").await;
    let Answer::Array(values) = values else {
        panic!("{values:?}");
    };
    assert_eq!(
        values.iter().map(text).collect::<Vec<_>>(),
        ["2", "Nil", "3"]
    );
    let crossed = text(&client.call("MGET a b c d e f").await);
    assert!(crossed.starts_with("CROSSGROUP "), "{crossed}");
    let coherent = text(&client.call("MG.READ coherent {t}b").await);
    assert!(coherent.starts_with("REFUSED NotCoherent"), "{coherent}");
}

async fn repeated_requests(client: &mut TestClient) {
    let millis = clock::wall()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let id = format!("{}-abc", millis.as_millis());
    let line = format!("MG.DO {id} INCR {{t}}once");
    for _ in 0..3 {
        assert_eq!(client.call_led(&line).await, Answer::Integer(1));
    }
    let reused = text(&client.call(&format!("MG.DO {id} INCR {{t}}other")).await);
    assert!(reused.starts_with("REFUSED IdReused"), "{reused}");
    let old = text(&client.call("MG.DO 1000-abc INCR {t}once").await);
    assert!(old.starts_with("REFUSED IdTooOld"), "{old}");
}

async fn pipelines(client: &mut TestClient) {
    let mut lines: Vec<_> = (0..200).map(|at| format!("INCR p-{}", at % 40)).collect();
    lines.extend((0..40).map(|key| format!("GET p-{key}")));
    let answers = client.pipeline(&lines).await;
    for (at, answer) in answers[..200].iter().enumerate() {
        let round = i64::try_from(at / 40).expect("small") + 1;
        assert_eq!(*answer, Answer::Integer(round), "{}", lines[at]);
    }
    assert!(answers[200..].iter().all(|answer| text(answer) == "5"));
}

#[tokio::test]
async fn a_node_alone_does_all_that_the_protocol_names() {
    let mut cluster = Cluster::make(MULTIGROUP, 1, GROUPS).await;
    let line = cluster.start(1).await;
    let config = cluster.config(1);
    for address in [
        config.listen_peer(),
        config.listen_client(),
        config.listen_admin(),
    ] {
        assert!(line.contains(&address.to_string()), "{line}");
    }
    cluster.wait_ready(1).await;
    let pid = std::fs::read_to_string(cluster.path("pids/node-1")).expect("its number");
    assert_eq!(pid, format!("{}\n", cluster.pid(1)));
    let mut client = cluster.client(1).await;
    strings_and_counters(&mut client).await;
    repeated_requests(&mut client).await;
    pipelines(&mut client).await;
    assert_eq!(client.call("MG.LEADER x").await, Answer::Integer(1));
    assert_eq!(client.call("DBSIZE").await, Answer::Integer(2 + 1 + 40));
    let facts = ask(&[Endpoint::from(config.listen_client())], PATIENCE).await;
    let facts = facts.expect("the facts of the cluster");
    assert_eq!(facts.space, config.space());
    assert_eq!(
        (facts.policy.as_deref(), facts.log_sync),
        (Some("quorum"), Some(true))
    );
}

/// Each family is told of before its samples, is named for its part and, if it is a counter, so; its
/// unit is a base one; and no sample is one group's.
fn families_are_well_formed(metrics: &str) {
    let mut lines = metrics.lines().peekable();
    let mut families = std::collections::BTreeSet::new();
    while let Some(line) = lines.next() {
        let told = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '));
        let (name, help) = told.unwrap_or_else(|| panic!("no help: {line}"));
        assert!(!help.is_empty() && families.insert(name), "{line}");
        let of_type = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
        let kind = of_type
            .and_then(|rest| rest.strip_prefix(name))
            .map(str::trim);
        let kind = kind.unwrap_or_else(|| panic!("no type: {name}"));
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        let parts = ["transport_", "raft_host_", "multigroup_"];
        assert!(parts.iter().any(|part| name.starts_with(part)), "{name}");
        for unit in [
            "_us", "_ms", "_millis", "_micros", "_kib", "_mib", "_percent",
        ] {
            assert!(!name.contains(unit), "{name}");
        }
        let mut samples = 0;
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            assert!(sample.starts_with(name), "{sample} under {name}");
            assert!(!sample.contains("group="), "{sample}");
            samples += 1;
        }
        assert!(samples > 0, "{name} has no sample");
    }
    assert!(families.len() > 40, "{families:?}");
}

#[tokio::test]
async fn the_admin_port_says_how_a_node_stands() {
    let mut cluster = Cluster::make(MULTIGROUP, 3, GROUPS).await;
    cluster.start_all(3).await;
    let mut client = cluster.client(1).await;
    assert_eq!(client.call_led("INCR one").await, Answer::Integer(1));
    let status = cluster.status(1).await;
    let groups = status.groups;
    assert!(status.ready);
    assert_eq!((groups.total, groups.leaderless), (u64::from(GROUPS), 0));
    assert_eq!(groups.leading + groups.following, groups.total);
    assert_eq!(status.peers.len(), 4, "two peers with two lanes");
    assert!(status.peers.iter().all(|lane| lane.is_exact()));
    let rounds = status.rounds;
    assert_eq!(rounds.shards, 2);
    assert!(rounds.beats_listed_total > 0 && rounds.beat_bytes_total > 0);
    assert!(status.tls.cert_not_after.starts_with("20") && status.tls.crl_age_s.is_some());
    let raw: Value = serde_json::from_str(&cluster.ask(1, "/status").await).expect("JSON");
    for field in ["commit_wait", "log", "archive", "incarnation", "proposals"] {
        assert!(raw.get(field).is_some(), "{field}");
    }
    let page = cluster.ask(1, "/groups?after=2&limit=3").await;
    let page: Value = serde_json::from_str(&page).expect("a page");
    let listed = page["groups"].as_array().expect("groups");
    assert_eq!(listed.len(), 3);
    assert!(
        listed.iter().all(|group| group["leader"].is_u64()),
        "{page}"
    );
    assert_eq!(
        (&listed[0]["group"], &page["next_after"]),
        (&3.into(), &5.into())
    );
    let metrics = cluster.ask(1, "/metrics").await;
    families_are_well_formed(&metrics);
    for family in [
        "transport_items_started_total{",
        "raft_host_beat_group_bytes_total ",
        "multigroup_ready 1",
    ] {
        assert!(metrics.contains(family), "{family}");
    }
    assert_eq!(cluster.ask(1, "/healthz").await, "ok\n");
    assert!(cluster.ask(1, "/").await.contains("<html"));
    // A group that nobody used has no file, and is told of all the same.
    let files = std::fs::read_dir(cluster.path("node-1/data/groups")).expect("the folder");
    let files = files.map(|file| file.expect("an entry").file_name());
    let databases = files
        .filter(|name| name.to_string_lossy().ends_with(".db"))
        .count();
    assert!(databases <= 1, "{databases} databases for one key");
    assert_eq!(replicas_agree(&cluster, &[1, 2, 3]).await, 1);
}
