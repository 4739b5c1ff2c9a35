use std::sync::Arc;

use object_store::memory::InMemory;
use proptest::prelude::*;
use raft_host::id::Term;
use raft_host::log::api::{EntryKind, LogEntry};

use super::*;
use crate::archive::object::ObjectBuilder;
use crate::archive::place::Created;
use crate::archive::reader::Reader;
use crate::cluster_id::ClusterId;

const GROUP: GroupId = GroupId::new(1);

fn entry(index: u64) -> LogEntry {
    LogEntry {
        index: Index::new(index),
        term: Term::new(2),
        kind: EntryKind::Normal,
        data: Bytes::from(format!("command {index}")),
        context: Bytes::new(),
    }
}

fn entries(first: u64, last: u64) -> Vec<LogEntry> {
    (first..=last).map(entry).collect()
}

struct World {
    place: Place,
    made_ms: u64,
}

impl World {
    fn new() -> Self {
        let place = Place::in_store(Arc::new(InMemory::new()), "pre/fix");
        let made_ms = 0;
        Self { place, made_ms }
    }

    fn name(node: u64, sequence: u64) -> ObjectName {
        ObjectName { node, sequence }
    }

    async fn put(&mut self, name: ObjectName, segments: &[(GroupId, Vec<LogEntry>)]) {
        self.made_ms += 1;
        let mut builder = ObjectBuilder::default();
        for (group, entries) in segments {
            let before = if entries[0].index == Index::new(1) {
                0
            } else {
                2
            };
            builder.add(*group, Term::new(before), entries);
        }
        let (bytes, _) = builder.finish(name, [7; 16], self.made_ms);
        self.put_bytes(name, bytes).await;
    }

    async fn put_bytes(&self, name: ObjectName, bytes: Bytes) {
        let key = self.place.segments_key(name);
        assert_eq!(self.place.create(&key, bytes).await.unwrap(), Created::Yes);
    }

    async fn check(&self) -> Checked {
        let identity = Identity::new("dev", ClusterId::draw().unwrap(), 4);
        let mut seen = 0;
        let mut progress = |objects, _| seen = objects;
        let checked = check_place(self.place.clone(), identity, &mut progress).await;
        let checked = checked.unwrap();
        assert_eq!(seen, checked.objects);
        checked
    }
}

fn index_of(checked: &Checked, group: GroupId) -> u64 {
    checked.positions[&group].index.to_u64()
}

#[tokio::test]
async fn a_sound_archive_of_several_nodes_has_no_fault() {
    let mut world = World::new();
    let other = GroupId::new(2);
    let both = [(GROUP, entries(1, 3)), (other, entries(1, 1))];
    world.put(World::name(1, 1), &both).await;
    // Leadership went to another node, and back; one published something twice.
    world
        .put(World::name(2, 1), &[(GROUP, entries(4, 6))])
        .await;
    world
        .put(World::name(1, 2), &[(GROUP, entries(3, 8))])
        .await;
    world
        .put(World::name(2, 2), &[(other, entries(2, 2))])
        .await;
    let checked = world.check().await;
    assert_eq!(checked.first_faults, [""; 0]);
    assert_eq!((checked.objects, checked.segments), (4, 5));
    assert_eq!((checked.entries, checked.overlaps), (14, 4));
    assert_eq!(index_of(&checked, GROUP), 8);
    assert_eq!(index_of(&checked, other), 2);
}

#[tokio::test]
async fn entries_that_differ_are_named() {
    let mut world = World::new();
    world
        .put(World::name(1, 1), &[(GROUP, entries(1, 5))])
        .await;
    let mut other = entries(4, 6);
    other[0].data = Bytes::from_static(b"another command");
    world.put(World::name(2, 1), &[(GROUP, other)]).await;
    let checked = world.check().await;
    assert_eq!(checked.faults, 1);
    let fault = &checked.first_faults[0];
    assert!(
        fault.contains("group 1: entry 4 has other bytes"),
        "{fault}"
    );
}

