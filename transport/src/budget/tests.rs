//! The budgets, alone: who gets what, in which order, and what each refusal names.

use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;

use super::*;
use crate::id::Label;
use crate::receipt::{Item, Outcome, Receipt};
use crate::testing::{LONG, Woken, item, poll, start};

fn budget(peer: (u64, u64), node: (u64, u64)) -> Budget {
    Budget::new(BudgetLimits {
        peer: Amount::new(peer.0, peer.1),
        node: Amount::new(node.0, node.1),
    })
}

/// One peer that is bounded by its own budget alone.
fn one_peer(items: u64, bytes: u64) -> [LaneAccount; 2] {
    budget((items, bytes), (1000, 100_000)).open_peer()
}

const fn items(items: u64) -> Amount {
    Amount::new(items, 0)
}

fn waiting(account: &LaneAccount, amount: Amount) -> (Reserve, Arc<Woken>) {
    let woken = Woken::new();
    let mut reserve = account.reserve(amount);
    let turn = poll(&mut reserve, &woken.clone().into());
    assert!(turn.is_pending(), "{turn:?}");
    (reserve, woken)
}

fn ready(reserve: &mut Reserve) -> Result<Reservation, ReserveRefused> {
    match poll(reserve, Waker::noop()) {
        Poll::Ready(turn) => turn,
        Poll::Pending => unreachable!("its turn has come"),
    }
}

fn zero(account: &LaneAccount) -> bool {
    let snapshot = account.snapshot();
    snapshot.reserved() == Amount::default() && snapshot.waiters == 0 && snapshot.is_exact()
}

#[test]
fn every_refusal_names_its_scope_and_unit() {
    let full = |scope, unit| Some(ReserveRefused::Full { scope, unit });
    let refusal = |peer, node, held: Amount, amount: Amount| {
        let budget = budget(peer, node);
        let [first, _] = budget.open_peer();
        let [second, _] = budget.open_peer();
        let _own = first.try_reserve(held).unwrap();
        let _other = second.try_reserve(held).unwrap();
        first.try_reserve(amount).err()
    };
    let wide = (1000, 1000);
    let (held, amount) = (Amount::new(6, 6), Amount::new(6, 6));
    assert_eq!(refusal(wide, wide, held, amount), None);
    for (limit, unit) in [((10, 1000), Unit::Items), ((1000, 10), Unit::Bytes)] {
        assert_eq!(refusal(limit, wide, held, amount), full(Scope::Peer, unit));
    }
    for (limit, unit) in [((17, 1000), Unit::Items), ((1000, 17), Unit::Bytes)] {
        assert_eq!(refusal(wide, limit, held, amount), full(Scope::Node, unit));
    }
}

#[test]
fn what_could_never_fit_is_refused_as_too_large_and_does_not_wait() {
    let [control, bulk] = one_peer(80, 800);
    let too_large = |unit, asked, limit| ReserveRefused::TooLarge {
        scope: Scope::Peer,
        unit,
        asked,
        limit,
    };
    let refusal = |account: &LaneAccount, amount| {
        let now = account.try_reserve(amount).unwrap_err();
        assert_eq!(ready(&mut account.reserve(amount)).unwrap_err(), now);
        now
    };
    assert_eq!(refusal(&control, items(81)), too_large(Unit::Items, 81, 80));
    let bytes = refusal(&control, Amount::new(1, 801));
    assert_eq!(bytes, too_large(Unit::Bytes, 801, 800));
    assert_eq!(refusal(&bulk, items(71)), too_large(Unit::Items, 71, 70));
    let bytes = refusal(&bulk, Amount::new(1, 701));
    assert_eq!(bytes, too_large(Unit::Bytes, 701, 700));
    assert!(control.try_reserve(Amount::new(80, 800)).is_ok());
    assert!(bulk.try_reserve(Amount::new(70, 700)).is_ok());
}

