//! Peers in canonical form: which addresses a peer selects, independent of the policy that names it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Datum, Family, Protocol};
use serde::Serialize;

use crate::address_ranges::{bounds, datum, merge};
use crate::remote::{LabelFamilies, RemoteLabels};
use crate::{Block, ClusterState, Labels, NamespaceScope, Peer, Peers, Pod, Selector};

/// Pods by selector, anywhere in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct PodPeer {
    pub(crate) namespaces: Namespaces,
    pub(crate) pods: Selector,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) enum Namespaces {
    Named(Arc<str>),
    Selected(Selector),
    /// Every pod of the cluster, those of unknown namespaces included: the destinations that a rule without peers
    /// can resolve a named port on.
    Every,
}

/// A union of peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerUnion {
    /// Every address; the other fields are empty then.
    pub(crate) any: bool,
    pub(crate) pods: BTreeSet<PodPeer>,
    pub(crate) blocks: BTreeSet<Block>,
}

impl PeerUnion {
    /// The peers of a rule in a policy in `namespace`.
    pub(crate) fn of(peers: &Peers, namespace: &Arc<str>) -> PeerUnion {
        match peers {
            Peers::Any => PeerUnion { any: true, ..PeerUnion::default() },
            Peers::Of(peers) => PeerUnion::of_listed(peers, namespace),
        }
    }

    /// The peers that a rule in a policy in `namespace` lists.
    pub(crate) fn of_listed(peers: &[Peer], namespace: &Arc<str>) -> PeerUnion {
        let mut union = PeerUnion::default();
        for peer in peers {
            match peer {
                Peer::Pods { namespaces, pods } => {
                    union.pods.insert(PodPeer::of(namespaces, pods, namespace));
                }
                Peer::Block(block) => {
                    union.blocks.insert(block.clone());
                }
            }
        }
        union
    }

    /// The number of pod selectors and blocks.
    pub(crate) fn len(&self) -> usize {
        self.pods.len() + self.blocks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any && self.pods.is_empty() && self.blocks.is_empty()
    }

    pub(crate) fn join(&mut self, other: &PeerUnion) {
        if self.any || other.any {
            *self = PeerUnion { any: true, ..PeerUnion::default() };
            return;
        }
        self.pods.extend(other.pods.iter().cloned());
        self.blocks.extend(other.blocks.iter().cloned());
    }
}

impl PodPeer {
    pub(crate) fn of(scope: &NamespaceScope, pods: &Selector, own: &Arc<str>) -> PodPeer {
        let namespaces = match scope {
            NamespaceScope::Own => Namespaces::Named(own.clone()),
            NamespaceScope::Selected(selector) => Namespaces::Selected(selector.clone()),
        };
        PodPeer { namespaces, pods: pods.clone() }
    }

    /// The peer without its negative requirements (`NotIn`, `DoesNotExist`): it selects at least the same pods.
    pub(crate) fn base(&self) -> PodPeer {
        let namespaces = match &self.namespaces {
            Namespaces::Selected(selector) => Namespaces::Selected(selector.positive()),
            Namespaces::Named(_) | Namespaces::Every => self.namespaces.clone(),
        };
        PodPeer { namespaces, pods: self.pods.positive() }
    }

    /// The pods that the peer currently selects. An unreadable pod is never selected.
    pub(crate) fn members<'a>(&'a self, state: &'a ClusterState) -> impl Iterator<Item = &'a Arc<Pod>> {
        let pods: Box<dyn Iterator<Item = &'a Arc<Pod>> + 'a> = match &self.namespaces {
            Namespaces::Named(namespace) => Box::new(state.pods_selected([namespace], &self.pods)),
            Namespaces::Selected(selector) => {
                let namespaces = state.namespaces_matching(selector).map(|namespace| &namespace.name);
                Box::new(state.pods_selected(namespaces, &self.pods))
            }
            Namespaces::Every => Box::new(state.pods_selected_anywhere(&self.pods)),
        };
        pods.filter(|pod| !pod.unreadable)
    }

    pub(crate) fn contains(&self, state: &ClusterState, pod: &Pod) -> bool {
        self.selects(pod, state.namespace_labels(&pod.name.namespace))
    }

    /// Whether the peer selects the pod. `namespace` are the labels of the pod's namespace, if known.
    pub(crate) fn selects(&self, pod: &Pod, namespace: Option<&Labels>) -> bool {
        !pod.unreadable && self.means(&pod.name.namespace, &pod.labels, namespace)
    }

    /// Whether the peer selects readable pods of the namespace with these labels.
    pub(crate) fn means(&self, namespace: &Arc<str>, labels: &Labels, of_namespace: Option<&Labels>) -> bool {
        let in_namespace = match &self.namespaces {
            Namespaces::Named(name) => name == namespace,
            Namespaces::Selected(selector) => of_namespace.is_some_and(|labels| selector.matches(labels)),
            Namespaces::Every => true,
        };
        in_namespace && self.pods.matches(labels)
    }

