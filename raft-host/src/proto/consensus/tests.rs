//! One replica over a log, stepped by hand: what the adapter promises about the crate's pitfalls.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::id::ReplicaId;
use crate::limits::COMPACT_ENTRIES_MIN;
use crate::log::api::{HardState as StoredState, LogEntry, ReadError};
use crate::proto::wire::MemberChange;

/// A log of which everything is durable, once `store` has put it there.
#[derive(Clone, Default)]
struct Fixed(Rc<RefCell<Held>>);

#[derive(Default)]
struct Held {
    hard_state: StoredState,
    compacted: (Index, Term),
    entries: Vec<LogEntry>,
}

impl GroupLog for Fixed {
    fn hard_state(&self) -> StoredState {
        self.0.borrow().hard_state
    }

    fn compacted(&self) -> (Index, Term) {
        self.0.borrow().compacted
    }

    fn last_index(&self) -> Index {
        let held = self.0.borrow();
        held.entries
            .last()
            .map_or(held.compacted.0, |entry| entry.index)
    }

    fn term(&self, index: Index) -> Result<Term, ReadError> {
        let last = self.last_index();
        let held = self.0.borrow();
        let found = held.entries.iter().find(|entry| entry.index == index);
        found
            .map(|entry| entry.term)
            .ok_or(ReadError::Unavailable { index, last })
    }

    fn entries(&self, first: Index, end: Index, _: u64) -> Result<Vec<LogEntry>, ReadError> {
        let wanted = |entry: &&LogEntry| entry.index >= first && entry.index < end;
        Ok(self
            .0
            .borrow()
            .entries
            .iter()
            .filter(wanted)
            .cloned()
            .collect())
    }
}

fn entry(index: u64, term: u64) -> LogEntry {
    LogEntry {
        index: Index::new(index),
        term: Term::new(term),
        kind: EntryKind::Normal,
        data: Bytes::from_static(b"x"),
        context: Bytes::new(),
    }
}

fn log_of(last: u64, term: u64, commit: u64) -> Fixed {
    let (term, vote, commit) = (Term::new(term), None, Index::new(commit));
    Fixed(Rc::new(RefCell::new(Held {
        hard_state: StoredState { term, vote, commit },
        compacted: (Index::new(0), Term::new(0)),
        entries: (1..=last)
            .map(|index| entry(index, term.to_u64()))
            .collect(),
    })))
}

fn opening(voters: &[u64], applied: u64) -> Opening {
    Opening {
        group: GroupId::new(1),
        replica: ReplicaId::new(1),
        voters: voters.iter().map(|id| ReplicaId::new(*id)).collect(),
        learners: Vec::new(),
        applied: Index::new(applied),
        election_timeout: Duration::from_secs(1),
    }
}

fn open(log: Fixed, voters: &[u64], applied: u64) -> Replica<Fixed> {
    Replica::open(log, &opening(voters, applied), &silent_logger()).unwrap()
}

fn from(replica: u64, term: u64, body: GroupBody) -> GroupMessage {
    let (group, to) = (GroupId::new(1), ReplicaId::new(1));
    let header = Header {
        group,
        from: ReplicaId::new(replica),
        to,
        term: Term::new(term),
    };
    GroupMessage { header, body }
}

fn append(term: u64, prev: (u64, u64), commit: u64, entries: Vec<LogEntry>) -> GroupMessage {
    let append = Append {
        prev_index: Index::new(prev.0),
        prev_term: Term::new(prev.1),
        commit: Index::new(commit),
        entries,
    };
    from(2, term, GroupBody::Append(append))
}

fn ack(replica: u64, term: u64, index: u64) -> GroupMessage {
    let (index, commit) = (Index::new(index), Index::new(0));
    from(replica, term, GroupBody::Ack { index, commit })
}

const LATE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(10);

fn turn(replica: &mut Replica<Fixed>) -> Turn {
    let mut turn = Turn::default();
    replica.ready(&mut turn);
    turn
}

/// Stores everything at once and returns what then left.
fn store(replica: &mut Replica<Fixed>, turn: &Turn) -> Turn {
    let mut after = Turn::default();
    for (_, change) in &turn.writes {
        let Change::Write { entries, .. } = change else {
            panic!()
        };
        let mut held = replica.raw.store().log.0.borrow_mut();
        if let Some(first) = entries.first() {
            held.entries.retain(|entry| entry.index < first.index);
            held.entries.extend(entries.iter().cloned());
        }
    }
    if let Some((seq, _)) = turn.writes.last() {
        replica.on_stored(*seq, &mut after);
    }
    replica.ready(&mut after);
    after
}

