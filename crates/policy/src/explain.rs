//! Explains why a flow is allowed or denied: each side's verdict, the policies that isolate, the rule that allows and,
//! if none does, the closest rule and what it lacks; and the rules of ClusterNetworkPolicies that decide, or pass it.
//!
//! Policies are evaluated rule by rule as their author wrote them, while the translator merges them. Tests verify that
//! the two agree.

mod mismatch;
mod named;
mod text;
mod tiers;

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use nft::Protocol;
use serde::{Deserialize, Serialize};

pub use named::{NamedTraffic, NotTraffic, PartyError, PartyName, explain_named};
pub use tiers::ClusterRuleName;

use crate::isolating_policies::IsolatingPolicies;
use crate::remote::{RemoteLabels, RemoteSet};
use crate::{Attachment, ClusterState, Direction, Holder, Pod, Policy, PolicyRule, RuleAction, Tier};
use mismatch::Lack;
use tiers::AuditedPolicies;

/// The protocol and port of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Traffic {
    /// A protocol with ports, and the destination port.
    Port(Protocol, u16),
    /// ICMP and every other protocol that has no ports.
    Portless,
}

/// One end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEnd {
    /// The address in the packet after destination translation.
    pub address: IpAddr,
    /// `namespace/name` of the pod that has the address.
    pub pod: Option<String>,
    /// The node where the pod runs or, if the address is not a pod's, the node that has the address.
    pub node: Option<String>,
    /// `cluster/namespace/name` of the remote sets that contain the address; empty if a pod of this cluster has it.
    /// Omitted from JSON if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<String>,
}

/// The verdict of one side of a flow.
///
/// As JSON it is `{"verdict": "not-a-pod"}`, with the variant's name in kebab case, and the variant's fields beside it
/// in camel case: `{"verdict": "denied", "isolatedBy": ["shop/api"], "closest": null, "wouldAllow": []}`. Policies are
/// `namespace/name`, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum SideVerdict {
    /// The address is not a pod's: no policy applies on this side.
    NotAPod,
    /// No NetworkPolicy selects the pod in this direction, and no rule of a ClusterNetworkPolicy decides.
    NotIsolated,
    /// The pod reaches itself through a Service: NetworkPolicies do not deny it, and no rule of a ClusterNetworkPolicy
    /// decides.
    Itself,
    /// The other end is the pod's own node: NetworkPolicies do not apply between the two, and no rule of a
    /// ClusterNetworkPolicy decides about what the pod sends.
    OwnNode,
    /// A rule of an enforced policy allows it.
    #[serde(rename_all = "camelCase")]
    Allowed {
        /// Enforced policies that select the pod.
        isolated_by: Vec<String>,
        /// The first rule that allows the flow.
        rule: RuleName,
    },
    /// Enforced policies isolate the pod, and none of their rules allows it.
    #[serde(rename_all = "camelCase")]
    Denied {
        /// Enforced policies that select the pod.
        isolated_by: Vec<String>,
        /// The rule that lacks the least; `None` if the policies have no rules in the direction.
        closest: Option<NearMiss>,
        /// Rules of audited policies that would allow it if they were enforced.
        would_allow: Vec<RuleName>,
    },
    /// All policies that select the pod are audited, and one of their rules allows it. It passes.
    #[serde(rename_all = "camelCase")]
    WouldAllow {
        /// Audited policies that select the pod.
        audited_by: Vec<String>,
        /// The first rule that allows the flow.
        rule: RuleName,
    },
    /// All policies that select the pod are audited, and none of their rules allows it. It passes, and would be denied
    /// if they were enforced.
    #[serde(rename_all = "camelCase")]
    WouldDeny {
        /// The audited policies that select the pod or, where an audited ClusterNetworkPolicy would pass the flow to
        /// them, the enforced ones.
        audited_by: Vec<String>,
        /// As in [`SideVerdict::Denied`].
        closest: Option<NearMiss>,
    },
    /// A rule of an enforced ClusterNetworkPolicy accepts it.
    Accepted {
        /// The deciding rule.
        rule: ClusterRuleName,
    },
    /// A rule of an enforced ClusterNetworkPolicy denies it.
    DeniedByRule {
        /// The deciding rule.
        rule: ClusterRuleName,
    },
    /// No enforced policy decides, and a rule of an audited ClusterNetworkPolicy would accept it. It passes.
    WouldAccept {
        /// The rule that would decide.
        rule: ClusterRuleName,
    },
    /// It passes, and a rule of a ClusterNetworkPolicy would deny it if the audited policies were enforced.
    WouldDenyByRule {
        /// The rule that would decide.
        rule: ClusterRuleName,
    },
    /// The pod's object is invalid or unknown.
    Unreadable {
        /// The problem, for people.
        reason: String,
    },
}

