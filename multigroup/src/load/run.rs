//! A whole run: make the keys, let the writers go, wait for them, add up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use transport::io::clock;

use super::answer::Answer;
use super::client::{CallError, Endpoint};
use super::ledger::LedgerEntry;
use super::plan::Plan;
use super::prepare::{NewKey, prepare};
use super::report::Report;
use super::tally::{KeyTally, Tally};
use super::writer::{Shared, Writer};

/// Between two notes of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// What a run is told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Go on.
    Go,
    /// Begin no operation any more, and wait for those that are under way.
    Finish,
    /// Don't wait either: what is under way counts as unknown.
    AtOnce,
}

/// Waits until as much is told. A sender that is gone tells nothing any more.
pub(super) async fn told(stop: &mut watch::Receiver<Stop>, least: Stop) {
    if stop.wait_for(|now| *now >= least).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It makes its keys.
    Preparing {
        /// Those that are there.
        made: usize,
        /// All.
        of: usize,
    },
    /// The timed part.
    Running {
        /// How long it has been running.
        elapsed: Duration,
        /// How long it will be.
        of: Duration,
        /// Operations acknowledged.
        acked: u64,
        /// Operations that failed.
        failed: u64,
        /// Operations under way at this moment.
        in_flight: usize,
    },
}

/// Why a run came to nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No node could be connected to.
    #[error("no node can be reached")]
    Unreachable {
        /// What one of them came to.
        source: CallError,
    },
    /// A key couldn't be made, since no node answered.
    #[error("can't create key {key}")]
    NotMade {
        /// The key.
        key: String,
        /// What one of the nodes came to.
        source: CallError,
    },
    /// A key couldn't be made, since no node would.
    #[error("can't create key {key}: {endpoint} answered {got}")]
    Refused {
        /// The key.
        key: String,
        /// Who.
        endpoint: Endpoint,
        /// What it said.
        got: Box<Answer>,
    },
    /// It was told to stop before its timed part.
    #[error("stopped before the timed part")]
    Stopped,
    /// A writer panicked.
    #[error("a writer panicked")]
    Writer {
        /// How.
        source: JoinError,
    },
}

/// Names a run in the ledger and marks its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunId {
    name: String,
    mark: u32,
}

impl RunId {
    /// A run of this process that began at this time.
    #[must_use]
    pub fn new(unix_millis: u64, process: u32) -> Self {
        // The mark has 24 bits; neighbouring runs differ in the lowest of either number.
        let mixed = unix_millis ^ u64::from(process).rotate_left(12);
        Self {
            name: format!("{unix_millis:x}-{process:x}"),
            mark: u32::try_from(mixed & 0xff_ffff).unwrap_or_default(),
        }
    }

    /// 16 digits that no other write of this run has.
    fn token(&self, number: u64) -> String {
        format!("{:06x}{:010x}", self.mark, number & 0xff_ffff_ffff)
    }

