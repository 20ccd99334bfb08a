//! The ruleset value: one table.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Chain, Comment, Name, Set};

/// One table of family `inet`, complete. Sets and chains are shared between rulesets, so that an unchanged one is
/// recognised by its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    pub table: Name,
    /// Says whose table it is; a table of the same name without this comment is somebody else's.
    pub comment: Comment,
    /// Sets and verdict maps.
    pub sets: BTreeMap<Name, Arc<Set>>,
    pub chains: BTreeMap<Name, Arc<Chain>>,
}

impl Ruleset {
    pub fn new(table: Name, comment: Comment) -> Ruleset {
        Ruleset { table, comment, sets: BTreeMap::new(), chains: BTreeMap::new() }
    }

    /// Number of elements in all sets and maps.
    pub fn element_count(&self) -> usize {
        self.sets.values().map(|s| s.elements.len()).sum()
    }
}
