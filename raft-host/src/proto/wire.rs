//! What shards say to each other, as bytes: beats and their answers, appends and acks, votes, reads,
//! and the word to campaign now. A body is one shard's part of one frame: a version, the shard, and
//! items to its end. The transport has already proven who sent it and that nothing was changed.
//!
//! The decoder is total: for any bytes it returns items or a [`WireError`], never panics, and
//! allocates nothing that the bytes at hand don't pay for. A forwarded proposal is a command in our
//! own form and becomes a plain entry: nothing of a peer enters Raft but what is listed here.
//!
//! Every message of a group carries (group, from-replica, to-replica, term): safety 7.

mod codec;
mod conf_change;
mod forward;
mod items;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use self::codec::{Reader, put_number};
pub use self::conf_change::{ConfChange, MemberChange};
pub use self::forward::{Forward, ForwardAnswer};
use crate::id::{Boot, GroupId, Index, ReplicaId, Round, ShardId, Term};
use crate::log::api::LogEntry;

/// The version of this encoding. It is part of the cluster's fingerprint; another is refused.
pub const WIRE_VERSION: u8 = 2;

/// Why bytes are no body. `at` is the offset of what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Another version of the encoding.
    #[error("wire version {got}, this node speaks {expected}")]
    Version {
        /// Ours.
        expected: u8,
        /// The body's.
        got: u8,
    },
    /// The bytes end inside of an item.
    #[error("the body ends inside of an item, at byte {at}")]
    Truncated {
        /// Where.
        at: usize,
    },
    /// A number that is too large or not in its shortest form.
    #[error("bad number at byte {at}")]
    BadNumber {
        /// Where.
        at: usize,
    },
    /// A count or length beyond its bound or beyond the bytes there are.
    #[error("bad count at byte {at}")]
    BadCount {
        /// Where.
        at: usize,
    },
    /// A flag that is neither 0 nor 1.
    #[error("bad flag at byte {at}")]
    BadFlag {
        /// Where.
        at: usize,
    },
    /// An item of no known kind.
    #[error("unknown kind {kind} at byte {at}")]
    UnknownKind {
        /// The kind.
        kind: u8,
        /// Where.
        at: usize,
    },
    /// Groups that aren't in ascending order, a replica 0, or other fields at odds.
    #[error("fields at odds in the item before byte {at}")]
    AtOdds {
        /// Where the item ended.
        at: usize,
    },
    /// A configuration-change entry that isn't in our encoding.
    #[error("bad configuration change")]
    BadConfChange,
}

/// Whose message it is, to whom, and in which term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The group.
    pub group: GroupId,
    /// The replica that says it.
    pub from: ReplicaId,
    /// The replica it is said to.
    pub to: ReplicaId,
    /// The term it is said in (of a pre-vote: the term that would be campaigned for).
    pub term: Term,
}

/// A message of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMessage {
    /// From whom, to whom.
    pub header: Header,
    /// What.
    pub body: GroupBody,
}

/// What one replica says to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupBody {
    /// Would you vote for me?
    PreVote {
        /// The candidate's last index.
        last_index: Index,
        /// Its term.
        last_term: Term,
    },
    /// Answer to a pre-vote.
    PreVoteAnswer {
        /// Yes or no.
        granted: bool,
    },
    /// Vote for me.
    Vote {
        /// The candidate's last index.
        last_index: Index,
        /// Its term.
        last_term: Term,
        /// The leader asked for it (transfer): the promise to it doesn't stand in the way.
        transfer: bool,
    },
    /// Answer to a vote.
    VoteAnswer {
        /// Yes or no.
        granted: bool,
    },
    /// Entries.
    Append(Append),
    /// Everything up to here is durable at the sender (safety 6).
    Ack {
        /// The sender's match index.
        index: Index,
        /// The sender's commit index.
        commit: Index,
    },
    /// The entries before the append didn't match.
    Reject {
        /// The append's `prev_index`.
        rejected: Index,
        /// Where to try next.
        hint: Index,
        /// The term there.
        hint_term: Term,
        /// The sender's commit index.
        commit: Index,
    },
    /// Campaign at once: leadership is handed over.
    TimeoutNow,
    /// A follower asks for a read index.
    ReadIndex {
        /// The follower's name for the read.
        token: u64,
    },
    /// The read index, or that there is none to be had here.
    ReadIndexAnswer {
        /// The follower's name for the read.
        token: u64,
        /// The index, confirmed by a quorum after the question arrived.
        index: Option<Index>,
    },
    /// A proposal that a follower hands to the leader.
    Forward(Forward),
    /// What became of it.
    ForwardAnswer(ForwardAnswer),
}

impl GroupBody {
    /// Whether it travels on the bulk lane.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        matches!(
            self,
            Self::Append(_) | Self::Forward(_) | Self::ForwardAnswer(_)
        )
    }
}

/// The body of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The index before the first entry.
    pub prev_index: Index,
    /// Its term.
    pub prev_term: Term,
    /// The leader's commit index.
    pub commit: Index,
    /// Consecutive entries; their indexes follow from `prev_index`.
    pub entries: Vec<LogEntry>,
}

/// One group in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The group.
    pub group: GroupId,
    /// The leader.
    pub from: ReplicaId,
    /// The follower.
    pub to: ReplicaId,
    /// The leader's term.
    pub term: Term,
    /// The leader's commit index, at most what the follower has acked.
    pub commit: Index,
    /// What every member has durably: the log may be compacted up to here, at most `commit`.
    pub retain_after: Index,
}

/// What a round lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All groups: what was covered before is forgotten.
    Full,
    /// What changed since this acknowledged round.
    Since(Round),
    /// Some groups only, for reads that wait; what is covered stays as it is.
    Partial,
}

