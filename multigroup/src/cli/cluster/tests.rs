//! What `cluster up` makes, keeps and refuses, without starting a node; the commands' own failures.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use super::Turn;
use super::launch::check_ports;
use super::ports::Ports;
use super::prepare::{Archive, Prepared, Wanted, plan};
use crate::cli::Exit;
use crate::cli::tests::{done, failure};
use crate::cluster::ClusterFolder;
use crate::config::{Config, parse_config_set};

struct Made {
    _holder: TempDir,
    folder: ClusterFolder,
}

impl Made {
    fn new() -> Self {
        let holder = TempDir::new().unwrap();
        let folder = ClusterFolder::new(&holder.path().join("d")).unwrap();
        Self {
            _holder: holder,
            folder,
        }
    }

    fn up(&self, wanted: &Wanted) -> Vec<Config> {
        plan(&self.folder, wanted).unwrap().make().unwrap()
    }

    fn refused(&self, wanted: &Wanted) -> String {
        let made = plan(&self.folder, wanted).and_then(Prepared::make);
        let failure = made.unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage);
        failure.to_string()
    }
}

fn wanted(nodes: u64, groups: u32, base_port: u16, sets: &[&str]) -> Wanted {
    Wanted {
        nodes: Some(nodes),
        groups: Some(groups),
        ports: Ports::Above(base_port),
        archive: Archive::Beside,
        sets: sets
            .iter()
            .map(|set| parse_config_set(set).unwrap())
            .collect(),
    }
}

fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn a_new_folder_gets_a_ca_leaves_and_configurations_by_default() {
    let made = Made::new();
    let configs = made.up(&Wanted::default());
    assert_eq!(configs.len(), 3);
    let second = &configs[1];
    assert_eq!((second.node(), second.raw().groups), (2, 1500));
    assert_eq!(second.listen_peer().to_string(), "127.0.0.1:7102");
    assert_eq!(second.listen_client().to_string(), "127.0.0.1:7202");
    assert_eq!(second.listen_admin().to_string(), "127.0.0.1:7302");
    assert_eq!(second.data_dir(), made.folder.root().join("node-2/data"));
    for config in &configs {
        let tls = &config.raw().tls;
        for path in [&tls.ca, &tls.cert, &tls.key] {
            assert!(path.exists(), "{}", path.display());
        }
        assert!(tls.crl.as_ref().unwrap().exists());
    }
    // What is in the file is relative to the folder, which can be moved.
    let written = Config::load(&made.folder.config(2)).unwrap();
    assert_eq!(written.data_dir(), Path::new("node-2/data"));
    let before = contents(made.folder.root());
    assert_eq!(made.up(&Wanted::default()), configs);
    assert_eq!(
        contents(made.folder.root()),
        before,
        "a second time changes nothing"
    );
}

#[test]
fn options_that_contradict_what_is_there_are_named_with_it() {
    let made = Made::new();
    let first = wanted(
        2,
        8,
        9000,
        &["log.sync=false", "raft.heartbeat_interval=50ms"],
    );
    made.up(&first);
    made.up(&first);
    for (other, words) in [
        (wanted(3, 8, 9000, &[]), ["--nodes 3", "2 nodes"]),
        (wanted(2, 9, 9000, &[]), ["--groups 9", "groups is 8"]),
        (
            wanted(2, 8, 9001, &[]),
            ["--base-port 9001", "127.0.0.1:9001"],
        ),
        (
            wanted(2, 8, 9000, &["log.sync=true"]),
            ["log.sync=true", "node-1"],
        ),
        (
            wanted(2, 8, 9000, &["archive.url=x"]),
            ["archive.url", "node-1"],
        ),
        (wanted(2, 8, 9000, &["node=1"]), ["node", "--nodes"]),
        (
            wanted(2, 8, 9000, &["listen.peer=h:1"]),
            ["listen.peer", "--base-port"],
        ),
        (wanted(2, 8, 9000, &["tls.ca=x"]), ["tls.ca", "folder"]),
    ] {
        let sentence = made.refused(&other);
        assert!(
            words.iter().all(|word| sentence.contains(word)),
            "{sentence}"
        );
    }
}

