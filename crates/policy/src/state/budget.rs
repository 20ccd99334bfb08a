//! Budget of the set elements that a policy may use.
//!
//! Every distinct pod selector of a policy may need a set with every pod of the cluster, so a policy of some 60 kB
//! could fill the kernel with millions of elements. A policy is limited by the total number of pods that its selectors
//! match, and so are all policies of a namespace together, since one user may create many small ones. The same holds for
//! ports: pods that different policies select, or that give a named port different numbers, have programs of their own,
//! each with a verdict map of all its ports. A policy beyond a limit is denied and reported; it is never enforced in part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::peers::PodPeer;
use crate::translate::MOST_VARIANTS;
use crate::{
    ClusterState, Diagnostic, Direction, Kind, Labels, ObjectName, Peer, Peers, Pod, Policy, PortMatch, Ports, Severity,
};

/// Matches of pods that every policy may have: a small cluster needs no limit that grows with it, and so many elements
/// are committed within some 100 ms.
const MATCHES_AT_LEAST: usize = 16_384;

/// Matches that a policy may have per pod of the cluster. A policy with too few peers to exceed this is not counted,
/// which is almost every policy.
const MATCHES_PER_POD: usize = 8;

/// The same for the policies of a namespace together: so many elements are committed within about a second. Selectors
/// that several of them have in common count once.
const MATCHES_OF_NAMESPACE_AT_LEAST: usize = 131_072;
const MATCHES_OF_NAMESPACE_PER_POD: usize = 64;

/// Distinct ports, each with its protocol, that a policy may list in one direction. A range, and a named port, is one.
const PORTS_OF_POLICY: usize = 1_024;

/// Distinct ports that the policies of a namespace may list together in one direction. A node with 110 pods, each with a
/// program of its own, has half a million elements then, which are committed within about a second. Every policy counts,
/// however few ports it lists: 2,000 policies of 16 ports would be 3.5 million elements there.
const PORTS_OF_NAMESPACE: usize = 4_096;

/// The policies that could exceed a budget, and their current matches.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Budgets {
    accounts: BTreeMap<ObjectName, Account>,
    /// Demand of the policies of each namespace, as if they had nothing in common.
    demands: BTreeMap<Arc<str>, Demand>,
    /// Namespaces whose policies changed since the last [`balance`](Budgets::balance), if ports could exceed the budget.
    changed_ports: BTreeSet<Arc<str>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Demand {
    /// Sets of pods.
    sets: usize,
    ports: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct Account {
    written: Arc<Policy>,
    /// The positive parts of its peers.
    bases: Vec<Base>,
    ports: usize,
    /// Whether its ports, with those of policies that list fewer, exceed the budget of the namespace.
    exceeds_ports_of_namespace: bool,
    denied: Option<ExceededLimit>,
}

#[derive(Debug, Clone, PartialEq)]
struct Base {
    peer: PodPeer,
    /// The number of sets that it may need.
    sets: usize,
    members: usize,
}

/// The limit that a policy exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExceededLimit {
    MatchesOfPolicy,
    MatchesOfNamespace,
    PortsOfPolicy,
    PortsOfNamespace,
}

/// A policy whose effect changed.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) name: ObjectName,
    pub(crate) effective: Arc<Policy>,
}

impl Budgets {
    pub(crate) fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// The policy as written, if it is counted.
    pub(crate) fn written(&self, name: &ObjectName) -> Option<&Arc<Policy>> {
        self.accounts.get(name).map(|account| &account.written)
    }

    /// Adds a policy, which is in effect as written, and is not in the state yet.
    pub(crate) fn add(&mut self, policy: &Arc<Policy>, state: &ClusterState) {
        let demand = Demand::of(policy);
        if demand.is_none() {
            return;
        }
        let namespace = &policy.name.namespace;
        let of_namespace = self.demands.entry(namespace.clone()).or_default();
        let exceeded_before = of_namespace.could_exceed();
        of_namespace.add(demand);
        if of_namespace.ports > PORTS_OF_NAMESPACE {
            self.changed_ports.insert(namespace.clone());
        }
        if of_namespace.could_exceed() {
            let others = state.policies_in(namespace).filter(|_| !exceeded_before);
            for other in others.filter(|other| !Demand::of(other).is_none()) {
                self.accounts.entry(other.name.clone()).or_insert_with(|| Account::new(other, state));
            }
        } else if !demand.could_exceed_alone() {
            return;
        }
        self.accounts.insert(policy.name.clone(), Account::new(policy, state));
    }

