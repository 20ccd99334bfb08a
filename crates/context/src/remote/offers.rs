//! The offers of one cluster: the addresses of its labelled pods, counted per set.
//!
//! An address is in a set while a claim exists: of a pod, of a pod that only a suspicious list removed (withheld), or
//! of the remembered state. The module is a function of its inputs, without a clock.

mod claims;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use policy::remote::LabelPrefix;
use policy::{ObjectName, Pod};

use super::config::Rules;
use super::limits::{Amounts, Excess};
use claims::Claims;

/// The claim of a pod: its addresses, for one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub set: ObjectName,
    pub addresses: Vec<IpAddr>,
    /// The addresses are those of a node.
    pub host_network: bool,
}

/// The claims of a cluster.
#[derive(Debug)]
pub struct Offers {
    rules: Rules,
    views: BTreeMap<LabelPrefix, View>,
    claims: Claims,
    /// Sets that exceed the limits, as of the last [`Offers::take_touched`].
    excess: Excess,
}

/// The pods with the label of one family.
#[derive(Debug, Default)]
struct View {
    pods: HashMap<ObjectName, Claim>,
    /// Claims that a suspicious list removed, until the next list confirms it. By pod, since an event of the watch for
    /// a pod removes its entry.
    withheld: HashMap<ObjectName, Claim>,
    /// Claims from before this process started.
    remembered: Vec<Claim>,
    /// A list was received.
    listed: bool,
    /// The last list was suspicious.
    is_doubtful: bool,
}

/// A suspicious removal by a list, until another list confirms it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Addresses of the cluster before, and how many would be removed.
    pub before: usize,
    pub lost: usize,
    /// Sets of two addresses or more that would become empty.
    pub emptied: usize,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Doubt { before, lost, emptied } = self;
        write!(f, "a list would remove {lost} of {before} addresses and empty {emptied} sets with several addresses")
    }
}

impl Offers {
    /// A cluster without a known state.
    pub fn new(rules: Rules, prefixes: impl IntoIterator<Item = LabelPrefix>) -> Offers {
        let views = prefixes.into_iter().map(|prefix| (prefix, View::default())).collect();
        Offers { rules, views, claims: Claims::default(), excess: Excess::default() }
    }

    /// Restores remembered claims, except of sets that are no longer accepted, or of families that are no longer
    /// configured.
    pub fn remember(&mut self, prefix: &LabelPrefix, claims: impl IntoIterator<Item = Claim>) {
        let Some(view) = self.views.get_mut(prefix) else { return };
        for claim in claims {
            if self.rules.accepts(&claim.set) && (self.rules.host_network || !claim.host_network) {
                self.claims.add(&claim);
                view.remembered.push(claim);
            }
        }
    }

    /// Upserts a pod, on an event of the watch.
    pub fn set(&mut self, prefix: &LabelPrefix, pod: &Pod) {
        let claim = self.claim(prefix, pod);
        let Some(view) = self.views.get_mut(prefix) else { return };
        let before = match claim {
            Some(claim) => {
                self.claims.add(&claim);
                view.pods.insert(pod.name.clone(), claim)
            }
            None => view.pods.remove(&pod.name),
        };
        self.claims.remove(before.iter().chain(&view.withheld.remove(&pod.name)));
    }

    /// Removes a pod, on an event of the watch: it was deleted, or lost the label.
    pub fn remove(&mut self, prefix: &LabelPrefix, pod: &ObjectName) {
        let Some(view) = self.views.get_mut(prefix) else { return };
        self.claims.remove(view.pods.remove(pod).iter().chain(&view.withheld.remove(pod)));
    }