#[test]
fn a_missing_node_s_files_are_made_like_the_others() {
    let made = Made::new();
    let configs = made.up(&wanted(3, 8, 9000, &["log.sync=false"]));
    fs::remove_dir_all(made.folder.node(2)).unwrap();
    let key = fs::read(made.folder.node(1).join("key.pem")).unwrap();
    assert_eq!(made.up(&Wanted::default()), configs);
    assert_eq!(fs::read(made.folder.node(1).join("key.pem")).unwrap(), key);

    let path = made.folder.config(3);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("groups = 8", "groups = 9")).unwrap();
    let sentence = made.refused(&Wanted::default());
    assert!(
        sentence.contains("groups is 8") && sentence.contains("node-3"),
        "{sentence}"
    );
    fs::copy(made.folder.config(2), &path).unwrap();
    let sentence = made.refused(&Wanted::default());
    assert!(sentence.contains("node is 2"), "{sentence}");
}

#[test]
fn an_existing_ca_s_cluster_is_taken_and_another_s_refused() {
    let made = Made::new();
    let dir = made.folder.root().display().to_string();
    done(&["certs", "init", "--dir", &dir, "--cluster", "prod"]);
    let configs = made.up(&wanted(1, 4, 9000, &[]));
    assert_eq!(configs[0].raw().cluster, "prod");
    fs::remove_dir_all(made.folder.root().join("ca")).unwrap();
    done(&["certs", "init", "--dir", &dir, "--cluster", "other"]);
    let sentence = made.refused(&Wanted::default());
    assert!(
        sentence.contains("prod") && sentence.contains("other"),
        "{sentence}"
    );
}

#[test]
fn impossible_numbers_and_values_are_bad_usage() {
    let made = Made::new();
    for (wanted, word) in [
        (wanted(0, 8, 9000, &[]), "--nodes"),
        (wanted(65, 8, 9000, &[]), "--nodes"),
        (wanted(3, 0, 9000, &[]), "groups"),
        (wanted(3, 8, 65_400, &[]), "--base-port"),
        (wanted(3, 8, 0, &[]), "--base-port"),
        (
            wanted(3, 8, 9000, &["raft.election_timeout=1ms"]),
            "election",
        ),
        (wanted(3, 8, 9000, &["log.sync=maybe"]), "log.sync"),
    ] {
        let sentence = made.refused(&wanted);
        assert!(sentence.contains(word), "{sentence}");
    }
    let dir = made.folder.root().display().to_string();
    let unknown = ["cluster", "up", "--dir", &dir, "--config-set", "log.sink=1"];
    let sentence = failure(&unknown, Exit::Usage);
    assert!(sentence.contains("log.sync"), "{sentence}");
}

#[test]
fn a_taken_port_is_named_with_its_key_and_node() {
    let made = Made::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = taken.local_addr().unwrap().port() - 101;
    let configs = made.up(&wanted(1, 4, base, &[]));
    let failure = check_ports(&configs[0]).unwrap_err();
    assert_eq!(failure.exit(), Exit::Unreachable);
    let sentence = failure.to_string();
    for word in ["listen.client", "node 1", "--base-port"] {
        assert!(sentence.contains(word), "{sentence}");
    }
}

#[test]
fn what_does_not_run_can_neither_be_killed_nor_stopped() {
    let made = Made::new();
    made.up(&wanted(1, 4, 9000, &[]));
    let dir = made.folder.root().display().to_string();
    let out = done(&["cluster", "down", "--dir", &dir]);
    assert!(out.contains("no node"), "{out}");
    let sentence = failure(
        &["cluster", "kill", "--dir", &dir, "--node", "1"],
        Exit::Unreachable,
    );
    assert!(sentence.contains("not running"), "{sentence}");
    let sentence = failure(
        &["cluster", "kill", "--dir", &dir, "--node", "7"],
        Exit::Usage,
    );
    assert!(sentence.contains("node-7"), "{sentence}");
    let sentence = failure(&["cluster", "down", "--dir", "/nonexistent/d"], Exit::Usage);
    assert!(sentence.contains("nonexistent"), "{sentence}");
    let bad = [
        "cluster", "kill", "--dir", &dir, "--node", "1", "--signal", "HURT",
    ];
    assert!(failure(&bad, Exit::Usage).contains("TERM"));
}

#[test]
fn a_plan_writes_nothing_and_knows_whether_it_is_new() {
    let made = Made::new();
    let planned = plan(&made.folder, &wanted(3, 8, 7100, &[])).unwrap();
    assert!(planned.is_new());
    assert_eq!(planned.configs().len(), 3);
    assert!(!made.folder.root().exists());
    made.up(&wanted(3, 9, 7200, &[]));
    let planned = plan(&made.folder, &wanted(3, 9, 7200, &[])).unwrap();
    assert!(!planned.is_new());
}

