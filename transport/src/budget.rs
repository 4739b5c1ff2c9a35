//! Who may queue how much (T4), and where everything that was queued stands (T10). One pool for the
//! node holds an account for each peer and lane; all of it is behind one lock, so that a snapshot
//! is consistent and a reservation against two scopes is one step. Sections are short: no wake-up,
//! allocation of payload or user code runs inside them.
//!
//! Bulk may take all but the control share of each budget, control may take everything, so a full
//! bulk lane never refuses a heartbeat. Waiters are served first come, first served within their
//! peer and lane; nobody overtakes them, also not `try_reserve`. Lanes take turns at what the node
//! budget frees. Who can't wait, as a thread with other things to do, watches instead: it is refused
//! at once, and woken when the same call would succeed, with nothing held for it.
//!
//! Invariants, checked after each entry:
//! - B1: for each account, reserved = unused + queued + writing + outstanding, in items and bytes.
//! - B2: for each account, started = everything ended + queued + writing + outstanding.
//! - B3: the node's use is the sum of its accounts', and no scope is over its limit.
//! - B4: the first waiter of an account doesn't fit, or there is none.
//! - B5: nobody who watches an account with an empty line would get what he was refused.
//!
//! Knows no clock: a deadline is the caller's to keep, by dropping the [`Reserve`] future.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::error::{ReserveRefused, Scope, SendRefused, Unit};
use crate::id::Lane;
use crate::limits::{CONTROL_SHARE_DIVISOR, RESERVE_WAITERS_MAX};
use crate::receipt::{OutcomeKind, Stage};
use crate::sync::{Arc, Mutex, lock};

/// A number of items and their payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Items, whatever their size.
    pub items: u64,
    /// Payload bytes.
    pub bytes: u64,
}

impl Amount {
    /// So many items of so many bytes together.
    #[must_use]
    pub const fn new(items: u64, bytes: u64) -> Self {
        Self { items, bytes }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            items: self.items.saturating_add(other.items),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The difference; taking more than there is would mean that a unit was released twice.
    fn minus(self, other: Self) -> Self {
        let (items, bytes) = (
            self.items.checked_sub(other.items),
            self.bytes.checked_sub(other.bytes),
        );
        match (items, bytes) {
            (Some(items), Some(bytes)) => Self { items, bytes },
            _ => unreachable!("{other:?} released out of {self:?}"),
        }
    }

    /// The first unit in which this is over `limit`.
    fn exceeds(self, limit: Self) -> Option<Unit> {
        if self.items > limit.items {
            Some(Unit::Items)
        } else if self.bytes > limit.bytes {
            Some(Unit::Bytes)
        } else {
            None
        }
    }

    /// What bulk may take of this budget.
    const fn without_control_share(self) -> Self {
        Self {
            items: self.items - self.items / CONTROL_SHARE_DIVISOR,
            bytes: self.bytes - self.bytes / CONTROL_SHARE_DIVISOR,
        }
    }
}

/// How an account stands at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountSnapshot {
    /// Reserved and not yet used for an item.
    pub unused: Amount,
    /// Sent, and waiting for a slot.
    pub queued: Amount,
    /// Begun, and not yet wholly accepted by the socket.
    pub writing: Amount,
    /// Written and unanswered.
    pub outstanding: Amount,
    /// Items ever sent.
    pub started: u64,
    /// Items ended by each outcome, in the order of [`OutcomeKind::ALL`].
    pub ended: [u64; OutcomeKind::ALL.len()],
    /// Reservations waiting in line.
    pub waiters: u64,
}

impl AccountSnapshot {
    /// Everything that holds a part of the budget.
    #[must_use]
    pub fn reserved(&self) -> Amount {
        self.unused
            .plus(self.queued)
            .plus(self.writing)
            .plus(self.outstanding)
    }

