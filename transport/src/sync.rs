//! The standard library's locks, or loom's under `--cfg loom`. Only the few structures that several
//! threads touch at once are written over this; everything else has one owner. Wakers are
//! `std::task::Waker` in both worlds.

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
