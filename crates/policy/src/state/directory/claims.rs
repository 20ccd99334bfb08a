//! Pods by the address that they claim.
//!
//! Almost every address belongs to one pod, and there are as many addresses as pods, so an entry needs no further
//! allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::state::btree_packing::pack;
use crate::{ClaimRank, ObjectName, Pod};

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Claims {
    v4: BTreeMap<Ipv4Addr, Claimants>,
    v6: BTreeMap<Ipv6Addr, Claimants>,
    /// Addresses with more than one claimant.
    several: BTreeSet<IpAddr>,
}

/// Never empty, most senior first, so that the order of events does not matter.
#[derive(Debug, Clone, PartialEq)]
enum Claimants {
    One(Arc<Pod>),
    Several(Box<Several>),
}

#[derive(Debug, Clone, PartialEq)]
struct Several(Vec<Arc<Pod>>);

impl Claims {
    /// Most senior first.
    pub(super) fn of(&self, address: IpAddr) -> &[Arc<Pod>] {
        let claimants = match address {
            IpAddr::V4(address) => self.v4.get(&address),
            IpAddr::V6(address) => self.v6.get(&address),
        };
        claimants.map_or(&[], Claimants::list)
    }

    /// Repacks the maps.
    pub(super) fn pack(&mut self) {
        pack(&mut self.v4);
        pack(&mut self.v6);
    }

    pub(super) fn has_several(&self, address: IpAddr) -> bool {
        self.several.contains(&address)
    }

    pub(super) fn add(&mut self, address: IpAddr, pod: &Arc<Pod>) {
        let claimants = match address {
            IpAddr::V4(address) => add(&mut self.v4, address, pod),
            IpAddr::V6(address) => add(&mut self.v6, address, pod),
        };
        self.record(address, claimants);
    }

    pub(super) fn remove(&mut self, address: IpAddr, name: &ObjectName) {
        let claimants = match address {
            IpAddr::V4(address) => remove(&mut self.v4, &address, name),
            IpAddr::V6(address) => remove(&mut self.v6, &address, name),
        };
        self.record(address, claimants);
    }

    fn record(&mut self, address: IpAddr, claimants: usize) {
        if claimants > 1 {
            self.several.insert(address);
        } else {
            self.several.remove(&address);
        }
    }
}

impl Claimants {
    fn list(&self) -> &[Arc<Pod>] {
        match self {
            Claimants::One(pod) => std::slice::from_ref(pod),
            Claimants::Several(several) => &several.0,
        }
    }

    /// `None` without pods.
    fn of(pods: &[Arc<Pod>]) -> Option<Claimants> {
        match pods {
            [] => None,
            [pod] => Some(Claimants::One(pod.clone())),
            several => Some(Claimants::Several(Box::new(Several(several.to_vec())))),
        }
    }
}

/// Returns the new number of claimants.
fn add<A: Ord>(claims: &mut BTreeMap<A, Claimants>, address: A, pod: &Arc<Pod>) -> usize {
    let mut pods = claims.get(&address).map_or_else(Vec::new, |claimants| claimants.list().to_vec());
    let place = pods.partition_point(|other| rank(other) > rank(pod));
    pods.insert(place, pod.clone());
    if let Some(claimants) = Claimants::of(&pods) {
        claims.insert(address, claimants);
    }
    pods.len()
}

/// Returns the new number of claimants.
fn remove<A: Ord>(claims: &mut BTreeMap<A, Claimants>, address: &A, name: &ObjectName) -> usize {
    let Some(known) = claims.get_mut(address) else { return 0 };
    let others: Vec<Arc<Pod>> = known.list().iter().filter(|pod| pod.name != *name).cloned().collect();
    match Claimants::of(&others) {
        Some(claimants) => *known = claimants,
        None => {
            claims.remove(address);
        }
    }
    others.len()
}

/// The state does not know which pods are ready.
fn rank(pod: &Pod) -> ClaimRank<'_> {
    ClaimRank::of(pod, true)
}
