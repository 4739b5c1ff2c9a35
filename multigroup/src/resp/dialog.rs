//! One session's state, and what it answers by itself: greetings, the transaction that is being
//! queued, questions about the session. Pure: words in, a [`Step`] out. What needs the store is
//! handed on with its group worked out; sockets and the order of replies are `connection.rs`'s.

#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use raft_host::id::GroupId;

use super::catalogue;
use super::reply::Reply;
use crate::command::{self, Command, Op, known_name, parse, parse_integer};
use crate::error::ClientError;
use crate::keyspace::KeySpace;
use crate::limits::{CLIENT_NAME_BYTES_MAX, REQUEST_BYTES_MAX, TRANSACTION_OPS_MAX};

/// Numbers a node's sessions, from 1; what `CLIENT ID` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u64);

impl SessionId {
    /// Wraps the bare number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the store is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A command on the keys of one group.
    Command {
        /// The group.
        group: GroupId,
        /// The command.
        command: Command,
    },
    /// The operations between `MULTI` and `EXEC`, at least one, as one unit.
    Transaction {
        /// The group of all of them.
        group: GroupId,
        /// The operations.
        ops: Vec<Op>,
    },
    /// `DBSIZE`: the number of keys of all groups.
    DbSize,
}

impl Request {
    /// The group it concerns; `None` is all.
    #[must_use]
    pub fn group(&self) -> Option<GroupId> {
        match self {
            Self::Command { group, .. } | Self::Transaction { group, .. } => Some(*group),
            Self::DbSize => None,
        }
    }

    /// Whether it may change the store.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Self::Command {
                command: Command::Op(op) | Command::Do { op, .. },
                ..
            } => op.is_write(),
            Self::Transaction { ops, .. } => ops.iter().any(Op::is_write),
            Self::Command { .. } | Self::DbSize => false,
        }
    }
}

/// What is to be done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reply this.
    Answer(Reply),
    /// Reply what the handler says to this.
    Hand(Request),
    /// Reply the node's description.
    Describe,
    /// Reply this, then end the session.
    Close(Reply),
}

/// The state of one session.
#[derive(Debug)]
pub struct Dialog {
    space: KeySpace,
    id: SessionId,
    name: Bytes,
    queue: Option<Queue>,
}

/// A transaction that is being queued.
#[derive(Debug, Default)]
struct Queue {
    ops: Vec<Op>,
    group: Option<GroupId>,
    bytes: usize,
    failed: bool,
}

impl Dialog {
    /// A new session.
    #[must_use]
    pub fn new(space: KeySpace, id: SessionId) -> Self {
        Self {
            space,
            id,
            name: Bytes::new(),
            queue: None,
        }
    }

    /// Takes a request's words, at least the name.
    pub fn on_request(&mut self, args: &[Bytes]) -> Step {
        self.step(args).unwrap_or_else(|error| {
            if let Some(queue) = &mut self.queue {
                queue.failed = true;
            }
            Step::Answer(error.into())
        })
    }

    fn step(&mut self, args: &[Bytes]) -> Result<Step, ClientError> {
        let Some((name, rest)) = args.split_first() else {
            return Err(ClientError::Syntax);
        };
        let command = known_name(name).unwrap_or("");
        match command {
            "quit" => return Ok(Step::Close(Reply::OK)),
            "multi" | "exec" | "discard" => {
                if !rest.is_empty() {
                    return Err(ClientError::WrongArity { command });
                }
                return self.transaction_step(command);
            }
            _ => {}
        }
        if self.queue.is_some() {
            return self
                .enqueue(command, args)
                .map(|()| Step::Answer(Reply::Word("QUEUED")));
        }
        if let Some(reply) = self.local(command, rest)? {
            return Ok(Step::Answer(reply));
        }
        if command == "info" {
            return Ok(Step::Describe);
        }
        self.hand(parse(args)?)
    }

    fn hand(&self, command: Command) -> Result<Step, ClientError> {
        let group = match &command {
            Command::DbSize => return Ok(Step::Hand(Request::DbSize)),
            Command::Group { key } => {
                let group = self.space.group_of(key).to_u64();
                return Ok(Step::Answer(Reply::Integer(
                    i64::try_from(group).unwrap_or(i64::MAX),
                )));
            }
            Command::Op(op) | Command::Do { op, .. } => op.group(self.space)?,
            Command::Read { key, .. } | Command::Leader { key } => self.space.group_of(key),
        };
        Ok(Step::Hand(Request::Command { group, command }))
    }

