use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;
use crate::command::{Command, Op};
use crate::limits::{SESSION_IN_FLIGHT_MAX, SESSION_UNSENT_BYTES_MAX};
use crate::resp::{Reply, Request};

/// A map in memory; keys that begin with "slow" are answered only once the gate lets them.
struct Map {
    rows: Mutex<HashMap<Bytes, Bytes>>,
    started: Mutex<Vec<Bytes>>,
    gate: Semaphore,
}

impl Map {
    fn now(&self, op: &Op) -> Reply {
        let mut rows = self.rows.lock().unwrap();
        if let Op::Get { key } = op {
            return rows.get(key).cloned().map_or(Reply::Nil, Reply::Bulk);
        }
        let Op::Set { key, value } = op else {
            panic!("only GET and SET are asked here")
        };
        rows.insert(key.clone(), value.clone());
        Reply::OK
    }
}

impl CommandHandler for Map {
    async fn handle(self: Arc<Self>, request: Request) -> Reply {
        let ops = match request {
            Request::Command {
                command: Command::Op(op),
                ..
            } => vec![op],
            Request::Transaction { ops, .. } => ops,
            Request::Command { .. } | Request::DbSize => panic!("only GET and SET are asked here"),
        };
        for key in ops.iter().flat_map(Op::keys) {
            self.started.lock().unwrap().push(key.clone());
            if key.starts_with(b"slow") || key.starts_with(b"{slow") {
                self.gate.acquire().await.unwrap().forget();
            }
        }
        match &ops[..] {
            [op] => self.now(op),
            ops => Reply::Array(ops.iter().map(|op| self.now(op)).collect()),
        }
    }

    fn describe(&self) -> String {
        "# Server\r\nredis_version:7.0.0\r\n".to_owned()
    }
}

struct Running {
    map: Arc<Map>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    served: JoinHandle<Served>,
}

impl Running {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (rows, started) = Default::default();
        let map = Arc::new(Map {
            rows,
            started,
            gate: Semaphore::new(0),
        });
        let (stop, stopped) = watch::channel(false);
        let space = KeySpace::new(64).unwrap();
        let served = tokio::spawn(serve(listener, Arc::clone(&map), space, stopped));
        Self {
            map,
            address,
            stop,
            served,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn finish(self) -> Served {
        self.stop.send(true).unwrap();
        self.served.await.unwrap()
    }

    fn started(&self) -> usize {
        self.map.started.lock().unwrap().len()
    }
}

async fn expect(client: &mut TcpStream, expected: &str) {
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&got), expected);
}

async fn say(client: &mut TcpStream, lines: &str) {
    client.write_all(lines.as_bytes()).await.unwrap();
}

/// Waits, without a deadline of its own, for what must come true by itself.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn pipelined_replies_keep_the_order_of_the_requests() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    say(&mut client, "SET slow 1\nPING\nSET b 2\nECHO x\nGET b\n").await;
    until(|| running.started() >= 3).await;
    running.map.gate.add_permits(1);
    expect(&mut client, "+OK\r\n+PONG\r\n+OK\r\n$1\r\nx\r\n$1\r\n2\r\n").await;
    assert_eq!(running.finish().await.sessions, 1);
}

#[tokio::test]
async fn a_read_sees_the_writes_sent_before_it_on_the_same_session() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    say(&mut client, "SET slow 1\nGET slow\nSET {slow}2 x\n").await;
    until(|| running.started() == 1).await;
    running.map.gate.add_permits(3);
    expect(&mut client, "+OK\r\n$1\r\n1\r\n+OK\r\n").await;
    let started = running.map.started.lock().unwrap().clone();
    assert_eq!(started, ["slow", "slow", "{slow}2"]);
}

#[tokio::test]
async fn writes_to_one_group_are_in_progress_together_and_start_in_order() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    say(&mut client, "SET {slow}1 a\nSET {slow}2 b\nSET {slow}3 c\n").await;
    until(|| running.started() == 3).await;
    let started = running.map.started.lock().unwrap().clone();
    assert_eq!(started, ["{slow}1", "{slow}2", "{slow}3"]);
}

