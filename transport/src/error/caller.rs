//! Refusals that a caller gets: of a reservation, of an item, and by the peer's host.

use crate::id::Lane;

/// Whose bound a reservation ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// This peer's budget.
    Peer,
    /// The whole node's.
    Node,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Items, whatever their size.
    Items,
    /// Payload bytes.
    Bytes,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Peer => "peer",
            Self::Node => "node",
        })
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Items => "items",
            Self::Bytes => "bytes",
        })
    }
}

/// Why a reservation wasn't given. Nothing was queued; the caller may try again where that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveRefused {
    /// A budget has no room now.
    #[error("{scope} budget has no room in {unit}")]
    Full {
        /// Whose.
        scope: Scope,
        /// Of what.
        unit: Unit,
    },
    /// More than the budget could ever give.
    #[error("{asked} {unit} can never fit the {scope} budget of {limit}")]
    TooLarge {
        /// Whose.
        scope: Scope,
        /// Of what.
        unit: Unit,
        /// What was asked for.
        asked: u64,
        /// All that this lane may have.
        limit: u64,
    },
    /// Too many wait in line already.
    #[error("{limit} reservations wait in line already")]
    LineFull {
        /// The bound of the line.
        limit: usize,
    },
    /// The peer may no longer be spoken to.
    #[error("authority of the peer was revoked")]
    Revoked,
    /// The deadline came first.
    #[error("deadline passed before there was room")]
    Expired,
    /// The transport, or the peer's link, was closed.
    #[error("transport is closed")]
    Closed,
}

/// Why an item couldn't be sent under its reservation. The item comes to no harm: nothing was
/// queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefused {
    /// The reservation's items are used up.
    #[error("reservation has no items left")]
    NoItemsLeft,
    /// The item is larger than what is left of the reservation.
    #[error("item of {asked} bytes exceeds the {left} bytes left of the reservation")]
    NoBytesLeft {
        /// The item's bytes.
        asked: u64,
        /// What is left.
        left: u64,
    },
    /// No frame of this lane could hold the item.
    #[error("item of {asked} bytes exceeds the {max} that a frame of the {lane} lane can hold")]
    ItemTooLarge {
        /// The lane.
        lane: Lane,
        /// The item's bytes.
        asked: u64,
        /// The most that fits.
        max: u64,
    },
    /// The peer may no longer be spoken to.
    #[error("authority of the peer was revoked")]
    Revoked,
    /// The transport was closed.
    #[error("transport is closed")]
    Closed,
}

macro_rules! refusal_reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $word:literal;)*) => {
        /// Why the peer didn't take a frame or an item of one. It had no effect there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum RefusalReason {
            $($(#[$doc])* $name,)*
            /// A reason that this build doesn't know.
            Unknown(u8),
        }

        impl RefusalReason {
            /// The number on the wire, never 0.
            #[must_use]
            pub const fn to_u8(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                    // On the wire 0 stands for no refusal at all.
                    Self::Unknown(0) => u8::MAX,
                    Self::Unknown(code) => code,
                }
            }

            /// The reason with this number.
            #[must_use]
            pub const fn from_u8(code: u8) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Unknown(code) }
            }
        }

        impl std::fmt::Display for RefusalReason {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$name => f.write_str($word),)*
                    Self::Unknown(code) => write!(f, "reason {code}"),
                }
            }
        }
    };
}

refusal_reasons! {
    /// The host has no room for it now (safety 17).
    Busy = 1, "busy";
    /// It came after its deadline and was refused unread (T8).
    Late = 2, "late";
    /// The host let go of it without an answer.
    Unanswered = 3, "unanswered";
    /// The host can't read it.
    NotUnderstood = 4, "not understood";
    /// It is meant for another destination than this node holds.
    WrongDestination = 5, "wrong destination";
    /// The host is shutting down.
    ShuttingDown = 6, "shutting down";
    /// The host's answer was longer than a reply may be.
    AnswerTooLong = 7, "answer too long";
    /// The item exceeds the frames that the peer takes; it never left this side.
    TooLarge = 8, "larger than the peer's frames";
}
