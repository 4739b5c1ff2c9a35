//! Proposals that a follower hands to its group's leader, and what became of them, as bytes. The
//! answer is a message of its own: as a late reply it would hold up the frames behind it.
//!
//! Both name the forwarder's life and its token there, so that an answer meets the attempt that it
//! speaks of and no other. Every value has one encoding, and every length a bound.

use std::num::NonZeroU8;

use bytes::Bytes;

use super::WireError;
use super::codec::{Reader, number_len, put_bytes, put_number};
use crate::error::{Outcome, Refusal, UnknownCause};
use crate::id::{Boot, GroupId, Index, NodeId, ReplicaId, Term};
use crate::limits::{ENTRY_BYTES_MAX, FORWARD_RESULT_BYTES_MAX, REQUEST_ID_BYTES_MAX};
use crate::proto::waiters::Policy;

/// A proposal on its way to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The forwarding node's life.
    pub boot: Boot,
    /// Its name for this attempt, unique within that life.
    pub token: u64,
    /// What is left until its deadline, in milliseconds.
    pub within_ms: u32,
    /// The proposer's note, kept with the entry.
    pub context: Bytes,
    /// The command; never empty.
    pub data: Bytes,
    /// When the reply to it may leave.
    pub policy: Policy,
}

/// What the leader made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAnswer {
    /// The forwarding node's life.
    pub boot: Boot,
    /// Its name for the attempt.
    pub token: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// Bytes of a forwarded proposal in a body, at most.
pub(super) fn forward_len(forward: &Forward) -> usize {
    let (context, data) = (forward.context.len(), forward.data.len());
    super::FORWARD_OVERHEAD_BYTES + number_len(context as u64) + context + data
}

pub(super) fn put_forward(buf: &mut Vec<u8>, forward: &Forward) {
    put_number(buf, forward.boot.to_u64());
    put_number(buf, forward.token);
    put_number(buf, forward.within_ms.into());
    buf.push(match forward.policy {
        Policy::Quorum => 0,
        Policy::AtLeast(acks) => acks.get(),
    });
    put_bytes(buf, &forward.context);
    put_bytes(buf, &forward.data);
}

pub(super) fn read_forward(reader: &mut Reader) -> Result<Forward, WireError> {
    let (boot, token) = (Boot::new(reader.wide()?), reader.wide()?);
    let at = reader.at();
    let within_ms = u32::try_from(reader.number()?).map_err(|_| WireError::BadNumber { at })?;
    let policy = NonZeroU8::new(reader.byte()?).map_or(Policy::Quorum, Policy::AtLeast);
    let context = reader.bytes(REQUEST_ID_BYTES_MAX)?;
    let data = reader.bytes(ENTRY_BYTES_MAX - context.len())?;
    if data.is_empty() {
        return Err(WireError::AtOdds { at: reader.at() });
    }
    Ok(Forward {
        boot,
        token,
        within_ms,
        context,
        data,
        policy,
    })
}

/// Bytes of an answer in a body, at most.
pub(super) fn answer_len(answer: &ForwardAnswer) -> usize {
    let result = match &answer.outcome {
        Outcome::Committed { result, .. } => result.len(),
        Outcome::Refused { .. } | Outcome::NotDurable { .. } | Outcome::Unknown { .. } => 0,
    };
    super::FORWARD_OVERHEAD_BYTES + result
}

pub(super) fn put_answer(buf: &mut Vec<u8>, answer: &ForwardAnswer) {
    put_number(buf, answer.boot.to_u64());
    put_number(buf, answer.token);
    match &answer.outcome {
        Outcome::Committed { index, result } => {
            buf.push(0);
            put_number(buf, index.to_u64());
            put_bytes(buf, result);
        }
        Outcome::Refused { why } => {
            buf.push(1);
            put_refusal(buf, *why);
        }
        Outcome::Unknown { why } => {
            buf.push(2);
            buf.push(match why {
                UnknownCause::LeadershipLost => 0,
                UnknownCause::Deadline => 1,
                UnknownCause::Stopped => 2,
                UnknownCause::LinkLost => 3,
                UnknownCause::ResultTooLarge => 4,
            });
        }
        Outcome::NotDurable { index } => {
            buf.push(3);
            put_number(buf, index.to_u64());
        }
    }
}

pub(super) fn read_answer(reader: &mut Reader) -> Result<ForwardAnswer, WireError> {
    let (boot, token) = (Boot::new(reader.wide()?), reader.wide()?);
    let at = reader.at();
    let outcome = match reader.byte()? {
        0 => Outcome::Committed {
            index: Index::new(reader.number()?),
            result: reader.bytes(FORWARD_RESULT_BYTES_MAX)?,
        },
        1 => Outcome::Refused {
            why: read_refusal(reader)?,
        },
        2 => Outcome::Unknown {
            why: read_cause(reader)?,
        },
        3 => Outcome::NotDurable {
            index: Index::new(reader.number()?),
        },
        _ => return Err(WireError::BadFlag { at }),
    };
    Ok(ForwardAnswer {
        boot,
        token,
        outcome,
    })
}

fn read_cause(reader: &mut Reader) -> Result<UnknownCause, WireError> {
    let at = reader.at();
    Ok(match reader.byte()? {
        0 => UnknownCause::LeadershipLost,
        1 => UnknownCause::Deadline,
        2 => UnknownCause::Stopped,
        3 => UnknownCause::LinkLost,
        4 => UnknownCause::ResultTooLarge,
        _ => return Err(WireError::BadFlag { at }),
    })
}

