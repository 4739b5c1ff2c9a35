//! A shard's end of the log: it stages changes, which its views show at once, and flushes them to
//! the log thread as one submission.
//!
//! Leaves to others: the views' content (view.rs), writing (engine.rs), telling the shard what is
//! durable (thread.rs, through the sink given at open).
//!
//! A shard thread owns it. Staging refuses by name, before anything changed, what can't be taken
//! now; what was staged is always taken by the flush, unless the log has stopped. All changes of
//! one group must come through one shard: that alone orders them. Nothing here ever waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::api::{Change, Mutation};
use super::config::LogConfig;
use super::engine::{Submission, change_bytes};
use super::error::SubmitError;
use super::shared::{DiskState, Shared};
use super::thread::Queue;
use super::view::{CacheBudget, GroupView};
use super::{LogShard, Token};
use crate::id::GroupId;
use crate::limits;

/// One shard's end of the log.
#[derive(Debug)]
pub struct ShardLog {
    shard: LogShard,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    budget: Arc<CacheBudget>,
    config: LogConfig,
    durable: Arc<AtomicU64>,
    staged: Vec<Mutation>,
    staged_bytes: u64,
    last: Token,
}

impl ShardLog {
    pub(super) fn new(
        shard: LogShard,
        queue: Arc<Queue>,
        shared: Arc<Shared>,
        budget: Arc<CacheBudget>,
        config: LogConfig,
        durable: Arc<AtomicU64>,
    ) -> Self {
        let (staged, staged_bytes, last) = (Vec::new(), 0, Token(0));
        Self {
            shard,
            queue,
            shared,
            budget,
            config,
            durable,
            staged,
            staged_bytes,
            last,
        }
    }

    /// The shard.
    #[must_use]
    pub fn shard(&self) -> LogShard {
        self.shard
    }

    /// The view of a group that isn't in the log yet; it appears with its first change.
    #[must_use]
    pub fn new_group(&self, group: GroupId) -> GroupView {
        GroupView::new(group, Arc::clone(&self.shared), Arc::clone(&self.budget))
    }

    /// The last durable token of this shard.
    #[must_use]
    pub fn durable(&self) -> Token {
        Token(self.durable.load(Ordering::Acquire))
    }

    /// The token under which what is staged now will be flushed.
    #[must_use]
    pub fn next_token(&self) -> Token {
        Token(self.last.0 + 1)
    }

    /// Takes a change of a group, shows it in the group's view, and says under which token it
    /// will be flushed.
    ///
    /// # Errors
    /// When it can't be taken now, or at all. Neither the log nor the view has changed then.
    pub fn stage(&mut self, view: &mut GroupView, change: Change) -> Result<Token, SubmitError> {
        view.check(&change)?;
        let bytes = change_bytes(&change);
        self.admit(&change, bytes)?;
        if self.staged_bytes + bytes > self.config.batch_bytes_max() {
            self.flush()?;
        }
        let token = Token(self.last.0 + 1);
        view.apply(&change, token);
        view.evict(self.durable());
        self.staged.push(Mutation {
            group: view.group(),
            change,
        });
        self.staged_bytes += bytes;
        Ok(token)
    }

    fn admit(&self, change: &Change, bytes: u64) -> Result<(), SubmitError> {
        let bytes_max = self.config.batch_bytes_max();
        if bytes > bytes_max {
            return Err(SubmitError::TooLarge { bytes, bytes_max });
        }
        let disk = self.shared.disk();
        if disk == DiskState::Failed {
            return Err(self.failed());
        }
        let health = self.shared.health();
        let queued_bytes = health.unsynced_bytes + self.staged_bytes;
        if queued_bytes + bytes > limits::LOG_QUEUE_BYTES_MAX {
            return Err(SubmitError::Busy {
                queued_bytes,
                bytes_max: limits::LOG_QUEUE_BYTES_MAX,
            });
        }
        let has_entries = matches!(change, Change::Write { entries, .. } if !entries.is_empty());
        if has_entries && disk == DiskState::Full {
            return Err(SubmitError::DiskFull);
        }
        if has_entries && queued_bytes + bytes > health.room_bytes {
            return Err(SubmitError::CapReached {
                bytes_max: self.config.bytes_max(),
            });
        }
        Ok(())
    }

    /// Bytes of entries that are taken before the cap refuses them, as of now.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        let health = self.shared.health();
        let queued = health.unsynced_bytes + self.staged_bytes;
        health.room_bytes.saturating_sub(queued)
    }

    /// The same of a log in which nothing is retained.
    #[must_use]
    pub fn room_bytes_max(&self) -> u64 {
        self.config.room_bytes_max()
    }

    /// The cap, and the bytes of the segments in use, which may pass it by one segment.
    #[must_use]
    pub fn cap_bytes(&self) -> (u64, u64) {
        (self.config.bytes_max(), self.shared.health().segments_bytes)
    }

    /// What the disk is like.
    #[must_use]
    pub fn disk(&self) -> DiskState {
        self.shared.disk()
    }

    fn failed(&self) -> SubmitError {
        self.shared
            .failure()
            .map_or(SubmitError::Closed, SubmitError::Failed)
    }

    /// Hands what was staged to the log thread, as one submission; gives its token, or `None` when
    /// nothing was staged. Its completion comes through the sink.
    ///
    /// # Errors
    /// When the log has stopped or was closed.
    pub fn flush(&mut self) -> Result<Option<Token>, SubmitError> {
        if self.staged.is_empty() {
            return Ok(None);
        }
        let token = Token(self.last.0 + 1);
        let mutations = std::mem::take(&mut self.staged);
        let bytes = std::mem::take(&mut self.staged_bytes);
        self.shared
            .unsynced_bytes
            .fetch_add(bytes, Ordering::AcqRel);
        let submission = Submission {
            shard: self.shard,
            token,
            mutations,
            bytes,
        };
        if !self.queue.push(submission) {
            self.shared
                .unsynced_bytes
                .fetch_sub(bytes, Ordering::AcqRel);
            return Err(self.failed());
        }
        self.last = token;
        Ok(Some(token))
    }

    /// Drops a group's durable entries from memory, as when it goes to sleep.
    pub fn shed(&self, view: &mut GroupView) {
        view.shed(self.durable());
    }

    /// Whether everything a view shows is durable.
    #[must_use]
    pub fn is_durable(&self, view: &GroupView) -> bool {
        view.is_durable(self.durable())
    }
}
