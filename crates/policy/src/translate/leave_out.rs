//! Omits objects that the kernel refuses: as few as possible, and so that whatever depends on them is denied.
//!
//! Programs consist of allow rules and sets, and end in a denial, so without one of them a program allows less. A
//! program that allows everything ends in a denial only once its allow rule is omitted. Objects that isolate a pod
//! cannot be omitted.
//!
//! The same holds for audited programs, whose end accepts and reports: without a rule they report more. They never deny
//! as a result, since audited pods are not isolated. Pending programs are omitted as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Action, Chain, Element, Family, Key, Name, NameMap, Operation, Rule, Ruleset, TableFamily, Verdict};

use super::layout::{deny_chain, dispatch_map, end, end_chain, guard_set, next_verdict};
use super::roles::{ChainRole, SetRole};
use super::{Direction, own_node};

/// Removes from the ruleset what the refused operation would have added. Returns whether anything could be removed.
pub(super) fn leave_out(ruleset: &mut Ruleset, refused: &Operation) -> bool {
    if refused.table() != &ruleset.table || ruleset.table.family != TableFamily::Inet {
        return false;
    }
    if without_pending(ruleset, refused) {
        return true;
    }
    if let Some(part) = added_to(refused).filter(|part| part.is_of_deciding_tiers()) {
        return without_tiers(ruleset, part.name());
    }
    match refused {
        Operation::AddRule { chain, rule, .. } => without_rule(ruleset, chain, rule),
        // Fewer elements of the excluded set would allow more; omitting the rules that look it up allows less.
        Operation::AddElements { name, elements, .. } => match SetRole::of(name) {
            SetRole::Excluded(_) => without_set(ruleset, name),
            role => {
                let keys = elements.iter().map(|(key, _)| *key).collect();
                role.allows() && without_elements(ruleset, name, &keys)
            }
        },
        Operation::AddSet { name, .. } => without_set(ruleset, name),
        Operation::AddChain { chain, hook: None, .. } => without_chain(ruleset, chain),
        Operation::AddTable { .. }
        | Operation::DeleteTable { .. }
        | Operation::AddChain { hook: Some(_), .. }
        | Operation::FlushChain { .. }
        | Operation::DeleteChain { .. }
        | Operation::DeleteSet { .. }
        | Operation::DeleteElements { .. } => false,
    }
}

/// A chain or set.
#[derive(Clone, Copy)]
enum ChainOrSet<'a> {
    Chain(&'a Name),
    Set(&'a Name),
}

impl<'a> ChainOrSet<'a> {
    fn name(self) -> &'a Name {
        match self {
            ChainOrSet::Chain(name) | ChainOrSet::Set(name) => name,
        }
    }

    fn is_of_tiers(self) -> bool {
        match self {
            ChainOrSet::Chain(name) => ChainRole::of(name).is_of_tiers(),
            ChainOrSet::Set(name) => SetRole::of(name).is_of_tiers(),
        }
    }

    /// Whether it belongs to programs of cluster policies, and not to a pending program alone.
    fn is_of_deciding_tiers(self) -> bool {
        let is_pending = match self {
            ChainOrSet::Chain(name) => ChainRole::of(name).is_pending(),
            ChainOrSet::Set(name) => matches!(SetRole::of(name), SetRole::PortMap(program) if program.is_pending()),
        };
        self.is_of_tiers() && !is_pending
    }
}

/// The chain or set that the operation creates or adds to.
fn added_to(operation: &Operation) -> Option<ChainOrSet<'_>> {
    match operation {
        Operation::AddRule { chain, .. } | Operation::AddChain { chain, .. } => Some(ChainOrSet::Chain(chain)),
        Operation::AddElements { name, .. } | Operation::AddSet { name, .. } => Some(ChainOrSet::Set(name)),
        Operation::AddTable { .. }
        | Operation::DeleteTable { .. }
        | Operation::FlushChain { .. }
        | Operation::DeleteChain { .. }
        | Operation::DeleteSet { .. }
        | Operation::DeleteElements { .. } => None,
    }
}

