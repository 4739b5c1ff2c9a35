//! A load that runs beside a test, in the test's own process: what it has done so far can be waited
//! for, nodes can be killed while its operations are in flight, and what it did ends in the ledger.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use multigroup::cluster::{NodeProcess, NodeSignal};
use multigroup::keyspace::KeySpace;
use multigroup::load::{
    self, Account, Finished, Ledger, Operation, Plan, Progress, RawPlan, Route, RunId, Stop,
};
use tests::cluster::Cluster;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use transport::io::clock;

/// Operations that must be under way at the moment of a kill.
pub(crate) const IN_FLIGHT_MIN: usize = 8;

/// How nodes ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Killed {
    /// When they were signalled.
    pub(crate) at: Instant,
    /// Operations that were in flight then.
    pub(crate) in_flight: usize,
}

struct Order {
    victims: Vec<NodeProcess>,
    /// Not before so much is acknowledged.
    acked_min: u64,
    done: oneshot::Sender<Killed>,
}

/// A load that runs.
pub(crate) struct RunningLoad {
    order: Arc<Mutex<Option<Order>>>,
    /// Acknowledged so far.
    acked: watch::Receiver<u64>,
    stop: watch::Sender<Stop>,
    running: JoinHandle<Finished>,
}

impl RunningLoad {
    /// Increments over all groups through these nodes, until it is ended. Runs on one cluster have
    /// each a number of their own.
    pub(crate) fn start(
        cluster: &Cluster,
        run: u64,
        nodes: &[u64],
        groups: u32,
        writers: usize,
    ) -> Self {
        let endpoints = nodes
            .iter()
            .map(|node| cluster.client(*node).parse().expect("an endpoint"));
        let plan = Plan::try_from(RawPlan {
            endpoints: endpoints.collect(),
            space: KeySpace::new(groups).expect("a key space"),
            writers,
            duration: Duration::from_secs(1200),
            keys: None,
            value_bytes: 16,
            operation: Operation::Incr,
            window: None,
            route: Route::Roam,
            patience: Duration::from_secs(10),
            account: Account::Ledger,
        });
        let plan = plan.expect("a plan");
        let order = Arc::new(Mutex::new(None));
        let (acked_now, acked) = watch::channel(0);
        let (stop, stopped) = watch::channel(Stop::Go);
        let orders = Arc::clone(&order);
        let on_progress = move |progress| {
            if let Progress::Running {
                acked, in_flight, ..
            } = progress
            {
                acked_now.send_replace(acked);
                kill(&orders, acked, in_flight);
            }
        };
        let running = tokio::spawn(async move {
            let run = RunId::new(run, std::process::id());
            load::run(plan, run, stopped, on_progress)
                .await
                .expect("a load")
        });
        Self {
            order,
            acked,
            stop,
            running,
        }
    }

    /// Waits until so many more operations are acknowledged.
    pub(crate) async fn until_acked(&mut self, more: u64) {
        let enough = *self.acked.borrow() + more;
        let reached = self.acked.wait_for(|acked| *acked >= enough);
        tests::soon("writes to go on", reached)
            .await
            .expect("a load");
    }

    /// Kills these nodes once so many more operations are acknowledged and enough are in flight.
    pub(crate) async fn kill(&mut self, victims: Vec<NodeProcess>, more: u64) -> Killed {
        let (done, killed) = oneshot::channel();
        let order = Order {
            victims,
            acked_min: *self.acked.borrow() + more,
            done,
        };
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
        let killed = tests::soon("the kill", killed).await.expect("a kill");
        assert!(killed.in_flight >= IN_FLIGHT_MIN, "{killed:?}");
        killed
    }

    /// Ends the load and enters what it did in the cluster's ledger.
    pub(crate) async fn end(self, cluster: &Cluster) -> Finished {
        self.stop.send_replace(Stop::Finish);
        let finished = tests::soon("the load's end", self.running)
            .await
            .expect("the load");
        let mut ledger = Ledger::open(cluster.path()).expect("the ledger");
        ledger.append(&finished.ledger).expect("the ledger's lines");
        finished
    }
}

/// In the load's own task, so that what is in flight stays so until the signal.
fn kill(orders: &Mutex<Option<Order>>, acked: u64, in_flight: usize) {
    let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
    let due = |order: &mut Order| acked >= order.acked_min && in_flight >= IN_FLIGHT_MIN;
    let Some(order) = orders.take_if(due) else {
        return;
    };
    let at = clock::now();
    for victim in &order.victims {
        victim.signal(NodeSignal::KILL).expect("a signal");
    }
    for victim in &order.victims {
        victim.wait_gone().expect("its end");
    }
    // The test may have given up.
    let _unheard = order.done.send(Killed { at, in_flight });
}
