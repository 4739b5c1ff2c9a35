//! A command in a group's Raft log: under which request id if any, and what it does. Written by the
//! node that takes it, read by every replica, for ever; hence versioned and compact (an `INCR` takes
//! about 7 bytes beside its key). The same command of a client has the same bytes each time. When it
//! was proposed is the host's note beside it.
//!
//! Layout, version 2: version, flags, with an id: window (u32) and the id's text; then
//! the operations. Fixed numbers are little-endian, others variable-length.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::Op;
use super::codec::{DecodeError, Reader, put_bytes, put_signed, put_varint};
use crate::limits::{
    DEDUP_WINDOW_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX, REQUEST_ARGS_MAX, REQUEST_ID_BYTES_MAX,
    TRANSACTION_OPS_MAX, VALUE_BYTES_MAX,
};
use crate::session::RequestId;

const ENTRY_VERSION: u8 = 2;
const FLAG_IDENTIFIED: u8 = 1;
const FLAG_TRANSACTION: u8 = 2;

/// A command as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Under which id its outcome is saved, if any.
    pub identity: Option<Identity>,
    /// What it does.
    pub body: Body,
}

/// What makes a command safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The client's id.
    pub id: RequestId,
    /// How long, in group time, outcomes are kept: the proposing leader's setting, carried here so
    /// that replicas with another setting still do the same.
    pub window_ms: u32,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// One operation, with its own result.
    Single(Op),
    /// Several operations with nothing between them; the result is the array of theirs. As in
    /// Redis, one that fails doesn't undo the others.
    Transaction(Vec<Op>),
}

impl Body {
    /// Its operations in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        match self {
            Self::Single(op) => std::slice::from_ref(op),
            Self::Transaction(ops) => ops,
        }
    }

    /// Whether any of its operations writes.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.ops().iter().any(Op::is_write)
    }

    /// The first 16 bytes of the SHA-256 of its encoding: tells a repeated command from another
    /// one under the same id.
    #[must_use]
    pub fn hash(&self) -> CommandHash {
        let mut out = BytesMut::new();
        put_body(&mut out, self);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest(&SHA256, &out).as_ref()[..16]);
        CommandHash(hash)
    }
}

/// Names a command's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandHash([u8; 16]);

impl CommandHash {
    /// The hash of a stored record.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// The command's encoding is larger than an entry may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("command of {bytes} bytes exceeds the maximum of {max}")]
pub struct EntryTooLarge {
    /// Its length.
    pub bytes: usize,
    /// The bound.
    pub max: usize,
}

impl Entry {
    /// Its bytes in the log. Never empty: empty bytes are a new leader's own entry.
    ///
    /// # Errors
    /// [`EntryTooLarge`], before anything was proposed.
    pub fn encode(&self) -> Result<Bytes, EntryTooLarge> {
        let mut out = BytesMut::with_capacity(64);
        let identified = if self.identity.is_some() {
            FLAG_IDENTIFIED
        } else {
            0
        };
        let transaction = match self.body {
            Body::Single(_) => 0,
            Body::Transaction(_) => FLAG_TRANSACTION,
        };
        out.put_slice(&[ENTRY_VERSION, identified | transaction]);
        if let Some(identity) = &self.identity {
            out.put_u32_le(identity.window_ms);
            put_bytes(&mut out, identity.id.as_str().as_bytes());
        }
        put_body(&mut out, &self.body);
        if out.len() > ENTRY_BYTES_MAX {
            return Err(EntryTooLarge {
                bytes: out.len(),
                max: ENTRY_BYTES_MAX,
            });
        }
        Ok(out.freeze())
    }

    /// Reads an entry. Keys and values share the memory of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`] for anything that [`Entry::encode`] can't have written from a parsed command.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        if bytes.len() > ENTRY_BYTES_MAX {
            let got = bytes.len() as u64;
            return Err(DecodeError::Bound {
                field: "entry",
                got,
                max: ENTRY_BYTES_MAX as u64,
            });
        }
        let mut reader = Reader::new(bytes);
        let version = reader.byte()?;
        if version != ENTRY_VERSION {
            return Err(DecodeError::Version {
                expected: ENTRY_VERSION,
                got: version,
            });
        }
        let flags = reader.byte()?;
        if flags & !(FLAG_IDENTIFIED | FLAG_TRANSACTION) != 0 {
            return Err(DecodeError::Tag {
                field: "flags",
                got: flags,
            });
        }
        let identity = match flags & FLAG_IDENTIFIED {
            0 => None,
            _ => Some(read_identity(&mut reader)?),
        };
        let body = match flags & FLAG_TRANSACTION {
            0 => Body::Single(read_op(&mut reader)?),
            _ => {
                let count = reader.count("transaction", TRANSACTION_OPS_MAX)?;
                Body::Transaction(
                    (0..count)
                        .map(|_| read_op(&mut reader))
                        .collect::<Result<_, _>>()?,
                )
            }
        };
        reader.end()?;
        if identity.is_some() && !body.ops().iter().all(Op::is_write) {
            return Err(DecodeError::IdentifiedRead);
        }
        Ok(Self { identity, body })
    }
}

fn bounded(field: &'static str, got: u64, max: u64) -> Result<u64, DecodeError> {
    if got > max {
        Err(DecodeError::Bound { field, got, max })
    } else {
        Ok(got)
    }
}

