//! A walk through a folder: its manifests, and whether another walk finds the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::FolderError;
use crate::Problem;

/// Limits of one walk. The walk ends at the first one that it reaches: a larger folder is a mistake, such as `/` or a
/// symlink to `/proc`, and would take memory, inotify watches, and time in which no change counts.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Manifests.
    files: usize,
    /// Visited folders, each with an inotify watch, which takes about 1 KiB of kernel memory.
    folders: usize,
    /// Names in all visited folders, of manifests or not.
    entries: usize,
}

/// A repository with two manifests in each of its folders reaches the limits of files and folders together. Ten names
/// for each manifest leave room for what else a repository contains.
const LIMITS: Limits = Limits { files: 10_000, folders: 5_000, entries: 100_000 };

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
    /// If the walk ended at a limit, the folders that it has listed to the end. Files elsewhere may still exist.
    complete: Option<BTreeSet<PathBuf>>,
    pub(super) problems: Vec<Problem>,
}

struct Walk<'a> {
    visit_folder: &'a mut dyn FnMut(&Path),
    limits: Limits,
    listing: Listing,
    /// Folders to be listed, with their depth.
    queue: VecDeque<(PathBuf, usize)>,
    entries: usize,
    complete: BTreeSet<PathBuf>,
}

/// The problem of a walk that ends, because a limit is reached.
struct LimitProblem(Problem);

impl Listing {
    /// Walks through the folder, or to the single file. Every folder with files is passed to `visit_folder` before it is
    /// read.
    ///
    /// # Errors
    /// If the root is missing, cannot be read, or is neither a folder nor a regular file.
    pub(super) fn of(root: &Path, visit_folder: &mut dyn FnMut(&Path)) -> Result<Listing, FolderError> {
        Listing::within(LIMITS, root, visit_folder)
    }

    fn within(limits: Limits, root: &Path, visit_folder: &mut dyn FnMut(&Path)) -> Result<Listing, FolderError> {
        let error = |reason: String| FolderError { path: root.to_owned(), reason };
        let fail = |e: io::Error| error(e.to_string());
        let metadata = fs::metadata(root).map_err(fail)?;
        if metadata.is_dir() {
            fs::read_dir(root).map_err(fail)?;
            let walk = Walk {
                visit_folder,
                limits,
                listing: Listing::default(),
                queue: VecDeque::new(),
                entries: 0,
                complete: BTreeSet::new(),
            };
            return Ok(walk.run(root, &metadata));
        }
        if !metadata.is_file() {
            return Err(error("neither a folder nor a regular file".into()));
        }
        visit_folder(root.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")));
        let found = BTreeMap::from([(root.to_owned(), Some(Stamp::of(&metadata)))]);
        Ok(Listing { found, ..Listing::default() })
    }

    /// The paths of the manifests.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.found.keys()
    }

    /// Whether a file that was not found may exist: in a folder that was not read to the end, or in place of a path that
    /// is ignored.
    pub(super) fn may_have_missed(&self, path: &Path) -> bool {
        let is_unreadable = || path.ancestors().any(|above| self.unreadable.contains(above));
        let is_incomplete = |complete: &BTreeSet<PathBuf>| path.parent().is_none_or(|above| !complete.contains(above));
        !self.found.contains_key(path) && (self.complete.as_ref().is_some_and(is_incomplete) || is_unreadable())
    }

    /// Whether no file or folder has changed since an earlier walk.
    pub(super) fn is_unchanged_since(&self, earlier: &Listing) -> bool {
        let Listing { found, visited, unreadable, complete, problems: _ } = self;
        (found, visited, unreadable, complete)
            == (&earlier.found, &earlier.visited, &earlier.unreadable, &earlier.complete)
    }
}

