//! Requests under an id that this node took and hasn't answered: whoever repeats one meanwhile waits
//! for the first and gets its outcome. It only saves work: that nothing is applied twice is decided
//! where entries are applied, by the state machine (safety 11).
//!
//! - F1: an id is here from before its command is proposed until just before its reply; then all that
//!   joined are answered with the same outcome.
//! - F2: only the same command of the same group under the same policy joins. Another one under a known
//!   id goes its own way: the state machine refuses it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::inbox::lock;
use crate::commit_queue::Answerer;
use crate::error::{ProposalOutcome, Refusal};
use crate::id::GroupId;
use crate::limits::JOINED_MAX;
use crate::proto::waiters::Policy;

#[derive(Debug)]
struct First {
    command: Bytes,
    policy: Policy,
    joined: Vec<Answerer<ProposalOutcome>>,
}

type Key = (GroupId, Bytes);

/// The table. A handle: clones are the same table.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight {
    table: Arc<Mutex<HashMap<Key, First>>>,
}

/// What an arrival came to.
#[derive(Debug)]
pub(super) enum Arrival {
    /// It is the first of its id: to be proposed.
    First(Answerer<ProposalOutcome>, Ticket),
    /// It waits for the first.
    Joined,
    /// The id is taken by something else: to be proposed, without a place in the table.
    Apart(Answerer<ProposalOutcome>),
    /// Too many wait for the first already.
    Refused(Answerer<ProposalOutcome>, Refusal),
}

/// The first request's place in the table. Dropped without [`Ticket::end`], those that joined are
/// told that nobody will answer.
#[derive(Debug)]
pub(super) struct Ticket {
    of: InFlight,
    key: Option<Key>,
}

impl InFlight {
    pub(super) fn arrive(
        &self,
        (group, id): (GroupId, &Bytes),
        (command, policy): (&Bytes, Policy),
        answerer: Answerer<ProposalOutcome>,
    ) -> Arrival {
        let key = (group, id.clone());
        match lock(&self.table).entry(key) {
            Entry::Vacant(vacant) => {
                let key = vacant.key().clone();
                vacant.insert(First {
                    command: command.clone(),
                    policy,
                    joined: Vec::new(),
                });
                let of = self.clone();
                let key = Some(key);
                Arrival::First(answerer, Ticket { of, key })
            }
            Entry::Occupied(mut first) => {
                let first = first.get_mut();
                if first.command != command || first.policy != policy {
                    return Arrival::Apart(answerer);
                }
                let waiting = first.joined.len();
                if waiting >= JOINED_MAX {
                    let most = JOINED_MAX;
                    let refusal = Refusal::TooManyWaiting { waiting, most };
                    return Arrival::Refused(answerer, refusal);
                }
                first.joined.push(answerer);
                Arrival::Joined
            }
        }
    }
}

impl Ticket {
    /// The first has its outcome: so have those that joined.
    pub(super) fn end(mut self, outcome: &ProposalOutcome) {
        for joined in self.leave() {
            // Whoever has gone needs none.
            let _ = joined.answer(outcome.clone());
        }
    }

    /// Leaves the table, once: the id may be another request's right after.
    fn leave(&mut self) -> Vec<Answerer<ProposalOutcome>> {
        let key = self.key.take();
        let first = key.and_then(|key| lock(&self.of.table).remove(&key));
        first.map(|first| first.joined).unwrap_or_default()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        drop(self.leave());
    }
}
