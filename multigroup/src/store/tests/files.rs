//! Files: open handles, checkpoints, snapshots and their installation.

use super::*;
use crate::limits::CHECKPOINT_BATCHES;

#[test]
fn no_more_databases_stay_open_than_allowed() {
    let folder = TempDir::new().unwrap();
    let options = StoreOptions {
        open_max: 3,
        ..StoreOptions::new(folder.path().into(), space())
    };
    let store = Store::open(options).unwrap();
    for round in 1..=5 {
        for group in space().all() {
            let effects = store.apply(group, &[single(round, incr("a"))]).unwrap();
            let expected = Outcome::Integer(i64::try_from(round).unwrap());
            assert_eq!(effects, [done(round, expected)]);
            assert!(store.open_count() <= 3);
        }
    }
}

#[test]
fn the_database_that_closes_is_the_one_longest_unused() {
    let folder = TempDir::new().unwrap();
    let options = StoreOptions {
        open_max: 2,
        ..StoreOptions::new(folder.path().into(), space())
    };
    let store = Store::open(options).unwrap();
    let [a, b, c] = [0, 1, 2].map(GroupId::new);
    let temp_limit = |group| {
        store.with(group, |db| {
            let pages = db
                .connection()
                .pragma_query_value(None, "max_page_count", |row| row.get(0));
            pages.map_err(StoreError::sqlite(Path::new("")))
        })
    };
    let mark = |group| {
        let set = |db: &mut group_db::GroupDb| {
            let set = db
                .connection()
                .pragma_update_and_check(None, "max_page_count", 1234, |_| Ok(()));
            set.map_err(StoreError::sqlite(Path::new("")))
        };
        store.with(group, set).unwrap();
    };
    mark(a);
    mark(b);
    store.with(a, |_| Ok(())).unwrap();
    store.with(c, |_| Ok(())).unwrap();
    let kept: i64 = temp_limit(a).unwrap();
    let reopened: i64 = temp_limit(b).unwrap();
    assert_eq!(kept, 1234);
    assert_ne!(reopened, 1234);
}

#[test]
fn databases_that_are_all_in_use_in_turn_stay_within_the_bound() {
    let folder = TempDir::new().unwrap();
    let options = StoreOptions {
        open_max: 3,
        ..StoreOptions::new(folder.path().into(), space())
    };
    let store = Store::open(options).unwrap();
    for round in 0..4 {
        for group in 0..u64::from(GROUPS) {
            // Each of the open ones was used again since it was opened.
            for again in [group, group + 1, group + 2, group + round, group + 1] {
                store
                    .with(GroupId::new(again % u64::from(GROUPS)), |_| Ok(()))
                    .unwrap();
                assert!(store.open_count() <= 3, "{} open", store.open_count());
            }
        }
    }
}

#[test]
fn many_threads_share_few_handles() {
    let folder = TempDir::new().unwrap();
    let options = StoreOptions {
        open_max: 2,
        ..StoreOptions::new(folder.path().into(), space())
    };
    let store = Store::open(options).unwrap();
    std::thread::scope(|scope| {
        for group in space().all() {
            let store = &store;
            scope.spawn(move || {
                for index in 1..=50 {
                    store.apply(group, &[single(index, incr("a"))]).unwrap();
                    store.digest(GroupId::new(0)).unwrap();
                }
            });
        }
    });
    for group in space().all() {
        assert_eq!(store.applied(group).unwrap().index, Index::new(50));
    }
}

#[test]
fn what_a_crash_left_of_a_new_file_is_made_anew() {
    let (folder, store) = new_store();
    fs::write(folder.path().join("3.db.new"), b"half a file").unwrap();
    store.apply(group(), &[single(1, incr("a"))]).unwrap();
    assert_eq!(value_of(&store, "a"), Outcome::Bulk(b("1")));
    drop(store);
    let names = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().contains("new"))
    );
}

#[test]
fn a_group_that_does_not_exist_is_refused() {
    let (_folder, store) = new_store();
    let error = store.applied(GroupId::new(u64::from(GROUPS))).unwrap_err();
    assert!(matches!(
        error,
        StoreError::NoSuchGroup { groups: GROUPS, .. }
    ));
}

#[test]
fn the_floor_of_a_whole_checkpoint_survives_the_loss_of_the_write_ahead_log() {
    let (_folder, store) = new_store();
    let log: Vec<_> = (1..=9).map(|index| single(index, incr("a"))).collect();
    store.apply(group(), &log[..5]).unwrap();
    assert_eq!(
        store.checkpoint(group()).unwrap(),
        Checkpoint::Whole {
            floor: Index::new(5)
        }
    );
    store.apply(group(), &log[5..]).unwrap();
    let copy = TempDir::new().unwrap();
    copy_files(&store, copy.path());
    fs::remove_file(copy.path().join("3.db-wal")).unwrap();
    let survivor = open_at(copy.path());
    assert_eq!(
        (applied_index(&survivor), value_of(&survivor, "a")),
        (5, Outcome::Bulk(b("5")))
    );
    survivor.apply(group(), &log).unwrap();
    assert_eq!(
        survivor.digest(group()).unwrap(),
        store.digest(group()).unwrap()
    );
}

