//! The items of a body, each way. Kinds are numbered once and for all; a kind's fields never change
//! within a wire version.

use super::codec::{Reader, number_len, put_bytes, put_number};
use super::forward;
use super::{
    Append, Beat, Beats, ConfChange, Coverage, Dissent, DissentReason, GroupBody, GroupMessage,
    Header, Item, RoundAnswer, Verdict, WireError,
};
use crate::id::{Boot, GroupId, Index, ReplicaId, Round, Term};
use crate::limits::{APPEND_ENTRIES_MAX, ENTRY_BYTES_MAX, GROUPS_PER_SHARD_MAX, ROUND_PARTS_MAX};
use crate::log::api::{EntryKind, LogEntry};

const PRE_VOTE: u8 = 1;
const PRE_VOTE_ANSWER: u8 = 2;
const VOTE: u8 = 3;
const VOTE_ANSWER: u8 = 4;
const APPEND: u8 = 5;
const ACK: u8 = 6;
const REJECT: u8 = 7;
const TIMEOUT_NOW: u8 = 8;
const READ_INDEX: u8 = 9;
const READ_INDEX_ANSWER: u8 = 10;
const BEATS: u8 = 11;
const ANSWER: u8 = 12;
const FORWARD: u8 = 13;
const FORWARD_ANSWER: u8 = 14;

pub(super) fn put_message(buf: &mut Vec<u8>, message: &GroupMessage) {
    let kind = match message.body {
        GroupBody::PreVote { .. } => PRE_VOTE,
        GroupBody::PreVoteAnswer { .. } => PRE_VOTE_ANSWER,
        GroupBody::Vote { .. } => VOTE,
        GroupBody::VoteAnswer { .. } => VOTE_ANSWER,
        GroupBody::Append(_) => APPEND,
        GroupBody::Ack { .. } => ACK,
        GroupBody::Reject { .. } => REJECT,
        GroupBody::TimeoutNow => TIMEOUT_NOW,
        GroupBody::ReadIndex { .. } => READ_INDEX,
        GroupBody::ReadIndexAnswer { .. } => READ_INDEX_ANSWER,
        GroupBody::Forward(_) => FORWARD,
        GroupBody::ForwardAnswer(_) => FORWARD_ANSWER,
    };
    buf.push(kind);
    let Header {
        group,
        from,
        to,
        term,
    } = message.header;
    put_number(buf, group.to_u64());
    put_number(buf, from.to_u64());
    put_number(buf, to.to_u64());
    put_number(buf, term.to_u64());
    match &message.body {
        GroupBody::PreVote {
            last_index,
            last_term,
        } => {
            put_number(buf, last_index.to_u64());
            put_number(buf, last_term.to_u64());
        }
        GroupBody::Vote {
            last_index,
            last_term,
            transfer,
        } => {
            put_number(buf, last_index.to_u64());
            put_number(buf, last_term.to_u64());
            buf.push(u8::from(*transfer));
        }
        GroupBody::PreVoteAnswer { granted } | GroupBody::VoteAnswer { granted } => {
            buf.push(u8::from(*granted));
        }
        GroupBody::Append(append) => put_append(buf, append),
        GroupBody::Ack { index, commit } => {
            put_number(buf, index.to_u64());
            put_number(buf, commit.to_u64());
        }
        GroupBody::Reject {
            rejected,
            hint,
            hint_term,
            commit,
        } => {
            put_number(buf, rejected.to_u64());
            put_number(buf, hint.to_u64());
            put_number(buf, hint_term.to_u64());
            put_number(buf, commit.to_u64());
        }
        GroupBody::TimeoutNow => {}
        GroupBody::ReadIndex { token } => put_number(buf, *token),
        GroupBody::ReadIndexAnswer { token, index } => {
            put_number(buf, *token);
            put_option(buf, index.map(Index::to_u64));
        }
        GroupBody::Forward(forward) => forward::put_forward(buf, forward),
        GroupBody::ForwardAnswer(answer) => forward::put_answer(buf, answer),
    }
}

fn put_option(buf: &mut Vec<u8>, number: Option<u64>) {
    match number {
        None => buf.push(0),
        Some(number) => {
            buf.push(1);
            put_number(buf, number);
        }
    }
}

