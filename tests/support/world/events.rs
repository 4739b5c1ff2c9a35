//! What is going to happen, in the order of its time, and of two at one time in the order in which
//! they came up. Nothing else orders a run.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use raft_host::id::GroupId;
use transport::Lane;

use super::clients::Answer;
use super::clock::Nanos;
use super::network::End;

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node looks at its clock.
    Wake {
        /// Which.
        node: usize,
        /// In which life.
        life: u64,
    },
    /// An end of a connection looks at what has arrived.
    Look {
        /// The connection.
        connection: u64,
        /// Which end.
        end: End,
    },
    /// A lane dials.
    Dial {
        /// Whose.
        node: usize,
        /// In which life.
        life: u64,
        /// Towards whom.
        peer: usize,
        /// Which.
        lane: Lane,
    },
    /// What came of it.
    Dialled {
        /// Whose.
        node: usize,
        /// In which life.
        life: u64,
        /// Towards whom.
        peer: usize,
        /// Which.
        lane: Lane,
    },
    /// The log takes a turn.
    LogTurn {
        /// Whose.
        node: usize,
        /// In which life.
        life: u64,
    },
    /// The log's sync ends.
    Synced {
        /// Whose.
        node: usize,
        /// In which life.
        life: u64,
        /// Which.
        number: u64,
    },
    /// A state machine takes what waits for it.
    Apply {
        /// Where.
        node: usize,
        /// In which life.
        life: u64,
        /// Whose.
        group: GroupId,
    },
    /// A node starts.
    Boot {
        /// Which.
        node: usize,
        /// How often it had been started before.
        boots: u64,
    },
    /// A client's request reaches a node.
    Request {
        /// Whose.
        client: usize,
        /// Its number there.
        attempt: u64,
        /// Where.
        node: usize,
    },
    /// A node's answer reaches a client.
    Answer {
        /// Who.
        client: usize,
        /// To which request.
        attempt: u64,
        /// What.
        answer: Answer,
    },
    /// A client does something, or has waited too long for this request.
    Client {
        /// Who.
        client: usize,
        /// The request.
        attempt: u64,
    },
    /// Something goes wrong, or is mended.
    Nemesis,
}

#[derive(Debug)]
struct Due {
    at: Nanos,
    sequence: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// What is going to happen.
#[derive(Debug, Default)]
pub struct Events {
    heap: BinaryHeap<Reverse<Due>>,
    sequence: u64,
}

impl Events {
    /// Something happens at this time.
    pub fn push(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        let sequence = self.sequence;
        self.heap.push(Reverse(Due {
            at,
            sequence,
            event,
        }));
    }

    /// The next, if it happens by `end`.
    pub fn pop(&mut self, end: Nanos) -> Option<(Nanos, Event)> {
        if self.heap.peek()?.0.at > end {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| (due.at, due.event))
    }
}
