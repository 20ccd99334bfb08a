//! A folder of manifests as a source: it is the whole truth, there is no cluster beside it.
//!
//! Files become objects with their origin. A file that does not parse keeps what it said before; whatever is wrong is a
//! [`Problem`] with the file and the line, and everything else goes on.

mod contents;
mod files;
pub(crate) mod follow;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use policy::{Change, Interner, Object, ObjectName, Tracked};
use serde_json::json;

use crate::{Problem, Watched};
use contents::Contents;
use files::Files;

/// The place of an object in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Relative to the folder.
    pub file: String,
    /// Counted from one.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An object, and where it is defined; for a namespace that is only implied, where it is first mentioned.
#[derive(Debug, Clone, PartialEq)]
pub struct Found<O: Tracked = Object> {
    pub object: O,
    pub origin: Origin,
}

/// What a folder says.
#[derive(Debug, Clone, PartialEq)]
pub struct Folder<O: Tracked = Object> {
    /// Each object once, sorted by kind and name.
    pub objects: Vec<Found<O>>,
    /// Sorted.
    pub problems: Vec<Problem>,
    /// Objects of kinds that have no meaning here.
    pub ignored: usize,
}

impl<O: Watched> Folder<O> {
    /// The folder as a source reports it: everything there is, kind by kind.
    pub fn changes(&self) -> Vec<Change<O>> {
        let objects_of = |kind| self.objects.iter().map(|f| &f.object).filter(move |o| o.kind() == kind).cloned();
        O::KINDS.iter().map(|kind| Change::Replace(*kind, objects_of(*kind).collect())).collect()
    }
}

/// Why a folder cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[error("manifest folder {}: {reason}", path.display())]
pub struct FolderError {
    pub path: PathBuf,
    pub reason: String,
}

/// Reads a folder, or a single file, once.
pub fn read_folder<O: Watched>(path: &Path) -> Result<Folder<O>, FolderError> {
    let mut files = Files::new(path);
    files.scan(&mut |_| {})?;
    Ok(files.folder())
}

/// Puts the files of a folder together, in their order.
fn assemble<'a, O: Watched>(files: impl Iterator<Item = &'a Contents<O>>) -> Folder<O> {
    let mut objects: BTreeMap<(O::Kind, ObjectName), Found<O>> = BTreeMap::new();
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
    for found in implied_namespaces(&objects) {
        objects.insert((found.object.kind(), found.object.name().clone()), found);
    }
    problems.sort();
    Folder { objects: objects.into_values().collect(), problems, ignored }
}

/// The namespaces that objects are in and that nothing defines. In a cluster they would exist, with the label that
/// every namespace has.
fn implied_namespaces<O: Watched>(objects: &BTreeMap<(O::Kind, ObjectName), Found<O>>) -> Vec<Found<O>> {
    let Some(kind) = O::NAMESPACE else { return vec![] };
    let is_defined = |name: &str| objects.contains_key(&(kind, ObjectName::new("", name)));
    let mut seen = BTreeSet::new();
    let mut implied = Vec::new();
    for found in objects.values() {
        let name = &found.object.name().namespace;
        if !name.is_empty() && !is_defined(name) && seen.insert(name.clone()) {
            let namespace = json!({"metadata": {"name": **name, "labels": {"kubernetes.io/metadata.name": **name}}});
            let object = O::lower(&mut Interner::new(), kind, &namespace).expect("it was just given a name");
            implied.push(Found { object, origin: found.origin.clone() });
        }
    }
    implied
}
