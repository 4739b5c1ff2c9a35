//! Fail-stop: the first failure that a node can't go on with is kept and told, and every shard
//! ends. What waits is answered `Unknown`; what comes is refused. Whether the process exits is the
//! embedder's decision, and starting again on the same folder the only way back.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::inbox::{Inbox, lock};
use super::machine::MachineError;
use crate::id::{GroupId, ShardId};
use crate::log::LogFailure;
use crate::stores::StoresFailed;

/// Why a node has stopped.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostFailure {
    /// The log has stopped: what it was given last may be lost.
    #[error("the log has failed")]
    Log(#[source] LogFailure),
    /// The log was given what it can never take: a fault of this program.
    #[error("group {group} has a change that the log can't take")]
    Store {
        /// The group.
        group: GroupId,
        /// Why it can't.
        #[source]
        source: Arc<crate::log::SubmitError>,
    },
    /// A state machine failed.
    #[error("the state machine of group {group} has failed")]
    Machine {
        /// The group.
        group: GroupId,
        /// Why.
        #[source]
        error: Arc<MachineError>,
    },
    /// A shard's thread panicked: a fault of this program, or its log lost entries.
    #[error("shard {shard} panicked")]
    ShardPanicked {
        /// The shard.
        shard: ShardId,
    },
}

impl From<StoresFailed> for HostFailure {
    fn from(failed: StoresFailed) -> Self {
        match failed {
            StoresFailed::Log(failure) => Self::Log(failure),
            StoresFailed::Store { group, source } => Self::Store { group, source },
        }
    }
}

/// The node's failure, if it has one.
#[derive(Debug)]
pub(super) struct Failing {
    failure: watch::Sender<Option<HostFailure>>,
    shards: Mutex<Vec<Arc<Inbox>>>,
}

impl Failing {
    pub(super) fn new(shards: Vec<Arc<Inbox>>) -> Self {
        Self {
            failure: watch::Sender::new(None),
            shards: Mutex::new(shards),
        }
    }

    /// Stops the node; only the first cause is kept.
    pub(super) fn fail(&self, failure: HostFailure) {
        let first = self.failure.send_if_modified(|kept| {
            let first = kept.is_none();
            kept.get_or_insert_with(|| failure.clone());
            first
        });
        if first {
            let error: &dyn std::error::Error = &failure;
            tracing::error!(error, "this node stops");
        }
        for shard in lock(&self.shards).iter() {
            shard.stop();
        }
    }

    pub(super) fn get(&self) -> Option<HostFailure> {
        self.failure.borrow().clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<HostFailure>> {
        self.failure.subscribe()
    }
}