    /// A value of that length: the token, then dots.
    pub(super) fn value(&self, number: u64, bytes: usize) -> Vec<u8> {
        let mut value = self.token(number).into_bytes();
        value.resize(bytes.max(value.len()), b'.');
        value
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The figures.
    pub report: Report,
    /// One line for each key that was written to.
    pub ledger: Vec<LedgerEntry>,
    /// Whether it was told to stop before its time.
    pub stopped: bool,
}

/// Does a run. The future must be driven to its end: the account is in what it gives.
///
/// # Errors
/// [`LoadError`]; the timed part hasn't begun then, but for a writer that panicked.
pub async fn run(
    plan: Plan,
    run: RunId,
    stop: watch::Receiver<Stop>,
    on_progress: impl FnMut(Progress),
) -> Result<Finished, LoadError> {
    run_after(plan, run, stop, on_progress, async || ()).await
}

/// The same, with something that is done once all keys are there and before the clock starts.
///
/// # Errors
/// As for [`run`].
pub async fn run_after(
    plan: Plan,
    run: RunId,
    stop: watch::Receiver<Stop>,
    mut on_progress: impl FnMut(Progress),
    before_start: impl AsyncFnOnce(),
) -> Result<Finished, LoadError> {
    let (counters, values) = names(&plan);
    let new_keys = Arc::new(new_keys(&plan, &counters, &values));
    prepare(&plan, new_keys, &stop, &mut on_progress).await?;

    let tally = Tally::new(clock::now(), plan.window(), plan.windows(), plan.keys());
    let shared = Arc::new(Shared {
        run,
        counters,
        values,
        tokens: AtomicU64::new(0),
        in_flight: AtomicUsize::new(0),
        tally: Mutex::new(tally),
        plan,
    });
    let writers = connected(&shared, &stop).await?;
    before_start().await;
    let start = clock::now();
    shared.with_tally(|tally| tally.start_at(start));
    let stopped_at = drive(&shared, writers, start, stop, &mut on_progress).await?;

    let duration = shared.plan.raw().duration;
    let length = stopped_at.map_or(duration, |at| at.duration_since(start).min(duration));
    let finished = shared.with_tally(|tally| Finished {
        report: Report::new(&shared.plan, tally, length),
        ledger: ledger(&shared, tally),
        stopped: stopped_at.is_some(),
    });
    Ok(finished)
}

fn names(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let operation = plan.raw().operation;
    let of = |kind, wanted: bool| {
        if wanted { plan.names(kind) } else { Vec::new() }
    };
    (
        of("counter", operation.has_counters()),
        of("value", operation.has_values()),
    )
}

fn new_keys(plan: &Plan, counters: &[String], values: &[String]) -> Vec<NewKey> {
    let (zero, dots): (Arc<[u8]>, Arc<[u8]>) =
        ((*b"0").into(), vec![b'.'; plan.raw().value_bytes].into());
    let counters = counters
        .iter()
        .map(|name| (name.clone(), Arc::clone(&zero)));
    let values = values.iter().map(|name| (name.clone(), Arc::clone(&dots)));
    counters.chain(values).collect()
}

/// All writers, each with its first connection if it got one.
async fn connected(
    shared: &Arc<Shared>,
    stop: &watch::Receiver<Stop>,
) -> Result<Vec<Writer>, LoadError> {
    let mut connecting = JoinSet::new();
    for number in 0..shared.plan.raw().writers {
        let mut writer = Writer::new(Arc::clone(shared), number, stop.clone());
        connecting.spawn(async move {
            writer.connect_early().await;
            writer
        });
    }
    let mut writers = Vec::with_capacity(connecting.len());
    while let Some(writer) = connecting.join_next().await {
        writers.push(writer.map_err(|source| LoadError::Writer { source })?);
    }
    Ok(writers)
}

/// Lets the writers work; gives when they were told to stop, if they were.
async fn drive(
    shared: &Shared,
    writers: Vec<Writer>,
    start: Instant,
    mut stop: watch::Receiver<Stop>,
    on_progress: &mut impl FnMut(Progress),
) -> Result<Option<Instant>, LoadError> {
    let of = shared.plan.raw().duration;
    let mut working = JoinSet::new();
    for writer in writers {
        working.spawn(writer.work(start + of));
    }
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped_at = None;
    loop {
        tokio::select! {
            biased;
            () = told(&mut stop, Stop::Finish), if stopped_at.is_none() => {
                stopped_at = Some(clock::now());
            }
            ended = working.join_next() => match ended {
                None => break,
                Some(ended) => ended.map_err(|source| LoadError::Writer { source })?,
            },
            _ = ticks.tick() => {
                let (acked, failed) = shared.with_tally(|tally| (tally.acked, tally.failed));
                let elapsed = clock::now().duration_since(start);
                let in_flight = shared.in_flight.load(Ordering::Relaxed);
                on_progress(Progress::Running { elapsed, of, acked, failed, in_flight });
            }
        }
    }
    // Told only after its time was up, it still did all that it should.
    Ok(stopped_at.filter(|at| at.duration_since(start) < of))
}

fn ledger(shared: &Shared, tally: &Tally) -> Vec<LedgerEntry> {
    let entry = |op: &str, key: &String, tally: &KeyTally, last: String| LedgerEntry {
        run: shared.run.name.clone(),
        op: op.to_owned(),
        key: key.clone(),
        acked: tally.acked,
        unknown: tally.unknown,
        last,
    };
    let counters = shared
        .counters
        .iter()
        .zip(&tally.counters)
        .map(|(key, tally)| {
            let last = tally.count_max.map(|count| count.to_string());
            entry("incr", key, tally, last.unwrap_or_default())
        });
    let mut lines: Vec<_> = counters.collect();
    if shared.plan.raw().operation.sets_values() {
        let values = shared.values.iter().zip(&tally.values).map(|(key, tally)| {
            let last = tally.token_last.map(|(_, number)| shared.run.token(number));
            entry("set", key, tally, last.unwrap_or_default())
        });
        lines.extend(values);
    }
    lines
}
