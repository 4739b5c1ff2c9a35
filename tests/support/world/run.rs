//! Runs seeds and says how each ended; a check that fails, here or in the product's own assertions,
//! ends its run and no other.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::trace::Trace;
use super::{Counts, World};

/// What a run came to that held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Of everything that happened, in order.
    pub hash: u64,
    /// What was counted.
    pub counts: Counts,
    /// Leaders elected.
    pub elections: u64,
    /// Operations of clients that were answered.
    pub answered: u64,
    /// Those that nobody knows the fate of.
    pub unknown: u64,
    /// Those sent again under their id.
    pub repeated: u64,
}

/// A run that didn't hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What didn't.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (SIM_SEED={})", self.what, self.seed)
    }
}

thread_local! {
    /// Where a run is under way on this thread: what it said as it failed.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what a failing run says for its caller; other threads' panics go the usual way.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let kept = SAID.with_borrow_mut(|said| {
                let Some(said) = said else { return false };
                if said.is_empty() {
                    *said = info.to_string();
                }
                true
            });
            if !kept {
                usual(info);
            }
        }));
    });
}

/// Runs one seed.
///
/// # Errors
/// What didn't hold.
pub fn run_seed(seed: u64) -> Result<Summary, Failure> {
    run_seed_traced(seed, Trace::default())
}

/// Runs one seed with this trace.
///
/// # Errors
/// What didn't hold.
pub fn run_seed_traced(seed: u64, trace: Trace) -> Result<Summary, Failure> {
    listen();
    SAID.with_borrow_mut(|said| *said = Some(String::new()));
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, trace);
        world.run();
        world.summary()
    }));
    let said = SAID.take();
    ran.map_err(|_| Failure {
        seed,
        what: said.unwrap_or_default(),
    })
}

impl World {
    fn summary(&self) -> Summary {
        Summary {
            hash: self.trace.hash(),
            counts: self.counts,
            elections: self.safety.elections,
            answered: self.histories.answered,
            unknown: self.histories.unknown,
            repeated: self.histories.repeated,
        }
    }
}
