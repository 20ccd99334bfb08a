//! Our plugin and its entry on a node: which files are concerned, and how they change without ever being half-written.
//!
//! What stands in them is decided by `conflist`.

mod files;
mod pace;
mod plugin;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::conflist::{self, Entry, Unusable};

use files::{Rewritten, candidates, is_conflist, leftovers, read, rewrite};

pub(crate) use plugin::{Plugin, is_ours as is_our_plugin, path_in as plugin_path};
pub(crate) use watch::{Watched, watch};

/// The name of a list that was made of a `.conf` file ends so. A hyphen comes before the dot of any extension, so that
/// runtimes, which take the first name in lexical order, take it in place of the file that it was made of.
const DERIVED: &str = "-ringfence.conflist";

/// A temporary file that is older than this belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(60);

/// What an attempt to install the entry has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Configurations that stay as they are, and why.
    pub(crate) left_alone: Vec<(PathBuf, Unusable)>,
    pub(crate) found: Found,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no configuration that could take the entry.
    Nothing,
    /// It is there.
    Present(PathBuf),
    /// It has been written just now.
    Written(PathBuf),
}

/// Makes sure that the configuration which runtimes choose has the entry.
///
/// That is the first one in lexical order (`loadFromConfDir` of containerd's go-cni). CRI-O passes over one that it
/// cannot read and takes the next (`loadNetworks` of ocicni), so behind such a file the next gets the entry.
///
/// # Errors
/// If a file or the folder cannot be read or written.
pub(crate) fn install_entry(folder: &Path, entry: &Entry, speaks: &[String]) -> io::Result<Attempt> {
    for path in leftovers(folder, Some(ABANDONED))? {
        std::fs::remove_file(path)?;
    }
    let mut attempt = Attempt { left_alone: vec![], found: Found::Nothing };
    for path in candidates(folder)? {
        match derived_from(&path)? {
            // A network that its owner has removed must not live on through our copy.
            Some(source) if !source.exists() => std::fs::remove_file(&path)?,
            Some(_) => {}
            None => match install_into(&path, entry, speaks)? {
                Rewritten::Gone => {}
                Rewritten::Unusable(reason) => {
                    let chosen_by_all = matches!(reason, Unusable::Version(..));
                    attempt.left_alone.push((path, reason));
                    if chosen_by_all {
                        break;
                    }
                }
                Rewritten::Unchanged(path) => {
                    attempt.found = Found::Present(path);
                    break;
                }
                Rewritten::Written(path) => {
                    attempt.found = Found::Written(path);
                    break;
                }
            },
        }
    }
    Ok(attempt)
}

fn install_into(path: &Path, entry: &Entry, speaks: &[String]) -> io::Result<Rewritten> {
    match is_conflist(path) {
        true => rewrite(path, |text| conflist::with_entry(text, entry, speaks)),
        false => derive(path, entry, speaks),
    }
}

/// Writes the list that stands for a `.conf` file. The file itself stays, since its owner may want to read and change
/// it (kube-router writes the node's subnet into it at each start).
fn derive(source: &Path, entry: &Entry, speaks: &[String]) -> io::Result<Rewritten> {
    let Some(text) = read(source)? else { return Ok(Rewritten::Gone) };
    let (Some(stem), Some(name)) = (source.file_stem(), source.file_name()) else { return Ok(Rewritten::Gone) };
    let list = match text.and_then(|text| conflist::from_conf(&text, &name.to_string_lossy(), entry, speaks)) {
        Ok(list) => list,
        Err(reason) => return Ok(Rewritten::Unusable(reason)),
    };
    let path = source.with_file_name(format!("{}{DERIVED}", stem.to_string_lossy()));
    if read(&path)? == Some(Ok(list.clone())) {
        return Ok(Rewritten::Unchanged(path));
    }
    files::put(&path, list.as_bytes(), source)?;
    Ok(Rewritten::Written(path))
}

/// The file that a list of ours was made of; none if it is not ours.
fn derived_from(path: &Path) -> io::Result<Option<PathBuf>> {
    if !path.to_string_lossy().ends_with(DERIVED) {
        return Ok(None);
    }
    let text = read(path)?.and_then(Result::ok);
    Ok(text.and_then(|text| conflist::source(&text)).map(|source| path.with_file_name(source)))
}

/// Something of ours in the folder of configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trace {
    /// Our entry in somebody's list.
    Entry(PathBuf),
    /// A list that was made of somebody's `.conf` file.
    Derived(PathBuf),
    Temporary(PathBuf),
    /// A list that names our plugin and cannot be read.
    Unreadable(PathBuf, Unusable),
}

/// What there is of ours.
///
/// # Errors
/// If a file or the folder cannot be read.
pub(crate) fn traces(folder: &Path) -> io::Result<Vec<Trace>> {
    let mut found = Vec::new();
    for path in candidates(folder)?.into_iter().filter(|path| is_conflist(path)) {
        if derived_from(&path)?.is_some() {
            found.push(Trace::Derived(path));
            continue;
        }
        match read(&path)? {
            None => {}
            Some(Ok(text)) => match conflist::without_entry(&text) {
                Ok(None) => {}
                Ok(Some(_)) => found.push(Trace::Entry(path)),
                Err(reason) if text.contains(conflist::PLUGIN) => found.push(Trace::Unreadable(path, reason)),
                Err(_) => {}
            },
            Some(Err(reason)) => found.push(Trace::Unreadable(path, reason)),
        }
    }
    found.extend(leftovers(folder, None)?.into_iter().map(Trace::Temporary));
    Ok(found)
}

/// Takes it away; a list becomes what it would be had we never been there.
///
/// # Errors
/// If it cannot be done.
pub(crate) fn remove(trace: &Trace) -> Result<(), RemoveError> {
    match trace {
        Trace::Entry(path) => match rewrite(path, conflist::without_entry)? {
            Rewritten::Unusable(reason) => Err(RemoveError::Unusable(reason)),
            Rewritten::Gone | Rewritten::Unchanged(_) | Rewritten::Written(_) => Ok(()),
        },
        Trace::Derived(path) | Trace::Temporary(path) => Ok(files::remove(path)?),
        Trace::Unreadable(_, reason) => Err(RemoveError::Unusable(reason.clone())),
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoveError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}; remove the plugin \"{plugin}\" from the file by hand", plugin = conflist::PLUGIN)]
    Unusable(Unusable),
}

#[cfg(test)]
mod tests;
