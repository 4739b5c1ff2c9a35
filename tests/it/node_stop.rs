//! How a node's process ends: by SIGTERM or Ctrl-C with every account closed, at once by a second
//! signal, and by itself when its host can't go on.

use multigroup::admin::Status;
use multigroup::load::Answer;
use tests::cluster::is_closed_exactly;
use tests::nodes::Cluster;

use super::node::MULTIGROUP;

const GROUPS: u32 = 12;

fn last_status(cluster: &Cluster, node: u64) -> Status {
    let path = cluster.path(format!("logs/node-{node}.final.json"));
    let text = std::fs::read_to_string(path).expect("the last status");
    serde_json::from_str(&text).expect("a status")
}

#[tokio::test]
async fn a_stopped_node_says_last_that_everything_ended() {
    let mut cluster = Cluster::make(MULTIGROUP, 3, GROUPS).await;
    cluster.start_all(3).await;
    let mut client = cluster.client(1).await;
    let lines: Vec<_> = (0..300).map(|at| format!("INCR k-{}", at % 30)).collect();
    client.pipeline(&lines).await;
    // Requests under way when the signal comes are still answered.
    let pipeline = tokio::spawn(async move { client.pipeline(&lines).await });
    cluster.signal(1, "TERM").await;
    assert_eq!(cluster.ended(1).await, Some(0), "{}", cluster.log(1));
    // All, some or none of it was sent in time; whatever was begun got its answer.
    drop(pipeline.await);
    let status = last_status(&cluster, 1);
    is_closed_exactly(&status);
    assert_eq!(status.peers.len(), 4);
    assert!(status.proposals.committed_total + status.proposals.forwards_sent_total >= 300);
    assert!(!cluster.path("pids/node-1").exists());

    cluster.signal(2, "INT").await;
    assert_eq!(cluster.ended(2).await, Some(130), "{}", cluster.log(2));
    cluster.signal(3, "TERM").await;
    assert_eq!(cluster.ended(3).await, Some(0), "{}", cluster.log(3));
    for node in [2, 3] {
        is_closed_exactly(&last_status(&cluster, node));
    }

    cluster.start_all(3).await;
    let mut client = cluster.client(3).await;
    let Answer::Integer(next) = client.call_led("INCR k-0").await else {
        panic!("no counter");
    };
    assert!((11..=21).contains(&next), "{next}");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut cluster = Cluster::make(MULTIGROUP, 3, GROUPS).await;
    // Alone of three it has no leader, so what is asked waits and holds the stop up.
    cluster.start(1).await;
    let mut client = cluster.client(1).await;
    let waiting = tokio::spawn(async move {
        let lines = ["GET a".to_owned(), "SET a 1".to_owned()];
        client.pipeline(&lines).await
    });
    cluster.signal(1, "TERM").await;
    cluster.signal(1, "TERM").await;
    let code = cluster.ended(1).await;
    // With nothing under way yet the first signal may have been enough.
    assert!(matches!(code, Some(130 | 0)), "{code:?}");
    waiting.abort();
}

#[tokio::test]
async fn a_node_whose_database_is_damaged_ends_by_name() {
    let mut cluster = Cluster::make(MULTIGROUP, 1, 1).await;
    cluster.start(1).await;
    cluster.wait_ready(1).await;
    let mut client = cluster.client(1).await;
    assert_eq!(client.call_led("INCR a").await, Answer::Integer(1));
    cluster.kill(1).await;
    std::fs::write(cluster.path("node-1/data/groups/0.db"), "no database").expect("a file");
    cluster.start(1).await;
    let mut client = cluster.client(1).await;
    // Its reads and writes fail; whichever entry is applied next ends the node.
    let lines = ["INCR a".to_owned()];
    let asked = tokio::spawn(async move { client.pipeline(&lines).await });
    assert_eq!(cluster.ended(1).await, Some(1), "{}", cluster.log(1));
    drop(asked.await);
    let log = cluster.log(1);
    let last = log.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: node 1 has stopped by itself"),
        "{last}"
    );
    assert!(last.contains("0.db"), "{last}");
    assert!(!cluster.path("pids/node-1").exists());
}
