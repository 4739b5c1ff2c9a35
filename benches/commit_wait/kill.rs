//! The leader's node is killed under load. Each client counts up a key of its own, one request in
//! flight, each under an id of its own; a request whose fate isn't known is sent again under the same
//! id, to another node, until it is answered. So each answer must be the number of answers so far:
//! one less, and an acknowledged write was lost; one more, and a repeated one was applied twice.
//!
//! Measured from the kill: until every group that the node led has taken a write at another node, and
//! until the rate over a second is 90 % of what it was before.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use benches::Fault;
use benches::clients::LedGroups;
use benches::cluster::BenchCluster;
use bytes::Bytes;
use multigroup::cluster::NodeSignal;
use multigroup::load::{Answer, Client, Endpoint};
use tokio::task::LocalSet;
use tokio::time::{sleep, sleep_until};
use transport::io::clock;

use crate::saved::Figures;
use crate::settings::Setting;
use crate::throughput::switch;
use crate::{LEADER, NODES, Pace, up};

/// How long one attempt may take, and how long the clients may take to end.
const PATIENCE: Duration = Duration::from_secs(15);
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Between two attempts of one request.
const PAUSE: Duration = Duration::from_millis(10);

/// The rate is taken over a second of these.
const BUCKET: Duration = Duration::from_millis(50);
const BUCKETS_PER_S: usize = 20;

/// Part of the earlier rate that counts as full speed.
const FULL_SPEED: f64 = 0.9;

/// What the clients share.
struct Shared {
    endpoints: Vec<Endpoint>,
    began: Instant,
    stop: Cell<bool>,
    killed: Cell<Option<Instant>>,
    /// Answers by the time at which they came.
    buckets: RefCell<Vec<f64>>,
    /// Clients that have had an answer.
    begun: Cell<usize>,
    /// Clients that got an answer at another node since the kill, and when the last of them did.
    back: Cell<usize>,
    last_back: Cell<Duration>,
    /// Requests that were sent more than once, and the attempts beyond their first.
    retried: Cell<u64>,
    attempts: Cell<u64>,
    /// Answers that didn't say what they had to.
    lost: Cell<u64>,
    twice: Cell<u64>,
}

/// A client's own key and how far it is.
struct Own {
    number: usize,
    key: Bytes,
    acked: i64,
    at: usize,
    back: bool,
    connection: Option<Client>,
}

