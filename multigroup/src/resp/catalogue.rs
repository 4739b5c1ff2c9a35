//! What `COMMAND` tells of each command: how many words it takes and where its keys stand. Clients
//! that route by key read it.

use super::reply::Reply;
use crate::command::NAMES;

/// Arity as Redis counts it (with the name; negative is "at least"), whether it writes, and the
/// first key, last key and step.
type Shape = (i64, bool, i64, i64, i64);

fn shape(name: &str) -> Shape {
    match name {
        "get" | "strlen" => (2, false, 1, 1, 1),
        "exists" | "mget" => (-2, false, 1, -1, 1),
        "del" => (-2, true, 1, -1, 1),
        "set" => (-3, true, 1, 1, 1),
        "setnx" | "append" | "incrby" | "decrby" => (3, true, 1, 1, 1),
        "incr" | "decr" => (2, true, 1, 1, 1),
        "mset" => (-3, true, 1, -1, 2),
        "mg.do" => (-3, true, 0, 0, 0),
        "mg.group" | "mg.leader" => (2, false, 1, 1, 1),
        "mg.read" => (3, false, 2, 2, 1),
        "echo" | "select" => (2, false, 0, 0, 0),
        "config" => (-2, false, 0, 0, 0),
        "client" => (-2, false, 0, 0, 0),
        "dbsize" | "multi" | "exec" | "discard" => (1, false, 0, 0, 0),
        _ => (-1, false, 0, 0, 0),
    }
}

/// One command as `COMMAND` lists it.
pub(super) fn describe(name: &str) -> Reply {
    let (arity, writes, first, last, step) = shape(name);
    let flags = if writes {
        vec![Reply::Word("write")]
    } else {
        vec![Reply::Word("readonly")]
    };
    Reply::Array(vec![
        Reply::text(name),
        Reply::Integer(arity),
        Reply::Array(flags),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
    ])
}

/// All commands.
pub(super) fn describe_all() -> Reply {
    Reply::Array(NAMES.iter().map(|name| describe(name)).collect())
}
