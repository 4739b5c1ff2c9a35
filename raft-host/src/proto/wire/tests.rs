use std::num::NonZeroU8;

use proptest::prelude::*;

use super::*;
use crate::error::{Outcome, Refusal, UnknownCause};
use crate::id::NodeId;
use crate::limits::{
    BEAT_BYTES_MAX, BULK_BODY_BYTES_MAX, ENTRY_BYTES_MAX, FORWARD_RESULT_BYTES_MAX, NUMBER_MAX,
    REQUEST_ID_BYTES_MAX,
};
use crate::log::api::EntryKind;
use crate::proto::waiters::Policy;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..200_u64, 0..NUMBER_MAX]
}

fn header() -> impl Strategy<Value = Header> {
    (
        number(),
        1..NUMBER_MAX / 2,
        1..NUMBER_MAX / 2,
        1..NUMBER_MAX,
    )
        .prop_map(|(group, from, more, term)| Header {
            group: GroupId::new(group),
            from: ReplicaId::new(from),
            to: ReplicaId::new(from + more),
            term: Term::new(term),
        })
}

fn append(term: Term) -> impl Strategy<Value = Append> {
    let entry = (
        any::<bool>(),
        prop::collection::vec(any::<u8>(), 0..40),
        0..3_u8,
    );
    (number(), number(), prop::collection::vec(entry, 0..6)).prop_map(
        move |(prev, commit, entries)| {
            let mut at = Index::new(prev);
            let entries = entries
                .into_iter()
                .map(|(conf, data, context)| {
                    at = at.next();
                    let change = ConfChange::Members(vec![MemberChange::AddLearner(
                        ReplicaId::new(data.len() as u64 + 1),
                    )]);
                    LogEntry {
                        index: at,
                        term,
                        kind: if conf {
                            EntryKind::ConfChange
                        } else {
                            EntryKind::Normal
                        },
                        data: if conf {
                            change.encode().into()
                        } else {
                            data.into()
                        },
                        context: vec![7; context.into()].into(),
                    }
                })
                .collect();
            Append {
                prev_index: Index::new(prev),
                prev_term: Term::new(if prev == 0 {
                    0
                } else {
                    term.to_u64().div_ceil(2)
                }),
                commit: Index::new(commit),
                entries,
            }
        },
    )
}

fn message() -> impl Strategy<Value = GroupMessage> {
    header().prop_flat_map(|header| {
        let body = prop_oneof![
            (number(), number()).prop_map(|(i, t)| GroupBody::PreVote {
                last_index: Index::new(i),
                last_term: Term::new(t)
            }),
            any::<bool>().prop_map(|granted| GroupBody::PreVoteAnswer { granted }),
            (number(), number(), any::<bool>()).prop_map(|(i, t, transfer)| GroupBody::Vote {
                last_index: Index::new(i),
                last_term: Term::new(t),
                transfer
            }),
            any::<bool>().prop_map(|granted| GroupBody::VoteAnswer { granted }),
            append(header.term).prop_map(GroupBody::Append),
            (number(), number()).prop_map(|(i, c)| GroupBody::Ack {
                index: Index::new(i),
                commit: Index::new(c)
            }),
            (number(), number(), number()).prop_map(|(r, h, t)| GroupBody::Reject {
                rejected: Index::new(r),
                hint: Index::new(h),
                hint_term: Term::new(t),
                commit: Index::new(h / 2),
            }),
            Just(GroupBody::TimeoutNow),
            any::<u64>().prop_map(|token| GroupBody::ReadIndex { token }),
            (any::<u64>(), prop::option::of(number())).prop_map(|(token, i)| {
                GroupBody::ReadIndexAnswer {
                    token,
                    index: i.map(Index::new),
                }
            }),
            forward().prop_map(GroupBody::Forward),
            forward_answer().prop_map(GroupBody::ForwardAnswer),
        ];
        body.prop_map(move |body| GroupMessage { header, body })
    })
}

fn forward() -> impl Strategy<Value = Forward> {
    let bytes = |from, to| prop::collection::vec(any::<u8>(), from..to);
    (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        bytes(0, 20),
        bytes(1, 60),
    )
        .prop_map(|(boot, token, within_ms, context, data)| Forward {
            policy: NonZeroU8::new(context.len() as u8).map_or(Policy::Quorum, Policy::AtLeast),
            boot: Boot::new(boot),
            token,
            within_ms,
            context: context.into(),
            data: data.into(),
        })
}

