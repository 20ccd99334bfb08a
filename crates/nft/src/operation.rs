//! Operations of a transaction, each of which prints as the nft command that does the same.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::text::{ElementText, HookText, SetType, set_flags, set_word};
use crate::{Comment, Dynamic, Element, Hook, Key, Name, Rule, Set, Table};

/// One step of a transaction on a table. Steps are meant to be committed together, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// On a table that is there it changes nothing, except that one which lost its owner gets the committing socket for
    /// a new one if `protected`.
    AddTable {
        table: Table,
        comment: Comment,
        protected: bool,
    },
    DeleteTable {
        table: Table,
    },
    AddChain {
        table: Table,
        chain: Name,
        hook: Option<Hook>,
    },
    FlushChain {
        table: Table,
        chain: Name,
    },
    DeleteChain {
        table: Table,
        chain: Name,
    },
    /// Appends the rule.
    AddRule {
        table: Table,
        chain: Name,
        rule: Rule,
    },
    /// Creates the set empty; the value's elements are not part of the operation.
    AddSet {
        table: Table,
        name: Name,
        set: Arc<Set>,
    },
    DeleteSet {
        table: Table,
        name: Name,
    },
    /// `set` says how the elements are laid out; its own elements are not part of the operation.
    AddElements {
        table: Table,
        name: Name,
        set: Arc<Set>,
        elements: Vec<(Key, Element)>,
    },
    DeleteElements {
        table: Table,
        name: Name,
        set: Arc<Set>,
        elements: Vec<(Key, Element)>,
    },
}

impl Operation {
    /// The table that the operation is about.
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

    /// How many elements the operation touches; 1 for operations on other objects.
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

/// Elements shown of a long list.
const SHOWN: usize = 8;

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            // Its flags cannot be printed: nft 1.0.6 has no words for them.
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
