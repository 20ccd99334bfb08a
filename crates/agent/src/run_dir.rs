//! The run directory of an agent: its lock and its sockets.

use std::fs::{DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use rustix::fs::Mode;
use rustix::process::{geteuid, umask};
use tokio::net::UnixListener;

use crate::lock_file::{self, Lock, LockKind};

/// Lock of a run directory, held by its one agent for the agent's lifetime.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    /// The kernel releases the lock when the process ends, even if it is killed.
    _lock: File,
}

/// Lock of a table in a network namespace, held by its one agent in any run directory. An abstract socket name belongs
/// to the namespace and is released with the process.
#[derive(Debug)]
pub(crate) struct TableLock(#[expect(dead_code, reason = "it is held, not read")] Option<StdListener>);

impl TableLock {
    pub(crate) fn claim(table: &nft::Name) -> anyhow::Result<TableLock> {
        let name = format!("ringfence/table/{table}");
        let address = SocketAddr::from_abstract_name(&name)?;
        match StdListener::bind_addr(&address) {
            Ok(listener) => Ok(TableLock(Some(listener))),
            Err(e) if e.kind() == ErrorKind::AddrInUse => match is_held_by_root(&name) {
                Some(true) => bail!(
                    "another agent uses table inet {table} on this node (it holds the abstract socket @{name}); stop \
                     that agent, or start this one with another --table and --run-dir"
                ),
                // Abstract names have no permissions: unprivileged users must not be able to keep the agent from
                // starting.
                Some(false) | None => {
                    tracing::warn!("another program holds the abstract socket @{name}; continuing without this lock");
                    Ok(TableLock(None))
                }
            },
            Err(e) => Err(e).with_context(|| format!("cannot bind the abstract socket @{name}")),
        }
    }
}

/// Whether a root process listens on the abstract name; `None` if an immediate connection cannot show that.
fn is_held_by_root(name: &str) -> Option<bool> {
    let address = UnixAddr::new_abstract(name.as_bytes()).ok()?;
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    connect(stream.as_raw_fd(), &address).ok()?;
    getsockopt(&stream, PeerCredentials).ok().map(|credentials| credentials.uid() == 0)
}

/// Shared lock of the processes that maintain the CNI plugin's entry.
pub(crate) const INSTALL_LOCK: &str = "install.lock";

/// Lock of the agent.
pub(crate) const AGENT_LOCK: &str = "agent.lock";

pub(crate) fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("agent.sock")
}

/// Whether a process listens on the agent's socket, which only root can create. A listener whose backlog is full counts
/// too.
pub(crate) fn agent_listens(run_dir: &Path) -> bool {
    match StdStream::connect(socket_path(run_dir)) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused),
    }
}

impl RunDir {
    /// Creates the folder if it is missing, and locks it.
    pub(crate) fn claim(path: &Path) -> anyhow::Result<RunDir> {
        DirBuilder::new().recursive(true).mode(0o755).create(path).with_context(|| {
            format!("cannot create the run directory {}; choose another one with --run-dir", path.display())
        })?;
        is_ours_alone(path)?;
        let lock_path = path.join(AGENT_LOCK);
        let lock = lock_file::claim(&lock_path, LockKind::Exclusive, || agent_listens(path)).with_context(|| {
            format!("cannot lock {}; free disk space, or choose another folder with --run-dir", lock_path.display())
        })?;
        match lock {
            Lock::Taken(lock) => Ok(RunDir { path: path.to_owned(), _lock: lock }),
            Lock::HeldByOther => bail!(
                "another agent holds the lock {}; stop that agent, or start this one with another --run-dir and \
                 --table",
                lock_path.display()
            ),
        }
    }

    /// Listens on a socket of this name. Only root may connect, which needs write permission on the socket (unix(7)).
    pub(crate) fn listen(&self, name: &str) -> anyhow::Result<UnixListener> {
        let path = self.path.join(name);
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("cannot remove the stale socket {}", path.display())),
        }
        // The umask restricts the socket from its creation on, before its mode is set.
        let umask = umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(&path);
        rustix::process::umask(umask);
        let listener = bound.with_context(|| {
            format!("cannot listen on {}; free disk space, or choose another folder with --run-dir", path.display())
        })?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))
            .with_context(|| format!("cannot restrict the permissions of {}", path.display()))?;
        Ok(listener)
    }
}

/// Any user who can write to the folder could replace the socket and impersonate the agent.
fn is_ours_alone(path: &Path) -> anyhow::Result<()> {
    let folder = std::fs::metadata(path).with_context(|| format!("cannot read the metadata of {}", path.display()))?;
    let owner = folder.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        bail!(
            "the run directory {} belongs to user {owner}: expected root; choose another one with --run-dir",
            path.display()
        );
    }
    if folder.mode() & 0o022 != 0 {
        bail!(
            "the run directory {} is writable by other users than root; run chmod go-w on it, or choose another one \
             with --run-dir",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_agent_is_refused_until_first_releases_lock() {
        let folder = std::env::temp_dir().join(format!("ringfence-run-dir-{}", std::process::id()));
        let first = RunDir::claim(&folder).unwrap();
        let refusal = RunDir::claim(&folder).unwrap_err().to_string();
        assert!(refusal.contains("another agent holds"), "{refusal}");
        drop(first);
        drop(RunDir::claim(&folder).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn socket_and_run_dir_are_restricted_to_root() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::claim(folder.path()).unwrap();
        let _listener = run_dir.listen("agent.sock").unwrap();
        let mode = std::fs::metadata(socket_path(folder.path())).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(run_dir);
        for (mode, fits) in [(0o755, true), (0o700, true), (0o775, false), (0o1777, false)] {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(RunDir::claim(folder.path()).is_ok(), fits, "{mode:o}");
        }
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
        let refusal = RunDir::claim(folder.path()).unwrap_err().to_string();
        assert!(refusal.contains("belongs to user 65534"), "{refusal}");
    }
}
