//! Reads a regular file without waiting for a writer, a device or a terminal.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::manifest::FILE_BYTES;

/// Reads the file up to one byte more than [`FILE_BYTES`], so that a larger file is recognised.
///
/// A symlink may lead to any file, and the file may have been replaced after it was listed, so its type is read from the
/// open file. `O_NONBLOCK` has no effect on files of a disk. Without it, opening a FIFO waits for a writer, and so does
/// reading some files that are regular only by their type, such as `/proc/kmsg`. `O_NOCTTY` keeps a terminal from
/// becoming the controlling one of this process. The standard library adds `O_CLOEXEC`.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(explain)?;
    Ok(bytes)
}

fn explain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other("reading would block: not a file of a disk"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_folders_are_refused() {
        for path in ["/dev/zero", "/dev/tty", "/"] {
            read(Path::new(path)).unwrap_err();
        }
        assert_eq!(read(Path::new("/dev/zero")).unwrap_err().to_string(), "not a regular file");
    }

    #[test]
    fn blocking_read_is_refused() {
        let refused = explain(io::ErrorKind::WouldBlock.into());
        assert_eq!(refused.to_string(), "reading would block: not a file of a disk");
    }

    #[test]
    fn large_file_is_read_up_to_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(10 << 30).unwrap();
        assert_eq!(read(file.path()).unwrap().len(), FILE_BYTES + 1);
    }
}
