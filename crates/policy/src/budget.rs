//! Budget of the set elements that a policy may use.
//!
//! Every distinct pod selector of a policy may need a set with every pod of the cluster, so a policy of some 60 kB
//! could fill the kernel with millions of elements. A policy is limited by the total number of pods that its selectors
//! match. A policy beyond the limit is denied and reported; it is never enforced in part.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::peers::PodPeer;
use crate::translate::MOST_VARIANTS;
use crate::{ClusterState, Diagnostic, Direction, Kind, Labels, ObjectName, Peer, Peers, Pod, Policy, Severity};

/// Matches of pods that every policy may have: a small cluster needs no limit that grows with it, and so many elements
/// are committed within some 100 ms.
const MATCHES_AT_LEAST: usize = 16_384;

/// Matches that a policy may have per pod of the cluster. A policy with too few peers to exceed this is not counted,
/// which is almost every policy.
const MATCHES_PER_POD: usize = 8;

/// The policies that could exceed the budget, and their current matches.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Budgets(BTreeMap<ObjectName, Account>);

#[derive(Debug, Clone, PartialEq)]
struct Account {
    written: Arc<Policy>,
    /// The positive parts of its peers, with the number of sets that each may need.
    bases: Vec<(PodPeer, usize)>,
    /// Pods that the bases match, each counted once per set that may contain it.
    matches: usize,
    denied: bool,
}

/// A policy whose effect changed.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) name: ObjectName,
    pub(crate) effective: Arc<Policy>,
}

impl Budgets {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The policy as written, if it is counted.
    pub(crate) fn written(&self, name: &ObjectName) -> Option<&Arc<Policy>> {
        self.0.get(name).map(|account| &account.written)
    }

    /// Adds a policy, which is in effect as written.
    pub(crate) fn add(&mut self, policy: &Arc<Policy>, state: &ClusterState) {
        let bases = bases(policy);
        if bases.iter().map(|(_, sets)| sets).sum::<usize>() > MATCHES_PER_POD {
            let matches = count(&bases, state);
            let account = Account { written: policy.clone(), bases, matches, denied: false };
            self.0.insert(policy.name.clone(), account);
        }
    }

    pub(crate) fn remove(&mut self, name: &ObjectName) {
        self.0.remove(name);
    }

    /// Counts an added pod.
    pub(crate) fn add_pod(&mut self, pod: &Pod, namespace: Option<&Labels>) {
        for account in self.0.values_mut() {
            account.matches += account.matches_of(pod, namespace);
        }
    }

    /// Discounts a removed pod. `namespace` are the labels of its namespace when the pod was counted.
    pub(crate) fn remove_pod(&mut self, pod: &Pod, namespace: Option<&Labels>) {
        for account in self.0.values_mut() {
            account.matches -= account.matches_of(pod, namespace);
        }
    }

    /// Recounts all matches, after labels of namespaces changed.
    pub(crate) fn recount(&mut self, state: &ClusterState) {
        for account in self.0.values_mut() {
            account.matches = count(&account.bases, state);
        }
    }

    /// Denies exactly the policies that exceed the budget.
    pub(crate) fn balance(&mut self, pods: usize) -> Vec<Switch> {
        let budget = MATCHES_AT_LEAST.max(pods.saturating_mul(MATCHES_PER_POD));
        let mut switched = Vec::new();
        for (name, account) in &mut self.0 {
            let denied = account.matches > budget;
            if denied != account.denied {
                account.denied = denied;
                let effective = if denied { Arc::new(account.as_denied()) } else { account.written.clone() };
                switched.push(Switch { name: name.clone(), effective });
            }
        }
        switched
    }
}

impl Account {
    fn matches_of(&self, pod: &Pod, namespace: Option<&Labels>) -> usize {
        if !may_have_address(pod) {
            return 0;
        }
        self.bases.iter().filter(|(base, _)| base.selects(pod, namespace)).map(|(_, sets)| sets).sum()
    }

    /// The policy without rules: it isolates its pods and allows nothing.
    fn as_denied(&self) -> Policy {
        let mut policy = Policy::clone(&self.written);
        for rules in [&mut policy.ingress, &mut policy.egress].into_iter().flatten() {
            rules.clear();
        }
        policy.problems.push(Diagnostic {
            severity: Severity::Error,
            kind: Kind::NetworkPolicy,
            object: policy.name.clone(),
            field: "spec".into(),
            message: format!(
                "exceeds the budget of a policy: its {} distinct pod selectors match more pods in total than \
                 {MATCHES_PER_POD} per pod of the cluster (at least {MATCHES_AT_LEAST}); the policy allows nothing",
                self.bases.len()
            ),
        });
        policy
    }
}

