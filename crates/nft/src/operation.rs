//! Operations of a transaction, each of which prints as the nft command that does the same.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::text::{ElementText, HookText, SetType, set_word};
use crate::{Comment, Element, Hook, Key, Name, Rule, Set};

/// One step of a transaction on a table. Steps are meant to be committed together, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    AddTable {
        table: Name,
        comment: Comment,
    },
    DeleteTable {
        table: Name,
    },
    AddChain {
        table: Name,
        chain: Name,
        hook: Option<Hook>,
    },
    FlushChain {
        table: Name,
        chain: Name,
    },
    DeleteChain {
        table: Name,
        chain: Name,
    },
    /// Appends the rule.
    AddRule {
        table: Name,
        chain: Name,
        rule: Rule,
    },
    /// Creates the set empty; the value's elements are not part of the operation.
    AddSet {
        table: Name,
        name: Name,
        set: Arc<Set>,
    },
    DeleteSet {
        table: Name,
        name: Name,
    },
    /// `set` says how the elements are laid out; its own elements are not part of the operation.
    AddElements {
        table: Name,
        name: Name,
        set: Arc<Set>,
        elements: Vec<(Key, Element)>,
    },
    DeleteElements {
        table: Name,
        name: Name,
        set: Arc<Set>,
        elements: Vec<(Key, Element)>,
    },
}

impl Operation {
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
            Operation::AddTable { table, comment } => write!(f, "add table inet {table} {{ comment {comment}; }}"),
            Operation::DeleteTable { table } => write!(f, "delete table inet {table}"),
            Operation::AddChain { table, chain, hook: None } => write!(f, "add chain inet {table} {chain}"),
            Operation::AddChain { table, chain, hook: Some(hook) } => {
                write!(f, "add chain inet {table} {chain} {{ {} }}", HookText(*hook))
            }
            Operation::FlushChain { table, chain } => write!(f, "flush chain inet {table} {chain}"),
            Operation::DeleteChain { table, chain } => write!(f, "delete chain inet {table} {chain}"),
            Operation::AddRule { table, chain, rule } => write!(f, "add rule inet {table} {chain} {rule}"),
            Operation::AddSet { table, name, set } => {
                write!(f, "add {} inet {table} {name} {{ type {};", set_word(set), SetType(set))?;
                if set.interval {
                    f.write_str(" flags interval;")?;
                }
                if let Some(comment) = &set.comment {
                    write!(f, " comment {comment};")?;
                }
                f.write_str(" }")
            }
            Operation::DeleteSet { table, name } => write!(f, "delete set inet {table} {name}"),
            Operation::AddElements { table, name, elements, .. } => {
                write!(f, "add element inet {table} {name} ")?;
                write_elements(f, elements)
            }
            Operation::DeleteElements { table, name, elements, .. } => {
                write!(f, "delete element inet {table} {name} ")?;
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
