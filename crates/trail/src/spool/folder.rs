//! The folder of the exports: the position, and the spool of each exporter in a subfolder.
//!
//! All spools share the position, so that the lock covers the whole folder. Otherwise a second process with other
//! exporters would replace the position, and both would skip windows that only the other one exported.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::make_folder;
use super::{Spool, SpoolError};
use crate::position_file::PositionFile;

/// An exclusively locked folder.
#[derive(Debug, Clone)]
pub struct SpoolFolder {
    path: PathBuf,
    /// Locked while the folder or one of its spools is open.
    lock: Arc<File>,
}

impl SpoolFolder {
    /// Locks the folder, which is created if missing.
    ///
    /// # Errors
    /// If the folder cannot be used, or another process uses it.
    pub fn open(path: &Path) -> Result<SpoolFolder, SpoolError> {
        let failed = |source| SpoolError::Open { path: path.to_owned(), source };
        make_folder(path).map_err(failed)?;
        let lock = File::create(path.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(SpoolFolder { path: path.to_owned(), lock: Arc::new(lock) }),
            Err(fs::TryLockError::WouldBlock) => Err(SpoolError::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    pub fn position(&self) -> PositionFile {
        PositionFile::new(&self.path)
    }

    /// Opens the spool of an exporter in the subfolder of this name. Discards batches of passes after `committed`.
    ///
    /// # Errors
    /// If the subfolder cannot be used.
    pub fn spool(&self, name: &str, most_bytes: u64, committed: u64) -> Result<Spool, SpoolError> {
        Spool::open(self.path.join(name), most_bytes, committed, self.lock.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_locked_while_a_spool_is_open() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("spool");
        let folder = SpoolFolder::open(&path).unwrap();
        let spool = folder.spool("loki", 1 << 20, 0).unwrap();
        drop(folder);
        let refused = SpoolFolder::open(&path).unwrap_err();
        assert!(matches!(&refused, SpoolError::InUse { path: named } if *named == path), "{refused}");
        drop(spool);
        SpoolFolder::open(&path).unwrap().spool("otlp", 1 << 20, 0).unwrap();
    }
}
