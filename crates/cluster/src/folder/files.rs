//! The files of a folder, each with its last valid contents.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use policy::{Interner, Tracked};

use super::contents::Contents;
use super::listing::Listing;
use super::{Folder, FolderError, assemble};
use crate::manifest::FILE_BYTES;
use crate::{Problem, Watched};

/// Attempts to scan a folder that changes meanwhile.
const ATTEMPTS: usize = 20;

/// Pause between two attempts. An update of a mounted ConfigMap takes some milliseconds.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

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

impl<O: Watched> Files<O> {
    pub(super) fn new(root: &Path) -> Files<O> {
        Files { root: root.to_owned(), files: BTreeMap::new(), problems: Vec::new(), interner: Interner::new() }
    }

    /// Reads new and changed files, and removes deleted ones. Every folder with files is passed to `visit_folder`
    /// before it is read. On an error the state is unchanged.
    ///
    /// While the folder changes, a scan can miss an object that is there at each moment: a file is renamed after it was
    /// listed and before it is opened, or an object is moved to a file that was read already. So a scan counts only if a
    /// second walk finds the same files. If the folder never rests, no file is removed, and the notifications of the
    /// changes cause the next scan.
    pub(super) fn scan(&mut self, visit_folder: &mut dyn FnMut(&Path)) -> Result<(), FolderError> {
        let mut listing = Listing::of(&self.root, visit_folder)?;
        let mut attempt = 1;
        let (contents, is_stable) = loop {
            let contents: Vec<(PathBuf, io::Result<Vec<u8>>)> =
                listing.files().map(|path| (path.clone(), read_file(path))).collect();
            let after = Listing::of(&self.root, visit_folder)?;
            let is_stable = after.is_unchanged_since(&listing);
            if is_stable || attempt == ATTEMPTS {
                break (contents, is_stable);
            }
            listing = after;
            attempt += 1;
            thread::sleep(BETWEEN_ATTEMPTS);
        };
        if is_stable {
            self.files.retain(|path, _| listing.may_contain(path));
        }
        for (path, read) in contents {
            let name = relative(&self.root, &path);
            match read {
                Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
                    if is_stable {
                        self.files.remove(&path);
                    }
                }
                Err(e) => self.files.entry(path).or_insert_with(ReadFile::nothing).fail(name, e.to_string()),
                Ok(bytes) => {
                    self.files.entry(path).or_insert_with(ReadFile::nothing).update(name, &bytes, &mut self.interner)
                }
            }
        }
        self.problems = listing.problems;
        for problem in &mut self.problems {
            problem.origin = relative(&self.root, Path::new(&problem.origin));
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use policy::{Change, Kind, Object};

    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\n";

    fn pods(files: &Files<Object>) -> usize {
        let of_pods = |change| match change {
            Change::Replace(Kind::Pod, pods) => pods.len(),
            _ => 0,
        };
        files.folder().changes().into_iter().map(of_pods).sum()
    }

    /// The walk visits the target of a symlink after it has listed the folder, and before it has read a file.
    #[test]
    fn file_renamed_during_scan_is_not_missing() {
        let place = tempfile::tempdir().unwrap();
        let [folder, elsewhere] = ["folder", "elsewhere"].map(|name| place.path().join(name));
        for path in [&folder, &elsewhere] {
            fs::create_dir(path).unwrap();
        }
        fs::write(elsewhere.join("target.yaml"), "# nothing").unwrap();
        symlink(elsewhere.join("target.yaml"), folder.join("a.yaml")).unwrap();
        fs::write(folder.join("z.yaml"), POD).unwrap();

        let mut files = Files::new(&folder);
        files.scan(&mut |_| {}).unwrap();
        assert_eq!(pods(&files), 1);
        let mut visits = 0;
        files
            .scan(&mut |visited| {
                let is_target = visited.ends_with("elsewhere");
                visits += usize::from(is_target);
                if is_target && visits == 1 {
                    fs::rename(folder.join("z.yaml"), folder.join("b.yaml")).unwrap();
                }
            })
            .unwrap();
        assert_eq!(pods(&files), 1);
        assert!(visits > 2, "the scan is repeated");
    }

    #[test]
    fn deleted_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("z.yaml"), POD).unwrap();
        let mut files = Files::new(folder.path());
        files.scan(&mut |_| {}).unwrap();
        fs::remove_file(folder.path().join("z.yaml")).unwrap();
        files.scan(&mut |_| {}).unwrap();
        assert_eq!(pods(&files), 0);
    }
}
