//! What became of one item (T7). An item is shared by its sender, who holds the [`Receipt`], and by
//! the lane that carries it. It moves forward through its stages and ends exactly once, whoever
//! comes first: a reply, the deadline, a revocation, a newer item in its place, the loss of the
//! session, shutdown.
//!
//! ```text
//! Queued ──► Writing ──► Written ──► (ended)
//!    └──────────┴───────────┴──────────► Expired, Revoked, SessionLost, ShutDown, each with the
//!                                        stage; Superseded; Replied from Written only; Refused
//!                                        from Written by the peer, and from Queued as too large
//! ```
//!
//! *Queued* and *Writing* are proven unwritten: the last byte of the item's last TLS record has not
//! been accepted by the socket, so the peer can't have the whole frame and delivers no part of it.
//! After *Written* the peer may have acted on it, and nobody here knows.
//!
//! Invariants:
//! - R1: an item ends once; what ends it returns its part of the budget in the same step.
//! - R2: the payload lives no longer than the item is *Queued*.
//! - R3: the receipt's task is woken after the end, never before, and never missed.
//!
//! Locks: an item's cell, then the budget's pool; never the other way.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;

use crate::budget::{LaneAccount, Reservation};
use crate::error::{RefusalReason, SendRefused};
use crate::id::Label;
use crate::sync::{Arc, Mutex, lock};

/// How far an item has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It waits for a slot of the window. Not written: safe to send again.
    Queued,
    /// Its frame was begun, and its last byte is not with the socket yet. Not written.
    Writing,
    /// The socket accepted its last byte: the peer may have seen it.
    Written,
}

impl Stage {
    /// Whether the peer may have seen an item that ended at this stage.
    #[must_use]
    pub const fn may_have_been_seen(self) -> bool {
        matches!(self, Self::Written)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "queued",
            Self::Writing => "writing",
            Self::Written => "written",
        })
    }
}

/// How an item ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The peer's host took it; this is what it answered.
    Replied(Bytes),
    /// The peer did not take it: it had no effect there.
    Refused(RefusalReason),
    /// Its deadline passed.
    Expired {
        /// How far it had come.
        stage: Stage,
    },
    /// It, its label, its session or the peer's authority was revoked.
    Revoked {
        /// How far it had come.
        stage: Stage,
    },
    /// The session that carried it ended.
    SessionLost {
        /// How far it had come.
        stage: Stage,
    },
    /// A newer item took its place before it was written.
    Superseded,
    /// This side shut down.
    ShutDown {
        /// How far it had come.
        stage: Stage,
    },
}

/// An [`Outcome`] without its particulars, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum OutcomeKind {
    /// [`Outcome::Replied`].
    Replied = 0,
    /// [`Outcome::Refused`].
    Refused = 1,
    /// [`Outcome::Expired`].
    Expired = 2,
    /// [`Outcome::Revoked`].
    Revoked = 3,
    /// [`Outcome::SessionLost`].
    SessionLost = 4,
    /// [`Outcome::Superseded`].
    Superseded = 5,
    /// [`Outcome::ShutDown`].
    ShutDown = 6,
}

impl OutcomeKind {
    /// All kinds, each at its own number.
    pub const ALL: [Self; 7] = [
        Self::Replied,
        Self::Refused,
        Self::Expired,
        Self::Revoked,
        Self::SessionLost,
        Self::Superseded,
        Self::ShutDown,
    ];
}

impl Outcome {
    /// The kind that it is counted as.
    #[must_use]
    pub const fn kind(&self) -> OutcomeKind {
        match self {
            Self::Replied(_) => OutcomeKind::Replied,
            Self::Refused(_) => OutcomeKind::Refused,
            Self::Expired { .. } => OutcomeKind::Expired,
            Self::Revoked { .. } => OutcomeKind::Revoked,
            Self::SessionLost { .. } => OutcomeKind::SessionLost,
            Self::Superseded => OutcomeKind::Superseded,
            Self::ShutDown { .. } => OutcomeKind::ShutDown,
        }
    }

    /// Whether the peer certainly did nothing with the item, so that sending it again can't do
    /// anything twice: it was refused, or never wholly written.
    #[must_use]
    pub const fn is_proven_without_effect(&self) -> bool {
        match self {
            Self::Replied(_) => false,
            Self::Refused(_) | Self::Superseded => true,
            Self::Expired { stage }
            | Self::Revoked { stage }
            | Self::SessionLost { stage }
            | Self::ShutDown { stage } => !stage.may_have_been_seen(),
        }
    }
}

struct Cell {
    stage: Stage,
    payload: Bytes,
    end: Option<Outcome>,
    waker: Option<Waker>,
}

