//! The store that an archive is in, and the names of what is in it. The only file that knows which
//! kinds of store there are.
//!
//! - P1: nothing is written but under a name that isn't taken (A1).
//! - P2: every question to the store has a time limit.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
};
use serde::{Deserialize, Serialize};

use super::error::{ArchiveError, ObjectName};
use crate::causes::with_causes;
use crate::cluster_id::ClusterId;
use crate::limits::{ARCHIVE_BLOCK_OBJECTS, ARCHIVE_STORE_PATIENCE};

/// The schema of [`Identity`].
const SCHEMA: &str = "multigroup.archive/1";

/// Where an archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveUrl {
    /// A folder, named as it is: nothing in the path is decoded.
    Folder(PathBuf),
    /// A bucket; how it is reached and by whom is told by the environment, as AWS' tools have it
    /// (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, …).
    Bucket {
        /// Its name.
        bucket: String,
        /// What all names in it begin with; may be empty.
        prefix: String,
    },
}

impl FromStr for ArchiveUrl {
    type Err = ArchiveError;

    fn from_str(text: &str) -> Result<Self, ArchiveError> {
        let fault = || ArchiveError::Url {
            url: text.to_owned(),
        };
        if let Some(path) = text.strip_prefix("file://") {
            let path = FilePath::new(path);
            return if path.is_absolute() {
                Ok(Self::Folder(path.to_owned()))
            } else {
                Err(fault())
            };
        }
        let rest = text.strip_prefix("s3://").ok_or_else(fault)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(fault());
        }
        Ok(Self::Bucket {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for ArchiveUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "file://{}", path.display()),
            Self::Bucket { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::Bucket { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

/// Whose archive it is: a node of another cluster, or with another key space, doesn't publish there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `multigroup.archive/1`.
    pub schema: String,
    /// The cluster.
    pub cluster: String,
    /// Which cluster of that name; archives of earlier versions don't say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Its groups.
    pub groups: u32,
}

impl Identity {
    /// The identity of a cluster's archive.
    #[must_use]
    pub fn new(cluster: &str, id: ClusterId, groups: u32) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            cluster: cluster.to_owned(),
            cluster_id: Some(id),
            groups,
        }
    }
}

/// Whether an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    Yes,
    /// Something is there under that name.
    Exists,
}

/// An archive that is open.
#[derive(Clone, Debug)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
}

impl Place {
    /// Opens an archive to read it.
    ///
    /// # Errors
    /// [`ArchiveError::Absent`] if there is none, or why it can't be read.
    pub async fn open(url: &ArchiveUrl) -> Result<(Self, Identity), ArchiveError> {
        if let ArchiveUrl::Folder(path) = url
            && !path.is_dir()
        {
            let url = url.to_string();
            return Err(ArchiveError::Absent { url });
        }
        let place = Self::connect(url)?;
        let identity = place.identity().await?;
        let identity = identity.ok_or_else(|| ArchiveError::Absent {
            url: place.url.clone(),
        })?;
        Ok((place, identity))
    }

    /// Opens the place of an archive that is published to. Of a folder that was `begun` nothing is
    /// made: what was in it would be missing.
    pub(super) async fn connect_to_write(
        url: &ArchiveUrl,
        begun: bool,
    ) -> Result<Self, ArchiveError> {
        if let ArchiveUrl::Folder(path) = url {
            let made = if begun && !path.is_dir() {
                let url = url.to_string();
                return Err(ArchiveError::Gone { url });
            } else {
                tokio::fs::create_dir_all(path).await
            };
            made.map_err(|source| ArchiveError::Folder {
                path: path.clone(),
                source,
            })?;
        }
        Self::connect(url)
    }

    /// Whose archive it says it is; `None` if it says nothing.
    pub(super) async fn identity(&self) -> Result<Option<Identity>, ArchiveError> {
        let text = self.get(&self.identity_key(), None).await?;
        let read = text.map(|text| serde_json::from_slice(&text));
        read.transpose().map_err(ArchiveError::Identity)
    }

