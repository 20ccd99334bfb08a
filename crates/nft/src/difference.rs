//! The operations that turn one ruleset into another.
//!
//! Order: sets and chains are created first, then rules that use them, then elements that refer to them; deletion is in
//! reverse. So every operation finds what it refers to, and nothing is deleted while in use. A base chain is never
//! deleted, since that would flush every NFQUEUE of the namespace; chains at an interface are the exception.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::ordmap::DiffItem;

use crate::{
    Chain, Element, ElementChange, Hook, Key, Name, NameMap, Operation, Rule, Ruleset, Set, Table, TableFamily,
};

/// The operations that create the table.
pub fn create(wanted: &Ruleset) -> Vec<Operation> {
    let empty = Ruleset::new(wanted.table.clone(), wanted.comment.clone());
    let mut operations = vec![add_table(wanted)];
    operations.extend(step(&empty, wanted));
    operations
}

/// The operation that creates the empty table.
pub fn add_table(wanted: &Ruleset) -> Operation {
    Operation::AddTable { table: wanted.table.clone(), comment: wanted.comment.clone(), protected: wanted.protected }
}

/// The operations that turn `live` into `wanted`; empty if they are equal. Parts shared by both values are skipped.
///
/// A set whose size alone changes is replaced by another one of its name, and the rules that refer to it are recreated.
/// If any other property of an object changes (the key of a set, the hook of a chain), or the tables or their
/// protection differ, the whole table is replaced.
pub fn difference(live: &Ruleset, wanted: &Ruleset) -> Vec<Operation> {
    if replaces_whole(live, wanted) { replace(&live.table, wanted) } else { step(live, wanted) }
}

/// The operations that replace an existing table, regardless of its contents, by the wanted one.
pub fn replace(live: &Table, wanted: &Ruleset) -> Vec<Operation> {
    let mut operations = vec![Operation::DeleteTable { table: live.clone() }];
    operations.extend(create(wanted));
    operations
}

fn replaces_whole(live: &Ruleset, wanted: &Ruleset) -> bool {
    let set_changed = |item: DiffItem<'_, '_, Name, Arc<Set>>| match item {
        DiffItem::Update { old: (_, old), new: (_, new) } => !old.same_header(new) && !old.is_resized_in(new),
        DiffItem::Add(..) | DiffItem::Remove(..) => false,
    };
    let chain_changed = |item: DiffItem<'_, '_, Name, Arc<Chain>>| match item {
        DiffItem::Update { old: (_, old), new: (_, new) } => old.hook != new.hook,
        DiffItem::Remove(_, old) => old.hook.is_some_and(|hook| !comes_and_goes(hook)),
        DiffItem::Add(..) => false,
    };
    live.table != wanted.table
        || live.protected != wanted.protected
        || live.comment != wanted.comment
        || live.sets.diff(&wanted.sets).any(set_changed)
        || live.chains.diff(&wanted.chains).any(chain_changed)
}

/// Whether base chains at the hook are removed while their table remains. The kernel flushes the NFQUEUEs of the
/// namespace whenever a base chain is unregistered (`nf_queue_nf_hook_drop`), which for a chain at an interface happens
/// on removal of the interface anyway.
pub fn comes_and_goes(hook: Hook) -> bool {
    hook.family() == TableFamily::Netdev
}

fn step(live: &Ruleset, wanted: &Ruleset) -> Vec<Operation> {
    let table = &wanted.table;
    let sets = Changes::between(&live.sets, &wanted.sets);
    let chains = Changes::between(&live.chains, &wanted.chains);
    let resized: BTreeSet<&Name> = sets.resized().map(|(name, _)| name).collect();
    let loosened = chains_with(live, &resized);
    let mut operations = Vec::new();
    for (name, set) in most_referenced_first(sets.added(), &chains) {
        operations.push(Operation::AddSet { table: table.clone(), name: name.clone(), set: set.clone() });
    }
    for (name, chain) in chains.added() {
        operations.push(Operation::AddChain { table: table.clone(), chain: name.clone(), hook: chain.hook });
    }
    for name in &loosened {
        operations.push(Operation::FlushChain { table: table.clone(), chain: (*name).clone() });
    }
    for (name, set) in sets.resized() {
        operations.push(Operation::DeleteSet { table: table.clone(), name: name.clone() });
        operations.push(Operation::AddSet { table: table.clone(), name: name.clone(), set: set.clone() });
    }
    for (name, old, new) in &chains.come {
        if old.is_some() && !loosened.contains(name) {
            operations.push(Operation::FlushChain { table: table.clone(), chain: (*name).clone() });
        }
        add_rules(&mut operations, table, name, new);
    }
    let come: BTreeSet<&Name> = chains.come.iter().map(|(name, ..)| *name).collect();
    for name in loosened.difference(&come) {
        if let Some(chain) = wanted.chains.get(*name) {
            add_rules(&mut operations, table, name, chain);
        }
    }
    for name in chains.gone.iter().filter(|name| !loosened.contains(*name)) {
        operations.push(Operation::FlushChain { table: table.clone(), chain: (*name).clone() });
    }
    for (name, old, new) in &sets.come {
        let old = old.filter(|_| !resized.contains(name));
        change_elements(&mut operations, table, name, old, new);
    }
    for name in sets.gone {
        operations.push(Operation::DeleteSet { table: table.clone(), name: name.clone() });
    }
    for name in chains.gone {
        operations.push(Operation::DeleteChain { table: table.clone(), chain: name.clone() });
    }
    operations
}

