//! Many Raft groups on one node.

pub mod config;
pub mod error;
pub mod id;
pub mod limits;
pub mod log;
pub mod proto;
