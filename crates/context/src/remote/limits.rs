//! Limits of the offers of one cluster, and the choice of sets that exceed them.
//!
//! Pod owners in the other cluster are not trusted, so the choice is a pure function of the offers: it does not depend
//! on the order of events or on restarts, and replicas agree. A set is admitted or left out as a whole; addresses are
//! never aggregated into prefixes, which would admit neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Add, AddAssign, Sub, SubAssign};

use policy::ObjectName;
use serde::Serialize;

/// Pods that are held for each admitted address, finished ones included, since a list contains them too.
const PODS_PER_ADDRESS: usize = 4;

/// Amounts that a cluster may offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterLimits(pub Amounts);

/// Size of sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    pub sets: usize,
    /// An address counts once for each of its sets.
    pub addresses: usize,
    /// Bytes of the namespaces and names of the sets.
    pub label_bytes: usize,
}

/// Sets with their numbers of addresses, by which they are sorted.
type SetSizes<'a> = Vec<(usize, &'a ObjectName)>;

/// Sets that exceed the limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excess {
    pub sets: BTreeSet<ObjectName>,
    pub amounts: Amounts,
}

impl ClusterLimits {
    /// Largest limits that can be configured: an agent fills the sets of its node's kernel with what is admitted.
    pub const MAX: ClusterLimits =
        ClusterLimits(Amounts { sets: 100_000, addresses: 1_000_000, label_bytes: 16 << 20 });

    /// Limit of pods with the label of one family. A longer list is refused as a whole, since the pods themselves take
    /// memory too.
    pub fn pods(&self) -> usize {
        self.0.addresses.saturating_mul(PODS_PER_ADDRESS)
    }
}

impl Default for ClusterLimits {
    /// A cluster of some ten thousand pods in both address families.
    fn default() -> ClusterLimits {
        ClusterLimits(Amounts { sets: 5_000, addresses: 50_000, label_bytes: 512 << 10 })
    }
}

impl Amounts {
    pub fn of_set(set: &ObjectName, addresses: usize) -> Amounts {
        Amounts { sets: 1, addresses, label_bytes: set.namespace.len() + set.name.len() }
    }

    pub fn fits(self, ClusterLimits(limits): ClusterLimits) -> bool {
        let Amounts { sets, addresses, label_bytes } = self;
        sets <= limits.sets && addresses <= limits.addresses && label_bytes <= limits.label_bytes
    }

    /// The largest fraction of a limit that is used, in units of 2^-32.
    fn share(self, ClusterLimits(limits): ClusterLimits) -> u128 {
        let part = |amount: usize, limit: usize| ((amount as u128) << 32) / (limit.max(1) as u128);
        let Amounts { sets, addresses, label_bytes } = self;
        part(sets, limits.sets).max(part(addresses, limits.addresses)).max(part(label_bytes, limits.label_bytes))
    }
}

