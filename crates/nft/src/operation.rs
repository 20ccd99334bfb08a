//! Operations of a transaction, each of which prints as the equivalent nft command.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::text::{ElementText, HookText, SetType, set_flags, set_word};
use crate::{Comment, Dynamic, Element, Hook, Key, Name, Rule, Set, Table};

/// One operation on a table. Operations are committed together, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Changes nothing if the table exists, except that with `protected` the committing socket becomes the owner of a
    /// table that lost its owner.
    AddTable {
        /// The table to create.
        table: Table,
        /// Ignored by the kernel if the table exists.
        comment: Comment,
        /// Flags `owner` and `persist`, as in [`Ruleset::protected`](crate::Ruleset::protected).
        protected: bool,
    },
    /// Deletes the table with its contents (`NFT_MSG_DELTABLE`). The transaction fails with `ENOENT` without such a
    /// table.
    DeleteTable {
        /// The table to delete.
        table: Table,
    },
    /// Creates an empty chain; no change if it exists.
    AddChain {
        /// The table of the chain.
        table: Table,
        /// The chain to create.
        chain: Name,
        /// Set for a base chain. Priority and policy follow from the hook.
        hook: Option<Hook>,
    },
    /// Deletes all rules of the chain and keeps the chain.
    FlushChain {
        /// The table of the chain.
        table: Table,
        /// The chain to empty.
        chain: Name,
    },
    /// Deletes a chain that no rule or element jumps to; otherwise the transaction fails with `EBUSY`.
    DeleteChain {
        /// The table of the chain.
        table: Table,
        /// The chain to delete; [`difference()`](crate::difference()) flushes it first.
        chain: Name,
    },
    /// Appends the rule.
    AddRule {
        /// The table of the chain.
        table: Table,
        /// The chain to append to.
        chain: Name,
        /// The rule; its sets and target chains must exist by then.
        rule: Rule,
    },
    /// Creates an empty set; the elements of the value are ignored.
    AddSet {
        /// The table of the set.
        table: Table,
        /// The name of the set or map.
        name: Name,
        /// Types, flags and size of the set.
        set: Arc<Set>,
    },
    /// Deletes a set or map that no rule refers to; otherwise the transaction fails with `EBUSY`.
    DeleteSet {
        /// The table of the set.
        table: Table,
        /// The name of the set or map.
        name: Name,
    },
    /// `set` determines the encoding of the elements; its own elements are ignored.
    AddElements {
        /// The table of the set.
        table: Table,
        /// The name of the set or map.
        name: Name,
        /// The set as declared, with or without elements.
        set: Arc<Set>,
        /// Elements to add. The kernel refuses a key that exists with another verdict.
        elements: Vec<(Key, Element)>,
    },
    /// Deletes elements by key. The transaction fails with `ENOENT` if one of them does not exist.
    DeleteElements {
        /// The table of the set.
        table: Table,
        /// The name of the set or map.
        name: Name,
        /// As in [`Operation::AddElements`].
        set: Arc<Set>,
        /// Elements to delete; their verdicts and comments only serve the printed text.
        elements: Vec<(Key, Element)>,
    },
}

impl Operation {
    /// The table that the operation changes.
    pub fn table(&self) -> &Table {
        match self {
            Operation::AddTable { table, .. }
            | Operation::DeleteTable { table }
            | Operation::AddChain { table, .. }
            | Operation::FlushChain { table, .. }
            | Operation::DeleteChain { table, .. }
            | Operation::AddRule { table, .. }
            | Operation::AddSet { table, .. }
            | Operation::DeleteSet { table, .. }
            | Operation::AddElements { table, .. }
            | Operation::DeleteElements { table, .. } => table,
        }
    }

    /// Number of elements that the operation changes; 1 for operations on other objects.
    pub fn weight(&self) -> usize {
        match self {
            Operation::AddElements { elements, .. } | Operation::DeleteElements { elements, .. } => elements.len(),
            Operation::AddTable { .. }
            | Operation::DeleteTable { .. }
            | Operation::AddChain { .. }
            | Operation::FlushChain { .. }
            | Operation::DeleteChain { .. }
            | Operation::AddRule { .. }
            | Operation::AddSet { .. }
            | Operation::DeleteSet { .. } => 1,
        }
    }
}

/// Limit of the elements printed of a long list.
const SHOWN: usize = 8;

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            // The flags are not printed: nft 1.0.6 has no keywords for them.
            Operation::AddTable { table, comment, protected: _ } => {
                write!(f, "add table {table} {{ comment {comment}; }}")
            }
            Operation::DeleteTable { table } => write!(f, "delete table {table}"),
            Operation::AddChain { table, chain, hook: None } => write!(f, "add chain {table} {chain}"),
            Operation::AddChain { table, chain, hook: Some(hook) } => {
                write!(f, "add chain {table} {chain} {{ {} }}", HookText(*hook))
            }
            Operation::FlushChain { table, chain } => write!(f, "flush chain {table} {chain}"),
            Operation::DeleteChain { table, chain } => write!(f, "delete chain {table} {chain}"),
            Operation::AddRule { table, chain, rule } => write!(f, "add rule {table} {chain} {rule}"),
            Operation::AddSet { table, name, set } => {
                write!(f, "add {} {table} {name} {{ type {};", set_word(set), SetType(set))?;
                if let Some(size) = set.size {
                    write!(f, " size {size};")?;
                }
                if let Some(Dynamic { timeout_seconds }) = set.dynamic {
                    write!(f, " timeout {timeout_seconds}s;")?;
                }
                if let Some(flags) = set_flags(set) {
                    write!(f, " flags {flags};")?;
                }
                if let Some(comment) = &set.comment {
                    write!(f, " comment {comment};")?;
                }
                f.write_str(" }")
            }
            Operation::DeleteSet { table, name } => write!(f, "delete set {table} {name}"),
            Operation::AddElements { table, name, elements, .. } => {
                write!(f, "add element {table} {name} ")?;
                write_elements(f, elements)
            }
            Operation::DeleteElements { table, name, elements, .. } => {
                write!(f, "delete element {table} {name} ")?;
                write_elements(f, elements)
            }
        }
    }
}

fn write_elements(f: &mut Formatter<'_>, elements: &[(Key, Element)]) -> fmt::Result {
    f.write_str("{ ")?;
    for (i, (key, element)) in elements.iter().take(SHOWN).enumerate() {
        let lead = if i == 0 { "" } else { ", " };
        write!(f, "{lead}{}", ElementText(key, element))?;
    }
    match elements.len().saturating_sub(SHOWN) {
        0 => f.write_str(" }"),
        more => write!(f, ", … {more} more }}"),
    }
}