    /// Items sent and not ended.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.queued.items + self.writing.items + self.outstanding.items
    }

    /// Items ended by this outcome.
    #[must_use]
    pub fn ended_by(&self, kind: OutcomeKind) -> u64 {
        self.ended[kind as usize]
    }

    /// Whether every item that was started has ended or is alive (T10).
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.started == self.ended.iter().sum::<u64>() + self.live()
    }
}

/// The budgets of a node (T4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// What each peer's two lanes may reserve together.
    pub peer: Amount,
    /// What all peers may reserve together.
    pub node: Amount,
}

/// Whether an account gives reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It does, within the budgets.
    Open,
    /// The peer may not be spoken to.
    Revoked,
    /// The transport is shutting down.
    Closed,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    amount: Amount,
    waker: Waker,
}

#[derive(Debug)]
struct Account {
    peer: usize,
    lane: Lane,
    admission: Admission,
    /// Everything but `waiters`, which is the length of `line`.
    counts: AccountSnapshot,
    line: VecDeque<Waiter>,
    /// Who was refused and wants to hear of room, each once; woken in this order.
    watchers: Vec<(Amount, Waker)>,
    /// Tickets whose turn came, until their future is polled or dropped. What was granted is
    /// counted as unused from here on.
    settled: BTreeMap<u64, Result<Amount, ReserveRefused>>,
}

#[derive(Debug)]
struct Pool {
    limits: BudgetLimits,
    accounts: Vec<Account>,
    next_ticket: u64,
    /// Where the next round of grants begins, so that no account is always last.
    cursor: usize,
}

/// The budgets of one node, and the accounts of everything that was reserved from them.
#[derive(Clone)]
pub struct Budget {
    pool: Arc<Mutex<Pool>>,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").finish_non_exhaustive()
    }
}

impl Budget {
    /// A pool with nothing reserved.
    #[must_use]
    pub fn new(limits: BudgetLimits) -> Self {
        let pool = Pool {
            limits,
            accounts: Vec::new(),
            next_ticket: 0,
            cursor: 0,
        };
        Self {
            pool: Arc::new(Mutex::new(pool)),
        }
    }

    /// Opens the accounts of one more peer: control's, then bulk's.
    #[must_use]
    pub fn open_peer(&self) -> [LaneAccount; 2] {
        let mut pool = lock(&self.pool);
        let peer = pool.accounts.len() / 2;
        Lane::ALL.map(|lane| {
            pool.accounts.push(Account {
                peer,
                lane,
                admission: Admission::Open,
                counts: AccountSnapshot::default(),
                line: VecDeque::new(),
                watchers: Vec::new(),
                settled: BTreeMap::new(),
            });
            LaneAccount {
                pool: Arc::clone(&self.pool),
                at: pool.accounts.len() - 1,
            }
        })
    }

    /// Every account's lane and state, in the order in which peers were opened; one instant.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(Lane, AccountSnapshot)> {
        let pool = lock(&self.pool);
        pool.accounts
            .iter()
            .map(|account| (account.lane, account.snapshot()))
            .collect()
    }
}

impl Account {
    fn snapshot(&self) -> AccountSnapshot {
        AccountSnapshot {
            waiters: self.line.len() as u64,
            ..self.counts
        }
    }

    fn stage_mut(&mut self, stage: Stage) -> &mut Amount {
        match stage {
            Stage::Queued => &mut self.counts.queued,
            Stage::Writing => &mut self.counts.writing,
            Stage::Written => &mut self.counts.outstanding,
        }
    }
}

impl Pool {
    fn used(&self, peer: Option<usize>, lane: Option<Lane>) -> Amount {
        let counted = self.accounts.iter().filter(|account| {
            peer.is_none_or(|peer| account.peer == peer) && lane.is_none_or(|l| account.lane == l)
        });
        counted.fold(Amount::default(), |sum, account| {
            sum.plus(account.counts.reserved())
        })
    }

