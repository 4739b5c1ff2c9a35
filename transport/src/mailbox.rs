//! Things handed to one task from any thread: items on their way to a lane, answers on their way to
//! a session. A push is a short lock and at most one wake-up; the task takes everything at once.
//!
//! It has no bound of its own: an item is pushed only under its reservation (T4), an answer only
//! for a frame inside the window (T6), so those bound it.
//!
//! Invariants: M1: what was pushed is drained once, in order, or handed back by `close`. M2: after
//! a push the task is woken unless it has not slept since the last drain.

use std::fmt;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, lock};

struct Inner<T> {
    queue: Vec<T>,
    waker: Option<Waker>,
    nudged: bool,
    closed: bool,
}

/// A queue with one reader. A handle: clones are the same queue.
pub struct Mailbox<T> {
    inner: Arc<Mutex<Inner<T>>>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        let inner = Inner {
            queue: Vec::new(),
            waker: None,
            nudged: false,
            closed: false,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
        }
    }
}

impl<T> Mailbox<T> {
    /// Hands over one thing and wakes the reader.
    ///
    /// # Errors
    /// Gives it back if the mailbox is closed.
    pub fn push(&self, thing: T) -> Result<(), T> {
        let inner = lock(&self.inner);
        if inner.closed {
            return Err(thing);
        }
        let mut inner = if crate::mutant!("push_looks_then_pushes") {
            drop(inner);
            lock(&self.inner)
        } else {
            inner
        };
        inner.queue.push(thing);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Wakes the reader with nothing new to read: something it looks at elsewhere has changed.
    pub fn nudge(&self) {
        let mut inner = lock(&self.inner);
        inner.nudged = true;
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes everything, in order, into `out`, which must be empty.
    pub fn drain(&self, out: &mut Vec<T>) {
        debug_assert!(out.is_empty());
        let mut inner = lock(&self.inner);
        inner.nudged = false;
        std::mem::swap(&mut inner.queue, out);
    }

    /// Ready once there is something to drain, a nudge, or the mailbox is closed.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        let inner = lock(&self.inner);
        if !inner.queue.is_empty() || inner.nudged || inner.closed {
            return Poll::Ready(());
        }
        let mut inner = if crate::mutant!("mailbox_looks_then_sleeps") {
            drop(inner);
            lock(&self.inner)
        } else {
            inner
        };
        match &mut inner.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Refuses everything from now on and gives back what nobody drained.
    #[must_use = "what nobody drained must still end"]
    pub fn close(&self) -> Vec<T> {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        let rest = std::mem::take(&mut inner.queue);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        rest
    }
}