impl Shared {
    fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            began: clock::now(),
            stop: Cell::new(false),
            killed: Cell::new(None),
            buckets: RefCell::default(),
            begun: Cell::new(0),
            back: Cell::new(0),
            last_back: Cell::new(Duration::ZERO),
            retried: Cell::new(0),
            attempts: Cell::new(0),
            lost: Cell::new(0),
            twice: Cell::new(0),
        }
    }

    fn bucket(&self, at: Instant) -> usize {
        let since = at.saturating_duration_since(self.began);
        usize::try_from(since.as_nanos() / BUCKET.as_nanos()).unwrap_or(usize::MAX)
    }

    fn acked(&self, own: &mut Own, said: i64) {
        let now = clock::now();
        let at = self.bucket(now);
        let mut buckets = self.buckets.borrow_mut();
        if buckets.len() <= at {
            buckets.resize(at + 1, 0.0);
        }
        buckets[at] += 1.0;
        self.begun
            .set(self.begun.get() + usize::from(own.acked == 0));
        own.acked += 1;
        self.lost.set(self.lost.get() + u64::from(said < own.acked));
        self.twice
            .set(self.twice.get() + u64::from(said > own.acked));
        // From here on it counts from what the server says, so that one fault is told once.
        own.acked = said;
        if let Some(killed) = self.killed.get()
            && own.at > 0
            && !std::mem::replace(&mut own.back, true)
        {
            self.back.set(self.back.get() + 1);
            self.last_back.set(now - killed);
        }
    }

    /// Answers a second, over the second that begins with this bucket; `None` until it is over.
    fn rate(&self, bucket: usize) -> Option<f64> {
        let end = bucket + BUCKETS_PER_S;
        if self.bucket(clock::now()) < end {
            return None;
        }
        let buckets = self.buckets.borrow();
        Some((bucket..end).filter_map(|at| buckets.get(at)).sum())
    }

    async fn work(&self, own: &mut Own) -> Result<(), Fault> {
        let mut sequence = 0_u64;
        while !self.stop.get() {
            sequence += 1;
            let issued = clock::wall().duration_since(std::time::UNIX_EPOCH)?;
            let id = format!("{}-c{}r{sequence}", issued.as_millis(), own.number);
            let mut again = 0;
            let said = loop {
                if let Some(said) = self.attempt(own, &id).await? {
                    break said;
                }
                again += 1;
                sleep(PAUSE).await;
            };
            self.retried.set(self.retried.get() + u64::from(again > 0));
            self.attempts.set(self.attempts.get() + again);
            self.acked(own, said);
        }
        Ok(())
    }

    /// One attempt; `None` if the request is to be sent again, elsewhere.
    async fn attempt(&self, own: &mut Own, id: &str) -> Result<Option<i64>, Fault> {
        let until = clock::now() + PATIENCE;
        let mut connection = match own.connection.take() {
            Some(connection) => connection,
            None => match Client::connect(&self.endpoints[own.at], until).await {
                Ok(connection) => connection,
                Err(_) => {
                    self.move_on(own);
                    return Ok(None);
                }
            },
        };
        let words: [&[u8]; 4] = [b"MG.DO", id.as_bytes(), b"INCR", &own.key];
        match connection.call(&words, until).await {
            Ok(Answer::Integer(said)) => {
                own.connection = Some(connection);
                Ok(Some(said))
            }
            // The node is there and says why not: it is asked again.
            Ok(Answer::Error(_)) => {
                own.connection = Some(connection);
                Ok(None)
            }
            Ok(other) => Err(format!("INCR was answered with {other}").into()),
            Err(_) => {
                self.move_on(own);
                Ok(None)
            }
        }
    }

    /// To another node, but not back to the one that is dead.
    fn move_on(&self, own: &mut Own) {
        let others = self.endpoints.len() - 1;
        own.at = 1 + (own.at + own.number) % others;
    }
}

pub(crate) async fn run(setting: &Setting, on: bool, pace: Pace) -> Result<Figures, Fault> {
    let cluster = up(setting)?;
    for node in 1..=NODES {
        switch(&cluster, node, setting, on).await?;
    }
    let led = LedGroups::of(&cluster, LEADER).await?;
    let mut nodes = vec![LEADER];
    nodes.extend((1..=NODES).filter(|node| *node != LEADER));
    let endpoints: Result<Vec<_>, _> = nodes.iter().map(|node| cluster.client(*node)).collect();
    let shared = std::rc::Rc::new(Shared::new(endpoints?));
    let set = LocalSet::new();
    let mut running = Vec::new();
    for number in 0..setting.clients {
        let shared = std::rc::Rc::clone(&shared);
        let mut own = Own {
            number,
            key: led.keys(number, 1).remove(0),
            acked: 0,
            at: 0,
            back: false,
            connection: None,
        };
        running.push(set.spawn_local(async move {
            shared.work(&mut own).await?;
            Ok::<_, Fault>((own.key, own.acked))
        }));
    }
    let mut figures = set
        .run_until(async {
            let figures = watch(&cluster, &shared, setting, pace).await?;
            shared.stop.set(true);
            let mut counted = Vec::new();
            let until = clock::now() + END_PATIENCE;
            for client in running {
                let ended = tokio::time::timeout_at(until.into(), client).await;
                counted.push(ended.map_err(|_| "a client got no answer for a minute")???);
            }
            read_back(&shared, counted).await?;
            Ok::<_, Fault>(figures)
        })
        .await?;
    let mut put = |unit: &str, value: f64| figures.insert(unit.to_owned(), value);
    put("retried_requests", shared.retried.get() as f64);
    put(
        "retried_by_in_flight",
        shared.retried.get() as f64 / setting.clients as f64,
    );
    put("attempts_beyond_the_first", shared.attempts.get() as f64);
    put("acknowledged_lost", shared.lost.get() as f64);
    put("applied_twice", shared.twice.get() as f64);
    put("groups_led_by_the_killed", led.count() as f64);
    if (shared.lost.get(), shared.twice.get()) != (0, 0) {
        let (lost, twice) = (shared.lost.get(), shared.twice.get());
        return Err(format!("{lost} acknowledged writes were lost, {twice} applied twice").into());
    }
    // The cluster is ended as it is, one node short.
    drop(cluster);
    Ok(figures)
}

