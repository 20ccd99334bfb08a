//! Observations on disk, replaced atomically: a crash leaves the old state or the new one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use insight::{NodePresence, SavedEvidence, SavedLedger};
use serde::{Deserialize, Serialize};
use trail::ExportPosition;

const NAME: &str = "edges.json";

/// Version of the format. A file of another version is not read.
const VERSION: u32 = 1;

/// Everything that is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedState {
    /// Which records of the agents the ledger and the evidence have.
    pub(super) position: Option<ExportPosition>,
    pub(super) ledger: SavedLedger,
    pub(super) audits: SavedEvidence,
    pub(super) presence: NodePresence,
}

#[derive(Serialize, Deserialize)]
struct VersionedState<T> {
    version: u32,
    state: T,
}

/// `edges.json` in the state folder.
#[derive(Debug)]
pub(super) struct StateFile {
    folder: PathBuf,
    /// Held while the process lives: two processes would overwrite each other's state.
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is damaged or of another version: {source}")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("{path} has version {version}, expected {VERSION}")]
    Version { path: PathBuf, version: u32 },
}

impl StateFile {
    /// Creates the folder if it is missing, and locks it.
    pub(super) fn open(folder: &Path) -> io::Result<StateFile> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(StateFile { folder: folder.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(io::Error::other("another process uses the folder")),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The last state; `None` if there is none.
    pub(super) fn read(&self) -> Result<Option<SavedState>, StateError> {
        let path = self.folder.join(NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateError::Read { path, source }),
        };
        let read = serde_json::from_reader(BufReader::new(file));
        let VersionedState { version, state } =
            read.map_err(|source| StateError::Damaged { path: path.clone(), source })?;
        match version {
            VERSION => Ok(Some(state)),
            version => Err(StateError::Version { path, version }),
        }
    }

    pub(super) fn write(&self, state: &SavedState) -> io::Result<()> {
        let temporary = self.folder.join(format!("{NAME}.tmp"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let mut writer = BufWriter::new(file);
        serde_json::to_writer(&mut writer, &VersionedState { version: VERSION, state })?;
        writer.flush()?;
        writer.get_ref().sync_all()?;
        fs::rename(&temporary, self.folder.join(NAME))?;
        File::open(&self.folder)?.sync_all()
    }
}
