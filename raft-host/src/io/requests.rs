//! What callers ask of a shard, each with the way back. A request that is dropped unanswered tells
//! its caller that the shard has stopped.

use std::time::Instant;

use tokio::sync::oneshot::Sender;

use super::machine::StateMachine;
use crate::config::GroupConfig;
use crate::error::{OpenError, ReadFailed, Refusal};
use crate::id::{GroupId, Index, ReplicaId};
use crate::log::api::ReadError;
use crate::metrics::GroupStatus;
use crate::proto::consensus::CommittedEntries;
use crate::proto::delayed::Admission;
use crate::proto::host::Led;

/// A question to a shard, and where the answer goes.
pub(super) enum Request {
    Read {
        group: GroupId,
        deadline: Instant,
        reply: Sender<Result<Index, ReadFailed>>,
    },
    Transfer {
        group: GroupId,
        to: ReplicaId,
        reply: Sender<Result<(), Refusal>>,
    },
    Status {
        group: GroupId,
        reply: Sender<Option<GroupStatus>>,
    },
    Create {
        config: GroupConfig,
        machine: Box<dyn StateMachine>,
        reply: Sender<Result<(), OpenError>>,
    },
    Committed {
        group: GroupId,
        first: Index,
        bytes_max: u64,
        reply: Sender<Option<Result<CommittedEntries, ReadError>>>,
    },
    Led {
        reply: Sender<Vec<Led>>,
    },
    /// Nobody waits for an answer to these two.
    ReleaseLog {
        group: GroupId,
        through: Index,
    },
    SetAdmission(Admission),
    /// Answered once nothing waits any more, or at `until`, with the number that still does.
    Drain {
        until: Instant,
        reply: Sender<usize>,
    },
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read { .. } => "Read",
            Self::Transfer { .. } => "Transfer",
            Self::Status { .. } => "Status",
            Self::Create { .. } => "Create",
            Self::Committed { .. } => "Committed",
            Self::Led { .. } => "Led",
            Self::ReleaseLog { .. } => "ReleaseLog",
            Self::SetAdmission(_) => "SetAdmission",
            Self::Drain { .. } => "Drain",
        })
    }
}

/// Answers a caller, who may have gone.
pub(super) fn answer<T>(reply: Sender<T>, value: T) {
    let _ = reply.send(value);
}