/// Kills the node once the load is steady, and waits until it is as fast as before.
async fn watch(
    cluster: &BenchCluster,
    shared: &Shared,
    setting: &Setting,
    pace: Pace,
) -> Result<Figures, Fault> {
    // The first write of a group opens its database on every node: that is over before anything counts.
    let warm_until = clock::now() + END_PATIENCE;
    while shared.begun.get() < setting.clients && clock::now() < warm_until {
        sleep(BUCKET).await;
    }
    sleep(pace.before_kill).await;
    let process = cluster.process(LEADER)?;
    process.signal(NodeSignal::KILL)?;
    let killed = clock::now();
    shared.killed.set(Some(killed));
    let at = shared.bucket(killed);
    let before: Option<Vec<f64>> = (1..=2)
        .map(|s| shared.rate(at - s * BUCKETS_PER_S))
        .collect();
    let before = before.ok_or("no rate before the kill")?;
    let before = before.iter().sum::<f64>() / before.len() as f64;
    let (mut next, mut full_speed, mut led) = (at + 1, None, None);
    let until = killed + pace.after_kill;
    while clock::now() < until {
        while full_speed.is_none()
            && let Some(rate) = shared.rate(next)
        {
            if rate >= FULL_SPEED * before {
                let start = BUCKET * u32::try_from(next - at)?;
                full_speed = Some((start, rate));
            }
            next += 1;
        }
        if led.is_none() && are_led(cluster, setting).await? {
            led = Some(clock::now() - killed);
        }
        let is_back = shared.back.get() == setting.clients;
        if led.is_some() && full_speed.is_some() && is_back {
            break;
        }
        sleep_until((clock::now() + BUCKET).into()).await;
    }
    if shared.back.get() < setting.clients {
        let (back, all, limit) = (shared.back.get(), setting.clients, pace.after_kill);
        return Err(format!("only {back} of {all} clients write again after {limit:?}").into());
    }
    let mut figures = Figures::new();
    let mut put = |unit: &str, value: f64| figures.insert(unit.to_owned(), value);
    put(
        "all_groups_writable_s",
        shared.last_back.get().as_secs_f64(),
    );
    put("commits_per_s", before);
    if let Some(took) = led {
        put("all_groups_led_s", took.as_secs_f64());
    }
    // Without this row the speed wasn't reached in the time that there was.
    if let Some((took, rate)) = full_speed {
        put("full_speed_s", took.as_secs_f64());
        put("commits_per_s_then", rate);
    }
    Ok(figures)
}

/// Whether the nodes that are left lead all groups.
async fn are_led(cluster: &BenchCluster, setting: &Setting) -> Result<bool, Fault> {
    let mut led = 0;
    for node in (1..=NODES).filter(|node| *node != LEADER) {
        let status = cluster.status_of(node).await?;
        led += status["groups"]["leading"].as_u64().unwrap_or(0);
    }
    Ok(led >= setting.groups.into())
}

/// Each key holds what its client was told last.
async fn read_back(shared: &Shared, counted: Vec<(Bytes, i64)>) -> Result<(), Fault> {
    let endpoint = shared.endpoints.last().ok_or("no other node")?;
    let mut client = Client::connect(endpoint, clock::now() + PATIENCE).await?;
    for (key, acked) in counted {
        let answer = client
            .call(&[b"GET", &key], clock::now() + PATIENCE)
            .await?;
        let Answer::Bulk(value) = &answer else {
            return Err(format!("GET was answered with {answer}").into());
        };
        let value: i64 = std::str::from_utf8(value)?.parse()?;
        shared
            .lost
            .set(shared.lost.get() + u64::from(value < acked));
        shared
            .twice
            .set(shared.twice.get() + u64::from(value > acked));
    }
    Ok(())
}
