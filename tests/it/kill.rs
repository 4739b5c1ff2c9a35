//! Nodes that are killed under load: no acknowledged write is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use multigroup::cluster::{NodeProcess, NodeSignal};
use multigroup::keyspace::KeySpace;
use multigroup::load::{
    self, Finished, Ledger, Operation, Plan, Progress, RawPlan, Route, RunId, Stop,
};
use tests::cluster::{Cluster, NODES};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const GROUPS: u32 = 150;
const WRITERS: usize = 16;

/// Operations that must be under way at the moment of a kill.
const IN_FLIGHT_MIN: usize = 8;

/// Writes that must have been acknowledged before a kill.
const ACKED_MIN: u64 = 200;

/// A run of load that kills nodes once it is well under way.
struct KillingLoad {
    killed: oneshot::Receiver<()>,
    in_flight: Arc<AtomicUsize>,
    /// Acknowledged so far.
    acked: watch::Receiver<u64>,
    stop: watch::Sender<Stop>,
    running: JoinHandle<Finished>,
}

fn load_and_kill(cluster: &Cluster, run: u64, victims: Vec<NodeProcess>) -> KillingLoad {
    let endpoints = (1..=NODES).map(|node| cluster.client(node).parse().expect("an endpoint"));
    let plan = Plan::try_from(RawPlan {
        endpoints: endpoints.collect(),
        space: KeySpace::new(GROUPS).expect("a key space"),
        writers: WRITERS,
        duration: Duration::from_secs(120),
        keys: None,
        value_bytes: 16,
        operation: Operation::Incr,
        window: None,
        route: Route::Roam,
        patience: Duration::from_secs(10),
    });
    let plan = plan.expect("a plan");
    let (tell, killed) = oneshot::channel();
    let mut tell = Some(tell);
    let in_flight = Arc::new(AtomicUsize::new(0));
    let (acked_now, acked) = watch::channel(0);
    let (stop, stopped) = watch::channel(Stop::Go);
    let seen = Arc::clone(&in_flight);
    let on_progress = move |progress| {
        let Progress::Running {
            acked, in_flight, ..
        } = progress
        else {
            return;
        };
        acked_now.send_replace(acked);
        if acked < ACKED_MIN || in_flight < IN_FLIGHT_MIN || tell.is_none() {
            return;
        }
        for victim in &victims {
            victim.signal(NodeSignal::KILL).expect("a signal");
        }
        seen.store(in_flight, Ordering::SeqCst);
        for victim in &victims {
            victim.wait_gone().expect("its end");
        }
        if let Some(tell) = tell.take() {
            // The test may have given up.
            let _unheard = tell.send(());
        }
    };
    let running = tokio::spawn(async move {
        let run = RunId::new(run, std::process::id());
        load::run(plan, run, stopped, on_progress)
            .await
            .expect("a load")
    });
    KillingLoad {
        killed,
        in_flight,
        acked,
        stop,
        running,
    }
}

impl KillingLoad {
    async fn until_killed(&mut self) {
        tests::soon("the kill", &mut self.killed)
            .await
            .expect("a kill");
        assert!(self.in_flight.load(Ordering::SeqCst) >= IN_FLIGHT_MIN);
    }

    /// Waits until as much again is acknowledged: writes go on without the node.
    async fn until_writes_go_on(&mut self) {
        let enough = *self.acked.borrow() + ACKED_MIN;
        let reached = self.acked.wait_for(|acked| *acked >= enough);
        tests::soon("writes to go on", reached)
            .await
            .expect("a load");
    }

    /// Ends the load and enters what it did in the cluster's ledger.
    async fn end(self, cluster: &Cluster) -> Finished {
        self.stop.send_replace(Stop::Finish);
        let finished = tests::soon("the load's end", self.running)
            .await
            .expect("the load");
        let mut ledger = Ledger::open(cluster.path()).expect("the ledger");
        ledger.append(&finished.ledger).expect("the ledger's lines");
        finished
    }
}

async fn check(cluster: &Cluster, offline: bool) {
    let command = if offline {
        &["verify", "--offline"][..]
    } else {
        &["verify"]
    };
    let verified = cluster.json(command).await;
    assert_eq!(verified["mismatches"], 0, "{verified}");
    assert_eq!(
        verified["replicas"],
        u64::from(GROUPS) * NODES,
        "{verified}"
    );
    assert_eq!(verified["counters_exact"], GROUPS, "{verified}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_leading_nodes_are_killed_in_turn_and_nothing_acknowledged_is_lost() {
    tests::log_to_test();
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let mut left: Vec<u64> = (1..=NODES).collect();
    for round in 1..=NODES {
        let leading = cluster.leading().await;
        let victim = left.iter().copied().max_by_key(|node| leading[node]);
        let victim = victim.expect("a node that wasn't killed yet");
        left.retain(|node| *node != victim);
        let led = leading[&victim];
        assert!(
            led * 3 >= GROUPS as usize,
            "round {round}: {leading:?}, of which {victim}"
        );

        let mut load = load_and_kill(&cluster, round, vec![cluster.process(victim)]);
        load.until_killed().await;
        load.until_writes_go_on().await;
        cluster
            .done(&["cluster", "restart", "--node", &victim.to_string()])
            .await;
        let in_flight = Arc::clone(&load.in_flight);
        let finished = load.end(&cluster).await;
        let (pooled, in_flight) = (&finished.report.pooled, in_flight.load(Ordering::SeqCst));
        tracing::info!(
            "round {round}: node {victim} led {led}, {in_flight} operations in flight; {} \
             acknowledged, {} failed",
            pooled.acked,
            pooled.errors_total
        );
        check(&cluster, false).await;
    }
    cluster.down_exactly().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_are_killed_at_once_and_nothing_acknowledged_is_lost() {
    let cluster = Cluster::up(MULTIGROUP, GROUPS).await;
    let all = (1..=NODES).map(|node| cluster.process(node)).collect();
    let mut load = load_and_kill(&cluster, 1, all);
    load.until_killed().await;
    load.end(&cluster).await;
    check(&cluster, true).await;
    cluster.done(&["cluster", "up", "--detach"]).await;
    check(&cluster, false).await;
}
