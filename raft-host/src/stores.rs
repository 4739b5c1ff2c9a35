//! The shard's writes: staged as the core wants them, flushed once a turn, and matched with what
//! the log says is durable. What the log has no room for waits here, each group's in its order; the
//! core holds back what depends on it. It waits for nothing: the shard's thread and the simulation
//! drive it alike.
//!
//! - T1: while a write of a group waits here, every later one of that group waits behind it, but for
//!   compactions: they concern entries that are in the log already, and make the room that is
//!   waited for.
//! - T2: a write is reported durable once, after all of it is.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crate::error::Refusal;
use crate::id::{GroupId, StoreSeq};
use crate::limits::{LOG_ROOM_LOW_DIVISOR, LOG_ROOM_SPENT_DIVISOR};
use crate::log::api::{Change, GroupLog};
use crate::log::{DiskState, GroupView, LogFailure, ShardLog, SubmitError, Token};
use crate::proto::host::LogRoom;

type View = Rc<RefCell<GroupView>>;

/// Why a shard can't go on.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoresFailed {
    /// The log has stopped.
    #[error("the log has failed")]
    Log(#[source] LogFailure),
    /// The log was given what it can never take: a fault of this program.
    #[error("group {group} has a change that the log can't take")]
    Store {
        /// The group.
        group: GroupId,
        /// Why it can't.
        #[source]
        source: Arc<SubmitError>,
    },
}

type Writes = VecDeque<(Option<StoreSeq>, Change)>;

#[derive(Debug)]
struct Held {
    view: View,
    writes: Writes,
}

/// The writes of one shard.
#[derive(Debug)]
pub struct Stores {
    log: ShardLog,
    /// Staged or flushed, not yet durable, in the order of their tokens.
    waiting: VecDeque<(Token, GroupId, StoreSeq)>,
    held: BTreeMap<GroupId, Held>,
    /// Entries are refused: no space, or the cap.
    full: bool,
}

impl Stores {
    /// Over a shard's end of the log.
    #[must_use]
    pub fn new(log: ShardLog) -> Self {
        Self {
            log,
            waiting: VecDeque::new(),
            held: BTreeMap::new(),
            full: false,
        }
    }

    /// The end of a group that isn't in the log yet.
    #[must_use]
    pub fn new_group(&self, group: GroupId) -> GroupView {
        self.log.new_group(group)
    }

    /// The log's room for entries, and by which name it is refused.
    #[must_use]
    pub fn room(&self) -> LogRoom {
        let (room, whole) = (self.log.room_bytes(), self.log.room_bytes_max());
        if self.log.disk() == DiskState::Full {
            return LogRoom::Spent(Refusal::LogFull);
        }
        if self.full || room < whole / LOG_ROOM_SPENT_DIVISOR {
            let (most, retained) = self.log.cap_bytes();
            return LogRoom::Spent(Refusal::LogRetainedBytes { retained, most });
        }
        if room < whole / LOG_ROOM_LOW_DIVISOR {
            return LogRoom::Low;
        }
        LogRoom::Ample
    }

    /// Writes that wait here.
    #[must_use]
    pub fn held(&self) -> u64 {
        let held: usize = self.held.values().map(|held| held.writes.len()).sum();
        held as u64
    }

    /// The token under which what is staged now will be durable.
    #[must_use]
    pub fn token(&self) -> Token {
        self.log.next_token()
    }

    /// Takes a write of the core.
    ///
    /// # Errors
    /// [`StoresFailed`]: the node must stop.
    pub fn store(
        &mut self,
        view: &View,
        group: GroupId,
        seq: Option<StoreSeq>,
        change: Change,
    ) -> Result<(), StoresFailed> {
        if let Some(held) = self.held.get_mut(&group) {
            if !passes(&change, view) {
                held.writes.push_back((seq, change));
                return Ok(());
            }
            let mut alone = VecDeque::from([(seq, change)]);
            self.stage(view, group, &mut alone)?;
            if let Some(held) = self.held.get_mut(&group) {
                held.writes.extend(alone);
            }
            return Ok(());
        }
        let mut writes = VecDeque::from([(seq, change)]);
        self.stage(view, group, &mut writes)?;
        if !writes.is_empty() {
            let view = Rc::clone(view);
            self.held.insert(group, Held { view, writes });
        }
        Ok(())
    }

