//! A cluster of real processes in a folder of its own: certificates and configurations as the
//! product's commands make and read them, ports from the system, and each process under the test's
//! eyes. A test that is given up takes its processes with it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use multigroup::admin::{AdminUrl, Status, fetch};
use multigroup::config::{Config, RawConfig};
use multigroup::load::{Answer, Client, Endpoint};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use transport::io::clock;

use crate::process::run;
use crate::{PATIENCE, soon};

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);

/// So many different free addresses. Another process could take one before it is used, which fails
/// the test by name.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let held: Vec<_> = (0..count).map(bind).collect();
    let address = |held: &TcpListener| held.local_addr().expect("its address");
    held.iter().map(address).collect()
}

/// A cluster's folder and its processes.
#[derive(Debug)]
pub struct Cluster {
    program: &'static str,
    dir: TempDir,
    running: BTreeMap<u64, Child>,
}

impl Cluster {
    /// A folder with a CA, and a certificate and a configuration for each node.
    ///
    /// # Panics
    /// When they can't be made.
    pub async fn make(program: &'static str, nodes: u64, groups: u32) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let made = run(
            program,
            dir.path(),
            &["certs", "init", "--dir", ".", "--cluster", "dev"],
        );
        let made = made.await;
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        let addresses = free_addresses(3 * usize::try_from(nodes).expect("a few nodes"));
        let cluster = Self {
            program,
            dir,
            running: BTreeMap::new(),
        };
        for (node, own) in (1..=nodes).zip(addresses.chunks(3)) {
            let path = cluster.path(".");
            let line = format!("certs node --dir . --node {node}");
            let ended = run(program, &path, &line.split(' ').collect::<Vec<_>>()).await;
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            let peers: String = (1..=nodes)
                .zip(addresses.chunks(3))
                .map(|(node, own)| format!("{node} = \"{}\"\n", own[0]))
                .collect();
            let text = format!(
                "cluster = \"dev\"\nnode = {node}\ndata_dir = \"node-{node}/data\"\n\
                 groups = {groups}\n[listen]\npeer = \"{}\"\nclient = \"{}\"\nadmin = \"{}\"\n\
                 [peers]\n{peers}[tls]\nca = \"ca/ca.pem\"\ncert = \"node-{node}/cert.pem\"\n\
                 key = \"node-{node}/key.pem\"\ncrl = \"ca/crl.pem\"\n\
                 [host]\nshards = 2\n[log]\nsegment_bytes = \"4MiB\"\n",
                own[0], own[1], own[2]
            );
            std::fs::write(cluster.config_path(node), text).expect("a configuration");
        }
        cluster
    }

    /// A path in the cluster's folder.
    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A node's configuration.
    #[must_use]
    pub fn config_path(&self, node: u64) -> PathBuf {
        self.path(format!("node-{node}/config.toml"))
    }

    /// Its content.
    ///
    /// # Panics
    /// When it isn't one.
    #[must_use]
    pub fn config(&self, node: u64) -> Config {
        Config::load(&self.config_path(node)).expect("a configuration")
    }

    /// Changes it.
    ///
    /// # Panics
    /// When it can't be read or written.
    pub fn change(&self, node: u64, change: impl FnOnce(&mut RawConfig)) {
        let mut raw = self.config(node).raw().clone();
        change(&mut raw);
        std::fs::write(self.config_path(node), raw.to_toml()).expect("a configuration");
    }

    /// The words that start a node.
    #[must_use]
    pub fn words(&self, node: u64) -> Vec<String> {
        let path = self.config_path(node).display().to_string();
        vec!["node".to_owned(), "--config".to_owned(), path]
    }

    /// Starts a node and waits until it says where it serves.
    ///
    /// # Panics
    /// When it doesn't.
    pub async fn start(&mut self, node: u64) -> String {
        let log = self.path(format!("node-{node}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log);
        let mut child = Command::new(self.program)
            .args(self.words(node))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("a log"))
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let out = child.stdout.take().expect("its output");
        let mut lines = BufReader::new(out).lines();
        let line = soon("the line of its addresses", lines.next_line()).await;
        let Ok(Some(line)) = line else {
            panic!("node {node} said {line:?}; its log: {}", self.log(node));
        };
        self.running.insert(node, child);
        line
    }

    /// Starts all nodes of a cluster and waits until each is ready.
    ///
    /// # Panics
    /// When they aren't in time.
    pub async fn start_all(&mut self, nodes: u64) {
        for node in 1..=nodes {
            self.start(node).await;
        }
        for node in 1..=nodes {
            self.wait_ready(node).await;
        }
    }

    /// What a node has logged.
    #[must_use]
    pub fn log(&self, node: u64) -> String {
        let log = self.path(format!("node-{node}.log"));
        std::fs::read_to_string(log).unwrap_or_default()
    }

    /// The number of a node's process.
    ///
    /// # Panics
    /// When it doesn't run.
    #[must_use]
    pub fn pid(&self, node: u64) -> u32 {
        self.running[&node].id().expect("a running process")
    }

    /// Sends a signal, by the name that `kill` knows it by.
    ///
    /// # Panics
    /// When it can't be sent.
    pub async fn signal(&self, node: u64, signal: &str) {
        let pid = self.pid(node).to_string();
        let sent = run("kill", self.dir.path(), &["-s", signal, &pid]).await;
        assert_eq!(sent.code, Some(0), "{}", sent.stderr);
    }

    /// Waits for a node's process to end, and says its exit code; `None` if a signal ended it.
    ///
    /// # Panics
    /// When it doesn't end in time, or doesn't run.
    pub async fn ended(&mut self, node: u64) -> Option<i32> {
        let mut child = self.running.remove(&node).expect("a running process");
        let status = soon("a process to end", child.wait()).await;
        status.expect("its status").code()
    }

    /// Kills a node and waits for its end.
    ///
    /// # Panics
    /// When it doesn't run.
    pub async fn kill(&mut self, node: u64) {
        self.signal(node, "KILL").await;
        assert_eq!(self.ended(node).await, None);
    }

    /// Asks a node's admin port.
    ///
    /// # Panics
    /// When there is no answer within the test's patience.
    pub async fn ask(&self, node: u64, path: &str) -> String {
        let url = AdminUrl::from(self.config(node).listen_admin());
        let answer = fetch(&url, path, PATIENCE).await;
        let answer = answer.expect("an answer of the admin port");
        String::from_utf8(answer.to_vec()).expect("text")
    }

    /// A node's status.
    ///
    /// # Panics
    /// When it isn't one.
    pub async fn status(&self, node: u64) -> Status {
        let text = self.ask(node, "/status").await;
        serde_json::from_str(&text).expect("a status")
    }

    /// Waits until a node says that clients may be sent to it.
    ///
    /// # Panics
    /// When it doesn't in time.
    pub async fn wait_ready(&self, node: u64) {
        let until = clock::now() + PATIENCE;
        loop {
            let url = AdminUrl::from(self.config(node).listen_admin());
            match fetch(&url, "/readyz", PATIENCE).await {
                Ok(_) => return,
                Err(error) if clock::now() > until => panic!("node {node} isn't ready: {error}"),
                Err(_) => sleep(LOOK).await,
            }
        }
    }

    /// A client of a node.
    ///
    /// # Panics
    /// When it isn't taken.
    pub async fn client(&self, node: u64) -> TestClient {
        let endpoint = Endpoint::from(self.config(node).listen_client());
        let client = Client::connect(&endpoint, clock::now() + PATIENCE).await;
        TestClient(client.expect("a client"))
    }
}

