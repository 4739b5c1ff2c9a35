//! Links between the nodes of a cluster: mutual TLS 1.3, frames in authenticated order, a control
//! lane that nothing bulk delays, and for each thing sent a receipt of what became of it.
//!
//! Start a [`Transport`] with a [`Config`], [`Credentials`] and an [`Inbound`], which takes what
//! comes in. To send: reserve room at a [`Peer`], send items of it, and await each [`Receipt`] for
//! its [`Outcome`]. On the control lane a [`ControlSource`] can be asked for content when a slot of
//! the window opens instead. It runs on a tokio runtime; payloads are [`bytes::Bytes`].
//!
//! ```no_run
//! # use std::time::Duration;
//! # use transport::{Amount, Lane, Outcome, PeerId, SendOptions, Transport, io::clock};
//! # async fn show(transport: Transport, peer: PeerId) -> Result<(), Box<dyn std::error::Error>> {
//! let mut room = transport.peer(peer)?.try_reserve(Lane::Control, Amount::new(1, 64))?;
//! let within = SendOptions::until(clock::now() + Duration::from_secs(1));
//! match room.send("beat".into(), within)?.await {
//!     Outcome::Replied(answer) => println!("taken: {answer:?}"),
//!     other if other.is_proven_without_effect() => println!("safe to send again: {other:?}"),
//!     other => println!("the peer may have seen it: {other:?}"),
//! }
//! transport.shut_down(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! A whole program of two nodes is `examples/two_nodes.rs`. [`proto`], [`mailbox`], [`budget`] and
//! [`receipt`] are the protocol core, which a simulation drives without sockets; an embedder needs
//! of them only what is exported here.

pub mod budget;
pub mod config;
mod error;
pub mod id;
#[cfg(feature = "io")]
pub mod io;
pub mod limits;
pub mod mailbox;
#[doc(hidden)]
pub mod mutant;
pub mod proto;
pub mod receipt;
mod reply_slot;
mod sync;
#[cfg(test)]
#[cfg(not(loom))]
mod testing;

pub use budget::Amount;
pub use config::{Config, Tuning};
pub use error::{
    AuthorityEnded, CloseCode, IdentityFault, PeerIncompatible, PeerMisbehaved, PeerNotice,
    RefusalReason, ReserveRefused, Scope, SendRefused, SessionEnd, TimedOut, TlsFault, Unit,
};
pub use id::{Boot, ClusterName, Incarnation, Label, Lane, LifeId, NodeIdentity, PeerId};
#[cfg(feature = "io")]
pub use io::credentials::{Credentials, TlsFiles};
#[cfg(feature = "io")]
pub use io::{
    Event, LaneStatus, Peer, Room, SendOptions, StartError, Status, Transport, UnknownPeer,
};
pub use proto::fifo::{Frame, Verified};
pub use proto::frame::Answer;
pub use proto::hello::Fingerprint;
pub use proto::source::{ControlSource, FrameSpace, PushRefused, Waiting};
pub use receipt::{Outcome, Receipt, Stage};
pub use reply_slot::{FrameSession, Inbound, ReplySlot};
