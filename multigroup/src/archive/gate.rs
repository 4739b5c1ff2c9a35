//! Holds writes back while the archive lags (A4): over the bound the groups that this node leads
//! take no proposals, wherever these were made; they wait or are refused, as configured. It looks
//! at memory and at the shards only, so it works while the store doesn't answer.
//!
//! Started with the node, ended with it. If it panicked, writes would stay as they were held.

use std::sync::Arc;
use std::time::Duration;

use raft_host::io::{Admission, GroupsOfShard};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::publisher::Shared;
use crate::limits::ARCHIVE_GATE_INTERVALS;

/// What it needs.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The node's shards.
    pub(crate) shards: Vec<GroupsOfShard>,
    /// What is counted.
    pub(crate) shared: Arc<Shared>,
    /// How writes are held when too much lags.
    pub(crate) closed: Admission,
}

/// Whether writes are held, once so much lags: there is an eighth between the two bounds, so that
/// it doesn't flap with every object.
fn is_held(held: bool, lag_bytes: u64, max_bytes: u64) -> bool {
    let bound = if held {
        max_bytes - max_bytes / 8
    } else {
        max_bytes
    };
    lag_bytes > bound
}

impl Gate {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let (rarely, often) = ARCHIVE_GATE_INTERVALS;
        let mut held = false;
        loop {
            let wait: Duration = if held { often } else { rarely };
            let _ = timeout(wait, self.shared.ledger.beyond()).await;
            let ledger = &self.shared.ledger;
            let max = ledger.max_bytes();
            let lag = if held || ledger.pending_bytes() > max {
                self.led_lag_bytes().await
            } else {
                0
            };
            let hold = is_held(held, lag, max);
            if hold != held && self.set(hold) {
                held = hold;
                self.shared.set_held(held);
                if held {
                    warn!(
                        lag_bytes = lag,
                        max_lag_bytes = max,
                        "the archive lags, holding writes"
                    );
                } else {
                    info!(lag_bytes = lag, "the archive has caught up, taking writes");
                }
            }
            // Every write reports it, once too much lags.
            sleep(often).await;
        }
    }

    async fn led_lag_bytes(&self) -> u64 {
        let mut bytes = 0;
        for shard in &self.shards {
            let led = shard.led().await.unwrap_or_default();
            let lags = led
                .iter()
                .map(|led| self.shared.ledger.pending_bytes_of(led.group));
            bytes += lags.sum::<u64>();
        }
        bytes
    }

    /// Whether every shard has been told; one that takes no requests now is told again.
    fn set(&self, hold: bool) -> bool {
        let admission = if hold { self.closed } else { Admission::Open };
        let told = self
            .shards
            .iter()
            .map(|shard| shard.set_admission(admission));
        told.fold(true, |all, told| all & told.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_held_over_the_bound_and_let_go_an_eighth_below() {
        assert!(!is_held(false, 800, 800));
        assert!(is_held(false, 801, 800));
        assert!(is_held(true, 701, 800));
        assert!(!is_held(true, 700, 800));
        assert!(!is_held(true, 0, 1));
    }
}