/// Removes all pending programs if the refused operation is only needed by them. They decide nothing.
fn without_pending(ruleset: &mut Ruleset, refused: &Operation) -> bool {
    let is_pending = |chain: &Name| ChainRole::of(chain).is_pending();
    let pending: BTreeSet<Name> = ruleset.chains.keys().filter(|name| is_pending(name)).cloned().collect();
    let is_fixed = |part: &ChainOrSet<'_>| matches!(part, ChainOrSet::Chain(name) if ChainRole::of(name).is_fixed());
    let Some(part) = added_to(refused).filter(|part| !pending.is_empty() && !is_fixed(part)) else {
        return false;
    };
    let part = part.name();
    let is_jump = |rule: &Rule| goes_to(rule, is_pending);
    let mut rest = ruleset.clone();
    pending.iter().for_each(|name| {
        rest.chains.remove(name);
    });
    rewrite(&mut rest.chains, |_, chain| {
        let mut chain = chain.clone();
        chain.rules.retain(|rule| !is_jump(rule));
        chain
    });
    let used: BTreeSet<Name> =
        rest.chains.values().flat_map(|chain| &chain.rules).flat_map(Rule::sets).cloned().collect();
    let of_pending = reachable(ruleset, pending.iter().cloned());
    let is_only_of_pending =
        |set: &Name| SetRole::of(set).is_of_programs() && of_pending.contains(set) && !used.contains(set);
    let is_jump_refused = matches!(refused, Operation::AddRule { rule, .. } if is_jump(rule));
    if !is_jump_refused && !pending.contains(part) && !is_only_of_pending(part) {
        return false;
    }
    of_pending.iter().filter(|name| is_only_of_pending(name)).for_each(|name| {
        rest.sets.remove(name);
    });
    *ruleset = rest;
    true
}

/// Programs of cluster policies also deny, so none of their parts can be omitted alone: the pods of every program that
/// needs the chain or set are denied everything. Pods that it does not isolate are left to no program.
fn without_tiers(ruleset: &mut Ruleset, part: &Name) -> bool {
    let before = ruleset.chains.len() + ruleset.sets.len();
    let of_direction = |direction| {
        Family::BOTH
            .map(|family| (dispatch_map(direction, family), guard_set(direction, family), deny_chain(direction)))
    };
    let to_own_node = Family::BOTH
        .map(|family| (own_node::dispatch_map(family), own_node::guard_set(family), deny_chain(Direction::Egress)));
    let maps: Vec<(Name, Name, Name)> = Direction::BOTH.into_iter().flat_map(of_direction).chain(to_own_node).collect();
    for (map, guard, deny) in &maps {
        let Some(set) = ruleset.sets.get(map) else { continue };
        let needs_part = |element: &Element| {
            let target = element.verdict.as_ref().and_then(Verdict::target);
            target.is_some_and(|chain| reachable(ruleset, [chain.clone()]).contains(part))
        };
        let affected = set.elements.iter().filter(|(_, element)| needs_part(element));
        let isolated = ruleset.sets.get(guard);
        let is_isolated = |key: &Key| isolated.is_some_and(|set| set.elements.contains(key));
        let (denied, unjudged): (Vec<_>, Vec<_>) = affected
            .map(|(key, element)| (key, Element { verdict: Some(Verdict::Jump(deny.clone())), ..element.clone() }))
            .partition(|(key, _)| is_isolated(key));
        if !denied.is_empty() || !unjudged.is_empty() {
            let elements = &mut Arc::make_mut(&mut ruleset.sets[map]).elements;
            elements.extend(denied);
            unjudged.iter().for_each(|(key, _)| {
                elements.remove(key);
            });
        }
    }
    let dispatched = maps.iter().filter_map(|(map, ..)| ruleset.sets.get(map)).flat_map(|set| set.elements.values());
    let targets = dispatched.filter_map(|element| element.verdict.as_ref().and_then(Verdict::target).cloned());
    let needed = reachable(ruleset, targets.collect::<BTreeSet<Name>>());
    let chains: Vec<Name> =
        ruleset.chains.keys().filter(|name| ChainOrSet::Chain(name).is_of_tiers()).cloned().collect();
    let sets: Vec<Name> = ruleset.sets.keys().filter(|name| ChainOrSet::Set(name).is_of_tiers()).cloned().collect();
    chains.iter().filter(|name| !needed.contains(*name)).for_each(|name| {
        ruleset.chains.remove(name);
    });
    sets.iter().filter(|name| !needed.contains(*name)).for_each(|name| {
        ruleset.sets.remove(name);
    });
    ruleset.chains.len() + ruleset.sets.len() < before
}

