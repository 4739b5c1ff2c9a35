//! How `verify` ends without a cluster that runs.

use std::collections::BTreeMap;
use std::fs;

use crate::cli::Exit;
use crate::cli::tests::failure;
use crate::verify::{Mismatch, Report};

use super::judge;

#[test]
fn a_mismatch_weighs_more_than_a_node_that_is_not_there() {
    let gone = BTreeMap::from([(2, "refused".to_owned())]);
    let clean = Report::default();
    assert!(judge(&clean, &BTreeMap::new()).is_ok());
    let failure = judge(&clean, &gone).unwrap_err();
    assert_eq!(failure.exit(), Exit::Unreachable);
    assert!(failure.to_string().contains("node 2"), "{failure}");
    let faulty = Report {
        mismatches: 1,
        first_mismatches: vec![Mismatch {
            group: Some(7),
            node: Some(3),
            what: "holds 1 rows".to_owned(),
        }],
        ..Report::default()
    };
    let failure = judge(&faulty, &gone).unwrap_err();
    assert_eq!(failure.exit(), Exit::Failed);
    assert!(failure.to_string().contains("group 7, node 3"), "{failure}");
}

#[test]
fn a_folder_without_a_cluster_is_bad_usage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    let sentence = failure(&["verify", "--dir", &path], Exit::Usage);
    assert!(sentence.contains("config.toml"), "{sentence}");
    let absent = format!("{path}/absent");
    failure(&["verify", "--dir", &absent, "--offline"], Exit::Usage);
    fs::create_dir(dir.path().join("node-1")).unwrap();
    fs::write(dir.path().join("node-1/config.toml"), "node = 1").unwrap();
    failure(&["verify", "--dir", &path], Exit::Usage);
}
