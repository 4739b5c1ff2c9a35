//! What the host has waiting for a peer's control lane. On control the host owns what waits: when a
//! slot opens it is asked for what should go *now*, so a newer round takes the place of an older one
//! and acks merge by the host's rules, before anything becomes an item (safety 6). What it puts into
//! the frame is begun at once and can't be replaced any more.

use std::fmt;
use std::time::Instant;

use bytes::Bytes;

use crate::budget::{Amount, LaneAccount};
use crate::error::{ReserveRefused, SendRefused};
use crate::id::Label;
use crate::limits::ITEM_PREFIX_BYTES;
use crate::proto::outbound::Batch;
use crate::proto::timers::{ItemNumber, Timers};
use crate::receipt::{Item, Receipt};

/// Whether a source still has something for the next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It is asked again once it says that it has something.
    Nothing,
    /// It is asked again when the next slot opens.
    More,
}

/// A host's content for one peer's control lane; see the head of this file.
pub trait ControlSource: Send + Sync {
    /// Puts what should go now into the frame that is being begun. Called on the lane's task with a
    /// slot free; it must not block. A source that puts nothing in begins no frame.
    fn fill(&self, frame: &mut FrameSpace<'_>) -> Waiting;
}

/// Why an item didn't get into the frame. It comes to no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushRefused {
    /// The frame has no room for it.
    #[error("item of {asked} bytes exceeds the {left} bytes left of the frame")]
    NoSpace {
        /// The item's bytes.
        asked: usize,
        /// The largest item that still fits.
        left: usize,
    },
    /// The budget has no room for it.
    #[error(transparent)]
    Reserve(#[from] ReserveRefused),
    /// The lane takes nothing any more.
    #[error(transparent)]
    Send(#[from] SendRefused),
}

/// What is left of a frame that is being begun.
pub struct FrameSpace<'a> {
    pub(super) now: Instant,
    pub(super) account: &'a LaneAccount,
    pub(super) timers: &'a mut Timers,
    pub(super) next_item: &'a mut u64,
    pub(super) batch: &'a mut Batch,
    pub(super) frame_bytes: usize,
    pub(super) frame_items: usize,
}

impl fmt::Debug for FrameSpace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameSpace")
            .field("left", &self.item_bytes_left())
            .finish_non_exhaustive()
    }
}

impl FrameSpace<'_> {
    /// The time of this turn.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Payload bytes of the largest item that still fits; 0 may also mean that none does.
    #[must_use]
    pub fn item_bytes_left(&self) -> usize {
        if self.batch.entries.len() >= self.frame_items {
            return 0;
        }
        let used = self.batch.body_bytes + ITEM_PREFIX_BYTES;
        self.frame_bytes.saturating_sub(used)
    }

    /// Puts one item into the frame, under the budget like any other.
    ///
    /// # Errors
    /// [`PushRefused`]; the frame is as it was.
    pub fn push(
        &mut self,
        payload: Bytes,
        label: Label,
        deadline: Instant,
    ) -> Result<Receipt, PushRefused> {
        let (asked, left) = (payload.len(), self.item_bytes_left());
        if asked > left || self.batch.entries.len() >= self.frame_items {
            return Err(PushRefused::NoSpace { asked, left });
        }
        let mut reservation = self.account.try_reserve(Amount::new(1, asked as u64))?;
        let (item, receipt) = Item::start(&mut reservation, payload, label, deadline)?;
        let number = ItemNumber(*self.next_item);
        *self.next_item += 1;
        // Nobody but us has the item yet, so it can't have ended.
        if let Some(payload) = item.begin_writing() {
            self.timers.insert(number, crate::sync::Arc::clone(&item));
            self.batch.add(number, item, payload);
        }
        Ok(receipt)
    }
}

#[cfg(test)]
mod tests;