    /// Applies a list of all pods with the label. Additions apply at once. So do removals, unless they empty a set of
    /// several addresses or remove more than half of the cluster's: a server that has temporarily lost its state sends
    /// such a list as well. Then all removals are withheld until the next list, which always applies.
    pub fn replace<'a>(&mut self, prefix: &LabelPrefix, pods: impl IntoIterator<Item = &'a Pod>) -> Option<Doubt> {
        let pods = pods.into_iter();
        let listed: HashMap<ObjectName, Claim> =
            pods.filter_map(|pod| Some((pod.name.clone(), self.claim(prefix, pod)?))).collect();
        let view = self.views.get_mut(prefix)?;
        let before = self.claims.sizes();
        for claim in listed.values() {
            self.claims.add(claim);
        }
        let pods = std::mem::replace(&mut view.pods, listed);
        self.claims.remove(pods.values());
        self.claims.remove(view.withheld.values().chain(&view.remembered));
        let doubt = self.claims.doubt(&before).filter(|_| !view.is_doubtful);
        view.listed = true;
        view.is_doubtful = doubt.is_some();
        if view.is_doubtful {
            // Nothing is withheld yet: a list after a suspicious one always applies.
            view.withheld = pods.into_iter().filter(|(name, claim)| view.pods.get(name) != Some(claim)).collect();
            for claim in view.withheld.values().chain(&view.remembered) {
                self.claims.add(claim);
            }
        } else {
            view.withheld = HashMap::new();
            view.remembered = Vec::new();
        }
        doubt
    }

    /// Whether every family was listed, so that the state is complete.
    pub fn is_listed(&self) -> bool {
        self.views.values().all(|view| view.listed)
    }

    /// Whether a suspicious list of the family awaits confirmation.
    pub fn doubts(&self, prefix: &LabelPrefix) -> bool {
        self.views.get(prefix).is_some_and(|view| view.is_doubtful)
    }

    /// The addresses of a set; empty if the set does not exist or exceeds the limits.
    pub fn addresses(&self, set: &ObjectName) -> BTreeSet<IpAddr> {
        if self.excess.sets.contains(set) { BTreeSet::new() } else { self.claims.addresses(set) }
    }

    /// Decides which sets exceed the limits, and returns the sets that may have changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<ObjectName> {
        let mut touched = self.claims.take_touched();
        if !touched.is_empty() {
            let excess = self.claims.excess(self.rules.limits);
            touched.extend(excess.sets.symmetric_difference(&self.excess.sets).cloned());
            self.excess = excess;
        }
        touched
    }

    /// Size of all sets, those that exceed the limits included.
    pub fn offered(&self) -> Amounts {
        self.claims.offered()
    }

    /// The sets that exceed the limits, as of the last [`Offers::take_touched`].
    pub fn excess(&self) -> &Excess {
        &self.excess
    }

    /// True if the offers exceed the limits.
    pub fn exceeds_limits(&self) -> bool {
        !self.claims.offered().fits(self.rules.limits)
    }

    /// State to save: all claims of each family, merged per set.
    pub fn memory(&self) -> BTreeMap<LabelPrefix, Vec<Claim>> {
        let of_view = |view: &View| {
            let mut sets: BTreeMap<(ObjectName, bool), BTreeSet<IpAddr>> = BTreeMap::new();
            for claim in view.pods.values().chain(view.withheld.values()).chain(&view.remembered) {
                sets.entry((claim.set.clone(), claim.host_network)).or_default().extend(&claim.addresses);
            }
            let claim = |((set, host_network), addresses): (_, BTreeSet<IpAddr>)| Claim {
                set,
                addresses: addresses.into_iter().collect(),
                host_network,
            };
            sets.into_iter().map(claim).collect()
        };
        self.views.iter().map(|(prefix, view)| (prefix.clone(), of_view(view))).collect()
    }

    /// The claim of the pod in the family. `None` if it has finished, is on its node's network (unless configured), is
    /// in a set that is not accepted, or is unreadable.
    fn claim(&self, prefix: &LabelPrefix, pod: &Pod) -> Option<Claim> {
        let name: &Arc<str> = pod.labels.get(&prefix.name_label()).filter(|name| !name.is_empty())?;
        let set = ObjectName { namespace: pod.name.namespace.clone(), name: name.clone() };
        let has_own = self.rules.host_network || !pod.host_network;
        let counts = !pod.finished && !pod.unreadable && has_own && self.rules.accepts(&set);
        let addresses: Vec<IpAddr> = pod.addresses.iter().collect();
        (counts && !addresses.is_empty()).then_some(Claim { set, addresses, host_network: pod.host_network })
    }
}
