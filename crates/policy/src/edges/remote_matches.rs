//! Index of the remote sets that the peers of rules select.
//!
//! Only peers that require the cluster label can select any ([`PodPeer::reaches_remote`]). A set is included while it
//! has an address that no pod of this cluster has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use nft::Family;

use super::peer_index::Matches;
use super::workloads::{Families, bit};
use crate::peers::PodPeer;
use crate::remote::RemoteSet;
use crate::{Changed, ClusterState, Direction};

#[derive(Debug, Clone, Default)]
pub(super) struct RemoteMatches {
    /// For every included set, the families of its addresses that no pod of this cluster has.
    families: BTreeMap<Arc<RemoteSet>, Families>,
    /// For each peer that can select remote sets, the sets that it selects.
    by_peer: BTreeMap<u32, BTreeSet<Arc<RemoteSet>>>,
}

/// Workloads, with the direction in which they are governed, whose edges with a set may have changed.
pub(super) type TouchedSets = BTreeSet<(Direction, u32, Arc<RemoteSet>)>;

impl RemoteMatches {
    /// Updates the sets for the state; all of them the first time. Peers that rules started to name in the same delta
    /// are added afterwards.
    pub(super) fn follow(
        &mut self,
        state: &ClusterState,
        changed: &Changed,
        begins: bool,
        matches: &Matches,
    ) -> TouchedSets {
        let mut touched = TouchedSets::new();
        if changed.families {
            self.touch_all(matches, &mut touched);
            self.by_peer.clear();
            for (number, peer) in matches.pod_peers() {
                self.add_peer(number, peer, state);
            }
            self.touch_all(matches, &mut touched);
        }
        let mut sets = BTreeSet::new();
        if begins {
            sets.extend(state.remote_sets().map(|(set, _)| set));
        }
        sets.extend(&changed.remote_sets);
        // The owner of an address may have changed.
        let addresses = changed.addresses.iter().map(|noted| noted.address);
        sets.extend(addresses.flat_map(|address| state.remote().with(address)).map(|(set, _)| set));
        for set in sets {
            self.follow_set(set, state, matches, &mut touched);
        }
        touched
    }

    fn follow_set(&mut self, set: &RemoteSet, state: &ClusterState, matches: &Matches, touched: &mut TouchedSets) {
        let now = families_of(set, state);
        let known = self.families.get_key_value(set).map(|(set, families)| (set.clone(), *families));
        if now == known.as_ref().map_or(0, |(_, families)| *families) {
            return;
        }
        let set = known.map_or_else(|| Arc::new(set.clone()), |(set, _)| set);
        let seen = state.remote().seen(&set).filter(|_| now != 0);
        for (peer, selected) in &mut self.by_peer {
            let was_selected = selected.remove(&set);
            let is_selected = seen.is_some_and(|seen| matches.pod_peer(*peer).is_some_and(|p| p.selects_remote(seen)));
            if is_selected {
                selected.insert(set.clone());
            }
            if was_selected || is_selected {
                touch(*peer, &set, matches, touched);
            }
        }
        match now {
            0 => self.families.remove(&set),
            families => self.families.insert(set, families),
        };
    }

    fn touch_all(&self, matches: &Matches, touched: &mut TouchedSets) {
        for (peer, selected) in &self.by_peer {
            selected.iter().for_each(|set| touch(*peer, set, matches, touched));
        }
    }

    /// Adds a peer that no rule named before.
    pub(super) fn add_peer(&mut self, number: u32, peer: &PodPeer, state: &ClusterState) {
        if peer.reaches_remote(state.remote().families()) {
            let is_selected = |set: &&Arc<RemoteSet>| selects(peer, set, state);
            let selected = self.families.keys().filter(is_selected).cloned().collect();
            self.by_peer.insert(number, selected);
        }
    }

    /// Removes a peer that no rule names any more.
    pub(super) fn remove_peer(&mut self, number: u32) {
        self.by_peer.remove(&number);
    }

    /// The sets among these that peers select, with the workloads whose policies name the peers.
    pub(super) fn users_of(&self, sets: &BTreeSet<&RemoteSet>, matches: &Matches) -> TouchedSets {
        let mut users = TouchedSets::new();
        for (peer, selected) in self.by_peer.iter().filter(|_| !sets.is_empty()) {
            for set in sets.iter().filter_map(|set| selected.get(*set)) {
                touch(*peer, set, matches, &mut users);
            }
        }
        users
    }

    /// The sets that the peer selects.
    pub(super) fn selected_by(&self, peer: u32) -> impl Iterator<Item = &Arc<RemoteSet>> {
        self.by_peer.get(&peer).into_iter().flatten()
    }

    pub(super) fn selects(&self, peer: u32, set: &RemoteSet) -> bool {
        self.by_peer.get(&peer).is_some_and(|selected| selected.contains(set))
    }

    /// Empty for a set that is not included.
    pub(super) fn families(&self, set: &RemoteSet) -> Families {
        self.families.get(set).copied().unwrap_or_default()
    }

    /// Whether no peer selects any set.
    pub(super) fn is_empty(&self) -> bool {
        self.families.is_empty() || self.by_peer.is_empty()
    }
}

fn selects(peer: &PodPeer, set: &RemoteSet, state: &ClusterState) -> bool {
    state.remote().seen(set).is_some_and(|seen| peer.selects_remote(seen))
}

fn touch(peer: u32, set: &Arc<RemoteSet>, matches: &Matches, touched: &mut TouchedSets) {
    for direction in Direction::BOTH {
        touched.extend(matches.users(peer, direction).map(|workload| (direction, workload, set.clone())));
    }
}

/// The families of the set's addresses that no pod of this cluster has.
fn families_of(set: &RemoteSet, state: &ClusterState) -> Families {
    let Some(addresses) = state.remote().addresses_of(set) else { return 0 };
    // IPv4 addresses sort first.
    let first_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let is_remote = |address: &IpAddr| state.holder(*address).is_none();
    let v4 = addresses.range(..first_v6).any(is_remote).then_some(bit(Family::V4));
    let v6 = addresses.range(first_v6..).any(is_remote).then_some(bit(Family::V6));
    v4.unwrap_or_default() | v6.unwrap_or_default()
}
