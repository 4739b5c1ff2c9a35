//! Ten times a node that leads a third of 1,500 groups is killed under load, in turn: nothing that
//! was acknowledged is lost, its groups take writes again, and it leads its share again once it is
//! back. How long these took is printed and kept in `ten-kills.json` in the target's `tmp`, and held
//! only to the patience of all tests: it says something of a machine that does nothing else.

use std::time::{Duration, Instant};

use multigroup::admin::{GroupPage, GroupRole};
use multigroup::keyspace::KeySpace;
use multigroup::load::{Answer, Client};
use serde_json::{Value, json};
use tests::cluster::{Cluster, NODES};
use transport::io::clock;

use crate::balance::{ask, status, until_leading};
use crate::running_load::RunningLoad;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 1500;
const KILLS: u64 = 10;
const WRITERS: usize = 16;

/// What a node must lead when it is killed.
const LEADING_MIN: u64 = 400;

/// Writes that must be acknowledged from one kill to the next.
const ACKED_MIN: u64 = 500;

/// How long writes to all groups of a killed node may take together.
const PATIENCE: Duration = Duration::from_secs(60);

/// The groups that a node leads, by what it says.
async fn led_by(cluster: &Cluster, node: u64) -> Vec<u64> {
    let (mut led, mut path) = (Vec::new(), "/groups?limit=1000".to_owned());
    loop {
        let body = ask(cluster, node, &path).await;
        let page: GroupPage = serde_json::from_slice(&body).expect("a page");
        let leads = |role| role == GroupRole::Leader;
        let of_page = page.groups.iter().filter(|group| leads(group.role));
        led.extend(of_page.map(|group| group.group));
        let Some(after) = page.next_after else {
            return led;
        };
        path = format!("/groups?limit=1000&after={after}");
    }
}

/// Writes to each of these groups through one node until each has taken it, and says how many writes
/// were refused before that.
async fn write_to_all(cluster: &Cluster, node: u64, tags: &[String], groups: &[u64]) -> usize {
    let deadline = clock::now() + PATIENCE;
    let endpoint = cluster.client(node).parse().expect("an endpoint");
    let client = Client::connect(&endpoint, deadline).await;
    let mut client = client.expect("a connection");
    let (mut left, mut refused) = (groups.to_vec(), 0);
    while !left.is_empty() {
        for group in &left {
            let tag = &tags[usize::try_from(*group).expect("a group")];
            let key = format!("{{{tag}}}:probe");
            client.queue(&[b"SET", key.as_bytes(), b"1"]);
        }
        client.send(deadline).await.expect("sent");
        let mut again = Vec::new();
        for group in left {
            match client.next(deadline).await.expect("an answer") {
                Answer::Word(_) => {}
                Answer::Error(_) => again.push(group),
                other => panic!("SET was answered {other:?}"),
            }
        }
        refused += again.len();
        left = again;
    }
    refused
}

fn since(at: Instant) -> u64 {
    let took = clock::now().saturating_duration_since(at);
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// Kills a node that leads its share, and brings it back until it does again.
async fn kill_once(cluster: &Cluster, load: &mut RunningLoad, tags: &[String], run: u64) -> Value {
    let victim = (run - 1) % NODES + 1;
    until_leading(cluster, victim, LEADING_MIN, GROUPS.into()).await;
    let led = led_by(cluster, victim).await;
    assert!(led.len() as u64 >= LEADING_MIN, "{} are led", led.len());

    let killed = load.kill(vec![cluster.process(victim)], ACKED_MIN).await;
    let through = victim % NODES + 1;
    let writing = write_to_all(cluster, through, tags, &led);
    let refused = tests::soon("all its groups to take writes", writing).await;
    let writable_ms = since(killed.at);

    let restart = clock::now();
    cluster
        .done(&["cluster", "restart", "--node", &victim.to_string()])
        .await;
    let ready_ms = since(restart);
    until_leading(cluster, victim, LEADING_MIN, GROUPS.into()).await;
    let led_again_ms = since(restart);
    let handovers = status(cluster, victim).await.handovers;
    let run = json!({
        "run": run,
        "node": victim,
        "led": led.len(),
        "in_flight": killed.in_flight,
        "writable_after_ms": writable_ms,
        "probes_refused": refused,
        "ready_after_ms": ready_ms,
        "led_share_again_after_ms": led_again_ms,
        "leaderships_taken": handovers.taken_total,
    });
    tracing::info!("{run}");
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "gate: 1,500 groups in three processes, some two minutes"]
async fn ten_nodes_that_lead_a_third_of_1500_groups_are_killed_and_nothing_acknowledged_is_lost() {
    tests::log_to_test();
    let begin = clock::now();
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let tags = KeySpace::new(GROUPS).expect("a key space").tags();
    let nodes: Vec<_> = (1..=NODES).collect();
    let mut load = RunningLoad::start(&cluster, 1, &nodes, GROUPS, WRITERS);
    load.until_acked(ACKED_MIN).await;
    let mut runs = Vec::new();
    for run in 1..=KILLS {
        runs.push(kill_once(&cluster, &mut load, &tags, run).await);
    }
    let pooled = load.end(&cluster).await.report.pooled;
    let verified = cluster.verify_within(10 * PATIENCE).await;
    let report = json!({
        "schema": "multigroup.ten_kills/1",
        "groups": GROUPS,
        "writers": WRITERS,
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "runs": runs,
        "acked": pooled.acked,
        "operations_per_s": pooled.operations_per_s,
        "errors": pooled.errors,
        "verify": verified,
        "seconds": clock::now().saturating_duration_since(begin).as_secs(),
    });
    let text = serde_json::to_string_pretty(&report).expect("JSON");
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/ten-kills.json");
    std::fs::write(path, &text).expect("the report");
    tracing::info!("{path}: {text}");

    Cluster::assert_exact(&verified, GROUPS);
    cluster.down_exactly().await;
}
