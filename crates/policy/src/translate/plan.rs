//! Plans: what a program allows, as peers for every port, port ranges with peers, and named ports of egress rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nft::Protocol;

use super::segments::AllowedPortRange;
use super::{Direction, NamedPorts};
use crate::peers::{NamedPeers, NamedTargets, Namespaces, PeerUnion, PodPeer};
use crate::{ObjectName, Peers, Policy, PortRange, Ports, Selector};

/// Peers, and the policies that allow them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllowedPeers {
    pub(crate) peers: PeerUnion,
    pub(crate) by: BTreeSet<ObjectName>,
}

impl AllowedPeers {
    pub(super) fn join(&mut self, other: &AllowedPeers) {
        self.peers.join(&other.peers);
        self.by.extend(other.by.iter().cloned());
    }
}

/// Everything that the policies of a program allow.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// From rules without ports: every port and protocol.
    pub(crate) any_port: AllowedPeers,
    /// From named ports of egress rules, which each destination pod resolves.
    pub(crate) named: NamedPeers,
    pub(crate) named_by: BTreeSet<ObjectName>,
    /// From port numbers. The ranges may overlap.
    pub(crate) ranges: BTreeMap<Protocol, Vec<AllowedPortRange>>,
}

impl Plan {
    pub(crate) fn of(direction: Direction, policies: &[Arc<Policy>], named: &NamedPorts) -> Plan {
        let mut plan = Plan::default();
        let mut ranges: BTreeMap<Protocol, Vec<AllowedPortRange>> = BTreeMap::new();
        for policy in policies {
            for rule in policy.rules(direction).unwrap_or(&[]) {
                let peers = PeerUnion::of(&rule.peers, &policy.name.namespace);
                let allowed = Arc::new(AllowedPeers { peers, by: [policy.name.clone()].into() });
                let Ports::Of(ports) = &rule.ports else {
                    if !allowed.peers.is_empty() {
                        plan.any_port.join(&allowed);
                    }
                    continue;
                };
                for port in ports {
                    let numbers = match &port.range {
                        PortRange::All => Some((0, u16::MAX)),
                        PortRange::Numbers(first, last) => Some((*first, *last)),
                        PortRange::Named(name) => match direction {
                            Direction::Ingress => {
                                named.get(&(name.clone(), port.protocol)).map(|number| (*number, *number))
                            }
                            Direction::Egress => {
                                plan.add_named(name, port.protocol, &rule.peers, policy);
                                None
                            }
                        },
                    };
                    if let Some((first, last)) = numbers.filter(|_| !allowed.peers.is_empty()) {
                        let range = AllowedPortRange { first, last, allowed: allowed.clone() };
                        ranges.entry(port.protocol).or_default().push(range);
                    }
                }
            }
        }
        if !plan.any_port.peers.any {
            plan.ranges = ranges;
        }
        plan
    }

    /// A name is resolved on the destination pod, which the rule selects directly or by a block. Without peers, it may
    /// be any pod of the cluster.
    fn add_named(&mut self, name: &Arc<str>, protocol: Protocol, peers: &Peers, policy: &Policy) {
        let mut targets = NamedTargets::default();
        match peers {
            Peers::Any => {
                targets.pods.insert(PodPeer { namespaces: Namespaces::Every, pods: Selector::everything() });
            }
            Peers::Of(peers) => {
                let PeerUnion { any: _, pods, blocks } = PeerUnion::of_listed(peers, &policy.name.namespace);
                targets = NamedTargets { pods, blocks };
            }
        }
        if !targets.is_empty() {
            self.named.entry((name.clone(), protocol)).or_default().join(targets);
            self.named_by.insert(policy.name.clone());
        }
    }
}
