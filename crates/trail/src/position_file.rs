//! The export position on disk, replaced atomically: a crash leaves the old position or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::exported_records::ExportPosition;

const NAME: &str = "position";

/// First word of the file, with the format version.
const MAGIC: &str = "ringfence-trail-position-1";

/// Upper bound of the file in bytes. A node needs about 100.
const LARGEST: u64 = 64 << 20;

/// `position` in the spool's folder.
#[derive(Debug)]
pub struct PositionFile {
    folder: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum PositionFileError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is damaged: its checksum does not match")]
    Damaged { path: PathBuf },
}

impl PositionFile {
    pub(crate) fn new(folder: &Path) -> PositionFile {
        PositionFile { folder: folder.to_owned() }
    }

    /// Reads the last written position; `None` if there is no file.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn read(&self) -> Result<Option<ExportPosition>, PositionFileError> {
        let path = self.folder.join(NAME);
        let damaged = || PositionFileError::Damaged { path: path.clone() };
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > LARGEST => return Err(damaged()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(PositionFileError::Read { path, source }),
        }
        let text = fs::read(&path).map_err(|source| PositionFileError::Read { path: path.clone(), source })?;
        let end = text.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let (head, body) = (&text[..end], &text[end + 1..]);
        let expected = format!("{MAGIC} {:08x}", crc32fast::hash(body));
        if head != expected.as_bytes() {
            return Err(damaged());
        }
        serde_json::from_slice(body).map(Some).map_err(|_| damaged())
    }

    /// # Errors
    /// If the file cannot be written; the previous one is unchanged.
    pub fn write(&self, position: &ExportPosition) -> io::Result<()> {
        let body = serde_json::to_vec(position)?;
        let temporary = self.folder.join(format!("{NAME}.tmp"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let written = writeln!(file, "{MAGIC} {:08x}", crc32fast::hash(&body))
            .and_then(|()| file.write_all(&body))
            .and_then(|()| file.sync_all());
        drop(file);
        if let Err(error) = written {
            fs::remove_file(&temporary)?;
            return Err(error);
        }
        fs::rename(&temporary, self.folder.join(NAME))?;
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::exported_records::EpochPosition;

    #[test]
    fn damaged_position_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let file = PositionFile::new(folder.path());
        assert_eq!(file.read().unwrap(), None);
        let at = Timestamp::UNIX_EPOCH;
        let node = EpochPosition { epoch: 1, sequence: 9, newest: at };
        let position =
            ExportPosition { pass: 4, window: at, nodes: [("n1".into(), vec![node])].into(), excess: vec![] };
        file.write(&position).unwrap();
        file.write(&ExportPosition { pass: 5, ..position.clone() }).unwrap();
        assert_eq!(file.read().unwrap().map(|position| position.pass), Some(5));
        let path = folder.path().join(NAME);
        let text = fs::read(&path).unwrap();
        for length in 0..text.len() {
            fs::write(&path, &text[..length]).unwrap();
            assert!(matches!(file.read(), Err(PositionFileError::Damaged { .. })), "{length}");
        }
        let mut flipped = text.clone();
        *flipped.last_mut().unwrap() ^= 1;
        fs::write(&path, flipped).unwrap();
        assert!(matches!(file.read(), Err(PositionFileError::Damaged { .. })));
    }
    #[test]
    fn position_with_one_epoch_per_node_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let body = r#"{"pass":4,"window":"1970-01-01T00:00:00Z","nodes":{"n1":{"epoch":1,"sequence":9,"newest":"1970-01-01T00:00:00Z"}},"excess":[]}"#;
        let text = format!("{MAGIC} {:08x}\n{body}", crc32fast::hash(body.as_bytes()));
        fs::write(folder.path().join(NAME), text).unwrap();
        let position = PositionFile::new(folder.path()).read().unwrap().unwrap();
        let node = EpochPosition { epoch: 1, sequence: 9, newest: Timestamp::UNIX_EPOCH };
        assert_eq!(position.nodes, [("n1".into(), vec![node])].into());
    }
}
