//! What a message looks like: a header of 24 bytes, a body, a tag of 16. The wire document in
//! `plans/wire.md` is the standard, this file its one implementation. Order and authenticity are
//! `fifo`'s business, whole messages `deframer`'s.
//!
//! ```text
//!  0      1        2     3     4            8             16             24        24+n     40+n
//!  | kind | version| lane| form| length u32 | sequence u64| word u64     | body[n] | tag    |
//! ```
//!
//! Numbers are big-endian. `word` holds a frame's remaining time and item count, or the sequence
//! that a reply answers; it is zero elsewhere.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::{PeerMisbehaved, RefusalReason};
use crate::id::{Lane, Sequence};
use crate::limits::{
    BULK_BODY_BYTES_MAX, CONTROL_BODY_BYTES_MAX, FRAME_ITEMS_MAX, HEADER_BYTES,
    HELLO_BODY_BYTES_MAX, ITEM_PREFIX_BYTES, REMAINING_MAX, REPLY_BODY_BYTES_MAX, TAG_BYTES,
};

/// The framing's version, in every header.
pub const FRAMING_VERSION: u8 = 1;

/// The kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The dialler's first message.
    Hello = 1,
    /// The acceptor's answer: the session is up.
    HelloAnswer = 2,
    /// The acceptor's other answer: it won't have the dialler.
    Refusal = 3,
    /// The dialler's items.
    Frame = 4,
    /// The acceptor's answer to one frame.
    Reply = 5,
    /// The sessions that its sender holds; reserved for the dial-back rule.
    Confirm = 6,
    /// The last message of a side that ends the session deliberately.
    Close = 7,
}

impl Kind {
    const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::HelloAnswer,
            3 => Self::Refusal,
            4 => Self::Frame,
            5 => Self::Reply,
            6 => Self::Confirm,
            7 => Self::Close,
            _ => return None,
        })
    }

    /// The most bytes a body of this kind may have.
    #[must_use]
    pub const fn body_bytes_max(self, lane: Lane) -> usize {
        match self {
            Self::Frame => frame_body_bytes_max(lane),
            Self::Reply => REPLY_BODY_BYTES_MAX,
            Self::Hello | Self::HelloAnswer | Self::Refusal | Self::Confirm | Self::Close => {
                HELLO_BODY_BYTES_MAX
            }
        }
    }
}

/// Bytes of a frame's body on a lane, item prefixes included.
#[must_use]
pub const fn frame_body_bytes_max(lane: Lane) -> usize {
    match lane {
        Lane::Control => CONTROL_BODY_BYTES_MAX,
        Lane::Bulk => BULK_BODY_BYTES_MAX,
    }
}

/// Payload bytes of the largest item that a frame of the lane can hold.
#[must_use]
pub const fn item_bytes_max(lane: Lane) -> usize {
    frame_body_bytes_max(lane) - ITEM_PREFIX_BYTES
}

/// Which side of a session reads: each kind but two may come from one side only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that dialled: it sends frames and reads replies.
    Dialler,
    /// The side that accepted: it reads frames and sends replies.
    Acceptor,
}

/// A message's first 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// The lane of its session.
    pub lane: Lane,
    /// A kind's variant: of replies, see [`ReplyForm`]; zero elsewhere.
    pub form: u8,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Its place in its session and direction.
    pub sequence: Sequence,
    /// By kind, see the head of this file.
    pub word: u64,
}

