//! Which groups are due, without a scan. A group has one alarm; moving it later costs nothing until
//! it rings: then its owner looks at the true deadline and arms it anew. So a group whose deadline
//! moves with every beat costs one heap entry an election timeout.
//!
//! D1: a group's alarm rings no later than the earliest time it was armed for since it last rang.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::group_table::SlotId;

/// The alarms of a shard's groups.
#[derive(Debug, Default)]
pub struct Due {
    heap: BinaryHeap<Reverse<(Instant, SlotId)>>,
    armed: Vec<Option<(SlotId, Instant)>>,
}

impl Due {
    /// Arms a group's alarm, unless it rings earlier already.
    pub fn arm(&mut self, slot: SlotId, at: Instant) {
        if self.armed.len() <= slot.index() {
            self.armed.resize(slot.index() + 1, None);
        }
        let armed = &mut self.armed[slot.index()];
        if armed.is_some_and(|(who, when)| who == slot && when <= at) {
            return;
        }
        *armed = Some((slot, at));
        self.heap.push(Reverse((at, slot)));
    }

    /// The next group whose alarm rings by `now`; it is disarmed.
    pub fn pop(&mut self, now: Instant) -> Option<SlotId> {
        while let Some(Reverse((at, slot))) = self.heap.peek().copied() {
            if at > now {
                return None;
            }
            self.heap.pop();
            let armed = self.armed.get_mut(slot.index())?;
            if *armed == Some((slot, at)) {
                *armed = None;
                return Some(slot);
            }
        }
        None
    }

    /// When the next alarm may ring.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::GroupId;
    use crate::proto::group_table::GroupTable;

    #[test]
    fn an_alarm_rings_once_at_its_earliest_time() {
        let start = crate::proto::test_time::start();
        let after = |ms| start + Duration::from_millis(ms);
        let mut table = GroupTable::default();
        let slot = table.insert(GroupId::new(1), ()).unwrap();
        let mut due = Due::default();
        due.arm(slot, after(50));
        due.arm(slot, after(90));
        due.arm(slot, after(20));
        assert_eq!(due.pop(after(19)), None);
        assert_eq!(due.pop(after(20)), Some(slot));
        assert_eq!(due.pop(after(100)), None);
        due.arm(slot, after(120));
        assert_eq!(due.pop(after(120)), Some(slot));
    }
}
