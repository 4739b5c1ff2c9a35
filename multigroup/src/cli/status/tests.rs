//! `status` as a user types it, against an admin port in this process.

use std::fs;
use std::io::{self, Write};

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::admin::Status;
use crate::admin::tests::Running;
use crate::cli::tests::{done, failure, multigroup};
use crate::cli::{Exit, run};

fn start() -> (Runtime, Running) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let running = runtime.block_on(Running::start());
    (runtime, running)
}

/// Where nobody listens.
fn closed(runtime: &Runtime) -> String {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_node_s_status_is_a_table_and_lane_by_lane() {
    let (_runtime, running) = start();
    let out = done(&["status", "--admin", &running.url.to_string()]);
    for line in [
        "node 1 of dev: ready, incarnation 77\n",
        "  groups       2500 in all: 1 leading, 2 following, 4 leaderless; 3 sleeping; 5 changes of",
        "  log          disk ok; last sync 250 us; 7 bytes unsynced\n",
        "  commit wait  0 of 1024 outstanding; 0 enqueued, 0 inline, 0 expired\n",
        "  certificate  until 2027-01-02T03:04:05Z; revocation list 9 s old\n",
        "  2     control  up               3 of 16         413          11        87     315",
        // Its window counts bytes.
        "  2     bulk     up                     -         413          11        87     315",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
}

#[test]
fn the_json_result_is_the_node_s_own_answer() {
    let (_runtime, running) = start();
    let url = running.url.to_string();
    let json: Value =
        serde_json::from_str(&done(&["status", "--admin", &url, "--json", "-"])).unwrap();
    assert_eq!(json["schema"], "multigroup.status/1");
    let status: Status = serde_json::from_value(json).unwrap();
    assert!(status.peers.iter().all(|peer| peer.is_exact()));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("status.json");
    let out = done(&[
        "status",
        "--admin",
        &url,
        "--json",
        &file.display().to_string(),
    ]);
    assert!(out.contains("node 1 of dev"), "{out}");
    let json: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(json["node"], 1);
}

#[test]
fn a_node_that_can_t_be_reached_is_named() {
    let (runtime, _running) = start();
    let url = format!("http://{}", closed(&runtime));
    let err = failure(&["status", "--admin", &url], Exit::Unreachable);
    assert!(err.contains(&format!("can't reach {url}: ")), "{err}");
    assert!(
        err.contains("is the node running, and is this its admin port?"),
        "{err}"
    );
}

#[test]
fn without_a_node_to_ask_both_ways_to_name_one_are_told() {
    let err = failure(&["status"], Exit::Usage);
    assert!(err.contains("<--dir <DIR>|--admin <URL>>"), "{err}");
    let both = ["status", "--dir", "d", "--admin", "http://127.0.0.1:1"];
    assert!(failure(&both, Exit::Usage).contains("cannot be used with"));
}

#[test]
fn a_folder_s_nodes_are_all_asked_and_one_that_is_gone_is_named() {
    let (runtime, running) = start();
    let folder = TempDir::new().unwrap();
    let gone = closed(&runtime);
    let there = running.url.to_string().replace("http://", "");
    for (number, admin) in [(1, &there), (2, &gone)] {
        let node = folder.path().join(format!("node-{number}"));
        fs::create_dir_all(&node).unwrap();
        let text = format!(
            "cluster = \"dev\"\nnode = {number}\ndata_dir = \"data\"\ngroups = 6\n[listen]\n\
             peer = \"127.0.0.1:710{number}\"\nclient = \"127.0.0.1:720{number}\"\n\
             admin = \"{admin}\"\n[peers]\n1 = \"127.0.0.1:7101\"\n2 = \"127.0.0.1:7102\"\n\
             [tls]\nca = \"ca\"\ncert = \"cert\"\nkey = \"key\"\n"
        );
        fs::write(node.join("config.toml"), text).unwrap();
    }
    let dir = folder.path().display().to_string();
    let ended = multigroup(&["status", "--dir", &dir]);
    assert_eq!(ended.exit, Exit::Unreachable);
    assert!(ended.out.contains("node 1 of dev: ready"), "{}", ended.out);
    assert!(
        ended.err.contains(&format!("can't reach http://{gone}: ")),
        "{}",
        ended.err
    );
    let ended = multigroup(&["status", "--dir", &dir, "--json", "-"]);
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["schema"], "multigroup.statuses/1");
    assert_eq!(json["nodes"][0]["status"]["node"], 1);
    assert!(json["nodes"][1]["error"].as_str().unwrap().contains(&gone));
}

#[test]
fn watching_asks_again_until_nobody_reads() {
    /// A reader that hangs up in the second round.
    struct Pipe(Vec<u8>);
    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(&self.0).into_owned();
            if text.matches("node 1 of dev").count() == 2 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (_runtime, running) = start();
    let url = running.url.to_string();
    let words = ["multigroup", "status", "--watch", "--admin", &url].map(Into::into);
    let (mut out, mut err) = (Pipe(Vec::new()), Vec::new());
    assert_eq!(run(words, &mut out, &mut err), Exit::Done);
    assert_eq!(err, b"");
}

#[test]
fn what_is_no_admin_port_is_bad_usage_or_told_so() {
    let cases: [(&[&str], &str); 5] = [
        (&["status"], "--dir <DIR>"),
        (
            &["status", "--admin", "127.0.0.1:7301"],
            "doesn't begin with http://",
        ),
        (
            &["status", "--admin", "http://127.0.0.1"],
            "is not of the form http://HOST:PORT",
        ),
        (
            &["status", "--admin", "http://h:1", "--dir", "x"],
            "cannot be used with",
        ),
        (
            &["status", "--admin", "http://h:1", "--watch", "--json", "-"],
            "cannot be used with",
        ),
    ];
    for (words, sentence) in cases {
        let err = failure(words, Exit::Usage);
        assert!(err.contains(sentence), "{words:?}: {err}");
    }
    let empty = TempDir::new().unwrap();
    let err = failure(
        &["status", "--dir", &empty.path().display().to_string()],
        Exit::Usage,
    );
    assert!(err.contains("holds no node-N/config.toml"), "{err}");
}