impl Excess {
    /// Chooses the sets that do not fit, from all offered sets with their numbers of addresses.
    ///
    /// Namespaces are admitted from the smallest offer to the largest, and sets of a namespace from the fewest
    /// addresses, so that a namespace with an excessive offer loses its own sets before those of others. Each set that
    /// still fits is admitted.
    pub(super) fn of<'a>(offered: impl IntoIterator<Item = (&'a ObjectName, usize)>, limits: ClusterLimits) -> Excess {
        let mut namespaces: BTreeMap<&str, (Amounts, SetSizes<'a>)> = BTreeMap::new();
        for (set, addresses) in offered {
            let (amounts, sets) = namespaces.entry(&set.namespace).or_default();
            *amounts += Amounts::of_set(set, addresses);
            sets.push((addresses, set));
        }
        let mut by_share: Vec<(u128, &str, SetSizes<'a>)> =
            namespaces.into_iter().map(|(name, (amounts, sets))| (amounts.share(limits), name, sets)).collect();
        by_share.sort_unstable();
        let (mut admitted, mut excess) = (Amounts::default(), Excess::default());
        for (_, _, mut sets) in by_share {
            sets.sort_unstable();
            for (addresses, set) in sets {
                let amounts = Amounts::of_set(set, addresses);
                if (admitted + amounts).fits(limits) {
                    admitted += amounts;
                } else {
                    excess.amounts += amounts;
                    excess.sets.insert(set.clone());
                }
            }
        }
        excess
    }
}

impl Add for Amounts {
    type Output = Amounts;

    fn add(self, other: Amounts) -> Amounts {
        Amounts {
            sets: self.sets + other.sets,
            addresses: self.addresses + other.addresses,
            label_bytes: self.label_bytes + other.label_bytes,
        }
    }
}

impl Sub for Amounts {
    type Output = Amounts;

    fn sub(self, other: Amounts) -> Amounts {
        Amounts {
            sets: self.sets - other.sets,
            addresses: self.addresses - other.addresses,
            label_bytes: self.label_bytes - other.label_bytes,
        }
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Amounts) {
        *self = *self + other;
    }
}

impl SubAssign for Amounts {
    fn sub_assign(&mut self, other: Amounts) {
        *self = *self - other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(sets: usize, addresses: usize, label_bytes: usize) -> ClusterLimits {
        ClusterLimits(Amounts { sets, addresses, label_bytes })
    }

    /// The sets that are left out, as `namespace/name`.
    fn left_out(offered: &[(&str, usize)], limits: ClusterLimits) -> Vec<String> {
        let sets: Vec<(ObjectName, usize)> =
            offered.iter().map(|(name, addresses)| (name.parse().unwrap(), *addresses)).collect();
        let excess = Excess::of(sets.iter().map(|(set, addresses)| (set, *addresses)), limits);
        assert_eq!(excess.amounts.sets, excess.sets.len());
        excess.sets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn limits_admit_everything_that_fits_exactly() {
        let offered = [("shop/web", 3), ("shop/api", 2)];
        assert_eq!(left_out(&offered, limits(2, 5, 14)), [""; 0]);
        assert_eq!(left_out(&offered, limits(1, 5, 14)), ["shop/web"]);
        assert_eq!(left_out(&offered, limits(2, 4, 14)), ["shop/web"]);
        assert_eq!(left_out(&offered, limits(2, 5, 13)), ["shop/web"]);
        assert_eq!(left_out(&[], limits(1, 1, 1)), [""; 0]);
    }

    #[test]
    fn namespace_that_offers_most_loses_sets_first() {
        let offered = [("a/many-1", 40), ("a/many-2", 50), ("a/few", 1), ("team/web", 5), ("z/api", 4)];
        assert_eq!(left_out(&offered, limits(10, 60, 1_000)), ["a/many-2"]);
        assert_eq!(left_out(&offered, limits(10, 20, 1_000)), ["a/many-1", "a/many-2"]);
        assert_eq!(left_out(&offered, limits(2, 1_000, 1_000)), ["a/few", "a/many-1", "a/many-2"]);
    }

    #[test]
    fn set_too_large_alone_leaves_room_for_others() {
        assert_eq!(left_out(&[("a/huge", 100), ("b/web", 5), ("c/api", 9)], limits(9, 15, 99)), ["a/huge"]);
        assert_eq!(left_out(&[("a/1", 1), ("a/22", 7), ("a/333", 9)], limits(9, 10, 99)), ["a/333"]);
    }

    #[test]
    fn order_of_offers_changes_nothing() {
        let offered = [("a/x", 3), ("b/x", 3), ("b/y", 3), ("c/x", 6), ("d/x", 1)];
        let wanted = left_out(&offered, limits(4, 9, 99));
        for turn in 1..offered.len() {
            let mut turned = offered;
            turned.rotate_left(turn);
            assert_eq!(left_out(&turned, limits(4, 9, 99)), wanted);
        }
    }
}
