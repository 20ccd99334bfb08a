//! Compares a table in the kernel with the wanted ruleset, and returns the operations that repair it.
//!
//! Tables are equal if they have the same bytecode in the same order, the same elements, verdicts, comments, hooks and
//! flags. Counts of counters are ignored. A table with anything that the language cannot express or undo is replaced.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use nft::{Chain, Element, Key, Name, NameMap, Operation, Ruleset, Set, Table, TableFamily};

use crate::encode::{OWNER, PERSIST, observed_hook};
use crate::expression::VerdictCode;
use crate::lower::{SetHeader, lower_rule, raise_elements};
use crate::table_snapshot::{ObservedChain, ObservedRule, ObservedSet, RawElement, TableSnapshot};

/// The operations that turn the kernel's table into the wanted one; empty if they are equal. `observed` is `None` if
/// the table does not exist.
///
/// Differences are repaired in place where possible, in the order of [`nft::difference`]; a table that lost its owner
/// is claimed if it is wanted protected. The table is replaced if its flags or comment differ, if a set has another
/// key, if a base chain has another hook or is not wanted, or if it contains something that the language cannot
/// express.
pub fn repair(observed: Option<&TableSnapshot>, wanted: &Ruleset) -> Vec<Operation> {
    let Some(observed) = observed else { return nft::create(wanted) };
    mend(observed, wanted).unwrap_or_else(|| nft::replace(&wanted.table, wanted))
}

/// Returns `None` if the table has to be replaced.
fn mend(observed: &TableSnapshot, wanted: &Ruleset) -> Option<Vec<Operation>> {
    if observed.comment() != Some(wanted.comment.as_str()) {
        return None;
    }
    let mut operations = protection(observed.flags, wanted)?;
    let table = || wanted.table.clone();
    let going_sets = going(&observed.sets, &wanted.sets)?;
    let going_chains = going(&observed.chains, &wanted.chains)?;
    if going_chains.iter().any(|name| observed.chains[name.as_str()].hook.is_some()) {
        return None;
    }
    for (name, set) in &wanted.sets {
        if !observed.sets.contains_key(name.as_str()) {
            operations.push(Operation::AddSet { table: table(), name: name.clone(), set: set.clone() });
        }
    }
    for (name, chain) in &wanted.chains {
        if !observed.chains.contains_key(name.as_str()) {
            operations.push(Operation::AddChain { table: table(), chain: name.clone(), hook: chain.hook });
        }
    }
    for (name, chain) in &wanted.chains {
        mend_chain(&mut operations, &wanted.table, name, observed.chains.get(name.as_str()), chain)?;
    }
    for chain in &going_chains {
        operations.push(Operation::FlushChain { table: table(), chain: chain.clone() });
    }
    for (name, set) in &wanted.sets {
        mend_set(&mut operations, &wanted.table, name, observed.sets.get(name.as_str()), set)?;
    }
    for name in going_sets {
        operations.push(Operation::DeleteSet { table: table(), name });
    }
    for chain in going_chains {
        operations.push(Operation::DeleteChain { table: table(), chain });
    }
    Some(operations)
}

/// The operations that protect the table as wanted; `None` if it has to be replaced, since the kernel neither adds an
/// owner to an existing table nor removes one (`nf_tables_updtable`). The exception is a table that lost its owner.
fn protection(flags: u32, wanted: &Ruleset) -> Option<Vec<Operation>> {
    const OWNED: u32 = OWNER | PERSIST;
    match (wanted.protected, flags) {
        // An orphaned table can be changed by any socket, as if it had no flags.
        (true, OWNED) | (false, 0 | PERSIST) => Some(Vec::new()),
        (true, PERSIST) => Some(vec![nft::add_table(wanted)]),
        (true | false, _) => None,
    }
}

/// Names in the kernel that are not wanted; `None` if the language cannot express one of them.
fn going<T, U>(observed: &BTreeMap<String, T>, wanted: &NameMap<U>) -> Option<Vec<Name>> {
    let unwanted = |name: &&String| !wanted.keys().any(|w| w.as_str() == name.as_str());
    // Equal names are the usual case, and comparing them is cheap.
    if observed.len() == wanted.len() && observed.keys().zip(wanted.keys()).all(|(o, w)| o == w.as_str()) {
        return Some(Vec::new());
    }
    observed.keys().filter(unwanted).map(|name| Name::new(name).ok()).collect()
}

fn mend_chain(
    operations: &mut Vec<Operation>,
    table: &Table,
    name: &Name,
    observed: Option<&ObservedChain>,
    wanted: &Chain,
) -> Option<()> {
    if let Some(observed) = observed {
        if observed.foreign || observed.hook != wanted.hook.map(observed_hook) {
            return None;
        }
        let alike = observed.rules.len() == wanted.rules.len()
            && observed.rules.iter().zip(&wanted.rules).all(|(o, w)| same_rule(o, w, table.family));
        if alike {
            return Some(());
        }
        operations.push(Operation::FlushChain { table: table.clone(), chain: name.clone() });
    }
    for rule in &wanted.rules {
        operations.push(Operation::AddRule { table: table.clone(), chain: name.clone(), rule: rule.clone() });
    }
    Some(())
}

fn same_rule(observed: &ObservedRule, wanted: &nft::Rule, family: TableFamily) -> bool {
    observed.comment.as_deref() == wanted.comment.as_ref().map(|c| c.as_str())
        && observed.expressions.as_ref().is_some_and(|e| *e == lower_rule(wanted, family))
}

fn mend_set(
    operations: &mut Vec<Operation>,
    table: &Table,
    name: &Name,
    observed: Option<&ObservedSet>,
    wanted: &Arc<Set>,
) -> Option<()> {
    let (removed, added) = match observed {
        Some(observed) => {
            if observed.foreign || observed.header != SetHeader::of(wanted) {
                return None;
            }
            compare_elements(&raise_elements(wanted, &observed.elements).ok()?, wanted)
        }
        None => (Vec::new(), wanted.elements.iter().map(|(k, e)| (k, e.clone())).collect()),
    };
    let (table, name, set) = (table.clone(), name.clone(), wanted.clone());
    if !removed.is_empty() {
        let (table, name, set) = (table.clone(), name.clone(), set.clone());
        operations.push(Operation::DeleteElements { table, name, set, elements: removed });
    }
    if !added.is_empty() {
        operations.push(Operation::AddElements { table, name, set, elements: added });
    }
    Some(())
}

type Elements = Vec<(Key, Element)>;

/// The elements to remove and to add. Both sides are sorted by key.
fn compare_elements(observed: &[(Key, &RawElement)], wanted: &Set) -> (Elements, Elements) {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    let (mut left, mut right) = (observed.iter().peekable(), wanted.elements.iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return (removed, added),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((key, _)), Some((wanted_key, _))) => key.cmp(wanted_key),
        };
        let theirs = if order.is_le() { left.next() } else { None };
        let ours = if order.is_ge() { right.next() } else { None };
        if let (Some((_, raw)), Some((_, element))) = (theirs, ours)
            && same_element(raw, element)
        {
            continue;
        }
        // An element is deleted by its key alone, so its other properties are left out.
        removed.extend(theirs.map(|(key, _)| (*key, Element::default())));
        added.extend(ours.map(|(key, element)| (key, element.clone())));
    }
}

fn same_element(observed: &RawElement, wanted: &Element) -> bool {
    !observed.foreign
        && observed.verdict == wanted.verdict.as_ref().map(VerdictCode::from)
        && observed.comment.as_deref() == wanted.comment.as_ref().map(|c| c.as_str())
}
