//! One group of a running host, as the embedder uses it: propose, read, look, hand over. Each call
//! is a request to the group's shard and waits for its answer, at most a little longer than the
//! caller's own deadline, so that it also ends when the shard doesn't.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use transport::io::clock;

use super::inbox::Inbox;
use super::requests::Request;
use super::workers::{Job, Workers};
use crate::commit_queue::{Withdrawn, pending};
use crate::error::{ProposalOutcome, ReadFailed, ReadFailure, Refusal, UnknownCause};
use crate::id::{GroupId, Index, ReplicaId};
use crate::limits::{CALLER_GRACE, READ_PAUSE_MAX, READ_PAUSE_MIN};
use crate::log::api::ReadError;
use crate::metrics::GroupStatus;
use crate::proto::consensus::CommittedEntries;
use crate::proto::delayed::Admission;
use crate::proto::host::{Forwarding, Led};
use crate::proto::waiters::Policy;

/// How a command is to be proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposeOptions {
    /// How long the caller waits; then the outcome is unknown.
    pub within: Duration,
    /// The name of the request, by which the state machine recognizes a repetition. May be empty.
    pub request_id: Bytes,
    /// Whether it may go to the leader when that is another node, or be held for a moment when no
    /// leader is known.
    pub forwarding: Forwarding,
    /// When the outcome is there: under `quorum`, once a majority has it durably and the leader's
    /// state machine has applied it.
    pub policy: Policy,
    /// Whether the waiter may take it from the worker.
    pub waiting: Waiting,
}

/// Who waits for a proposal's outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// The waiter, if it is on, has a place, and the policy is `quorum`.
    #[default]
    HandedOff,
    /// A worker, until the outcome is there; at most half of them wait so for the policy's or the
    /// caller's sake, and one more is refused `InlineFull`.
    Inline,
}

impl Default for ProposeOptions {
    fn default() -> Self {
        Self {
            within: Duration::from_secs(5),
            request_id: Bytes::new(),
            forwarding: Forwarding::Allowed,
            policy: Policy::Quorum,
            waiting: Waiting::HandedOff,
        }
    }
}

impl ProposeOptions {
    /// Waits so long, under no request id.
    #[must_use]
    pub fn within(within: Duration) -> Self {
        Self {
            within,
            ..Self::default()
        }
    }
}

/// What a read may miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Consistency {
    /// Nothing that was acknowledged before the read began: a round of the leader confirms it
    /// (read index), asked from whichever replica.
    Linearizable,
    /// Whatever this node hasn't applied yet.
    Stale,
    /// As linearizable, under the leader's lease and without a round. Not offered yet.
    LeaderLease,
    /// As linearizable in a coherent group, at a follower and without a round. Not offered yet.
    Coherent,
}

/// A group of a running host. Clones are the same group.
#[derive(Clone, Debug)]
pub struct Group {
    id: GroupId,
    /// Its shard's number among the workers' shards.
    number: usize,
    shard: Arc<Inbox>,
    workers: Workers,
    /// How long a read waits for the group to have a leader.
    patience: Duration,
}

impl Group {
    pub(super) fn new(
        id: GroupId,
        (number, shard): (usize, Arc<Inbox>),
        workers: Workers,
        patience: Duration,
    ) -> Self {
        Self {
            id,
            number,
            shard,
            workers,
            patience,
        }
    }