/// A leader of three, with its first entry committed and applied.
fn leader() -> (Replica<Fixed>, u64) {
    let mut replica = open(log_of(0, 0, 0), &[1, 2, 3], 0);
    assert!(replica.campaign());
    turn(&mut replica);
    let term = replica.status().term.to_u64() + 1;
    replica
        .step(
            from(2, term, GroupBody::PreVoteAnswer { granted: true }),
            SOON,
        )
        .unwrap();
    let asked = turn(&mut replica);
    assert!(
        asked.messages.is_empty(),
        "a vote is asked for only once the own one is durable"
    );
    let asked = store(&mut replica, &asked);
    assert_eq!(asked.messages.len(), 2);
    replica
        .step(from(2, term, GroupBody::VoteAnswer { granted: true }), SOON)
        .unwrap();
    let first = turn(&mut replica);
    assert_eq!(replica.status().role, Role::Leader);
    store(&mut replica, &first);
    replica.step(ack(2, term, 1), SOON).unwrap();
    let committed = turn(&mut replica);
    assert_eq!(committed.committed.len(), 1);
    assert!(replica.on_applied(Index::new(1)));
    (replica, term)
}

/// C1, mutant `ack_before_stored`: an ack waits for its own write, and one of nothing new for
/// those before it.
#[test]
fn an_ack_waits_until_everything_before_it_is_stored() {
    let mut replica = open(log_of(0, 0, 0), &[1, 2, 3], 0);
    replica
        .step(append(3, (0, 0), 0, vec![entry(1, 3), entry(2, 3)]), LATE)
        .unwrap();
    let first = turn(&mut replica);
    assert_eq!((first.writes.len(), first.messages.len()), (1, 0));
    // The same append again: nothing to write, yet it acks what isn't durable.
    replica
        .step(append(3, (0, 0), 0, vec![entry(1, 3), entry(2, 3)]), SOON)
        .unwrap();
    let again = turn(&mut replica);
    assert_eq!((again.writes.len(), again.messages.len()), (0, 0));
    let left = store(&mut replica, &first);
    let acked = GroupBody::Ack {
        index: Index::new(2),
        commit: Index::new(0),
    };
    assert!(left.messages.len() == 2 && left.messages.iter().all(|m| m.body == acked));
}

#[test]
fn a_vote_waits_until_it_is_stored() {
    let mut replica = open(log_of(2, 1, 1), &[1, 2, 3], 1);
    let (last_index, last_term) = (Index::new(2), Term::new(1));
    let vote = GroupBody::Vote {
        last_index,
        last_term,
        transfer: false,
    };
    replica.step(from(3, 5, vote.clone()), LATE).unwrap();
    let voted = turn(&mut replica);
    assert!(voted.messages.is_empty());
    let Change::Write {
        hard_state: Some(state),
        ..
    } = &voted.writes[0].1
    else {
        panic!()
    };
    assert_eq!(
        (state.term, state.vote),
        (Term::new(5), Some(ReplicaId::new(3)))
    );
    let left = store(&mut replica, &voted);
    assert_eq!(
        left.messages[0].body,
        GroupBody::VoteAnswer { granted: true }
    );
    // One vote a term.
    replica.step(from(2, 5, vote), LATE).unwrap();
    let second = turn(&mut replica);
    assert_eq!(
        second.messages[0].body,
        GroupBody::VoteAnswer { granted: false }
    );
}

/// C2: appends leave before the leader's own sync; commit needs two durable copies.
#[test]
fn a_leaders_appends_leave_before_its_own_sync() {
    let (mut replica, term) = leader();
    let (index, _) = replica
        .propose(Bytes::from_static(b"c"), Bytes::new())
        .unwrap();
    let sent = turn(&mut replica);
    let appends = sent
        .messages
        .iter()
        .filter(|m| matches!(m.body, GroupBody::Append(_)));
    assert!(appends.count() >= 1);
    replica.step(ack(2, term, index.to_u64()), SOON).unwrap();
    let early = turn(&mut replica);
    assert!(early.committed.is_empty(), "one durable copy of three");
    let after = store(&mut replica, &sent);
    assert_eq!(after.committed.len(), 1);
}

/// Pitfall 2: the crate would forward a follower's proposal.
#[test]
fn a_follower_never_proposes() {
    let mut replica = open(log_of(0, 0, 0), &[1, 2, 3], 0);
    replica.step(append(3, (0, 0), 0, vec![]), LATE).unwrap();
    turn(&mut replica);
    let refused = replica.propose(Bytes::new(), Bytes::new());
    assert_eq!(refused, Err(Refusal::NotLeader { leader: None }));
    assert!(!replica.has_ready());
}

