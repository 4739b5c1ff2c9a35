//! Consensus as it must be, from what all nodes do: every check compares with what was seen before,
//! so each costs what it is given.
//!
//! - election safety: one leader a group and term, one vote a replica and term, also over restarts;
//! - log matching: an index and term name one entry, and what comes before it;
//! - leader completeness: a leader of a later term holds what was committed in earlier ones;
//! - state-machine safety: what is applied at an index is the same everywhere, was durable at a
//!   majority when it was first applied, and never changes.

use std::collections::BTreeMap;

use raft_host::id::{GroupId, Index, ReplicaId, Term};
use raft_host::log::api::{EntryKind, LogEntry};

/// What names an entry for the comparison.
#[must_use]
pub fn fingerprint(entry: &LogEntry) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let kind: &[u8] = match entry.kind {
        EntryKind::Normal => b"n",
        EntryKind::ConfChange => b"c",
    };
    let lengths = (entry.data.len() as u64).to_le_bytes();
    for byte in kind
        .iter()
        .chain(&lengths)
        .chain(&entry.data)
        .chain(&entry.context)
    {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

#[derive(Debug, Default)]
struct Group {
    leaders: BTreeMap<Term, usize>,
    votes: BTreeMap<(ReplicaId, Term), ReplicaId>,
    /// By index and term: the entry, and the term of the one before it.
    entries: BTreeMap<(Index, Term), (u64, Term)>,
    /// What was applied first, from index 1.
    applied: Vec<(Term, u64)>,
    /// How far the leader of each term has committed.
    committed: BTreeMap<Term, Index>,
}

/// All that was seen.
#[derive(Debug, Default)]
pub struct Safety {
    groups: BTreeMap<GroupId, Group>,
    /// Leaders that were elected.
    pub elections: u64,
}

type Checked = Result<(), String>;

impl Safety {
    fn group(&mut self, group: GroupId) -> &mut Group {
        self.groups.entry(group).or_default()
    }

    /// A node leads a term; `term_at` is its log.
    ///
    /// # Errors
    /// Election safety or leader completeness doesn't hold.
    pub fn on_leader(
        &mut self,
        node: usize,
        group: GroupId,
        term: Term,
        term_at: impl Fn(Index) -> Option<Term>,
    ) -> Checked {
        self.elections += 1;
        let seen = self.group(group);
        let leader = *seen.leaders.entry(term).or_insert(node);
        if leader != node {
            let (a, b) = (leader + 1, node + 1);
            return Err(format!(
                "election safety: nodes {a} and {b} lead group {group} in term {term}"
            ));
        }
        let before = seen.committed.range(..term).map(|(_, index)| *index);
        let Some(last) = before.max() else {
            return Ok(());
        };
        // By log matching the last one stands for all before it.
        let expected = last_term(&seen.applied, last);
        let got = term_at(last);
        if expected.is_some() && got != expected {
            let node = node + 1;
            return Err(format!(
                "leader completeness: node {node} leads group {group} in term {term} with {got:?} at \
                 {last}, where {expected:?} was committed before"
            ));
        }
        Ok(())
    }

    /// A replica's vote in a term left its node.
    ///
    /// # Errors
    /// It voted for another before.
    pub fn on_vote(
        &mut self,
        group: GroupId,
        from: ReplicaId,
        term: Term,
        to: ReplicaId,
    ) -> Checked {
        let voted = *self.group(group).votes.entry((from, term)).or_insert(to);
        if voted == to {
            return Ok(());
        }
        Err(format!(
            "election safety: replica {from} of group {group} votes for {to} in term {term}, and did \
             for {voted}"
        ))
    }

    /// A node appends entries, the first after one of term `before`.
    ///
    /// # Errors
    /// Log matching doesn't hold.
    pub fn on_append(&mut self, group: GroupId, before: Term, entries: &[LogEntry]) -> Checked {
        let seen = self.group(group);
        let mut before = before;
        for entry in entries {
            let is = (fingerprint(entry), before);
            let key = (entry.index, entry.term);
            let was = *seen.entries.entry(key).or_insert(is);
            if was != is {
                let (index, term) = key;
                return Err(format!(
                    "log matching: group {group} has two entries at {index} in term {term}: {was:?} \
                     and {is:?}"
                ));
            }
            before = entry.term;
        }
        Ok(())
    }

    /// A leader's commit index in its term.
    pub fn on_commit(&mut self, group: GroupId, term: Term, commit: Index) {
        let seen = self.group(group);
        let committed = seen.committed.entry(term).or_default();
        *committed = (*committed).max(commit);
    }

    /// A node applies an entry; `durable_at` counts the nodes of whose disks it is known.
    ///
    /// # Errors
    /// State-machine safety doesn't hold.
    pub fn on_apply(
        &mut self,
        group: GroupId,
        entry: &LogEntry,
        majority: usize,
        durable_at: impl FnOnce() -> usize,
    ) -> Checked {
        let seen = self.group(group);
        let (index, is) = (entry.index, (entry.term, fingerprint(entry)));
        let at = usize::try_from(index.to_u64())
            .unwrap_or(0)
            .saturating_sub(1);
        match seen.applied.get(at) {
            Some(was) if *was == is => Ok(()),
            Some(was) => Err(format!(
                "state-machine safety: group {group} applies {is:?} at {index}, and {was:?} before"
            )),
            None if at > seen.applied.len() => {
                Err(format!("group {group} applies {index} after a gap"))
            }
            None => {
                let durable = durable_at();
                seen.applied.push(is);
                if durable >= majority {
                    return Ok(());
                }
                Err(format!(
                    "durability: group {group} applies {index} of term {} with {durable} durable \
                     copies of {majority}",
                    entry.term
                ))
            }
        }
    }

    /// What was applied at an index, if anything was: its term.
    #[must_use]
    pub fn applied_term(&self, group: GroupId, index: Index) -> Option<Term> {
        last_term(&self.groups.get(&group)?.applied, index)
    }
}

fn last_term(applied: &[(Term, u64)], index: Index) -> Option<Term> {
    let at = usize::try_from(index.to_u64().checked_sub(1)?).ok()?;
    applied.get(at).map(|(term, _)| *term)
}
