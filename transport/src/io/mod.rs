//! The shell around the protocol core: files, sockets, tasks, TLS and the clock. Nothing here
//! decides what a frame means; that is `proto`'s business.

pub mod credentials;
