//! Terms: the ports that the policies of a class of pods allow in one direction, per peer, over all tiers.

mod other_end;
mod policy_terms;
mod tier_rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::declared_lines::TierRuleName;
use super::ports::FlowPorts;
use crate::{ClusterPolicy, Direction, DomainPattern, ObjectName, Pod, Policy, RuleAction, Selection, Tier};
pub(super) use other_end::{OtherEnd, PeerTerm, PodEnd};
pub(super) use policy_terms::PolicyTerms;
use tier_rules::MatchedTraffic;
pub(super) use tier_rules::TierRule;

/// Peers are numbers of the peer index.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClassTerms {
    /// The NetworkPolicies, sorted by name.
    pub(super) by: Arc<[ObjectName]>,
    /// The ClusterNetworkPolicies with rules for the direction, in the order of evaluation.
    pub(super) cluster_policies: Arc<[(Tier, Arc<str>)]>,
    admin: Vec<TierRule>,
    /// Of the NetworkPolicies. `None` if they leave the class to the Baseline tier.
    pub(super) policies: Option<PolicyTerms>,
    /// Empty where NetworkPolicies decide.
    baseline: Vec<TierRule>,
    /// Allowed with every pod of a known namespace that no peer names.
    by_default: FlowPorts,
    is_free: bool,
    /// Some rule of a cluster policy accepts.
    accepts: bool,
}

/// The policies that select a class in a direction.
pub(super) struct ClassPolicies {
    pub(super) policies: Vec<Arc<Policy>>,
    /// In the order of evaluation.
    pub(super) cluster_policies: Vec<(Arc<ClusterPolicy>, Selection)>,
}

impl ClassTerms {
    /// The terms of these policies, which select the pod. An unreadable pod is denied everything.
    pub(super) fn of(
        direction: Direction,
        selecting: &ClassPolicies,
        pod: &Pod,
        mut number: impl FnMut(PeerTerm) -> u32,
    ) -> ClassTerms {
        let ClassPolicies { policies, cluster_policies } = selecting;
        let is_isolated = pod.unreadable || !policies.is_empty();
        let mut rules = |tier| {
            let of_tier = cluster_policies.iter().filter(|(policy, _)| policy.tier == tier);
            let rules =
                of_tier.flat_map(|(p, selection)| TierRule::of_policy(p, *selection, direction, pod, &mut number));
            rules.collect::<Vec<TierRule>>()
        };
        let admin = rules(Tier::Admin);
        let baseline = if is_isolated { vec![] } else { rules(Tier::Baseline) };
        let mut terms = ClassTerms {
            by: policies.iter().map(|policy| policy.name.clone()).collect(),
            cluster_policies: cluster_policies.iter().map(|(p, _)| (p.tier, p.name.name.clone())).collect(),
            admin,
            policies: is_isolated.then(|| PolicyTerms::of(direction, policies, pod, number)),
            baseline,
            by_default: FlowPorts::none(),
            is_free: false,
            accepts: false,
        };
        let accepts = terms.rules().any(|rule| rule.action() == RuleAction::Accept);
        terms.accepts = accepts;
        terms.by_default = terms.allow(OtherEnd::Unnamed { ordinary: true });
        terms.is_free =
            terms.by_default.is_everything() && terms.allow(OtherEnd::Unnamed { ordinary: false }).is_everything();
        terms
    }

    /// The indexed peers in these terms, without duplicates.
    pub(super) fn mentioned(&self) -> BTreeSet<u32> {
        let of_rules = self.rules().flat_map(TierRule::mentioned);
        let of_policies = self.policies.iter().flat_map(PolicyTerms::mentioned);
        of_rules.chain(of_policies).collect()
    }

    /// The rules of ClusterNetworkPolicies.
    pub(super) fn rules(&self) -> impl Iterator<Item = &TierRule> {
        self.admin.iter().chain(&self.baseline)
    }

    /// Whether rules of ClusterNetworkPolicies depend on addresses of no pod.
    pub(super) fn names_addresses(&self) -> bool {
        self.rules().any(TierRule::names_addresses)
    }