/// Pitfall 3: what the crate calls `ProposalDropped` is told apart.
#[test]
fn dropped_proposals_have_names() {
    let (mut replica, term) = leader();
    let big = Bytes::from(vec![0; 128 * 1024]);
    let refused = (0..100).find_map(|_| replica.propose(big.clone(), Bytes::new()).err());
    assert_eq!(refused, Some(Refusal::Uncommitted));
    turn(&mut replica);
    replica.transfer(ReplicaId::new(3)).unwrap();
    assert_eq!(
        replica.propose(Bytes::new(), Bytes::new()),
        Err(Refusal::Transferring)
    );
    replica.on_higher_term(ReplicaId::new(2), Term::new(term + 3));
    let refused = replica.propose(Bytes::new(), Bytes::new());
    assert_eq!(refused, Err(Refusal::NotLeader { leader: None }));
}

/// Pitfalls 1 and C5: a read needs a committed entry of the own term, and a quorum's consent with
/// its token; consent without it, or with an older one, confirms nothing.
#[test]
fn a_read_is_confirmed_by_consent_with_its_token_only() {
    let (mut replica, term) = leader();
    let (two, term) = (ReplicaId::new(2), Term::new(term));
    replica.read(7).unwrap();
    replica.on_consent(two, term, None);
    replica.on_consent(two, term, Some(6));
    replica.on_consent(two, Term::new(term.to_u64() - 1), Some(7));
    replica.on_consent(ReplicaId::new(9), term, Some(7));
    assert!(turn(&mut replica).reads.is_empty());
    replica.on_consent(two, term, Some(7));
    assert_eq!(turn(&mut replica).reads, [(7, Index::new(1))]);
}

#[test]
fn a_new_leader_serves_no_read_before_its_own_entry_commits() {
    let mut replica = open(log_of(2, 1, 2), &[1, 2, 3], 2);
    replica.campaign();
    turn(&mut replica);
    replica
        .step(from(2, 2, GroupBody::PreVoteAnswer { granted: true }), SOON)
        .unwrap();
    let asked = turn(&mut replica);
    store(&mut replica, &asked);
    replica
        .step(from(2, 2, GroupBody::VoteAnswer { granted: true }), SOON)
        .unwrap();
    turn(&mut replica);
    assert_eq!(replica.status().role, Role::Leader);
    assert_eq!(
        replica.read(1),
        Err(Refusal::NotReady { term: Term::new(2) })
    );
}

/// Check-quorum: without consent since the last check the leader steps down.
#[test]
fn a_leader_that_nobody_answers_steps_down() {
    let (mut replica, term) = leader();
    replica.check_quorum();
    assert_eq!(
        replica.status().role,
        Role::Leader,
        "an ack came since it was elected"
    );
    replica.on_consent(ReplicaId::new(3), Term::new(term), None);
    replica.check_quorum();
    assert_eq!(replica.status().role, Role::Leader);
    replica.check_quorum();
    assert_eq!(replica.status().role, Role::Follower);
}

/// Pre-vote and the promise: within the timeout no pre-vote is even answered, after it one is.
#[test]
fn the_promise_to_a_leader_runs_on_the_clock() {
    let mut replica = open(log_of(1, 1, 1), &[1, 2, 3], 1);
    replica.step(append(1, (1, 1), 1, vec![]), LATE).unwrap();
    turn(&mut replica);
    let (last_index, last_term) = (Index::new(9), Term::new(1));
    let ask = GroupBody::PreVote {
        last_index,
        last_term,
    };
    replica
        .step(from(3, 2, ask.clone()), Duration::from_millis(999))
        .unwrap();
    assert!(turn(&mut replica).messages.is_empty());
    replica
        .step(from(3, 2, ask), Duration::from_millis(1000))
        .unwrap();
    let asked = turn(&mut replica);
    assert_eq!(
        asked.messages[0].body,
        GroupBody::PreVoteAnswer { granted: true }
    );
    assert_eq!(
        replica.status().term,
        Term::new(1),
        "a pre-vote moves nobody's term"
    );
}

/// Safety 13 and 14: at open, commit is at most the last index and at least what was applied.
#[test]
fn the_stored_commit_is_clamped_at_open() {
    let replica = open(log_of(3, 1, 9), &[1, 2, 3], 2);
    assert_eq!(replica.status().commit, Index::new(3));
    let replica = open(log_of(3, 1, 0), &[1, 2, 3], 2);
    assert_eq!(replica.status().commit, Index::new(2));
}

