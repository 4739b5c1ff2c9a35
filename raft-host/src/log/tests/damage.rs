//! Every bit flipped and a tear at every sector of a small log: what is refused, cut, or (never)
//! silently wrong.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proptest::prelude::*;

use super::super::api::Change;
use super::super::record::{LogId, SECTOR_BYTES};
use super::super::recovery::recover;
use super::super::sim_files::SimFiles;
use super::super::{Damage, OpenError};
use super::support::{ID, World, hard_state, small};
use crate::id::GroupId;
use crate::log::files::Files;
use crate::log::index::GroupState;

type Found = BTreeMap<GroupId, GroupState>;

fn found(files: &SimFiles, log_id: &LogId) -> Result<Found, OpenError> {
    let names = files.list().unwrap();
    let recovered = recover(files, log_id, &names)?;
    Ok(recovered
        .index
        .groups()
        .map(|(group, state)| (group, state.clone()))
        .collect())
}

/// A closed segment, and a newest one of three batches whose last is of several sectors, in a file
/// that was used before. Gives the newest file's name and the sectors at which its batches begin
/// and end.
fn small_log() -> (SimFiles, String, Vec<usize>) {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    let mut last = 0;
    // Until the newest segment is in a file that was used before.
    let newest = loop {
        world.write(2, last + 1, 4, 1, 700);
        last += 4;
        if last > 4 {
            let (through, term) = (crate::id::Index::new(last - 2), crate::id::Term::new(1));
            world
                .stage(GroupId::new(2), Change::Compact { through, term })
                .unwrap();
        }
        world.flush().unwrap();
        world.settle();
        let state = world.driver.engine_for_tests().shared().lock();
        let (epoch, file) = state.files.last_key_value().unwrap();
        if *epoch > 6 && file.number < 4 {
            break file.name();
        }
    };
    drop(world);
    files.kill();
    // The next opening starts a segment in a free file.
    let mut world = World::open(&files, small()).unwrap();
    let name = {
        let state = world.driver.engine_for_tests().shared().lock();
        state.files.last_key_value().unwrap().1.name()
    };
    assert_ne!(name, newest);
    let mut ends = vec![0, world.driver.engine_for_tests().next_sector()];
    for at in 0..3 {
        let term = 5 + at;
        let state = Some(hard_state(term, 1, 0));
        let change = Change::Write {
            hard_state: state,
            entries: Vec::new(),
        };
        world.stage(GroupId::new(4), change).unwrap();
        world.write(0, 1 + at, 2, term, 150 + 500 * at as usize);
        world.flush().unwrap();
        world.settle();
        ends.push(world.driver.engine_for_tests().next_sector());
    }
    drop(world);
    files.kill();
    (files.fork(), name, ends)
}

fn with_sector(files: &SimFiles, name: &str, sector: usize, with: &[u8]) -> SimFiles {
    let fork = files.fork();
    let mut bytes = fork.bytes_of(name).unwrap();
    bytes[sector * SECTOR_BYTES..][..with.len()].copy_from_slice(with);
    fork.put(name, bytes);
    fork
}

#[test]
fn every_flipped_bit_of_what_was_acked_is_refused() {
    let (files, newest, ends) = small_log();
    let whole = found(&files, &ID).unwrap();
    let (mut refused, mut harmless, mut cut) = (0u64, 0u64, 0u64);
    let names = files.list().unwrap();
    let end = *ends.last().unwrap() * SECTOR_BYTES;
    for name in names.iter().filter(|name| name.starts_with("segment")) {
        let bytes = files.bytes_of(name).unwrap();
        for at in 0..bytes.len() {
            let acked = *name == newest && at < end;
            // All bits of the newest segment's batches, one of each byte elsewhere.
            for bit in 0..if acked { 8 } else { 1 } {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << ((bit + at) % 8);
                files.put(name, flipped);
                match found(&files, &ID) {
                    Err(OpenError::Corrupt { .. } | OpenError::NewerFormat { .. }) => refused += 1,
                    Err(error) => panic!("{name} {at}: {error}"),
                    Ok(state) if state == whole => {
                        assert!(!acked, "{name} {at}: a flip of what was acked went unseen");
                        harmless += 1;
                    }
                    Ok(_) => cut += 1,
                }
            }
        }
        files.put(name, bytes);
    }
    assert_eq!(cut, 0, "refused {refused}, harmless {harmless}");
    assert!(
        refused > end as u64 * 8,
        "refused {refused}, harmless {harmless}"
    );
}

#[test]
fn a_tear_is_cut_in_the_last_batch_and_refused_before_it() {
    let (files, name, ends) = small_log();
    let whole = found(&files, &ID).unwrap();
    let bytes = files.bytes_of(&name).unwrap();
    let last_begin = ends[ends.len() - 2];
    let end = *ends.last().unwrap();
    // Without the last batch: as if it never had been written.
    let mut without = bytes.clone();
    without[last_begin * SECTOR_BYTES..].fill(0);
    files.put(&name, without);
    let shorter = found(&files, &ID).unwrap();
    assert_ne!(shorter, whole);
    files.put(&name, bytes.clone());
    let (mut refused, mut cut) = (0, 0);
    // What an earlier use of the file left, still in the sectors behind the end or zeros.
    let old = &bytes[end * SECTOR_BYTES..];
    for sector in 0..end {
        let torn = with_sector(&files, &name, sector, &[0; SECTOR_BYTES]);
        match found(&torn, &ID) {
            Err(OpenError::Corrupt { source, offset, .. }) => {
                assert!(sector < last_begin, "sector {sector}: {source}");
                assert!(offset <= (sector * SECTOR_BYTES) as u64);
                refused += 1;
            }
            Err(error) => panic!("sector {sector}: {error}"),
            Ok(state) => {
                assert_eq!(state, shorter, "sector {sector}");
                assert!(sector >= last_begin, "sector {sector}");
                cut += 1;
            }
        }
    }
    assert_eq!((refused, cut), (last_begin, end - last_begin));
    assert!(cut >= 3, "the last batch has several sectors");
    assert!(!old.is_empty());
}

