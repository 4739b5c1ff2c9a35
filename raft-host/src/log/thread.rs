//! The log as a whole: opening it, its thread, its queue, its end.
//!
//! Leaves to others: what a step does (engine.rs), a shard's end (shard.rs).
//!
//! The thread: started by [`Log::open`]; ends when the log is closed or dropped and everything
//! submitted is durable, or when the disk fails. It takes all that waits, of all shards, into one
//! write and one sync, without lingering; when nothing comes for `probe_interval` it syncs a probe.
//! If it panics, or a write or sync fails, the log has stopped for good: every shard is told, and
//! every later submission is refused with the cause. A second thread makes the next segment's file
//! ahead, so that filling it with zeros holds up no ack; without it the log still works.
//!
//! [`Log::open_driven`] gives the same without threads, for a simulation that takes the turns
//! itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::api::{Change, GroupLog, Mutation};
use super::config::LogConfig;
use super::engine::{Engine, LogClock, Step, Submission, change_bytes};
use super::error::{LogFailure, OpenError};
use super::files::{Files, FolderLock};
use super::open::open_engine;
use super::record::LogId;
use super::segment::{SegmentFile, make_segment};
use super::shard::ShardLog;
use super::shared::{Health, Shared};
use super::view::{CacheBudget, GroupView};
use super::{LogShard, Token};
use crate::limits;

/// What a shard is told.
#[derive(Clone, Debug)]
pub enum Completion {
    /// Everything the shard flushed up to and including this is durable.
    Durable(Token),
    /// The log has stopped for good: nothing after the last durable token will ever be.
    Failed(LogFailure),
}

/// Where completions go, on the log's thread: it must not block. They come in order per shard.
pub type LogSink = Box<dyn FnMut(LogShard, Completion) + Send>;

/// What it takes to open a log.
pub struct LogSetup {
    /// The folder.
    pub files: Arc<dyn Files>,
    /// The configuration.
    pub config: LogConfig,
    /// The time since some fixed moment, for [`Health`].
    pub clock: LogClock,
    /// Whose log it is: one that is made now is made under this name, one that is there must have it.
    pub id: LogId,
    /// Where completions go.
    pub sink: LogSink,
}

impl fmt::Debug for LogSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSetup")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What waits for the log thread. Bounded by the bytes that may be unsynced (`limits.rs`).
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: Vec<Submission>,
    /// The shards, and what they know to be durable.
    shards: BTreeMap<LogShard, Arc<AtomicU64>>,
    closing: bool,
    stopped: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False when the log takes nothing any more.
    pub(super) fn push(&self, submission: Submission) -> bool {
        let mut state = self.lock();
        if state.closing || state.stopped {
            return false;
        }
        state.waiting.push(submission);
        let first = state.waiting.len() == 1;
        drop(state);
        if first {
            self.filled.notify_one();
        }
        true
    }

    fn close(&self) {
        self.lock().closing = true;
        self.filled.notify_one();
    }
}

/// A node's open log.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    budget: Arc<CacheBudget>,
    config: LogConfig,
    thread: Option<JoinHandle<()>>,
}

/// Makes durable which commit indexes were brought back into their logs. Else other entries could
/// be appended there, and after another stop the old index would call them committed.
fn keep_clamped(engine: &mut Engine, groups: &[GroupView]) -> Result<(), LogFailure> {
    let mut mutations = Vec::new();
    for view in groups {
        let state = engine.shared().lock();
        let stored = state
            .index
            .group(view.group())
            .and_then(|group| group.hard_state);
        if stored.is_some_and(|stored| stored.value != view.hard_state()) {
            let change = Change::Write {
                hard_state: Some(view.hard_state()),
                entries: Vec::new(),
            };
            mutations.push(Mutation {
                group: view.group(),
                change,
            });
        }
    }
    if mutations.is_empty() {
        return Ok(());
    }
    tracing::warn!(
        groups = mutations.len(),
        "stored commit indexes lay outside of their logs"
    );
    for part in mutations.chunks(limits::LOG_CLAMPED_PER_BATCH) {
        let bytes = part
            .iter()
            .map(|mutation| change_bytes(&mutation.change))
            .sum();
        engine
            .shared()
            .unsynced_bytes
            .fetch_add(bytes, Ordering::AcqRel);
        let (shard, token) = (LogShard::new(u32::MAX), Token(0));
        engine.push(Submission {
            shard,
            token,
            mutations: part.to_vec(),
            bytes,
        });
    }
    while engine.has_pending() {
        if engine.step(&mut |_, _| {})? == Step::NoSpace {
            return Err(engine.no_space());
        }
    }
    Ok(())
}

