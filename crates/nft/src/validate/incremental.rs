//! Rulesets without defects, as a type that only the validation makes.
//!
//! The validation of a successor looks only at the difference: changed elements and their neighbours, changed chains,
//! and the chains and sets that they refer to. It accepts a ruleset or leaves the decision to the full validation, so
//! that it can never accept what the full validation refuses.

use std::ops::Deref;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use super::{InvalidPart, overlaps};
use crate::{Action, Chain, Element, ElementChange, Key, Name, Rule, Ruleset, Set, Verdict};

/// Greatest depth of the graph that the incremental validation follows; a jump loop exceeds it. The kernel follows at
/// most 16 nested chains (NFT_JUMP_STACK_SIZE), each of which may lead through a map. Depths only increase until the
/// next full validation, hence the reserve.
const MOST_DEPTH: u32 = 64;

/// A ruleset in which the validation found no defect. Read access is that of [`Ruleset`]; a change is a new ruleset,
/// which has to be validated.
///
/// ```
/// use nft::{Comment, Name, Ruleset, Set, KeyType, Table, ValidatedRuleset};
///
/// let empty = Ruleset::new(Table::inet(Name::new("example")?), Comment::new(""));
/// let validated = ValidatedRuleset::new(empty.clone()).expect("no defect");
/// let mut next = empty;
/// next.sets.insert(Name::new("ports")?, Set::of(&[KeyType::InetService]).into());
/// let validated = validated.after(next).expect("no defect");
/// assert_eq!(validated.sets.len(), 1);
/// # Ok::<(), nft::NameError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ValidatedRuleset {
    ruleset: Ruleset,
    graph: ReferenceGraph,
}

impl ValidatedRuleset {
    /// Validates the whole ruleset.
    ///
    /// # Errors
    /// All invalid parts.
    pub fn new(ruleset: Ruleset) -> Result<ValidatedRuleset, Vec<InvalidPart>> {
        let invalid = ruleset.invalid_parts();
        if !invalid.is_empty() {
            return Err(invalid);
        }
        let graph = ReferenceGraph::of(&ruleset);
        Ok(ValidatedRuleset { ruleset, graph })
    }

    /// Validates a ruleset that differs little from this one. Costs only the difference, if one was made from a copy of
    /// the other.
    ///
    /// # Errors
    /// All invalid parts, as [`ValidatedRuleset::new`] returns them.
    pub fn after(&self, next: Ruleset) -> Result<ValidatedRuleset, Vec<InvalidPart>> {
        match self.graph_after(&next) {
            Some(graph) => Ok(ValidatedRuleset { ruleset: next, graph }),
            None => ValidatedRuleset::new(next),
        }
    }

    /// The ruleset, which can be changed.
    pub fn into_ruleset(self) -> Ruleset {
        self.ruleset
    }

    /// The graph of a valid successor; `None` if the difference is invalid or needs the full validation.
    fn graph_after(&self, next: &Ruleset) -> Option<ReferenceGraph> {
        let live = &self.ruleset;
        if live.table.family != next.table.family {
            return None;
        }
        let mut update = GraphUpdate { graph: self.graph.clone(), next, edges: Vec::new(), removed: Vec::new() };
        for item in live.sets.diff(&next.sets) {
            match item {
                DiffItem::Add(name, set) => update.add_set(name, set)?,
                DiffItem::Update { old: (_, old), new: (name, new) } => update.change_set(name, old, new)?,
                DiffItem::Remove(name, set) => update.remove_set(name, set),
            }
        }
        for item in live.chains.diff(&next.chains) {
            match item {
                DiffItem::Add(name, chain) => update.change_chain(name, None, chain)?,
                DiffItem::Update { old: (_, old), new: (name, new) } => update.change_chain(name, Some(old), new)?,
                DiffItem::Remove(name, chain) => update.remove_chain(name, chain),
            }
        }
        update.finish()
    }
}

impl Deref for ValidatedRuleset {
    type Target = Ruleset;

    fn deref(&self) -> &Ruleset {
        &self.ruleset
    }
}

impl PartialEq for ValidatedRuleset {
    fn eq(&self, other: &ValidatedRuleset) -> bool {
        self.ruleset == other.ruleset
    }
}