    /// Whether the peer can select any remote set.
    pub(crate) fn reaches_remote(&self, families: &LabelFamilies) -> bool {
        match &self.namespaces {
            Namespaces::Selected(selector) => families.are_required_by(selector),
            Namespaces::Named(_) | Namespaces::Every => false,
        }
    }

    /// Whether the peer selects the remote set, if it [can](PodPeer::reaches_remote) select any.
    pub(crate) fn selects_remote(&self, set: &RemoteLabels) -> bool {
        match &self.namespaces {
            Namespaces::Selected(selector) => selector.matches(&set.namespace) && self.pods.matches(&set.pod),
            Namespaces::Named(_) | Namespaces::Every => false,
        }
    }
}

/// Sorted, unique addresses of all the pods and remote sets that the peers select.
pub(crate) fn pod_addresses(pods: &BTreeSet<PodPeer>, state: &ClusterState) -> Vec<IpAddr> {
    let members = pods.iter().flat_map(|peer| peer.members(state));
    let mut addresses: Vec<IpAddr> = members.flat_map(|pod| state.addresses_of_known(pod)).collect();
    let reaching: Vec<&PodPeer> = pods.iter().filter(|p| p.reaches_remote(state.remote().families())).collect();
    if !reaching.is_empty() {
        let selected = state.remote().iter().filter(|(_, set, _)| reaching.iter().any(|peer| peer.selects_remote(set)));
        let claimed = selected.flat_map(|(_, _, addresses)| addresses.iter().copied());
        addresses.extend(claimed.filter(|address| state.holder(*address).is_none()));
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Addresses of the pods and remote sets selected by `base` and by none of `variants`.
pub(crate) fn excluded_addresses(base: &PodPeer, variants: &BTreeSet<PodPeer>, state: &ClusterState) -> Vec<IpAddr> {
    let is_excluded = |pod: &&Arc<Pod>| {
        let labels = state.namespace_labels(&pod.name.namespace);
        !variants.iter().any(|variant| variant.selects(pod, labels))
    };
    let members = base.members(state).filter(is_excluded);
    let mut addresses: Vec<IpAddr> = members.flat_map(|pod| state.addresses_of_known(pod)).collect();
    if base.reaches_remote(state.remote().families()) {
        let selected = state.remote().iter().filter(|(_, set, _)| base.selects_remote(set));
        let claimed: BTreeSet<IpAddr> = selected.flat_map(|(_, _, addresses)| addresses.iter().copied()).collect();
        addresses.extend(claimed.into_iter().filter(|address| {
            let is_variant = || {
                state.labelled_remote_sets_with(*address).any(|(_, set)| variants.iter().any(|v| v.selects_remote(set)))
            };
            state.holder(*address).is_none() && !is_variant()
        }));
    }
    addresses
}

/// Addresses with the number that each pod assigns to the named port.
pub(crate) fn named_endpoints(
    targets: &NamedTargets,
    port: &str,
    protocol: Protocol,
    state: &ClusterState,
) -> BTreeSet<(IpAddr, u16)> {
    let NamedTargets { pods, blocks } = targets;
    let members = pods.iter().flat_map(|peer| peer.members(state));
    let resolved = members.filter_map(|pod| Some((pod, pod.resolve(port, protocol)?)));
    let mut endpoints: BTreeSet<(IpAddr, u16)> = resolved
        .flat_map(|(pod, number)| state.addresses_of_known(pod).map(move |address| (address, number)))
        .collect();
    if !blocks.is_empty() {
        let readable = state.pods().filter(|pod| !pod.unreadable);
        for (pod, number) in readable.filter_map(|pod| Some((pod, pod.resolve(port, protocol)?))) {
            let within = state.addresses_of_known(pod).filter(|a| blocks.iter().any(|block| block_contains(block, *a)));
            endpoints.extend(within.map(|address| (address, number)));
        }
    }
    endpoints
}

/// The addresses of one family in any of the blocks, as sorted, disjoint, non-adjacent ranges. Each block's exceptions
/// only apply to that block.
pub(crate) fn block_ranges(blocks: &BTreeSet<Block>, family: Family) -> Vec<(Datum, Datum)> {
    let mut ranges: Vec<(u128, u128)> = Vec::new();
    for block in blocks.iter().filter(|b| Family::of(b.cidr.addr()) == family) {
        let mut excepted: Vec<_> = block.except.iter().filter(|e| Family::of(e.addr()) == family).map(bounds).collect();
        excepted.sort_unstable();
        let (mut start, end) = bounds(&block.cidr);
        let mut open = true;
        for (first, last) in excepted {
            if last < start || first > end {
                continue;
            }
            if first > start {
                ranges.push((start, first - 1));
            }
            match last.checked_add(1) {
                Some(next) if next <= end => start = next.max(start),
                _ => {
                    open = false;
                    break;
                }
            }
        }
        if open {
            ranges.push((start, end));
        }
    }
    merge(ranges).into_iter().map(|(a, b)| (datum(a, family), datum(b, family))).collect()
}

impl fmt::Display for PodPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pods.selects_everything() {
            true => f.write_str("all pods")?,
            false => write!(f, "pods {}", self.pods)?,
        }
        match &self.namespaces {
            Namespaces::Named(namespace) => write!(f, " in {namespace}"),
            Namespaces::Selected(s) if s.selects_everything() => f.write_str(" in all namespaces"),
            Namespaces::Selected(selector) => write!(f, " in namespaces {selector}"),
            Namespaces::Every => f.write_str(" of the cluster"),
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cidr)?;
        for (i, except) in self.except.iter().enumerate() {
            write!(f, "{} {except}", if i == 0 { " except" } else { "," })?;
        }
        Ok(())
    }
}

