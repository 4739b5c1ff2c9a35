//! Whole runs against the real front over a real store, with nodes that refuse, die, hang or answer
//! with errors. What the run says is held against what the store holds afterwards.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use raft_host::id::{GroupId, Index, Term};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::*;
use crate::command::{Body, Command, Entry, Op, Outcome};
use crate::error::{ClientError, UnknownReason};
use crate::keyspace::KeySpace;
use crate::resp::{CommandHandler, Reply, Request, serve};
use crate::session::UnixMillis;
use crate::store::{Committed, Effect, Store, StoreOptions};

/// The replicated part of a cluster of one: a store, and a log that only counts.
pub(crate) struct Backend {
    store: Store,
    last_index: Mutex<HashMap<GroupId, u64>>,
    space: KeySpace,
    _folder: TempDir,
}

impl Backend {
    pub(crate) fn new(groups: u32) -> Arc<Self> {
        let folder = TempDir::new().unwrap();
        let space = KeySpace::new(groups).unwrap();
        let store = Store::open(StoreOptions::new(folder.path().to_owned(), space)).unwrap();
        Arc::new(Self {
            store,
            last_index: Mutex::default(),
            space,
            _folder: folder,
        })
    }

    fn execute(&self, group: GroupId, op: Op) -> Outcome {
        let body = Body::Single(op);
        if !body.is_write() {
            return self.store.read(group, &body).unwrap().1;
        }
        let mut last_index = self.last_index.lock().unwrap();
        let index = last_index.entry(group).or_default();
        *index += 1;
        let entry = Entry {
            identity: None,
            body,
        };
        let committed = Committed {
            index: Index::new(*index),
            term: Term::new(1),
            time: UnixMillis::new(*index),
            data: entry.encode().unwrap(),
        };
        let applied = self.store.apply(group, &[committed]).unwrap();
        match &applied[0].effect {
            Effect::Done(outcome) => outcome.clone(),
            Effect::Empty | Effect::Known { .. } => panic!("a write without identity is done"),
        }
    }

    /// What a key holds.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let outcome = self.execute(self.space.group_of(&key), Op::Get { key });
        if let Outcome::Bulk(value) = outcome {
            Some(String::from_utf8(value.to_vec()).unwrap())
        } else {
            None
        }
    }

    pub(crate) fn count(&self, key: &str) -> u64 {
        self.value(key).unwrap().parse().unwrap()
    }
}

/// How a node behaves towards writes other than the creation of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Good,
    /// After so many it does one more and then answers nothing.
    Mute(u64),
    /// Every second one is answered with the next error in turn, and done only if that is unsure.
    Faulty,
}

pub(crate) struct Node {
    backend: Arc<Backend>,
    manner: Manner,
    writes: AtomicU64,
    went_mute: Notify,
}

impl CommandHandler for Node {
    async fn handle(self: Arc<Self>, request: Request) -> Reply {
        let Request::Command {
            group,
            command: Command::Op(op),
        } = request
        else {
            panic!("the driver sends operations alone")
        };
        let creates = matches!(op, Op::SetNx { .. });
        if creates || !op.is_write() {
            return self.backend.execute(group, op).into();
        }
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        match self.manner {
            Manner::Good => self.backend.execute(group, op).into(),
            Manner::Mute(after) => {
                let outcome = self.backend.execute(group, op);
                if write >= after {
                    self.went_mute.notify_one();
                    std::future::pending::<()>().await;
                }
                outcome.into()
            }
            Manner::Faulty if write.is_multiple_of(2) => self.backend.execute(group, op).into(),
            Manner::Faulty => {
                let unknown = ClientError::Unknown {
                    id: None,
                    why: UnknownReason::Deadline,
                };
                match write / 2 % 4 {
                    0 => ClientError::Timeout.into(),
                    1 => ClientError::NoLeader { group }.into(),
                    2 => ClientError::Refused(crate::error::Refused::DiskFull).into(),
                    _ => {
                        self.backend.execute(group, op);
                        unknown.into()
                    }
                }
            }
        }
    }