#[tokio::test]
async fn no_more_than_the_bound_is_in_progress_for_one_session() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    let count = SESSION_IN_FLIGHT_MAX + 10;
    say(&mut client, &"SET slow 1\n".repeat(count)).await;
    until(|| running.started() == SESSION_IN_FLIGHT_MAX).await;
    running.map.gate.add_permits(1);
    expect(&mut client, "+OK\r\n").await;
    until(|| running.started() == SESSION_IN_FLIGHT_MAX + 1).await;
    running.map.gate.add_permits(count);
    expect(&mut client, &"+OK\r\n".repeat(count - 1)).await;
}

#[tokio::test]
async fn a_transaction_s_results_come_as_one_array() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    say(&mut client, "MULTI\nSET a 1\nGET a\nEXEC\n").await;
    expect(
        &mut client,
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n1\r\n",
    )
    .await;
}

#[tokio::test]
async fn garbage_is_answered_once_and_ends_the_session() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    let garbage = [&b"*1\r\n@oops\r\n"[..], &[0xff; 100_000]].concat();
    client.write_all(&garbage).await.unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"-ERR Protocol error: expected '$', got '@'\r\n");
}

#[tokio::test]
async fn quit_is_answered_and_what_follows_is_not() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    say(&mut client, "QUIT\nPING\n").await;
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"+OK\r\n");
}

#[tokio::test]
async fn a_client_that_closed_its_side_still_gets_its_answers() {
    let running = Running::start().await;
    let mut client = running.connect().await;
    say(&mut client, "SET slow 1\nINFO\n").await;
    client.shutdown().await.unwrap();
    until(|| running.started() == 1).await;
    running.map.gate.add_permits(1);
    let mut all = String::new();
    client.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "+OK\r\n$31\r\n# Server\r\nredis_version:7.0.0\r\n\r\n");
}

#[tokio::test]
async fn a_client_that_doesn_t_read_stalls_only_itself() {
    let running = Running::start().await;
    let value = "v".repeat(100_000);
    let mut stuck = running.connect().await;
    say(
        &mut stuck,
        &format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n{value}\r\n"),
    )
    .await;
    expect(&mut stuck, "+OK\r\n").await;
    // Far more answers than the socket and the session hold; sent until nobody takes more.
    let asked = 4096;
    let mut sent = 0;
    let lines = "GET k\n".repeat(asked);
    while let Ok(Ok(count)) = timeout(
        std::time::Duration::from_millis(200),
        stuck.write(&lines.as_bytes()[sent..]),
    )
    .await
    {
        sent += count;
        if count == 0 {
            break;
        }
    }
    let started = running.started();
    let limit = (64 << 20) / value.len() + SESSION_UNSENT_BYTES_MAX / value.len();
    assert!(
        started < limit,
        "{started} requests taken for a client that reads nothing"
    );
    let mut other = running.connect().await;
    say(&mut other, "PING\nSET x 1\n").await;
    expect(&mut other, "+PONG\r\n+OK\r\n").await;
    // Once it reads, it gets everything.
    let answer = format!("$100000\r\n{value}\r\n");
    for _ in 0..started - 1 {
        expect(&mut stuck, &answer).await;
    }
}

#[tokio::test]
async fn at_shutdown_requests_in_progress_are_answered_and_no_more_are_taken() {
    let running = Running::start().await;
    let (mut busy, mut idle) = (running.connect().await, running.connect().await);
    say(&mut busy, "SET slow 1\nGET slow\n").await;
    say(&mut idle, "PING\n").await;
    expect(&mut idle, "+PONG\r\n").await;
    until(|| running.started() == 1).await;
    let map = Arc::clone(&running.map);
    let finish = tokio::spawn(running.finish());
    assert_eq!(idle.read(&mut [0; 8]).await.unwrap(), 0);
    drop(idle);
    map.gate.add_permits(9);
    let mut all = Vec::new();
    busy.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"+OK\r\n");
    drop(busy);
    let served = finish.await.unwrap();
    assert_eq!(
        served,
        Served {
            sessions: 2,
            turned_away: 0,
            cut_off: 0
        }
    );
}
