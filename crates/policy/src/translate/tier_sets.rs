//! The sets of addresses, and of addresses with ports, about which the rules of a tier make one decision because of the
//! pod or the nodes that have the address.
//!
//! Such an address is in the set of its decision unless the lookups that follow lead to the same one: those of networks
//! and, in a segment of ports, those of the base rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Datum, Key, Protocol};

use super::tier_rules::{
    Base, NodesByAddress, OrderedRule, OwnRules, PeerEnd, TierDecision, TierRules, concern, decide, nodes_by_address,
    normal,
};
use super::{address_key, pod_ranges};
use crate::{ClusterState, Holder};

/// The contents of a set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DecisionSet {
    pub(super) of: DecidedBy,
    pub(super) decision: TierDecision,
    /// Accept and Pass lead to the same chain, and count as Pass.
    pub(super) only_denies: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DecidedBy {
    /// Addresses about which the base rules decide.
    Base(Base),
    /// Addresses about which these rules with ports decide before the base rules.
    Own(OwnRules, Base),
    /// Addresses that are accepted because of domain names that were learned for them, by these rules with ports and the
    /// base rules. The other sets leave learned names out of account.
    Learned(OwnRules, Base),
    /// Addresses with the ports that pods resolve these named ports to.
    NamedPorts(BTreeSet<(Arc<str>, Protocol)>, Arc<TierRules>),
}

impl DecidedBy {
    fn rules(&self) -> Box<dyn Iterator<Item = &Arc<OrderedRule>> + '_> {
        match self {
            DecidedBy::Base(base) => Box::new(base.rules().iter()),
            DecidedBy::Own(own, base) | DecidedBy::Learned(own, base) => {
                Box::new(own.iter().map(|(_, rule)| rule).chain(base.rules()))
            }
            DecidedBy::NamedPorts(..) => Box::new(std::iter::empty()),
        }
    }
}

impl DecisionSet {
    pub(super) fn names_nodes(&self) -> bool {
        // Addresses of nodes only count for some names.
        self.is_learned() || self.of.rules().any(|rule| rule.names_nodes())
    }

    /// Whether it holds learned addresses of domain names.
    pub(super) fn is_learned(&self) -> bool {
        matches!(self.of, DecidedBy::Learned(..))
    }

    /// The keys that the set must hold for the address.
    pub(super) fn keys(&self, end: &PeerEnd<'_>) -> Vec<Key> {
        let decision = |own: &[(usize, Arc<OrderedRule>)], base: &Base, end: &PeerEnd<'_>| {
            normal(decide(base, own, end, None), self.only_denies)
        };
        let outside = PeerEnd::outside(end.address);
        let unnamed;
        let end = match &self.of {
            DecidedBy::Base(_) | DecidedBy::Own(..) if end.is_named() => {
                unnamed = end.unnamed();
                &unnamed
            }
            DecidedBy::Base(_) | DecidedBy::Own(..) | DecidedBy::Learned(..) | DecidedBy::NamedPorts(..) => end,
        };
        let (decision, otherwise) = match &self.of {
            DecidedBy::Base(base) => (decision(&[], base, end), decision(&[], base, &outside)),
            DecidedBy::Own(own, _) if !concern(own, end) => return vec![],
            DecidedBy::Own(own, base) => {
                let by_networks = (decision(own, base, &outside), decision(&[], base, &outside));
                let otherwise = match by_networks {
                    (of_all, of_base) if of_all != of_base => of_all,
                    _ => decision(&[], base, end),
                };
                (decision(own, base, end), otherwise)
            }
            DecidedBy::Learned(..) if !end.is_named() => return vec![],
            DecidedBy::Learned(own, base) => (decision(own, base, end), decision(own, base, &end.unnamed())),
            DecidedBy::NamedPorts(named, rules) => {
                let decided = rules.decisions_at_named_ports(named, end).into_iter();
                let held = decided.filter(|(_, decision)| normal(*decision, self.only_denies) == self.decision);
                let key = |((protocol, port), _)| {
                    Key::Three(Datum::from(end.address), Datum::Protocol(protocol), Datum::Port(port))
                };
                return held.map(key).collect();
            }
        };
        if decision == self.decision && decision != otherwise { vec![address_key(end.address)] } else { vec![] }
    }
}

/// The addresses of a state that sets of decisions may hold, found once for many sets.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    state: &'a ClusterState,
    nodes: NodesByAddress<'a>,
    /// The addresses of pods, attached pods whose objects are unknown, and nodes.
    held: BTreeSet<IpAddr>,
    /// Addresses of pods that rules may match whatever they select: some of their labels are unknown.
    unclear: Vec<IpAddr>,
    /// The decisions of base rules, by their digest.
    of_base: BTreeMap<String, BTreeMap<IpAddr, TierDecision>>,
}

impl<'a> Candidates<'a> {
    pub(super) fn of(state: &'a ClusterState) -> Candidates<'a> {
        let nodes = nodes_by_address(state);
        let held: BTreeSet<IpAddr> = pod_ranges::of_pods(state).chain(nodes.keys().copied()).collect();
        let is_unclear = |address: &IpAddr| match state.holder(*address) {
            Some(Holder::Pod(pod)) => pod.unreadable || state.namespace_labels(&pod.name.namespace).is_none(),
            Some(Holder::Unknown(_)) => true,
            None => false,
        };
        let unclear = held.iter().copied().filter(is_unclear).collect();
        Candidates { state, nodes, held, unclear, of_base: BTreeMap::new() }
    }

    /// The keys of the set.
    pub(super) fn keys(&mut self, decided: &DecisionSet) -> Vec<(IpAddr, Key)> {
        let addresses: BTreeSet<IpAddr> = match &decided.of {
            DecidedBy::Base(base) => {
                let (state, nodes) = (self.state, &self.nodes);
                let decide_all = || {
                    let of = |address: &IpAddr| {
                        (*address, decide(base, &[], &PeerEnd::of(state, *address, nodes).unnamed(), None))
                    };
                    self.held.iter().map(of).collect::<BTreeMap<IpAddr, TierDecision>>()
                };
                let decisions = self.of_base.entry(base.digest.clone()).or_insert_with(decide_all);
                let is_held = |decision: TierDecision| normal(decision, decided.only_denies) == decided.decision;
                decisions.iter().filter(|(_, decision)| is_held(**decision)).map(|(address, _)| *address).collect()
            }
            DecidedBy::Own(own, _) => self.concerned(own),
            DecidedBy::Learned(..) => self.state.learned_addresses().collect(),
            DecidedBy::NamedPorts(..) => self.held.clone(),
        };
        let keys = |address: IpAddr| {
            let keys = decided.keys(&PeerEnd::of(self.state, address, &self.nodes));
            keys.into_iter().map(move |key| (address, key))
        };
        addresses.into_iter().flat_map(keys).collect()
    }

    /// The addresses that one of the rules may match, and others.
    fn concerned(&self, own: &OwnRules) -> BTreeSet<IpAddr> {
        let mut found: BTreeSet<IpAddr> = self.unclear.iter().copied().collect();
        for (_, rule) in own.iter() {
            if rule.has_networks() {
                return self.held.clone();
            }
            if rule.names_nodes() {
                found.extend(self.nodes.keys());
            }
            for (namespaces, pods) in rule.selected_pods() {
                let namespaces = self.state.namespaces_matching(namespaces).map(|namespace| &namespace.name);
                let selected = self.state.pods_selected(namespaces, pods);
                found.extend(selected.flat_map(|pod| self.state.addresses_of_known(pod)));
            }
        }
        found
    }
}
