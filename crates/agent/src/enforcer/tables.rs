//! The tables of the agent, which are committed together: the policies' of family `inet`, that of family `netdev` where
//! interfaces of pods are known, and that of family `bridge` where pods are on one.

use nfnetlink::{Kernel, Observed, repair};
use nft::{Comment, Name, Operation, Ruleset, Table, add_table, create, difference, replace};
use policy::{Layout, TABLE_COMMENT, Translation};

use super::Trouble;

/// The flag of a table that stays when its owner has gone (`NFT_TABLE_F_PERSIST`), and of nothing else: it has gone.
const ORPHANED: u32 = 4;

#[derive(Clone)]
pub(super) struct Tables {
    pub(super) policy: Ruleset,
    pub(super) bridge: Option<Ruleset>,
    /// The check of what pods send, at their interfaces.
    pub(super) edge: Option<Ruleset>,
}

impl Tables {
    pub(super) fn of(translation: &Translation) -> Tables {
        let Translation { ruleset, bridge, edge, .. } = translation;
        Tables { policy: ruleset.clone(), bridge: bridge.clone(), edge: edge.clone() }
    }

    /// In the order of [`names`].
    pub(super) fn rulesets(&self) -> [Option<&Ruleset>; 3] {
        [Some(&self.policy), self.bridge.as_ref(), self.edge.as_ref()]
    }

    /// What pods send is checked before what they may reach is changed.
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

    /// Chains at interfaces that would be removed by turning these tables into the wanted ones.
    pub(super) fn ended_ports(&self, wanted: &Tables) -> Vec<Name> {
        let Some(live) = &self.edge else { return vec![] };
        let is_wanted = |name: &Name| wanted.edge.as_ref().is_some_and(|edge| edge.chains.contains_key(name));
        let ended = live.chains.iter().filter(|(name, chain)| chain.hook.is_some() && !is_wanted(name));
        ended.map(|(name, _)| name.clone()).collect()
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
    pub(super) edge: Option<Observed>,
}

impl Held {
    /// Whether all were read at this generation.
    pub(super) fn is_of(&self, generation: u32) -> bool {
        let tables = [&self.policy, &self.bridge, &self.edge];
        tables.into_iter().flatten().all(|table| table.generation == generation)
    }

    /// Whether there is any of them.
    pub(super) fn is_there(&self) -> bool {
        self.policy.is_some() || self.bridge.is_some() || self.edge.is_some()
    }

    /// Whether one is gone that was left here.
    pub(super) fn lacks(&self, left: &Tables) -> bool {
        self.policy.is_none()
            || left.bridge.is_some() && self.bridge.is_none()
            || left.edge.is_some() && self.edge.is_none()
    }

    /// The operations that make the tables the wanted ones.
    pub(super) fn mend(&self, wanted: &Tables, mending: Mending) -> Vec<Operation> {
        let [policy, bridge, edge] = of_name(&wanted.policy.table.name);
        debug_assert_eq!(policy, wanted.policy.table);
        let mut operations = mend(&edge, self.edge.as_ref(), wanted.edge.as_ref(), mending);
        operations.extend(mend(&bridge, self.bridge.as_ref(), wanted.bridge.as_ref(), mending));
        operations.extend(mend(&policy, self.policy.as_ref(), Some(&wanted.policy), mending));
        operations
    }
}

/// The operations that make one table the wanted one, or remove it if none is wanted.
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

fn of_name(name: &Name) -> [Table; 3] {
    [Table::inet(name.clone()), Table::bridge(name.clone()), Table::netdev(name.clone())]
}

/// All tables, whether they are there or not: of the families `inet`, `bridge` and `netdev`.
pub(crate) fn names(layout: &Layout) -> [Table; 3] {
    of_name(layout.table())
}

/// Reads the tables, as far as they are there, and refuses somebody else's.
pub(super) fn read(kernel: &mut Kernel, layout: &Layout) -> Result<Held, Trouble> {
    let [policy, bridge, edge] = names(layout);
    let policy = read_one(kernel, &policy)?;
    Ok(Held { policy, bridge: read_one(kernel, &bridge)?, edge: read_one(kernel, &edge)? })
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
    let present = names(layout).into_iter().zip([held.policy, held.bridge, held.edge]);
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
