//! What a command came to: the part of an answer that the state machine decides, and that every
//! replica decides alike. It is saved under a request id and forwarded between nodes, so it has an
//! encoding of its own; how a client sees it is the front's business.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::codec::{DecodeError, Reader, put_bytes, put_signed, put_varint};
use crate::limits::{
    OUTCOME_BYTES_MAX, OUTCOME_DEPTH_MAX, REQUEST_ARGS_MAX, TRANSACTION_OPS_MAX, VALUE_BYTES_MAX,
};
use crate::session::{Refusal, UnixMillis};

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, nothing to tell.
    Ok,
    /// No such value.
    Nil,
    /// A number.
    Integer(i64),
    /// A value.
    Bulk(Bytes),
    /// Several results.
    Array(Vec<Self>),
    /// The operation failed on what the store holds, and changed nothing.
    Failed(Failure),
    /// The request id was turned away, and nothing was done.
    Refused(Refusal),
}

/// Why an operation failed on what the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The value is no counter.
    #[error("value is not an integer or out of range")]
    NotAnInteger,
    /// The counter would leave 64 bits.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The value would become too long.
    #[error("string exceeds maximum allowed size")]
    ValueTooLong,
    /// The values asked for are too many bytes for one answer.
    #[error("reply exceeds maximum allowed size")]
    ReplyTooLarge,
}

const TAG_OK: u8 = 0;
const TAG_NIL: u8 = 1;
const TAG_INTEGER: u8 = 2;
const TAG_BULK: u8 = 3;
const TAG_ARRAY: u8 = 4;
const TAG_FAILED: u8 = 5;
const TAG_REFUSED: u8 = 6;

const _: () = assert!(TRANSACTION_OPS_MAX <= REQUEST_ARGS_MAX);

impl Outcome {
    /// About how many bytes it takes, without encoding it.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Ok | Self::Nil => 1,
            Self::Integer(_) | Self::Failed(_) | Self::Refused(_) => 24,
            Self::Bulk(bytes) => bytes.len() + 5,
            Self::Array(items) => items.iter().map(Self::size).sum::<usize>() + 5,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.size());
        put(&mut out, self);
        out.freeze()
    }

    /// Reads an outcome; values share the memory of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`] for anything that is not an outcome and nothing else.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        if bytes.len() > OUTCOME_BYTES_MAX {
            let got = bytes.len() as u64;
            return Err(DecodeError::Bound {
                field: "outcome",
                got,
                max: OUTCOME_BYTES_MAX as u64,
            });
        }
        let mut reader = Reader::new(bytes);
        let outcome = read(&mut reader, OUTCOME_DEPTH_MAX)?;
        reader.end()?;
        Ok(outcome)
    }
}

fn put(out: &mut BytesMut, outcome: &Outcome) {
    match outcome {
        Outcome::Ok => out.put_u8(TAG_OK),
        Outcome::Nil => out.put_u8(TAG_NIL),
        Outcome::Integer(number) => {
            out.put_u8(TAG_INTEGER);
            put_signed(out, *number);
        }
        Outcome::Bulk(bytes) => {
            out.put_u8(TAG_BULK);
            put_bytes(out, bytes);
        }
        Outcome::Array(items) => {
            out.put_u8(TAG_ARRAY);
            put_varint(out, items.len() as u64);
            items.iter().for_each(|item| put(out, item));
        }
        Outcome::Failed(failure) => out.put_slice(&[TAG_FAILED, failure_code(*failure)]),
        Outcome::Refused(refusal) => put_refusal(out, refusal),
    }
}

fn failure_code(failure: Failure) -> u8 {
    match failure {
        Failure::NotAnInteger => 0,
        Failure::Overflow => 1,
        Failure::ValueTooLong => 2,
        Failure::ReplyTooLarge => 3,
    }
}

fn put_refusal(out: &mut BytesMut, refusal: &Refusal) {
    let (code, first, second) = match refusal {
        Refusal::IdTooOld { issued, floor } => (0, issued.to_u64(), floor.to_u64()),
        Refusal::IdAhead { issued, group_time } => (1, issued.to_u64(), group_time.to_u64()),
        Refusal::TableFull { saved } => (2, *saved, 0),
        Refusal::IdReused => (3, 0, 0),
    };
    out.put_slice(&[TAG_REFUSED, code]);
    put_varint(out, first);
    put_varint(out, second);
}

fn read(reader: &mut Reader, depth: usize) -> Result<Outcome, DecodeError> {
    Ok(match reader.byte()? {
        TAG_OK => Outcome::Ok,
        TAG_NIL => Outcome::Nil,
        TAG_INTEGER => Outcome::Integer(reader.signed()?),
        TAG_BULK => Outcome::Bulk(reader.bytes("value", VALUE_BYTES_MAX)?),
        TAG_ARRAY => {
            let max = OUTCOME_DEPTH_MAX as u64;
            let Some(depth) = depth.checked_sub(1) else {
                return Err(DecodeError::Bound {
                    field: "depth",
                    got: max + 1,
                    max,
                });
            };
            let count = reader.count("array", REQUEST_ARGS_MAX)?;
            Outcome::Array(
                (0..count)
                    .map(|_| read(reader, depth))
                    .collect::<Result<_, _>>()?,
            )
        }
        TAG_FAILED => Outcome::Failed(match reader.byte()? {
            0 => Failure::NotAnInteger,
            1 => Failure::Overflow,
            2 => Failure::ValueTooLong,
            3 => Failure::ReplyTooLarge,
            got => {
                return Err(DecodeError::Tag {
                    field: "failure",
                    got,
                });
            }
        }),
        TAG_REFUSED => read_refusal(reader)?,
        got => {
            return Err(DecodeError::Tag {
                field: "outcome",
                got,
            });
        }
    })
}

fn read_refusal(reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let code = reader.byte()?;
    let (first, second) = (reader.varint()?, reader.varint()?);
    let (issued, other) = (UnixMillis::new(first), UnixMillis::new(second));
    Ok(Outcome::Refused(match code {
        0 => Refusal::IdTooOld {
            issued,
            floor: other,
        },
        1 => Refusal::IdAhead {
            issued,
            group_time: other,
        },
        2 => Refusal::TableFull { saved: first },
        3 => Refusal::IdReused,
        got => {
            return Err(DecodeError::Tag {
                field: "refusal",
                got,
            });
        }
    }))
}
