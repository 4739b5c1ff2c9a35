//! Applying: what operations do, in which order batches count, what a crash or a full disk leaves.

use super::*;
use crate::command::Failure;
use crate::limits::{OUTCOME_BYTES_MAX, VALUE_BYTES_MAX};
use crate::session::Refusal;

#[test]
fn operations_do_what_redis_does() {
    let (_folder, store) = new_store();
    let int = Outcome::Integer;
    let bulk = |text: &str| Outcome::Bulk(b(text));
    let by = |key: &str, delta| Op::IncrBy { key: b(key), delta };
    let append = |key: &str, value: &str| Op::Append {
        key: b(key),
        value: b(value),
    };
    let get = |key: &str| Op::Get { key: b(key) };
    let table = [
        (get("a"), Outcome::Nil),
        (Op::StrLen { key: b("a") }, int(0)),
        (set("a", "1"), Outcome::Ok),
        (get("a"), bulk("1")),
        (incr("a"), int(2)),
        (by("a", -5), int(-3)),
        (get("a"), bulk("-3")),
        (
            Op::SetNx {
                key: b("a"),
                value: b("x"),
            },
            int(0),
        ),
        (
            Op::SetNx {
                key: b("n"),
                value: b("x"),
            },
            int(1),
        ),
        (incr("n"), Outcome::Failed(Failure::NotAnInteger)),
        (get("n"), bulk("x")),
        (append("n", "yz"), int(3)),
        (append("new", "q"), int(1)),
        (Op::StrLen { key: b("n") }, int(3)),
        (
            Op::Exists {
                keys: vec![b("a"), b("a"), b("none")],
            },
            int(2),
        ),
        (
            Op::MSet {
                pairs: vec![(b("m"), b("1")), (b("m"), b("2"))],
            },
            Outcome::Ok,
        ),
        (
            Op::MGet {
                keys: vec![b("m"), b("none"), b("n")],
            },
            Outcome::Array(vec![bulk("2"), Outcome::Nil, bulk("xyz")]),
        ),
        (set("max", "9223372036854775807"), Outcome::Ok),
        (incr("max"), Outcome::Failed(Failure::Overflow)),
        (get("max"), bulk("9223372036854775807")),
        (by("min", i64::MIN), int(i64::MIN)),
        (by("min", -1), Outcome::Failed(Failure::Overflow)),
        (set("spaced", " 1"), Outcome::Ok),
        (incr("spaced"), Outcome::Failed(Failure::NotAnInteger)),
        (
            Op::Del {
                keys: vec![b("a"), b("a"), b("m"), b("none")],
            },
            int(2),
        ),
        (get("a"), Outcome::Nil),
        (set("", ""), Outcome::Ok),
        (get(""), bulk("")),
        (incr(""), Outcome::Failed(Failure::NotAnInteger)),
    ];
    for (at, (op, expected)) in table.into_iter().enumerate() {
        let index = at as u64 + 1;
        let effects = store.apply(group(), &[single(index, op.clone())]).unwrap();
        assert_eq!(effects, [done(index, expected)], "{op:?}");
    }
}

#[test]
fn keys_and_values_may_be_any_bytes() {
    let (_folder, store) = new_store();
    let keys = [&b"\xff\xfe"[..], b"\0", b"a\0b", b"a", b"\xc3"].map(Bytes::from_static);
    let sets = keys.iter().enumerate().map(|(at, key)| {
        single(
            at as u64 + 1,
            Op::Set {
                key: key.clone(),
                value: key.clone(),
            },
        )
    });
    store.apply(group(), &sets.collect::<Vec<_>>()).unwrap();
    store.close_idle();
    assert_eq!(store.row_count(group()).unwrap(), 5);
    let body = Body::Single(Op::MGet {
        keys: keys.to_vec(),
    });
    let values = keys.iter().cloned().map(Outcome::Bulk).collect();
    assert_eq!(
        store.read(group(), &body).unwrap().1,
        Outcome::Array(values)
    );
}

