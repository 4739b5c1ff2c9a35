//! Models of the structures that threads share: the shipped types, built with `--cfg loom`, under
//! every order in which their locks can be taken. The models are in `tests/`; without `--cfg loom`
//! there are none.
//!
//! `LOOM_MAX_PREEMPTIONS` bounds how often a thread is interrupted where it need not wait, 3 in the
//! gate. A sleeper whom nobody wakes is a deadlock, which loom reports; so each model that ends says
//! that no wake-up was lost.
#![cfg(loom)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use transport::budget::{Amount, Budget, BudgetLimits, LaneAccount};
use transport::id::Label;
use transport::receipt::{Item, Receipt};

/// Runs a model in every order and prints how many there were.
#[expect(
    clippy::print_stdout,
    reason = "the number of orders is what a run of the models is to show"
)]
pub fn explore(name: &str, model: impl Fn() + Send + Sync + 'static) {
    static ORDERS: AtomicU64 = AtomicU64::new(0);
    // One at a time, as the counter is shared; loom's own state is the thread's.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    ORDERS.store(0, Ordering::Relaxed);
    loom::model(move || {
        ORDERS.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("model {name}: {} orders", ORDERS.load(Ordering::Relaxed));
}

/// A deadline that no model reaches: items need one, and nothing here looks at it.
#[must_use]
pub fn deadline() -> Instant {
    static DEADLINE: OnceLock<Instant> = OnceLock::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "an instant can't be made from nothing; made once, it is the same in every order"
    )]
    *DEADLINE.get_or_init(Instant::now)
}

/// The control account of a peer that may hold so many items.
#[must_use]
pub fn account(items: u64) -> LaneAccount {
    let all = Amount::new(items, 100);
    let [control, _bulk] = Budget::new(BudgetLimits {
        peer: all,
        node: all,
    })
    .open_peer();
    control
}

/// Amount of `items` items of one byte.
#[must_use]
pub const fn items(items: u64) -> Amount {
    Amount::new(items, items)
}

/// Sends an item of one byte, which must have room.
///
/// # Panics
/// When it hasn't.
#[must_use]
pub fn send(account: &LaneAccount) -> (loom::sync::Arc<Item>, Receipt) {
    let Ok(mut reservation) = account.try_reserve(items(1)) else {
        panic!("no room in {:?}", account.snapshot());
    };
    match Item::start(
        &mut reservation,
        (&b"x"[..]).into(),
        Label::default(),
        deadline(),
    ) {
        Ok(sent) => sent,
        Err(refused) => panic!("{refused}"),
    }
}

/// Checks that the account is exact and holds nothing any more.
///
/// # Panics
/// When it does.
pub fn assert_empty(account: &LaneAccount) {
    let snapshot = account.snapshot();
    assert!(snapshot.is_exact(), "{snapshot:?}");
    assert_eq!(snapshot.reserved(), Amount::default(), "{snapshot:?}");
    assert_eq!(snapshot.waiters, 0, "{snapshot:?}");
}