/// `spec.ingress[index]` or `spec.egress[index]` of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleName {
    /// `namespace/name` of the NetworkPolicy.
    pub policy: String,
    /// `spec.ingress[index]` or `spec.egress[index]`.
    pub field: String,
}

/// A rule that does not allow the flow, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearMiss {
    /// The rule that does not allow the flow.
    pub rule: RuleName,
    /// Each unmet condition, for people, with the labels or ports that the flow has.
    pub lacks: Vec<String>,
}

/// The verdicts of both sides of a flow, each of which is judged on its own. JSON of `ringfence explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The end that opens the flow.
    pub source: FlowEnd,
    /// The end that receives the flow, after destination translation.
    pub destination: FlowEnd,
    /// `80/tcp`, or `icmp` for protocols without ports.
    pub traffic: String,
    /// Whether it passes, which includes flows that audited policies would deny.
    pub allowed: bool,
    /// The verdict for the source.
    pub egress: SideVerdict,
    /// The verdict for the destination.
    pub ingress: SideVerdict,
    /// The rules of ClusterNetworkPolicies that passed the flow to the next tier, on the side of the source. Omitted
    /// from JSON if empty.
    #[serde(rename = "egressPassedBy", default, skip_serializing_if = "Vec::is_empty")]
    pub egress_passed_by: Vec<ClusterRuleName>,
    /// Like `egress_passed_by`, on the side of the destination.
    #[serde(rename = "ingressPassedBy", default, skip_serializing_if = "Vec::is_empty")]
    pub ingress_passed_by: Vec<ClusterRuleName>,
}

/// Explains the first packet of a flow between two addresses, after destination translation. A flow of a pod to itself
/// is one through a Service: what a pod sends to its own address does not leave it.
pub fn explain(state: &ClusterState, source: IpAddr, destination: IpAddr, traffic: Traffic) -> Explanation {
    let flow = ExplainedFlow {
        state,
        source: ExplainedEnd::of(state, source),
        destination: ExplainedEnd::of(state, destination),
        traffic,
    };
    let (egress, egress_passed_by) = flow.judge(Direction::Egress);
    let (ingress, ingress_passed_by) = flow.judge(Direction::Ingress);
    Explanation {
        source: flow.source.party(),
        destination: flow.destination.party(),
        traffic: traffic.to_string(),
        allowed: egress.allows() && ingress.allows(),
        egress,
        ingress,
        egress_passed_by,
        ingress_passed_by,
    }
}

/// The verdict of one side, and the rules of ClusterNetworkPolicies that passed the flow to the next tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedSide {
    /// As in [`Explanation`].
    pub verdict: SideVerdict,
    /// The rules of ClusterNetworkPolicies that passed the flow to the next tier.
    pub passed_by: Vec<ClusterRuleName>,
}

/// Explains one side: the egress of the source, or the ingress of the destination.
pub fn explain_side(
    state: &ClusterState,
    source: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
    side: Direction,
) -> ExplainedSide {
    let flow = ExplainedFlow {
        state,
        source: ExplainedEnd::of(state, source),
        destination: ExplainedEnd::of(state, destination),
        traffic,
    };
    let (verdict, passed_by) = flow.judge(side);
    ExplainedSide { verdict, passed_by }
}

/// A note on the rule about domain names that may allow a flow whose egress is denied; `None` if there is none. Only the
/// agent of the pod's node knows learned addresses, so explanations of manifests lack what they allow.
pub fn explain_domain_names(state: &ClusterState, explanation: &Explanation) -> Option<String> {
    let Explanation { source, destination, traffic, egress, .. } = explanation;
    if egress.allows() {
        return None;
    }
    let traffic = match traffic.parse().ok()? {
        NamedTraffic::Number(protocol, port) => Traffic::Port(protocol, port),
        NamedTraffic::Portless => Traffic::Portless,
        NamedTraffic::Name(..) => return None,
    };
    let [source, destination] = [source, destination].map(|party| ExplainedEnd::of(state, party.address));
    let flow = ExplainedFlow { state, source, destination, traffic };
    let pod = flow.source.pod?;
    let is_denied_by_baseline = matches!(egress, SideVerdict::DeniedByRule { rule } if rule.tier == Tier::Baseline);
    let tiers = std::iter::once(Tier::Admin).chain(is_denied_by_baseline.then_some(Tier::Baseline));
    let rule = tiers.into_iter().find_map(|tier| flow.accepting_if_learned(pod, tier))?;
    let address = flow.destination.address;
    Some(format!(
        "{rule} allows it if {address} was learned for one of its domain names, which only the agent of the pod's node \
         knows"
    ))
}