    /// Which one it is.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Proposes a command. Where another node leads, it is forwarded to that node, unless the options
    /// say otherwise; where no leader is known, it is held until one is, 1.5 election timeouts at
    /// most. Ends exactly once, by its own deadline: `Refused` as `Late` when no worker began it by
    /// then, `Unknown` once it was sent to the leader, or proposed here, and what became of it is not
    /// known. One that repeats a request id which is under way here waits for the first and gets its
    /// outcome.
    ///
    /// # Cancel safety
    /// Dropping the future takes back what no worker has begun, and nothing else: the command may
    /// commit all the same.
    pub async fn propose(
        &self,
        command: impl Into<Bytes>,
        options: ProposeOptions,
    ) -> ProposalOutcome {
        let came = clock::now();
        let deadline = came + options.within;
        let request_id = options.request_id;
        let (answerer, mut answer) = pending();
        let job = Job {
            shard: self.number,
            group: self.id,
            command: command.into(),
            request_id: request_id.clone(),
            deadline,
            forwarding: options.forwarding,
            policy: options.policy,
            inline: options.waiting == Waiting::Inline,
            answerer,
            came,
        };
        if let Err(refusal) = self.workers.submit(job) {
            return ProposalOutcome::Refused(refusal);
        }
        let outcome = match timeout_at(deadline.into(), &mut answer).await {
            Ok(outcome) => outcome,
            Err(_) => match answer.withdraw() {
                Withdrawn::InTime => return ProposalOutcome::Refused(Refusal::Late),
                Withdrawn::Answered(outcome) => Some(outcome),
                Withdrawn::Forsaken => None,
                // The shard answers by the deadline, if it is alive.
                Withdrawn::TooLate => {
                    match timeout_at((deadline + CALLER_GRACE).into(), answer).await {
                        Ok(outcome) => outcome,
                        Err(_) => {
                            let why = UnknownCause::Deadline;
                            return ProposalOutcome::Unknown { request_id, why };
                        }
                    }
                }
            },
        };
        let why = UnknownCause::Stopped;
        outcome.unwrap_or(ProposalOutcome::Unknown { request_id, why })
    }

    /// Waits until this node's state machine may be read with this consistency, and says up to
    /// which index it has applied at least. What to read, and how, is the state machine's business.
    /// While the group changes its leader it is asked again, for 1.5 election timeouts at most.
    ///
    /// # Errors
    /// [`ReadFailed`]; a read has no effect and may be repeated.
    pub async fn read(
        &self,
        consistency: Consistency,
        within: Duration,
    ) -> Result<Index, ReadFailed> {
        match consistency {
            Consistency::Linearizable => {}
            Consistency::Stale => {
                let status = self.status().await;
                let no_such = Refusal::NoSuchGroup(self.id);
                return status.map(|status| status.applied).ok_or(no_such.into());
            }
            Consistency::LeaderLease => return Err(ReadFailed::Unsupported("under a lease")),
            Consistency::Coherent => return Err(ReadFailed::Unsupported("coherent")),
        }
        let begin = clock::now();
        let deadline = begin + within;
        let enough = deadline.min(begin + self.patience);
        let mut pause = READ_PAUSE_MIN;
        loop {
            let read = self.read_once(deadline).await;
            if !is_leaderless(&read) || clock::now() + pause >= enough {
                return read;
            }
            // A read has no effect: nothing stands against another one.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(READ_PAUSE_MAX);
        }
    }

