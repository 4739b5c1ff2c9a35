//! The store: commands, databases, fronts and the command line.

pub mod admin;
pub mod archive;
pub mod causes;
pub mod certificates;
pub mod cli;
pub mod cluster;
pub mod cluster_id;
pub mod command;
pub mod config;
pub mod error;
pub mod keyspace;
pub mod limits;
pub mod load;
pub mod node;
pub mod resp;
pub mod session;
pub mod store;
pub mod verify;
