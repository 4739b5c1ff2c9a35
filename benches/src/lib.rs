//! What the benches share: the report that each writes ([`report`], [`plot`], [`arguments`]), and
//! what they measure with: nodes' certificates ([`fleet`]), a second thread to be the other end
//! ([`end`]), clients that write keys of their own to one node ([`clients`]), each kept on a core ([`cores`]), a line that delays ([`relay`]), the cost of a thread ([`meter`]), our control lane
//! ([`lane`]) and the plain TLS exchange that it is held against ([`raw`]).
//!
//! What is measured and what it means is each bench's own business. Nothing here repeats a timed
//! run: a run that fails fails its bench.

pub mod arguments;
pub mod clients;
pub mod cluster;
pub mod cores;
pub mod end;
pub mod fleet;
pub mod lane;
pub mod meter;
pub mod plot;
pub mod processes;
pub mod raw;
pub mod relay;
pub mod report;
pub mod syncs;

/// Why a bench failed, for the person who started it.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;
