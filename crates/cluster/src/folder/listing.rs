//! A walk through a folder: its manifests, and whether another walk finds the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::FolderError;
use crate::Problem;

/// Limit of the files read from a folder. A larger folder is a mistake, such as `/`.
const FILES: usize = 10_000;

/// Limit of the depth of subfolders.
const FOLDER_DEPTH: usize = 32;

/// Metadata that differ after a file or folder was changed or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The manifests below a path.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// `None` if the metadata could not be read.
    found: BTreeMap<PathBuf, Option<Stamp>>,
    /// Visited folders by device and inode, so that a symlink to a parent folder is not followed.
    visited: BTreeMap<(u64, u64), Stamp>,
    /// Files below these paths may still exist, so they are kept.
    unreadable: BTreeSet<PathBuf>,
    pub(super) problems: Vec<Problem>,
}

struct Walk<'a> {
    visit_folder: &'a mut dyn FnMut(&Path),
    listing: Listing,
}

impl Listing {
    /// Walks through the folder, or to the single file. Every folder with files is passed to `visit_folder` before it is
    /// read.
    pub(super) fn of(root: &Path, visit_folder: &mut dyn FnMut(&Path)) -> Result<Listing, FolderError> {
        let fail = |e: io::Error| FolderError { path: root.to_owned(), reason: e.to_string() };
        let mut walk = Walk { visit_folder, listing: Listing::default() };
        let metadata = fs::metadata(root).map_err(fail)?;
        if metadata.is_dir() {
            fs::read_dir(root).map_err(fail)?;
            walk.folder(root, &metadata, 0);
        } else {
            (walk.visit_folder)(root.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")));
            walk.listing.found.insert(root.to_owned(), Some(Stamp::of(&metadata)));
        }
        Ok(walk.listing)
    }

    /// The paths of the manifests.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.found.keys()
    }

    /// Whether a file that was not found may exist: in a folder that could not be read, or in place of a path that is
    /// ignored.
    pub(super) fn may_have_missed(&self, path: &Path) -> bool {
        !self.found.contains_key(path) && path.ancestors().any(|above| self.unreadable.contains(above))
    }

    /// Whether no file or folder has changed since an earlier walk.
    pub(super) fn is_unchanged_since(&self, earlier: &Listing) -> bool {
        let Listing { found, visited, unreadable, problems: _ } = self;
        (found, visited, unreadable) == (&earlier.found, &earlier.visited, &earlier.unreadable)
    }
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, metadata: &Metadata, depth: usize) {
        if self.listing.visited.insert((metadata.dev(), metadata.ino()), Stamp::of(metadata)).is_some() {
            return;
        }
        (self.visit_folder)(path);
        let entries = match fs::read_dir(path).and_then(|entries| entries.collect::<io::Result<Vec<_>>>()) {
            Ok(entries) => entries,
            Err(e) => return self.fail(path, format!("cannot read: {e}; its previous contents are used")),
        };
        let mut entries: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        entries.sort();
        for entry in entries {
            self.entry(&entry, depth);
        }
    }

    fn entry(&mut self, path: &Path, depth: usize) {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        // The visible symlinks of a mounted ConfigMap refer to hidden folders such as `..data`.
        if name.starts_with('.') {
            return;
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() && depth >= FOLDER_DEPTH => {
                self.fail(path, format!("more than {FOLDER_DEPTH} folders deep; ignored"));
            }
            Ok(metadata) if metadata.is_dir() => self.folder(path, &metadata, depth + 1),
            _ if !is_manifest(path) => {}
            // Reading a pipe or a device would block.
            Ok(metadata) if !metadata.is_file() => self.fail(path, "not a regular file; ignored".into()),
            _ if self.listing.found.len() >= FILES => {
                self.fail(path, format!("more than {FILES} files; this one is ignored"));
            }
            // Errors of the metadata are reported when the file is read.
            metadata => {
                self.visit_target(path);
                self.listing.found.insert(path.to_owned(), metadata.ok().as_ref().map(Stamp::of));
            }
        }
    }

    /// Also watches the folder of a symlink's target.
    fn visit_target(&mut self, path: &Path) {
        if path.is_symlink()
            && let Ok(target) = fs::canonicalize(path)
            && let Some(folder) = target.parent()
        {
            (self.visit_folder)(folder);
        }
    }

    fn fail(&mut self, path: &Path, message: String) {
        self.listing.unreadable.insert(path.to_owned());
        self.listing.problems.push(Problem { origin: path.to_string_lossy().into_owned(), message });
    }
}

fn is_manifest(path: &Path) -> bool {
    let suffixes = ["yaml", "yml", "json"];
    path.extension().is_some_and(|extension| suffixes.iter().any(|suffix| extension.eq_ignore_ascii_case(suffix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_between_two_walks_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["a.yaml", "z.yaml"].map(|name| folder.path().join(name));
        fs::write(&first, "a").unwrap();
        fs::write(&second, "z").unwrap();
        let list = || Listing::of(folder.path(), &mut |_| {}).unwrap();
        let before = list();
        assert!(list().is_unchanged_since(&before));
        // An object is moved from one file to the other, which may have been read already.
        fs::write(&first, "a and z").unwrap();
        assert!(!list().is_unchanged_since(&before));
        let before = list();
        fs::rename(&second, folder.path().join("y.yaml")).unwrap();
        assert!(!list().is_unchanged_since(&before));
    }
}
