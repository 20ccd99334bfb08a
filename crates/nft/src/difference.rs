//! The operations that turn one ruleset into another.
//!
//! Order: sets and chains come into being first, then rules that use them, then elements that lead to them; what goes
//! away goes in reverse. So every step finds what it refers to, and nothing is deleted while it is in use. The base
//! chain is never deleted: that would flush every NFQUEUE of the namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Chain, Element, Key, Name, Operation, Ruleset, Set, Table};

/// The operations that create the table from nothing.
pub fn create(wanted: &Ruleset) -> Vec<Operation> {
    let empty = Ruleset::new(wanted.table.clone(), wanted.comment.clone());
    let mut operations = vec![add_table(wanted)];
    operations.extend(step(&empty, wanted));
    operations
}

/// The operation that makes the table, without anything in it.
pub fn add_table(wanted: &Ruleset) -> Operation {
    Operation::AddTable { table: wanted.table.clone(), comment: wanted.comment.clone(), protected: wanted.protected }
}

/// The operations that turn `live` into `wanted`, none if they are equal. What the two share is stepped over.
///
/// Where an object keeps its name and changes its nature (a set its key, a chain its hook), or the tables differ or
/// their protection, the whole table is replaced.
pub fn difference(live: &Ruleset, wanted: &Ruleset) -> Vec<Operation> {
    if replaces_whole(live, wanted) { replace(&live.table, wanted) } else { step(live, wanted) }
}

/// The operations that put the wanted table in the place of a table that exists, whatever that holds.
pub fn replace(live: &Table, wanted: &Ruleset) -> Vec<Operation> {
    let mut operations = vec![Operation::DeleteTable { table: live.clone() }];
    operations.extend(create(wanted));
    operations
}

fn replaces_whole(live: &Ruleset, wanted: &Ruleset) -> bool {
    let set_changed = |(name, set): (&Name, &Arc<Set>)| match live.sets.get(name) {
        Some(old) => !Arc::ptr_eq(old, set) && !old.same_header(set),
        None => false,
    };
    let chain_changed = |(name, chain): (&Name, &Arc<Chain>)| match live.chains.get(name) {
        Some(old) => old.hook != chain.hook,
        None => false,
    };
    let base_chain_goes = live.chains.iter().any(|(n, c)| c.hook.is_some() && !wanted.chains.contains_key(n));
    live.table != wanted.table
        || live.protected != wanted.protected
        || live.comment != wanted.comment
        || base_chain_goes
        || wanted.sets.iter().any(set_changed)
        || wanted.chains.iter().any(chain_changed)
}

fn step(live: &Ruleset, wanted: &Ruleset) -> Vec<Operation> {
    let table = &wanted.table;
    let mut operations = Vec::new();
    for (name, set) in added(&live.sets, &wanted.sets) {
        operations.push(Operation::AddSet { table: table.clone(), name: name.clone(), set: set.clone() });
    }
    for (name, chain) in added(&live.chains, &wanted.chains) {
        operations.push(Operation::AddChain { table: table.clone(), chain: name.clone(), hook: chain.hook });
    }
    for (name, chain) in &wanted.chains {
        rewrite_chain(&mut operations, table, name, live.chains.get(name), chain);
    }
    let gone: Vec<_> = added(&wanted.chains, &live.chains).map(|(name, _)| name).collect();
    for name in &gone {
        operations.push(Operation::FlushChain { table: table.clone(), chain: (*name).clone() });
    }
    for (name, set) in &wanted.sets {
        change_elements(&mut operations, table, name, live.sets.get(name), set);
    }
    for (name, _) in added(&wanted.sets, &live.sets) {
        operations.push(Operation::DeleteSet { table: table.clone(), name: name.clone() });
    }
    for name in gone {
        operations.push(Operation::DeleteChain { table: table.clone(), chain: name.clone() });
    }
    operations
}

/// Entries of `new` whose names `old` lacks.
fn added<'a, T>(
    old: &'a BTreeMap<Name, Arc<T>>,
    new: &'a BTreeMap<Name, Arc<T>>,
) -> impl Iterator<Item = (&'a Name, &'a Arc<T>)> {
    new.iter().filter(|(name, _)| !old.contains_key(*name))
}

