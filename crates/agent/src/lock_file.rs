//! Lock files that only root can lock.
//!
//! flock(2) needs only a descriptor, so every user who may read a lock file can hold its lock. Lock files have mode
//! 0600, and one that others could open (the first release used mode 0644) is replaced by another file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MODE: u32 = 0o600;

/// Attempts to lock the file while other processes replace it. Each process replaces it once in its lifetime.
const MOST_ROUNDS: usize = 100;

/// Wait for another process that replaces the file, which takes it some microseconds of processor time.
const REPLACED_ELSEWHERE: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockKind {
    Exclusive,
    Shared,
}

#[derive(Debug)]
pub(crate) enum Lock {
    /// The lock is held until the file is dropped.
    Taken(File),
    HeldByOther,
}

/// Locks the file, which is created if it is missing. If other users could have locked it, `holder_lives` says whether
/// its holder is a Ringfence process; if not, the file is replaced.
///
/// # Errors
/// If the file cannot be opened, locked or replaced.
pub(crate) fn claim(path: &Path, kind: LockKind, holder_lives: impl Fn() -> bool) -> io::Result<Lock> {
    for _ in 0..MOST_ROUNDS {
        let file = open(path)?;
        let locked = try_lock(&file, kind)?;
        if !is_open_to_others(&file)? {
            match locked {
                false => return Ok(Lock::HeldByOther),
                true if is_at(path, &file)? => return Ok(Lock::Taken(file)),
                true => continue,
            }
        }
        if !locked && holder_lives() {
            return Ok(Lock::HeldByOther);
        }
        if !replace(path)? {
            std::thread::sleep(REPLACED_ELSEWHERE);
        }
    }
    Err(io::Error::other(format!("other processes replaced the lock file {MOST_ROUNDS} times")))
}

/// Whether the lock of an existing file is held. Changes nothing.
///
/// # Errors
/// If the file cannot be opened.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    Ok(!try_lock(&file, LockKind::Exclusive)?)
}

/// Temporary name of a replacement.
pub(crate) fn replacement_of(path: &Path) -> PathBuf {
    path.with_extension("lock.new")
}

/// Replaces a lock file that other users could open. Processes that still have the old file open may lock it without
/// effect. Returns false if another process is about to replace it.
fn replace(path: &Path) -> io::Result<bool> {
    let replacement = replacement_of(path);
    let file = open(&replacement)?;
    // Only one of two concurrent replacements proceeds, so that neither removes the lock that the other holds.
    if !try_lock(&file, LockKind::Exclusive)? || !is_at(&replacement, &file)? {
        return Ok(false);
    }
    if is_open_to_others(&open(path)?)? {
        std::fs::rename(&replacement, path)?;
    } else {
        std::fs::remove_file(&replacement)?;
    }
    Ok(true)
}

/// Opens or creates the file. It never has a wider mode, since the umask only removes bits.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(MODE).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn try_lock(file: &File, kind: LockKind) -> io::Result<bool> {
    let locked = match kind {
        LockKind::Exclusive => file.try_lock(),
        LockKind::Shared => file.try_lock_shared(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

fn is_open_to_others(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.mode() & 0o7777 & !MODE != 0)
}

/// Whether the path still refers to this file.
fn is_at(path: &Path, file: &File) -> io::Result<bool> {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok(identity(there) == identity(file.metadata()?)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// A lock file of an earlier release, held by another user who opened it for reading.
    fn loose(path: &Path) -> File {
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        let holder = File::open(path).unwrap();
        holder.lock().unwrap();
        holder
    }

    #[test]
    fn lock_is_exclusive_and_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.lock");
        let first = claim(&path, LockKind::Exclusive, || false).unwrap();
        assert!(matches!(first, Lock::Taken(_)));
        assert_eq!(mode(&path), MODE);
        assert!(matches!(claim(&path, LockKind::Exclusive, || false).unwrap(), Lock::HeldByOther));
        drop(first);
        let shared = claim(&path, LockKind::Shared, || false).unwrap();
        assert!(matches!(shared, Lock::Taken(_)));
        assert!(matches!(claim(&path, LockKind::Shared, || false).unwrap(), Lock::Taken(_)));
        assert!(matches!(claim(&path, LockKind::Exclusive, || false).unwrap(), Lock::HeldByOther));
    }

    #[test]
    fn loose_lock_file_is_replaced_unless_agent_lives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.lock");
        let holder = loose(&path);
        assert!(matches!(claim(&path, LockKind::Exclusive, || true).unwrap(), Lock::HeldByOther));
        let ours = claim(&path, LockKind::Exclusive, || false).unwrap();
        assert!(matches!(ours, Lock::Taken(_)));
        assert_eq!((mode(&path), replacement_of(&path).exists()), (MODE, false));
        // The old descriptor locks an abandoned file, now and after a restart.
        drop(ours);
        assert!(matches!(claim(&path, LockKind::Exclusive, || true).unwrap(), Lock::Taken(_)));
        drop(holder);
    }

    #[test]
    fn loose_lock_file_is_claimed_exactly_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.lock");
        let _holder = loose(&path);
        let claims: Vec<Lock> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| claim(&path, LockKind::Exclusive, || false).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(claims.iter().filter(|lock| matches!(lock, Lock::Taken(_))).count(), 1, "{claims:?}");
    }
}
