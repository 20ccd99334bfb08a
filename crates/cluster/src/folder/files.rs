//! The files of a folder, as they were when they could last be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use policy::{Interner, Tracked};

use super::contents::Contents;
use super::{Folder, FolderError, assemble};
use crate::manifest::FILE_BYTES;
use crate::{Problem, Watched};

/// Files of a folder that are looked at. More are no folder of manifests but a mistake, such as `/`.
const FILES: usize = 10_000;

/// Folders in folders.
const FOLDER_DEPTH: usize = 32;

pub(super) struct Files<O: Tracked> {
    root: PathBuf,
    /// By path, which is the order in which they count.
    files: BTreeMap<PathBuf, Known<O>>,
    /// What the last scan could not look at.
    problems: Vec<Problem>,
    /// What the objects share.
    interner: Interner,
}

/// A file as it is known.
struct Known<O: Tracked> {
    /// Of the bytes last read, good or bad: nothing is parsed twice.
    hash: Option<u64>,
    good: Contents<O>,
    /// Why what is there now is not `good`.
    problem: Option<Problem>,
}

/// A walk through the folder.
struct Walk<'a> {
    visit_folder: &'a mut dyn FnMut(&Path),
    found: BTreeSet<PathBuf>,
    /// Device and inode, so that a symlink to a folder above ends the walk there.
    visited: BTreeSet<(u64, u64)>,
    /// What is below these is not known to be gone.
    unreadable: Vec<PathBuf>,
    problems: Vec<Problem>,
}

impl<O: Watched> Files<O> {
    pub(super) fn new(root: &Path) -> Files<O> {
        Files { root: root.to_owned(), files: BTreeMap::new(), problems: Vec::new(), interner: Interner::new() }
    }

    /// Reads what is new or different, and forgets what is gone. `visit_folder` gets every folder that files come from,
    /// before it is looked at. On an error everything stays as it was.
    pub(super) fn scan(&mut self, visit_folder: &mut dyn FnMut(&Path)) -> Result<(), FolderError> {
        let fail = |e: io::Error| FolderError { path: self.root.clone(), reason: e.to_string() };
        let mut walk = Walk {
            visit_folder,
            found: BTreeSet::new(),
            visited: BTreeSet::new(),
            unreadable: Vec::new(),
            problems: Vec::new(),
        };
        let root = fs::metadata(&self.root).map_err(fail)?;
        if root.is_dir() {
            fs::read_dir(&self.root).map_err(fail)?;
            walk.folder(&self.root, &root, 0);
        } else {
            (walk.visit_folder)(self.root.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")));
            walk.found.insert(self.root.clone());
        }
        let Walk { found, unreadable, mut problems, .. } = walk;
        for problem in &mut problems {
            problem.origin = relative(&self.root, Path::new(&problem.origin));
        }
        self.problems = problems;
        self.files.retain(|path, _| found.contains(path) || unreadable.iter().any(|folder| path.starts_with(folder)));
        for path in found {
            let name = relative(&self.root, &path);
            match read_file(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
                    self.files.remove(&path);
                }
                Err(e) => self.files.entry(path).or_insert_with(Known::nothing).fail(name, e.to_string()),
                Ok(bytes) => {
                    self.files.entry(path).or_insert_with(Known::nothing).update(name, &bytes, &mut self.interner)
                }
            }
        }
        Ok(())
    }

    pub(super) fn folder(&self) -> Folder<O> {
        let mut folder = assemble(self.files.values().map(|known| &known.good));
        folder.problems.extend(self.files.values().filter_map(|known| known.problem.clone()));
        folder.problems.extend(self.problems.iter().cloned());
        folder.problems.sort();
        folder
    }
}

impl<O: Watched> Known<O> {
    fn nothing() -> Known<O> {
        Known { hash: None, good: Contents::nothing(), problem: None }
    }

    fn update(&mut self, file: String, bytes: &[u8], interner: &mut Interner) {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let hash = Some(hasher.finish());
        if self.hash == hash {
            return;
        }
        match std::str::from_utf8(bytes) {
            Err(e) => self.fail(file, format!("not UTF-8: {e}")),
            // An editor that writes in place empties the file first. Who means it removes the file.
            Ok(text) if text.trim().is_empty() && !self.good.is_nothing() => {
                self.fail(file, "the file is empty now".into());
            }
            Ok(text) => match Contents::read(&file, text, interner) {
                Err(e) => self.fail(format!("{file}:{}", e.line), format!("column {}: {}", e.column, e.reason)),
                Ok(contents) => *self = Known { hash: None, good: contents, problem: None },
            },
        }
        self.hash = hash;
    }

    /// Keeps what the file said before.
    fn fail(&mut self, origin: String, reason: String) {
        let consequence = if self.good.is_nothing() {
            "the file is ignored until it is corrected"
        } else {
            "its previous contents are used until it is corrected"
        };
        self.hash = None;
        self.problem = Some(Problem { origin, message: format!("{reason}; {consequence}") });
    }
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, metadata: &Metadata, depth: usize) {
        if !self.visited.insert((metadata.dev(), metadata.ino())) {
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
        // `..data` and its like are how a ConfigMap is mounted: links that show beside them lead into them.
        if name.starts_with('.') {
            return;
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() && depth >= FOLDER_DEPTH => {
                self.fail(path, format!("more than {FOLDER_DEPTH} folders deep; ignored"));
            }
            Ok(metadata) if metadata.is_dir() => self.folder(path, &metadata, depth + 1),
            _ if !is_manifest(path) => {}
            // A pipe or a device would keep whoever reads it.
            Ok(metadata) if !metadata.is_file() => self.fail(path, "not a regular file; ignored".into()),
            _ if self.found.len() >= FILES => {
                self.fail(path, format!("more than {FILES} files; this one is ignored"));
            }
            // What is wrong with it shows when it is read.
            _ => {
                self.visit_target(path);
                self.found.insert(path.to_owned());
            }
        }
    }

    /// The folder of the file that a link leads to changes with it.
    fn visit_target(&mut self, path: &Path) {
        if path.is_symlink()
            && let Ok(target) = fs::canonicalize(path)
            && let Some(folder) = target.parent()
        {
            (self.visit_folder)(folder);
        }
    }

    fn fail(&mut self, path: &Path, message: String) {
        self.unreadable.push(path.to_owned());
        self.problems.push(Problem { origin: path.to_string_lossy().into_owned(), message });
    }
}

fn is_manifest(path: &Path) -> bool {
    let suffixes = ["yaml", "yml", "json"];
    path.extension().is_some_and(|extension| suffixes.iter().any(|suffix| extension.eq_ignore_ascii_case(suffix)))
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The path as it stands in origins; of a root that is itself the file, its name.
fn relative(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).ok().filter(|below| *below != Path::new(""));
    let shown = below.or_else(|| path.file_name().map(Path::new)).unwrap_or(path);
    shown.to_string_lossy().into_owned()
}