impl Walk<'_> {
    /// Lists folders by their depth, so that the manifests beside a large tree are found before a limit is reached.
    fn run(mut self, root: &Path, metadata: &Metadata) -> Listing {
        let mut outcome = self.enqueue(root, metadata, 0);
        while outcome.is_ok()
            && let Some((folder, depth)) = self.queue.pop_front()
        {
            outcome = self.folder(folder, depth);
        }
        if let Err(LimitProblem(problem)) = outcome {
            self.listing.problems.push(problem);
            self.listing.complete = Some(self.complete);
        }
        self.listing
    }

    fn enqueue(&mut self, path: &Path, metadata: &Metadata, depth: usize) -> Result<(), LimitProblem> {
        let identity = (metadata.dev(), metadata.ino());
        if self.listing.visited.contains_key(&identity) {
            return Ok(());
        }
        if self.listing.visited.len() >= self.limits.folders {
            return Err(limit_problem(path, self.limits.folders, "subfolders"));
        }
        self.listing.visited.insert(identity, Stamp::of(metadata));
        self.queue.push_back((path.to_owned(), depth));
        Ok(())
    }

    fn folder(&mut self, path: PathBuf, depth: usize) -> Result<(), LimitProblem> {
        (self.visit_folder)(&path);
        let mut entries = Vec::new();
        let listed = fs::read_dir(&path).and_then(|mut listed| {
            // The limit also bounds the memory of this list.
            let allowed = self.limits.entries + 1 - self.entries;
            listed.by_ref().take(allowed).try_for_each(|entry| entry.map(|entry| entries.push(entry.path())))
        });
        if let Err(e) = listed {
            self.fail(&path, format!("cannot read: {e}; its previous contents are used"));
            return Ok(());
        }
        self.entries += entries.len();
        if self.entries > self.limits.entries {
            return Err(limit_problem(&path, self.limits.entries, "files and subfolders"));
        }
        entries.sort();
        for entry in entries {
            self.entry(&entry, depth)?;
        }
        self.complete.insert(path);
        Ok(())
    }

    fn entry(&mut self, path: &Path, depth: usize) -> Result<(), LimitProblem> {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        // The visible symlinks of a mounted ConfigMap refer to hidden folders such as `..data`.
        if name.starts_with('.') {
            return Ok(());
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() && depth >= FOLDER_DEPTH => {
                self.fail(path, format!("more than {FOLDER_DEPTH} folders deep; ignored"));
            }
            Ok(metadata) if metadata.is_dir() => self.enqueue(path, &metadata, depth + 1)?,
            Err(e) if !is_manifest(path) => {
                // A broken symlink, or an entry that was removed meanwhile, is not a folder with manifests.
                if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
                    self.fail(path, format!("cannot read: {e}; if it is a folder, its previous contents are used"));
                }
            }
            Ok(_) if !is_manifest(path) => {}
            Ok(metadata) if !metadata.is_file() => self.fail(path, "not a regular file; ignored".into()),
            _ if self.listing.found.len() >= self.limits.files => {
                return Err(limit_problem(path, self.limits.files, "manifests"));
            }
            // Errors of the metadata are reported when the file is read.
            metadata => {
                self.visit_target(path);
                self.listing.found.insert(path.to_owned(), metadata.ok().as_ref().map(Stamp::of));
            }
        }
        Ok(())
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

fn limit_problem(path: &Path, limit: usize, noun: &str) -> LimitProblem {
    let message = format!(
        "with this path the manifest folder has more than {limit} {noun}; folders that were not read have no effect, or \
         their previous contents are used; remove from the folder whatever contains no manifests, such as a symbolic link \
         to a large folder"
    );
    LimitProblem(Problem { origin: path.to_string_lossy().into_owned(), message })
}