/// One part of one round of one shard to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beats {
    /// The round's number; rises within a boot of the sender.
    pub round: Round,
    /// Which part of it, from 0.
    pub part: u32,
    /// Whether it is the last part.
    pub last: bool,
    /// The sender's life.
    pub from_boot: Boot,
    /// The receiver's life as the sender knows it.
    pub to_boot: Boot,
    /// What is listed.
    pub coverage: Coverage,
    /// Groups that are no longer covered, ascending. Only in [`Coverage::Since`].
    pub removed: Vec<GroupId>,
    /// The groups listed, ascending.
    pub beats: Vec<Beat>,
}

/// Why a group doesn't consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DissentReason {
    /// No such group here, or it isn't replayed yet.
    Unknown,
    /// Another replica stands here, or the leader's isn't a member (safety 7).
    WrongReplica,
    /// The replica has moved on to a later term.
    HigherTerm(Term),
    /// It follows another leader, or none yet.
    NotFollowing,
    /// The replica's log ends before the beat's commit.
    Behind,
    /// Its part of the state isn't durable yet: it will consent next time.
    NotYet,
}

/// A group that doesn't consent to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dissent {
    /// The group.
    pub group: GroupId,
    /// Why.
    pub reason: DissentReason,
}

/// What the receiver made of a part of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Stepped, but for these groups, ascending. Silence about the others is consent.
    Taken(Vec<Dissent>),
    /// There is no such base here: nothing is confirmed, list all.
    Restate,
}

/// The answer to one part of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundAnswer {
    /// The round.
    pub round: Round,
    /// The part.
    pub part: u32,
    /// The answering node's life.
    pub from_boot: Boot,
    /// The life of the round's sender.
    pub to_boot: Boot,
    /// What was made of it.
    pub verdict: Verdict,
}

/// One item of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A message of one group.
    Group(GroupMessage),
    /// A part of a round.
    Beats(Beats),
    /// An answer to one.
    Answer(RoundAnswer),
}

/// A body under construction, never longer than it may be.
#[derive(Debug)]
pub struct BodyWriter {
    buf: Vec<u8>,
    empty_len: usize,
    bytes_max: usize,
}

impl BodyWriter {
    /// An empty body of this shard.
    #[must_use]
    pub fn new(shard: ShardId, bytes_max: usize) -> Self {
        let mut buf = Vec::with_capacity(64);
        buf.push(WIRE_VERSION);
        put_number(&mut buf, shard.to_u16().into());
        Self {
            empty_len: buf.len(),
            buf,
            bytes_max,
        }
    }

    /// Appends the item if it fits, and says whether it did.
    pub fn try_push(&mut self, item: &Item) -> bool {
        let before = self.buf.len();
        match item {
            Item::Group(message) => items::put_message(&mut self.buf, message),
            Item::Beats(beats) => items::put_beats(&mut self.buf, beats),
            Item::Answer(answer) => items::put_answer(&mut self.buf, answer),
        }
        if self.buf.len() > self.bytes_max {
            self.buf.truncate(before);
            return false;
        }
        true
    }

    /// Bytes that may still be added.
    #[must_use]
    pub fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.buf.len())
    }

    /// Whether no item was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buf.len() == self.empty_len
    }

    /// The body.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.buf.into()
    }
}

/// Bytes a beat takes after one of `previous` group.
#[must_use]
pub fn beat_len(beat: &Beat, previous: Option<GroupId>) -> usize {
    items::beat_len(beat, previous)
}

/// Bytes of an append beside its entries, at most.
pub const APPEND_OVERHEAD_BYTES: usize = 1 + 8 * 10;

/// Bytes of a forwarded proposal, or of the answer to one, beside what it carries, at most: kind,
/// header, boot, token, and three more numbers.
pub const FORWARD_OVERHEAD_BYTES: usize = 1 + 9 * 10;

/// Bytes of a forwarded proposal in a body, at most.
#[must_use]
pub fn forward_len(forward: &Forward) -> usize {
    forward::forward_len(forward)
}

/// Bytes of the answer to a forwarded proposal in a body, at most.
#[must_use]
pub fn forward_answer_len(answer: &ForwardAnswer) -> usize {
    forward::answer_len(answer)
}

/// Bytes an entry takes in an append.
#[must_use]
pub fn entry_len(entry: &LogEntry) -> usize {
    items::entry_len(entry)
}

/// Which shard a body is for: all that the frame's taker has to know.
///
/// # Errors
/// [`WireError`] if it isn't one of this version.
pub fn shard_of(body: &Bytes) -> Result<ShardId, WireError> {
    read_head(&mut Reader::new(body.clone()))
}

fn read_head(reader: &mut Reader) -> Result<ShardId, WireError> {
    let version = reader.byte()?;
    if version != WIRE_VERSION {
        return Err(WireError::Version {
            expected: WIRE_VERSION,
            got: version,
        });
    }
    let at = reader.at();
    let shard = u16::try_from(reader.number()?).map_err(|_| WireError::BadNumber { at })?;
    Ok(ShardId::new(shard))
}

/// Reads a body, all or nothing.
///
/// # Errors
/// [`WireError`] for anything that [`BodyWriter`] doesn't make.
pub fn decode(body: Bytes) -> Result<(ShardId, Vec<Item>), WireError> {
    let mut reader = Reader::new(body);
    let shard = read_head(&mut reader)?;
    let mut items = Vec::new();
    while !reader.is_at_end() {
        items.push(items::read_item(&mut reader)?);
    }
    Ok((shard, items))
}
