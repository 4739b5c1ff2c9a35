use bytes::Bytes;
use proptest::prelude::*;
use raft_host::log::api::EntryKind;

use super::*;
use crate::archive::entry::entry_len;

const NAME: ObjectName = ObjectName {
    node: 3,
    sequence: 77,
};

fn entry(index: u64, term: u64, data: &[u8]) -> LogEntry {
    LogEntry {
        index: Index::new(index),
        term: Term::new(term),
        kind: EntryKind::Normal,
        data: Bytes::copy_from_slice(data),
        context: Bytes::new(),
    }
}

fn small() -> (Bytes, Vec<SegmentRef>) {
    let mut builder = ObjectBuilder::default();
    let mut change = entry(8, 2, b"\x01");
    change.kind = EntryKind::ConfChange;
    change.context = Bytes::from_static(b"id");
    builder.add(GroupId::new(9), Term::new(1), &[entry(7, 2, b""), change]);
    builder.add(GroupId::new(4), Term::new(0), &[entry(1, 1, b"hello")]);
    builder.finish(NAME, [0xab; 16], 1_700_000_000_123)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that every version from here on must read.
#[test]
fn an_object_has_these_bytes() {
    let (bytes, _) = small();
    let (head, rest) = bytes.split_at(HEADER_BYTES);
    let (directory, payload) = rest.split_at(2 * RECORD_BYTES);
    assert_eq!(
        hex(&head[..64]),
        "6d67617263680d0a010000000000000003000000000000004d00000000000000\
         abababababababababababababababab7b68e5cf8b010000\
         0200000014000000"
            .replace(' ', "")
    );
    assert_eq!(
        hex(&directory[..52]),
        "04000000000000000100000000000000000000000000000001000000000000000100000000000000\
         000000000000000009000000"
            .replace(' ', "")
    );
    assert_eq!(hex(payload), "0100000568656c6c6f0200000002010269640101");
}

#[test]
fn an_object_reads_as_it_was_written() {
    let (bytes, segments) = small();
    let (header, read) = read_object(NAME, &bytes).unwrap();
    assert_eq!(read, segments);
    assert_eq!((header.name, header.made_ms), (NAME, 1_700_000_000_123));
    assert_eq!(header.incarnation, [0xab; 16]);
    assert_eq!(header.bytes(), bytes.len() as u64);
    let groups: Vec<u64> = read.iter().map(|segment| segment.group.to_u64()).collect();
    assert_eq!(groups, [4, 9], "groups rise, however they were added");
    let payload = segment_bytes(&header, &read[1], &bytes);
    let entries = read_segment(&read[1], payload).unwrap();
    assert_eq!(entries[0], entry(7, 2, b""));
    assert_eq!(entries[1].kind, EntryKind::ConfChange);
    assert_eq!(entries[1].context, "id");
    let length: u64 = entries
        .iter()
        .map(|entry| entry_len(entry.term, entry.context.len(), entry.data.len()))
        .sum();
    assert_eq!(length, u64::from(read[1].length));
}

#[test]
fn no_flipped_bit_is_read() {
    let (whole, _) = small();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << bit;
            let read = read_object(NAME, &bytes.into());
            assert!(read.is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn no_torn_or_longer_object_is_read() {
    let (whole, _) = small();
    for end in 0..whole.len() {
        assert!(read_object(NAME, &whole.slice(..end)).is_err(), "{end}");
        // As it is left when a file's length is there and its content isn't.
        let mut zeroed = whole[..end].to_vec();
        zeroed.resize(whole.len(), 0);
        if zeroed != whole {
            assert!(
                read_object(NAME, &zeroed.into()).is_err(),
                "zeros from {end}"
            );
        }
    }
    let mut longer = whole.to_vec();
    longer.push(0);
    let error = read_object(NAME, &longer.into()).unwrap_err();
    assert!(matches!(error, ObjectFault::Length { .. }), "{error}");
}

#[test]
fn each_fault_has_its_name() {
    let (whole, _) = small();
    let fault = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.to_vec();
        change(&mut bytes);
        read_object(NAME, &bytes.into()).unwrap_err()
    };
    let name = |node, sequence| ObjectName { node, sequence };
    assert_eq!(fault(&|bytes| bytes[0] = b'x'), ObjectFault::Magic);
    assert_eq!(
        fault(&|bytes| bytes[8] = 2),
        ObjectFault::Checksum { part: "header" }
    );
    assert_eq!(
        fault(&|bytes| bytes[HEADER_BYTES] = 5),
        ObjectFault::Checksum { part: "directory" }
    );
    let last = whole.len() - 1;
    let group = GroupId::new(9);
    assert_eq!(
        fault(&|bytes| bytes[last] ^= 1),
        ObjectFault::SegmentChecksum { group }
    );
    let (node, sequence) = (NAME.node, NAME.sequence);
    assert_eq!(
        read_object(name(3, 78), &whole).unwrap_err(),
        ObjectFault::Misnamed { node, sequence }
    );
    let newer = fault(&|bytes| {
        bytes[8] = 2;
        let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    });
    let (expected, got) = (1, 2);
    assert_eq!(newer, ObjectFault::Version { expected, got });
}

/// A directory whose checksum is right and that no publisher writes.
#[test]
fn an_impossible_directory_is_refused() {
    let (whole, _) = small();
    let patched = |at: usize, byte: u8| {
        let mut bytes = whole.to_vec();
        bytes[HEADER_BYTES + at] = byte;
        let directory = crc32fast::hash(&bytes[HEADER_BYTES..HEADER_BYTES + 2 * RECORD_BYTES]);
        bytes[HEADER_BYTES - 8..HEADER_BYTES - 4].copy_from_slice(&directory.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        read_object(NAME, &bytes.into()).unwrap_err()
    };
    let part = "directory";
    for (at, byte, what) in [
        (0, 10, "groups out of order"),
        (2, 1, "a group beyond all"),
        (8, 0, "entry 0"),
        (8, 2, "first after last"),
        (31, 0x80, "an index beyond all"),
        (16, 9, "terms that fall"),
        (40, 1, "a gap in the payload"),
        (48, 8, "a length that isn't the next offset"),
    ] {
        assert_eq!(
            patched(at, byte),
            ObjectFault::Impossible { part },
            "{what}"
        );
    }
}

/// A segment whose checksum is right and that holds something else than its record says.
#[test]
fn entries_that_are_not_as_recorded_are_refused() {
    let (bytes, segments) = small();
    let (header, _) = read_object(NAME, &bytes).unwrap();
    let segment = segments[1];
    let payload = segment_bytes(&header, &segment, &bytes);
    let read = |change: &dyn Fn(&mut SegmentRef)| {
        let mut other = segment;
        change(&mut other);
        read_segment(&other, payload.clone())
    };
    assert!(read(&|_| ()).is_ok());
    assert!(read(&|s| s.last = Index::new(9)).is_err(), "one more");
    assert!(read(&|s| s.last = Index::new(7)).is_err(), "one less");
    assert!(read(&|s| s.last_term = Term::new(3)).is_err());
    assert!(read(&|s| s.term_before = Term::new(3)).is_err());
    assert!(read(&|s| s.last = Index::new(1 << 40)).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read_and_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read_object(NAME, &bytes.into());
    }

    #[test]
    fn any_entries_come_back(
        groups in prop::collection::btree_map(
            0..u64::from(GROUPS_MAX),
            (1..1000_u64, prop::collection::vec((0..3_u64, prop::collection::vec(any::<u8>(), 0..300)), 1..20)),
            1..10,
        ),
    ) {
        let mut builder = ObjectBuilder::default();
        let mut expected = Vec::new();
        for (group, (first, list)) in groups {
            let mut term = 1;
            let entries: Vec<_> = (first..).zip(list).map(|(index, (step, data))| {
                term += step;
                entry(index, term, &data)
            }).collect();
            builder.add(GroupId::new(group), Term::new(1), &entries);
            expected.push(entries);
        }
        let (bytes, _) = builder.finish(NAME, [1; 16], 5);
        let (header, segments) = read_object(NAME, &bytes).unwrap();
        prop_assert_eq!(read_header(&bytes).unwrap(), header);
        let read: Vec<_> = segments.iter().map(|segment| {
            read_segment(segment, segment_bytes(&header, segment, &bytes)).unwrap()
        }).collect();
        prop_assert_eq!(read, expected);
    }
}
