//! The tables of the agent, which are committed together: family `inet` has the policies, family `netdev` exists if
//! interfaces of pods are known, and family `bridge` if pods are on a bridge.

use nfnetlink::{Kernel, TableSnapshot};
use nft::{InvalidPart, Name, Ruleset, Table, ValidatedRuleset};
use policy::{Generation, Layout, TABLE_COMMENT, Translation};

use super::Trouble;
use crate::transaction::{RepairMode, Transaction};

/// `NFT_TABLE_F_PERSIST` without an owner flag: the table has outlived its owner.
const ORPHANED: u32 = 4;

/// Validates a table; the first argument is the same table of the last successful validation.
/// [`validate`], except in tests of invalid rules.
pub(super) type ValidateWith = fn(Option<&ValidatedRuleset>, Ruleset) -> Result<ValidatedRuleset, Vec<InvalidPart>>;

/// Validates a table. Costs only the difference to the previous one, if there is any.
pub(super) fn validate(
    previous: Option<&ValidatedRuleset>,
    next: Ruleset,
) -> Result<ValidatedRuleset, Vec<InvalidPart>> {
    match previous {
        Some(previous) => previous.after(next),
        None => ValidatedRuleset::new(next),
    }
}

/// The tables with valid rules.
#[derive(Clone)]
pub(super) struct Tables {
    pub(super) policy: ValidatedRuleset,
    pub(super) bridge: Option<ValidatedRuleset>,
    /// Source checks at the pods' interfaces.
    pub(super) edge: Option<ValidatedRuleset>,
}

impl Tables {
    /// The desired tables, in which flows are approved in the generation.
    ///
    /// # Errors
    /// The invalid parts of the first table that has some.
    pub(super) fn of(
        translation: &Translation,
        generation: Generation,
        previous: Option<&Tables>,
        validate: ValidateWith,
    ) -> Result<Tables, Vec<InvalidPart>> {
        let optional = |previous: Option<&ValidatedRuleset>, next: &Option<Ruleset>| {
            next.clone().map(|next| validate(previous, next)).transpose()
        };
        Ok(Tables {
            policy: validate(previous.map(|tables| &tables.policy), translation.ruleset.stamp(generation))?,
            bridge: optional(previous.and_then(|tables| tables.bridge.as_ref()), &translation.bridge)?,
            edge: optional(previous.and_then(|tables| tables.edge.as_ref()), &translation.edge)?,
        })
    }

    /// The tables in the order of [`names`].
    pub(super) fn rulesets(&self) -> [Option<&ValidatedRuleset>; 3] {
        [Some(&self.policy), self.bridge.as_ref(), self.edge.as_ref()]
    }

    /// The source checks are updated before the policies.
    pub(super) fn difference(&self, wanted: &Tables) -> Transaction {
        let mut transaction = Transaction::between(self.edge.as_ref(), wanted.edge.as_ref());
        transaction.append(Transaction::between(self.bridge.as_ref(), wanted.bridge.as_ref()));
        transaction.append(Transaction::between(Some(&self.policy), Some(&wanted.policy)));
        transaction
    }

    /// Interface chains that the transition to the wanted tables would remove.
    pub(super) fn ended_ports(&self, wanted: &Tables) -> Vec<Name> {
        let Some(live) = &self.edge else { return vec![] };
        let is_wanted = |name: &Name| wanted.edge.as_ref().is_some_and(|edge| edge.chains.contains_key(name));
        let ended = live.chains.iter().filter(|(name, chain)| chain.hook.is_some() && !is_wanted(name));
        ended.map(|(name, _)| name.clone()).collect()
    }
}

/// The tables as read from the kernel.
pub(super) struct KernelTables {
    pub(super) policy: Option<TableSnapshot>,
    pub(super) bridge: Option<TableSnapshot>,
    pub(super) edge: Option<TableSnapshot>,
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

    /// The repair of the tables.
    pub(super) fn repair(&self, wanted: &Tables, mode: RepairMode) -> Transaction {
        let [policy, bridge, edge] = names(&wanted.policy.table.name);
        debug_assert_eq!(policy, wanted.policy.table);
        let mut transaction = Transaction::repairing(&edge, self.edge.as_ref(), wanted.edge.as_ref(), mode);
        transaction.append(Transaction::repairing(&bridge, self.bridge.as_ref(), wanted.bridge.as_ref(), mode));
        transaction.append(Transaction::repairing(&policy, self.policy.as_ref(), Some(&wanted.policy), mode));
        transaction
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

fn read_one(kernel: &mut Kernel, table: &Table) -> Result<Option<TableSnapshot>, Trouble> {
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

/// The tables of an earlier agent, when this one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlierTables {
    Missing,
    /// They had no owner and get none, or have one already.
    Present,
    /// They have an owner again.
    Claimed,
}

/// Takes ownership of tables that an earlier agent left, if they are to be protected.
pub(super) fn claim(kernel: &mut Kernel, layout: &Layout) -> Result<EarlierTables, Trouble> {
    let held = read(kernel, layout.table())?;
    if held.policy.is_none() {
        return Ok(EarlierTables::Missing);
    }
    if !layout.is_protected() {
        return Ok(EarlierTables::Present);
    }
    let present = names(layout.table()).into_iter().zip([held.policy, held.bridge, held.edge]);
    let orphans = present.filter(|(_, observed)| observed.as_ref().is_some_and(|o| o.flags == ORPHANED));
    let claims = Transaction::claiming(orphans.map(|(table, _)| table), TABLE_COMMENT);
    if claims.is_empty() {
        return Ok(EarlierTables::Present);
    }
    // The rules stay the same, so concurrent commits do not matter.
    claims.commit(kernel, 0).map_err(Trouble::Refused)?;
    Ok(EarlierTables::Claimed)
}