/// Reads the log's health from anywhere.
#[derive(Clone, Debug)]
pub struct HealthReader {
    shared: Arc<Shared>,
}

impl HealthReader {
    /// How the log is now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Why the log has stopped, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailure> {
        self.shared.failure()
    }
}

impl Log {
    /// Opens the log and starts its thread. Gives every group there is, as it was found.
    ///
    /// # Errors
    /// When the folder can't be used; nothing in it has been changed then, other than by a disk
    /// that failed while the first segment was made.
    pub fn open(setup: LogSetup) -> Result<(Self, Vec<GroupView>), OpenError> {
        let files = Arc::clone(&setup.files);
        let (mut log, mut driver, groups) = Self::open_driven(setup)?;
        let probe = log.config.probe_interval();
        driver.spares = SpareMaker::start(files);
        let thread = std::thread::Builder::new()
            .name("raft-log".to_owned())
            .spawn(move || driver.run(probe))
            .map_err(|error| OpenError::Start(LogFailure::Thread { kind: error.kind() }))?;
        log.thread = Some(thread);
        Ok((log, groups))
    }

    /// Opens the log without threads: nothing happens but by the driver's turns.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_driven(setup: LogSetup) -> Result<(Self, LogDriver, Vec<GroupView>), OpenError> {
        let LogSetup {
            files,
            config,
            clock,
            id,
            sink,
        } = setup;
        let (mut engine, lock) = open_engine(&files, config, clock, id)?;
        let shared = Arc::clone(engine.shared());
        let queue = Arc::new(Queue::default());
        let budget = Arc::new(CacheBudget::new(config.cache_bytes()));
        let groups: Vec<_> = {
            let state = shared.lock();
            let groups = state.index.groups().filter(|(_, state)| state.exists());
            groups
                .map(|(group, state)| {
                    let (shared, budget) = (Arc::clone(&shared), Arc::clone(&budget));
                    GroupView::recovered(group, state, shared, budget)
                })
                .collect()
        };
        keep_clamped(&mut engine, &groups).map_err(OpenError::Start)?;
        let health = shared.health();
        tracing::info!(
            groups = groups.len(),
            segments_bytes = health.segments_bytes,
            sync_number = health.sync_number,
            "log opened"
        );
        let driver = LogDriver {
            engine,
            queue: Arc::clone(&queue),
            sink,
            lock,
            spares: None,
        };
        Ok((
            Self {
                shared,
                queue,
                budget,
                config,
                thread: None,
            },
            driver,
            groups,
        ))
    }

    /// A shard's end. To be taken once for each shard.
    #[must_use]
    pub fn shard(&self, shard: LogShard) -> ShardLog {
        let durable = Arc::new(AtomicU64::new(0));
        self.queue.lock().shards.insert(shard, Arc::clone(&durable));
        let (queue, shared) = (Arc::clone(&self.queue), Arc::clone(&self.shared));
        ShardLog::new(
            shard,
            queue,
            shared,
            Arc::clone(&self.budget),
            self.config,
            durable,
        )
    }

    /// How the log is now, without asking its thread.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// The same for other threads.
    #[must_use]
    pub fn health_reader(&self) -> HealthReader {
        HealthReader {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes nothing more, and waits until everything submitted is durable and the thread ended.
    /// Waits as long as the disk does.
    pub fn close(mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the log thread panicked");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// One batch, perhaps an empty one, is durable. `more` says whether to go on at once.
    Synced {
        /// There is more to do.
        more: bool,
    },
    /// The disk is full; try again after a while.
    NoSpace,
    /// The log was closed and everything is durable.
    Closed,
    /// The log has stopped for good.
    Failed,
}

/// The log's own side: takes its turns.
pub struct LogDriver {
    engine: Engine,
    queue: Arc<Queue>,
    sink: LogSink,
    /// Ends before the lock is given back: it writes in the folder.
    spares: Option<SpareMaker>,
    lock: Box<dyn FolderLock>,
}

impl fmt::Debug for LogDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogDriver")
            .field("engine", &self.engine)
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

impl LogDriver {
    /// Takes what waits and writes and syncs one batch of it, or a probe if nothing waits.
    pub fn turn(&mut self) -> Turn {
        let (waiting, closing) = {
            let mut state = self.queue.lock();
            if state.stopped {
                return Turn::Failed;
            }
            (std::mem::take(&mut state.waiting), state.closing)
        };
        // A reader may have found the log damaged: what was acked isn't there any more.
        if let Some(failure) = self.engine.shared().failure() {
            self.fail(failure);
            return Turn::Failed;
        }
        for submission in waiting {
            self.engine.push(submission);
        }
        if closing && !self.engine.has_pending() {
            self.queue.lock().stopped = true;
            return Turn::Closed;
        }
        self.tend_spares();
        let mut durable: BTreeMap<LogShard, Token> = BTreeMap::new();
        let sink = &mut self.sink;
        let shards = self.queue.lock().shards.clone();
        let mut tell = |durable: &mut BTreeMap<LogShard, Token>| {
            for (shard, token) in std::mem::take(durable) {
                if let Some(known) = shards.get(&shard) {
                    known.store(token.0, Ordering::Release);
                }
                sink(shard, Completion::Durable(token));
            }
        };
        let step = self.engine.step(&mut |shard, token| {
            durable.insert(shard, token);
            if transport::mutant!("ack_before_sync") {
                tell(&mut durable);
            }
        });
        tell(&mut durable);
        match step {
            Ok(Step::Synced { more }) => {
                self.engine.shared().set_full(false);
                Turn::Synced { more }
            }
            Ok(Step::NoSpace) => {
                self.engine.shared().set_full(true);
                Turn::NoSpace
            }
            Err(failure) => {
                self.fail(failure);
                Turn::Failed
            }
        }
    }

    #[cfg(test)]
    pub(super) fn engine_for_tests(&self) -> &Engine {
        &self.engine
    }

    fn tend_spares(&mut self) {
        let Some(spares) = &mut self.spares else {
            return;
        };
        if let Some(file) = spares.poll() {
            self.engine.add_spare(file);
        }
        // Once for each segment: a disk without space isn't tried again with every batch.
        let epoch = self.engine.epoch();
        if !spares.busy
            && spares.asked_in != epoch
            && let Some((number, bytes)) = self.engine.wanted_spare()
        {
            spares.asked_in = epoch;
            spares.ask(number, bytes);
        }
    }

    /// Stops the log for good and tells every shard, once.
    fn fail(&mut self, failure: LogFailure) {
        let shared = self.engine.shared();
        shared.fail(failure);
        let failure = shared.failure().unwrap_or(LogFailure::Panicked);
        let mut state = self.queue.lock();
        if std::mem::replace(&mut state.stopped, true) {
            return;
        }
        state.waiting.clear();
        let shards: Vec<_> = state.shards.keys().copied().collect();
        drop(state);
        self.engine.take_pending();
        for shard in shards {
            (self.sink)(shard, Completion::Failed(failure.clone()));
        }
    }

    /// Takes turns until the log ends.
    fn run(self, probe_interval: std::time::Duration) {
        let mut running = Running(self);
        let driver = &mut running.0;
        loop {
            let wait = match driver.turn() {
                Turn::Synced { more } => !more,
                Turn::NoSpace => true,
                Turn::Closed | Turn::Failed => return,
            };
            if wait {
                let full = driver.engine.has_pending();
                let state = driver.queue.lock();
                let nothing =
                    |state: &mut QueueState| (full || state.waiting.is_empty()) && !state.closing;
                let waited = driver
                    .queue
                    .filled
                    .wait_timeout_while(state, probe_interval, nothing);
                drop(waited);
            }
        }
    }
}

/// Tells the shards if the thread panics.
struct Running(LogDriver);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(LogFailure::Panicked);
        }
    }
}

