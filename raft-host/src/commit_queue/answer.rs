//! One outcome on its way to whoever waits for it. The answerer moves with the work; the pending end
//! stays with the caller, who may withdraw what nobody began, stop waiting, or go away.
//!
//! ```text
//!            start              answer
//! Waiting ──────────► Begun ──────────────► Answered ──► (taken by the caller)
//!    │ withdraw, drop    │ drop of the caller
//!    ▼                   ▼
//!  Gone ◄────────────────┘    an answer that finds nobody goes back to whoever gave it
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, lock};

enum State<T> {
    Waiting,
    Begun,
    Answered(T),
    /// The answerer was dropped without an answer.
    Forsaken,
    /// The caller has gone, or has its answer.
    Gone,
}

struct Inner<T> {
    state: State<T>,
    waker: Option<Waker>,
}

/// The end that answers, once.
pub struct Answerer<T> {
    inner: Option<Arc<Mutex<Inner<T>>>>,
}

/// The end that waits. As a future it gives the answer, or `None` if there will be none.
pub struct Pending<T> {
    inner: Arc<Mutex<Inner<T>>>,
}

/// What became of a withdrawal.
#[derive(Debug, PartialEq, Eq)]
pub enum Withdrawn<T> {
    /// Nobody had begun, and nobody will.
    InTime,
    /// It has begun: its fate is told by the answer, which may still come.
    TooLate,
    /// It has been answered.
    Answered(T),
    /// Nobody will answer any more; whether it was begun isn't known.
    Forsaken,
}

/// The two ends of one outcome.
#[must_use]
pub fn pending<T>() -> (Answerer<T>, Pending<T>) {
    let inner = Arc::new(Mutex::new(Inner {
        state: State::Waiting,
        waker: None,
    }));
    let answerer = Answerer {
        inner: Some(Arc::clone(&inner)),
    };
    (answerer, Pending { inner })
}

impl<T> fmt::Debug for Answerer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answerer").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T> Answerer<T> {
    /// Whether the work is to be begun. Once it said so, the caller can't withdraw it any more; once
    /// it denied, nobody waits for it.
    #[must_use]
    pub fn begin(&self) -> bool {
        let Some(shared) = &self.inner else {
            return false;
        };
        let inner = lock(shared);
        let waits = matches!(inner.state, State::Waiting);
        let mut inner = if transport::mutant!("begin_looks_then_begins") {
            drop(inner);
            lock(shared)
        } else {
            inner
        };
        if waits {
            inner.state = State::Begun;
        }
        waits
    }

    /// Answers, begun or not.
    ///
    /// # Errors
    /// Gives the answer back if nobody waits for it any more.
    pub fn answer(mut self, answer: T) -> Result<(), T> {
        let Some(shared) = self.inner.take() else {
            return Err(answer);
        };
        let mut inner = lock(&shared);
        match inner.state {
            State::Waiting | State::Begun => {}
            State::Answered(_) | State::Forsaken | State::Gone => return Err(answer),
        }
        inner.state = State::Answered(answer);
        let waker = inner.waker.take();
        drop(inner);
        wake(waker);
        Ok(())
    }
}

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        let Some(shared) = self.inner.take() else {
            return;
        };
        let mut inner = lock(&shared);
        if matches!(inner.state, State::Waiting | State::Begun) {
            inner.state = State::Forsaken;
        }
        let waker = inner.waker.take();
        drop(inner);
        wake(waker);
    }
}

impl<T> Pending<T> {
    /// Takes back what nobody has begun. What was begun still waits for its answer.
    pub fn withdraw(&mut self) -> Withdrawn<T> {
        let mut inner = lock(&self.inner);
        match std::mem::replace(&mut inner.state, State::Gone) {
            State::Waiting => Withdrawn::InTime,
            State::Begun => {
                inner.state = State::Begun;
                Withdrawn::TooLate
            }
            State::Answered(answer) => Withdrawn::Answered(answer),
            State::Forsaken | State::Gone => Withdrawn::Forsaken,
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Option<T>;

    /// # Cancel safety
    /// An answer that wasn't taken stays, until the pending end is dropped.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut inner = lock(&self.inner);
        match std::mem::replace(&mut inner.state, State::Gone) {
            State::Answered(answer) => Poll::Ready(Some(answer)),
            State::Forsaken | State::Gone => Poll::Ready(None),
            state @ (State::Waiting | State::Begun) => {
                inner.state = state;
                let mut inner = if transport::mutant!("pending_looks_then_sleeps") {
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
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let mut inner = lock(&self.inner);
        let left = std::mem::replace(&mut inner.state, State::Gone);
        inner.waker = None;
        drop(inner);
        drop(left);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn poll<T>(pending: &mut Pending<T>) -> Poll<Option<T>> {
        Pin::new(pending).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn what_nobody_began_can_be_withdrawn_and_then_isn_t_begun() {
        let (answerer, mut pending) = pending::<u32>();
        assert_eq!(pending.withdraw(), Withdrawn::InTime);
        assert!(!answerer.begin());
        assert_eq!(answerer.answer(1), Err(1));
    }

    #[test]
    fn what_was_begun_is_answered_to_whoever_waits() {
        let (answerer, mut pending) = pending();
        assert!(answerer.begin() && !answerer.begin());
        assert_eq!(pending.withdraw(), Withdrawn::TooLate);
        assert!(poll(&mut pending).is_pending());
        assert_eq!(answerer.answer(7), Ok(()));
        assert_eq!(pending.withdraw(), Withdrawn::Answered(7));
        assert_eq!(pending.withdraw(), Withdrawn::Forsaken);
    }

    #[test]
    fn an_answerer_that_is_dropped_leaves_nobody_waiting() {
        let (answerer, mut pending) = pending::<u32>();
        drop(answerer);
        assert_eq!(poll(&mut pending), Poll::Ready(None));
    }

    #[test]
    fn an_answer_for_a_caller_who_left_comes_back() {
        let (answerer, pending) = pending();
        assert!(answerer.begin());
        drop(pending);
        assert_eq!(answerer.answer("late"), Err("late"));
    }
}