    /// Removes a policy, which is in effect as given.
    pub(crate) fn remove(&mut self, policy: &Policy) {
        let account = self.accounts.remove(&policy.name);
        let demand = account.map_or_else(|| Demand::of(policy), |account| Demand::of(&account.written));
        let namespace = &policy.name.namespace;
        if let Some(of_namespace) = self.demands.get_mut(namespace) {
            if of_namespace.ports > PORTS_OF_NAMESPACE {
                self.changed_ports.insert(namespace.clone());
            }
            of_namespace.remove(demand);
            if of_namespace.is_none() {
                self.demands.remove(namespace);
            }
        }
    }

    /// Counts an added pod.
    pub(crate) fn add_pod(&mut self, pod: &Pod, namespace: Option<&Labels>) {
        self.matching(pod, namespace).for_each(|base| base.members += 1);
    }

    /// Discounts a removed pod. `namespace` are the labels of its namespace when the pod was counted.
    pub(crate) fn remove_pod(&mut self, pod: &Pod, namespace: Option<&Labels>) {
        self.matching(pod, namespace).for_each(|base| base.members -= 1);
    }

    fn matching<'a>(&'a mut self, pod: &'a Pod, namespace: Option<&'a Labels>) -> impl Iterator<Item = &'a mut Base> {
        let accounts = self.accounts.values_mut().filter(|_| may_have_address(pod));
        accounts.flat_map(|account| &mut account.bases).filter(move |base| base.peer.selects(pod, namespace))
    }

    /// Recounts all matches, after labels of namespaces changed.
    pub(crate) fn recount(&mut self, state: &ClusterState) {
        for base in self.accounts.values_mut().flat_map(|account| &mut account.bases) {
            base.members = members(&base.peer, state);
        }
    }

    /// Denies exactly the policies that exceed a budget.
    pub(crate) fn balance(&mut self, pods: usize) -> Vec<Switch> {
        for namespace in std::mem::take(&mut self.changed_ports) {
            self.recount_ports(&namespace);
        }
        let of_policy = MATCHES_AT_LEAST.max(pods.saturating_mul(MATCHES_PER_POD));
        let exceeds_own = |account: &Account| account.matches() > of_policy;
        let exceeding = self.exceeding_together(pods, exceeds_own);
        let mut switched = Vec::new();
        for (name, account) in &mut self.accounts {
            let denied = if exceeds_own(account) {
                Some(ExceededLimit::MatchesOfPolicy)
            } else if account.ports > PORTS_OF_POLICY {
                Some(ExceededLimit::PortsOfPolicy)
            } else if exceeding.contains(name) {
                Some(ExceededLimit::MatchesOfNamespace)
            } else {
                account.exceeds_ports_of_namespace.then_some(ExceededLimit::PortsOfNamespace)
            };
            if denied != account.denied {
                account.denied = denied;
                let effective = match denied {
                    Some(exceeded) => Arc::new(account.as_denied(exceeded)),
                    None => account.written.clone(),
                };
                switched.push(Switch { name: name.clone(), effective });
            }
        }
        let demands = &self.demands;
        let could_exceed = |name: &ObjectName| demands.get(&name.namespace).is_some_and(Demand::could_exceed);
        self.accounts.retain(|name, account| {
            Demand { sets: account.sets(), ports: account.ports }.could_exceed_alone() || could_exceed(name)
        });
        switched
    }

    /// Finds the policies of a namespace whose ports exceed its budget: those with the most ports.
    fn recount_ports(&mut self, namespace: &Arc<str>) {
        let could_exceed = self.demands.get(namespace).is_some_and(|demand| demand.ports > PORTS_OF_NAMESPACE);
        let mut accounts: Vec<&mut Account> = self.accounts_of(namespace).collect();
        accounts.sort_by_key(|account| account.ports);
        let mut counted = Direction::BOTH.map(|direction| (direction, BTreeSet::<PortMatch>::new()));
        for account in accounts {
            account.exceeds_ports_of_namespace = false;
            if !could_exceed || account.ports > PORTS_OF_POLICY {
                continue;
            }
            let written = account.written.clone();
            let exceeds = |(direction, counted): &(Direction, BTreeSet<PortMatch>)| {
                let additional =
                    ports(&written, *direction).into_iter().filter(|port| !counted.contains(*port)).count();
                counted.len() + additional > PORTS_OF_NAMESPACE
            };
            if counted.iter().any(exceeds) {
                account.exceeds_ports_of_namespace = true;
                continue;
            }
            for (direction, counted) in &mut counted {
                counted.extend(ports(&written, *direction).into_iter().cloned());
            }
        }
    }

    fn accounts_of(&mut self, namespace: &Arc<str>) -> impl Iterator<Item = &mut Account> {
        let first = ObjectName::new(namespace, "");
        let accounts = self.accounts.range_mut(first..).take_while(move |(name, _)| name.namespace == *namespace);
        accounts.map(|(_, account)| account)
    }

    /// The policies beyond the budgets of their namespaces: those with the most matches.
    fn exceeding_together(&self, pods: usize, exceeds_own: impl Fn(&Account) -> bool) -> BTreeSet<ObjectName> {
        let budget = MATCHES_OF_NAMESPACE_AT_LEAST.max(pods.saturating_mul(MATCHES_OF_NAMESPACE_PER_POD));
        let mut found = BTreeSet::new();
        for (namespace, _) in self.demands.iter().filter(|(_, demand)| demand.sets > MATCHES_OF_NAMESPACE_PER_POD) {
            let first = ObjectName::new(namespace, "");
            let accounts = self.accounts.range(first..).take_while(|(name, _)| name.namespace == *namespace);
            let mut accounts: Vec<(usize, &ObjectName, &Account)> = accounts
                .filter(|(_, account)| !exceeds_own(account))
                .map(|(name, account)| (account.matches(), name, account))
                .collect();
            if accounts.iter().map(|(matches, ..)| matches).sum::<usize>() <= budget {
                continue;
            }
            accounts.sort_by_key(|(matches, name, _)| (*matches, *name));
            let mut counted: BTreeMap<&PodPeer, usize> = BTreeMap::new();
            let mut total = 0;
            for (_, name, account) in accounts {
                let additional = |base: &Base| {
                    base.members * base.sets.saturating_sub(counted.get(&base.peer).copied().unwrap_or_default())
                };
                let additional = account.bases.iter().map(additional).sum::<usize>();
                if total + additional > budget {
                    found.insert(name.clone());
                    continue;
                }
                total += additional;
                for base in &account.bases {
                    let sets = counted.entry(&base.peer).or_default();
                    *sets = base.sets.max(*sets);
                }
            }
        }
        found
    }
}