/// Pods without an address are in no set.
fn may_have_address(pod: &Pod) -> bool {
    !pod.finished && !pod.host_network
}

fn bases(policy: &Policy) -> Vec<(PodPeer, usize)> {
    let rules = Direction::BOTH.into_iter().flat_map(|direction| policy.rules(direction).unwrap_or(&[]));
    let listed = rules.flat_map(|rule| match &rule.peers {
        Peers::Any => &[][..],
        Peers::Of(peers) => peers,
    });
    let pods = listed.filter_map(|peer| match peer {
        Peer::Pods { namespaces, pods } => Some(PodPeer::of(namespaces, pods, &policy.name.namespace)),
        Peer::Block(_) => None,
    });
    let mut variants: BTreeMap<PodPeer, std::collections::BTreeSet<PodPeer>> = BTreeMap::new();
    for peer in pods {
        variants.entry(peer.base()).or_default().insert(peer);
    }
    variants.into_iter().map(|(base, variants)| (base, variants.len().min(MOST_VARIANTS))).collect()
}

fn count(bases: &[(PodPeer, usize)], state: &ClusterState) -> usize {
    let members = |base: &PodPeer| base.members(state).filter(|pod| may_have_address(pod)).count();
    bases.iter().map(|(base, sets)| sets * members(base)).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Change, Changed, check, lower};

    fn pod(number: usize) -> Change {
        let object = json!({
            "metadata": {"namespace": "shop", "name": format!("p{number}"), "labels": {"a": "1", "b": "1", "c": "1"}},
            "status": {"podIP": format!("10.1.{}.{}", number / 250, number % 250)},
        });
        Change::Set(lower(Kind::Pod, &object).unwrap())
    }

    fn policy(selectors: usize) -> Value {
        // Each of them matches every pod.
        let selector = |n: usize| {
            let or = |key: &str, n: usize| json!({"key": key, "operator": "In", "values": ["1", format!("v{n}")]});
            json!({"podSelector": {"matchExpressions": [or("a", n), or("b", n)]}})
        };
        let from: Vec<Value> = (0..selectors).map(selector).collect();
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "wide"},
            "spec": {"podSelector": {}, "ingress": [{"from": from}]},
        })
    }

    fn is_denied(state: &ClusterState) -> bool {
        let policy = state.policy(&ObjectName::new("shop", "wide")).unwrap();
        let reported = check(state).iter().any(|problem| problem.message.starts_with("exceeds the budget"));
        assert_eq!(policy.ingress.as_ref().unwrap().is_empty(), reported);
        reported
    }

    #[test]
    fn policy_over_budget_is_denied_until_pods_removed() {
        let mut state = ClusterState::new();
        state.apply(Change::Set(lower(Kind::Namespace, &json!({"metadata": {"name": "shop"}})).unwrap()));
        let wide = lower(Kind::NetworkPolicy, &policy(400)).unwrap();
        state.apply(Change::Set(wide.clone()));
        let fits = MATCHES_AT_LEAST / 400;
        (0..fits).for_each(|n| assert!(state.apply(pod(n)).policies.is_empty()));
        assert!(!is_denied(&state));
        let changed: Changed = state.apply(pod(fits));
        assert!(is_denied(&state) && !changed.policies.is_empty() && changed.problems);
        assert!(!state.apply(Change::Set(wide)).any(), "the same object again");
        state.apply(Change::Remove(Kind::Pod, ObjectName::new("shop", "p0")));
        assert!(!is_denied(&state));
        state.apply(pod(0));
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &policy(300)).unwrap()));
        assert!(!is_denied(&state));
    }

    #[test]
    fn budget_accounts_equal_those_after_fresh_start() {
        let objects = [
            Change::Set(lower(Kind::Namespace, &json!({"metadata": {"name": "shop"}})).unwrap()),
            Change::Set(lower(Kind::NetworkPolicy, &policy(400)).unwrap()),
        ];
        let pods = || (0..60).map(pod);
        let state_of = |changes: Vec<Change>| {
            let mut state = ClusterState::new();
            changes.into_iter().for_each(|change| {
                state.apply(change);
            });
            state
        };
        let first = state_of(objects.iter().cloned().chain(pods()).collect());
        assert!(is_denied(&first));
        assert_eq!(first, state_of(pods().chain(objects.iter().rev().cloned()).collect()));
    }
}