impl Explanation {
    /// True if the flow passes but would be denied if the audited policies of one side were enforced.
    pub fn would_be_denied(&self) -> bool {
        self.allowed && (self.egress.would_deny() || self.ingress.would_deny())
    }
}

impl SideVerdict {
    /// Whether this side allows the flow.
    pub fn allows(&self) -> bool {
        match self {
            SideVerdict::NotAPod
            | SideVerdict::NotIsolated
            | SideVerdict::Itself
            | SideVerdict::OwnNode
            | SideVerdict::Allowed { .. }
            | SideVerdict::WouldAllow { .. }
            | SideVerdict::WouldDeny { .. }
            | SideVerdict::Accepted { .. }
            | SideVerdict::WouldAccept { .. }
            | SideVerdict::WouldDenyByRule { .. } => true,
            SideVerdict::Denied { .. } | SideVerdict::DeniedByRule { .. } | SideVerdict::Unreadable { .. } => false,
        }
    }

    /// Whether an audited policy would deny the flow, which passes.
    pub fn would_deny(&self) -> bool {
        matches!(self, SideVerdict::WouldDeny { .. } | SideVerdict::WouldDenyByRule { .. })
    }
}

struct ExplainedEnd<'a> {
    address: IpAddr,
    pod: Option<&'a Arc<Pod>>,
    /// A pod was attached here with the address, and its object is not known.
    unknown: Option<&'a Arc<Attachment>>,
    /// Cache of [`ExplainedEnd::may_be_unknown_pod`], whose computation reads every node.
    may_be_unknown_pod: OnceCell<bool>,
    /// The nodes that have the address, if it is not a pod's.
    nodes: Vec<&'a Arc<str>>,
    /// The remote sets that contain the address, if it is not a pod's of this cluster.
    remote: Vec<(&'a RemoteSet, &'a RemoteLabels)>,
}

impl<'a> ExplainedEnd<'a> {
    fn of(state: &'a ClusterState, address: IpAddr) -> ExplainedEnd<'a> {
        let of_pod = |pod, unknown| ExplainedEnd {
            address,
            pod,
            unknown,
            may_be_unknown_pod: OnceCell::new(),
            nodes: vec![],
            remote: vec![],
        };
        match state.holder(address) {
            None => ExplainedEnd {
                nodes: state.nodes_with(address).collect(),
                remote: state.labelled_remote_sets_with(address).collect(),
                ..of_pod(None, None)
            },
            Some(Holder::Pod(pod)) => of_pod(Some(pod), None),
            Some(Holder::Unknown(attachment)) => of_pod(None, Some(attachment)),
        }
    }

    /// Whether a pod that is not known yet may have the address.
    fn may_be_unknown_pod(&self, state: &ClusterState) -> bool {
        *self.may_be_unknown_pod.get_or_init(|| state.may_be_unknown_pod(self.address))
    }

    fn party(&self) -> FlowEnd {
        FlowEnd {
            address: self.address,
            pod: self.pod.map(|p| p.name.to_string()),
            node: self.node().map(|node| node.to_string()),
            remote: self.remote.iter().map(|(set, _)| set.to_string()).collect(),
        }
    }

    fn node(&self) -> Option<&'a Arc<str>> {
        match self.pod {
            Some(pod) => pod.node.as_ref(),
            None => self.nodes.first().copied(),
        }
    }
}

struct ExplainedFlow<'a> {
    state: &'a ClusterState,
    source: ExplainedEnd<'a>,
    destination: ExplainedEnd<'a>,
    traffic: Traffic,
}

