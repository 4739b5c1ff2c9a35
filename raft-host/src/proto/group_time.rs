//! The time that a leader gives to an entry (safety 11): group time, in milliseconds since 1970, which
//! stands in the log so that every replica expires the same things at the same entry.
//!
//! An entry's time is never before that of an earlier one of its leader, and runs ahead of what this
//! node's monotonic clock allows by [`GROUP_TIME_JUMP_MAX`] at most; a wall clock that is further ahead
//! is caught up with at twice the normal speed. So a jump neither expires everything at once nor
//! leaves the group behind for ever. What a replica saw of its leaders' times bounds it when it leads
//! in their place.
//!
//! Not bounded: the first time that a node gives in a group of which it saw no entry since it started.
//! Whoever applies takes the latest of all times so far, so that group time never falls either.

use std::time::Instant;

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::id::UnixMillis;
use crate::limits::GROUP_TIME_JUMP_MAX;

/// What an entry takes beside its command and request id.
pub const TIME_BYTES: usize = 8;

/// A group's clock on one replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupTime {
    last: UnixMillis,
    /// What the clock is taken to be, and when that was.
    base: Option<(UnixMillis, Instant)>,
}

impl GroupTime {
    /// An entry of another replica's came into the log.
    pub fn observe(&mut self, time: UnixMillis, now: Instant) {
        if time > UnixMillis::default() {
            self.last = self.last.max(time);
            self.base = Some((time, now));
        }
    }

    /// The time of the next entry, of a leader whose wall clock says `wall`.
    pub fn stamp(&mut self, wall: UnixMillis, now: Instant) -> UnixMillis {
        let base = self.base.map_or(wall, |(base, at)| {
            let elapsed = now.saturating_duration_since(at);
            wall.min(base.saturating_add(elapsed.saturating_mul(2)))
        });
        self.base = Some((base, now));
        let allowed = base.saturating_add(GROUP_TIME_JUMP_MAX);
        self.last = self.last.max(wall.min(allowed));
        self.last
    }
}

/// What stands beside a command in the log: its time, and the proposer's request id.
#[must_use]
pub fn note(time: UnixMillis, request_id: &[u8]) -> Bytes {
    let mut note = BytesMut::with_capacity(TIME_BYTES + request_id.len());
    note.put_u64_le(time.to_u64());
    note.put_slice(request_id);
    note.freeze()
}

/// Bytes of the note with these parts.
#[must_use]
pub fn note_len(request_id: &Bytes, time: UnixMillis) -> usize {
    if time == UnixMillis::default() && request_id.is_empty() {
        0
    } else {
        TIME_BYTES + request_id.len()
    }
}

/// The parts of a [`note`]. Entries that no proposer made have none: no time and no id.
#[must_use]
pub fn read_note(note: &Bytes) -> (UnixMillis, Bytes) {
    match note.first_chunk::<TIME_BYTES>() {
        Some(time) => (
            UnixMillis::new(u64::from_le_bytes(*time)),
            note.slice(TIME_BYTES..),
        ),
        None => (UnixMillis::default(), Bytes::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(base: UnixMillis, by: Duration) -> UnixMillis {
        base.saturating_add(by)
    }

    #[test]
    fn a_clock_that_jumps_ahead_moves_group_time_by_the_allowance_and_twice_the_speed() {
        let (noon, start) = (
            UnixMillis::new(1_000_000_000),
            crate::proto::test_time::start(),
        );
        let mut time = GroupTime::default();
        assert_eq!(time.stamp(noon, start), noon);
        for second in 1..=10_u32 {
            let wall = at(noon, HOUR + SECOND * second);
            let stamped = time.stamp(wall, start + SECOND * second);
            assert_eq!(stamped, at(noon, SECOND * 2 * second + GROUP_TIME_JUMP_MAX));
        }
        // Many entries at one moment gain nothing.
        let again = time.stamp(at(noon, HOUR * 2), start + SECOND * 10);
        assert_eq!(again, at(noon, SECOND * 20 + GROUP_TIME_JUMP_MAX));
    }

    #[test]
    fn a_clock_that_falls_behind_doesn_t_move_group_time_back() {
        let (noon, start) = (
            UnixMillis::new(1_000_000_000),
            crate::proto::test_time::start(),
        );
        let mut time = GroupTime::default();
        time.stamp(at(noon, HOUR), start);
        assert_eq!(time.stamp(noon, start + SECOND), at(noon, HOUR));
    }

    /// Before, times came from the node that took a command, each by its own clock: one that was an
    /// hour ahead expired everything of the last hour.
    #[test]
    fn a_new_leader_whose_clock_is_far_ahead_is_bound_by_what_it_saw_of_the_old_one() {
        let (noon, start) = (
            UnixMillis::new(1_000_000_000),
            crate::proto::test_time::start(),
        );
        let mut time = GroupTime::default();
        time.observe(noon, start);
        let stamped = time.stamp(at(noon, HOUR), start + SECOND);
        assert_eq!(stamped, at(noon, SECOND * 2 + GROUP_TIME_JUMP_MAX));
    }

    #[test]
    fn a_note_keeps_both_parts_and_a_missing_or_cut_one_has_none() {
        let noon = UnixMillis::new(1_700_000_000_000);
        let kept = note(noon, b"id");
        assert_eq!(read_note(&kept), (noon, Bytes::from_static(b"id")));
        for cut in 0..TIME_BYTES {
            let parts = read_note(&kept.slice(..cut));
            assert_eq!(parts, (UnixMillis::default(), Bytes::new()));
        }
        let wild = read_note(&Bytes::from_static(&[0xff; 9]));
        assert_eq!(wild.0.to_u64(), crate::limits::UNIX_MILLIS_MAX);
    }
}
