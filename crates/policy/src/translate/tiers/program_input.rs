//! The inputs of a program of cluster policies: which policies select the pod, and the programs around it.

use std::sync::Arc;

use ipnet::IpNet;
use nft::Name;

use crate::state::nodes::group_addresses;
use crate::translate::audit::AuditRole;
use crate::translate::program_job::resolve_named;
use crate::translate::roles::ChainRole;
use crate::translate::tier_rules::{OtherEnds, SelectingTierPolicy, TierRules};
use crate::translate::{Direction, NamedPorts, names};
use crate::{ClusterState, Enforcement, Labels, Node, ObjectName, Pod, Selection, Tier};

/// Where a program judges packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::translate) enum ProgramHook {
    /// The forward hook.
    Forward,
    /// The input hook, for flows of pods to their own node, which NetworkPolicies do not restrict.
    OwnNode,
}

/// The inputs of a program of cluster policies.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::translate) struct TierJob {
    pub(in crate::translate) place: ProgramHook,
    pub(in crate::translate) direction: Direction,
    pub(super) purpose: Purpose,
    /// In the order of evaluation.
    pub(super) admin: Vec<SelectingTierPolicy>,
    /// In the order of evaluation; empty for pods that NetworkPolicies isolate.
    pub(super) baseline: Vec<SelectingTierPolicy>,
    named: NamedPorts,
    /// The program of the pod's NetworkPolicies.
    pub(super) policies: Option<(AuditRole, Name)>,
    /// The labels of this node, for [`ProgramHook::OwnNode`]; `None` if they are unknown.
    own_labels: Option<Labels>,
    /// Addresses at which several pods of this node may receive.
    groups: Vec<IpNet>,
}

/// The purpose of a program's verdicts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Purpose {
    /// It decides, after this pending program.
    Decides(Option<Name>),
    /// It evaluates audited policies as if they were enforced.
    Pending,
}

/// The policies of both tiers that select a pod in a direction and can decide, in the order of evaluation. Those of the
/// Baseline tier are left out for an isolated pod.
struct SelectingTiers {
    admin: Vec<SelectingTierPolicy>,
    baseline: Vec<SelectingTierPolicy>,
}

impl SelectingTiers {
    fn of(
        state: &ClusterState,
        pod: &Pod,
        direction: Direction,
        includes: impl Fn(Enforcement) -> bool,
        is_isolated: bool,
    ) -> SelectingTiers {
        let selecting = |tier: Tier| {
            let policies = state.cluster_policies_for(pod, tier, direction);
            let included = policies.filter(|(policy, _)| includes(state.cluster_enforcement(policy)));
            let selecting = included.map(|(policy, selection)| SelectingTierPolicy {
                policy: policy.clone(),
                certain: selection == Selection::Yes,
            });
            selecting.filter(|selecting| selecting.decides(direction)).collect::<Vec<SelectingTierPolicy>>()
        };
        let baseline = if is_isolated { vec![] } else { selecting(Tier::Baseline) };
        SelectingTiers { admin: selecting(Tier::Admin), baseline }
    }

    fn are_same(&self, other: &SelectingTiers) -> bool {
        are_same(&self.admin, &other.admin) && are_same(&self.baseline, &other.baseline)
    }
}

fn are_same(some: &[SelectingTierPolicy], others: &[SelectingTierPolicy]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(a, b)| Arc::ptr_eq(&a.policy, &b.policy))
}

impl TierJob {
    /// `None` for a pod that no enforced cluster policy selects in the direction and that has no pending program.
    /// `policies` is the program of its NetworkPolicies.
    pub(in crate::translate) fn of(
        state: &ClusterState,
        own_node: Option<&Node>,
        pod: &Pod,
        direction: Direction,
        policies: Option<(AuditRole, Name)>,
        pending: Option<Name>,
    ) -> Option<TierJob> {
        let is_isolated = matches!(policies, Some((AuditRole::Enforced, _)));
        let is_enforced = |enforcement| enforcement == Enforcement::Enforce;
        let tiers = SelectingTiers::of(state, pod, direction, is_enforced, is_isolated);
        if tiers.admin.is_empty() && tiers.baseline.is_empty() && pending.is_none() {
            return None;
        }
        Some(TierJob { policies, ..TierJob::with(own_node, pod, direction, Purpose::Decides(pending), tiers) })
    }

    /// The pending program of the pod; `None` if audited policies would not change which cluster policies decide.
    /// `policies` is the role of its NetworkPolicies' program.
    pub(in crate::translate) fn pending(
        state: &ClusterState,
        own_node: Option<&Node>,
        pod: &Pod,
        direction: Direction,
        policies: Option<AuditRole>,
    ) -> Option<TierJob> {
        let is_enforced = |enforcement| enforcement == Enforcement::Enforce;
        let deciding = SelectingTiers::of(state, pod, direction, is_enforced, policies == Some(AuditRole::Enforced));
        let tiers = SelectingTiers::of(state, pod, direction, |_| true, policies.is_some());
        let differs = !pod.unreadable && !tiers.are_same(&deciding);
        differs.then(|| TierJob::with(own_node, pod, direction, Purpose::Pending, tiers))
    }