impl Demand {
    fn of(policy: &Policy) -> Demand {
        Demand { sets: sets_of(policy), ports: most_ports(policy) }
    }

    fn is_none(&self) -> bool {
        *self == Demand::default()
    }

    fn add(&mut self, other: Demand) {
        self.sets += other.sets;
        self.ports += other.ports;
    }

    fn remove(&mut self, other: Demand) {
        self.sets -= other.sets;
        self.ports -= other.ports;
    }

    /// Whether policies with this demand together could exceed the budget of a namespace.
    fn could_exceed(&self) -> bool {
        self.sets > MATCHES_OF_NAMESPACE_PER_POD || self.ports > PORTS_OF_NAMESPACE
    }

    /// Whether a policy with this demand could exceed the budget of a policy.
    fn could_exceed_alone(&self) -> bool {
        self.sets > MATCHES_PER_POD || self.ports > PORTS_OF_POLICY
    }
}

impl Account {
    /// An account of a policy that is in effect as written.
    fn new(policy: &Arc<Policy>, state: &ClusterState) -> Account {
        let base = |(peer, sets)| Base { members: members(&peer, state), peer, sets };
        Account {
            written: policy.clone(),
            bases: bases(policy).into_iter().map(base).collect(),
            ports: most_ports(policy),
            exceeds_ports_of_namespace: false,
            denied: None,
        }
    }

    /// Pods that the bases match, each counted once per set that may contain it.
    fn matches(&self) -> usize {
        self.bases.iter().map(|base| base.sets * base.members).sum()
    }

    fn sets(&self) -> usize {
        self.bases.iter().map(|base| base.sets).sum()
    }

