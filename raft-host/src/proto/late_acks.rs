//! A follower that is slow on purpose, for benches and tests: its acks leave late while it stores and
//! applies at full speed, and the shell is told how many appends it stepped, to sleep for each. No
//! product has this: it is there under the feature `debug-keys` alone.
//!
//! Leaves to others: who gets which ack (`host/turns.rs`), merging (`coalesce.rs`), sleeping (`io`).
//!
//! Y1: acks and rejections leave in the order in which they came, since all wait equally long.
//! Y2: what a lost link would have lost is lost: whoever is down when an ack is due gets none.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::wire::GroupMessage;
use crate::id::NodeId;

/// The acks of one shard that wait to be sent.
#[derive(Debug)]
pub struct LateAcks {
    delay: Duration,
    waiting: VecDeque<(Instant, NodeId, GroupMessage)>,
    appends: u32,
}

impl LateAcks {
    /// Each ack waits for this long.
    #[must_use]
    pub const fn new(delay: Duration) -> Self {
        Self {
            delay,
            waiting: VecDeque::new(),
            appends: 0,
        }
    }

    /// Takes an ack for a node, to be given out when it is due; gives it back to be sent now if none
    /// waits at all.
    pub fn delay(
        &mut self,
        now: Instant,
        node: NodeId,
        message: GroupMessage,
    ) -> Option<GroupMessage> {
        if self.delay.is_zero() {
            return Some(message);
        }
        self.waiting.push_back((now + self.delay, node, message));
        None
    }

    /// The next that is due by `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<(NodeId, GroupMessage)> {
        let (due, ..) = self.waiting.front()?;
        if *due > now {
            return None;
        }
        self.waiting
            .pop_front()
            .map(|(_, node, message)| (node, message))
    }

    /// When the next is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, ..)| *due)
    }

    /// An append was stepped.
    pub fn on_append(&mut self) {
        self.appends += 1;
    }

    /// How many were since the last call.
    pub fn take_appends(&mut self) -> u32 {
        std::mem::take(&mut self.appends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{GroupId, Index, ReplicaId, Term};
    use crate::proto::test_time::start;
    use crate::proto::wire::{GroupBody, Header};

    fn ack(group: u64, index: u64) -> GroupMessage {
        let header = Header {
            group: GroupId::new(group),
            from: ReplicaId::new(3),
            to: ReplicaId::new(1),
            term: Term::new(1),
        };
        let (index, commit) = (Index::new(index), Index::new(0));
        GroupMessage {
            header,
            body: GroupBody::Ack { index, commit },
        }
    }

    #[test]
    fn acks_leave_in_their_order_and_not_before_they_are_due() {
        let (now, node) = (start(), NodeId::new(1));
        let ms = Duration::from_millis;
        let mut late = LateAcks::new(ms(5));
        assert_eq!(late.next_due(), None);
        for (at, index) in [(0, 1), (1, 2), (1, 3)] {
            assert_eq!(late.delay(now + ms(at), node, ack(7, index)), None);
        }
        assert_eq!(late.next_due(), Some(now + ms(5)));
        assert_eq!(late.pop_due(now + ms(4)), None);
        assert_eq!(late.pop_due(now + ms(5)), Some((node, ack(7, 1))));
        assert_eq!(late.pop_due(now + ms(5)), None);
        assert_eq!(late.pop_due(now + ms(9)), Some((node, ack(7, 2))));
        assert_eq!(late.pop_due(now + ms(9)), Some((node, ack(7, 3))));
        assert_eq!(late.next_due(), None);
    }

    #[test]
    fn without_a_delay_an_ack_goes_at_once() {
        let mut late = LateAcks::new(Duration::ZERO);
        let given_back = late.delay(start(), NodeId::new(1), ack(7, 1));
        assert_eq!(given_back, Some(ack(7, 1)));
        assert_eq!(late.next_due(), None);
    }

    #[test]
    fn appends_are_counted_since_the_last_look() {
        let mut late = LateAcks::new(Duration::ZERO);
        late.on_append();
        late.on_append();
        assert_eq!(late.take_appends(), 2);
        assert_eq!(late.take_appends(), 0);
    }
}
