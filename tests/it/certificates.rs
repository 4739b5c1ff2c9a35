//! `multigroup certs`, as a user runs it.

use tests::process::{Finished, run};

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");

async fn certs(dir: &std::path::Path, arguments: &[&str]) -> Finished {
    let all: Vec<&str> = ["certs"].iter().chain(arguments).copied().collect();
    run(MULTIGROUP, dir, &all).await
}

#[tokio::test]
async fn a_ca_and_a_node_are_made_and_shown() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let made = certs(dir.path(), &["init", "--dir", "d", "--cluster", "dev"]).await;
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let issued = certs(dir.path(), &["node", "--dir", "d", "--node", "7"]).await;
    assert_eq!(issued.code, Some(0), "{}", issued.stderr);
    for (file, words) in [
        ("d/node-7/cert.pem", ["mraft://dev/node/7", "dev CA"]),
        ("d/ca/ca.pem", ["dev CA", "mraft://dev"]),
    ] {
        let shown = certs(dir.path(), &["show", file]).await;
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        assert!(
            words.iter().all(|word| shown.stdout.contains(word)),
            "{}",
            shown.stdout
        );
    }
}

#[tokio::test]
async fn bad_requests_end_with_2_and_one_sentence() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let made = certs(dir.path(), &["init", "--dir", "d", "--cluster", "dev"]).await;
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    for (arguments, word) in [
        (&["node", "--dir", "d", "--node", "0"][..], "0"),
        (&["node", "--dir", "elsewhere", "--node", "1"], "elsewhere"),
        (
            &["init", "--dir", "e", "--cluster", "two words"],
            "two words",
        ),
        (&["init", "--dir", "d", "--cluster", "dev"], "d"),
        (&["show", "absent.pem"], "absent.pem"),
    ] {
        let refused = certs(dir.path(), arguments).await;
        assert!(
            matches!(refused.code, Some(1 | 2)),
            "{arguments:?}: {refused:?}"
        );
        assert!(
            refused.stderr.contains(word),
            "{arguments:?}: {}",
            refused.stderr
        );
    }
}