    fn transaction_step(&mut self, command: &'static str) -> Result<Step, ClientError> {
        if command == "multi" {
            return match self.queue {
                None => {
                    self.queue = Some(Queue::default());
                    Ok(Step::Answer(Reply::OK))
                }
                // As in Redis, this doesn't spoil the transaction that is open.
                Some(_) => Ok(Step::Answer(ClientError::NestedMulti.into())),
            };
        }
        let upper = if command == "exec" { "EXEC" } else { "DISCARD" };
        let queue = self
            .queue
            .take()
            .ok_or(ClientError::WithoutMulti { command: upper })?;
        if command == "discard" {
            return Ok(Step::Answer(Reply::OK));
        }
        if queue.failed {
            return Err(ClientError::ExecAbort);
        }
        match queue.group {
            None => Ok(Step::Answer(Reply::Array(Vec::new()))),
            Some(group) => Ok(Step::Hand(Request::Transaction {
                group,
                ops: queue.ops,
            })),
        }
    }

    fn enqueue(&mut self, command: &'static str, args: &[Bytes]) -> Result<(), ClientError> {
        let is_op = |command: &str| !matches!(command, "" | "mg.do" | "mg.read" | "dbsize");
        let op = match parse(args) {
            Ok(Command::Op(op)) => op,
            Err(ClientError::UnknownCommand { .. }) if is_op(command) => {
                return Err(ClientError::NotInTransaction { command });
            }
            Err(error) => return Err(error),
            Ok(
                Command::Do { .. }
                | Command::Read { .. }
                | Command::Group { .. }
                | Command::Leader { .. }
                | Command::DbSize,
            ) => return Err(ClientError::NotInTransaction { command }),
        };
        let other = op.group(self.space)?;
        let Some(queue) = &mut self.queue else {
            return Err(ClientError::ExecAbort);
        };
        let first = *queue.group.get_or_insert(other);
        if first != other {
            return Err(ClientError::CrossGroup { first, other });
        }
        queue.bytes += args.iter().map(Bytes::len).sum::<usize>();
        if queue.ops.len() == TRANSACTION_OPS_MAX {
            return Err(ClientError::TransactionTooLong {
                max: TRANSACTION_OPS_MAX,
            });
        }
        if queue.failed {
            // It will never run: what it holds is let go, and nothing more is kept.
            queue.ops = Vec::new();
            return Ok(());
        }
        if queue.bytes > REQUEST_BYTES_MAX {
            return Err(ClientError::ValueTooLong {
                bytes: queue.bytes,
                max: REQUEST_BYTES_MAX,
            });
        }
        queue.ops.push(op);
        Ok(())
    }

    /// Answers a command that needs no store; `None` if it is none of them.
    fn local(
        &mut self,
        command: &'static str,
        rest: &[Bytes],
    ) -> Result<Option<Reply>, ClientError> {
        let reply = match (command, rest) {
            ("ping", []) => Reply::Word("PONG"),
            ("ping" | "echo", [word]) => Reply::Bulk(word.clone()),
            ("select", [number]) => match parse_integer(number) {
                Some(0) => Reply::OK,
                Some(_) => return Err(ClientError::DbIndex),
                None => return Err(ClientError::NotAnInteger),
            },
            ("hello", _) => self.hello(rest)?,
            ("client", [part, rest @ ..]) => self.client(part, rest)?,
            ("config", [part, rest @ ..]) => config(part, rest)?,
            ("command", _) => command_reply(rest)?,
            ("ping" | "echo" | "select" | "client" | "config", _) => {
                return Err(ClientError::WrongArity { command });
            }
            _ => return Ok(None),
        };
        Ok(Some(reply))
    }

