//! The workers: tasks that take callers' proposals in the order in which they came, recognize
//! repetitions, and give them to their shard. With the waiter on a worker gives away the whole item
//! and takes the next; whatever can't be handed off it waits for itself, until the reply has left.
//!
//! Leaves to others: proposing, waiting and deadlines (the shard's core), what an outcome is.
//!
//! - K1: a proposal is begun and published in one critical section, in the order of the line: a
//!   caller's proposals reach a shard in the order in which they were made.
//! - K2: what is in the line was begun by nobody: its caller may withdraw it, and it is proven without
//!   effect.
//! - K3: proposals that must wait inline by their policy hold at most half of the workers (safety 23).
//! - K4: each proposal that was taken is answered once, also when the node stops.
//! - K5: a proposal wakes one worker at most.
//!
//! Started by `Host::start` on its `io_runtime`; ended by [`Workers::close`] or with that runtime. A
//! worker that panics takes the proposal it waits for with it, whose caller is told `Unknown`, and
//! leaves one worker less.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use tokio::runtime::Handle;
use transport::io::clock;
use transport::proto::histogram::Histogram;

use super::in_flight::{Arrival, InFlight, Ticket};
use super::inbox::lock;
use crate::commit_queue::{Answerer, CommitQueue, NoPlace, Pending, Place, Places, pending};
use crate::config::CommitWaitConfig;
use crate::error::{ProposalOutcome, Refusal, UnknownCause};
use crate::id::GroupId;
use crate::limits::{LINE_MAX, WORKER_STEPS_MAX};
use crate::metrics::{CommitWaitStats, InlineCounts, OutcomeCounts};
use crate::proto::host::Forwarding;
use crate::proto::waiters::Policy;

/// A caller's proposal, before anybody began it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) shard: usize,
    pub(super) group: GroupId,
    pub(super) command: Bytes,
    pub(super) request_id: Bytes,
    pub(super) deadline: Instant,
    pub(super) forwarding: Forwarding,
    pub(super) policy: Policy,
    pub(super) inline: bool,
    pub(super) answerer: Answerer<ProposalOutcome>,
    pub(super) came: Instant,
}

/// A proposal on its way to its shard, whole: whoever has it answers it (Q2).
#[derive(Debug)]
pub(super) struct Item {
    pub(super) group: GroupId,
    pub(super) command: Bytes,
    pub(super) request_id: Bytes,
    pub(super) deadline: Instant,
    pub(super) forwarding: Forwarding,
    pub(super) policy: Policy,
    pub(super) owed: Owed,
}

/// The reply that is owed for a proposal, with what it holds until that has left.
#[derive(Debug)]
pub(super) struct Owed {
    answerer: Answerer<ProposalOutcome>,
    ticket: Option<Ticket>,
    place: Option<Place>,
    counts: Arc<Mutex<Counts>>,
    since: Instant,
}

impl Owed {
    /// Sends the reply: to those that joined, then to whoever proposed it. Then the place is free.
    pub(super) fn answer(self, outcome: ProposalOutcome) {
        if self.place.is_some() {
            lock(&self.counts).resolve(&outcome, self.since);
        }
        if let Some(ticket) = self.ticket {
            ticket.end(&outcome);
        }
        // Whoever proposed it may have gone.
        let _ = self.answerer.answer(outcome);
        drop(self.place);
    }
}

#[derive(Debug, Default)]
struct Counts {
    resolved: OutcomeCounts,
    expired: u64,
    waited: Histogram,
}

impl Counts {
    fn resolve(&mut self, outcome: &ProposalOutcome, since: Instant) {
        let late = UnknownCause::Deadline;
        match outcome {
            ProposalOutcome::Committed { .. } => self.resolved.committed += 1,
            ProposalOutcome::Refused(_) => self.resolved.refused += 1,
            ProposalOutcome::NotDurable { .. } => self.resolved.not_durable += 1,
            ProposalOutcome::Unknown { why, .. } => {
                self.resolved.unknown += 1;
                self.expired += u64::from(*why == late);
            }
        }
        self.waited
            .record(clock::now().saturating_duration_since(since));
    }
}

