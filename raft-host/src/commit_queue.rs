//! What a proposal goes through between the worker that takes it and the reply that ends it, where
//! several threads touch it at once: the places under the cap, the way to the shard, and the way
//! back of its outcome. Over `sync.rs`, so that loom runs the shipped types (`tests/loom`).
//!
//! ```text
//! worker: reserve a place ──► publish the whole item ──► (touches it no more)
//! shard:                       take all ──► propose ──► resolve | expire | fail ──► answer, free
//! caller:                      wait ◄───────────────────────────────────────────────┘
//! ```
//!
//! Leaves to others: who admits and when one waits inline instead (`io/workers.rs`), which item ends
//! when and how (`proto/host.rs`).
//!
//! - Q1: a place is counted from the moment it was reserved, in the same critical section as the test
//!   of the cap, until its item's outcome is on its way; so the count never exceeds the cap while
//!   that stands still, and a drain that sees 0 sees nothing reserved or published either.
//! - Q2: whoever publishes gives the item away; exactly one of worker and shard answers.
//! - Q3: after a publish the shard is awake or will be.
//! - Q4: of an answer, a withdrawal and the caller's leaving, the first wins, and the others learn it.

mod answer;
mod places;

use std::task::{Context, Poll};

use transport::mailbox::Mailbox;

pub use self::answer::{Answerer, Pending, Withdrawn, pending};
pub use self::places::{NoPlace, Place, Places};

/// The way of proposals to their shard: any thread publishes, the shard takes. A handle: clones are
/// the same queue.
#[derive(Debug)]
pub struct CommitQueue<T> {
    published: Mailbox<T>,
}

impl<T> Clone for CommitQueue<T> {
    fn clone(&self) -> Self {
        Self {
            published: self.published.clone(),
        }
    }
}

impl<T> Default for CommitQueue<T> {
    fn default() -> Self {
        Self {
            published: Mailbox::default(),
        }
    }
}

impl<T> CommitQueue<T> {
    /// Gives an item to the shard, and wakes it.
    ///
    /// # Errors
    /// Gives it back when the queue is closed: nobody will take it.
    pub fn publish(&self, item: T) -> Result<(), T> {
        self.published.push(item)
    }

    /// Ready once there is something to take, or the queue is closed.
    pub fn poll_published(&self, context: &mut Context<'_>) -> Poll<()> {
        self.published.poll_ready(context)
    }

    /// Takes everything, in order, into `out`, which must be empty.
    pub fn take(&self, out: &mut Vec<T>) {
        self.published.drain(out);
    }

    /// Refuses everything from now on, and gives back what nobody took.
    #[must_use = "what nobody took must still be answered"]
    pub fn close(&self) -> Vec<T> {
        self.published.close()
    }
}