    fn hello(&mut self, rest: &[Bytes]) -> Result<Reply, ClientError> {
        let mut options = rest;
        if let [version, after @ ..] = rest {
            match parse_integer(version) {
                Some(2) => options = after,
                Some(_) => return Err(ClientError::NoProto),
                None => return Err(ClientError::NotAnInteger),
            }
        }
        while let [option, after @ ..] = options {
            options = match after {
                [name, after @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                    self.set_name(name)?;
                    after
                }
                _ if option.eq_ignore_ascii_case(b"auth") => {
                    let option = option.clone();
                    return Err(ClientError::UnsupportedOption {
                        command: "hello",
                        option,
                    });
                }
                _ => return Err(ClientError::Syntax),
            };
        }
        let id = i64::try_from(self.id.0).unwrap_or(i64::MAX);
        Ok(Reply::Array(vec![
            Reply::text("server"),
            Reply::text("multigroup"),
            Reply::text("version"),
            Reply::text(env!("CARGO_PKG_VERSION")),
            Reply::text("proto"),
            Reply::Integer(2),
            Reply::text("id"),
            Reply::Integer(id),
            Reply::text("mode"),
            Reply::text("standalone"),
            Reply::text("role"),
            Reply::text("master"),
            Reply::text("modules"),
            Reply::Array(Vec::new()),
        ]))
    }

    fn client(&mut self, part: &Bytes, rest: &[Bytes]) -> Result<Reply, ClientError> {
        let is = |name: &str| part.eq_ignore_ascii_case(name.as_bytes());
        match rest {
            [] if is("help") => Ok(help(&[
                "CLIENT <subcommand>",
                "ID: this session's number.",
                "SETNAME <name>, GETNAME: its name.",
                "SETINFO <attribute> <value>: taken, and not kept.",
                "HELP: this.",
            ])),
            [] if is("id") => Ok(Reply::Integer(i64::try_from(self.id.0).unwrap_or(i64::MAX))),
            [] if is("getname") && self.name.is_empty() => Ok(Reply::Nil),
            [] if is("getname") => Ok(Reply::Bulk(self.name.clone())),
            [name] if is("setname") => self.set_name(name).map(|()| Reply::OK),
            [_, _] if is("setinfo") => Ok(Reply::OK),
            _ if is("id") || is("getname") || is("setname") || is("setinfo") => {
                Err(ClientError::WrongArity { command: "client" })
            }
            _ => Err(ClientError::UnknownSubcommand {
                command: "client",
                subcommand: part.clone(),
            }),
        }
    }

    fn set_name(&mut self, name: &Bytes) -> Result<(), ClientError> {
        if name.len() > CLIENT_NAME_BYTES_MAX {
            let (bytes, max) = (name.len(), CLIENT_NAME_BYTES_MAX);
            return Err(ClientError::ValueTooLong { bytes, max });
        }
        self.name = Bytes::copy_from_slice(name);
        Ok(())
    }
}

fn help(lines: &[&str]) -> Reply {
    Reply::Array(lines.iter().map(|line| Reply::text(line)).collect())
}

/// `CONFIG GET` finds nothing: there are no settings of Redis here.
fn config(part: &Bytes, rest: &[Bytes]) -> Result<Reply, ClientError> {
    match rest {
        [] if part.eq_ignore_ascii_case(b"help") => Ok(help(&[
            "CONFIG <subcommand>",
            "GET <pattern> ...: finds nothing, there are no settings of Redis here.",
            "HELP: this.",
        ])),
        [_, ..] if part.eq_ignore_ascii_case(b"get") => Ok(Reply::Array(Vec::new())),
        [] if part.eq_ignore_ascii_case(b"get") => {
            Err(ClientError::WrongArity { command: "config" })
        }
        _ => Err(ClientError::UnknownSubcommand {
            command: "config",
            subcommand: part.clone(),
        }),
    }
}

fn command_reply(rest: &[Bytes]) -> Result<Reply, ClientError> {
    let Some((part, names)) = rest.split_first() else {
        return Ok(catalogue::describe_all());
    };
    if part.eq_ignore_ascii_case(b"help") {
        Ok(help(&[
            "COMMAND [<subcommand>]",
            "without one: all commands.",
            "COUNT: how many there are.",
            "INFO <name> ...: what these take.",
            "DOCS: nothing.",
            "HELP: this.",
        ]))
    } else if part.eq_ignore_ascii_case(b"docs") {
        Ok(Reply::Array(Vec::new()))
    } else if part.eq_ignore_ascii_case(b"count") {
        Ok(Reply::Integer(
            i64::try_from(command::NAMES.len()).unwrap_or(i64::MAX),
        ))
    } else if part.eq_ignore_ascii_case(b"info") {
        let info = |name: &Bytes| known_name(name).map_or(Reply::Nil, catalogue::describe);
        Ok(Reply::Array(names.iter().map(info).collect()))
    } else {
        Err(ClientError::UnknownSubcommand {
            command: "command",
            subcommand: part.clone(),
        })
    }
}
