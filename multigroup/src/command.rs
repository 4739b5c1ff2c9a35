//! The commands of the store: what a client's words mean, as types. From words to commands is here
//! ([`parse`]); their bytes in the log are in `entry.rs`, their results in `outcome.rs`.
//!
//! Left to others: who answers (`resp`), where (`keyspace`, the host), and with what effect
//! (`store`). A command that was parsed keeps every bound of `limits.rs`.

pub(crate) mod codec;
mod entry;
mod outcome;
#[cfg(test)]
mod tests;

pub use self::codec::DecodeError;
pub use self::entry::{Body, CommandHash, Entry, EntryTooLarge, Identity};
pub use self::outcome::{Failure, Outcome};

use bytes::Bytes;
use raft_host::id::GroupId;

use crate::error::ClientError;
use crate::keyspace::KeySpace;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::session::RequestId;

/// One operation on the keys of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The value of a key.
    Get {
        /// The key.
        key: Bytes,
    },
    /// How many of the keys exist; one named twice counts twice.
    Exists {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// The values of several keys.
    MGet {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// The length of a value in bytes, 0 if there is none.
    StrLen {
        /// The key.
        key: Bytes,
    },
    /// Sets a value.
    Set {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
    },
    /// Sets a value unless there is one.
    SetNx {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
    },
    /// Removes keys; the result is how many existed.
    Del {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Sets several values, in order.
    MSet {
        /// Keys and their new values.
        pairs: Vec<(Bytes, Bytes)>,
    },
    /// Adds to a counter.
    IncrBy {
        /// The key.
        key: Bytes,
        /// What to add.
        delta: i64,
    },
    /// Appends to a value; the result is its new length.
    Append {
        /// The key.
        key: Bytes,
        /// What to append.
        value: Bytes,
    },
}

impl Op {
    /// Whether it may change the store, and so must go through the log.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Self::Get { .. } | Self::Exists { .. } | Self::MGet { .. } | Self::StrLen { .. } => {
                false
            }
            Self::Set { .. }
            | Self::SetNx { .. }
            | Self::Del { .. }
            | Self::MSet { .. }
            | Self::IncrBy { .. }
            | Self::Append { .. } => true,
        }
    }

    /// All keys it touches, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        let (one, many, pairs): (Option<&Bytes>, &[Bytes], &[(Bytes, Bytes)]) = match self {
            Self::Get { key }
            | Self::StrLen { key }
            | Self::Set { key, .. }
            | Self::SetNx { key, .. }
            | Self::IncrBy { key, .. }
            | Self::Append { key, .. } => (Some(key), &[], &[]),
            Self::Exists { keys } | Self::MGet { keys } | Self::Del { keys } => (None, keys, &[]),
            Self::MSet { pairs } => (None, &[], pairs),
        };
        one.into_iter()
            .chain(many)
            .chain(pairs.iter().map(|(key, _)| key))
    }

    /// The one group that all its keys belong to.
    ///
    /// # Errors
    /// [`ClientError::CrossGroup`] if there are several.
    pub fn group(&self, space: KeySpace) -> Result<GroupId, ClientError> {
        let mut groups = self.keys().map(|key| space.group_of(key));
        // An operation has at least one key: the parser and the decoder see to it.
        let first = groups.next().unwrap_or_default();
        match groups.find(|other| *other != first) {
            None => Ok(first),
            Some(other) => Err(ClientError::CrossGroup { first, other }),
        }
    }
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Whatever this node's replica holds.
    Stale,
    /// A coherent follower read: linearizable in groups whose writes wait for it, refused in others.
    Coherent,
    /// Linearizable, by read index or leader lease.
    Linear,
}

