//! Replies of a server as a client reads them: RESP2 bytes to values, bounded in every direction,
//! since a client must not be brought down by what it dialled. Pure; knows no command.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use crate::limits::{
    ANSWER_BYTES_MAX, ANSWER_DEPTH_MAX, ANSWER_ITEMS_MAX, LENGTH_DIGITS_MAX, LINE_BYTES_MAX,
};

/// Bytes of a string that a sentence repeats.
const SHOWN_BYTES_MAX: usize = 100;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A word, such as `OK`.
    Word(Bytes),
    /// An error's line, without the leading `-`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Bytes),
    /// No value.
    Nil,
    /// Several replies.
    Array(Vec<Self>),
}

/// Why bytes are no reply.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// A reply begins with none of `+-:$*`.
    #[error("a reply begins with byte {got:#04x}")]
    Kind {
        /// The byte.
        got: u8,
    },
    /// A number or a length isn't one.
    #[error("a reply's number is no number")]
    Number,
    /// A string doesn't end where its length says.
    #[error("a reply's string doesn't end where its length says")]
    Terminator,
    /// A bound was passed.
    #[error("a reply has {got} {what}, more than {max}")]
    Bound {
        /// What of.
        what: &'static str,
        /// How many there are, as far as that is known.
        got: usize,
        /// The bound.
        max: usize,
    },
    /// More came than was asked for.
    #[error("a reply came that nothing asked for")]
    Unasked,
}

/// For a sentence: a long string is cut.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(bytes) | Self::Bulk(bytes) => {
                let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
                write!(f, "\"{}\"", shown.escape_ascii())
            }
            Self::Error(line) => f.write_str(line.trim_end()),
            Self::Integer(number) => number.fmt(f),
            Self::Nil => f.write_str("no value"),
            Self::Array(items) => write!(f, "an array of {}", items.len()),
        }
    }
}

impl Answer {
    /// Reads the first reply of `bytes`; `None` while it isn't whole. Also gives its length.
    ///
    /// # Errors
    /// [`AnswerError`] once no further byte could make it a reply.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, AnswerError> {
        let mut reader = Reader { bytes, at: 0 };
        match reader.answer(ANSWER_DEPTH_MAX)? {
            None => {
                // No reply within the bound needs more than this.
                bounded("bytes", bytes.len(), ANSWER_BYTES_MAX)?;
                Ok(None)
            }
            Some(answer) => {
                bounded("bytes", reader.at, ANSWER_BYTES_MAX)?;
                Ok(Some((answer, reader.at)))
            }
        }
    }
}

fn bounded(what: &'static str, got: usize, max: usize) -> Result<(), AnswerError> {
    if got > max {
        return Err(AnswerError::Bound { what, got, max });
    }
    Ok(())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn answer(&mut self, depth: usize) -> Result<Option<Answer>, AnswerError> {
        let Some(&kind) = self.bytes.get(self.at) else {
            return Ok(None);
        };
        if !b"+-:$*".contains(&kind) {
            return Err(AnswerError::Kind { got: kind });
        }
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        match kind {
            b'+' => Ok(Some(Answer::Word(Bytes::copy_from_slice(line)))),
            b'-' => Ok(Some(Answer::Error(
                String::from_utf8_lossy(line).into_owned(),
            ))),
            b':' => Ok(Some(Answer::Integer(number(line)?))),
            b'$' => self.bulk(number(line)?),
            _ => self.array(number(line)?, depth),
        }
    }

    /// What stands behind a kind's byte, up to the line's end.
    fn line(&mut self) -> Result<Option<&'a [u8]>, AnswerError> {
        let rest = &self.bytes[self.at + 1..];
        let seen = &rest[..rest.len().min(LINE_BYTES_MAX)];
        let Some(end) = seen.iter().position(|&byte| byte == b'\r') else {
            return if seen.len() == LINE_BYTES_MAX {
                Err(AnswerError::Bound {
                    what: "bytes in a line",
                    got: rest.len(),
                    max: LINE_BYTES_MAX,
                })
            } else {
                Ok(None)
            };
        };
        match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => {
                self.at += end + 3;
                Ok(Some(&rest[..end]))
            }
            Some(_) => Err(AnswerError::Terminator),
        }
    }

    fn bulk(&mut self, length: i64) -> Result<Option<Answer>, AnswerError> {
        if length == -1 {
            return Ok(Some(Answer::Nil));
        }
        let length = usize::try_from(length).map_err(|_| AnswerError::Number)?;
        bounded("bytes in a string", length, ANSWER_BYTES_MAX)?;
        let rest = &self.bytes[self.at..];
        let (Some(text), Some(end)) = (rest.get(..length), rest.get(length..length + 2)) else {
            return Ok(None);
        };
        if end != b"\r\n" {
            return Err(AnswerError::Terminator);
        }
        self.at += length + 2;
        Ok(Some(Answer::Bulk(Bytes::copy_from_slice(text))))
    }

    fn array(&mut self, length: i64, depth: usize) -> Result<Option<Answer>, AnswerError> {
        if length == -1 {
            return Ok(Some(Answer::Nil));
        }
        let length = usize::try_from(length).map_err(|_| AnswerError::Number)?;
        bounded("items in an array", length, ANSWER_ITEMS_MAX)?;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(AnswerError::Bound {
                what: "arrays within arrays",
                got: ANSWER_DEPTH_MAX + 1,
                max: ANSWER_DEPTH_MAX,
            });
        };
        // No room is made on the word of a length alone: an item takes at least three bytes.
        let likely = length.min((self.bytes.len() - self.at) / 3);
        let mut items = Vec::with_capacity(likely);
        for _ in 0..length {
            match self.answer(depth)? {
                None => return Ok(None),
                Some(item) => items.push(item),
            }
        }
        Ok(Some(Answer::Array(items)))
    }
}

