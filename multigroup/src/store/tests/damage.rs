//! Files that are foreign, damaged or in the way: refused naming the file, never a panic.

use rusqlite::Connection;

use super::*;

/// A closed store with a few rows, all of them in the database file itself.
fn closed_store() -> TempDir {
    let (folder, store) = new_store();
    let log: Vec<_> = (1..=50)
        .map(|i| single(i, set(&format!("k{i}"), &"v".repeat(200))))
        .collect();
    store.apply(group(), &log).unwrap();
    store
        .apply(group(), &[identified(51, 5000, "5000-x", incr("n"))])
        .unwrap();
    store.checkpoint(group()).unwrap();
    drop(store);
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(folder.path().join(format!("3.db{suffix}")));
    }
    folder
}

fn change(folder: &TempDir, sql: &str) {
    Connection::open(folder.path().join("3.db"))
        .unwrap()
        .execute_batch(sql)
        .unwrap();
}

/// The error of the first use of a group whose file was changed by `sql`.
fn refusal_after(sql: &str) -> StoreError {
    let folder = closed_store();
    change(&folder, sql);
    let store = open_at(folder.path());
    let next = store.apply(group(), &[identified(52, 5000, "5000-y", incr("n"))]);
    let error = next.and_then(|_| store.digest(group())).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("3.db") && text.contains(';'),
        "no file or no remedy: {text}"
    );
    error
}

#[test]
fn a_file_of_rubbish_is_no_database() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("3.db"), vec![0xa5; 10_000]).unwrap();
    let error = open_at(folder.path()).applied(group()).unwrap_err();
    assert!(
        matches!(error, StoreError::NotADatabase { .. }),
        "{error:?}"
    );
}

#[test]
fn an_empty_file_is_a_database_that_was_never_made() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("3.db"), b"").unwrap();
    assert_eq!(applied_index(&open_at(folder.path())), 0);
}

#[test]
fn a_folder_in_the_file_s_place_is_refused() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("3.db")).unwrap();
    assert!(open_at(folder.path()).applied(group()).is_err());
    let blocked = folder.path().join("file");
    fs::write(&blocked, b"").unwrap();
    let error = Store::open(StoreOptions::new(blocked, space())).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error:?}");
}

#[test]
fn another_program_s_database_is_refused_and_not_touched() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("3.db");
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE meta(applied_index, applied_term)")
        .unwrap();
    drop(other);
    let before = fs::read(&path).unwrap();
    let error = open_at(folder.path()).applied(group()).unwrap_err();
    assert!(
        matches!(error, StoreError::Foreign { got: 0, .. }),
        "{error:?}"
    );
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn another_group_s_file_and_another_cluster_s_are_refused() {
    let folder = closed_store();
    fs::copy(folder.path().join("3.db"), folder.path().join("4.db")).unwrap();
    let error = open_at(folder.path()).applied(GroupId::new(4)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("belongs to group 3 of 8, not to group 4 of 8"),
        "{error}"
    );
    let space = KeySpace::new(GROUPS + 1).unwrap();
    let store = Store::open(StoreOptions::new(folder.path().to_owned(), space)).unwrap();
    assert!(matches!(
        store.applied(group()),
        Err(StoreError::Owner { .. })
    ));
}

#[test]
fn changed_schemas_are_refused_by_the_object_s_name() {
    let table = [
        ("DROP TABLE kv", "meta"),
        ("DROP TABLE owner", "owner"),
        (
            "CREATE TRIGGER t AFTER INSERT ON kv BEGIN DELETE FROM meta; END",
            "t",
        ),
        ("CREATE VIEW v AS SELECT * FROM kv", "v"),
        ("ALTER TABLE kv ADD COLUMN extra", "kv"),
        ("CREATE INDEX i ON kv(value)", "i"),
    ];
    for (sql, object) in table {
        let error = refusal_after(sql);
        assert!(
            matches!(&error, StoreError::Schema { object: o, .. } if o == object),
            "{error:?}"
        );
    }
    assert!(matches!(
        refusal_after("PRAGMA user_version = 2"),
        StoreError::Version { got: 2, .. }
    ));
}

#[test]
fn a_person_s_analyze_does_no_harm() {
    let folder = closed_store();
    change(&folder, "ANALYZE");
    assert_eq!(applied_index(&open_at(folder.path())), 51);
}

#[test]
fn impossible_contents_are_damage() {
    let table = [
        "DELETE FROM meta",
        "INSERT INTO meta VALUES(1, 1)",
        "UPDATE meta SET applied_index = -1",
        "UPDATE meta SET applied_index = 'x'",
        "UPDATE meta SET applied_term = 1.5",
        "DELETE FROM dedup",
        "UPDATE dedup SET floor_ms = group_time_ms + 1",
        "UPDATE dedup SET saved = 9000000",
        "DELETE FROM owner",
        "UPDATE kv SET value = 7 WHERE key = 'k5'",
        "UPDATE kv SET value = 1.5 WHERE key = 'n'",
    ];
    for sql in table {
        let error = refusal_after(sql);
        assert!(
            matches!(error, StoreError::Corrupt { .. }),
            "{sql}: {error:?}"
        );
    }
}

#[test]
fn a_damaged_saved_outcome_is_not_answered() {
    for sql in [
        "UPDATE outcome SET result = x'ff'",
        "UPDATE outcome SET hash = x'00'",
        "UPDATE outcome SET log_index = -5",
        "UPDATE outcome SET result = 'text'",
    ] {
        let folder = closed_store();
        change(&folder, sql);
        let store = open_at(folder.path());
        let error = store
            .apply(group(), &[identified(52, 5000, "5000-x", incr("n"))])
            .unwrap_err();
        assert!(
            matches!(error, StoreError::Corrupt { .. }),
            "{sql}: {error:?}"
        );
    }
}

#[test]
fn a_damaged_page_never_panics() {
    let folder = closed_store();
    let whole = fs::read(folder.path().join("3.db")).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(211) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        let copy = TempDir::new().unwrap();
        fs::write(copy.path().join("3.db"), bytes).unwrap();
        let store = open_at(copy.path());
        let result = store
            .apply(
                group(),
                &[
                    identified(52, 5000, "5000-x", incr("n")),
                    single(53, incr("k1")),
                ],
            )
            .and_then(|_| store.digest(group()));
        refused += usize::from(result.is_err());
    }
    assert!(refused > 2, "only {refused} of the damages were noticed");
}

#[test]
fn a_file_cut_short_never_panics() {
    let folder = closed_store();
    let whole = fs::read(folder.path().join("3.db")).unwrap();
    for pages in 0..whole.len() / 4096 {
        for more in [0, 1, 50, 4095] {
            let copy = TempDir::new().unwrap();
            fs::write(copy.path().join("3.db"), &whole[..pages * 4096 + more]).unwrap();
            let store = open_at(copy.path());
            let _ = store.apply(group(), &[single(52, incr("n"))]);
            let _ = store.digest(group());
        }
    }
}
