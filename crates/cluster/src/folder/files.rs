//! The files of a folder, each with its last valid contents.

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

/// Limit of the files read from a folder. A larger folder is a mistake, such as `/`.
const FILES: usize = 10_000;

/// Limit of the depth of subfolders.
const FOLDER_DEPTH: usize = 32;

pub(super) struct Files<O: Tracked> {
    root: PathBuf,
    /// By path, which is the order of precedence.
    files: BTreeMap<PathBuf, ReadFile<O>>,
    /// Paths that the last scan could not read.
    problems: Vec<Problem>,
    /// Strings shared by the objects.
    interner: Interner,
}

/// The cached state of a file.
struct ReadFile<O: Tracked> {
    /// Hash of the bytes last read, valid or not, so that nothing is parsed twice.
    hash: Option<u64>,
    good: Contents<O>,
    /// Why the current file differs from `good`.
    problem: Option<Problem>,
}

/// A recursive walk through the folder.
struct Walk<'a> {
    visit_folder: &'a mut dyn FnMut(&Path),
    found: BTreeSet<PathBuf>,
    /// Device and inode of visited folders, so that a symlink to a parent folder is not followed.
    visited: BTreeSet<(u64, u64)>,
    /// Files below these paths may still exist, so they are kept.
    unreadable: Vec<PathBuf>,
    problems: Vec<Problem>,
}

impl<O: Watched> Files<O> {
    pub(super) fn new(root: &Path) -> Files<O> {
        Files { root: root.to_owned(), files: BTreeMap::new(), problems: Vec::new(), interner: Interner::new() }
    }

    /// Reads new and changed files, and removes deleted ones. Every folder with files is passed to `visit_folder`
    /// before it is read. On an error the state is unchanged.
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
                Err(e) => self.files.entry(path).or_insert_with(ReadFile::nothing).fail(name, e.to_string()),
                Ok(bytes) => {
                    self.files.entry(path).or_insert_with(ReadFile::nothing).update(name, &bytes, &mut self.interner)
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

impl<O: Watched> ReadFile<O> {
    fn nothing() -> ReadFile<O> {
        ReadFile { hash: None, good: Contents::nothing(), problem: None }
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
            // An editor that writes in place truncates the file first. To remove the objects, delete the file.
            Ok(text) if text.trim().is_empty() && !self.good.is_nothing() => {
                self.fail(file, "the file is empty now".into());
            }
            Ok(text) => match Contents::read(&file, text, interner) {
                Err(e) => self.fail(format!("{file}:{}", e.line), format!("column {}: {}", e.column, e.reason)),
                Ok(contents) => *self = ReadFile { hash: None, good: contents, problem: None },
            },
        }
        self.hash = hash;
    }

    /// Keeps the last valid contents.
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
            _ if self.found.len() >= FILES => {
                self.fail(path, format!("more than {FILES} files; this one is ignored"));
            }
            // Errors of the metadata are reported when the file is read.
            _ => {
                self.visit_target(path);
                self.found.insert(path.to_owned());
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

/// The path as shown in origins; its file name if the root is a file.
fn relative(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).ok().filter(|below| *below != Path::new(""));
    let shown = below.or_else(|| path.file_name().map(Path::new)).unwrap_or(path);
    shown.to_string_lossy().into_owned()
}
