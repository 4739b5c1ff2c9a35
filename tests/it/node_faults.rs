//! What a node is given and can't use: each is one sentence that names it, and an exit code; and
//! what strangers send to its ports, which nobody else notices.

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use multigroup::config::{RawConfig, Span};
use multigroup::load::Answer;
use tests::nodes::Cluster;
use tests::process::{Finished, run};
use tests::soon;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::node::MULTIGROUP;

/// Starts node 1, which must not start.
async fn refused(cluster: &Cluster) -> Finished {
    let words = cluster.words(1);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    run(MULTIGROUP, &cluster.path("."), &words).await
}

fn is_one_sentence(ended: &Finished, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    let said: Vec<_> = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    let [sentence] = said[..] else {
        panic!("{}", ended.stderr);
    };
    assert_eq!(ended.stderr.lines().last(), Some(sentence));
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
    assert_eq!(ended.stdout, "");
}

#[tokio::test]
async fn each_fault_of_a_configuration_is_named_and_ends_with_2() {
    let cluster = Cluster::make(MULTIGROUP, 3, 4).await;
    let good = fs::read_to_string(cluster.config_path(1)).expect("a configuration");
    type Fault<'a> = (fn(&mut RawConfig), &'a [&'a str]);
    let table: [Fault<'_>; 6] = [
        (|raw| raw.node = 7, &["`node` is 7", "1, 2, 3"]),
        (
            |raw| raw.raft.heartbeat_interval = Span(Duration::from_millis(900)),
            &[
                "raft.heartbeat_interval",
                "900ms",
                "raft.election_timeout",
                "1s",
            ],
        ),
        (
            |raw| raw.raft.heartbeat_interval = Span(Duration::from_millis(400)),
            &[
                "raft.heartbeat_interval",
                "400ms",
                "raft.election_timeout",
                "1s",
            ],
        ),
        (
            |raw| raw.listen.admin = raw.listen.client.clone(),
            &["listen.client", "listen.admin"],
        ),
        (
            |raw| raw.commit_wait.policy = "all".to_owned(),
            &["policy", "`all`"],
        ),
        (
            |raw| raw.client.tls = true,
            &["client.tls", "set it to false"],
        ),
    ];
    for (change, words) in table {
        fs::write(cluster.config_path(1), &good).expect("a configuration");
        // Not through `change`, which would refuse it itself.
        let mut raw = RawConfig::from_toml(&good).expect("a configuration");
        change(&mut raw);
        fs::write(cluster.config_path(1), raw.to_toml()).expect("a configuration");
        is_one_sentence(&refused(&cluster).await, 2, words);
    }
    let unknown = good.replace("groups = 4", "groups = 4\ngruops = 5");
    fs::write(cluster.config_path(1), unknown).expect("a configuration");
    is_one_sentence(&refused(&cluster).await, 2, &["`gruops`", "`groups`"]);
    fs::remove_file(cluster.config_path(1)).expect("a file that is there");
    is_one_sentence(&refused(&cluster).await, 2, &["config.toml"]);
    assert!(!cluster.path("node-1/data").exists(), "nothing was begun");
}

#[tokio::test]
async fn each_port_that_is_taken_is_named_with_its_key() {
    let cluster = Cluster::make(MULTIGROUP, 3, 4).await;
    let config = cluster.config(1);
    for (key, address) in [
        ("listen.peer", config.listen_peer()),
        ("listen.client", config.listen_client()),
        ("listen.admin", config.listen_admin()),
    ] {
        let taken = TcpListener::bind(address.to_string()).expect("a free port");
        let words = [key, &address.to_string(), "another address"];
        is_one_sentence(&refused(&cluster).await, 3, &words);
        drop(taken);
    }
    assert!(!cluster.path("node-1/data").exists(), "nothing was begun");
}

#[tokio::test]
async fn a_data_folder_that_is_not_the_node_s_is_refused() {
    let mut cluster = Cluster::make(MULTIGROUP, 1, 4).await;
    cluster.start(1).await;
    let again = refused(&cluster).await;
    is_one_sentence(&again, 3, &["listen.peer"]);
    cluster.signal(1, "TERM").await;
    assert_eq!(cluster.ended(1).await, Some(0), "{}", cluster.log(1));

    cluster.change(1, |raw| raw.groups = 5);
    is_one_sentence(
        &refused(&cluster).await,
        3,
        &["identity.toml", "`groups` = 4", "says 5"],
    );
    cluster.change(1, |raw| raw.groups = 4);
    cluster.change(1, |raw| raw.data_dir = "ca".into());
    is_one_sentence(
        &refused(&cluster).await,
        3,
        &["/ca ", "identity.toml", "`data_dir`"],
    );
    cluster.change(1, |raw| raw.data_dir = "ca/ca.pem/data".into());
    is_one_sentence(
        &refused(&cluster).await,
        3,
        &["can't create", "ca/ca.pem/data"],
    );
    cluster.change(1, |raw| raw.data_dir = "node-1/data".into());
    let cert = fs::read(cluster.path("node-1/cert.pem")).expect("a certificate");
    fs::write(cluster.path("node-1/cert.pem"), "nothing").expect("a file");
    is_one_sentence(&refused(&cluster).await, 3, &["node-1/cert.pem"]);
    fs::write(cluster.path("node-1/cert.pem"), cert).expect("a file");
    cluster.start(1).await;
}

/// The segment in use and how much of it is written, in whole sectors.
fn written(cluster: &Cluster) -> (PathBuf, u64) {
    let folder = cluster.path("node-1/data/log");
    let files = fs::read_dir(folder)
        .expect("the log")
        .map(|file| file.expect("a file").path());
    let mut segments: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .map(|path| {
            let bytes = fs::read(&path).expect("a segment");
            let last = bytes.iter().rposition(|byte| *byte != 0);
            (path, last.map_or(0, |last| (last as u64 / 512 + 1) * 512))
        })
        .filter(|(_, end)| *end > 0)
        .collect();
    assert_eq!(segments.len(), 1, "{segments:?}");
    segments.remove(0)
}

#[tokio::test]
async fn a_cut_log_is_taken_as_far_as_it_goes_and_a_flipped_bit_within_is_refused() {
    let mut cluster = Cluster::make(MULTIGROUP, 1, 4).await;
    cluster.start(1).await;
    cluster.wait_ready(1).await;
    let mut client = cluster.client(1).await;
    for expected in 1..=20 {
        assert_eq!(client.call_led("INCR a").await, Answer::Integer(expected));
    }
    cluster.kill(1).await;
    // The end of the file, where nothing was written yet, in the middle of a sector.
    let (segment, end) = written(&cluster);
    let file = OpenOptions::new()
        .write(true)
        .open(&segment)
        .expect("a segment");
    file.set_len(end + 40_000).expect("a shorter file");
    cluster.start(1).await;
    cluster.wait_ready(1).await;
    let mut client = cluster.client(1).await;
    assert_eq!(client.call_led("INCR a").await, Answer::Integer(21));
    cluster.kill(1).await;

    let file = File::options()
        .read(true)
        .write(true)
        .open(&segment)
        .expect("a segment");
    let at = 2 * 512 + 100;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 4], at).expect("a byte");
    let name = segment
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let ended = refused(&cluster).await;
    is_one_sentence(
        &ended,
        3,
        &[&name, "corrupt at byte", "node-1/data", "members readmit"],
    );
    file.write_all_at(&byte, at).expect("a byte");
    cluster.start(1).await;
}

