//! Replies, and their bytes in RESP2.

use bytes::{BufMut, Bytes, BytesMut};

use crate::command::Outcome;
use crate::error::{ClientError, Refused};

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A word, such as `OK`. Never holds a line break.
    Word(&'static str),
    /// An error.
    Error(ClientError),
    /// A number.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Bytes),
    /// No value.
    Nil,
    /// Several replies.
    Array(Vec<Self>),
}

impl Reply {
    /// `+OK`.
    pub const OK: Self = Self::Word("OK");

    /// A string from text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Bulk(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Appends its bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Word(word) => put_line(out, b'+', word.as_bytes()),
            Self::Error(error) => {
                // A line break would let a client's own words pass for a reply of ours.
                let line = error.to_string().replace(['\r', '\n'], " ");
                put_line(out, b'-', line.as_bytes());
            }
            Self::Integer(number) => put_number(out, b':', *number),
            Self::Bulk(bytes) => {
                put_number(out, b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
                out.reserve(bytes.len() + 2);
                out.put_slice(bytes);
                out.put_slice(b"\r\n");
            }
            Self::Nil => out.put_slice(b"$-1\r\n"),
            Self::Array(items) => {
                put_number(out, b'*', i64::try_from(items.len()).unwrap_or(i64::MAX));
                items.iter().for_each(|item| item.encode(out));
            }
        }
    }
}

fn put_line(out: &mut BytesMut, kind: u8, line: &[u8]) {
    out.reserve(line.len() + 3);
    out.put_u8(kind);
    out.put_slice(line);
    out.put_slice(b"\r\n");
}

fn put_number(out: &mut BytesMut, kind: u8, number: i64) {
    use std::io::Write as _;
    let mut digits = [0; 20];
    let mut rest = &mut digits[..];
    // Twenty bytes hold any 64-bit number, so this can't fail.
    let _ = write!(rest, "{number}");
    let left = rest.len();
    put_line(out, kind, &digits[..20 - left]);
}

impl From<Outcome> for Reply {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Ok => Self::OK,
            Outcome::Nil => Self::Nil,
            Outcome::Integer(number) => Self::Integer(number),
            Outcome::Bulk(bytes) => Self::Bulk(bytes),
            Outcome::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Outcome::Failed(failure) => Self::Error(failure.into()),
            Outcome::Refused(refusal) => Self::Error(Refused::from(refusal).into()),
        }
    }
}

impl From<ClientError> for Reply {
    fn from(error: ClientError) -> Self {
        Self::Error(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Failure;
    use crate::session::Refusal;

    fn bytes_of(reply: impl Into<Reply>) -> String {
        let mut out = BytesMut::new();
        reply.into().encode(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn every_outcome_has_its_form_on_the_wire() {
        let array = vec![Outcome::Ok, Outcome::Array(vec![]), Outcome::Nil];
        let table = [
            (Outcome::Ok, "+OK\r\n"),
            (Outcome::Nil, "$-1\r\n"),
            (Outcome::Integer(i64::MIN), ":-9223372036854775808\r\n"),
            (Outcome::Integer(0), ":0\r\n"),
            (
                Outcome::Bulk(Bytes::from_static(b"a\r\nb")),
                "$4\r\na\r\nb\r\n",
            ),
            (Outcome::Array(array), "*3\r\n+OK\r\n*0\r\n$-1\r\n"),
            (
                Outcome::Failed(Failure::NotAnInteger),
                "-ERR value is not an integer or out of range\r\n",
            ),
            (
                Outcome::Refused(Refusal::IdReused),
                "-REFUSED IdReused: the id belongs to another command\r\n",
            ),
        ];
        for (outcome, bytes) in table {
            assert_eq!(bytes_of(outcome), bytes);
        }
    }

    #[test]
    fn a_client_s_line_breaks_don_t_get_into_an_error() {
        let name = Bytes::from_static(b"x\r\n+OK");
        let bytes = bytes_of(ClientError::UnknownCommand { name, args: vec![] });
        assert_eq!(bytes.matches("\r\n").count(), 1);
    }
}
