//! The mailbox between those who push, its one reader, and whoever closes it.
#![cfg(loom)]

use std::future::poll_fn;

use loom::future::block_on;
use loom::thread;
use loom_models::explore;
use transport::mailbox::Mailbox;

fn ready(mailbox: &Mailbox<u32>) {
    block_on(poll_fn(|context| mailbox.poll_ready(context)));
}

#[test]
fn every_push_wakes_the_reader_and_is_drained_once() {
    explore("mailbox: two pushers, reader", || {
        let mailbox = Mailbox::default();
        let pushers = [1, 2].map(|thing| {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.push(thing).unwrap())
        });
        let mut all = Vec::new();
        while all.len() < 2 {
            ready(&mailbox);
            let mut out = Vec::new();
            mailbox.drain(&mut out);
            all.extend(out);
        }
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        for pusher in pushers {
            pusher.join().unwrap();
        }
    });
}

#[test]
fn what_meets_a_close_is_drained_handed_back_or_refused() {
    explore("mailbox: push, close, reader", || {
        let mailbox = Mailbox::default();
        let pushed = mailbox.clone();
        let pusher = thread::spawn(move || {
            let refused = [1, 2].map(|thing| pushed.push(thing).err());
            refused.into_iter().flatten().collect::<Vec<_>>()
        });
        let closed = mailbox.clone();
        let closer = thread::spawn(move || closed.close());
        ready(&mailbox);
        let mut all = Vec::new();
        mailbox.drain(&mut all);
        let rest = closer.join().unwrap();
        all.extend(rest);
        all.extend(pusher.join().unwrap());
        let mut after = Vec::new();
        mailbox.drain(&mut after);
        assert_eq!(after, [0; 0], "nothing goes in once it is closed");
        assert!(mailbox.push(3).is_err());
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        // The reader of a closed mailbox never sleeps.
        ready(&mailbox);
    });
}

#[test]
fn a_nudge_wakes_the_reader_with_nothing_to_read() {
    explore("mailbox: nudge, reader", || {
        let mailbox = Mailbox::default();
        let nudged = mailbox.clone();
        let nudger = thread::spawn(move || nudged.nudge());
        ready(&mailbox);
        let mut out = Vec::new();
        mailbox.drain(&mut out);
        assert_eq!(out, [0; 0]);
        nudger.join().unwrap();
    });
}
