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

pub use error::{
    AuthorityEnded, CloseCode, IdentityFault, PeerIncompatible, PeerMisbehaved, PeerNotice,
    RefusalReason, ReserveRefused, Scope, SendRefused, SessionEnd, TimedOut, TlsFault, Unit,
};
pub use reply_slot::{Inbound, ReplySlot};
