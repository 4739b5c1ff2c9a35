//! Exactly-once retries: request id → saved outcome, by the rules of safety 11. Pure: it judges and
//! keeps the books of one group, over a table that someone else stores ([`OutcomeTable`]; the
//! SQLite one is `store/outcomes.rs`, in the transaction of the effect itself).
//!
//! Every decision is a function of the log alone: of the entries' times, which their leaders gave
//! them (`raft_host::proto::group_time`), windows and ids in log order, and of constants.
//!
//! - D1: `time` and `floor` never fall.
//! - D2: an id issued before `floor` is never executed; a saved one is evicted only below it.
//! - D3: `saved` is the number of records in the table and never exceeds `SAVED_OUTCOMES_MAX`.
//! - D4: no record is older than `oldest`; so with `oldest >= floor` there is nothing to evict.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use raft_host::id::Index;
pub use raft_host::id::UnixMillis;
use thiserror::Error;

use crate::command::{CommandHash, Identity, Outcome};
use crate::limits::{
    EXPIRED_PER_ENTRY_MAX, ID_AHEAD_MAX, REQUEST_ID_BYTES_MAX, SAVED_OUTCOMES_MAX, UNIX_MILLIS_MAX,
};

/// A client's name for one request: a UUIDv7, or `<milliseconds since 1970>-<random>`. It starts
/// with its issue time, so that its age is known without having seen it before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    issued: UnixMillis,
    text: Arc<str>,
}

/// Why a text is no request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestIdError {
    /// Too long.
    #[error("{bytes} bytes exceed the maximum of {max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// Neither of the two forms.
    #[error("neither a UUIDv7 nor <milliseconds>-<random>")]
    Malformed,
    /// A UUID of a version without an issue time in front.
    #[error("a UUID of another version than 7")]
    UuidVersion,
    /// The issue time is beyond 48 bits.
    #[error("issue time exceeds the maximum of {max}")]
    IssueTime {
        /// The bound.
        max: u64,
    },
}

impl RequestId {
    /// Reads an id; a UUID may be in either case and is kept in lower.
    ///
    /// # Errors
    /// [`RequestIdError`] names what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, RequestIdError> {
        if text.len() > REQUEST_ID_BYTES_MAX {
            return Err(RequestIdError::TooLong {
                bytes: text.len(),
                max: REQUEST_ID_BYTES_MAX,
            });
        }
        let text = std::str::from_utf8(text).map_err(|_| RequestIdError::Malformed)?;
        if is_uuid_shaped(text) {
            return Self::parse_uuid(text);
        }
        let (millis, random) = text.split_once('-').ok_or(RequestIdError::Malformed)?;
        let digits = !millis.is_empty() && millis.bytes().all(|byte| byte.is_ascii_digit());
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if !digits || random.is_empty() || !random.bytes().all(is_word) {
            return Err(RequestIdError::Malformed);
        }
        let issued = millis
            .parse()
            .ok()
            .filter(|millis| *millis <= UNIX_MILLIS_MAX);
        let issued = issued.ok_or(RequestIdError::IssueTime {
            max: UNIX_MILLIS_MAX,
        })?;
        Ok(Self {
            issued: UnixMillis::new(issued),
            text: text.into(),
        })
    }

    fn parse_uuid(text: &str) -> Result<Self, RequestIdError> {
        if text.as_bytes()[14] != b'7' {
            return Err(RequestIdError::UuidVersion);
        }
        let text = text.to_ascii_lowercase();
        let millis = format!("{}{}", &text[..8], &text[9..13]);
        let issued = u64::from_str_radix(&millis, 16).map_err(|_| RequestIdError::Malformed)?;
        Ok(Self {
            issued: UnixMillis::new(issued),
            text: text.into(),
        })
    }

    /// When the client issued it, by its own clock.
    #[must_use]
    pub fn issued(&self) -> UnixMillis {
        self.issued
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_uuid_shaped(text: &str) -> bool {
    let shaped = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(shaped)
}

/// Why a request id was turned away at apply, with nothing done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Issued before the oldest outcome that is still kept: it may have been executed.
    #[error("IdTooOld: issued at {issued}, outcomes are kept from {floor}")]
    IdTooOld {
        /// The id's issue time.
        issued: UnixMillis,
        /// The group's floor.
        floor: UnixMillis,
    },
    /// Issued too far in the future: the client's clock is wrong.
    #[error("IdAhead: issued at {issued}, group time is {group_time}")]
    IdAhead {
        /// The id's issue time.
        issued: UnixMillis,
        /// The group's time.
        group_time: UnixMillis,
    },
    /// The group keeps as many outcomes as it may, all of them within the window.
    #[error("DedupFull: {saved} outcomes are saved")]
    TableFull {
        /// How many.
        saved: u64,
    },
    /// The id was used for another command.
    #[error("IdReused: the id belongs to another command")]
    IdReused,
}

