//! A folder of manifests as the only source, without a cluster.
//!
//! Files are parsed to objects with their origin. A file that fails to parse keeps its last valid objects; every error
//! is a [`Problem`] with file and line, and does not affect other files.

mod contents;
mod files;
pub(crate) mod follow;
mod listing;
mod regular_file;
mod superseded;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use policy::{Change, Interner, Object, ObjectName, SourceObject};
use serde_json::json;

use crate::manifest::ParseError;
use crate::{Problem, Watchable};
use contents::Contents;
use files::Files;
use superseded::SupersededObjects;

/// The position of an object in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Relative to the folder.
    pub file: String,
    /// One-based.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An object, and the position of its definition; for an implied namespace, that of its first mention.
#[derive(Debug, Clone, PartialEq)]
pub struct LocatedObject<O: SourceObject = Object> {
    pub object: O,
    pub origin: Origin,
}

/// The objects and problems of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Folder<O: SourceObject = Object> {
    /// Each object once, sorted by kind and name.
    pub objects: Vec<LocatedObject<O>>,
    /// Sorted.
    pub problems: Vec<Problem>,
    /// Number of objects of irrelevant kinds.
    pub ignored: usize,
}

impl<O: Watchable> Folder<O> {
    /// All objects as changes, one [`Change::Replace`] per kind.
    pub fn changes(&self) -> Vec<Change<O>> {
        let objects_of = |kind| self.objects.iter().map(|f| &f.object).filter(move |o| o.kind() == kind).cloned();
        O::KINDS.iter().map(|kind| Change::Replace(*kind, objects_of(*kind).collect())).collect()
    }
}

/// Why a folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("manifest folder {}: {reason}", path.display())]
pub struct FolderError {
    pub path: PathBuf,
    pub reason: String,
}

/// Reads a folder, or a single file, once.
pub fn read_folder<O: Watchable>(path: &Path) -> Result<Folder<O>, FolderError> {
    let mut files = Files::new(path);
    files.scan(&mut |_| {})?;
    Ok(files.folder())
}

/// Reads one text as a folder with one file of this name. Namespaces that are only mentioned are not implied.
///
/// # Errors
/// If the text is not YAML, or exceeds a limit.
pub fn read_text<O: Watchable>(file: &str, text: &str) -> Result<Folder<O>, ParseError> {
    let Contents { objects, problems, ignored } = Contents::read(file, text, &mut Interner::new())?;
    Ok(Folder { objects, problems, ignored })
}

/// Merges the files of a folder, in order of their paths.
///
/// After an unstable scan the folder also has the superseded objects that no file defines. An object in two files is then
/// no problem, because it may have been moved from one to the other while the files were read.
fn assemble<'a, O: Watchable>(
    files: impl Iterator<Item = &'a Contents<O>>,
    superseded: Option<&SupersededObjects<O>>,
) -> Folder<O> {
    let mut objects: BTreeMap<(O::Kind, ObjectName), LocatedObject<O>> = BTreeMap::new();
    let mut problems = Vec::new();
    let mut ignored = 0;
    for contents in files {
        ignored += contents.ignored;
        problems.extend(contents.problems.iter().cloned());
        for found in &contents.objects {
            let key = (found.object.kind(), found.object.name().clone());
            match objects.get(&key) {
                None => {
                    objects.insert(key, found.clone());
                }
                Some(_) if superseded.is_some() => {}
                Some(first) => problems.push(Problem {
                    origin: found.origin.to_string(),
                    message: format!(
                        "duplicate {} {}: already defined at {}, which is used; remove one of the two",
                        key.0, key.1, first.origin
                    ),
                }),
            }
        }
    }
    for found in superseded.into_iter().flat_map(SupersededObjects::objects) {
        objects.entry((found.object.kind(), found.object.name().clone())).or_insert_with(|| found.clone());
    }
    for found in implied_namespaces(&objects) {
        objects.insert((found.object.kind(), found.object.name().clone()), found);
    }
    problems.sort();
    Folder { objects: objects.into_values().collect(), problems, ignored }
}

/// Namespaces that objects refer to without a definition. In a cluster they would exist, with the
/// `kubernetes.io/metadata.name` label.
fn implied_namespaces<O: Watchable>(
    objects: &BTreeMap<(O::Kind, ObjectName), LocatedObject<O>>,
) -> Vec<LocatedObject<O>> {
    let Some(kind) = O::NAMESPACE else { return vec![] };
    let is_defined = |name: &str| objects.contains_key(&(kind, ObjectName::new("", name)));
    let mut seen = BTreeSet::new();
    let mut implied = Vec::new();
    for found in objects.values() {
        let name = &found.object.name().namespace;
        if !name.is_empty() && !is_defined(name) && seen.insert(name.clone()) {
            let namespace = json!({"metadata": {"name": **name, "labels": {"kubernetes.io/metadata.name": **name}}});
            let object = O::lower(&mut Interner::new(), kind, &namespace).expect("it was just given a name");
            implied.push(LocatedObject { object, origin: found.origin.clone() });
        }
    }
    implied
}
