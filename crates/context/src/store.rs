//! Baselines as objects: in a folder or a bucket, for consumers that the provider cannot reach and for what `build`
//! writes.
//!
//! An object never changes once it is written: its name has its version and position. `<feed>/latest.json` points to the
//! newest and is written last, so that whoever reads it finds what it names. Older objects are removed some
//! baselines later.

mod keeping;

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feed::Head;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, RetryConfig};
use serde::{Deserialize, Serialize};

use crate::channel::{Baseline, Unencodable};
use crate::cli::StoreUrl;
use crate::leading::Assurance;
pub(crate) use keeping::Keeping;

/// Baselines that stay beside the newest: whoever has read the pointer has so many intervals for reading what it names.
const OLDER_KEPT: usize = 4;

/// What is tried again without a word: a hiccup of the bucket. All else is told, and tried again by whoever wants it.
fn retries() -> RetryConfig {
    RetryConfig { max_retries: 2, retry_timeout: Duration::from_secs(5), ..RetryConfig::default() }
}

/// Why a store does not do what it is for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot open the store: {0}")]
    Unusable(object_store::Error),
    #[error("{what}: {error}")]
    Failed { what: String, error: object_store::Error },
    #[error("cannot decode {what}: {error}")]
    NotUnderstood { what: String, error: serde_json::Error },
    #[error(transparent)]
    Unencodable(#[from] Unencodable),
}

/// `<feed>/latest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latest {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// The objects of this baseline, by what they are: the table first.
    pub(crate) objects: Vec<Stored>,
    /// Objects of baselines before, oldest first.
    #[serde(default)]
    older: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// `baseline`, or what else goes with it.
    pub(crate) what: String,
    /// Its name beside `latest.json`.
    pub(crate) object: String,
}

impl Latest {
    fn names(&self, object: &str) -> bool {
        self.objects.iter().map(|stored| &stored.object).chain(&self.older).any(|name| name == object)
    }
}