    /// Whether `amount` more fits both scopes now, by the lane's part and in all.
    fn fits(&self, at: usize, amount: Amount) -> Result<(), ReserveRefused> {
        let Account { peer, lane, .. } = self.accounts[at];
        for (scope, peer, limit) in [
            (Scope::Peer, Some(peer), self.limits.peer),
            (Scope::Node, None, self.limits.node),
        ] {
            let mut over = self.used(peer, None).plus(amount).exceeds(limit);
            if lane == Lane::Bulk && over.is_none() {
                let bulk = self.used(peer, Some(lane)).plus(amount);
                over = bulk.exceeds(limit.without_control_share());
            }
            if let Some(unit) = over {
                return Err(ReserveRefused::Full { scope, unit });
            }
        }
        Ok(())
    }

    /// Whether `amount` can't fit even with nothing else reserved.
    fn never_fits(&self, at: usize, amount: Amount) -> Option<ReserveRefused> {
        let lane = self.accounts[at].lane;
        let scopes = [
            (Scope::Peer, self.limits.peer),
            (Scope::Node, self.limits.node),
        ];
        scopes.into_iter().find_map(|(scope, limit)| {
            let limit = if lane == Lane::Bulk {
                limit.without_control_share()
            } else {
                limit
            };
            let unit = amount.exceeds(limit)?;
            let (asked, limit) = match unit {
                Unit::Items => (amount.items, limit.items),
                Unit::Bytes => (amount.bytes, limit.bytes),
            };
            Some(ReserveRefused::TooLarge {
                scope,
                unit,
                asked,
                limit,
            })
        })
    }

    /// What an account says to everyone, whatever they ask for.
    fn admission(&self, at: usize) -> Result<(), ReserveRefused> {
        match self.accounts[at].admission {
            Admission::Open => Ok(()),
            Admission::Revoked => Err(ReserveRefused::Revoked),
            Admission::Closed => Err(ReserveRefused::Closed),
        }
    }

    fn try_take(&mut self, at: usize, amount: Amount) -> Result<(), ReserveRefused> {
        self.admission(at)?;
        if let Some(never) = self.never_fits(at, amount) {
            return Err(never);
        }
        // Those in line come first, and what they wait for is what this call is refused for.
        if let Some(first) = self.accounts[at].line.front() {
            let ahead = first.amount.plus(amount);
            self.fits(at, ahead)?;
            return Err(ReserveRefused::Full {
                scope: Scope::Peer,
                unit: Unit::Items,
            });
        }
        self.fits(at, amount)?;
        let counts = &mut self.accounts[at].counts;
        counts.unused = counts.unused.plus(amount);
        Ok(())
    }

