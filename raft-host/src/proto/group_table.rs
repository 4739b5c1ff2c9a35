//! The groups of a shard: id → slot, with a generation that tells a group from another that was
//! opened in its place. What a group is, is `host`'s business.
//!
//! G1: a slot id whose generation is not the slot's finds nothing.
//! G2: iteration is in order of group ids.

use std::collections::BTreeMap;

use crate::id::GroupId;

/// A place in the table, good until its group is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId {
    index: u32,
    generation: u32,
}

impl SlotId {
    /// The slot's place in arrays kept beside the table.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// The table.
#[derive(Debug)]
pub struct GroupTable<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    ids: BTreeMap<GroupId, SlotId>,
}

impl<T> Default for GroupTable<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            ids: BTreeMap::new(),
        }
    }
}

impl<T> GroupTable<T> {
    /// Puts a group in. `None` if one of its id is there, or the table can't number it.
    pub fn insert(&mut self, id: GroupId, value: T) -> Option<SlotId> {
        if self.ids.contains_key(&id) {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot {
                    generation: 0,
                    value: None,
                });
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        let slot_id = SlotId {
            index,
            generation: slot.generation,
        };
        self.ids.insert(id, slot_id);
        Some(slot_id)
    }

    /// Takes a group out; its slot id finds nothing from now on.
    pub fn remove(&mut self, id: GroupId) -> Option<T> {
        let slot_id = self.ids.remove(&id)?;
        let slot = &mut self.slots[slot_id.index()];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(slot_id.index);
        slot.value.take()
    }

    /// Where a group is.
    #[must_use]
    pub fn slot(&self, id: GroupId) -> Option<SlotId> {
        self.ids.get(&id).copied()
    }

    /// The group in a slot, if it is still there.
    #[must_use]
    pub fn at(&self, slot: SlotId) -> Option<&T> {
        let found = self.slots.get(slot.index())?;
        if found.generation == slot.generation {
            found.value.as_ref()
        } else {
            None
        }
    }

    /// The group in a slot, if it is still there.
    pub fn at_mut(&mut self, slot: SlotId) -> Option<&mut T> {
        let found = self.slots.get_mut(slot.index())?;
        if found.generation == slot.generation {
            found.value.as_mut()
        } else {
            None
        }
    }

    /// The group of this id.
    #[must_use]
    pub fn find(&self, id: GroupId) -> Option<&T> {
        self.at(self.slot(id)?)
    }

    /// The group of this id.
    pub fn find_mut(&mut self, id: GroupId) -> Option<&mut T> {
        let slot = self.slot(id)?;
        self.at_mut(slot)
    }

    /// All groups, by id.
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, SlotId)> + '_ {
        self.ids.iter().map(|(id, slot)| (*id, *slot))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_id_does_not_find_its_successor() {
        let mut table = GroupTable::default();
        let first = table.insert(GroupId::new(7), "a").unwrap();
        assert_eq!(table.insert(GroupId::new(7), "b"), None);
        assert_eq!(table.remove(GroupId::new(7)), Some("a"));
        let second = table.insert(GroupId::new(8), "c").unwrap();
        assert_eq!(first.index(), second.index());
        assert_eq!((table.at(first), table.at(second)), (None, Some(&"c")));
        assert_eq!(table.find(GroupId::new(7)), None);
    }

    #[test]
    fn iteration_is_by_group_id() {
        let mut table = GroupTable::default();
        for id in [5, 1, 3] {
            table.insert(GroupId::new(id), id).unwrap();
        }
        let ids: Vec<u64> = table.iter().map(|(id, _)| id.to_u64()).collect();
        assert_eq!(ids, [1, 3, 5]);
    }
}
