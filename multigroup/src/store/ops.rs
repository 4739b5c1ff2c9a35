//! What each operation does to the rows of one group. Works on any connection, within whatever
//! transaction the caller holds; leaves request ids and positions to `group_db.rs`.
//!
//! Keys are TEXT by contract and any bytes by use: SQLite stores and compares text bytewise and
//! leaves its encoding alone, so both hold.

use bytes::Bytes;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension};

use crate::command::{Body, Failure, Op, Outcome, parse_integer};
use crate::limits::{OUTCOME_BYTES_MAX, VALUE_BYTES_MAX};

/// A key as TEXT, whatever its bytes.
struct Key<'a>(&'a [u8]);

impl ToSql for Key<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

/// Bytes of values that one command may still return. Part of the log's meaning: a transaction
/// that reads too much fails alike on every replica.
struct Room(usize);

impl Room {
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.checked_sub(bytes + 16)?;
        Some(())
    }
}

/// Executes a command's operations in order.
pub(super) fn execute(connection: &Connection, body: &Body) -> rusqlite::Result<Outcome> {
    let mut room = Room(OUTCOME_BYTES_MAX);
    match body {
        Body::Single(op) => execute_op(connection, op, &mut room),
        Body::Transaction(ops) => {
            let results = ops.iter().map(|op| execute_op(connection, op, &mut room));
            results.collect::<rusqlite::Result<_>>().map(Outcome::Array)
        }
    }
}

/// What a command that reads finds in a group without any rows; `None` for one that writes. It
/// says what [`execute`] would on an empty database.
pub(super) fn read_nothing(body: &Body) -> Option<Outcome> {
    let read = |op: &Op| match op {
        Op::Get { .. } => Some(Outcome::Nil),
        Op::StrLen { .. } | Op::Exists { .. } => Some(Outcome::Integer(0)),
        Op::MGet { keys } => Some(Outcome::Array(vec![Outcome::Nil; keys.len()])),
        Op::Set { .. }
        | Op::SetNx { .. }
        | Op::Del { .. }
        | Op::MSet { .. }
        | Op::IncrBy { .. }
        | Op::Append { .. } => None,
    };
    match body {
        Body::Single(op) => read(op),
        Body::Transaction(ops) => ops
            .iter()
            .map(read)
            .collect::<Option<_>>()
            .map(Outcome::Array),
    }
}

fn execute_op(connection: &Connection, op: &Op, room: &mut Room) -> rusqlite::Result<Outcome> {
    match op {
        Op::Get { key } => get(connection, key, room),
        Op::StrLen { key } => str_len(connection, key),
        Op::Exists { keys } => count(keys, |key| exists(connection, key)),
        Op::Del { keys } => count(keys, |key| delete(connection, key)),
        Op::MGet { keys } => {
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                let value = get(connection, key, room)?;
                if let Outcome::Failed(_) = value {
                    return Ok(value);
                }
                values.push(value);
            }
            Ok(Outcome::Array(values))
        }
        Op::Set { key, value } => set(connection, key, value).map(|()| Outcome::Ok),
        Op::MSet { pairs } => {
            pairs
                .iter()
                .try_for_each(|(key, value)| set(connection, key, value))?;
            Ok(Outcome::Ok)
        }
        Op::SetNx { key, value } => {
            let sql = "INSERT INTO kv(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO NOTHING";
            let set = connection
                .prepare_cached(sql)?
                .execute((Key(key), &value[..]))?;
            Ok(integer(set))
        }
        Op::IncrBy { key, delta } => increment(connection, key, *delta),
        Op::Append { key, value } => append(connection, key, value),
    }
}

fn integer(count: usize) -> Outcome {
    Outcome::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

fn count(
    keys: &[Bytes],
    mut each: impl FnMut(&Bytes) -> rusqlite::Result<usize>,
) -> rusqlite::Result<Outcome> {
    let mut total = 0;
    for key in keys {
        total += each(key)?;
    }
    Ok(integer(total))
}

/// Hands a key's value, if there is one, to `with`, without a copy.
fn with_value<T>(
    connection: &Connection,
    key: &[u8],
    with: impl FnOnce(&[u8]) -> T,
) -> rusqlite::Result<Option<T>> {
    let mut statement = connection.prepare_cached("SELECT value FROM kv WHERE key = ?1")?;
    statement
        .query_row([Key(key)], |row| Ok(with(row.get_ref(0)?.as_bytes()?)))
        .optional()
}

fn get(connection: &Connection, key: &[u8], room: &mut Room) -> rusqlite::Result<Outcome> {
    let value = with_value(connection, key, |value| {
        room.take(value.len())
            .map(|()| Outcome::Bulk(Bytes::copy_from_slice(value)))
    })?;
    match value {
        Some(Some(value)) => Ok(value),
        None if room.take(0).is_some() => Ok(Outcome::Nil),
        Some(None) | None => Ok(Outcome::Failed(Failure::ReplyTooLarge)),
    }
}

fn str_len(connection: &Connection, key: &[u8]) -> rusqlite::Result<Outcome> {
    let length = with_value(connection, key, <[u8]>::len)?;
    Ok(integer(length.unwrap_or(0)))
}

fn exists(connection: &Connection, key: &[u8]) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM kv WHERE key = ?1")?;
    statement.exists([Key(key)]).map(usize::from)
}

fn delete(connection: &Connection, key: &[u8]) -> rusqlite::Result<usize> {
    connection
        .prepare_cached("DELETE FROM kv WHERE key = ?1")?
        .execute([Key(key)])
}

fn set(connection: &Connection, key: &[u8], value: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO kv(key, value) VALUES(?1, ?2) \
               ON CONFLICT(key) DO UPDATE SET value = excluded.value";
    connection
        .prepare_cached(sql)?
        .execute((Key(key), value))
        .map(|_| ())
}

fn increment(connection: &Connection, key: &[u8], delta: i64) -> rusqlite::Result<Outcome> {
    let current = with_value(connection, key, parse_integer)?;
    let Some(current) = current.unwrap_or(Some(0)) else {
        return Ok(Outcome::Failed(Failure::NotAnInteger));
    };
    let Some(sum) = current.checked_add(delta) else {
        return Ok(Outcome::Failed(Failure::Overflow));
    };
    set(connection, key, sum.to_string().as_bytes())?;
    Ok(Outcome::Integer(sum))
}

fn append(connection: &Connection, key: &[u8], tail: &[u8]) -> rusqlite::Result<Outcome> {
    let mut value = with_value(connection, key, <[u8]>::to_vec)?.unwrap_or_default();
    if value.len() + tail.len() > VALUE_BYTES_MAX {
        return Ok(Outcome::Failed(Failure::ValueTooLong));
    }
    value.extend_from_slice(tail);
    set(connection, key, &value)?;
    Ok(integer(value.len()))
}
