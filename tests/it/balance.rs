//! A node that returns leads its share again, and clients of the others don't notice.

use std::time::Duration;

use bytes::Bytes;
use multigroup::admin::{AdminUrl, HandoverStatus, Status, fetch};
use tests::cluster::{Cluster, NODES};

use crate::running_load::RunningLoad;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 150;
const SHARE: u64 = GROUPS as u64 / NODES;
const WRITERS: usize = 8;

/// What a node answers on its admin port.
pub(crate) async fn ask(cluster: &Cluster, node: u64, path: &str) -> Bytes {
    let url: AdminUrl = cluster.admin(node).parse().expect("a URL");
    let body = fetch(&url, path, Duration::from_secs(30)).await;
    body.expect("an answer")
}

pub(crate) async fn status(cluster: &Cluster, node: u64) -> Status {
    let body = ask(cluster, node, "/status").await;
    serde_json::from_slice(&body).expect("a status")
}

/// Waits until a node leads between `least` and `most` groups.
pub(crate) async fn until_leading(cluster: &Cluster, node: u64, least: u64, most: u64) {
    let leads = async {
        loop {
            let groups = status(cluster, node).await.groups;
            if (least..=most).contains(&groups.leading) && groups.leaderless == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tests::soon("the leaders", leads).await;
}

fn sum(all: &[Status], of: impl Fn(&Status) -> u64) -> u64 {
    all.iter().map(of).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_returns_leads_its_share_again_and_no_client_of_the_others_sees_an_error() {
    tests::log_to_test();
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let (away, others) = (2, [1, 3]);
    cluster
        .done(&["cluster", "kill", "--node", &away.to_string()])
        .await;
    // Each of the others leads half, or about: who wins is a matter of time.
    let mut led = 0;
    while led < u64::from(GROUPS) {
        led = 0;
        for node in others {
            until_leading(&cluster, node, SHARE, u64::from(GROUPS)).await;
            led += status(&cluster, node).await.groups.leading;
        }
    }

    let mut load = RunningLoad::start(&cluster, 1, &others, GROUPS, WRITERS);
    load.until_acked(100).await;
    let before = [status(&cluster, 1).await, status(&cluster, 3).await];
    cluster
        .done(&["cluster", "restart", "--node", &away.to_string()])
        .await;
    until_leading(&cluster, away, SHARE * 9 / 10, SHARE * 11 / 10).await;
    load.until_acked(100).await;
    let finished = load.end(&cluster).await;

    let (mut after, mut taken) = (Vec::new(), HandoverStatus::default());
    for node in 1..=NODES {
        let status = status(&cluster, node).await;
        if node == away {
            taken = status.handovers;
        }
        after.push(status);
    }
    let begun = sum(&after, |status| status.handovers.begun_total);
    let finished_total = sum(&after, |status| status.handovers.finished_total);
    let failed = sum(&after, |status| status.handovers.failed_total);
    let elected = sum(&after, |status| status.rounds.elected_total)
        - sum(&before, |status| status.rounds.elected_total);
    let called = sum(&after, |status| status.handovers.taken_total);
    let held = sum(&after, |status| status.handovers.proposals_held_total);
    tracing::info!(
        "{begun} hand-overs begun, {finished_total} finished, {failed} failed, {held} proposals \
         waited; {elected} elections, {called} of them by a call; {} acknowledged, {} failed",
        finished.report.pooled.acked,
        finished.report.pooled.errors_total,
    );
    assert!(taken.taken_total >= SHARE * 9 / 10, "{taken:?}");
    assert!(finished_total >= SHARE * 9 / 10, "{after:?}");
    // A machine that stalls for an election timeout has elections of its own, and they have a price.
    let undisturbed = failed == 0 && elected == called;
    let errors = finished.report.pooled.errors;
    assert!(
        finished.report.pooled.errors_total == 0 || !undisturbed,
        "{errors:?}"
    );

    let verified = cluster.json(&["verify"]).await;
    assert_eq!(verified["mismatches"], 0, "{verified}");
    assert_eq!(verified["counters_exact"], GROUPS, "{verified}");
    cluster.down_exactly().await;
}
