//! The groups that have work, each once, in the order in which they first had it.

use std::collections::VecDeque;

use super::group_table::SlotId;

/// The queue.
#[derive(Debug, Default)]
pub struct ReadyQueue {
    queue: VecDeque<SlotId>,
    queued: Vec<bool>,
}

impl ReadyQueue {
    /// Queues a group unless it is queued already.
    pub fn push(&mut self, slot: SlotId) {
        if self.queued.len() <= slot.index() {
            self.queued.resize(slot.index() + 1, false);
        }
        if !std::mem::replace(&mut self.queued[slot.index()], true) {
            self.queue.push_back(slot);
        }
    }

    /// The group that has waited longest.
    pub fn pop(&mut self) -> Option<SlotId> {
        let slot = self.queue.pop_front()?;
        self.queued[slot.index()] = false;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::GroupId;
    use crate::proto::group_table::GroupTable;

    #[test]
    fn a_group_is_queued_once() {
        let mut table = GroupTable::default();
        let a = table.insert(GroupId::new(1), ()).unwrap();
        let b = table.insert(GroupId::new(2), ()).unwrap();
        let mut queue = ReadyQueue::default();
        for slot in [b, a, b, b] {
            queue.push(slot);
        }
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some(b), Some(a), None)
        );
        queue.push(b);
        assert_eq!(queue.pop(), Some(b));
    }
}
