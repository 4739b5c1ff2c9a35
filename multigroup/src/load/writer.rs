//! One writer: a closed loop with one request in flight. Started by `run`; ends at the end of the
//! timed part or when it is told to stop, after its last operation is answered or given up. If it
//! panics the run fails as a whole, since its operations would be unaccounted for.
//!
//! Writer w of N has the keys w, w + N, w + 2N, ... to itself; with fewer keys than writers it shares
//! key w modulo their number.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tokio::time::sleep_until;
use transport::io::clock;

use super::answer::Answer;
use super::client::{CallError, Client};
use super::plan::{Operation, Plan, Route};
use super::run::{RunId, Stop, told};
use super::tally::{Failed, FailureKind, Left, Tally, Target};
use crate::limits::LOAD_FAILURE_PAUSE;

/// What all writers of a run share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) run: RunId,
    pub(super) counters: Vec<String>,
    pub(super) values: Vec<String>,
    pub(super) tokens: AtomicU64,
    /// Operations under way.
    pub(super) in_flight: AtomicUsize,
    pub(super) tally: Mutex<Tally>,
}

impl Shared {
    pub(super) fn with_tally<T>(&self, with: impl FnOnce(&mut Tally) -> T) -> T {
        // A writer that panicked ends the run anyway.
        with(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Incr(usize),
    Set(usize, u64),
    Get(usize),
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    number: usize,
    clients: Vec<Option<Client>>,
    at: usize,
    done: usize,
    failures_in_a_row: usize,
    stop: watch::Receiver<Stop>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, number: usize, stop: watch::Receiver<Stop>) -> Self {
        let endpoints = shared.plan.raw().endpoints.len();
        Self {
            clients: std::iter::repeat_with(|| None).take(endpoints).collect(),
            at: number % endpoints,
            shared,
            number,
            done: 0,
            failures_in_a_row: 0,
            stop,
        }
    }

    /// Connects to the node where it begins, untimed. If that fails its first operation will say so.
    pub(super) async fn connect_early(&mut self) {
        let plan = self.shared.plan.raw();
        let connected = Client::connect(&plan.endpoints[self.at], clock::now() + plan.patience);
        self.clients[self.at] = connected.await.ok();
    }

    /// Works until `end`.
    pub(super) async fn work(mut self, end: Instant) {
        while *self.stop.borrow() == Stop::Go {
            let began = clock::now();
            if began >= end {
                break;
            }
            let task = self.next_task();
            let mut cut_off = self.stop.clone();
            self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
            let outcome = tokio::select! {
                biased;
                outcome = self.perform(task, began) => outcome,
                () = told(&mut cut_off, Stop::AtOnce) => {
                    Err(Failed::possible(FailureKind::Unknown))
                }
            };
            self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
            let target = match task {
                Task::Incr(key) => Target::Counter(key),
                Task::Set(key, _) => Target::Value(key),
                Task::Get(_) => Target::Read,
            };
            let times = (began, clock::now());
            self.shared
                .with_tally(|tally| tally.note(times, target, outcome));
            match outcome {
                Ok(_) => self.failures_in_a_row = 0,
                Err(_) => self.go_on_elsewhere(end).await,
            }
        }
    }

    fn next_task(&mut self) -> Task {
        let plan = &self.shared.plan;
        let (keys, writers) = (plan.keys(), plan.raw().writers);
        let turn = self.done;
        self.done += 1;
        let set = |key| Task::Set(key, self.shared.tokens.fetch_add(1, Ordering::Relaxed));
        // Of a mixed load, all four kinds visit each key.
        let visit = match plan.raw().operation {
            Operation::Mixed => turn / 4,
            Operation::Incr | Operation::Set | Operation::Get => turn,
        };
        let key = if keys <= self.number {
            self.number % keys
        } else {
            let own = (keys - self.number).div_ceil(writers);
            self.number + visit % own * writers
        };
        match (plan.raw().operation, turn % 4) {
            (Operation::Incr, _) | (Operation::Mixed, 1) => Task::Incr(key),
            (Operation::Set, _) | (Operation::Mixed, 3) => set(key),
            (Operation::Get | Operation::Mixed, _) => Task::Get(key),
        }
    }

    async fn perform(&mut self, task: Task, began: Instant) -> Result<Left, Failed> {
        let answer = match self.call(task, began).await {
            Ok(answer) => answer,
            Err(error) => {
                self.clients[self.at] = None;
                tracing::debug!(writer = self.number, "operation failed: {error}");
                return Err(Failed::from(&error));
            }
        };
        match (task, answer) {
            (Task::Incr(_), Answer::Integer(count)) => Ok(Left::Count(count)),
            (Task::Set(_, token), Answer::Word(word)) if *word == *b"OK" => Ok(Left::Token(token)),
            (Task::Get(_), Answer::Bulk(_)) => Ok(Left::Nothing),
            (_, Answer::Error(line)) => {
                tracing::debug!(writer = self.number, "operation failed: {line}");
                Err(Failed::of_reply(&line))
            }
            // Also "no such value" from a read: each key was made before the run.
            (_, answer) => {
                tracing::warn!(
                    writer = self.number,
                    ?task,
                    ?answer,
                    "an answer of the wrong kind"
                );
                Err(Failed::possible(FailureKind::Protocol))
            }
        }
    }

    async fn call(&mut self, task: Task, began: Instant) -> Result<Answer, CallError> {
        let plan = self.shared.plan.raw();
        let deadline = began + plan.patience;
        let slot = &mut self.clients[self.at];
        let client = match slot {
            Some(client) => client,
            None => slot.insert(Client::connect(&plan.endpoints[self.at], deadline).await?),
        };
        match task {
            Task::Incr(key) => {
                let name = self.shared.counters[key].as_bytes();
                client.call(&[b"INCR", name], deadline).await
            }
            Task::Set(key, token) => {
                let value = self.shared.run.value(token, plan.value_bytes);
                let name = self.shared.values[key].as_bytes();
                client.call(&[b"SET", name, &value], deadline).await
            }
            Task::Get(key) => {
                let name = self.shared.values[key].as_bytes();
                client.call(&[b"GET", name], deadline).await
            }
        }
    }

    async fn go_on_elsewhere(&mut self, end: Instant) {
        let endpoints = self.clients.len();
        let choices = match self.shared.plan.raw().route {
            Route::Roam => endpoints,
            Route::Pin => 1,
        };
        if choices > 1 {
            self.at = (self.at + 1) % endpoints;
        }
        self.failures_in_a_row += 1;
        if self.failures_in_a_row.is_multiple_of(choices) {
            let pause = end.min(clock::now() + LOAD_FAILURE_PAUSE);
            tokio::select! {
                biased;
                () = told(&mut self.stop, Stop::Finish) => {}
                () = sleep_until(pause.into()) => {}
            }
        }
    }
}
