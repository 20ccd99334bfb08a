//! Baselines as objects in a folder or a bucket, for consumers that cannot reach the provider, and for `build`.
//!
//! Objects are immutable: their names contain version and position. `<feed>/latest.json` points to the newest and is
//! written last, so that its objects exist. Older objects are removed some baselines later.

mod sync;

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
use crate::leader_election::Assurance;
pub(crate) use sync::StoreSync;

/// Older baselines that are kept: a reader of the pointer has as many intervals to read the objects that it names.
const OLDER_KEPT: usize = 4;

/// Retries of short outages of the bucket, which are not logged. Other errors are returned, and retried by the caller.
fn retries() -> RetryConfig {
    RetryConfig { max_retries: 2, retry_timeout: Duration::from_secs(5), ..RetryConfig::default() }
}

/// Error of a store.
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
    /// The objects of this baseline by part, the table first.
    pub(crate) objects: Vec<StoredForm>,
    /// Objects of previous baselines, oldest first.
    #[serde(default)]
    older: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredForm {
    /// `baseline`, or the name of another part.
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
    /// A store to write to: a folder is created if missing.
    pub(crate) fn create(url: &StoreUrl) -> Result<Store, StoreError> {
        match url.folder() {
            Some(folder) => Store::create_folder(&folder),
            None => Store::open(url),
        }
    }

    /// A folder, or a bucket with credentials from the environment.
    pub(crate) fn open(url: &StoreUrl) -> Result<Store, StoreError> {
        if let Some(folder) = url.folder() {
            return Store::of_folder(&folder);
        }
        feed::install_tls_provider();
        let bucket = AmazonS3Builder::from_env().with_url(url.0.as_str()).with_retry(retries());
        // Some S3 implementations do not support bulk deletion, and there is little to delete.
        let bucket = bucket.with_disable_bulk_delete(true).build().map_err(StoreError::Unusable)?;
        let prefix = Path::from_url_path(url.0.path()).map_err(|error| StoreError::Unusable(error.into()))?;
        Ok(Store { objects: Arc::new(bucket), prefix })
    }

    /// A folder, created if missing.
    pub(crate) fn create_folder(folder: &FilePath) -> Result<Store, StoreError> {
        let unusable = |error: std::io::Error| {
            StoreError::Unusable(object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(error) })
        };
        std::fs::create_dir_all(folder).map_err(unusable)?;
        Store::of_folder(folder)
    }

    /// An existing folder.
    pub(crate) fn of_folder(folder: &FilePath) -> Result<Store, StoreError> {
        let objects = object_store::local::LocalFileSystem::new_with_prefix(folder).map_err(StoreError::Unusable)?;
        Ok(Store { objects: Arc::new(objects), prefix: Path::default() })
    }

    /// Writes a baseline of the feed, then the pointer to it, then removes old objects. Objects of a failed try are
    /// added to `left`, and the next try removes them first, since it may need their space. Returns the error of
    /// removing old objects, which does not prevent new ones from being stored.
    pub(crate) async fn write_baseline(
        &self,
        feed: &str,
        baseline: &Baseline,
        left: &mut Vec<String>,
        assurance: &Assurance,
    ) -> Result<Option<StoreError>, StoreError> {
        let before = match self.latest(feed).await {
            // The pointer is rewritten.
            Err(error @ StoreError::NotUnderstood { .. }) => {
                tracing::warn!(feed, "{error}; replacing it");
                None
            }
            latest => latest?,
        };
        // A failed write of the pointer may have succeeded on the server.
        left.retain(|name| !before.as_ref().is_some_and(|latest| latest.names(name)));
        // Failed removals are retried at the end.
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
            objects.push(StoredForm { what: what.into(), object });
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
        // The objects of the new pointer stay.
        left.retain(|name| !latest.names(name));
        left.extend(outdated);
        Ok(self.clear(feed, left, assurance).await.err())
    }

    /// Removes the objects; those that could not be removed stay in the list.
    async fn clear(&self, feed: &str, left: &mut Vec<String>, assurance: &Assurance) -> Result<(), StoreError> {
        while let Some(name) = left.last() {
            let path = self.path(feed, name);
            assurance.wait().await;
            match self.objects.delete(&path).await {
                // It was never written, or removed by someone else.
                Ok(()) | Err(object_store::Error::NotFound { .. }) => drop(left.pop()),
                Err(error) => return Err(StoreError::Failed { what: path.to_string(), error }),
            }
        }
        Ok(())
    }

    /// The newest baseline of the feed; `None` if there never was one.
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
        assurance.wait().await;
        let written = self.objects.put(path, PutPayload::from_bytes(bytes)).await;
        written.map(|_| ()).map_err(|error| StoreError::Failed { what: path.to_string(), error })
    }

    fn path(&self, feed: &str, object: &str) -> Path {
        self.prefix.clone().join(feed).join(object)
    }
}