#[test]
fn a_full_bulk_lane_leaves_control_its_share_and_control_may_take_everything() {
    let budget = budget((80, 800), (160, 1600));
    let peers = [budget.open_peer(), budget.open_peer()];
    let held: Vec<_> = peers
        .iter()
        .map(|[_, bulk]| bulk.try_reserve(Amount::new(70, 700)).unwrap())
        .collect();
    for [control, bulk] in &peers {
        assert!(bulk.try_reserve(items(1)).is_err());
        assert!(control.try_reserve(Amount::new(10, 100)).is_ok());
        assert!(control.try_reserve(Amount::new(11, 100)).is_err());
    }
    drop(held);
    let [control, bulk] = &peers[0];
    let all = control.try_reserve(Amount::new(80, 800)).unwrap();
    let refused = bulk.try_reserve(items(1)).unwrap_err();
    let (scope, unit) = (Scope::Peer, Unit::Items);
    assert_eq!(refused, ReserveRefused::Full { scope, unit });
    drop(all);
    assert!(bulk.try_reserve(items(70)).is_ok());
}

#[test]
fn the_nodes_control_share_holds_against_the_bulk_of_all_peers_together() {
    let budget = budget((80, 8000), (80, 8000));
    let [first, second] = [budget.open_peer(), budget.open_peer()];
    let _held = first[1].try_reserve(items(40)).unwrap();
    let (scope, unit) = (Scope::Node, Unit::Items);
    assert!(second[1].try_reserve(items(30)).is_ok());
    let refused = second[1].try_reserve(items(31)).unwrap_err();
    assert_eq!(refused, ReserveRefused::Full { scope, unit });
    assert!(second[0].try_reserve(items(40)).is_ok());
}

#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let [control, _] = one_peer(8, 800);
    let held = control.try_reserve(items(8)).unwrap();
    let mut line: Vec<_> = [5, 1, 3].map(|n| waiting(&control, items(n))).into();
    assert_eq!(control.snapshot().waiters, 3);
    drop(held);
    // 5 and 1 fit; 3 doesn't and nobody is behind it.
    let counts: Vec<_> = line.iter().map(|(_, woken)| woken.count()).collect();
    assert_eq!(counts, [1, 1, 0]);
    let (mut third, woken) = line.pop().unwrap();
    assert!(poll(&mut third, &woken.clone().into()).is_pending());
    let first = ready(&mut line[0].0).unwrap();
    assert_eq!(first.left(), items(5));
    assert_eq!(woken.count(), 0);
    drop(first);
    assert_eq!(woken.count(), 1);
    assert_eq!(ready(&mut third).unwrap().left(), items(3));
    drop(line);
    assert!(zero(&control));
}

#[test]
fn nobody_overtakes_the_line_neither_a_small_one_nor_try_reserve() {
    let [control, bulk] = one_peer(8, 800);
    let held = control.try_reserve(items(4)).unwrap();
    let (mut large, large_woken) = waiting(&control, items(8));
    let (_small, small_woken) = waiting(&control, items(1));
    let (scope, unit) = (Scope::Peer, Unit::Items);
    let refused = control.try_reserve(items(1)).unwrap_err();
    assert_eq!(refused, ReserveRefused::Full { scope, unit });
    // A line is its lane's own.
    assert!(bulk.try_reserve(items(1)).is_ok());
    assert_eq!((large_woken.count(), small_woken.count()), (0, 0));
    drop(held);
    assert_eq!((large_woken.count(), small_woken.count()), (1, 0));
    drop(ready(&mut large).unwrap());
    assert_eq!(small_woken.count(), 1);
}

