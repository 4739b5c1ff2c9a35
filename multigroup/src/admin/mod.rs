//! The admin port: HTTP for operators and programs. `status` is what a node says of itself, as types
//! with the names of the JSON; `peers` makes a part of it from what the transport says;
//! `account` holds such a status to account; `metrics` says the same in the form of Prometheus; `routes` maps paths to answers; `server` owns the
//! sockets; `client` asks other nodes' ports.
//!
//! What a node's state is, is behind [`StatusSource`], which the node implements. Nothing here
//! changes a node.

mod account;
mod client;
mod commit_wait;
mod exposition;
mod metrics;
mod peers;
mod routes;
mod server;
mod status;
#[cfg(test)]
pub(crate) mod tests;

pub use self::account::{AccountFault, closed};
pub use self::client::{AdminUrl, FetchError, UrlError, fetch, post};
pub use self::exposition::{Exposition, Family, Kind, Number};
pub use self::peers::{lane_status, lane_statuses};
pub use self::server::{AdminServed, serve};
pub use self::status::{
    ArchiveState, ArchiveStatus, CommitWaitStatus, DelayStatus, DiskHealth, FlushCounts,
    GroupCounts, GroupPage, GroupRole, GroupStatus, HandoverStatus, LIVE_SETTINGS, LaneState,
    LogStatus, OccupancyStatus, PeerStatus, ProposalStatus, ReplicaFault, ReplicaState,
    RoundStatus, STATUS_SCHEMA, SettingFault, Status, StatusSource, TlsStatus, Unfit,
};
