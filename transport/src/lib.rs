//! Per-peer mutual-TLS links.

pub mod budget;
pub mod config;
mod error;
pub mod id;
#[cfg(feature = "io")]
pub mod io;
pub mod limits;
pub mod mailbox;
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
pub use id::{Boot, ClusterName, Incarnation, Label, Lane, NodeIdentity, PeerId};
#[cfg(feature = "io")]
pub use io::credentials::{Credentials, TlsFiles};
#[cfg(feature = "io")]
pub use io::{Peer, Room, SendOptions, Transport};
pub use proto::fifo::{Frame, Verified};
pub use proto::frame::Answer;
pub use proto::hello::Fingerprint;
pub use proto::source::{ControlSource, FrameSpace, PushRefused, Waiting};
pub use receipt::{Outcome, Receipt, Stage};
pub use reply_slot::{Inbound, ReplySlot};