fn put_append(buf: &mut Vec<u8>, append: &Append) {
    put_number(buf, append.prev_index.to_u64());
    put_number(buf, append.prev_term.to_u64());
    put_number(buf, append.commit.to_u64());
    put_number(buf, append.entries.len() as u64);
    for entry in &append.entries {
        buf.push(match entry.kind {
            EntryKind::Normal => 0,
            EntryKind::ConfChange => 1,
        });
        put_number(buf, entry.term.to_u64());
        put_bytes(buf, &entry.data);
        put_bytes(buf, &entry.context);
    }
}

pub(super) fn entry_len(entry: &LogEntry) -> usize {
    let (data, context) = (entry.data.len(), entry.context.len());
    1 + number_len(entry.term.to_u64())
        + number_len(data as u64)
        + data
        + number_len(context as u64)
        + context
}

pub(super) fn put_beats(buf: &mut Vec<u8>, beats: &Beats) {
    buf.push(BEATS);
    put_number(buf, beats.round.to_u64());
    put_number(buf, beats.part.into());
    buf.push(u8::from(beats.last));
    put_number(buf, beats.from_boot.to_u64());
    put_number(buf, beats.to_boot.to_u64());
    match beats.coverage {
        Coverage::Full => buf.push(0),
        Coverage::Since(base) => {
            buf.push(1);
            put_number(buf, base.to_u64());
        }
        Coverage::Partial => buf.push(2),
    }
    put_number(buf, beats.removed.len() as u64);
    let mut previous = None;
    for group in &beats.removed {
        put_number(buf, gap(*group, previous));
        previous = Some(*group);
    }
    put_number(buf, beats.beats.len() as u64);
    let mut previous = None;
    for beat in &beats.beats {
        put_number(buf, gap(beat.group, previous));
        put_number(buf, beat.from.to_u64());
        put_number(buf, beat.to.to_u64());
        put_number(buf, beat.term.to_u64());
        put_number(buf, beat.commit.to_u64());
        put_number(buf, lag(beat));
        previous = Some(beat.group);
    }
}

/// Groups go as the distance to the one before.
fn gap(group: GroupId, previous: Option<GroupId>) -> u64 {
    group.to_u64() - previous.map_or(0, GroupId::to_u64)
}

fn lag(beat: &Beat) -> u64 {
    beat.commit
        .to_u64()
        .saturating_sub(beat.retain_after.to_u64())
}

pub(super) fn beat_len(beat: &Beat, previous: Option<GroupId>) -> usize {
    number_len(gap(beat.group, previous))
        + number_len(beat.from.to_u64())
        + number_len(beat.to.to_u64())
        + number_len(beat.term.to_u64())
        + number_len(beat.commit.to_u64())
        + number_len(lag(beat))
}

pub(super) fn put_answer(buf: &mut Vec<u8>, answer: &RoundAnswer) {
    buf.push(ANSWER);
    put_number(buf, answer.round.to_u64());
    put_number(buf, answer.part.into());
    put_number(buf, answer.from_boot.to_u64());
    put_number(buf, answer.to_boot.to_u64());
    let Verdict::Taken(dissents) = &answer.verdict else {
        buf.push(1);
        return;
    };
    buf.push(0);
    put_number(buf, dissents.len() as u64);
    let mut previous = None;
    for dissent in dissents {
        put_number(buf, gap(dissent.group, previous));
        previous = Some(dissent.group);
        match dissent.reason {
            DissentReason::Unknown => buf.push(0),
            DissentReason::WrongReplica => buf.push(1),
            DissentReason::HigherTerm(term) => {
                buf.push(2);
                put_number(buf, term.to_u64());
            }
            DissentReason::NotFollowing => buf.push(3),
            DissentReason::Behind => buf.push(4),
            DissentReason::NotYet => buf.push(5),
        }
    }
}