    async fn read_once(&self, deadline: Instant) -> Result<Index, ReadFailed> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Read {
            group: self.id,
            deadline,
            reply,
        })?;
        match until(deadline, answer).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => Err(ReadFailure::Stopped.into()),
            Err(Late) => Err(ReadFailure::Deadline.into()),
        }
    }

    /// Where this node's replica stands, or `None` if there is none or its shard has stopped.
    pub async fn status(&self) -> Option<GroupStatus> {
        let (reply, answer) = oneshot::channel();
        let group = self.id;
        self.ask(Request::Status { group, reply }).ok()?;
        answer.await.ok()?
    }

    /// Asks the leader, which must be this node's replica, to hand over to another voter, which then
    /// leads until its leadership ends, wherever leaders are placed. Proposals that come meanwhile
    /// wait, for 1.5 election timeouts at most. That it has handed over shows in the status.
    ///
    /// # Errors
    /// [`Refusal`], by name.
    pub async fn transfer_leader(&self, to: ReplicaId) -> Result<(), Refusal> {
        let (reply, answer) = oneshot::channel();
        let group = self.id;
        self.ask(Request::Transfer { group, to, reply })?;
        answer.await.unwrap_or(Err(Refusal::Stopped))
    }

    /// Committed entries from `first` on, as many as fit in `bytes_max` but at least one; none if
    /// nothing more is committed, or durable here. They are read on the shard's thread, from memory
    /// unless they are old: whoever reads many asks for little at a time.
    ///
    /// # Errors
    /// [`CommittedFailed`]: the log has forgotten `first`, the disk doesn't give it back, or there is
    /// no such group here any more.
    pub async fn committed(
        &self,
        first: Index,
        bytes_max: u64,
    ) -> Result<CommittedEntries, CommittedFailed> {
        let (reply, answer) = oneshot::channel();
        let group = self.id;
        self.ask(Request::Committed {
            group,
            first,
            bytes_max,
            reply,
        })?;
        let read = answer.await.ok().flatten();
        let read = read.ok_or(CommittedFailed::Refused(Refusal::NoSuchGroup(group)))?;
        read.map_err(CommittedFailed::Read)
    }

    /// Lets the log forget everything up to `through`, where logs are held
    /// ([`crate::config::HostConfig::holding_logs`]). It counts while this node leads the group.
    ///
    /// # Errors
    /// [`Refusal`] if the shard takes no requests now; it may be said again later.
    pub fn release_log(&self, through: Index) -> Result<(), Refusal> {
        let group = self.id;
        self.ask(Request::ReleaseLog { group, through })
    }

    fn ask(&self, request: Request) -> Result<(), Refusal> {
        let put = self.shard.put_request(request);
        put.map_err(|(_, waiting)| refusal(waiting))
    }
}

/// One shard of a running host, for what concerns all its groups at once. Clones are the same shard.
#[derive(Clone, Debug)]
pub struct GroupsOfShard {
    shard: Arc<Inbox>,
}

impl GroupsOfShard {
    pub(super) fn new(shard: Arc<Inbox>) -> Self {
        Self { shard }
    }

    /// Its groups that this node leads.
    ///
    /// # Errors
    /// [`Refusal`] when the shard takes no requests.
    pub async fn led(&self) -> Result<Vec<Led>, Refusal> {
        let (reply, answer) = oneshot::channel();
        let put = self.shard.put_request(Request::Led { reply });
        put.map_err(|(_, waiting)| refusal(waiting))?;
        answer.await.map_err(|_| Refusal::Stopped)
    }

    /// Whether the groups that this node leads take proposals, wherever these were made.
    ///
    /// # Errors
    /// [`Refusal`] when the shard takes no requests.
    pub fn set_admission(&self, admission: Admission) -> Result<(), Refusal> {
        let put = self.shard.put_request(Request::SetAdmission(admission));
        put.map_err(|(_, waiting)| refusal(waiting))
    }
}

/// Why committed entries couldn't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommittedFailed {
    /// The shard didn't take the question, or has no such group.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The log doesn't give them.
    #[error(transparent)]
    Read(ReadError),
}

pub(super) fn refusal(waiting: Option<usize>) -> Refusal {
    match waiting {
        Some(waiting) => Refusal::InboxFull {
            waiting,
            most: crate::limits::INBOX_REQUESTS_MAX,
        },
        None => Refusal::Stopped,
    }
}

/// Whether it came to nothing because nobody leads the group, or nobody who may answer yet.
fn is_leaderless(read: &Result<Index, ReadFailed>) -> bool {
    matches!(
        read,
        Err(ReadFailed::Failed(ReadFailure::NoLeader)
            | ReadFailed::Refused(Refusal::NotLeader { .. } | Refusal::NotReady { .. }))
    )
}

struct Late;

/// The answer, `None` if the shard let go of the question.
async fn until<T>(deadline: Instant, answer: oneshot::Receiver<T>) -> Result<Option<T>, Late> {
    let latest = deadline + CALLER_GRACE;
    match timeout_at(latest.into(), answer).await {
        Ok(answer) => Ok(answer.ok()),
        Err(_) => Err(Late),
    }
}
