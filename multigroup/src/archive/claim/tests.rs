//! Claims of an archive in a folder: who may publish there, and who is refused by which name.

use std::path::Path;

use bytes::Bytes;
use raft_host::id::{GroupId, Index, Term};
use raft_host::log::api::{EntryKind, LogEntry};

use super::super::object::ObjectBuilder;
use super::*;

const FIRST: [u8; 16] = [1; 16];
const SECOND: [u8; 16] = [2; 16];

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn archive(&self) -> PathBuf {
        self.dir.path().join("new/archive")
    }

    /// Node `node` with a data folder of this name.
    fn claim(&self, node: u64, data: &str, id: Option<ClusterId>) -> Claim {
        let data = self.dir.path().join(data);
        fs::create_dir_all(&data).unwrap();
        Claim {
            url: ArchiveUrl::Folder(self.archive()),
            own: Whose {
                cluster: "dev".to_owned(),
                id,
                groups: 8,
            },
            node,
            incarnation: FIRST,
            data,
        }
    }
}

async fn publish(place: &Place, node: u64, incarnation: [u8; 16]) {
    let name = ObjectName { node, sequence: 1 };
    let entry = LogEntry {
        index: Index::new(1),
        term: Term::new(1),
        kind: EntryKind::Normal,
        data: Bytes::new(),
        context: Bytes::new(),
    };
    let mut builder = ObjectBuilder::default();
    builder.add(GroupId::new(0), Term::new(0), &[entry]);
    let (bytes, _) = builder.finish(name, incarnation, 0);
    place
        .create(&place.segments_key(name), bytes)
        .await
        .unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

#[tokio::test]
async fn an_archive_belongs_to_one_cluster_and_one_key_space() {
    let world = World::new();
    let id = ClusterId::draw().unwrap();
    let own = world.claim(1, "one", Some(id));
    let (_, identity) = own.open().await.unwrap();
    assert_eq!(identity, Identity::new("dev", id, 8));
    assert_eq!(own.open().await.unwrap().1, identity);
    let other_id = ClusterId::draw().unwrap();
    let same_name = world.claim(1, "same-name", Some(other_id));
    let (mut other_name, mut other_groups) = (own.clone(), own.clone());
    other_name.own.cluster = "prod".to_owned();
    other_groups.own.groups = 9;
    for other in [same_name, other_name, other_groups] {
        let error = other.open().await.unwrap_err();
        assert!(matches!(error, ArchiveError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains(&id.to_string()), "{error}");
    }
}

#[tokio::test]
async fn nodes_without_an_id_take_one_together_and_keep_to_it() {
    let world = World::new();
    let claims = [1, 2, 3].map(|node| world.claim(node, &format!("data-{node}"), None));
    let [one, two, three] = &claims;
    let (one, two, three) = tokio::join!(one.open(), two.open(), three.open());
    let ids = [one, two, three].map(|opened| opened.unwrap().1.cluster_id);
    assert!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]));
    // The same data with another archive of the same name.
    let elsewhere = World::new();
    elsewhere.claim(1, "one", None).open().await.unwrap();
    let mut moved = claims[0].clone();
    moved.url = ArchiveUrl::Folder(elsewhere.archive());
    let error = moved.open().await.unwrap_err();
    assert!(matches!(error, ArchiveError::Foreign { .. }), "{error}");
    // What is remembered, with another id in the configuration.
    let mut other = claims[0].clone();
    other.own.id = Some(ClusterId::draw().unwrap());
    let error = other.open().await.unwrap_err();
    assert!(matches!(error, ArchiveError::OtherId { .. }), "{error}");
}

#[tokio::test]
async fn what_was_begun_and_is_gone_is_missed_and_not_begun_again() {
    let world = World::new();
    let claim = world.claim(1, "one", None);
    let (place, identity) = claim.open().await.unwrap();
    still_there(&place, &identity).await.unwrap();
    let aside = world.dir.path().join("aside");
    fs::rename(world.archive(), &aside).unwrap();
    let gone = |error: &ArchiveError| matches!(error, ArchiveError::Gone { .. });
    assert!(gone(&claim.open().await.unwrap_err()));
    assert!(gone(&still_there(&place, &identity).await.unwrap_err()));
    assert!(!world.archive().exists(), "it was made again");
    // An empty folder in its place, as a mount that went away leaves it.
    fs::create_dir_all(world.archive()).unwrap();
    assert!(gone(&claim.open().await.unwrap_err()));
    // Another's file in its place.
    let elsewhere = World::new();
    elsewhere.claim(1, "one", None).open().await.unwrap();
    copy(
        &elsewhere.archive().join("archive.json"),
        &world.archive().join("archive.json"),
    );
    let error = still_there(&place, &identity).await.unwrap_err();
    assert!(matches!(error, ArchiveError::Foreign { .. }), "{error}");
    fs::remove_dir_all(world.archive()).unwrap();
    fs::rename(&aside, world.archive()).unwrap();
    assert_eq!(claim.open().await.unwrap().1, identity);
    still_there(&place, &identity).await.unwrap();
}

#[tokio::test]
async fn a_node_that_was_wiped_does_not_go_on_after_its_old_objects() {
    let world = World::new();
    let (place, _) = world.claim(1, "one", None).open().await.unwrap();
    publish(&place, 1, FIRST).await;
    world.claim(1, "one", None).open().await.unwrap();
    let mut wiped = world.claim(1, "wiped", None);
    wiped.incarnation = SECOND;
    let error = wiped.open().await.unwrap_err();
    assert!(
        matches!(error, ArchiveError::Wiped { node: 1, .. }),
        "{error}"
    );
    // Another node, which has published nothing, has nothing to be held against.
    world.claim(2, "two", None).open().await.unwrap();
}

#[tokio::test]
async fn objects_and_archives_that_name_no_owner_are_nobody_s() {
    let world = World::new();
    let (place, _) = world.claim(1, "one", None).open().await.unwrap();
    publish(&place, 1, FIRST).await;
    let file = world.archive().join("archive.json");
    fs::remove_file(&file).unwrap();
    let error = world.claim(2, "two", None).open().await.unwrap_err();
    assert!(matches!(error, ArchiveError::Ownerless { .. }), "{error}");
    // As earlier versions began it.
    let text = r#"{"schema": "multigroup.archive/1", "cluster": "dev", "groups": 8}"#;
    fs::write(&file, text).unwrap();
    let error = world.claim(2, "two", None).open().await.unwrap_err();
    assert!(
        matches!(error, ArchiveError::Unidentified { .. }),
        "{error}"
    );
    let (_, identity) = Place::open(&world.claim(2, "two", None).url).await.unwrap();
    assert_eq!(identity.cluster_id, None, "it can still be read");
}

#[tokio::test]
async fn a_folder_that_can_not_be_made_is_named() {
    let world = World::new();
    fs::write(world.dir.path().join("new"), "").unwrap();
    let error = world.claim(1, "one", None).open().await.unwrap_err();
    assert!(matches!(error, ArchiveError::Folder { .. }), "{error}");
    assert!(error.wants_an_operator());
}