    /// Gives room to those in line, one of each account in turn, until nobody fits; returns whom
    /// to wake once the lock is gone.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let count = self.accounts.len();
        let mut idle = 0;
        let mut at = self.cursor;
        while idle < count {
            if let Some(waker) = self.grant_first(at) {
                wakers.push(waker);
                idle = 0;
                self.cursor = (at + 1) % count;
            } else {
                idle += 1;
            }
            at = (at + 1) % count;
        }
        for at in 0..count {
            self.tell_watchers(at, &mut wakers);
        }
        self.check_invariants();
        wakers
    }

    /// Lets go of those watchers of an account who would get room now, or never will.
    fn tell_watchers(&mut self, at: usize, wakers: &mut Vec<Waker>) {
        if self.accounts[at].watchers.is_empty() {
            return;
        }
        let mut watchers = std::mem::take(&mut self.accounts[at].watchers);
        wakers.extend(
            watchers
                .extract_if(.., |(amount, _)| self.has_news(at, *amount))
                .map(|(_, waker)| waker),
        );
        self.accounts[at].watchers = watchers;
    }

    /// Whether who was refused this much would hear something else than `Full` now.
    fn has_news(&self, at: usize, amount: Amount) -> bool {
        let account = &self.accounts[at];
        account.admission != Admission::Open
            || (account.line.is_empty() && self.fits(at, amount).is_ok())
    }

    /// Gives its room to the first in an account's line, if it fits.
    fn grant_first(&mut self, at: usize) -> Option<Waker> {
        let amount = self.accounts[at].line.front()?.amount;
        self.fits(at, amount).ok()?;
        let account = &mut self.accounts[at];
        let waiter = account.line.pop_front()?;
        account.counts.unused = account.counts.unused.plus(amount);
        account.settled.insert(waiter.ticket, Ok(amount));
        Some(waiter.waker)
    }

    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            for account in &self.accounts {
                assert!(account.counts.is_exact(), "B2: {:?}", account.counts);
            }
            assert!(
                self.used(None, None).exceeds(self.limits.node).is_none(),
                "B3: node"
            );
            for at in 0..self.accounts.len() {
                let peer = Some(self.accounts[at].peer);
                assert!(
                    self.used(peer, None).exceeds(self.limits.peer).is_none(),
                    "B3: peer"
                );
                if let Some(first) = self.accounts[at].line.front() {
                    assert!(
                        self.fits(at, first.amount).is_err(),
                        "B4: first in line fits"
                    );
                }
                let mut watchers = self.accounts[at].watchers.iter();
                assert!(
                    watchers.all(|(amount, _)| !self.has_news(at, *amount)),
                    "B5: a watcher wasn't told"
                );
            }
        }
    }
}

/// Whom freed room has reached. They are woken once the caller holds no lock: a waker is foreign
/// code and may come straight back here.
#[must_use = "those who were granted room sleep until they are woken"]
pub(crate) struct Granted(Vec<Waker>);

impl Granted {
    pub(crate) fn wake(self) {
        for waker in self.0 {
            waker.wake();
        }
    }
}

/// One peer's and lane's part of the budget. A handle: clones are the same account.
#[derive(Clone)]
pub struct LaneAccount {
    pool: Arc<Mutex<Pool>>,
    at: usize,
}

