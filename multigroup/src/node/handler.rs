//! What commands do: writes are proposed to their group, reads wait for the host's leave and then
//! ask the store. Order and pipelining within a session are the front's business (`resp`), who leads
//! a group is the host's.
//!
//! - H1: a write is handed to its group's shard at the first poll, so a session's writes to one
//!   group keep their order while those to different groups are under way at once.
//! - H2: each request ends by its own deadline, which is `commit_wait.first_ack_max` from its start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use raft_host::id::GroupId;
use raft_host::io::{self as host, Group, ProposeOptions};
use tokio::sync::Semaphore;
use tracing::error;
use transport::io::clock;

use super::answers::{of_failed_read, of_proposal};
use crate::command::{Body, Command, Consistency, Entry, Identity, Op};
use crate::error::{ClientError, Refused, UnknownReason};
use crate::limits::COUNTS_MAX;
use crate::load::ClusterFacts;
use crate::resp::{CommandHandler, Reply, Request};
use crate::session::RequestId;
use crate::store::{Store, StoreError};

/// What `INFO` tells beside the facts of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Introduction {
    pub(super) cluster: String,
    pub(super) node: u64,
    pub(super) client_port: u16,
    pub(super) facts: ClusterFacts,
}

/// Answers the clients of a node.
#[derive(Debug)]
pub(super) struct Handler {
    groups: Vec<Group>,
    store: Arc<Store>,
    within: Duration,
    policy: host::Policy,
    dedup_window_ms: u32,
    started: Instant,
    counts: Semaphore,
    introduction: Introduction,
}

impl Handler {
    pub(super) fn new(
        groups: Vec<Group>,
        store: Arc<Store>,
        (within, policy): (Duration, host::Policy),
        dedup_window_ms: u32,
        introduction: Introduction,
    ) -> Self {
        Self {
            groups,
            store,
            within,
            policy,
            dedup_window_ms,
            started: clock::now(),
            counts: Semaphore::new(COUNTS_MAX),
            introduction,
        }
    }

    fn group(&self, group: GroupId) -> Result<&Group, ClientError> {
        let at = usize::try_from(group.to_u64()).ok();
        let found = at.and_then(|at| self.groups.get(at));
        found.ok_or(ClientError::NoLeader { group })
    }

    async fn run(&self, request: Request) -> Result<Reply, ClientError> {
        match request {
            Request::Transaction { group, ops } => self.body(group, Body::Transaction(ops)).await,
            Request::DbSize => self.count_keys().await,
            Request::Command { group, command } => match command {
                Command::Op(op) => self.body(group, Body::Single(op)).await,
                Command::Do { id, op } => self.write(group, Body::Single(op), Some(id)).await,
                Command::Read { consistency, key } => {
                    let body = Body::Single(Op::Get { key });
                    self.read(group, body, consistency).await
                }
                Command::Leader { .. } => self.leader(group).await,
                // The front answers it, having the key space.
                Command::Group { .. } => Ok(integer(group.to_u64())),
                Command::DbSize => self.count_keys().await,
            },
        }
    }

    async fn body(&self, group: GroupId, body: Body) -> Result<Reply, ClientError> {
        if body.is_write() {
            self.write(group, body, None).await
        } else {
            self.read(group, body, Consistency::Linear).await
        }
    }

    async fn write(
        &self,
        group: GroupId,
        body: Body,
        id: Option<RequestId>,
    ) -> Result<Reply, ClientError> {
        let identity = id.clone().map(|id| Identity {
            id,
            window_ms: self.dedup_window_ms,
        });
        let entry = Entry { identity, body };
        let bytes = entry.encode().map_err(|error| Refused::EntryTooLarge {
            bytes: error.bytes,
            max: error.max,
        })?;
        let options = ProposeOptions {
            request_id: id
                .as_ref()
                .map(|id| Bytes::copy_from_slice(id.as_str().as_bytes()))
                .unwrap_or_default(),
            policy: self.policy,
            ..ProposeOptions::within(self.within)
        };
        let outcome = self.group(group)?.propose(bytes, options).await;
        Ok(of_proposal(group, id, outcome))
    }

    async fn read(
        &self,
        group: GroupId,
        body: Body,
        consistency: Consistency,
    ) -> Result<Reply, ClientError> {
        let consistency = match consistency {
            // The replica as it is, even if its shard is busy.
            Consistency::Stale => None,
            Consistency::Linear => Some(host::Consistency::Linearizable),
            Consistency::Coherent => Some(host::Consistency::Coherent),
        };
        if let Some(consistency) = consistency {
            let leave = self.group(group)?.read(consistency, self.within).await;
            leave.map_err(|failed| of_failed_read(group, failed))?;
        }
        self.ask_store(move |store| store.read(group, &body).map(|(_, outcome)| outcome.into()))
            .await
    }

    async fn leader(&self, group: GroupId) -> Result<Reply, ClientError> {
        let status = self.group(group)?.status().await;
        let leader = status.and_then(|status| status.leader);
        let leader = leader.ok_or(ClientError::NoLeader { group })?;
        Ok(integer(leader.to_u32().into()))
    }

    /// The keys that this node's replicas hold, which is not a state that all groups had at once.
    async fn count_keys(&self) -> Result<Reply, ClientError> {
        // It is never closed, so this can't fail.
        let _turn = self.counts.acquire().await;
        let groups: Vec<_> = self.groups.iter().map(Group::id).collect();
        self.ask_store(move |store| {
            let counts = groups.into_iter().map(|group| store.row_count(group));
            counts.sum::<Result<u64, _>>().map(integer)
        })
        .await
    }

    /// Asks the store where waiting for its file holds up nothing else.
    async fn ask_store(
        &self,
        ask: impl FnOnce(&Store) -> Result<Reply, StoreError> + Send + 'static,
    ) -> Result<Reply, ClientError> {
        let store = Arc::clone(&self.store);
        let answer = tokio::task::spawn_blocking(move || ask(&store)).await;
        let why = match answer {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        error!(error = %why, "a read of the store failed");
        let (id, why) = (None, UnknownReason::StoreFailed);
        Err(ClientError::Unknown { id, why })
    }
}

fn integer(number: u64) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

impl CommandHandler for Handler {
    async fn handle(self: Arc<Self>, request: Request) -> Reply {
        self.run(request).await.unwrap_or_else(Reply::from)
    }

    fn describe(&self) -> String {
        let it = &self.introduction;
        let uptime = clock::now().saturating_duration_since(self.started);
        format!(
            "# Server\r\nserver_name:multigroup\r\nmultigroup_version:{}\r\nprocess_id:{}\r\n\
             tcp_port:{}\r\nuptime_in_seconds:{}\r\n\r\n{}multigroup_cluster:{}\r\n\
             multigroup_node:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            it.client_port,
            uptime.as_secs(),
            it.facts.info_section(),
            it.cluster,
            it.node,
        )
    }
}
