//! The sets of addresses, and of addresses with ports, about which the rules of a tier make one decision because of the
//! pod or the nodes that have the address.
//!
//! Such an address is in the set of its decision unless the networks of the rules lead to the same one: the chain that
//! looks the sets up then asks the sets of networks.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Datum, Key};

use super::address_key;
use super::tier_rules::{Decision, End, NodesByAddress, RuleList, TierRules, decide, names_nodes};
use crate::ClusterState;

/// The contents of a set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Decided {
    pub(super) of: DecidedBy,
    pub(super) decision: Decision,
    /// Accept and Pass lead to the same chain, and count as Pass.
    pub(super) only_denies: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DecidedBy {
    /// Addresses.
    Rules(RuleList),
    /// Addresses with the ports that pods resolve named ports to.
    NamedPorts(Arc<TierRules>),
}

/// The decision, if Accept and Pass may lead to the same chain.
pub(super) fn normal(decision: Decision, only_denies: bool) -> Decision {
    match decision {
        Decision::Accept if only_denies => Decision::Pass,
        Decision::Accept | Decision::Deny | Decision::Pass => decision,
    }
}

impl Decided {
    pub(super) fn names_nodes(&self) -> bool {
        match &self.of {
            DecidedBy::Rules(rules) => names_nodes(rules),
            DecidedBy::NamedPorts(_) => false,
        }
    }

    /// The keys that the set must hold for the address.
    pub(super) fn keys(&self, state: &ClusterState, address: IpAddr, nodes: &NodesByAddress<'_>) -> Vec<Key> {
        let end = End::of(state, address, nodes);
        match &self.of {
            DecidedBy::Rules(rules) => {
                let normal = |end: &End<'_>| normal(decide(rules, end, None), self.only_denies);
                let decision = normal(&end);
                let is_held = decision == self.decision && decision != normal(&End::outside(address));
                if is_held { vec![address_key(address)] } else { vec![] }
            }
            DecidedBy::NamedPorts(rules) => {
                let decided = rules.decisions_at_named_ports(&end).into_iter();
                let held = decided.filter(|(_, decision)| normal(*decision, self.only_denies) == self.decision);
                held.map(|((protocol, port), _)| {
                    Key::Three(Datum::from(address), Datum::Protocol(protocol), Datum::Port(port))
                })
                .collect()
            }
        }
    }
}

/// The addresses that pods, attached pods whose objects are unknown, or nodes have.
pub(super) fn held_addresses(state: &ClusterState, nodes: &NodesByAddress<'_>) -> BTreeSet<IpAddr> {
    let of_pods = state.pods().flat_map(|pod| state.addresses_of_known(pod));
    let attached = state.attachments().flat_map(|attachment| attachment.addresses.iter().copied());
    of_pods.chain(attached).chain(nodes.keys().copied()).collect()
}
