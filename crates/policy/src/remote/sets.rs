//! Index of remote sets and their addresses, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{LabelFamilies, LabelPrefix, RemoteChange, RemoteLabels, RemoteSet};

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RemoteSets {
    families: LabelFamilies,
    /// Sets are never empty.
    sets: BTreeMap<RemoteSet, Members>,
    /// The sets of each address, never empty.
    by_address: BTreeMap<IpAddr, BTreeSet<RemoteSet>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Members {
    seen: RemoteLabels,
    addresses: BTreeSet<IpAddr>,
}

/// The delta of a change.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MembershipDelta {
    /// Addresses whose sets changed.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Sets whose addresses changed.
    pub(crate) sets: BTreeSet<RemoteSet>,
}

impl RemoteSets {
    pub(crate) fn apply(&mut self, change: RemoteChange) -> MembershipDelta {
        let mut moved = MembershipDelta::default();
        match change {
            RemoteChange::Update { set, adds, removes } => {
                let adds = canonical(&adds);
                let removes = &canonical(&removes) - &adds;
                moved.addresses.extend(removes.into_iter().filter(|address| self.remove(&set, *address)));
                moved.addresses.extend(adds.into_iter().filter(|address| self.insert(&set, *address)));
                if !moved.addresses.is_empty() {
                    moved.sets.insert(set);
                }
            }
            RemoteChange::Replace(sets) => {
                let mut wanted: BTreeMap<RemoteSet, BTreeSet<IpAddr>> = BTreeMap::new();
                for (set, addresses) in sets {
                    wanted.entry(set).or_default().extend(canonical(&addresses));
                }
                let none = BTreeSet::new();
                self.retain(|set, address| wanted.get(set).unwrap_or(&none).contains(&address), &mut moved);
                for (set, addresses) in &wanted {
                    for address in addresses {
                        if self.insert(set, *address) {
                            moved.record(set, *address);
                        }
                    }
                }
            }
            RemoteChange::RemoveCluster(cluster) => self.retain(|set, _| set.cluster != cluster, &mut moved),
        }
        moved
    }

    fn retain(&mut self, stays: impl Fn(&RemoteSet, IpAddr) -> bool, moved: &mut MembershipDelta) {
        let all = self.sets.iter().flat_map(|(set, members)| members.addresses.iter().map(move |a| (set, *a)));
        let gone: Vec<(RemoteSet, IpAddr)> =
            all.filter(|(set, address)| !stays(set, *address)).map(|(set, address)| (set.clone(), address)).collect();
        for (set, address) in &gone {
            if self.remove(set, *address) {
                moved.record(set, *address);
            }
        }
    }

    /// Returns whether the address was added.
    fn insert(&mut self, set: &RemoteSet, address: IpAddr) -> bool {
        let new = || Members { seen: self.families.show(set), addresses: BTreeSet::new() };
        let given = self.sets.entry(set.clone()).or_insert_with(new).addresses.insert(address);
        if given {
            self.by_address.entry(address).or_default().insert(set.clone());
        }
        given
    }

    /// Returns whether the address was removed.
    fn remove(&mut self, set: &RemoteSet, address: IpAddr) -> bool {
        let Some(members) = self.sets.get_mut(set) else { return false };
        let taken = members.addresses.remove(&address);
        if members.addresses.is_empty() {
            self.sets.remove(set);
        }
        if let Some(sets) = self.by_address.get_mut(&address).filter(|_| taken) {
            sets.remove(set);
            if sets.is_empty() {
                self.by_address.remove(&address);
            }
        }
        taken
    }

    /// Returns whether the prefixes changed.
    pub(crate) fn set_prefixes(&mut self, prefixes: Vec<LabelPrefix>) -> bool {
        let families = LabelFamilies::of(prefixes);
        if families == self.families {
            return false;
        }
        self.families = families;
        for (set, members) in &mut self.sets {
            members.seen = self.families.show(set);
        }
        true
    }

    pub(crate) fn families(&self) -> &LabelFamilies {
        &self.families
    }

    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &LabelPrefix> {
        self.families.prefixes()
    }

    /// The sets with their labels and addresses, sorted by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RemoteSet, &RemoteLabels, &BTreeSet<IpAddr>)> {
        self.sets.iter().map(|(set, Members { seen, addresses })| (set, seen, addresses))
    }

    pub(crate) fn addresses_of(&self, set: &RemoteSet) -> Option<&BTreeSet<IpAddr>> {
        self.sets.get(set).map(|members| &members.addresses)
    }

    /// The labels of the set that selectors match; `None` for an unknown set.
    pub(crate) fn seen(&self, set: &RemoteSet) -> Option<&RemoteLabels> {
        self.sets.get(set).map(|members| &members.seen)
    }

    /// The sets that contain the address, sorted by name.
    pub(crate) fn with(&self, address: IpAddr) -> impl Iterator<Item = (&RemoteSet, &RemoteLabels)> {
        let sets = self.by_address.get(&address).into_iter().flatten();
        sets.filter_map(|set| Some((set, &self.sets.get(set)?.seen)))
    }

    /// Every address of a set.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.by_address.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.sets.len()
    }

    /// The number of addresses in at least one set.
    pub(crate) fn address_count(&self) -> usize {
        self.by_address.len()
    }
}

