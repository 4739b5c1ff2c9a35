//! What waits for a slot on one lane, in the order it came (T5). When a slot opens the next frame
//! takes all that fits, with no timer to wait for more. Items that end while they wait are left
//! where they are, empty, and swept once they are many.
//!
//! Invariant O1: of the entries at most `OUTBOX_DEAD_ITEMS_MAX` plus as many as are alive are dead
//! after [`Outbox::sweep`].

use std::collections::VecDeque;
use std::time::Instant;

use crate::id::Label;
use crate::limits::{ITEM_PREFIX_BYTES, OUTBOX_DEAD_ITEMS_MAX};
use crate::proto::timers::{ItemNumber, Timers};
use crate::receipt::{Item, Outcome, Stage};
use crate::sync::Arc;

/// An item and its number on the lane.
pub(super) type Entry = (ItemNumber, Arc<Item>);

/// An entry, and since when it has waited.
#[derive(Debug)]
pub(super) struct Waited {
    pub(super) since: Instant,
    pub(super) entry: Entry,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Waited>,
}

/// What one frame may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameRoom {
    pub(super) body_bytes: usize,
    pub(super) items: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, now: Instant, number: ItemNumber, item: Arc<Item>) {
        self.waiting.push_back(Waited {
            since: now,
            entry: (number, item),
        });
    }

    /// Whether the dead could be too many, by length alone.
    pub(super) fn may_need_sweep(&self) -> bool {
        self.waiting.len() > OUTBOX_DEAD_ITEMS_MAX
    }

    /// Whether everything that is left here has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.iter().all(|waited| waited.entry.1.is_ended())
    }

    /// Entries, the ended ones among them.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Drops ended entries at the front and says what the first live one needs of a frame.
    pub(super) fn first_body_bytes(&mut self, timers: &mut Timers) -> Option<usize> {
        loop {
            let (number, item) = &self.waiting.front()?.entry;
            if !item.is_ended() {
                return usize::try_from(item.bytes())
                    .ok()
                    .map(|bytes| bytes + ITEM_PREFIX_BYTES);
            }
            timers.remove(*number, item);
            self.waiting.pop_front();
        }
    }

    /// The next entry, if it fits what is left of a frame.
    pub(super) fn pop_fitting(&mut self, room: FrameRoom) -> Option<Waited> {
        let (_, item) = &self.waiting.front()?.entry;
        let fits = usize::try_from(item.bytes())
            .is_ok_and(|bytes| bytes + ITEM_PREFIX_BYTES <= room.body_bytes);
        if fits && room.items > 0 {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// Takes out the dead once they are many; costs what it frees.
    pub(super) fn sweep(&mut self, live: u64, timers: &mut Timers) {
        let live = usize::try_from(live).unwrap_or(usize::MAX);
        if self.waiting.len() <= live.saturating_mul(2).saturating_add(OUTBOX_DEAD_ITEMS_MAX) {
            return;
        }
        self.waiting.retain(
            |Waited {
                 entry: (number, item),
                 ..
             }| {
                let ended = item.is_ended();
                if ended {
                    timers.remove(*number, item);
                }
                !ended
            },
        );
    }

    /// Ends the waiting items that `label` names, or all.
    pub(super) fn end_all(
        &mut self,
        label: Option<Label>,
        how: impl Fn(Stage) -> Outcome,
    ) -> usize {
        let named = |item: &Item| label.is_none_or(|label| item.label() == label);
        self.waiting
            .iter()
            .filter(|waited| named(&waited.entry.1) && waited.entry.1.end(&how))
            .count()
    }
}
