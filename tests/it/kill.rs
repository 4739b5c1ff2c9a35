//! Nodes that are killed under load: no acknowledged write is lost.

use tests::cluster::{Cluster, NODES};
use transport::io::clock;

use crate::running_load::RunningLoad;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 150;
const WRITERS: usize = 16;

/// Writes that must have been acknowledged before a kill.
const ACKED_MIN: u64 = 200;

fn load(cluster: &Cluster, run: u64) -> RunningLoad {
    let nodes: Vec<_> = (1..=NODES).collect();
    RunningLoad::start(cluster, run, &nodes, GROUPS, WRITERS)
}

async fn check(cluster: &Cluster, offline: bool) {
    let command = if offline {
        &["verify", "--offline"][..]
    } else {
        &["verify"]
    };
    let verified = cluster.json(command).await;
    Cluster::assert_exact(&verified, GROUPS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_leading_nodes_are_killed_in_turn_and_nothing_acknowledged_is_lost() {
    tests::log_to_test();
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let mut left: Vec<u64> = (1..=NODES).collect();
    for round in 1..=NODES {
        let leading = cluster.leading().await;
        let victim = left.iter().copied().max_by_key(|node| leading[node]);
        let victim = victim.expect("a node that wasn't killed yet");
        left.retain(|node| *node != victim);
        let led = leading[&victim];
        assert!(
            led * 3 >= GROUPS as usize,
            "round {round}: {leading:?}, of which {victim}"
        );

        let mut load = load(&cluster, round);
        let killed = load.kill(vec![cluster.process(victim)], ACKED_MIN).await;
        load.until_acked(ACKED_MIN).await;
        let went_on = clock::now().saturating_duration_since(killed.at);
        cluster
            .done(&["cluster", "restart", "--node", &victim.to_string()])
            .await;
        let finished = load.end(&cluster).await;
        let (pooled, in_flight) = (&finished.report.pooled, killed.in_flight);
        tracing::info!(
            "round {round}: node {victim} led {led}, {in_flight} operations in flight; as many \
             again were acknowledged within {went_on:?}; {} acknowledged, {} failed",
            pooled.acked,
            pooled.errors_total
        );
        check(&cluster, false).await;
    }
    cluster.down_exactly().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_are_killed_at_once_and_nothing_acknowledged_is_lost() {
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let all = (1..=NODES).map(|node| cluster.process(node)).collect();
    let mut load = load(&cluster, 1);
    load.kill(all, ACKED_MIN).await;
    load.end(&cluster).await;
    check(&cluster, true).await;
    cluster.done(&["cluster", "up", "--detach"]).await;
    check(&cluster, false).await;
}
