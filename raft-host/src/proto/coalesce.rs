//! Acks that wait for a control frame to one peer, merged where merging loses nothing (safety 6).
//!
//! A1: two acks merge only if their (group, from, to, term) are the same and no rejection of that
//!     group stands between them; what results is the later one, and it says no more than it did.
//! A2: what is left of a group leaves in the order in which it came.

use std::collections::{BTreeMap, VecDeque};

use super::wire::{GroupBody, GroupMessage};
use crate::id::GroupId;
use crate::limits::ACKS_PER_GROUP_MAX;

/// The acks and rejections for one peer.
#[derive(Debug, Default)]
pub struct Acks {
    order: VecDeque<GroupId>,
    waiting: BTreeMap<GroupId, VecDeque<GroupMessage>>,
    /// Acks that a later one stood in for.
    pub merged: u64,
    /// Messages given up at the bound.
    pub dropped: u64,
}

impl Acks {
    /// Queues an ack or a rejection.
    pub fn push(&mut self, message: GroupMessage) {
        let group = message.header.group;
        let queue = self.waiting.entry(group).or_default();
        if queue.is_empty() {
            self.order.push_back(group);
        }
        if let Some(last) = queue.back_mut()
            && (last.header == message.header || transport::mutant!("acks_merged_by_index"))
            && let GroupBody::Ack { index, commit } = &mut last.body
            && let GroupBody::Ack {
                index: newer,
                commit: newer_commit,
            } = message.body
        {
            last.header = message.header;
            *index = newer.max(*index);
            *commit = newer_commit.max(*commit);
            self.merged += 1;
            return;
        }
        if queue.len() >= ACKS_PER_GROUP_MAX {
            queue.pop_front();
            self.dropped += 1;
        }
        queue.push_back(message);
    }

    /// What would leave next.
    #[must_use]
    pub fn peek(&self) -> Option<&GroupMessage> {
        self.waiting.get(self.order.front()?)?.front()
    }

    /// Takes what leaves next.
    pub fn pop(&mut self) -> Option<GroupMessage> {
        let group = *self.order.front()?;
        let queue = self.waiting.get_mut(&group)?;
        let message = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&group);
            self.order.pop_front();
        }
        message
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Forgets all, as when the link is lost.
    pub fn clear(&mut self) {
        self.order.clear();
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Index, ReplicaId, Term};
    use crate::proto::wire::Header;

    fn header(group: u64, term: u64) -> Header {
        Header {
            group: GroupId::new(group),
            from: ReplicaId::new(3),
            to: ReplicaId::new(1),
            term: Term::new(term),
        }
    }

    fn ack(header: Header, index: u64) -> GroupMessage {
        let (index, commit) = (Index::new(index), Index::new(0));
        GroupMessage {
            header,
            body: GroupBody::Ack { index, commit },
        }
    }

    fn reject(header: Header, rejected: u64) -> GroupMessage {
        let body = GroupBody::Reject {
            rejected: Index::new(rejected),
            hint: Index::new(0),
            hint_term: Term::new(0),
            commit: Index::new(0),
        };
        GroupMessage { header, body }
    }

    fn drain(acks: &mut Acks) -> Vec<GroupMessage> {
        std::iter::from_fn(|| acks.pop()).collect()
    }

    #[test]
    fn acks_of_one_term_merge_to_the_highest() {
        let mut acks = Acks::default();
        for index in [5, 7, 6] {
            acks.push(ack(header(1, 4), index));
        }
        acks.push(ack(header(2, 4), 1));
        assert_eq!(
            drain(&mut acks),
            [ack(header(1, 4), 7), ack(header(2, 4), 1)]
        );
        assert_eq!(acks.merged, 2);
    }

    /// Safety 6: (term 4, 100) waits, the log is cut to 50, (term 6, 51) comes. Merged by index it
    /// would say that 100 is durable in term 6.
    #[test]
    fn acks_of_two_terms_never_merge() {
        let mut acks = Acks::default();
        acks.push(ack(header(1, 4), 100));
        acks.push(ack(header(1, 6), 51));
        assert_eq!(
            drain(&mut acks),
            [ack(header(1, 4), 100), ack(header(1, 6), 51)]
        );
    }

    #[test]
    fn acks_of_two_replicas_never_merge() {
        let mut acks = Acks::default();
        let old = header(1, 4);
        let new = Header {
            from: ReplicaId::new(9),
            ..old
        };
        acks.push(ack(old, 100));
        acks.push(ack(new, 51));
        assert_eq!(drain(&mut acks), [ack(old, 100), ack(new, 51)]);
    }

    #[test]
    fn a_rejection_between_two_acks_is_kept_in_its_place() {
        let mut acks = Acks::default();
        let sent = [
            ack(header(1, 4), 5),
            reject(header(1, 4), 9),
            ack(header(1, 4), 6),
        ];
        for message in sent.clone() {
            acks.push(message);
        }
        assert_eq!(drain(&mut acks), sent);
    }

    #[test]
    fn rejections_are_bounded() {
        let mut acks = Acks::default();
        for n in 0..ACKS_PER_GROUP_MAX as u64 + 3 {
            acks.push(reject(header(1, 4), n));
        }
        assert_eq!(
            (acks.dropped, drain(&mut acks).len()),
            (3, ACKS_PER_GROUP_MAX)
        );
    }
}