/// What strangers say, and then stay for, saying nothing more.
async fn strange(address: &str, bytes: &[u8]) -> TcpStream {
    let mut stranger = TcpStream::connect(address).await.expect("a connection");
    // The node may hang up in the middle of it.
    drop(stranger.write_all(bytes).await);
    stranger
}

#[tokio::test]
async fn garbage_on_any_port_is_nobody_else_s_business() {
    let mut cluster = Cluster::make(MULTIGROUP, 3, 4).await;
    cluster.start_all(3).await;
    let config = cluster.config(1);
    let before = cluster.status(1).await;
    let mut client = cluster.client(1).await;
    assert_eq!(client.call_led("INCR a").await, Answer::Integer(1));
    let noise: Vec<u8> = (0..70_000u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let said: [&[u8]; 7] = [
        &noise,
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"*1000000000\r\n$5\r\n",
        b"*1\r\n$-7\r\nPING\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n\0\0\0\0\xff\xff\xff\xff",
    ];
    let mut strangers = Vec::new();
    for address in [
        config.listen_peer(),
        config.listen_client(),
        config.listen_admin(),
    ] {
        for bytes in said {
            strangers.push(strange(&address.to_string(), bytes).await);
        }
    }
    for expected in 2..=20 {
        assert_eq!(client.call_led("INCR a").await, Answer::Integer(expected));
    }
    // Whoever broke the protocol of the clients' port is told so and hung up on.
    let mut told = String::new();
    let broken = &mut strangers[said.len() + 4];
    soon(
        "the end of a broken session",
        broken.read_to_string(&mut told),
    )
    .await
    .expect("text");
    assert!(told.starts_with("-ERR Protocol error"), "{told}");
    let after = cluster.status(1).await;
    assert!(after.ready);
    let sessions = |status: &multigroup::admin::Status| -> Vec<_> {
        status
            .peers
            .iter()
            .map(|lane| lane.session.clone())
            .collect()
    };
    assert_eq!(sessions(&before), sessions(&after), "no link was lost");
    assert_eq!(
        before.groups.leader_changes_total,
        after.groups.leader_changes_total
    );
}
