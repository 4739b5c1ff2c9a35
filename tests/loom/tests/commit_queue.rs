//! The commit queue (commit-wait.md 10): places under the cap, items on their way to the shard,
//! outcomes on their way back, and the end of all three.
#![cfg(loom)]

use std::future::poll_fn;
use std::task::Poll;

use loom::future::block_on;
use loom::thread;
use loom_models::explore;
use raft_host::commit_queue::{CommitQueue, Place, Places, Withdrawn, pending};

#[test]
fn a_drain_that_sees_no_place_taken_has_everything_that_was_published() {
    explore("commit queue: two workers, shard, drain", || {
        let places = Places::new(true, 2);
        let queue = CommitQueue::<Place>::default();
        let workers = [true, false].map(|publishes| {
            let (places, queue) = (places.clone(), queue.clone());
            thread::spawn(move || {
                if let Ok(place) = places.reserve()
                    && publishes
                {
                    queue.publish(place).unwrap();
                }
            })
        });
        places.begin_drain();
        block_on(poll_fn(|context| {
            loop {
                let mut out = Vec::new();
                queue.take(&mut out);
                drop(out);
                if places.poll_free(context).is_ready() {
                    return Poll::Ready(());
                }
                if queue.poll_published(context).is_pending() {
                    return Poll::Pending;
                }
            }
        }));
        for worker in workers {
            worker.join().unwrap();
        }
        let mut late = Vec::new();
        queue.take(&mut late);
        assert_eq!(late.len(), 0, "published after the drain");
        assert_eq!(places.standing().2, 0);
    });
}

#[test]
fn the_cap_holds_whoever_reserves_at_once() {
    explore("commit queue: two reservations, one place", || {
        let places = Places::new(true, 1);
        let other = places.clone();
        let worker = thread::spawn(move || other.reserve().ok());
        let mine = places.reserve().ok();
        let theirs = worker.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "one place, one holder");
        assert_eq!(places.standing().2, 1);
        drop((mine, theirs));
        assert!(places.reserve().is_ok(), "it came back");
    });
}

#[test]
fn what_meets_a_shutdown_is_answered_once_by_whoever_has_it() {
    explore("commit queue: publish, shard, close", || {
        let queue = CommitQueue::default();
        let (answerer, outcome) = pending();
        let publishing = queue.clone();
        let worker = thread::spawn(move || {
            assert!(answerer.begin());
            if let Err(answerer) = publishing.publish(answerer) {
                answerer.answer("refused").unwrap();
            }
        });
        let closing = queue.clone();
        let closer = thread::spawn(move || {
            for answerer in closing.close() {
                answerer.answer("stopped").unwrap();
            }
        });
        block_on(poll_fn(|context| queue.poll_published(context)));
        let mut out = Vec::new();
        queue.take(&mut out);
        for answerer in out {
            answerer.answer("resolved").unwrap();
        }
        let told = block_on(outcome);
        assert!(told.is_some(), "an outcome was lost");
        worker.join().unwrap();
        closer.join().unwrap();
    });
}

#[test]
fn of_a_begin_and_a_withdrawal_one_wins_and_both_know() {
    explore("answer: begin, answer, withdraw", || {
        let (answerer, mut outcome) = pending();
        let worker = thread::spawn(move || {
            let begun = answerer.begin();
            if begun {
                answerer.answer(7).unwrap();
            }
            begun
        });
        let told = match outcome.withdraw() {
            Withdrawn::InTime => None,
            Withdrawn::Answered(answer) => Some(answer),
            Withdrawn::TooLate | Withdrawn::Forsaken => block_on(outcome),
        };
        assert_eq!(worker.join().unwrap(), told == Some(7));
    });
}

#[test]
fn of_an_answer_an_expiry_and_a_caller_who_leaves_one_wins() {
    explore("answer: answer, caller leaves", || {
        let (answerer, outcome) = pending();
        assert!(answerer.begin());
        let shard = thread::spawn(move || answerer.answer(7));
        drop(outcome);
        // It went, unread, or came back: never both, and nobody waits.
        let _ = shard.join().unwrap();
    });
}

#[test]
fn whoever_waits_is_woken_by_the_answer_or_by_its_end() {
    for answers in [true, false] {
        explore("answer: answer or drop, caller waits", move || {
            let (answerer, outcome) = pending();
            let shard = thread::spawn(move || {
                if answers {
                    answerer.answer(7).unwrap();
                }
            });
            assert_eq!(block_on(outcome), answers.then_some(7));
            shard.join().unwrap();
        });
    }
}