/// Every refusal that there is.
fn refusal() -> impl Strategy<Value = Refusal> {
    (0..28_usize, number(), any::<u64>(), any::<u32>()).prop_map(|(kind, n, wide, short)| {
        let (node, most) = (NodeId::new(short), 64 * 1024);
        let waiting = usize::try_from(short).unwrap();
        [
            Refusal::NoSuchGroup(GroupId::new(n)),
            Refusal::NotLeader { leader: None },
            Refusal::NotLeader { leader: Some(node) },
            Refusal::Transferring,
            Refusal::NotReady { term: Term::new(n) },
            Refusal::TooLarge { got: waiting, most },
            Refusal::Uncommitted,
            Refusal::Unapplied {
                unapplied: wide,
                most: n,
            },
            Refusal::NodeBusy {
                in_use: wide,
                most: n,
            },
            Refusal::TooManyWaiting { waiting, most },
            Refusal::LogRetained {
                retained: wide,
                most: n,
            },
            Refusal::Late,
            Refusal::Stopped,
            Refusal::NotAVoter(ReplicaId::new(n)),
            Refusal::Dropped,
            Refusal::Empty,
            Refusal::RequestIdTooLong { got: waiting, most },
            Refusal::InboxFull { waiting, most },
            Refusal::LogFull,
            Refusal::Overwritten {
                index: Index::new(n),
            },
            Refusal::NoLeader,
            Refusal::NotTaken { leader: node },
            Refusal::ForwardsFull { waiting, most },
            Refusal::LogRetainedBytes {
                retained: wide,
                most: n,
            },
            Refusal::Backlogged,
            Refusal::OutOfReach(ReplicaId::new(n)),
            Refusal::TooFewVoters {
                wanted: wide,
                voters: n,
            },
            Refusal::InlineFull {
                held: waiting,
                most,
            },
        ][kind]
    })
}

fn forward_answer() -> impl Strategy<Value = ForwardAnswer> {
    let cause = prop_oneof![
        Just(UnknownCause::LeadershipLost),
        Just(UnknownCause::Deadline),
        Just(UnknownCause::Stopped),
        Just(UnknownCause::LinkLost),
        Just(UnknownCause::ResultTooLarge),
    ];
    let outcome = prop_oneof![
        (number(), prop::collection::vec(any::<u8>(), 0..60)).prop_map(|(index, result)| {
            Outcome::Committed {
                index: Index::new(index),
                result: result.into(),
            }
        }),
        refusal().prop_map(|why| Outcome::Refused { why }),
        cause.prop_map(|why| Outcome::Unknown { why }),
        number().prop_map(|index| Outcome::NotDurable {
            index: Index::new(index)
        }),
    ];
    (any::<u64>(), any::<u64>(), outcome).prop_map(|(boot, token, outcome)| ForwardAnswer {
        boot: Boot::new(boot),
        token,
        outcome,
    })
}

fn groups() -> impl Strategy<Value = Vec<GroupId>> {
    prop::collection::btree_set(number(), 0..8)
        .prop_map(|set| set.into_iter().map(GroupId::new).collect())
}

fn beats() -> impl Strategy<Value = Beats> {
    let head = (
        number(),
        0..9_u32,
        any::<bool>(),
        any::<u64>(),
        any::<u64>(),
        0..3_u8,
    );
    (head, groups(), groups(), number()).prop_map(
        |((round, part, last, from, to, cover), removed, listed, commit)| Beats {
            round: Round::new(round),
            part,
            last,
            from_boot: Boot::new(from),
            to_boot: Boot::new(to),
            coverage: match cover {
                0 => Coverage::Full,
                1 => Coverage::Since(Round::new(round / 2)),
                _ => Coverage::Partial,
            },
            removed: if cover == 1 { removed } else { Vec::new() },
            beats: listed
                .into_iter()
                .map(|group| Beat {
                    group,
                    from: ReplicaId::new(2),
                    to: ReplicaId::new(1),
                    term: Term::new(from % 1000 + 1),
                    commit: Index::new(commit),
                    retain_after: Index::new(commit / 3),
                })
                .collect(),
        },
    )
}

fn answer() -> impl Strategy<Value = RoundAnswer> {
    (number(), any::<u64>(), prop::option::of(groups())).prop_map(|(round, boot, groups)| {
        RoundAnswer {
            round: Round::new(round),
            part: 0,
            from_boot: Boot::new(boot),
            to_boot: Boot::new(!boot),
            verdict: groups.map_or(Verdict::Restate, |groups| {
                let reason = |n: usize| match n % 6 {
                    0 => DissentReason::Unknown,
                    1 => DissentReason::WrongReplica,
                    2 => DissentReason::HigherTerm(Term::new(round)),
                    3 => DissentReason::NotFollowing,
                    4 => DissentReason::Behind,
                    _ => DissentReason::NotYet,
                };
                let dissents = groups.into_iter().enumerate();
                Verdict::Taken(
                    dissents
                        .map(|(n, group)| Dissent {
                            group,
                            reason: reason(n),
                        })
                        .collect(),
                )
            }),
        }
    })
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        4 => message().prop_map(Item::Group),
        1 => beats().prop_map(Item::Beats),
        1 => answer().prop_map(Item::Answer),
    ]
}

