//! Transactions on nftables, and the only place in the agent that commits them.
//!
//! A transaction that adds rules is made of validated rulesets alone. One of other parts deletes, or claims a table
//! without changing its rules.

use std::sync::Arc;

use nfnetlink::{CommitError, CommitReceipt, Kernel, TableSnapshot, repair};
use nft::{
    Comment, Element, Key, Name, Operation, Ruleset, Set, Table, ValidatedRuleset, add_table, create, difference,
    replace,
};

/// Commits operations as one transaction: [`Kernel::commit`], except in tests of kernel refusals.
pub(crate) type CommitWith = fn(&mut Kernel, &[Operation], u32) -> Result<CommitReceipt, CommitError>;

/// [`Kernel::commit`].
pub(crate) const COMMIT: CommitWith = Kernel::commit;

/// How a table that differs is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepairMode {
    InPlace,
    /// Replaced by a new table.
    Whole,
}

/// Operations that the kernel applies together or not at all.
#[derive(Debug, Clone, Default)]
#[must_use]
pub(crate) struct Transaction {
    operations: Vec<Operation>,
}

impl Transaction {
    /// Creates a table.
    pub(crate) fn creating(wanted: &ValidatedRuleset) -> Transaction {
        Transaction { operations: create(wanted) }
    }

    /// Turns one table into another; `None` is a missing table.
    pub(crate) fn between(live: Option<&ValidatedRuleset>, wanted: Option<&ValidatedRuleset>) -> Transaction {
        let operations = match (live, wanted) {
            (None, None) => vec![],
            (None, Some(wanted)) => create(wanted),
            (Some(live), None) => vec![Operation::DeleteTable { table: live.table.clone() }],
            (Some(live), Some(wanted)) => difference(live, wanted),
        };
        Transaction { operations }
    }

    /// Repairs a table that was read back, or deletes it if it is not wanted.
    pub(crate) fn repairing(
        table: &Table,
        observed: Option<&TableSnapshot>,
        wanted: Option<&ValidatedRuleset>,
        mode: RepairMode,
    ) -> Transaction {
        let operations = match (observed, wanted, mode) {
            (Some(_), Some(wanted), RepairMode::Whole) => replace(table, wanted),
            (observed, Some(wanted), RepairMode::InPlace | RepairMode::Whole) => repair(observed, wanted),
            (Some(_), None, _) => vec![Operation::DeleteTable { table: table.clone() }],
            (None, None, _) => vec![],
        };
        Transaction { operations }
    }

    /// Takes ownership of existing tables with this comment, whose rules stay as they are.
    pub(crate) fn claiming(tables: impl IntoIterator<Item = Table>, comment: &str) -> Transaction {
        let claim = |table| add_table(&Ruleset::new(table, Comment::new(comment)).protected(true));
        Transaction { operations: tables.into_iter().map(claim).collect() }
    }

    /// Deletes the table with its contents.
    pub(crate) fn deleting(table: Table) -> Transaction {
        Transaction { operations: vec![Operation::DeleteTable { table }] }
    }

    pub(crate) fn delete_chain(&mut self, table: Table, chain: Name) {
        self.operations.push(Operation::DeleteChain { table, chain });
    }

    /// `set` is the declaration of the set.
    pub(crate) fn delete_element(&mut self, table: Table, name: Name, set: Arc<Set>, key: Key) {
        let elements = vec![(key, Element::default())];
        self.operations.push(Operation::DeleteElements { table, name, set, elements });
    }

    /// Appends the operations of another transaction.
    pub(crate) fn append(&mut self, other: Transaction) {
        self.operations.extend(other.operations);
    }

    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Commits if the kernel generation is still the expected one; 0 skips that check.
    ///
    /// # Errors
    /// Those of [`Kernel::commit`].
    pub(crate) fn commit(&self, kernel: &mut Kernel, generation: u32) -> Result<CommitReceipt, CommitError> {
        self.commit_with(COMMIT, kernel, generation)
    }

    /// [`Transaction::commit`] through a function that refuses operations in tests.
    ///
    /// # Errors
    /// Those of [`Kernel::commit`].
    pub(crate) fn commit_with(
        &self,
        commit: CommitWith,
        kernel: &mut Kernel,
        generation: u32,
    ) -> Result<CommitReceipt, CommitError> {
        commit(kernel, &self.operations, generation)
    }
}
