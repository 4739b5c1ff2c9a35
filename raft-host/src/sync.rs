//! The standard library's locks, or loom's under `--cfg loom`. Only `commit_queue`, which callers,
//! workers and shards touch at once, is written over this. Wakers are `std::task::Waker` in both
//! worlds.

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

use std::sync::PoisonError;

/// Locks, also after a holder panicked: every critical section over this module leaves its
/// structure whole at each step that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
