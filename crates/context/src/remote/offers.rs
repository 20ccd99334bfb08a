//! What one cluster offers: the addresses of its labelled pods, counted per set.
//!
//! An address is in a set while anything claims it for the set. Pods claim; so does what a list is not believed to have
//! taken away, and what was known before this process began. It is a function of what it is told, and knows no clock.

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

/// What a pod offers: its addresses, to one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub set: ObjectName,
    pub addresses: Vec<IpAddr>,
    /// They are a node's.
    pub host_network: bool,
}

/// What a cluster offers, and why.
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
    /// What a list says is gone, and the next one has to say as well. By the pods that had it, of which each counts for
    /// itself once the watch tells of it.
    withheld: HashMap<ObjectName, Claim>,
    /// What was known when this process began.
    remembered: Vec<Claim>,
    /// There was a list.
    listed: bool,
    /// The last list is not believed in all.
    doubting: bool,
}

/// What a list takes away that is not believed until another one says the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Addresses of the cluster before, and how many of them would go.
    pub before: usize,
    pub lost: usize,
    /// Sets of two addresses or more of which none would stay.
    pub emptied: usize,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Doubt { before, lost, emptied } = self;
        write!(f, "a list would remove {lost} of {before} addresses and empty {emptied} sets with several addresses")
    }
}

impl Offers {
    /// Of a cluster that nothing is known of.
    pub fn new(rules: Rules, prefixes: impl IntoIterator<Item = LabelPrefix>) -> Offers {
        let views = prefixes.into_iter().map(|prefix| (prefix, View::default())).collect();
        Offers { rules, views, claims: Claims::default(), excess: Excess::default() }
    }

    /// Takes in what was known before. What is not accepted any more, or of a family that is not asked for, is not.
    pub fn remember(&mut self, prefix: &LabelPrefix, claims: impl IntoIterator<Item = Claim>) {
        let Some(view) = self.views.get_mut(prefix) else { return };
        for claim in claims {
            if self.rules.accepts(&claim.set) && (self.rules.host_network || !claim.host_network) {
                self.claims.add(&claim);
                view.remembered.push(claim);
            }
        }
    }

    /// The watch tells of a pod.
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
        self.claims.take(before.iter().chain(&view.withheld.remove(&pod.name)));
    }

    /// The watch tells that a pod is gone, or has the label no longer.
    pub fn remove(&mut self, prefix: &LabelPrefix, pod: &ObjectName) {
        let Some(view) = self.views.get_mut(prefix) else { return };
        self.claims.take(view.pods.remove(pod).iter().chain(&view.withheld.remove(pod)));
    }

    /// A list of all pods with the label. What it adds counts at once. What it takes away counts too, unless it empties a
    /// set of several addresses or takes more than half of the cluster's: a server that has lost its memory for a moment
    /// says so as well. Then all that it takes stays until the next list, whatever that one says.
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
        self.claims.take(pods.values());
        self.claims.take(view.withheld.values().chain(&view.remembered));
        let doubt = self.claims.doubt(&before).filter(|_| !view.doubting);
        view.listed = true;
        view.doubting = doubt.is_some();
        if view.doubting {
            // Nothing is withheld already: that would be another list that was not believed.
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

    /// Whether every family was listed, so that what is known is what there is.
    pub fn is_listed(&self) -> bool {
        self.views.values().all(|view| view.listed)
    }

    /// Whether a list of the family is waiting for another one that says the same.
    pub fn doubts(&self, prefix: &LabelPrefix) -> bool {
        self.views.get(prefix).is_some_and(|view| view.doubting)
    }

    /// The addresses of a set; none if there is no such set, or if it exceeds the limits.
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

    /// What all sets amount to, those that exceed the limits included.
    pub fn offered(&self) -> Amounts {
        self.claims.offered()
    }

    /// The sets that exceed the limits, as of the last [`Offers::take_touched`].
    pub fn excess(&self) -> &Excess {
        &self.excess
    }

    /// True if not everything that is offered can be admitted.
    pub fn exceeds_limits(&self) -> bool {
        !self.claims.offered().fits(self.rules.limits)
    }

    /// What to remember: of each family all that is claimed, one claim for a set.
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

    /// What the pod offers to the family. Nothing if it has finished, if it is on its node's network (unless that is asked
    /// for), if its set is not accepted, or if it is not understood.
    fn claim(&self, prefix: &LabelPrefix, pod: &Pod) -> Option<Claim> {
        let name: &Arc<str> = pod.labels.get(&prefix.name_label()).filter(|name| !name.is_empty())?;
        let set = ObjectName { namespace: pod.name.namespace.clone(), name: name.clone() };
        let has_own = self.rules.host_network || !pod.host_network;
        let counts = !pod.finished && !pod.unreadable && has_own && self.rules.accepts(&set);
        let addresses: Vec<IpAddr> = pod.addresses.iter().collect();
        (counts && !addresses.is_empty()).then_some(Claim { set, addresses, host_network: pod.host_network })
    }
}
