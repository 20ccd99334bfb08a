//! The part of the ruleset that does not depend on programs, and the elements that dispatch an address to its program.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Datum, Element, Family, InterfaceName, Key, Name, Ruleset};

use super::layout::{Layout, dispatch_map, guard_set, self_set, skeleton};
use super::tiers::ProgramHook;
use super::{
    Direction, address_key, audit, dispatch_element, dns_answers, hairpin, own_node, tunnels, unknown_addresses,
};
use crate::Enforcement;

/// Inputs of the fixed part besides the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrameInput {
    /// Families of this node's pods, and those in which unknown addresses are denied.
    pub(super) families: BTreeSet<Family>,
    /// True if any program is audited.
    pub(super) audited: bool,
    /// True if there is a pending program.
    pub(super) pending: bool,
}

impl FrameInput {
    /// The ruleset without pods and programs.
    pub(super) fn ruleset(&self, layout: &Layout) -> Ruleset {
        let mut ruleset = skeleton(layout, &self.families);
        if self.audited {
            audit::add(&mut ruleset, layout, &self.families);
        }
        if self.pending {
            audit::add_pending(&mut ruleset, layout, &self.families);
        }
        unknown_addresses::add(&mut ruleset, layout);
        tunnels::add(&mut ruleset, layout, &self.families);
        ruleset
    }
}

/// The program that judges the flows of an address in a direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judge {
    pub(super) place: ProgramHook,
    pub(super) direction: Direction,
    pub(super) enforcement: Enforcement,
    pub(super) chain: Name,
}

/// Dispatches a pod's address to the programs that judge its flows. `input` is the input interface of the pod's
/// packets, if known; `learns` is whether DNS answers to the pod are copied.
pub(super) fn dispatch(
    ruleset: &mut Ruleset,
    address: IpAddr,
    about: &str,
    judges: &[Judge],
    input: Option<InterfaceName>,
    learns: bool,
) {
    let family = Family::of(address);
    if learns {
        dns_answers::add_client(ruleset, address);
    }
    if !judges.is_empty() {
        hairpin::add_pod(ruleset, address, input);
    }
    for judge in judges.iter().filter(|judge| judge.place == ProgramHook::OwnNode) {
        own_node::dispatch(ruleset, address, about, &judge.chain);
    }
    let mut add = |set: Name, key: Key, element: Element| {
        if let Some(set) = ruleset.sets.get_mut(&set) {
            Arc::make_mut(set).elements.insert(key, element);
        }
    };
    let (alone, with_itself) = keys(address);
    add(unknown_addresses::known(family), alone, Element::default());
    add(tunnels::own_pods(family), with_itself, Element::default());
    for Judge { place: _, direction, enforcement, chain } in judges.iter().filter(|j| j.place == ProgramHook::Forward) {
        add(dispatch_map(*direction, family), alone, dispatch_element(chain, about));
        match enforcement {
            Enforcement::Enforce => {
                add(guard_set(*direction, family), alone, Element::default());
                add(self_set(family), with_itself, Element::default());
            }
            Enforcement::Audit => {}
        }
    }
}

/// Removes the elements of an address that no pod has any more. `input` is what [`dispatch`] was called with.
pub(super) fn discard(ruleset: &mut Ruleset, address: IpAddr, input: Option<InterfaceName>) {
    let family = Family::of(address);
    hairpin::remove_pod(ruleset, address, input);
    own_node::discard(ruleset, address);
    dns_answers::remove_client(ruleset, address);
    let (alone, with_itself) = keys(address);
    let of_direction = |d: Direction| [(dispatch_map(d, family), alone), (guard_set(d, family), alone)];
    let others = [
        (self_set(family), with_itself),
        (tunnels::own_pods(family), with_itself),
        (unknown_addresses::known(family), alone),
    ];
    for (set, key) in Direction::BOTH.into_iter().flat_map(of_direction).chain(others) {
        if ruleset.sets.get(&set).is_some_and(|set| set.elements.contains(&key)) {
            Arc::make_mut(&mut ruleset.sets[&set]).elements.remove(&key);
        }
    }
}

fn keys(address: IpAddr) -> (Key, Key) {
    (address_key(address), pair_key(address))
}

/// The address paired with itself.
pub(super) fn pair_key(address: IpAddr) -> Key {
    Key::Two(Datum::from(address), Datum::from(address))
}
