//! Per-peer mutual-TLS links.

pub mod budget;
mod error;
pub mod id;
#[cfg(feature = "io")]
pub mod io;
pub mod limits;
pub mod mailbox;
pub mod proto;
pub mod receipt;
mod sync;

pub use error::{
    AuthorityEnded, CloseCode, IdentityFault, PeerIncompatible, PeerMisbehaved, PeerNotice,
    RefusalReason, ReserveRefused, Scope, SendRefused, SessionEnd, TimedOut, TlsFault, Unit,
};