#[test]
fn a_checkpoint_that_a_reader_held_back_gives_no_floor() {
    let (_folder, store) = new_store();
    store.apply(group(), &[single(1, incr("a"))]).unwrap();
    let mut reader = rusqlite::Connection::open(store.path_of(group())).unwrap();
    let reading = reader.transaction().unwrap();
    let index: i64 = reading
        .query_row("SELECT applied_index FROM meta", [], |r| r.get(0))
        .unwrap();
    assert_eq!(index, 1);
    store.apply(group(), &[single(2, incr("a"))]).unwrap();
    let partial = store.checkpoint(group()).unwrap();
    assert!(
        matches!(partial, Checkpoint::Partial { frames, moved } if moved < frames),
        "{partial:?}"
    );
    drop(reading);
    assert_eq!(
        store.checkpoint(group()).unwrap(),
        Checkpoint::Whole {
            floor: Index::new(2)
        }
    );
}

#[test]
fn a_group_with_many_batches_is_due_for_a_checkpoint_once() {
    let (_folder, store) = new_store();
    for index in 1..CHECKPOINT_BATCHES {
        store.apply(group(), &[single(index, incr("a"))]).unwrap();
    }
    assert_eq!(store.take_checkpoint_due(), None);
    store
        .apply(group(), &[single(CHECKPOINT_BATCHES, incr("a"))])
        .unwrap();
    assert_eq!(store.take_checkpoint_due(), Some(group()));
    assert_eq!(store.take_checkpoint_due(), None);
}

/// A store at index 5 with a saved outcome, its snapshot file, and where it stands.
fn with_snapshot() -> (TempDir, Store, std::path::PathBuf, Applied) {
    let (folder, store) = new_store();
    let batch = [
        single(1, set("a", "1")),
        single(2, set("b", "2")),
        identified(3, 5000, "5000-x", incr("a")),
        empty(4, 1),
        single(5, incr("b")),
    ];
    store.apply(group(), &batch).unwrap();
    let file = folder.path().join("snapshot");
    let applied = store.snapshot(group(), &file).unwrap();
    assert_eq!(applied.index, Index::new(5));
    (folder, store, file, applied)
}

#[test]
fn a_snapshot_installs_on_another_replica_and_goes_on_from_there() {
    let (_source_folder, source, file, applied) = with_snapshot();
    let (folder, target) = new_store();
    target
        .apply(
            group(),
            &[single(1, set("old", "x")), single(2, set("old2", "x"))],
        )
        .unwrap();
    let moved = folder.path().join("received");
    fs::copy(&file, &moved).unwrap();
    target.stage(group(), &moved, applied).unwrap();
    assert_eq!(applied_index(&target), 2);
    target.install_staged(group(), applied).unwrap();
    assert_eq!(
        target.digest(group()).unwrap(),
        source.digest(group()).unwrap()
    );
    // The saved outcomes came along.
    let again = target
        .apply(group(), &[identified(6, 5001, "5000-x", incr("a"))])
        .unwrap();
    let known = Effect::Known {
        index: Index::new(3),
        outcome: Outcome::Integer(2),
    };
    assert_eq!(again[0].effect, known);
    target.install_staged(group(), applied).unwrap();
    assert_eq!(applied_index(&target), 6);
}

#[test]
fn an_install_cut_off_at_any_point_is_finished_by_doing_it_again() {
    let (_source_folder, source, file, applied) = with_snapshot();
    let old_wal = |store: &Store| store.path_of(group()).with_file_name("3.db-wal");
    for steps in 0..3 {
        let (folder, target) = new_store();
        target
            .apply(group(), &[single(1, set("old", "x"))])
            .unwrap();
        let received = folder.path().join("received");
        fs::copy(&file, &received).unwrap();
        target.stage(group(), &received, applied).unwrap();
        drop(target);
        let target = open_at(folder.path());
        // What an install does, up to where it was cut off.
        if steps >= 1 {
            fs::remove_file(old_wal(&target)).unwrap();
            let _ = fs::remove_file(target.path_of(group()).with_file_name("3.db-shm"));
        }
        if steps >= 2 {
            let staged = target.path_of(group()).with_file_name("3.db.staged");
            fs::rename(staged, target.path_of(group())).unwrap();
        }
        target.install_staged(group(), applied).unwrap();
        assert_eq!(
            target.digest(group()).unwrap(),
            source.digest(group()).unwrap(),
            "{steps}"
        );
    }
}

#[test]
fn nothing_staged_is_not_an_installed_snapshot() {
    let (_folder, store) = new_store();
    let applied = Applied {
        index: Index::new(5),
        term: Term::new(1),
    };
    let error = store.install_staged(group(), applied).unwrap_err();
    assert!(
        matches!(error, StoreError::SnapshotMismatch { .. }),
        "{error:?}"
    );
}