/// One item between its sender and its lane.
pub struct Item {
    account: LaneAccount,
    bytes: u64,
    label: Label,
    deadline: Instant,
    cell: Mutex<Cell>,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Item {
    /// Turns a part of `reservation` into a queued item and its receipt.
    ///
    /// # Errors
    /// [`SendRefused`] when the reservation can't cover it or its account is closed; nothing has
    /// happened then.
    pub fn start(
        reservation: &mut Reservation,
        payload: Bytes,
        label: Label,
        deadline: Instant,
    ) -> Result<(Arc<Self>, Receipt), SendRefused> {
        let bytes = payload.len() as u64;
        reservation.start_item(bytes)?;
        let item = Arc::new(Self {
            account: reservation.account().clone(),
            bytes,
            label,
            deadline,
            cell: Mutex::new(Cell {
                stage: Stage::Queued,
                payload,
                end: None,
                waker: None,
            }),
        });
        let receipt = Receipt {
            item: Arc::clone(&item),
        };
        Ok((item, receipt))
    }

    /// Payload bytes, also after the payload itself is gone.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When it expires.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What its sender marked it with.
    #[must_use]
    pub const fn label(&self) -> Label {
        self.label
    }

    /// Whether its outcome is settled.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        lock(&self.cell).end.is_some()
    }

    /// Takes the payload for a frame that is begun now, or `None` if the item has ended.
    #[must_use]
    pub fn begin_writing(&self) -> Option<Bytes> {
        let mut cell = lock(&self.cell);
        if cell.end.is_some() || cell.stage != Stage::Queued {
            return None;
        }
        cell.stage = Stage::Writing;
        self.account
            .advance(Stage::Queued, Stage::Writing, self.bytes);
        Some(std::mem::take(&mut cell.payload))
    }

    /// The socket accepted the last byte of its frame.
    pub fn on_written(&self) {
        let mut cell = lock(&self.cell);
        let live = cell.end.is_none() || crate::mutant!("written_after_the_end");
        if live && cell.stage == Stage::Writing {
            cell.stage = Stage::Written;
            self.account
                .advance(Stage::Writing, Stage::Written, self.bytes);
        }
    }

    /// Ends it, unless something else came first; `how` is told the stage. Returns whether it did.
    pub fn end(&self, how: impl FnOnce(Stage) -> Outcome) -> bool {
        self.end_if(|stage| Some(how(stage)))
    }

    /// Ends it as superseded, unless its frame was begun or something else came first.
    pub fn supersede(&self) -> bool {
        self.end_if(|stage| (stage == Stage::Queued).then_some(Outcome::Superseded))
    }

    fn end_if(&self, how: impl FnOnce(Stage) -> Option<Outcome>) -> bool {
        let cell = lock(&self.cell);
        if cell.end.is_some() {
            return false;
        }
        let mut cell = if crate::mutant!("end_looks_then_ends") {
            drop(cell);
            lock(&self.cell)
        } else {
            cell
        };
        let Some(outcome) = how(cell.stage) else {
            return false;
        };
        let payload = std::mem::take(&mut cell.payload);
        let granted = self.account.end(cell.stage, self.bytes, outcome.kind());
        cell.end = Some(outcome);
        let waker = cell.waker.take();
        drop(cell);
        drop(payload);
        granted.wake();
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// The sender's half of one item: a future of its [`Outcome`].
///
/// Dropping it lets the item run on unobserved; [`Receipt::revoke`] stops it.
///
/// # Cancel safety
/// Polling loses nothing: the outcome stays and can be awaited again through `&mut`.
#[must_use = "the outcome of what was sent is in the receipt"]
pub struct Receipt {
    item: Arc<Item>,
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = lock(&self.item.cell);
        f.debug_struct("Receipt")
            .field("stage", &cell.stage)
            .field("outcome", &cell.end)
            .finish_non_exhaustive()
    }
}

impl Receipt {
    /// How far the item has come, or had when it ended.
    #[must_use]
    pub fn stage(&self) -> Stage {
        lock(&self.item.cell).stage
    }

    /// The outcome, if it has one.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        lock(&self.item.cell).end.clone()
    }

    /// Ends the item as [`Outcome::Revoked`], unless it has ended. Returns whether this call did.
    /// A frame already begun still goes out whole; only its account is closed.
    pub fn revoke(&self) -> bool {
        self.item.end(|stage| Outcome::Revoked { stage })
    }
}

impl Receipt {
    /// Ends the item as [`Outcome::Superseded`] if its frame hasn't been begun: its sender has
    /// something newer to say. Returns whether this call did.
    pub fn supersede(&self) -> bool {
        self.item.supersede()
    }
}

impl Future for Receipt {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let cell = lock(&self.item.cell);
        if let Some(outcome) = &cell.end {
            return Poll::Ready(outcome.clone());
        }
        let mut cell = if crate::mutant!("receipt_looks_then_sleeps") {
            drop(cell);
            lock(&self.item.cell)
        } else {
            cell
        };
        match &mut cell.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