fn put_refusal(buf: &mut Vec<u8>, refusal: Refusal) {
    let mut put = |kind: u8, numbers: &[u64]| {
        buf.push(kind);
        for number in numbers {
            put_number(buf, *number);
        }
    };
    match refusal {
        Refusal::NoSuchGroup(group) => put(0, &[group.to_u64()]),
        Refusal::NotLeader { leader: None } => put(1, &[]),
        Refusal::NotLeader { leader: Some(node) } => put(2, &[node.to_u32().into()]),
        Refusal::Transferring => put(3, &[]),
        Refusal::NotReady { term } => put(4, &[term.to_u64()]),
        Refusal::TooLarge { got, most } => put(5, &[got as u64, most as u64]),
        Refusal::Uncommitted => put(6, &[]),
        Refusal::Unapplied { unapplied, most } => put(7, &[unapplied, most]),
        Refusal::NodeBusy { in_use, most } => put(8, &[in_use, most]),
        Refusal::TooManyWaiting { waiting, most } => put(9, &[waiting as u64, most as u64]),
        Refusal::LogRetained { retained, most } => put(10, &[retained, most]),
        Refusal::Late => put(11, &[]),
        Refusal::Stopped => put(12, &[]),
        Refusal::NotAVoter(replica) => put(13, &[replica.to_u64()]),
        Refusal::Dropped => put(14, &[]),
        Refusal::Empty => put(15, &[]),
        Refusal::RequestIdTooLong { got, most } => put(16, &[got as u64, most as u64]),
        Refusal::InboxFull { waiting, most } => put(17, &[waiting as u64, most as u64]),
        Refusal::LogFull => put(18, &[]),
        Refusal::Overwritten { index } => put(19, &[index.to_u64()]),
        Refusal::NoLeader => put(20, &[]),
        Refusal::NotTaken { leader } => put(21, &[leader.to_u32().into()]),
        Refusal::LogRetainedBytes { retained, most } => put(23, &[retained, most]),
        Refusal::ForwardsFull { waiting, most } => put(22, &[waiting as u64, most as u64]),
        Refusal::Backlogged => put(24, &[]),
        Refusal::OutOfReach(replica) => put(25, &[replica.to_u64()]),
        Refusal::TooFewVoters { wanted, voters } => put(26, &[wanted, voters]),
        Refusal::InlineFull { held, most } => put(27, &[held as u64, most as u64]),
    }
}

fn read_refusal(reader: &mut Reader) -> Result<Refusal, WireError> {
    let at = reader.at();
    Ok(match reader.byte()? {
        0 => Refusal::NoSuchGroup(GroupId::new(reader.number()?)),
        1 => Refusal::NotLeader { leader: None },
        2 => Refusal::NotLeader {
            leader: Some(node(reader)?),
        },
        3 => Refusal::Transferring,
        4 => Refusal::NotReady {
            term: Term::new(reader.number()?),
        },
        5 => Refusal::TooLarge {
            got: size(reader)?,
            most: size(reader)?,
        },
        6 => Refusal::Uncommitted,
        7 => Refusal::Unapplied {
            unapplied: reader.wide()?,
            most: reader.wide()?,
        },
        8 => Refusal::NodeBusy {
            in_use: reader.wide()?,
            most: reader.wide()?,
        },
        9 => Refusal::TooManyWaiting {
            waiting: size(reader)?,
            most: size(reader)?,
        },
        10 => Refusal::LogRetained {
            retained: reader.wide()?,
            most: reader.wide()?,
        },
        11 => Refusal::Late,
        12 => Refusal::Stopped,
        13 => Refusal::NotAVoter(ReplicaId::new(reader.number()?)),
        14 => Refusal::Dropped,
        15 => Refusal::Empty,
        16 => Refusal::RequestIdTooLong {
            got: size(reader)?,
            most: size(reader)?,
        },
        17 => Refusal::InboxFull {
            waiting: size(reader)?,
            most: size(reader)?,
        },
        18 => Refusal::LogFull,
        19 => Refusal::Overwritten {
            index: Index::new(reader.number()?),
        },
        20 => Refusal::NoLeader,
        21 => Refusal::NotTaken {
            leader: node(reader)?,
        },
        23 => Refusal::LogRetainedBytes {
            retained: reader.wide()?,
            most: reader.wide()?,
        },
        22 => Refusal::ForwardsFull {
            waiting: size(reader)?,
            most: size(reader)?,
        },
        24 => Refusal::Backlogged,
        26 => Refusal::TooFewVoters {
            wanted: reader.wide()?,
            voters: reader.wide()?,
        },
        27 => Refusal::InlineFull {
            held: size(reader)?,
            most: size(reader)?,
        },
        25 => Refusal::OutOfReach(ReplicaId::new(reader.number()?)),
        _ => return Err(WireError::BadFlag { at }),
    })
}

fn node(reader: &mut Reader) -> Result<NodeId, WireError> {
    let at = reader.at();
    let number = u32::try_from(reader.number()?).map_err(|_| WireError::BadNumber { at })?;
    Ok(NodeId::new(number))
}

fn size(reader: &mut Reader) -> Result<usize, WireError> {
    let at = reader.at();
    usize::try_from(reader.wide()?).map_err(|_| WireError::BadNumber { at })
}
