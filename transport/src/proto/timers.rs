//! The deadlines of a lane's items, soonest first. An item leaves when it ends here or when its time
//! comes; one that ended elsewhere stays until one of the two.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::receipt::Item;
use crate::sync::Arc;

/// An item's number on its lane, in the order in which items came to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ItemNumber(pub(super) u64);

#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeMap<(Instant, ItemNumber), Arc<Item>>,
}

impl Timers {
    pub(super) fn insert(&mut self, number: ItemNumber, item: Arc<Item>) {
        self.due.insert((item.deadline(), number), item);
    }

    pub(super) fn remove(&mut self, number: ItemNumber, item: &Item) {
        self.due.remove(&(item.deadline(), number));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due
            .first_key_value()
            .map(|(&(deadline, _), _)| deadline)
    }

    /// Takes one item whose deadline isn't after `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Arc<Item>> {
        let entry = self.due.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
