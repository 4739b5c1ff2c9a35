//! The primitives of the wire: little-endian base-128 numbers, bytes with a length, and a reader
//! that never reads past its end and never allocates on a peer's word.
//!
//! A number has one encoding: the shortest. Lengths are checked against the bytes that are there
//! before anything is taken.

use bytes::Bytes;

use super::WireError;
use crate::limits::NUMBER_MAX;

/// Appends a number.
pub(super) fn put_number(buf: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or(0x7f);
        number >>= 7;
        if number == 0 {
            buf.push(low);
            return;
        }
        buf.push(low | 0x80);
    }
}

/// Bytes that [`put_number`] takes.
pub(super) fn number_len(number: u64) -> usize {
    let bits = usize::try_from(64 - (number | 1).leading_zeros()).unwrap_or(64);
    bits.div_ceil(7)
}

/// Appends a length and the bytes.
pub(super) fn put_bytes(buf: &mut Vec<u8>, bytes: &[u8]) {
    put_number(buf, bytes.len() as u64);
    buf.extend_from_slice(bytes);
}

/// What is left of a body.
#[derive(Debug)]
pub(super) struct Reader {
    body: Bytes,
    at: usize,
}

impl Reader {
    pub(super) fn new(body: Bytes) -> Self {
        Self { body, at: 0 }
    }

    pub(super) fn left(&self) -> usize {
        self.body.len() - self.at
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.left() == 0
    }

    pub(super) fn byte(&mut self) -> Result<u8, WireError> {
        let byte = *self
            .body
            .get(self.at)
            .ok_or(WireError::Truncated { at: self.at })?;
        self.at += 1;
        Ok(byte)
    }

    /// A number of 64 bits, in its shortest form.
    pub(super) fn wide(&mut self) -> Result<u64, WireError> {
        let start = self.at;
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let low = u64::from(byte & 0x7f);
            if shift == 63 && low > 1 {
                break;
            }
            number |= low << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    break;
                }
                return Ok(number);
            }
        }
        Err(WireError::BadNumber { at: start })
    }

    /// A term, an index or an id: below [`NUMBER_MAX`], so that sums of two can't overflow.
    pub(super) fn number(&mut self) -> Result<u64, WireError> {
        let start = self.at;
        let number = self.wide()?;
        if number >= NUMBER_MAX {
            return Err(WireError::BadNumber { at: start });
        }
        Ok(number)
    }

    /// A count of things that take at least `bytes_each`, and at most `most` of them.
    pub(super) fn count(&mut self, bytes_each: usize, most: usize) -> Result<usize, WireError> {
        let start = self.at;
        let count = usize::try_from(self.wide()?).unwrap_or(usize::MAX);
        if count > most || count > self.left() / bytes_each.max(1) {
            return Err(WireError::BadCount { at: start });
        }
        Ok(count)
    }

    /// Bytes with their length in front. What is most of the body is shared with it, what is little
    /// is copied: a short entry must not keep a whole frame alive in the log's cache.
    pub(super) fn bytes(&mut self, most: usize) -> Result<Bytes, WireError> {
        let len = self.count(1, most)?;
        let range = self.at..self.at + len;
        self.at += len;
        if len == 0 {
            return Ok(Bytes::new());
        }
        if len >= self.body.len() / 2 {
            return Ok(self.body.slice(range));
        }
        Ok(Bytes::copy_from_slice(&self.body[range]))
    }

    /// A byte that is 0 or 1.
    pub(super) fn flag(&mut self) -> Result<bool, WireError> {
        let at = self.at;
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::BadFlag { at }),
        }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }
}