#[test]
fn a_transaction_has_one_result_and_a_failure_in_it_undoes_nothing() {
    let (_folder, store) = new_store();
    let ops = vec![set("a", "x"), incr("a"), incr("n"), Op::Get { key: b("n") }];
    let effects = store
        .apply(group(), &[entry(1, Body::Transaction(ops))])
        .unwrap();
    let results = vec![
        Outcome::Ok,
        Outcome::Failed(Failure::NotAnInteger),
        Outcome::Integer(1),
        Outcome::Bulk(b("1")),
    ];
    assert_eq!(effects, [done(1, Outcome::Array(results))]);
}

#[test]
fn what_grows_beyond_its_bound_fails_and_changes_nothing() {
    let (_folder, store) = new_store();
    let value = Bytes::from(vec![b'v'; VALUE_BYTES_MAX]);
    let batch = [
        single(
            1,
            Op::Set {
                key: b("k"),
                value: value.clone(),
            },
        ),
        single(
            2,
            Op::Append {
                key: b("k"),
                value: b("x"),
            },
        ),
        single(
            3,
            Op::MGet {
                keys: vec![b("k"); OUTCOME_BYTES_MAX / VALUE_BYTES_MAX],
            },
        ),
    ];
    let effects = store.apply(group(), &batch).unwrap();
    assert_eq!(effects[1], done(2, Outcome::Failed(Failure::ValueTooLong)));
    assert_eq!(effects[2], done(3, Outcome::Failed(Failure::ReplyTooLarge)));
    assert_eq!(value_of(&store, "k"), Outcome::Bulk(value));
}

#[test]
fn replicas_agree_however_their_batches_were_cut() {
    let log: Vec<Committed> = (1..=60)
        .map(|index| match index % 4 {
            0 => empty(index, 1),
            1 => identified(
                index,
                5000 + index * 40,
                &format!("{}-r", 5000 + index / 8),
                incr("a"),
            ),
            2 => single(index, set(&format!("k{}", index % 7), &index.to_string())),
            _ => single(
                index,
                Op::Del {
                    keys: vec![b(&format!("k{}", index % 5))],
                },
            ),
        })
        .collect();
    let digests = [1, 7, 60].map(|size| {
        let (_folder, store) = new_store();
        for batch in log.chunks(size) {
            store.apply(group(), batch).unwrap();
            if size == 7 {
                store.close_idle();
            }
        }
        store.digest(group()).unwrap()
    });
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[1], digests[2]);
    assert!(digests[0].rows > 1 && digests[0].applied.index == Index::new(60));
}

#[test]
fn digests_differ_by_any_part_of_any_row() {
    let digest_of = |sets: &[(&str, &str)]| {
        let (_folder, store) = new_store();
        let sets = sets.iter().enumerate();
        let batch: Vec<_> = sets
            .map(|(at, (k, v))| single(at as u64 + 1, set(k, v)))
            .collect();
        store.apply(group(), &batch).unwrap();
        store.digest(group()).unwrap().sha256
    };
    let base = digest_of(&[("a", "1"), ("b", "2")]);
    assert_eq!(base, digest_of(&[("b", "2"), ("a", "1")]));
    assert_ne!(base, digest_of(&[("a", "1"), ("b", "3")]));
    assert_ne!(base, digest_of(&[("a", "1b"), ("", "2")]));
    assert_ne!(base, digest_of(&[("a", "1")]));
    assert_eq!(
        digest_of(&[]),
        <[u8; 32]>::try_from(sha256_of_nothing()).unwrap()
    );
}

fn sha256_of_nothing() -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, b"")
        .as_ref()
        .to_vec()
}

