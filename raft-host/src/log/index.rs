//! What is live in the log and where: per group the entries' places, the hard state, the
//! compaction point and the tombstone; per segment how much of it is still needed. Pure: changes
//! come in once they are durable, and it says which segments are dead, which are worth emptying,
//! and what in them must be copied.
//!
//! Leaves to others: files and bytes (engine.rs), the order in which an interrupted log is read
//! (replay.rs), what isn't durable yet (view.rs).
//!
//! - X1: a segment's `live_*` are exactly the live places that lie in it.
//! - X2: a group's entries are consecutive and begin right after its compaction point.
//! - X3: a group is known as long as any segment names it, so its versions never start again
//!   while an older record could still be read.
//! - X4: a tombstone is live while any other segment names its group with an older version.
//!
//! Why live records are enough (safety 12): the newest hard state and compaction point win by
//! version. A dead entry at an index the log still has is beaten by the live one there; a dead one
//! above the end is beaten by the last entry, whose version is that of the last append, or, in an
//! empty log, by the compaction point, which names the last index of its time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::api::HardState;
use super::error::BadChange;
use crate::id::{GroupId, Index, Term, Version};
use crate::limits;

/// Live records up to which a debug build counts them anew after each batch.
const CHECKED_RECORDS_MAX: u64 = 4096;

/// Where a record is: the segment's epoch and the bytes of payload before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The segment.
    pub(super) epoch: u32,
    /// Payload bytes from the segment's beginning.
    pub(super) offset: u32,
    /// The record's length.
    pub(super) bytes: u32,
}

/// A live record that isn't an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed<T> {
    /// What it says.
    pub(super) value: T,
    /// Its version.
    pub(super) version: Version,
    /// Where it is.
    pub(super) place: Place,
}

/// A live entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntrySlot {
    /// Its term.
    pub(super) term: Term,
    /// Its version.
    pub(super) version: Version,
    /// Where it is.
    pub(super) place: Place,
}

/// A compaction point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Point {
    /// The last index that is gone.
    pub(super) through: Index,
    /// Its term.
    pub(super) term: Term,
    /// The last index when it was made.
    pub(super) last: Index,
}

/// What a durable record changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The hard state is this.
    HardState(HardState),
    /// The log begins after this point.
    Compact(Point),
    /// The group is gone.
    Remove,
    /// An entry was written, and everything older from there on is gone.
    Entry(Index, Term),
}

/// A durable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    /// Its group.
    pub(super) group: GroupId,
    /// Its version.
    pub(super) version: Version,
    /// Where it is.
    pub(super) place: Place,
    /// What it changes.
    pub(super) effect: Effect,
}

/// One group's live records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupState {
    /// The latest version given out.
    pub(super) version: Version,
    /// The hard state.
    pub(super) hard_state: Option<Placed<HardState>>,
    /// The compaction point.
    pub(super) point: Option<Placed<Point>>,
    /// The last removal, while it is needed.
    pub(super) tombstone: Option<Placed<()>>,
    /// The entries, from the one after the compaction point.
    pub(super) entries: VecDeque<EntrySlot>,
    /// Per segment that names the group, the oldest version in it.
    pub(super) named: BTreeMap<u32, Version>,
}

impl GroupState {
    /// The index before the first entry.
    #[must_use]
    pub(super) fn compacted(&self) -> Index {
        self.point
            .map_or(Index::default(), |point| point.value.through)
    }

    /// The last index.
    #[must_use]
    pub(super) fn last(&self) -> Index {
        Index::new(self.compacted().to_u64() + self.entries.len() as u64)
    }

    /// Whether there is more than a tombstone.
    #[must_use]
    pub(super) fn exists(&self) -> bool {
        self.hard_state.is_some() || self.point.is_some() || !self.entries.is_empty()
    }

