//! The budget between threads: room that ends free, revocation, waiters that come and go.
#![cfg(loom)]

use std::pin::Pin;
use std::task::{Context, Poll};

use loom::future::block_on;
use loom::thread;
use loom_models::{account, assert_empty, explore, items, send};
use transport::ReserveRefused;
use transport::budget::{Admission, LaneAccount, Reserve};
use transport::id::Label;
use transport::receipt::{Item, Outcome, OutcomeKind};

fn reply(item: &Item) -> bool {
    item.end(|_| Outcome::Replied((&b"ok"[..]).into()))
}

/// Polls a future once, with a waker that wakes nobody.
fn look(reserve: &mut Reserve) -> bool {
    let mut context = Context::from_waker(std::task::Waker::noop());
    Pin::new(reserve).poll(&mut context).is_ready()
}

/// What a thread does with room that it waits for: it sends an item if it still may.
fn reserve_and_send(account: &LaneAccount) -> Result<(), ReserveRefused> {
    let mut reservation = block_on(account.reserve(items(1)))?;
    let deadline = loom_models::deadline();
    if let Ok((item, receipt)) = Item::start(
        &mut reservation,
        (&b"y"[..]).into(),
        Label::default(),
        deadline,
    ) {
        drop(reservation);
        assert!(receipt.revoke());
        assert!(!reply(&item));
    }
    Ok(())
}

#[test]
fn refill_and_revocation_leave_nobody_asleep_and_release_once() {
    explore("refill against revocation", || {
        let account = account(1);
        let (item, receipt) = send(&account);
        let refill = thread::spawn(move || assert!(reply(&item)));
        let revoked = account.clone();
        let revocation = thread::spawn(move || revoked.set_admission(Admission::Revoked));
        match reserve_and_send(&account) {
            Ok(()) | Err(ReserveRefused::Revoked) => {}
            Err(other) => panic!("{other}"),
        }
        refill.join().unwrap();
        revocation.join().unwrap();
        assert!(!receipt.revoke());
        let snapshot = account.snapshot();
        assert_eq!(snapshot.ended_by(OutcomeKind::Replied), 1);
        assert_eq!(
            snapshot.started,
            1 + snapshot.ended_by(OutcomeKind::Revoked)
        );
        assert_empty(&account);
        assert!(matches!(
            account.try_reserve(items(1)),
            Err(ReserveRefused::Revoked)
        ));
    });
}

#[test]
fn each_refill_wakes_the_next_in_line() {
    explore("refill against waiters", || {
        let account = account(1);
        let (item, receipt) = send(&account);
        let refill = thread::spawn(move || assert!(reply(&item)));
        let other = account.clone();
        let waiter = thread::spawn(move || reserve_and_send(&other).unwrap());
        reserve_and_send(&account).unwrap();
        refill.join().unwrap();
        waiter.join().unwrap();
        drop(receipt);
        assert_eq!(account.snapshot().started, 3);
        assert_empty(&account);
    });
}

#[test]
fn revocation_wakes_whoever_no_refill_would() {
    explore("revocation against a waiter", || {
        let account = account(2);
        let (first, _receipt) = send(&account);
        let (second, _receipt) = send(&account);
        let revoked = account.clone();
        let revocation = thread::spawn(move || revoked.set_admission(Admission::Revoked));
        let refill = thread::spawn(move || assert!(reply(&first)));
        // One item ends, and this waits for two.
        let refused = block_on(account.reserve(items(2)));
        assert!(matches!(refused, Err(ReserveRefused::Revoked)));
        revocation.join().unwrap();
        refill.join().unwrap();
        assert!(reply(&second));
        assert_empty(&account);
    });
}

#[test]
fn a_waiter_that_leaves_while_it_is_served_passes_its_room_on() {
    explore("cancellation against a grant", || {
        let account = account(1);
        let held = account.try_reserve(items(1)).unwrap();
        let mut leaves = account.reserve(items(1));
        assert!(!look(&mut leaves));
        let cancellation = thread::spawn(move || drop(leaves));
        let other = account.clone();
        let waiter = thread::spawn(move || drop(block_on(other.reserve(items(1))).unwrap()));
        drop(held);
        cancellation.join().unwrap();
        waiter.join().unwrap();
        assert_empty(&account);
    });
}

#[test]
fn waiters_are_served_in_order_while_others_leave() {
    explore("fairness with cancellation", || {
        let account = account(2);
        let held = account.try_reserve(items(2)).unwrap();
        let mut first = account.reserve(items(2));
        let mut second = account.reserve(items(1));
        let mut third = account.reserve(items(2));
        assert!(!look(&mut first) && !look(&mut second) && !look(&mut third));
        let cancellation = thread::spawn(move || drop(first));
        let release = thread::spawn(move || drop(held));
        // Whoever comes new stands behind all three.
        assert!(account.try_reserve(items(1)).is_err() || account.snapshot().waiters == 0);
        cancellation.join().unwrap();
        release.join().unwrap();
        assert!(look(&mut second));
        assert!(look(&mut third));
        assert_empty(&account);
    });
}

#[test]
fn a_watcher_never_misses_the_room_that_returns_while_it_is_refused() {
    explore("refusal with a watch against release", || {
        let account = account(1);
        let held = account.try_reserve(items(1)).unwrap();
        let watched = account.clone();
        let watcher = thread::spawn(move || {
            let turn = std::future::poll_fn(|context| {
                match watched.try_reserve_or_wake(items(1), context.waker()) {
                    Err(ReserveRefused::Full { .. }) => Poll::Pending,
                    settled => Poll::Ready(settled),
                }
            });
            drop(block_on(turn).unwrap());
        });
        drop(held);
        watcher.join().unwrap();
        assert_empty(&account);
    });
}
