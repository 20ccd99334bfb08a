//! What a program allows, grouped by port so that its cost does not grow with the number of policies: for every port
//! one union of peers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nft::Protocol;

use super::{Direction, NamedPorts};
use crate::peers::{NamedPeers, Namespaces, PeerUnion, PodPeer};
use crate::{ObjectName, Peer, Peers, Policy, PortRange, Ports, Selector};

/// Peers, and the policies that allow them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) peers: PeerUnion,
    pub(crate) by: BTreeSet<ObjectName>,
}

impl Allowed {
    fn join(&mut self, other: &Allowed) {
        self.peers.join(&other.peers);
        self.by.extend(other.by.iter().cloned());
    }
}

/// Ports from the first to the last, both included, for which the same peers are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) allowed: Allowed,
}

/// Everything that the policies of a program allow.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Through rules without ports: every port and protocol.
    pub(crate) any_port: Allowed,
    /// Through named ports of egress rules, which each destination pod resolves for itself.
    pub(crate) named: NamedPeers,
    pub(crate) named_by: BTreeSet<ObjectName>,
    /// Through numbers, as disjoint spans in order.
    pub(crate) spans: BTreeMap<Protocol, Vec<Span>>,
}

impl Plan {
    pub(crate) fn of(direction: Direction, policies: &[Arc<Policy>], named: &NamedPorts) -> Plan {
        let mut plan = Plan::default();
        let mut ranges: BTreeMap<Protocol, Vec<Span>> = BTreeMap::new();
        for policy in policies {
            for rule in policy.rules(direction).unwrap_or(&[]) {
                let peers = PeerUnion::of(&rule.peers, &policy.name.namespace);
                let allowed = Allowed { peers, by: [policy.name.clone()].into() };
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
                        ranges.entry(port.protocol).or_default().push(Span { first, last, allowed: allowed.clone() });
                    }
                }
            }
        }
        if !plan.any_port.peers.any {
            plan.spans = ranges.into_iter().map(|(protocol, spans)| (protocol, partition(&spans))).collect();
        }
        plan
    }

    /// A name is resolved on pods only: blocks have none, and without peers every pod of the cluster may.
    fn add_named(&mut self, name: &Arc<str>, protocol: Protocol, peers: &Peers, policy: &Policy) {
        let pods: BTreeSet<PodPeer> = match peers {
            Peers::Any => [PodPeer { namespaces: Namespaces::Every, pods: Selector::everything() }].into(),
            Peers::Of(peers) => peers
                .iter()
                .filter_map(|peer| match peer {
                    Peer::Pods { namespaces, pods } => Some(PodPeer::of(namespaces, pods, &policy.name.namespace)),
                    Peer::Block(_) => None,
                })
                .collect(),
        };
        if !pods.is_empty() {
            self.named.entry((name.clone(), protocol)).or_default().extend(pods);
            self.named_by.insert(policy.name.clone());
        }
    }
}

/// Cuts overlapping spans at each other's ends, so that every port is in at most one; neighbours that allow the same
/// become one.
fn partition(spans: &[Span]) -> Vec<Span> {
    let start = |span: &Span| u32::from(span.first);
    let end = |span: &Span| u32::from(span.last) + 1;
    let mut opening: Vec<usize> = (0..spans.len()).collect();
    opening.sort_by_key(|i| start(&spans[*i]));
    let cuts: BTreeSet<u32> = spans.iter().flat_map(|s| [start(s), end(s)]).collect();
    let cuts: Vec<u32> = cuts.into_iter().collect();
    let mut open: Vec<usize> = Vec::new();
    let mut next = opening.into_iter().peekable();
    let mut result: Vec<Span> = Vec::new();
    for pair in cuts.windows(2) {
        open.retain(|i| end(&spans[*i]) > pair[0]);
        while let Some(i) = next.next_if(|i| start(&spans[*i]) == pair[0]) {
            open.push(i);
        }
        if open.is_empty() {
            continue;
        }
        let mut allowed = Allowed::default();
        open.iter().for_each(|i| allowed.join(&spans[*i].allowed));
        // Cuts are port numbers, or one past the last one.
        let (first, last) = (pair[0] as u16, (pair[1] - 1) as u16);
        match result.last_mut() {
            Some(previous) if u32::from(previous.last) + 1 == pair[0] && previous.allowed == allowed => {
                previous.last = last;
            }
            _ => result.push(Span { first, last, allowed }),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u16, last: u16, namespace: &str) -> Span {
        let peer = PodPeer { namespaces: Namespaces::Named(namespace.into()), pods: Selector::everything() };
        let peers = PeerUnion { pods: [peer].into(), ..PeerUnion::default() };
        Span { first, last, allowed: Allowed { peers, by: BTreeSet::new() } }
    }

    fn shape(spans: &[Span]) -> Vec<(u16, u16, usize)> {
        partition(spans).iter().map(|s| (s.first, s.last, s.allowed.peers.pods.len())).collect()
    }

    #[test]
    fn overlapping_ranges_are_cut_where_the_peers_change() {
        assert_eq!(shape(&[span(10, 30, "a"), span(20, 40, "b")]), [(10, 19, 1), (20, 30, 2), (31, 40, 1)]);
        assert_eq!(shape(&[span(0, 65535, "a"), span(80, 80, "b")]), [(0, 79, 1), (80, 80, 2), (81, 65535, 1)]);
    }

    #[test]
    fn touching_ranges_for_the_same_peers_are_one() {
        assert_eq!(shape(&[span(1, 5, "a"), span(6, 9, "a"), span(3, 7, "a")]), [(1, 9, 1)]);
        assert_eq!(shape(&[span(1, 5, "a"), span(7, 9, "a")]), [(1, 5, 1), (7, 9, 1)]);
        assert_eq!(shape(&[]), []);
    }
}