#[test]
fn room_that_was_granted_is_accounted_before_its_waiter_looks() {
    // A grant was once kept beside the account: until the waiter was polled a snapshot showed
    // room in use that no part of the account explained.
    let [control, _] = one_peer(8, 800);
    let held = control.try_reserve(items(8)).unwrap();
    let (mut reserve, _) = waiting(&control, items(6));
    drop(held);
    assert_eq!(control.snapshot().unused, items(6));
    assert!(control.try_reserve(items(3)).is_err());
    let reservation = ready(&mut reserve).unwrap();
    assert_eq!(control.snapshot().unused, items(6));
    drop(reservation);
    assert!(zero(&control));
}

#[test]
fn a_waiter_may_leave_in_every_state_and_takes_nothing_with_it() {
    let [control, _] = one_peer(8, 800);
    // Never polled.
    drop(control.reserve(items(8)));
    assert!(zero(&control));
    // In line, in front of one that would fit.
    let held = control.try_reserve(items(4)).unwrap();
    let (first, _) = waiting(&control, items(8));
    let (mut second, woken) = waiting(&control, items(4));
    drop(first);
    assert_eq!(woken.count(), 1);
    drop(ready(&mut second).unwrap());
    // Granted and not looked at: the room goes on to the next.
    let (first, first_woken) = waiting(&control, items(8));
    let (mut second, woken) = waiting(&control, items(8));
    drop(held);
    assert_eq!((first_woken.count(), woken.count()), (1, 0));
    drop(first);
    assert_eq!(woken.count(), 1);
    // Taken: it is the reservation's now.
    let taken = ready(&mut second).unwrap();
    drop(second);
    assert_eq!(control.snapshot().unused, items(8));
    drop(taken);
    // Refused and not looked at.
    let _held = control.try_reserve(items(8)).unwrap();
    let (refused, _) = waiting(&control, items(1));
    control.set_admission(Admission::Closed);
    drop(refused);
    assert_eq!(control.snapshot().unused, items(8));
    assert_eq!(control.snapshot().waiters, 0);
}

#[test]
fn room_that_frees_reaches_the_lines_of_all_peers() {
    // The turn moved on inside a round once, and the round skipped the account after each one it
    // had served: its waiter slept on beside free room.
    let budget = budget((8, 800), (8, 800));
    let peers: Vec<_> = (0..3).map(|_| budget.open_peer()).collect();
    let held = peers[0][0].try_reserve(items(8)).unwrap();
    let mut line: Vec<_> = peers.iter().map(|p| waiting(&p[0], items(2))).collect();
    drop(held);
    for (reserve, woken) in &mut line {
        assert_eq!(woken.count(), 1);
        assert_eq!(ready(reserve).unwrap().left(), items(2));
    }
    assert!(peers.iter().flatten().all(zero));
}

#[test]
fn peers_take_turns_at_what_the_node_frees() {
    let budget = budget((8, 800), (8, 800));
    let peers = [budget.open_peer(), budget.open_peer()];
    let held: Vec<_> = (0..8)
        .map(|_| peers[0][0].try_reserve(items(1)).unwrap())
        .collect();
    let mut served = Vec::new();
    let mut line: Vec<_> = [0, 0, 0, 1, 1, 1]
        .map(|peer| (peer, waiting(&peers[peer][0], items(1))))
        .into();
    for held in held {
        drop(held);
        if let Some(at) = line.iter().position(|(_, (_, woken))| woken.count() > 0) {
            served.push(line.remove(at));
        }
    }
    let order: Vec<_> = served.iter().map(|(peer, _)| *peer).collect();
    assert_eq!(order, [0, 1, 0, 1, 0, 1]);
    // And when much is freed at once, one of each in turn too.
    drop(served);
    let held = peers[0][0].try_reserve(items(8)).unwrap();
    let line = [0, 0, 0, 1, 1, 1].map(|peer| waiting(&peers[peer][0], items(2)));
    drop(held);
    let woken: Vec<_> = line.iter().map(|(_, woken)| woken.count()).collect();
    assert_eq!(woken, [1, 1, 0, 1, 1, 0]);
}

