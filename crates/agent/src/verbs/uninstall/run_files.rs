//! The folder of the agent: who is at work there, and what they leave.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::report::Report;
use crate::run_dir::{AGENT_LOCK, INSTALL_LOCK, socket_path};

/// Where the plugin finds the agent.
const CNI_SOCKET: &str = "cni.sock";
/// Where the plugin notes the pods that it has seen.
const ATTACHMENTS: &str = "cni";

/// The locks of those who would undo what is done here.
pub(super) struct Holders {
    pub(super) agent: Lock,
    pub(super) install: Lock,
}

pub(super) enum Lock {
    NoFolder,
    HeldByOther,
    /// Ours, for as long as the value lives; none where this is a rehearsal and nobody has ever taken it.
    Taken(#[expect(dead_code, reason = "the lock ends with the file")] Option<File>),
}

impl Holders {
    pub(super) fn lock(run_dir: &Path, dry_run: bool) -> anyhow::Result<Holders> {
        let lock = |name| lock(run_dir, name, dry_run);
        Ok(Holders { agent: lock(AGENT_LOCK)?, install: lock(INSTALL_LOCK)? })
    }
}

fn lock(run_dir: &Path, name: &str, dry_run: bool) -> anyhow::Result<Lock> {
    let path = run_dir.join(name);
    let file = match File::options().write(true).create(!dry_run).truncate(false).open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound && !run_dir.exists() => return Ok(Lock::NoFolder),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Lock::Taken(None)),
        Err(e) => return Err(e).with_context(|| format!("cannot open {}", path.display())),
    };
    match file.try_lock() {
        Ok(()) => Ok(Lock::Taken(Some(file))),
        Err(TryLockError::WouldBlock) => Ok(Lock::HeldByOther),
        Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

pub(super) fn remove(report: &mut Report, run_dir: &Path, holders: Holders) {
    let what = format!("the folder {}", run_dir.display());
    match (&holders.agent, &holders.install) {
        (Lock::NoFolder, _) | (_, Lock::NoFolder) => return report.absent(what),
        // A rehearsal tells of what is removed once nobody uses it: the warning has said that somebody does.
        (Lock::HeldByOther, _) | (_, Lock::HeldByOther) if !report.dry_run => {
            return report.failed(what, "a running process uses it");
        }
        (Lock::Taken(_) | Lock::HeldByOther, Lock::Taken(_) | Lock::HeldByOther) => {}
    }
    let (paths, stranger) = match ours(run_dir) {
        Ok(found) => found,
        Err(e) => return report.failed(what, e),
    };
    let remove_ours = || paths.iter().try_for_each(|path| remove_any(path));
    match stranger {
        Some(stranger) => {
            if !paths.is_empty() {
                report.remove(format!("sockets, locks and notes in {}", run_dir.display()), remove_ours);
            }
            report.kept(what, format!("{} is not ours", stranger.display()));
        }
        None => report.remove(format!("{what} with its sockets, locks and notes"), || {
            remove_ours()?;
            match std::fs::remove_dir(run_dir) {
                // In a container it is a mount; it ends with the boot.
                Err(e) if e.kind() == ErrorKind::ResourceBusy => Ok(()),
                removed => removed,
            }
        }),
    }
}

/// What is ours in the folder, in the order in which it can be removed, and the first thing that is not.
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
    let known = [socket_path(run_dir), run_dir.join(CNI_SOCKET), run_dir.join(INSTALL_LOCK), run_dir.join(AGENT_LOCK)];
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