#[test]
fn entries_applied_before_are_skipped_and_told_nothing_of() {
    let (_folder, store) = new_store();
    let log: Vec<_> = (1..=4).map(|index| single(index, incr("a"))).collect();
    store.apply(group(), &log[..3]).unwrap();
    assert_eq!(store.apply(group(), &log[..3]).unwrap(), []);
    assert_eq!(
        store.apply(group(), &log).unwrap(),
        [done(4, Outcome::Integer(4))]
    );
}

#[test]
fn a_gap_in_the_log_is_refused_naming_both_indexes() {
    let (_folder, store) = new_store();
    store.apply(group(), &[single(1, incr("a"))]).unwrap();
    let error = store.apply(group(), &[single(3, incr("a"))]).unwrap_err();
    let (expected, got) = (Index::new(2), Index::new(3));
    assert!(
        matches!(error, StoreError::Gap { expected: e, got: g, .. } if (e, g) == (expected, got))
    );
    let hole = [single(2, incr("a")), single(4, incr("a"))];
    assert!(matches!(
        store.apply(group(), &hole),
        Err(StoreError::Gap { .. })
    ));
    assert_eq!(value_of(&store, "a"), Outcome::Bulk(b("1")));
}

#[test]
fn another_history_at_the_applied_index_is_refused() {
    let (_folder, store) = new_store();
    store.apply(group(), &[empty(1, 2), empty(2, 5)]).unwrap();
    let other = store.apply(group(), &[empty(2, 4), empty(3, 5)]);
    assert!(matches!(other, Err(StoreError::TermMismatch { .. })));
    let older = store.apply(group(), &[empty(3, 4)]);
    assert!(matches!(older, Err(StoreError::TermMismatch { .. })));
    let applied = Applied {
        index: Index::new(2),
        term: Term::new(5),
    };
    assert_eq!(store.applied(group()).unwrap(), applied);
}

#[test]
fn a_batch_with_an_entry_that_can_t_be_read_leaves_nothing_behind() {
    let (_folder, store) = new_store();
    let mut bad = single(2, incr("a"));
    bad.data = Bytes::from_static(b"\x09rubbish");
    let error = store
        .apply(group(), &[single(1, incr("a")), bad])
        .unwrap_err();
    assert!(matches!(error, StoreError::Undecodable { index, .. } if index == Index::new(2)));
    assert!(error.to_string().contains("3.db"), "{error}");
    assert_eq!(
        (applied_index(&store), value_of(&store, "a")),
        (0, Outcome::Nil)
    );
}

#[test]
fn a_write_isn_t_answered_as_a_read() {
    let (_folder, store) = new_store();
    let fault = store.read(group(), &Body::Single(incr("a")));
    assert!(matches!(fault, Err(StoreError::NotARead { .. })));
}

#[test]
fn a_repeated_request_is_answered_from_the_table_and_done_once() {
    let (_folder, store) = new_store();
    let first = identified(1, 5000, "5000-x", incr("a"));
    let again = identified(2, 5001, "5000-x", incr("a"));
    let other = identified(3, 5002, "5000-x", incr("b"));
    let late = identified(4, 9000, "5000-x", incr("a"));
    store.apply(group(), &[first]).unwrap();
    store.close_idle();
    let effects = store.apply(group(), &[again, other, late]).unwrap();
    let known = Effect::Known {
        index: Index::new(1),
        outcome: Outcome::Integer(1),
    };
    assert_eq!(
        effects[0],
        AppliedEntry {
            index: Index::new(2),
            effect: known
        }
    );
    assert_eq!(effects[1], done(3, Outcome::Refused(Refusal::IdReused)));
    let floor = UnixMillis::new(8000);
    let too_old = Refusal::IdTooOld {
        issued: UnixMillis::new(5000),
        floor,
    };
    assert_eq!(effects[2], done(4, Outcome::Refused(too_old)));
    assert_eq!(
        (value_of(&store, "a"), value_of(&store, "b")),
        (Outcome::Bulk(b("1")), Outcome::Nil)
    );
}

