//! What a client may be told instead of a result: the error replies of the Redis-protocol front,
//! each with the prefix that programs switch on. The store's own faults are `store::StoreError`,
//! the configuration's are `config::ConfigError`.
//!
//! `REFUSED`, `NOLEADER` and `TIMEOUT` promise that nothing happened and nothing will (safety 23);
//! whoever isn't sure of that says `Unknown`. Texts that Redis has are worded as Redis words them,
//! since client libraries compare them.

use bytes::Bytes;
use raft_host::id::{GroupId, Index};
use thiserror::Error;

use crate::command::Failure;
use crate::session::{Refusal, RequestId};

/// Bytes of a client's own words that an error repeats, as in Redis.
const ECHO_BYTES_MAX: usize = 128;

/// An error reply. `Display` is the reply's line without the leading `-`; it never holds a line
/// break, whatever the client sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no such command here.
    #[error("ERR unknown command '{}', with args beginning with: {}", quote(.name), quote_all(.args))]
    UnknownCommand {
        /// The command's name as sent.
        name: Bytes,
        /// Its arguments.
        args: Vec<Bytes>,
    },
    /// A command of commands has no such part.
    #[error("ERR unknown subcommand '{}'. Try {} HELP.", quote(.subcommand), .command.to_uppercase())]
    UnknownSubcommand {
        /// The command, lower case.
        command: &'static str,
        /// The part as sent.
        subcommand: Bytes,
    },
    /// Too few or too many arguments.
    #[error("ERR wrong number of arguments for '{command}' command")]
    WrongArity {
        /// The command, lower case.
        command: &'static str,
    },
    /// A word that the command doesn't have.
    #[error("ERR syntax error")]
    Syntax,
    /// An option that Redis has and this store hasn't.
    #[error("ERR option '{}' of '{command}' is not supported", quote(.option))]
    UnsupportedOption {
        /// The command, lower case.
        command: &'static str,
        /// The option as sent.
        option: Bytes,
    },
    /// An argument should have been a 64-bit number.
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    /// The negation of the argument of `DECRBY` doesn't exist.
    #[error("ERR decrement would overflow")]
    DecrementOverflow,
    /// A key is too long.
    #[error("ERR key of {bytes} bytes exceeds the maximum of {max}")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A value is too long.
    #[error("ERR string of {bytes} bytes exceeds maximum allowed size of {max}")]
    ValueTooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// Only database 0 exists.
    #[error("ERR DB index is out of range")]
    DbIndex,
    /// `HELLO` asked for another protocol than RESP2.
    #[error("NOPROTO unsupported protocol version")]
    NoProto,
    /// The request isn't RESP; the session ends with this.
    #[error("ERR Protocol error: {0}")]
    Protocol(#[from] crate::resp::ProtocolError),
    /// The node has as many sessions as it takes.
    #[error("ERR max number of clients reached")]
    SessionsFull,
    /// `MULTI` within `MULTI`.
    #[error("ERR MULTI calls can not be nested")]
    NestedMulti,
    /// `EXEC` or `DISCARD` outside of `MULTI`.
    #[error("ERR {command} without MULTI")]
    WithoutMulti {
        /// The command, upper case.
        command: &'static str,
    },
    /// The command can't be part of a transaction.
    #[error("ERR '{command}' is not allowed in a transaction")]
    NotInTransaction {
        /// The command, lower case.
        command: &'static str,
    },
    /// The transaction has too many commands.
    #[error("ERR transaction of more than {max} commands")]
    TransactionTooLong {
        /// The bound.
        max: usize,
    },
    /// A command of the transaction was refused when it was queued.
    #[error("EXECABORT Transaction discarded because of previous errors.")]
    ExecAbort,
    /// The keys belong to several groups.
    #[error("CROSSGROUP keys map to groups {first} and {other}; give them one {{tag}}")]
    CrossGroup {
        /// The group of the first key.
        first: GroupId,
        /// The group of a later key.
        other: GroupId,
    },
    /// Not an id that `MG.DO` takes.
    #[error("ERR invalid request id: {0}")]
    RequestId(#[from] crate::session::RequestIdError),
    /// `MG.DO` around a command that changes nothing.
    #[error("ERR 'mg.do' takes a command that writes, and '{command}' does not")]
    NothingToRepeat {
        /// The command, lower case.
        command: &'static str,
    },
    /// A result of the state machine that is an error.
    #[error("ERR {0}")]
    Failed(#[from] Failure),
    /// The reply would be too large.
    #[error("ERR reply of {bytes} bytes exceeds the maximum of {max}")]
    ReplyTooLarge {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// Proven without effect, and why.
    #[error("REFUSED {0}")]
    Refused(#[from] Refused),
    /// Proven without effect: the group has no leader that could be asked.
    #[error("NOLEADER {group}")]
    NoLeader {
        /// The group.
        group: GroupId,
    },
    /// Proven without effect: the deadline passed before anyone could have acted.
    #[error("TIMEOUT")]
    Timeout,
    /// It may or may not have happened, or may yet.
    #[error("UNKNOWN {} {why}", .id.as_ref().map_or("-", RequestId::as_str))]
    Unknown {
        /// The request's id, if it had one.
        id: Option<RequestId>,
        /// Why it isn't known.
        why: UnknownReason,
    },
    /// It happened, and fewer replicas hold it than its policy asks for.
    #[error("NOTDURABLE {index}")]
    NotDurable {
        /// Where it stands in the group's log.
        index: Index,
    },
}

/// Why a request was turned away before it could have any effect.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The group's table of saved outcomes turned the request id away.
    #[error("{0}")]
    Id(#[from] Refusal),
    /// The command is larger than a log entry may be.
    #[error("EntryTooLarge: {bytes} bytes exceed the maximum of {max}")]
    EntryTooLarge {
        /// Its encoded length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// The group or the node has as much in progress as it takes.
    #[error("{scope}Full")]
    Full {
        /// What is full.
        scope: FullScope,
    },
    /// Another leader's entry is committed in its place.
    #[error("Superseded")]
    Superseded,
    /// The disk is full.
    #[error("DiskFull")]
    DiskFull,
    /// The node is stopping.
    #[error("ShuttingDown")]
    ShuttingDown,
    /// The archive lags too far behind.
    #[error("ArchiveLag")]
    ArchiveLag,
    /// As many workers wait for what can't be handed off as may.
    #[error("InlineFull: {held} workers wait for acks, and no more than {most} may")]
    InlineFull {
        /// How many do.
        held: usize,
        /// The bound.
        most: usize,
    },
    /// The policy asks for more acks than the group has voters.
    #[error("TooFewVoters: {wanted} acks are asked for, and the group has {voters} voters")]
    TooFewVoters {
        /// Acks asked for.
        wanted: u64,
        /// Voters there are.
        voters: u64,
    },
    /// The host turned it away for a reason that has no name of its own here.
    #[error("HostRefused: {0}")]
    Host(raft_host::error::Refusal),
    /// The group doesn't serve coherent follower reads: its writes don't wait for them.
    #[error("NotCoherent: group {group} is not coherent")]
    NotCoherent {
        /// The group.
        group: GroupId,
    },
}

/// What has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FullScope {
    /// One group's uncommitted bytes or unapplied entries.
    Group,
    /// The node's proposal admission.
    Node,
    /// The workers that may wait inline.
    Inline,
    /// The link to the group's leader.
    Link,
}

impl std::fmt::Display for FullScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Group => "Group",
            Self::Node => "Node",
            Self::Inline => "Inline",
            Self::Link => "Link",
        })
    }
}