pub(super) fn read_item(reader: &mut Reader) -> Result<Item, WireError> {
    let at = reader.at();
    let kind = reader.byte()?;
    match kind {
        BEATS => Ok(Item::Beats(read_beats(reader)?)),
        ANSWER => Ok(Item::Answer(read_answer(reader)?)),
        PRE_VOTE..=READ_INDEX_ANSWER | FORWARD | FORWARD_ANSWER => {
            Ok(Item::Group(read_message(reader, kind)?))
        }
        _ => Err(WireError::UnknownKind { kind, at }),
    }
}

fn read_message(reader: &mut Reader, kind: u8) -> Result<GroupMessage, WireError> {
    let header = Header {
        group: GroupId::new(reader.number()?),
        from: replica(reader)?,
        to: replica(reader)?,
        term: Term::new(reader.number()?),
    };
    if header.from == header.to || header.term == Term::new(0) {
        return Err(WireError::AtOdds { at: reader.at() });
    }
    let body = match kind {
        PRE_VOTE => GroupBody::PreVote {
            last_index: index(reader)?,
            last_term: term(reader)?,
        },
        VOTE => GroupBody::Vote {
            last_index: index(reader)?,
            last_term: term(reader)?,
            transfer: reader.flag()?,
        },
        PRE_VOTE_ANSWER => GroupBody::PreVoteAnswer {
            granted: reader.flag()?,
        },
        VOTE_ANSWER => GroupBody::VoteAnswer {
            granted: reader.flag()?,
        },
        APPEND => GroupBody::Append(read_append(reader, header.term)?),
        ACK => GroupBody::Ack {
            index: index(reader)?,
            commit: index(reader)?,
        },
        REJECT => GroupBody::Reject {
            rejected: index(reader)?,
            hint: index(reader)?,
            hint_term: term(reader)?,
            commit: index(reader)?,
        },
        TIMEOUT_NOW => GroupBody::TimeoutNow,
        FORWARD => GroupBody::Forward(forward::read_forward(reader)?),
        FORWARD_ANSWER => GroupBody::ForwardAnswer(forward::read_answer(reader)?),
        READ_INDEX => GroupBody::ReadIndex {
            token: reader.wide()?,
        },
        _ => GroupBody::ReadIndexAnswer {
            token: reader.wide()?,
            index: if reader.flag()? {
                Some(index(reader)?)
            } else {
                None
            },
        },
    };
    Ok(GroupMessage { header, body })
}

fn replica(reader: &mut Reader) -> Result<ReplicaId, WireError> {
    match reader.number()? {
        0 => Err(WireError::AtOdds { at: reader.at() }),
        replica => Ok(ReplicaId::new(replica)),
    }
}

fn index(reader: &mut Reader) -> Result<Index, WireError> {
    reader.number().map(Index::new)
}

fn term(reader: &mut Reader) -> Result<Term, WireError> {
    reader.number().map(Term::new)
}

/// Entries' terms rise from the one before them and never pass the message's; a configuration
/// change is decoded here, before anything may append it.
fn read_append(reader: &mut Reader, message_term: Term) -> Result<Append, WireError> {
    let prev_index = index(reader)?;
    let prev_term = term(reader)?;
    let commit = index(reader)?;
    let count = reader.count(4, APPEND_ENTRIES_MAX)?;
    let mut entries = Vec::with_capacity(count);
    let (mut at, mut least_term) = (prev_index, prev_term);
    for _ in 0..count {
        let kind = if reader.flag()? {
            EntryKind::ConfChange
        } else {
            EntryKind::Normal
        };
        let entry_term = term(reader)?;
        let before_any = entry_term == Term::new(0);
        if before_any || entry_term < least_term || entry_term > message_term {
            return Err(WireError::AtOdds { at: reader.at() });
        }
        let data = reader.bytes(ENTRY_BYTES_MAX)?;
        let context = reader.bytes(ENTRY_BYTES_MAX - data.len())?;
        if kind == EntryKind::ConfChange {
            ConfChange::decode(&data)?;
        }
        at = at.next();
        least_term = entry_term;
        entries.push(LogEntry {
            index: at,
            term: entry_term,
            kind,
            data,
            context,
        });
    }
    // Term 0 is nobody's: Raft takes it for "no such entry" and would match anything by it.
    let origin = (prev_index == Index::new(0), prev_term == Term::new(0));
    if prev_term > message_term || origin.0 != origin.1 {
        return Err(WireError::AtOdds { at: reader.at() });
    }
    Ok(Append {
        prev_index,
        prev_term,
        commit,
        entries,
    })
}

