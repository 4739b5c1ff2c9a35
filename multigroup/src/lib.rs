//! The store: commands, databases, fronts and the command line.

pub mod cli;