/// New sets, sorted by the number of new rules that refer to them, largest first. The kernel keeps the sets of a table
/// in a list, in order of creation, and searches it from the start for each reference (`nft_set_lookup` in
/// nf_tables_api.c).
fn most_referenced_first<'a>(
    sets: impl Iterator<Item = (&'a Name, &'a Arc<Set>)>,
    chains: &Changes<'_, Chain>,
) -> Vec<(&'a Name, &'a Arc<Set>)> {
    let mut references: BTreeMap<&Name, usize> = BTreeMap::new();
    for set in chains.come.iter().flat_map(|(_, _, chain)| &chain.rules).flat_map(Rule::sets) {
        *references.entry(set).or_default() += 1;
    }
    let mut sets: Vec<_> = sets.collect();
    sets.sort_by_key(|(name, _)| Reverse(references.get(name)));
    sets
}

/// The chains with rules that refer to one of the sets.
fn chains_with<'a>(ruleset: &'a Ruleset, sets: &BTreeSet<&Name>) -> BTreeSet<&'a Name> {
    if sets.is_empty() {
        return BTreeSet::new();
    }
    let looks = |chain: &Chain| chain.rules.iter().flat_map(Rule::sets).any(|set| sets.contains(set));
    ruleset.chains.iter().filter(|(_, chain)| looks(chain)).map(|(name, _)| name).collect()
}

/// The differences between two maps, sorted by name.
struct Changes<'a, T> {
    come: Vec<Come<'a, T>>,
    gone: Vec<&'a Name>,
}

/// New or changed: the name, the previous value, and the new one.
type Come<'a, T> = (&'a Name, Option<&'a Arc<T>>, &'a Arc<T>);

impl<'a, T: Eq> Changes<'a, T> {
    fn between(old: &'a NameMap<T>, new: &'a NameMap<T>) -> Changes<'a, T> {
        let mut changes = Changes { come: Vec::new(), gone: Vec::new() };
        for item in old.diff(new) {
            match item {
                DiffItem::Add(name, new) => changes.come.push((name, None, new)),
                DiffItem::Update { old: (_, old), new: (name, new) } => changes.come.push((name, Some(old), new)),
                DiffItem::Remove(name, _) => changes.gone.push(name),
            }
        }
        changes
    }

    fn added(&self) -> impl Iterator<Item = (&'a Name, &'a Arc<T>)> {
        self.come.iter().filter(|(_, old, _)| old.is_none()).map(|(name, _, new)| (*name, *new))
    }
}

impl<'a> Changes<'a, Set> {
    /// The sets that are replaced by one of another size.
    fn resized(&self) -> impl Iterator<Item = (&'a Name, &'a Arc<Set>)> {
        let is_resized = |(_, old, new): &&Come<'a, Set>| old.is_some_and(|old| old.is_resized_in(new));
        self.come.iter().filter(is_resized).map(|(name, _, new)| (*name, *new))
    }
}

