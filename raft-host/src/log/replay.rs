//! From all records of one group that are left in the segments, dead ones among them, to what the
//! group's log is. Pure.
//!
//! Leaves to others: reading the segments (recovery.rs).
//!
//! The order is that of the versions and of nothing else (safety 12): a copy that was made while
//! the original was being overwritten lies behind the overwriting record, and keeps its lower
//! version. In that order each record does what it did when it was new: an entry drops everything
//! from its index on, a compaction everything up to its point and above the last index of its
//! time, a removal everything. What then remains must be without a gap, else something live is
//! missing, and the log is refused.

use std::collections::BTreeMap;

use super::error::Damage;
use super::index::{Effect, EntrySlot, GroupState, Located, Placed};
use crate::id::{GroupId, Index};

/// Orders a group's records as they were made. Within one version a compaction comes before the
/// entries, and these by index; copies of one record are neighbours.
fn order(records: &mut [Located]) {
    // The deciding line of "recovery by version": the mutant goes by place instead.
    if transport::mutant!("recovery_by_position") {
        records.sort_by_key(|record| (record.place, entry_index(record), record.version));
    } else {
        records.sort_by_key(|record| (record.version, entry_index(record), record.place));
    }
}

fn entry_index(record: &Located) -> Index {
    match record.effect {
        Effect::Entry(index, _) => index,
        Effect::HardState(_) | Effect::Compact(_) | Effect::Remove => Index::default(),
    }
}

/// Makes a group's state from its records.
///
/// # Errors
/// [`Damage::EntryGap`] when an entry is missing.
pub(super) fn replay(group: GroupId, mut records: Vec<Located>) -> Result<GroupState, Damage> {
    let mut state = GroupState::default();
    for record in &records {
        state.version = state.version.max(record.version);
        let oldest = state
            .named
            .entry(record.place.epoch)
            .or_insert(record.version);
        *oldest = record.version.min(*oldest);
    }
    order(&mut records);
    let mut entries: BTreeMap<Index, EntrySlot> = BTreeMap::new();
    for Located {
        version,
        place,
        effect,
        ..
    } in records
    {
        match effect {
            Effect::HardState(value) => {
                state.hard_state = Some(Placed {
                    value,
                    version,
                    place,
                });
            }
            Effect::Compact(point) => {
                entries.retain(|index, _| *index > point.through && *index <= point.last);
                state.point = Some(Placed {
                    value: point,
                    version,
                    place,
                });
            }
            Effect::Remove => {
                entries.clear();
                (state.hard_state, state.point) = (None, None);
                state.tombstone = Some(Placed {
                    value: (),
                    version,
                    place,
                });
            }
            Effect::Entry(index, term) => {
                entries.split_off(&index);
                entries.insert(
                    index,
                    EntrySlot {
                        term,
                        version,
                        place,
                    },
                );
            }
        }
    }
    let mut expected = state.compacted().next();
    for (index, slot) in entries {
        if index <= state.compacted() {
            continue;
        }
        if index != expected {
            return Err(Damage::EntryGap {
                group,
                index: expected,
            });
        }
        state.entries.push_back(slot);
        expected = expected.next();
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::super::api::HardState;
    use super::super::index::{Place, Point};
    use super::*;
    use crate::id::{Term, Version};

    const GROUP: GroupId = GroupId::new(1);

    /// Records in the order of their places.
    fn placed(records: &[(u64, Effect)]) -> Vec<Located> {
        let place = |at| Place {
            epoch: 1,
            offset: at,
            bytes: 1,
        };
        (0..)
            .zip(records)
            .map(|(at, (version, effect))| Located {
                group: GROUP,
                version: Version::new(*version),
                place: place(at),
                effect: *effect,
            })
            .collect()
    }

    fn entry(index: u64, term: u64) -> Effect {
        Effect::Entry(Index::new(index), Term::new(term))
    }

    fn compact(through: u64, last: u64) -> Effect {
        let (through, last) = (Index::new(through), Index::new(last));
        Effect::Compact(Point {
            through,
            term: Term::new(1),
            last,
        })
    }

    fn terms(records: &[(u64, Effect)]) -> Vec<u64> {
        let state = replay(GROUP, placed(records)).unwrap();
        state
            .entries
            .iter()
            .map(|slot| slot.term.to_u64())
            .collect()
    }

    #[test]
    fn a_late_copy_of_overwritten_entries_stays_dead_in_both_orders() {
        let original = [(1, entry(1, 5)), (1, entry(2, 5)), (1, entry(3, 5))];
        let overwrite = [(2, entry(2, 6))];
        for copy_is_last in [false, true] {
            let mut records = original.to_vec();
            let parts: [&[_]; 2] = if copy_is_last {
                [&overwrite, &original]
            } else {
                [&original, &overwrite]
            };
            records.extend(parts.concat());
            assert_eq!(terms(&records), [5, 6], "copy last: {copy_is_last}");
        }
    }

    #[test]
    fn a_late_copy_of_an_old_vote_stays_dead() {
        let state = |term| {
            Effect::HardState(HardState {
                term: Term::new(term),
                ..HardState::default()
            })
        };
        let found = replay(GROUP, placed(&[(2, state(6)), (1, state(5))])).unwrap();
        assert_eq!(found.hard_state.unwrap().value.term, Term::new(6));
    }

    #[test]
    fn entries_cut_off_before_an_empty_log_was_compacted_stay_dead() {
        // Entries 1..3; 2 overwritten, which cut 3; all compacted; the overwriting record is gone.
        let records = [
            (1, entry(1, 5)),
            (1, entry(2, 5)),
            (1, entry(3, 5)),
            (3, compact(2, 2)),
        ];
        assert_eq!(terms(&records), [0; 0]);
    }

    #[test]
    fn a_tombstone_hides_what_is_older_and_nothing_newer() {
        let records = [
            (2, Effect::Remove),
            (1, entry(1, 5)),
            (3, entry(1, 7)),
            (1, entry(2, 5)),
        ];
        assert_eq!(terms(&records), [7]);
    }

    #[test]
    fn a_missing_entry_is_refused_by_its_index() {
        let records = [(1, entry(1, 5)), (3, entry(3, 5))];
        let error = replay(GROUP, placed(&records)).unwrap_err();
        assert_eq!(
            error,
            Damage::EntryGap {
                group: GROUP,
                index: Index::new(2)
            }
        );
    }
}