/// One command as a client sent it, beyond those that the session itself answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// An operation on one group; reads are linear.
    Op(Op),
    /// `MG.DO`: a write that happens once however often it is sent under its id.
    Do {
        /// The request's id.
        id: RequestId,
        /// The write.
        op: Op,
    },
    /// `MG.READ`: `GET` with a chosen consistency.
    Read {
        /// How fresh.
        consistency: Consistency,
        /// The key.
        key: Bytes,
    },
    /// `MG.GROUP`: the number of the key's group.
    Group {
        /// The key.
        key: Bytes,
    },
    /// `MG.LEADER`: the node that leads the key's group.
    Leader {
        /// The key.
        key: Bytes,
    },
    /// `DBSIZE`: how many keys all groups hold.
    DbSize,
}

/// Names of all commands, lower case, for `COMMAND`; those of `parse` and those of the session.
pub const NAMES: &[&str] = &[
    "append",
    "client",
    "command",
    "config",
    "dbsize",
    "decr",
    "decrby",
    "del",
    "discard",
    "echo",
    "exec",
    "exists",
    "get",
    "hello",
    "incr",
    "incrby",
    "info",
    "mg.do",
    "mg.group",
    "mg.leader",
    "mg.read",
    "mget",
    "mset",
    "multi",
    "ping",
    "quit",
    "select",
    "set",
    "setnx",
    "strlen",
];

/// The canonical spelling of a command's name, if it is one.
#[must_use]
pub fn known_name(name: &[u8]) -> Option<&'static str> {
    NAMES
        .iter()
        .copied()
        .find(|known| known.as_bytes().eq_ignore_ascii_case(name))
}

/// What a request's words mean. The commands that the session answers itself are unknown here.
///
/// # Errors
/// The reply that tells the client what is wrong, in Redis' words where Redis has them.
pub fn parse(args: &[Bytes]) -> Result<Command, ClientError> {
    let Some((name, rest)) = args.split_first() else {
        return Err(ClientError::Syntax);
    };
    let unknown = || ClientError::UnknownCommand {
        name: name.clone(),
        args: rest.to_vec(),
    };
    let command = known_name(name).ok_or_else(unknown)?;
    let arity = || ClientError::WrongArity { command };
    match (command, rest) {
        ("mg.do", [id, inner @ ..]) if !inner.is_empty() => parse_do(id, inner),
        ("mg.read", [consistency, key]) => Ok(Command::Read {
            consistency: parse_consistency(consistency)?,
            key: checked_key(key)?,
        }),
        ("mg.group", [key]) => Ok(Command::Group {
            key: checked_key(key)?,
        }),
        ("mg.leader", [key]) => Ok(Command::Leader {
            key: checked_key(key)?,
        }),
        ("dbsize", []) => Ok(Command::DbSize),
        ("mg.do" | "mg.read" | "mg.group" | "mg.leader" | "dbsize", _) => Err(arity()),
        _ => match parse_op(command, rest)? {
            Some(op) => Ok(Command::Op(op)),
            None => Err(unknown()),
        },
    }
}

fn parse_do(id: &Bytes, inner: &[Bytes]) -> Result<Command, ClientError> {
    let id = RequestId::parse(id)?;
    match parse(inner)? {
        Command::Op(op) if op.is_write() => Ok(Command::Do { id, op }),
        Command::Op(_)
        | Command::Do { .. }
        | Command::Read { .. }
        | Command::Group { .. }
        | Command::Leader { .. }
        | Command::DbSize => {
            let command = inner
                .first()
                .and_then(|name| known_name(name))
                .unwrap_or("");
            Err(ClientError::NothingToRepeat { command })
        }
    }
}

fn parse_consistency(word: &Bytes) -> Result<Consistency, ClientError> {
    let levels = [
        ("stale", Consistency::Stale),
        ("coherent", Consistency::Coherent),
        ("linear", Consistency::Linear),
    ];
    let found = levels
        .iter()
        .find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(_, level)| *level).ok_or(ClientError::Syntax)
}

