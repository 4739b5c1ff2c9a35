//! The state machine of one group: the store's own commands and its own books of request ids, over
//! a map in memory. It stands for one SQLite database; what is in it is judged here, not how it is
//! kept on a disk.
//!
//! - M1: positions follow on each other without a gap.
//! - M2: no request id takes effect twice (checked beside the books, which are what is tested).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use bytes::Bytes;
use multigroup::command::{Body, Entry, Failure, Op, Outcome, parse_integer};
use multigroup::session::{Dedup, Evicted, OutcomeTable, RequestId, Saved, UnixMillis, Verdict};
use raft_host::id::{Index, Term};
use raft_host::log::api::LogEntry;
use raft_host::proto::group_time::read_note;

/// The saved outcomes, also in the order of their issue.
#[derive(Clone, Debug, Default)]
struct Outcomes {
    by_issue: BTreeMap<(UnixMillis, RequestId), Saved>,
}

impl OutcomeTable for Outcomes {
    type Error = Infallible;

    fn load(&mut self, id: &RequestId) -> Result<Option<Saved>, Infallible> {
        let key = (id.issued(), id.clone());
        Ok(self.by_issue.get(&key).cloned())
    }

    fn save(&mut self, id: &RequestId, saved: &Saved) -> Result<(), Infallible> {
        self.by_issue
            .insert((id.issued(), id.clone()), saved.clone());
        Ok(())
    }

    fn evict(&mut self, floor: UnixMillis, max: u32) -> Result<Evicted, Infallible> {
        let mut removed = 0;
        while removed < max
            && let Some(first) = self.by_issue.first_entry()
            && first.key().0 < floor
        {
            first.remove();
            removed += 1;
        }
        let oldest = self.by_issue.keys().next().map(|key| key.0);
        Ok(Evicted { removed, oldest })
    }
}

/// One group's state machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The last entry it holds.
    pub applied: (Index, Term),
    keys: BTreeMap<Bytes, Bytes>,
    dedup: Dedup,
    outcomes: Outcomes,
    executed: BTreeSet<RequestId>,
}

/// What became of one entry.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Its request id, if it has one.
    pub id: Option<RequestId>,
    /// The outcome.
    pub outcome: Outcome,
    /// Whether it was executed now.
    pub executed: bool,
}

impl Machine {
    /// Applies the next entry. `None` if it holds no command.
    ///
    /// # Panics
    /// When M1 or M2 doesn't hold, or the entry is none of the store's.
    pub fn apply(&mut self, entry: &LogEntry) -> Option<Effect> {
        assert_eq!(
            entry.index,
            self.applied.0.next(),
            "a gap in what is applied"
        );
        assert!(
            entry.term >= self.applied.1,
            "terms fall in what is applied"
        );
        self.applied = (entry.index, entry.term);
        if entry.data.is_empty() {
            return None;
        }
        let decoded = Entry::decode(entry.data.clone()).expect("an entry that was proposed");
        let Some(identity) = &decoded.identity else {
            let outcome = self.execute(&decoded.body);
            return Some(Effect {
                id: None,
                outcome,
                executed: true,
            });
        };
        let hash = decoded.body.hash();
        let id = Some(identity.id.clone());
        let judged = self.dedup.judge(
            &mut self.outcomes,
            read_note(&entry.context).0,
            identity,
            &hash,
        );
        let Ok(verdict) = judged;
        let (outcome, executed) = match verdict {
            Verdict::Refuse(refusal) => (Outcome::Refused(refusal), false),
            Verdict::Known(saved) => (saved.outcome, false),
            Verdict::Execute => {
                let outcome = self.execute(&decoded.body);
                let fresh = self.executed.insert(identity.id.clone());
                assert!(fresh, "request {} took effect twice", identity.id);
                let saved = Saved {
                    hash,
                    index: entry.index,
                    outcome,
                };
                let Ok(()) = self.dedup.record(&mut self.outcomes, &identity.id, &saved);
                (saved.outcome, true)
            }
        };
        Some(Effect {
            id,
            outcome,
            executed,
        })
    }

    fn execute(&mut self, body: &Body) -> Outcome {
        let Body::Single(op) = body else {
            return Outcome::Failed(Failure::ReplyTooLarge);
        };
        match op {
            Op::Set { key, value } => {
                self.keys.insert(key.clone(), value.clone());
                Outcome::Ok
            }
            Op::IncrBy { key, delta } => {
                let Some(sum) = self.number(key).unwrap_or(0).checked_add(*delta) else {
                    return Outcome::Failed(Failure::Overflow);
                };
                self.keys.insert(key.clone(), sum.to_string().into());
                Outcome::Integer(sum)
            }
            Op::Get { .. }
            | Op::Exists { .. }
            | Op::MGet { .. }
            | Op::StrLen { .. }
            | Op::SetNx { .. }
            | Op::Del { .. }
            | Op::MSet { .. }
            | Op::Append { .. } => Outcome::Failed(Failure::NotAnInteger),
        }
    }

    /// The number that a key holds.
    #[must_use]
    pub fn number(&self, key: &Bytes) -> Option<i64> {
        self.keys.get(key).and_then(|value| parse_integer(value))
    }

    /// Everything that all replicas must agree on.
    #[must_use]
    pub fn content(&self) -> (&BTreeMap<Bytes, Bytes>, u64) {
        (&self.keys, self.dedup.saved())
    }
}
