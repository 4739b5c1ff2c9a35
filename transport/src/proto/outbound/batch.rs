//! What one frame takes: everything that waits and fits, in order, and then what the host's source
//! has, while a slot of the window is free.

use std::time::Instant;

use bytes::Bytes;

use super::OutboundLane;
use crate::error::RefusalReason;
use crate::limits::ITEM_PREFIX_BYTES;
use crate::proto::outbox::{Entry, FrameRoom};
use crate::proto::source::{FrameSpace, Waiting};
use crate::proto::timers::ItemNumber;
use crate::receipt::{Item, Outcome};
use crate::sync::Arc;

/// The items of one frame, on their way into it.
pub(in crate::proto) struct Batch {
    pub(in crate::proto) entries: Vec<Entry>,
    pub(super) payloads: Vec<Bytes>,
    pub(in crate::proto) body_bytes: usize,
    /// The latest of the items' own: a frame is late only when all that it carries is.
    pub(super) deadline: Instant,
    /// It took no more because it was full.
    pub(super) full: bool,
}

impl Batch {
    fn new(now: Instant) -> Self {
        Self {
            entries: Vec::new(),
            payloads: Vec::new(),
            body_bytes: 0,
            deadline: now,
            full: false,
        }
    }

    pub(in crate::proto) fn add(&mut self, number: ItemNumber, item: Arc<Item>, payload: Bytes) {
        self.body_bytes += payload.len() + ITEM_PREFIX_BYTES;
        self.deadline = self.deadline.max(item.deadline());
        self.payloads.push(payload);
        self.entries.push((number, item));
    }
}

impl OutboundLane {
    /// Takes what the next frame can hold, from the outbox and then from the source, if a slot is
    /// free.
    pub(super) fn gather(&mut self, now: Instant) -> Option<Batch> {
        let mut batch = Batch::new(now);
        self.gather_waiting(now, &mut batch)?;
        self.gather_from_source(now, &mut batch)?;
        (!batch.entries.is_empty()).then_some(batch)
    }

    fn gather_waiting(&mut self, now: Instant, batch: &mut Batch) -> Option<()> {
        let session = self.session.as_ref()?;
        while let Some(needed) = self.outbox.first_body_bytes(&mut self.timers) {
            if needed > session.frame_bytes {
                // The peer's frames are smaller than ours may be: no frame will ever hold it.
                let room = FrameRoom {
                    body_bytes: usize::MAX,
                    items: 1,
                };
                if let Some(waited) = self.outbox.pop_fitting(room) {
                    let (number, item) = waited.entry;
                    self.timers.remove(number, &item);
                    item.end(|_| Outcome::Refused(RefusalReason::TooLarge));
                }
                continue;
            }
            if !session.window.has_room(batch.body_bytes + needed) {
                self.blocked |= batch.entries.is_empty();
                break;
            }
            let room = FrameRoom {
                body_bytes: session.frame_bytes - batch.body_bytes,
                items: session.frame_items - batch.entries.len(),
            };
            let Some(waited) = self.outbox.pop_fitting(room) else {
                batch.full = true;
                break;
            };
            let (number, item) = waited.entry;
            match item.begin_writing() {
                Some(payload) => {
                    self.times
                        .queue_delay
                        .record(now.saturating_duration_since(waited.since));
                    batch.add(number, item, payload);
                }
                None => self.timers.remove(number, &item),
            }
        }
        Some(())
    }

    fn gather_from_source(&mut self, now: Instant, batch: &mut Batch) -> Option<()> {
        let session = self.session.as_ref()?;
        let Some(source) = self.source.clone() else {
            return Some(());
        };
        if self.source_waits == Waiting::Nothing || batch.full {
            return Some(());
        }
        if !session.window.has_room(batch.body_bytes) {
            self.blocked = true;
            return Some(());
        }
        let mut space = FrameSpace {
            now,
            account: &self.account,
            timers: &mut self.timers,
            next_item: &mut self.next_item,
            batch,
            frame_bytes: session.frame_bytes,
            frame_items: session.frame_items,
        };
        self.source_waits = source.fill(&mut space);
        Some(())
    }
}