impl fmt::Debug for LaneAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneAccount")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl LaneAccount {
    /// The account's state at one instant.
    #[must_use]
    pub fn snapshot(&self) -> AccountSnapshot {
        lock(&self.pool).accounts[self.at].snapshot()
    }

    /// Reserves at once or not at all.
    ///
    /// # Errors
    /// Names what stands against it; [`ReserveRefused::Full`] also while others wait in line.
    pub fn try_reserve(&self, amount: Amount) -> Result<Reservation, ReserveRefused> {
        let mut pool = lock(&self.pool);
        let taken = pool.try_take(self.at, amount);
        pool.check_invariants();
        drop(pool);
        taken.map(|()| Reservation {
            account: self.clone(),
            left: amount,
        })
    }

    /// The same, for a caller that can't wait: refused for want of room, it has `waker` woken once
    /// when the same call would give something else, be it room, for which it must then ask
    /// again, or [`ReserveRefused::Revoked`] or [`ReserveRefused::Closed`]. Nothing is held for it
    /// meanwhile. A waker that waits already stands for its latest call alone.
    ///
    /// # Errors
    /// As [`LaneAccount::try_reserve`]; [`ReserveRefused::LineFull`] where nobody more can be woken.
    pub fn try_reserve_or_wake(
        &self,
        amount: Amount,
        waker: &Waker,
    ) -> Result<Reservation, ReserveRefused> {
        let mut pool = lock(&self.pool);
        let mut taken = pool.try_take(self.at, amount);
        let mut pool = if crate::mutant!("watch_looks_then_watches") {
            drop(pool);
            lock(&self.pool)
        } else {
            pool
        };
        // Dropped after the lock: a waker is foreign code.
        let mut old = None;
        if let Err(ReserveRefused::Full { .. }) = taken {
            let watchers = &mut pool.accounts[self.at].watchers;
            let place = watchers.iter().position(|(_, w)| w.will_wake(waker));
            if let Some(place) = place {
                old = Some(watchers.remove(place));
            }
            if watchers.len() < RESERVE_WAITERS_MAX {
                watchers.push((amount, waker.clone()));
            } else {
                let limit = RESERVE_WAITERS_MAX;
                taken = Err(ReserveRefused::LineFull { limit });
            }
        }
        pool.check_invariants();
        drop(pool);
        drop(old);
        taken.map(|()| Reservation {
            account: self.clone(),
            left: amount,
        })
    }

    /// Reserves when its turn in line has come and there is room.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line, and gives back what it may just have been given.
    pub fn reserve(&self, amount: Amount) -> Reserve {
        Reserve {
            account: self.clone(),
            amount,
            ticket: None,
        }
    }

    /// Takes `left` out of the account's unused part.
    pub(crate) fn release_unused(&self, left: Amount) {
        let mut pool = lock(&self.pool);
        let unused = &mut pool.accounts[self.at].counts.unused;
        *unused = unused.minus(left);
        let granted = Granted(pool.grant());
        drop(pool);
        granted.wake();
    }

    /// One unused item becomes a queued one, and is counted as started.
    fn start(&self, used: Amount) -> Result<(), SendRefused> {
        let mut pool = lock(&self.pool);
        match pool.admission(self.at) {
            Err(ReserveRefused::Revoked) => return Err(SendRefused::Revoked),
            Err(_) => return Err(SendRefused::Closed),
            Ok(()) => {}
        }
        let counts = &mut pool.accounts[self.at].counts;
        counts.unused = counts.unused.minus(used);
        counts.queued = counts.queued.plus(used);
        counts.started += 1;
        pool.check_invariants();
        Ok(())
    }

    /// One item moves on.
    pub(crate) fn advance(&self, from: Stage, to: Stage, bytes: u64) {
        let mut pool = lock(&self.pool);
        let account = &mut pool.accounts[self.at];
        let one = Amount::new(1, bytes);
        *account.stage_mut(from) = account.stage_mut(from).minus(one);
        *account.stage_mut(to) = account.stage_mut(to).plus(one);
        pool.check_invariants();
    }

    /// One item ends: its part of the budget is free again.
    pub(crate) fn end(&self, stage: Stage, bytes: u64, how: OutcomeKind) -> Granted {
        let mut pool = lock(&self.pool);
        let account = &mut pool.accounts[self.at];
        *account.stage_mut(stage) = account.stage_mut(stage).minus(Amount::new(1, bytes));
        account.counts.ended[how as usize] += 1;
        if crate::mutant!("refill_grants_nobody") {
            return Granted(Vec::new());
        }
        Granted(pool.grant())
    }

    /// Opens the account again, or refuses everyone from now on, also those in line. One that is
    /// closed stays so.
    pub fn set_admission(&self, admission: Admission) {
        let mut pool = lock(&self.pool);
        // Who is restored while the node shuts down is not let in again.
        if pool.accounts[self.at].admission == Admission::Closed {
            return;
        }
        pool.accounts[self.at].admission = admission;
        let mut wakers = Vec::new();
        if let Err(why) = pool.admission(self.at) {
            let account = &mut pool.accounts[self.at];
            for waiter in std::mem::take(&mut account.line) {
                account.settled.insert(waiter.ticket, Err(why));
                if !crate::mutant!("revocation_wakes_nobody") {
                    wakers.push(waiter.waker);
                }
            }
        }
        wakers.extend(pool.grant());
        drop(pool);
        Granted(wakers).wake();
    }
}

/// A part of the budget, held until its items are sent or it is dropped, which returns the rest.
#[derive(Debug)]
pub struct Reservation {
    account: LaneAccount,
    left: Amount,
}

impl Reservation {
    /// What hasn't been used.
    #[must_use]
    pub const fn left(&self) -> Amount {
        self.left
    }

