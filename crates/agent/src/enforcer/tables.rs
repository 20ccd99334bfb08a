//! The tables of the agent, which are committed together: the policies' of family `inet`, and that of family `bridge`
//! where pods are on one.

use nfnetlink::{Kernel, Observed, repair};
use nft::{Comment, Operation, Ruleset, Table, add_table, create, difference, replace};
use policy::{Layout, TABLE_COMMENT, Translation};

use super::Trouble;

/// The flag of a table that stays when its owner has gone (`NFT_TABLE_F_PERSIST`), and of nothing else: it has gone.
const ORPHANED: u32 = 4;

#[derive(Clone)]
pub(super) struct Tables {
    pub(super) policy: Ruleset,
    pub(super) bridge: Option<Ruleset>,
}

impl Tables {
    pub(super) fn of(translation: &Translation) -> Tables {
        Tables { policy: translation.ruleset.clone(), bridge: translation.bridge.clone() }
    }

    pub(super) fn difference(&self, wanted: &Tables) -> Vec<Operation> {
        let mut operations = difference(&self.policy, &wanted.policy);
        operations.extend(match (&self.bridge, &wanted.bridge) {
            (None, None) => vec![],
            (None, Some(wanted)) => create(wanted),
            (Some(live), None) => vec![Operation::DeleteTable { table: live.table.clone() }],
            (Some(live), Some(wanted)) => difference(live, wanted),
        });
        operations
    }
}

/// How a table that differs is made right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mending {
    InPlace,
    /// By a new one in its place.
    Whole,
}

/// What the kernel holds of the tables.
pub(super) struct Held {
    pub(super) policy: Option<Observed>,
    pub(super) bridge: Option<Observed>,
}

impl Held {
    /// Whether both were read at this generation.
    pub(super) fn is_of(&self, generation: u32) -> bool {
        [&self.policy, &self.bridge].into_iter().flatten().all(|table| table.generation == generation)
    }

    /// Whether there is any of them.
    pub(super) fn is_there(&self) -> bool {
        self.policy.is_some() || self.bridge.is_some()
    }

    /// Whether one is gone that was left here.
    pub(super) fn lacks(&self, left: &Tables) -> bool {
        self.policy.is_none() || left.bridge.is_some() && self.bridge.is_none()
    }

    /// The operations that make the tables the wanted ones.
    pub(super) fn mend(&self, wanted: &Tables, mending: Mending) -> Vec<Operation> {
        let mend = |observed: Option<&Observed>, wanted: &Ruleset| match (observed, mending) {
            (Some(_), Mending::Whole) => replace(&wanted.table, wanted),
            (observed, _) => repair(observed, wanted),
        };
        let mut operations = mend(self.policy.as_ref(), &wanted.policy);
        operations.extend(match (&self.bridge, &wanted.bridge) {
            (observed, Some(wanted)) => mend(observed.as_ref(), wanted),
            (Some(_), None) => vec![Operation::DeleteTable { table: bridge_of(&wanted.policy.table) }],
            (None, None) => vec![],
        });
        operations
    }
}

fn bridge_of(table: &Table) -> Table {
    Table::bridge(table.name.clone())
}

/// Both tables, whether they are there or not.
pub(super) fn names(layout: &Layout) -> [Table; 2] {
    [Table::inet(layout.table().clone()), Table::bridge(layout.table().clone())]
}

/// Reads the tables, as far as they are there, and refuses somebody else's.
pub(super) fn read(kernel: &mut Kernel, layout: &Layout) -> Result<Held, Trouble> {
    let [policy, bridge] = names(layout);
    Ok(Held { policy: read_one(kernel, &policy)?, bridge: read_one(kernel, &bridge)? })
}

fn read_one(kernel: &mut Kernel, table: &Table) -> Result<Option<Observed>, Trouble> {
    let observed = kernel.read(table).map_err(|e| Trouble::Unreadable(e.to_string()))?;
    let Some(observed) = observed else { return Ok(None) };
    if observed.comment() != Some(TABLE_COMMENT) {
        return Err(Trouble::ForeignTable(table.clone()));
    }
    match observed.held_by_other(kernel.port()) {
        Some(port) => Err(Trouble::Held(table.clone(), port)),
        None => Ok(Some(observed)),
    }
}

/// Becomes the owner of tables that an earlier agent left, if they are to be protected. Says whether there were any.
pub(super) fn claim(kernel: &mut Kernel, layout: &Layout) -> Result<bool, Trouble> {
    let held = read(kernel, layout)?;
    if !layout.is_protected() {
        return Ok(false);
    }
    let present = names(layout).into_iter().zip([held.policy, held.bridge]);
    let orphans = present.filter(|(_, observed)| observed.as_ref().is_some_and(|o| o.flags == ORPHANED));
    let claims: Vec<Operation> = orphans
        .map(|(table, _)| add_table(&Ruleset::new(table, Comment::new(TABLE_COMMENT)).protected(true)))
        .collect();
    if claims.is_empty() {
        return Ok(false);
    }
    // Nothing of the rules changes, so it does not matter what others commit at the same time.
    kernel.commit(&claims, 0).map_err(Trouble::Refused)?;
    Ok(true)
}