    /// The policy without rules: it isolates its pods and allows nothing.
    fn as_denied(&self, exceeded: ExceededLimit) -> Policy {
        let mut policy = Policy::clone(&self.written);
        for rules in [&mut policy.ingress, &mut policy.egress].into_iter().flatten() {
            rules.clear();
        }
        policy.problems.push(Diagnostic {
            severity: Severity::Error,
            kind: Kind::NetworkPolicy,
            object: policy.name.clone(),
            field: "spec".into(),
            message: match exceeded {
                ExceededLimit::MatchesOfPolicy => format!(
                    "exceeds the budget of a policy: its {} distinct pod selectors match more pods in total than \
                     {MATCHES_PER_POD} per pod of the cluster (at least {MATCHES_AT_LEAST}); the policy allows nothing",
                    self.bases.len()
                ),
                ExceededLimit::MatchesOfNamespace => format!(
                    "exceeds the budget of a namespace: the distinct pod selectors of its policies match more pods in \
                     total than {MATCHES_OF_NAMESPACE_PER_POD} per pod of the cluster (at least \
                     {MATCHES_OF_NAMESPACE_AT_LEAST}), and this policy is among those that match most; it allows nothing"
                ),
                ExceededLimit::PortsOfPolicy => format!(
                    "exceeds the budget of a policy: it lists {} distinct ports in one direction, more than \
                     {PORTS_OF_POLICY}; list ranges (endPort) instead; the policy allows nothing",
                    self.ports
                ),
                ExceededLimit::PortsOfNamespace => format!(
                    "exceeds the budget of a namespace: its policies list more than {PORTS_OF_NAMESPACE} distinct ports in \
                     one direction together, and this policy is among those with the most; it allows nothing"
                ),
            },
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
    let mut variants: BTreeMap<PodPeer, BTreeSet<PodPeer>> = BTreeMap::new();
    for peer in pods {
        variants.entry(peer.base()).or_default().insert(peer);
    }
    variants.into_iter().map(|(base, variants)| (base, variants.len().min(MOST_VARIANTS))).collect()
}

fn sets_of(policy: &Policy) -> usize {
    bases(policy).iter().map(|(_, sets)| sets).sum()
}

/// The distinct ports of the rules in a direction.
fn ports(policy: &Policy, direction: Direction) -> BTreeSet<&PortMatch> {
    let listed = policy.rules(direction).unwrap_or(&[]).iter().map(|rule| match &rule.ports {
        Ports::Any => &[][..],
        Ports::Of(ports) => ports,
    });
    listed.flatten().collect()
}

/// The number of distinct ports in the direction that has more of them.
fn most_ports(policy: &Policy) -> usize {
    Direction::BOTH.into_iter().map(|direction| ports(policy, direction).len()).max().unwrap_or(0)
}

fn members(peer: &PodPeer, state: &ClusterState) -> usize {
    peer.members(state).filter(|pod| may_have_address(pod)).count()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Change, StateDelta, check, lower};

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
        let changed: StateDelta = state.apply(pod(fits));
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

    /// Each with one selector that matches every pod, and a port of its own.
    fn small(number: usize) -> Change {
        let or = |key: &str| json!({"key": key, "operator": "In", "values": ["1", format!("v{number}")]});
        let from = json!([{"podSelector": {"matchExpressions": [or("a"), or("b")]}}]);
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": format!("small-{number:04}")},
            "spec": {"podSelector": {}, "ingress": [{"from": from, "ports": [{"port": 1000 + number}]}]},
        });
        Change::Set(lower(Kind::NetworkPolicy, &object).unwrap())
    }

    fn denied_small(state: &ClusterState) -> Vec<String> {
        let denied = state.policies_in("shop").filter(|policy| policy.ingress.as_ref().unwrap().is_empty());
        denied.map(|policy| policy.name.name.to_string()).collect()
    }