/// The peers joined by `; `.
pub(crate) fn describe<T: fmt::Display>(peers: &BTreeSet<T>) -> String {
    peers.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}

/// Whether the address is in the block and in none of its exceptions, whoever owns the address.
pub(crate) fn block_contains(block: &Block, address: IpAddr) -> bool {
    block.cidr.contains(&address) && !block.except.iter().any(|e| e.contains(&address))
}

/// The pods on which egress rules resolve a named port, by name and protocol.
pub(crate) type NamedPeers = BTreeMap<(Arc<str>, Protocol), NamedTargets>;

/// Pods by selector, and pods by an address in a block.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct NamedTargets {
    pub(crate) pods: BTreeSet<PodPeer>,
    pub(crate) blocks: BTreeSet<Block>,
}

impl NamedTargets {
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.blocks.is_empty()
    }

    pub(crate) fn join(&mut self, other: NamedTargets) {
        self.pods.extend(other.pods);
        self.blocks.extend(other.blocks);
    }

    /// Whether the pod, which has the address and whose namespace has these labels, is one of them.
    pub(crate) fn contain(&self, address: IpAddr, pod: &Pod, namespace: Option<&Labels>) -> bool {
        let selected = || self.pods.iter().any(|peer| peer.selects(pod, namespace));
        let within = || !pod.unreadable && self.blocks.iter().any(|block| block_contains(block, address));
        selected() || within()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(blocks: &[(&str, &[&str])]) -> Vec<String> {
        let parse = |text: &str| text.parse::<ipnet::IpNet>().unwrap();
        let blocks = blocks
            .iter()
            .map(|(cidr, except)| Block { cidr: parse(cidr), except: except.iter().map(|e| parse(e)).collect() });
        let blocks: BTreeSet<Block> = blocks.collect();
        block_ranges(&blocks, Family::V4).into_iter().map(|(a, b)| nft::Key::Range(a, b).to_string()).collect()
    }

    #[test]
    fn exception_is_excluded_from_its_own_block_only() {
        assert_eq!(ranges(&[("10.0.0.0/30", &["10.0.0.1/32"])]), ["10.0.0.0", "10.0.0.2/31"]);
        assert_eq!(ranges(&[("10.0.0.0/30", &["10.0.0.1/32"]), ("10.0.0.1/32", &[])]), ["10.0.0.0/30"]);
        assert_eq!(ranges(&[("10.0.0.0/24", &["10.0.0.0/24"])]), Vec::<String>::new());
        assert_eq!(ranges(&[("10.0.0.0/24", &["10.0.0.0/8", "10.0.0.3/32"])]), Vec::<String>::new());
        assert_eq!(ranges(&[("10.0.0.0/30", &["10.0.0.0/31", "10.0.0.0/32"])]), ["10.0.0.2/31"]);
        assert_eq!(ranges(&[("10.0.0.0/30", &["11.0.0.0/8", "2001:db8::/32"])]), ["10.0.0.0/30"]);
    }

    #[test]
    fn overlapping_and_adjacent_blocks_become_one_range() {
        assert_eq!(ranges(&[("10.0.0.0/25", &[]), ("10.0.0.128/25", &[]), ("10.0.0.7/32", &[])]), ["10.0.0.0/24"]);
        assert_eq!(ranges(&[("0.0.0.0/0", &[]), ("255.0.0.0/8", &[])]), ["0.0.0.0/0"]);
        assert_eq!(ranges(&[("0.0.0.0/0", &["255.255.255.255/32"])]), ["0.0.0.0-255.255.255.254"]);
    }
}