fn read_identity(reader: &mut Reader) -> Result<Identity, DecodeError> {
    let window_max = u64::try_from(DEDUP_WINDOW_MAX.as_millis()).unwrap_or(u64::MAX);
    let window_ms = reader.u32()?;
    bounded("window", u64::from(window_ms), window_max)?;
    let text = reader.bytes("request id", REQUEST_ID_BYTES_MAX)?;
    let id = RequestId::parse(&text).map_err(|_| DecodeError::RequestId)?;
    // Ids are written in one spelling only; another would not be found again.
    if id.as_str().as_bytes() != text {
        return Err(DecodeError::RequestId);
    }
    Ok(Identity { id, window_ms })
}

const TAG_GET: u8 = 1;
const TAG_EXISTS: u8 = 2;
const TAG_MGET: u8 = 3;
const TAG_STRLEN: u8 = 4;
const TAG_SET: u8 = 5;
const TAG_SETNX: u8 = 6;
const TAG_DEL: u8 = 7;
const TAG_MSET: u8 = 8;
const TAG_INCRBY: u8 = 9;
const TAG_APPEND: u8 = 10;

fn put_body(out: &mut BytesMut, body: &Body) {
    if let Body::Transaction(ops) = body {
        put_varint(out, ops.len() as u64);
    }
    for op in body.ops() {
        put_op(out, op);
    }
}

fn put_op(out: &mut BytesMut, op: &Op) {
    match op {
        Op::Get { key } => put_one(out, TAG_GET, key),
        Op::StrLen { key } => put_one(out, TAG_STRLEN, key),
        Op::Exists { keys } => put_many(out, TAG_EXISTS, keys),
        Op::MGet { keys } => put_many(out, TAG_MGET, keys),
        Op::Del { keys } => put_many(out, TAG_DEL, keys),
        Op::Set { key, value } => put_two(out, TAG_SET, key, value),
        Op::SetNx { key, value } => put_two(out, TAG_SETNX, key, value),
        Op::Append { key, value } => put_two(out, TAG_APPEND, key, value),
        Op::MSet { pairs } => {
            out.put_u8(TAG_MSET);
            put_varint(out, pairs.len() as u64);
            for (key, value) in pairs {
                put_bytes(out, key);
                put_bytes(out, value);
            }
        }
        Op::IncrBy { key, delta } => {
            put_one(out, TAG_INCRBY, key);
            put_signed(out, *delta);
        }
    }
}

fn put_one(out: &mut BytesMut, tag: u8, key: &[u8]) {
    out.put_u8(tag);
    put_bytes(out, key);
}

fn put_two(out: &mut BytesMut, tag: u8, key: &[u8], value: &[u8]) {
    put_one(out, tag, key);
    put_bytes(out, value);
}

fn put_many(out: &mut BytesMut, tag: u8, keys: &[Bytes]) {
    out.put_u8(tag);
    put_varint(out, keys.len() as u64);
    for key in keys {
        put_bytes(out, key);
    }
}

fn read_op(reader: &mut Reader) -> Result<Op, DecodeError> {
    Ok(match reader.byte()? {
        TAG_GET => Op::Get {
            key: read_key(reader)?,
        },
        TAG_EXISTS => Op::Exists {
            keys: read_keys(reader)?,
        },
        TAG_MGET => Op::MGet {
            keys: read_keys(reader)?,
        },
        TAG_STRLEN => Op::StrLen {
            key: read_key(reader)?,
        },
        TAG_SET => Op::Set {
            key: read_key(reader)?,
            value: read_value(reader)?,
        },
        TAG_SETNX => Op::SetNx {
            key: read_key(reader)?,
            value: read_value(reader)?,
        },
        TAG_DEL => Op::Del {
            keys: read_keys(reader)?,
        },
        TAG_MSET => {
            let count = read_count(reader, "pairs")?;
            let pairs = (0..count).map(|_| Ok((read_key(reader)?, read_value(reader)?)));
            Op::MSet {
                pairs: pairs.collect::<Result<_, DecodeError>>()?,
            }
        }
        TAG_INCRBY => Op::IncrBy {
            key: read_key(reader)?,
            delta: reader.signed()?,
        },
        TAG_APPEND => Op::Append {
            key: read_key(reader)?,
            value: read_value(reader)?,
        },
        got => {
            return Err(DecodeError::Tag {
                field: "operation",
                got,
            });
        }
    })
}

fn read_count(reader: &mut Reader, field: &'static str) -> Result<usize, DecodeError> {
    match reader.count(field, REQUEST_ARGS_MAX)? {
        0 => Err(DecodeError::Empty { field }),
        count => Ok(count),
    }
}

fn read_keys(reader: &mut Reader) -> Result<Vec<Bytes>, DecodeError> {
    let count = read_count(reader, "keys")?;
    (0..count).map(|_| read_key(reader)).collect()
}

fn read_key(reader: &mut Reader) -> Result<Bytes, DecodeError> {
    reader.bytes("key", KEY_BYTES_MAX)
}

fn read_value(reader: &mut Reader) -> Result<Bytes, DecodeError> {
    reader.bytes("value", VALUE_BYTES_MAX)
}
