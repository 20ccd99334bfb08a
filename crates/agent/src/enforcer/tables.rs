//! The tables of the agent, which are committed together: family `inet` has the policies, family `netdev` exists if
//! interfaces of pods are known, and family `bridge` if pods are on a bridge.

use nfnetlink::{Kernel, Observed, repair};
use nft::{Comment, Name, Operation, Ruleset, Table, add_table, create, difference, replace};
use policy::{Generation, Layout, TABLE_COMMENT, Translation};

use super::Trouble;

/// `NFT_TABLE_F_PERSIST` without an owner flag: the table has outlived its owner.
const ORPHANED: u32 = 4;

#[derive(Clone)]
pub(super) struct Tables {
    pub(super) policy: Ruleset,
    pub(super) bridge: Option<Ruleset>,
    /// Source checks at the pods' interfaces.
    pub(super) edge: Option<Ruleset>,
}

impl Tables {
    /// The desired tables, in which flows are approved in the generation.
    pub(super) fn of(translation: &Translation, generation: Generation) -> Tables {
        let Translation { ruleset, bridge, edge, .. } = translation;
        Tables { policy: ruleset.stamp(generation), bridge: bridge.clone(), edge: edge.clone() }
    }

    /// The tables in the order of [`names`].
    pub(super) fn rulesets(&self) -> [Option<&Ruleset>; 3] {
        [Some(&self.policy), self.bridge.as_ref(), self.edge.as_ref()]
    }

    /// The source checks are updated before the policies.
    pub(super) fn difference(&self, wanted: &Tables) -> Vec<Operation> {
        let optional = |live: &Option<Ruleset>, wanted: &Option<Ruleset>| match (live, wanted) {
            (None, None) => vec![],
            (None, Some(wanted)) => create(wanted),
            (Some(live), None) => vec![Operation::DeleteTable { table: live.table.clone() }],
            (Some(live), Some(wanted)) => difference(live, wanted),
        };
        let mut operations = optional(&self.edge, &wanted.edge);
        operations.extend(optional(&self.bridge, &wanted.bridge));
        operations.extend(difference(&self.policy, &wanted.policy));
        operations
    }

    /// Interface chains that the transition to the wanted tables would remove.
    pub(super) fn ended_ports(&self, wanted: &Tables) -> Vec<Name> {
        let Some(live) = &self.edge else { return vec![] };
        let is_wanted = |name: &Name| wanted.edge.as_ref().is_some_and(|edge| edge.chains.contains_key(name));
        let ended = live.chains.iter().filter(|(name, chain)| chain.hook.is_some() && !is_wanted(name));
        ended.map(|(name, _)| name.clone()).collect()
    }
}

/// How a table that differs is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mending {
    InPlace,
    /// Replaced by a new table.
    Whole,
}

/// The tables as read from the kernel.
pub(super) struct KernelTables {
    pub(super) policy: Option<Observed>,
    pub(super) bridge: Option<Observed>,
    pub(super) edge: Option<Observed>,
}

impl KernelTables {
    /// Whether all tables were read at this generation.
    pub(super) fn is_of(&self, generation: u32) -> bool {
        let tables = [&self.policy, &self.bridge, &self.edge];
        tables.into_iter().flatten().all(|table| table.generation == generation)
    }

    /// Whether any of the tables exists.
    pub(super) fn is_there(&self) -> bool {
        self.policy.is_some() || self.bridge.is_some() || self.edge.is_some()
    }

    /// Whether a table is missing that this process committed.
    pub(super) fn lacks(&self, left: &Tables) -> bool {
        self.policy.is_none()
            || left.bridge.is_some() && self.bridge.is_none()
            || left.edge.is_some() && self.edge.is_none()
    }

    /// The operations that repair the tables.
    pub(super) fn mend(&self, wanted: &Tables, mending: Mending) -> Vec<Operation> {
        let [policy, bridge, edge] = names(&wanted.policy.table.name);
        debug_assert_eq!(policy, wanted.policy.table);
        let mut operations = mend(&edge, self.edge.as_ref(), wanted.edge.as_ref(), mending);
        operations.extend(mend(&bridge, self.bridge.as_ref(), wanted.bridge.as_ref(), mending));
        operations.extend(mend(&policy, self.policy.as_ref(), Some(&wanted.policy), mending));
        operations
    }
}

/// The operations that repair one table, or remove it if it is not wanted.
pub(super) fn mend(
    table: &Table,
    observed: Option<&Observed>,
    wanted: Option<&Ruleset>,
    mending: Mending,
) -> Vec<Operation> {
    match (observed, wanted, mending) {
        (Some(_), Some(wanted), Mending::Whole) => replace(table, wanted),
        (observed, Some(wanted), _) => repair(observed, wanted),
        (Some(_), None, _) => vec![Operation::DeleteTable { table: table.clone() }],
        (None, None, _) => vec![],
    }
}

/// All tables of the agent by their common name, existing or not: of the families `inet`, `bridge` and `netdev`.
pub(crate) fn names(name: &Name) -> [Table; 3] {
    [Table::inet(name.clone()), Table::bridge(name.clone()), Table::netdev(name.clone())]
}

/// Reads the existing tables; fails if one belongs to another program.
pub(super) fn read(kernel: &mut Kernel, name: &Name) -> Result<KernelTables, Trouble> {
    let [policy, bridge, edge] = names(name);
    let policy = read_one(kernel, &policy)?;
    Ok(KernelTables { policy, bridge: read_one(kernel, &bridge)?, edge: read_one(kernel, &edge)? })
}

fn read_one(kernel: &mut Kernel, table: &Table) -> Result<Option<Observed>, Trouble> {
    let observed = kernel.read(table).map_err(|e| Trouble::Unreadable(e.to_string()))?;
    let Some(observed) = observed else { return Ok(None) };
    if observed.comment() != Some(TABLE_COMMENT) {
        return Err(Trouble::ForeignTable(table.clone()));
    }
    match observed.held_by_other(kernel.port()) {
        Some(port) => Err(Trouble::KernelTables(table.clone(), port)),
        None => Ok(Some(observed)),
    }
}

/// Takes ownership of tables that an earlier agent left, if they are to be protected. Returns whether there were any.
pub(super) fn claim(kernel: &mut Kernel, layout: &Layout) -> Result<bool, Trouble> {
    let held = read(kernel, layout.table())?;
    if !layout.is_protected() {
        return Ok(false);
    }
    let present = names(layout.table()).into_iter().zip([held.policy, held.bridge, held.edge]);
    let orphans = present.filter(|(_, observed)| observed.as_ref().is_some_and(|o| o.flags == ORPHANED));
    let claims: Vec<Operation> = orphans
        .map(|(table, _)| add_table(&Ruleset::new(table, Comment::new(TABLE_COMMENT)).protected(true)))
        .collect();
    if claims.is_empty() {
        return Ok(false);
    }
    // The rules stay the same, so concurrent commits do not matter.
    kernel.commit(&claims, 0).map_err(Trouble::Refused)?;
    Ok(true)
}
