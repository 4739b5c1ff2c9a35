//! Per-peer mutual-TLS links.

mod error;
pub mod id;
pub mod limits;

pub use error::{
    AuthorityEnded, CloseCode, IdentityFault, PeerIncompatible, PeerMisbehaved, PeerNotice,
    RefusalReason, ReserveRefused, Scope, SendRefused, SessionEnd, TimedOut, TlsFault, Unit,
};
