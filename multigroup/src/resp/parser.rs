//! Takes requests off a session's bytes: arrays of bulk strings, or inline lines as typed into a
//! terminal. Incremental: what was read once is not read again when more arrives, and arguments
//! share the memory they arrived in.
//!
//! Any bytes may come, in any pieces: how they are cut changes nothing. A request has a bounded
//! number of arguments and bytes and no nesting; at the first fault the session is over, since
//! nothing tells where the next request would begin.

#[cfg(test)]
mod tests;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::limits::{LENGTH_DIGITS_MAX, LINE_BYTES_MAX, REQUEST_ARGS_MAX, REQUEST_BYTES_MAX};

/// What is wrong with a session's bytes. Worded as Redis words it, where it has words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The number of arguments is no number, or beyond the bound.
    #[error("invalid multibulk length")]
    MultibulkLength,
    /// The length of an argument is no number, or beyond the bound.
    #[error("invalid bulk length")]
    BulkLength,
    /// Something else stands where an argument should begin.
    #[error("expected '$', got '{}'", .got.escape_ascii())]
    ExpectedBulk {
        /// Its first byte.
        got: u8,
    },
    /// An argument isn't followed by the end of a line.
    #[error("expected CRLF after a bulk string")]
    ExpectedLineEnd,
    /// A header line without an end.
    #[error("too big count string")]
    HeaderTooLong,
    /// An inline request without an end, or with too many words.
    #[error("too big inline request")]
    InlineTooLong,
    /// An inline request with an open quote, or text right behind a closed one.
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The whole request is beyond the bound.
    #[error("request of more than {max} bytes")]
    RequestTooLarge {
        /// The bound.
        max: usize,
    },
}

/// The parser of one session.
///
/// - P1: `at` and all of `ranges` lie within the bytes not yet taken, and below `at`.
/// - P2: `missing` is `Some` exactly between an array's header and its last argument.
#[derive(Debug, Default)]
pub struct Parser {
    /// Where reading goes on.
    at: usize,
    /// Arguments still to come of the array that is being read.
    missing: Option<usize>,
    /// The length of the argument whose header was read last.
    bulk: Option<usize>,
    /// Where the arguments read so far stand.
    ranges: Vec<(usize, usize)>,
}

impl Parser {
    /// A parser at the start of a session.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next request's arguments, name first; `None` until more has arrived. Never empty: empty
    /// requests are skipped, as in Redis.
    ///
    /// # Errors
    /// [`ProtocolError`], after which the session must end.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        loop {
            if self.missing.is_none() {
                match buffer.first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some(count) = self.read_array_header(buffer)? else {
                            return Ok(None);
                        };
                        if count == 0 {
                            let _ = buffer.split_to(self.at);
                            *self = Self::default();
                            continue;
                        }
                        self.missing = Some(count);
                    }
                    Some(_) => match self.read_inline(buffer)? {
                        None => return Ok(None),
                        Some(args) if args.is_empty() => continue,
                        Some(args) => return Ok(Some(args)),
                    },
                }
            }
            return self.read_args(buffer);
        }
    }

    fn read_array_header(&mut self, buffer: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some((digits, next)) = header_line(buffer, 1)? else {
            return Ok(None);
        };
        let count = match number(digits).ok_or(ProtocolError::MultibulkLength)? {
            ..=0 => 0,
            count => usize::try_from(count).map_err(|_| ProtocolError::MultibulkLength)?,
        };
        if count > REQUEST_ARGS_MAX {
            return Err(ProtocolError::MultibulkLength);
        }
        self.at = next;
        Ok(Some(count))
    }

    /// Reads on within an array; takes it off the buffer once it is whole.
    fn read_args(&mut self, buffer: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        while let Some(missing) = self.missing.filter(|missing| *missing > 0) {
            let length = match self.bulk {
                Some(length) => length,
                None => match self.read_bulk_header(buffer)? {
                    None => return Ok(None),
                    Some(length) => length,
                },
            };
            let end = self.at + length;
            match buffer.get(end..end + 2) {
                None => return Ok(None),
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::ExpectedLineEnd),
            }
            self.ranges.push((self.at, end));
            self.at = end + 2;
            self.bulk = None;
            self.missing = Some(missing - 1);
        }
        let frame = buffer.split_to(self.at).freeze();
        let args = self
            .ranges
            .iter()
            .map(|&(start, end)| frame.slice(start..end))
            .collect();
        // The ranges' memory is kept for the next request, unless this one was extraordinary.
        self.ranges.clear();
        self.ranges.shrink_to(64);
        (self.at, self.missing, self.bulk) = (0, None, None);
        Ok(Some(args))
    }

    fn read_bulk_header(&mut self, buffer: &[u8]) -> Result<Option<usize>, ProtocolError> {
        match buffer.get(self.at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(got) => return Err(ProtocolError::ExpectedBulk { got: *got }),
        }
        let Some((digits, next)) = header_line(buffer, self.at + 1)? else {
            return Ok(None);
        };
        let length = number(digits).and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or(ProtocolError::BulkLength)?;
        if length > REQUEST_BYTES_MAX {
            return Err(ProtocolError::BulkLength);
        }
        if next + length + 2 > REQUEST_BYTES_MAX {
            return Err(ProtocolError::RequestTooLarge {
                max: REQUEST_BYTES_MAX,
            });
        }
        self.at = next;
        self.bulk = Some(length);
        Ok(Some(length))
    }

    fn read_inline(&mut self, buffer: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        let unread = &buffer[self.at..];
        let Some(end) = unread
            .iter()
            .position(|&byte| byte == b'\n')
            .map(|end| self.at + end)
        else {
            self.at = buffer.len();
            let fits = buffer.len() <= LINE_BYTES_MAX;
            return if fits {
                Ok(None)
            } else {
                Err(ProtocolError::InlineTooLong)
            };
        };
        if end > LINE_BYTES_MAX {
            return Err(ProtocolError::InlineTooLong);
        }
        self.at = 0;
        let line = buffer.split_to(end + 1).freeze();
        let line = line
            .strip_suffix(b"\r\n")
            .or_else(|| line.strip_suffix(b"\n"))
            .unwrap_or(&line);
        split_inline(line).map(Some)
    }
}