impl Header {
    /// Writes it.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u8(self.kind as u8);
        out.put_u8(FRAMING_VERSION);
        out.put_u8(lane_number(self.lane));
        out.put_u8(self.form);
        out.put_u32(self.body_bytes);
        out.put_u64(self.sequence.to_u64());
        out.put_u64(self.word);
    }

    /// Reads it and refuses what no `reader` may be sent, by the header alone and before a body
    /// is awaited. The lane is checked against `lane` where that is known.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn decode(
        bytes: &[u8; HEADER_BYTES],
        reader: Side,
        lane: Option<Lane>,
    ) -> Result<Self, PeerMisbehaved> {
        let [number, version, lane_byte, form, l0, l1, l2, l3, rest @ ..] = *bytes;
        if version != FRAMING_VERSION {
            return Err(PeerMisbehaved::UnknownVersion {
                expected: FRAMING_VERSION,
                got: version,
            });
        }
        let Some(kind) = Kind::from_u8(number) else {
            return Err(PeerMisbehaved::UnknownKind { got: number });
        };
        let from_reader = match reader {
            Side::Dialler => matches!(kind, Kind::Hello | Kind::Frame),
            Side::Acceptor => matches!(kind, Kind::HelloAnswer | Kind::Refusal | Kind::Reply),
        };
        if from_reader {
            return Err(PeerMisbehaved::Reflected { got: number });
        }
        let named = lane_of(lane_byte);
        let expected = lane.or(named).unwrap_or(Lane::Control);
        if named != Some(expected) {
            return Err(PeerMisbehaved::WrongLane {
                expected,
                got: lane_byte,
            });
        }
        let body_bytes = u32::from_be_bytes([l0, l1, l2, l3]);
        let max = kind.body_bytes_max(expected);
        if body_bytes as usize > max {
            let max = u32::try_from(max).unwrap_or(u32::MAX);
            return Err(PeerMisbehaved::OversizedBody {
                kind: number,
                got: body_bytes,
                max,
            });
        }
        let [s0, s1, s2, s3, s4, s5, s6, s7, word @ ..] = rest;
        let header = Self {
            kind,
            lane: expected,
            form,
            body_bytes,
            sequence: Sequence::new(u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7])),
            word: u64::from_be_bytes(word),
        };
        if header.has_valid_form() {
            Ok(header)
        } else {
            Err(PeerMisbehaved::BadHeader { kind: number })
        }
    }

    fn has_valid_form(&self) -> bool {
        match self.kind {
            Kind::Frame => {
                let items = usize::from(self.items());
                self.form == 0 && self.word & 0xffff == 0 && (1..=FRAME_ITEMS_MAX).contains(&items)
            }
            Kind::Reply => ReplyForm::from_u8(self.form).is_some(),
            Kind::Hello | Kind::HelloAnswer | Kind::Refusal | Kind::Confirm | Kind::Close => {
                self.form == 0 && self.word == 0
            }
        }
    }

    /// A frame's number of items.
    #[must_use]
    pub const fn items(&self) -> u16 {
        (self.word >> 16) as u16
    }

    /// A frame's remaining time when it was begun.
    #[must_use]
    pub const fn remaining(&self) -> Duration {
        Duration::from_millis(self.word >> 32)
    }

    /// The sequence that a reply answers.
    #[must_use]
    pub const fn answers(&self) -> Sequence {
        Sequence::new(self.word)
    }
}

const fn lane_number(lane: Lane) -> u8 {
    match lane {
        Lane::Control => 1,
        Lane::Bulk => 2,
    }
}

const fn lane_of(number: u8) -> Option<Lane> {
    match number {
        1 => Some(Lane::Control),
        2 => Some(Lane::Bulk),
        _ => None,
    }
}

/// A frame's word. Time left is rounded up, so that a frame never looks late for less than the
/// unit it is carried in.
#[must_use]
pub fn frame_word(remaining: Duration, items: u16) -> u64 {
    let millis = remaining.min(REMAINING_MAX).as_nanos().div_ceil(1_000_000);
    let millis = u64::try_from(millis)
        .unwrap_or(u64::MAX)
        .min(u64::from(u32::MAX));
    millis << 32 | u64::from(items) << 16
}

/// Room for a message with a body of this size, its tag included.
#[must_use]
pub fn message_buffer(body_bytes: usize) -> BytesMut {
    BytesMut::with_capacity(HEADER_BYTES + body_bytes + TAG_BYTES)
}

/// Appends one item of a frame. It fits: [`item_bytes_max`] bounds what is sent.
pub fn put_item(out: &mut impl BufMut, item: &[u8]) {
    out.put_u32(u32::try_from(item.len()).unwrap_or(u32::MAX));
    out.put_slice(item);
}

/// Splits a frame's body into its items.
///
/// # Errors
/// [`PeerMisbehaved::MalformedBody`] when the lengths don't add up to exactly the body.
pub fn split_items(
    mut body: Bytes,
    items: u16,
    sequence: Sequence,
) -> Result<Vec<Bytes>, PeerMisbehaved> {
    let malformed = PeerMisbehaved::MalformedBody { sequence, items };
    let mut out = Vec::with_capacity(usize::from(items));
    for _ in 0..items {
        let Some(prefix) = body.first_chunk::<ITEM_PREFIX_BYTES>() else {
            return Err(malformed);
        };
        let bytes = u32::from_be_bytes(*prefix) as usize;
        if bytes > body.len() - ITEM_PREFIX_BYTES {
            return Err(malformed);
        }
        let _ = body.split_to(ITEM_PREFIX_BYTES);
        out.push(body.split_to(bytes));
    }
    if body.is_empty() {
        Ok(out)
    } else {
        Err(malformed)
    }
}

