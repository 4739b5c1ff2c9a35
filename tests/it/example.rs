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
        &["certs", "init", "--dir", "demo", "--cluster", "demo"][..],
        &["certs", "node", "--dir", "demo", "--node", "1"],
        &["certs", "node", "--dir", "demo", "--node", "2"],
    ] {
        let made = run(MULTIGROUP, dir.path(), arguments).await;
        assert_eq!(made.code, Some(0), "{arguments:?}: {}", made.stderr);
    }
    // The nodes listen on the two ports after the base.
    let base = (free_address().port() & !3).to_string();
    let [first, second] = ["1", "2"].map(|node| ["demo", node, &base]);
    let (one, two) = tokio::join!(
        run(TWO_NODES, dir.path(), &first),
        run(TWO_NODES, dir.path(), &second),
    );
    for (node, other, ended) in [(1, 2, one), (2, 1, two)] {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for lane in ["control", "bulk"] {
            let heard = format!("node {other} says on {lane}: [b\"hello from {other}\"]");
            let answered =
                format!("node {other} answers on {lane}: Replied(b\"hello from {node}\")");
            assert!(ended.stdout.contains(&heard), "{}", ended.stdout);
            assert!(ended.stdout.contains(&answered), "{}", ended.stdout);
        }
    }
}

#[tokio::test]
async fn without_certificates_it_says_what_is_missing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let ended = run(TWO_NODES, dir.path(), &["nowhere", "1", "7100"]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("nowhere"), "{}", ended.stderr);
}