fn add_rules(operations: &mut Vec<Operation>, table: &Table, name: &Name, chain: &Chain) {
    for rule in &chain.rules {
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
    let mut removed: Vec<(Key, Element)> = Vec::new();
    let mut added: Vec<(Key, Element)> = Vec::new();
    match old {
        None => added.extend(new.elements.iter().map(|(key, element)| (key, element.clone()))),
        Some(old) => {
            for change in old.elements.changes_to(&new.elements) {
                match change {
                    ElementChange::Added(key, element) => added.push((key, element.clone())),
                    ElementChange::Removed(key, element) => removed.push((key, element.clone())),
                    ElementChange::Replaced { key, old, new } => {
                        removed.push((key, old.clone()));
                        added.push((key, new.clone()));
                    }
                }
            }
        }
    }
    let (table, name, set) = (table.clone(), name.clone(), new.clone());
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
    use crate::{Action, Comment, Datum, Field, KeyType, Match, Verdict};

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
    fn changed_chain_is_flushed_and_refilled_not_deleted() {
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
    fn sets_of_most_rules_are_created_first() {
        let looks = |set: &str| {
            let looks = Match::InSet { fields: vec![Field::FlowPort], set: name(set) };
            Rule::new(vec![looks], vec![Action::Verdict(Verdict::Accept)])
        };
        let mut new = base();
        for set in ["a", "b", "c", "d"] {
            new.sets.insert(name(set), Arc::new(Set::of(&[KeyType::InetService])));
        }
        let rules = ["c", "b", "c", "b", "c", "d"].map(looks).to_vec();
        new.chains.insert(name("p"), Arc::new(Chain { hook: None, rules }));
        let created = |operation: Operation| match operation {
            Operation::AddSet { name, .. } => Some(name.to_string()),
            _ => None,
        };
        let created: Vec<String> = create(&new).into_iter().filter_map(created).collect();
        assert_eq!(created, ["c", "b", "d", "a"]);
    }

    #[test]
    fn set_with_changed_type_replaces_whole_table() {
        let mut old = base();
        old.sets.insert(name("peers"), Arc::new(Set::of(&[KeyType::InetService])));
        let mut new = base();
        new.sets.insert(name("peers"), Arc::new(Set::of(&[KeyType::Ipv4Addr])));
        assert_eq!(lines(&difference(&old, &new))[0], "delete table inet ringfence");
    }

    #[test]
    fn resized_set_is_replaced_with_rules_using_it() {
        let with = |size: u32, ports: &[u16], program: &[Verdict]| {
            let mut ruleset = base();
            let mut set = Set { size: Some(size), ..Set::of(&[KeyType::InetService]) };
            set.elements.extend(ports.iter().map(|port| (Key::One(Datum::Port(*port)), Element::default())));
            ruleset.sets.insert(name("ports"), Arc::new(set));
            let looks = Match::InSet { fields: vec![Field::FlowPort], set: name("ports") };
            let looks = Rule::new(vec![looks], vec![Action::Verdict(Verdict::Accept)]);
            let rules = program.iter().map(|verdict| Rule::new(vec![], vec![Action::Verdict(verdict.clone())]));
            let rules = std::iter::once(looks).chain(rules).collect();
            ruleset.chains.insert(name("p/a"), Arc::new(Chain { hook: None, rules }));
            ruleset.chains.insert(name("p/b"), Arc::new(Chain::default()));
            ruleset
        };
        let looks = "add rule inet ringfence p/a ct reply proto-src @ports accept";
        let (small, large) = (with(1, &[1], &[]), with(4, &[1, 2], &[]));
        let replaced = |size: u32| {
            [
                "flush chain inet ringfence p/a".to_owned(),
                "delete set inet ringfence ports".into(),
                format!("add set inet ringfence ports {{ type inet_service; size {size}; }}"),
                looks.into(),
            ]
        };
        let grown = [&replaced(4)[..], &["add element inet ringfence ports { 1, 2 }".into()]].concat();
        assert_eq!(lines(&difference(&small, &large)), grown);
        let shrunk = [&replaced(1)[..], &["add element inet ringfence ports { 1 }".into()]].concat();
        assert_eq!(lines(&difference(&large, &small)), shrunk);
        // A chain that changes as well is flushed once, and gets its new rules.
        let dropping = with(4, &[1, 2], &[Verdict::Drop]);
        let mut both = grown;
        both.insert(4, "add rule inet ringfence p/a drop".into());
        assert_eq!(lines(&difference(&small, &dropping)), both);
        // A removed chain is flushed once, before the set that it refers to.
        let mut without = large.clone();
        without.chains.remove(&name("p/a"));
        let gone = lines(&difference(&small, &without));
        assert_eq!(
            (&*gone[0], &*gone[gone.len() - 1]),
            ("flush chain inet ringfence p/a", "delete chain inet ringfence p/a")
        );
        assert_eq!(gone.iter().filter(|line| line.starts_with("flush")).count(), 1);
    }

    #[test]
    fn resized_map_replaces_whole_table() {
        let with = |size: u32| {
            let mut ruleset = base();
            let map = Set { size: Some(size), verdicts: true, ..Set::of(&[KeyType::InetService]) };
            ruleset.sets.insert(name("hosts"), Arc::new(map));
            ruleset
        };
        assert_eq!(lines(&difference(&with(1), &with(4)))[0], "delete table inet ringfence");
    }

    #[test]
    fn changed_table_protection_replaces_whole_table() {
        let operations = difference(&base(), &base().protected(true));
        assert_eq!(lines(&operations)[0], "delete table inet ringfence");
        assert!(matches!(operations[1], Operation::AddTable { protected: true, .. }));
        assert_eq!(lines(&difference(&base().protected(true), &base()))[0], "delete table inet ringfence");
    }
}