/// The chains that lead on from these, and the sets and maps that their rules refer to.
fn reachable(ruleset: &Ruleset, from: impl IntoIterator<Item = Name>) -> BTreeSet<Name> {
    let mut found: BTreeSet<Name> = BTreeSet::new();
    let mut next: Vec<Name> = from.into_iter().collect();
    while let Some(chain) = next.pop() {
        if !found.insert(chain.clone()) {
            continue;
        }
        for rule in ruleset.chains.get(&chain).into_iter().flat_map(|chain| &chain.rules) {
            for action in &rule.actions {
                if let Action::Verdict(verdict) = action {
                    next.extend(verdict.target().cloned());
                }
            }
            for set in rule.sets() {
                found.insert(set.clone());
                let elements = ruleset.sets.get(set).into_iter().flat_map(|set| set.elements.values());
                next.extend(elements.filter_map(|element| element.verdict.as_ref()?.target().cloned()));
            }
        }
    }
    found
}

fn without_rule(ruleset: &mut Ruleset, chain: &Name, rule: &Rule) -> bool {
    if rule.only_reports() {
        return without_report(ruleset, chain, rule);
    }
    let ends = Direction::BOTH.map(|direction| end_chain(direction, ChainRole::of(chain).program_role()));
    if ChainRole::of(chain).is_fixed() || goes_to(rule, |target| ends.contains(target)) {
        return false;
    }
    retain_rules(ruleset, |name, other| name != chain || other != rule)
}

/// Removes a rule that only reports packets and decides nothing, in any chain.
fn without_report(ruleset: &mut Ruleset, chain: &Name, rule: &Rule) -> bool {
    let Some(chain) = ruleset.chains.get_mut(chain) else { return false };
    let before = chain.rules.len();
    Arc::make_mut(chain).rules.retain(|other| other != rule);
    chain.rules.len() < before
}

fn without_elements(ruleset: &mut Ruleset, set: &Name, keys: &BTreeSet<Key>) -> bool {
    let Some(found) = ruleset.sets.get_mut(set) else { return false };
    let elements = &mut Arc::make_mut(found).elements;
    keys.iter().filter(|key| elements.remove(key)).count() > 0
}

fn without_set(ruleset: &mut Ruleset, set: &Name) -> bool {
    let filled_by_rules = ruleset.sets.get(set).is_some_and(|set| set.dynamic.is_some());
    if !(SetRole::of(set).is_of_programs() || filled_by_rules) || ruleset.sets.remove(set).is_none() {
        return false;
    }
    if filled_by_rules {
        rewrite(&mut ruleset.chains, |_, chain| {
            let mut chain = chain.clone();
            chain.rules.retain(|rule| !uses(rule, set));
            chain
        });
        return true;
    }
    retain_rules(ruleset, |_, rule| !uses(rule, set));
    true
}

