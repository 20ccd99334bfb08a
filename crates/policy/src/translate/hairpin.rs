//! Accepts flows of pods to themselves through a Service, whatever their NetworkPolicies. Rules of ClusterNetworkPolicies
//! judge such flows like others, so their denials do not pass here.
//!
//! Equal source and destination do not prove such a flow: an outside host that forges the pod's address as its source
//! has the same two ends over a translated destination. But only a packet of the pod itself, in either direction of the
//! flow, enters the node by the pod's interface, where its source is checked.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, Family, Field, InterfaceName, Key, KeyType, Match, Name, Rule, Ruleset, Set,
};

use super::layout::{Layout, accept, address_type, fixed, goto};
use super::reporting::denied_for;
use super::roles::SetRole;
use super::{Direction, audit, dispatch};

/// Pods whose input interface is known: the address twice, and the interface.
fn with_interface(family: Family) -> Name {
    SetRole::Hairpin(family).name()
}

/// Pods whose input interface is unknown: the address twice.
fn without_interface(family: Family) -> Name {
    SetRole::HairpinAnyInterface(family).name()
}

/// Adds the empty sets.
pub(super) fn add_sets(ruleset: &mut Ruleset, family: Family) {
    let mut add = |name: Name, types: &[KeyType], comment: &str| {
        let set = Set { comment: Some(Comment::new(comment)), ..Set::of(types) };
        ruleset.sets.insert(name, Arc::new(set));
    };
    let address = address_type(family);
    let comment = "pods with policies, each with itself and the input interface of its packets";
    add(with_interface(family), &[address, address, KeyType::InterfaceName], comment);
    let comment = "pods with policies whose interface is not known, each with itself";
    add(without_interface(family), &[address, address], comment);
}

fn element(address: IpAddr, input: Option<InterfaceName>) -> (Name, Key) {
    let (family, datum) = (Family::of(address), Datum::from(address));
    match input {
        Some(interface) => (with_interface(family), Key::Three(datum, datum, Datum::Interface(interface))),
        None => (without_interface(family), Key::Two(datum, datum)),
    }
}

pub(super) fn add_pod(ruleset: &mut Ruleset, address: IpAddr, input: Option<InterfaceName>) {
    let (set, key) = element(address, input);
    if let Some(set) = ruleset.sets.get_mut(&set) {
        Arc::make_mut(set).elements.insert(key, Element::default());
    }
}

pub(super) fn remove_pod(ruleset: &mut Ruleset, address: IpAddr, input: Option<InterfaceName>) {
    let (set, key) = element(address, input);
    if ruleset.sets.get(&set).is_some_and(|set| set.elements.contains(&key)) {
        Arc::make_mut(&mut ruleset.sets[&set]).elements.remove(&key);
    }
}

/// The end of enforced programs of NetworkPolicies: flows of pods to themselves continue, and others are denied.
pub(super) fn chain(direction: Direction) -> Name {
    fixed(end(direction))
}

/// The name of [`chain`].
pub(super) fn end(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "hairpin/egress",
        Direction::Ingress => "hairpin/ingress",
    }
}

/// The end of pending programs of NetworkPolicies, which deny nothing that a pod sends to itself.
pub(super) const PENDING: &str = "hairpin/pending";

/// Reports what a pending ingress program would deny, and accepts it.
pub(super) const REPORTED: &str = "hairpin/reported";

/// Judges by ingress programs what [`chain`] of egress lets continue.
pub(super) const TO_INGRESS: &str = "hairpin/to-ingress";

/// Adds the ends of enforced programs.
pub(super) fn add_chains(ruleset: &mut Ruleset, families: &BTreeSet<Family>) {
    for direction in Direction::BOTH {
        let mut rules = rules(direction, families);
        rules.push(Rule::new(vec![], denied_for(direction.into())));
        ruleset.chains.insert(chain(direction), Arc::new(Chain { hook: None, rules }));
    }
    let rules = dispatch::ingress_rules(families, accept());
    ruleset.chains.insert(fixed(TO_INGRESS), Arc::new(Chain { hook: None, rules }));
}

/// Adds the end of pending programs, and the report of what pending ingress programs of cluster policies would deny.
pub(super) fn add_pending_chains(ruleset: &mut Ruleset, layout: &Layout, families: &BTreeSet<Family>) {
    let mut chain = |name: Name, rules: Vec<Rule>| {
        ruleset.chains.insert(name, Arc::new(Chain { hook: None, rules }));
    };
    let ending = |itself: &str, others: Vec<Action>| {
        let mut rules = rules_leading_to(families, &goto(itself));
        rules.push(Rule::new(vec![], others));
        rules
    };
    chain(fixed(PENDING), ending(audit::WOULD_ALLOW, goto(audit::WOULD_DENY)));
    let ingress = Direction::Ingress;
    chain(self::chain(ingress), ending(REPORTED, denied_for(ingress.into())));
    chain(fixed(REPORTED), vec![audit::report_rule(layout, ingress), Rule::new(vec![], accept())]);
}

/// Lets flows of pods to themselves continue. These rules are at the end of programs, so that flows allowed by a policy
/// do not reach them. Without a translated destination the packet is not from the pod: one that a pod sends to its own
/// address does not leave it.
///
/// Such a flow is not approved, so that each of its packets must enter by the pod's interface: an outside host could
/// otherwise send into an approved flow with the pod's address as its source.
pub(super) fn rules(direction: Direction, families: &BTreeSet<Family>) -> Vec<Rule> {
    let actions = match direction {
        Direction::Egress => goto(TO_INGRESS),
        Direction::Ingress => accept(),
    };
    rules_leading_to(families, &actions)
}

fn rules_leading_to(families: &BTreeSet<Family>, actions: &[Action]) -> Vec<Rule> {
    let rules_of = |&family: &Family| {
        let ends = vec![Field::FlowSource(family), Field::FlowDestination(family)];
        let with_input = [&ends[..], &[Field::InInterface]].concat();
        let lead =
            |fields, set| Rule::new(vec![Match::DestinationTranslated, Match::InSet { fields, set }], actions.to_vec());
        [lead(with_input, with_interface(family)), lead(ends, without_interface(family))]
    };
    families.iter().flat_map(rules_of).collect()
}