    /// The account it was drawn from.
    pub(crate) const fn account(&self) -> &LaneAccount {
        &self.account
    }

    /// Uses one item and `bytes` of it. Bytes left over after the last item are held until the
    /// reservation is dropped.
    pub(crate) fn start_item(&mut self, bytes: u64) -> Result<(), SendRefused> {
        if self.left.items == 0 {
            return Err(SendRefused::NoItemsLeft);
        }
        if bytes > self.left.bytes {
            return Err(SendRefused::NoBytesLeft {
                asked: bytes,
                left: self.left.bytes,
            });
        }
        let used = Amount::new(1, bytes);
        self.account.start(used)?;
        self.left = self.left.minus(used);
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.left != Amount::default() {
            self.account.release_unused(self.left);
        }
    }
}

/// A reservation's turn in line; see [`LaneAccount::reserve`].
#[derive(Debug)]
#[must_use = "a future does nothing unless polled"]
pub struct Reserve {
    account: LaneAccount,
    amount: Amount,
    ticket: Option<u64>,
}

impl Reserve {
    /// Joins the line or takes at once.
    fn enter(&mut self, pool: &mut Pool, waker: &Waker) -> Poll<Result<(), ReserveRefused>> {
        let at = self.account.at;
        match pool.try_take(at, self.amount) {
            Err(ReserveRefused::Full { .. }) => {}
            settled => return Poll::Ready(settled),
        }
        if pool.accounts[at].line.len() >= RESERVE_WAITERS_MAX {
            let limit = RESERVE_WAITERS_MAX;
            return Poll::Ready(Err(ReserveRefused::LineFull { limit }));
        }
        let ticket = pool.next_ticket;
        pool.next_ticket += 1;
        let waiter = Waiter {
            ticket,
            amount: self.amount,
            waker: waker.clone(),
        };
        pool.accounts[at].line.push_back(waiter);
        self.ticket = Some(ticket);
        Poll::Pending
    }

    /// Looks whether its turn has come. A waker that is replaced goes to `old`.
    fn look(
        &mut self,
        pool: &mut Pool,
        waker: &Waker,
        old: &mut Option<Waker>,
    ) -> Poll<Result<(), ReserveRefused>> {
        let account = &mut pool.accounts[self.account.at];
        let Some(ticket) = self.ticket else {
            return Poll::Pending;
        };
        if let Some(settled) = account.settled.remove(&ticket) {
            self.ticket = None;
            return Poll::Ready(settled.map(|_| ()));
        }
        let mut line = account.line.iter_mut();
        if let Some(waiter) = line.find(|waiter| waiter.ticket == ticket)
            && !waiter.waker.will_wake(waker)
        {
            *old = Some(std::mem::replace(&mut waiter.waker, waker.clone()));
        }
        Poll::Pending
    }
}

impl Future for Reserve {
    type Output = Result<Reservation, ReserveRefused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let shared = Arc::clone(&this.account.pool);
        // Dropped after the lock: the last handle of a task may take other reservations with it.
        let mut old = None;
        let mut pool = lock(&shared);
        let turn = if this.ticket.is_some() {
            this.look(&mut pool, context.waker(), &mut old)
        } else {
            this.enter(&mut pool, context.waker())
        };
        pool.check_invariants();
        drop(pool);
        turn.map_ok(|()| Reservation {
            account: this.account.clone(),
            left: this.amount,
        })
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut pool = lock(&self.account.pool);
        let account = &mut pool.accounts[self.account.at];
        if let Some(Ok(amount)) = account.settled.remove(&ticket)
            && !crate::mutant!("cancel_keeps_its_grant")
        {
            account.counts.unused = account.counts.unused.minus(amount);
        }
        let place = account.line.iter().position(|w| w.ticket == ticket);
        let waiter = place.and_then(|place| account.line.remove(place));
        let granted = Granted(pool.grant());
        drop(pool);
        drop(waiter);
        granted.wake();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
