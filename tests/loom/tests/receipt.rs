//! One item between the threads that may end it, the lane that writes it, and its sender.
#![cfg(loom)]

use std::pin::Pin;
use std::task::Context;

use loom::future::block_on;
use loom::thread;
use loom_models::{account, assert_empty, explore, send};
use transport::receipt::{Item, Outcome, OutcomeKind, Stage};

fn reply(item: &Item) -> bool {
    item.end(|_| Outcome::Replied((&b"ok"[..]).into()))
}

fn write(item: &Item) {
    if item.begin_writing().is_some() {
        item.on_written();
    }
}

#[test]
fn of_reply_expiry_and_revocation_one_wins_and_the_sender_wakes() {
    explore("receipt: reply, expiry, revocation, sender", || {
        let account = account(1);
        let (item, mut receipt) = send(&account);
        write(&item);
        let (expiring, revoking) = (item.clone(), item.clone());
        let enders = [
            thread::spawn(move || (reply(&item), OutcomeKind::Replied)),
            thread::spawn(move || {
                let won = expiring.end(|stage| Outcome::Expired { stage });
                (won, OutcomeKind::Expired)
            }),
            thread::spawn(move || {
                let won = revoking.end(|stage| Outcome::Revoked { stage });
                (won, OutcomeKind::Revoked)
            }),
        ];
        let outcome = block_on(&mut receipt);
        let won: Vec<_> = enders
            .into_iter()
            .map(|ender| ender.join().unwrap())
            .filter(|(won, _)| *won)
            .collect();
        assert_eq!(won, [(true, outcome.kind())]);
        let snapshot = account.snapshot();
        assert_eq!(snapshot.ended.iter().sum::<u64>(), 1);
        assert_eq!(snapshot.ended_by(outcome.kind()), 1);
        assert_empty(&account);
    });
}

#[test]
fn an_item_ends_at_one_stage_while_it_is_written() {
    explore("receipt: write against revocation and expiry", || {
        let account = account(1);
        let (item, mut receipt) = send(&account);
        let (written, expired) = (item.clone(), item);
        let writer = thread::spawn(move || write(&written));
        let expiry = thread::spawn(move || expired.end(|stage| Outcome::Expired { stage }));
        let revoked = receipt.revoke();
        let outcome = block_on(&mut receipt);
        let expired = expiry.join().unwrap();
        writer.join().unwrap();
        assert!(revoked ^ expired);
        let stage = receipt.stage();
        let expected = if revoked {
            Outcome::Revoked { stage }
        } else {
            Outcome::Expired { stage }
        };
        assert_eq!(outcome, expected, "the stage is the one that it ended at");
        assert_empty(&account);
    });
}

#[test]
fn a_receipt_may_be_dropped_while_its_item_ends() {
    explore("receipt: reply and expiry against drop", || {
        let account = account(1);
        let (item, mut receipt) = send(&account);
        write(&item);
        let replied = item.clone();
        let replying = thread::spawn(move || reply(&replied));
        let expiry = thread::spawn(move || item.end(|stage| Outcome::Expired { stage }));
        let waker = std::task::Waker::noop();
        let polled = Pin::new(&mut receipt).poll(&mut Context::from_waker(waker));
        drop(receipt);
        let (replied, expired) = (replying.join().unwrap(), expiry.join().unwrap());
        assert!(replied ^ expired);
        if let std::task::Poll::Ready(outcome) = polled {
            let stage = Stage::Written;
            assert_eq!(outcome == Outcome::Expired { stage }, expired);
        }
        assert_empty(&account);
    });
}

#[test]
fn an_item_is_superseded_or_written_and_never_both() {
    explore("receipt: write against supersession", || {
        let account = account(1);
        let (item, mut receipt) = send(&account);
        let written = item.clone();
        let writer = thread::spawn(move || {
            let begun = written.begin_writing().is_some();
            written.on_written();
            begun
        });
        let superseded = item.supersede();
        assert_ne!(writer.join().unwrap(), superseded);
        if superseded {
            assert_eq!(block_on(&mut receipt), Outcome::Superseded);
            assert_eq!(receipt.stage(), Stage::Queued);
        } else {
            assert!(reply(&item));
        }
        assert_empty(&account);
    });
}