#[test]
fn a_new_cluster_that_can_not_have_its_ports_leaves_nothing_behind() {
    let made = Made::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = taken.local_addr().unwrap().port() - 1;
    let turn = Turn::take(&made.folder).unwrap();
    let failure = super::prepare(&made.folder, &wanted(3, 8, base, &[])).unwrap_err();
    assert_eq!(failure.exit(), Exit::Unreachable);
    drop(turn);
    assert!(!made.folder.root().exists());
}

#[test]
fn of_two_commands_at_once_in_one_folder_the_second_is_refused_by_name() {
    let made = Made::new();
    let first = Turn::take(&made.folder).unwrap();
    let refused = Turn::take(&made.folder).unwrap_err();
    assert_eq!(refused.exit(), Exit::Usage);
    let sentence = refused.to_string();
    let root = made.folder.root().display().to_string();
    assert!(sentence.contains(&root), "{sentence}");
    let dir = root.as_str();
    let sentence = failure(&["cluster", "up", "--dir", dir], Exit::Usage);
    assert!(sentence.contains("another command"), "{sentence}");
    drop(first);
    Turn::take(&made.folder).unwrap();
}

#[test]
fn a_new_cluster_archives_beside_its_nodes_unless_told_otherwise() {
    let url = |wanted: &Wanted| {
        let made = Made::new();
        let configs = made.up(wanted);
        let archive = configs[0].raw().archive.clone();
        let beside = format!("file://{}", made.folder.archive().display());
        archive.map(|archive| (archive.url == beside, archive.url, archive.interval.0))
    };
    let second = std::time::Duration::from_secs(1);
    let (beside, _, interval) = url(&Wanted::default()).unwrap();
    assert!(beside);
    assert_eq!(interval, second);
    // The address may come after what is set of it.
    let sets = ["archive.interval=250ms", "archive.url=file:///a"];
    let (_, address, interval) = url(&wanted(3, 8, 9000, &sets)).unwrap();
    assert_eq!((address.as_str(), interval), ("file:///a", second / 4));
    let off = Wanted {
        archive: Archive::Off,
        ..wanted(3, 8, 9000, &[])
    };
    assert_eq!(url(&off), None);
}

#[test]
fn options_that_contradict_each_other_are_refused_by_name() {
    let made = Made::new();
    let off = |sets: &[&str]| Wanted {
        archive: Archive::Off,
        ..wanted(3, 8, 9000, sets)
    };
    let sentence = made.refused(&off(&["archive.url=file:///a"]));
    assert!(
        sentence.contains("--no-archive contradicts --config-set archive.url"),
        "{sentence}"
    );
    let twice = ["log.sync=true", "raft.campaign_rate=9", "log.sync=false"];
    let sentence = made.refused(&wanted(3, 8, 9000, &twice));
    assert!(
        sentence.contains("--config-set log.sync is given twice"),
        "{sentence}"
    );
    made.up(&wanted(3, 8, 9000, &[]));
    let sentence = made.refused(&off(&[]));
    assert!(sentence.contains("--no-archive contradicts"), "{sentence}");
    assert!(
        sentence.contains("node-1/config.toml, where archive.url is file://"),
        "{sentence}"
    );
    let without = Made::new();
    without.up(&off(&[]));
    without.up(&off(&[]));
}

#[test]
fn a_new_cluster_has_an_id_of_its_own_on_every_node() {
    let id = |made: &Made| {
        let configs = made.up(&wanted(3, 8, 9000, &[]));
        let ids: Vec<_> = configs.iter().map(|one| one.raw().cluster_id).collect();
        assert!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]));
        ids[0]
    };
    let (one, other) = (Made::new(), Made::new());
    assert_ne!(id(&one), id(&other));
    assert_eq!(id(&one), id(&one), "it stays");
}

#[test]
fn a_cluster_that_may_have_any_ports_gets_a_block_that_is_free() {
    let made = Made::new();
    let any = Wanted {
        ports: Ports::AnyFree,
        ..Wanted::default()
    };
    let first = made.up(&any);
    let taken: Vec<_> = first
        .iter()
        .filter_map(|config| TcpListener::bind(config.listen_admin().to_string()).ok())
        .collect();
    assert!(!taken.is_empty());
    let other = Made::new().up(&any);
    assert_ne!(first[0].listen_admin(), other[0].listen_admin());
    let ports = |config: &Config| {
        let listen = [
            config.listen_peer(),
            config.listen_client(),
            config.listen_admin(),
        ];
        listen.map(|address| address.port())
    };
    let [peer, client, admin] = ports(&other[0]);
    assert_eq!((client, admin), (peer + 100, peer + 200));
    assert_eq!((peer - 1) % 300, 7100 % 300);
}
