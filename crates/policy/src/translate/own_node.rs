//! Judges what pods send to their own node, which does not pass the forward hook.
//!
//! Only rules of cluster policies apply there; NetworkPolicies do not restrict what a node and its pods send to each
//! other. Flows that the node opened, such as probes of the kubelet, have the node as their source and are not judged.
//! A flow that is allowed here is not approved, so each of its packets is judged: the forward hook may see packets of
//! the same flow, which NetworkPolicies judge there. Both a node and the other ports of its bridge receive a broadcast,
//! and the address of a node may move to another node.
//! The sets, chains and rules are only present while there are such programs.

use std::net::IpAddr;
use std::sync::Arc;

use nft::{Action, Chain, Comment, Element, Family, Field, Hook, Match, Name, Rule, Ruleset, Set, State, Verdict};

use super::layout::{Layout, accept, address_type, fixed};
use super::reporting::{Cause, denied_for};
use super::roles::SetRole;
use super::{address_key, dispatch_element, tunnels};

/// Leads flows to the programs.
pub(super) const TO_OWN_NODE: &str = "to-own-node";
/// Accepts what a program allows.
pub(super) const ALLOWED: &str = "cluster-to-node-allowed";

/// The map from a pod's address to the program that judges what the pod sends to its own node.
pub(super) fn dispatch_map(family: Family) -> Name {
    SetRole::OwnNodeDispatch(family).name()
}

/// The addresses in [`dispatch_map`].
pub(super) fn guard_set(family: Family) -> Name {
    SetRole::OwnNodeGuard(family).name()
}

/// The chain to which programs lead what they allow.
pub(super) fn allowed() -> (Name, Chain) {
    (fixed(ALLOWED), Chain { hook: None, rules: vec![Rule::new(vec![], accept())] })
}

pub(super) fn dispatch(ruleset: &mut Ruleset, address: IpAddr, about: &str, chain: &Name) {
    let family = Family::of(address);
    let mut add = |name: Name, set: Set, element: Element| {
        let set = ruleset.sets.entry(name).or_insert_with(|| Arc::new(set));
        Arc::make_mut(set).elements.insert(address_key(address), element);
    };
    let of = |comment: &str| Set { comment: Some(Comment::new(comment)), ..Set::of(&[address_type(family)]) };
    let map = Set { verdicts: true, ..of("pods of this node whose cluster policies judge their flows to the node") };
    add(dispatch_map(family), map, dispatch_element(chain, about));
    add(guard_set(family), of("pods whose flows to this node are decided by a program"), Element::default());
}

pub(super) fn discard(ruleset: &mut Ruleset, address: IpAddr) {
    let family = Family::of(address);
    for name in [dispatch_map(family), guard_set(family)] {
        if let Some(set) = ruleset.sets.get_mut(&name) {
            Arc::make_mut(set).elements.remove(&address_key(address));
        }
    }
}

/// Adds the rules for the pods that are judged, and removes what no pod needs.
pub(super) fn complete(ruleset: &mut Ruleset, layout: &Layout) {
    let is_empty = |ruleset: &Ruleset, name: &Name| ruleset.sets.get(name).is_none_or(|set| set.elements.is_empty());
    for name in Family::BOTH.iter().flat_map(|family| [dispatch_map(*family), guard_set(*family)]) {
        if is_empty(ruleset, &name) {
            ruleset.sets.remove(&name);
        }
    }
    let judged: Vec<Family> =
        Family::BOTH.into_iter().filter(|family| ruleset.sets.contains_key(&dispatch_map(*family))).collect();
    let (input, to_own_node) = (fixed(tunnels::INPUT), fixed(TO_OWN_NODE));
    let mut rules = ruleset.chains.get(&input).map(|chain| chain.rules.clone()).unwrap_or_default();
    let is_of_judged = |condition: &Match| match condition {
        Match::InSet { set, .. } => matches!(SetRole::of(set), SetRole::OwnNodeDispatch(_) | SetRole::OwnNodeGuard(_)),
        _ => false,
    };
    rules.retain(|rule| !rule.matches.iter().any(is_of_judged));
    if judged.is_empty() {
        ruleset.chains.remove(&to_own_node);
    } else {
        let from = |family: Family| vec![Field::FlowSource(family)];
        rules.extend(judged.iter().map(|&family| {
            let from_judged = Match::InSet { fields: from(family), set: guard_set(family) };
            Rule::new(vec![from_judged], vec![Action::Verdict(Verdict::Goto(to_own_node.clone()))])
        }));
        // Without a flow there is nothing to judge. Untracked packets are those of neighbour discovery, and those that
        // the administrator excludes from tracking.
        rules.extend(judged.iter().map(|&family| {
            let sender = Match::InSet { fields: vec![Field::Source(family)], set: guard_set(family) };
            Rule::new(vec![Match::State(vec![State::Invalid]), sender], denied_for(Cause::Stray))
        }));
        let lookups = judged.iter().map(|&family| {
            let (field, map) = (Field::FlowSource(family), dispatch_map(family));
            Rule::new(vec![], vec![Action::VerdictMap { field, map }])
        });
        let denied = Rule::new(vec![], denied_for(Cause::Commit));
        let rules = lookups.chain([denied]).collect();
        ruleset.chains.insert(to_own_node, Arc::new(Chain { hook: None, rules }));
    }
    let chain = Chain { hook: Some(Hook::Input), rules };
    if chain.rules.is_empty() && !layout.checks_sources() {
        ruleset.chains.remove(&input);
    } else if ruleset.chains.get(&input).is_none_or(|present| **present != chain) {
        ruleset.chains.insert(input, Arc::new(chain));
    }
}
