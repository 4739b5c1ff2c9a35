//! One replica of one group: with its folder the only file that knows the `raft` crate. It turns the crate's ticks,
//! messages and readies into ours, and closes what is known to be wrong or unsafe in its version
//! (stack.md 2); `host` decides when, to whom and how much.
//!
//! C1: what a `Ready` calls persisted messages (a follower's acks and votes) leaves only once the
//!     log has said that this ready and all before it are durable.
//! C2: a leader's appends leave before its own sync; its own ack counts only when durable.
//! C3: Raft never sees time: `election_elapsed` is set from the clock's reading before each step,
//!     so no tick is ever made up in a burst (safety 5), and nothing depends on its random draw.
//! C4: no bytes or numbers of a peer reach a place where Raft would panic: what it takes for
//!     granted is checked here first.
//! C5: `LeaseBased` reads are never on; a read is confirmed by a quorum after it was asked.
//! C6: a follower's commit runs at most `UNAPPLIED_ENTRIES_MAX` ahead of what it applied.

mod convert;
mod log_view;
mod progress;
mod types;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, HardState, Message, MessageType};
use raft::{ProgressState, RaftState, RawNode, ReadOnlyOption, StateRole, Storage};

use self::convert::{from_entry, from_hard_state, from_message, to_conf_change, to_entry};
use self::log_view::LogView;
pub use self::types::{BeatRefusal, CommittedEntries, Heard, Opening, Role, Status, Turn};
use super::wire::{Append, ConfChange, GroupBody, GroupMessage, Header};
use crate::error::{OpenError, PeerMisbehaved, Refusal};
use crate::id::{GroupId, Index, ReplicaId, StoreSeq, Term};
use crate::limits::{
    APPEND_BYTES_MAX, APPENDS_IN_FLIGHT_MAX, APPLY_BYTES_MAX, UNAPPLIED_ENTRIES_MAX,
    UNCOMMITTED_BYTES_MAX,
};
use crate::log::api::{Change, EntryKind, GroupLog, ReadError};

/// One replica and its part of the log.
pub struct Replica<L: GroupLog> {
    group: GroupId,
    raw: RawNode<LogView<L>>,
    /// Messages that wait for the write of this number (C1).
    held: VecDeque<(u64, Vec<GroupMessage>)>,
    last_ready: u64,
    last_write: u64,
    /// The last write with a hard state, and the term of the last ready: what a consent stands on.
    term_write: u64,
    term_ready: u64,
    stored: u64,
    /// A commit index proven for this log in this term, beyond what C6 let through.
    commit_seen: (u64, u64),
    handed: u64,
}

impl<L: GroupLog> std::fmt::Debug for Replica<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica")
            .field("group", &self.group)
            .field("status", &self.status())
            .finish()
    }
}

/// A logger that says nothing, one for all replicas: what matters is traced here.
#[must_use]
pub fn silent_logger() -> SilentLogger {
    SilentLogger(slog::Logger::root(slog::Discard, slog::o!()))
}

/// What [`silent_logger`] makes.
#[derive(Clone, Debug)]
pub struct SilentLogger(slog::Logger);

fn millis(duration: Duration) -> usize {
    usize::try_from(duration.as_millis()).unwrap_or(usize::MAX / 4)
}

