//! The archive's parts within a node: what they are made of out of the configuration, started once
//! the host runs, and ended before it does, so that what was committed is published first.

use std::sync::Arc;
use std::time::Duration;

use raft_host::Host;
use raft_host::io::{Admission, Group};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;
use transport::Incarnation;

use super::error::SettingError;
use crate::archive::{
    ArchiveError, ArchiveUrl, Claim, Gate, Publisher, PublisherSetup, Shared, Whose,
};
use crate::causes::with_causes;
use crate::config::{Config, OnLag};

/// The archive of a node, before its host runs.
#[derive(Debug)]
pub(super) struct Archiving {
    url: ArchiveUrl,
    own: Whose,
    interval: Duration,
    closed: Admission,
    pub(super) shared: Arc<Shared>,
}

/// What runs for it.
#[derive(Debug)]
pub(super) struct ArchiveTasks {
    tell: watch::Sender<bool>,
    publisher: JoinHandle<()>,
    gate: JoinHandle<()>,
}

impl Archiving {
    /// `None` if the archive is off.
    pub(super) fn of(config: &Config) -> Result<Option<Self>, SettingError> {
        let raw = config.raw();
        let Some(archive) = &raw.archive else {
            return Ok(None);
        };
        let url = archive.url.parse();
        let url = url.map_err(|error| SettingError::Archive(Box::new(error)))?;
        let groups = config.space().groups();
        let closed = match config.on_lag() {
            // So that whoever waited for nothing is told so before its own time is up.
            OnLag::Delay => Admission::Delay {
                at_most: raw.commit_wait.first_ack_max.0 / 2,
            },
            OnLag::Refuse => Admission::Refuse,
        };
        Ok(Some(Self {
            url,
            own: Whose {
                cluster: raw.cluster.clone(),
                id: raw.cluster_id,
                groups,
            },
            interval: archive.interval.0,
            closed,
            shared: Arc::new(Shared::new(groups, archive.max_lag_bytes.0)),
        }))
    }

    fn claim(&self, config: &Config, incarnation: Incarnation) -> Claim {
        Claim {
            url: self.url.clone(),
            own: self.own.clone(),
            node: config.node(),
            incarnation: incarnation.to_bytes(),
            data: config.data_dir().to_owned(),
        }
    }

    /// Looks at the archive before anything is served: what someone must act upon ends the start. A
    /// store that is down doesn't: writes are taken as long as they may lag.
    pub(super) async fn check(
        &self,
        config: &Config,
        incarnation: Incarnation,
    ) -> Result<(), ArchiveError> {
        match self.claim(config, incarnation).open().await {
            Ok(_) => Ok(()),
            Err(error) if error.wants_an_operator() => Err(error),
            Err(error) => {
                let error = with_causes(&error);
                warn!(%error, "the archive can't be asked now; the node starts and tries again");
                Ok(())
            }
        }
    }

    /// Begins to publish what the host's groups commit.
    pub(super) fn start(
        &self,
        config: &Config,
        host: &Host,
        groups: &[Group],
        incarnation: Incarnation,
    ) -> ArchiveTasks {
        let (tell, told) = watch::channel(false);
        let publisher = Publisher::new(PublisherSetup {
            claim: self.claim(config, incarnation),
            nodes: config.peers().keys().copied().collect(),
            interval: self.interval,
            groups: groups.to_vec(),
            shards: host.shards(),
            shared: Arc::clone(&self.shared),
        });
        let gate = Gate {
            shards: host.shards(),
            shared: Arc::clone(&self.shared),
            closed: self.closed,
        };
        ArchiveTasks {
            tell,
            publisher: tokio::spawn(publisher.run(told)),
            gate: tokio::spawn(gate.run()),
        }
    }
}

impl ArchiveTasks {
    /// Publishes once more, and ends.
    pub(super) async fn stop(self) {
        self.tell.send_replace(true);
        if let Err(error) = self.publisher.await {
            warn!(%error, "the archive's publisher panicked; the logs keep what it left");
        }
        self.gate.abort();
    }

    /// The node has failed: nothing of it can be asked any more.
    pub(super) fn abort(self) {
        self.publisher.abort();
        self.gate.abort();
    }
}