    /// The entry at an index.
    #[must_use]
    pub(super) fn slot(&self, index: Index) -> Option<&EntrySlot> {
        let at = index
            .to_u64()
            .checked_sub(self.compacted().to_u64())?
            .checked_sub(1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let hard_state = self.hard_state.iter().map(|placed| placed.place);
        let point = self.point.iter().map(|placed| placed.place);
        let tombstone = self.tombstone.iter().map(|placed| placed.place);
        hard_state
            .chain(point)
            .chain(tombstone)
            .chain(self.entries.iter().map(|slot| slot.place))
    }
}

/// One segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentState {
    /// How many live records it holds.
    pub(super) live_records: u64,
    /// Their bytes.
    pub(super) live_bytes: u64,
    /// Who is named in it, live or not.
    pub(super) named: BTreeSet<GroupId>,
}

/// All groups and segments.
#[derive(Clone, Debug, Default)]
pub(super) struct LogIndex {
    groups: BTreeMap<GroupId, GroupState>,
    segments: BTreeMap<u32, SegmentState>,
}

impl LogIndex {
    /// The group, if any segment names it.
    #[must_use]
    pub(super) fn group(&self, group: GroupId) -> Option<&GroupState> {
        self.groups.get(&group)
    }

    /// All groups that any segment names.
    pub(super) fn groups(&self) -> impl Iterator<Item = (GroupId, &GroupState)> {
        self.groups.iter().map(|(group, state)| (*group, state))
    }

    /// All segments in use, oldest first.
    pub(super) fn segments(&self) -> impl Iterator<Item = (u32, &SegmentState)> {
        self.segments
            .iter()
            .map(|(epoch, segment)| (*epoch, segment))
    }

    /// Gives the group's next version.
    pub(super) fn next_version(&mut self, group: GroupId) -> Version {
        let state = self.groups.entry(group).or_default();
        state.version = state.version.next();
        state.version
    }

    /// A new segment is in use.
    pub(super) fn start_segment(&mut self, epoch: u32) {
        self.segments.insert(epoch, SegmentState::default());
        self.check_invariants();
    }

    /// Takes a group as recovery found it. Its segments must have been started.
    pub(super) fn install(&mut self, group: GroupId, mut state: GroupState) {
        for epoch in state.named.keys() {
            if let Some(segment) = self.segments.get_mut(epoch) {
                segment.named.insert(group);
            }
        }
        for place in state.places().collect::<Vec<_>>() {
            acquire(&mut self.segments, place);
        }
        release_tombstone(&mut self.segments, &mut state);
        self.groups.insert(group, state);
    }

    /// Takes a durable record of a new mutation, in the order of versions.
    ///
    /// # Errors
    /// When it contradicts what is there. Nothing is changed then.
    pub(super) fn apply(&mut self, record: &Located) -> Result<(), BadChange> {
        let Located {
            group,
            version,
            place,
            effect,
        } = *record;
        let segments = &mut self.segments;
        let state = self.groups.entry(group).or_default();
        match effect {
            Effect::HardState(value) => {
                let new = Placed {
                    value,
                    version,
                    place,
                };
                if let Some(old) = state.hard_state.replace(new) {
                    release(segments, old.place);
                }
            }
            Effect::Compact(point) => {
                let reset = point.last == point.through;
                drop_entries(
                    segments,
                    state,
                    if reset { None } else { Some(point.through) },
                );
                let new = Placed {
                    value: point,
                    version,
                    place,
                };
                if let Some(old) = state.point.replace(new) {
                    release(segments, old.place);
                }
            }
            Effect::Remove => {
                for old in state.places().collect::<Vec<_>>() {
                    release(segments, old);
                }
                (state.hard_state, state.point) = (None, None);
                state.entries.clear();
                state.tombstone = Some(Placed {
                    value: (),
                    version,
                    place,
                });
            }
            Effect::Entry(index, term) => {
                let (compacted, last) = (state.compacted(), state.last());
                if index > last.next() {
                    return Err(BadChange::Gap { first: index, last });
                }
                if index <= compacted {
                    return Err(BadChange::Compacted {
                        first: index,
                        compacted,
                    });
                }
                let kept = index.to_u64() - compacted.to_u64() - 1;
                for old in state
                    .entries
                    .drain(usize::try_from(kept).unwrap_or(usize::MAX)..)
                {
                    release(segments, old.place);
                }
                state.entries.push_back(EntrySlot {
                    term,
                    version,
                    place,
                });
            }
        }
        acquire(segments, place);
        name(segments, state, record);
        if effect == Effect::Remove {
            release_tombstone(segments, state);
        }
        Ok(())
    }