impl MembershipDelta {
    fn record(&mut self, set: &RemoteSet, address: IpAddr) {
        self.addresses.insert(address);
        if !self.sets.contains(set) {
            self.sets.insert(set.clone());
        }
    }
}

/// Converts IPv4-mapped IPv6 addresses to IPv4.
fn canonical(addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    addresses.iter().map(IpAddr::to_canonical).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn update(name: &str, adds: &[&str], removes: &[&str]) -> RemoteChange {
        let set = RemoteSet::new("east", "shop", name);
        RemoteChange::Update { set, adds: addresses(adds), removes: addresses(removes) }
    }

    fn names(sets: &RemoteSets, address: &str) -> Vec<String> {
        sets.with(address.parse().unwrap()).map(|(set, _)| set.name.to_string()).collect()
    }

    /// The delta with these addresses, and these changed sets of cluster `east`.
    fn moved(texts: &[&str], sets: &[&str]) -> MembershipDelta {
        let sets = sets.iter().map(|name| RemoteSet::new("east", "shop", name)).collect();
        MembershipDelta { addresses: addresses(texts).into_iter().collect(), sets }
    }

    #[test]
    fn change_reports_moved_addresses_and_their_sets_only() {
        let mut sets = RemoteSets::default();
        assert_eq!(sets.apply(update("web", &["10.9.0.1", "fd00::1"], &[])), moved(&["10.9.0.1", "fd00::1"], &["web"]));
        assert_eq!(sets.apply(update("web", &["10.9.0.1"], &["10.9.0.7"])), moved(&[], &[]));
        assert_eq!(
            sets.apply(update("api", &["10.9.0.1", "10.9.0.2"], &[])),
            moved(&["10.9.0.1", "10.9.0.2"], &["api"])
        );
        assert_eq!(names(&sets, "10.9.0.1"), ["api", "web"]);
        assert_eq!(sets.apply(update("web", &[], &["10.9.0.1"])), moved(&["10.9.0.1"], &["web"]));
        assert_eq!((names(&sets, "10.9.0.1"), sets.len(), sets.address_count()), (vec!["api".to_owned()], 2, 3));
        let all = vec![
            (RemoteSet::new("east", "shop", "web"), addresses(&["fd00::1", "10.9.0.2"])),
            (RemoteSet::new("east", "shop", "api"), addresses(&["10.9.0.2"])),
        ];
        assert_eq!(sets.apply(RemoteChange::Replace(all.clone())), moved(&["10.9.0.1", "10.9.0.2"], &["api", "web"]));
        assert_eq!(sets.apply(RemoteChange::Replace(all)), moved(&[], &[]));
        assert_eq!(sets.apply(RemoteChange::RemoveCluster("west".into())), moved(&[], &[]));
        assert_eq!(
            sets.apply(RemoteChange::RemoveCluster("east".into())),
            moved(&["fd00::1", "10.9.0.2"], &["api", "web"])
        );
        assert_eq!(sets, RemoteSets::default());
    }

    #[test]
    fn set_without_addresses_is_removed() {
        let mut sets = RemoteSets::default();
        sets.apply(update("web", &["10.9.0.1"], &[]));
        sets.apply(update("web", &[], &["10.9.0.1"]));
        sets.apply(RemoteChange::Replace(vec![(RemoteSet::new("east", "shop", "api"), vec![])]));
        assert_eq!(sets, RemoteSets::default());
    }

    #[test]
    fn mapped_address_is_canonical_and_add_beats_remove() {
        let mut sets = RemoteSets::default();
        sets.apply(update("web", &["::ffff:10.9.0.1"], &[]));
        assert_eq!(names(&sets, "10.9.0.1"), ["web"]);
        sets.apply(update("web", &["10.9.0.1"], &["::ffff:10.9.0.1"]));
        assert_eq!(names(&sets, "10.9.0.1"), ["web"]);
    }

    #[test]
    fn changed_prefixes_relabel_every_set() {
        let mut sets = RemoteSets::default();
        sets.apply(update("web", &["10.9.0.1"], &[]));
        assert!(!sets.set_prefixes(LabelPrefix::defaults()));
        assert!(sets.set_prefixes(vec!["example.com".parse().unwrap()]));
        let (_, seen, _) = sets.iter().next().unwrap();
        let shown = |labels: &crate::Labels| labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        let namespace = ["example.com/cluster=east", "example.com/namespace=shop"];
        assert_eq!(shown(&seen.namespace), namespace);
        assert_eq!(
            shown(&seen.pod),
            ["example.com/cluster=east", "example.com/name=web", "example.com/namespace=shop"]
        );
    }
}