fn number(line: &[u8]) -> Result<i64, AnswerError> {
    if line.len() > LENGTH_DIGITS_MAX {
        return Err(AnswerError::Number);
    }
    crate::command::parse_integer(line).ok_or(AnswerError::Number)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::error::ClientError;
    use crate::resp::Reply;

    fn whole(bytes: &[u8]) -> Answer {
        let (answer, used) = Answer::read(bytes).unwrap().unwrap();
        assert_eq!(used, bytes.len());
        answer
    }

    #[test]
    fn what_the_front_encodes_reads_back_and_no_part_of_it_does() {
        let nested = Reply::Array(vec![
            Reply::OK,
            Reply::Array(vec![]),
            Reply::Nil,
            Reply::Integer(i64::MIN),
            Reply::text("a\r\nb"),
            Reply::Error(ClientError::Timeout),
        ]);
        let expected = Answer::Array(vec![
            Answer::Word(Bytes::from_static(b"OK")),
            Answer::Array(vec![]),
            Answer::Nil,
            Answer::Integer(i64::MIN),
            Answer::Bulk(Bytes::from_static(b"a\r\nb")),
            Answer::Error("TIMEOUT".to_owned()),
        ]);
        let mut bytes = BytesMut::new();
        nested.encode(&mut bytes);
        assert_eq!(whole(&bytes), expected);
        for end in 0..bytes.len() {
            assert_eq!(Answer::read(&bytes[..end]), Ok(None), "cut at {end}");
        }
    }

    #[test]
    fn in_a_sentence_an_error_is_itself_and_a_long_string_is_cut() {
        assert_eq!(whole(b"-NOLEADER 7\r\n").to_string(), "NOLEADER 7");
        assert_eq!(whole(b"$3\r\na\r\n\r\n").to_string(), r#""a\r\n""#);
        assert_eq!(whole(&bulk(5000)).to_string().len(), SHOWN_BYTES_MAX + 2);
        assert_eq!(whole(b"*2\r\n:1\r\n:2\r\n").to_string(), "an array of 2");
    }

    #[test]
    fn only_the_first_reply_is_taken() {
        let read = Answer::read(b":1\r\n:2\r\n").unwrap();
        assert_eq!(read, Some((Answer::Integer(1), 4)));
        assert_eq!(whole(b"*-1\r\n"), Answer::Nil);
    }

    #[test]
    fn every_bound_is_held_before_memory_is_taken() {
        let deep = "*1\r\n".repeat(ANSWER_DEPTH_MAX + 1);
        let cases: [(&[u8], &str); 4] = [
            (b"$99999999999\r\n", "bytes in a string"),
            (b"*9999999\r\n", "items in an array"),
            (deep.as_bytes(), "arrays within arrays"),
            (&[b'+'; LINE_BYTES_MAX + 1], "bytes in a line"),
        ];
        for (bytes, expected) in cases {
            let Err(AnswerError::Bound { what, .. }) = Answer::read(bytes) else {
                panic!("{expected} are not bounded")
            };
            assert_eq!(what, expected);
        }
        // Every part within its own bound, and too much together.
        let many = [&b"*4\r\n"[..], &bulk(1 << 20), &bulk(1 << 20)].concat();
        let got = many.len();
        let (what, max) = ("bytes", ANSWER_BYTES_MAX);
        assert_eq!(
            Answer::read(&many),
            Err(AnswerError::Bound { what, got, max })
        );
    }

    fn bulk(length: usize) -> Vec<u8> {
        [
            format!("${length}\r\n").as_bytes(),
            &vec![b'v'; length],
            b"\r\n",
        ]
        .concat()
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let cases: [(&[u8], AnswerError); 6] = [
            (b"HTTP/1.1 400", AnswerError::Kind { got: b'H' }),
            (b":1x\r\n", AnswerError::Number),
            (b":\r\n", AnswerError::Number),
            (b"$-2\r\n", AnswerError::Number),
            (b"$1\r\nxyz", AnswerError::Terminator),
            (b"+a\rb", AnswerError::Terminator),
        ];
        for (bytes, error) in cases {
            assert_eq!(Answer::read(bytes), Err(error));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', any::<u8>()],
            0..200,
        )) {
            if let Ok(Some((_, used))) = Answer::read(&bytes) {
                prop_assert!(used <= bytes.len());
            }
        }
    }
}