/// Why it isn't known whether a request took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnknownReason {
    /// The deadline passed after the request was handed over.
    #[error("deadline passed")]
    Deadline,
    /// The leader lost its leadership, or its term ended.
    #[error("leadership lost")]
    LeadershipLost,
    /// The link to the leader broke after the request was written.
    #[error("link to the leader lost")]
    LinkLost,
    /// The node is stopping.
    #[error("node shutting down")]
    ShuttingDown,
    /// The state machine stopped.
    #[error("store failed")]
    StoreFailed,
    /// It took effect, and its result is too large to be brought here from the leader.
    #[error("done, but the result is too large to be forwarded")]
    ResultTooLarge,
    /// The host gave a reason that has no name here.
    #[error("no reason known")]
    Unnamed,
}

/// A client's bytes, fit for one line of an error.
fn quote(bytes: &Bytes) -> String {
    let end = bytes.len().min(ECHO_BYTES_MAX);
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn quote_all(args: &[Bytes]) -> String {
    let mut text = String::new();
    for arg in args {
        if text.len() >= ECHO_BYTES_MAX {
            break;
        }
        let room = ECHO_BYTES_MAX - text.len();
        let part = quote(&arg.slice(..arg.len().min(room)));
        text.push('\'');
        text.push_str(&part);
        text.push_str("' ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_command_is_named_as_redis_names_it() {
        let error = ClientError::UnknownCommand {
            name: Bytes::from_static(b"FOO"),
            args: vec![Bytes::from_static(b"a"), Bytes::from_static(b"b\r\n-ERR")],
        };
        let text = error.to_string();
        assert_eq!(
            text,
            "ERR unknown command 'FOO', with args beginning with: 'a' 'b  -ERR' "
        );
    }

    #[test]
    fn an_error_line_repeats_a_bounded_part_of_what_was_sent() {
        let long = Bytes::from(vec![b'x'; 1 << 20]);
        let error = ClientError::UnknownCommand {
            name: long.clone(),
            args: vec![long; 9],
        };
        assert!(error.to_string().len() < 400);
    }
}
