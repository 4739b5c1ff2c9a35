//! Reading and writing the bounded binary encodings of entries and outcomes: variable-length
//! numbers and length-prefixed bytes. Any bytes at all may come in; a reader never panics, never
//! allocates for more than it was given, and says by name what is wrong.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

/// Why bytes are no entry, or no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They end too soon.
    #[error("encoding ends too soon")]
    Truncated,
    /// There are more than belong to it.
    #[error("{bytes} bytes follow the encoding's end")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// Another version of this program wrote them.
    #[error("encoding has version {got}, this program reads {expected}")]
    Version {
        /// What this program reads.
        expected: u8,
        /// What they say.
        got: u8,
    },
    /// A tag that this version doesn't have.
    #[error("unknown {field} tag {got}")]
    Tag {
        /// Of what.
        field: &'static str,
        /// The tag.
        got: u8,
    },
    /// A length or number beyond its bound.
    #[error("{field} of {got} exceeds the maximum of {max}")]
    Bound {
        /// Of what.
        field: &'static str,
        /// What they say.
        got: u64,
        /// The bound.
        max: u64,
    },
    /// A list that can't be empty is.
    #[error("{field} is empty")]
    Empty {
        /// Which.
        field: &'static str,
    },
    /// A request id that no client could have sent.
    #[error("malformed request id")]
    RequestId,
    /// A request id on a command whose outcome can't be saved.
    #[error("request id on a command that reads")]
    IdentifiedRead,
}

/// Takes fields off the front of what is left.
pub(crate) struct Reader {
    rest: Bytes,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        self.rest.try_get_u8().map_err(|_| DecodeError::Truncated)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.rest
            .try_get_u32_le()
            .map_err(|_| DecodeError::Truncated)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Bound {
            field: "number",
            got: u64::MAX,
            max: u64::MAX,
        })
    }

    pub(crate) fn signed(&mut self) -> Result<i64, DecodeError> {
        let zigzag = self.varint()?;
        Ok(((zigzag >> 1) as i64) ^ -((zigzag & 1) as i64))
    }

    /// A count of items of at least one byte each, so that it can't exceed what is left.
    pub(crate) fn count(&mut self, field: &'static str, max: usize) -> Result<usize, DecodeError> {
        let got = self.varint()?;
        let count = usize::try_from(got).ok().filter(|count| *count <= max);
        let count = count.ok_or(DecodeError::Bound {
            field,
            got,
            max: max as u64,
        })?;
        if count > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    pub(crate) fn bytes(&mut self, field: &'static str, max: usize) -> Result<Bytes, DecodeError> {
        let length = self.count(field, max)?;
        Ok(self.rest.split_to(length))
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }
}

pub(crate) fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub(crate) fn put_signed(out: &mut BytesMut, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}
