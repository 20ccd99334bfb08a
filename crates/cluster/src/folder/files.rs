//! The files of a folder, each with its last valid contents.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use policy::{Interner, SourceObject};

use super::contents::Contents;
use super::listing::Listing;
use super::superseded::SupersededObjects;
use super::{Folder, FolderError, assemble, regular_file};
use crate::manifest::FILE_BYTES;
use crate::{Problem, Watchable};

/// Attempts to scan a folder that changes meanwhile.
const ATTEMPTS: usize = 20;

/// Pause between two attempts. An update of a mounted ConfigMap takes some milliseconds.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

/// The origin of problems that concern the whole folder.
pub(super) const FOLDER: &str = "manifest folder";

pub(super) struct Files<O: SourceObject> {
    root: PathBuf,
    /// By path, which is the order of precedence.
    files: BTreeMap<PathBuf, ReadFile<O>>,
    /// The number of the last walk of the last scan.
    last_walk: usize,
    /// Objects that only earlier walks of the last scan found; `None` if that scan was stable.
    superseded: Option<SupersededObjects<O>>,
    /// Paths that the last scan could not read, and why the scan was incomplete or unstable.
    problems: Vec<Problem>,
    /// Strings shared by the objects.
    interner: Interner,
}

/// The cached state of a file.
struct ReadFile<O: SourceObject> {
    /// Hash of the bytes last read, valid or not, so that nothing is parsed twice.
    hash: Option<u64>,
    good: Contents<O>,
    /// Why the current file differs from `good`.
    problem: Option<Problem>,
    /// The last walk of the scan that found the file. A file that cannot be read or parsed counts as found, with its
    /// last valid contents.
    found_in: Option<usize>,
}

/// A file whose bytes differ from those that were last read.
struct ChangedFile {
    path: PathBuf,
    bytes: Vec<u8>,
    hash: u64,
}

impl<O: Watchable> Files<O> {
    pub(super) fn new(root: &Path) -> Files<O> {
        Files {
            root: root.to_owned(),
            files: BTreeMap::new(),
            last_walk: 0,
            superseded: None,
            problems: Vec::new(),
            interner: Interner::new(),
        }
    }

    /// Reads new and changed files, and removes deleted ones. Every folder with files is passed to `visit_folder`
    /// before it is read. After an error [`Files::folder`] is undefined until a scan succeeds.
    ///
    /// While the folder changes, a walk can miss an object that is there at each moment: a file is renamed after it was
    /// listed and before it is opened, or an object is moved to a file that was read already. So a scan is stable only
    /// if the next walk finds the same files. If no walk does, the scan is unstable, which is a problem, and the folder
    /// has each object that any of its walks found, in the version of the last one that found it: 20 walks in
    /// a row do not miss an object that is there at each moment, except by an improbable sequence of moves, and none finds
    /// a removed one.
    pub(super) fn scan(&mut self, visit_folder: &mut dyn FnMut(&Path)) -> Result<(), FolderError> {
        self.files.values_mut().for_each(|file| file.found_in = None);
        let mut superseded = SupersededObjects::new();
        let mut listing = Listing::of(&self.root, visit_folder)?;
        let mut walk = 1;
        let is_stable = loop {
            self.read_files(&listing, walk, &mut superseded);
            let after = Listing::of(&self.root, visit_folder)?;
            let is_stable = after.is_unchanged_since(&listing);
            if is_stable || walk == ATTEMPTS {
                break is_stable;
            }
            listing = after;
            walk += 1;
            thread::sleep(BETWEEN_ATTEMPTS);
        };
        self.problems = listing.problems;
        for problem in &mut self.problems {
            problem.origin = relative(&self.root, Path::new(&problem.origin));
        }
        self.last_walk = walk;
        if is_stable {
            self.files.retain(|_, file| file.found_in == Some(walk));
            self.superseded = None;
        } else {
            // A file that returns has its last valid contents again, so it is removed only if no walk found it.
            self.files.retain(|_, file| file.found_in.is_some());
            self.superseded = Some(superseded);
            let message = format!(
                "the folder changes continuously: it changed during each of {ATTEMPTS} attempts to read it. \
                 Until it rests, objects that were just removed or moved may be used as they were. Change the folder less \
                 often, or write a new folder and replace a symbolic link to it"
            );
            self.problems.push(Problem { origin: FOLDER.into(), message });
        }
        Ok(())
    }