#[test]
fn revocation_and_closing_refuse_everyone_in_line_and_everyone_after() {
    for (admission, refused, send) in [
        (
            Admission::Revoked,
            ReserveRefused::Revoked,
            SendRefused::Revoked,
        ),
        (
            Admission::Closed,
            ReserveRefused::Closed,
            SendRefused::Closed,
        ),
    ] {
        let budget = budget((8, 800), (80, 8000));
        let [control, bulk] = budget.open_peer();
        let [other, _] = budget.open_peer();
        let mut held = control.try_reserve(Amount::new(8, 8)).unwrap();
        let mut line: Vec<_> = (0..3).map(|_| waiting(&control, items(1))).collect();
        control.set_admission(admission);
        for (reserve, woken) in &mut line {
            assert_eq!(woken.count(), 1);
            assert_eq!(ready(reserve).unwrap_err(), refused);
        }
        assert_eq!(control.try_reserve(items(1)).unwrap_err(), refused);
        assert_eq!(ready(&mut control.reserve(items(1))).unwrap_err(), refused);
        let started = Item::start(&mut held, Bytes::new(), Label::default(), start() + LONG);
        assert_eq!(started.unwrap_err(), send);
        assert_eq!(held.left(), Amount::new(8, 8));
        assert!(other.try_reserve(items(1)).is_ok(), "another peer's");
        drop(held);
        assert!(zero(&control) && zero(&bulk));
        control.set_admission(Admission::Open);
        // A peer is restored; a node that shuts down lets nobody in again.
        let stays_shut = admission == Admission::Closed;
        assert_eq!(control.try_reserve(items(8)).is_err(), stays_shut);
    }
}

#[test]
fn the_line_is_bounded() {
    let [control, _] = one_peer(1, 100);
    let held = control.try_reserve(items(1)).unwrap();
    let line: Vec<_> = (0..RESERVE_WAITERS_MAX)
        .map(|_| waiting(&control, items(1)))
        .collect();
    let limit = RESERVE_WAITERS_MAX;
    let refused = ready(&mut control.reserve(items(1))).unwrap_err();
    assert_eq!(refused, ReserveRefused::LineFull { limit });
    drop(line);
    let (mut next, _) = waiting(&control, items(1));
    drop(held);
    drop(ready(&mut next).unwrap());
    assert!(zero(&control));
}

#[test]
fn the_latest_waker_is_the_one_that_is_woken() {
    let [control, _] = one_peer(1, 100);
    let held = control.try_reserve(items(1)).unwrap();
    let (mut reserve, old) = waiting(&control, items(1));
    let new = Woken::new();
    assert!(poll(&mut reserve, &new.clone().into()).is_pending());
    drop(held);
    assert_eq!((old.count(), new.count()), (0, 1));
}

#[test]
fn a_reservation_covers_its_items_and_gives_back_the_rest() {
    let [control, _] = one_peer(8, 800);
    let mut reservation = control.try_reserve(Amount::new(2, 10)).unwrap();
    let send = |reservation: &mut Reservation, payload: &'static [u8]| {
        let payload = Bytes::from_static(payload);
        Item::start(reservation, payload, Label::default(), start() + LONG)
    };
    let (asked, left) = (11, 10);
    let refused = send(&mut reservation, b"eleven byte").unwrap_err();
    assert_eq!(refused, SendRefused::NoBytesLeft { asked, left });
    let first = send(&mut reservation, b"four").unwrap();
    assert_eq!(reservation.left(), Amount::new(1, 6));
    let second = send(&mut reservation, b"").unwrap();
    let refused = send(&mut reservation, b"").unwrap_err();
    assert_eq!(refused, SendRefused::NoItemsLeft);
    let snapshot = control.snapshot();
    assert_eq!(snapshot.unused, Amount::new(0, 6));
    assert_eq!(snapshot.queued, Amount::new(2, 4));
    assert_eq!((snapshot.started, snapshot.live()), (2, 2));
    drop(reservation);
    assert_eq!(control.snapshot().reserved(), Amount::new(2, 4));
    drop((first, second));
    // Dropping handles ends nothing: the lane does.
    assert_eq!(control.snapshot().queued, Amount::new(2, 4));
}