/// A client whose every call is answered within the test's patience.
#[derive(Debug)]
pub struct TestClient(Client);

impl TestClient {
    /// The answer to one command, its words parted by spaces.
    ///
    /// # Panics
    /// When there is none.
    pub async fn call(&mut self, line: &str) -> Answer {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        let answer = self.0.call(&words, clock::now() + PATIENCE).await;
        answer.unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The answers to commands that are sent at once.
    ///
    /// # Panics
    /// When one is missing.
    pub async fn pipeline(&mut self, lines: &[String]) -> Vec<Answer> {
        let deadline = clock::now() + PATIENCE;
        for line in lines {
            self.0
                .queue(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        }
        self.0.send(deadline).await.expect("commands are sent");
        let mut answers = Vec::new();
        for line in lines {
            let answer = self.0.next(deadline).await;
            answers.push(answer.unwrap_or_else(|error| panic!("{line}: {error}")));
        }
        answers
    }

    /// Repeats a command until it isn't answered `-NOLEADER`, which promises that it had no effect.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn call_led(&mut self, line: &str) -> Answer {
        let until = clock::now() + PATIENCE;
        loop {
            let answer = self.call(line).await;
            let leaderless = matches!(&answer, Answer::Error(text) if text.starts_with("NOLEADER"));
            if !leaderless {
                return answer;
            }
            assert!(clock::now() < until, "{line}: no leader");
            sleep(LOOK).await;
        }
    }
}