impl<L: GroupLog> Replica<L> {
    /// Opens a replica on what its log and its state machine hold.
    ///
    /// # Errors
    /// [`OpenError`] if these two can't belong together: never repaired silently (safety 14).
    pub fn open(log: L, opening: &Opening, logger: &SilentLogger) -> Result<Self, OpenError> {
        let (compacted, _) = log.compacted();
        let (last, applied) = (log.last_index(), opening.applied);
        let group = opening.group;
        if applied < compacted {
            return Err(OpenError::AppliedBeforeLog {
                group,
                applied,
                compacted,
            });
        }
        if applied > last {
            return Err(OpenError::AppliedBeyondLog {
                group,
                applied,
                last,
            });
        }
        let stored = log.hard_state();
        // The stored commit isn't synced on its own account, and may name what a cut tail held
        // (safety 13, 14): at least what was applied, at most what there is.
        let commit = stored.commit.max(applied).min(last);
        let election = millis(opening.election_timeout).max(3);
        let config = raft::Config {
            id: opening.replica.to_u64(),
            election_tick: election,
            heartbeat_tick: election - 1,
            applied: applied.to_u64(),
            max_size_per_msg: APPEND_BYTES_MAX,
            max_inflight_msgs: APPENDS_IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            skip_bcast_commit: true,
            batch_append: true,
            max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
            max_committed_size_per_ready: APPLY_BYTES_MAX,
            ..raft::Config::default()
        };
        let mut conf_state = ConfState::default();
        conf_state.set_voters(opening.voters.iter().map(|id| id.to_u64()).collect());
        conf_state.set_learners(opening.learners.iter().map(|id| id.to_u64()).collect());
        let mut hard_state = HardState::default();
        hard_state.set_term(stored.term.to_u64());
        if !transport::mutant!("vote_forgotten_at_restart") {
            hard_state.set_vote(stored.vote.map_or(0, ReplicaId::to_u64));
        }
        hard_state.set_commit(commit.to_u64());
        let view = LogView::new(
            log,
            RaftState {
                hard_state,
                conf_state,
            },
        );
        let refused = |_| OpenError::Refused(opening.group);
        let mut raw = RawNode::new(&config, view, &logger.0).map_err(refused)?;
        raw.raft.maybe_free_inflight_buffers();
        Ok(Self {
            group: opening.group,
            raw,
            held: VecDeque::new(),
            last_ready: 0,
            last_write: 0,
            term_write: 0,
            term_ready: stored.term.to_u64(),
            stored: 0,
            commit_seen: (0, 0),
            handed: applied.to_u64(),
        })
    }

    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let leader = raft.leader_id;
        Status {
            role: match raft.state {
                StateRole::Follower => Role::Follower,
                StateRole::PreCandidate | StateRole::Candidate => Role::Candidate,
                StateRole::Leader => Role::Leader,
            },
            term: Term::new(raft.term),
            leader: (leader != 0).then(|| ReplicaId::new(leader)),
            commit: Index::new(raft.raft_log.committed),
            last: Index::new(raft.raft_log.last_index()),
            applied: Index::new(raft.raft_log.applied),
            compacted: Index::new(self.raw.store().compacted.0),
        }
    }

    /// This replica's id.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        ReplicaId::new(self.raw.raft.id)
    }

    /// Whether it votes in the configuration in force.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        self.raw.raft.promotable()
    }

    /// Whether everything handed to the log is durable.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.last_write <= self.stored
    }

    /// Whether the term it is in would survive a crash now.
    fn is_term_stored(&self) -> bool {
        self.term_write <= self.stored && self.term_ready == self.raw.raft.term
    }

    /// Whether [`Replica::ready`] has anything to say.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.raw.has_ready()
    }

    /// Steps a message of another member. `elapsed` is the time since the promise was last renewed.
    ///
    /// # Errors
    /// [`PeerMisbehaved`] for what no correct member says; nothing was stepped then.
    pub fn step(
        &mut self,
        message: GroupMessage,
        elapsed: Duration,
    ) -> Result<Heard, PeerMisbehaved> {
        let Some(message) = self.admit(message)? else {
            return Ok(Heard::Unchanged);
        };
        self.raw.raft.election_elapsed = millis(elapsed).max(1);
        // What it may answer (a response of an unknown member) means "ignored".
        let _ = self.raw.step(message);
        Ok(self.heard())
    }

    fn heard(&self) -> Heard {
        let renewed = self.raw.raft.election_elapsed == 0;
        if renewed {
            Heard::Renewed
        } else {
            Heard::Unchanged
        }
    }

    /// Turns a message into Raft's, or finds it void or impossible (C4).
    fn admit(&mut self, message: GroupMessage) -> Result<Option<Message>, PeerMisbehaved> {
        let Header { from, to, term, .. } = message.header;
        let raft = &self.raw.raft;
        let same_term = raft.term == term.to_u64();
        let leads = same_term && raft.state == StateRole::Leader;
        let last = raft.raft_log.last_index();
        let mut m = Message::default();
        (m.from, m.to, m.term) = (from.to_u64(), to.to_u64(), term.to_u64());
        match message.body {
            GroupBody::PreVote {
                last_index,
                last_term,
            } => {
                m.set_msg_type(MessageType::MsgRequestPreVote);
                (m.index, m.log_term) = (last_index.to_u64(), last_term.to_u64());
            }
            GroupBody::Vote {
                last_index,
                last_term,
                transfer,
            } => {
                m.set_msg_type(MessageType::MsgRequestVote);
                (m.index, m.log_term) = (last_index.to_u64(), last_term.to_u64());
                if transfer {
                    m.context = Bytes::from_static(raft::CAMPAIGN_TRANSFER);
                }
            }
            GroupBody::PreVoteAnswer { granted } => {
                m.set_msg_type(MessageType::MsgRequestPreVoteResponse);
                m.reject = !granted;
            }
            GroupBody::VoteAnswer { granted } => {
                m.set_msg_type(MessageType::MsgRequestVoteResponse);
                m.reject = !granted;
            }
            GroupBody::Append(append) => {
                self.check_leader(from, term)?;
                self.admit_append(&mut m, append);
            }
            GroupBody::Ack { index, commit } => {
                if leads && index.to_u64() > last {
                    let last = Index::new(last);
                    return Err(PeerMisbehaved::AckBeyondLog { acked: index, last });
                }
                m.set_msg_type(MessageType::MsgAppendResponse);
                (m.index, m.commit) = (index.to_u64(), commit.to_u64());
            }
            GroupBody::Reject {
                rejected,
                hint,
                hint_term,
                commit,
            } => {
                m.set_msg_type(MessageType::MsgAppendResponse);
                m.reject = true;
                (m.index, m.commit) = (rejected.to_u64(), commit.to_u64());
                (m.reject_hint, m.log_term) = (hint.to_u64(), hint_term.to_u64());
                // Raft lets a late rejection push `next` below what is matched (pitfall 5).
                let progress = raft.prs().get(m.from);
                if let Some(progress) = progress.filter(|_| leads) {
                    if m.index <= progress.matched {
                        return Ok(None);
                    }
                    if m.reject_hint < progress.matched {
                        (m.reject_hint, m.log_term) = (progress.matched, 0);
                    }
                }
            }
            GroupBody::TimeoutNow => m.set_msg_type(MessageType::MsgTimeoutNow),
            // The host's own affair.
            // The host's own business.
            GroupBody::ReadIndex { .. }
            | GroupBody::ReadIndexAnswer { .. }
            | GroupBody::Forward(_)
            | GroupBody::ForwardAnswer(_) => return Ok(None),
        }
        Ok(Some(m))
    }

    fn admit_append(&mut self, m: &mut Message, append: Append) {
        m.set_msg_type(MessageType::MsgAppend);
        (m.index, m.log_term) = (append.prev_index.to_u64(), append.prev_term.to_u64());
        let matched_to = m.index + append.entries.len() as u64;
        m.set_entries(
            append
                .entries
                .into_iter()
                .map(to_entry)
                .collect::<Vec<_>>()
                .into(),
        );
        // Only if the append matches does its commit say something about this log, and only up to
        // its end; what C6 holds back of it is taken up when more was applied.
        let proven = append.commit.to_u64().min(matched_to);
        let ceiling = self.commit_ceiling();
        m.commit = proven.min(ceiling);
        let raft = &self.raw.raft;
        if proven > ceiling && raft.raft_log.match_term(m.index, m.log_term) {
            self.commit_seen = (m.term, proven);
        }
    }

    fn commit_ceiling(&self) -> u64 {
        self.raw.raft.raft_log.applied + UNAPPLIED_ENTRIES_MAX
    }

    fn check_leader(&self, from: ReplicaId, term: Term) -> Result<(), PeerMisbehaved> {
        let raft = &self.raw.raft;
        let (known, claimed) = (ReplicaId::new(raft.leader_id), from);
        if raft.term == term.to_u64() && raft.leader_id != 0 && known != claimed {
            return Err(PeerMisbehaved::TwoLeaders {
                term,
                known,
                claimed,
            });
        }
        Ok(())
    }

    /// Steps a beat of a leader. Silence about it in the answer is this replica's consent: given
    /// only if it follows exactly this leader in this term, and durably so.
    ///
    /// # Errors
    /// [`BeatRefusal`] if it could not be stepped as exactly that.
    pub fn on_beat(
        &mut self,
        from: ReplicaId,
        term: Term,
        commit: Index,
        elapsed: Duration,
    ) -> Result<(), BeatRefusal> {
        let term_is_stored = self.is_term_stored();
        let raft = &mut self.raw.raft;
        if raft.term > term.to_u64() {
            let later = BeatRefusal::HigherTerm(Term::new(raft.term));
            return Err(if term_is_stored {
                later
            } else {
                BeatRefusal::NotYet
            });
        }
        let same_term = raft.term == term.to_u64();
        if same_term && raft.leader_id != 0 && raft.leader_id != from.to_u64() {
            return Err(BeatRefusal::NotFollowing);
        }
        let follows =
            same_term && raft.state == StateRole::Follower && raft.leader_id == from.to_u64();
        if !follows {
            let mut m = Message::default();
            m.set_msg_type(MessageType::MsgHeartbeat);
            (m.from, m.to, m.term) = (from.to_u64(), raft.id, term.to_u64());
            raft.election_elapsed = millis(elapsed).max(1);
            let _ = self.raw.step(m);
        }
        let commit = commit.to_u64();
        let ceiling = self.commit_ceiling();
        let raft_log = &mut self.raw.raft.raft_log;
        if commit > raft_log.last_index() {
            return Err(BeatRefusal::Behind);
        }
        raft_log.commit_to(commit.min(ceiling));
        if commit > ceiling {
            self.commit_seen = (term.to_u64(), commit);
        }
        if same_term && term_is_stored {
            Ok(())
        } else {
            Err(BeatRefusal::NotYet)
        }
    }

    /// Whether it follows exactly this leader in this term: the part of a beat that an unlisted,
    /// covered group stands for.
    #[must_use]
    pub fn is_following(&self, from: ReplicaId, term: Term) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Follower
            && raft.term == term.to_u64()
            && raft.leader_id == from.to_u64()
    }

    /// Takes a follower's consent to a round: its heartbeat response in this term, and with `token`
    /// its word that no newer leader was known to it after that read was asked.
    pub fn on_consent(&mut self, from: ReplicaId, term: Term, token: Option<u64>) {
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Leader || raft.term != term.to_u64() {
            return;
        }
        let last = raft.raft_log.last_index();
        let id = raft.id;
        let Some(progress) = raft.mut_prs().get_mut(from.to_u64()) else {
            return;
        };
        let quiet = progress.matched == last && progress.state == ProgressState::Replicate;
        if quiet && token.is_none() && !progress.ins.full() {
            // All that the response would do to a replica that lacks nothing.
            progress.recent_active = true;
            return;
        }
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgHeartbeatResponse);
        (m.from, m.to, m.term) = (from.to_u64(), id, term.to_u64());
        if let Some(token) = token {
            m.context = Bytes::copy_from_slice(&token.to_le_bytes());
        }
        let _ = self.raw.step(m);
    }

    /// Learns of a later term from a member that dissented.
    pub fn on_higher_term(&mut self, from: ReplicaId, term: Term) {
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgAppendResponse);
        (m.from, m.to, m.term) = (from.to_u64(), self.raw.raft.id, term.to_u64());
        if m.term > self.raw.raft.term {
            let _ = self.raw.step(m);
        }
    }

    /// Campaigns, by pre-vote first. Not while something of its own isn't durable: Raft takes it
    /// for granted that a candidate's log is.
    pub fn campaign(&mut self) -> bool {
        if !self.is_voter() || !self.is_stored() || self.raw.has_ready() {
            return false;
        }
        if self.raw.raft.state == StateRole::Leader {
            return false;
        }
        self.raw.campaign().is_ok()
    }

    /// Once per election timeout at a leader: steps down unless a quorum answered since the last
    /// time, and gives up a transfer that didn't get through.
    pub fn check_quorum(&mut self) {
        let raft = &mut self.raw.raft;
        if raft.state == StateRole::Leader {
            raft.election_elapsed = raft.election_timeout().saturating_sub(1);
            raft.tick();
        }
    }

    /// Proposes a command. Leadership is checked first: Raft would forward it otherwise.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was handed to Raft.
    pub fn propose(&mut self, data: Bytes, context: Bytes) -> Result<(Index, Term), Refusal> {
        self.check_proposable()?;
        let mut entry = Entry::default();
        (entry.data, entry.context) = (data, context);
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgPropose);
        m.from = self.raw.raft.id;
        m.set_entries(vec![entry].into());
        // Leadership and transfers were ruled out: only the bound is left to drop it.
        self.raw.raft.step(m).map_err(|_| Refusal::Uncommitted)?;
        let status = self.status();
        Ok((status.last, status.term))
    }

    /// Proposes a change of the configuration, in our own encoding; the crate's stays in memory.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was handed to Raft.
    pub fn propose_conf_change(&mut self, change: &ConfChange) -> Result<(Index, Term), Refusal> {
        self.check_proposable()?;
        let context = change.encode();
        self.raw
            .propose_conf_change(context, to_conf_change(change))
            .map_err(|_| Refusal::Dropped)?;
        let status = self.status();
        Ok((status.last, status.term))
    }

    fn check_proposable(&self) -> Result<(), Refusal> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(Refusal::NotLeader { leader: None });
        }
        if raft.lead_transferee.is_some() {
            return Err(Refusal::Transferring);
        }
        let unapplied = raft.raft_log.last_index() - raft.raft_log.applied;
        let most = UNAPPLIED_ENTRIES_MAX;
        if unapplied >= most {
            return Err(Refusal::Unapplied { unapplied, most });
        }
        Ok(())
    }

    /// Whether this is a leader whose commit index is up to date: it has committed in its term.
    #[must_use]
    pub fn has_committed_in_term(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader && raft.commit_to_current_term()
    }

    /// Asks for a read index under this token, which must be new. It comes out of
    /// [`Replica::ready`] once a quorum has consented with it.
    ///
    /// # Errors
    /// [`Refusal`] if this isn't a leader with a committed entry of its own term.
    pub fn read(&mut self, token: u64) -> Result<(), Refusal> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(Refusal::NotLeader { leader: None });
        }
        if !raft.commit_to_current_term() {
            return Err(Refusal::NotReady {
                term: Term::new(raft.term),
            });
        }
        self.raw.read_index(token.to_le_bytes().to_vec());
        Ok(())
    }

    /// Hands leadership to another voter.
    ///
    /// # Errors
    /// [`Refusal`] if this replica doesn't lead, or `to` doesn't vote.
    pub fn transfer(&mut self, to: ReplicaId) -> Result<(), Refusal> {
        self.may_transfer(to)?;
        self.raw.transfer_leader(to.to_u64());
        Ok(())
    }

    /// Whether leadership is here and could be handed to this member.
    ///
    /// # Errors
    /// [`Refusal`] if this replica doesn't lead, or `to` doesn't vote.
    pub fn may_transfer(&self, to: ReplicaId) -> Result<(), Refusal> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(Refusal::NotLeader { leader: None });
        }
        if !raft
            .prs()
            .conf()
            .voters()
            .ids()
            .iter()
            .any(|id| id == to.to_u64())
        {
            return Err(Refusal::NotAVoter(to));
        }
        Ok(())
    }

    /// Gives up handing leadership over, and takes proposals again. The other may have been told.
    pub fn abort_transfer(&mut self) {
        self.raw.raft.abort_leader_transfer();
    }

    /// Whether the configuration is being changed: a joint one, or a change that isn't applied.
    #[must_use]
    pub fn has_pending_change(&self) -> bool {
        let raft = &self.raw.raft;
        let joint = !raft
            .prs()
            .conf()
            .to_conf_state()
            .get_voters_outgoing()
            .is_empty();
        joint || raft.has_pending_conf()
    }

    /// An append to this member was lost or refused: Raft probes it (safety 24).
    pub fn on_unreachable(&mut self, member: ReplicaId) {
        self.raw.report_unreachable(member.to_u64());
    }

    /// Committed entries from `first` on, as many as fit in `bytes_max` but at least one. What the
    /// log hasn't made durable yet isn't among them, whoever committed it without this replica.
    ///
    /// # Errors
    /// [`ReadError`] when the log has forgotten `first`, or the disk doesn't give it back.
    pub fn committed(&self, first: Index, bytes_max: u64) -> Result<CommittedEntries, ReadError> {
        let view = self.raw.store();
        let before = Index::new(first.to_u64().saturating_sub(1));
        let end = Index::new(
            view.readable_end()
                .min(self.raw.raft.raft_log.committed + 1),
        );
        if end < first {
            let entries = Vec::new();
            let term_before = Term::default();
            return Ok(CommittedEntries {
                term_before,
                entries,
            });
        }
        let term_before = view.log.term(before)?;
        let entries = if first < end {
            view.log.entries(first, end, bytes_max)?
        } else {
            Vec::new()
        };
        Ok(CommittedEntries {
            term_before,
            entries,
        })
    }

    /// Forgets entries up to `through` if that is `least` of them, and says so to the log.
    pub fn compact(&mut self, through: Index, least: u64) -> Option<Change> {
        let through = through.to_u64().min(self.raw.raft.raft_log.applied);
        let view = self.raw.store();
        if through < view.compacted.0 + least.max(1) {
            return None;
        }
        let term = view.term(through).ok()?;
        self.raw.mut_store().compacted = (through, term);
        Some(Change::Compact {
            through: Index::new(through),
            term: Term::new(term),
        })
    }

    /// Drains what Raft wants done.
    ///
    /// # Panics
    /// If Raft offers a snapshot, which nothing on our wire can have given it.
    pub fn ready(&mut self, turn: &mut Turn) {
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            let number = ready.number();
            self.last_ready = number;
            // Nothing on our wire steps a snapshot, and the adapter never offers one.
            assert!(ready.snapshot().is_empty(), "a snapshot nobody stepped");
            let entries = ready.take_entries();
            if ready.must_sync() || !entries.is_empty() {
                // A newer commit index alone isn't worth a sync; it rides along (safety 14).
                let hard_state = ready.hs().map(from_hard_state);
                if let Some(state) = &hard_state {
                    (self.term_write, self.term_ready) = (number, state.term.to_u64());
                }
                let seq = StoreSeq::new(number);
                let entries_out = entries.iter().map(from_entry).collect();
                turn.writes.push((
                    seq,
                    Change::Write {
                        hard_state,
                        entries: entries_out,
                    },
                ));
                self.raw.mut_store().write(number, entries);
                self.last_write = number;
            }
            let group = self.group;
            turn.messages.extend(
                ready
                    .take_messages()
                    .into_iter()
                    .filter_map(|m| from_message(group, m)),
            );
            let persisted: Vec<_> = ready
                .take_persisted_messages()
                .into_iter()
                .filter_map(|m| from_message(group, m))
                .collect();
            if self.may_leave() {
                turn.messages.extend(persisted);
            } else if !persisted.is_empty() {
                self.held.push_back((self.last_write, persisted));
            }
            for state in ready.take_read_states() {
                if let Ok(token) = <[u8; 8]>::try_from(state.request_ctx.as_slice()) {
                    turn.reads
                        .push((u64::from_le_bytes(token), Index::new(state.index)));
                }
            }
            let committed = ready.take_committed_entries();
            self.raw.advance_append_async(ready);
            if self.is_stored() {
                self.raw.on_persist_ready(number);
            }
            self.hand_over(committed, turn);
        }
    }

    /// The line that C1 stands on: whether persisted messages may leave.
    fn may_leave(&self) -> bool {
        if transport::mutant!("ack_before_stored") {
            return true;
        }
        self.is_stored()
    }

    fn hand_over(&mut self, committed: Vec<Entry>, turn: &mut Turn) {
        for entry in committed {
            self.handed = entry.index;
            let entry = from_entry(&entry);
            if entry.kind == EntryKind::ConfChange {
                self.apply_conf_change(&entry.data, turn);
            }
            turn.committed.push(entry);
        }
    }

    /// A committed change takes effect at this point of the log on every member; one that Raft
    /// finds impossible has no effect on any.
    fn apply_conf_change(&mut self, data: &[u8], turn: &mut Turn) {
        let Ok(change) = ConfChange::decode(data) else {
            return;
        };
        let Ok(state) = self.raw.apply_conf_change(&to_conf_change(&change)) else {
            return;
        };
        if state.get_voters_outgoing().is_empty() {
            let ids = |ids: &[u64]| ids.iter().map(|id| ReplicaId::new(*id)).collect();
            turn.members = Some((ids(state.get_voters()), ids(state.get_learners())));
        }
    }

    /// The log has made the write of this number durable, and all before it. What waited for it
    /// may leave (C1).
    pub fn on_stored(&mut self, seq: StoreSeq, turn: &mut Turn) {
        self.stored = self.stored.max(seq.to_u64().min(self.last_write));
        let number = if self.is_stored() {
            self.last_ready
        } else {
            self.stored
        };
        self.raw.on_persist_ready(number);
        self.raw.mut_store().stored(self.stored);
        while self
            .held
            .front()
            .is_some_and(|(number, _)| *number <= self.stored)
        {
            if let Some((_, messages)) = self.held.pop_front() {
                turn.messages.extend(messages);
            }
        }
    }

    /// The state machine has applied everything up to here. Beyond what it was handed, or back, is
    /// a fault of the caller's and has no effect.
    pub fn on_applied(&mut self, index: Index) -> bool {
        let index = index.to_u64();
        if index > self.handed || index < self.raw.raft.raft_log.applied {
            return false;
        }
        self.raw.advance_apply_to(index);
        let ceiling = self.commit_ceiling();
        let raft = &mut self.raw.raft;
        let (term, commit) = self.commit_seen;
        if term == raft.term && commit > raft.raft_log.committed {
            let commit = commit.min(ceiling).min(raft.raft_log.last_index());
            raft.raft_log.commit_to(commit);
        }
        true
    }
}

#[cfg(test)]
mod tests;