    fn with(
        own_node: Option<&Node>,
        pod: &Pod,
        direction: Direction,
        purpose: Purpose,
        tiers: SelectingTiers,
    ) -> TierJob {
        let SelectingTiers { admin, baseline } = tiers;
        let named = match direction {
            Direction::Egress => NamedPorts::new(),
            Direction::Ingress => {
                let rules = admin.iter().chain(&baseline).flat_map(|selecting| &selecting.policy.ingress);
                resolve_named(rules.map(|rule| &rule.ports), pod)
            }
        };
        let groups = group_addresses(own_node);
        let (place, policies, own_labels) = (ProgramHook::Forward, None, None);
        TierJob { place, direction, purpose, admin, baseline, named, policies, own_labels, groups }
    }

    /// Leads a pending program to the pending program of the pod's NetworkPolicies.
    pub(in crate::translate) fn lead_to(&mut self, policies: Option<Name>) {
        self.policies = policies.map(|chain| (AuditRole::Pending, chain));
    }

    pub(in crate::translate) fn role(&self) -> AuditRole {
        match self.purpose {
            Purpose::Decides(_) => AuditRole::Enforced,
            Purpose::Pending => AuditRole::Pending,
        }
    }

    /// Whether it isolates the pods.
    pub(in crate::translate) fn enforcement(&self) -> Enforcement {
        let has_enforced = match &self.policies {
            Some((role, _)) => role.enforcement() == Enforcement::Enforce,
            None => false,
        };
        let decides = has_enforced || !self.admin.is_empty() || !self.baseline.is_empty();
        if decides { self.role().enforcement() } else { Enforcement::Audit }
    }

    /// The program for flows of the same pods to their own node; `None` if no rule can decide about them.
    pub(in crate::translate) fn at_own_node(&self, own_labels: Option<&Labels>) -> Option<TierJob> {
        let mut selecting = self.admin.iter().chain(&self.baseline);
        let judged = self.direction == Direction::Egress && selecting.any(SelectingTierPolicy::reaches_beyond_pods);
        let own_labels = own_labels.cloned();
        let purpose = Purpose::Decides(None);
        judged.then(|| TierJob { place: ProgramHook::OwnNode, purpose, policies: None, own_labels, ..self.clone() })
    }

    pub(super) fn rules(&self, selecting: &[SelectingTierPolicy]) -> JobRules {
        let of = |ends| TierRules::of(self.direction, selecting, &self.named, ends);
        let distinguishes = || selecting.iter().any(|s| s.distinguishes_unknown_pods(self.direction));
        match self.place {
            ProgramHook::Forward => JobRules {
                known: of(OtherEnds::ByAddress(&self.groups)),
                unknown: distinguishes().then(|| of(OtherEnds::UnknownPods)),
            },
            ProgramHook::OwnNode => JobRules { known: of(OtherEnds::OwnNode(self.own_labels.as_ref())), unknown: None },
        }
    }

    pub(in crate::translate) fn chain(&self) -> Name {
        let TierJob { place, direction, purpose, admin, baseline, named, policies, own_labels: _, groups: _ } = self;
        let of_tier = |selecting: &[SelectingTierPolicy]| {
            let selecting = selecting.iter().map(|s| (s.policy.name.name.clone(), s.certain));
            selecting.collect::<Vec<(Arc<str>, bool)>>()
        };
        let policies = policies.as_ref().map(|(_, chain)| chain.as_str());
        let pending = match purpose {
            Purpose::Decides(pending) => pending.as_ref().map(Name::as_str),
            Purpose::Pending => None,
        };
        let role = ChainRole::TierProgram(*place, *direction, self.role());
        names::tier_program(role, &of_tier(admin), &of_tier(baseline), policies, named, pending)
    }

    /// Whether both compile to the same program. Jobs of the same chain only differ if a policy does, or the labels or
    /// the pod ranges of this node.
    pub(in crate::translate) fn is_same(&self, other: &TierJob) -> bool {
        let are_same = are_same(&self.admin, &other.admin) && are_same(&self.baseline, &other.baseline);
        are_same && self.own_labels == other.own_labels && self.groups == other.groups
    }

    /// The cluster policies, in the order of evaluation.
    pub(in crate::translate) fn policies(&self) -> Vec<ObjectName> {
        self.admin.iter().chain(&self.baseline).map(|selecting| selecting.policy.name.clone()).collect()
    }
}

/// The rules of a tier.
pub(super) struct JobRules {
    /// For addresses of pods and nodes that are known, and for addresses outside.
    pub(super) known: TierRules,
    /// For addresses of pods that are not known yet; `None` if their decisions are those of addresses outside.
    pub(super) unknown: Option<TierRules>,
}

impl JobRules {
    /// Whether no flow is decided.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.unknown.as_ref().is_none_or(TierRules::is_empty)
    }
}
