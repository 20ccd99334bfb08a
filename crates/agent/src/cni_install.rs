//! The CNI plugin and its entry on a node: which files change, and how they are replaced atomically.
//!
//! `conflist` computes the contents of the configurations.

mod files;
mod plugin;
mod rate_limit;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::conflist::{self, ConflistEntry, Unusable};

use files::{RewriteOutcome, candidates, is_conflist, leftovers, read, rewrite};

pub(crate) use plugin::{Plugin, is_ours as is_our_plugin, path_in as plugin_path};
pub(crate) use watch::{InstalledFiles, watch};

/// Suffix of a list derived from a `.conf` file. A hyphen sorts before the dot of an extension, so runtimes, which take
/// the first name in lexical order, take the derived list instead of its source.
const DERIVED: &str = "-ringfence.conflist";

/// A temporary file older than this belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(60);

/// Result of an attempt to install the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Configurations that cannot have the entry, and why.
    pub(crate) left_alone: Vec<(PathBuf, Unusable)>,
    pub(crate) found: PluginEntry,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PluginEntry {
    /// There is no usable configuration.
    Nothing,
    /// The entry was already present.
    Present(PathBuf),
    /// The entry was written by this attempt.
    Written(PathBuf),
}

/// Ensures that the configuration chosen by runtimes has the entry.
///
/// containerd takes the first file in lexical order (`loadFromConfDir` of go-cni). CRI-O skips invalid files and takes
/// the first valid one (`loadNetworks` of ocicni), so invalid files are left unchanged and the entry is added to the
/// first valid one. A file whose CNI version the plugin does not support ends the search: runtimes do not skip it.
///
/// # Errors
/// If a file or the folder cannot be read or written.
pub(crate) fn install_entry(folder: &Path, entry: &ConflistEntry, cni_versions: &[String]) -> io::Result<Attempt> {
    for path in leftovers(folder, Some(ABANDONED))? {
        std::fs::remove_file(path)?;
    }
    let mut attempt = Attempt { left_alone: vec![], found: PluginEntry::Nothing };
    for path in candidates(folder)? {
        match derived_from(&path)? {
            // The owner has removed the source: the derived list must not keep that network configured.
            Some(source) if !source.exists() => std::fs::remove_file(&path)?,
            Some(_) => {}
            None => match install_into(&path, entry, cni_versions)? {
                RewriteOutcome::Gone => {}
                RewriteOutcome::Unusable(reason) => {
                    let chosen_by_all = matches!(reason, Unusable::Version(..));
                    attempt.left_alone.push((path, reason));
                    if chosen_by_all {
                        break;
                    }
                }
                RewriteOutcome::Unchanged(path) => {
                    attempt.found = PluginEntry::Present(path);
                    break;
                }
                RewriteOutcome::Written(path) => {
                    attempt.found = PluginEntry::Written(path);
                    break;
                }
            },
        }
    }
    Ok(attempt)
}

fn install_into(path: &Path, entry: &ConflistEntry, cni_versions: &[String]) -> io::Result<RewriteOutcome> {
    match is_conflist(path) {
        true => rewrite(path, |text| conflist::with_entry(text, entry, cni_versions)),
        false => derive(path, entry, cni_versions),
    }
}

/// Writes the list derived from a `.conf` file. The source remains, since its owner may read and change it (kube-router
/// writes the node's subnet into it at each start).
fn derive(source: &Path, entry: &ConflistEntry, cni_versions: &[String]) -> io::Result<RewriteOutcome> {
    let Some(text) = read(source)? else { return Ok(RewriteOutcome::Gone) };
    let (Some(stem), Some(name)) = (source.file_stem(), source.file_name()) else { return Ok(RewriteOutcome::Gone) };
    let list = match text.and_then(|text| conflist::from_conf(&text, &name.to_string_lossy(), entry, cni_versions)) {
        Ok(list) => list,
        Err(reason) => return Ok(RewriteOutcome::Unusable(reason)),
    };
    let path = source.with_file_name(format!("{}{DERIVED}", stem.to_string_lossy()));
    if read(&path)? == Some(Ok(list.clone())) {
        return Ok(RewriteOutcome::Unchanged(path));
    }
    files::replace(&path, list.as_bytes(), source)?;
    Ok(RewriteOutcome::Written(path))
}

/// The source of a derived list; `None` if the list is not derived.
fn derived_from(path: &Path) -> io::Result<Option<PathBuf>> {
    if !path.to_string_lossy().ends_with(DERIVED) {
        return Ok(None);
    }
    let text = read(path)?.and_then(Result::ok);
    Ok(text.and_then(|text| conflist::source(&text)).map(|source| path.with_file_name(source)))
}

/// A trace of the installation in the folder of configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trace {
    /// The entry in a list of another program.
    Entry(PathBuf),
    /// A list derived from a `.conf` file of another program.
    Derived(PathBuf),
    Temporary(PathBuf),
    /// A list that contains the plugin's name and cannot be parsed.
    Unreadable(PathBuf, Unusable),
}

/// Finds all traces of the installation.
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

/// Removes a trace. From a list of another program, only the entry is removed.
///
/// # Errors
/// If the trace cannot be removed.
pub(crate) fn remove(trace: &Trace) -> Result<(), RemoveError> {
    match trace {
        Trace::Entry(path) => match rewrite(path, conflist::without_entry)? {
            RewriteOutcome::Unusable(reason) => Err(RemoveError::Unusable(reason)),
            RewriteOutcome::Gone | RewriteOutcome::Unchanged(_) | RewriteOutcome::Written(_) => Ok(()),
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
