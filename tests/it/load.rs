//! `load` against real nodes: by their addresses alone, in windows, and with its account.

use std::path::Path;

use multigroup::load::read_ledger;
use serde_json::Value;
use tests::cluster::{Cluster, NODES};
use tests::process::run;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 12;

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

#[tokio::test]
async fn a_load_keeps_its_account_by_key_and_its_figures_by_window() {
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let load = ["load", "--writers", "3", "--seconds", "1.5"];
    let by_folder = cluster.json(&load).await;
    let windows = by_folder["windows"].as_array().expect("windows");
    assert_eq!(windows.len(), 1);
    let ledger = read_ledger(cluster.path()).expect("the ledger").entries;
    assert_eq!(ledger.len(), GROUPS as usize, "a line for each group's key");
    let acked: u64 = ledger.iter().map(|entry| entry.acked).sum();
    assert_eq!(acked, number(&by_folder["pooled"]["acked"]));
    assert!(
        ledger
            .iter()
            .all(|entry| entry.op == "incr" && entry.unknown == 0)
    );
    let verified = cluster.json(&["verify"]).await;
    assert_eq!(verified["counters_exact"], GROUPS, "{verified}");
    assert_eq!(verified["archive_positions"], GROUPS, "{verified}");

    // By addresses there is no folder, and so no account.
    let endpoints: Vec<_> = (1..=NODES).map(|node| cluster.client(node)).collect();
    let endpoints = endpoints.join(",");
    let words = ["--endpoints", &endpoints, "--op", "mixed", "--json", "-"];
    let all = [&load[..], &["--window-seconds", "0.5"], &words].concat();
    let ended = run(MULTIGROUP, Path::new("/"), &all).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let load: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(
        (&load["op"], &load["policy"]),
        (&"mixed".into(), &"quorum".into())
    );
    assert_eq!(load["log_sync"], true);
    let windows = load["windows"].as_array().expect("windows");
    let starts: Vec<_> = windows
        .iter()
        .map(|window| window["start_s"].as_f64())
        .collect();
    assert_eq!(starts, [Some(0.0), Some(0.5), Some(1.0)]);
    for field in ["operations", "acked", "errors_total"] {
        let sum: u64 = windows.iter().map(|window| number(&window[field])).sum();
        assert_eq!(sum, number(&load["pooled"][field]), "{field}");
    }
    let worst = windows
        .iter()
        .filter_map(|window| window["p99_us"].as_u64())
        .max();
    assert_eq!(load["worst_window_p99_us"].as_u64(), worst);
    let after = read_ledger(cluster.path()).expect("the ledger").entries;
    assert_eq!(after, ledger, "no line was added");
}
