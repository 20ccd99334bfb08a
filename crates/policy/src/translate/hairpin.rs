//! Accepts flows of pods to themselves through a Service, whatever their policies.
//!
//! Equal source and destination do not prove such a flow: an outside host that forges the pod's address as its source
//! has the same two ends over a translated destination. But only a packet of the pod itself, in either direction of the
//! flow, enters the node by the pod's interface, where its source is checked.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Comment, Datum, Element, Family, Field, InterfaceName, Key, KeyType, Match, Name, Rule, Ruleset, Set};

use super::layout::{accept, address_type, fixed};

/// Pods whose input interface is known: the address twice, and the interface.
fn with_interface(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "hairpin4",
        Family::V6 => "hairpin6",
    })
}

/// Pods whose input interface is unknown: the address twice.
fn without_interface(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "hairpin-any-interface4",
        Family::V6 => "hairpin-any-interface6",
    })
}

/// Adds the empty sets.
pub(super) fn add_sets(ruleset: &mut Ruleset, family: Family) {
    let mut add = |name: Name, types: &[KeyType], comment: &str| {
        let set = Set { comment: Some(Comment::new(comment)), ..Set::of(types) };
        ruleset.sets.insert(name, Arc::new(set));
    };
    let address = address_type(family);
    let comment = "pods with policies, each with itself and the interface that its packets come in by";
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

/// Accepts the flows of pods to themselves. These rules are at the end of programs, so that flows allowed by a policy
/// do not reach them. Without a translated destination the packet is not from the pod: one that a pod sends to its own
/// address does not leave it.
///
/// Such a flow is not approved, so that each of its packets must enter by the pod's interface: an outside host could
/// otherwise send into an approved flow with the pod's address as its source.
pub(super) fn rules(families: &BTreeSet<Family>) -> Vec<Rule> {
    let rules_of = |&family: &Family| {
        let ends = vec![Field::FlowSource(family), Field::FlowDestination(family)];
        let with_input = [&ends[..], &[Field::InInterface]].concat();
        let accept =
            |fields, set| Rule::new(vec![Match::DestinationTranslated, Match::InSet { fields, set }], accept());
        [accept(with_input, with_interface(family)), accept(ends, without_interface(family))]
    };
    families.iter().flat_map(rules_of).collect()
}