fn read_group(reader: &mut Reader, previous: Option<GroupId>) -> Result<GroupId, WireError> {
    let distance = reader.number()?;
    match previous {
        None => Ok(GroupId::new(distance)),
        Some(previous) => {
            // Two numbers below NUMBER_MAX never overflow.
            let group = previous.to_u64() + distance;
            if distance == 0 || group >= crate::limits::NUMBER_MAX {
                return Err(WireError::AtOdds { at: reader.at() });
            }
            Ok(GroupId::new(group))
        }
    }
}

fn part(reader: &mut Reader) -> Result<u32, WireError> {
    let at = reader.at();
    let part = u32::try_from(reader.number()?).map_err(|_| WireError::BadNumber { at })?;
    if part < ROUND_PARTS_MAX {
        Ok(part)
    } else {
        Err(WireError::BadNumber { at })
    }
}

fn read_beats(reader: &mut Reader) -> Result<Beats, WireError> {
    let round = Round::new(reader.number()?);
    let part = part(reader)?;
    let last = reader.flag()?;
    let from_boot = Boot::new(reader.wide()?);
    let to_boot = Boot::new(reader.wide()?);
    let at = reader.at();
    let coverage = match reader.byte()? {
        0 => Coverage::Full,
        1 => Coverage::Since(Round::new(reader.number()?)),
        2 => Coverage::Partial,
        _ => return Err(WireError::BadFlag { at }),
    };
    let count = reader.count(1, GROUPS_PER_SHARD_MAX)?;
    if count > 0 && !matches!(coverage, Coverage::Since(_)) {
        return Err(WireError::AtOdds { at: reader.at() });
    }
    let mut removed = Vec::with_capacity(count);
    for _ in 0..count {
        removed.push(read_group(reader, removed.last().copied())?);
    }
    let count = reader.count(6, GROUPS_PER_SHARD_MAX)?;
    let mut beats: Vec<Beat> = Vec::with_capacity(count);
    for _ in 0..count {
        let group = read_group(reader, beats.last().map(|beat| beat.group))?;
        let (from, to) = (replica(reader)?, replica(reader)?);
        let (term, commit) = (term(reader)?, index(reader)?);
        let lag = reader.number()?;
        if from == to || term == Term::new(0) || lag > commit.to_u64() {
            return Err(WireError::AtOdds { at: reader.at() });
        }
        let retain_after = Index::new(commit.to_u64() - lag);
        beats.push(Beat {
            group,
            from,
            to,
            term,
            commit,
            retain_after,
        });
    }
    Ok(Beats {
        round,
        part,
        last,
        from_boot,
        to_boot,
        coverage,
        removed,
        beats,
    })
}

fn read_answer(reader: &mut Reader) -> Result<RoundAnswer, WireError> {
    let round = Round::new(reader.number()?);
    let part = part(reader)?;
    let from_boot = Boot::new(reader.wide()?);
    let to_boot = Boot::new(reader.wide()?);
    if reader.flag()? {
        let verdict = Verdict::Restate;
        return Ok(RoundAnswer {
            round,
            part,
            from_boot,
            to_boot,
            verdict,
        });
    }
    let count = reader.count(2, GROUPS_PER_SHARD_MAX)?;
    let mut dissents: Vec<Dissent> = Vec::with_capacity(count);
    for _ in 0..count {
        let group = read_group(reader, dissents.last().map(|dissent| dissent.group))?;
        let at = reader.at();
        let reason = match reader.byte()? {
            0 => DissentReason::Unknown,
            1 => DissentReason::WrongReplica,
            2 => DissentReason::HigherTerm(term(reader)?),
            3 => DissentReason::NotFollowing,
            4 => DissentReason::Behind,
            5 => DissentReason::NotYet,
            _ => return Err(WireError::BadFlag { at }),
        };
        dissents.push(Dissent { group, reason });
    }
    let verdict = Verdict::Taken(dissents);
    Ok(RoundAnswer {
        round,
        part,
        from_boot,
        to_boot,
        verdict,
    })
}