#[test]
fn a_snapshot_that_is_not_what_was_promised_is_left_alone() {
    let (folder, store, file, applied) = with_snapshot();
    let elsewhere = Applied {
        index: Index::new(6),
        ..applied
    };
    let error = store.stage(group(), &file, elsewhere).unwrap_err();
    assert!(matches!(error, StoreError::SnapshotMismatch { .. }));
    let error = store.stage(GroupId::new(2), &file, applied).unwrap_err();
    assert!(matches!(error, StoreError::Owner { .. }));
    let cut = folder.path().join("cut");
    let bytes = fs::read(&file).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 4096]).unwrap();
    let error = store.stage(group(), &cut, applied).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    assert!(file.exists() && cut.exists());
}

#[test]
fn a_snapshot_never_overwrites_a_file() {
    let (_folder, store, file, _) = with_snapshot();
    let before = fs::read(&file).unwrap();
    assert!(matches!(
        store.snapshot(group(), &file),
        Err(StoreError::Io { .. })
    ));
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn the_file_has_the_tables_that_other_programs_may_read() {
    let (folder, store) = new_store();
    store
        .apply(
            group(),
            &[single(
                1,
                Op::IncrBy {
                    key: b("n"),
                    delta: 42,
                },
            )],
        )
        .unwrap();
    let file = rusqlite::Connection::open(folder.path().join("3.db")).unwrap();
    let row = file.query_row("SELECT applied_index, applied_term FROM meta", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    });
    assert_eq!(row, Ok((1, 1)));
    let sql = "SELECT CAST(value AS TEXT), typeof(key), typeof(value) FROM kv WHERE key = 'n'";
    let row = file.query_row(sql, [], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, String>(2)?,
        ))
    });
    assert_eq!(row, Ok(("42".into(), "text".into(), "blob".into())));
}

#[test]
fn a_group_without_a_file_is_read_as_empty_and_gets_none_by_it() {
    let (folder, store) = new_store();
    let keys = vec![b("x"), b("y")];
    let ops = vec![
        Op::Get { key: b("x") },
        Op::StrLen { key: b("x") },
        Op::Exists { keys: keys.clone() },
        Op::MGet { keys },
    ];
    let reads = Body::Transaction(ops);
    let without = store.read(group(), &reads).unwrap();
    let digest = store.digest(group()).unwrap();
    assert_eq!(store.row_count(group()).unwrap(), 0);
    assert_eq!(store.applied(group()).unwrap(), Applied::default());
    assert!(!store.exists(group()).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let write = Body::Single(incr("x"));
    let refused = store.read(group(), &write);
    assert!(matches!(refused, Err(StoreError::NotARead { .. })));
    // An empty file says the same.
    store.with(group(), |_| Ok(())).unwrap();
    assert!(store.exists(group()).unwrap());
    assert_eq!(store.read(group(), &reads).unwrap(), without);
    assert_eq!(store.digest(group()).unwrap(), digest);
    drop(store);
    assert!(open_at(folder.path()).exists(group()).unwrap());
}

#[test]
fn what_is_noted_stands_for_a_database_until_it_is_opened() {
    let folder = TempDir::new().unwrap();
    let open = || {
        let options = StoreOptions {
            noted: Some(folder.path().join("applied")),
            ..StoreOptions::new(folder.path().join("groups"), space())
        };
        Store::open(options).unwrap()
    };
    let store = open();
    store.apply(group(), &[single(1, incr("a"))]).unwrap();
    let older = fs::read(folder.path().join("applied")).unwrap();
    store.apply(group(), &[single(2, incr("a"))]).unwrap();
    drop(store);

    let store = open();
    assert_eq!(store.applied(group()).unwrap().index, Index::new(2));
    assert_eq!(store.open_count(), 0);
    let done = store.apply(group(), &[single(3, incr("a"))]).unwrap();
    assert_eq!(done.len(), 1);
    drop(store);

    // A process that was killed between its commit and its note.
    fs::write(folder.path().join("applied"), older).unwrap();
    let store = open();
    assert_eq!(store.applied(group()).unwrap().index, Index::new(1));
    let again = [2, 3, 4].map(|index| single(index, incr("a")));
    let done = store.apply(group(), &again).unwrap();
    assert_eq!(done.len(), 1, "two of them were applied before");
    drop(store);

    // A database that is older than what was noted of it.
    let path = open().path_of(group());
    for ending in ["db", "db-wal", "db-shm"] {
        fs::remove_file(path.with_extension(ending)).unwrap();
    }
    let other = open_at(&folder.path().join("groups"));
    other.apply(group(), &[single(1, incr("a"))]).unwrap();
    drop(other);
    let store = open();
    let body = Body::Single(Op::Get { key: b("a") });
    let refused = store.read(group(), &body);
    assert!(
        matches!(refused, Err(StoreError::Behind { .. })),
        "{refused:?}"
    );
}