#[test]
fn an_item_moves_through_the_account_and_out_of_it_once() {
    let [control, _] = one_peer(8, 800);
    let (item, receipt): (_, Receipt) = item(&control, "payload", 0, start() + LONG);
    let held = |unused, queued, writing, outstanding| {
        let snapshot = control.snapshot();
        let amount = |items| Amount::new(items, items * 7);
        assert!(snapshot.is_exact());
        assert_eq!(
            [
                snapshot.unused,
                snapshot.queued,
                snapshot.writing,
                snapshot.outstanding
            ],
            [unused, queued, writing, outstanding].map(amount)
        );
    };
    held(0, 1, 0, 0);
    assert_eq!(item.begin_writing().as_deref(), Some(&b"payload"[..]));
    held(0, 0, 1, 0);
    item.on_written();
    item.on_written();
    held(0, 0, 0, 1);
    assert!(item.end(|_| Outcome::Replied(Bytes::new())));
    assert!(!item.end(|stage| Outcome::Revoked { stage }));
    assert!(!receipt.revoke());
    held(0, 0, 0, 0);
    assert_eq!(control.snapshot().ended_by(OutcomeKind::Replied), 1);
    assert_eq!(control.snapshot().ended.iter().sum::<u64>(), 1);
}

#[test]
fn a_waker_may_come_straight_back_to_the_budget() {
    let [control, _] = one_peer(1, 100);
    let held = control.try_reserve(items(1)).unwrap();
    let again = control.clone();
    let woken = Woken::then(move || {
        assert_eq!(again.snapshot().unused, items(1));
        assert!(again.try_reserve(items(1)).is_err());
        again.set_admission(Admission::Open);
    });
    let mut reserve = control.reserve(items(1));
    assert!(poll(&mut reserve, &woken.clone().into()).is_pending());
    drop(held);
    assert_eq!(woken.count(), 1);
}

#[test]
fn a_waker_that_is_given_up_may_take_other_reservations_with_it() {
    // The last handle of a task may be the waker in the line; what the task held is dropped with
    // it. That happened under the pool's lock once, which the reservations need to leave.
    let [control, _] = one_peer(1, 100);
    let _held = control.try_reserve(items(1)).unwrap();
    for leave in [true, false] {
        let (inner, _) = waiting(&control, items(1));
        let task = Woken::then(move || {
            let _ = &inner;
        });
        let mut reserve = control.reserve(items(1));
        assert!(poll(&mut reserve, &task.into()).is_pending());
        if leave {
            drop(reserve);
        } else {
            assert!(poll(&mut reserve, Waker::noop()).is_pending());
        }
        assert_eq!(control.snapshot().waiters, u64::from(!leave));
    }
    assert_eq!(control.snapshot().waiters, 0);
}