#[test]
fn a_state_machine_that_does_not_fit_its_log_is_refused() {
    let logger = silent_logger();
    let group = opening(&[1, 2, 3], 4).group;
    let beyond = Replica::open(log_of(3, 1, 3), &opening(&[1, 2, 3], 4), &logger);
    let (applied, last) = (Index::new(4), Index::new(3));
    assert_eq!(
        beyond.err(),
        Some(OpenError::AppliedBeyondLog {
            group,
            applied,
            last
        })
    );
    let log = log_of(0, 1, 3);
    log.0.borrow_mut().compacted = (Index::new(5), Term::new(1));
    let before = Replica::open(log, &opening(&[1, 2, 3], 4), &logger);
    let compacted = Index::new(5);
    assert_eq!(
        before.err(),
        Some(OpenError::AppliedBeforeLog {
            group,
            applied,
            compacted
        })
    );
}

/// A beat is consented to only by a replica that follows exactly its leader in its term, durably;
/// and its commit is taken only as far as the log goes.
#[test]
fn a_beat_is_stepped_as_exactly_what_it_says_or_named() {
    let mut replica = open(log_of(2, 1, 1), &[1, 2, 3], 1);
    let (two, three) = (ReplicaId::new(2), ReplicaId::new(3));
    let beat = |replica: &mut Replica<Fixed>, from, term, commit| {
        replica.on_beat(from, Term::new(term), Index::new(commit), SOON)
    };
    assert_eq!(beat(&mut replica, two, 4, 1), Err(BeatRefusal::NotYet));
    let moved = turn(&mut replica);
    assert_eq!(beat(&mut replica, two, 4, 1), Err(BeatRefusal::NotYet));
    store(&mut replica, &moved);
    assert_eq!(beat(&mut replica, two, 4, 2), Ok(()));
    assert_eq!(replica.status().commit, Index::new(2));
    assert_eq!(beat(&mut replica, two, 4, 3), Err(BeatRefusal::Behind));
    assert_eq!(
        beat(&mut replica, three, 4, 2),
        Err(BeatRefusal::NotFollowing)
    );
    let later = BeatRefusal::HigherTerm(Term::new(4));
    assert_eq!(beat(&mut replica, three, 3, 2), Err(later));
    assert!(replica.is_following(two, Term::new(4)));
    assert!(!replica.is_following(two, Term::new(3)));
}

/// Pitfall 5: a rejection from before the match, however late, moves nothing back.
#[test]
fn a_late_rejection_does_not_reach_below_the_match() {
    let (mut replica, term) = leader();
    for _ in 0..3 {
        replica
            .propose(Bytes::from_static(b"c"), Bytes::new())
            .unwrap();
    }
    let sent = turn(&mut replica);
    store(&mut replica, &sent);
    replica.step(ack(3, term, 3), SOON).unwrap();
    turn(&mut replica);
    replica.on_unreachable(ReplicaId::new(3));
    let reject = |rejected, hint| GroupBody::Reject {
        rejected: Index::new(rejected),
        hint: Index::new(hint),
        hint_term: Term::new(0),
        commit: Index::new(0),
    };
    for (rejected, hint) in [(3, 0), (4, 0), (2, 1)] {
        replica
            .step(from(3, term, reject(rejected, hint)), SOON)
            .unwrap();
    }
    for message in turn(&mut replica).messages {
        let GroupBody::Append(append) = message.body else {
            continue;
        };
        assert!(append.prev_index >= Index::new(3) || message.header.to != ReplicaId::new(3));
    }
    assert_eq!(replica.matched(ReplicaId::new(3)), Some(Index::new(3)));
}

#[test]
fn acks_that_no_correct_member_sends_are_refused() {
    let (mut replica, term) = leader();
    let last = replica.status().last;
    let beyond = replica.step(ack(2, term, last.to_u64() + 1), SOON);
    let acked = Index::new(last.to_u64() + 1);
    assert_eq!(beyond, Err(PeerMisbehaved::AckBeyondLog { acked, last }));
    let second = replica.step(append(term, (1, term), 0, vec![]), SOON);
    assert!(matches!(second, Err(PeerMisbehaved::TwoLeaders { .. })));
}