#[test]
fn every_way_to_tear_an_unacked_batch_in_a_used_file_is_cut() {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    let mut last = 0;
    let mut cuts = 0;
    for round in 0..60 {
        let before = files.fork();
        world.write(2, last + 1, 3, 1, 600);
        last += 3;
        let (through, term) = (crate::id::Index::new(last - 1), crate::id::Term::new(1));
        world
            .stage(GroupId::new(2), Change::Compact { through, term })
            .unwrap();
        world.flush().unwrap();
        let sector = world.driver.engine_for_tests().next_sector();
        let name = {
            let state = world.driver.engine_for_tests().shared().lock();
            state.files.last_key_value().unwrap().1.name()
        };
        let expected = found(&before, &ID).unwrap();
        world.driver.turn();
        let end = world.driver.engine_for_tests().next_sector();
        if round < 30 || end <= sector || end - sector > 6 {
            continue;
        }
        // Of the batch's sectors any true part was kept, over what the file held before.
        let new = files.bytes_of(&name).unwrap();
        let count = end - sector;
        for kept in 0..(1u32 << count) - 1 {
            let mut bytes = before.bytes_of(&name).unwrap();
            for at in (0..count).filter(|at| kept & (1 << at) != 0) {
                let range = (sector + at) * SECTOR_BYTES..(sector + at + 1) * SECTOR_BYTES;
                bytes[range.clone()].copy_from_slice(&new[range]);
            }
            let torn = before.fork();
            torn.put(&name, bytes);
            assert_eq!(
                found(&torn, &ID).unwrap(),
                expected,
                "round {round}, kept {kept:b}"
            );
            cuts += 1;
        }
    }
    assert!(cuts > 100, "{cuts}");
}

#[test]
fn damage_is_named_with_file_and_place_and_the_remedy() {
    let (files, name, ends) = small_log();
    let mut bytes = files.bytes_of(&name).unwrap();
    let place = ends[1] * SECTOR_BYTES;
    bytes[place + 100] ^= 1;
    files.put(&name, bytes);
    let error = World::open(&files, small()).err().unwrap();
    let said = error.to_string();
    assert!(
        said.starts_with(&format!("{name} is corrupt at byte {place}")),
        "{said}"
    );
    assert!(said.contains("members readmit"), "{said}");
}

#[test]
fn a_lost_segment_is_refused() {
    let (files, newest, _) = small_log();
    for name in files
        .list()
        .unwrap()
        .iter()
        .filter(|name| name.starts_with("segment"))
    {
        let whole = found(&files, &ID).unwrap();
        let fork = files.fork();
        fork.remove(name).unwrap();
        match found(&fork, &ID) {
            Err(OpenError::Corrupt {
                source: Damage::MissingSegment { .. },
                ..
            }) => {}
            // A free one isn't missed. Without the newest, the one before is the newest: its own
            // list may still be whole, which is why a lost file is stated as a limit.
            Ok(state) => assert!(state == whole || *name == newest, "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn a_start_that_was_torn_is_a_free_file_and_a_damaged_one_is_refused() {
    let (files, name, ends) = small_log();
    let fork = files.fork();
    let mut bytes = fork.bytes_of(&name).unwrap();
    // Only the start was written, and half of it not.
    bytes[ends[1] * SECTOR_BYTES..].fill(0);
    bytes[..SECTOR_BYTES].fill(0);
    fork.put(&name, bytes.clone());
    assert!(found(&fork, &ID).is_ok());
    bytes[3] = 1;
    fork.put(&name, bytes);
    assert!(matches!(found(&fork, &ID), Err(OpenError::Corrupt { .. })));
    // A lost start before batches that are there is no tear: it was synced before them.
    let lost = with_sector(&files, &name, 0, &[0; SECTOR_BYTES]);
    assert!(matches!(
        found(&lost, &ID),
        Err(OpenError::Corrupt {
            source: Damage::BelowSyncedEnd,
            ..
        })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_anywhere_is_refused_or_without_effect(
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        garbage in prop::collection::vec(any::<u8>(), 1..2000),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        static LOG: OnceLock<(SimFiles, Found)> = OnceLock::new();
        let (files, whole) = LOG.get_or_init(|| {
            let (files, ..) = small_log();
            let whole = found(&files, &ID).unwrap();
            (files, whole)
        });
        let names = files.list().unwrap();
        let segments: Vec<_> = names.iter().filter(|name| name.starts_with("segment")).collect();
        let name = file.get(&segments);
        let mut bytes = files.bytes_of(name).unwrap();
        let at = at.index(bytes.len());
        let end = (at + garbage.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&garbage[..end - at]);
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let fork = files.fork();
        fork.put(name, bytes);
        // Only a last batch of which whole sectors went back to what they held may be cut, and
        // garbage is nothing that a sector ever held.
        if let Ok(state) = found(&fork, &ID) {
            prop_assert_eq!(&state, whole);
        }
    }
}