mod random {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Try(usize, u64, u64),
        Wait(usize, u64, u64),
        Look(usize),
        Leave(usize),
        Drop(usize),
        Start(usize, u64),
        End(usize),
        Admit(usize, Admission),
    }

    fn op() -> impl Strategy<Value = Op> {
        let amount = || (0..4usize, 0..6u64, 0..40u64);
        prop_oneof![
            3 => amount().prop_map(|(a, n, b)| Op::Try(a, n, b)),
            4 => amount().prop_map(|(a, n, b)| Op::Wait(a, n, b)),
            3 => any::<usize>().prop_map(Op::Look),
            2 => any::<usize>().prop_map(Op::Leave),
            3 => any::<usize>().prop_map(Op::Drop),
            4 => (any::<usize>(), 0..20u64).prop_map(|(at, b)| Op::Start(at, b)),
            3 => any::<usize>().prop_map(Op::End),
            1 => (0..4usize, prop_oneof![
                3 => Just(Admission::Open),
                1 => Just(Admission::Revoked),
            ]).prop_map(|(a, to)| Op::Admit(a, to)),
        ]
    }

    fn pick<T>(from: &mut Vec<T>, at: usize) -> Option<T> {
        let at = at.checked_rem(from.len())?;
        Some(from.remove(at))
    }

    fn run(ops: Vec<Op>) {
        let budget = budget((10, 100), (16, 150));
        let accounts: Vec<_> = (0..2).flat_map(|_| budget.open_peer()).collect();
        let mut waiters: Vec<(usize, Reserve, Arc<Woken>)> = Vec::new();
        let (mut held, mut live) = (Vec::new(), Vec::new());
        for op in ops {
            match op {
                Op::Try(at, items, bytes) => {
                    let taken = accounts[at].try_reserve(Amount::new(items, bytes));
                    held.extend(taken.ok());
                }
                Op::Wait(at, items, bytes) => {
                    let woken = Woken::new();
                    let mut reserve = accounts[at].reserve(Amount::new(items, bytes));
                    match poll(&mut reserve, &woken.clone().into()) {
                        Poll::Ready(turn) => held.extend(turn.ok()),
                        Poll::Pending => waiters.push((at, reserve, woken)),
                    }
                }
                Op::Look(at) => {
                    if let Some((at, mut reserve, woken)) = pick(&mut waiters, at) {
                        match poll(&mut reserve, &woken.clone().into()) {
                            Poll::Ready(turn) => {
                                assert_eq!(woken.count(), 1, "woken before it was ready");
                                held.extend(turn.ok());
                            }
                            Poll::Pending => {
                                assert_eq!(woken.count(), 0, "woken for nothing");
                                waiters.push((at, reserve, woken));
                            }
                        }
                    }
                }
                Op::Leave(at) => drop(pick(&mut waiters, at)),
                Op::Drop(at) => drop(pick(&mut held, at)),
                Op::Start(at, bytes) => {
                    if let Some(mut reservation) = pick(&mut held, at) {
                        let payload = vec![0; usize::try_from(bytes).unwrap()].into();
                        let at = start() + LONG;
                        let item = Item::start(&mut reservation, payload, Label::default(), at);
                        live.extend(item.ok());
                        held.push(reservation);
                    }
                }
                Op::End(at) => {
                    if let Some((item, _)) = pick(&mut live, at) {
                        assert!(item.end(|_| Outcome::Superseded));
                    }
                }
                Op::Admit(at, to) => accounts[at].set_admission(to),
            }
            check(&accounts, &waiters, &held, &live);
        }
        drop((waiters, held));
        for (item, _) in live {
            item.end(|_| Outcome::Superseded);
        }
        assert!(accounts.iter().all(zero));
    }

    /// What the account says against what this test holds in its hands.
    fn check(
        accounts: &[LaneAccount],
        waiters: &[(usize, Reserve, Arc<Woken>)],
        held: &[Reservation],
        live: &[(Arc<Item>, Receipt)],
    ) {
        let mut all = Amount::default();
        for account in accounts {
            let snapshot = account.snapshot();
            assert!(snapshot.is_exact());
            all = all.plus(snapshot.reserved());
        }
        let asleep = waiters.iter().filter(|(_, _, woken)| woken.count() == 0);
        let in_line: u64 = accounts.iter().map(|a| a.snapshot().waiters).sum();
        assert_eq!(
            in_line,
            asleep.count() as u64,
            "everyone out of line was woken"
        );
        // Refused waiters hold nothing, so granted ones are what is left of `unused`.
        let left = held
            .iter()
            .fold(Amount::default(), |sum, r| sum.plus(r.left()));
        let queued = live.iter().fold(Amount::default(), |sum, (item, _)| {
            sum.plus(Amount::new(1, item.bytes()))
        });
        assert!(all.minus(left).minus(queued).items <= 16);
        assert!(all.items <= 16 && all.bytes <= 150);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn sums_are_conserved_and_no_waiter_is_forgotten(
            ops in proptest::collection::vec(op(), 1..120)
        ) {
            run(ops);
        }
    }
}

