//! The load driver: writers in a closed loop, one request in flight each, over the Redis protocol,
//! and an account of every operation that can be held against the store afterwards.
//!
//! `answer` and `client` speak the protocol and know no command; `plan` is what a run shall do,
//! `prepare` makes its keys, `writer` is one closed loop, `tally` and `report` are what came of it,
//! `ledger` is the file that `verify` reads. Terminals, arguments and exit codes are `cli`'s.
//!
//! - L1: an operation is sent at most once. Whatever fails is counted by its kind and left.
//! - L2: per key, acknowledged <= effects <= acknowledged + unknown; what isn't proven without
//!   effect counts as unknown.
//! - L3: latencies and rates cover acknowledged operations of the timed part alone.

mod answer;
mod client;
mod facts;
mod ledger;
mod plan;
mod prepare;
mod report;
mod run;
mod tally;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub use self::answer::{Answer, AnswerError};
pub use self::client::{CallError, Client, Endpoint, EndpointError};
pub use self::facts::{ClusterFacts, FactsError, ask};
pub use self::ledger::{Accounts, Ledger, LedgerEntry, LedgerError, read_ledger};
pub use self::plan::{Account, Operation, Plan, PlanError, RawPlan, Route};
pub use self::report::{Build, ErrorCounts, Figures, Report, WindowFigures};
pub use self::run::{Finished, LoadError, Progress, RunId, Stop, run, run_after};
pub use self::tally::{FailureKind, KeyTally};