/// The digits of a header from `start` to its line end, and where the next line begins.
fn header_line(buffer: &[u8], start: usize) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let rest = &buffer[start..];
    let window = &rest[..rest.len().min(LENGTH_DIGITS_MAX + 2)];
    match window.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Ok(Some((&rest[..end], start + end + 2))),
        None if window.len() < LENGTH_DIGITS_MAX + 2 => Ok(None),
        None => Err(ProtocolError::HeaderTooLong),
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    crate::command::parse_integer(digits)
}

/// The words of an inline request: separated by blanks, with `"…"` (and its escapes) and `'…'`.
fn split_inline(line: &[u8]) -> Result<Vec<Bytes>, ProtocolError> {
    let mut args = Vec::new();
    let mut rest = line.trim_ascii_start();
    while let Some(&first) = rest.first() {
        if args.len() == REQUEST_ARGS_MAX {
            return Err(ProtocolError::InlineTooLong);
        }
        let (word, after) = match first {
            b'"' => double_quoted(&rest[1..])?,
            b'\'' => single_quoted(&rest[1..])?,
            _ => bare(rest),
        };
        if matches!(first, b'"' | b'\'') && after.first().is_some_and(|b| !b.is_ascii_whitespace())
        {
            return Err(ProtocolError::UnbalancedQuotes);
        }
        args.push(Bytes::from(word));
        rest = after.trim_ascii_start();
    }
    Ok(args)
}

fn bare(rest: &[u8]) -> (Vec<u8>, &[u8]) {
    let end = rest
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(rest.len());
    (rest[..end].to_vec(), &rest[end..])
}

fn single_quoted(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), ProtocolError> {
    let mut word = Vec::new();
    loop {
        match rest {
            [b'\\', b'\'', after @ ..] => {
                word.push(b'\'');
                rest = after;
            }
            [b'\'', after @ ..] => return Ok((word, after)),
            [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

fn double_quoted(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), ProtocolError> {
    let mut word = Vec::new();
    loop {
        let (byte, after) = match rest {
            [b'\\', b'x', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                (hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0), after)
            }
            [b'\\', escaped, after @ ..] => (unescape(*escaped), after),
            [b'"', after @ ..] => return Ok((word, after)),
            [byte, after @ ..] => (*byte, after),
            [] => return Err(ProtocolError::UnbalancedQuotes),
        };
        word.push(byte);
        rest = after;
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}
