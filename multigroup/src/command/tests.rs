use proptest::prelude::*;

use super::*;

use crate::session::Refusal;

fn words(line: &str) -> Vec<Bytes> {
    line.split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn error_of(line: &str) -> String {
    parse(&words(line)).unwrap_err().to_string()
}

#[test]
fn every_data_command_is_read_in_any_case() {
    let table = [
        ("get a", Op::Get { key: key("a") }),
        ("GET a", Op::Get { key: key("a") }),
        ("StrLen a", Op::StrLen { key: key("a") }),
        (
            "EXISTS a a",
            Op::Exists {
                keys: vec![key("a"), key("a")],
            },
        ),
        (
            "MGET a b",
            Op::MGet {
                keys: vec![key("a"), key("b")],
            },
        ),
        (
            "DEL a b",
            Op::Del {
                keys: vec![key("a"), key("b")],
            },
        ),
        (
            "SET a v",
            Op::Set {
                key: key("a"),
                value: key("v"),
            },
        ),
        (
            "SETNX a v",
            Op::SetNx {
                key: key("a"),
                value: key("v"),
            },
        ),
        (
            "APPEND a v",
            Op::Append {
                key: key("a"),
                value: key("v"),
            },
        ),
        (
            "MSET a 1 b 2",
            Op::MSet {
                pairs: vec![(key("a"), key("1")), (key("b"), key("2"))],
            },
        ),
        (
            "INCR a",
            Op::IncrBy {
                key: key("a"),
                delta: 1,
            },
        ),
        (
            "DECR a",
            Op::IncrBy {
                key: key("a"),
                delta: -1,
            },
        ),
        (
            "INCRBY a -7",
            Op::IncrBy {
                key: key("a"),
                delta: -7,
            },
        ),
        (
            "DECRBY a 7",
            Op::IncrBy {
                key: key("a"),
                delta: -7,
            },
        ),
    ];
    for (line, op) in table {
        assert_eq!(parse(&words(line)), Ok(Command::Op(op)), "{line}");
    }
}

#[test]
fn the_store_s_own_commands_are_read() {
    assert_eq!(parse(&words("dbsize")), Ok(Command::DbSize));
    assert_eq!(
        parse(&words("MG.GROUP a")),
        Ok(Command::Group { key: key("a") })
    );
    assert_eq!(
        parse(&words("mg.leader a")),
        Ok(Command::Leader { key: key("a") })
    );
    let read = Command::Read {
        consistency: Consistency::Stale,
        key: key("a"),
    };
    assert_eq!(parse(&words("MG.READ STALE a")), Ok(read));
    let id = RequestId::parse(b"5-x").unwrap();
    let op = Op::IncrBy {
        key: key("a"),
        delta: 1,
    };
    assert_eq!(
        parse(&words("MG.DO 5-x INCR a")),
        Ok(Command::Do { id, op })
    );
}

#[test]
fn faults_are_worded_as_redis_words_them() {
    let table = [
        (
            "foo a b",
            "ERR unknown command 'foo', with args beginning with: 'a' 'b' ",
        ),
        (
            "ping",
            "ERR unknown command 'ping', with args beginning with: ",
        ),
        ("GET", "ERR wrong number of arguments for 'get' command"),
        ("get a b", "ERR wrong number of arguments for 'get' command"),
        ("mset a", "ERR wrong number of arguments for 'mset' command"),
        (
            "mset a 1 b",
            "ERR wrong number of arguments for 'mset' command",
        ),
        ("del", "ERR wrong number of arguments for 'del' command"),
        ("set a", "ERR wrong number of arguments for 'set' command"),
        ("set a b c", "ERR syntax error"),
        ("set a b EX 5", "ERR option 'EX' of 'set' is not supported"),
        ("incrby a x", "ERR value is not an integer or out of range"),
        (
            "incrby a 9223372036854775808",
            "ERR value is not an integer or out of range",
        ),
        (
            "decrby a -9223372036854775808",
            "ERR decrement would overflow",
        ),
        (
            "mg.do 5-x",
            "ERR wrong number of arguments for 'mg.do' command",
        ),
        (
            "mg.do 5-x get a",
            "ERR 'mg.do' takes a command that writes, and 'get' does not",
        ),
        (
            "mg.do 5-x mg.do 6-x incr a",
            "ERR 'mg.do' takes a command that writes, and 'mg.do' does not",
        ),
        (
            "mg.do x incr a",
            "ERR invalid request id: neither a UUIDv7 nor <milliseconds>-<random>",
        ),
        ("mg.read soon a", "ERR syntax error"),
        (
            "dbsize a",
            "ERR wrong number of arguments for 'dbsize' command",
        ),
    ];
    for (line, text) in table {
        assert_eq!(error_of(line), text, "{line}");
    }
}

#[test]
fn keys_and_values_over_their_bounds_are_refused_by_name() {
    let long = Bytes::from(vec![b'k'; KEY_BYTES_MAX + 1]);
    let fault = ClientError::KeyTooLong {
        bytes: KEY_BYTES_MAX + 1,
        max: KEY_BYTES_MAX,
    };
    assert_eq!(parse(&[key("get"), long]), Err(fault));
    let long = Bytes::from(vec![b'v'; VALUE_BYTES_MAX + 1]);
    let fault = ClientError::ValueTooLong {
        bytes: VALUE_BYTES_MAX + 1,
        max: VALUE_BYTES_MAX,
    };
    assert_eq!(parse(&[key("set"), key("a"), long]), Err(fault));
}

#[test]
fn a_number_has_one_spelling() {
    for text in [
        "0",
        "1",
        "-1",
        "10",
        "9223372036854775807",
        "-9223372036854775808",
    ] {
        assert_eq!(
            parse_integer(text.as_bytes()),
            Some(text.parse().unwrap()),
            "{text}"
        );
    }
    for text in [
        "",
        "-",
        "-0",
        "+1",
        "01",
        " 1",
        "1 ",
        "1.0",
        "0x1",
        "9223372036854775808",
        "1e3",
    ] {
        assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn keys_of_several_groups_are_refused_naming_two() {
    let space = KeySpace::new(100).unwrap();
    let tags = space.tags();
    let (a, b) = (format!("{{{}}}x", tags[3]), format!("{{{}}}y", tags[7]));
    let op = Op::MGet {
        keys: vec![key(&a), key(&a), key(&b)],
    };
    let (first, other) = (GroupId::new(3), GroupId::new(7));
    assert_eq!(
        op.group(space),
        Err(ClientError::CrossGroup { first, other })
    );
    assert_eq!(Op::Get { key: key(&b) }.group(space), Ok(other));
}

#[test]
fn an_increment_stays_small_in_the_log() {
    let op = Op::IncrBy {
        key: key("k"),
        delta: 1,
    };
    let entry = Entry {
        identity: None,
        body: Body::Single(op),
    };
    assert_eq!(entry.encode().unwrap().len(), 6);
}

#[test]
fn an_entry_of_another_version_or_with_more_behind_it_is_refused() {
    let op = Op::Get { key: key("k") };
    let entry = Entry {
        identity: None,
        body: Body::Single(op),
    };
    let mut bytes = entry.encode().unwrap().to_vec();
    bytes.push(0);
    let trailing = DecodeError::Trailing { bytes: 1 };
    assert_eq!(Entry::decode(bytes.clone().into()), Err(trailing));
    bytes.pop();
    bytes[0] = 1;
    assert_eq!(
        Entry::decode(bytes.into()),
        Err(DecodeError::Version {
            expected: 2,
            got: 1
        })
    );
}

#[test]
fn a_request_id_on_a_read_is_no_entry() {
    let id = RequestId::parse(b"5-x").unwrap();
    let identity = Some(Identity { id, window_ms: 1 });
    let body = Body::Single(Op::Get { key: key("k") });
    let bytes = Entry { identity, body }.encode().unwrap();
    assert_eq!(Entry::decode(bytes), Err(DecodeError::IdentifiedRead));
}

#[test]
fn a_command_too_large_for_the_log_is_refused_before_it_gets_there() {
    let value = Bytes::from(vec![0; VALUE_BYTES_MAX]);
    let op = Op::Set {
        key: key("k"),
        value,
    };
    let body = Body::Transaction(vec![op; 9]);
    let entry = Entry {
        identity: None,
        body,
    };
    assert!(entry.encode().is_err());
}

#[test]
fn arrays_nested_too_deep_are_no_outcome() {
    const TAG_ARRAY_OF_ONE: [u8; 2] = [4, 1];
    let nested = |depth| (0..depth).fold(Outcome::Ok, |inner, _| Outcome::Array(vec![inner]));
    assert_eq!(Outcome::decode(nested(3).encode()), Ok(nested(3)));
    let depth = DecodeError::Bound {
        field: "depth",
        got: 4,
        max: 3,
    };
    assert_eq!(Outcome::decode(nested(4).encode()), Err(depth));
    assert_eq!(
        Outcome::decode([TAG_ARRAY_OF_ONE; 50_000].concat().into()),
        Err(depth)
    );
}

#[test]
fn a_length_beyond_what_follows_allocates_nothing() {
    let bytes = [4u8, 0xff, 0x7f];
    assert_eq!(
        Outcome::decode(Bytes::copy_from_slice(&bytes)),
        Err(DecodeError::Truncated)
    );
}

fn small_bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..12).prop_map(Bytes::from)
}

fn any_write() -> impl Strategy<Value = Op> {
    let keys = prop::collection::vec(small_bytes(), 1..4);
    let pairs = prop::collection::vec((small_bytes(), small_bytes()), 1..4);
    prop_oneof![
        (small_bytes(), small_bytes()).prop_map(|(key, value)| Op::Set { key, value }),
        (small_bytes(), small_bytes()).prop_map(|(key, value)| Op::SetNx { key, value }),
        (small_bytes(), small_bytes()).prop_map(|(key, value)| Op::Append { key, value }),
        (small_bytes(), any::<i64>()).prop_map(|(key, delta)| Op::IncrBy { key, delta }),
        keys.prop_map(|keys| Op::Del { keys }),
        pairs.prop_map(|pairs| Op::MSet { pairs }),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let keys = || prop::collection::vec(small_bytes(), 1..4);
    prop_oneof![
        any_write(),
        small_bytes().prop_map(|key| Op::Get { key }),
        small_bytes().prop_map(|key| Op::StrLen { key }),
        keys().prop_map(|keys| Op::Exists { keys }),
        keys().prop_map(|keys| Op::MGet { keys }),
    ]
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let identity = (0u64..1 << 48, 0u32..86_400_000).prop_map(|(issued, window_ms)| {
        let id = RequestId::parse(format!("{issued}-r").as_bytes()).unwrap();
        Identity { id, window_ms }
    });
    let plain = prop_oneof![
        any_op().prop_map(Body::Single),
        prop::collection::vec(any_op(), 0..5).prop_map(Body::Transaction),
    ];
    prop_oneof![
        plain.prop_map(|body| Entry {
            identity: None,
            body
        }),
        (identity, any_write()).prop_map(|(identity, op)| Entry {
            identity: Some(identity),
            body: Body::Single(op),
        }),
    ]
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    let leaf = prop_oneof![
        Just(Outcome::Ok),
        Just(Outcome::Nil),
        any::<i64>().prop_map(Outcome::Integer),
        small_bytes().prop_map(Outcome::Bulk),
        Just(Outcome::Failed(Failure::Overflow)),
        Just(Outcome::Refused(Refusal::IdReused)),
        any::<u64>().prop_map(|saved| Outcome::Refused(Refusal::TableFull { saved })),
    ];
    let leaf = leaf.boxed();
    prop_oneof![
        leaf.clone(),
        prop::collection::vec(leaf, 0..5).prop_map(Outcome::Array),
    ]
}

proptest! {
    #[test]
    fn an_entry_survives_its_encoding_and_no_part_of_it_is_one(entry in any_entry()) {
        let bytes = entry.encode().unwrap();
        for end in 0..bytes.len() {
            prop_assert!(Entry::decode(bytes.slice(..end)).is_err());
        }
        prop_assert_eq!(Entry::decode(bytes), Ok(entry));
    }

    #[test]
    fn an_outcome_survives_its_encoding_and_no_part_of_it_is_one(outcome in any_outcome()) {
        let bytes = outcome.encode();
        for end in 0..bytes.len() {
            prop_assert!(Outcome::decode(bytes.slice(..end)).is_err());
        }
        prop_assert_eq!(Outcome::decode(bytes), Ok(outcome));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200), first in 0u8..4
    ) {
        let with_version = [&[2, first], bytes.as_slice()].concat();
        for bytes in [bytes, with_version] {
            let bytes = Bytes::from(bytes);
            let _ = Outcome::decode(bytes.clone());
            if let Ok(entry) = Entry::decode(bytes) {
                let again = entry.encode().unwrap();
                prop_assert_eq!(Entry::decode(again), Ok(entry));
            }
        }
    }

    #[test]
    fn a_flipped_bit_never_panics(entry in any_entry(), at in any::<prop::sample::Index>()) {
        let mut bytes = entry.encode().unwrap().to_vec();
        let at = at.index(bytes.len() * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        let _ = Entry::decode(bytes.into());
    }

    #[test]
    fn any_words_are_a_command_or_an_error_of_one_line(
        args in prop::collection::vec(small_bytes(), 0..6), name in 0..NAMES.len()
    ) {
        let named = [vec![key(NAMES[name])], args.clone()].concat();
        for args in [args, named] {
            if let Err(error) = parse(&args) {
                prop_assert!(!error.to_string().contains(['\r', '\n']));
            }
        }
    }
}

#[test]
fn commands_differ_in_hash_by_any_part() {
    let set = |k: &str, v: &str| Op::Set {
        key: key(k),
        value: key(v),
    };
    let bodies = [
        Body::Single(set("a", "b")),
        Body::Single(set("ab", "")),
        Body::Single(set("", "ab")),
        Body::Transaction(vec![set("a", "b")]),
        Body::Single(Op::SetNx {
            key: key("a"),
            value: key("b"),
        }),
    ];
    for (at, one) in bodies.iter().enumerate() {
        for (other_at, other) in bodies.iter().enumerate() {
            assert_eq!(one.hash() == other.hash(), at == other_at);
        }
    }
}
