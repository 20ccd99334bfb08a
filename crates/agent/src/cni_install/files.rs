//! Configuration files: listing them, and replacing one while other programs may write it.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::conflist::Unusable;

/// Maximum size of a configuration. One with a dozen plugins has a few kilobytes.
const LARGEST_BYTES: u64 = 1 << 20;

/// Extensions considered by runtimes.
const EXTENSIONS: [&str; 3] = [".conf", ".conflist", ".json"];

/// Suffix of temporary files, whose names begin with a dot; no runtime reads them. They are in the folder of their
/// target, because containerd reloads the configuration after a rename within the folder, but not after one from
/// elsewhere (`syncLoop` of its `cni_conf_syncer.go`).
const TEMPORARY: &str = ".ringfence-tmp";

/// Bound on temporary files for one name. Each exists for milliseconds, or was left by a killed process.
const MOST_TEMPORARY: u32 = 64;

/// Bound on attempts to replace a file that other programs write concurrently.
const MOST_RACES: u32 = 16;

/// Timeout for a program that still writes to the replaced file.
const WRITER_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which the replaced file is read again until then.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Result of rewriting a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RewriteOutcome {
    Gone,
    Unusable(Unusable),
    Unchanged(PathBuf),
    Written(PathBuf),
}

/// The files that runtimes consider (`ConfFiles` of libcni), in lexical order. A missing folder counts as empty.
pub(super) fn candidates(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = list(folder)?;
    paths.retain(|path| EXTENSIONS.iter().any(|extension| name_ends_with(path, extension)));
    paths.sort();
    Ok(paths)
}

pub(super) fn is_conflist(path: &Path) -> bool {
    name_ends_with(path, ".conflist")
}

/// Temporary files; with `older`, only those not modified for that long.
pub(super) fn leftovers(folder: &Path, older: Option<Duration>) -> io::Result<Vec<PathBuf>> {
    let mut paths = list(folder)?;
    paths.retain(|path| {
        let age = || std::fs::symlink_metadata(path).and_then(|m| m.modified()).ok()?.elapsed().ok();
        name_ends_with(path, TEMPORARY) && older.is_none_or(|older| age().is_some_and(|age| age > older))
    });
    paths.sort();
    Ok(paths)
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(with_path(folder, e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| with_path(folder, e))?;
        if !entry.file_type().map_err(|e| with_path(folder, e))?.is_dir() {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

fn name_ends_with(path: &Path, end: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(end.as_bytes()))
}

/// The content of the file; `None` if it is missing.
pub(super) fn read(path: &Path) -> io::Result<Option<Result<String, Unusable>>> {
    match open(path) {
        Ok(mut file) => contents(&mut file).map(|bytes| Some(text(&bytes))).map_err(|e| with_path(path, e)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(with_path(path, e)),
    }
}

/// Opens a regular file. `O_NONBLOCK`, because opening a FIFO would block.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(LARGEST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: &[u8]) -> Result<String, Unusable> {
    if bytes.len() as u64 > LARGEST_BYTES {
        return Err(Unusable::Malformed(format!("it is larger than {LARGEST_BYTES} bytes")));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(e) => Err(Unusable::Malformed(e.to_string())),
    }
}

/// Replaces the file by the result of `edit` without losing concurrent writes: the new file is exchanged with the old
/// one, and if the old file has changed since it was read, its new content is edited and exchanged in turn.
pub(super) fn rewrite(
    path: &Path,
    edit: impl Fn(&str) -> Result<Option<String>, Unusable>,
) -> io::Result<RewriteOutcome> {
    // Replace the target of a symbolic link, not the link.
    let path = &match path.canonicalize() {
        Ok(path) => path,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(RewriteOutcome::Gone),
        Err(e) => return Err(with_path(path, e)),
    };
    let edit = |bytes: &[u8]| text(bytes).and_then(|text| edit(&text));
    let mut file = match open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(RewriteOutcome::Gone),
        Err(e) => return Err(with_path(path, e)),
    };
    // The content in place, and the last content written by others.
    let mut present = contents(&mut file).map_err(|e| with_path(path, e))?;
    let mut theirs = present.clone();
    let mut written = false;
    for _ in 0..MOST_RACES {
        let edited = edit(&theirs);
        let wanted = match &edited {
            Ok(Some(text)) => text.as_bytes(),
            Ok(None) | Err(_) => &theirs,
        };
        if wanted == present {
            return Ok(match (edited, written) {
                (Err(reason), _) => RewriteOutcome::Unusable(reason),
                (Ok(_), true) => RewriteOutcome::Written(path.clone()),
                (Ok(_), false) => RewriteOutcome::Unchanged(path.clone()),
            });
        }
        let wanted = wanted.to_vec();
        let Some(Swap { is_in_place, mut displaced }) =
            swap(path, &present, &wanted).map_err(|e| with_path(path, e))?
        else {
            return Ok(RewriteOutcome::Gone);
        };
        let mut found = contents(&mut displaced).map_err(|e| with_path(path, e))?;
        if found != present {
            // Another program may have opened the file and still be writing.
            let deadline = Instant::now() + WRITER_TIMEOUT;
            while edit(&found).is_err() && Instant::now() < deadline {
                std::thread::sleep(POLL_INTERVAL);
                found = contents(&mut displaced).map_err(|e| with_path(path, e))?;
            }
            theirs = found.clone();
        }
        present = if is_in_place { wanted } else { found };
        written |= is_in_place;
    }
    Err(io::Error::other(format!("{} changes during each attempt to replace it", path.display())))
}

struct Swap {
    /// The new text is in place; false if the file had changed before.
    is_in_place: bool,
    /// The previous file.
    displaced: File,
}

/// Exchanges the file for one with the new text; `None` if the file no longer exists.
fn swap(path: &Path, present: &[u8], text: &[u8]) -> io::Result<Option<Swap>> {
    let gone = |e: io::Error| if e.kind() == ErrorKind::NotFound { Ok(None) } else { Err(e) };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) => return gone(e),
    };
    let temporary = Temporary::write(path, text, &metadata)?;
    let mut current = match open(path) {
        Ok(file) => file,
        Err(e) => return gone(e),
    };
    if contents(&mut current)? != present {
        return Ok(Some(Swap { is_in_place: false, displaced: current }));
    }
    match renameat_with(CWD, &temporary.path, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => {
            let displaced = open(&temporary.path)?;
            sync_folder(path)?;
            Ok(Some(Swap { is_in_place: true, displaced }))
        }
        Err(Errno::NOENT) => Ok(None),
        // On file systems without `RENAME_EXCHANGE`, content written since the last check is lost.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::rename(&temporary.path, path)?;
            sync_folder(path)?;
            Ok(Some(Swap { is_in_place: true, displaced: current }))
        }
        Err(e) => Err(e.into()),
    }
}