    /// Says whose archive it is, unless that is said already.
    pub(super) async fn create_identity(&self, own: &Identity) -> Result<(), ArchiveError> {
        let mut text = serde_json::to_vec_pretty(own).map_err(ArchiveError::Identity)?;
        text.push(b'\n');
        self.create(&self.identity_key(), text.into()).await?;
        Ok(())
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn connect(url: &ArchiveUrl) -> Result<Self, ArchiveError> {
        let failed = |source| ArchiveError::Store {
            doing: "open",
            source: Box::new(source),
        };
        let (store, prefix): (Arc<dyn ObjectStore>, &str) = match url {
            ArchiveUrl::Folder(path) => {
                let store = LocalFileSystem::new_with_prefix(path).map_err(failed)?;
                // Logs forget what is archived, so what is said to be there must survive a loss of
                // power.
                (Arc::new(store.with_fsync(true)), "")
            }
            ArchiveUrl::Bucket { bucket, prefix } => {
                check_credentials(url, |name| std::env::var_os(name).is_some())?;
                // Who asks tries again by itself, and says so.
                let retry = RetryConfig {
                    max_retries: 1,
                    retry_timeout: ARCHIVE_STORE_PATIENCE,
                    ..RetryConfig::default()
                };
                let store = AmazonS3Builder::from_env()
                    .with_bucket_name(bucket)
                    .with_retry(retry)
                    .build();
                (Arc::new(store.map_err(failed)?), prefix)
            }
        };
        Ok(Self {
            store,
            prefix: Path::from(prefix),
            url: url.to_string(),
        })
    }

    /// An archive in a store that the caller has, with everything under `prefix`.
    #[cfg(test)]
    pub(super) fn in_store(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self {
            store,
            prefix: Path::from(prefix),
            url: "memory".to_owned(),
        }
    }

    fn key(&self, parts: &[&str]) -> Path {
        let mut key = self.prefix.clone();
        for part in parts {
            key = key.join(*part);
        }
        key
    }

    fn identity_key(&self) -> Path {
        self.key(&["archive.json"])
    }

    /// Folders of so many objects each keep listing cheap.
    pub(super) fn segments_key(&self, name: ObjectName) -> Path {
        let block = name.sequence / ARCHIVE_BLOCK_OBJECTS;
        let (node, block) = (name.node.to_string(), format!("{block:08}"));
        let sequence = format!("{:012}", name.sequence);
        self.key(&["segments", &node, &block, &sequence])
    }

    pub(super) fn manifest_key(&self, node: u64, sequence: u64) -> Path {
        let (node, sequence) = (node.to_string(), format!("{sequence:012}"));
        self.key(&["manifests", &node, &sequence])
    }

    /// An object, or some bytes of one and as many as there are; `None` if there is none.
    pub(super) async fn get(
        &self,
        key: &Path,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ArchiveError> {
        let options = GetOptions::new().with_range(range.map(GetRange::Bounded));
        let read = self.in_time("read an object", async {
            self.store.get_opts(key, options).await?.bytes().await
        });
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is foreign and open"
        )]
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ArchiveError::Store { source, doing }) => match *source {
                object_store::Error::NotFound { .. } => Ok(None),
                source => Err(ArchiveError::Store {
                    doing,
                    source: Box::new(source),
                }),
            },
            Err(error) => Err(error),
        }
    }

    /// Creates an object unless there is one of that name.
    pub(super) async fn create(&self, key: &Path, bytes: Bytes) -> Result<Created, ArchiveError> {
        let options = PutOptions::from(PutMode::Create);
        let put = self.in_time("take an object", async {
            self.store.put_opts(key, bytes.into(), options).await
        });
        match put.await {
            Ok(_) => Ok(Created::Yes),
            Err(ArchiveError::Store { source, .. })
                if matches!(*source, object_store::Error::AlreadyExists { .. }) =>
            {
                Ok(Created::Exists)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what can be made again.
    pub(super) async fn remove(&self, key: &Path) -> Result<(), ArchiveError> {
        self.in_time("remove an object", self.store.delete(key))
            .await
    }

    async fn in_time<T>(
        &self,
        doing: &'static str,
        asked: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ArchiveError> {
        let seconds = ARCHIVE_STORE_PATIENCE.as_secs();
        match tokio::time::timeout(ARCHIVE_STORE_PATIENCE, asked).await {
            Ok(answer) => answer.map_err(|source| {
                if is_without_role(&source) {
                    let url = self.url.clone();
                    return ArchiveError::NoCredentials { url };
                }
                let source = Box::new(source);
                ArchiveError::Store { doing, source }
            }),
            Err(_) => Err(ArchiveError::Late { doing, seconds }),
        }
    }

    /// The nodes that have published.
    pub(super) async fn nodes(&self) -> Result<BTreeSet<u64>, ArchiveError> {
        self.numbers_below(&self.key(&["segments"])).await
    }

    /// The nodes that have written manifests.
    pub(super) async fn nodes_with_manifests(&self) -> Result<BTreeSet<u64>, ArchiveError> {
        self.numbers_below(&self.key(&["manifests"])).await
    }

    async fn numbers_below(&self, key: &Path) -> Result<BTreeSet<u64>, ArchiveError> {
        let list = self.store.list_with_delimiter(Some(key));
        let listed = self.in_time("list its nodes", list).await?;
        let prefixes = listed.common_prefixes.iter();
        Ok(prefixes.filter_map(last_number).collect())
    }

    /// The manifests of a node, oldest first.
    pub(super) async fn manifests(&self, node: u64) -> Result<Vec<u64>, ArchiveError> {
        self.sequences(&self.key(&["manifests", &node.to_string()]))
            .await
    }

    /// The objects of a node, oldest first: all of them, where following them isn't enough.
    pub(super) async fn objects(&self, node: u64) -> Result<Vec<u64>, ArchiveError> {
        self.sequences(&self.key(&["segments", &node.to_string()]))
            .await
    }

    async fn sequences(&self, key: &Path) -> Result<Vec<u64>, ArchiveError> {
        let list = self.store.list(Some(key));
        let listed: Vec<_> = self.in_time("list its objects", list.try_collect()).await?;
        let keys = listed.iter().map(|object| &object.location);
        let mut sequences: Vec<_> = keys.filter_map(last_number).collect();
        sequences.sort_unstable();
        Ok(sequences)
    }
}

/// Refuses half of a key. None at all may be a machine with a role, which is found out by asking.
fn check_credentials(
    url: &ArchiveUrl,
    is_set: impl Fn(&'static str) -> bool,
) -> Result<(), ArchiveError> {
    let [id, secret] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let half = |given, missing| {
        let url = url.to_string();
        Err(ArchiveError::HalfCredentials {
            url,
            given,
            missing,
        })
    };
    match (is_set(id), is_set(secret)) {
        (true, false) => half(id, secret),
        (false, true) => half(secret, id),
        _ => Ok(()),
    }
}

/// Whether a store's fault is that it was looked for a role of this machine, and there is none.
fn is_without_role(error: &object_store::Error) -> bool {
    // The library gives no name to it; the address is that of every machine's own metadata.
    with_causes(error).contains("http://169.254.169.254/")
}

fn last_number(key: &Path) -> Option<u64> {
    key.filename()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_folders_and_buckets() {
        let parse = |text: &str| text.parse::<ArchiveUrl>();
        let folder = ArchiveUrl::Folder("/a/b c".into());
        assert_eq!(parse("file:///a/b c").unwrap(), folder);
        for (text, bucket, prefix) in [
            ("s3://b", "b", ""),
            ("s3://b/", "b", ""),
            ("s3://b/p/q/", "b", "p/q"),
        ] {
            let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
            let expected = ArchiveUrl::Bucket { bucket, prefix };
            assert_eq!(parse(text).unwrap(), expected);
        }
        for text in ["", "/a", "file://a", "s3://", "s3:///p", "gs://b/p"] {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, ArchiveError::Url { .. }), "{text}");
        }
        assert_eq!(parse("s3://b/p").unwrap().to_string(), "s3://b/p");
        assert_eq!(folder.to_string(), "file:///a/b c");
    }

    #[tokio::test]
    async fn what_is_there_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let url = ArchiveUrl::Folder(dir.path().to_owned());
        let place = Place::connect(&url).unwrap();
        let name = ObjectName {
            node: 1,
            sequence: 5000,
        };
        let key = place.segments_key(name);
        let put = |text: &'static str| place.create(&key, Bytes::from_static(text.as_bytes()));
        assert_eq!(place.get(&key, None).await.unwrap(), None);
        assert_eq!(put("first").await.unwrap(), Created::Yes);
        assert_eq!(put("second").await.unwrap(), Created::Exists);
        let read = place.get(&key, None).await.unwrap().unwrap();
        assert_eq!(read, "first");
        let part = place.get(&key, Some(1..100)).await.unwrap().unwrap();
        assert_eq!(part, "irst");
        assert_eq!(place.nodes().await.unwrap(), BTreeSet::from([1]));
        assert_eq!(place.objects(1).await.unwrap(), [5000]);
        assert!(place.objects(2).await.unwrap().is_empty());
    }
}