    /// Takes the durable copy of a record that was live when the copy was planned. If something
    /// newer has taken its place since, the copy is dead on arrival.
    pub(super) fn apply_rewrite(&mut self, copy: &Located) {
        let segments = &mut self.segments;
        let Some(state) = self.groups.get_mut(&copy.group) else {
            return;
        };
        let place = match copy.effect {
            Effect::HardState(_) => same_version(state.hard_state.as_mut(), copy.version),
            Effect::Compact(_) => same_version(state.point.as_mut(), copy.version),
            Effect::Remove => same_version(state.tombstone.as_mut(), copy.version),
            Effect::Entry(index, _) => {
                let at = index.to_u64().checked_sub(state.compacted().to_u64() + 1);
                at.and_then(|at| state.entries.get_mut(usize::try_from(at).ok()?))
                    .filter(|slot| slot.version == copy.version)
                    .map(|slot| &mut slot.place)
            }
        };
        if let Some(place) = place {
            let old = std::mem::replace(place, copy.place);
            acquire(segments, copy.place);
            release(segments, old);
        }
        name(segments, state, copy);
    }

    /// Whether nothing in the segment is needed.
    #[must_use]
    pub(super) fn is_dead(&self, epoch: u32) -> bool {
        self.segments
            .get(&epoch)
            .is_none_or(|segment| segment.live_records == 0)
    }

    /// A dead segment was taken off the list on disk: nothing in it can be read again.
    pub(super) fn retire(&mut self, epoch: u32) {
        let Some(segment) = self.segments.remove(&epoch) else {
            return;
        };
        for group in segment.named {
            let Some(state) = self.groups.get_mut(&group) else {
                continue;
            };
            state.named.remove(&epoch);
            release_tombstone(&mut self.segments, state);
            if state.named.is_empty() {
                self.groups.remove(&group);
            }
        }
        self.check_invariants();
    }

    /// The segment most worth emptying: the one with the least live bytes, if they are at most
    /// `percent` of a segment. The one being written isn't considered, nor a dead one.
    #[must_use]
    pub(super) fn rewrite_victim(
        &self,
        active: u32,
        segment_bytes: u64,
        percent: u64,
    ) -> Option<u32> {
        if self.segments.len() < limits::LOG_REWRITE_SEGMENTS_MIN {
            return None;
        }
        self.segments
            .iter()
            .filter(|(epoch, segment)| **epoch != active && segment.live_records > 0)
            .map(|(epoch, segment)| (segment.live_bytes, *epoch))
            .min()
            .filter(|(live_bytes, _)| live_bytes * 100 <= segment_bytes * percent)
            .map(|(_, epoch)| epoch)
    }

    /// The live records of a segment from a group on, in order, as many as fit but at least
    /// one, and the group to go on with (`None` when that was all). A group that doesn't fit wholly is given in part,
    /// and is gone on with: what was copied isn't in this segment any more.
    #[must_use]
    pub(super) fn live_records(
        &self,
        epoch: u32,
        from: GroupId,
        mut bytes_left: u64,
    ) -> (Vec<Located>, Option<GroupId>) {
        let mut out = Vec::new();
        let Some(segment) = self.segments.get(&epoch) else {
            return (out, None);
        };
        for group in segment.named.range(from..) {
            let Some(state) = self.groups.get(group) else {
                continue;
            };
            for record in live_in(*group, state, epoch) {
                let bytes = u64::from(record.place.bytes);
                let full = bytes > bytes_left || out.len() >= limits::LOG_REWRITE_RECORDS_PER_BATCH;
                if full && !out.is_empty() {
                    return (out, Some(*group));
                }
                bytes_left = bytes_left.saturating_sub(bytes);
                out.push(record);
            }
        }
        (out, None)
    }

