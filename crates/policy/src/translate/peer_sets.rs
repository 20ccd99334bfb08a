//! The sets of pods' addresses that programs look at, kept up with the state.
//!
//! What such a set holds for an address depends on who has that address and on nothing else. So a change is carried out
//! by looking at the addresses that it is about, in the sets that may hold them: those of the namespaces that have to do
//! with the address, and those of no single namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Datum, Element, Elements, Family, Key, Name, Named, Protocol, Set};

use super::address_key;
use crate::peers::{NamedPeers, Namespaces, PodPeer, named_endpoints, pod_addresses};
use crate::{Changed, ClusterState, Labels, Pod};

/// What a set stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerSet {
    pub(super) family: Family,
    pub(super) of: PeersOf,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeersOf {
    /// The pods' addresses.
    Addresses(BTreeSet<PodPeer>),
    /// The pods' addresses, with the numbers of ports that they call by a name.
    Endpoints(NamedPeers),
}

/// What sets hold in one state, found with one look for the sets of both families.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<PeersOf, BTreeMap<Family, Elements>>);

impl Looks {
    /// Everything that the set holds.
    pub(super) fn elements(&mut self, set: &PeerSet, state: &ClusterState) -> Elements {
        if !self.0.contains_key(&set.of) {
            self.0.insert(set.of.clone(), set.of.elements(state));
        }
        self.0.get(&set.of).and_then(|found| found.get(&set.family)).cloned().unwrap_or_default()
    }
}

impl PeersOf {
    fn elements(&self, state: &ClusterState) -> BTreeMap<Family, Elements> {
        let mut found: BTreeMap<Family, Elements> = BTreeMap::new();
        let mut put = |address: IpAddr, key: Key| {
            found.entry(Family::of(address)).or_default().insert(key, Element::default());
        };
        match self {
            PeersOf::Addresses(pods) => pod_addresses(pods, state).into_iter().for_each(|a| put(a, address_key(a))),
            PeersOf::Endpoints(named) => {
                for ((name, protocol), pods) in named {
                    for (address, number) in named_endpoints(pods, name, *protocol, state) {
                        put(address, endpoint_key(address, *protocol, number));
                    }
                }
            }
        }
        found
    }
}

impl PeerSet {
    fn peers(&self) -> impl Iterator<Item = &PodPeer> {
        let (addresses, named) = match &self.of {
            PeersOf::Addresses(pods) => (Some(pods), None),
            PeersOf::Endpoints(named) => (None, Some(named)),
        };
        addresses.into_iter().flatten().chain(named.into_iter().flat_map(BTreeMap::values).flatten())
    }

    /// What it has to hold for the address that the pod has.
    fn wanted(&self, address: IpAddr, pod: &Pod, namespace: Option<&Labels>) -> Vec<Key> {
        let selected = |pods: &BTreeSet<PodPeer>| pods.iter().any(|peer| peer.selects(pod, namespace));
        match &self.of {
            PeersOf::Addresses(pods) if selected(pods) => vec![address_key(address)],
            PeersOf::Addresses(_) => vec![],
            PeersOf::Endpoints(named) => {
                let resolved = |((name, protocol), pods): (&(Arc<str>, Protocol), &BTreeSet<PodPeer>)| {
                    let number = pod.resolve(name, *protocol).filter(|_| selected(pods))?;
                    Some(endpoint_key(address, *protocol, number))
                };
                named.iter().filter_map(resolved).collect()
            }
        }
    }

    /// What it holds for the address.
    fn held(&self, address: IpAddr, elements: &Elements) -> Vec<Key> {
        match &self.of {
            PeersOf::Addresses(_) => {
                Some(address_key(address)).filter(|key| elements.contains(key)).into_iter().collect()
            }
            PeersOf::Endpoints(_) => {
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

/// All of them, found by whom they may hold.
#[derive(Debug, Clone, Default)]
pub(super) struct PeerSets {
    sets: BTreeMap<Name, PeerSet>,
    by_namespace: BTreeMap<Arc<str>, BTreeSet<Name>>,
    anywhere: BTreeSet<Name>,
}

impl PeerSets {
    pub(super) fn get(&self, name: &Name) -> Option<&PeerSet> {
        self.sets.get(name)
    }

    pub(super) fn add(&mut self, name: Name, set: PeerSet) {
        for peer in set.peers() {
            match &peer.namespaces {
                Namespaces::Named(namespace) => {
                    self.by_namespace.entry(namespace.clone()).or_default().insert(name.clone());
                }
                Namespaces::Selected(_) | Namespaces::Every => {
                    self.anywhere.insert(name.clone());
                }
            }
        }
        self.sets.insert(name, set);
    }

    pub(super) fn remove(&mut self, name: &Name) {
        let Some(set) = self.sets.remove(name) else { return };
        self.anywhere.remove(name);
        for peer in set.peers() {
            if let Namespaces::Named(namespace) = &peer.namespaces
                && let Some(names) = self.by_namespace.get_mut(namespace)
            {
                names.remove(name);
                if names.is_empty() {
                    self.by_namespace.remove(namespace);
                }
            }
        }
    }

    /// Carries out what changed in the sets.
    pub(super) fn follow(&self, sets: &mut Named<Set>, state: &ClusterState, changed: &Changed) {
        if self.sets.is_empty() {
            return;
        }
        let mut concerned: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
        for (address, namespace) in &changed.addresses {
            concerned.entry(*address).or_default().insert(namespace);
        }
        for (address, namespaces) in &mut concerned {
            namespaces.extend(state.contenders(*address).map(|pod| &*pod.namespace));
            let of_namespaces = namespaces.iter().filter_map(|namespace| self.by_namespace.get(*namespace)).flatten();
            let names: BTreeSet<&Name> = of_namespaces.chain(&self.anywhere).collect();
            self.settle(sets, state, *address, names);
        }
        for namespace in &changed.relabelled {
            for pod in state.pods_in(namespace) {
                for address in state.addresses_of(pod).filter(|address| !concerned.contains_key(address)) {
                    self.settle(sets, state, address, &self.anywhere);
                }
            }
        }
    }

    /// Makes the sets of these names hold what they have to for the address.
    fn settle<'a>(
        &self,
        sets: &mut Named<Set>,
        state: &ClusterState,
        address: IpAddr,
        names: impl IntoIterator<Item = &'a Name>,
    ) {
        let owner = state.owner(address);
        let labels = owner.and_then(|pod| state.namespace_labels(&pod.name.namespace));
        for name in names {
            let Some(of) = self.sets.get(name).filter(|of| of.family == Family::of(address)) else { continue };
            let Some(set) = sets.get(name) else { continue };
            let wanted = owner.map_or_else(Vec::new, |pod| of.wanted(address, pod, labels));
            let held = of.held(address, &set.elements);
            let gone: Vec<Key> = held.iter().filter(|key| !wanted.contains(key)).copied().collect();
            let come: Vec<Key> = wanted.into_iter().filter(|key| !held.contains(key)).collect();
            if gone.is_empty() && come.is_empty() {
                continue;
            }
            let elements = &mut Arc::make_mut(&mut sets[name]).elements;
            gone.iter().for_each(|key| {
                elements.remove(key);
            });
            elements.extend(come.into_iter().map(|key| (key, Element::default())));
        }
    }
}