    /// The ports that rules accept to addresses of domain names, without those that an earlier rule decides for all
    /// addresses outside.
    pub(super) fn allowed_to_names(&self, all_outside: OtherEnd<'_>) -> BTreeMap<DomainPattern, FlowPorts> {
        let (mut allowed, mut decided) = (BTreeMap::new(), FlowPorts::none());
        for rule in &self.admin {
            let ports = rule.ports_of_names(all_outside).difference(&decided);
            for name in rule.names() {
                let sum = allowed.entry(name.clone()).or_insert_with(FlowPorts::none);
                *sum = sum.union(&ports);
            }
            let MatchedTraffic { certain, possible } = rule.matched(all_outside);
            decided = decided.union(&certain).union(&possible);
        }
        allowed
    }

    /// Ports allowed with any pod of a known namespace that no peer names.
    pub(super) fn by_default(&self) -> &FlowPorts {
        &self.by_default
    }

    /// Whether everything is allowed with every pod that no peer names.
    pub(super) fn is_free(&self) -> bool {
        self.is_free
    }

    /// Ports allowed with the other end.
    pub(super) fn allow(&self, other: OtherEnd<'_>) -> FlowPorts {
        let of_policies = |policies: &PolicyTerms| match other {
            OtherEnd::Pods(pods) => policies.allow(pods),
            OtherEnd::Unnamed { ordinary: true } => policies.by_default(),
            OtherEnd::Unnamed { ordinary: false } => policies.any.clone(),
            OtherEnd::Outside { addresses, nodes: _ } => policies.allow_outside(addresses),
        };
        self.allow_with(other, of_policies)
    }

    /// Ports allowed with an address of remote pods that some of the peers of NetworkPolicies select.
    pub(super) fn allow_remote(&self, other: OtherEnd<'_>, is_selected_by: impl Fn(u32) -> bool) -> FlowPorts {
        self.allow_with(other, |policies| policies.allow_remote(&is_selected_by))
    }

    fn allow_with(&self, other: OtherEnd<'_>, of_policies: impl Fn(&PolicyTerms) -> FlowPorts) -> FlowPorts {
        if let (true, Some(policies)) = (self.admin.is_empty(), &self.policies) {
            return of_policies(policies);
        }
        let mut allowed = FlowPorts::none();
        let left = self.accepted(other, &mut |_, ports| allowed = allowed.union(&ports));
        match &self.policies {
            Some(_) if left.is_none() => allowed,
            Some(policies) => allowed.union(&of_policies(policies).intersection(&left)),
            None => allowed.union(&left),
        }
    }

    /// Calls `accept` with the rules of cluster policies that accept traffic with the other end. Their ports are
    /// disjoint. Returns the ports that are left to NetworkPolicies or, without any, allowed by default.
    fn accepted(&self, other: OtherEnd<'_>, accept: &mut impl FnMut(&TierRule, FlowPorts)) -> FlowPorts {
        let left = tier(&self.admin, other, FlowPorts::everything(), accept);
        tier(&self.baseline, other, left, accept)
    }

    /// The rules of cluster policies that accept traffic with the other end, with the ports.
    pub(super) fn accepting(&self, other: OtherEnd<'_>) -> Vec<(Arc<TierRuleName>, FlowPorts)> {
        let mut accepting = Vec::new();
        if self.accepts {
            self.accepted(other, &mut |rule, ports| accepting.push((rule.name.clone(), ports)));
        }
        accepting
    }

    /// Whether some rule of a cluster policy accepts.
    pub(super) fn accepts(&self) -> bool {
        self.accepts
    }
}

/// Evaluates the rules of a tier for the ports. Returns those that continue with the next tier.
fn tier(
    rules: &[TierRule],
    other: OtherEnd<'_>,
    ports: FlowPorts,
    accept: &mut impl FnMut(&TierRule, FlowPorts),
) -> FlowPorts {
    let (mut undecided, mut passed) = (ports, FlowPorts::none());
    for rule in rules {
        if undecided.is_none() {
            break;
        }
        let MatchedTraffic { certain, possible } = rule.matched(other);
        let hit = certain.intersection(&undecided);
        undecided = undecided.difference(&certain).difference(&possible);
        match rule.action() {
            RuleAction::Accept if hit.is_none() => {}
            RuleAction::Accept => accept(rule, hit),
            RuleAction::Pass => passed = passed.union(&hit),
            RuleAction::Deny => {}
        }
    }
    passed.union(&undecided)
}