#[tokio::test]
async fn missing_and_damaged_objects_are_named_and_what_they_leave_out() {
    let mut world = World::new();
    for sequence in 1..=5 {
        let segment = (GROUP, entries(sequence * 2 - 1, sequence * 2));
        let name = World::name(1, sequence);
        match sequence {
            3 => {}
            5 => {
                let mut builder = ObjectBuilder::default();
                builder.add(segment.0, Term::new(2), &segment.1);
                let (bytes, _) = builder.finish(name, [7; 16], 9);
                let mut bytes = bytes.to_vec();
                let end = bytes.len() - 1;
                bytes[end] ^= 1;
                world.put_bytes(name, bytes.into()).await;
            }
            _ => world.put(name, &[segment]).await,
        }
    }
    let checked = world.check().await;
    assert_eq!(index_of(&checked, GROUP), 4);
    let faults = checked.first_faults.join("\n");
    assert_eq!(checked.faults, 3, "{faults}");
    assert!(faults.contains("object 3 of node 1 is missing"), "{faults}");
    assert!(faults.contains("object 5 of node 1 is damaged: the checksum of group 1"));
    assert!(
        faults.contains("group 1: entries 5 to 6 are missing"),
        "{faults}"
    );
}

#[tokio::test]
async fn a_manifest_saves_reading_and_is_held_against_the_objects() {
    let mut world = World::new();
    for sequence in 1..=4 {
        let segment = (GROUP, entries(sequence * 2 - 1, sequence * 2));
        world.put(World::name(1, sequence), &[segment]).await;
    }
    let mut reader = Reader::open(world.place.clone(), []).await.unwrap();
    assert_eq!(reader.catch_up().await.unwrap(), 4);
    let manifest = Manifest::of(&reader.catalog, reader.read().clone()).unwrap();
    let key = world.place.manifest_key(1, 4);
    world.place.create(&key, manifest.encode()).await.unwrap();
    world
        .put(World::name(1, 5), &[(GROUP, entries(9, 9))])
        .await;
    let mut again = Reader::open(world.place.clone(), [1, 2]).await.unwrap();
    assert_eq!(again.catch_up().await.unwrap(), 1);
    assert_eq!(again.catalog.position(GROUP).index, Index::new(9));
    assert_eq!(world.check().await.faults, 0);
    // One that is damaged is passed over, one that lies is named.
    let key = world.place.manifest_key(1, 5);
    let junk = Bytes::from_static(b"junk");
    world.place.create(&key, junk).await.unwrap();
    let mut again = Reader::open(world.place.clone(), []).await.unwrap();
    assert_eq!(again.catch_up().await.unwrap(), 1);
    let mut lie = manifest;
    lie.positions.get_mut(&GROUP).unwrap().index = Index::new(99);
    let key = world.place.manifest_key(2, 1);
    world.place.create(&key, lie.encode()).await.unwrap();
    let checked = world.check().await;
    assert_eq!(checked.faults, 2);
    let faults = checked.first_faults.join("\n");
    assert!(
        faults.contains("archived up to 99, the objects have it up to 9"),
        "{faults}"
    );
}

proptest! {
    /// Against a naive model that marks every entry.
    #[test]
    fn what_was_covered_before_is_found(ranges in prop::collection::vec((1..50_u64, 0..9_u64), 1..30)) {
        let mut covered = Covered::default();
        let mut marked = [false; 64];
        for (first, more) in ranges {
            let last = first + more;
            let twice = covered.add(first, last);
            let mut seen = Vec::new();
            for (from, to) in twice {
                prop_assert!(from <= to);
                seen.extend(from.to_u64()..=to.to_u64());
            }
            let expected: Vec<u64> = (first..=last)
                .filter(|index| marked[usize::try_from(*index).unwrap()])
                .collect();
            prop_assert_eq!(seen, expected);
            for index in first..=last {
                marked[usize::try_from(index).unwrap()] = true;
            }
            let merged = covered.0.iter().zip(covered.0.iter().skip(1));
            for ((_, end), (begin, _)) in merged {
                prop_assert!(end + 1 < *begin, "ranges neither meet nor touch");
            }
        }
    }
}