/// The operation of that (canonical) name; `None` if the name is none of an operation.
fn parse_op(command: &'static str, rest: &[Bytes]) -> Result<Option<Op>, ClientError> {
    let op = match (command, rest) {
        ("get", [key]) => Op::Get {
            key: checked_key(key)?,
        },
        ("strlen", [key]) => Op::StrLen {
            key: checked_key(key)?,
        },
        ("exists", [_, ..]) => Op::Exists {
            keys: checked_keys(rest)?,
        },
        ("mget", [_, ..]) => Op::MGet {
            keys: checked_keys(rest)?,
        },
        ("del", [_, ..]) => Op::Del {
            keys: checked_keys(rest)?,
        },
        ("set", [key, value]) => Op::Set {
            key: checked_key(key)?,
            value: checked_value(value)?,
        },
        ("set", [_, _, option, ..]) => return Err(set_option(option)),
        ("setnx", [key, value]) => Op::SetNx {
            key: checked_key(key)?,
            value: checked_value(value)?,
        },
        ("append", [key, value]) => Op::Append {
            key: checked_key(key)?,
            value: checked_value(value)?,
        },
        ("mset", [_, ..]) if rest.len().is_multiple_of(2) => {
            let pairs = rest.chunks_exact(2);
            let pairs = pairs.map(|pair| Ok((checked_key(&pair[0])?, checked_value(&pair[1])?)));
            Op::MSet {
                pairs: pairs.collect::<Result<_, ClientError>>()?,
            }
        }
        ("incr", [key]) => Op::IncrBy {
            key: checked_key(key)?,
            delta: 1,
        },
        ("decr", [key]) => Op::IncrBy {
            key: checked_key(key)?,
            delta: -1,
        },
        ("incrby", [key, delta]) => Op::IncrBy {
            key: checked_key(key)?,
            delta: checked_integer(delta)?,
        },
        ("decrby", [key, delta]) => {
            let delta = checked_integer(delta)?.checked_neg();
            let delta = delta.ok_or(ClientError::DecrementOverflow)?;
            Op::IncrBy {
                key: checked_key(key)?,
                delta,
            }
        }
        (
            "get" | "strlen" | "exists" | "mget" | "del" | "set" | "setnx" | "append" | "mset"
            | "incr" | "decr" | "incrby" | "decrby",
            _,
        ) => return Err(ClientError::WrongArity { command }),
        _ => return Ok(None),
    };
    Ok(Some(op))
}

/// What is wrong with a third argument of `SET`: all of Redis' options are refused by name, since
/// one that was ignored would be a lie.
fn set_option(option: &Bytes) -> ClientError {
    const OF_REDIS: [&str; 9] = [
        "nx", "xx", "get", "ex", "px", "exat", "pxat", "keepttl", "ifeq",
    ];
    if OF_REDIS
        .iter()
        .any(|known| option.eq_ignore_ascii_case(known.as_bytes()))
    {
        ClientError::UnsupportedOption {
            command: "set",
            option: option.clone(),
        }
    } else {
        ClientError::Syntax
    }
}

fn checked_key(key: &Bytes) -> Result<Bytes, ClientError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(ClientError::KeyTooLong {
            bytes: key.len(),
            max: KEY_BYTES_MAX,
        });
    }
    Ok(key.clone())
}

fn checked_keys(keys: &[Bytes]) -> Result<Vec<Bytes>, ClientError> {
    keys.iter().map(checked_key).collect()
}

fn checked_value(value: &Bytes) -> Result<Bytes, ClientError> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(ClientError::ValueTooLong {
            bytes: value.len(),
            max: VALUE_BYTES_MAX,
        });
    }
    Ok(value.clone())
}

fn checked_integer(text: &Bytes) -> Result<i64, ClientError> {
    parse_integer(text).ok_or(ClientError::NotAnInteger)
}

/// A 64-bit number in the only spelling that Redis takes for one: no plus sign, no leading zero,
/// no blank, no `-0`. Arguments and stored counters are held to the same rule.
#[must_use]
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [] => false,
        [b'0'] => digits.len() == text.len(),
        [first, ..] => *first != b'0' && digits.iter().all(u8::is_ascii_digit),
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