impl Eq for ValidatedRuleset {}

/// A chain or a set, which are the nodes of the graph. A verdict map leads on to the chains of its elements.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum NodeName {
    Chain(Name),
    Set(Name),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Node {
    /// Number of rules and elements that refer to the chain or set.
    references: usize,
    /// Greater than the depth of every node that refers to it, so that there is no loop.
    depth: u32,
}

/// The references between chains and sets. Nodes without references are omitted.
#[derive(Debug, Clone, Default)]
struct ReferenceGraph {
    nodes: OrdMap<NodeName, Node>,
}

impl ReferenceGraph {
    /// The graph of a ruleset without loops.
    fn of(ruleset: &Ruleset) -> ReferenceGraph {
        let mut graph = ReferenceGraph::default();
        let mut edges = Vec::new();
        for (name, set) in &ruleset.sets {
            let targets = set.elements.values().filter_map(target_of);
            edges.extend(targets.map(|target| (NodeName::Set(name.clone()), NodeName::Chain(target.clone()))));
        }
        for (name, chain) in &ruleset.chains {
            edges.extend(targets_of_chain(chain).map(|target| (NodeName::Chain(name.clone()), target)));
        }
        for (_, to) in &edges {
            graph.nodes.entry(to.clone()).or_default().references += 1;
        }
        for (from, to) in edges {
            let Some(()) = graph.deepen(ruleset, &from, to, u32::MAX) else {
                unreachable!("a ruleset without loops has finite depths");
            };
        }
        graph
    }

    fn depth(&self, node: &NodeName) -> u32 {
        self.nodes.get(node).map_or(0, |node| node.depth)
    }

    /// Places the target of a reference below its origin, and whatever it leads to below the target. `None` if a node
    /// would be deeper than `most`.
    fn deepen(&mut self, ruleset: &Ruleset, from: &NodeName, to: NodeName, most: u32) -> Option<()> {
        let mut open = vec![(to, self.depth(from) + 1)];
        while let Some((name, depth)) = open.pop() {
            if self.depth(&name) >= depth {
                continue;
            }
            if depth > most {
                return None;
            }
            match &name {
                NodeName::Chain(chain) => {
                    let targets = ruleset.chains.get(chain).into_iter().flat_map(|chain| targets_of_chain(chain));
                    open.extend(targets.map(|target| (target, depth + 1)));
                }
                NodeName::Set(set) => {
                    let elements = ruleset.sets.get(set).filter(|set| set.verdicts).map(|set| set.elements.values());
                    let targets = elements.into_iter().flatten().filter_map(target_of);
                    open.extend(targets.map(|target| (NodeName::Chain(target.clone()), depth + 1)));
                }
            }
            self.nodes.entry(name).or_default().depth = depth;
        }
        Some(())
    }
}

fn target_of(element: &Element) -> Option<&Name> {
    element.verdict.as_ref().and_then(Verdict::target)
}

/// The chains and sets that the rules of the chain refer to, once per reference.
fn targets_of_chain(chain: &Chain) -> impl Iterator<Item = NodeName> {
    let chains = |rule: &Rule| -> Vec<NodeName> {
        let target = |action: &Action| match action {
            Action::Verdict(verdict) => verdict.target().cloned().map(NodeName::Chain),
            Action::VerdictMap { .. }
            | Action::Record { .. }
            | Action::Counter
            | Action::SetMark { .. }
            | Action::SetPriority(_)
            | Action::Limit(_)
            | Action::Log(_) => None,
        };
        rule.actions.iter().filter_map(target).collect()
    };
    chain.rules.iter().flat_map(move |rule| {
        rule.sets().map(|set| NodeName::Set(set.clone())).chain(chains(rule)).collect::<Vec<NodeName>>()
    })
}

/// The graph while the difference to the next ruleset is applied.
struct GraphUpdate<'a> {
    graph: ReferenceGraph,
    next: &'a Ruleset,
    /// References that were added.
    edges: Vec<(NodeName, NodeName)>,
    removed: Vec<NodeName>,
}