    /// Holds the invariants in debug builds, as long as that is cheap.
    pub(super) fn check_invariants(&self) {
        let live: u64 = self
            .segments
            .values()
            .map(|segment| segment.live_records)
            .sum();
        if !cfg!(debug_assertions) || live > CHECKED_RECORDS_MAX {
            return;
        }
        let mut live: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (group, state) in &self.groups {
            for place in state.places() {
                let count = live.entry(place.epoch).or_default();
                count.0 += 1;
                count.1 += u64::from(place.bytes);
                debug_assert!(state.named.contains_key(&place.epoch), "X3: group {group}");
            }
        }
        for (epoch, segment) in &self.segments {
            let count = live.remove(epoch).unwrap_or_default();
            debug_assert_eq!(
                count,
                (segment.live_records, segment.live_bytes),
                "X1: {epoch}"
            );
        }
        debug_assert!(
            live.is_empty(),
            "X1: live places in segments that aren't there"
        );
    }
}

fn same_version<T>(placed: Option<&mut Placed<T>>, version: Version) -> Option<&mut Place> {
    placed
        .filter(|placed| placed.version == version)
        .map(|placed| &mut placed.place)
}

fn live_in(group: GroupId, state: &GroupState, epoch: u32) -> impl Iterator<Item = Located> + '_ {
    let located = move |version, place, effect| Located {
        group,
        version,
        place,
        effect,
    };
    let tombstone = state
        .tombstone
        .map(|placed| located(placed.version, placed.place, Effect::Remove));
    let hard_state = state.hard_state.map(|placed| {
        located(
            placed.version,
            placed.place,
            Effect::HardState(placed.value),
        )
    });
    let point = state
        .point
        .map(|placed| located(placed.version, placed.place, Effect::Compact(placed.value)));
    let first = state.compacted().to_u64() + 1;
    let entries = (first..).zip(&state.entries).map(move |(index, slot)| {
        located(
            slot.version,
            slot.place,
            Effect::Entry(Index::new(index), slot.term),
        )
    });
    let others = tombstone.into_iter().chain(hard_state).chain(point);
    others
        .chain(entries)
        .filter(move |record| record.place.epoch == epoch)
}

fn acquire(segments: &mut BTreeMap<u32, SegmentState>, place: Place) {
    let segment = segments.entry(place.epoch).or_default();
    segment.live_records += 1;
    segment.live_bytes += u64::from(place.bytes);
}

fn release(segments: &mut BTreeMap<u32, SegmentState>, place: Place) {
    if let Some(segment) = segments.get_mut(&place.epoch) {
        segment.live_records -= 1;
        segment.live_bytes -= u64::from(place.bytes);
    }
}

fn name(segments: &mut BTreeMap<u32, SegmentState>, state: &mut GroupState, record: &Located) {
    let epoch = record.place.epoch;
    segments
        .entry(epoch)
        .or_default()
        .named
        .insert(record.group);
    let oldest = state.named.entry(epoch).or_insert(record.version);
    *oldest = record.version.min(*oldest);
}

/// Drops the entries through an index, or all.
fn drop_entries(
    segments: &mut BTreeMap<u32, SegmentState>,
    state: &mut GroupState,
    through: Option<Index>,
) {
    let gone = match through {
        None => state.entries.len(),
        Some(through) => {
            let gone = through.to_u64().saturating_sub(state.compacted().to_u64());
            usize::try_from(gone)
                .unwrap_or(usize::MAX)
                .min(state.entries.len())
        }
    };
    for old in state.entries.drain(..gone) {
        release(segments, old.place);
    }
}

/// X4: lets the tombstone go once only its own segment has anything older.
fn release_tombstone(segments: &mut BTreeMap<u32, SegmentState>, state: &mut GroupState) {
    let Some(tombstone) = state.tombstone else {
        return;
    };
    let needed = state
        .named
        .iter()
        .any(|(epoch, oldest)| *epoch != tombstone.place.epoch && *oldest < tombstone.version);
    if !needed {
        release(segments, tombstone.place);
        state.tombstone = None;
    }
}
