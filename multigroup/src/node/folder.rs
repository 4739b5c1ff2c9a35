//! What a node keeps beside its log and its databases: in the data folder, whose that is; in the
//! cluster's folder, the process's number while it runs, and what it said last.
//!
//! `DATA/identity.toml` names cluster, node and number of groups. It is made before anything else
//! in an empty folder and checked at each start, so that a node never works on another's data, nor
//! on a folder that isn't a node's.
//!
//! The cluster's folder is the one that holds `node-N`: a configuration at `DIR/node-N/config.toml`
//! is of the cluster in `DIR`, which its relative paths are taken from; one that stands elsewhere
//! is of the folder that it stands in. There are `pids/node-N` (locked as long as the process
//! lives, so a second one can't take it over) and `logs/node-N.final.json`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::NodeError;
use crate::cli::durable::{self, Readers};
use crate::config::Config;

const IDENTITY: &str = "identity.toml";

/// How often a running node looks for its data folder: files that were unlinked take writes as
/// before, so nothing else would tell.
const DATA_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The folder of the cluster that a configuration belongs to; see the head of this file.
///
/// # Errors
/// If the current folder isn't known, which a relative path is taken from.
pub fn cluster_folder(config_path: &Path, node: u64) -> io::Result<PathBuf> {
    let path = std::path::absolute(config_path)?;
    let folder = durable::folder_of(&path);
    let is_nodes = folder.file_name() == Some(format!("node-{node}").as_ref());
    let cluster = folder.parent().filter(|_| is_nodes);
    Ok(cluster.unwrap_or(folder).to_owned())
}

/// Where a node's last status is written.
#[must_use]
pub fn final_status_path(cluster: &Path, node: u64) -> PathBuf {
    cluster.join("logs").join(format!("node-{node}.final.json"))
}

/// Where the number of a node's process is found.
#[must_use]
pub fn pid_path(cluster: &Path, node: u64) -> PathBuf {
    cluster.join("pids").join(format!("node-{node}"))
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    cluster: String,
    node: u64,
    groups: u32,
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> NodeError + 'a {
    move |source| NodeError::Folder {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// Makes sure that the data folder is this node's, and makes it if it isn't there.
pub(super) fn claim_data(config: &Config) -> Result<(), NodeError> {
    let folder = config.data_dir();
    let path = folder.join(IDENTITY);
    let expected = Identity {
        cluster: config.raw().cluster.clone(),
        node: config.node(),
        groups: config.space().groups(),
    };
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    match fs::read_to_string(&path) {
        Ok(text) => check_identity(&path, &text, &expected),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            refuse_foreign(folder)?;
            let text = toml::to_string(&expected).unwrap_or_default();
            durable::write(&path, text.as_bytes(), Readers::All).map_err(failed("write", &path))
        }
        Err(error) => Err(failed("read", &path)(error)),
    }
}

/// Ends when the data folder isn't there any more, or another is in its place; gives the file that
/// is missed. What can't be asked about just now is asked about again.
pub(super) async fn gone(data: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    let path = data.join(IDENTITY);
    let known = tokio::fs::metadata(data).await.ok();
    let known = known.map(|folder| (folder.dev(), folder.ino()));
    loop {
        tokio::time::sleep(DATA_LOOK_INTERVAL).await;
        let missing = match tokio::fs::metadata(&path).await {
            Ok(_) => false,
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
        };
        let now = tokio::fs::metadata(data).await.ok();
        let other = now.is_some_and(|now| Some((now.dev(), now.ino())) != known);
        if missing || other {
            return path;
        }
    }
}

fn check_identity(path: &Path, text: &str, expected: &Identity) -> Result<(), NodeError> {
    let path = path.to_owned();
    let Ok(got) = toml::from_str::<Identity>(text) else {
        return Err(NodeError::IdentityDamaged { path });
    };
    let differs = |key, expected: &dyn ToString, got: &dyn ToString| NodeError::OtherNode {
        path: path.clone(),
        key,
        expected: expected.to_string(),
        got: got.to_string(),
    };
    if got.cluster != expected.cluster {
        return Err(differs("cluster", &expected.cluster, &got.cluster));
    }
    if got.node != expected.node {
        return Err(differs("node", &expected.node, &got.node));
    }
    if got.groups != expected.groups {
        return Err(differs("groups", &expected.groups, &got.groups));
    }
    Ok(())
}

/// A folder without an identity may hold what a file system puts there, and what a start left
/// behind that was cut off before it wrote one; nothing else.
fn refuse_foreign(folder: &Path) -> Result<(), NodeError> {
    let listed = fs::read_dir(folder).map_err(failed("read", folder))?;
    for entry in listed {
        let name = entry.map_err(failed("read", folder))?.file_name();
        let name = name.to_string_lossy();
        let left_over = name.starts_with(".identity.toml.") && name.ends_with(".tmp");
        if name != "lost+found" && !left_over {
            return Err(NodeError::Foreign {
                path: folder.to_owned(),
                found: name.into_owned(),
            });
        }
    }
    Ok(())
}

/// The file that names this process, for as long as it runs.
#[derive(Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    /// Its lock goes with it.
    _file: File,
}

