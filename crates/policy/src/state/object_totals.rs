//! Totals over all objects, updated incrementally.

use std::collections::BTreeSet;

use super::footprint::footprint;
use crate::{Kind, Object, ObjectName};

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sums {
    /// Bytes, by kind.
    footprints: [usize; Kind::ALL.len()],
    with_problems: BTreeSet<(Kind, ObjectName)>,
}

impl Sums {
    /// Adds an object.
    pub(crate) fn add(&mut self, object: &Object) {
        self.footprints[place(object.kind())] += footprint(object);
        if !object.problems().is_empty() {
            self.with_problems.insert((object.kind(), object.name().clone()));
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, object: &Object) {
        self.footprints[place(object.kind())] -= footprint(object);
        if !object.problems().is_empty() {
            self.with_problems.remove(&(object.kind(), object.name().clone()));
        }
    }

    /// In bytes.
    pub(crate) fn footprint(&self, kind: Kind) -> usize {
        self.footprints[place(kind)]
    }

    /// The objects with problems.
    pub(crate) fn with_problems(&self) -> impl Iterator<Item = &(Kind, ObjectName)> {
        self.with_problems.iter()
    }
}

fn place(kind: Kind) -> usize {
    match kind {
        Kind::Namespace => 0,
        Kind::Pod => 1,
        Kind::NetworkPolicy => 2,
        Kind::Node => 3,
        Kind::ClusterNetworkPolicy => 4,
    }
}
