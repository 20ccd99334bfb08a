//! The ports that the NetworkPolicies of a class of pods allow in one direction, per peer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use nft::Protocol;

use super::other_end::{PeerTerm, PodEnd};
use crate::edges::ports::{FlowPorts, PortSpan};
use crate::peers::{NamedTargets, Namespaces, PeerUnion};
use crate::translate::{NamedPorts, Plan, resolved_ports};
use crate::{Block, Direction, NamedPort, Pod, Policy};

/// Peers are numbers of the peer index.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::edges) struct PolicyTerms {
    /// Allowed with every other end, including addresses of no pod.
    pub(in crate::edges) any: FlowPorts,
    /// Allowed with every pod of a known namespace, by rules for all pods of all namespaces.
    pub(super) ordinary: FlowPorts,
    /// Sorted by peer.
    pub(in crate::edges) peers: Vec<(u32, FlowPorts)>,
    /// Named ports, which the pod at the other end resolves.
    pub(super) named: Vec<(u32, Arc<str>, Protocol)>,
    /// Allowed with addresses of no pod, in addition to `any`.
    pub(in crate::edges) blocks: BTreeMap<Block, FlowPorts>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PeerScope {
    Any,
    Ordinary,
    Peer(PeerTerm),
}

impl PolicyTerms {
    /// The terms of these policies, which select the pod. Without policies, everything is denied.
    pub(super) fn of(
        direction: Direction,
        policies: &[Arc<Policy>],
        pod: &Pod,
        mut number: impl FnMut(PeerTerm) -> u32,
    ) -> PolicyTerms {
        let named = match direction {
            Direction::Egress => NamedPorts::new(),
            Direction::Ingress => resolved_ports(&policies.iter().collect::<Vec<_>>(), pod),
        };
        let plan = Plan::of(direction, policies, &named);
        let mut collected: BTreeMap<PeerScope, Vec<PortSpan>> = BTreeMap::new();
        for (protocol, ranges) in &plan.ranges {
            for range in ranges {
                let ports = PortSpan { protocol: *protocol, first: range.first, last: range.last };
                peer_scopes(&range.allowed.peers).for_each(|who| collected.entry(who).or_default().push(ports));
            }
        }
        let for_any = FlowPorts::of(collected.remove(&PeerScope::Any).unwrap_or_default());
        // Ports allowed with every peer are not repeated for single peers.
        let mut allowed: BTreeMap<PeerScope, FlowPorts> = collected
            .into_iter()
            .map(|(who, spans)| (who, FlowPorts::of(spans).beyond(&for_any)))
            .filter(|(_, ports)| !ports.is_none())
            .collect();
        if !for_any.is_none() {
            allowed.insert(PeerScope::Any, for_any);
        }
        allowed.extend(peer_scopes(&plan.any_port.peers).map(|who| (who, FlowPorts::everything())));
        let mut terms = PolicyTerms {
            any: FlowPorts::none(),
            ordinary: FlowPorts::none(),
            peers: Vec::new(),
            named: Vec::new(),
            blocks: BTreeMap::new(),
        };
        for (who, ports) in allowed {
            match who {
                PeerScope::Any => terms.any = ports,
                PeerScope::Ordinary => terms.ordinary = ports,
                PeerScope::Peer(peer) => {
                    if let PeerTerm::Block(block) = &peer {
                        terms.blocks.insert(block.clone(), ports.clone());
                    }
                    terms.peers.push((number(peer), ports));
                }
            }
        }
        for ((name, protocol), NamedTargets { pods, blocks }) in plan.named {
            let targets = pods.into_iter().map(PeerTerm::Pods).chain(blocks.into_iter().map(PeerTerm::Block));
            terms.named.extend(targets.map(|target| (number(target), name.clone(), protocol)));
        }
        terms.peers.sort_unstable();
        terms.named.sort_unstable();
        terms
    }

    /// The peers in these terms, without duplicates.
    pub(super) fn mentioned(&self) -> BTreeSet<u32> {
        let by_name = self.named.iter().map(|(peer, ..)| *peer);
        self.peers.iter().map(|(peer, _)| *peer).chain(by_name).collect()
    }

    /// Ports allowed with any pod of a known namespace.
    pub(super) fn by_default(&self) -> FlowPorts {
        self.any.union(&self.ordinary)
    }

    /// Ports allowed with these pods.
    pub(super) fn allow(&self, other: PodEnd<'_>) -> FlowPorts {
        let mut ports = if other.ordinary { self.by_default() } else { self.any.clone() };
        for (_, of_peer) in self.peers.iter().filter(|(peer, _)| other.is_matched_by(*peer)) {
            ports = ports.union(of_peer);
        }
        // An unreadable pod resolves no named ports, although a block may contain its address.
        let resolves = |peer: u32| !other.unreadable && other.is_matched_by(peer);
        for (_, name, protocol) in self.named.iter().filter(|(peer, ..)| resolves(*peer)) {
            if let Some(number) = NamedPort::find(other.ports, name, *protocol) {
                let one = PortSpan { protocol: *protocol, first: number, last: number };
                ports = ports.union(&FlowPorts::of([one]));
            }
        }
        ports
    }

    /// Ports allowed with addresses of no pod, of which each block contains all or none.
    pub(super) fn allow_outside(&self, addresses: &IpNet) -> FlowPorts {
        let is_held = |block: &Block| {
            block.cidr.contains(addresses) && !block.except.iter().any(|except| except.contains(addresses))
        };
        let held = self.blocks.iter().filter(|(block, _)| is_held(block));
        held.fold(self.any.clone(), |ports, (_, of_block)| ports.union(of_block))
    }

    /// Ports allowed with remote pods that some of the peers select. Remote pods resolve no named ports.
    pub(super) fn allow_remote(&self, is_selected_by: impl Fn(u32) -> bool) -> FlowPorts {
        let of_peers = self.peers.iter().filter(|(peer, _)| is_selected_by(*peer));
        of_peers.fold(self.any.clone(), |ports, (_, of_peer)| ports.union(of_peer))
    }
}

fn peer_scopes(peers: &PeerUnion) -> impl Iterator<Item = PeerScope> {
    let any = peers.any.then_some(PeerScope::Any);
    let pods = peers.pods.iter().map(|peer| match &peer.namespaces {
        Namespaces::Selected(all) if all.selects_everything() && peer.pods.selects_everything() => PeerScope::Ordinary,
        Namespaces::Named(_) | Namespaces::Selected(_) | Namespaces::Every => {
            PeerScope::Peer(PeerTerm::Pods(peer.clone()))
        }
    });
    let blocks = peers.blocks.iter().map(|block| PeerScope::Peer(PeerTerm::Block(block.clone())));
    any.into_iter().chain(pods).chain(blocks)
}
