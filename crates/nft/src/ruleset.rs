//! The ruleset value: one table.

use std::sync::Arc;

use imbl::OrdMap;

use crate::{Chain, Comment, Name, Set, Table};

/// Sets or chains by name. Copies share equal parts, which comparisons skip.
pub type NameMap<T> = OrdMap<Name, Arc<T>>;

/// One complete table. A copy is free, and a comparison of two costs only their difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// Family and name of the table.
    pub table: Table,
    /// Only the owner, the socket that committed last, can change or remove the table, and the table outlives that
    /// socket (flags `owner` and `persist`). nft 1.0.6 has no keywords for these flags, so the text omits them.
    pub protected: bool,
    /// Identifies the owner; a table of the same name without this comment is foreign.
    pub comment: Comment,
    /// Sets and verdict maps.
    pub sets: NameMap<Set>,
    /// Base chains and the chains that they reach. Kernel and evaluation ignore the order of names.
    pub chains: NameMap<Chain>,
}

impl Ruleset {
    /// An empty table without protection.
    pub fn new(table: Table, comment: Comment) -> Ruleset {
        Ruleset { table, protected: false, comment, sets: OrdMap::new(), chains: OrdMap::new() }
    }

    /// The same ruleset with this protection.
    pub fn protected(self, protected: bool) -> Ruleset {
        Ruleset { protected, ..self }
    }

    /// Number of elements in all sets and maps.
    pub fn element_count(&self) -> usize {
        self.sets.values().map(|s| s.elements.len()).sum()
    }
}
