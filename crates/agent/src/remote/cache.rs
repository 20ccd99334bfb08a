//! Persists the remote sets, so that the agent enforces them from its start until a context provider sends a baseline.
//!
//! The file is a baseline of the feed (docs/remote-clusters.md), each row with the time at which it was last known to
//! be current. It is replaced atomically: written to a temporary file, then renamed.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use policy::remote::wire::RemoteBaseline;

/// File name in the state folder.
pub(crate) const FILE: &str = "remote-sets.json";

/// Temporary file of a write.
const NEW: &str = "remote-sets.json.new";

/// New name of a file that cannot be decoded.
const DAMAGED: &str = "remote-sets.json.damaged";

#[derive(Debug, Clone)]
pub(crate) struct RemoteCache {
    folder: PathBuf,
}

impl RemoteCache {
    /// Creates the folder if it is missing.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<RemoteCache> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(|| {
            format!("cannot create the state folder {}; choose another one with --state-dir", folder.display())
        })?;
        Ok(RemoteCache { folder: folder.to_owned() })
    }

    /// Files in the folder that belong to the agent.
    pub(crate) fn files(folder: &Path) -> [PathBuf; 3] {
        [FILE, NEW, DAMAGED].map(|name| folder.join(name))
    }

    /// The persisted baseline; `None` if there is none. A damaged file is renamed and reported as an error.
    pub(crate) fn read(&self) -> anyhow::Result<Option<RemoteBaseline>> {
        let path = self.folder.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        match serde_json::from_slice(&text) {
            Ok(baseline) => Ok(Some(baseline)),
            Err(error) => {
                let aside = self.folder.join(DAMAGED);
                std::fs::rename(&path, &aside)
                    .with_context(|| format!("cannot rename the damaged file {}", path.display()))?;
                bail!(
                    "the state file {} is damaged ({error}) and was renamed to {}; no pod of another cluster is \
                     admitted until a context provider answers",
                    path.display(),
                    aside.display()
                )
            }
        }
    }

    /// Replaces the file atomically; on failure the old one remains.
    pub(crate) fn write(&self, baseline: &RemoteBaseline) -> anyhow::Result<()> {
        let (new, path) = (self.folder.join(NEW), self.folder.join(FILE));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(baseline)?)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().with_context(|| format!("cannot write the state of other clusters to {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use policy::remote::RemoteSet;
    use policy::remote::wire::{ClusterRow, SetRow};

    use super::*;

    fn baseline() -> RemoteBaseline {
        let row =
            ClusterRow { cluster: "east".into(), reachable: false, synced_at: "2026-01-02T03:04:05Z".parse().ok() };
        let set = SetRow { set: RemoteSet::new("east", "shop", "web"), addresses: vec!["10.8.0.1".parse().unwrap()] };
        RemoteBaseline { clusters: vec![row], sets: vec![set], ..RemoteBaseline::default() }
    }

    #[test]
    fn baseline_on_disk_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RemoteCache::open(&folder.path().join("a/b")).unwrap();
        assert_eq!(cache.read().unwrap(), None);
        cache.write(&RemoteBaseline::default()).unwrap();
        cache.write(&baseline()).unwrap();
        assert_eq!(cache.read().unwrap(), Some(baseline()));
    }

    #[test]
    fn damaged_file_is_moved_aside_and_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RemoteCache::open(folder.path()).unwrap();
        std::fs::write(folder.path().join(FILE), r#"{"epoch":0,"seq":0,"clusters":[],"se"#).unwrap();
        let error = cache.read().unwrap_err().to_string();
        assert!(error.contains("is damaged") && error.contains(DAMAGED), "{error}");
        assert_eq!(cache.read().unwrap(), None);
        assert!(folder.path().join(DAMAGED).exists());
    }

    #[test]
    fn failed_write_keeps_previous_baseline() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RemoteCache::open(folder.path()).unwrap();
        cache.write(&baseline()).unwrap();
        // A folder blocks the path of the temporary file.
        std::fs::create_dir(folder.path().join(NEW)).unwrap();
        let error = cache.write(&RemoteBaseline::default()).unwrap_err();
        assert!(error.to_string().starts_with("cannot write the state of other clusters to"), "{error}");
        assert_eq!(cache.read().unwrap(), Some(baseline()));
    }
}