/// A saved outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The command that the id was used for.
    pub hash: CommandHash,
    /// Where it stands in the log; a replay is answered once *this* entry satisfies its policy.
    pub index: Index,
    /// What it came to.
    pub outcome: Outcome,
}

/// Where the saved outcomes of one group are kept.
pub trait OutcomeTable {
    /// What can go wrong with the storage.
    type Error;

    /// The record of an id.
    ///
    /// # Errors
    /// Those of the storage.
    fn load(&mut self, id: &RequestId) -> Result<Option<Saved>, Self::Error>;

    /// Adds a record; there is none of that id.
    ///
    /// # Errors
    /// Those of the storage.
    fn save(&mut self, id: &RequestId, saved: &Saved) -> Result<(), Self::Error>;

    /// Removes at most `max` records issued before `floor`, oldest first, and tells how many, and
    /// the issue time of the oldest that is left.
    ///
    /// # Errors
    /// Those of the storage.
    fn evict(&mut self, floor: UnixMillis, max: u32) -> Result<Evicted, Self::Error>;
}

/// What an eviction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Records removed.
    pub removed: u32,
    /// The issue time of the oldest one left.
    pub oldest: Option<UnixMillis>,
}

/// What is to be done with an entry that has a request id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Execute it, then [`Dedup::record`] what it came to.
    Execute,
    /// It was executed: this is its outcome.
    Known(Saved),
    /// It must not be executed.
    Refuse(Refusal),
}

/// The books of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dedup {
    time: UnixMillis,
    floor: UnixMillis,
    saved: u64,
    /// A lower bound, kept in memory only: whether it is tight changes no decision.
    oldest: UnixMillis,
}

impl Dedup {
    /// The books as they were stored; `None` if no books could ever have looked so.
    #[must_use]
    pub fn restore(time: UnixMillis, floor: UnixMillis, saved: u64) -> Option<Self> {
        let sound = floor <= time && saved <= SAVED_OUTCOMES_MAX;
        sound.then_some(Self {
            time,
            floor,
            saved,
            oldest: UnixMillis::new(0),
        })
    }

    /// Group time: the latest of the entries with an id.
    #[must_use]
    pub fn time(&self) -> UnixMillis {
        self.time
    }

    /// Ids issued before this are refused.
    #[must_use]
    pub fn floor(&self) -> UnixMillis {
        self.floor
    }

    /// Records in the table.
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.saved
    }

    /// Moves group time to that of an entry with an id, evicts a bounded number of expired
    /// records, and judges the entry.
    ///
    /// # Errors
    /// Those of the table; then the books are no longer those of the table and must be dropped
    /// with the transaction.
    pub fn judge<T: OutcomeTable>(
        &mut self,
        table: &mut T,
        time: UnixMillis,
        identity: &Identity,
        hash: &CommandHash,
    ) -> Result<Verdict, T::Error> {
        self.time = self.time.max(time);
        self.floor = self.floor.max(self.time.saturating_sub(identity.window_ms));
        if self.oldest < self.floor {
            let evicted = table.evict(self.floor, EXPIRED_PER_ENTRY_MAX)?;
            self.saved = self.saved.saturating_sub(u64::from(evicted.removed));
            self.oldest = evicted.oldest.unwrap_or(self.floor).min(self.time);
        }
        self.check_invariants();
        let issued = identity.id.issued();
        if issued < self.floor {
            return Ok(Verdict::Refuse(Refusal::IdTooOld {
                issued,
                floor: self.floor,
            }));
        }
        if issued > self.time.saturating_add(ID_AHEAD_MAX) {
            return Ok(Verdict::Refuse(Refusal::IdAhead {
                issued,
                group_time: self.time,
            }));
        }
        if let Some(saved) = table.load(&identity.id)? {
            let same = saved.hash == *hash;
            if transport::mutant!("retry_applied_twice") {
                return Ok(Verdict::Execute);
            }
            return Ok(if same {
                Verdict::Known(saved)
            } else {
                Verdict::Refuse(Refusal::IdReused)
            });
        }
        if self.saved >= SAVED_OUTCOMES_MAX {
            return Ok(Verdict::Refuse(Refusal::TableFull { saved: self.saved }));
        }
        Ok(Verdict::Execute)
    }

    /// Saves what an entry came to that was judged [`Verdict::Execute`].
    ///
    /// # Errors
    /// As of [`Dedup::judge`].
    pub fn record<T: OutcomeTable>(
        &mut self,
        table: &mut T,
        id: &RequestId,
        saved: &Saved,
    ) -> Result<(), T::Error> {
        table.save(id, saved)?;
        self.saved += 1;
        self.oldest = self.oldest.min(id.issued());
        self.check_invariants();
        Ok(())
    }

    fn check_invariants(&self) {
        debug_assert!(self.floor <= self.time, "D1");
        debug_assert!(self.saved <= SAVED_OUTCOMES_MAX, "D3");
    }
}
