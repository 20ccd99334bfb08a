//! The run directory of the agent: its lock holders and its files.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::report::UninstallReport;
use crate::dns::SavedNames;
use crate::flows::{UndeliveredFile, accounting};
use crate::lock_file::{self, LockKind, replacement_of};
use crate::run_dir::{AGENT_LOCK, INSTALL_LOCK, agent_listens, socket_path};

/// The agent's socket for the CNI plugin.
const CNI_SOCKET: &str = "cni.sock";
/// Folder of the CNI plugin's attachment files.
const ATTACHMENTS: &str = "cni";

/// Locks of the processes that would undo the uninstallation.
pub(super) struct Holders {
    pub(super) agent: AgentLock,
    pub(super) install: AgentLock,
}

pub(super) enum AgentLock {
    NoFolder,
    HeldByOther,
    /// Held by this process while the value lives; `None` in a dry run without a lock file.
    Taken(#[expect(dead_code, reason = "the lock ends with the file")] Option<File>),
}

impl Holders {
    pub(super) fn lock(run_dir: &Path, dry_run: bool) -> anyhow::Result<Holders> {
        let agent = lock(run_dir, AGENT_LOCK, dry_run, || agent_listens(run_dir))?;
        // An `install-cni` of the first release cannot be detected as the holder of its lock.
        Ok(Holders { agent, install: lock(run_dir, INSTALL_LOCK, dry_run, || true)? })
    }
}

/// `holder_lives` is called for a lock that any user could have taken.
fn lock(run_dir: &Path, name: &str, dry_run: bool, holder_lives: impl Fn() -> bool) -> anyhow::Result<AgentLock> {
    let path = run_dir.join(name);
    if dry_run {
        return match lock_file::is_held(&path) {
            Ok(true) => Ok(AgentLock::HeldByOther),
            Ok(false) => Ok(AgentLock::Taken(None)),
            Err(e) if e.kind() == ErrorKind::NotFound && !run_dir.exists() => Ok(AgentLock::NoFolder),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(AgentLock::Taken(None)),
            Err(e) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
        };
    }
    match lock_file::claim(&path, LockKind::Exclusive, holder_lives) {
        Ok(lock_file::Lock::Taken(file)) => Ok(AgentLock::Taken(Some(file))),
        Ok(lock_file::Lock::HeldByOther) => Ok(AgentLock::HeldByOther),
        Err(e) if e.kind() == ErrorKind::NotFound && !run_dir.exists() => Ok(AgentLock::NoFolder),
        Err(e) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

pub(super) fn remove(report: &mut UninstallReport, run_dir: &Path, holders: Holders) {
    let what = format!("the folder {}", run_dir.display());
    match (&holders.agent, &holders.install) {
        (AgentLock::NoFolder, _) | (_, AgentLock::NoFolder) => return report.absent(what),
        // A dry run also lists files that are in use: the warning has already named their user.
        (AgentLock::HeldByOther, _) | (_, AgentLock::HeldByOther) if !report.dry_run => {
            return report.failed(what, "a running process uses it");
        }
        (AgentLock::Taken(_) | AgentLock::HeldByOther, AgentLock::Taken(_) | AgentLock::HeldByOther) => {}
    }
    let former_values = run_dir.join(accounting::FILE);
    if !report.dry_run && former_values.symlink_metadata().is_ok() {
        let reason = format!("{} has settings that could not be restored", former_values.display());
        return report.failed(what, reason);
    }
    let (paths, stranger) = match ours(run_dir) {
        Ok(found) => found,
        Err(e) => return report.failed(what, e),
    };
    let remove_ours = || paths.iter().try_for_each(|path| remove_any(path));
    match stranger {
        Some(stranger) => {
            if !paths.is_empty() {
                report.remove(format!("sockets, locks and attachment files in {}", run_dir.display()), remove_ours);
            }
            report.kept(what, format!("{} does not belong to Ringfence", stranger.display()));
        }
        None => report.remove(format!("{what} with its sockets, locks and attachment files"), || {
            remove_ours()?;
            remove_unless_mounted(run_dir)
        }),
    }
}

/// Removes an empty folder. A container cannot remove a folder of the node that is mounted into it: the kernel refuses
/// with EBUSY, or with EROFS if the container's root file system is read-only. The empty folder stays then.
pub(super) fn remove_unless_mounted(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir(folder) {
        Err(e) if matches!(e.kind(), ErrorKind::ResourceBusy | ErrorKind::ReadOnlyFilesystem) => {
            match list(folder)?.first() {
                Some(path) => Err(io::Error::other(format!("{} still exists", path.display()))),
                None => Ok(()),
            }
        }
        removed => removed,
    }
}

/// Our files in the folder, in removal order, and the first foreign one.
fn ours(run_dir: &Path) -> io::Result<(Vec<PathBuf>, Option<PathBuf>)> {
    let attachments = run_dir.join(ATTACHMENTS);
    let (mut paths, mut stranger) = (Vec::new(), None);
    if attachments.is_dir() {
        for path in list(&attachments)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match name.starts_with('.') || (name.contains('@') && name.ends_with(".json")) {
                true => paths.push(path),
                false => stranger = stranger.or(Some(path)),
            }
        }
        if stranger.is_none() {
            paths.push(attachments.clone());
        }
    }
    let (agent_lock, install_lock) = (run_dir.join(AGENT_LOCK), run_dir.join(INSTALL_LOCK));
    let unfinished = [&agent_lock, &install_lock].map(|lock| replacement_of(lock));
    let known = [socket_path(run_dir), run_dir.join(CNI_SOCKET), install_lock, agent_lock].into_iter();
    let settings = [accounting::FILE, accounting::NEW].map(|name| run_dir.join(name));
    let (names, undelivered) = (SavedNames::files(run_dir), UndeliveredFile::files(run_dir));
    let known: Vec<PathBuf> = known.chain(unfinished).chain(settings).chain(names).chain(undelivered).collect();
    for path in list(run_dir)? {
        if path != attachments && !known.contains(&path) {
            stranger = stranger.or(Some(path));
        }
    }
    paths.extend(known.into_iter().filter(|path| path.symlink_metadata().is_ok()));
    Ok((paths, stranger))
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn remove_any(path: &Path) -> io::Result<()> {
    match path.symlink_metadata()?.is_dir() {
        true => std::fs::remove_dir(path),
        false => std::fs::remove_file(path),
    }
}