/// The variants of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplyForm {
    /// All items were taken; the body is the host's answer.
    Taken = 1,
    /// None was; the body is the reason, one byte.
    Refused = 2,
    /// For each item: a status byte, 0 or the reason, and an answer with its length.
    PerItem = 3,
}

impl ReplyForm {
    const fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Taken),
            2 => Some(Self::Refused),
            3 => Some(Self::PerItem),
            _ => None,
        }
    }
}

/// What a host answers to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took all items; every receipt gets these bytes.
    Taken(Bytes),
    /// It took none.
    Refused(RefusalReason),
    /// Its verdict on each item, in order; as many as the frame had.
    PerItem(Vec<Result<Bytes, RefusalReason>>),
}

impl Answer {
    /// The form and the body, or the refusal in its place where the answer doesn't fit.
    pub(crate) fn encode(&self, items: u16) -> (ReplyForm, Bytes) {
        let refused = |reason: RefusalReason| {
            (
                ReplyForm::Refused,
                Bytes::copy_from_slice(&[reason.to_u8()]),
            )
        };
        match self {
            Self::Taken(answer) if answer.len() <= REPLY_BODY_BYTES_MAX => {
                (ReplyForm::Taken, answer.clone())
            }
            Self::Taken(_) => refused(RefusalReason::AnswerTooLong),
            Self::Refused(reason) => refused(*reason),
            Self::PerItem(verdicts) if verdicts.len() != usize::from(items) => {
                refused(RefusalReason::Unanswered)
            }
            Self::PerItem(verdicts) => {
                let bytes = |verdict: &Result<Bytes, _>| 5 + verdict.as_ref().map_or(0, Bytes::len);
                let total: usize = verdicts.iter().map(bytes).sum();
                if total > REPLY_BODY_BYTES_MAX {
                    return refused(RefusalReason::AnswerTooLong);
                }
                let mut body = BytesMut::with_capacity(total);
                for verdict in verdicts {
                    body.put_u8(verdict.as_ref().err().map_or(0, |reason| reason.to_u8()));
                    put_item(&mut body, verdict.as_deref().unwrap_or_default());
                }
                (ReplyForm::PerItem, body.freeze())
            }
        }
    }

    /// Reads the body of a reply to a frame of `items` items.
    ///
    /// # Errors
    /// [`PeerMisbehaved::MalformedBody`] when it isn't one.
    pub(crate) fn decode(
        header: &Header,
        mut body: Bytes,
        items: u16,
    ) -> Result<Self, PeerMisbehaved> {
        let malformed = PeerMisbehaved::MalformedBody {
            sequence: header.sequence,
            items,
        };
        match ReplyForm::from_u8(header.form) {
            Some(ReplyForm::Taken) => Ok(Self::Taken(body)),
            Some(ReplyForm::Refused) => match body[..] {
                [reason] if reason != 0 => Ok(Self::Refused(RefusalReason::from_u8(reason))),
                _ => Err(malformed),
            },
            Some(ReplyForm::PerItem) => {
                let mut verdicts = Vec::with_capacity(usize::from(items));
                for _ in 0..items {
                    let Some([status, l0, l1, l2, l3]) = body.first_chunk().copied() else {
                        return Err(malformed);
                    };
                    let bytes = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
                    if bytes > body.len() - 5 || (status != 0 && bytes != 0) {
                        return Err(malformed);
                    }
                    let _ = body.split_to(5);
                    let answer = body.split_to(bytes);
                    verdicts.push(match status {
                        0 => Ok(answer),
                        reason => Err(RefusalReason::from_u8(reason)),
                    });
                }
                if body.is_empty() {
                    Ok(Self::PerItem(verdicts))
                } else {
                    Err(malformed)
                }
            }
            None => Err(PeerMisbehaved::BadHeader {
                kind: header.kind as u8,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
