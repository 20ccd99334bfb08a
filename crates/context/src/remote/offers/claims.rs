//! Number of claims by set and address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use policy::ObjectName;

use super::{Claim, Doubt};
use crate::remote::limits::{Amounts, ClusterLimits, Excess};

#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Counts are positive, sets not empty.
    sets: BTreeMap<ObjectName, BTreeMap<IpAddr, usize>>,
    /// Over all sets.
    addresses: BTreeMap<IpAddr, usize>,
    touched: BTreeSet<ObjectName>,
    /// Sum over all sets.
    offered: Amounts,
}

/// Sizes before a change.
pub(super) struct Sizes {
    /// Sets of two addresses or more.
    several: Vec<ObjectName>,
    addresses: BTreeSet<IpAddr>,
}

impl Claims {
    pub(super) fn add(&mut self, claim: &Claim) {
        if claim.addresses.is_empty() {
            return;
        }
        let set = self.sets.entry(claim.set.clone()).or_default();
        self.offered -= amounts(&claim.set, set);
        for address in &claim.addresses {
            *set.entry(*address).or_default() += 1;
            *self.addresses.entry(*address).or_default() += 1;
        }
        self.offered += amounts(&claim.set, set);
        self.touched.insert(claim.set.clone());
    }

    /// Removes claims, each of which was added before.
    pub(super) fn remove<'a>(&mut self, claims: impl IntoIterator<Item = &'a Claim>) {
        for claim in claims {
            let Some(set) = self.sets.get_mut(&claim.set) else { continue };
            self.offered -= amounts(&claim.set, set);
            for address in &claim.addresses {
                decrement(set, address);
                decrement(&mut self.addresses, address);
            }
            self.offered += amounts(&claim.set, set);
            if set.is_empty() {
                self.sets.remove(&claim.set);
            }
            self.touched.insert(claim.set.clone());
        }
    }

    pub(super) fn addresses(&self, set: &ObjectName) -> BTreeSet<IpAddr> {
        self.sets.get(set).into_iter().flat_map(|addresses| addresses.keys().copied()).collect()
    }

    pub(super) fn take_touched(&mut self) -> BTreeSet<ObjectName> {
        std::mem::take(&mut self.touched)
    }

    /// Size of all sets.
    pub(super) fn offered(&self) -> Amounts {
        self.offered
    }

    /// The sets that exceed the limits.
    pub(super) fn excess(&self, limits: ClusterLimits) -> Excess {
        match self.offered.fits(limits) {
            true => Excess::default(),
            false => Excess::of(self.sets.iter().map(|(set, addresses)| (set, addresses.len())), limits),
        }
    }

    pub(super) fn sizes(&self) -> Sizes {
        let several = self.sets.iter().filter(|(_, addresses)| addresses.len() > 1).map(|(set, _)| set.clone());
        Sizes { several: several.collect(), addresses: self.addresses.keys().copied().collect() }
    }

    /// Detects a loss that is large enough to be suspicious.
    pub(super) fn doubt(&self, before: &Sizes) -> Option<Doubt> {
        let emptied = before.several.iter().filter(|set| !self.sets.contains_key(set)).count();
        let lost = before.addresses.iter().filter(|address| !self.addresses.contains_key(address)).count();
        let doubt = Doubt { before: before.addresses.len(), lost, emptied };
        (emptied > 0 || lost * 2 > doubt.before).then_some(doubt)
    }
}

/// A set without addresses has size zero.
fn amounts(set: &ObjectName, addresses: &BTreeMap<IpAddr, usize>) -> Amounts {
    if addresses.is_empty() { Amounts::default() } else { Amounts::of_set(set, addresses.len()) }
}

fn decrement(counts: &mut BTreeMap<IpAddr, usize>, address: &IpAddr) {
    if let Some(count) = counts.get_mut(address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(address);
        }
    }
}