    /// Stages from the front what there is room for, and leaves the rest.
    fn stage(
        &mut self,
        view: &View,
        group: GroupId,
        writes: &mut Writes,
    ) -> Result<(), StoresFailed> {
        while let Some((seq, change)) = writes.pop_front() {
            match self.log.stage(&mut view.borrow_mut(), change.clone()) {
                Ok(token) => {
                    if let Some(seq) = seq {
                        self.waiting.push_back((token, group, seq));
                    }
                }
                Err(error @ SubmitError::TooLarge { .. }) => {
                    let (front, rest) = halves(change).ok_or_else(|| fatal(group, error))?;
                    writes.push_front((seq, rest));
                    writes.push_front((None, front));
                }
                Err(error) if is_for_now(&error) => {
                    self.full |= !matches!(error, SubmitError::Busy { .. });
                    writes.push_front((seq, change));
                    return Ok(());
                }
                Err(error) => return Err(fatal(group, error)),
            }
        }
        Ok(())
    }

    /// Tries again what waits here.
    ///
    /// # Errors
    /// [`StoresFailed`]: the node must stop.
    pub fn retry(&mut self) -> Result<(), StoresFailed> {
        if self.held.is_empty() {
            return Ok(());
        }
        self.full = false;
        for (group, mut held) in std::mem::take(&mut self.held) {
            self.stage(&held.view, group, &mut held.writes)?;
            if !held.writes.is_empty() {
                self.held.insert(group, held);
            }
        }
        Ok(())
    }

    /// Hands what was staged to the log thread.
    ///
    /// # Errors
    /// [`StoresFailed`]: the node must stop.
    pub fn flush(&mut self) -> Result<(), StoresFailed> {
        match self.log.flush() {
            Ok(_) => Ok(()),
            Err(error) => Err(fatal(GroupId::new(0), error)),
        }
    }

    /// Everything up to this token is durable: gives the core's writes among it.
    pub fn on_durable(&mut self, token: Token) -> Vec<(GroupId, StoreSeq)> {
        let mut durable = Vec::new();
        while let Some((staged, group, seq)) = self.waiting.front().copied() {
            if staged > token {
                break;
            }
            self.waiting.pop_front();
            durable.push((group, seq));
        }
        durable
    }
}

/// Whether a change may go before writes that wait: a compaction of what the log holds already.
fn passes(change: &Change, view: &View) -> bool {
    matches!(change, Change::Compact { through, .. } if *through <= view.borrow().last_index())
}

/// Whether it may be taken later.
fn is_for_now(error: &SubmitError) -> bool {
    matches!(
        error,
        SubmitError::Busy { .. } | SubmitError::CapReached { .. } | SubmitError::DiskFull
    )
}

fn fatal(group: GroupId, error: SubmitError) -> StoresFailed {
    if let SubmitError::Failed(failure) = error {
        return StoresFailed::Log(failure);
    }
    let source = Arc::new(error);
    StoresFailed::Store { group, source }
}

/// A write that is too large for one batch of the log, as two: the hard state and the first half of
/// the entries, and the rest. Between the two the log stands as if less had been appended.
fn halves(change: Change) -> Option<(Change, Change)> {
    let Change::Write {
        hard_state,
        mut entries,
    } = change
    else {
        return None;
    };
    if entries.len() < 2 {
        return None;
    }
    let rest = entries.split_off(entries.len() / 2);
    let write = |hard_state, entries| Change::Write {
        hard_state,
        entries,
    };
    Some((write(hard_state, entries), write(None, rest)))
}

#[cfg(test)]
mod tests;
