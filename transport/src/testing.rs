//! What the core's tests share: a clock that only they move, budgets, items, and wakers that count.
//! How two cores are joined is `pair`'s business.

pub(crate) mod pair;

use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::budget::{Amount, BudgetLimits, LaneAccount};
use crate::id::Label;
use crate::receipt::{Item, Receipt};

/// The instant at which every test begins.
pub(crate) fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "an instant can't be made from nothing; this one is the origin of virtual time"
    )]
    *START.get_or_init(Instant::now)
}

/// Longer than any test's virtual time.
pub(crate) const LONG: Duration = Duration::from_secs(1_000_000);

/// A budget that no test of something else runs into.
pub(crate) fn ample() -> BudgetLimits {
    BudgetLimits {
        peer: Amount::new(1 << 20, 1 << 30),
        node: Amount::new(1 << 20, 1 << 30),
    }
}

/// Sends one item under a reservation of its own.
pub(crate) fn item(
    account: &LaneAccount,
    payload: impl Into<Bytes>,
    label: u64,
    deadline: Instant,
) -> (Arc<Item>, Receipt) {
    let payload = payload.into();
    let amount = Amount::new(1, payload.len() as u64);
    let mut reservation = account.try_reserve(amount).unwrap();
    Item::start(&mut reservation, payload, Label::new(label), deadline).unwrap()
}

/// A waker that counts, and may do more.
pub(crate) struct Woken<F = fn()> {
    count: std::sync::atomic::AtomicUsize,
    then: F,
}

impl Woken {
    pub(crate) fn new() -> Arc<Self> {
        Woken::then(|| ())
    }
}

impl<F: Fn() + Send + Sync + 'static> Woken<F> {
    pub(crate) fn then(then: F) -> Arc<Self> {
        Arc::new(Self {
            count: Default::default(),
            then,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl<F: Fn() + Send + Sync + 'static> Wake for Woken<F> {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        (self.then)();
    }
}

/// Polls once with this waker.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> std::task::Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(waker))
}