#[derive(Debug, Default)]
struct Line {
    jobs: VecDeque<Job>,
    /// Workers that found nothing to do, the last to lie down first.
    idle: Vec<(usize, Waker)>,
    /// Workers that wait inline because a policy says so.
    bound: usize,
    /// Workers that wait inline.
    held: usize,
    /// Looks of workers into the line.
    wakeups: u64,
    closed: bool,
    enqueued: u64,
    inline: InlineCounts,
    joined: u64,
    withdrawn: u64,
    refused: u64,
    queued: Histogram,
}

#[derive(Debug)]
struct Shared {
    line: Mutex<Line>,
    places: Places,
    in_flight: InFlight,
    shards: Vec<CommitQueue<Item>>,
    workers: usize,
    counts: Arc<Mutex<Counts>>,
}

/// The workers of a node. A handle: clones are the same workers.
#[derive(Clone, Debug)]
pub(super) struct Workers(Arc<Shared>);

/// What a worker waits for itself.
struct Inline {
    outcome: Pending<ProposalOutcome>,
    owed: Owed,
    request_id: Bytes,
    by_policy: bool,
}

impl Workers {
    pub(super) fn new(config: CommitWaitConfig, shards: Vec<CommitQueue<Item>>) -> Self {
        Self(Arc::new(Shared {
            line: Mutex::default(),
            places: Places::new(config.enabled(), config.max_outstanding()),
            in_flight: InFlight::default(),
            shards,
            workers: config.workers().into(),
            counts: Arc::default(),
        }))
    }

    pub(super) fn start(&self, runtime: &Handle) {
        for number in 0..self.0.workers {
            let shared = Arc::clone(&self.0);
            runtime.spawn(async move { shared.work(number).await });
        }
    }

    /// Puts a proposal at the end of the line.
    pub(super) fn submit(&self, job: Job) -> Result<(), Refusal> {
        let mut line = lock(&self.0.line);
        if line.closed {
            return Err(Refusal::Stopped);
        }
        let waiting = line.jobs.len();
        if waiting >= LINE_MAX {
            line.refused += 1;
            let most = LINE_MAX;
            return Err(Refusal::InboxFull { waiting, most });
        }
        line.jobs.push_back(job);
        // K5
        let worker = line.idle.pop();
        drop(line);
        if let Some((_, worker)) = worker {
            worker.wake();
        }
        Ok(())
    }

    /// Takes no proposals any more, and refuses those that nobody began. What is with the shards, or
    /// reserved for them, goes on.
    pub(super) fn close(&self) {
        let mut line = lock(&self.0.line);
        line.closed = true;
        self.0.places.begin_drain();
        let (jobs, idle) = (
            std::mem::take(&mut line.jobs),
            std::mem::take(&mut line.idle),
        );
        line.refused += jobs.len() as u64;
        drop(line);
        for job in jobs {
            let _ = job
                .answerer
                .answer(ProposalOutcome::Refused(Refusal::Stopped));
        }
        for (_, worker) in idle {
            worker.wake();
        }
    }

    /// The places under the cap.
    pub(super) fn places(&self) -> &Places {
        &self.0.places
    }

    pub(super) fn stats(&self) -> CommitWaitStats {
        let (enabled, cap, outstanding) = self.0.places.standing();
        let line = lock(&self.0.line);
        let counts = lock(&self.0.counts);
        CommitWaitStats {
            enabled,
            cap: cap as u64,
            outstanding: outstanding as u64,
            workers: self.0.workers as u64,
            workers_held: line.held as u64,
            worker_wakeups: line.wakeups,
            line: line.jobs.len() as u64,
            enqueued: line.enqueued,
            inline: line.inline,
            joined: line.joined,
            withdrawn: line.withdrawn,
            refused: line.refused,
            resolved: counts.resolved,
            expired: counts.expired,
            queued: line.queued.read(),
            waited: counts.waited.read(),
        }
    }
}

impl Shared {
    async fn work(&self, number: usize) {
        while let Some(inline) = poll_fn(|context| self.poll_next(number, context)).await {
            let Inline {
                outcome,
                owed,
                request_id,
                by_policy,
            } = inline;
            let why = UnknownCause::Stopped;
            let outcome = outcome.await;
            owed.answer(outcome.unwrap_or(ProposalOutcome::Unknown { request_id, why }));
            let mut line = lock(&self.line);
            line.held -= 1;
            line.bound -= usize::from(by_policy);
        }
    }