impl<'a> ExplainedFlow<'a> {
    /// The verdict of a side, and the rules that passed the flow to the next tier.
    fn judge(&self, direction: Direction) -> (SideVerdict, Vec<ClusterRuleName>) {
        let (own, other) = match direction {
            Direction::Egress => (&self.source, &self.destination),
            Direction::Ingress => (&self.destination, &self.source),
        };
        let is_itself = own.address == other.address;
        if let Some(attachment) = own.unknown {
            if is_itself && !self.state.has_enforced_cluster_policies() {
                return (SideVerdict::Itself, vec![]);
            }
            let reason =
                format!("pod {} is attached to this node, but its object has not been received", attachment.pod);
            return (SideVerdict::Unreadable { reason }, vec![]);
        }
        let Some(pod) = own.pod else { return (SideVerdict::NotAPod, vec![]) };
        let at_own_node = pod.node.as_ref().is_some_and(|node| other.nodes.contains(&node));
        if at_own_node && direction == Direction::Ingress {
            return (SideVerdict::OwnNode, vec![]);
        }
        let exempt = match (is_itself, at_own_node) {
            (true, _) => Some(Exempt::Itself),
            (false, true) => Some(Exempt::OwnNode),
            (false, false) => None,
        };
        let judging =
            JudgedSide { pod, direction, other, isolating: IsolatingPolicies::of(self.state, pod, direction), exempt };
        if pod.unreadable && is_itself && !self.state.may_be_judged_by_cluster_policies(pod, direction) {
            return (SideVerdict::Itself, vec![]);
        }
        if pod.unreadable && !at_own_node {
            let reason = pod.problems.first().map_or_else(String::new, |p| format!("{}: {}", p.field, p.message));
            return (SideVerdict::Unreadable { reason }, vec![]);
        }
        let mut passed_by = Vec::new();
        let decider = self.decider(&judging, AuditedPolicies::Ignored, &mut passed_by);
        (self.verdict(&judging, decider), passed_by)
    }

    /// The decider, tier by tier. Adds the rules that pass the flow to the next tier to `passed_by`.
    fn decider(&self, judging: &JudgedSide, audited: AuditedPolicies, passed_by: &mut Vec<ClusterRuleName>) -> Decider {
        let JudgedSide { pod, direction, other, isolating, exempt } = judging;
        let mut by_tier = |tier| {
            let rule = self.decisive(pod, tier, *direction, other, audited)?;
            match rule.action {
                RuleAction::Accept | RuleAction::Deny => Some(Decider::Rule(rule)),
                RuleAction::Pass => {
                    passed_by.push(rule);
                    None
                }
            }
        };
        if let Some(decider) = by_tier(Tier::Admin) {
            return decider;
        }
        let is_isolated = match audited {
            AuditedPolicies::Ignored => !isolating.enforced.is_empty(),
            AuditedPolicies::Included => !isolating.is_empty(),
        };
        match (is_isolated, exempt) {
            (true, None) => Decider::Policies,
            (true, Some(Exempt::OwnNode | Exempt::Itself)) => Decider::Nothing,
            (false, _) => by_tier(Tier::Baseline).unwrap_or(Decider::Nothing),
        }
    }

    fn verdict(&self, judging: &JudgedSide, enforced: Decider) -> SideVerdict {
        let JudgedSide { isolating, direction, other, exempt, pod: _ } = judging;
        let reaches_itself = *exempt == Some(Exempt::Itself);
        let with_audited = || self.decider(judging, AuditedPolicies::Included, &mut vec![]);
        match enforced {
            Decider::Rule(rule) if rule.action == RuleAction::Deny => SideVerdict::DeniedByRule { rule },
            Decider::Rule(rule) => self.would_deny(judging, with_audited()).unwrap_or(SideVerdict::Accepted { rule }),
            Decider::Policies => {
                let isolated_by = names(&isolating.enforced);
                match self.judged_by(&isolating.enforced, *direction, other) {
                    Union::Allows(rule) => {
                        self.would_deny(judging, with_audited()).unwrap_or(SideVerdict::Allowed { isolated_by, rule })
                    }
                    Union::Denies(closest) => {
                        let would_allow = self.allowing(&isolating.audited, *direction, other);
                        SideVerdict::Denied { isolated_by, closest, would_allow }
                    }
                }
            }
            Decider::Nothing if reaches_itself && !isolating.enforced.is_empty() => {
                self.would_deny(judging, with_audited()).unwrap_or(SideVerdict::Itself)
            }
            Decider::Nothing => match with_audited() {
                Decider::Rule(rule) if rule.action == RuleAction::Deny => SideVerdict::WouldDenyByRule { rule },
                Decider::Rule(rule) => SideVerdict::WouldAccept { rule },
                Decider::Policies => {
                    let audited_by = names(&isolating.audited);
                    match self.judged_by(&isolating.audited, *direction, other) {
                        Union::Allows(rule) => SideVerdict::WouldAllow { audited_by, rule },
                        Union::Denies(closest) => SideVerdict::WouldDeny { audited_by, closest },
                    }
                }
                Decider::Nothing if *exempt == Some(Exempt::OwnNode) => SideVerdict::OwnNode,
                Decider::Nothing if reaches_itself && !isolating.is_empty() => SideVerdict::Itself,
                Decider::Nothing => SideVerdict::NotIsolated,
            },
        }
    }

