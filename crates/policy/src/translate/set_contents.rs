//! The contents of a set of pod addresses: its definition, its elements in a state, and the keys that it must hold for an
//! address. It does not know when a set has to be updated.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Datum, Element, Elements, Family, Key, Protocol, Set};

use super::set_capacity::room_for_peers;
use super::tier_sets::{Candidates, DecidedBy, DecisionSet};
use super::{address_key, pod_ranges};
use crate::peers::{NamedPeers, NamedTargets, PodPeer, excluded_addresses, named_endpoints, pod_addresses};
use crate::remote::{LabelFamilies, RemoteLabels};
use crate::{ClusterState, Labels, Pod};

/// Definition of a set's contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerSet {
    pub(super) family: Family,
    pub(super) of: PeersOf,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeersOf {
    /// The pods' addresses.
    Addresses(BTreeSet<PodPeer>),
    /// The addresses of the pods selected by `base` and by none of the variants; a variant has all requirements of the
    /// base and more.
    Excluded { base: PodPeer, variants: BTreeSet<PodPeer> },
    /// The pods' addresses, with the numbers of ports that they call by a name.
    Endpoints(NamedPeers),
    /// Addresses by the decision of a tier of cluster policies.
    Decided(DecisionSet),
    /// The addresses of known pods, of attached pods whose objects are unknown, and of nodes.
    Known,
    /// The ranges of addresses that are not those of a node's pods.
    Outside,
}

/// Cache of set contents in one state, computed once for the sets of both families.
#[derive(Debug, Default)]
pub(super) struct Looks<'a> {
    contents: BTreeMap<PeersOf, BTreeMap<Family, Elements>>,
    candidates: Option<Candidates<'a>>,
}

impl<'a> Looks<'a> {
    /// The set, filled with its elements.
    pub(super) fn filled(&mut self, set: Set, of: &PeerSet, state: &'a ClusterState) -> Set {
        if !self.contents.contains_key(&of.of) {
            let elements = match &of.of {
                PeersOf::Decided(decided) => self.decided_elements(decided, state),
                PeersOf::Addresses(_)
                | PeersOf::Excluded { .. }
                | PeersOf::Endpoints(_)
                | PeersOf::Known
                | PeersOf::Outside => of.of.elements(state),
            };
            self.contents.insert(of.of.clone(), elements);
        }
        let elements = self.contents.get(&of.of).and_then(|found| found.get(&of.family)).cloned().unwrap_or_default();
        Set { size: (!set.interval).then(|| room_for_peers(elements.len())), elements, ..set }
    }

    fn decided_elements(&mut self, decided: &DecisionSet, state: &'a ClusterState) -> BTreeMap<Family, Elements> {
        let candidates = self.candidates.get_or_insert_with(|| Candidates::of(state));
        let mut found: BTreeMap<Family, Elements> = BTreeMap::new();
        for (address, key) in candidates.keys(decided) {
            found.entry(Family::of(address)).or_default().insert(key, Element::default());
        }
        found
    }
}

impl PeersOf {
    pub(super) fn elements(&self, state: &ClusterState) -> BTreeMap<Family, Elements> {
        let mut found: BTreeMap<Family, Elements> = BTreeMap::new();
        let mut upsert = |address: IpAddr, key: Key| {
            found.entry(Family::of(address)).or_default().insert(key, Element::default());
        };
        match self {
            PeersOf::Addresses(pods) => pod_addresses(pods, state).into_iter().for_each(|a| upsert(a, address_key(a))),
            PeersOf::Excluded { base, variants } => {
                excluded_addresses(base, variants, state).into_iter().for_each(|a| upsert(a, address_key(a)));
            }
            PeersOf::Endpoints(named) => {
                for ((name, protocol), targets) in named {
                    for (address, number) in named_endpoints(targets, name, *protocol, state) {
                        upsert(address, endpoint_key(address, *protocol, number));
                    }
                }
            }
            PeersOf::Known => pod_ranges::known(state).into_iter().for_each(|a| upsert(a, address_key(a))),
            PeersOf::Outside => {
                for family in Family::BOTH {
                    found.insert(family, pod_ranges::outside(state, family));
                }
            }
            PeersOf::Decided(_) => {}
        }
        found
    }
}

impl PeerSet {
    /// The peers whose pods it may hold, beside those that have an address in a block.
    pub(super) fn peers(&self) -> Vec<&PodPeer> {
        match &self.of {
            PeersOf::Addresses(pods) => pods.iter().collect(),
            // The variants select a subset of the base's pods.
            PeersOf::Excluded { base, variants: _ } => vec![base],
            PeersOf::Endpoints(named) => named.values().flat_map(|targets| &targets.pods).collect(),
            PeersOf::Decided(_) | PeersOf::Known | PeersOf::Outside => vec![],
        }
    }