fn body_of(items: &[Item]) -> Bytes {
    let mut writer = BodyWriter::new(ShardId::new(3), usize::MAX);
    for item in items {
        assert!(writer.try_push(item));
    }
    writer.finish()
}

proptest! {
    #[test]
    fn a_body_round_trips(items in prop::collection::vec(item(), 0..6)) {
        let body = body_of(&items);
        prop_assert_eq!(shard_of(&body), Ok(ShardId::new(3)));
        prop_assert_eq!(decode(body), Ok((ShardId::new(3), items)));
    }

    /// Cut anywhere, a body is an error or (between two items) a shorter body; with a byte changed
    /// it is anything but a panic, and what it reads as encodes to the very same bytes.
    #[test]
    fn cut_or_mutated_bodies_never_panic(
        items in prop::collection::vec(item(), 1..4), flip in any::<(u16, u8)>()
    ) {
        let body = body_of(&items);
        for end in 0..body.len() {
            if let Ok((_, read)) = decode(body.slice(..end)) {
                prop_assert_eq!(read.as_slice(), &items[..read.len()]);
            }
        }
        let mut mutated = body.to_vec();
        let at = usize::from(flip.0) % mutated.len();
        mutated[at] ^= flip.1;
        if let Ok((shard, read)) = decode(mutated.clone().into()) {
            let mut writer = BodyWriter::new(shard, usize::MAX);
            for item in &read {
                prop_assert!(writer.try_push(item));
            }
            prop_assert_eq!(writer.finish().to_vec(), mutated);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut body = vec![WIRE_VERSION, 0];
        body.extend_from_slice(&bytes);
        let _ = decode(body.into());
        let _ = decode(bytes.into());
    }
}

fn header_of(term: u64) -> Header {
    Header {
        group: GroupId::new(1),
        from: ReplicaId::new(1),
        to: ReplicaId::new(2),
        term: Term::new(term),
    }
}

fn append_of(entry: LogEntry) -> Bytes {
    let append = Append {
        prev_index: Index::new(0),
        prev_term: Term::new(0),
        commit: Index::new(0),
        entries: vec![entry],
    };
    let message = GroupMessage {
        header: header_of(5),
        body: GroupBody::Append(append),
    };
    body_of(&[Item::Group(message)])
}

fn entry(term: u64, kind: EntryKind, data: Vec<u8>) -> LogEntry {
    let (index, term) = (Index::new(1), Term::new(term));
    LogEntry {
        index,
        term,
        kind,
        data: data.into(),
        context: Bytes::new(),
    }
}

/// RUSTSEC-2024-0437: the protobuf parser recurses without bound on nested groups. Such bytes are
/// refused while the append is read, long before anything could hand them to it.
#[test]
fn deeply_nested_protobuf_is_no_configuration_change() {
    let nested = vec![0x0b; 100_000];
    let body = append_of(entry(5, EntryKind::ConfChange, nested));
    assert_eq!(decode(body), Err(WireError::BadConfChange));
    let field = vec![0x12, 0x04, 0x08, 0x00, 0x10, 0x02];
    let body = append_of(entry(5, EntryKind::ConfChange, field));
    assert_eq!(decode(body), Err(WireError::BadConfChange));
}

#[test]
fn an_entry_from_a_later_term_than_its_message_is_refused() {
    let body = append_of(entry(6, EntryKind::Normal, vec![1]));
    assert!(matches!(decode(body), Err(WireError::AtOdds { .. })));
}

#[test]
fn an_append_after_an_entry_of_no_term_is_refused() {
    let append = Append {
        prev_index: Index::new(9),
        prev_term: Term::new(0),
        commit: Index::new(0),
        entries: Vec::new(),
    };
    let message = GroupMessage {
        header: header_of(5),
        body: GroupBody::Append(append),
    };
    assert!(matches!(
        decode(body_of(&[Item::Group(message)])),
        Err(WireError::AtOdds { .. })
    ));
}

#[test]
fn an_entry_over_the_bound_is_refused() {
    let fits = append_of(entry(5, EntryKind::Normal, vec![1; ENTRY_BYTES_MAX]));
    assert!(fits.len() <= BULK_BODY_BYTES_MAX);
    assert!(decode(fits).is_ok());
    let body = append_of(entry(5, EntryKind::Normal, vec![1; ENTRY_BYTES_MAX + 1]));
    assert!(matches!(decode(body), Err(WireError::BadCount { .. })));
}

/// The largest of both kinds fit into a frame, within the lengths that are reckoned with.
#[test]
fn a_forwarded_proposal_and_its_answer_fit_into_a_frame() {
    let header = header_of(NUMBER_MAX - 1);
    let (boot, token) = (Boot::new(u64::MAX), u64::MAX);
    let context = Bytes::from(vec![1; REQUEST_ID_BYTES_MAX]);
    let forward = Forward {
        policy: Policy::Quorum,
        boot,
        token,
        within_ms: u32::MAX,
        data: vec![1; ENTRY_BYTES_MAX - context.len()].into(),
        context,
    };
    let reckoned = forward_len(&forward);
    let body = GroupBody::Forward(forward);
    let body = body_of(&[Item::Group(GroupMessage { header, body })]);
    assert!(body.len() <= reckoned + 2 && body.len() <= BULK_BODY_BYTES_MAX);
    assert!(decode(body).is_ok());
    let answer = |bytes| ForwardAnswer {
        boot,
        token,
        outcome: Outcome::Committed {
            index: Index::new(NUMBER_MAX - 1),
            result: vec![1; bytes].into(),
        },
    };
    let body_with = |bytes| {
        let body = GroupBody::ForwardAnswer(answer(bytes));
        body_of(&[Item::Group(GroupMessage { header, body })])
    };
    let body = body_with(FORWARD_RESULT_BYTES_MAX);
    let reckoned = forward_answer_len(&answer(FORWARD_RESULT_BYTES_MAX));
    assert!(body.len() <= reckoned + 2 && body.len() <= BULK_BODY_BYTES_MAX);
    assert!(decode(body).is_ok());
    let body = body_with(FORWARD_RESULT_BYTES_MAX + 1);
    assert!(matches!(decode(body), Err(WireError::BadCount { .. })));
}

#[test]
fn a_forwarded_proposal_without_a_command_is_refused() {
    let forward = Forward {
        policy: Policy::Quorum,
        boot: Boot::new(1),
        token: 1,
        within_ms: 5,
        context: Bytes::new(),
        data: Bytes::new(),
    };
    let body = GroupBody::Forward(forward);
    let header = header_of(5);
    let body = body_of(&[Item::Group(GroupMessage { header, body })]);
    assert!(matches!(decode(body), Err(WireError::AtOdds { .. })));
}

#[test]
fn a_count_beyond_the_bytes_there_are_allocates_nothing() {
    // A beats item that claims 60,000 groups and has none.
    let mut body = vec![WIRE_VERSION, 0, 11, 1, 0, 1, 1, 1, 0, 0];
    body.extend_from_slice(&[0xe0, 0xd4, 0x03]);
    assert!(matches!(
        decode(body.into()),
        Err(WireError::BadCount { .. })
    ));
}

#[test]
fn another_version_is_named() {
    let expected = WireError::Version {
        expected: WIRE_VERSION,
        got: 1,
    };
    assert_eq!(decode(Bytes::from_static(&[1, 0])), Err(expected));
}

#[test]
fn a_configuration_change_round_trips() {
    let replica = ReplicaId::new(NUMBER_MAX - 1);
    let changes = vec![
        MemberChange::AddVoter(replica),
        MemberChange::Remove(ReplicaId::new(1)),
    ];
    for change in [ConfChange::Members(changes), ConfChange::LeaveJoint] {
        let bytes = change.encode();
        assert_eq!(ConfChange::decode(&bytes), Ok(change));
        for end in 1..bytes.len() {
            assert!(ConfChange::decode(&bytes[..end]).is_err());
        }
    }
}

/// H4: at most 24 bytes a group, with numbers far beyond the reference shape's.
#[test]
fn a_beat_takes_at_most_24_bytes() {
    let large = |group: u64| Beat {
        group: GroupId::new(group),
        from: ReplicaId::new((1 << 21) - 1),
        to: ReplicaId::new((1 << 21) - 2),
        term: Term::new((1 << 28) - 1),
        commit: Index::new((1 << 49) - 1),
        retain_after: Index::new((1 << 49) - (1 << 28)),
    };
    let listed: Vec<Beat> = (0..500).map(|n| large(n * 16_383)).collect();
    let beats = Beats {
        round: Round::new(9),
        part: 0,
        last: true,
        from_boot: Boot::new(u64::MAX),
        to_boot: Boot::new(u64::MAX),
        coverage: Coverage::Full,
        removed: Vec::new(),
        beats: listed,
    };
    let bytes = body_of(&[Item::Beats(beats)]).len();
    assert!(
        bytes <= 500 * BEAT_BYTES_MAX,
        "{bytes} bytes for 500 groups"
    );
}