    /// The verdict on a flow that passes but would be denied if the audited policies were enforced; `None` otherwise.
    fn would_deny(&self, judging: &JudgedSide, with_audited: Decider) -> Option<SideVerdict> {
        let JudgedSide { isolating, direction, other, .. } = judging;
        match with_audited {
            Decider::Rule(rule) if rule.action == RuleAction::Deny => Some(SideVerdict::WouldDenyByRule { rule }),
            Decider::Policies => {
                let policies = match isolating.enforced.is_empty() {
                    true => &isolating.audited,
                    false => &isolating.enforced,
                };
                match self.judged_by(policies, *direction, other) {
                    Union::Allows(_) => None,
                    Union::Denies(closest) => Some(SideVerdict::WouldDeny { audited_by: names(policies), closest }),
                }
            }
            Decider::Rule(_) | Decider::Nothing => None,
        }
    }

    /// The verdict of the union of the policies: the first rule that allows, or the closest one.
    fn judged_by(&self, policies: &[&Arc<Policy>], direction: Direction, other: &ExplainedEnd) -> Union {
        let mut closest: Option<(Lack, &Policy, &PolicyRule)> = None;
        for (policy, rule) in rules(policies, direction) {
            let lack = self.lack(direction, policy, rule, other);
            if lack.is_none() {
                return Union::Allows(RuleName::of(policy, direction, rule));
            }
            if closest.is_none_or(|(least, ..)| lack.size() < least.size()) {
                closest = Some((lack, policy, rule));
            }
        }
        Union::Denies(closest.map(|(lack, policy, rule)| NearMiss {
            rule: RuleName::of(policy, direction, rule),
            lacks: self.in_words(lack, policy, rule, other),
        }))
    }

    /// Every rule that allows the flow.
    fn allowing(&self, policies: &[&Arc<Policy>], direction: Direction, other: &ExplainedEnd) -> Vec<RuleName> {
        let allows = |(policy, rule): &(&Policy, &PolicyRule)| self.lack(direction, policy, rule, other).is_none();
        let allowing = rules(policies, direction).filter(allows);
        allowing.map(|(policy, rule)| RuleName::of(policy, direction, rule)).collect()
    }
}

/// A pod's side of a flow.
struct JudgedSide<'a> {
    pod: &'a Pod,
    direction: Direction,
    other: &'a ExplainedEnd<'a>,
    isolating: IsolatingPolicies<'a>,
    exempt: Option<Exempt>,
}

/// Flows that NetworkPolicies do not restrict. If NetworkPolicies isolate the pod, the Baseline tier does not decide either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exempt {
    /// The other end is the pod's own node.
    OwnNode,
    /// Both ends are the pod.
    Itself,
}

/// The decider of a side of a flow.
enum Decider {
    /// A rule that accepts or denies.
    Rule(ClusterRuleName),
    /// The NetworkPolicies that select the pod.
    Policies,
    Nothing,
}

/// The verdict of a union of policies on a flow.
enum Union {
    Allows(RuleName),
    Denies(Option<NearMiss>),
}

fn rules<'a>(
    policies: &'a [&'a Arc<Policy>],
    direction: Direction,
) -> impl Iterator<Item = (&'a Policy, &'a PolicyRule)> {
    let of = move |policy: &&'a Arc<Policy>| {
        let policy: &Policy = policy;
        policy.rules(direction).unwrap_or(&[]).iter().map(move |rule| (policy, rule))
    };
    policies.iter().flat_map(of)
}

fn names(policies: &[&Arc<Policy>]) -> Vec<String> {
    policies.iter().map(|policy| policy.name.to_string()).collect()
}

impl RuleName {
    fn of(policy: &Policy, direction: Direction, rule: &PolicyRule) -> RuleName {
        let field = format!("spec.{}[{}]", direction.as_str(), rule.index);
        RuleName { policy: policy.name.to_string(), field }
    }
}