    /// Whether it holds pods by their addresses, whatever their namespace is.
    pub(super) fn has_blocks(&self) -> bool {
        match &self.of {
            PeersOf::Addresses(_) | PeersOf::Excluded { .. } | PeersOf::Outside => false,
            PeersOf::Endpoints(named) => named.values().any(|targets| !targets.blocks.is_empty()),
            PeersOf::Decided(_) | PeersOf::Known => true,
        }
    }

    /// Whether it holds addresses of nodes that their labels select.
    pub(super) fn names_nodes(&self) -> bool {
        match &self.of {
            PeersOf::Addresses(_)
            | PeersOf::Excluded { .. }
            | PeersOf::Endpoints(_)
            | PeersOf::Known
            | PeersOf::Outside => false,
            PeersOf::Decided(decided) => decided.names_nodes(),
        }
    }

    /// Whether it holds learned addresses of domain names.
    pub(super) fn is_learned(&self) -> bool {
        matches!(&self.of, PeersOf::Decided(decided) if decided.is_learned())
    }

    /// Whether it depends on the domain names that were learned for an address.
    pub(super) fn depends_on_names(&self) -> bool {
        matches!(self.of, PeersOf::Decided(DecisionSet { of: DecidedBy::Learned(..) | DecidedBy::NamedPorts(..), .. }))
    }

    /// Whether it may hold addresses that no pod has.
    pub(super) fn reaches_beyond_pods(&self) -> bool {
        matches!(self.of, PeersOf::Decided(_) | PeersOf::Known)
    }

    /// The keys that the set must hold for this address of the pod.
    pub(super) fn wanted(&self, address: IpAddr, pod: &Pod, namespace: Option<&Labels>) -> Vec<Key> {
        let selected = |pods: &BTreeSet<PodPeer>| pods.iter().any(|peer| peer.selects(pod, namespace));
        match &self.of {
            PeersOf::Addresses(pods) if selected(pods) => vec![address_key(address)],
            PeersOf::Addresses(_) => vec![],
            PeersOf::Excluded { base, variants } => {
                let excluded = base.selects(pod, namespace) && !selected(variants);
                if excluded { vec![address_key(address)] } else { vec![] }
            }
            PeersOf::Endpoints(named) => {
                let resolved = |((name, protocol), targets): (&(Arc<str>, Protocol), &NamedTargets)| {
                    let number = pod.resolve(name, *protocol).filter(|_| targets.contain(address, pod, namespace))?;
                    Some(endpoint_key(address, *protocol, number))
                };
                named.iter().filter_map(resolved).collect()
            }
            PeersOf::Decided(_) | PeersOf::Known | PeersOf::Outside => vec![],
        }
    }

    /// The peers that select remote sets. Such peers have no named ports.
    pub(super) fn reaching(&self, families: &LabelFamilies) -> BTreeSet<PodPeer> {
        match &self.of {
            PeersOf::Addresses(pods) => pods.iter().filter(|peer| peer.reaches_remote(families)).cloned().collect(),
            PeersOf::Excluded { base, variants: _ } => {
                Some(base).filter(|base| base.reaches_remote(families)).cloned().into_iter().collect()
            }
            PeersOf::Endpoints(_) | PeersOf::Decided(_) | PeersOf::Known | PeersOf::Outside => BTreeSet::new(),
        }
    }

    /// True unless a requirement excludes an address in these remote sets, at least one of which a peer selects.
    pub(super) fn keeps_remote(&self, remote: &[&RemoteLabels]) -> bool {
        match &self.of {
            PeersOf::Addresses(_) | PeersOf::Endpoints(_) | PeersOf::Decided(_) | PeersOf::Known | PeersOf::Outside => {
                true
            }
            PeersOf::Excluded { base: _, variants } => {
                !remote.iter().any(|set| variants.iter().any(|variant| variant.selects_remote(set)))
            }
        }
    }

    /// The keys that the set currently holds for the address.
    pub(super) fn held(&self, address: IpAddr, elements: &Elements) -> Vec<Key> {
        match &self.of {
            PeersOf::Addresses(_) | PeersOf::Excluded { .. } | PeersOf::Known => {
                Some(address_key(address)).filter(|key| elements.contains(key)).into_iter().collect()
            }
            PeersOf::Outside => vec![],
            PeersOf::Decided(DecisionSet {
                of: DecidedBy::Base(_) | DecidedBy::Own(..) | DecidedBy::Learned(..),
                ..
            }) => Some(address_key(address)).filter(|key| elements.contains(key)).into_iter().collect(),
            PeersOf::Endpoints(_) | PeersOf::Decided(DecisionSet { of: DecidedBy::NamedPorts(..), .. }) => {
                let first = endpoint_key(address, Protocol::Tcp, 0);
                let of_address = |key: &Key| matches!(key, Key::Three(a, ..) if *a == Datum::from(address));
                elements.starting_at(first).map(|(key, _)| key).take_while(of_address).collect()
            }
        }
    }
}

/// The first of an address is that of [`Protocol::Tcp`] and port 0.
fn endpoint_key(address: IpAddr, protocol: Protocol, port: u16) -> Key {
    Key::Three(Datum::from(address), Datum::Protocol(protocol), Datum::Port(port))
}
