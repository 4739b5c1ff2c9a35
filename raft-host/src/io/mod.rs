//! The shell around the protocol core: shard threads, apply workers, the links' ends, and the
//! embedding API over them. Nothing here decides what Raft does; that is `proto`'s business, and
//! how the log is laid out is `log`'s.

mod apply;
mod failure;
mod group;
mod in_flight;
mod inbound;
mod inbox;
mod life;
mod links;
mod machine;
mod node;
mod outbox;
mod peers;
mod requests;
mod shard;
mod storage;
mod workers;

pub use crate::proto::consensus::CommittedEntries;
pub use crate::proto::delayed::Admission;
pub use crate::proto::host::{Forwarding, Led};
pub use crate::proto::waiters::Policy;
pub use failure::HostFailure;
pub use group::{CommittedFailed, Consistency, Group, GroupsOfShard, ProposeOptions, Waiting};
pub use machine::{Applied, Committed, MachineError, MachineFactory, Snapshot, StateMachine};
pub use node::{CommitWait, CreateError, Final, Host, StartError};
pub use storage::{Storage, StorageError};
