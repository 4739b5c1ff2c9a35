//! The example of the transport: two processes, each under its own certificate, made as the README
//! says.

use tests::node::free_address;
use tests::process::run;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const TWO_NODES: &str = env!("CARGO_BIN_EXE_two-nodes");

#[tokio::test]
async fn two_processes_exchange_frames_under_their_own_certificates() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for arguments in [
        &["certs", "init", "--dir", "demo", "--cluster", "dev"][..],
        &["certs", "node", "--dir", "demo", "--node", "1"],
        &["certs", "node", "--dir", "demo", "--node", "2"],
    ] {
        let made = run(MULTIGROUP, dir.path(), arguments).await;
        assert_eq!(made.code, Some(0), "{arguments:?}: {}", made.stderr);
    }
    let [one, two] = [free_address(), free_address()].map(|address| address.to_string());
    let (first, second) = (
        ["demo", "1", &one, "2", &two],
        ["demo", "2", &two, "1", &one],
    );
    let (one, two) = tokio::join!(
        run(TWO_NODES, dir.path(), &first),
        run(TWO_NODES, dir.path(), &second),
    );
    for (other, ended) in [(2, one), (1, two)] {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for lane in ["control", "bulk"] {
            let heard = format!("node {other} says on {lane}: [b\"hello from {other}\"]");
            let answered = format!("ours to node {other} on {lane} ended as Replied(b\"welcome\")");
            assert!(ended.stdout.contains(&heard), "{}", ended.stdout);
            assert!(ended.stdout.contains(&answered), "{}", ended.stdout);
        }
    }
}

#[tokio::test]
async fn what_stands_in_its_way_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let usage = run(TWO_NODES, dir.path(), &["nowhere"]).await;
    assert_eq!(usage.code, Some(1));
    assert_eq!(
        usage.stderr,
        "usage: two_nodes DIR NODE LISTEN PEER ADDRESS\n"
    );
    let arguments = ["nowhere", "1", "127.0.0.1:1", "2", "127.0.0.1:2"];
    let missing = run(TWO_NODES, dir.path(), &arguments).await;
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.stderr.contains("nowhere/ca/ca.pem"),
        "{}",
        missing.stderr
    );
    assert!(
        !missing.stderr.contains('{'),
        "a sentence: {}",
        missing.stderr
    );
}
