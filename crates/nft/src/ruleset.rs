//! The ruleset value: one table.

use std::sync::Arc;

use imbl::OrdMap;

use crate::{Chain, Comment, Name, Set, Table};

/// Sets or chains by their names. Copies share what is the same, and comparing them steps over it.
pub type Named<T> = OrdMap<Name, Arc<T>>;

/// One table, complete. A copy costs nothing, and the difference of two costs what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    pub table: Table,
    /// Nobody but the socket that committed it last can change or remove it, and it stays when that socket is gone
    /// (flags `owner` and `persist`). nft 1.0.6 has no words for these flags, so the text leaves them out.
    pub protected: bool,
    /// Says whose table it is; a table of the same name without this comment is somebody else's.
    pub comment: Comment,
    /// Sets and verdict maps.
    pub sets: Named<Set>,
    pub chains: Named<Chain>,
}

impl Ruleset {
    pub fn new(table: Table, comment: Comment) -> Ruleset {
        Ruleset { table, protected: false, comment, sets: OrdMap::new(), chains: OrdMap::new() }
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