/// C6, pitfall 6: a follower takes a commit index only so far ahead of what it applied, and takes
/// up the rest as it applies.
#[test]
fn a_follower_commits_no_further_than_it_may_leave_unapplied() {
    let many = UNAPPLIED_ENTRIES_MAX + 100;
    let mut replica = open(log_of(many, 1, 0), &[1, 2, 3], 0);
    replica
        .step(append(1, (many, 1), many, vec![]), LATE)
        .unwrap();
    let first = turn(&mut replica);
    assert_eq!(replica.status().commit, Index::new(UNAPPLIED_ENTRIES_MAX));
    let handed = first.committed.last().unwrap().index;
    assert_eq!(handed, Index::new(UNAPPLIED_ENTRIES_MAX));
    assert!(
        !replica.on_applied(Index::new(handed.to_u64() + 1)),
        "more than it was handed"
    );
    assert!(replica.on_applied(handed));
    turn(&mut replica);
    assert_eq!(replica.status().commit, Index::new(many));
}

/// The uncommitted tail is overwritten before its own write was durable: what is read back is the
/// new entries, and the late report of the old write counts for nothing beyond them.
#[test]
fn a_tail_overwritten_before_it_was_stored_is_not_read_back() {
    let mut replica = open(log_of(1, 1, 1), &[1, 2, 3], 1);
    replica
        .step(append(2, (1, 1), 1, vec![entry(2, 2), entry(3, 2)]), LATE)
        .unwrap();
    let old = turn(&mut replica);
    let newer = from(3, 3, append(3, (1, 1), 1, vec![entry(2, 3)]).body);
    replica.step(newer, LATE).unwrap();
    let new = turn(&mut replica);
    assert_eq!(replica.status().last, Index::new(2));
    let after_old = store(&mut replica, &old);
    let acks = |turn: &Turn, term| {
        let of_term = turn
            .messages
            .iter()
            .filter(|m| m.header.term == Term::new(term));
        of_term
            .filter(|m| matches!(m.body, GroupBody::Ack { .. }))
            .count()
    };
    assert_eq!(acks(&after_old, 3), 0, "the new entry isn't durable yet");
    assert_eq!(replica.raw.store().term(2).unwrap(), 3);
    assert!(replica.raw.store().term(3).is_err());
    let after_new = store(&mut replica, &new);
    assert_eq!(acks(&after_new, 3), 1);
}

/// Joint consensus through our own encoding: never stored or sent in the crate's.
#[test]
fn a_configuration_change_travels_in_our_encoding() {
    let (mut replica, term) = leader();
    let change = ConfChange::Members(vec![
        MemberChange::AddLearner(ReplicaId::new(4)),
        MemberChange::Remove(ReplicaId::new(3)),
    ]);
    let (index, _) = replica.propose_conf_change(&change).unwrap();
    let proposed = turn(&mut replica);
    let Change::Write { entries, .. } = &proposed.writes[0].1 else {
        panic!()
    };
    assert_eq!(entries[0].kind, EntryKind::ConfChange);
    assert_eq!(ConfChange::decode(&entries[0].data), Ok(change));
    store(&mut replica, &proposed);
    replica.step(ack(2, term, index.to_u64()), SOON).unwrap();
    let joint = turn(&mut replica);
    assert_eq!(joint.committed.len(), 1);
    assert_eq!(joint.members, None, "still joint");
    assert!(replica.on_applied(index));
    let leaving = turn(&mut replica);
    let Change::Write { entries, .. } = &leaving.writes[0].1 else {
        panic!()
    };
    assert_eq!(
        ConfChange::decode(&entries[0].data),
        Ok(ConfChange::LeaveJoint)
    );
    store(&mut replica, &leaving);
    replica
        .step(ack(2, term, index.to_u64() + 1), SOON)
        .unwrap();
    let left = turn(&mut replica);
    let ids = |ids: &[u64]| ids.iter().map(|id| ReplicaId::new(*id)).collect::<Vec<_>>();
    let (mut voters, learners) = left.members.unwrap();
    voters.sort();
    assert_eq!((voters, learners), (ids(&[1, 2]), ids(&[4])));
}

/// No snapshot is ever offered: a member behind the compacted log waits, and nothing panics.
#[test]
fn a_member_behind_the_log_gets_no_made_up_snapshot() {
    let many = COMPACT_ENTRIES_MIN + 50;
    let mut replica = open(log_of(many, 1, many), &[1], many);
    let change = replica
        .compact(Index::new(many - 10), COMPACT_ENTRIES_MIN)
        .unwrap();
    let (through, term) = (Index::new(many - 10), Term::new(1));
    assert_eq!(change, Change::Compact { through, term });
    assert_eq!(
        replica.compact(Index::new(many), COMPACT_ENTRIES_MIN),
        None,
        "not worth a record yet"
    );
    assert_eq!(replica.status().compacted, through);
    assert!(replica.raw.store().snapshot(0, 2).is_err());
}
