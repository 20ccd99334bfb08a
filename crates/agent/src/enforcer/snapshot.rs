//! A snapshot of the committed rules, which is compared with the kernel and printed outside the event loop.

use nfnetlink::{Kernel, OpenError, TableReadError};
use nft::{Operation, Table, TableFamily, ValidatedRuleset};

use super::tables::names;
use super::{Enforcer, OPERATIONS_SHOWN};
use crate::api::TableVerdict;
use crate::transaction::{RepairMode, Transaction};

/// The tables of the agent as of the last commit. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RulesSnapshot {
    /// Each table that the agent may have; `None` if this node does not need it.
    tables: Vec<(Table, Option<ValidatedRuleset>)>,
}

#[derive(Debug, thiserror::Error)]
enum ComparisonError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot read {table}: {source}")]
    Read { table: Table, source: TableReadError },
}

impl Enforcer {
    /// The rules of the last commit, or of the last comparison that found none missing; `None` before the first commit
    /// of this process.
    pub(crate) fn snapshot(&self) -> Option<RulesSnapshot> {
        // `live` is `None` after a failed commit and while a foreign commit has to be compared.
        let tables = self.live.as_ref().map(|live| &live.tables).or(self.left.as_ref())?;
        let rulesets = tables.rulesets().map(Option::<&_>::cloned);
        Some(RulesSnapshot { tables: names(&self.name).into_iter().zip(rulesets).collect() })
    }
}

impl RulesSnapshot {
    /// Keeps only the table of this family.
    pub(crate) fn of_family(self, family: TableFamily) -> RulesSnapshot {
        RulesSnapshot { tables: self.tables.into_iter().filter(|(table, _)| table.family == family).collect() }
    }

    /// Reads the tables from the kernel of the calling thread's network namespace and compares them. Blocks, for a
    /// second per hundred thousand elements.
    pub(crate) fn compare(&self) -> TableVerdict {
        match self.restoring_transaction() {
            Ok(transaction) => verdict(transaction.operations()),
            Err(error) => TableVerdict::Unknown { reason: error.to_string() },
        }
    }

    /// The transaction that would restore the snapshot in the kernel.
    fn restoring_transaction(&self) -> Result<Transaction, ComparisonError> {
        let mut kernel = Kernel::open()?;
        let mut transaction = Transaction::default();
        for (table, ruleset) in &self.tables {
            let observed =
                kernel.read(table).map_err(|source| ComparisonError::Read { table: table.clone(), source })?;
            let mode = RepairMode::InPlace;
            transaction.append(Transaction::repairing(table, observed.as_ref(), ruleset.as_ref(), mode));
        }
        Ok(transaction)
    }

    /// The text of the tables, in parts of one set or chain each.
    pub(crate) fn into_text_parts(self) -> impl Iterator<Item = String> + Send {
        let rulesets = self.tables.into_iter().filter_map(|(_, ruleset)| ruleset);
        rulesets.flat_map(|ruleset| ruleset.into_ruleset().into_text_parts())
    }
}

/// Equal if there are no operations.
pub(super) fn verdict(operations: &[Operation]) -> TableVerdict {
    let shown: Vec<String> = operations.iter().take(OPERATIONS_SHOWN).map(Operation::to_string).collect();
    match operations.len() - shown.len() {
        _ if shown.is_empty() => TableVerdict::Equal,
        more => TableVerdict::Different { operations: shown, more },
    }
}