fn is_manifest(path: &Path) -> bool {
    let suffixes = ["yaml", "yml", "json"];
    path.extension().is_some_and(|extension| suffixes.iter().any(|suffix| extension.eq_ignore_ascii_case(suffix)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use tempfile::TempDir;

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

    /// A folder of a network file system may fail so (EIO, ESTALE).
    #[test]
    fn entry_without_metadata_is_problem() {
        let folder = tempfile::tempdir().unwrap();
        let [unreadable, broken] = ["team-a", "team-b"].map(|name| folder.path().join(name));
        symlink("n".repeat(300), &unreadable).unwrap();
        symlink("missing", &broken).unwrap();
        let listing = Listing::of(folder.path(), &mut |_| {}).unwrap();
        let origins: Vec<&str> = listing.problems.iter().map(|problem| &*problem.origin).collect();
        assert_eq!(origins, [unreadable.to_str().unwrap()]);
        assert!(listing.may_have_missed(&unreadable.join("policy.yaml")));
        assert!(!listing.may_have_missed(&broken.join("policy.yaml")));
    }

    #[test]
    fn root_that_is_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("manifests");
        assert!(Command::new("mkfifo").arg(&root).status().unwrap().success());
        let error = Listing::of(&root, &mut |_| {}).unwrap_err();
        assert_eq!(error.reason, "neither a folder nor a regular file");
    }

    #[test]
    fn root_that_is_a_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("commit/deep")).unwrap();
        fs::write(place.path().join("commit/deep/a.yaml"), "a").unwrap();
        let root = place.path().join("current");
        symlink("commit", &root).unwrap();
        let listing = Listing::of(&root, &mut |_| {}).unwrap();
        assert!(listing.files().eq([&root.join("deep/a.yaml")]));
    }

    /// A folder with `z.yaml` and a symlink to a tree: 30 folders, one in the other, each with a manifest and another file.
    fn folder_with_link_to_tree() -> (TempDir, TempDir) {
        let [folder, tree] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut below = tree.path().to_owned();
        for _ in 0..30 {
            below.push("d");
            fs::create_dir(&below).unwrap();
            fs::write(below.join("m.yaml"), "").unwrap();
            fs::write(below.join("other"), "").unwrap();
        }
        symlink(tree.path(), folder.path().join("link")).unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        for name in ["sub/y.yaml", "z.yaml"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        (folder, tree)
    }

    /// The limits end the walk after the folder and `sub` have been listed, and before the end of the tree.
    fn check_limit(limits: Limits, problem: &str) {
        let (folder, _tree) = folder_with_link_to_tree();
        let mut visits = 0;
        let listing = Listing::within(limits, folder.path(), &mut |_| visits += 1).unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["sub/y.yaml", "z.yaml"] {
            assert!(listing.files().any(|file| *file == path(name)), "{name}");
        }
        let messages: Vec<String> = listing.problems.iter().map(Problem::to_string).collect();
        assert!(matches!(&messages[..], [message] if message.contains(problem)), "{messages:?}");
        assert!(visits < 15, "{visits} visits");
        assert!(!listing.may_have_missed(&path("removed.yaml")) && !listing.may_have_missed(&path("sub/removed.yaml")));
        assert!(listing.may_have_missed(&path("link/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/m.yaml")));
    }

    #[test]
    fn walk_ends_at_limit_of_folders() {
        check_limit(Limits { folders: 10, ..LIMITS }, "more than 10 subfolders");
    }

    #[test]
    fn walk_ends_at_limit_of_entries() {
        check_limit(Limits { entries: 20, ..LIMITS }, "more than 20 files and subfolders");
    }

    #[test]
    fn walk_ends_at_limit_of_files() {
        check_limit(Limits { files: 10, ..LIMITS }, "more than 10 manifests");
    }

    #[test]
    fn tree_within_limits_is_listed() {
        let (folder, _tree) = folder_with_link_to_tree();
        let listing = Listing::of(folder.path(), &mut |_| {}).unwrap();
        assert_eq!((listing.files().count(), listing.problems.len()), (32, 0));
        assert!(!listing.may_have_missed(&folder.path().join("link/removed.yaml")));
    }
}
