//! Holds a cluster's replicas against each other and against the account that `load` kept.
//! `online` asks running nodes, `offline` reads what stopped ones left on disk; `compare` judges
//! what was read of one group, `ledger` one key, `report` is what came of it all.
//!
//! - V1: nothing of a node is changed: running nodes are asked to read, of stopped ones only copies
//!   of databases are written to.
//! - V2: what couldn't be read or compared is a mismatch, never passed over; only a node that gives
//!   no answer at all is told apart from that.
//! - V3: a replica counts only if at least one value and an applied index above 0 were read from
//!   it.
//!
//! Of a cluster without an archive no positions are compared, and their count is 0.

mod archived;
mod compare;
mod ledger;
mod offline;
mod online;
mod replay;
mod report;
mod scratch;
#[cfg(test)]
mod tests;

pub use self::archived::{ArchiveRead, Archived, archived_online, read_archive};
pub use self::ledger::{Account, accounts};
pub use self::offline::{StoppedNode, VerifyError, offline};
pub use self::online::{Answered, RunningNode, online};
pub use self::report::{Mismatch, Report, VERIFY_SCHEMA};
