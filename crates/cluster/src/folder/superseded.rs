//! Objects that a walk of an unstable scan found, and that a later walk of the same scan did not find.

use std::collections::BTreeMap;

use policy::{ObjectName, SourceObject};

use super::LocatedObject;

/// Each object in the version of the last walk that found it.
pub(super) struct SupersededObjects<O: SourceObject> {
    objects: BTreeMap<(O::Kind, ObjectName), (usize, LocatedObject<O>)>,
}

impl<O: SourceObject> SupersededObjects<O> {
    pub(super) fn new() -> SupersededObjects<O> {
        SupersededObjects { objects: BTreeMap::new() }
    }

    /// Records the objects of a file that was changed or removed, which `walk` was the last to find in this file.
    pub(super) fn record(&mut self, walk: usize, objects: &[LocatedObject<O>]) {
        for located in objects {
            let key = (located.object.kind(), located.object.name().clone());
            if self.objects.get(&key).is_none_or(|(recorded, _)| *recorded < walk) {
                self.objects.insert(key, (walk, located.clone()));
            }
        }
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &LocatedObject<O>> {
        self.objects.values().map(|(_, located)| located)
    }
}

#[cfg(test)]
mod tests {
    use policy::{Interner, Object};

    use super::*;
    use crate::folder::contents::Contents;

    fn objects(file: &str) -> Vec<LocatedObject<Object>> {
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: a}}";
        Contents::read(file, text, &mut Interner::new()).unwrap().objects
    }

    #[test]
    fn version_of_latest_walk_is_kept() {
        let mut superseded = SupersededObjects::new();
        for (walk, file) in [(2, "b.yaml"), (1, "a.yaml"), (3, "c.yaml"), (3, "d.yaml")] {
            superseded.record(walk, &objects(file));
        }
        let files: Vec<&str> = superseded.objects().map(|located| located.origin.file.as_str()).collect();
        assert_eq!(files, ["c.yaml"]);
    }
}