#[derive(Clone)]
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Store {
    /// To write to: a folder is made if it is not there.
    pub(crate) fn create(url: &StoreUrl) -> Result<Store, StoreError> {
        match url.folder() {
            Some(folder) => Store::create_folder(&folder),
            None => Store::open(url),
        }
    }

    /// A folder, or a bucket with what the environment says of access to it.
    pub(crate) fn open(url: &StoreUrl) -> Result<Store, StoreError> {
        if let Some(folder) = url.folder() {
            return Store::of_folder(&folder);
        }
        feed::install_tls_provider();
        let bucket = AmazonS3Builder::from_env().with_url(url.0.as_str()).with_retry(retries());
        // Not all that speak S3 delete in bulk, and there is little to delete.
        let bucket = bucket.with_disable_bulk_delete(true).build().map_err(StoreError::Unusable)?;
        let prefix = Path::from_url_path(url.0.path()).map_err(|error| StoreError::Unusable(error.into()))?;
        Ok(Store { objects: Arc::new(bucket), prefix })
    }

    /// A folder, which is made if it is not there.
    pub(crate) fn create_folder(folder: &FilePath) -> Result<Store, StoreError> {
        let unusable = |error: std::io::Error| {
            StoreError::Unusable(object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(error) })
        };
        std::fs::create_dir_all(folder).map_err(unusable)?;
        Store::of_folder(folder)
    }

    /// A folder that is there.
    pub(crate) fn of_folder(folder: &FilePath) -> Result<Store, StoreError> {
        let objects = object_store::local::LocalFileSystem::new_with_prefix(folder).map_err(StoreError::Unusable)?;
        Ok(Store { objects: Arc::new(objects), prefix: Path::default() })
    }

    /// Writes a baseline of the feed, then the pointer to it, then removes what is old. What a try writes that fails is
    /// `left` over, and the next one begins with removing it: it may lack just that room. Gives why something old is still
    /// there, which keeps nothing new from being stored.
    pub(crate) async fn keep(
        &self,
        feed: &str,
        baseline: &Baseline,
        left: &mut Vec<String>,
        assurance: &Assurance,
    ) -> Result<Option<StoreError>, StoreError> {
        let before = match self.latest(feed).await {
            // It is written anew.
            Err(error @ StoreError::NotUnderstood { .. }) => {
                tracing::warn!(feed, "{error}; replacing it");
                None
            }
            latest => latest?,
        };
        // A pointer whose writing failed may have been written all the same.
        left.retain(|name| !before.as_ref().is_some_and(|latest| latest.names(name)));
        // What cannot be removed now is tried again at the end.
        drop(self.clear(feed, left, assurance).await);
        let head = baseline.encoded().await?.head.clone();
        let stem = format!("{}-{}-{}", head.version, head.position.epoch, head.position.seq);
        let mut objects = Vec::new();
        for (what, extension) in baseline.parts() {
            let Some(encoded) = baseline.encoded_part(what).await else { continue };
            let bytes = encoded?.bytes.clone();
            let object = format!("{stem}.{extension}");
            left.push(object.clone());
            self.write(&self.path(feed, &object), bytes, assurance).await?;
            objects.push(Stored { what: what.into(), object });
        }
        let is_new = |name: &String| !objects.iter().any(|stored| stored.object == *name);
        let before = before.map_or_else(Vec::new, |latest| {
            latest.older.into_iter().chain(latest.objects.into_iter().map(|stored| stored.object)).collect()
        });
        let mut older: Vec<String> = before.into_iter().filter(is_new).collect();
        let outdated = older.len().saturating_sub(OLDER_KEPT * objects.len());
        let outdated: Vec<String> = older.drain(..outdated).collect();
        let latest = Latest { head, objects, older };
        let path = self.path(feed, "latest.json");
        let text = serde_json::to_vec_pretty(&latest)
            .map_err(|error| StoreError::NotUnderstood { what: path.to_string(), error })?;
        self.write(&path, text.into(), assurance).await?;
        // What the pointer names now is not left over.
        left.retain(|name| !latest.names(name));
        left.extend(outdated);
        Ok(self.clear(feed, left, assurance).await.err())
    }

    /// Removes the objects; those that are still there stay in the list.
    async fn clear(&self, feed: &str, left: &mut Vec<String>, assurance: &Assurance) -> Result<(), StoreError> {
        while let Some(name) = left.last() {
            let path = self.path(feed, name);
            assurance.given().await;
            match self.objects.delete(&path).await {
                // It was never there, or somebody tidied up.
                Ok(()) | Err(object_store::Error::NotFound { .. }) => drop(left.pop()),
                Err(error) => return Err(StoreError::Failed { what: path.to_string(), error }),
            }
        }
        Ok(())
    }

    /// The newest baseline of the feed; none if there never was one.
    pub(crate) async fn latest(&self, feed: &str) -> Result<Option<Latest>, StoreError> {
        let path = self.path(feed, "latest.json");
        match self.objects.get(&path).await {
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(StoreError::Failed { what: path.to_string(), error }),
            Ok(found) => {
                let bytes =
                    found.bytes().await.map_err(|error| StoreError::Failed { what: path.to_string(), error })?;
                serde_json::from_slice(&bytes)
                    .map(Some)
                    .map_err(|error| StoreError::NotUnderstood { what: path.to_string(), error })
            }
        }
    }

    /// Whether the newest baseline of the feed has this version and is complete.
    pub(crate) async fn has_baseline(&self, feed: &str, version: &str) -> Result<bool, StoreError> {
        let latest = match self.latest(feed).await {
            Err(StoreError::NotUnderstood { .. }) => return Ok(false),
            latest => latest?,
        };
        let Some(latest) = latest.filter(|latest| latest.head.version == version) else { return Ok(false) };
        for stored in &latest.objects {
            let path = self.path(feed, &stored.object);
            match self.objects.head(&path).await {
                Ok(_) => {}
                Err(object_store::Error::NotFound { .. }) => return Ok(false),
                Err(error) => return Err(StoreError::Failed { what: path.to_string(), error }),
            }
        }
        Ok(true)
    }

    pub(crate) async fn read(&self, feed: &str, object: &str) -> Result<Bytes, StoreError> {
        let path = self.path(feed, object);
        let failed = |error| StoreError::Failed { what: path.to_string(), error };
        self.objects.get(&path).await.map_err(failed)?.bytes().await.map_err(failed)
    }

    async fn write(&self, path: &Path, bytes: Bytes, assurance: &Assurance) -> Result<(), StoreError> {
        assurance.given().await;
        let written = self.objects.put(path, PutPayload::from_bytes(bytes)).await;
        written.map(|_| ()).map_err(|error| StoreError::Failed { what: path.to_string(), error })
    }

    fn path(&self, feed: &str, object: &str) -> Path {
        self.prefix.clone().join(feed).join(object)
    }
}