    fn describe(&self) -> String {
        let facts = ClusterFacts {
            space: self.backend.space,
            policy: Some("quorum".to_owned()),
            log_sync: Some(true),
        };
        facts.info_section()
    }
}

pub(crate) struct Running {
    pub(crate) endpoint: Endpoint,
    pub(crate) node: Arc<Node>,
    serving: JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

impl Running {
    pub(crate) async fn start(backend: &Arc<Backend>, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = endpoint_of(&listener);
        let node = Arc::new(Node {
            backend: Arc::clone(backend),
            manner,
            writes: AtomicU64::new(0),
            went_mute: Notify::new(),
        });
        let (stop, stopped) = watch::channel(false);
        let (handler, space) = (Arc::clone(&node), backend.space);
        let serving = tokio::spawn(async move {
            serve(listener, handler, space, stopped).await;
        });
        Self {
            endpoint,
            node,
            serving,
            _stop: stop,
        }
    }

    /// Kills it, sessions and all, once it has stopped answering.
    async fn kill_when_mute(&self) {
        self.node.went_mute.notified().await;
        self.serving.abort();
    }
}

pub(crate) fn endpoint_of(listener: &TcpListener) -> Endpoint {
    listener.local_addr().unwrap().to_string().parse().unwrap()
}

/// Where nobody listens.
pub(crate) async fn closed_endpoint() -> Endpoint {
    endpoint_of(&TcpListener::bind("127.0.0.1:0").await.unwrap())
}

fn raw(endpoints: Vec<Endpoint>, backend: &Backend) -> RawPlan {
    RawPlan {
        endpoints,
        space: backend.space,
        writers: 3,
        duration: Duration::from_millis(300),
        keys: None,
        value_bytes: 16,
        operation: Operation::Incr,
        window: None,
        route: Route::Roam,
        patience: Duration::from_secs(10),
        account: Account::Ledger,
    }
}

async fn finish(raw: RawPlan) -> Finished {
    let (_stop, stopped) = watch::channel(Stop::Go);
    let plan = Plan::try_from(raw).unwrap();
    run(plan, RunId::new(1, 1), stopped, |_| {}).await.unwrap()
}

/// For each counter, acked <= value <= acked + unknown; gives the sums.
fn check_counters(finished: &Finished, backend: &Backend) -> (u64, u64) {
    let counters = finished.ledger.iter().filter(|entry| entry.op == "incr");
    let mut sums = (0, 0);
    for entry in counters {
        let value = backend.count(&entry.key);
        let most = entry.acked + entry.unknown;
        assert!((entry.acked..=most).contains(&value), "{value}: {entry:?}");
        if entry.unknown == 0 && entry.acked > 0 {
            assert_eq!(entry.last, value.to_string(), "{entry:?}");
        }
        sums = (sums.0 + entry.acked, sums.1 + entry.unknown);
    }
    sums
}

#[tokio::test]
async fn a_run_without_faults_accounts_for_every_operation_exactly() {
    let backend = Backend::new(7);
    let nodes = [
        Running::start(&backend, Manner::Good).await,
        Running::start(&backend, Manner::Good).await,
    ];
    let endpoints = nodes.iter().map(|node| node.endpoint.clone()).collect();
    let mut preparing = 0;
    let mut last = None;
    let (_stop, stopped) = watch::channel(Stop::Go);
    let window = Some(Duration::from_millis(100));
    let raw = RawPlan {
        window,
        ..raw(endpoints, &backend)
    };
    let plan = Plan::try_from(raw).unwrap();
    let finished = run(plan, RunId::new(1, 1), stopped, |progress| match progress {
        Progress::Preparing { of, .. } => preparing += of,
        Progress::Running { acked, .. } => last = last.max(Some(acked)),
    });
    let finished = finished.await.unwrap();
    assert_eq!((preparing, finished.stopped), (7, false));
    assert_eq!(finished.ledger.len(), 7);
    let pooled = &finished.report.pooled;
    assert_eq!(check_counters(&finished, &backend), (pooled.acked, 0));
    assert!(pooled.acked > 0 && last.is_some(), "{pooled:?}");
    assert_eq!((pooled.operations, pooled.errors_total), (pooled.acked, 0));
    assert!(pooled.p50_us.unwrap() <= pooled.max_us.unwrap());
    let windows = &finished.report.windows;
    assert_eq!(windows.len(), 3);
    let sum: u64 = windows.iter().map(|window| window.figures.acked).sum();
    assert_eq!(sum, pooled.acked);
    let worst = windows
        .iter()
        .filter_map(|window| window.figures.p99_us)
        .max();
    assert_eq!(finished.report.worst_window_p99_us, worst);
}

#[tokio::test]
async fn a_second_run_adds_to_the_counters_of_the_first() {
    let backend = Backend::new(3);
    let node = Running::start(&backend, Manner::Good).await;
    let plan = || raw(vec![node.endpoint.clone()], &backend);
    let (first, second) = (finish(plan()).await, finish(plan()).await);
    for (one, two) in first.ledger.iter().zip(&second.ledger) {
        assert_eq!(one.key, two.key);
        assert_eq!(backend.count(&one.key), one.acked + two.acked);
    }
}

#[tokio::test]
async fn values_hold_what_was_acknowledged_last() {
    let backend = Backend::new(5);
    let node = Running::start(&backend, Manner::Good).await;
    let operation = Operation::Mixed;
    let value_bytes = 40;
    let plan = RawPlan {
        operation,
        value_bytes,
        ..raw(vec![node.endpoint.clone()], &backend)
    };
    let finished = finish(plan).await;
    let (added, unknown) = check_counters(&finished, &backend);
    let set: Vec<_> = finished
        .ledger
        .iter()
        .filter(|entry| entry.op == "set")
        .collect();
    assert_eq!((set.len(), finished.ledger.len(), unknown), (5, 10, 0));
    let written: u64 = set.iter().map(|entry| entry.acked).sum();
    assert!(added > 0 && written > 0);
    // Two of four operations read.
    let reads = finished.report.pooled.acked - added - written;
    assert!(reads.abs_diff(added + written) <= 3 * 2, "{reads} reads");
    for entry in set.iter().filter(|entry| entry.acked > 0) {
        let value = backend.value(&entry.key).unwrap();
        assert_eq!(
            (value.len(), value.trim_end_matches('.')),
            (40, &entry.last[..])
        );
    }
}

#[tokio::test]
async fn a_read_run_leaves_no_ledger() {
    let backend = Backend::new(2);
    let node = Running::start(&backend, Manner::Good).await;
    let operation = Operation::Get;
    let finished = finish(RawPlan {
        operation,
        ..raw(vec![node.endpoint.clone()], &backend)
    })
    .await;
    assert_eq!(finished.ledger, []);
    assert!(finished.report.pooled.acked > 0);
}

#[tokio::test]
async fn error_replies_are_counted_by_kind_and_never_repeated() {
    let backend = Backend::new(4);
    let node = Running::start(&backend, Manner::Faulty).await;
    let finished = finish(raw(vec![node.endpoint.clone()], &backend)).await;
    let errors = finished.report.pooled.errors;
    assert!(errors.timeout > 0 && errors.no_leader > 0, "{errors:?}");
    assert!(errors.refused > 0 && errors.unknown > 0, "{errors:?}");
    assert_eq!((errors.connection, errors.protocol), (0, 0));
    let (acked, unknown) = check_counters(&finished, &backend);
    assert_eq!(
        (acked, unknown),
        (finished.report.pooled.acked, errors.unknown)
    );
    // The node did those that it called unknown, and saw each operation once.
    let values: u64 = finished
        .ledger
        .iter()
        .map(|entry| backend.count(&entry.key))
        .sum();
    assert_eq!(values, acked + unknown);
    let seen = node.node.writes.load(Ordering::Relaxed);
    assert_eq!(seen, finished.report.pooled.operations);
}

#[tokio::test]
async fn a_node_that_refuses_costs_one_operation_for_each_visit() {
    let backend = Backend::new(4);
    let node = Running::start(&backend, Manner::Good).await;
    let endpoints = vec![closed_endpoint().await, node.endpoint.clone()];
    let finished = finish(raw(endpoints, &backend)).await;
    // Writers 0 and 2 begin at the dead node and then stay with the good one.
    let errors = finished.report.pooled.errors;
    assert_eq!((errors.connection, errors.total()), (2, 2));
    let (acked, unknown) = check_counters(&finished, &backend);
    assert_eq!((acked, unknown), (finished.report.pooled.acked, 0));
}

#[tokio::test]
async fn a_pinned_writer_stays_with_its_node_and_doesn_t_spin() {
    let backend = Backend::new(4);
    let node = Running::start(&backend, Manner::Good).await;
    let endpoints = vec![closed_endpoint().await, node.endpoint.clone()];
    let route = Route::Pin;
    let finished = finish(RawPlan {
        route,
        ..raw(endpoints, &backend)
    })
    .await;
    let errors = finished.report.pooled.errors;
    // Two writers for 300 ms, each with a pause of 20 ms after a failure.
    assert!((3..=2 * 16).contains(&errors.connection), "{errors:?}");
    assert!(finished.report.pooled.acked > 0, "the third one works");
}

#[tokio::test]
async fn what_a_dying_node_left_open_counts_as_unknown() {
    let backend = Backend::new(4);
    let dying = Running::start(&backend, Manner::Mute(1)).await;
    let good = Running::start(&backend, Manner::Good).await;
    let endpoints = vec![dying.endpoint.clone(), good.endpoint.clone()];
    let running = finish(raw(endpoints, &backend));
    let (finished, ()) = tokio::join!(running, dying.kill_when_mute());
    let errors = finished.report.pooled.errors;
    assert!(
        errors.connection >= 1 && errors.total() == errors.connection,
        "{errors:?}"
    );
    let (acked, unknown) = check_counters(&finished, &backend);
    assert_eq!(acked, finished.report.pooled.acked);
    let values: u64 = finished
        .ledger
        .iter()
        .map(|entry| backend.count(&entry.key))
        .sum();
    assert!(
        unknown >= 1 && values > acked,
        "the node did what it didn't answer"
    );
}

#[tokio::test]
async fn a_node_that_never_answers_is_given_up_in_time_and_counts_as_unknown() {
    let backend = Backend::new(4);
    let good = Running::start(&backend, Manner::Good).await;
    let silent = Running::start(&backend, Manner::Mute(0)).await;
    let endpoints = vec![silent.endpoint.clone(), good.endpoint.clone()];
    let patience = Duration::from_millis(1000);
    let duration = Duration::from_millis(1500);
    let finished = finish(RawPlan {
        patience,
        duration,
        ..raw(endpoints, &backend)
    })
    .await;
    let errors = finished.report.pooled.errors;
    assert_eq!(
        (errors.timeout, errors.total()),
        (2, 2),
        "writers 0 and 2, once each"
    );
    let (acked, unknown) = check_counters(&finished, &backend);
    assert_eq!((acked, unknown), (finished.report.pooled.acked, 2));
    // Latencies are those of acknowledged operations.
    assert!(finished.report.pooled.max_us.unwrap() < 1_000_000);
}

#[tokio::test]
async fn nobody_there_is_told_at_once() {
    let backend = Backend::new(1);
    let endpoints = vec![closed_endpoint().await, closed_endpoint().await];
    let plan = Plan::try_from(raw(endpoints.clone(), &backend)).unwrap();
    let (_stop, stopped) = watch::channel(Stop::Go);
    let error = run(plan, RunId::new(1, 1), stopped, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, LoadError::Unreachable { .. }), "{error:?}");
    let error = ask(&endpoints, Duration::from_secs(10)).await.unwrap_err();
    assert!(matches!(error, FactsError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn told_to_finish_a_run_ends_early_with_an_exact_account() {
    let backend = Backend::new(4);
    let node = Running::start(&backend, Manner::Good).await;
    let duration = Duration::from_secs(3600);
    let plan = RawPlan {
        duration,
        ..raw(vec![node.endpoint.clone()], &backend)
    };
    let (stop, stopped) = watch::channel(Stop::Go);
    let finished = run(
        Plan::try_from(plan).unwrap(),
        RunId::new(1, 1),
        stopped,
        |progress| {
            if matches!(progress, Progress::Running { acked: 10.., .. }) {
                stop.send_replace(Stop::Finish);
            }
        },
    );
    let finished = finished.await.unwrap();
    assert!(finished.stopped && finished.report.seconds < 60.0);
    let pooled = &finished.report.pooled;
    assert_eq!(check_counters(&finished, &backend), (pooled.acked, 0));
    assert_eq!((pooled.errors_total, finished.report.windows.len()), (0, 1));
}

#[tokio::test]
async fn told_to_end_at_once_what_is_under_way_counts_as_unknown() {
    let backend = Backend::new(4);
    let node = Running::start(&backend, Manner::Mute(5)).await;
    let duration = Duration::from_secs(3600);
    let plan = RawPlan {
        duration,
        ..raw(vec![node.endpoint.clone()], &backend)
    };
    let (stop, stopped) = watch::channel(Stop::Go);
    let running = run(
        Plan::try_from(plan).unwrap(),
        RunId::new(1, 1),
        stopped,
        |_| {},
    );
    let stopping = async {
        until(|| node.node.writes.load(Ordering::Relaxed) == 5 + 3).await;
        stop.send_replace(Stop::AtOnce);
    };
    let (finished, ()) = tokio::join!(running, stopping);
    let finished = finished.unwrap();
    assert_eq!(finished.report.pooled.errors.unknown, 3);
    assert_eq!(check_counters(&finished, &backend), (5, 3));
}

#[tokio::test]
async fn told_to_stop_while_it_makes_keys_a_run_comes_to_nothing() {
    let backend = Backend::new(4);
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plan = Plan::try_from(raw(vec![endpoint_of(&deaf)], &backend)).unwrap();
    let (stop, stopped) = watch::channel(Stop::Go);
    let running = run(plan, RunId::new(1, 1), stopped, |_| {
        stop.send_replace(Stop::Finish);
    });
    let error = running.await.unwrap_err();
    assert!(matches!(error, LoadError::Stopped), "{error:?}");
}

#[tokio::test]
async fn a_node_is_asked_for_its_map_and_its_policy() {
    let backend = Backend::new(1500);
    let node = Running::start(&backend, Manner::Good).await;
    let endpoints = [closed_endpoint().await, node.endpoint.clone()];
    let facts = ask(&endpoints, Duration::from_secs(10)).await.unwrap();
    assert_eq!(facts.space, backend.space);
    assert_eq!(
        (facts.policy.as_deref(), facts.log_sync),
        (Some("quorum"), Some(true))
    );
}

#[tokio::test]
async fn a_server_of_another_kind_is_no_node() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint_of(&listener);
    let web = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut socket, _) = listener.accept().await.unwrap();
        let _asked = socket.read(&mut [0; 64]).await.unwrap();
        socket
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        socket
    });
    let error = ask(&[endpoint], Duration::from_secs(10)).await.unwrap_err();
    let FactsError::Unreachable {
        source: CallError::Protocol { source, .. },
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(source, AnswerError::Kind { got: b'H' });
    drop(web.await.unwrap());
}

/// Waits, without a deadline of its own, for what must come true by itself.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}
