//! Explains why a flow is allowed or denied: each side's verdict, the policies that isolate, the rule that allows and,
//! if none does, the closest rule and what it lacks.
//!
//! Policies are evaluated rule by rule as their author wrote them, while the translator merges them. Tests verify that
//! the two agree.

mod lacks;
mod named;
mod text;

use std::net::IpAddr;
use std::sync::Arc;

use nft::Protocol;
use serde::{Deserialize, Serialize};

pub use named::{NamedTraffic, NotTraffic, PartyName, Unexplained, explain_named};

use crate::isolating::Isolating;
use crate::remote::{RemoteLabels, RemoteSet};
use crate::{Attachment, ClusterState, Direction, Holder, Pod, Policy, PolicyRule};
use lacks::Lack;

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
pub struct Party {
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
    /// No policy selects the pod in this direction.
    NotIsolated,
    /// A pod may always reach itself.
    Itself,
    /// The other end is the pod's own node: no policy applies between the two.
    OwnNode,
    /// A rule of an enforced policy allows it.
    #[serde(rename_all = "camelCase")]
    Allowed { isolated_by: Vec<String>, rule: RuleName },
    /// Enforced policies isolate the pod, and none of their rules allows it.
    #[serde(rename_all = "camelCase")]
    Denied {
        isolated_by: Vec<String>,
        closest: Option<NearMiss>,
        /// Rules of audited policies that would allow it if they were enforced.
        would_allow: Vec<RuleName>,
    },
    /// All policies that select the pod are audited, and one of their rules allows it. It passes.
    #[serde(rename_all = "camelCase")]
    WouldAllow { audited_by: Vec<String>, rule: RuleName },
    /// All policies that select the pod are audited, and none of their rules allows it. It passes, and would be denied
    /// if they were enforced.
    #[serde(rename_all = "camelCase")]
    WouldDeny { audited_by: Vec<String>, closest: Option<NearMiss> },
    /// The pod's object is invalid or unknown.
    Unreadable { reason: String },
}

/// `spec.ingress[index]` or `spec.egress[index]` of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleName {
    pub policy: String,
    pub field: String,
}

/// A rule that does not allow the flow, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearMiss {
    pub rule: RuleName,
    pub lacks: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub source: Party,
    pub destination: Party,
    /// `80/tcp`, or `icmp` for protocols without ports.
    pub traffic: String,
    /// Whether it passes, which includes flows that audited policies would deny.
    pub allowed: bool,
    pub egress: SideVerdict,
    pub ingress: SideVerdict,
}

/// Explains the first packet of a flow between two addresses, after destination translation.
pub fn explain(state: &ClusterState, source: IpAddr, destination: IpAddr, traffic: Traffic) -> Explanation {
    let flow = Flow { state, source: End::of(state, source), destination: End::of(state, destination), traffic };
    let egress = flow.judge(Direction::Egress);
    let ingress = flow.judge(Direction::Ingress);
    Explanation {
        source: flow.source.party(),
        destination: flow.destination.party(),
        traffic: traffic.to_string(),
        allowed: egress.allows() && ingress.allows(),
        egress,
        ingress,
    }
}

/// The verdict of one side: the egress of the source, or the ingress of the destination.
pub fn explain_side(
    state: &ClusterState,
    source: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
    side: Direction,
) -> SideVerdict {
    Flow { state, source: End::of(state, source), destination: End::of(state, destination), traffic }.judge(side)
}

impl Explanation {
    /// It passes, and would not if the audited policies of one of its sides were enforced.
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
            | SideVerdict::WouldDeny { .. } => true,
            SideVerdict::Denied { .. } | SideVerdict::Unreadable { .. } => false,
        }
    }

    fn would_deny(&self) -> bool {
        matches!(self, SideVerdict::WouldDeny { .. })
    }
}

struct End<'a> {
    address: IpAddr,
    pod: Option<&'a Arc<Pod>>,
    /// A pod was attached here with the address, and its object is not known.
    unknown: Option<&'a Arc<Attachment>>,
    /// The nodes that have the address, if it is not a pod's.
    nodes: Vec<&'a Arc<str>>,
    /// The remote sets that contain the address, if it is not a pod's of this cluster.
    remote: Vec<(&'a RemoteSet, &'a RemoteLabels)>,
}

impl<'a> End<'a> {
    fn of(state: &'a ClusterState, address: IpAddr) -> End<'a> {
        let of_pod = |pod, unknown| End { address, pod, unknown, nodes: vec![], remote: vec![] };
        match state.holder(address) {
            None => End {
                nodes: state.nodes_with(address).collect(),
                remote: state.seen_with(address).collect(),
                ..of_pod(None, None)
            },
            Some(Holder::Pod(pod)) => of_pod(Some(pod), None),
            Some(Holder::Unknown(attachment)) => of_pod(None, Some(attachment)),
        }
    }

    fn party(&self) -> Party {
        Party {
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

struct Flow<'a> {
    state: &'a ClusterState,
    source: End<'a>,
    destination: End<'a>,
    traffic: Traffic,
}

impl<'a> Flow<'a> {
    fn judge(&self, direction: Direction) -> SideVerdict {
        let (own, other) = match direction {
            Direction::Egress => (&self.source, &self.destination),
            Direction::Ingress => (&self.destination, &self.source),
        };
        if let Some(attachment) = own.unknown.filter(|_| own.address != other.address) {
            let reason =
                format!("pod {} is attached to this node, but its object has not been received", attachment.pod);
            return SideVerdict::Unreadable { reason };
        }
        let Some(pod) = own.pod else { return SideVerdict::NotAPod };
        if pod.node.as_ref().is_some_and(|node| other.nodes.contains(&node)) {
            return SideVerdict::OwnNode;
        }
        let isolating = Isolating::of(self.state, pod, direction);
        if isolating.is_empty() && !pod.unreadable {
            return SideVerdict::NotIsolated;
        }
        if own.address == other.address {
            return SideVerdict::Itself;
        }
        if pod.unreadable {
            let reason = pod.problems.first().map_or_else(String::new, |p| format!("{}: {}", p.field, p.message));
            return SideVerdict::Unreadable { reason };
        }
        let Isolating { enforced, audited } = isolating;
        if enforced.is_empty() {
            let audited_by = names(&audited);
            return match self.judged_by(&audited, direction, other) {
                Union::Allows(rule) => SideVerdict::WouldAllow { audited_by, rule },
                Union::Denies(closest) => SideVerdict::WouldDeny { audited_by, closest },
            };
        }
        let isolated_by = names(&enforced);
        match self.judged_by(&enforced, direction, other) {
            Union::Allows(rule) => SideVerdict::Allowed { isolated_by, rule },
            Union::Denies(closest) => {
                let would_allow = self.allowing(&audited, direction, other);
                SideVerdict::Denied { isolated_by, closest, would_allow }
            }
        }
    }

    /// The verdict of the union of the policies: the first rule that allows, or the closest one.
    fn judged_by(&self, policies: &[&Arc<Policy>], direction: Direction, other: &End) -> Union {
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
    fn allowing(&self, policies: &[&Arc<Policy>], direction: Direction, other: &End) -> Vec<RuleName> {
        let allows = |(policy, rule): &(&Policy, &PolicyRule)| self.lack(direction, policy, rule, other).is_none();
        let allowing = rules(policies, direction).filter(allows);
        allowing.map(|(policy, rule)| RuleName::of(policy, direction, rule)).collect()
    }
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
        let field = format!("spec.{}[{}]", direction.word(), rule.index);
        RuleName { policy: policy.name.to_string(), field }
    }
}