    #[test]
    fn many_small_policies_share_budget_of_namespace() {
        const PODS: usize = 300;
        let fits = MATCHES_OF_NAMESPACE_AT_LEAST / PODS;
        let mut state = ClusterState::new();
        state.apply(Change::Set(lower(Kind::Namespace, &json!({"metadata": {"name": "shop"}})).unwrap()));
        (0..fits + 3).for_each(|n| drop(state.apply(small(n))));
        let mut local = lower(
            Kind::Pod,
            &json!({
                "metadata": {"namespace": "shop", "name": "p0", "labels": {"a": "1", "b": "1"}},
                "spec": {"nodeName": "node-a"}, "status": {"podIP": "10.1.0.0"},
            }),
        );
        state.apply(Change::Set(local.unwrap()));
        (1..PODS).for_each(|n| drop(state.apply(pod(n))));
        let beyond: Vec<String> = (fits..fits + 3).map(|n| format!("small-{n:04}")).collect();
        assert_eq!(denied_small(&state), beyond);
        let layout = crate::Layout::for_table("ringfence").unwrap();
        let sets = crate::translate(&state, "node-a", &layout).ruleset.in_first_generation().sets;
        let elements: usize = sets.values().map(|set| set.elements.len()).sum();
        assert!(elements < MATCHES_OF_NAMESPACE_AT_LEAST + 1_000, "{elements}");

        state.apply(Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", "small-0000")));
        assert_eq!(denied_small(&state), beyond[1..]);
        local = lower(
            Kind::NetworkPolicy,
            &json!({
                "apiVersion": "networking.k8s.io/v1", "metadata": {"namespace": "shop", "name": "same"},
                "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["1", "v1"]},
                    {"key": "b", "operator": "In", "values": ["1", "v1"]},
                ]}}]}]},
            }),
        );
        state.apply(Change::Set(local.unwrap()));
        assert_eq!(denied_small(&state), beyond[1..], "a selector that another policy has costs nothing");
        (1..fits).for_each(|n| {
            state.apply(Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", &format!("small-{n:04}"))));
        });
        assert_eq!((denied_small(&state), state.budgets_are_empty()), (vec![], true));
    }

    /// Selects the pods with a label of its own, and lists these ports.
    fn with_ports(name: &str, ports: std::ops::Range<usize>) -> Change {
        let ports: Vec<Value> = ports.map(|port| json!({"port": port})).collect();
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"podSelector": {"matchLabels": {name: "1"}}, "ingress": [{"ports": ports}]},
        });
        Change::Set(lower(Kind::NetworkPolicy, &object).unwrap())
    }

    #[test]
    fn policy_with_too_many_ports_is_denied() {
        let mut state = ClusterState::new();
        state.apply(with_ports("wide", 1..PORTS_OF_POLICY + 1));
        assert!(!is_denied(&state));
        state.apply(with_ports("wide", 1..PORTS_OF_POLICY + 2));
        assert!(is_denied(&state));
        state.apply(with_ports("wide", 1..PORTS_OF_POLICY + 1));
        assert!(!is_denied(&state) && state.budgets_are_empty());
    }

    #[test]
    fn policies_share_ports_budget_of_namespace() {
        let mut state = ClusterState::new();
        let name = |n: usize| format!("small-{n:04}");
        let policies = |count: usize| (0..count).map(|n| with_ports(&name(n), 1 + 512 * n..513 + 512 * n));
        let fits = PORTS_OF_NAMESPACE / 512;
        policies(fits).for_each(|policy| drop(state.apply(policy)));
        assert_eq!(denied_small(&state), [""; 0]);
        state.apply(with_ports("wide", 1..600));
        assert!(!is_denied(&state), "others list these ports");
        state.apply(with_ports("wide", 4_000..5_000));
        assert!(is_denied(&state) && denied_small(&state).len() == 1, "the one with the most ports");
        let mut reversed = ClusterState::new();
        reversed.apply(with_ports("wide", 4_000..5_000));
        policies(fits).rev().for_each(|policy| drop(reversed.apply(policy)));
        assert_eq!(state, reversed);

        state.apply(Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", &name(0))));
        state.apply(Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", &name(1))));
        assert!(!is_denied(&state));
        (2..fits)
            .for_each(|n| drop(state.apply(Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", &name(n))))));
        assert_eq!((denied_small(&state), state.budgets_are_empty()), (vec![], true));
    }

    /// Those with few ports are in force before those with many.
    #[test]
    fn policies_with_few_ports_share_budget_of_namespace() {
        const FEW: usize = 16;
        let mut state = ClusterState::new();
        let name = |n: usize| format!("small-{n:04}");
        let policies = |count: usize| (0..count).map(|n| with_ports(&name(n), 1 + FEW * n..1 + FEW * (n + 1)));
        let fits = PORTS_OF_NAMESPACE / FEW;
        state.apply(with_ports("wide", 50_000..50_000 + 2 * FEW));
        policies(fits).for_each(|policy| drop(state.apply(policy)));
        assert!(is_denied(&state) && denied_small(&state).len() == 1, "the one with the most ports");
        policies(fits + 3).skip(fits).for_each(|policy| drop(state.apply(policy)));
        let beyond: Vec<String> = (fits..fits + 3).map(name).chain(["wide".into()]).collect();
        assert_eq!(denied_small(&state), beyond);

        let mut reversed = ClusterState::new();
        policies(fits + 3).collect::<Vec<Change>>().into_iter().rev().for_each(|policy| drop(reversed.apply(policy)));
        reversed.apply(with_ports("wide", 50_000..50_000 + 2 * FEW));
        assert_eq!(state, reversed);

        for name in (0..fits + 3).map(name).chain(["wide".into()]) {
            state.apply(Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", &name)));
        }
        assert!(state.budgets_are_empty());
    }
}
