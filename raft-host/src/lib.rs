//! Many Raft groups on one node.

pub mod id;
pub mod log;
