//! The places of handed-off proposals on one node: at most `cap` of them at once. A place is held by
//! its item and returns when that is dropped, so none is ever lost.

use std::fmt;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, lock};

struct Inner {
    enabled: bool,
    cap: usize,
    taken: usize,
    draining: bool,
    drain: Option<Waker>,
}

/// The places of one node. A handle: clones are the same places.
#[derive(Clone)]
pub struct Places {
    inner: Arc<Mutex<Inner>>,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").finish_non_exhaustive()
    }
}

/// Why there is no place: whoever asked waits inline, or, while the node drains, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Nothing is handed off.
    Off,
    /// As many as the cap allows are taken.
    Full,
    /// The node is stopping.
    Draining,
}

/// One place. Dropping it returns it.
#[must_use = "a place that is dropped is free again"]
pub struct Place {
    places: Places,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

impl Places {
    /// `cap` free places, which are given out only while `enabled`.
    #[must_use]
    pub fn new(enabled: bool, cap: usize) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                enabled,
                cap,
                taken: 0,
                draining: false,
                drain: None,
            })),
        }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`NoPlace`] says why there is none.
    pub fn reserve(&self) -> Result<Place, NoPlace> {
        let inner = lock(&self.inner);
        if inner.draining {
            return Err(NoPlace::Draining);
        }
        if !inner.enabled {
            return Err(NoPlace::Off);
        }
        if inner.taken >= inner.cap {
            return Err(NoPlace::Full);
        }
        let mut inner = if transport::mutant!("reserve_looks_then_takes") {
            drop(inner);
            lock(&self.inner)
        } else {
            inner
        };
        inner.taken += 1;
        drop(inner);
        Ok(Place {
            places: self.clone(),
        })
    }

    /// Whether places are given out from now on. Those that are taken stay so.
    pub fn set_enabled(&self, enabled: bool) {
        lock(&self.inner).enabled = enabled;
    }

    /// How many may be taken from now on. If more are, none is given out until enough came back.
    pub fn set_cap(&self, cap: usize) {
        lock(&self.inner).cap = cap;
    }

    /// Whether places are given out, how many there may be, and how many are taken.
    #[must_use]
    pub fn standing(&self) -> (bool, usize, usize) {
        let inner = lock(&self.inner);
        (inner.enabled, inner.cap, inner.taken)
    }

    /// Gives out no more places.
    pub fn begin_drain(&self) {
        lock(&self.inner).draining = true;
    }

    /// Ready once every place is free. One task waits for it.
    pub fn poll_free(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = lock(&self.inner);
        if inner.taken == 0 {
            return Poll::Ready(());
        }
        inner.drain = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = lock(&self.places.inner);
        inner.taken -= 1;
        let drain = if inner.taken == 0 {
            inner.drain.take()
        } else {
            None
        };
        drop(inner);
        if transport::mutant!("last_place_wakes_nobody") {
            return;
        }
        if let Some(drain) = drain {
            drain.wake();
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_place_over_the_cap_is_refused_and_one_that_comes_back_is_given_out_again() {
        let places = Places::new(true, 2);
        let (first, second) = (places.reserve().unwrap(), places.reserve().unwrap());
        assert_eq!(places.reserve().unwrap_err(), NoPlace::Full);
        drop(first);
        let third = places.reserve().unwrap();
        places.set_cap(1);
        drop(second);
        assert_eq!(places.reserve().unwrap_err(), NoPlace::Full);
        drop(third);
        assert!(places.reserve().is_ok());
        assert_eq!(places.standing(), (true, 1, 0));
    }

    #[test]
    fn a_cap_of_nothing_and_an_off_switch_give_out_nothing() {
        let places = Places::new(true, 0);
        assert_eq!(places.reserve().unwrap_err(), NoPlace::Full);
        places.set_cap(1);
        places.set_enabled(false);
        assert_eq!(places.reserve().unwrap_err(), NoPlace::Off);
        places.set_enabled(true);
        let place = places.reserve().unwrap();
        places.begin_drain();
        assert_eq!(places.reserve().unwrap_err(), NoPlace::Draining);
        let mut context = Context::from_waker(Waker::noop());
        assert!(places.poll_free(&mut context).is_pending());
        drop(place);
        assert!(places.poll_free(&mut context).is_ready());
    }
}