fn watching(account: &LaneAccount, amount: Amount) -> Arc<Woken> {
    let woken = Woken::new();
    let refused = account.try_reserve_or_wake(amount, &woken.clone().into());
    assert!(
        matches!(refused, Err(ReserveRefused::Full { .. })),
        "{refused:?}"
    );
    woken
}

#[test]
fn a_watcher_is_woken_once_when_what_it_was_refused_fits_and_holds_nothing() {
    let [control, _] = one_peer(4, 40);
    let (first, second) = (
        control.try_reserve(items(2)).unwrap(),
        control.try_reserve(items(2)).unwrap(),
    );
    let (one, three) = (watching(&control, items(1)), watching(&control, items(3)));
    drop(first);
    assert_eq!((one.count(), three.count()), (1, 0), "two are free");
    drop(second);
    assert_eq!((one.count(), three.count()), (1, 1));
    assert!(zero(&control), "nothing is held for those who were told");
    let room = control.try_reserve_or_wake(items(4), Waker::noop());
    drop(room.unwrap());
    assert_eq!((one.count(), three.count()), (1, 1));
}

#[test]
fn a_watcher_that_asks_again_is_woken_for_its_latest_call_alone() {
    let [control, _] = one_peer(4, 40);
    let held: Vec<_> = (0..4).map(|_| control.try_reserve(items(1))).collect();
    let woken = Woken::new();
    let waker: Waker = woken.clone().into();
    for asked in [1, 2, 3] {
        assert!(control.try_reserve_or_wake(items(asked), &waker).is_err());
    }
    for (freed, held) in held.into_iter().enumerate() {
        drop(held);
        assert_eq!(
            woken.count(),
            usize::from(freed >= 2),
            "{freed} and one are free"
        );
    }
}

#[test]
fn those_in_line_are_served_before_a_watcher_is_woken() {
    let [control, _] = one_peer(2, 20);
    let held = control.try_reserve(items(2)).unwrap();
    let (mut first, _) = waiting(&control, items(2));
    let watcher = watching(&control, items(1));
    drop(held);
    assert_eq!(watcher.count(), 0, "the first in line has it all");
    drop(ready(&mut first).unwrap());
    assert_eq!(watcher.count(), 1);
}

#[test]
fn a_watcher_hears_of_room_that_another_peer_frees_and_of_the_end() {
    let budget = budget((10, 100), (10, 100));
    let [first, _] = budget.open_peer();
    let [second, _] = budget.open_peer();
    let held = second.try_reserve(items(10)).unwrap();
    let watcher = watching(&first, items(1));
    drop(held);
    assert_eq!(watcher.count(), 1);
    for admission in [Admission::Revoked, Admission::Closed] {
        first.set_admission(Admission::Open);
        let held = first.try_reserve(items(10)).unwrap();
        let watcher = watching(&first, items(1));
        first.set_admission(admission);
        assert_eq!(watcher.count(), 1, "{admission:?}");
        drop(held);
    }
}

#[test]
fn one_watcher_too_many_is_told_so() {
    let [control, _] = one_peer(1, 10);
    let _held = control.try_reserve(items(1)).unwrap();
    for _ in 0..RESERVE_WAITERS_MAX {
        watching(&control, items(1));
    }
    let refused = control.try_reserve_or_wake(items(1), &Woken::new().into());
    let limit = RESERVE_WAITERS_MAX;
    assert_eq!(refused.unwrap_err(), ReserveRefused::LineFull { limit });
}
