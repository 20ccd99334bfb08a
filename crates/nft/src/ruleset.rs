//! The ruleset value: one table.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Chain, Comment, Name, Set, Table};

/// One table, complete. Sets and chains are shared between rulesets, so that an unchanged one is
/// recognised by its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    pub table: Table,
    /// Nobody but the socket that committed it last can change or remove it, and it stays when that socket is gone
    /// (flags `owner` and `persist`). nft 1.0.6 has no words for these flags, so the text leaves them out.
    pub protected: bool,
    /// Says whose table it is; a table of the same name without this comment is somebody else's.
    pub comment: Comment,
    /// Sets and verdict maps.
    pub sets: BTreeMap<Name, Arc<Set>>,
    pub chains: BTreeMap<Name, Arc<Chain>>,
}

impl Ruleset {
    pub fn new(table: Table, comment: Comment) -> Ruleset {
        Ruleset { table, protected: false, comment, sets: BTreeMap::new(), chains: BTreeMap::new() }
    }

    /// The same ruleset, protected or not.
    pub fn protected(self, protected: bool) -> Ruleset {
        Ruleset { protected, ..self }
    }

    /// Number of elements in all sets and maps.
    pub fn element_count(&self) -> usize {
        self.sets.values().map(|s| s.elements.len()).sum()
    }
}