/// Pods whose program is omitted are allowed nothing in its direction, or would be if it were enforced.
fn without_chain(ruleset: &mut Ruleset, chain: &Name) -> bool {
    if ChainRole::of(chain).is_fixed() || ruleset.chains.remove(chain).is_none() {
        return false;
    }
    deny_in_tiers(ruleset, chain);
    retain_rules(ruleset, |_, rule| !goes_to(rule, |target| target == chain));
    let leads_there = |element: &Element| element.verdict.as_ref().and_then(Verdict::target) == Some(chain);
    rewrite(&mut ruleset.sets, |name, set| {
        let direction = match SetRole::of(name) {
            SetRole::Dispatch(direction, _) => Some(direction),
            _ => None,
        };
        let mut set = set.clone();
        for (key, element) in &set.elements.clone() {
            match direction {
                _ if !leads_there(element) => {}
                Some(direction) => {
                    let verdict = Some(Verdict::Jump(end_chain(direction, ChainRole::of(chain).program_role())));
                    set.elements.insert(key, Element { verdict, ..element.clone() });
                }
                None => {
                    set.elements.remove(&key);
                }
            }
        }
        set
    });
    true
}

/// Replaces the chain by denial where programs of cluster policies lead to it: the rules behind such a rule may accept.
fn deny_in_tiers(ruleset: &mut Ruleset, chain: &Name) {
    rewrite(&mut ruleset.chains, |name, before| {
        let mut chain_of_tiers = before.clone();
        let Some(direction) = ChainRole::of(name).deciding_tier_direction() else { return chain_of_tiers };
        let denied = Verdict::Goto(end_chain(direction, ChainRole::of(chain).program_role()));
        for rule in chain_of_tiers.rules.iter_mut().filter(|rule| goes_to(rule, |target| target == chain)) {
            rule.actions = vec![Action::Verdict(denied.clone())];
        }
        chain_of_tiers
    });
}

/// Replaces each object by the result of `change`, if different. Returns whether any was.
fn rewrite<T: Clone + Eq>(all: &mut NameMap<T>, change: impl Fn(&Name, &T) -> T) -> bool {
    let changed = |(name, old): (&Name, &Arc<T>)| {
        let new = change(name, old);
        (new != **old).then(|| (name.clone(), Arc::new(new)))
    };
    let others: Vec<(Name, Arc<T>)> = all.iter().filter_map(changed).collect();
    let any = !others.is_empty();
    all.extend(others);
    any
}

/// Retains the program rules for which `keep` is true. Returns whether any was removed.
fn retain_rules(ruleset: &mut Ruleset, keep: impl Fn(&Name, &Rule) -> bool) -> bool {
    rewrite(&mut ruleset.chains, |name, chain| {
        let mut chain = chain.clone();
        if ChainRole::of(name).is_fixed() {
            return chain;
        }
        let open = lets_all_through(&chain);
        chain.rules.retain(|rule| keep(name, rule));
        if let Some(direction) = open.filter(|_| lets_all_through(&chain).is_none()) {
            chain.rules.push(end(direction, ChainRole::of(name).program_role()));
        }
        chain
    })
}

/// The direction of a program whose last rule allows everything.
fn lets_all_through(chain: &Chain) -> Option<Direction> {
    let last = chain.rules.last().filter(|rule| rule.matches.is_empty())?;
    Direction::BOTH.into_iter().find(|direction| last.actions == [Action::Verdict(next_verdict(*direction))])
}

fn goes_to(rule: &Rule, is: impl Fn(&Name) -> bool) -> bool {
    let goes = |action: &Action| match action {
        Action::Verdict(verdict) => verdict.target().is_some_and(&is),
        Action::Counter
        | Action::SetMark { .. }
        | Action::SetPriority(_)
        | Action::VerdictMap { .. }
        | Action::Limit(_)
        | Action::Record { .. }
        | Action::Log(_) => false,
    };
    rule.actions.iter().any(goes)
}

fn uses(rule: &Rule, set: &Name) -> bool {
    rule.sets().any(|used| used == set)
}