impl GraphUpdate<'_> {
    fn refer(&mut self, from: NodeName, to: NodeName) {
        self.graph.nodes.entry(to.clone()).or_default().references += 1;
        self.edges.push((from, to));
    }

    fn unrefer(&mut self, to: &NodeName) {
        if let Some(node) = self.graph.nodes.get_mut(to) {
            node.references -= 1;
        }
    }

    fn add_set(&mut self, name: &Name, set: &Arc<Set>) -> Option<()> {
        let mut found = Vec::new();
        self.next.validate_set(name, set, &mut found);
        if !found.is_empty() {
            return None;
        }
        for target in set.elements.values().filter_map(target_of) {
            self.refer(NodeName::Set(name.clone()), NodeName::Chain(target.clone()));
        }
        Some(())
    }

    /// A set whose declaration changes in more than size and comment may no longer fit the rules that refer to it.
    fn change_set(&mut self, name: &Name, old: &Set, new: &Arc<Set>) -> Option<()> {
        let is_same_use = old.types == new.types
            && old.verdicts == new.verdicts
            && old.interval == new.interval
            && old.dynamic == new.dynamic;
        if !is_same_use || !new.header_defects(name).is_empty() {
            return None;
        }
        for change in old.elements.changes_to(&new.elements) {
            let (removed, added) = match change {
                ElementChange::Added(key, element) => (None, Some((key, element))),
                ElementChange::Removed(_, element) => (Some(element), None),
                ElementChange::Replaced { key, old, new } => (Some(old), Some((key, new))),
            };
            if let Some(target) = removed.and_then(target_of) {
                self.unrefer(&NodeName::Chain(target.clone()));
            }
            if let Some((key, element)) = added {
                self.add_element(name, new, key, element)?;
            }
        }
        Some(())
    }

    fn add_element(&mut self, name: &Name, set: &Set, key: Key, element: &Element) -> Option<()> {
        if !set.admits(key, element) {
            return None;
        }
        if set.interval {
            let [before, after] = set.elements.neighbours(&key);
            let this = (key, &element.verdict);
            if before.is_some_and(|(key, before)| overlaps((key, &before.verdict), this))
                || after.is_some_and(|(key, after)| overlaps(this, (key, &after.verdict)))
            {
                return None;
            }
        }
        if let Some(target) = target_of(element) {
            self.next.chains.get(target).filter(|chain| chain.hook.is_none())?;
            self.refer(NodeName::Set(name.clone()), NodeName::Chain(target.clone()));
        }
        Some(())
    }

    fn remove_set(&mut self, name: &Name, set: &Set) {
        for target in set.elements.values().filter_map(target_of) {
            self.unrefer(&NodeName::Chain(target.clone()));
        }
        self.removed.push(NodeName::Set(name.clone()));
    }

    /// A new or changed chain. A chain that became a base chain must not be referred to.
    fn change_chain(&mut self, name: &Name, old: Option<&Arc<Chain>>, new: &Arc<Chain>) -> Option<()> {
        let became_base = old.is_some_and(|old| old.hook.is_none() && new.hook.is_some());
        let mut found = Vec::new();
        self.next.validate_chain(name, new, &mut found);
        if became_base || !found.is_empty() {
            return None;
        }
        for target in old.into_iter().flat_map(|old| targets_of_chain(old)) {
            self.unrefer(&target);
        }
        for target in targets_of_chain(new) {
            self.refer(NodeName::Chain(name.clone()), target);
        }
        Some(())
    }

    fn remove_chain(&mut self, name: &Name, chain: &Chain) {
        targets_of_chain(chain).for_each(|target| self.unrefer(&target));
        self.removed.push(NodeName::Chain(name.clone()));
    }

    /// `None` if something removed is still referred to, or if there may be a loop.
    fn finish(self) -> Option<ReferenceGraph> {
        let GraphUpdate { mut graph, next, edges, removed } = self;
        for name in &removed {
            if graph.nodes.remove(name).is_some_and(|node| node.references > 0) {
                return None;
            }
        }
        for (from, to) in edges {
            graph.deepen(next, &from, to, MOST_DEPTH)?;
        }
        Some(graph)
    }
}

#[cfg(test)]
mod tests;