/// Writes a derived list with the mode and owner of its source.
pub(super) fn replace(path: &Path, bytes: &[u8], like: &Path) -> io::Result<()> {
    let replace = || {
        let temporary = Temporary::write(path, bytes, &std::fs::metadata(like)?)?;
        std::fs::rename(&temporary.path, path)?;
        sync_folder(path)
    };
    replace().map_err(|e| with_path(path, e))
}

/// Replaces the file by an executable (mode 0755).
pub(super) fn write_program(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let replace = || {
        let temporary = Temporary::create(path, bytes, |file| file.set_permissions(Permissions::from_mode(0o755)))?;
        std::fs::rename(&temporary.path, path)?;
        sync_folder(path)
    };
    replace().map_err(|e| with_path(path, e))
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path).and_then(|()| sync_folder(path)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(with_path(path, e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A complete file next to its target. Dropping the value removes the file with the temporary name.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn write(beside: &Path, bytes: &[u8], like: &Metadata) -> io::Result<Temporary> {
        Temporary::create(beside, bytes, |file| {
            let ours = file.metadata()?;
            if (ours.uid(), ours.gid()) != (like.uid(), like.gid()) {
                copy_owner(beside, file, like)?;
            }
            file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))
        })
    }

    fn create(beside: &Path, bytes: &[u8], finish: impl Fn(&mut File) -> io::Result<()>) -> io::Result<Temporary> {
        let name = beside.file_name().unwrap_or_default().to_string_lossy();
        for number in 0..MOST_TEMPORARY {
            let path = beside.with_file_name(format!(".{name}.{number}{TEMPORARY}"));
            let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
            };
            let temporary = Temporary { path };
            file.write_all(bytes)?;
            finish(&mut file)?;
            file.sync_all()?;
            return Ok(temporary);
        }
        Err(io::Error::other(format!(
            "{MOST_TEMPORARY} temporary files .{name}.*{TEMPORARY} already exist; remove them"
        )))
    }
}

/// Copies the owner of another file. Without CAP_CHOWN the new file belongs to root: runtimes read configurations as
/// root, and a missing entry is worse than a file to which the previous owner can no longer write.
fn copy_owner(path: &Path, file: &File, like: &Metadata) -> io::Result<()> {
    let (user, group) = (like.uid(), like.gid());
    match fchown(file, Some(user), Some(group)) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            tracing::warn!(
                file = %path.display(),
                "the file belonged to user {user}, group {group}, and belongs to root now: keeping the owner needs \
                 CAP_CHOWN"
            );
            Ok(())
        }
        changed => changed,
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        match std::fs::remove_file(&self.path) {
            Ok(()) => {}
            // The file was renamed.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => tracing::warn!(file = %self.path.display(), "cannot remove a temporary file: {e}"),
        }
    }
}

/// A rename is durable once its folder is synced.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

pub(super) fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