#[test]
fn a_failure_is_saved_like_any_result() {
    let (_folder, store) = new_store();
    let batch = [
        single(1, set("a", "x")),
        identified(2, 5000, "5000-x", incr("a")),
        single(3, set("a", "1")),
        identified(4, 5000, "5000-x", incr("a")),
    ];
    let effects = store.apply(group(), &batch).unwrap();
    let outcome = Outcome::Failed(Failure::NotAnInteger);
    assert_eq!(
        effects[3].effect,
        Effect::Known {
            index: Index::new(2),
            outcome
        }
    );
    assert_eq!(value_of(&store, "a"), Outcome::Bulk(b("1")));
}

#[test]
fn expired_outcomes_leave_the_table_a_few_at_a_time() {
    let (_folder, store) = new_store();
    let many: Vec<_> = (1..=40)
        .map(|index| identified(index, 5000, &format!("5000-{index}"), incr("a")))
        .collect();
    store.apply(group(), &many).unwrap();
    let left = |store: &Store| {
        let count = "SELECT count(*) = (SELECT saved FROM dedup), count(*) FROM outcome";
        let read = |db: &mut group_db::GroupDb| {
            let row = db
                .connection()
                .query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?)));
            row.map_err(StoreError::sqlite(Path::new("")))
        };
        let (agree, count): (bool, i64) = store.with(group(), read).unwrap();
        assert!(agree, "the books and the table disagree");
        count
    };
    assert_eq!(left(&store), 40);
    store
        .apply(group(), &[identified(41, 90_000, "90000-a", incr("a"))])
        .unwrap();
    assert_eq!(left(&store), 40 - 16 + 1);
    let two = [42, 43].map(|index| identified(index, 90_000, &format!("90000-{index}"), incr("a")));
    store.apply(group(), &two).unwrap();
    assert_eq!(left(&store), 3);
}

#[test]
fn a_crash_at_any_batch_is_made_good_by_replaying_the_log() {
    let log: Vec<_> = (1..=30)
        .map(|index| match index % 3 {
            0 => identified(index, 5000, &format!("5000-{}", index / 6), incr("once")),
            _ => single(index, incr(&format!("k{}", index % 4))),
        })
        .collect();
    let (_folder, store) = new_store();
    let mut crashed = Vec::new();
    for batch in log.chunks(4) {
        let copy = TempDir::new().unwrap();
        copy_files(&store, copy.path());
        crashed.push(copy);
        store.apply(group(), batch).unwrap();
        if batch[0].index == Index::new(13) {
            store.checkpoint(group()).unwrap();
        }
    }
    let whole = store.digest(group()).unwrap();
    for (batches, copy) in crashed.iter().enumerate() {
        let store = open_at(copy.path());
        assert_eq!(applied_index(&store), batches as u64 * 4);
        store.apply(group(), &log).unwrap();
        assert_eq!(store.digest(group()).unwrap(), whole);
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing_half_applied() {
    let (_folder, store) = new_store();
    store.apply(group(), &[single(1, set("a", "1"))]).unwrap();
    let limit_pages = |pages: u32| {
        store.with(group(), |db| {
            let limit =
                db.connection()
                    .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
            limit.map_err(StoreError::sqlite(Path::new("")))
        })
    };
    limit_pages(8).unwrap();
    let value = "v".repeat(100_000);
    let batch = [single(2, set("a", "2")), single(3, set("b", &value))];
    let error = store.apply(group(), &batch).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error:?}");
    assert_eq!(
        (applied_index(&store), value_of(&store, "a")),
        (1, Outcome::Bulk(b("1")))
    );
    // The limit went with the handle that failed, as if room had been made.
    assert_eq!(store.apply(group(), &batch).unwrap().len(), 2);
    assert_eq!(value_of(&store, "b"), Outcome::Bulk(b(&value)));
}