fn rewrite_chain(
    operations: &mut Vec<Operation>,
    table: &Table,
    name: &Name,
    old: Option<&Arc<Chain>>,
    new: &Arc<Chain>,
) {
    match old {
        Some(old) if Arc::ptr_eq(old, new) || old.rules == new.rules => return,
        Some(_) => operations.push(Operation::FlushChain { table: table.clone(), chain: name.clone() }),
        None => {}
    }
    for rule in &new.rules {
        operations.push(Operation::AddRule { table: table.clone(), chain: name.clone(), rule: rule.clone() });
    }
}

fn change_elements(
    operations: &mut Vec<Operation>,
    table: &Table,
    name: &Name,
    old: Option<&Arc<Set>>,
    new: &Arc<Set>,
) {
    if old.is_some_and(|old| Arc::ptr_eq(old, new)) {
        return;
    }
    let nothing = BTreeMap::new();
    let before: &BTreeMap<Key, Element> = old.map_or(&nothing, |old| &old.elements);
    let unlike = |from: &BTreeMap<Key, Element>, to: &BTreeMap<Key, Element>| -> Vec<(Key, Element)> {
        from.iter().filter(|(k, e)| to.get(k) != Some(e)).map(|(k, e)| (*k, e.clone())).collect()
    };
    let (table, name, set) = (table.clone(), name.clone(), new.clone());
    let removed = unlike(before, &new.elements);
    let added = unlike(&new.elements, before);
    if !removed.is_empty() {
        let (table, name, set) = (table.clone(), name.clone(), set.clone());
        operations.push(Operation::DeleteElements { table, name, set, elements: removed });
    }
    if !added.is_empty() {
        operations.push(Operation::AddElements { table, name, set, elements: added });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Comment, Datum, Hook, KeyType, Rule, Verdict};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn base() -> Ruleset {
        let mut r = Ruleset::new(Table::inet(name("ringfence")), Comment::new("x"));
        let forward = Chain { hook: Some(Hook::Forward), rules: vec![] };
        r.chains.insert(name("forward"), Arc::new(forward));
        r
    }

    fn lines(operations: &[Operation]) -> Vec<String> {
        operations.iter().map(Operation::to_string).collect()
    }

    #[test]
    fn equal_rulesets_need_no_operation() {
        assert_eq!(difference(&base(), &base()), vec![]);
    }

    #[test]
    fn one_more_address_is_one_element() {
        let mut old = base();
        old.sets.insert(name("peers"), Arc::new(Set::of(&[KeyType::InetService])));
        let mut new = old.clone();
        let mut set = Set::of(&[KeyType::InetService]);
        set.elements.insert(Key::One(Datum::Port(80)), Element::default());
        new.sets.insert(name("peers"), Arc::new(set));
        assert_eq!(lines(&difference(&old, &new)), ["add element inet ringfence peers { 80 }"]);
        assert_eq!(lines(&difference(&new, &old)), ["delete element inet ringfence peers { 80 }"]);
    }

    #[test]
    fn a_changed_chain_is_rewritten_and_the_base_chain_stays() {
        let mut new = base();
        let rule = Rule::new(vec![], vec![Action::Verdict(Verdict::Goto(name("deny/x")))]);
        let forward = Chain { hook: Some(Hook::Forward), rules: vec![rule] };
        new.chains.insert(name("forward"), Arc::new(forward));
        new.chains.insert(name("deny/x"), Arc::new(Chain::default()));
        assert_eq!(
            lines(&difference(&base(), &new)),
            [
                "add chain inet ringfence deny/x",
                "flush chain inet ringfence forward",
                "add rule inet ringfence forward goto deny/x"
            ]
        );
        assert_eq!(
            lines(&difference(&new, &base())),
            [
                "flush chain inet ringfence forward",
                "flush chain inet ringfence deny/x",
                "delete chain inet ringfence deny/x"
            ]
        );
    }

    #[test]
    fn a_set_of_another_nature_replaces_the_table_whole() {
        let mut old = base();
        old.sets.insert(name("peers"), Arc::new(Set::of(&[KeyType::InetService])));
        let mut new = base();
        new.sets.insert(name("peers"), Arc::new(Set::of(&[KeyType::Ipv4Addr])));
        assert_eq!(lines(&difference(&old, &new))[0], "delete table inet ringfence");
    }

    #[test]
    fn protecting_a_table_replaces_it_whole_since_the_kernel_only_lets_new_ones_be_owned() {
        let operations = difference(&base(), &base().protected(true));
        assert_eq!(lines(&operations)[0], "delete table inet ringfence");
        assert!(matches!(operations[1], Operation::AddTable { protected: true, .. }));
        assert_eq!(lines(&difference(&base().protected(true), &base()))[0], "delete table inet ringfence");
    }
}
