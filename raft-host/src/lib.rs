//! Many Raft groups on one node.
