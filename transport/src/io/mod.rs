//! The shell around the protocol core: files, sockets, tasks, TLS and the clock. Nothing here
//! decides what a frame means; that is `proto`'s business.

mod acceptor;
pub mod clock;
pub mod credentials;
mod events;
mod keeper;
mod lane_task;
mod pump;
mod shared;
mod standing;
mod tls;
mod transport;

pub use events::{
    AcceptorStatus, CredentialsStatus, Direction, Event, InboundStatus, LaneState, LaneStatus,
    Received, Status,
};
pub use transport::{Peer, Room, SendOptions, StartError, Transport, UnknownPeer};