/// Makes segment files ahead, on a thread of its own. It ends with the log; if it panics or a file
/// can't be made, the writer makes its own.
struct SpareMaker {
    wanted: Option<SyncSender<(u64, u64)>>,
    made: Receiver<Option<SegmentFile>>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
    /// The epoch in which a file was last asked for.
    asked_in: u32,
}

impl SpareMaker {
    fn start(files: Arc<dyn Files>) -> Option<Self> {
        let (wanted, orders) = sync_channel::<(u64, u64)>(1);
        let (done, made) = sync_channel(1);
        let work = move || {
            for (number, bytes) in orders {
                let file = make_segment(&*files, number, bytes);
                if let Err((op, error)) = &file {
                    tracing::warn!(op, %error, "no spare segment could be made");
                }
                if done.send(file.ok()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("raft-log-spare".to_owned())
            .spawn(work);
        let thread = thread.ok()?;
        Some(Self {
            wanted: Some(wanted),
            made,
            thread: Some(thread),
            busy: false,
            asked_in: 0,
        })
    }

    fn poll(&mut self) -> Option<SegmentFile> {
        let made = self.made.try_recv().ok()?;
        self.busy = false;
        made
    }

    fn ask(&mut self, number: u64, bytes: u64) {
        let sent = self
            .wanted
            .as_ref()
            .map(|wanted| wanted.try_send((number, bytes)));
        self.busy = sent.is_some_and(|sent| sent.is_ok());
    }
}

impl Drop for SpareMaker {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that makes spare segments panicked");
        }
    }
}