    /// The next proposal that this worker is to wait for; those that can be handed off leave on the
    /// way there. `None` once the line is closed and empty.
    fn poll_next(&self, number: usize, context: &mut Context<'_>) -> Poll<Option<Inline>> {
        let mut line = lock(&self.line);
        line.idle.retain(|(idle, _)| *idle != number);
        line.wakeups += 1;
        let now = clock::now();
        for _ in 0..WORKER_STEPS_MAX {
            let Some(job) = line.jobs.pop_front() else {
                if line.closed {
                    return Poll::Ready(None);
                }
                line.idle.push((number, context.waker().clone()));
                return Poll::Pending;
            };
            if let Some(inline) = self.step(&mut line, now, job) {
                return Poll::Ready(Some(inline));
            }
        }
        // Others on this thread have their turn.
        drop(line);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// K1: begins one proposal and publishes it, unless it ends here.
    fn step(&self, line: &mut Line, now: Instant, job: Job) -> Option<Inline> {
        line.queued.record(now.saturating_duration_since(job.came));
        if !job.answerer.begin() {
            line.withdrawn += 1;
            return None;
        }
        let place = match self.admit(line, now, &job) {
            Ok(place) => place,
            Err(refusal) => return refuse(line, job.answerer, refusal),
        };
        let by_policy = is_by_policy(&job);
        let (answerer, ticket) = if job.request_id.is_empty() {
            (job.answerer, None)
        } else {
            let (id, what) = (&job.request_id, (&job.command, job.policy));
            match self.in_flight.arrive((job.group, id), what, job.answerer) {
                Arrival::First(answerer, ticket) => (answerer, Some(ticket)),
                Arrival::Apart(answerer) => (answerer, None),
                Arrival::Refused(answerer, refusal) => return refuse(line, answerer, refusal),
                Arrival::Joined => {
                    line.joined += 1;
                    return None;
                }
            }
        };
        let owed = |answerer, ticket, place| Owed {
            answerer,
            ticket,
            place,
            counts: Arc::clone(&self.counts),
            since: now,
        };
        let (owed_by_shard, inline) = if let Ok(place) = place {
            line.enqueued += 1;
            (owed(answerer, ticket, Some(place)), None)
        } else {
            line.held += 1;
            line.bound += usize::from(by_policy);
            let (inner, outcome) = pending();
            let inline = Inline {
                outcome,
                owed: owed(answerer, ticket, None),
                request_id: job.request_id.clone(),
                by_policy,
            };
            (owed(inner, None, None), Some(inline))
        };
        self.publish(
            job.shard,
            Item {
                group: job.group,
                command: job.command,
                request_id: job.request_id,
                deadline: job.deadline,
                forwarding: job.forwarding,
                policy: job.policy,
                owed: owed_by_shard,
            },
        );
        inline
    }

    /// A place, or why the worker is to wait itself; else why the proposal isn't begun at all.
    fn admit(
        &self,
        line: &mut Line,
        now: Instant,
        job: &Job,
    ) -> Result<Result<Place, WaitsInline>, Refusal> {
        if job.deadline <= now {
            return Err(Refusal::Late);
        }
        if is_by_policy(job) {
            let (held, most) = (line.bound, (self.workers / 2).max(1));
            if held >= most {
                return Err(Refusal::InlineFull { held, most });
            }
            line.inline.policy += 1;
            return Ok(Err(WaitsInline));
        }
        match self.places.reserve() {
            Ok(place) => return Ok(Ok(place)),
            Err(NoPlace::Draining) => return Err(Refusal::Stopped),
            Err(NoPlace::Off) => line.inline.off += 1,
            Err(NoPlace::Full) => line.inline.full += 1,
        }
        Ok(Err(WaitsInline))
    }

    fn publish(&self, shard: usize, item: Item) {
        let refused = match self.shards.get(shard) {
            Some(shard) => shard.publish(item).err(),
            None => Some(item),
        };
        if let Some(item) = refused {
            // Nobody took it: proven without effect.
            let refused = ProposalOutcome::Refused(Refusal::Stopped);
            item.owed.answer(refused);
        }
    }
}

/// A worker waits for this one itself.
struct WaitsInline;

fn is_by_policy(job: &Job) -> bool {
    job.inline || job.policy != Policy::Quorum
}

fn refuse(
    line: &mut Line,
    answerer: Answerer<ProposalOutcome>,
    refusal: Refusal,
) -> Option<Inline> {
    line.refused += 1;
    let _ = answerer.answer(ProposalOutcome::Refused(refusal));
    None
}