impl PidFile {
    /// Takes the node's place.
    pub(super) fn take(cluster: &Path, node: u64) -> Result<Self, NodeError> {
        let path = pid_path(cluster, node);
        let folder = durable::folder_of(&path);
        fs::create_dir_all(folder).map_err(failed("create", folder))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // What it holds is for the message alone.
                let _ = file.take(20).read_to_string(&mut pid);
                let pid = pid.trim().to_owned();
                return Err(NodeError::AlreadyRuns { node, path, pid });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
        let line = format!("{}\n", std::process::id());
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(line.as_bytes()));
        written.map_err(failed("write", &path))?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "can't remove the file of the pid");
        }
    }
}

/// Writes what the node said last.
pub(super) fn write_final(
    cluster: &Path,
    node: u64,
    status: &impl Serialize,
) -> Result<PathBuf, NodeError> {
    let path = final_status_path(cluster, node);
    let folder = durable::folder_of(&path);
    let text = serde_json::to_vec_pretty(status)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
    let written = fs::create_dir_all(folder)
        .and(text)
        .and_then(|text| durable::write(&path, &text, Readers::All));
    written.map_err(|source| NodeError::FinalStatus {
        path: path.clone(),
        source,
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_s_folder_is_that_around_node_n() {
        let of = |path: &str, node| cluster_folder(Path::new(path), node).unwrap();
        assert_eq!(of("/a/demo/node-1/config.toml", 1), Path::new("/a/demo"));
        assert_eq!(
            of("/a/demo/node-1/config.toml", 2),
            Path::new("/a/demo/node-1")
        );
        assert_eq!(of("/etc/multigroup.toml", 1), Path::new("/etc"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(of("node-3/config.toml", 3), here);
        assert_eq!(of("config.toml", 3), here);
    }

    #[tokio::test]
    async fn a_folder_that_was_taken_away_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join(IDENTITY), "").unwrap();
        let (missed, ()) = tokio::join!(gone(&data), async {
            tokio::task::yield_now().await;
            fs::rename(&data, dir.path().join("aside")).unwrap();
        });
        assert_eq!(missed, data.join(IDENTITY));
    }

    #[test]
    fn one_process_at_a_time_has_a_node_s_place() {
        let dir = tempfile::tempdir().unwrap();
        let first = PidFile::take(dir.path(), 1).unwrap();
        let own = format!("{}\n", std::process::id());
        assert_eq!(fs::read_to_string(pid_path(dir.path(), 1)).unwrap(), own);
        let refused = PidFile::take(dir.path(), 1);
        assert!(matches!(refused, Err(NodeError::AlreadyRuns { pid, .. }) if pid == own.trim()));
        let _other = PidFile::take(dir.path(), 2).unwrap();
        drop(first);
        assert!(!pid_path(dir.path(), 1).exists());
        // One that a killed process left.
        fs::write(pid_path(dir.path(), 1), "99999999999\n").unwrap();
        let _second = PidFile::take(dir.path(), 1).unwrap();
        assert_eq!(fs::read_to_string(pid_path(dir.path(), 1)).unwrap(), own);
    }
}