    /// Whether the folder changed during each attempt of the last scan.
    pub(super) fn is_unstable(&self) -> bool {
        self.superseded.is_some()
    }

    /// Reads the listed files. Files and objects that the previous walk found and this one does not are recorded in
    /// `superseded`.
    fn read_files(&mut self, listing: &Listing, walk: usize, superseded: &mut SupersededObjects<O>) {
        let mut changed: Vec<ChangedFile> = Vec::new();
        let mut unparsed_bytes = 0;
        for path in listing.files() {
            match regular_file::read(path) {
                // Removed or renamed after it was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => continue,
                Err(e) => {
                    let name = relative(&self.root, path);
                    let file = self.files.entry(path.clone()).or_insert_with(ReadFile::nothing);
                    file.fail(name, e.to_string());
                    file.found_in = Some(walk);
                }
                Ok(bytes) => {
                    let mut hasher = DefaultHasher::new();
                    bytes.hash(&mut hasher);
                    let hash = hasher.finish();
                    match self.files.get_mut(path) {
                        Some(file) if file.hash == Some(hash) => file.found_in = Some(walk),
                        _ => {
                            unparsed_bytes += bytes.len();
                            changed.push(ChangedFile { path: path.clone(), bytes, hash });
                        }
                    }
                }
            }
            // Files are parsed after all have been read, so that the folder has little time to change meanwhile, except
            // where their bytes would take much memory.
            if unparsed_bytes > FILE_BYTES {
                self.parse(std::mem::take(&mut changed), walk, superseded);
                unparsed_bytes = 0;
            }
        }
        self.parse(changed, walk, superseded);
        for (path, file) in &mut self.files {
            if file.found_in != Some(walk) && listing.may_have_missed(path) {
                file.found_in = Some(walk);
            }
            if let Some(before) = file.found_in.filter(|before| before + 1 == walk) {
                superseded.record(before, &file.good.objects);
            }
        }
    }

    fn parse(&mut self, changed: Vec<ChangedFile>, walk: usize, superseded: &mut SupersededObjects<O>) {
        for ChangedFile { path, bytes, hash } in changed {
            let name = relative(&self.root, &path);
            let file = self.files.entry(path).or_insert_with(ReadFile::nothing);
            let replaced = file.update(name, &bytes, hash, &mut self.interner);
            if let (Some(before), Some(replaced)) = (file.found_in, replaced) {
                superseded.record(before, &replaced.objects);
            }
            file.found_in = Some(walk);
        }
    }

    pub(super) fn folder(&self) -> Folder<O> {
        let found = || self.files.values().filter(|file| file.found_in == Some(self.last_walk));
        let mut folder = assemble(found().map(|file| &file.good), self.superseded.as_ref());
        folder.problems.extend(found().filter_map(|file| file.problem.clone()));
        folder.problems.extend(self.problems.iter().cloned());
        folder.problems.sort();
        folder
    }
}

impl<O: Watchable> ReadFile<O> {
    fn nothing() -> ReadFile<O> {
        ReadFile { hash: None, good: Contents::nothing(), problem: None, found_in: None }
    }

    /// Returns the contents that valid ones have replaced.
    fn update(&mut self, file: String, bytes: &[u8], hash: u64, interner: &mut Interner) -> Option<Contents<O>> {
        let mut replaced = None;
        match std::str::from_utf8(bytes) {
            Err(e) => self.fail(file, format!("not UTF-8: {e}")),
            // An editor that writes in place truncates the file first. To remove the objects, delete the file.
            Ok(text) if text.trim().is_empty() && !self.good.is_nothing() => {
                self.fail(file, "the file is empty now".into());
            }
            Ok(text) => match Contents::read(&file, text, interner) {
                Err(e) => self.fail(format!("{file}:{}", e.line), format!("column {}: {}", e.column, e.reason)),
                Ok(contents) => {
                    replaced = Some(std::mem::replace(&mut self.good, contents));
                    self.problem = None;
                }
            },
        }
        self.hash = Some(hash);
        replaced
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

/// The path as shown in origins; its file name if the root is a file.
fn relative(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).ok().filter(|below| *below != Path::new(""));
    let shown = below.or_else(|| path.file_name().map(Path::new)).unwrap_or(path);
    shown.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
